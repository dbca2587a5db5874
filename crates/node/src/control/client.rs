//! The command line's end of the control socket.
//!
//! Nobody waits here for a daemon that has come to a standstill: who has waited for a while asks it something else, on a connection of its own,
//! that is answered from memory ([`Connection`]).

use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags};
use serde_json::Value;

use super::descriptor::send_with;
use super::wire::{ANSWER_BYTES_MAX, Answer, NOT_UNDERSTOOD, Request, Turn, read_line, write_line};
use super::{SOCKET_NAME, short_path};
use crate::daemon::{END_PATIENCE, has_ended};
use crate::failure::Failure;

/// How long an answer from memory may take, and after how long without an answer to something else it is asked for one.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon that answers.
pub struct Daemon {
    stream: UnixStream,
    socket: PathBuf,
    patience: Duration,
    /// Of the mount that what is asked is about.
    device: Option<String>,
}

impl Daemon {
    /// Reaches the daemon of the node in `folder`; `None` when none runs.
    pub fn reach(folder: &Path) -> Result<Option<Daemon>, Failure> {
        let socket = folder.join(SOCKET_NAME);
        match connect(folder, PATIENCE) {
            Ok(stream) => Ok(Some(Daemon { stream, socket, patience: PATIENCE, device: None })),
            // Refused: the socket of a daemon that died.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Failure::new("cannot reach the daemon", "many wait there, and it answers nobody")
                    .at(&socket)
                    .mend(MEND_STANDSTILL))
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

    /// Reaches the daemon of the node in `folder` to ask about files of the mount with this device number. Whatever the folder leads to by
    /// then: a daemon that serves another mount does nothing.
    pub fn of(folder: &Path, (major, minor): (u32, u32)) -> Result<Daemon, Failure> {
        Ok(Daemon { device: Some(format!("{major}:{minor}")), ..Daemon::find(folder)? })
    }

    /// Refuses one of another user: files are to be made by what it says.
    pub fn expect_trusted(&self) -> Result<(), Failure> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream);
        let peer = peer.map_err(|error| Failure::new("cannot reach the daemon", error).at(&self.socket))?;
        let refused = refuse_other(peer.uid.as_raw(), rustix::process::geteuid().as_raw());
        refused.map_err(|failure| failure.at(&self.socket))
    }

    /// Asks, and waits for the answer.
    pub fn ask(self, request: &Request, progress: impl FnMut(&str)) -> Result<Value, Failure> {
        self.ask_with(request, None, progress)
    }

    /// The same, and a descriptor goes with the request.
    pub fn ask_with(
        self,
        request: &Request,
        descriptor: Option<OwnedFd>,
        mut progress: impl FnMut(&str),
    ) -> Result<Value, Failure> {
        let mut talk = self.begin(request, descriptor)?;
        loop {
            match talk.hear()? {
                Answer::Progress(text) => progress(&text),
                Answer::Done(value) => return Ok(value),
                Answer::Failed(failure) => return Err(failure),
                other => return Err(talk.unexpected(&other)),
            }
        }
    }

    /// Asks, and goes on to talk.
    pub fn begin(self, request: &Request, descriptor: Option<OwnedFd>) -> Result<Talk, Failure> {
        let Daemon { stream, socket, patience, device } = self;
        let on = device.map(|device| Request::On { device, request: Box::new(request.clone()) });
        let bare = on.as_ref().map(|_| request.clone());
        let request = on.as_ref().unwrap_or(request);
        let connection = Connection { stream, socket, patience, is_quick: request.is_quick() };
        let mut talk = Talk { reader: BufReader::new(connection), again: None };
        let connection = talk.reader.get_mut();
        let asked = match &descriptor {
            None => write_line(connection, request),
            Some(descriptor) => {
                let mut line = Vec::new();
                write_line(&mut line, request).and_then(|()| {
                    let sent = send_with(&connection.stream, &line, descriptor.as_fd())?;
                    connection.write_all(&line[sent..])
                })
            }
        };
        match asked {
            Ok(()) => Ok(Talk { again: bare.map(|request| Box::new((request, descriptor))), ..talk }),
            Err(error) => Err(talk.refused(&error)),
        }
    }

    /// Asks it to end, and returns when its process has ended, unless a disk keeps that, or its mount is kept elsewhere.
    pub fn stop(self, detach: bool, mut progress: impl FnMut(&str)) -> Result<Stopped, Failure> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream);
        // Taken before it can end, so that it is this process and no later one of the same number.
        let process = peer.ok().and_then(|peer| rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()).ok());
        let pid = peer.ok().map(|peer| peer.pid);
        let mut answer = self.ask(&Request::Stop { detach }, &mut progress)?;
        if let Some(kept) = answer.get_mut("kept").and_then(|kept| serde_json::from_value(kept.take()).ok()) {
            return Ok(Stopped::Kept(kept));
        }
        let has_ended = match process {
            Some(process) => has_ended(&process, END_PATIENCE).unwrap_or(true),
            None => pid.is_none_or(is_gone_soon),
        };
        if !has_ended && let Some(pid) = pid {
            progress(&format!("process {pid} has closed everything and ends when a disk answers that it waits for"));
        }
        Ok(Stopped::Ended(answer))
    }
}

