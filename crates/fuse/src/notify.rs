//! Messages to the kernel that answer nothing: forget what you cache.
//!
//! Beware: the kernel takes locks for these. Dropping pages waits for reads and writes of the same file that are being
//! served, dropping a name waits for requests in its directory. A thread that serves requests must therefore never
//! `send`; it may `post`, and a thread of the notifier's own sends. Attributes alone it may `forget_attributes`.

#![expect(unsafe_code, reason = "writev(2) and poll(2) have no wrappers that take a shared descriptor")]

use crate::errno::Errno;
use crate::flags::notify as kind;
use crate::lock::lock;
use crate::wire;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use zerocopy::IntoBytes;

/// A message to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "nodes, names and ranges, named after what they are")]
pub enum Notice {
    /// Forget a node's attributes, and its data from `offset` on. `bytes` of 0 is all the rest; a negative `offset`
    /// leaves the data alone.
    InvalidateInode { node: u64, offset: i64, bytes: i64 },
    /// Forget that this name exists, or that it does not.
    InvalidateEntry { parent: u64, name: Vec<u8> },
    /// Ask about this name again before believing it (`Negotiated::expire_only`).
    ExpireEntry { parent: u64, name: Vec<u8> },
    /// The name has been removed: tell those who watch the directory.
    DeleteEntry { parent: u64, child: u64, name: Vec<u8> },
    /// Put data into the cache of a file.
    Store { node: u64, offset: u64, data: Vec<u8> },
    /// Poll again (`Request::Poll`'s `kernel_handle`).
    PollWakeup { kernel_handle: u64 },
    /// Believe no cached name any more without asking (Linux 6.16).
    NewEpoch,
    /// Forget these nodes if nobody uses them (Linux 6.18).
    Prune { nodes: Vec<u64> },
}

/// Sends notices. Clones share one queue.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<OwnedFd>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Notice>,
    /// One that was posted is being sent.
    is_sending: bool,
    is_closed: bool,
}

impl Notifier {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Notifier {
        Notifier { shared: Arc::new(Shared { device, queue: Mutex::default(), changed: Condvar::new() }) }
    }

