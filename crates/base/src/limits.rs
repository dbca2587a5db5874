//! Every limit of the system in one place, with its unit in its name and its reason beside it.

/// Longest name of a directory entry. POSIX `NAME_MAX` on Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest symbolic link target: `PATH_MAX` less its terminating zero.
pub const LINK_TARGET_BYTES_MAX: usize = 4095;
/// Longest extended attribute name (`XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest extended attribute value (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 * 1024;
/// All attributes of one file together, names and values. The kernel lists at most 64 KiB of names; the values
/// are held as one chunk, so they share its limit.
pub const XATTR_TOTAL_BYTES_MAX: usize = 512 * 1024;
/// Largest file: offsets must fit a signed 64-bit `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Most hard links of one inode. ext4 allows 65,000, XFS 2^31; the field is 32 bits wide.
pub const LINKS_MAX: u32 = 1 << 30;
/// Largest chunk of content, uncompressed. Content-defined cutting makes a quarter of it at most.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;
/// Largest journal frame. One frame holds all records of one operation; inline data is bounded well below.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Content of one unit of a batch: it is in memory until all of it is stored, and half a second of a fast disk.
pub const BATCH_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Deepest tree that is followed. With nodes of ~100 entries 12 levels hold more keys than 64 bits have;
/// a deeper one is a hostile or broken image.
pub const TREE_LEVELS_MAX: u8 = 12;

// A chunk's length must fit the 32-bit fields of packs and extents.
const _: () = assert!(CHUNK_BYTES_MAX < u32::MAX as usize);
// A frame must be able to carry the largest attribute value with its names.
const _: () = assert!(XATTR_TOTAL_BYTES_MAX + 4096 < FRAME_BYTES_MAX);
