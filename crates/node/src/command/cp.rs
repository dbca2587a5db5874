//! `hydrafs cp`: copies files and trees into, out of and within a mount.
//!
//! By batches where a mount's daemon answers the user: into it (`into`), out of it (`out`) and within it (`within`); else by system calls (`plain`).
//!
//! A file that cannot be copied does not stop the rest: it is named on standard error, and the exit code is 1.

mod filler;

mod content;
mod likeness;
mod progress;

mod plain;
mod source;
mod stage;
mod target;

mod into;
mod out;
mod within;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use platform::real;

pub(super) use self::content::stream;
pub(super) use self::likeness::{Likeness, is_handed_over, regular};
pub(super) use self::plain::{may_go, remove_other};
pub(super) use self::source::umask;
pub(super) use self::target::aside;

use self::filler::Filler;
use self::into::{Into, is_name, parent_of};
use self::out::Out;
use self::plain::{How, Job, Plain};
use self::progress::Progress;
use self::stage::Stage;
use self::within::{Within, is_within};
use super::info::Held;
use super::is_dot;
use super::mount::{dead, is_abandoned};
use super::path_list::Lines;
use super::sync::{mount_of, sync};
use super::tree::{roots_max, write_pages_back};
use crate::control::batch::client::{BatchReader, BatchWriter, PathList, Reading, Writing};
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::mounts::{self, Mount};

/// Copy files and directories into, out of or within a mount, with progress. Directories are copied with all they hold.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs cp -a /usr/share /mnt           copy a tree, with owners, modes, times, links, attributes and holes\n  \
    hydrafs cp big.iso /mnt                 one file\n  \
    hydrafs cp /mnt/data /mnt/data2         within a mount chunks are shared: nothing is read or written\n  \
    hydrafs cp -a /mnt/.snapshots/monday/x /mnt/x   restore from a snapshot\n  \
    hydrafs cp -a --resume /data /mnt       go on where an earlier copy ended\n  \
    hydrafs cp -a --atomic ./site /mnt/www  all of it appears at once, or nothing does\n  \
    hydrafs cp --files-from batch.txt /mnt/data /scratch   what a list names, each to the same path below another directory\n\n\
    A listed directory comes with all that is in it, and what leads to a path is made too. It reads from a mount and writes by system calls, also\n\
    where that is the same mount.\n\n\
    Many files go into a mount at a time (batches) where its daemon answers you: that is root, and who runs it. All of it is on the disks\n\
    when the command ends then. Elsewhere the kernel writes it in its own time: see sync(1) and `hydrafs sync`.\n\
    With --atomic each source appears as a whole; of several some may be there after a crash.\n\
    Ctrl-C ends it so that nothing half written remains; twice, at once.\n\
    Exit code: 0 if all was copied, 1 if something was not; each is named on standard error, and in the JSON.")]
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
    /// Copy what this file lists, a path below SRC on each line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// A zero is behind each path of that file instead of a line's end, as `find -print0` and `hydrafs walk -0` write them.
    #[arg(long, requires = "files_from")]
    null: bool,
    /// Files to copy at a time.
    #[arg(long, short, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Leave files as they are that are there with the same size and time: what an earlier run has copied.
    #[arg(long, requires = "archive")]
    resume: bool,
    /// All or nothing: if something cannot be copied, nothing is.
    #[arg(long, conflicts_with = "resume")]
    atomic: bool,
    /// Only by system calls, a file at a time.
    #[arg(long)]
    no_batch: bool,
    /// No progress bar and no summary.
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    real::give_way();
    let (target, sources) = arguments.paths.split_last().expect("clap asks for two at least");
    sources.iter().chain([target]).try_for_each(|path| refuse_dead(path))?;
    if let Some(list) = &arguments.files_from {
        return copy_listed(arguments, Lines::open(list, arguments.null)?);
    }
    let into = fs::metadata(target).is_ok_and(|metadata| metadata.is_dir());
    if sources.len() > 1 && !into {
        return Err(Failure::new("cannot copy", "several things are copied into a directory, and this is none")
            .at(target)
            .mend("make the directory, or copy one thing"));
    }
    let (mut plan, mut refused, mut taken) = (Vec::new(), Vec::new(), HashMap::new());
    for source in sources {
        let planned = self::plan(source, target, into);
        match planned.and_then(|job| beside(job, &mut taken, arguments.atomic)) {
            Ok(job) => plan.extend(job),
            Err(failure) if arguments.atomic || sources.len() == 1 => return Err(failure),
            // The others are copied.
            Err(failure) => refused.push((source, failure.why)),
        }
    }
    let stage = if arguments.atomic { Some(Stage::divert(&mut plan)?) } else { None };
    let mut progress = Progress::new(arguments.quiet || arguments.json, stage::watch()?);
    refused.into_iter().for_each(|(source, why)| progress.note(source, Err(why)));
    let mut turns = turns(plan).into_iter().take_while(|_| !progress.is_interrupted());
    let copied = turns.try_for_each(|turn| copy(arguments, turn, &progress));
    let Some(mut stage) = stage else {
        // What was copied is told also where something ended it.
        if let Err(failure) = &copied {
            progress.end(failure);
        }
        let told = progress.finish(arguments.quiet, arguments.json);
        return copied.and(told);
    };
    let placed = copied.and_then(|()| {
        if progress.has_failures() || progress.is_interrupted() {
            return Ok(false);
        }
        // A name that a crash leaves is the name of all of it.
        stage.settle()?;
        if progress.is_interrupted() {
            return Ok(false);
        }
        stage.take_place(arguments.archive)?;
        let settled = stage.settle();
        settled.map_err(|failure| {
            failure.mend("all of it has its place, and a crash may take it back; see `hydrafs sync`")
        })?;
        Ok(true)
    });
    let left = stage.undo();
    if let Some((_, error)) = left.first() {
        // Maybe the daemon has ended: then that is why, and this is there nevertheless.
        let failure = placed.err().unwrap_or_else(|| Failure::new("cannot undo what was copied", error).at(target));
        let left: Vec<String> = left.iter().map(|(aside, _)| aside.display().to_string()).collect();
        return Err(failure.mend(format!("what was copied until then could not be undone; remove {}", left.join(", "))));
    }
    if placed? {
        progress.heed_no_interruption();
    } else if progress.is_interrupted() {
        return Err(Failure::new("the copy was interrupted", "what it had copied by then was undone"));
    }
    if progress.has_failures() {
        progress.undo();
    }
    progress.finish(arguments.quiet, arguments.json)
}

