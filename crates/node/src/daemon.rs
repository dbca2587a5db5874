//! What makes a process a daemon: going to the background, telling its starter that it is ready, logs, signals.
//!
//! `hydrafs mount` starts itself again as `hydrafs mount --foreground` in a session of its own, with its standard output a
//! pipe back to the starter. The first line on that pipe is the verdict, [`Verdict`], as JSON; the starter waits for it, so that
//! the command returns when the mount is usable, or with the daemon's own words. A pipe that closes without one means that
//! the daemon died. Starting again instead of forking: a fork copies only one thread and half-held locks.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;

/// Name of the log in the node's folder.
pub const LOG_NAME: &str = "hydrafs.log";
/// A log larger than this is moved to `hydrafs.log.1`, at a start and while it is written.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// So many lines are written between two looks at how large it is.
const LOG_LINES: usize = 1000;
/// How long a process that has nothing to do any more may take to end.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);
/// Set in the environment of a daemon that was started to run in the background.
const DETACHED: &str = "HYDRAFS_DETACHED";

/// What a starting daemon tells its starter.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// The mount is usable; this is worth telling the user.
    Ready(String),
    /// It will not be.
    Failed(Failure),
}

/// Whether this process was started by [`start`].
#[must_use]
pub fn is_detached() -> bool {
    std::env::var_os(DETACHED).is_some()
}

/// Starts this program again in the background with these arguments, and waits until it is ready or has failed. Returns
/// what it said.
pub fn start(arguments: &[&std::ffi::OsStr], folder: &Path) -> Result<String, Failure> {
    let cannot = |error: io::Error| Failure::new("cannot start the daemon", error).at(folder);
    let log = open_log(folder).map_err(cannot)?;
    let mut command = own_program();
    command.args(arguments).env(DETACHED, "1").current_dir("/");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().map_err(cannot)?;
    let mut line = String::new();
    let pipe = child.stdout.take().expect("stdout was asked to be a pipe");
    BufReader::new(pipe).read_line(&mut line).map_err(cannot)?;
    match serde_json::from_str(&line) {
        Ok(Verdict::Ready(words)) => Ok(words),
        Ok(Verdict::Failed(failure)) => {
            // It is about to end; a zombie would only confuse.
            end_of(&mut child);
            Err(failure)
        }
        Err(_) => {
            let how = end_of(&mut child);
            let log = folder.join(LOG_NAME);
            Err(Failure::new("the daemon ended before it was ready", how)
                .at(folder)
                .mend(format!("its last words are in {}", log.display())))
        }
    }
}

/// Waits for the end of a child that was told to end, and says how it ended; not for ever: a thread that waits for a disk keeps a process.
pub(crate) fn end_of(child: &mut Child) -> String {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    let is_over = process.map_or(Ok(true), |process| has_ended(&process, END_PATIENCE));
    match is_over.and_then(|is_over| if is_over { child.wait().map(Some) } else { Ok(None) }) {
        Ok(Some(status)) => status.to_string(),
        Ok(None) => format!("process {} has not ended; it waits for a disk, mostly", child.id()),
        Err(error) => error.to_string(),
    }
}

/// Waits until a process has ended, at most so long. Whether it has.
#[expect(clippy::disallowed_methods, reason = "another process is waited for")]
pub(crate) fn has_ended(process: &impl AsFd, patience: Duration) -> io::Result<bool> {
    let begin = Instant::now();
    loop {
        // A pidfd is readable when its process has ended.
        let left = patience.saturating_sub(begin.elapsed()).try_into().ok();
        match poll(&mut [PollFd::new(process, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return Ok(ended? > 0),
        }
    }
}

/// First thing in a daemon that was started in the background: leave the starter's session.
pub fn detach() {
    if is_detached() {
        // It fails only for the leader of a process group, which a child of `start` is not.
        let _ = rustix::process::setsid();
    }
}

/// This program once more.
fn own_program() -> Command {
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    command.arg0("hydrafs");
    command
}

/// Runs this program as another process, in silence, and waits for its end; not longer than `patience`.
pub fn run_beside(arguments: &[&std::ffi::OsStr], patience: Duration) -> io::Result<()> {
    let mut command = own_program();
    command.args(arguments).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    run_within(&mut command, patience)
}

/// Runs a program that may come to hang in the kernel, and waits for its end; not longer than `patience`.
pub(crate) fn run_within(command: &mut Command, patience: Duration) -> io::Result<()> {
    let mut child = command.spawn()?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    if !has_ended(&process, patience)? {
        // One that hangs in the kernel ends when the mount does.
        child.kill()?;
        return Err(io::ErrorKind::TimedOut.into());
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("it ended with {status}"))) }
}

