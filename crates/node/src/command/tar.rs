//! `hydrafs tar`: archives of trees of a mount, and trees of archives, as streams and by batches.
//!
//! The format is tar's: what this writes tar(1) reads, and the other way round.

mod archive;
mod create;
mod extract;

#[cfg(test)]
pub(crate) use self::archive::tests::TARGET as ARCHIVE;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use platform::real;
use serde_json::json;

use crate::failure::Failure;

/// Make a tar archive of files and directories of a mount, or extract one into it: as tar(1), and much faster where files are small.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true), after_help = "Examples:\n  \
    hydrafs tar -c -C /mnt data | zstd > data.tar.zst     files come in the order in which they lie on the disks\n  \
    zstd -dc data.tar.zst | hydrafs tar -x -C /mnt        all of it is on the disks when this ends\n  \
    hydrafs tar -c -f out.tar -C /mnt/.snapshots/monday .  of a snapshot\n  \
    hydrafs tar -c -C /mnt/data -T batch.txt | tar -x      what a list names, each path once, however it is ordered\n\n\
    A listed directory comes with all that is in it. A list of more than 2 MiB goes in parts: further names of a file whose first one was\n\
    in another part are files of their own.\n\
    Owners are numbers. Times are whole seconds, as in archives of GNU tar. It needs the daemon's socket: root, or who runs it; who is not\n\
    root extracts files of his own.\n\
    Exit code: 0, or 1 if something was left out or is not whole; each is named on standard error.")]
pub(super) struct Arguments {
    /// Make an archive.
    #[arg(short = 'c', long, group = "what")]
    create: bool,
    /// Extract an archive, over what is there.
    #[arg(short = 'x', long, group = "what")]
    extract: bool,
    /// The archive; `-` is standard output or input.
    #[arg(short = 'f', long, default_value = "-", value_name = "ARCHIVE")]
    file: PathBuf,
    /// The directory of the mount that names begin in.
    #[arg(short = 'C', long, default_value = ".", value_name = "DIR")]
    directory: PathBuf,
    /// What to put into the archive.
    names: Vec<PathBuf>,
    /// Take paths from this file too, one on each line; `-` is standard input.
    #[arg(short = 'T', long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// A zero is behind each path of that file instead of a line's end, as `find -print0` and `hydrafs walk -0` write them.
    #[arg(long, requires = "files_from")]
    null: bool,
    /// Extended attributes and access lists too.
    #[arg(long)]
    xattrs: bool,
    /// Print JSON, to standard error where standard output has the archive.
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Default)]
struct Outcome {
    entries: u64,
    bytes: u64,
    /// Of an extraction: units, each of which is there as a whole.
    units: u64,
    failed: Vec<(PathBuf, String)>,
    failures: u64,
    /// Why it ended before its end. What came before is whole.
    broken: Option<Failure>,
}

/// Failures that the answer for programs lists.
const LISTED_MAX: usize = 100_000;

impl Outcome {
    fn fail(&mut self, path: PathBuf, why: impl std::fmt::Display) {
        super::remark(&format!("{}; {why}", path.display()));
        self.failures += 1;
        if self.failed.len() < LISTED_MAX {
            self.failed.push((path, why.to_string()));
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    real::give_way();
    let outcome = if arguments.create { create::create(arguments)? } else { extract::extract(arguments)? };
    if arguments.json {
        let failed = outcome.failed.iter();
        let failed = failed.map(|(path, why)| json!({ "path": path.display().to_string(), "why": why }));
        let answer = json!({
            "entries": outcome.entries,
            "bytes": outcome.bytes,
            "units": outcome.units,
            "failures": outcome.failures,
            "failed": failed.collect::<Vec<_>>(),
            "is_cut": outcome.broken.is_some(),
        });
        if arguments.create && arguments.file.as_os_str() == "-" {
            super::remark_plain(&answer.to_string());
        } else {
            super::say_json(&answer);
        }
    }
    if let Some(failure) = outcome.broken {
        return Err(failure);
    }
    match outcome.failures {
        0 => Ok(ExitCode::SUCCESS),
        failures => {
            let why = format!("{failures} failed and {} are there", outcome.entries);
            Err(Failure::new("the archive is not whole", why).mend("the failed ones are named above"))
        }
    }
}
