//! Files that are written around the kernel's cache, and read or written through it.
//!
//! Before a direct write (O_DIRECT) the kernel drops the cached pages of its range, and after it again: a read may have put the old content
//! there meanwhile, and so may another's write through the cache that was before it. Not so after an asynchronous one (libaio, io_uring): the call returns when the write has begun, and nobody drops pages
//! when it ends (Linux 6.18: `generic_file_direct_write` in mm/filemap.c, `fuse_aio_complete` in fs/fuse/file.c). Such a page would show
//! old content for as long as it is cached. So the daemon has them dropped before it answers the write.
//!
//! Which write is asynchronous the kernel does not say, and dropping costs a hand-over: it is done for files that were also read or written
//! through the cache of late. A database that reads and writes around the cache alone pays nothing.
//!
//! I-104 A read or write through the cache takes down that it happens before it looks at the content or changes it, and a direct write asks when
//!       its own content is there. So the write knows of everybody whose pages have the old content, and has them dropped before it is
//!       answered. It waits no longer than a second: who holds such a page may wait for a place among the kernel's requests, and all of those
//!       may be such writes'. Pages that are held then are dropped as soon as they are not.
//!
//! Not known: who maps a file that was opened with O_DIRECT. Its page faults look like direct reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long before a direct write arrives here the kernel may have begun it, and dropped pages: requests wait for a place in its queues while
/// others wait for disks, each for two minutes at most.
const ON_THE_WAY: Duration = Duration::from_secs(300);
/// Files that share a place count as one: a write may then drop pages for nothing.
const PLACES: usize = 4096;

/// When files were last read or written through the kernel's cache.
pub(crate) struct Around {
    /// By a file's number: milliseconds of the daemon's clock, and one more; 0 is never.
    used: Box<[AtomicU64]>,
}

impl Around {
    /// `since`: when there was the last use that nobody here took down, if there was any.
    pub(crate) fn new(since: Option<Duration>) -> Around {
        Around { used: (0..PLACES).map(|_| AtomicU64::new(since.map_or(0, moment))).collect() }
    }

    /// This file is read or written through the cache: to be called before its content is looked at or changed. `now`: of the daemon's clock.
    pub(crate) fn uses_cache(&self, number: u64, now: Duration) {
        self.place(number).fetch_max(moment(now), Ordering::SeqCst);
    }

    /// Whether cached pages may show what was there before a direct write: to be called when its content is there. `arrived`: when it did.
    pub(crate) fn has_old_pages(&self, number: u64, arrived: Duration) -> bool {
        let used = self.place(number).load(Ordering::SeqCst);
        used != 0 && moment(arrived).saturating_sub(used) < moment(ON_THE_WAY)
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        // Files made together have numbers in a row.
        &self.used[(number ^ (number >> 32)) as usize % PLACES]
    }
}

fn moment(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Around, ON_THE_WAY};

    #[test]
    fn who_was_used_through_the_cache_of_late_has_old_pages() {
        let around = Around::new(None);
        let read = Duration::from_secs(1000);
        assert!(!around.has_old_pages(1, Duration::ZERO) && !around.has_old_pages(1, read), "never read");
        around.uses_cache(1, read);
        assert!(around.has_old_pages(1, read) && !around.has_old_pages(2, read));
        // A read that another thread began earlier.
        around.uses_cache(1, Duration::ZERO);
        assert!(around.has_old_pages(1, read + ON_THE_WAY / 2));
        assert!(!around.has_old_pages(1, read + ON_THE_WAY * 2));
        around.uses_cache(1, read + ON_THE_WAY * 2);
        assert!(around.has_old_pages(1, read + ON_THE_WAY * 2));
    }

    #[test]
    fn of_what_was_read_before_a_restart_nothing_is_known() {
        let around = Around::new(Some(Duration::ZERO));
        assert!(around.has_old_pages(7, ON_THE_WAY / 2) && !around.has_old_pages(7, ON_THE_WAY * 2));
    }
}