/// Refuses a daemon of another user: a folder is found by the source of a mount, which is what who mounted it says, and by what the daemon says
/// files of ours are made (I-158).
fn refuse_other(user: u32, ours: u32) -> Result<(), Failure> {
    if user == 0 || user == ours {
        return Ok(());
    }
    let why = format!("user {user} runs it, who may not choose what commands of user {ours} do");
    Err(Failure::new("cannot ask the daemon", why)
        .mend(format!("run the command as that user: `sudo -u '#{user}' hydrafs ...`")))
}

/// What to do about a daemon that stands still.
const MEND_STANDSTILL: &str = "see its log (hydrafs.log in the node's folder, or the journal); if it was stopped, `kill -CONT` it; if it was not, kill it and \
                               mount again: nothing that was synced is lost";

/// Connects to the daemon of the node in `folder`. `WouldBlock`: its queue of those who want to was full all the time.
fn connect(folder: &Path, patience: Duration) -> io::Result<UnixStream> {
    let (_folder, short) = short_path(folder)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(short)?)?;
    Ok(UnixStream::from(socket))
}

/// A connection on which each wait ends: with `TimedOut` when the daemon answers nothing.
struct Connection {
    stream: UnixStream,
    socket: PathBuf,
    /// How long it may be silent before it is asked whether it answers at all, and how long that answer may take.
    patience: Duration,
    /// What was asked is answered from memory: there is nothing further to find out.
    is_quick: bool,
}

