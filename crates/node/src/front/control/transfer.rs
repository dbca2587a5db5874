//! Snapshots that go to other nodes and come from them, through a descriptor that came with the request.
//!
//! Whoever is at the other end may be slow, or may never come: only the conversation's thread waits for him, and it sees that the node is
//! being closed.
//!
//! Not here: what a stream is (`file`).

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;

use base::units::Bytes;
use file::{FileError, FileSystem, Received, Receiving, Sending, Sent, Snapshot, TransferError};
use platform::real::block_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::{Value, json};

use super::Control;
use super::maintain::{Teller, beside};
use crate::failure::Failure;

/// Bytes that are read or written at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// After so long somebody who waits looks whether the node is being closed.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// What is to be sent.
pub(super) struct Wanted {
    pub(super) snapshot: String,
    pub(super) from: Option<String>,
    pub(super) resume: Option<String>,
    pub(super) dry_run: bool,
}

impl Control {
    pub(super) fn send(
        &self,
        wanted: &Wanted,
        stream: Option<OwnedFd>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot send the snapshot";
        let Wanted { snapshot, from, resume, dry_run } = wanted;
        let pipe = match (dry_run, stream) {
            (true, _) => None,
            (false, Some(stream)) => Some(self.pipe(stream, what)?),
            (false, None) => return Err(no_descriptor(what)),
        };
        let started = self.platform.clock.elapsed();
        let sent = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |sent: &Sent| {
                let Sent { bytes, chunks, .. } = *sent;
                teller.tell(bytes, None, &|rate| format!("{} in {chunks} chunks, {}/s", Bytes(bytes), Bytes(rate)));
            };
            let how = Sending { snapshot, from: from.as_deref(), resume: resume.as_deref(), tell: &tell };
            let mut sink = pipe.map(|pipe| BufWriter::with_capacity(BUFFER_BYTES, pipe));
            let sink = sink.as_mut().map(|sink| sink as &mut (dyn Write + Send));
            block_on(self.system.send(&how, sink))
        });
        let sent = sent.map_err(|error| self.explain_transfer(what, error))?;
        Ok(json!({
            "snapshot": snapshot,
            "from": from,
            "dry_run": dry_run,
            "chunks": sent.chunks,
            "metadata_chunks": sent.metadata_chunks,
            "skipped": sent.skipped,
            "bytes": sent.bytes,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }

    /// Receives one stream after the other, to the end of what comes. The answer is the last snapshot's, with those before it in `before`.
    pub(super) fn receive(
        &self,
        name: Option<&str>,
        stream: Option<OwnedFd>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot receive the snapshot";
        let pipe = self.pipe(stream.ok_or_else(|| no_descriptor(what))?, what)?;
        let mut source = BufReader::with_capacity(BUFFER_BYTES, pipe);
        let mut before = Vec::new();
        loop {
            let received = self.receive_one(what, name, &mut source, progress);
            let mut answer = received.map_err(|failure| match before.last() {
                Some(last) => behind(failure, last),
                None => failure,
            })?;
            let next = source.fill_buf().map(|next| !next.is_empty());
            if next.map_err(|error| behind(Failure::new(what, error), &answer))? {
                if name.is_some() {
                    let failure = Failure::new(what, "another stream follows, and a name is for one");
                    return Err(behind(failure, &answer).mend("receive the others without --name"));
                }
                before.push(answer);
                continue;
            }
            answer["before"] = Value::Array(before);
            return Ok(answer);
        }
    }

    fn receive_one(
        &self,
        what: &str,
        name: Option<&str>,
        source: &mut BufReader<Pipe<'_>>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let started = self.platform.clock.elapsed();
        let received = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |received: &Received| {
                let Received { bytes, chunks, had, .. } = *received;
                let text =
                    |rate| format!("{} in {chunks} chunks, {}/s; {had} of them were here", Bytes(bytes), Bytes(rate));
                teller.tell(bytes, None, &text);
            };
            block_on(self.system.receive(&Receiving { name, tell: &tell }, source))
        });
        let (snapshot, received): (Snapshot, Received) =
            received.map_err(|error| self.explain_transfer(what, error))?;
        self.snapshots_changed(&snapshot.name);
        let mut answer = self.describe_snapshot(&snapshot);
        answer["chunks"] = json!(received.chunks);
        answer["chunks_here_before"] = json!(received.had);
        answer["bytes"] = json!(received.bytes);
        answer["chunks_raised"] = json!(received.raised);
        answer["files_on_too_few_disks"] = json!(received.unmet);
        answer["seconds"] = json!(self.platform.clock.elapsed().saturating_sub(started).as_secs_f64());
        Ok(answer)
    }

    fn pipe(&self, stream: OwnedFd, what: &str) -> Result<Pipe<'_>, Failure> {
        if self.is_daemon {
            // It is the asker's own; what a command has of its user stays as it is.
            let flags = fcntl_getfl(&stream).and_then(|flags| fcntl_setfl(&stream, flags | OFlags::NONBLOCK));
            flags.map_err(|error| Failure::new(what, error))?;
        }
        Ok(Pipe { file: File::from(stream), system: &self.system })
    }

    fn explain_transfer(&self, what: &str, error: TransferError) -> Failure {
        let failure = Failure::new(what, &error);
        match error {
            TransferError::NoSnapshot(_) => failure.mend("see `hydrafs snapshot list`"),
            TransferError::NoSuchPlace(_) => failure
                .mend("name the snapshots and the place that the receiver told, or send without --resume"),
            TransferError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Failure::new(what, "who reads the stream has ended").mend("see what it said")
            }
            TransferError::Output(_) => failure,
            TransferError::NoStream(_) => failure.mend("nothing was changed"),
            TransferError::OtherDomain(_) => failure.mend(
                "snapshots go between nodes of one dedup domain: make this one with `hydrafs init --domain-of`, from a file of \
                 `hydrafs domain export`; nothing was changed",
            ),
            TransferError::NoBase => failure.mend("receive that one first, or send without --from; nothing was changed"),
            TransferError::Cut { chunks: 0, .. } => failure.mend("send it again; no snapshot was made"),
            TransferError::Cut { token, .. } => failure.mend(format!(
                "send it again with `--resume {token}`, or from its beginning: what came is not stored twice; no snapshot was made"
            )),
            TransferError::Incomplete(_) => failure.mend("send it again, without --resume; no snapshot was made"),
            TransferError::File(FileError::Exists) => Failure::new(what, "there is a snapshot of this name")
                .mend("choose another one with --name; nothing was changed"),
            TransferError::File(FileError::Invalid(why)) => {
                Failure::new(what, why).mend("choose another name with --name; nothing was changed")
            }
            TransferError::File(error) => self.explain(what)(error),
        }
    }
}

/// A failure after this snapshot has come.
fn behind(failure: Failure, last: &Value) -> Failure {
    let name = last["name"].as_str().unwrap_or_default();
    let why = format!("behind the stream of the snapshot {name}, which was received: {}", failure.why);
    Failure { why, ..failure }
}

fn no_descriptor(what: &str) -> Failure {
    Failure::new(what, "no descriptor came with the request").mend("use `hydrafs send` and `hydrafs receive`")
}

/// A descriptor of somebody else. Who waits for it sees that the node is being closed.
struct Pipe<'a> {
    file: File,
    system: &'a FileSystem,
}

impl Pipe<'_> {
    fn when_ready<T>(&self, flags: PollFlags, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            if self.system.is_ending() {
                return Err(io::Error::other("the node is being closed"));
            }
            match poll(&mut [PollFd::new(&self.file, flags)], Some(&LOOK_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match work() {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                result => return result,
            }
        }
    }
}

impl Read for Pipe<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.when_ready(PollFlags::IN, || (&self.file).read(buffer))
    }
}

impl Write for Pipe<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.when_ready(PollFlags::OUT, || (&self.file).write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
