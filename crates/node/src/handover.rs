//! The hand-over: what one process of a daemon gives to the next, over a socket that is the next one's standard input.
//!
//! ```text
//! former                                         next (`hydrafs take-over NODE`, started by the former)
//!   mark, version, length; lock and /dev/fuse →
//!   body                                       →   opens the node, prepares to serve
//!                                              ←   "ready", or what went wrong (a line of JSON)
//!   a byte, "go"                               →
//!   ends                                           serves; also where the former died before "go"
//! ```
//!
//! Somebody always goes on, and never both: a former that does not hear "ready" in time ends the next, and then serves itself; a next
//! that has said it serves when it is told to, or when nobody is there any more to tell it, or to serve.
//!
//! The kernel's numbers for files are the files' own ids, its open files need no handle here, and locks are its own business. So
//! the body is short: how often the kernel was given each file, its numbers for files of snapshots, and the session
//! (`fuse::Parked`). Whatever else a process knows is on the disks.
//!
//! H-4  One process at a time has the node's store open; the lock of its folder is never free in between.
//! H-5  The next process answers nothing before the former has heard that it is ready and said "go", or has died; after that the
//!      former answers nothing more.
//! H-6  What is handed over is of the moment at which no request was under way.
//! H-7  Both write disks in the same forms: the next has opened the node, and written in its own, when it may still fail, and the former that
//!      takes the node back must be able to read that.
//!
//! Not here: when it happens, and what becomes of a failure (`life`).

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::codec::{DecodeError, Reader, Writer};
use base::id::FileId;
use file::{FORMS, Node, View};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::daemon::{self, Verdict};
use crate::failure::Failure;

/// First bytes of a hand-over.
const MARK: [u8; 8] = *b"HydraFSh";
/// Version of the body and of what is said after it. Whoever changes what a byte of it means raises this. 2: "go". 5: forms.
const VERSION: u32 = 5;
/// Mark, version, descriptors, length.
const HEAD_BYTES: usize = 8 + 4 + 4 + 8;
/// Longest body: a hundred million references.
const BODY_BYTES_MAX: u64 = 4 << 30;
/// How long the former may take to say "go", and either to read what the other writes.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a socket says that nobody wrote a verdict into.
const ENDED: &str = "the new process ended before it was ready";
/// Longest verdict.
const VERDICT_BYTES_MAX: u64 = 64 << 10;

/// What the next process needs, beside the disks.
pub(crate) struct Handover {
    /// The lock on the node's folder.
    pub(crate) lock: OwnedFd,
    /// How often the kernel was given each file and has not taken it back.
    pub(crate) references: Vec<(FileId, u32)>,
    /// The next number for a file of a snapshot, and those that the kernel has.
    pub(crate) numbers: (u64, Vec<(u64, Node, u64)>),
    /// The open connection and the session's own bytes, of a daemon that has a mount.
    pub(crate) session: Option<(OwnedFd, Vec<u8>)>,
}

impl Handover {
    /// Gives it to the process at the other end.
    pub(crate) fn send(&self, socket: &UnixStream) -> io::Result<()> {
        let body = self.encode();
        let descriptors: Vec<_> =
            std::iter::once(&self.lock).chain(self.session.iter().map(|(device, _)| device)).map(AsFd::as_fd).collect();
        let mut head = Writer::with_capacity(HEAD_BYTES);
        head.put(&MARK).u32(VERSION).u32(descriptors.len() as u32).u64(body.len() as u64);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for two");
        let sent = rustix::net::sendmsg(socket, &[IoSlice::new(head.bytes())], &mut control, SendFlags::NOSIGNAL)?;
        (&mut &*socket).write_all(&head.bytes()[sent..])?;
        (&mut &*socket).write_all(&body)
    }