/// Tells the starter, if there is one, and the service manager that the daemon is usable.
pub fn ready(words: &str) {
    if is_detached() {
        tell(&Verdict::Ready(words.to_owned()));
    } else if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "{words}");
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(words)]);
}

/// Tells the service manager that the daemon is about to end.
pub fn stopping() {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
}

/// Tells the service manager that another process goes on as this daemon, and in its words how: it listens to one process alone.
pub fn main_process_is(process: u32, words: &str) {
    use sd_notify::NotifyState::{MainPid, Status};
    let _ = sd_notify::notify(&[MainPid(process), Status(words)]);
}

/// Tells the service manager how it is.
pub fn status(words: &str) {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(words)]);
}

/// Tells the service manager what goes on, and that it shall wait for so many microseconds more.
pub fn busy(text: &str, extension_us: u32) {
    use sd_notify::NotifyState::{ExtendTimeoutUsec, Status};
    let _ = sd_notify::notify(&[Status(text), ExtendTimeoutUsec(extension_us)]);
}

/// Tells the starter, if there is one, that the daemon will not be usable. True if it was told.
#[must_use]
pub fn failed(failure: &Failure) -> bool {
    if is_detached() {
        tell(&Verdict::Failed(failure.clone()));
    }
    is_detached()
}

/// Writes the verdict and gives the pipe up, so that the starter's reader sees its end. Once: a second verdict goes to /dev/null.
fn tell(verdict: &Verdict) {
    let line = serde_json::to_string(verdict).expect("a verdict is plain text");
    // A starter that was interrupted does not concern the daemon.
    let _ = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// Standard input, as a descriptor that no child inherits; in its place comes /dev/null.
pub fn take_standard_input() -> io::Result<std::os::fd::OwnedFd> {
    let taken = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(OpenOptions::new().read(true).open("/dev/null")?)?;
    Ok(taken)
}

/// Tells of each SIGTERM and SIGINT (and SIGHUP, unless detached) by its number, until told that nobody listens (false).
pub fn watch_signals(tell: impl Fn(i32) -> bool + Send + 'static) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let cannot = |error: io::Error| Failure::new("cannot watch for signals", error);
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(cannot)?;
    let watch = move || {
        for signal in signals.forever() {
            // A terminal that closes is no reason for a daemon in the background to end.
            if signal == SIGHUP && is_detached() {
                continue;
            }
            if !tell(signal) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(cannot)?;
    Ok(())
}

/// Starts the log: standard error, which [`start`] has made the log file in `folder` of a daemon in the background. When it is connected to
/// the journal, lines carry a priority and no time, as the journal wants it. A line that cannot be written, for the disk is full or the reader has gone,
/// is lost: to tell of that on the same standard error would be a panic.
pub fn log(level: tracing::Level, folder: &Path) {
    let journal = is_journal();
    let file = LogFile { folder: is_detached().then(|| folder.to_owned()), lines: AtomicUsize::new(0) };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(file).log_internal_errors(false);
    let result = if journal {
        builder.event_format(JournalFormat).try_init()
    } else {
        builder.with_target(false).with_ansi(io::stderr().is_terminal()).try_init()
    };
    if result.is_err() {
        tracing::debug!("the log was started already");
    }
}

/// The log of tools: warnings and errors of libraries to standard error.
pub fn log_of_tool() {
    let builder = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(io::stderr);
    let _ = builder.log_internal_errors(false).with_target(false).without_time().try_init();
}

/// systemd sets JOURNAL_STREAM to device:inode of the stream; a daemon whose stderr was redirected inherits it wrongly, so the
/// numbers are compared (systemd.exec(5)).
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let ours = rustix::fs::fstat(io::stderr()).map(|status| format!("{}:{}", status.st_dev, status.st_ino));
    ours.is_ok_and(|ours| ours == stream)
}

fn open_log(folder: &Path) -> io::Result<File> {
    let path = folder.join(LOG_NAME);
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.size() > LOG_BYTES_MAX) {
        std::fs::rename(&path, path.with_added_extension("1"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Standard error as the log, which is kept from growing for ever where it is the file in a node's folder.
struct LogFile {
    folder: Option<PathBuf>,
    lines: AtomicUsize,
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = io::Stderr;

    fn make_writer(&'a self) -> io::Stderr {
        if let Some(folder) = &self.folder
            && self.lines.fetch_add(1, Ordering::Relaxed) % LOG_LINES == LOG_LINES - 1
            // One that stays too long is better than a daemon that does not go on, or a line that is nowhere.
            && let Ok(Some(next)) = next_log(folder, io::stderr())
        {
            let _ = rustix::stdio::dup2_stderr(next);
        }
        io::stderr()
    }
}

/// The file to go on with, if `log`, which is the log in this folder or was until another process moved it, has become too large.
fn next_log(folder: &Path, log: impl AsFd) -> io::Result<Option<File>> {
    let status = rustix::fs::fstat(log)?;
    if status.st_size.cast_unsigned() <= LOG_BYTES_MAX {
        return Ok(None);
    }
    let path = folder.join(LOG_NAME);
    // In a folder that has come into this one's place is the log of somebody else.
    let is_ours = |path: &Path| {
        std::fs::symlink_metadata(path).is_ok_and(|at| (at.dev(), at.ino()) == (status.st_dev, status.st_ino))
    };
    if is_ours(&path) || is_ours(&path.with_added_extension("1")) { open_log(folder).map(Some) } else { Ok(None) }
}

/// `<priority>message`, sd-daemon(3).
struct JournalFormat;

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions, read, rename};
    use std::io::Write;

    use super::{LOG_BYTES_MAX, LOG_NAME, next_log, open_log};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a log is the outside")]
    fn a_log_that_has_become_too_large_is_moved_away_once_and_nobody_elses() {
        let folder = std::env::temp_dir().join(format!("hydrafs-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room");
        let (path, former) = (folder.join(LOG_NAME), folder.join(format!("{LOG_NAME}.1")));
        let mut log = open_log(&folder).expect("room");
        log.write_all(b"first").expect("room");
        assert!(next_log(&folder, &log).expect("there").is_none());
        log.set_len(LOG_BYTES_MAX + 1).expect("sparse");
        let mut next = next_log(&folder, &log).expect("there").expect("too large");
        next.write_all(b"next").expect("room");
        assert_eq!((read(&path).expect("new"), &read(&former).expect("moved")[..5]), (b"next".to_vec(), &b"first"[..]));
        // The other process of a hand-over has the former one still.
        let mut other = next_log(&folder, &log).expect("there").expect("too large");
        other.write_all(b"other").expect("room");
        assert_eq!(read(&path).expect("the same"), b"nextother");
        // A folder that came into this one's place.
        let (ours, theirs) = (folder.join("ours"), folder.join("theirs"));
        std::fs::create_dir_all(&theirs).expect("room");
        File::create(theirs.join(LOG_NAME)).and_then(|file| file.set_len(LOG_BYTES_MAX + 1)).expect("sparse");
        rename(&theirs, &ours).expect("a name");
        let held = OpenOptions::new().append(true).open(&former).expect("there");
        assert!(next_log(&ours, &held).expect("there").is_none());
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
