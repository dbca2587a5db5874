//! Every byte that the file layer puts into chunks, journal frames and the superblock (docs/format.md, "Files").
//!
//! Little endian, lengths before variable parts, a magic or kind first. Decoders take bytes that may be hostile: they
//! return [`DecodeError`], never panic, and allocate no more than the input is long.
//! Not here: what a value means for the state in memory (`state`), tree nodes (`tree::format`).

use std::collections::BTreeMap;

use base::codec::{DecodeError, Reader, Writer};
use base::id::{ChunkAddress, FileId, Version};
use base::limits::{
    FILE_BYTES_MAX, LINK_TARGET_BYTES_MAX, NAME_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX,
};
use base::time::Timestamp;
use bytes::Bytes;
use store::{COPIES_MAX, Erasure, Resilience};

use crate::attributes::{Attributes, Kind, MODE_MASK};
use crate::extent::Extent;

/// Magic of the roots in the superblock: "HFR1".
pub(crate) const ROOTS_MAGIC: u32 = u32::from_le_bytes(*b"HFR1");
/// Raised by whoever changes what a record, a root, a node of a tree or a value in one means.
const FORM: u32 = 1;
/// The versions of what this program writes on disks, the store's first: where those of two programs differ the one may not read what the other wrote.
pub const FORMS: [u32; store::FORMS.len() + 1] = {
    let [disk, superblock, segment, pack, fragment] = store::FORMS;
    [disk, superblock, segment, pack, fragment, FORM]
};
/// Small trees, attribute sets and link targets up to this many bytes live inside the inode: one look-up, no chunk.
pub(crate) const INLINE_BYTES_MAX: usize = 512;

/// Above every counter of files, views and versions that a node comes to: what says more is hostile, and counting on would overflow.
pub(crate) const FILES_MAX: u64 = 1 << (FileId::COUNTER_BITS - 1);
pub(crate) const VIEWS_MAX: u32 = 1 << 31;
const SEQUENCE_MAX: u64 = 1 << 62;

/// Where a tree begins.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Root {
    /// No entry.
    #[default]
    Empty,
    /// One leaf, kept inside its owner.
    Inline(Bytes),
    /// The chunk of the top node and its level (leaves are level 0).
    Node { address: ChunkAddress, level: u8 },
}

impl Root {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        match self {
            Root::Empty => writer.u8(0),
            Root::Inline(bytes) => writer.u8(1).short_bytes(bytes),
            Root::Node { address, level } => writer.u8(2).u8(*level).address(address),
        };
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Root, DecodeError> {
        match reader.u8("tree root")? {
            0 => Ok(Root::Empty),
            1 => Ok(Root::Inline(Bytes::copy_from_slice(reader.short_bytes("inline tree")?))),
            2 => {
                let level = reader.u8("tree level")?;
                Ok(Root::Node { level, address: reader.address("tree root")? })
            }
            _ => Err(reader.refuse("tree root")),
        }
    }
}

/// What the superblock keeps for the file layer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Roots {
    /// FileId → [`InodeValue`].
    pub(crate) catalog: Root,
    /// View → [`SnapshotValue`].
    pub(crate) snapshots: Root,
    /// FileId of each unlinked file that somebody had open.
    pub(crate) orphans: Root,
    /// The next counter of a FileId: above every one given out.
    pub(crate) next_counter: u64,
    /// The next number of a view or branch: above every one given out.
    pub(crate) next_view: u32,
    /// Branch → [`BranchValue`].
    pub(crate) branches: Root,
    /// Content may lie on fewer disks than its file asks for (I-167).
    pub(crate) is_raising: bool,
}

