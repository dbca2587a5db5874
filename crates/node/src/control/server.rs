//! The daemon's end of the control socket: one thread that accepts, one per conversation.
//!
//! The socket is for its owner alone: mode 0600 in a folder of mode 0700, and the peer's user is checked once more, so that a
//! careless chmod opens nothing. A conversation is one bounded request, and in work in masses further lines; who sends nothing, or takes nothing of
//! what he is told, is dropped after a while.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use platform::real;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;

use super::descriptor::Hearing;
use super::wire::{Answer, NOT_UNDERSTOOD, REQUEST_BYTES_MAX, Request, Turn, read_line, write_line};
use super::{SOCKET_NAME, short_path};
use crate::failure::Failure;

/// Conversations at a time; each is a thread that mostly waits.
const CONVERSATIONS_MAX: usize = 128;
/// Of them, those for work in masses, which may take as long as who asked likes: others must come through.
const LONG_MAX: usize = 64;
/// How long a peer may take to send its request, and to read its answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// After so long somebody who waits for a peer looks whether that is over.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Who answers.
pub trait Handler: Send + Sync + 'static {
    /// Does what is asked; may take its time. `progress` tells the peer what goes on.
    fn handle(
        &self,
        request: Request,
        brought: Brought<'_, '_>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure>;
}

/// What came with a request.
#[derive(Default)]
pub struct Brought<'a, 'b> {
    /// A descriptor.
    pub descriptor: Option<OwnedFd>,
    /// Who asked, for what takes more than one line of him.
    pub line: Option<&'a mut Line<'b>>,
}

impl Brought<'_, '_> {
    /// A descriptor alone.
    #[must_use]
    pub fn descriptor(descriptor: Option<OwnedFd>) -> Self {
        Brought { descriptor, line: None }
    }
}

/// The end of a connection that speaks.
pub struct Mouth<'a>(&'a UnixStream);

impl Mouth<'_> {
    /// Says a line.
    pub fn say(&self, answer: &Answer) -> io::Result<()> {
        write_line(&mut &*self.0, answer)
    }

    /// Ends the connection both ways, after half a line perhaps: who hears on it, at either end, hears the end.
    pub fn hang_up(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A connection, after its request.
pub struct Line<'a> {
    stream: &'a UnixStream,
    hearing: BufReader<Hearing<'a>>,
}

impl<'a> Line<'a> {
    fn new(stream: &'a UnixStream) -> Line<'a> {
        Line { stream, hearing: BufReader::new(Hearing::new(stream)) }
    }

    /// Says a line.
    pub fn say(&mut self, answer: &Answer) -> io::Result<()> {
        self.mouth().say(answer)
    }

    /// What another thread says lines by, while nobody else does.
    #[must_use]
    pub fn mouth(&self) -> Mouth<'a> {
        Mouth(self.stream)
    }

