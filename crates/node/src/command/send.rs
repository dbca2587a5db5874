//! `hydrafs send`: writes a snapshot, or its difference to an earlier one, for another node of the dedup domain.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::Value;

use super::{number, text};
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::start::{self, Access};

/// Write a snapshot to standard output, for `hydrafs receive` on another node of the same dedup domain. With --from only what the
/// receiver, who has that one, lacks.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs send ./node monday | ssh backup hydrafs receive /srv/node\n  \
    hydrafs send ./node tuesday --from monday | ssh backup hydrafs receive /srv/node\n  \
    hydrafs send ./node tuesday --from monday --dry-run          say how much that would be\n  \
    hydrafs send ./node tuesday --resume 5120-0123456789ab | …   go on where the receiver says that it was cut\n\n\
    Nodes share a dedup domain when one was made with the key of the other: see `hydrafs domain --help`. The content is not\n\
    encrypted on its way. A snapshot of a directory takes the other files of its moment along.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// The snapshot.
    snapshot: String,
    /// An earlier snapshot, which the receiver has.
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
    /// Go on where a stream of the same snapshots was cut, as the receiver said.
    #[arg(long, value_name = "PLACE")]
    resume: Option<String>,
    /// Only say what would go.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: to standard error, unless it is a dry run.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    const WHAT: &str = "cannot send the snapshot";
    let Arguments { snapshot, from, resume, dry_run, .. } = arguments;
    if !dry_run && io::stdout().is_terminal() {
        return Err(Failure::new(WHAT, "standard output is a terminal")
            .mend("send it into a pipe: `hydrafs send … | hydrafs receive NODE`, or a file"));
    }
    let folder = NodeFolder::open(&arguments.node)?;
    let access = Access::open(&folder, None)?;
    remark_on_directory(&access, snapshot)?;
    let request =
        Request::Send { snapshot: snapshot.clone(), from: from.clone(), resume: resume.clone(), dry_run: *dry_run };
    let (bar, answer) = if *dry_run {
        super::with_bar_of(|progress| access.ask(request, progress))
    } else {
        let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| Failure::new(WHAT, error))?;
        super::with_bar_of(|progress| start::send_to(&access, request, out, progress))
    };
    bar.finish_and_clear();
    let closed = access.close();
    let answer = answer.and_then(|answer| closed.map(|()| answer))?;
    show(arguments, &answer);
    Ok(ExitCode::SUCCESS)
}

/// Who shares a directory may not mean to share what lies beside it.
fn remark_on_directory(access: &Access<'_>, name: &str) -> Result<(), Failure> {
    let list = access.ask(Request::SnapshotList {}, super::remark)?;
    let snapshots = list["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = snapshots.iter().find(|snapshot| text(snapshot, "/name") == name);
    if let Some(path) = found.map(|snapshot| text(snapshot, "/of")).filter(|path| !matches!(*path, "" | "/")) {
        super::remark(&format!("the snapshot is of {path}; the other files of its moment go with it"));
    }
    Ok(())
}

fn show(arguments: &Arguments, answer: &Value) {
    if arguments.json {
        let text = serde_json::to_string_pretty(answer).expect("a JSON value can be written");
        if arguments.dry_run {
            super::say(text)
        } else {
            super::remark_plain(&text)
        }
        return;
    }
    let (chunks, bytes) = (number(answer, "/chunks"), number(answer, "/bytes"));
    if arguments.dry_run {
        super::say(format!("would send {chunks} chunks, {}", Bytes(bytes)));
    } else {
        super::remark(&format!("sent {chunks} chunks, {}", super::rate(bytes, answer)));
    }
}