    /// Takes it from the process at the other end.
    pub(crate) fn receive(socket: &UnixStream) -> Result<Handover, Failure> {
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::new("cannot take the daemon over", why).mend("`hydrafs restart` starts this; nothing was changed")
        };
        let mut head = [0; HEAD_BYTES];
        let mut descriptors = Vec::new();
        let mut filled = 0;
        while filled < HEAD_BYTES {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut head[filled..])];
            let received = rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
            let received = received.map_err(|error| cannot(&error))?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(sent) = message {
                    descriptors.extend(sent);
                }
            }
            filled += match received.bytes {
                0 => return Err(cannot(&"nothing was handed over")),
                bytes => bytes,
            };
        }
        let wrong = |error: DecodeError| cannot(&error);
        let mut reader = Reader::new(&head);
        if reader.array::<8>("the mark").map_err(wrong)? != MARK {
            return Err(cannot(&"what came is no hand-over"));
        }
        let version = reader.u32("the version").map_err(wrong)?;
        if version != VERSION {
            let why = format!("it hands over in version {version}, this program knows version {VERSION}");
            return Err(cannot(&why).mend("end the daemon with `hydrafs stop` and mount again with this program"));
        }
        let (count, length) = (reader.u32("descriptors"), reader.u64("a length"));
        if count.map_err(wrong)? as usize != descriptors.len() {
            return Err(cannot(&"descriptors are missing"));
        }
        let length = length.map_err(wrong)?;
        if length > BODY_BYTES_MAX {
            return Err(cannot(&format!("{length} bytes are too many")));
        }
        let mut body = Vec::new();
        let bytes = socket.take(length).read_to_end(&mut body).map_err(|error| cannot(&error))?;
        if bytes as u64 != length {
            return Err(cannot(&format!("expected {length} bytes, found {bytes}")));
        }
        let is_of_others = !body.starts_with(&forms());
        let decoded = Handover::decode(&body, descriptors.into_iter());
        decoded.map_err(|error| match is_of_others {
            true => cannot(&"it writes disks in other forms than this program")
                .mend("end the daemon with `hydrafs stop` and mount again with this program"),
            false => wrong(error),
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64 + self.references.len() * 16);
        writer.put(&forms());
        writer.u64(self.references.len() as u64);
        for (file, count) in &self.references {
            writer.file(*file).u32(*count);
        }
        let (next, known) = &self.numbers;
        writer.u64(*next).u64(known.len() as u64);
        for (number, node, held) in known {
            writer.u64(*number).u32(node.view.0).file(node.file).u64(*held);
        }
        if let Some((_, session)) = &self.session {
            writer.put(session);
        }
        writer.into_bytes()
    }

    pub(crate) fn decode(body: &[u8], mut descriptors: impl Iterator<Item = OwnedFd>) -> Result<Handover, DecodeError> {
        let mut reader = Reader::new(body);
        let node = |reader: &mut Reader<'_>| -> Result<Node, DecodeError> {
            Ok(Node { view: View(reader.u32("a view")?), file: reader.file("a file")? })
        };
        // H-7.
        for form in FORMS {
            if reader.u32("a form")? != form {
                return Err(reader.refuse("the forms of what this program writes on disks"));
            }
        }
        let mut references = Vec::new();
        for _ in 0..reader.u64("the number of references")? {
            references.push((reader.file("a file")?, reader.u32("a count")?));
        }
        let next = reader.u64("the next number")?;
        let mut known = Vec::new();
        for _ in 0..reader.u64("the number of numbers")? {
            known.push((reader.u64("a number")?, node(&mut reader)?, reader.u64("a count")?));
        }
        let lock = descriptors.next().ok_or_else(|| reader.refuse("the lock"))?;
        let rest = reader.remaining();
        let session = reader.take("the session", rest)?.to_vec();
        let session = descriptors.next().map(|device| (device, session));
        Ok(Handover { lock, references, numbers: (next, known), session })
    }
}

/// What a body begins with.
fn forms() -> Vec<u8> {
    FORMS.iter().flat_map(|form| form.to_le_bytes()).collect()
}

/// Says how it went, to the process that handed over.
pub(crate) fn tell(socket: &UnixStream, verdict: &Verdict) {
    let line = serde_json::to_string(verdict).expect("a verdict is plain text");
    // Nobody there: then there is nobody to go on, either, and we do.
    let _ = writeln!(&mut &*socket, "{line}");
}

/// Waits until it is our turn: the process that handed over says so, or has died (H-5). An error: neither, for longer than it takes to say so.
pub(crate) fn wait_for_go(socket: &UnixStream) -> Result<(), Failure> {
    let failed = |why: String| Failure::new("cannot take the daemon over", why);
    socket.set_read_timeout(Some(PATIENCE)).map_err(|error| failed(error.to_string()))?;
    let mut go = [0];
    match (&mut &*socket).read_exact(&mut go) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(failed(format!("the former process has neither said \"go\" within {} s nor ended", PATIENCE.as_secs())))
        }
        _ => Ok(()),
    }
}

/// Waits for how it went, at most so long.
pub(crate) fn hear(socket: &UnixStream, patience: Duration) -> Result<String, Failure> {
    let failed = |why: String| Failure::new("cannot restart", why);
    socket.set_read_timeout(Some(patience)).map_err(|error| failed(error.to_string()))?;
    let mut line = String::new();
    let result = BufReader::new(socket.take(VERDICT_BYTES_MAX)).read_line(&mut line);
    result.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => failed(format!("the new process was not ready within {} s", patience.as_secs())),
        // It ended with bytes of ours unread.
        io::ErrorKind::ConnectionReset => failed(ENDED.to_owned()),
        _ => failed(error.to_string()),
    })?;
    match serde_json::from_str(&line) {
        Ok(Verdict::Ready(words)) => Ok(words),
        Ok(Verdict::Failed(failure)) => Err(failure),
        Err(_) => Err(failed(ENDED.to_owned())),
    }
}