impl Roots {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(ROOTS_MAGIC).u32(self.next_view).u64(self.next_counter);
        self.catalog.encode(&mut writer);
        self.snapshots.encode(&mut writer);
        self.orphans.encode(&mut writer);
        // A program that knows no clones would let their chunks go: it refuses what goes on here.
        if self.branches != Root::Empty || self.is_raising {
            self.branches.encode(&mut writer);
        }
        if self.is_raising {
            writer.u8(1);
        }
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Roots, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u32("roots magic")? != ROOTS_MAGIC {
            return Err(reader.refuse("roots magic"));
        }
        let next_view = reader.u32("next view")?;
        let next_counter = reader.u64("next file")?;
        if next_view > VIEWS_MAX || next_counter > FILES_MAX {
            return Err(reader.refuse("next file and view"));
        }
        let mut root = || Root::decode(&mut reader);
        let (catalog, snapshots, orphans) = (root()?, root()?, root()?);
        let is_at_end = reader.remaining() == 0;
        let branches = if is_at_end { Root::Empty } else { Root::decode(&mut reader)? };
        let is_raising = match reader.remaining() {
            // No branches are said by saying nothing.
            0 if branches == Root::Empty && !is_at_end => return Err(reader.refuse("a list of branches that has some")),
            0 => false,
            _ if reader.u8("raising")? == 1 => true,
            _ => return Err(reader.refuse("raising")),
        };
        reader.finish("roots")?;
        Ok(Roots { catalog, snapshots, orphans, next_counter, next_view, branches, is_raising })
    }
}

/// Set in the kind of a file or entry behind whose directory or file stands the branch that it is of: another one than its own.
const OTHER_BRANCH: u8 = 0x80;

/// A file as something of branch `home` names it: its number, and its branch behind what else there is if that is another one.
fn encode_branch(file: FileId, home: u32, writer: &mut Writer) {
    if is_elsewhere(file, home) {
        writer.u32(file.branch);
    }
}

fn is_elsewhere(file: FileId, home: u32) -> bool {
    file.number != 0 && file.branch != home
}

fn kind_byte(kind: Kind, file: FileId, home: u32) -> u8 {
    kind as u8 | if is_elsewhere(file, home) { OTHER_BRANCH } else { 0 }
}

/// The kind, and whether a branch follows.
fn decode_kind(reader: &mut Reader<'_>, what: &'static str) -> Result<(Kind, bool), DecodeError> {
    let number = reader.u8(what)?;
    let kind = Kind::from_number(number & !OTHER_BRANCH).ok_or(reader.refuse(what))?;
    Ok((kind, number & OTHER_BRANCH != 0))
}

/// The branch of a file with this number that something of branch `home` names.
fn decode_branch(number: u64, home: u32, is_elsewhere: bool, reader: &mut Reader<'_>) -> Result<FileId, DecodeError> {
    let file = match (number, is_elsewhere) {
        (0, false) => FileId::NONE,
        (_, false) => FileId { branch: home, number },
        (_, true) => FileId { branch: reader.u32("branch")?, number },
    };
    if is_elsewhere && !self::is_elsewhere(file, home) || file.branch >= VIEWS_MAX {
        return Err(reader.refuse("branch"));
    }
    Ok(file)
}

/// Copies stand in the flags of attributes from this bit on. Above them m of k+m; k stands above the mode then.
const COPIES_SHIFT: u32 = 4;
const DATA_SHIFT: u32 = 12;
const _: () =
    assert!(COPIES_MAX + Erasure::PARITY_MAX < 1 << (8 - COPIES_SHIFT) && Erasure::DATA_MAX <= 1 << (16 - DATA_SHIFT));
const _: () = assert!(MODE_MASK < 1 << DATA_SHIFT);

/// What stands in the flags, and above the mode.
fn encode_resilience(resilience: Resilience) -> (u8, u16) {
    match resilience {
        Resilience::OfNode => (0, 0),
        Resilience::Copies(copies) => (copies << COPIES_SHIFT, 0),
        Resilience::Fragments(erasure) => {
            ((COPIES_MAX + erasure.parity()) << COPIES_SHIFT, u16::from(erasure.data() - 1) << DATA_SHIFT)
        }
    }
}

