//! `hydrafs warmup`: reads trees into the daemon's memory, so that who reads them next waits for no disk.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::info::Held;
use super::sync::mount_of;
use super::tree::{below, write_pages_back};
use super::{number, rate, with_bar_of};
use crate::control::client::Daemon;
use crate::control::wire::{Name, Request};
use crate::failure::Failure;

/// Read files and directories of a mount into its daemon's memory, in the order in which they lie: who reads them next waits for no disk.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs warmup /mnt/src                    names, attributes and content\n  \
    hydrafs warmup --metadata /mnt             names and attributes only: before find(1), `ls -lR` or rsync(1)\n  \
    hydrafs warmup /mnt/.snapshots/monday/db   of a snapshot\n\n\
    It ends when the memory is full instead of pushing out what it has just read, and says how much there was room for: see `memory.budget`.\n\
    What it reads stays until others need the room. It needs the daemon's socket: root, or who runs it.\n\
    Exit code: 0, also if memory is full; 1 if it ended early, or something could not be read: each path is named on standard error, and in\n\
    the JSON.")]
pub(super) struct Arguments {
    /// Files and directories of one mount.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Names and attributes only.
    #[arg(long)]
    metadata: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const WHAT: &str = "cannot warm up";
const ENDED_EARLY: &str = "ended early: the node was closed";
/// Their numbers fit a request.
const PATHS_MAX: usize = 500;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.paths.len() > PATHS_MAX {
        let why = format!("{} paths are more than {PATHS_MAX}", arguments.paths.len());
        return Err(Failure::new(WHAT, why).mend("name the directory that they are in"));
    }
    let Roots { files, inodes, paths, lost, daemon } = hold(&arguments.paths)?;
    let request = Request::Warmup { inodes, metadata: arguments.metadata };
    let (bar, answer) = with_bar_of(|progress| daemon.ask(&request, progress));
    bar.finish_and_clear();
    drop(files);
    let mut answer = answer?;
    let failed = [lost, failures(&paths, &answer)].concat();
    failed.iter().for_each(|(path, why)| super::remark(&format!("cannot read: {}; {why}", path.display())));
    if arguments.json {
        answer["failed"] =
            failed.iter().map(|(path, why)| json!({ "path": path.display().to_string(), "why": why })).collect();
        super::say_json(&answer);
    } else {
        lines(&answer).iter().for_each(super::say);
    }
    match failed.len() {
        0 if is_cut(&answer) => Err(Failure::new("not everything was read", ENDED_EARLY)),
        0 => Ok(ExitCode::SUCCESS),
        count => Err(Failure::new("not everything was read", format!("{count} could not be read"))
            .mend("they are named above; see `hydrafs fsck`")),
    }
}

/// What is to be warmed, of one mount.
struct Roots {
    files: Vec<OwnedFd>,
    inodes: Vec<u64>,
    paths: Vec<PathBuf>,
    /// What is not there, and why.
    lost: Vec<(PathBuf, String)>,
    daemon: Daemon,
}

/// All of them, which lie in one mount: held, their numbers, and its daemon. What is not there keeps nobody from the others.
fn hold(all: &[PathBuf]) -> Result<Roots, Failure> {
    let (mut files, mut inodes, mut first) = (Vec::new(), Vec::new(), None);
    let (mut paths, mut lost, mut failure) = (Vec::new(), Vec::new(), None);
    for path in all {
        let found = mount_of(path).and_then(|mount| Held::of(path, WHAT, &mount).map(|held| (mount, held)));
        let (mount, held) = match found {
            Ok(found) => found,
            Err(why) => {
                lost.push((path.clone(), why.why.clone()));
                failure.get_or_insert(why);
                continue;
            }
        };
        let first = first.get_or_insert_with(|| mount.clone());
        if mount.point != first.point {
            let why = format!("it lies in {}, and others in {}", mount.point.display(), first.point.display());
            return Err(Failure::new(WHAT, why).at(path).mend("warm one mount at a time"));
        }
        files.push(held.file);
        inodes.push(held.inode);
        paths.push(path.clone());
    }
    let Some(first) = first else { return Err(failure.expect("clap asks for one at least")) };
    write_pages_back(&first.point);
    Ok(Roots { files, inodes, paths, lost, daemon: Daemon::of(&first.source, first.device)? })
}