/// Copies what is listed below a directory of a mount, each to the same path below another directory.
fn copy_listed(arguments: &Arguments, lines: Lines) -> Result<ExitCode, Failure> {
    let refuse = |why: &str| Failure::new("cannot copy a list", why);
    let Arguments { archive, resume, atomic, no_batch, jobs, .. } = *arguments;
    let [source, target] = arguments.paths.as_slice() else {
        return Err(refuse("it is of one directory, and goes to one").mend("name these two"));
    };
    if resume || atomic || no_batch {
        return Err(refuse("it goes by batches, from its beginning to its end").mend("leave out the other options"));
    }
    let job = plan(&source.join("."), target, true)?;
    let how = How { archive, resume, atomic, jobs };
    let out = BatchOut::begin(&job, how).ok_or_else(|| {
        refuse("this is no directory of a mount whose daemon answers you, or something is mounted below it")
            .at(source)
            .mend("list what lies in a mount")
    })?;
    let progress = Progress::new(arguments.quiet || arguments.json, stage::watch()?);
    // As it was named, without the dot.
    let named = Job { from: source.clone(), ..job };
    let mut copies = Out::new(how, &progress, &[named]).in_parts();
    let mut read = |list| {
        let copied = out.reader(Some(list)).and_then(|mut reader| copies.part(&mut reader));
        copied.map(|()| !progress.is_interrupted())
    };
    let copied = lines.each_part(true, &mut read, &mut |path, why| progress.note(&path, Err(why)));
    copies.finish();
    if let Err(failure) = &copied {
        progress.end(failure);
    }
    let is_interrupted = progress.is_interrupted();
    let told = progress.finish(arguments.quiet, arguments.json);
    copied.and(if is_interrupted { told.map_err(|failure| failure.mend("copy what is listed again")) } else { told })
}

