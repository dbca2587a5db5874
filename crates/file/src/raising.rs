//! Content that lies on fewer disks than its file has come to ask for: who is at it, and whether somebody left something.
//!
//! I-167 From before the first record of a policy until all content follows it the roots say that some may not ([`Roots::is_raising`]). Whoever sets
//!       policies brings the content of those files there himself. What he leaves, for a crash, an error, a close, a snapshot or a clone came in between,
//!       is done in the background: by a look at all files, of snapshots too.
//!
//! [`Roots::is_raising`]: crate::format::Roots::is_raising
//! Not here: how it is brought there, and who looks at all files (`raiser`).

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Files that a report names.
const NAMED_MAX: usize = 10;

/// What was brought to as many disks as is asked for, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyReport {
    /// Files and directories.
    pub files: u64,
    /// Chunks that were stored anew.
    pub raised: u64,
    /// Files of which some content is where it was, and parts of the catalog that nobody can read.
    pub failed: u64,
    /// Why, of the first of them.
    pub problems: Vec<String>,
}

impl PolicyReport {
    pub(crate) fn fail(&mut self, what: impl Display, why: impl Display) {
        self.failed += 1;
        if self.problems.len() < NAMED_MAX {
            self.problems.push(format!("{what}: {why}"));
        }
    }
}

/// Who brings content to more disks.
#[derive(Default)]
pub(crate) struct Raising {
    /// Held while it is decided what the roots say.
    pub(crate) work: tokio::sync::Mutex<()>,
    /// Held by who does what others left.
    pub(crate) walk: tokio::sync::Mutex<()>,
    pub(crate) active: AtomicUsize,
    /// Somebody left something.
    pub(crate) is_left: AtomicBool,
    /// The roots may say on some disk that nothing is.
    pub(crate) is_uncertain: AtomicBool,
    /// What could be done last about what was left.
    pub(crate) last: Mutex<PolicyReport>,
}

/// Somebody changes policies, or brings content there. Who drops it leaves something (`FileSystem::end_raise` ends it).
#[must_use]
pub(crate) struct Raise<'a> {
    raising: &'a Raising,
    pub(crate) is_done: bool,
    /// The number of the next snapshot or clone at the beginning: those that come later may take content along as it was.
    pub(crate) views: u32,
}

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        // In this order: who finds that nobody is at it finds what was left.
        if !self.is_done {
            self.raising.is_left.store(true, Ordering::SeqCst);
        }
        self.raising.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Raising {
    /// As the roots say that were found.
    pub(crate) fn new(is_left: bool) -> Raising {
        Raising { is_left: AtomicBool::new(is_left), ..Raising::default() }
    }

    /// Whether there is something to do, or to say.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_left.load(Ordering::SeqCst) || self.is_uncertain.load(Ordering::SeqCst)
    }

    /// Somebody is at it from now on; the roots say so.
    pub(crate) fn begin(&self, views: u32) -> Raise<'_> {
        self.active.fetch_add(1, Ordering::SeqCst);
        Raise { raising: self, is_done: false, views }
    }
}
