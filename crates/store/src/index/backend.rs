//! redb's storage on a file of the platform, real or simulated.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use platform::disk::{DiskError, DiskErrorKind, File};
use redb::StorageBackend;

/// The first failure of the file since it was opened: redb's errors keep only its words.
pub(super) type Failure = Arc<Mutex<Option<DiskError>>>;

/// The adapter. redb cannot wait, so it uses the blocking file beneath.
pub(super) struct Backend {
    pub(super) file: File,
    pub(super) failure: Failure,
}

impl Backend {
    fn noted<T>(&self, result: Result<T, DiskError>) -> Result<T, io::Error> {
        result.map_err(|error| {
            self.failure.lock().get_or_insert_with(|| error.clone());
            io_error(error)
        })
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index on {}", self.file.path())
    }
}

fn io_error(error: DiskError) -> io::Error {
    let kind = match error.kind {
        DiskErrorKind::Short => io::ErrorKind::UnexpectedEof,
        DiskErrorKind::Full => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.noted(self.file.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let count = self.noted(self.file.raw().read_at(offset, out))?;
        if count == out.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        self.noted(self.file.set_length(length))
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.noted(self.file.raw().sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.noted(self.file.raw().write_at(offset, data))
    }
}
