//! `hydrafs receive`: makes a snapshot of what `hydrafs send` wrote.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{number, text};
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::start::{self, Access};

/// Read a snapshot from standard input, as `hydrafs send` wrote it on another node of the same dedup domain. It appears below
/// .snapshots when all of it is here and was verified, and not before.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    ssh server hydrafs send /srv/node monday | hydrafs receive ./node\n  \
    hydrafs receive ./node --name server-monday < stream\n  \
    cat monday tuesday | hydrafs receive ./node   one after the other\n\n\
    A stream that was cut can go on where it was: the message says how. Until then nothing has changed but that what came takes room.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// The snapshot's name here; the same as there where none is given.
    #[arg(long)]
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    const WHAT: &str = "cannot receive the snapshot";
    if io::stdin().is_terminal() {
        return Err(Failure::new(WHAT, "standard input is a terminal")
            .mend("receive it from a pipe: `hydrafs send … | hydrafs receive NODE`, or a file"));
    }
    let folder = NodeFolder::open(&arguments.node)?;
    let access = Access::open(&folder, None)?;
    let source = io::stdin().as_fd().try_clone_to_owned().map_err(|error| Failure::new(WHAT, error))?;
    let request = Request::Receive { name: arguments.name.clone() };
    let (bar, answer) = super::with_bar_of(|progress| start::receive_from(&access, request, source, progress));
    bar.finish_and_clear();
    let closed = access.close();
    let answer = answer.and_then(|answer| closed.map(|()| answer))?;
    let before = answer["before"].as_array().into_iter().flatten();
    let received = || before.clone().chain([&answer]);
    if arguments.json {
        super::say_json(&answer);
    } else {
        for snapshot in received() {
            super::say(format!("received the snapshot {} of {}", text(snapshot, "/name"), text(snapshot, "/taken")));
            super::say(format!(
                "{} chunks, {} of them were here before; {}",
                number(snapshot, "/chunks"),
                number(snapshot, "/chunks_here_before"),
                super::rate(number(snapshot, "/bytes"), snapshot)
            ));
        }
    }
    let unmet: u64 = received().map(|snapshot| number(snapshot, "/files_on_too_few_disks")).sum();
    if unmet > 0 {
        super::remark(&format!(
            "{unmet} of its files ask for more copies or fragments than there are disks for here: they are stored as the settings say. Add disks \
            (`hydrafs disk add`), clone it and set the policy of the clone"
        ));
    }
    Ok(ExitCode::SUCCESS)
}
