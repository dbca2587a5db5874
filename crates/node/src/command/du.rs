//! `hydrafs du`: what a tree takes, counted by its daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::info::Held;
use super::number;
use super::sync::{itself, mount_of};
use super::tree::{tell_failed, write_pages_back};
use crate::control::wire::Request;
use crate::failure::Failure;

/// Show how much the files below a directory of a mount hold, much faster than du(1). A file with several names counts once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs du /mnt/data                  files, directories and bytes\n  \
    hydrafs du --json /mnt/*/             one after the other, for programs\n  \
    hydrafs du /mnt/.snapshots/monday     of a snapshot\n\n\
    Bytes are those of the files, as `ls -l` and as du(1) count them; what they take on the disks is less where content is the same or\n\
    shrinks: see `hydrafs status`.\n\
    Exit code: 0, or 1 if something could not be read: each path is named on standard error, and in the JSON.")]
pub(super) struct Arguments {
    /// Where to count.
    #[arg(default_value = ".")]
    paths: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const WHAT: &str = "cannot count";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (mut answers, mut lost, mut failures) = (Vec::new(), 0, 0);
    for path in &arguments.paths {
        let mut answer = match ask(path) {
            Ok(answer) => answer,
            Err(failure) if arguments.paths.len() == 1 => return Err(failure),
            // The others are counted.
            Err(failure) => {
                super::remark(&format!("{WHAT}: {}; {}", path.display(), failure.why));
                answers.push(json!({ "path": path.display().to_string(), "why": failure.why }));
                failures += 1;
                continue;
            }
        };
        lost += tell_failed(path, &mut answer);
        if !arguments.json {
            lines(path, &answer).iter().for_each(super::say);
        }
        answer["path"] = json!(path.display().to_string());
        answers.push(answer);
    }
    if arguments.json {
        super::say_json(&json!(answers));
    }
    if failures > 0 {
        let why = format!("{failures} of {} could not be looked at", arguments.paths.len());
        return Err(Failure::new("not everything was counted", why).mend("they are named above"));
    }
    if lost == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new("not everything was counted", format!("{lost} could not be read"))
        .mend("they are named above; see `hydrafs fsck`"))
}

fn ask(path: &Path) -> Result<Value, Failure> {
    let mount = mount_of(itself(path))?;
    let held = Held::of(path, WHAT, &mount)?;
    write_pages_back(&mount.point);
    let (bar, answer) = super::with_bar_of(|progress| held.ask(&Request::Usage { inode: held.inode }, progress));
    bar.finish_and_clear();
    answer.map_err(|failure| failure.at(path))
}

fn lines(path: &Path, answer: &Value) -> Vec<String> {
    let count = |pointer: &str| number(answer, pointer);
    vec![
        path.display().to_string(),
        format!("  {} in {} files", Bytes(count("/bytes")), count("/files")),
        format!("  {} without holes", Bytes(count("/allocated_bytes"))),
        format!("  {} directories, {} others", count("/directories"), count("/others")),
    ]
}
