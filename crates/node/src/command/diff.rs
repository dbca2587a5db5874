//! `hydrafs diff`: in what two trees of a mount differ, as its daemon finds it: past all that they share.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use file::{Aspect, Kind};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use super::info::Held;
use super::sync::mount_of;
use super::tree::{garbled, word, write_pages_back};
use crate::control::batch::client::{BatchReader, Comparing};
use crate::control::batch::wire::{Change, Record, State};
use crate::control::client::Daemon;
use crate::failure::Failure;

/// Show in what two directories or files of a mount differ, snapshots and clones among them, without reading what they share.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs diff /mnt/.snapshots/monday /mnt             what was changed since\n  \
    hydrafs diff --summary /mnt/.snapshots/monday/home /mnt/.snapshots/tuesday/home   how much\n  \
    hydrafs diff --json /mnt/template /mnt/clone         a line of JSON for each path\n  \
    hydrafs diff -q --content-only /mnt/a /mnt/copy-of-a && echo equal\n\n\
    `- PATH` is only in A, `+ PATH` only in B, `M PATH (what)` in both and not the same. What is below a directory that is in one of them only\n\
    is listed too. Paths come in no particular order, but a directory before what is in it. Times of directories, numbers of links and access\n\
    times are not compared.\n\
    Two states of the same files (snapshots, the present, a clone and its source) take the time of what was changed. Other trees are walked\n\
    in full, and of their content only what lies in different chunks is read. It needs the daemon's socket: root, or who runs it.\n\
    Exit code: 0 if they are equal, 1 if not, 2 if that cannot be said.")]
pub(super) struct Arguments {
    /// What was.
    #[arg(value_name = "A")]
    before: PathBuf,
    /// What is.
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Say nothing: the exit code tells.
    #[arg(short, long)]
    quiet: bool,
    /// Only kinds, content, link targets and device numbers: no owners, modes, times, extended attributes.
    #[arg(long)]
    content_only: bool,
    /// Only how many files and bytes.
    #[arg(long, conflicts_with = "quiet")]
    summary: bool,
    /// Print JSON: an object on a line for each path, or one with the summary.
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

const WHAT: &str = "cannot compare";
/// As diff(1) says it.
const EQUAL: u8 = 0;
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    arguments.compare().map_err(|failure| failure.code(TROUBLE))
}

/// How much differs.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, state: &State) {
        match state.kind {
            Kind::Regular => {
                self.files += 1;
                self.bytes += state.size;
            }
            Kind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
    }

    fn describe(&self) -> Value {
        let Count { files, directories, others, bytes } = self;
        json!({ "files": files, "directories": directories, "others": others, "bytes": bytes })
    }

    fn line(&self, what: &str) -> String {
        let Count { files, directories, others, bytes } = self;
        format!("{what:<8} {files} files ({}), {directories} directories, {others} others", Bytes(*bytes))
    }
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    removed: Count,
    added: Count,
    changed: Count,
    lost: u64,
}

impl Found {
    fn add(&mut self, change: &Change) {
        match (&change.before, &change.after) {
            (Some(before), None) => self.removed.add(before),
            (None, Some(after)) => self.added.add(after),
            (_, Some(after)) => self.changed.add(after),
            (None, None) => {}
        }
    }

    fn is_none(&self) -> bool {
        let all = [self.removed, self.added, self.changed];
        all.iter().all(|count| count.files + count.directories + count.others == 0)
    }
}

impl Arguments {
    fn compare(&self) -> Result<ExitCode, Failure> {
        let (mut reader, _held) = self.begin()?;
        let bar = self.bar();
        let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let mut found = Found::default();
        while let Some(records) = reader.next_window_telling(&mut |text| bar.set_message(text.to_owned()))? {
            for record in records {
                match record.map_err(garbled)? {
                    Record::Change(change) => {
                        found.add(&change);
                        if self.quiet && found.lost == 0 {
                            // Who hangs up ends it.
                            return Ok(ExitCode::from(DIFFERENT));
                        }
                        if let Err(error) = self.list(&mut out, &change) {
                            return ended(error);
                        }
                    }
                    Record::Lost { path, why } => {
                        found.lost += 1;
                        super::remark(&format!("cannot compare: {}; {why}", shown(&path)));
                    }
                    _ => {}
                }
            }
            if let Err(error) = out.flush() {
                return ended(error);
            }
        }
        bar.finish_and_clear();
        drop(out);
        if self.summary {
            self.sum_up(&found, reader.summary().unwrap_or(&Value::Null));
        }
        if found.lost > 0 {
            let why = format!("{} paths could not be read", found.lost);
            return Err(Failure::new("not everything was compared", why).mend("see `hydrafs fsck`"));
        }
        Ok(ExitCode::from(if found.is_none() { EQUAL } else { DIFFERENT }))
    }

