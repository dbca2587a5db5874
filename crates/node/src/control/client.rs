//! The command line's end of the control socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags};
use serde_json::Value;

use super::wire::{ANSWER_BYTES_MAX, Answer, Request, read_line, write_line};
use super::{SOCKET_NAME, short_path};
use crate::failure::Failure;

/// A daemon that answers.
pub struct Daemon {
    stream: UnixStream,
    socket: std::path::PathBuf,
}

impl Daemon {
    /// Reaches the daemon of the node in `folder`; `None` when none runs.
    pub fn reach(folder: &Path) -> Result<Option<Daemon>, Failure> {
        let socket = folder.join(SOCKET_NAME);
        let connected = short_path(folder).and_then(|(_folder, short)| UnixStream::connect(short));
        match connected {
            Ok(stream) => Ok(Some(Daemon { stream, socket })),
            // Refused: the socket of a daemon that died.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => {
                let failure = Failure::new("cannot reach the daemon", &error).at(&socket);
                Err(if error.kind() == io::ErrorKind::PermissionDenied {
                    failure.mend("run the command as the user who runs the daemon, or as root")
                } else {
                    failure
                })
            }
        }
    }

    /// Reaches the daemon of the node in `folder`, which must run.
    pub fn find(folder: &Path) -> Result<Daemon, Failure> {
        Daemon::reach(folder)?.ok_or_else(|| {
            Failure::new("cannot reach the daemon", "no daemon runs on this node")
                .at(folder)
                .mend(format!("start one with `hydrafs mount {0} MOUNTPOINT` or `hydrafs serve {0}`", folder.display()))
        })
    }

    /// Asks, and waits for the answer.
    pub fn ask(self, request: &Request, mut progress: impl FnMut(&str)) -> Result<Value, Failure> {
        let broken = |why: String| {
            Failure::new("lost the daemon", why)
                .at(&self.socket)
                .mend("it may have ended: see its log (hydrafs.log in the node's folder, or the journal)")
        };
        write_line(&mut &self.stream, request).map_err(|error| broken(error.to_string()))?;
        let mut reader = BufReader::new(&self.stream);
        loop {
            match read_line(&mut reader, ANSWER_BYTES_MAX) {
                Ok(Some(Answer::Progress(text))) => progress(&text),
                Ok(Some(Answer::Done(value))) => return Ok(value),
                Ok(Some(Answer::Failed(failure))) => return Err(failure),
                Ok(None) => return Err(broken("it hung up without an answer".to_owned())),
                Err(error) => return Err(broken(error.to_string())),
            }
        }
    }

    /// Asks it to end, and returns when its process has ended.
    pub fn stop(self, detach: bool, progress: impl FnMut(&str)) -> Result<Value, Failure> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream);
        // Taken before it can end, so that it is this process and no later one of the same number.
        let process = peer.ok().and_then(|peer| rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()).ok());
        let pid = peer.ok().map(|peer| peer.pid);
        let answer = self.ask(&Request::Stop { detach }, progress)?;
        match process {
            Some(process) => wait_readable(&process),
            None => pid.into_iter().for_each(wait_gone),
        }
        Ok(answer)
    }
}

/// A pidfd is readable when its process has ended.
fn wait_readable(process: &impl std::os::fd::AsFd) {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut waited = [PollFd::new(process, PollFlags::IN)];
    while matches!(poll(&mut waited, None), Err(rustix::io::Errno::INTR)) {}
}

/// For kernels without pidfd.
#[expect(clippy::disallowed_methods, reason = "a command that waits for another process")]
fn wait_gone(pid: Pid) {
    while rustix::process::test_kill_process(pid).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
