//! An exchange: one request together with its answer.
//!
//! The file system gets it by value and gives it back with the answer set, now or later, on any thread. What it
//! borrows from is one box that stays with its transport: passing an exchange on moves one pointer.
//!
//! Truths kept here:
//! - Every exchange is answered exactly once. One that is dropped (its future was cancelled, or panicked) answers by
//!   itself: EINTR for SETLKW, which is how an interrupt ends it, and EIO for all others.
//! - An exchange given back without an answer answers EIO: silence would hang the caller.
//! - Request and reply room never overlap, so names stay readable while the answer is written.

use crate::answer::{Attributes, Entry, StatFs, StatX};
use crate::buffer::{Area, PAGE, ROOM_AT};
use crate::errno::Errno;
use crate::flags::{attribute, opcode};
use crate::request::{self, Dialect, Header, Lock, Reader, Request};
use crate::wire;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of the largest answer of fixed form: STATX.
const FIXED_BYTES_MAX: usize = size_of::<wire::StatXOut>();

/// Where an exchange came from and its answer goes.
pub(crate) trait Home: Send + Sync {
    /// Sends the answer in `core`, from any thread.
    fn answer(&self, core: Box<Core>);
}

/// The inside of an exchange.
pub(crate) struct Core {
    pub(crate) area: Area,
    pub(crate) home: Option<Arc<dyn Home>>,
    /// Which of its home's exchanges this is.
    pub(crate) slot: u32,
    pub(crate) header: Header,
    /// Since when the request is to be timed.
    pub(crate) arrived: Option<Instant>,
    dialect: Dialect,
    extension_words: u16,
    arguments: Range<usize>,
    payload: Range<usize>,
    answer: Answer,
}

/// An answer as it will be sent: an error, or fixed bytes followed by bytes of the room.
struct Answer {
    error: i32,
    fixed: [u8; FIXED_BYTES_MAX],
    fixed_bytes: usize,
    room_bytes: usize,
}

impl Core {
    pub(crate) fn new(area: Area, home: Option<Arc<dyn Home>>, slot: u32) -> Core {
        let answer = Answer { error: -libc::EIO, fixed: [0; FIXED_BYTES_MAX], fixed_bytes: 0, room_bytes: 0 };
        let (header, dialect) = (Header::default(), Dialect::default());
        Core {
            area,
            home,
            slot,
            header,
            arrived: None,
            dialect,
            extension_words: 0,
            arguments: 0..0,
            payload: 0..0,
            answer,
        }
    }

    /// Takes up a request that has arrived in the area: the header is at `header`, the rest where it says.
    pub(crate) fn begin(&mut self, header: usize, arguments: Range<usize>, payload: Range<usize>, dialect: Dialect) {
        let (sent, _) =
            wire::InHeader::read_from_prefix(&self.area.bytes()[header..]).expect("the area has a page for the header");
        let wire::InHeader { opcode, unique, node, uid, gid, pid, .. } = sent;
        self.header = Header { opcode, unique, node, uid, gid, pid };
        self.extension_words = sent.extension_words;
        self.arguments = arguments;
        self.payload = payload;
        self.dialect = dialect;
        self.fail(Errno::EIO);
    }

    /// The request's bytes behind the header.
    pub(crate) fn reader(&self) -> Result<Reader<'_>, Errno> {
        Reader::new(self.area.part(self.arguments.clone()), self.area.part(self.payload.clone()), self.extension_words)
    }

    fn request(&self) -> Result<Request<'_>, Errno> {
        request::decode(self.header.opcode, self.reader()?, self.dialect)
    }

    /// The error to send, 0 or negative.
    pub(crate) fn error(&self) -> i32 {
        self.answer.error
    }

    /// The answer's two parts; both are empty with an error.
    pub(crate) fn body(&self) -> (&[u8], &[u8]) {
        let room = self.room_at();
        (&self.answer.fixed[..self.answer.fixed_bytes], self.area.part(room..room + self.answer.room_bytes))
    }

    /// Brings the answer together at the start of the payload, where io_uring takes it from. Returns its length.
    pub(crate) fn gather(&mut self) -> usize {
        let (room, fixed, bytes) = (self.room_at(), self.answer.fixed_bytes, self.answer.room_bytes);
        if bytes > 0 && room != ROOM_AT + fixed {
            self.area.bytes_mut().copy_within(room..room + bytes, ROOM_AT + fixed);
        }
        self.area.bytes_mut()[ROOM_AT..ROOM_AT + fixed].copy_from_slice(&self.answer.fixed[..fixed]);
        fixed + bytes
    }

    /// First byte of the reply room: the first page boundary behind the request.
    fn room_at(&self) -> usize {
        self.arguments.end.max(self.payload.end).max(ROOM_AT).next_multiple_of(PAGE)
    }

    fn room(&self) -> Range<usize> {
        let start = self.room_at().min(self.area.len());
        let mut bytes = (self.area.len() - start).min(self.area.len() - 2 * PAGE);
        if let Some(limit) = self.request().ok().and_then(|request| request::answer_limit(&request)) {
            bytes = bytes.min(limit as usize);
        }
        start..start + bytes
    }

    pub(crate) fn fail(&mut self, errno: Errno) {
        (self.answer.error, self.answer.fixed_bytes, self.answer.room_bytes) = (errno.negated(), 0, 0);
    }

    fn fixed(&mut self, value: &(impl IntoBytes + Immutable)) {
        let bytes = value.as_bytes();
        self.answer.fixed[..bytes.len()].copy_from_slice(bytes);
        (self.answer.error, self.answer.fixed_bytes, self.answer.room_bytes) = (0, bytes.len(), 0);
    }
}

