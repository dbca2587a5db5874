//! A file system in memory, as small as a test of the transports allows. Names decide how a file behaves:
//!
//! - `slow*`: READ waits until the test opens the gate;
//! - `panic*`: READ panics, at once; `late-panic*`: after having waited once;
//! - `lost*`: READ drops its exchange and goes on for ever;
//! - `elsewhere*`: READ is answered by another thread, while its future goes on for ever.

use fuse::{
    Attributes, DirectoryWriter, Entry, Errno, Exchange, Negotiated, Request, Service, SetTime, StatFs, StatX, Time,
    flags,
};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The root's number.
const ROOT: u64 = 1;

/// The file system.
pub(crate) struct Memory {
    state: Mutex<State>,
    /// Where slow requests wait.
    pub(crate) gate: Gate,
    /// Where waiting locks wait.
    pub(crate) locks: Gate,
    /// Nodes forgotten, counted.
    pub(crate) forgotten: AtomicU64,
    /// The session has ended.
    pub(crate) is_destroyed: AtomicBool,
    /// READ and WRITE skip the page cache.
    pub(crate) is_direct: bool,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

#[derive(Clone, Default)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    data: Vec<u8>,
    mtime: Time,
    children: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The name it was made with.
    name: Vec<u8>,
}

/// Something to wait for, for futures and for the test.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_open: bool,
    waiting: usize,
    wakers: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    /// Lets everybody through from now on.
    pub(crate) fn open(&self) {
        let wakers = {
            let mut state = lock(&self.state);
            state.is_open = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Blocks the test until this many futures wait. Fails after half a minute: some never came.
    pub(crate) fn wait_for(&self, count: usize) {
        let patience = Duration::from_secs(30);
        let waited = self.changed.wait_timeout_while(lock(&self.state), patience, |state| state.waiting < count);
        let waiting = waited.unwrap_or_else(PoisonError::into_inner).0.waiting;
        assert!(waiting >= count, "{waiting} of {count} requests have come");
    }

    async fn pass(&self) {
        let mut has_come = false;
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if state.is_open {
                return Poll::Ready(());
            }
            state.wakers.push(context.waker().clone());
            if !std::mem::replace(&mut has_come, true) {
                state.waiting += 1;
                self.changed.notify_all();
            }
            Poll::Pending
        })
        .await;
    }
}

impl Memory {
    /// An empty file system.
    pub(crate) fn new(is_direct: bool) -> Arc<Memory> {
        let root = Node { mode: libc::S_IFDIR | 0o755, links: 2, ..Default::default() };
        Arc::new(Memory {
            state: Mutex::new(State { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }),
            gate: Gate::default(),
            locks: Gate::default(),
            forgotten: AtomicU64::new(0),
            is_destroyed: AtomicBool::new(false),
            is_direct,
        })
    }

    /// What READ of this node, and WRITE of its pages, is to do.
    fn name(&self, node: u64) -> Vec<u8> {
        lock(&self.state).nodes.get(&node).map(|node| node.name.clone()).unwrap_or_default()
    }

    /// What a file has.
    pub(crate) fn content(&self, node: u64) -> Vec<u8> {
        lock(&self.state).nodes[&node].data.clone()
    }

    async fn read(&self, mut exchange: Exchange) -> Exchange {
        let name = self.name(exchange.header().node);
        if name.starts_with(b"slow") {
            self.gate.pass().await;
        } else if name.starts_with(b"panic") {
            panic!("as asked by the name of the file");
        } else if name.starts_with(b"late-panic") {
            let mut is_first = true;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut is_first, false) { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            panic!("as asked by the name of the file");
        } else if name.starts_with(b"lost") {
            drop(exchange);
            return std::future::pending().await;
        } else if name.starts_with(b"elsewhere") {
            let thread = std::thread::Builder::new().spawn(move || {
                exchange.answer_bytes(b"from elsewhere");
                exchange.send();
            });
            drop(thread);
            return std::future::pending().await;
        }
        self.answer(&mut exchange);
        exchange
    }

    fn answer(&self, exchange: &mut Exchange) {
        if let Err(errno) = lock(&self.state).answer(exchange, self.is_direct) {
            exchange.answer_error(errno);
        }
    }
}