fn decode_resilience(flags: u8, mode: u16) -> Option<Resilience> {
    match (flags >> COPIES_SHIFT, mode >> DATA_SHIFT) {
        (0, 0) => Some(Resilience::OfNode),
        (copies @ 1..=COPIES_MAX, 0) => Some(Resilience::Copies(copies)),
        (above, data) => {
            let data = u8::try_from(data + 1).expect("four bits");
            Erasure::new(data, above.checked_sub(COPIES_MAX)?).map(Resilience::Fragments)
        }
    }
}

fn encode_attributes(attributes: &Attributes, writer: &mut Writer) {
    let (copies, data) = encode_resilience(attributes.resilience);
    let (home, parent) = (attributes.file.branch, attributes.parent);
    writer.u8(kind_byte(attributes.kind, parent, home)).u8(u8::from(attributes.is_preallocated) | copies);
    writer.u16(u16::try_from(attributes.mode & MODE_MASK).expect("masked to 12 bits") | data);
    writer.u32(attributes.uid).u32(attributes.gid).u32(attributes.links).u32(attributes.device);
    writer.u64(attributes.size).u64(attributes.allocated).u64(parent.number);
    writer.timestamp(attributes.accessed).timestamp(attributes.modified);
    writer.timestamp(attributes.changed).timestamp(attributes.born);
    encode_branch(parent, home, writer);
}

fn decode_attributes(file: FileId, reader: &mut Reader<'_>) -> Result<Attributes, DecodeError> {
    let (kind, is_elsewhere) = decode_kind(reader, "file kind")?;
    let flags = reader.u8("flags")?;
    let mode = reader.u16("mode")?;
    let resilience = decode_resilience(flags, mode).ok_or(reader.refuse("copies or fragments"))?;
    let mode = u32::from(mode) & ((1 << DATA_SHIFT) - 1);
    let flags = flags & ((1 << COPIES_SHIFT) - 1);
    if flags > 1 || mode & !MODE_MASK != 0 {
        return Err(reader.refuse("flags and mode"));
    }
    let mut attributes = Attributes {
        file,
        kind,
        is_preallocated: flags == 1,
        resilience,
        mode,
        uid: reader.u32("uid")?,
        gid: reader.u32("gid")?,
        links: reader.u32("links")?,
        device: reader.u32("device")?,
        size: reader.u64("size")?,
        allocated: reader.u64("allocated")?,
        parent: file.beside(reader.u64("parent")?),
        accessed: reader.timestamp("access time")?,
        modified: reader.timestamp("modification time")?,
        changed: reader.timestamp("change time")?,
        born: reader.timestamp("birth time")?,
    };
    if attributes.kind == Kind::Regular && attributes.size > FILE_BYTES_MAX {
        return Err(reader.refuse("size"));
    }
    attributes.parent = decode_branch(attributes.parent.number, file.branch, is_elsewhere, reader)?;
    Ok(attributes)
}

fn decode_target(reader: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let target = reader.short_bytes("link target")?;
    if target.len() > LINK_TARGET_BYTES_MAX {
        return Err(reader.refuse("link target"));
    }
    Ok(Bytes::copy_from_slice(target))
}

fn encode_version(version: &Version, writer: &mut Writer) {
    writer.u32(version.epoch).u64(version.sequence).u128(version.chain);
}

fn decode_version(reader: &mut Reader<'_>) -> Result<Version, DecodeError> {
    let (epoch, sequence) = (reader.u32("epoch")?, reader.u64("sequence")?);
    if sequence > SEQUENCE_MAX {
        return Err(reader.refuse("sequence"));
    }
    Ok(Version { epoch, sequence, chain: reader.u128("chain")? })
}

/// The extended attributes of a file.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// All attributes as one blob: names and values in order of name.
pub(crate) fn encode_xattrs(xattrs: &Xattrs) -> Vec<u8> {
    let mut writer = Writer::default();
    for (name, value) in xattrs {
        writer.short_bytes(name).long_bytes(value);
    }
    writer.into_bytes()
}

