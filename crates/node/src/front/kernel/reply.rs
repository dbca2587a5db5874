//! What a call came to, until it is written into the exchange: calls borrow names from the request, which must end first.

use std::time::Duration;

use file::FileError;
use fuse::{Errno, Exchange, StatFs};

/// An answer that is made from what a call gave. Bytes that are written into the reply room have their own way.
pub(super) enum Reply {
    Empty,
    Entry(fuse::Entry),
    Created(fuse::Entry),
    Attributes(fuse::Attributes, Duration),
    StatX(Box<fuse::StatX>, Duration),
    Opened(u32),
    Written(usize),
    Copied(u64),
    Seek(u64),
    Data(usize),
    Bytes(bytes::Bytes),
    Xattr(Vec<u8>),
    StatFs(StatFs),
}

/// A call that did not succeed: what the file layer says, or what was refused here.
pub(super) enum Refusal {
    File(FileError),
    Errno(Errno),
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Refusal {
        Refusal::File(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Errno(errno)
    }
}

pub(super) type Answer = Result<Reply, Refusal>;

impl Reply {
    pub(super) fn give(self, exchange: &mut Exchange) {
        match self {
            Reply::Empty => exchange.answer_empty(),
            Reply::Entry(entry) => exchange.answer_entry(&entry),
            Reply::Created(entry) => exchange.answer_created(&entry, 0, fuse::flags::opened::KEEP_CACHE),
            Reply::Attributes(attributes, valid) => exchange.answer_attributes(&attributes, valid),
            Reply::StatX(stat, valid) => exchange.answer_statx(&stat, valid),
            Reply::Opened(flags) => exchange.answer_open(0, flags, 0),
            Reply::Written(bytes) => {
                exchange.answer_written(u32::try_from(bytes).expect("a request's length has 32 bits"));
            }
            Reply::Copied(bytes) => exchange.answer_copied(bytes),
            Reply::Seek(offset) => exchange.answer_seek(offset),
            Reply::Data(bytes) => exchange.answer_data(bytes),
            Reply::Bytes(bytes) => exchange.answer_bytes(&bytes),
            Reply::Xattr(bytes) => exchange.answer_xattr(&bytes),
            Reply::StatFs(statfs) => exchange.answer_statfs(&statfs),
        }
    }
}