    /// Whether the peer has said more, or has gone: who hears then does not wait.
    pub fn has_more(&self) -> io::Result<bool> {
        if !self.hearing.buffer().is_empty() {
            return Ok(true);
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut socket = [PollFd::new(self.stream, PollFlags::IN)];
        match rustix::event::poll(&mut socket, Some(&now)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The next line of the peer, who may take as long as he likes; `None`: he hung up. An error when `is_over` says meanwhile why it is.
    pub fn hear(&mut self, is_over: &dyn Fn() -> Option<&'static str>) -> io::Result<Option<Turn>> {
        self.stream.set_read_timeout(Some(LOOK_INTERVAL))?;
        let mut line = Vec::new();
        loop {
            let room = REQUEST_BYTES_MAX.saturating_sub(line.len() as u64) + 1;
            match self.hearing.by_ref().take(room).read_until(b'\n', &mut line) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
                Ok(0) if line.is_empty() => return Ok(None),
                Ok(_) => return read_line(&mut line.as_slice(), REQUEST_BYTES_MAX),
            }
            if let Some(why) = is_over() {
                return Err(io::Error::other(why));
            }
        }
    }
}

/// The socket, while somebody answers on it.
pub struct Server {
    folder: PathBuf,
    /// Device and number of the socket's file.
    file: (u64, u64),
    conversations: Arc<Conversations>,
}

/// How many are under way.
#[derive(Default)]
struct Conversations {
    count: Mutex<usize>,
    ended: Condvar,
    /// Of them, those for work in masses.
    long: AtomicUsize,
}

impl Server {
    /// Takes the socket away and waits, not for ever, until those who asked have their answers.
    pub fn close(self, patience: Duration) {
        // In a folder that has taken the place of ours it is not ours.
        if self.is_in_place() {
            remove(&self.folder);
        }
        self.leave(patience);
    }

    /// Waits, not for ever, until those who asked have their answers. The socket is somebody else's by now.
    pub fn leave(self, patience: Duration) {
        let mut count = self.conversations.count.lock();
        self.conversations.ended.wait_while_for(&mut count, |count| *count > 0, patience);
    }

    /// Whether those who ask still find us.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        identity(&self.folder.join(SOCKET_NAME)).is_ok_and(|file| file == self.file)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Listens in the folder and answers until the process ends. The caller holds the folder's lock, so a socket that is
/// already there was left behind by a daemon that died, or is that of the process whose work we go on with: ours takes its place in
/// one step, so that there is always one.
pub fn serve(folder: &Path, handler: Arc<dyn Handler>) -> Result<Server, Failure> {
    let path = folder.join(SOCKET_NAME);
    let cannot = |error: io::Error| Failure::new("cannot listen on the control socket", error).at(&path);
    let (_folder, short) = short_path(folder).map_err(cannot)?;
    let aside = short.with_added_extension("new");
    match std::fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&aside).map_err(cannot)?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600)).map_err(cannot)?;
    std::fs::rename(&aside, &short).map_err(cannot)?;
    let file = identity(&short).map_err(cannot)?;
    let conversations = Arc::new(Conversations::default());
    let server = Server { folder: folder.to_owned(), file, conversations: Arc::clone(&conversations) };
    let accept = move || accept_all(&listener, &handler, &conversations);
    std::thread::Builder::new().name("control".to_owned()).spawn(accept).map_err(cannot)?;
    Ok(server)
}

fn remove(folder: &Path) {
    match std::fs::remove_file(folder.join(SOCKET_NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove the control socket: {error}");
        }
        _ => {}
    }
}

#[expect(clippy::disallowed_methods, reason = "the socket's own thread, which serves nobody meanwhile")]
fn accept_all(listener: &UnixListener, handler: &Arc<dyn Handler>, conversations: &Arc<Conversations>) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: give others time to close some.
                tracing::warn!("the control socket accepts nobody: {error}");
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        let Some(conversation) = Conversation::begin(conversations) else {
            // Who reads nothing has room for so much all the same.
            let _ = stream
                .set_nonblocking(true)
                .and_then(|()| write_line(&mut &stream, &Answer::Failed(full(CONVERSATIONS_MAX))));
            continue;
        };
        let handler = Arc::clone(handler);
        let talk = move || {
            if let Err(error) = converse(&stream, handler.as_ref(), &conversation, PATIENCE) {
                tracing::debug!("a conversation on the control socket ended: {error}");
            }
            drop(conversation);
        };
        if let Err(error) = std::thread::Builder::new().name("control-client".to_owned()).spawn(talk) {
            tracing::warn!("cannot start a thread for a conversation: {error}");
        }
    }
}

/// Why somebody is not answered.
fn full(most: usize) -> Failure {
    Failure::new("cannot ask the daemon", format!("{most} others are being answered"))
        .mend("wait for them, or end some of them; clients that were stopped count too")
}

/// One of [`Conversations`], until dropped.
struct Conversation(Arc<Conversations>);

impl Conversation {
    fn begin(all: &Arc<Conversations>) -> Option<Conversation> {
        let mut count = all.count.lock();
        if *count >= CONVERSATIONS_MAX {
            return None;
        }
        *count += 1;
        Some(Conversation(Arc::clone(all)))
    }

    /// A place for work in masses, if there is one.
    fn go_on_long(&self) -> Option<Long<'_>> {
        let more = |count| (count < LONG_MAX).then_some(count + 1);
        let long = &self.0.long;
        long.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok().then_some(Long(long))
    }
}

/// One for work in masses, until dropped.
struct Long<'a>(&'a AtomicUsize);

impl Drop for Long<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.ended.notify_all();
    }
}