pub(crate) fn decode_xattrs(bytes: &[u8]) -> Result<Xattrs, DecodeError> {
    let mut reader = Reader::new(bytes);
    let mut xattrs = Xattrs::new();
    while reader.remaining() > 0 {
        let name = decode_xattr_name(&mut reader)?;
        if xattrs.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(reader.refuse("attribute names in order"));
        }
        xattrs.insert(name, reader.long_bytes("attribute value", XATTR_TOTAL_BYTES_MAX)?.to_vec());
    }
    Ok(xattrs)
}

fn decode_xattr_name(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let name = reader.short_bytes("attribute name")?;
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(reader.refuse("attribute name"));
    }
    Ok(name.to_vec())
}

/// Where the extended attributes of a committed inode are.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum XattrPlace {
    /// There are none.
    #[default]
    None,
    /// In the inode.
    Inline(Bytes),
    /// In a chunk.
    Chunk(ChunkAddress),
}

/// The content of a committed inode.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Base {
    /// Extents of a regular file, entries of a directory.
    pub(crate) tree: Root,
    /// Target of a symbolic link.
    pub(crate) target: Bytes,
    /// Extended attributes.
    pub(crate) xattrs: XattrPlace,
    /// Bytes that the extents cover; equals `allocated` of the inode as committed.
    pub(crate) allocated: u64,
    /// Whether the orphan tree lists this inode.
    pub(crate) is_orphan: bool,
}

/// A catalog value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodeValue {
    pub(crate) attributes: Attributes,
    pub(crate) version: Version,
    pub(crate) base: Base,
}

impl InodeValue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(256);
        encode_attributes(&self.attributes, &mut writer);
        encode_version(&self.version, &mut writer);
        self.base.tree.encode(&mut writer);
        writer.short_bytes(&self.base.target);
        match &self.base.xattrs {
            XattrPlace::None => writer.u8(0),
            XattrPlace::Inline(bytes) => writer.u8(1).short_bytes(bytes),
            XattrPlace::Chunk(address) => writer.u8(2).address(address),
        };
        writer.into_bytes()
    }

    /// The attributes alone, which come first: no more is looked at.
    pub(crate) fn decode_attributes(file: FileId, reader: &mut Reader<'_>) -> Result<Attributes, DecodeError> {
        let attributes = decode_attributes(file, reader)?;
        // No record could name it.
        if file.counter() >= FILES_MAX {
            return Err(reader.refuse("a number that a file can have"));
        }
        if file == FileId::ROOT && attributes.kind != Kind::Directory {
            return Err(reader.refuse("a root that is a directory"));
        }
        Ok(attributes)
    }

    pub(crate) fn decode(file: FileId, bytes: &[u8]) -> Result<InodeValue, DecodeError> {
        let mut reader = Reader::new(bytes);
        let attributes = InodeValue::decode_attributes(file, &mut reader)?;
        let version = decode_version(&mut reader)?;
        let tree = Root::decode(&mut reader)?;
        let target = decode_target(&mut reader)?;
        let xattrs = match reader.u8("attributes")? {
            0 => XattrPlace::None,
            1 => XattrPlace::Inline(Bytes::copy_from_slice(reader.short_bytes("attributes")?)),
            2 => XattrPlace::Chunk(reader.address("attributes")?),
            _ => return Err(reader.refuse("attributes")),
        };
        reader.finish("inode")?;
        let is_orphan = attributes.links == 0;
        let base = Base { tree, target, xattrs, allocated: attributes.allocated, is_orphan };
        Ok(InodeValue { attributes, version, base })
    }
}

/// A value of the snapshot tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotValue {
    pub(crate) taken: Timestamp,
    pub(crate) catalog: Root,
    pub(crate) name: String,
    /// The directory that it shows.
    pub(crate) root: FileId,
    /// As [`Roots::next_counter`] was, of the file system that the catalog is of; 0: of an older program, which noted none.
    pub(crate) next_counter: u64,
    /// As [`Roots::branches`] was.
    pub(crate) branches: Root,
    /// Nothing was unlinked and still open, or being removed: its root leads to all of its catalog.
    pub(crate) is_tidy: bool,
}

