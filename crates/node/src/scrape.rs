//! Metrics over HTTP, for Prometheus: `GET /metrics` and nothing else.
//!
//! A client costs a thread for some seconds and a few KiB, whatever it does: connections are few, the head of a request is
//! short, and the whole conversation has one deadline. So it has while a disk hangs that the text tells of: the text is made on a thread of
//! its own, which keeps the conversation's place for as long as it takes. The parser is httparse (hyper's; no dependencies). A server crate would
//! bring an executor, or, as tiny_http, no deadlines, for one answer per connection.
//!
//! Not here: what the text says (`exposition`), who may reach the address (the one who sets it decides).

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use platform::Clock;

use crate::exposition::CONTENT_TYPE;
use crate::failure::Failure;

/// Conversations at a time; more are hung up on.
const CONVERSATIONS_MAX: usize = 8;
/// How long a conversation may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long of that the text may take.
const TEXT_PATIENCE: Duration = Duration::from_secs(2);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most headers in it.
const HEADERS_MAX: usize = 64;

/// Gives the text, or nothing from the moment on at which there is nothing to measure.
type Text = dyn Fn() -> Option<String> + Send + Sync;

/// Why there is no text now.
const RESTARTING: &str = "the daemon is restarting\n";
const LATE: &str = "a disk does not answer\n";

/// Somebody who answers. Dropped, nobody listens at the address any more: another process may.
pub(crate) struct Scraper {
    /// Where, with the port that was found for port 0.
    pub(crate) address: SocketAddr,
    listener: Arc<TcpListener>,
    is_ending: Arc<AtomicBool>,
    accept: Option<JoinHandle<()>>,
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        // Whoever waits in accept(2) hears of it (EINVAL), and nobody is accepted from now on.
        let woken = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let (Ok(()), Some(accept)) = (woken, self.accept.take()) {
            let _ = accept.join();
        }
    }
}

/// Listens, and answers with the text. Conversations that are under way when the scraper is dropped come to their own ends.
pub(crate) fn serve(
    address: SocketAddr,
    clock: Arc<dyn Clock>,
    text: impl Fn() -> Option<String> + Send + Sync + 'static,
) -> Result<Scraper, Failure> {
    let cannot = |error: io::Error| {
        Failure::new("cannot publish metrics", error)
            .place(address.to_string())
            .mend("choose another address in the section [metrics] of hydrafs.toml; all else works")
    };
    let listener = Arc::new(TcpListener::bind(address).map_err(cannot)?);
    let address = listener.local_addr().map_err(cannot)?;
    let text: Arc<Text> = Arc::new(text);
    let is_ending = Arc::<AtomicBool>::default();
    let accept = {
        let (listener, is_ending) = (listener.clone(), is_ending.clone());
        move || accept_all(&listener, &clock, &text, &is_ending)
    };
    let accept = std::thread::Builder::new().name("metrics".to_owned()).spawn(accept).map_err(cannot)?;
    Ok(Scraper { address, listener, is_ending, accept: Some(accept) })
}

#[expect(clippy::disallowed_methods, reason = "the listener's own thread, which serves nobody meanwhile")]
fn accept_all(listener: &TcpListener, clock: &Arc<dyn Clock>, text: &Arc<Text>, is_ending: &AtomicBool) {
    // Each conversation holds a copy.
    let conversations = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if is_ending.load(Ordering::Acquire) => return,
            Err(error) => {
                // Out of descriptors, most likely: give others time to close some.
                tracing::warn!("metrics can be fetched by nobody: {error}");
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        if Arc::strong_count(&conversations) > CONVERSATIONS_MAX {
            continue;
        }
        let (clock, text, conversation) = (clock.clone(), text.clone(), conversations.clone());
        let talk = move || {
            let deadline = clock.elapsed() + PATIENCE;
            let mut stream = Timed { stream, clock, deadline };
            let mut place = Some(conversation);
            let made = || place.take().map_or(Err(LATE), |own| in_time(&text, TEXT_PATIENCE, own, &mut place));
            if let Err(error) = converse(&mut stream, made) {
                tracing::debug!("a request for metrics ended: {error}");
            }
            // Before the stream: whoever sees it closed finds the place free.
            drop(place);
            drop(stream);
        };
        if let Err(error) = std::thread::Builder::new().name("metrics-client".to_owned()).spawn(talk) {
            tracing::warn!("cannot start a thread for a request for metrics: {error}");
        }
    }
}

