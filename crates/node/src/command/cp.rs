//! `hydrafs cp`: copies files and trees into, out of and within a mount.
//!
//! One walker makes directories and finds work; several workers copy files, because a small file is mostly waiting. Names that
//! depend on others' work come last: hard links, then the attributes of directories from the deepest up.
//!
//! A file that cannot be copied does not stop the rest: it is named on standard error, and the exit code is 1.

mod content;
mod likeness;

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use base::units::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use self::content::Copier;
use super::mount::{dead, is_abandoned};
use crate::failure::Failure;
use crate::mounts;

/// Files that wait for a worker.
const QUEUE_COUNT_MAX: usize = 256;

/// Copy files and directories into, out of or within a mount, with progress. Directories are copied with all they hold.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs cp -a /usr/share /mnt           copy a tree, with owners, modes, times, links, attributes and holes\n  \
    hydrafs cp big.iso /mnt                 one file\n  \
    hydrafs cp /mnt/data /mnt/data2         within a mount chunks are shared: nothing is read or written\n  \
    hydrafs cp -a /mnt/.snapshots/monday/x /mnt/x   restore from a snapshot\n\n\
    Exit code: 0 if all was copied, 1 if something was not; each is named on standard error.")]
pub(super) struct Arguments {
    /// What to copy, and last where to: a new name, or a directory to copy into.
    #[arg(required = true, num_args = 2.., value_names = ["SRC", "DST"])]
    paths: Vec<PathBuf>,
    /// Take over owners, modes, times, extended attributes, access lists and hard links.
    #[arg(long, short)]
    archive: bool,
    /// Accepted for those who are used to it: directories are always copied whole.
    #[arg(short = 'r', short_alias = 'R', hide = true)]
    recursive: bool,
    /// Files to copy at a time.
    #[arg(long, short, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// No progress bar and no summary.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (target, sources) = arguments.paths.split_last().expect("clap asks for two at least");
    sources.iter().chain([target]).try_for_each(|path| refuse_dead(path))?;
    let into = fs::metadata(target).is_ok_and(|metadata| metadata.is_dir());
    if sources.len() > 1 && !into {
        return Err(Failure::new("cannot copy", "several things are copied into a directory, and this is none")
            .at(target)
            .mend("make the directory, or copy one thing"));
    }
    let plan: Vec<Job> = sources.iter().map(|source| plan(source, target, into)).collect::<Result<_, _>>()?;
    let run = Run::new(arguments);
    run.all(plan, arguments.jobs);
    run.finish()
}

/// What lies in a mount whose daemon has died would only say ENOTCONN.
fn refuse_dead(path: &Path) -> Result<(), Failure> {
    let above = path.ancestors().find_map(|path| mounts::absolute(path).ok());
    match above.as_deref().and_then(|above| mounts::covering(&mounts::read().ok()?, above).cloned()) {
        Some(mount) if is_abandoned(&mount) => Err(dead("cannot copy", &mount)),
        _ => Ok(()),
    }
}

/// Something to copy: from, to, and what `from` is.
struct Job {
    from: PathBuf,
    to: PathBuf,
    source: Metadata,
}

/// Checks what can be checked before anything is touched.
fn plan(source: &Path, target: &Path, into: bool) -> Result<Job, Failure> {
    let cannot = |why: String| Failure::new("cannot copy", why).at(source);
    let source_metadata = fs::symlink_metadata(source).map_err(|error| cannot(error.to_string()))?;
    let name = source.canonicalize().ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
    let name = source.file_name().map(ToOwned::to_owned).or(name);
    let to = match name {
        Some(name) if into => target.join(name),
        None if into => return Err(cannot("it has no name to copy it under".to_owned())),
        _ => target.to_owned(),
    };
    if fs::metadata(&to).is_ok_and(|found| (found.dev(), found.ino()) == (source_metadata.dev(), source_metadata.ino()))
    {
        return Err(cannot("source and target are the same file".to_owned()).mend("name another target"));
    }
    if source_metadata.is_dir() {
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let inside = |path: &Path| Some(path.canonicalize().ok()?.starts_with(source.canonicalize().ok()?));
        if inside(parent).unwrap_or(false) {
            let mend = "name a target that lies elsewhere";
            return Err(cannot(format!("it would be copied into itself ({})", to.display())).mend(mend));
        }
    }
    Ok(Job { from: source.to_owned(), to, source: source_metadata })
}

/// A copy of everything, under way.
struct Run {
    archive: bool,
    quiet: bool,
    bar: ProgressBar,
    files: AtomicU64,
    failures: AtomicU64,
    /// Where the first name of a file with several went, by device and inode.
    linked: Mutex<HashMap<(u64, u64), PathBuf>>,
    /// Names to make when all files are there: existing, new.
    links: Mutex<Vec<(PathBuf, PathBuf)>>,
    /// Directories whose attributes come last, parents first.
    directories: Mutex<Vec<Job>>,
}