/// Parts of a plan to be copied one after the other: what goes to a place that another goes to, above it or below, comes after that one, whichever way
/// each goes. All else stays together, for further names of a file are known there.
fn turns(plan: Vec<Job>) -> Vec<Vec<Job>> {
    let mut turns: Vec<Vec<Job>> = Vec::new();
    // The last turn with something that goes to a place, and below it.
    let (mut at, mut below) = (HashMap::<PathBuf, usize>::new(), HashMap::<PathBuf, usize>::new());
    for job in plan {
        let above = job.to.ancestors().filter_map(|place| at.get(place));
        let turn = above.chain(below.get(&job.to)).max().map_or(0, |turn| turn + 1);
        at.insert(job.to.clone(), turn);
        for place in job.to.ancestors().skip(1) {
            let last = below.entry(place.to_owned()).or_default();
            *last = turn.max(*last);
        }
        if turns.len() == turn {
            turns.push(Vec::new());
        }
        turns[turn].push(job);
    }
    turns
}

/// Copies what goes to different places. What went by batches into a mount or within one is on the disks then.
fn copy(arguments: &Arguments, plan: Vec<Job>, progress: &Progress) -> Result<(), Failure> {
    let Arguments { archive, resume, atomic, jobs, .. } = *arguments;
    let how = How { archive, resume, atomic, jobs };
    let (within, plan): (Vec<Job>, Vec<Job>) = plan.into_iter().partition(is_within);
    copy_within(arguments, within, how, progress);
    let batch = if arguments.no_batch { None } else { batch_into(&plan, how, progress) };
    let Some((target, writer)) = batch else {
        let (mut by_calls, mut rest) = (Vec::new(), plan.into_iter().peekable());
        while let Some(job) = rest.next() {
            let Some(mut out) = (if arguments.no_batch { None } else { BatchOut::begin(&job, how) }) else {
                by_calls.push(job);
                continue;
            };
            let mut jobs = vec![job];
            while let Some(job) = rest.next_if(|job| out.takes(job) || out.lets_pass(job)) {
                if job.source.is_symlink() { &mut by_calls } else { &mut jobs }.push(job);
            }
            match out.reader(None) {
                Ok(reader) => {
                    if let Err(failure) = Out::new(how, progress, &jobs).all(reader) {
                        progress.note(&jobs[0].from, Err(failure.why));
                    }
                }
                Err(failure) => {
                    progress.goes_one_by_one("read", &failure);
                    by_calls.extend(jobs);
                }
            }
        }
        Plain::new(how, progress).all(by_calls);
        return Ok(());
    };
    Into::new(how, progress, (&target.path, &target.filler), writer).all(plan)?;
    sync(&target.path)
}

/// Copies what stays within a file system: that shares content, one way or the other.
fn copy_within(arguments: &Arguments, plan: Vec<Job>, how: How, progress: &Progress) {
    let mut by_calls = Vec::new();
    let are_several = plan.len() > 1;
    let has_others = |job: &Job| !job.source.is_dir() && job.source.nlink() > 1;
    let keeps_names = how.archive && are_several && plan.iter().any(has_others);
    for job in plan {
        // A batch for each of several files takes longer than their system calls, which share content too; and further names of a file may be in
        // a tree beside it.
        let is_tree = !keeps_names && (!are_several || job.source.is_dir());
        match if arguments.no_batch || !is_tree { None } else { Within::begin(&job, how) } {
            Some(within) => within.carry_out(&job, progress),
            None => by_calls.push(job),
        }
    }
    let beside = by_calls.first().filter(|_| are_several && !arguments.no_batch);
    let beside = beside.map(|job| parent_of(&job.to).to_owned());
    Plain::new(how, progress).all(by_calls);
    // As what goes by batches is. Elsewhere the kernel writes it in its own time.
    if let Some(beside) = beside.filter(|beside| is_ours(beside))
        && let Err(failure) = sync(&beside)
    {
        progress.note(&beside, Err(failure.why));
    }
}