/// A connection all of whose calls end at one deadline: with a timeout for each, a client could go on for ever, a byte at a time.
struct Timed {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    deadline: Duration,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_sub(self.clock.elapsed());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text, if it comes in time; with it the conversation gets its place back.
fn in_time(
    text: &Arc<Text>,
    patience: Duration,
    place: Arc<()>,
    back: &mut Option<Arc<()>>,
) -> Result<String, &'static str> {
    let (send, receive) = channel();
    let text = Arc::clone(text);
    let make = move || drop(send.send((text(), place)));
    std::thread::Builder::new().name("metrics-text".to_owned()).spawn(make).map_err(|_| LATE)?;
    let (made, place) = receive.recv_timeout(patience).map_err(|_| LATE)?;
    *back = Some(place);
    made.ok_or(RESTARTING)
}

fn converse(stream: &mut Timed, text: impl FnOnce() -> Result<String, &'static str>) -> io::Result<()> {
    let answer = answer(stream, text)?;
    stream.write_all(&answer)?;
    stream.stream.shutdown(Shutdown::Write)?;
    // What a client still sends would otherwise reset the connection before it has read the answer.
    io::copy(&mut stream.take(HEAD_BYTES_MAX as u64), &mut io::sink()).map(drop)
}

/// Reads the head of a request and answers it.
fn answer(stream: &mut impl Read, text: impl FnOnce() -> Result<String, &'static str>) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut room = [0; 1024];
    loop {
        let count = stream.read(&mut room)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&room[..count]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                return Ok(respond(request.method.unwrap_or_default(), request.path.unwrap_or_default(), text));
            }
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(response("431 Request Header Fields Too Large", "", "the request is too long\n", true));
            }
            Err(error) => return Ok(response("400 Bad Request", "", &format!("this is no HTTP/1: {error}\n"), true)),
        }
    }
}

fn respond(method: &str, path: &str, text: impl FnOnce() -> Result<String, &'static str>) -> Vec<u8> {
    let has_body = method != "HEAD";
    let is_metrics = path.split('?').next() == Some("/metrics");
    match (method, is_metrics) {
        ("GET" | "HEAD", true) => match text() {
            Ok(text) => response("200 OK", "", &text, has_body),
            Err(why) => response("503 Service Unavailable", "Retry-After: 1\r\n", why, has_body),
        },
        ("GET" | "HEAD", false) => response("404 Not Found", "", "metrics are at /metrics\n", has_body),
        _ => response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "metrics can only be read\n", true),
    }
}

fn response(status: &str, headers: &str, body: &str, has_body: bool) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n{headers}");
    format!("{head}Connection: close\r\n\r\n{}", if has_body { body } else { "" }).into_bytes()
}

