//! `hydrafs optimize`: small files that lie scattered are written next to each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::info::Held;
use super::sync::sync;
use super::tree::tell_failed;
use super::{check_share, number, with_bar_of};
use crate::control::wire::Request;
use crate::failure::Failure;

/// Write the small files below directories of a mount next to each other where they lie scattered: trees are read faster then.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs optimize --dry-run /mnt/photos     how scattered they lie, and what it would write\n  \
    hydrafs optimize /mnt/photos               do it, as fast as it goes\n  \
    hydrafs optimize --share 10 /mnt           leave most of the time to who uses the node\n\n\
    Files that were written one by one over weeks lie where the disks were at that time. Nothing changes but where they lie, and programs\n\
    go on meanwhile; the room that they took before comes back in the background. What lies together already is not written again.\n\
    What waits for a commit is committed first. A run is what is read by one request. Files of more than 1 MiB are read fast\n\
    wherever they lie, and are left alone.\n\
    By itself a node does this once in `storage.layout_interval`, if that is set. It needs the daemon's socket: root, or who runs it.\n\
    Exit code: 0, or 1 if something could not be read, it ended early, or nothing could be done; each path is named on standard error.")]
pub(super) struct Arguments {
    /// Directories of a mount.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Only say how they lie, and what would be written.
    #[arg(long)]
    dry_run: bool,
    /// Percentage of the time that it may take; the rest belongs to who uses the node.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    share: u8,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const WHAT: &str = "cannot bring files together";
const ENDED_EARLY: &str = "ended early: the node was closed";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    check_share(Some(arguments.share), WHAT)?;
    let (mut answers, mut failures, mut is_cut) = (Vec::new(), 0, false);
    for path in &arguments.paths {
        match optimize(arguments, path) {
            Ok(mut answer) => {
                failures += tell_failed(path, &mut answer);
                is_cut |= answer["complete"] != json!(true);
                if !arguments.json {
                    lines(path, &answer).iter().for_each(super::say);
                }
                answer["path"] = json!(path.display().to_string());
                answers.push(answer);
            }
            Err(failure) => {
                super::remark(&failure.to_string());
                failures += 1;
            }
        }
    }
    if arguments.json {
        super::say_json(&json!(answers));
    }
    let what = "not everything was looked at";
    match failures {
        0 if is_cut => Err(Failure::new(what, ENDED_EARLY)),
        0 => Ok(ExitCode::SUCCESS),
        _ => {
            let why = format!("{failures} paths could not be looked at");
            Err(Failure::new(what, why).mend("see above, and `hydrafs fsck`"))
        }
    }
}

fn optimize(arguments: &Arguments, path: &Path) -> Result<Value, Failure> {
    let refuse = |why: &str| Failure::new(WHAT, why).at(path);
    let found = std::fs::symlink_metadata(path).map_err(|error| refuse(&error.to_string()))?;
    if !found.is_dir() {
        return Err(refuse("it is no directory").mend("name the directory that it is in"));
    }
    let held = Held::open(path, WHAT)?;
    let Arguments { dry_run, share, .. } = *arguments;
    // What is in the kernel's memory alone lies nowhere yet.
    sync(path)?;
    let request = Request::Optimize { inode: held.inode, dry_run, share };
    let (bar, answer) = with_bar_of(|progress| held.ask(&request, progress));
    bar.finish_and_clear();
    answer.map_err(|failure| if failure.place.is_empty() { failure.at(path) } else { failure })
}

fn lines(path: &Path, answer: &Value) -> Vec<String> {
    let count = |pointer: &str| number(answer, pointer);
    let (files, before, after, least) =
        (count("/files"), count("/runs_before"), count("/runs_after"), count("/runs_min"));
    let bytes = Bytes(count("/bytes"));
    let what = match (answer["dry_run"] == json!(true), bytes.0) {
        (_, 0) => format!("{files} small files lie in {before} runs; {least} is the least, and there is nothing to do"),
        (true, _) => {
            format!("{files} small files lie in {before} runs; {least} is the least; {bytes} would be written")
        }
        (false, _) => format!("{files} small files lay in {before} runs, now in {after}; {bytes} were written"),
    };
    let mut lines = vec![format!("{}: {what}", path.display())];
    if count("/failed") > 0 {
        lines.push(format!("  {} files or directories cannot be read, and stay as they lie", count("/failed")));
    }
    if answer["complete"] != json!(true) {
        lines.push(format!("  {ENDED_EARLY}; another run looks at all of it again, and writes the rest"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::lines;

    #[test]
    fn what_came_of_it_is_said_in_a_sentence() {
        let mut answer = json!({
            "dry_run": false, "complete": true, "files": 12_000, "failed": 0,
            "runs_before": 9_800, "runs_after": 41, "runs_min": 40, "bytes": 48 << 20,
        });
        let path = Path::new("/m/a");
        assert_eq!(
            lines(path, &answer),
            ["/m/a: 12000 small files lay in 9800 runs, now in 41; 48.00 MiB were written"]
        );
        answer["dry_run"] = json!(true);
        assert_eq!(
            lines(path, &answer),
            ["/m/a: 12000 small files lie in 9800 runs; 40 is the least; 48.00 MiB would be written"]
        );
        (answer["bytes"], answer["failed"], answer["complete"]) = (json!(0), json!(2), json!(false));
        let text = lines(path, &answer).join("\n");
        for part in ["there is nothing to do", "2 files or directories cannot be read", "ended early"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
