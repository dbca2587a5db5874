//! The kernel's requests: each is one call of the file layer, and its answer.
//!
//! All changes of the mount go through this kernel, so it may keep what it is told for a long time: names (also those that do
//! not exist), attributes, pages, listings. What changes by another way is `.snapshots` alone (the command line makes and deletes
//! them): its names are not kept, and its listing is dropped by a notice.
//!
//! Opening and closing are not ours to hear of: OPEN and OPENDIR are answered ENOSYS, after which a kernel since 5.1 opens
//! without a message and keeps pages and listings. A file needs no handle here: the kernel holds a reference to its node for as
//! long as it is open, and all calls name the node. So is CREATE, which would bring a RELEASE with it: the kernel makes the file by
//! MKNOD and opens it like any other. FLUSH, ACCESS and locks are the kernel's own business.
//!
//! I-91  Each answer that gives the kernel a node counts one reference, taken before the answer is sent; FORGET takes it back. When it is
//!       taken the node is looked at once more: a batch may have removed it since it was found.
//! I-92  Nothing below `.snapshots` is changed: such calls are refused here, with EROFS.
//! I-165 A write around the kernel's cache, which may be under way while attributes are asked for, has the kernel forget those that were given
//!       since the last such write: when its content is there, and before it is answered.

#[cfg(test)]
mod fuzz;
mod listing;
mod reply;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::id::FileId;
use file::{
    AttributeChange, Attributes, FileError, FileSystem, Kind, NewFile, Node, SNAPSHOTS, Seek, View, WriteHow, XattrMode,
};
use fuse::flags::{setxattr, write};
use fuse::{Errno, Exchange, Header, Negotiated, Notice, Notifier, Request, Service, StatFs};
use parking_lot::RwLock;
use platform::Platform;

use self::reply::{Answer, Refusal, Reply};
use super::around::Around;
use super::errands::Errands;
use super::listers::Listers;
use super::nodes::Nodes;
use super::translate;
use super::unused::Unused;
use crate::front::failures::Failures;

/// First protocol version whose kernels open directories without a message (Linux 5.1).
const SILENT_OPENS_MINOR: u32 = 29;
/// Block size of statfs: what applications multiply the counts with.
const STATFS_BLOCK_BYTES: u32 = 4096;
/// Where SELinux keeps a file's label.
const SELINUX_LABEL: &[u8] = b"security.selinux";
/// How long a direct write waits until the kernel has dropped pages (I-104).
const DROPPING_MAX: Duration = Duration::from_secs(1);

/// The service behind a mount.
pub(crate) struct Kernel {
    system: Arc<FileSystem>,
    platform: Platform,
    nodes: Nodes,
    /// How long the kernel may keep what it is told.
    valid: Duration,
    opens_silently: AtomicBool,
    failures: Arc<Failures>,
    unused: Arc<Unused>,
    errands: Errands,
    listers: Listers,
    around: Around,
    /// To take back what the kernel was told: that of the session which is served.
    notifier: RwLock<Option<Notifier>>,
}

impl Service for Kernel {
    async fn serve(self: Arc<Self>, exchange: Exchange) -> Exchange {
        if !self.takes_long(&exchange) {
            return self.answer(exchange).await;
        }
        // Whoever waits for a disk must not keep the transport's thread from other requests.
        let kernel = Arc::clone(&self);
        self.errands.run(Box::pin(async move { kernel.answer(exchange).await })).await
    }

    fn forget(&self, number: u64, count: u64) {
        let Some(node) = self.nodes.find(number) else { return };
        if node.file.branch != 0 || node.view != View::LIVE {
            self.nodes.take_back(number, count);
        }
        if node.view != View::LIVE {
            return;
        }
        if !self.system.take_back(node, count) {
            return;
        }
        // Mostly it is done at once: only where trees are read from a disk, or a commit is due, there is something to wait for.
        let done = {
            let mut end = std::pin::pin!(self.system.end_unused(node));
            end.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        match done {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.failures.note(&self.platform, || format!("cannot end {}: {error}", node.file));
            }
            Poll::Pending => self.unused.add(node, &self.platform, &self.system, &self.failures),
        }
    }