    /// Sends a notice and waits until the kernel has acted on it. False if there was nothing to do: the kernel did not
    /// know the node or name. Never call this on a thread that serves requests.
    pub fn send(&self, notice: &Notice) -> io::Result<bool> {
        let (code, fixed, tail) = encode(notice);
        let bytes = size_of::<wire::OutHeader>() + fixed.len() + tail.len();
        let bytes = u32::try_from(bytes).map_err(io::Error::other)?;
        let header = wire::OutHeader { bytes, error: code, unique: 0 };
        match write(&self.shared.device, &[header.as_bytes(), &fixed, &tail]) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel forget a node's attributes. This alone a thread that serves requests may send: leaving the data alone, the kernel
    /// takes no lock for it that a request could hold (`fuse_reverse_inval_inode` in fs/fuse/inode.c).
    pub fn forget_attributes(&self, node: u64) -> io::Result<bool> {
        self.send(&Notice::InvalidateInode { node, offset: -1, bytes: 0 })
    }

    /// Whether the kernel still has the connection. False when the mount has gone everywhere, or was disconnected.
    pub fn is_connected(&self) -> bool {
        let mut polled = libc::pollfd { fd: self.shared.device.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one structure that lives during the call, which waits for nothing.
        let found = unsafe { libc::poll(&raw mut polled, 1, 0) };
        // `fuse_dev_poll` in fs/fuse/dev.c.
        found == 0 || polled.revents & libc::POLLERR == 0
    }

    /// Sends a notice soon, after those posted before. Errors are not reported: they mean that the session is over or
    /// the kernel does not know this kind.
    pub fn post(&self, notice: Notice) {
        let mut queue = lock(&self.shared.queue);
        if !queue.is_closed {
            queue.waiting.push_back(notice);
            self.shared.changed.notify_all();
        }
    }

    /// Sends what is posted until `close`.
    pub(crate) fn run(&self) {
        loop {
            let mut queue = lock(&self.shared.queue);
            let notice = loop {
                match queue.waiting.pop_front() {
                    Some(notice) => break notice,
                    None if queue.is_closed => return,
                    None => queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            queue.is_sending = true;
            drop(queue);
            let _ = self.send(&notice);
            lock(&self.shared.queue).is_sending = false;
            self.shared.changed.notify_all();
        }
    }

    /// Whether the kernel has acted on all that was posted, before the deadline.
    pub(crate) fn has_sent(&self, deadline: Instant) -> bool {
        let mut queue = lock(&self.shared.queue);
        while queue.is_sending || !queue.waiting.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            queue = self.shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The session is over: drop what is posted.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_closed = true;
        queue.waiting.clear();
        self.shared.changed.notify_all();
    }
}

/// The code, fixed part and tail of a notice.
fn encode(notice: &Notice) -> (i32, Vec<u8>, Vec<u8>) {
    let zero_ended = |name: &[u8]| [name, &[0]].concat();
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    match notice {
        Notice::InvalidateInode { node, offset, bytes } => {
            let fixed = wire::InvalidateInode { node: *node, offset: *offset, bytes: *bytes };
            (kind::INVAL_INODE, fixed.as_bytes().to_vec(), Vec::new())
        }
        Notice::InvalidateEntry { parent, name } | Notice::ExpireEntry { parent, name } => {
            let flags = if matches!(notice, Notice::ExpireEntry { .. }) { kind::EXPIRE_ONLY } else { 0 };
            let fixed = wire::InvalidateEntry { parent: *parent, name_bytes: length(name.len()), flags };
            (kind::INVAL_ENTRY, fixed.as_bytes().to_vec(), zero_ended(name))
        }
        Notice::DeleteEntry { parent, child, name } => {
            let (parent, child, name_bytes) = (*parent, *child, length(name.len()));
            let fixed = wire::DeleteEntry { parent, child, name_bytes, padding: 0 };
            (kind::DELETE, fixed.as_bytes().to_vec(), zero_ended(name))
        }
        Notice::Store { node, offset, data } => {
            let fixed = wire::Store { node: *node, offset: *offset, size: length(data.len()), padding: 0 };
            (kind::STORE, fixed.as_bytes().to_vec(), data.clone())
        }
        Notice::PollWakeup { kernel_handle } => {
            (kind::POLL, wire::PollWakeup { kernel_handle: *kernel_handle }.as_bytes().to_vec(), Vec::new())
        }
        Notice::NewEpoch => (kind::INC_EPOCH, Vec::new(), Vec::new()),
        Notice::Prune { nodes } => {
            let fixed = wire::Prune { count: length(nodes.len()), padding: 0, spare: 0 };
            (kind::PRUNE, fixed.as_bytes().to_vec(), nodes.as_slice().as_bytes().to_vec())
        }
    }
}

/// Writes one message to a FUSE device. A message is taken whole or not at all.
pub(crate) fn write(device: &OwnedFd, parts: &[&[u8]; 3]) -> io::Result<()> {
    // `IoSlice` has the layout of `iovec`, by its documentation.
    let slices = parts.map(IoSlice::new);
    loop {
        // SAFETY: three live parts of the lengths they state; writev only reads them.
        let written = unsafe { libc::writev(device.as_raw_fd(), slices.as_ptr().cast(), 3) };
        if written >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// Writes the answer to request `unique`. One the kernel finds malformed is followed by EIO, or its caller would hang.
pub(crate) fn write_answer(device: &OwnedFd, unique: u64, error: i32, body: (&[u8], &[u8])) {
    let header = |bytes: usize, error| wire::OutHeader {
        bytes: u32::try_from(size_of::<wire::OutHeader>() + bytes).unwrap_or(u32::MAX),
        error,
        unique,
    };
    let whole = header(body.0.len() + body.1.len(), error);
    let Err(refused) = write(device, &[whole.as_bytes(), body.0, body.1]) else { return };
    // ENOENT: the request was given up. ENODEV and the like: the session is over.
    if matches!(refused.raw_os_error(), Some(libc::EINVAL | libc::EFAULT | libc::ENOMEM)) {
        let _ = write(device, &[header(0, Errno::EIO.negated()).as_bytes(), &[], &[]]);
    }
}

#[cfg(test)]
mod tests {
    use super::{Notice, Notifier};
    use crate::lock::lock;
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_posted_has_been_sent_when_the_kernel_has_it() {
        let (mut kernel, device) = io::pipe().expect("a pipe");
        let notifier = Notifier::new(Arc::new(device.into()));
        assert!(notifier.has_sent(Instant::now()), "nothing was posted");
        notifier.post(Notice::NewEpoch);
        assert!(!notifier.has_sent(Instant::now()), "nobody sends");
        std::thread::scope(|scope| {
            scope.spawn(|| notifier.run());
            assert!(notifier.has_sent(Instant::now() + Duration::from_secs(60)));
            notifier.close();
        });
        notifier.post(Notice::NewEpoch);
        drop(notifier);
        let mut sent = Vec::new();
        kernel.read_to_end(&mut sent).expect("a pipe");
        assert_eq!(sent.len(), 16, "one header, and nothing after the end");
    }

    #[test]
    fn what_is_being_sent_has_not_been_sent() {
        let (mut kernel, device) = UnixStream::pair().expect("sockets");
        // Full, so that who sends waits.
        device.set_nonblocking(true).expect("a socket");
        let mut filled = 0;
        while let Ok(bytes) = (&device).write(&[0; 4096]) {
            filled += bytes;
        }
        device.set_nonblocking(false).expect("a socket");
        let notifier = Notifier::new(Arc::new(device.into()));
        notifier.post(Notice::NewEpoch);
        std::thread::scope(|scope| {
            scope.spawn(|| notifier.run());
            while !lock(&notifier.shared.queue).waiting.is_empty() {
                std::thread::yield_now();
            }
            let was_sent = notifier.has_sent(Instant::now());
            // Before anything is judged, or who sends would wait for ever.
            kernel.read_exact(&mut vec![0; filled + 16]).expect("a socket");
            let is_sent = notifier.has_sent(Instant::now() + Duration::from_secs(60));
            notifier.close();
            assert!(!was_sent, "it is under way");
            assert!(is_sent);
        });
    }
}
