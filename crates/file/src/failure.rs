//! How an operation on files fails, shaped by the errno that a caller will see. The numbers themselves are the front end's.

use std::fmt;

use platform::disk::DiskErrorKind;
use store::StoreError;

/// Why an operation did not happen.
#[derive(Clone, Debug)]
pub enum FileError {
    /// No such file or directory (ENOENT).
    NoEntry,
    /// It exists already (EEXIST).
    Exists,
    /// Not a directory (ENOTDIR).
    NotDirectory,
    /// Is a directory (EISDIR).
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    NotEmpty,
    /// A name or target beyond its limit (ENAMETOOLONG).
    NameTooLong,
    /// The arguments make no sense (EINVAL).
    Invalid(&'static str),
    /// Not permitted on this kind of file (EPERM).
    NotPermitted(&'static str),
    /// No such extended attribute (ENODATA).
    NoAttribute,
    /// An attribute or its list is over its limit (E2BIG / ENOSPC).
    AttributeTooLarge,
    /// Beyond the largest file (EFBIG).
    FileTooLarge,
    /// No data or hole there (ENXIO).
    NoSuchOffset,
    /// Too many links (EMLINK).
    TooManyLinks,
    /// The disks are full (ENOSPC).
    NoSpace,
    /// A snapshot or a store that turned read-only (EROFS).
    ReadOnly,
    /// Not supported here (EOPNOTSUPP).
    NotSupported(&'static str),
    /// Across views, or clones (EXDEV).
    CrossView,
    /// The file is gone for good (ESTALE).
    Stale,
    /// Somebody needs it as it is (EBUSY).
    Busy(&'static str),
    /// The store failed: bytes are lost, corrupt, or unknown (EIO).
    Store(StoreError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::NoEntry => f.write_str("no such file or directory"),
            FileError::Exists => f.write_str("file exists"),
            FileError::NotDirectory => f.write_str("not a directory"),
            FileError::IsDirectory => f.write_str("is a directory"),
            FileError::NotEmpty => f.write_str("directory not empty"),
            FileError::NameTooLong => f.write_str("name too long"),
            FileError::Invalid(what) => write!(f, "invalid argument: {what}"),
            FileError::NotPermitted(what) => write!(f, "not permitted: {what}"),
            FileError::NoAttribute => f.write_str("no such extended attribute"),
            FileError::AttributeTooLarge => f.write_str("extended attributes too large"),
            FileError::FileTooLarge => f.write_str("file too large"),
            FileError::NoSuchOffset => f.write_str("no such offset"),
            FileError::TooManyLinks => f.write_str("too many links"),
            FileError::NoSpace => f.write_str("no space left on the disks of this node"),
            FileError::ReadOnly => f.write_str("read-only"),
            FileError::NotSupported(what) => write!(f, "not supported: {what}"),
            FileError::CrossView => f.write_str("source and target lie in different views or clones"),
            FileError::Stale => f.write_str("the file is gone"),
            FileError::Busy(who) => write!(f, "busy: {who}"),
            FileError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {}

/// I-101: bytes that are damaged or gone are lost, a disk that gives no answer is not.
pub(crate) fn is_loss(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt { .. } | StoreError::Absent { .. })
}

/// Whether this is a loss, which may be given up; a disk that gives no answer stays an error (I-101).
pub(crate) fn lost(error: StoreError) -> Result<(), StoreError> {
    if is_loss(&error) { Ok(()) } else { Err(error) }
}

impl FileError {
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, FileError::Store(error) if is_loss(error))
    }

    /// Whether what was put since some moment may be lost, and is to be put again.
    pub(crate) fn is_dropped(&self) -> bool {
        matches!(self, FileError::Store(StoreError::Dropped { .. }))
    }

    /// Whether what gave this error cannot be read, now or ever.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, FileError::Store(error) if is_loss(error) || matches!(error, StoreError::Disk(_)))
    }
}

impl From<StoreError> for FileError {
    fn from(error: StoreError) -> FileError {
        match error {
            StoreError::Full { .. } => FileError::NoSpace,
            // Met in the middle of something, the index for one: full all the same.
            StoreError::Disk(error) if error.kind == DiskErrorKind::Full => FileError::NoSpace,
            error => FileError::Store(error),
        }
    }
}
