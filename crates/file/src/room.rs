//! Room in memory: the pools that changes draw on.
//!
//! Two sets of them. The *buffer* has bytes that were accepted, and files that have such; flushes make room in it. The *records* have the
//! journal's bytes and the changed files that no commit covers; commits make room there. What makes room is not admitted, and waits for
//! nobody who is: a flush logs as much as the buffer may hold, beyond what changes may draw, and a commit logs what it leaves
//! out alone (docs/decisions/0018-pools.md).
//!
//! And the claims to room on the disks, which are of content that has not arrived in memory.
//!
//! Not here: who draws on them, and who waits (`admission`).

use std::sync::Arc;

use parking_lot::Mutex;
use platform::pools::Pools;

/// Pools of the write buffer: bytes that were accepted and no record has, and the files that have such.
pub(crate) const BYTES: usize = 0;
pub(crate) const FILES: usize = 1;
/// Pools of the records: bytes of the journal and changed files that no commit covers.
pub(crate) const LOGGED: usize = 0;
pub(crate) const CHANGED: usize = 1;
/// Lines before the buffer: of large writes, which streams make, and of small ones, which somebody is about to sync.
pub(crate) const LARGE: usize = 0;
pub(crate) const SMALL: usize = 1;
/// The part of the buffer that is for small writes alone.
const SMALL_PART: u64 = 8;
/// Lines before the records: of changes that ask for room on the disks, and of those that do not, removals among them.
pub(crate) const ASKING: usize = 0;
pub(crate) const MODEST: usize = 1;

pub(crate) type Buffer = Arc<Pools<2, 2>>;
pub(crate) type Records = Arc<Pools<2, 2>>;

/// Files that a change changes at most.
pub(crate) const CHANGE_FILES: u64 = 4;
/// Commits that may be due at once before changes wait.
pub(crate) const COMMITS_AHEAD: u64 = 2;
/// The same for changes that ask for no room.
const COMMITS_AHEAD_OF_MODEST: u64 = 3;
/// The same while commits fail: what they leave to do takes memory.
pub(crate) const FAILING_COMMITS_AHEAD: u64 = 8;

pub(crate) fn buffer(bytes: u64, files: usize) -> Buffer {
    let totals = [bytes, files as u64];
    Pools::new([totals.map(|total| total - total / SMALL_PART), totals])
}

/// For commits that are due at so many bytes or files.
pub(crate) fn records(bytes: u64, files: usize) -> Records {
    let totals = |commits: u64| [commits * bytes, commits * files as u64 + CHANGE_FILES];
    Pools::new([totals(COMMITS_AHEAD), totals(COMMITS_AHEAD_OF_MODEST)])
}

/// Bytes that the disks are to have room for, of those who were admitted and whose content has not arrived: it is neither in the buffer nor stored.
#[derive(Default)]
pub(crate) struct Claims(Arc<Mutex<u64>>);

/// One of them, until its content has arrived.
#[must_use]
pub(crate) struct Claim {
    claims: Arc<Mutex<u64>>,
    bytes: u64,
}

impl Claims {
    /// Claims so many bytes if there is room, by what is claimed before. Both at once: two do not find the room of one.
    pub(crate) fn claim(&self, bytes: u64, is_room: impl FnOnce(u64) -> bool) -> Option<Claim> {
        let mut claimed = self.0.lock();
        if !is_room(*claimed) {
            return None;
        }
        *claimed += bytes;
        Some(Claim { claims: Arc::clone(&self.0), bytes })
    }

    pub(crate) fn bytes(&self) -> u64 {
        *self.0.lock()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.claims.lock() -= self.bytes;
    }
}