impl SnapshotValue {
    /// Set in the counter of one that is tidy.
    const TIDY: u64 = 1 << 63;
    /// Root and counter where an older program wrote neither.
    const TAIL_OF_OLD: (FileId, u64, &Root) = (FileId::ROOT, 0, &Root::Empty);

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.timestamp(self.taken);
        self.catalog.encode(&mut writer);
        writer.short_bytes(self.name.as_bytes());
        if self.is_tidy || (self.root, self.next_counter, &self.branches) != SnapshotValue::TAIL_OF_OLD {
            writer.file(self.root).u64(self.next_counter | if self.is_tidy { Self::TIDY } else { 0 });
            if self.branches != Root::Empty {
                self.branches.encode(&mut writer);
            }
        }
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SnapshotValue, DecodeError> {
        let mut reader = Reader::new(bytes);
        let taken = reader.timestamp("snapshot time")?;
        let catalog = Root::decode(&mut reader)?;
        let name = reader.short_bytes("snapshot name")?.to_vec();
        let name = String::from_utf8(name).map_err(|_| reader.refuse("snapshot name"))?;
        if !is_name(name.as_bytes()) {
            return Err(reader.refuse("snapshot name"));
        }
        if reader.remaining() == 0 {
            let (root, next_counter, branches) = SnapshotValue::TAIL_OF_OLD;
            let branches = branches.clone();
            return Ok(SnapshotValue { taken, catalog, name, root, next_counter, branches, is_tidy: false });
        }
        let (root, counter) = (reader.file("directory of a snapshot")?, reader.u64("next file of a snapshot")?);
        let (next_counter, is_tidy) = (counter & !Self::TIDY, counter & Self::TIDY != 0);
        let branches = decode_branches(&mut reader)?;
        let is_of_old = !is_tidy && (root, next_counter, &branches) == SnapshotValue::TAIL_OF_OLD;
        if next_counter > FILES_MAX || is_of_old {
            return Err(reader.refuse("next file of a snapshot"));
        }
        reader.finish("snapshot")?;
        Ok(SnapshotValue { taken, catalog, name, root, next_counter, branches, is_tidy })
    }
}

/// A list of branches at the end of what has one; nothing is there where it is empty.
fn decode_branches(reader: &mut Reader<'_>) -> Result<Root, DecodeError> {
    if reader.remaining() == 0 {
        return Ok(Root::Empty);
    }
    match Root::decode(reader)? {
        Root::Empty => Err(reader.refuse("a list of branches that has some")),
        branches => Ok(branches),
    }
}

/// A catalog that went on from another one: what a clone's files are looked up in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BranchValue {
    /// Number → [`InodeValue`].
    pub(crate) catalog: Root,
    /// As [`Roots::orphans`], of this branch.
    pub(crate) orphans: Root,
    /// The number of the directory that is the clone; 0: it was removed, and some of its files are still open.
    pub(crate) top: u64,
    /// That of the directory that everything in the catalog is below, but for what was unlinked: the root of what was cloned from, or 0 where
    /// that is `top`; and `top`, once all that it does not lead to was let go of.
    pub(crate) root: u64,
    /// The directory that has the clone's name, as of the catalog; none: nobody has.
    pub(crate) above: FileId,
}

impl BranchValue {
    /// Whether it lost its name and waits for its removal: what lies in it goes with it.
    pub(crate) fn is_going(&self) -> bool {
        self.top != 0 && self.above == FileId::NONE
    }

    /// Whether everything that `top` does not lead to was let go of (I-112).
    pub(crate) fn is_pruned(&self) -> bool {
        self.root == self.top
    }

