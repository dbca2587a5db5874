//! Programs run as children: each in a process group of its own, with a limit of time, its words in a log or shown.
//!
//! A child that runs too long, or when somebody wants an end, is ended with its whole group, by that group's id: first asked, then
//! killed. Dropping a [`Child`] does the same, so that none outlives an error.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::{interrupt, text};

/// How long a child that was asked to end may take.
const GRACE: Duration = Duration::from_secs(5);

/// A program to run.
#[derive(Debug)]
pub(crate) struct Program {
    command: Command,
    words: String,
    limit: Duration,
    until: Option<Arc<AtomicBool>>,
    log: Option<PathBuf>,
}

/// A program that runs. Ended when dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) inner: std::process::Child,
    words: String,
    limit: Duration,
    until: Option<Arc<AtomicBool>>,
    started: Instant,
    is_over: bool,
}

impl Program {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Program {
        let words = program.as_ref().to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).process_group(0);
        Program { command, words, limit: Duration::from_secs(600), until: None, log: None }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Program {
        self.words = format!("{} {}", self.words, argument.as_ref().to_string_lossy());
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Program {
        arguments.into_iter().fold(self, Program::arg)
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Program {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Program {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Program {
        self.command.current_dir(dir);
        self
    }

    /// It is ended after this long, which is a failure.
    pub(crate) fn limit(mut self, limit: Duration) -> Program {
        self.limit = limit;
        self
    }

    /// When this is set nobody waits for it any more: it has a moment to end by itself, and is killed then.
    pub(crate) fn until(mut self, is_over: Arc<AtomicBool>) -> Program {
        self.until = Some(is_over);
        self
    }

    /// Its words go to the end of this file.
    pub(crate) fn log(mut self, log: &Path) -> Program {
        self.log = Some(log.to_owned());
        self
    }

    /// Starts it; with standard input a pipe if asked.
    pub(crate) fn start(mut self, input: Stdio, output: Stdio, errors: Stdio) -> Result<Child> {
        interrupt::check()?;
        let spawned = self.command.stdin(input).stdout(output).stderr(errors).spawn();
        let inner = spawned
            .with_context(|| format!("cannot start `{}`; `scripts/setup` installs what is needed", self.words))?;
        let Program { words, limit, until, .. } = self;
        Ok(Child { inner, words, limit, until, started: Instant::now(), is_over: false })
    }

    /// Runs it to its end; its words go to the log, or are shown.
    pub(crate) fn status(self) -> Result<ExitStatus> {
        let Some(log) = &self.log else { return self.start(Stdio::null(), Stdio::inherit(), Stdio::inherit())?.wait() };
        let mut file = open_log(log)?;
        writeln!(file, "\n$ {}", self.words)?;
        let errors = file.try_clone()?;
        self.start(Stdio::null(), file.into(), errors.into())?.wait()
    }

    /// Runs it; a bad end is an error with the last lines of its log.
    pub(crate) fn run(self) -> Result<()> {
        let (words, log) = (self.words.clone(), self.log.clone());
        let status = self.status()?;
        if status.success() {
            return Ok(());
        }
        let tail = log.as_deref().map(|log| text::last_lines(&read_lossy(log), 12)).unwrap_or_default();
        bail!("`{words}` ended with {status}\n{tail}");
    }

    /// Runs it and gives its standard output; a bad end is an error with its standard error.
    pub(crate) fn output(self) -> Result<String> {
        let words = self.words.clone();
        let (status, output, errors) = self.outcome()?;
        if !status.success() {
            bail!("`{words}` ended with {status}\n{}", text::last_lines(&format!("{output}{errors}"), 12));
        }
        Ok(output)
    }

    /// Runs it and gives how it ended, its standard output and its standard error.
    pub(crate) fn outcome(self) -> Result<(ExitStatus, String, String)> {
        let mut child = self.start(Stdio::null(), Stdio::piped(), Stdio::piped())?;
        let mut output = child.inner.stdout.take().expect("asked to be a pipe");
        let mut errors = child.inner.stderr.take().expect("asked to be a pipe");
        std::thread::scope(|scope| {
            let output = scope.spawn(move || read_all(&mut output));
            let errors = scope.spawn(move || read_all(&mut errors));
            let status = child.wait()?;
            Ok((status, output.join().expect("it only reads"), errors.join().expect("it only reads")))
        })
    }

    /// Runs it, shows its words as they come, and gives each line of its standard output to `line`.
    pub(crate) fn watch(self, mut line: impl FnMut(&str) + Send) -> Result<ExitStatus> {
        let log = self.log.as_deref().map(open_log).transpose()?;
        let mut child = self.start(Stdio::null(), Stdio::piped(), Stdio::inherit())?;
        let output = BufReader::new(child.inner.stdout.take().expect("asked to be a pipe"));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for bytes in output.split(b'\n').map_while(Result::ok) {
                    let words = String::from_utf8_lossy(&bytes);
                    println!("{words}");
                    if let Some(mut log) = log.as_ref() {
                        // The log is for later; what matters was shown.
                        let _ = writeln!(log, "{words}");
                    }
                    line(&words);
                }
            });
            child.wait()
        })
    }
}