/// One request with its buffers: reading the request and writing the answer, without copying.
pub struct Exchange {
    /// Always there until the exchange ends; `Option` only so that `drop` can give it away.
    core: Option<Box<Core>>,
}

impl Exchange {
    pub(crate) fn new(core: Box<Core>) -> Exchange {
        Exchange { core: Some(core) }
    }

    /// An exchange that came from no kernel, for tests of a `Service`: `node`, `opcode` and the bytes that follow the
    /// header. Look at the answer with `outcome`.
    pub fn rehearsal(opcode: u32, node: u64, body: &[u8]) -> std::io::Result<Exchange> {
        let mut area = Area::new(body.len().max(1 << 20))?;
        let header = wire::InHeader { opcode, node, unique: 2, ..Default::default() };
        area.bytes_mut()[crate::buffer::DEVICE_AT..][..40].copy_from_slice(header.as_bytes());
        let at = crate::buffer::DEVICE_AT + 40;
        area.bytes_mut()[at..at + body.len()].copy_from_slice(body);
        let mut core = Core::new(area, None, 0);
        core.begin(crate::buffer::DEVICE_AT, at..at + body.len(), 0..0, Dialect { setxattr_ext: true });
        Ok(Exchange::new(Box::new(core)))
    }

    /// What would be sent now: the bytes of the answer, or its error.
    pub fn outcome(&self) -> Result<Vec<u8>, Errno> {
        match self.core().error() {
            0 => Ok([self.core().body().0, self.core().body().1].concat()),
            error => Err(Errno(-error)),
        }
    }

    fn core(&self) -> &Core {
        self.core.as_ref().expect("an exchange has its core until it ends")
    }