/// What cannot be read, and why.
fn failures(paths: &[PathBuf], answer: &Value) -> Vec<(PathBuf, String)> {
    let failed = answer["failed"].as_array().into_iter().flatten();
    let each = failed.filter_map(|failed| {
        let (root, name, why): (usize, Name, String) = serde_json::from_value(failed.clone()).ok()?;
        Some((below(paths.get(root).map(PathBuf::as_path).unwrap_or(Path::new("")), name.bytes()), why))
    });
    each.collect()
}

/// Whether it ended before its end, for another reason than that memory is full.
fn is_cut(answer: &Value) -> bool {
    answer["complete"] != json!(true) && answer["full"] != json!(true)
}

fn lines(answer: &Value) -> Vec<String> {
    let count = |pointer: &str| number(answer, pointer);
    let (files, directories) = (count("/files") + count("/others"), count("/directories"));
    let what = match answer["metadata"] == json!(true) {
        true => format!("attributes of {files} files"),
        false => format!("{files} files"),
    };
    let seconds = answer["seconds"].as_f64().unwrap_or_default();
    let each = (files as f64 / seconds.max(1e-3)) as u64;
    let bytes = match answer["metadata"] == json!(true) {
        true => format!("{seconds:.1} s"),
        false => rate(count("/bytes"), answer),
    };
    let mut lines = vec![format!("{what} and {directories} directories are in memory: {bytes}, {each} files/s")];
    let held = format!("{} of the {} that it may hold", Bytes(count("/held_bytes")), Bytes(count("/room_bytes")));
    if answer["full"] == json!(true) {
        lines.push(format!(
            "memory is full ({held}): the rest is not read; `memory.budget` in the settings says how large it is"
        ));
    } else if is_cut(answer) {
        lines.push(ENDED_EARLY.to_owned());
    } else {
        lines.push(format!("memory holds {held}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::{failures, is_cut, lines};

    #[test]
    fn it_says_how_much_there_was_room_for() {
        let mut answer = json!({
            "metadata": false, "complete": true, "full": false, "files": 100, "others": 1, "directories": 3,
            "bytes": 10 << 20, "seconds": 2.0, "held_bytes": 11 << 20, "room_bytes": 20 << 20,
        });
        assert_eq!(
            lines(&answer),
            [
                "101 files and 3 directories are in memory: 10.00 MiB in 2.0 s (5.00 MiB/s), 50 files/s",
                "memory holds 11.00 MiB of the 20.00 MiB that it may hold"
            ]
        );
        (answer["complete"], answer["full"]) = (json!(false), json!(true));
        assert!(
            lines(&answer)[1].starts_with("memory is full (11.00 MiB of the 20.00 MiB that it may hold): the rest")
        );
        assert!(!is_cut(&answer), "a full memory is no failure");
        answer["full"] = json!(false);
        assert!(is_cut(&answer) && lines(&answer)[1].starts_with("ended early"));
        answer["metadata"] = json!(true);
        assert!(lines(&answer)[0].starts_with("attributes of 101 files and 3 directories are in memory: 2.0 s"));
    }

    #[test]
    fn what_failed_is_named_by_its_path() {
        let answer = json!({ "failed": [[1, "a/b", "damaged"], [0, "", "gone"], [0, [255], "odd"]] });
        let failed: Vec<String> = failures(&[PathBuf::from("/m/x"), PathBuf::from("y")], &answer)
            .iter()
            .map(|(path, _)| path.display().to_string())
            .collect();
        assert_eq!(failed, ["y/a/b", "/m/x", "/m/x/\u{fffd}"]);
    }
}