impl Service for Memory {
    async fn serve(self: Arc<Self>, mut exchange: Exchange) -> Exchange {
        match exchange.request() {
            Ok(Request::Read { .. }) => return self.read(exchange).await,
            Ok(Request::Write { write_flags, .. }) if write_flags & fuse::flags::write::CACHE != 0 => {
                if self.name(exchange.header().node).starts_with(b"pages") {
                    self.gate.pass().await;
                }
                self.answer(&mut exchange);
            }
            Ok(Request::SetLkW(_)) => {
                self.locks.pass().await;
                exchange.answer_empty();
            }
            Ok(_) => self.answer(&mut exchange),
            Err(errno) => exchange.answer_error(errno),
        }
        exchange
    }

    fn forget(&self, _node: u64, count: u64) {
        self.forgotten.fetch_add(count, Ordering::Relaxed);
    }

    fn started(&self, negotiated: &Negotiated) {
        assert!(negotiated.minor >= 23);
    }

    fn destroyed(&self) {
        self.is_destroyed.store(true, Ordering::SeqCst);
    }
}

impl State {
    fn node(&mut self, node: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node).ok_or(Errno::ESTALE)
    }

    fn child(&mut self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        self.node(parent)?.children.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn attributes(&self, number: u64) -> Attributes {
        let Some(node) = self.nodes.get(&number) else { return Attributes::default() };
        Attributes {
            node: number,
            size: node.data.len() as u64,
            blocks: node.data.len().div_ceil(512) as u64,
            mode: node.mode,
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            mtime: node.mtime,
            block_bytes: 4096,
            ..Default::default()
        }
    }

    /// Nothing is cached, so that every call reaches us.
    fn entry(&self, node: u64) -> Entry {
        Entry { node, attributes: self.attributes(node), ..Default::default() }
    }

    fn make(&mut self, parent: u64, name: &[u8], node: Node) -> Result<Entry, Errno> {
        if self.child(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, Node { links: 1, name: name.to_vec(), ..node });
        self.node(parent)?.children.insert(name.to_vec(), number);
        Ok(self.entry(number))
    }

    fn answer(&mut self, exchange: &mut Exchange, is_direct: bool) -> Result<(), Errno> {
        let header = *exchange.header();
        let number = header.node;
        let owned = |mode| Node { mode, uid: header.uid, gid: header.gid, ..Default::default() };
        let opened = if is_direct { flags::opened::DIRECT_IO | flags::opened::PARALLEL_DIRECT_WRITES } else { 0 };
        match exchange.request()? {
            Request::Lookup { name: b"." } => {
                let entry = self.entry(number);
                exchange.answer_entry(&entry);
            }
            Request::Lookup { name } => {
                let child = self.child(number, name)?;
                let entry = self.entry(child);
                exchange.answer_entry(&entry);
            }
            Request::GetAttr { .. } => {
                self.node(number)?;
                exchange.answer_attributes(&self.attributes(number), Duration::ZERO);
            }
            Request::SetAttr(change) => {
                let node = self.node(number)?;
                if let Some(size) = change.size {
                    node.data.resize(size as usize, 0);
                }
                if let Some(mode) = change.mode {
                    node.mode = mode;
                }
                if let Some(SetTime::At(time)) = change.mtime {
                    node.mtime = time;
                }
                exchange.answer_attributes(&self.attributes(number), Duration::ZERO);
            }
            Request::SymLink { name, target } => {
                let node = Node { data: target.to_vec(), ..owned(libc::S_IFLNK | 0o777) };
                let entry = self.make(number, name, node)?;
                exchange.answer_entry(&entry);
            }
            Request::ReadLink => {
                let target = self.node(number)?.data.clone();
                exchange.answer_bytes(&target);
            }
            Request::MkDir { name, mode, umask } => {
                let entry = self.make(number, name, owned(libc::S_IFDIR | (mode & !umask)))?;
                exchange.answer_entry(&entry);
            }
            Request::Create { name, mode, umask, .. } => {
                let entry = self.make(number, name, owned(mode & !umask))?;
                exchange.answer_created(&entry, entry.node, opened);
            }
            Request::Unlink { name } | Request::RmDir { name } => {
                self.child(number, name)?;
                self.node(number)?.children.remove(name);
                exchange.answer_empty();
            }
            Request::Rename { name, new_parent, new_name, .. } => {
                let child = self.child(number, name)?;
                self.node(number)?.children.remove(name);
                self.node(new_parent)?.children.insert(new_name.to_vec(), child);
                exchange.answer_empty();
            }
            Request::Link { node, new_name } => {
                self.node(node)?.links += 1;
                self.node(number)?.children.insert(new_name.to_vec(), node);
                let entry = self.entry(node);
                exchange.answer_entry(&entry);
            }
            Request::Open { flags, .. } => {
                if flags & libc::O_TRUNC as u32 != 0 {
                    self.node(number)?.data.clear();
                }
                exchange.answer_open(number, opened, 0);
            }
            Request::OpenDir { .. } => exchange.answer_open(number, 0, 0),
            Request::Read { offset, size, .. } => {
                let data = &self.node(number)?.data;
                let start = (offset as usize).min(data.len());
                let end = (start + size as usize).min(data.len());
                let room = &mut exchange.reply_room()[..end - start];
                room.copy_from_slice(&data[start..end]);
                exchange.answer_data(end - start);
            }
            Request::Write { offset, data, .. } => {
                assert_eq!(data.as_ptr() as usize % 4096, 0, "the data of a WRITE is page aligned");
                let node = self.node(number)?;
                let start = offset as usize;
                if node.data.len() < start + data.len() {
                    node.data.resize(start + data.len(), 0);
                }
                node.data[start..start + data.len()].copy_from_slice(data);
                let bytes = data.len() as u32;
                exchange.answer_written(bytes);
            }
            Request::ReadDir { offset, .. } => self.list(exchange, number, offset, false)?,
            Request::ReadDirPlus { offset, .. } => self.list(exchange, number, offset, true)?,
            Request::SetXattr { name, value, .. } => {
                let (name, value) = (name.to_vec(), value.to_vec());
                self.node(number)?.xattrs.insert(name, value);
                exchange.answer_empty();
            }
            Request::GetXattr { name, .. } => {
                let value = self.node(number)?.xattrs.get(name).cloned().ok_or(Errno::NO_XATTR)?;
                exchange.answer_xattr(&value);
            }
            Request::ListXattr { .. } => {
                let names: Vec<u8> =
                    self.node(number)?.xattrs.keys().flat_map(|name| [name, &[0][..]].concat()).collect();
                exchange.answer_xattr(&names);
            }
            Request::RemoveXattr { name } => {
                self.node(number)?.xattrs.remove(name).ok_or(Errno::NO_XATTR)?;
                exchange.answer_empty();
            }
            Request::StatFs => {
                exchange.answer_statfs(&StatFs {
                    blocks: 1000,
                    block_bytes: 4096,
                    name_bytes_max: 255,
                    ..Default::default()
                });
            }
            Request::StatX { mask, .. } => {
                let attributes = self.attributes(number);
                let btime = Time { seconds: 7, nanoseconds: 0 };
                exchange.answer_statx(&StatX { attributes, btime, mask, ..Default::default() }, Duration::ZERO);
            }
            Request::Lseek { offset, .. } => exchange.answer_seek(offset),
            Request::Release { .. } | Request::ReleaseDir { .. } | Request::FSync { .. } => exchange.answer_empty(),
            // The kernel asks no more. Clients and sessions are one process here: a program that it starts (parking does) has copies of
            // the clients' files and of the rings until its exec, which closes them one after the other. If a close waited for a session
            // that is parked, that would be for ever: who goes on with it waits for the former rings to end.
            Request::Flush { .. } => return Err(Errno::ENOSYS),
            Request::SetLk(_) => exchange.answer_empty(),
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }

    fn list(&mut self, exchange: &mut Exchange, number: u64, offset: u64, is_plus: bool) -> Result<(), Errno> {
        let children: Vec<_> = self.node(number)?.children.clone().into_iter().collect();
        let mut writer = DirectoryWriter::new(exchange.reply_room());
        for (index, (name, child)) in children.iter().enumerate().skip(offset as usize) {
            let (cookie, entry) = (index as u64 + 1, self.entry(*child));
            let kind = (entry.attributes.mode & libc::S_IFMT) >> 12;
            let has_room = match is_plus {
                true => writer.add_plus(&entry, *child, cookie, kind, name),
                false => writer.add(*child, cookie, kind, name),
            };
            if !has_room {
                break;
            }
        }
        let bytes = writer.bytes();
        exchange.answer_data(bytes);
        Ok(())
    }
}
