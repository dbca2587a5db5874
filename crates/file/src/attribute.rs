//! Reading and changing attributes, extended attributes and link targets.

use std::ops::Range;
use std::sync::Arc;

use base::interval::IntervalMap;
use base::limits::{FILE_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use base::time::Timestamp;
use bytes::Bytes;
use store::Class;

use crate::acl;
use crate::admission::CHANGE_BYTES;
use crate::attributes::{AttributeChange, Attributes, Kind, MODE_MASK, Node, SET_GID, TimeChange, without_set_id};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Change, Content, Root, XattrPlace, Xattrs, decode_xattrs};
use crate::inode::{Allocation, Inode, State};
use crate::system::{FileSystem, SNAPSHOTS, Transaction, corrupt};
use crate::write::Replacement;

/// What `set_xattr` does about an attribute that is there or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    Set,
    /// Fails with `Exists` if it is there.
    Create,
    /// Fails with `NoAttribute` if it is not.
    Replace,
}

impl FileSystem {
    /// The attributes of a node.
    ///
    /// # Errors
    /// `NoEntry`, or the store's.
    pub async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        if node == Node::live(SNAPSHOTS) {
            return self.snapshots_attributes().await;
        }
        let inode = self.inode(node).await?;
        let _use = self.grace.enter(node.file.number);
        loop {
            let (painted, tree, base_allocated) = {
                let mut state = inode.state.lock();
                if state.is_gone {
                    return Err(FileError::NoEntry);
                }
                if state.allocated.is_some() {
                    return Ok(self.show_attributes(&mut state));
                }
                (state.allocation_overlay(), state.base.tree.clone(), state.base.allocated)
            };
            let allocated = match self.count_allocated(&tree, base_allocated, &painted).await {
                // How much room a damaged file takes is worth no error: it is told as it was.
                Err(error) if error.is_loss() || self.is_left_out(&inode) => {
                    return Ok(self.show_attributes(&mut inode.state.lock()));
                }
                allocated => allocated?,
            };
            let mut state = inode.state.lock();
            // Content that came meanwhile is counted by the next one who asks.
            if state.base.tree == tree {
                let mut attributes = self.show_attributes(&mut state);
                attributes.allocated = allocated;
                if state.allocation_overlay().iter().eq(painted.iter()) {
                    state.allocated = Some(allocated);
                }
                return Ok(attributes);
            }
        }
    }

    /// Attributes as a caller sees them, with what is known of the allocation.
    pub(crate) fn seen_attributes(&self, state: &State) -> Attributes {
        let allocated = state.allocated.unwrap_or(state.base.allocated);
        Attributes { allocated, ..state.attributes.clone() }
    }

    /// The same, for who may keep them: the next write around caches says so.
    pub(crate) fn show_attributes(&self, state: &mut State) -> Attributes {
        state.is_shown = true;
        self.seen_attributes(state)
    }

    async fn snapshots_attributes(&self) -> Result<Attributes, FileError> {
        let root = self.inode(Node::live(base::id::FileId::ROOT)).await?;
        let attributes = root.state.lock().attributes.clone();
        Ok(Attributes {
            file: SNAPSHOTS,
            mode: 0o555,
            links: 2,
            size: self.snapshots.lock().len() as u64,
            allocated: 0,
            ..attributes
        })
    }

    /// Allocated bytes: those of the tree, less what the layers above hide of it, more what they hold.
    async fn count_allocated(
        &self,
        tree: &Root,
        base_allocated: u64,
        painted: &IntervalMap<Allocation>,
    ) -> Result<u64, FileError> {
        let mut allocated = base_allocated;
        for (range, Allocation(is_allocated)) in painted.iter() {
            let mut hidden = 0;
            let mut count = |below: Range<u64>, extent: Extent| {
                if extent.is_allocated() {
                    hidden += below.end.min(range.end) - below.start.max(range.start);
                }
            };
            self.each_base_extent(tree, range.clone(), &mut count).await?;
            allocated = allocated.saturating_sub(hidden);
            if *is_allocated {
                allocated += range.end - range.start;
            }
        }
        Ok(allocated)
    }

    /// Changes attributes; gives the new ones.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for a size of what has none, `FileTooLarge`, `NoSpace`, or the store's.
    pub async fn set_attributes(
        &self,
        file: base::id::FileId,
        change: &AttributeChange,
    ) -> Result<Attributes, FileError> {
        if file == SNAPSHOTS {
            return Err(FileError::ReadOnly);
        }
        let inode = self.live(file).await?;
        let cuts = change.size.is_some_and(|size| size < inode.state.lock().attributes.size);
        let _room = self.admit_change(cuts, CHANGE_BYTES).await?;
        let _operation = inode.operation.lock().await;
        if let Some(size) = change.size {
            self.resize(&inode, size, change.clear_set_id).await?;
        }
        if change.mode.is_some() {
            self.load_xattrs(&inode).await?;
        }
        {
            let mut transaction = Transaction::begin(self);
            let mut state = inode.state.lock();
            if state.is_gone {
                return Err(FileError::NoEntry);
            }
            let attributes = changed_attributes(&state.attributes, change, transaction.now);
            if let Some(mode) = change.mode
                && let Some(list) = state.xattrs.as_ref().and_then(|xattrs| xattrs.get(acl::ACCESS))
            {
                let value = Some(acl::change_mode(list, mode)?);
                transaction.record(&inode, &mut state, Change::Xattr { name: acl::ACCESS.to_vec(), value });
            }
            let is_only_size = change.mode.is_none()
                && change.uid.is_none()
                && change.gid.is_none()
                && change.accessed.is_none()
                && change.modified.is_none();
            if !(is_only_size && change.size.is_some()) {
                transaction.record(&inode, &mut state, Change::Attributes(attributes));
                transaction.log();
            }
        }
        self.attributes(Node::live(file)).await
    }

    /// Truncates or extends.
    async fn resize(&self, inode: &Arc<Inode>, size: u64, clears_set_id: bool) -> Result<(), FileError> {
        if size > FILE_BYTES_MAX {
            return Err(FileError::FileTooLarge);
        }
        match inode.state.lock().attributes.kind {
            Kind::Regular => {}
            Kind::Directory => return Err(FileError::IsDirectory),
            _ => return Err(FileError::Invalid("only a regular file has a size to set")),
        }
        if size > 0 {
            self.refuse_left_out(inode)?;
        }
        let _flush = self.lock_flush(inode).await;
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let old = state.attributes.size;
        let was_preallocated = state.attributes.is_preallocated;
        // To the end of all offsets, not of the file: what was allocated beyond the size goes as well.
        let is_cut = size < old || was_preallocated;
        let content = if is_cut { vec![(size, Content::Extent(u64::MAX - size, Extent::Hole))] } else { Vec::new() };
        let allocated = match state.allocated {
            Some(_) if size == 0 => Some(0),
            Some(allocated) if size >= old && !was_preallocated => Some(allocated),
            Some(allocated) if allocated == old && !was_preallocated => Some(size),
            _ => None,
        };
        let replacement = Replacement { size, clears_set_id, is_below: false, content };
        self.replace_content(&mut transaction, inode, &mut state, replacement);
        state.allocated = allocated;
        // What was allocated below the new size is beyond the logged one, until accepted data is local (I-65).
        if was_preallocated && state.logged.size == size {
            let attributes = Attributes { is_preallocated: false, ..state.attributes.clone() };
            transaction.record(inode, &mut state, Change::Attributes(attributes));
        }
        transaction.log();
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` for another kind of file, or the store's.
    pub async fn read_link(&self, node: Node) -> Result<Bytes, FileError> {
        let inode = self.inode(node).await?;
        let state = inode.state.lock();
        if state.attributes.kind == Kind::Symlink {
            Ok(state.base.target.clone())
        } else {
            Err(FileError::Invalid("not a symbolic link"))
        }
    }

    /// Sees to it that `state.xattrs` is there, for as long as the caller has the inode. It is one of the present.
    pub(crate) async fn load_xattrs(&self, inode: &Arc<Inode>) -> Result<(), FileError> {
        self.load_xattrs_of(Node::live(inode.file), inode).await
    }

    pub(crate) async fn load_xattrs_of(&self, node: Node, inode: &Arc<Inode>) -> Result<(), FileError> {
        let _use = self.grace.enter(inode.file.number);
        let place = {
            let state = inode.state.lock();
            if state.xattrs.is_some() {
                return Ok(());
            }
            state.base.xattrs.clone()
        };
        let bytes = match place {
            XattrPlace::None => Bytes::new(),
            XattrPlace::Inline(bytes) => bytes,
            XattrPlace::Chunk(address) => self.store.get(Class::Metadata, &address).await?,
        };
        let wrong = |error| corrupt("extended attributes", inode.file.to_string(), error);
        let xattrs = decode_xattrs(&bytes).map_err(wrong)?;
        // Attributes change only once they are loaded: what somebody else loaded meanwhile is newer.
        inode.state.lock().xattrs.get_or_insert(xattrs);
        self.table.weigh(node, bytes.len());
        Ok(())
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported` for an unknown name space, `Invalid` for a name space alone, or the store's.
    pub async fn xattr(&self, node: Node, name: &[u8]) -> Result<Bytes, FileError> {
        check_xattr_name(name)?;
        if node == Node::live(SNAPSHOTS) {
            return Err(FileError::NoAttribute);
        }
        let inode = self.inode(node).await?;
        self.load_xattrs_of(node, &inode).await?;
        let state = inode.state.lock();
        let value = state.xattrs.as_ref().and_then(|xattrs| xattrs.get(name)).ok_or(FileError::NoAttribute)?;
        Ok(Bytes::copy_from_slice(value))
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// The store's.
    pub async fn xattrs(&self, node: Node) -> Result<Vec<Bytes>, FileError> {
        if node == Node::live(SNAPSHOTS) {
            return Ok(Vec::new());
        }
        let inode = self.inode(node).await?;
        self.load_xattrs_of(node, &inode).await?;
        let state = inode.state.lock();
        Ok(state.xattrs.iter().flat_map(Xattrs::keys).map(|name| Bytes::copy_from_slice(name)).collect())
    }

    /// Sets an extended attribute. Access lists change the mode with them.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NotSupported` for an unknown name space, `AttributeTooLarge`, or the store's.
    pub async fn set_xattr(
        &self,
        file: base::id::FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clears_set_gid: bool,
    ) -> Result<(), FileError> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FileError::AttributeTooLarge);
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            acl::check(value)?;
        }
        self.change_xattr(file, name, Some(value), mode, clears_set_gid).await
    }

    /// Removes an extended attribute. An access list that is not there is removed already, as Linux has it.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported` for an unknown name space, `Invalid` for a name space alone, or the store's.
    pub async fn remove_xattr(&self, file: base::id::FileId, name: &[u8]) -> Result<(), FileError> {
        check_xattr_name(name)?;
        match self.change_xattr(file, name, None, XattrMode::Replace, false).await {
            Err(FileError::NoAttribute) if name == acl::ACCESS || name == acl::DEFAULT => Ok(()),
            removed => removed,
        }
    }

    async fn change_xattr(
        &self,
        file: base::id::FileId,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
        clears_set_gid: bool,
    ) -> Result<(), FileError> {
        if file == SNAPSHOTS {
            return Err(FileError::ReadOnly);
        }
        let _room = self.admit_metadata(CHANGE_BYTES + value.map_or(0, <[u8]>::len) as u64).await?;
        let inode = self.live(file).await?;
        let _operation = inode.operation.lock().await;
        self.load_xattrs(&inode).await?;

        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let is_directory = state.attributes.kind == Kind::Directory;
        let xattrs = state.xattrs.as_ref().expect("loaded above, and never unloaded");
        match (xattrs.contains_key(name), mode) {
            (true, XattrMode::Create) => return Err(FileError::Exists),
            // The kernel removes an access list that is not there when a mode makes one needless.
            (false, XattrMode::Replace) if name != acl::ACCESS => return Err(FileError::NoAttribute),
            _ => {}
        }
        let others: usize = xattrs.iter().filter(|(other, _)| *other != name).map(|(n, v)| n.len() + v.len() + 8).sum();
        if others + name.len() + value.map_or(0, <[u8]>::len) + 8 > XATTR_TOTAL_BYTES_MAX {
            return Err(FileError::AttributeTooLarge);
        }
        let mut attributes = Attributes { changed: transaction.now, ..state.attributes.clone() };
        let mut value = value.map(<[u8]>::to_vec);
        if name == acl::DEFAULT && !is_directory && value.is_some() {
            return Err(FileError::NotPermitted("only a directory has a default access control list"));
        }
        if name == acl::ACCESS
            && let Some(list) = &value
        {
            let (rights, stored) = acl::to_mode(list)?;
            attributes.mode = attributes.mode & !0o777 | rights;
            if clears_set_gid {
                attributes.mode &= !SET_GID;
            }
            value = stored;
        }
        transaction.record(&inode, &mut state, Change::Xattr { name: name.to_vec(), value });
        transaction.record(&inode, &mut state, Change::Attributes(attributes));
        transaction.log();
        let bytes = state.xattr_bytes();
        drop(state);
        self.table.weigh(Node::live(file), bytes);
        Ok(())
    }
}

