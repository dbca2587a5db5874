//! `hydrafs rm`: removes trees at once; their room comes back behind.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::info::Held;
use super::path_list::Lines;
use super::sync::{mount_of, sync};
use super::tree::tell_failed;
use super::{is_dot, number};
use crate::control::wire::{NAMES_BYTES_MAX, Name, Request};
use crate::failure::Failure;
use crate::mounts::{self, Mount};

/// Remove files and whole directories of a mount. A directory is gone when this returns, whatever it holds; its room comes back behind.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs rm -r /mnt/build              gone in milliseconds, whatever its size\n  \
    hydrafs rm -r --dry-run /mnt/old      say what would go\n  \
    hydrafs walk -0 --name '*.o' /mnt/src | hydrafs rm --null --files-from -   what a list names\n\n\
    What a process has open it keeps until it closes it. Snapshots keep what they show. It needs the daemon's socket: root, or who runs it.\n\
    Exit code: 0, or 1 if something was not removed; each is named on standard error.")]
pub(super) struct Arguments {
    /// What to remove.
    #[arg(required_unless_present = "files_from")]
    paths: Vec<PathBuf>,
    /// Take paths from this file too, one on each line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// A zero is behind each path of that file instead of a line's end, as `find -print0` and `hydrafs walk -0` write them.
    #[arg(long, requires = "files_from")]
    null: bool,
    /// Directories too, with everything below them.
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// What is not there is no failure.
    #[arg(short, long)]
    force: bool,
    /// Only say what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const WHAT: &str = "cannot remove";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut paths = arguments.paths.clone();
    if let Some(list) = &arguments.files_from {
        let mut lines = Lines::open(list, arguments.null)?;
        while let Some(path) = lines.next()? {
            paths.push(path);
        }
        // Those of one directory go together. What lies below another goes before it: both are wanted gone.
        paths.sort_by_cached_key(|path| {
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            Reverse((parent_of(&whole).to_owned(), whole))
        });
        paths.dedup();
    }
    let mut outcome = Outcome::default();
    for paths in paths.chunk_by(|one, next| parent_of(one) == parent_of(next)) {
        outcome.remove(arguments, paths);
    }
    let Outcome { removed, mut failures, mounts, seconds } = outcome;
    if arguments.dry_run {
        for (path, usage) in removed.iter().filter(|(_, usage)| number(usage, "/failed") > 0) {
            let why = format!("{} of what lies below it could not be read", number(usage, "/failed"));
            let failure = Failure::new("not all of it was counted", why).at(path).mend("see `hydrafs fsck`");
            super::remark(&failure.to_string());
            failures.push((path, failure));
        }
    } else {
        for mount in &mounts {
            if let Err(failure) = sync(mount) {
                super::remark(&format!("a crash may bring back what was removed: {failure}"));
                failures.push((mount.as_path(), failure));
            }
        }
    }
    if arguments.json {
        let path = |path: &Path| json!(path.display().to_string());
        let failed = failures.iter().map(|(at, failure)| json!({ "path": path(at), "why": failure.why }));
        super::say_json(&json!({
            "dry_run": arguments.dry_run,
            "seconds": seconds,
            "removed": removed.iter().map(|(at, answer)| json!({ "path": path(at), "usage": answer })).collect::<Vec<_>>(),
            "failed": failed.collect::<Vec<_>>(),
        }));
    } else if arguments.dry_run {
        removed.iter().for_each(|(path, usage)| super::say(words(path, usage)));
    }
    match failures.len() {
        0 => Ok(ExitCode::SUCCESS),
        count => Err(Failure::new("not everything was removed", format!("{count} failed and {} went", removed.len()))
            .mend("the failed ones are named above")),
    }
}