/// Whether a place is in a mount whose daemon answers us.
fn is_ours(place: &Path) -> bool {
    mount_of(place).and_then(|mount| Daemon::find(&mount.source)).is_ok()
}

/// What lies in a mount whose daemon has died would only say ENOTCONN.
fn refuse_dead(path: &Path) -> Result<(), Failure> {
    let above = path.ancestors().find_map(|path| mounts::absolute(path).ok());
    match above.as_deref().and_then(|above| mounts::covering(&mounts::read().ok()?, above).cloned()) {
        Some(mount) if is_abandoned(&mount) => Err(dead("cannot copy", &mount)),
        _ => Ok(()),
    }
}

/// Checks what can be checked before anything is touched.
fn plan(source: &Path, target: &Path, into: bool) -> Result<Job, Failure> {
    let cannot = |why: String| Failure::new("cannot copy", why).at(source);
    let source_metadata = fs::symlink_metadata(source).map_err(|error| cannot(error.to_string()))?;
    let name = source.canonicalize().ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
    let name = source.file_name().map(ToOwned::to_owned).or(name);
    let to = match name {
        // What it holds, as cp(1) does. Who names a link to a directory means that, and nobody puts another in its place meanwhile.
        _ if into && is_dot(source) => match target.is_symlink() {
            true => target.canonicalize().map_err(|error| cannot(error.to_string()))?,
            false => target.to_owned(),
        },
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
        let place = if to.exists() { &to } else { parent };
        let inside = |path: &Path| Some(path.canonicalize().ok()?.starts_with(source.canonicalize().ok()?));
        if inside(place).unwrap_or(false) {
            let mend = "name a target that lies elsewhere";
            return Err(cannot(format!("it would be copied into itself ({})", to.display())).mend(mend));
        }
    }
    Ok(Job { from: source.to_owned(), to, source: source_metadata })
}

/// Refuses what would go where another goes, whose copy it would replace; directories are merged, but `anew`. `None`: it was named before. `taken`:
/// whose each place is.
fn beside(job: Job, taken: &mut HashMap<PathBuf, Job>, anew: bool) -> Result<Option<Job>, Failure> {
    let Some(other) = taken.get(&job.to) else {
        taken.insert(job.to.clone(), job.clone());
        return Ok(Some(job));
    };
    // Not by inodes: a file now and in a snapshot has one number.
    let place = |job: &Job| Some(parent_of(&job.from).canonicalize().ok()?.join(job.from.file_name()?));
    if place(other).is_some_and(|other| Some(other) == place(&job)) {
        return Ok(None);
    }
    if !anew && other.source.is_dir() && job.source.is_dir() {
        return Ok(Some(job));
    }
    let why = format!("{} goes to the same place, {}", other.from.display(), job.to.display());
    Err(Failure::new("cannot copy", why).at(&job.from).mend("copy them into different directories"))
}

/// Whether what a directory holds goes into one that is there: it was named by a dot.
fn is_merged(job: &Job) -> bool {
    is_dot(&job.from) && job.source.is_dir() && job.to.is_dir()
}

/// The directory that a batch goes into, held so that the daemon knows it.
struct Target {
    path: PathBuf,
    filler: Filler,
    _held: Held,
}