    /// Finds the two, and asks the daemon. They are held meanwhile.
    fn begin(&self) -> Result<(BatchReader, [Held; 2]), Failure> {
        let [before, after] = [&self.before, &self.after].map(|path| {
            let found = mount_of(path);
            found.map_err(|failure| Failure { what: WHAT.to_owned(), ..failure }.mend(self.by_reading()))
        });
        let (before, after) = (before?, after?);
        if (&before.point, &before.source) != (&after.point, &after.source) {
            let why = format!("{} lies on another mount, {}", self.before.display(), before.point.display());
            return Err(Failure::new(WHAT, why).at(&self.after).mend(self.by_reading()));
        }
        let held = [Held::open(&self.before, WHAT)?, Held::open(&self.after, WHAT)?];
        write_pages_back(&after.point);
        let [before, after_inode] = [held[0].inode, held[1].inode];
        let comparing = Comparing { before, after: after_inode, content_only: self.content_only };
        let reader = BatchReader::compare(Daemon::of(&after.source, after.device)?, &comparing)?;
        Ok((reader, held))
    }

    fn by_reading(&self) -> String {
        let (before, after) = (self.before.display(), self.after.display());
        format!("both lie below one mount of HydraFS here; `diff -r --no-dereference {before} {after}` reads both")
    }

    /// For a person who sees nothing else.
    fn bar(&self) -> ProgressBar {
        let is_seen = self.summary || !io::stdout().is_terminal();
        let target = if is_seen && !self.quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        ProgressBar::with_draw_target(None, target)
    }

    fn list(&self, out: &mut impl Write, change: &Change) -> io::Result<()> {
        if self.quiet || self.summary {
            return Ok(());
        }
        if self.json {
            return writeln!(out, "{}", describe(change));
        }
        let (sign, what) = match (&change.before, &change.after) {
            (Some(_), None) => ("-", String::new()),
            (None, _) => ("+", String::new()),
            _ => ("M", format!(" ({})", words(&change.what).join(", "))),
        };
        write!(out, "{sign} ")?;
        out.write_all(if change.path.is_empty() { b"." } else { &change.path })?;
        writeln!(out, "{what}")
    }

    fn sum_up(&self, found: &Found, answer: &Value) {
        let Found { removed, added, changed, lost } = found;
        if self.json {
            return super::say_json(&json!({
                "removed": removed.describe(),
                "added": added.describe(),
                "changed": changed.describe(),
                "failed": lost,
                "looked_at": answer["looked_at"],
                "searched_names": answer["searched_names"],
                "seconds": answer["seconds"],
            }));
        }
        for (what, count) in [("removed", removed), ("added", added), ("changed", changed)] {
            super::say(count.line(what));
        }
        let looked_at = super::number(answer, "/looked_at");
        let seconds = answer["seconds"].as_f64().unwrap_or_default();
        super::say(format!("looked at {looked_at} files and directories of both, in {:.1} ms", seconds * 1e3));
    }
}

/// Nobody reads any more: that something differs is known by then.
fn ended(error: io::Error) -> Result<ExitCode, Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(ExitCode::from(DIFFERENT)),
        _ => Err(Failure::new("cannot write the list", error)),
    }
}

fn shown(path: &[u8]) -> std::borrow::Cow<'_, str> {
    if path.is_empty() { ".".into() } else { String::from_utf8_lossy(path) }
}

fn words(what: &[Aspect]) -> Vec<&'static str> {
    let word = |aspect: &Aspect| match aspect {
        Aspect::Kind => "kind",
        Aspect::Content => "content",
        Aspect::Target => "target",
        Aspect::Device => "device",
        Aspect::Mode => "mode",
        Aspect::Owner => "owner",
        Aspect::Time => "time",
        Aspect::Xattrs => "xattrs",
    };
    what.iter().map(word).collect()
}

fn describe(change: &Change) -> Value {
    let state = |state: &Option<State>| match state {
        Some(State { kind, mode, uid, gid, size, inode, .. }) => json!({
            "kind": word(*kind), "mode": format!("{mode:04o}"), "uid": uid, "gid": gid, "size": size, "inode": inode,
        }),
        None => Value::Null,
    };
    let how = match (&change.before, &change.after) {
        (Some(_), None) => "removed",
        (None, _) => "added",
        _ => "changed",
    };
    json!({
        "path": shown(&change.path),
        "change": how,
        "what": words(&change.what),
        "before": state(&change.before),
        "after": state(&change.after),
    })
}