#[cfg(test)]
pub(crate) use self::tests::TARGET as HEAD;

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use base::time::Timestamp;
    use fuzz::{CASES, Target, no_repair};
    use parking_lot::Mutex;
    use platform::Clock;

    use super::{HEAD_BYTES_MAX, LATE, PATIENCE, Text, answer, in_time, respond, serve};

    pub(crate) const TARGET: Target =
        Target { name: "scrape-head", cases: CASES, samples: heads, repair: no_repair, check: head };

    fn heads() -> Vec<Vec<u8>> {
        ["GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", "HEAD /metrics?a=b HTTP/1.0\r\n\r\n"]
            .map(|head| head.as_bytes().to_vec())
            .to_vec()
    }

    /// The text, a refusal with the status of it, or a request that has not come to its end; and the reader is left soon.
    fn head(bytes: &[u8]) -> Result<(), String> {
        let mut input = bytes;
        let answered = answer(&mut input, || Ok("the text".to_owned()));
        assert!(bytes.len() - input.len() <= HEAD_BYTES_MAX + 1024, "{} bytes were read", bytes.len() - input.len());
        let answer = String::from_utf8(answered.map_err(|error| error.to_string())?).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head ends");
        let status = head.lines().next().expect("a line");
        if status == "HTTP/1.1 200 OK" {
            assert!(body.is_empty() || body == "the text", "{answer}");
            return Ok(());
        }
        assert!(["400", "404", "405", "431"].contains(&&status[9..12]), "{answer}");
        Err(status.to_owned())
    }

    /// Goes a step further each time somebody looks.
    struct Steps(AtomicU64, Duration);

    impl Clock for Steps {
        fn now(&self) -> Timestamp {
            Timestamp::default()
        }

        fn elapsed(&self) -> Duration {
            let step = self.0.fetch_add(1, Ordering::Relaxed);
            self.1 * u32::try_from(step).expect("few looks")
        }
    }

    /// What a client hears that sends the start of a request and then nothing.
    fn heard(step: Duration) -> Vec<u8> {
        let clock = Arc::new(Steps(AtomicU64::new(0), step));
        let address = "127.0.0.1:0".parse().expect("an address");
        let scraper = serve(address, clock, || Some(String::new())).expect("a free port");
        let mut stream = TcpStream::connect(scraper.address).expect("it listens");
        stream.write_all(b"G").expect("it reads");
        let mut heard = Vec::new();
        // Hung up on, with the byte unread or not.
        let _ = stream.read_to_end(&mut heard);
        heard
    }

    #[test]
    fn whoever_is_slow_is_hung_up_on() {
        assert_eq!(heard(PATIENCE), b"", "no time left before the first byte");
        assert_eq!(heard(PATIENCE * 49 / 100), b"", "little time left after it");
    }

    #[test]
    fn the_address_is_free_when_the_scraper_has_gone() {
        let clock = || Arc::new(Steps(AtomicU64::new(0), Duration::ZERO));
        let first = serve("127.0.0.1:0".parse().expect("an address"), clock(), || None).expect("a free port");
        let address = first.address;
        // A conversation under way keeps nobody from listening, and has its answer.
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").expect("it reads");
        let busy = serve(address, clock(), || None).err().expect("one at a time").to_string();
        assert!(busy.starts_with(&format!("cannot publish metrics: {address}; ")), "{busy}");
        drop(first);
        let second = serve(address, clock(), || Some("up 1\n".to_owned())).expect("free");
        assert_eq!(second.address, address);
        let mut heard = String::new();
        let mut next = TcpStream::connect(address).expect("it listens");
        next.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
        next.shutdown(Shutdown::Write).expect("connected");
        next.read_to_string(&mut heard).expect("text");
        assert!(heard.ends_with("\r\n\r\nup 1\n"), "{heard}");
        drop(stream);
    }

    #[test]
    fn a_disk_that_hangs_hangs_no_client() {
        let (disk, hung) = channel::<()>();
        let hung = Mutex::new(hung);
        let text: Arc<Text> = Arc::new(move || hung.lock().recv().ok().map(|()| "up 1\n".to_owned()));
        let places = Arc::new(());
        let mut place = None;
        let made = in_time(&text, Duration::ZERO, Arc::clone(&places), &mut place);
        assert_eq!(made, Err(LATE));
        assert!(place.is_none() && Arc::strong_count(&places) == 2, "it is still being made");
        let said = String::from_utf8(respond("GET", "/metrics", || made)).expect("text");
        assert!(said.starts_with("HTTP/1.1 503 ") && said.ends_with(LATE), "{said}");
        // The one that hung takes the first answer, ours the second.
        disk.send(()).and_then(|()| disk.send(())).expect("it waits");
        let made = in_time(&text, PATIENCE, Arc::clone(&places), &mut place);
        assert!(made.as_deref() == Ok("up 1\n") && place.is_some());
    }

    /// Gives its bytes one at a time, as a slow client does.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(1);
            room[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn status(request: &[u8]) -> String {
        let text = || Ok("up 1\n".to_owned());
        let (whole, slow) = (answer(&mut &*request, text), answer(&mut Slow(request), text));
        let words = |answer: io::Result<Vec<u8>>| {
            answer.map_or_else(|error| error.kind().to_string(), |answer| String::from_utf8(answer).expect("text"))
        };
        let (whole, slow) = (words(whole), words(slow));
        assert_eq!(whole, slow, "{request:?}");
        whole
    }

    #[test]
    fn metrics_are_read_and_nothing_else() {
        let found = status(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\nConnection: close\r\n\r\nup 1\n"));
        assert!(found.contains("\r\nContent-Length: 5\r\n"));
        let head = status(b"HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.contains("\r\nContent-Length: 5\r\n") && head.ends_with("\r\n\r\n"));
        assert!(status(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(status(b"GET /metrics/../x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(status(b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n").starts_with("HTTP/1.1 405 "));
    }

    #[test]
    fn nonsense_is_refused_and_bounded() {
        assert_eq!(status(b""), "unexpected end of file");
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost:"), "unexpected end of file");
        for garbage in [
            &b"\0\0\0\0"[..],
            b"{\"do\":\"status\"}\n",
            b"GET  /metrics\r\n\r\n",
            b"GET /m HTTP/9.9\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert!(status(garbage).starts_with("HTTP/1.1 400 "), "{garbage:?}");
        }
        let path = [&b"GET /"[..], &[b'a'; HEAD_BYTES_MAX]].concat();
        let header = [&b"GET / HTTP/1.1\r\nA: "[..], &[b'a'; HEAD_BYTES_MAX]].concat();
        let many = [&b"GET / HTTP/1.1\r\n"[..], &b"A: b\r\n".repeat(1000)].concat();
        for long in [path, header, many] {
            assert!(status(&long).starts_with("HTTP/1.1 431 "), "{} bytes", long.len());
        }
        // Whatever comes first, nobody reads on for ever.
        assert!(answer(&mut io::repeat(b'a'), || Err(LATE)).is_ok());
    }
}