impl Child {
    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let (mut process, mut over) = (None, None);
        loop {
            if let Some(status) = self.inner.try_wait()? {
                self.is_over = true;
                return Ok(status);
            }
            if interrupt::is_asked() {
                self.end();
                interrupt::check()?;
            }
            if self.started.elapsed() > self.limit {
                self.end();
                bail!("`{}` did not end within {}; it was killed", self.words, text::span(self.limit));
            }
            if self.until.as_ref().is_some_and(|until| until.load(Ordering::SeqCst))
                && over.get_or_insert_with(Instant::now).elapsed() > GRACE
            {
                self.kill();
                bail!("`{}` went on for {} after it was over; it was killed", self.words, text::span(GRACE));
            }
            // It was not waited for, so that its number is its own. Woken by its end: what it took is measured.
            let process = match &mut process {
                Some(process) => process,
                none => none.insert(pidfd_open(Pid::from_child(&self.inner), PidfdFlags::empty())?),
            };
            let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            // A signal breaks it off, and it is begun again.
            let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&pause));
        }
    }

    /// Whether it has.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        self.is_over |= self.inner.try_wait()?.is_some();
        Ok(self.is_over)
    }

    /// Ends it and all that it started, in its group.
    pub(crate) fn end(&mut self) {
        if self.is_over {
            return;
        }
        self.signal(Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if matches!(self.inner.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Asks it to leave everything as it is and end, and kills it if it does not in time.
    pub(crate) fn quit(&mut self, patience: Duration) {
        self.signal(Signal::QUIT);
        let asked = Instant::now();
        while asked.elapsed() < patience && !matches!(self.inner.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    /// Kills it and all that it started, at once.
    pub(crate) fn kill(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
            // Killed: it ends as soon as the kernel lets it. A wait that fails has nothing to wait for.
            let _ = self.inner.wait();
            self.is_over = true;
        }
    }

    fn signal(&self, signal: Signal) {
        // The group keeps its id while its leader is not waited for.
        let group = i32::try_from(self.inner.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, signal));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// A file as text, whatever it holds; empty if it cannot be read.
pub(crate) fn read_lossy(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn read_all(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    // A broken pipe is the end of what there is.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::Program;

    #[test]
    fn output_and_failure_are_told() {
        assert_eq!(Program::new("sh").args(["-c", "echo a; echo b >&2"]).output().expect("runs"), "a\n");
        let error =
            Program::new("sh").args(["-c", "echo because >&2; exit 3"]).output().expect_err("fails").to_string();
        assert!(error.contains("because") && error.contains('3'), "{error}");
        let error = format!("{:#}", Program::new("/no/such/program").output().expect_err("is not there"));
        assert!(error.contains("scripts/setup"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let started = Instant::now();
        let program = Program::new("sh").args(["-c", "sleep 600 & sleep 600"]).limit(Duration::from_millis(100));
        let error = program.run().expect_err("it would not end").to_string();
        assert!(error.contains("did not end"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(30));
        let program = Program::new("sh").args(["-c", "sleep 600 & sleep 600"]).until(Arc::new(AtomicBool::new(true)));
        let error = program.output().expect_err("it would not end").to_string();
        assert!(error.contains("after it was over"), "{error}");
    }
}