/// What came of it.
#[derive(Default)]
struct Outcome<'a> {
    removed: Vec<(&'a Path, Value)>,
    failures: Vec<(&'a Path, Failure)>,
    /// Where something went.
    mounts: BTreeSet<PathBuf>,
    /// What the daemon took for it.
    seconds: f64,
}

impl<'a> Outcome<'a> {
    fn fail(&mut self, path: &'a Path, failure: Failure) {
        super::remark(&failure.to_string());
        self.failures.push((path, failure));
    }

    /// Removes names of one directory.
    fn remove(&mut self, arguments: &Arguments, paths: &'a [PathBuf]) {
        let mut home = None;
        let mut names = Vec::new();
        for path in paths {
            let looked = match looked_at(arguments, path) {
                Ok(None) => continue,
                Ok(Some(looked)) => home
                    .get_or_insert_with(|| Home::of(path))
                    .as_ref()
                    .map_err(|failure: &Failure| failure.clone().at(path))
                    .and_then(|home| home.check(path, looked).map(|()| (home, Name::new(looked.name.as_bytes())))),
                Err(failure) => Err(failure),
            };
            match looked {
                Ok((home, _)) if arguments.dry_run => match home.usage(path) {
                    Ok(usage) => self.removed.push((path, usage)),
                    Err(failure) => self.fail(path, failure),
                },
                Ok((_, name)) => names.push((path.as_path(), name)),
                Err(failure) => self.fail(path, failure),
            }
        }
        let Some(Ok(home)) = home else { return };
        let mut rest = names.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, name): &&(&Path, Name)| {
                bytes += name.line_bytes();
                bytes <= NAMES_BYTES_MAX
            };
            let (some, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = others;
            self.remove_some(arguments, &home, some);
        }
    }

    /// Removes as many as fit a request.
    fn remove_some(&mut self, arguments: &Arguments, home: &Home, some: &[(&'a Path, Name)]) {
        let asked = Held::open(&home.directory, WHAT).and_then(|held| {
            let names = some.iter().map(|(_, name)| name.clone()).collect();
            let recursive = arguments.recursive;
            held.ask(&Request::BatchRemove { parent: held.inode, names, recursive }, super::remark)
        });
        // Also where the answer was lost: some of them may be gone.
        self.mounts.insert(home.mount.point.clone());
        let answer = match asked {
            Ok(answer) => answer,
            Err(failure) => return some.iter().for_each(|(path, _)| self.fail(path, failure.clone().at(path))),
        };
        self.seconds += answer["seconds"].as_f64().unwrap_or(0.0);
        let mut fates: Vec<Option<&Value>> = vec![None; some.len()];
        for fate in answer["failed"].as_array().into_iter().flatten() {
            let place = fate["place"].as_u64().and_then(|place| usize::try_from(place).ok());
            if let Some(place) = place.and_then(|place| fates.get_mut(place)) {
                *place = Some(fate);
            }
        }
        for ((path, _), fate) in some.iter().zip(fates) {
            match fate {
                None => self.removed.push((path, Value::Null)),
                Some(fate) if arguments.force && fate["absent"] == true => {}
                Some(fate) => {
                    let unread = || Failure::new(WHAT, "the daemon does not say why in a form that is known");
                    let failure = serde_json::from_value(fate["failure"].clone()).unwrap_or_else(|_| unread());
                    self.fail(path, failure.at(path));
                }
            }
        }
    }
}

/// A name that is there, and whether it is a directory's.
#[derive(Clone, Copy)]
struct Looked<'a> {
    name: &'a OsStr,
    is_directory: bool,
}

/// `None`: it is not there, and that is no failure.
fn looked_at<'a>(arguments: &Arguments, path: &'a Path) -> Result<Option<Looked<'a>>, Failure> {
    let refuse = |why: &str| Failure::new(WHAT, why).at(path);
    let found = match fs::symlink_metadata(path) {
        Err(error) if arguments.force && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        found => found.map_err(|error| refuse(&error.to_string()))?,
    };
    if is_dot(path) {
        return Err(refuse("it is named by `.` or `..`").mend("name it by its path"));
    }
    let name = path.file_name().ok_or_else(|| refuse("it has no name of its own").mend("name it by its path"))?;
    if found.is_dir() && !arguments.recursive {
        return Err(refuse("it is a directory").mend("remove it with everything below it with -r"));
    }
    Ok(Some(Looked { name, is_directory: found.is_dir() }))
}

/// The directory that names are in.
struct Home {
    /// Without symbolic links.
    directory: PathBuf,
    mount: Mount,
    /// Where something is mounted.
    points: Vec<PathBuf>,
}

impl Home {
    /// That of a path.
    fn of(path: &Path) -> Result<Home, Failure> {
        let cannot = |error| Failure::new(WHAT, error).at(path);
        let directory = parent_of(path).canonicalize().map_err(cannot)?;
        let mount = mount_of(&directory)?;
        let points = mounts::read()?.into_iter().map(|other| other.point).collect();
        Ok(Home { directory, mount, points })
    }

    /// Whether a name in it may go.
    fn check(&self, path: &Path, looked: Looked<'_>) -> Result<(), Failure> {
        let refuse = |why: &str| Failure::new(WHAT, why).at(path);
        let whole = self.directory.join(looked.name);
        if looked.is_directory && fs::symlink_metadata(&whole).is_ok_and(|found| found.is_symlink()) {
            let refused = refuse("it is a symbolic link, named with a slash: that is the directory it leads to");
            return Err(refused.mend("name it without the slash, or the directory by its own path"));
        }
        if self.mount.has("ro") {
            return Err(refuse("it is mounted read-only"));
        }
        if self.points.iter().any(|point| point.starts_with(&whole)) {
            return Err(refuse("something is mounted there").mend("unmount that first"));
        }
        Ok(())
    }

    /// What would go with it.
    fn usage(&self, path: &Path) -> Result<Value, Failure> {
        let whole = path.file_name().map_or_else(|| self.directory.clone(), |name| self.directory.join(name));
        let held = Held::of(&whole, WHAT, &self.mount)?;
        let mut answer = held.ask(&Request::Usage { inode: held.inode }, |_| {})?;
        tell_failed(path, &mut answer);
        Ok(answer)
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

fn words(path: &Path, usage: &Value) -> String {
    let count = |pointer: &str| number(usage, pointer);
    let (files, directories) = (count("/files") + count("/others"), count("/directories"));
    format!("{}: {files} files and {directories} directories, {}", path.display(), Bytes(count("/bytes")))
}