    fn started(&self, negotiated: &Negotiated) {
        self.opens_silently.store(negotiated.minor >= SILENT_OPENS_MINOR, Ordering::Relaxed);
    }
}

/// O_DIRECT.
fn is_direct(flags: u32) -> bool {
    flags & libc::O_DIRECT.cast_unsigned() != 0
}

/// O_DSYNC, or O_SYNC, which includes its bit.
fn is_synchronous(flags: u32) -> bool {
    flags & libc::O_DSYNC.cast_unsigned() != 0
}

impl Kernel {
    /// Of a mount that is made now.
    pub(crate) fn new(system: Arc<FileSystem>, platform: &Platform, valid: Duration) -> Kernel {
        Kernel::with(system, platform, valid, Nodes::new(), Around::new(None))
    }

    /// Of a mount that another process served, or this one before. `nodes`: those of snapshots that the kernel knows.
    pub(crate) fn resume(system: Arc<FileSystem>, platform: &Platform, valid: Duration, nodes: Nodes) -> Kernel {
        Kernel::with(system, platform, valid, nodes, Around::new(Some(platform.clock.elapsed())))
    }

    fn with(system: Arc<FileSystem>, platform: &Platform, valid: Duration, nodes: Nodes, around: Around) -> Kernel {
        Kernel {
            system,
            platform: platform.clone(),
            nodes,
            valid,
            opens_silently: AtomicBool::new(true),
            failures: Arc::default(),
            unused: Arc::default(),
            errands: Errands::new(platform.tasks.clone()),
            listers: Listers::default(),
            around,
            notifier: RwLock::default(),
        }
    }

    /// Tells it of the session that it serves, before the first request. That of a session that was parked sends nothing any more.
    pub(crate) fn serves(&self, notifier: Notifier) {
        *self.notifier.write() = Some(notifier);
    }

    fn notifier(&self) -> Option<Notifier> {
        self.notifier.read().clone()
    }

    /// The kernel's numbers, for who goes on in another process.
    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The number of a node, if the kernel may hold it.
    pub(crate) fn number_of(&self, node: Node) -> Option<u64> {
        self.nodes.number_of(node)
    }

    /// The node with this inode number, if the kernel knows it.
    pub(crate) fn find_inode(&self, inode: u64) -> Option<Node> {
        self.nodes.find_inode(inode)
    }

    /// Whether a request is likely to keep this thread waiting for a disk: those that make much durable. Who waits for the journal
    /// alone keeps no thread.
    fn takes_long(&self, exchange: &Exchange) -> bool {
        let is_long = |more: usize| {
            let node = self.nodes.find(exchange.header().node);
            node.is_some_and(|node| !self.system.syncs_by_journal(node.file, more as u64))
        };
        match exchange.request() {
            Ok(Request::Write { flags, data, .. }) => is_synchronous(flags) && is_long(data.len()),
            Ok(Request::FSync { .. }) => is_long(0),
            Ok(Request::SyncFs | Request::CopyFileRange { .. }) => true,
            _ => false,
        }
    }

    async fn answer(&self, mut exchange: Exchange) -> Exchange {
        let header = *exchange.header();
        let answer = match self.nodes.find(header.node) {
            Some(node) => self.call(&mut exchange, &header, node).await,
            None => Err(Errno::ESTALE.into()),
        };
        match answer {
            Ok(reply) => reply.give(&mut exchange),
            Err(Refusal::Errno(errno)) => exchange.answer_error(errno),
            Err(Refusal::File(error)) => {
                if let FileError::Store(cause) = &error {
                    let what = || format!("request {} on node {:#x}: {cause}", header.opcode, header.node);
                    self.failures.note(&self.platform, what);
                }
                exchange.answer_error(translate::errno(&error));
            }
        }
        exchange
    }