    /// The number of the directory that everything with a name is below.
    pub(crate) fn root(&self) -> u64 {
        if self.root == 0 { self.top } else { self.root }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u64(self.top).u64(self.root).file(self.above);
        self.catalog.encode(&mut writer);
        self.orphans.encode(&mut writer);
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<BranchValue, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (top, root) = (reader.u64("top of the branch")?, reader.u64("root of the branch")?);
        if [top, root].iter().any(|number| FileId::main(*number).counter() >= FILES_MAX) {
            return Err(reader.refuse("numbers that files can have"));
        }
        let above = reader.file("directory of the clone")?;
        let (catalog, orphans) = (Root::decode(&mut reader)?, Root::decode(&mut reader)?);
        reader.finish("branch")?;
        Ok(BranchValue { catalog, orphans, top, root, above })
    }
}

/// A directory entry: what a cookie leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) file: FileId,
    pub(crate) kind: Kind,
    pub(crate) name: Box<[u8]>,
}

impl Entry {
    /// As a directory of branch `home` has it.
    pub(crate) fn encode(&self, home: u32, writer: &mut Writer) {
        writer.u64(self.file.number).u8(kind_byte(self.kind, self.file, home)).short_bytes(&self.name);
        encode_branch(self.file, home, writer);
    }

    pub(crate) fn decode(home: u32, reader: &mut Reader<'_>) -> Result<Entry, DecodeError> {
        let number = reader.u64("entry file")?;
        let (kind, is_elsewhere) = decode_kind(reader, "entry kind")?;
        let name = reader.short_bytes("entry name")?;
        if !is_name(name) {
            return Err(reader.refuse("entry name"));
        }
        let file = decode_branch(number, home, is_elsewhere, reader)?;
        Ok(Entry { file, kind, name: name.into() })
    }
}

/// Whether an entry can have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let is_taken = matches!(name, b"" | b"." | b"..");
    !is_taken && name.len() <= NAME_BYTES_MAX && !name.contains(&b'/') && !name.contains(&0)
}

/// The content that a write record gives to a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// An extent: hole, zeroes or part of a chunk, of this length.
    Extent(u64, Extent),
    /// The bytes themselves.
    Inline(Vec<u8>),
}

impl Content {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Content::Extent(length, _) => *length,
            Content::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// An extent as a value of the extent tree; the key is the file offset. A hole has no entry there.
pub(crate) fn encode_extent(length: u64, extent: &Extent, writer: &mut Writer) {
    writer.u64(length);
    match extent {
        Extent::Hole => writer.u8(0),
        Extent::Zero => writer.u8(1),
        Extent::Chunk { address, skip, chunk_bytes } => writer.u8(2).u32(*skip).u32(*chunk_bytes).address(address),
    };
}

fn decode_extent(reader: &mut Reader<'_>) -> Result<(u64, Extent), DecodeError> {
    let length = reader.u64("extent length")?;
    let extent = match reader.u8("extent kind")? {
        0 => Extent::Hole,
        1 => Extent::Zero,
        2 => {
            let (skip, chunk_bytes) = (reader.u32("extent skip")?, reader.u32("chunk length")?);
            let address = reader.address("extent chunk")?;
            if length.checked_add(u64::from(skip)).is_none_or(|end| end > u64::from(chunk_bytes)) {
                return Err(reader.refuse("extent beyond its chunk"));
            }
            Extent::Chunk { address, skip, chunk_bytes }
        }
        _ => return Err(reader.refuse("extent kind")),
    };
    Ok((length, extent))
}

/// A value of an extent tree: as there, and no hole, which reads as one and would count as allocated.
pub(crate) fn decode_tree_extent(bytes: &[u8]) -> Result<(u64, Extent), DecodeError> {
    let mut reader = Reader::new(bytes);
    let (length, extent) = decode_extent(&mut reader)?;
    if extent == Extent::Hole {
        return Err(reader.refuse("hole in a tree"));
    }
    reader.finish("extent")?;
    Ok((length, extent))
}

/// What a record changes. One change of one file; values are absolute, so that applying needs no arithmetic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The file comes into being.
    Create { attributes: Attributes, target: Bytes },
    /// Attributes apart from the size of a regular file.
    Attributes(Attributes),
    /// Content of ranges, in order, and what goes with it. A truncation is holes and a size.
    Write { size: u64, mode: u32, modified: Timestamp, changed: Timestamp, content: Vec<(u64, Content)> },
    /// An extended attribute; no value: removed.
    Xattr { name: Vec<u8>, value: Option<Vec<u8>> },
    /// An entry at a free cookie.
    Insert { cookie: u64, entry: Entry },
    /// The entry at a cookie goes.
    Remove { cookie: u64 },
    /// The file is no more.
    Gone,
    /// A directory comes into being as a clone, the top of a branch that begins with this catalog: there it is as it was cloned.
    Branch { catalog: Root, root: u64, attributes: Attributes },
}