fn converse(
    stream: &UnixStream,
    handler: &dyn Handler,
    conversation: &Conversation,
    patience: Duration,
) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is another user"));
    }
    let mut writer = Counted { stream, taken: 0 };
    let mut has_refused = false;
    let mut line = Line::new(stream);
    let answer = match read_line::<Request>(&mut line.hearing, REQUEST_BYTES_MAX) {
        Ok(None) => return Ok(()),
        Ok(Some(request)) => {
            tracing::debug!(?request, "asked on the control socket");
            // A peer that left does not stop the work. One that takes nothing is not waited for at every line.
            let mut progress = |text: &str| {
                if !has_refused {
                    has_refused = write_line(&mut writer, &Answer::Progress(text.to_owned())).is_err();
                }
            };
            let descriptor = line.hearing.get_mut().descriptor.take();
            let brought = Brought { descriptor, line: Some(&mut line) };
            let long = request.is_behind().then(|| conversation.go_on_long());
            if let Some(Some(_)) = long {
                // This thread is for this one request.
                real::give_way();
            }
            match long {
                Some(None) => Answer::Failed(full(LONG_MAX)),
                _ => handler.handle(request, brought, &mut progress).map_or_else(Answer::Failed, Answer::Done),
            }
        }
        Err(error) => Answer::Failed(
            Failure::new(NOT_UNDERSTOOD, error)
                .mend("use a command line of the daemon's version, or see control/wire.rs"),
        ),
    };
    if has_refused && !writer.is_between_lines() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer took half a line, and nothing can follow that"));
    }
    write_line(&mut writer, &answer)
}

/// Knows whether what the peer has taken ends with a line.
struct Counted<'a> {
    stream: &'a UnixStream,
    /// The last byte that he took, 0 before the first.
    taken: u8,
}