    /// One request. A long flat list: nothing here but names and arguments.
    async fn call(&self, exchange: &mut Exchange, header: &Header, node: Node) -> Answer {
        match exchange.request()? {
            Request::Lookup { name } => self.lookup(node, name).await,
            Request::GetAttr { .. } => self.attributes(node).await,
            Request::StatX { .. } => {
                let attributes = self.system.attributes(node).await?;
                Ok(Reply::StatX(Box::new(translate::statx(node, &attributes)), self.valid_of(node)))
            }
            Request::SetAttr(change) => {
                let attributes = self.system.set_attributes(writable(node)?, &translate::change(&change)).await?;
                Ok(Reply::Attributes(translate::attributes(node, &attributes), self.valid))
            }
            Request::ReadLink => Ok(Reply::Bytes(self.system.read_link(node).await?)),
            Request::SymLink { name, target } => {
                let new = NewFile { target, ..new_file(header, Kind::Symlink, 0o777, 0) };
                self.create(node, name, &new).await.map(Reply::Entry)
            }
            Request::MkNod { name, mode, device, umask } => {
                let new = NewFile { device, ..new_file(header, translate::kind(mode)?, mode, umask) };
                match self.create(node, name, &new).await {
                    // Made by another way, and the kernel was not told yet: it looks again, and opens what is there.
                    Err(Refusal::File(FileError::Exists)) if new.kind == Kind::Regular => Err(Errno::ESTALE.into()),
                    made => made.map(Reply::Entry),
                }
            }
            Request::MkDir { name, mode, umask } => {
                self.create(node, name, &new_file(header, Kind::Directory, mode, umask)).await.map(Reply::Entry)
            }
            Request::TmpFile { mode, umask, .. } => {
                let new = new_file(header, Kind::Regular, mode, umask);
                let attributes = self.system.create_unnamed(writable(node)?, &new).await?;
                self.born(&attributes).await.map(Reply::Created)
            }
            Request::Link { node: existing, new_name } => {
                let existing = self.nodes.find(existing).ok_or(Errno::ESTALE)?;
                let attributes = self.system.link(writable(existing)?, writable(node)?, new_name).await?;
                self.born(&attributes).await.map(Reply::Entry)
            }
            Request::Unlink { name } => done(self.system.remove_file(writable(node)?, name).await),
            Request::RmDir { name } => done(self.system.remove_directory(writable(node)?, name).await),
            Request::Rename { name, new_parent, new_name, flags } => {
                let to = self.nodes.find(new_parent).ok_or(Errno::ESTALE)?;
                let mode = translate::rename_mode(flags)?;
                done(self.system.rename(writable(node)?, name, writable(to)?, new_name, mode).await)
            }
            Request::Open { .. } => self.open(fuse::flags::opened::KEEP_CACHE),
            Request::OpenDir { .. } => self.open(fuse::flags::opened::KEEP_CACHE | fuse::flags::opened::CACHE_DIR),
            Request::Release { .. } | Request::ReleaseDir { .. } | Request::Destroy => Ok(Reply::Empty),
            Request::Read { offset, flags, .. } => {
                if !is_direct(flags) {
                    self.around.uses_cache(header.node, self.platform.clock.elapsed());
                }
                let notes_access = flags & libc::O_NOATIME.cast_unsigned() == 0;
                Ok(Reply::Data(self.system.read_noting(node, offset, exchange.reply_room(), notes_access).await?))
            }
            Request::Write { offset, data, write_flags, flags, .. } => {
                let file = writable(node).inspect_err(|_| self.undo_pages(header.node, offset, data.len()))?;
                let is_around_caches = is_direct(flags) && write_flags & write::CACHE == 0;
                if !is_around_caches {
                    self.around.uses_cache(header.node, self.platform.clock.elapsed());
                }
                let how = WriteHow { clears_set_id: write_flags & write::KILL_SUIDGID != 0, is_around_caches };
                let written = self.system.write_telling(file, offset, data, how).await?;
                if written.cleared_set_id || written.outdated_attributes {
                    self.forget_attributes(header.node);
                }
                if is_around_caches {
                    let arrived = self.platform.clock.elapsed().saturating_sub(exchange.age());
                    if self.around.has_old_pages(header.node, arrived) {
                        self.drop_pages(header.node, offset, data.len()).await;
                    }
                }
                if is_synchronous(flags) {
                    self.system.sync(file).await?;
                }
                Ok(Reply::Written(data.len()))
            }
            Request::ReadDir { offset, .. } => self.list(node, offset, exchange.reply_room()).await,
            Request::ReadDirPlus { offset, .. } => {
                self.list_plus(node, offset, header.pid, exchange.reply_room()).await
            }
            // A snapshot is durable since it was made.
            Request::FSync { .. } | Request::FSyncDir { .. } if writable(node).is_err() => Ok(Reply::Empty),
            Request::FSync { .. } | Request::FSyncDir { .. } => done(self.system.sync(node.file).await),
            Request::SyncFs => done(self.system.sync_all().await),
            Request::FAllocate { offset, length, mode, .. } => {
                let how = translate::allocation(mode)?;
                self.drop_set_id(header, header.node, writable(node)?).await?;
                done(self.system.allocate(writable(node)?, how, offset, length).await)
            }
            Request::Lseek { offset, whence, .. } => {
                let what = match whence.cast_signed() {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Err(Errno::EINVAL.into()),
                };
                Ok(Reply::Seek(self.system.seek(node, offset, what).await?))
            }
            Request::CopyFileRange { offset, node_out, offset_out, bytes, .. } => {
                let to = self.nodes.find(node_out).ok_or(Errno::ESTALE)?;
                self.drop_set_id(header, node_out, writable(to)?).await?;
                Ok(Reply::Copied(self.system.copy_range(node, offset, writable(to)?, offset_out, bytes).await?))
            }
            Request::GetXattr { name, .. } => self.xattr(node, name).await,
            Request::ListXattr { .. } => self.list_xattrs(header, node).await,
            Request::SetXattr { name, value, flags, setxattr_flags } => {
                let mode = match flags.cast_signed() {
                    libc::XATTR_CREATE => XattrMode::Create,
                    libc::XATTR_REPLACE => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                let clears_set_gid = setxattr_flags & setxattr::ACL_KILL_SGID != 0;
                done(self.system.set_xattr(writable(node)?, name, value, mode, clears_set_gid).await)
            }
            Request::RemoveXattr { name } => done(self.system.remove_xattr(writable(node)?, name).await),
            Request::StatFs => Ok(Reply::StatFs(self.statfs())),
            Request::Ioctl { .. } => Err(Errno::ENOTTY.into()),
            // CREATE becomes MKNOD; FLUSH, ACCESS, POLL, BMAP, locks: the kernel does them itself once it has heard this.
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    async fn find(&self, parent: Node, name: &[u8]) -> Result<(Node, Attributes), FileError> {
        match name {
            // Asked by who has a handle to a file whose name is not known (export over NFS).
            b"." => self.system.attributes(parent).await.map(|attributes| (parent, attributes)),
            b".." => {
                let node = self.system.parent(parent).await?;
                self.system.attributes(node).await.map(|attributes| (node, attributes))
            }
            name => self.system.lookup(parent, name).await,
        }
    }

    /// What has a name, retained. One that a batch puts another file in the place of meanwhile is another file's, and not nobody's.
    /// What changes through another name is told to those who are retained: of a file that has more than one it is looked at behind that.
    async fn find_retained(&self, parent: Node, name: &[u8]) -> Result<(Node, Attributes), FileError> {
        let mut gone = None;
        loop {
            let (node, attributes) = self.find(parent, name).await?;
            match self.system.retain_found(node).await {
                Err(FileError::NoEntry) if gone != Some(node) => gone = Some(node),
                retained => {
                    retained?;
                    return Ok((node, self.told(node, attributes).await));
                }
            }
        }
    }

    /// The attributes of what was just retained, which were looked at before.
    async fn told(&self, node: Node, before: Attributes) -> Attributes {
        if before.kind == Kind::Directory || before.links < 2 {
            return before;
        }
        self.system.attributes(node).await.unwrap_or(before)
    }

    async fn lookup(&self, parent: Node, name: &[u8]) -> Answer {
        let found = self.find_retained(parent, name).await;
        let valid = self.valid_in(parent);
        match found {
            Ok((node, attributes)) => {
                if attributes.kind != Kind::Directory {
                    self.listers.looked_up(parent);
                }
                Ok(Reply::Entry(self.entry(node, &attributes, valid)))
            }
            Err(FileError::NoEntry) if !valid.is_zero() => Ok(Reply::Entry(translate::no_entry(valid))),
            Err(error) => Err(error.into()),
        }
    }

    async fn attributes(&self, node: Node) -> Answer {
        let attributes = self.system.attributes(node).await?;
        Ok(Reply::Attributes(translate::attributes(node, &attributes), self.valid_of(node)))
    }

    async fn create(&self, parent: Node, name: &[u8], new: &NewFile<'_>) -> Result<fuse::Entry, Refusal> {
        let attributes = self.system.create_file(writable(parent)?, name, new).await?;
        self.born(&attributes).await
    }

    /// The entry of a file of the present that was just made or linked. One that was removed since is as if it had never been: the kernel
    /// looks again, and makes it anew.
    async fn born(&self, attributes: &Attributes) -> Result<fuse::Entry, Refusal> {
        let node = Node::live(attributes.file);
        self.system.retain_found(node).await.map_err(|_| Errno::ESTALE)?;
        Ok(self.entry(node, attributes, self.valid))
    }

    /// An entry for the kernel, of a node that was retained for it (I-91).
    fn entry(&self, node: Node, attributes: &Attributes, valid: Duration) -> fuse::Entry {
        let entry = translate::entry(node, self.nodes.give(node), attributes, valid);
        fuse::Entry { attribute_valid: self.valid_of(node).min(valid), ..entry }
    }

    /// How long names in a directory may be kept.
    fn valid_in(&self, directory: Node) -> Duration {
        if is_snapshots(directory) { Duration::ZERO } else { self.valid }
    }

    /// How long attributes may be kept.
    fn valid_of(&self, node: Node) -> Duration {
        self.valid_in(node)
    }

    /// Takes the set-id bits of a file whose content is about to be changed by a caller who may not keep them. The kernel leaves that to us
    /// for fallocate(2) and copy_file_range(2), and says nothing of the caller's rights but the ids: root's files keep them, and of the
    /// groups only the first is known. Set-group-id goes where the group may execute, and where the caller is not of it (as in
    /// `setattr_should_drop_sgid`, fs/attr.c).
    async fn drop_set_id(&self, caller: &Header, number: u64, file: FileId) -> Result<(), FileError> {
        if caller.uid == 0 {
            return Ok(());
        }
        let attributes = Box::pin(self.system.attributes(Node::live(file))).await?;
        let loses_group = attributes.mode & libc::S_IXGRP != 0 || caller.gid != attributes.gid;
        let kept = !(libc::S_ISUID | if loses_group { libc::S_ISGID } else { 0 });
        if attributes.mode & kept != attributes.mode {
            let change = AttributeChange { mode: Some(attributes.mode & kept), ..Default::default() };
            Box::pin(self.system.set_attributes(file, &change)).await?;
            self.forget_attributes(number);
        }
        Ok(())
    }

    /// Has the kernel ask for a node's attributes again. When it begins to change content around its cache it counts on other times and blocks
    /// alone: it would show set-id bits that have gone, and times that it was given before the content was there (I-165).
    fn forget_attributes(&self, number: u64) {
        let told = self.notifier().map(|notifier| notifier.forget_attributes(number));
        if let Some(Err(error)) = told {
            self.failures.note(&self.platform, || format!("the kernel keeps old attributes of {number:#x}: {error}"));
        }
    }

    /// Has the kernel drop what it has cached of a range, and waits for it, beside the transport's threads: the kernel waits for reads of it
    /// that they serve. Not for ever: it may also wait for reads that will be made when this request is answered.
    async fn drop_pages(&self, number: u64, offset: u64, bytes: usize) {
        let Some(notifier) = self.notifier() else { return };
        let notice = Notice::InvalidateInode { node: number, offset: offset.cast_signed(), bytes: bytes as i64 };
        let (failures, platform) = (Arc::clone(&self.failures), self.platform.clone());
        let drop = async move {
            if let Err(error) = notifier.send(&notice) {
                failures.note(&platform, || format!("the kernel keeps old pages of {number:#x}: {error}"));
            }
        };
        Box::pin(self.errands.run_at_once(DROPPING_MAX, drop)).await;
    }

    /// Has the kernel drop what a program stored in its pages of what nobody may change: it opens silently, and a mapping asks for no right either. Not
    /// waited for: the pages are held until this request is answered.
    fn undo_pages(&self, number: u64, offset: u64, bytes: usize) {
        if let Some(notifier) = self.notifier() {
            notifier.post(Notice::InvalidateInode { node: number, offset: offset.cast_signed(), bytes: bytes as i64 });
        }
    }

    fn open(&self, flags: u32) -> Answer {
        if self.opens_silently.load(Ordering::Relaxed) { Err(Errno::ENOSYS.into()) } else { Ok(Reply::Opened(flags)) }
    }

    /// A label that nobody set is "not supported", not "none": the kernel asks for labels only where no SELinux runs, and who
    /// hears that asks once, not for each file. `ls -l` would: more than half of its time (measured).
    async fn xattr(&self, node: Node, name: &[u8]) -> Answer {
        match self.system.xattr(node, name).await {
            Ok(value) => Ok(Reply::Xattr(value.to_vec())),
            Err(FileError::NoAttribute) if name == SELINUX_LABEL => Err(Errno::EOPNOTSUPP.into()),
            Err(error) => Err(error.into()),
        }
    }

    async fn list_xattrs(&self, header: &Header, node: Node) -> Answer {
        let mut list = Vec::new();
        for name in self.system.xattrs(node).await? {
            // xattr(7): trusted attributes are shown to the privileged alone. Who asks is known by number only.
            if header.uid == 0 || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(Reply::Xattr(list))
    }

    fn statfs(&self) -> StatFs {
        let space = self.system.space();
        let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK_BYTES);
        StatFs {
            blocks: blocks(space.total),
            blocks_free: blocks(space.free),
            blocks_available: blocks(space.free),
            files: space.files + space.files_free,
            files_free: space.files_free,
            block_bytes: STATFS_BLOCK_BYTES,
            fragment_bytes: STATFS_BLOCK_BYTES,
            name_bytes_max: 255,
        }
    }
}

fn done(result: Result<(), FileError>) -> Answer {
    Ok(result.map(|()| Reply::Empty)?)
}

/// The file, if it may be changed (I-92).
fn writable(node: Node) -> Result<FileId, Errno> {
    if node.view != View::LIVE || is_snapshots(node) { Err(Errno::EROFS) } else { Ok(node.file) }
}

fn is_snapshots(node: Node) -> bool {
    node == Node::live(SNAPSHOTS)
}

fn new_file<'a>(header: &Header, kind: Kind, mode: u32, umask: u32) -> NewFile<'a> {
    let mode = mode & file::MODE_MASK;
    NewFile { kind, mode, umask, uid: header.uid, gid: header.gid, device: 0, target: b"" }
}