impl Connection {
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let patience = Timespec::try_from(self.patience).map_err(io::Error::other)?;
        loop {
            match rustix::event::poll(&mut [PollFd::new(&self.stream, flags)], Some(&patience)) {
                Ok(0) if self.is_quick || !self.answers() => return Err(io::ErrorKind::TimedOut.into()),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the daemon answers what needs nothing but memory. One whose socket has gone is about to end, and the stream ends with it.
    fn answers(&self) -> bool {
        let folder = self.socket.parent().expect("it was made of a folder");
        let asked = connect(folder, self.patience).and_then(|stream| {
            let (socket, patience) = (self.socket.clone(), self.patience);
            let mut connection = Connection { stream, socket, patience, is_quick: true };
            write_line(&mut connection, &Request::Device {})?;
            read_line::<Answer>(&mut BufReader::new(connection), ANSWER_BYTES_MAX)
        });
        !asked.is_err_and(|error| matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock))
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((received, _)) => return Ok(received),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                sent => return Ok(sent?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that was made, and what is said about it.
pub struct Talk {
    reader: BufReader<Connection>,
    /// Asked bare, of a daemon from before an upgrade, which does not know [`Request::On`].
    again: Option<Box<(Request, Option<OwnedFd>)>>,
}

impl Talk {
    /// The next line of the daemon.
    pub fn hear(&mut self) -> Result<Answer, Failure> {
        let again = self.again.take();
        match read_line(&mut self.reader, ANSWER_BYTES_MAX) {
            Ok(Some(Answer::Failed(failure))) if failure.what == NOT_UNDERSTOOD && again.is_some() => {
                let (request, descriptor) = *again.expect("just seen");
                let folder = self.reader.get_ref().socket.parent().expect("it was made of a folder").to_owned();
                *self = Daemon::find(&folder)?.begin(&request, descriptor)?;
                self.hear()
            }
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(self.broken("it hung up without an answer")),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(self.silent()),
            Err(error) => Err(self.broken(error)),
        }
    }

    /// Says something further.
    pub fn say(&mut self, turn: &Turn) -> Result<(), Failure> {
        write_line(self.reader.get_mut(), turn).map_err(|error| self.refused(&error))
    }

    /// Says that nobody wants more of what was asked. What came of it until then may still be heard.
    pub fn give_up(&mut self) -> Result<(), Failure> {
        let given_up = self.reader.get_ref().stream.shutdown(Shutdown::Write);
        given_up.map_err(|error| self.refused(&error))
    }

    /// Why nothing more can be said. Where it hung up it has mostly said that.
    fn refused(&mut self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                // Behind what else it has said. It says nothing more, so this ends.
                while let Ok(answer) = self.hear() {
                    if let Answer::Failed(failure) = answer {
                        return failure;
                    }
                }
                self.broken("it hung up")
            }
            io::ErrorKind::TimedOut => self.silent(),
            _ => self.broken(error),
        }
    }

    fn silent(&self) -> Failure {
        let Connection { socket, patience, .. } = self.reader.get_ref();
        let why = format!("it has not answered for {} s, nor anything else", patience.as_secs());
        Failure::new("cannot ask the daemon", why).at(socket).mend(MEND_STANDSTILL)
    }

    /// The failure that a line is which makes no sense here.
    #[must_use]
    pub fn unexpected(&self, answer: &Answer) -> Failure {
        self.broken(format!("it said what nobody asked for: {answer:?}"))
    }

    fn broken(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new("lost the daemon", why)
            .at(&self.reader.get_ref().socket)
            .mend("it may have ended: see its log (hydrafs.log in the node's folder, or the journal)")
    }
}

/// What came of [`Daemon::stop`].
pub enum Stopped {
    /// It has ended; what there was to do.
    Ended(Value),
    /// Its mount has been taken away where it was made, and goes on elsewhere.
    Kept(Failure),
}

/// For kernels without pidfd.
#[expect(clippy::disallowed_methods, reason = "a command that waits for another process")]
fn is_gone_soon(pid: Pid) -> bool {
    const STEP: Duration = Duration::from_millis(20);
    let steps = END_PATIENCE.as_millis() / STEP.as_millis();
    let is_gone = || rustix::process::test_kill_process(pid).is_err();
    (0..steps).any(|_| {
        is_gone() || {
            std::thread::sleep(STEP);
            false
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::time::Duration;

    use super::{Answer, Daemon, Failure, Request, SOCKET_NAME, Turn, read_line, refuse_other, write_line};
    use crate::control::wire::REQUEST_BYTES_MAX;

    #[test]
    fn only_our_own_daemon_and_that_of_root_are_asked() {
        for (user, ours) in [(0, 0), (0, 1000), (1000, 1000)] {
            refuse_other(user, ours).expect("it may");
        }
        for (user, ours) in [(1000, 0), (1000, 1001)] {
            let said = refuse_other(user, ours).expect_err("it may not").to_string();
            assert!(said.contains("user 1000 runs it") && said.contains("sudo -u '#1000'"), "{said}");
        }
    }

    /// A node's folder with a socket on which nobody answers yet.
    fn listener(name: &str) -> (PathBuf, UnixListener) {
        let folder = std::env::temp_dir().join(format!("hydrafs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room");
        let listener = UnixListener::bind(folder.join(SOCKET_NAME)).expect("a socket");
        (folder, listener)
    }

    #[test]
    fn a_daemon_that_hangs_hangs_nobody() {
        // Whoever connects is in its queue.
        let (folder, _listener) = listener("silent");
        let gc = Request::Gc { dry_run: false, thorough: true, share: None };
        for request in [Request::Status {}, Request::Sync {}, Request::Stop { detach: false }, gc] {
            let mut daemon = Daemon::reach(&folder).expect("it can be reached").expect("somebody listens");
            daemon.patience = Duration::from_millis(1);
            let failure = daemon.ask(&request, |_| {}).expect_err("nobody answers").to_string();
            assert!(failure.contains("has not answered") && failure.contains("kill -CONT"), "{failure}");
        }
        std::fs::remove_dir_all(folder).expect("it is there");
    }

    /// Work may take as long as it likes.
    #[test]
    fn who_works_is_waited_for_while_it_answers() {
        let (folder, listener) = listener("works");
        let mut daemon = Daemon::reach(&folder).expect("it can be reached").expect("somebody listens");
        // Long enough for the thread below to answer, whatever else this machine does.
        daemon.patience = Duration::from_secs(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = || listener.accept().expect("who asks").0;
                let asks = |stream| read_line(&mut BufReader::new(stream), REQUEST_BYTES_MAX).expect("a request");
                let work = next();
                assert_eq!(asks(&work), Some(Request::Sync {}));
                let answer = |mut stream: &UnixStream| write_line(&mut stream, &Answer::Done(serde_json::Value::Null));
                let probe = next();
                assert_eq!(asks(&probe), Some(Request::Device {}), "it is asked whether it is there");
                answer(&probe).and_then(|()| answer(&work)).expect("both wait");
            });
            daemon.ask(&Request::Sync {}, |_| {}).expect("it answered in the end");
        });
        std::fs::remove_dir_all(folder).expect("it is there");
    }

    /// A daemon that gave up on us has mostly said why, behind what we have not heard yet.
    #[test]
    fn why_a_daemon_hung_up_is_told() {
        for says_why in [true, false] {
            let (ours, theirs) = UnixStream::pair().expect("a socket pair");
            let daemon = Daemon {
                stream: ours,
                socket: "/n/control.sock".into(),
                patience: Duration::from_secs(60),
                device: None,
            };
            let mut talk = daemon.begin(&Request::Sync {}, None).expect("there is room in the socket");
            for text in ["one", "two"] {
                write_line(&mut &theirs, &Answer::Progress(text.to_owned())).expect("room");
            }
            if says_why {
                write_line(&mut &theirs, &Answer::Failed(Failure::new("cannot read", "others wait"))).expect("room");
            }
            // What we asked was heard: else the socket would be reset.
            std::io::Read::read(&mut &theirs, &mut [0; 4096]).expect("it was asked");
            drop(theirs);
            let failure = talk.say(&Turn::Given { window: 0 }).expect_err("nobody is there").to_string();
            assert_eq!(failure.contains("others wait"), says_why, "{failure}");
        }
    }
}