/// A batch into the directory that all of these go to, if it lies in a mount whose daemon answers us.
fn batch_into(plan: &[Job], how: How, progress: &Progress) -> Option<(Target, BatchWriter)> {
    let place = |job: &Job| if is_merged(job) { job.to.clone() } else { parent_of(&job.to).to_owned() };
    let first = place(plan.first()?);
    let directory = first.canonicalize().ok()?;
    let is_plain = |job: &Job| {
        let leads_elsewhere = fs::symlink_metadata(&job.to).is_ok_and(|found| found.is_symlink());
        place(job) == first && (is_merged(job) || (is_name(&job.to) && !(job.source.is_dir() && leads_elsewhere)))
    };
    if !plan.iter().all(is_plain) {
        return None;
    }
    let mount = mount_of(&directory).ok()?;
    if mount.has("ro") {
        return None;
    }
    let held = Held::open(&directory, "cannot copy").ok()?;
    let daemon = Daemon::of(&mount.source, mount.device).ok()?;
    let (preserve, lists) = (how.archive, how.archive);
    let how = Writing { parent: held.inode, replace: true, preserve, lists, umask: source::umask() };
    // What is wrong with the place system calls will tell better.
    let writer =
        BatchWriter::begin(daemon, &how).inspect_err(|failure| progress.goes_one_by_one("written", failure)).ok()?;
    Some((Target { path: directory, filler: Filler::new(mount.source, mount.device), _held: held }, writer))
}

/// Whether what becomes of it depends on nothing else that is read with it: with --archive further names are to be names of one file; without,
/// each is a file of its own, that others' failures leave alone.
fn is_apart(job: &Job, how: How) -> bool {
    how.archive || (!job.source.is_dir() && job.source.nlink() == 1)
}

/// What is read as one batch out of a mount whose daemon answers us, to go elsewhere.
struct BatchOut {
    how: How,
    mounts: Vec<Mount>,
    mount: Mount,
    held: Vec<Held>,
    /// Where it goes: what comes first of two of one name is for the order to say.
    targets: HashSet<PathBuf>,
    takes_more: bool,
}

impl BatchOut {
    /// With what this job copies; `None`: system calls are to do it.
    fn begin(job: &Job, how: How) -> Option<BatchOut> {
        let mount = mount_of(&job.from).ok()?;
        let mounts = mounts::read().ok()?;
        let takes_more = !is_merged(job) && is_apart(job, how);
        let (held, targets) = (Vec::new(), HashSet::new());
        let mut out = BatchOut { how, mounts, mount, held, targets, takes_more: true };
        let is_taken = !how.resume && out.takes(job);
        out.takes_more = takes_more;
        is_taken.then_some(out)
    }

    /// Whether it is read with the others; if so, it is held from now on.
    fn takes(&mut self, job: &Job) -> bool {
        let is_next = self.takes_more && self.held.len() < roots_max() && !self.targets.contains(&job.to);
        let is_second = !self.held.is_empty() && (is_merged(job) || !is_apart(job, self.how));
        if !is_next || job.source.is_symlink() || is_second {
            return false;
        }
        let Ok(from) = mounts::absolute(&job.from) else { return false };
        let is_here = mounts::covering(&self.mounts, &from).is_some_and(|mount| mount.id == self.mount.id);
        let has_others_below =
            self.mounts.iter().any(|other| other.point != self.mount.point && other.point.starts_with(&from));
        // What is mounted below is no part of the file system, and would not be copied.
        if !is_here || has_others_below {
            return false;
        }
        let Ok(held) = Held::of(&job.from, "cannot copy", &self.mount) else { return false };
        self.held.push(held);
        self.targets.insert(job.to.clone())
    }

    /// Whether it goes by system calls, and what comes behind it may be read with the others.
    fn lets_pass(&mut self, job: &Job) -> bool {
        self.takes_more && job.source.is_symlink() && self.targets.insert(job.to.clone())
    }

    /// Begins to read all of it, or what is listed.
    fn reader(&self, list: Option<PathList>) -> Result<BatchReader, Failure> {
        write_pages_back(&self.mount.point);
        let roots = self.held.iter().map(|held| held.inode).collect();
        let reading = Reading { roots, content: true, xattrs: self.how.archive, list };
        BatchReader::begin(Daemon::of(&self.mount.source, self.mount.device)?, &reading)
    }
}