impl Run {
    fn new(arguments: &Arguments) -> Run {
        let draw = if arguments.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), draw);
        let style = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left, {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("a constant template, tested"));
        bar.enable_steady_tick(Duration::from_millis(200));
        Run {
            archive: arguments.archive,
            quiet: arguments.quiet,
            bar,
            files: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            linked: Mutex::new(HashMap::new()),
            links: Mutex::new(Vec::new()),
            directories: Mutex::new(Vec::new()),
        }
    }

    fn all(&self, plan: Vec<Job>, jobs: u16) {
        let (send, receive) = sync_channel(QUEUE_COUNT_MAX);
        let receive = Mutex::new(receive);
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| self.work(&receive));
            }
            for job in plan {
                self.walk(job, &send);
            }
            drop(send);
        });
        for (existing, new) in self.links.lock().drain(..) {
            let made = remove_other(&new).and_then(|()| fs::hard_link(&existing, &new));
            self.note(&new, made);
        }
        // The deepest first: setting a directory's times comes after everything in it.
        for directory in self.directories.lock().drain(..).rev() {
            let done = self.finish_directory(&directory);
            self.note(&directory.to, done);
        }
    }

    fn work(&self, queue: &Mutex<Receiver<Job>>) {
        let mut copier = Copier::new();
        loop {
            let job = queue.lock().recv();
            let Ok(job) = job else { return };
            let copied = self.copy_file(&mut copier, &job);
            self.note(&job.from, copied);
        }
    }

    /// Copies what is cheap at once and hands files to the workers.
    fn walk(&self, job: Job, workers: &SyncSender<Job>) {
        let kind = job.source.file_type();
        if kind.is_dir() {
            return self.walk_directory(job, workers);
        }
        if self.archive && job.source.nlink() > 1 {
            let key = (job.source.dev(), job.source.ino());
            let first = self.linked.lock().entry(key).or_insert_with(|| job.to.clone()).clone();
            if first != job.to {
                self.links.lock().push((first, job.to));
                return;
            }
        }
        if kind.is_file() {
            self.bar.inc_length(job.source.len());
            workers.send(job).expect("workers live until the sender is dropped");
        } else {
            let made = self.make_other(&job);
            self.note(&job.from, made);
        }
    }

    fn walk_directory(&self, job: Job, workers: &SyncSender<Job>) {
        if let Err(error) = make_directory(&job) {
            return self.note(&job.to, Err(error));
        }
        let entries = match fs::read_dir(&job.from) {
            Ok(entries) => entries,
            Err(error) => return self.note(&job.from, Err(error)),
        };
        let (from, to) = (job.from.clone(), job.to.clone());
        self.directories.lock().push(job);
        for entry in entries {
            let found = entry.and_then(|entry| Ok((entry.file_name(), fs::symlink_metadata(entry.path())?)));
            match found {
                Ok((name, source)) => self.walk(Job { from: from.join(&name), to: to.join(&name), source }, workers),
                Err(error) => self.note(&from, Err(error)),
            }
        }
    }

    fn copy_file(&self, copier: &mut Copier, job: &Job) -> io::Result<()> {
        let from = File::options().read(true).open(&job.from)?;
        if fs::symlink_metadata(&job.to).is_ok_and(|found| !found.is_file()) {
            remove_other(&job.to)?;
        }
        // With --archive nobody reads it before its mode is known to be right.
        let mode = if self.archive { 0o600 } else { job.source.mode() & 0o777 };
        let to = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&job.to)?;
        let can_share = to.metadata()?.dev() == job.source.dev();
        copier.copy(&from, &to, can_share, &|bytes| self.bar.inc(bytes))?;
        drop(to);
        if self.archive {
            likeness::take_over(&job.from, &job.to, &job.source)?;
        }
        Ok(())
    }

    /// A symbolic link, FIFO, socket or device.
    fn make_other(&self, job: &Job) -> io::Result<()> {
        remove_other(&job.to)?;
        if job.source.file_type().is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&job.from)?, &job.to)?;
        } else {
            likeness::make_special(&job.to, &job.source)?;
        }
        if self.archive { likeness::take_over(&job.from, &job.to, &job.source) } else { Ok(()) }
    }

    fn finish_directory(&self, job: &Job) -> io::Result<()> {
        if self.archive {
            return likeness::take_over(&job.from, &job.to, &job.source);
        }
        let missing = 0o700 & !job.source.mode();
        if missing != 0 {
            let mode = fs::metadata(&job.to)?.mode() & !missing;
            fs::set_permissions(&job.to, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn note(&self, place: &Path, result: io::Result<()>) {
        match result {
            Ok(()) => {
                let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
                if files.is_multiple_of(64) {
                    self.bar.set_message(format!("{files} files"));
                }
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                self.bar.suspend(|| super::remark(&format!("cannot copy: {}; {error}", place.display())));
            }
        }
    }

    fn finish(self) -> Result<ExitCode, Failure> {
        let (files, failures) = (self.files.into_inner(), self.failures.into_inner());
        let (bytes, elapsed) = (self.bar.position(), self.bar.elapsed());
        self.bar.finish_and_clear();
        if !self.quiet {
            let rate = (bytes as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
            let seconds = elapsed.as_secs_f64();
            super::remark(&format!("copied {files} files, {} in {seconds:.1} s ({}/s)", Bytes(bytes), Bytes(rate)));
        }
        if failures == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        Err(Failure::new("not everything was copied", format!("{failures} failed and {files} were copied"))
            .mend("the failed ones are named above; mend what they say and copy them again"))
    }
}

/// Makes the directory unless it is there. Its owner may always write while it is filled.
fn make_directory(job: &Job) -> io::Result<()> {
    match fs::DirBuilder::new().mode(job.source.mode() & 0o777 | 0o700).create(&job.to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::metadata(&job.to)?.is_dir() => Ok(()),
        result => result,
    }
}

/// Takes away what is in the way of a new name, unless that is a directory.
fn remove_other(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Ok(found) if found.file_type().is_block_device() => Err(io::Error::other("a device is in the way")),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