/// Starts the next process and hands over to it. Gives its number and words once it is ready, within `patience`: to open the node, mostly;
/// else it has ended.
pub(crate) fn pass_on(
    program: &Path,
    (folder, is_degraded): (&Path, bool),
    handover: &Handover,
    patience: Duration,
) -> Result<(u32, String), Failure> {
    let cannot = |error: io::Error| {
        Failure::new("cannot restart", format!("the program {} cannot be started: {error}", program.display()))
    };
    let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
    let mut command = Command::new(program);
    // A watchdog that the service manager asked of this process, by its number.
    command.arg0("hydrafs").arg("take-over").arg(folder).env_remove("WATCHDOG_PID");
    if is_degraded {
        command.arg("--degraded");
    }
    let mut child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(cannot)?;
    // The command keeps its end of the socket open, and a process that ended would go unnoticed.
    drop(command);
    // One that ends early breaks the sending; what it said first is the better reason.
    let sent = ours.set_write_timeout(Some(PATIENCE)).and_then(|()| handover.send(&ours));
    let passed = hear(&ours, patience).and_then(|words| {
        sent.map_err(|error| Failure::new("cannot restart", format!("the hand-over was cut short: {error}")))?;
        (&ours).write_all(b"g").map_err(|_| Failure::new("cannot restart", ENDED))?;
        Ok((child.id(), words))
    });
    passed.map_err(|failure| {
        // It has not answered a request yet (H-5), and shall not.
        let _ = child.kill();
        let how = daemon::end_of(&mut child);
        let is_placed = !failure.place.is_empty();
        if is_placed { failure } else { failure.place(format!("{} ({how})", program.display())) }
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use base::id::FileId;
    use file::{Node, View};

    use super::{HEAD_BYTES, Handover, MARK, PATIENCE, VERSION, forms, pass_on, wait_for_go};

    fn handover() -> Handover {
        let descriptor = || OwnedFd::from(std::io::pipe().expect("a pipe").0);
        let old = Node { view: View(3), file: FileId::main(9) };
        Handover {
            lock: descriptor(),
            references: (0..100_000).map(|count| (FileId::main(u64::from(count)), count + 1)).collect(),
            numbers: (1 << 63 | 5, vec![(1 << 63 | 4, old, 2)]),
            session: Some((descriptor(), b"session".to_vec())),
        }
    }

    #[test]
    fn what_is_given_arrives() {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let sent = handover();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| Handover::receive(&theirs));
            sent.send(&ours).expect("they listen");
            receiver.join().expect("no panic").expect("whole")
        });
        assert!(received.references == sent.references && received.numbers == sent.numbers);
        assert_eq!(received.session.expect("one").1, b"session");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a program of another kind is the outside")]
    fn the_next_goes_when_told_to_or_when_nobody_is_left() {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        std::io::Write::write_all(&mut &ours, b"g").expect("room");
        wait_for_go(&theirs).expect("told");
        drop(ours);
        wait_for_go(&theirs).expect("nobody is left");
        // What a process gets that says it is ready: the hand-over, and "go".
        let folder = std::env::temp_dir().join(format!("hydrafs-handover-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room");
        let (program, heard) = (folder.join("next"), folder.join("heard"));
        let text =
            format!("#!/bin/sh\necho '{{\"Ready\":\"words\"}}' >&0; cat > {0}.new; mv {0}.new {0}\n", heard.display());
        std::fs::write(&program, text).expect("room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("ours");
        let (process, words) = pass_on(&program, (&folder, false), &handover(), PATIENCE).expect("it says so");
        assert_eq!(words, "words");
        let process = rustix::process::Pid::from_raw(i32::try_from(process).expect("small"));
        rustix::process::waitpid(process, rustix::process::WaitOptions::empty()).expect("our child");
        let heard = std::fs::read(heard).expect("it has ended");
        assert!(heard.starts_with(&MARK) && heard.ends_with(b"sessiong"), "{} bytes", heard.len());
        std::fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn what_is_no_hand_over_is_refused() {
        let refusal = |bytes: &[u8]| {
            let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
            std::io::Write::write_all(&mut ours, bytes).expect("it fits the socket");
            drop(ours);
            Handover::receive(&theirs).err().expect("it is refused").to_string()
        };
        assert!(refusal(b"").contains("nothing was handed over"));
        assert!(refusal(&[7; HEAD_BYTES]).contains("no hand-over"));
        let newer = [&MARK[..], &9_u32.to_le_bytes(), &[0; 12]].concat();
        let words = format!("in version 9, this program knows version {VERSION}");
        assert!(refusal(&newer).contains(&words), "{}", refusal(&newer));
        let without = [&MARK[..], &VERSION.to_le_bytes(), &1_u32.to_le_bytes(), &[0; 8]].concat();
        assert!(refusal(&without).contains("descriptors are missing"));
        let body = handover().encode();
        // H-7.
        let mut others = forms();
        others[4] += 1;
        let length = (others.len() as u64).to_le_bytes();
        let words = refusal(&[&MARK[..], &VERSION.to_le_bytes(), &[0; 4], &length, &others].concat());
        assert!(words.contains("in other forms than this program"), "{words}");
        for length in 0..40 {
            let descriptors = std::iter::once(OwnedFd::from(std::io::pipe().expect("a pipe").0));
            assert!(Handover::decode(&body[..length], descriptors).is_err());
        }
    }
}