    fn core_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("an exchange has its core until it ends")
    }

    /// Whether its answer goes to this home.
    pub(crate) fn is_from(&self, home: &dyn Home) -> bool {
        self.core().home.as_deref().is_some_and(|own| std::ptr::addr_eq(own, home))
    }

    /// Ends the exchange without answering: whoever takes the core has to.
    pub(crate) fn into_core(mut self) -> Box<Core> {
        self.core.take().expect("an exchange has its core until it ends")
    }

    /// Sends the answer as it is, from any thread, instead of giving the exchange back: for an answer that comes from
    /// elsewhere, or that is ready while the future has more to do.
    pub fn send(self) {
        let core = self.into_core();
        if let Some(home) = core.home.clone() {
            home.answer(core);
        }
    }

    /// Who asks, and about what.
    pub fn header(&self) -> &Header {
        &self.core().header
    }

    /// How long ago it arrived in the daemon. Nothing of one that no kernel made.
    pub fn age(&self) -> Duration {
        self.core().arrived.map_or(Duration::ZERO, |arrived| arrived.elapsed())
    }

    /// The request. ENOSYS if its opcode is unknown, EIO if its bytes make no sense.
    pub fn request(&self) -> Result<Request<'_>, Errno> {
        self.core().request()
    }

    /// Where the data of an answer (READ, READDIR, GETXATTR, READLINK, IOCTL) is written, page aligned and exactly as
    /// long as the answer may be. Finish with `answer_data`.
    pub fn reply_room(&mut self) -> &mut [u8] {
        let core = self.core_mut();
        let room = core.room();
        &mut core.area.bytes_mut()[room]
    }

    /// Answers that it failed.
    pub fn answer_error(&mut self, errno: Errno) {
        self.core_mut().fail(errno);
    }

    /// Answers that it was done, where there is nothing more to say.
    pub fn answer_empty(&mut self) {
        self.core_mut().fixed(&());
    }

    /// Answers LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    pub fn answer_entry(&mut self, entry: &Entry) {
        self.core_mut().fixed(&wire::EntryOut::from(entry));
    }

    /// Answers GETATTR and SETATTR.
    pub fn answer_attributes(&mut self, attributes: &Attributes, valid: Duration) {
        let (attr_valid, attr_valid_ns) = (valid.as_secs(), valid.subsec_nanos());
        self.core_mut().fixed(&wire::AttrOut { attr_valid, attr_valid_ns, padding: 0, attr: attributes.into() });
    }

    /// Answers OPEN and OPENDIR. `flags`: `flags::opened`; `backing`: the id of a backing file with `PASSTHROUGH`,
    /// else 0.
    pub fn answer_open(&mut self, handle: u64, flags: u32, backing: i32) {
        self.core_mut().fixed(&wire::OpenOut { handle, flags, backing });
    }

    /// Answers CREATE and TMPFILE.
    pub fn answer_created(&mut self, entry: &Entry, handle: u64, flags: u32) {
        let open = wire::OpenOut { handle, flags, backing: 0 };
        self.core_mut().fixed(&wire::CreateOut { entry: entry.into(), open });
    }

    /// Answers WRITE with the bytes written.
    pub fn answer_written(&mut self, bytes: u32) {
        self.core_mut().fixed(&wire::WriteOut { size: bytes, padding: 0 });
    }

    /// Answers `Request::CopyFileRange` with the bytes copied.
    pub fn answer_copied(&mut self, bytes: u64) {
        match self.header().opcode {
            opcode::COPY_FILE_RANGE_64 => self.core_mut().fixed(&wire::CopyOut { bytes }),
            // The old answer counts in 32 bits, and so do the kernels that send the old request.
            _ => self.answer_written(u32::try_from(bytes).unwrap_or(u32::MAX)),
        }
    }

    /// Answers with the first `bytes` bytes of the reply room. More than the room has is a mistake: EIO.
    pub fn answer_data(&mut self, bytes: usize) {
        let core = self.core_mut();
        if bytes > core.room().len() {
            return core.fail(Errno::EIO);
        }
        core.fixed(&());
        core.answer.room_bytes = bytes;
    }

    /// Answers with a copy of these bytes. ERANGE if they are more than may be answered.
    pub fn answer_bytes(&mut self, bytes: &[u8]) {
        match self.reply_room().get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.answer_data(bytes.len());
            }
            None => self.answer_error(Errno::ERANGE),
        }
    }

    /// Answers GETXATTR and LISTXATTR in any of their three ways: the length if that was the question, ERANGE if the
    /// caller's buffer is too small, else the bytes.
    pub fn answer_xattr(&mut self, bytes: &[u8]) {
        match self.request() {
            Ok(Request::GetXattr { size: 0, .. } | Request::ListXattr { size: 0 }) => {
                self.answer_xattr_size(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            }
            _ => self.answer_bytes(bytes),
        }
    }

    /// Answers STATFS.
    pub fn answer_statfs(&mut self, statfs: &StatFs) {
        self.core_mut().fixed(&wire::StatFsOut::from(statfs));
    }

    /// Answers GETXATTR and LISTXATTR of size 0: how long the value is.
    pub fn answer_xattr_size(&mut self, bytes: u32) {
        self.core_mut().fixed(&wire::GetXattrOut { size: bytes, padding: 0 });
    }

    /// Answers GETLK: the lock in the way, or one of kind `F_UNLCK`.
    pub fn answer_lock(&mut self, lock: &Lock) {
        self.core_mut().fixed(&wire::FileLock::from(lock));
    }

    /// Answers LSEEK.
    pub fn answer_seek(&mut self, offset: u64) {
        self.core_mut().fixed(&wire::LseekOut { offset });
    }

    /// Answers STATX.
    pub fn answer_statx(&mut self, stat: &StatX, valid: Duration) {
        let (attr_valid, attr_valid_ns) = (valid.as_secs(), valid.subsec_nanos());
        let flags = stat.attributes.flags & (attribute::SUBMOUNT | attribute::DAX);
        self.core_mut().fixed(&wire::StatXOut { attr_valid, attr_valid_ns, flags, spare: [0; 2], stat: stat.into() });
    }

    /// Answers BMAP.
    pub fn answer_block(&mut self, block: u64) {
        self.core_mut().fixed(&wire::BMapOut { block });
    }

    /// Answers POLL with the events that hold.
    pub fn answer_poll(&mut self, events: u32) {
        self.core_mut().fixed(&wire::PollOut { events, padding: 0 });
    }

    /// Answers IOCTL: `result` is what ioctl(2) returns, the first `bytes` bytes of the reply room what it writes.
    pub fn answer_ioctl(&mut self, result: i32, bytes: usize) {
        let core = self.core_mut();
        if bytes > core.room().len() {
            return core.fail(Errno::EIO);
        }
        core.fixed(&wire::IoctlOut { result, flags: 0, in_iovecs: 0, out_iovecs: 0 });
        core.answer.room_bytes = bytes;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else { return };
        core.fail(if core.header.opcode == opcode::SETLKW { Errno::EINTR } else { Errno::EIO });
        if let Some(home) = core.home.clone() {
            home.answer(core);
        }
    }
}