impl Counted<'_> {
    fn is_between_lines(&self) -> bool {
        matches!(self.taken, 0 | b'\n')
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        let count = stream.write(bytes)?;
        self.taken = bytes[..count].last().copied().unwrap_or(self.taken);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use serde_json::{Value, json};

    use std::sync::Arc;

    use std::time::Duration;

    use parking_lot::Mutex;

    use super::{
        Brought, CONVERSATIONS_MAX, Conversation, Conversations, Handler, LONG_MAX, PATIENCE, Request, converse,
    };
    use crate::failure::Failure;

    struct Echo;
    impl Handler for Echo {
        fn handle(
            &self,
            request: Request,
            _: Brought<'_, '_>,
            progress: &mut dyn FnMut(&str),
        ) -> Result<Value, Failure> {
            progress("one moment");
            Ok(json!(request))
        }
    }

    /// Tells the nice value of the thread that it is asked on.
    struct Nice;
    impl Handler for Nice {
        fn handle(&self, _: Request, _: Brought<'_, '_>, _: &mut dyn FnMut(&str)) -> Result<Value, Failure> {
            // The 19th, and the second may hold anything (proc_pid_stat(5)).
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
            let (_, fields) = stat.rsplit_once(')').expect("a name");
            Ok(json!(fields.split_whitespace().nth(16).expect("enough of them")))
        }
    }

    fn answer_to(bytes: &[u8]) -> String {
        answer_of(&Echo, bytes)
    }

    fn answer_of(handler: &(dyn Handler + Sync), bytes: &[u8]) -> String {
        answer_among(&Arc::default(), handler, bytes)
    }

    fn answer_among(all: &Arc<Conversations>, handler: &(dyn Handler + Sync), bytes: &[u8]) -> String {
        let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
        let bytes = bytes.to_owned();
        let writer = std::thread::Builder::new().spawn(move || {
            // The daemon may hang up on a line that is too long.
            let _ = ours.write_all(&bytes);
            let _ = ours.shutdown(std::net::Shutdown::Write);
            let mut text = Vec::new();
            let _ = ours.read_to_end(&mut text);
            String::from_utf8(text).expect("JSON")
        });
        let writer = writer.expect("a thread");
        // Each on its own thread, as when a daemon is asked.
        let conversation = Conversation::begin(all).expect("few are under way");
        let _ = std::thread::scope(|scope| {
            scope.spawn(|| converse(&theirs, handler, &conversation, PATIENCE)).join().expect("no panic")
        });
        drop(theirs);
        writer.join().expect("no panic")
    }

    #[test]
    fn a_request_is_answered_and_nonsense_is_refused() {
        assert_eq!(answer_to(b"{\"do\":\"sync\"}\n"), "{\"progress\":\"one moment\"}\n{\"done\":{\"do\":\"sync\"}}\n");
        assert_eq!(answer_to(b""), "");
        for hostile in [&b"\n"[..], b"GET / HTTP/1.1\r\n\r\n", b"{\"do\":", &[0; 4096], b"\xff\n"] {
            assert!(answer_to(hostile).starts_with("{\"failed\":{\"what\":\"cannot understand"), "{hostile:?}");
        }
    }

    /// Tells more than the socket takes, in lines of so many bytes; then what was told is read all the same, and it goes on telling.
    struct Talker(Mutex<UnixStream>, usize);
    impl Handler for Talker {
        fn handle(&self, _: Request, _: Brought<'_, '_>, progress: &mut dyn FnMut(&str)) -> Result<Value, Failure> {
            (0..(1 << 20) / self.1).for_each(|_| progress(&"e".repeat(self.1)));
            let peer = self.0.lock();
            peer.set_nonblocking(true).expect("a socket");
            let mut told = vec![0; 4 << 20];
            while (&*peer).read(&mut told).is_ok_and(|count| count > 0) {}
            peer.set_nonblocking(false).expect("a socket");
            progress("late");
            Ok(json!("well"))
        }
    }

    /// A command that was stopped took the patience anew for each line of its progress: work that was done held its place for days.
    #[test]
    fn who_takes_nothing_is_waited_for_once() {
        // A line that is taken whole or not at all, and one that is taken in part, which nothing can follow.
        for (bytes, expected) in [(1000, "{\"done\":\"well\"}\n"), (300_000, "")] {
            let (ours, theirs) = UnixStream::pair().expect("a socket pair");
            let all = Arc::<Conversations>::default();
            let conversation = Conversation::begin(&all).expect("room");
            (&ours).write_all(b"{\"do\":\"sync\"}\n").expect("room");
            let talker = Talker(Mutex::new(ours.try_clone().expect("a descriptor")), bytes);
            let told = converse(&theirs, &talker, &conversation, Duration::from_millis(50));
            assert_eq!(told.is_ok(), !expected.is_empty(), "{told:?}");
            drop((theirs, talker));
            let mut text = String::new();
            (&ours).read_to_string(&mut text).expect("text");
            assert_eq!(text, expected, "in lines of {bytes} bytes");
        }
    }

    #[test]
    fn work_in_masses_gives_way_and_who_waits_for_an_answer_does_not() {
        let nice = |request: &Request| {
            let answer = answer_of(&Nice, format!("{}\n", json!(request)).as_bytes());
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            answer["done"].as_str().and_then(|nice| nice.parse::<i32>().ok()).expect("a number")
        };
        let (first, masses) = (nice(&Request::Sync {}), Request::Warmup { inodes: Vec::new(), metadata: true });
        // The most there is need not become more.
        assert!(nice(&masses) > first || first == 19);
        assert_eq!(nice(&Request::Sync {}), first);
    }

    /// Clients that were stopped in the middle of their work keep nobody from asking how the daemon is.
    #[test]
    fn work_in_masses_leaves_places_to_who_asks_for_little() {
        let all = Arc::<Conversations>::default();
        let stopped: Vec<Conversation> = (0..LONG_MAX).map(|_| Conversation::begin(&all).expect("room")).collect();
        let mut places: Vec<_> = stopped.iter().map(|stopped| stopped.go_on_long().expect("room")).collect();
        let ask = |request: &Request| answer_among(&all, &Echo, format!("{}\n", json!(request)).as_bytes());
        let masses = Request::Warmup { inodes: Vec::new(), metadata: true };
        assert!(ask(&masses).contains("64 others are being answered"), "{}", ask(&masses));
        assert!(ask(&Request::Status {}).contains("\"done\""), "{}", ask(&Request::Status {}));
        places.pop();
        assert!(ask(&masses).contains("\"done\""), "{}", ask(&masses));
        let silent: Vec<_> = (LONG_MAX..CONVERSATIONS_MAX).map(|_| Conversation::begin(&all).expect("room")).collect();
        assert!(Conversation::begin(&all).is_none());
        drop(silent);
        Conversation::begin(&all).expect("room again");
    }
}