/// One change of one file, as journal and (later) peers carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) file: FileId,
    /// The version that the record leads to.
    pub(crate) version: Version,
    /// When it was made.
    pub(crate) time: Timestamp,
    pub(crate) change: Change,
}

/// Appends a record to a frame and returns the new version: `previous` with the next sequence, and the chain over
/// everything of the record but the chain itself.
pub(crate) fn encode_record(
    file: FileId,
    previous: &Version,
    time: Timestamp,
    change: &Change,
    frame: &mut Writer,
) -> Version {
    let start = frame.bytes().len();
    let sequence = previous.sequence + 1;
    frame.u32(0).u8(change_kind(change)).u8(u8::from(file.branch != 0)).u16(0).u64(file.number);
    frame.u32(previous.epoch).u64(sequence).timestamp(time);
    if file.branch != 0 {
        frame.u32(file.branch);
    }
    encode_change(change, file.branch, frame);
    let chain = base::hash::chain(previous.chain, &frame.bytes()[start + 4..]);
    frame.u128(chain);
    let length = u32::try_from(frame.bytes().len() - start).expect("a frame is below 4 MiB");
    frame.patch_u32(start, length);
    Version { epoch: previous.epoch, sequence, chain }
}

/// Takes the next record off a frame. The second value is what the chain covers: `hash::chain(previous, bytes)` must be
/// the record's chain.
pub(crate) fn decode_record<'a>(frame: &mut Reader<'a>) -> Result<(Record, &'a [u8]), DecodeError> {
    let length = frame.u32("record length")? as usize;
    let body_bytes = length.checked_sub(4 + 16).ok_or(frame.refuse("record length"))?;
    let body = frame.take("record", body_bytes)?;
    let chain = frame.u128("chain")?;
    let mut reader = Reader::new(body);
    let kind = reader.u8("record kind")?;
    let has_branch = match reader.u8("record branch")? {
        0 => false,
        1 => true,
        _ => return Err(reader.refuse("record branch")),
    };
    reader.zeroes("padding", 2)?;
    let mut file = FileId::main(reader.u64("record file")?);
    let epoch = reader.u32("record epoch")?;
    let sequence = reader.u64("record sequence")?;
    if file.counter() >= FILES_MAX || sequence > SEQUENCE_MAX {
        return Err(reader.refuse("record of a file and version that can be"));
    }
    let time = reader.timestamp("record time")?;
    if has_branch {
        file.branch = reader.u32("record branch")?;
        if !(1..VIEWS_MAX).contains(&file.branch) {
            return Err(reader.refuse("record branch"));
        }
    }
    let change = decode_change(kind, file, &mut reader)?;
    reader.finish("record")?;
    Ok((Record { file, version: Version { epoch, sequence, chain }, time, change }, body))
}

fn change_kind(change: &Change) -> u8 {
    match change {
        Change::Create { .. } => 1,
        Change::Attributes(_) => 2,
        Change::Write { .. } => 3,
        Change::Xattr { .. } => 4,
        Change::Insert { .. } => 5,
        Change::Remove { .. } => 6,
        Change::Gone => 7,
        // 8 is kept for "base", which the cluster needs.
        Change::Branch { .. } => 9,
    }
}