pub(crate) fn check_xattr_name(name: &[u8]) -> Result<(), FileError> {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > XATTR_NAME_BYTES_MAX {
        return Err(FileError::Invalid("an attribute name over 255 bytes"));
    }
    if spaces.contains(&name) {
        return Err(FileError::Invalid("an attribute's name space without a name"));
    }
    let is_known = spaces.iter().any(|space| name.starts_with(space));
    if is_known || name == acl::ACCESS || name == acl::DEFAULT {
        Ok(())
    } else {
        Err(FileError::NotSupported("extended attributes outside user, trusted, security and access lists"))
    }
}

fn changed_attributes(old: &Attributes, change: &AttributeChange, now: Timestamp) -> Attributes {
    let time = |change: Option<TimeChange>, old: Timestamp| match change {
        None => old,
        Some(TimeChange::Now) => now,
        Some(TimeChange::At(time)) => time,
    };
    let mut mode = old.mode;
    if change.clear_set_id && old.kind != Kind::Directory {
        mode = without_set_id(mode);
    }
    if let Some(new) = change.mode {
        mode = new & MODE_MASK;
    }
    Attributes {
        mode,
        uid: change.uid.unwrap_or(old.uid),
        gid: change.gid.unwrap_or(old.gid),
        accessed: time(change.accessed, old.accessed),
        modified: time(change.modified, old.modified),
        changed: now,
        ..old.clone()
    }
}
