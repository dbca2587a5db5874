//! `hydrafs walk`: lists a tree, or what of it matches, as its daemon reads it: in bulk, and past the kernel.

mod glob;

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::time::Timestamp;
use clap::{Args, ValueEnum};
use file::Kind;
use serde_json::json;

use self::glob::matches;
use super::tree::{Tree, Wanted, garbled, word};
use crate::control::batch::wire::{Entry, Leads, Record};
use crate::failure::Failure;

/// List a tree of a mount, or what of it matches, much faster than find(1): directories and inodes are read in bulk.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs walk /mnt/data                             every path\n  \
    hydrafs walk --name '*.jpg' --type f --size +1M /mnt   as `find /mnt -name '*.jpg' -type f -size +1M`\n  \
    hydrafs walk -0 --newer /mnt/stamp /mnt | xargs -0 …   what was changed since\n  \
    hydrafs walk --json /mnt/.snapshots/monday         a line of JSON for each, with all attributes\n\n\
    A directory comes before what is in it; what is in it comes in no particular order. It needs the daemon's socket: root, or who runs it.\n\
    Exit code: 0, or 1 if something could not be read; that is named on standard error.")]
pub(super) struct Arguments {
    /// Where to begin.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Only names that match this pattern of the shell.
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,
    /// Only of this kind.
    #[arg(long, value_enum)]
    r#type: Option<OfKind>,
    /// Only what was changed later than this file.
    #[arg(long, value_name = "FILE")]
    newer: Option<PathBuf>,
    /// Only of this size: exactly, at least with a plus, at most with a minus; in bytes, or with k, M, G, T.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true, value_parser = parse_size)]
    size: Option<Size>,
    /// A zero behind each path instead of a line's end.
    #[arg(short = '0', long)]
    zero: bool,
    /// Print JSON: an object on a line for each.
    #[arg(long, conflicts_with = "zero")]
    json: bool,
}

/// Kinds, by their letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OfKind {
    /// Regular files.
    F,
    /// Directories.
    D,
    /// Symbolic links.
    L,
    /// Everything else.
    O,
}

/// A size that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Exactly(u64),
    AtLeast(u64),
    AtMost(u64),
}

/// What is listed.
struct Filter<'a> {
    arguments: &'a Arguments,
    newer: Option<Timestamp>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let newer = arguments.newer.as_deref().map(time_of).transpose()?;
    let filter = Filter { arguments, newer };
    let mut tree = Tree::open(&arguments.path, "cannot walk", Wanted::default())?;
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut lost = 0;
    while let Some(records) = tree.next_window()? {
        for record in records {
            match record.map_err(garbled)? {
                Record::Entry(entry) => {
                    let path = tree.path_of(&entry.path)?;
                    if filter.takes(&entry, &path)
                        && let Err(error) = arguments.list(&mut out, &path, &entry)
                    {
                        return ended(error);
                    }
                }
                Record::Lost { path, why } => {
                    lost += 1;
                    super::remark(&format!("cannot read: {}; {why}", tree.path_of(&path)?.display()));
                }
                _ => {}
            }
        }
    }
    if let Err(error) = out.flush() {
        return ended(error);
    }
    if lost == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new("not everything was listed", format!("{lost} could not be read")).mend("see `hydrafs fsck`"))
}

/// Nobody reads any more, which is no failure; or it is one.
fn ended(error: io::Error) -> Result<ExitCode, Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::new("cannot write the list", error)),
    }
}

fn time_of(path: &Path) -> Result<Timestamp, Failure> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path).map_err(|error| Failure::new("cannot walk", error).at(path))?;
    Ok(Timestamp { seconds: found.mtime(), nanos: u32::try_from(found.mtime_nsec()).unwrap_or(0) })
}

fn parse_size(text: &str) -> Result<Size, String> {
    let (how, rest): (fn(u64) -> Size, &str) = match text.as_bytes().first() {
        Some(b'+') => (Size::AtLeast, &text[1..]),
        Some(b'-') => (Size::AtMost, &text[1..]),
        _ => (Size::Exactly, text),
    };
    let shift = match rest.as_bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        _ => 0,
    };
    let digits = if shift == 0 { rest } else { &rest[..rest.len() - 1] };
    let number: u64 = digits.parse().map_err(|_| "a number, with k, M, G or T behind it".to_owned())?;
    number.checked_mul(1 << shift).map(how).ok_or_else(|| "no file is as large".to_owned())
}

impl Filter<'_> {
    fn takes(&self, entry: &Entry, path: &Path) -> bool {
        let Arguments { name, r#type, size, .. } = self.arguments;
        let is_of_name = name
            .as_ref()
            .is_none_or(|pattern| matches(pattern.as_bytes(), path.file_name().unwrap_or(path.as_os_str()).as_bytes()));
        let is_of_kind = r#type.is_none_or(|wanted| {
            wanted
                == match entry.kind {
                    Kind::Regular => OfKind::F,
                    Kind::Directory => OfKind::D,
                    Kind::Symlink => OfKind::L,
                    _ => OfKind::O,
                }
        });
        let is_of_size = size.is_none_or(|size| match size {
            Size::Exactly(size) => entry.size == size,
            Size::AtLeast(size) => entry.size >= size,
            Size::AtMost(size) => entry.size <= size,
        });
        is_of_name && is_of_kind && is_of_size && self.newer.is_none_or(|newer| entry.modified > newer)
    }
}

impl Arguments {
    fn list(&self, out: &mut impl Write, path: &Path, entry: &Entry) -> io::Result<()> {
        if self.json {
            let line = describe(path, entry);
            return writeln!(out, "{line}");
        }
        out.write_all(path.as_os_str().as_bytes())?;
        out.write_all(if self.zero { b"\0" } else { b"\n" })
    }
}

fn describe(path: &Path, entry: &Entry) -> serde_json::Value {
    let time = |time: Timestamp| json!({ "seconds": time.seconds, "nanoseconds": time.nanos });
    let mut line = json!({
        "path": path.display().to_string(),
        "kind": word(entry.kind),
        "mode": format!("{:04o}", entry.mode),
        "uid": entry.uid,
        "gid": entry.gid,
        "links": entry.links,
        "inode": entry.inode,
        "size": entry.size,
        "allocated_bytes": entry.allocated,
        "modified": time(entry.modified),
        "changed": time(entry.changed),
    });
    if let Leads::Target(target) = &entry.leads {
        line["target"] = json!(String::from_utf8_lossy(target));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{Size, parse_size};

    #[test]
    fn sizes_are_understood_or_refused() {
        assert_eq!(parse_size("+1M"), Ok(Size::AtLeast(1 << 20)));
        assert_eq!((parse_size("-0"), parse_size("7k")), (Ok(Size::AtMost(0)), Ok(Size::Exactly(7 << 10))));
        for wrong in ["", "+", "M", "1x", "--1", "99999999999999T", "1é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