fn encode_change(change: &Change, home: u32, writer: &mut Writer) {
    match change {
        Change::Create { attributes, target } => {
            encode_attributes(attributes, writer);
            writer.short_bytes(target);
        }
        Change::Attributes(attributes) => encode_attributes(attributes, writer),
        Change::Write { size, mode, modified, changed, content } => {
            writer.u64(*size).u32(*mode).timestamp(*modified).timestamp(*changed);
            writer.u32(u32::try_from(content.len()).expect("extents of a frame below 4 MiB"));
            for (offset, content) in content {
                writer.u64(*offset);
                match content {
                    Content::Inline(bytes) => {
                        writer.u8(1).long_bytes(bytes);
                    }
                    Content::Extent(length, extent) => {
                        writer.u8(0);
                        encode_extent(*length, extent, writer);
                    }
                }
            }
        }
        Change::Xattr { name, value } => {
            writer.short_bytes(name);
            match value {
                Some(value) => writer.u8(1).long_bytes(value),
                None => writer.u8(0),
            };
        }
        Change::Insert { cookie, entry } => {
            writer.u64(*cookie);
            entry.encode(home, writer);
        }
        Change::Remove { cookie } => {
            writer.u64(*cookie);
        }
        Change::Gone => {}
        Change::Branch { catalog, root, attributes } => {
            writer.u64(*root);
            catalog.encode(writer);
            encode_attributes(attributes, writer);
        }
    }
}

fn decode_change(kind: u8, file: FileId, reader: &mut Reader<'_>) -> Result<Change, DecodeError> {
    Ok(match kind {
        1 => {
            let attributes = decode_attributes(file, reader)?;
            Change::Create { attributes, target: decode_target(reader)? }
        }
        2 => Change::Attributes(decode_attributes(file, reader)?),
        3 => decode_write(reader)?,
        4 => {
            let name = decode_xattr_name(reader)?;
            let value = match reader.u8("attribute value")? {
                0 => None,
                1 => Some(reader.long_bytes("attribute value", XATTR_TOTAL_BYTES_MAX)?.to_vec()),
                _ => return Err(reader.refuse("attribute value")),
            };
            Change::Xattr { name, value }
        }
        5 => Change::Insert { cookie: reader.u64("cookie")?, entry: Entry::decode(file.branch, reader)? },
        6 => Change::Remove { cookie: reader.u64("cookie")? },
        7 => Change::Gone,
        9 => {
            let root = reader.u64("root of the branch")?;
            let catalog = Root::decode(reader)?;
            let attributes = decode_attributes(file, reader)?;
            if file.branch == 0 || attributes.kind != Kind::Directory {
                return Err(reader.refuse("a clone that is a directory of its own branch"));
            }
            Change::Branch { catalog, root, attributes }
        }
        _ => return Err(reader.refuse("record kind")),
    })
}

fn decode_write(reader: &mut Reader<'_>) -> Result<Change, DecodeError> {
    let size = reader.u64("size")?;
    let mode = reader.u32("mode")?;
    if size > FILE_BYTES_MAX || mode & !MODE_MASK != 0 {
        return Err(reader.refuse("size and mode"));
    }
    let modified = reader.timestamp("modification time")?;
    let changed = reader.timestamp("change time")?;
    let count = reader.u32("extent count")?;
    let mut content = Vec::new();
    for _ in 0..count {
        let offset = reader.u64("extent offset")?;
        let piece = match reader.u8("content kind")? {
            0 => decode_extent(reader).map(|(length, extent)| Content::Extent(length, extent))?,
            1 => Content::Inline(reader.long_bytes("inline content", reader.remaining())?.to_vec()),
            _ => return Err(reader.refuse("content kind")),
        };
        if offset.checked_add(piece.length()).is_none() {
            return Err(reader.refuse("extent offset"));
        }
        content.push((offset, piece));
    }
    Ok(Change::Write { size, mode, modified, changed, content })
}
