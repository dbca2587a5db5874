//! Trees that have lost their name, and are removed behind.
//!
//! Who removes a directory with everything below it waits for one record: the directory has no link any more. It is an unlinked file that
//! has entries then, which the catalog's list of unlinked files has too, so it is known after a crash. What is in it goes in the background, a
//! frame of names at a time; a directory in it loses its name in turn, and waits here with what it has.
//!
//! Not here: how they are removed (`batch/remove`), who must not come to them any more (`directory`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::id::FileId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::failure::FileError;

/// Hears of files that have a link less by what nobody asked for at this moment. False: it is not there any more.
pub(crate) type HearOfLinks = Arc<dyn Fn(FileId) -> bool + Send + Sync>;

/// Directories without a name that have entries.
#[derive(Default)]
pub(crate) struct Removals {
    /// With the cookie to go on after. The last one is next: so they are never more than one way down has.
    waiting: Mutex<Vec<(FileId, u64)>>,
    /// Those that cannot be read, and why; tried again at the next opening.
    failed: Mutex<Vec<(FileId, FileError)>>,
    /// Clones that ended with what they had.
    ended: AtomicUsize,
    /// How many wait, at a glance.
    count: AtomicUsize,
    /// Held by who removes.
    pub(crate) work: tokio::sync::Mutex<()>,
    pub(crate) wanted: Notify,
    /// Who waits for the room.
    hurried: AtomicUsize,
    /// Somebody has come to wait for it.
    hurry: Notify,
    /// Who keeps counts of links.
    pub(crate) hear: Mutex<Hearing>,
}

/// Somebody waits for the room, until dropped with the request that does.
pub(crate) struct Hurry<'a>(&'a Removals);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Somebody hears, or nobody does yet, or any more: an opening goes on with what was removed before it.
#[derive(Default)]
pub(crate) struct Hearing {
    pub(crate) hear: Option<HearOfLinks>,
    /// Of what is in use, what nobody has heard of.
    pub(crate) missed: BTreeSet<FileId>,
}

impl Removals {
    pub(crate) fn add(&self, directory: FileId) {
        self.change(|waiting| waiting.push((directory, 0)));
        self.wanted.notify_one();
    }

    /// The one that is next, and where to go on in it.
    pub(crate) fn next(&self) -> Option<(FileId, u64)> {
        self.waiting.lock().last().copied()
    }

    /// Where to go on in one that waits.
    pub(crate) fn go_on(&self, directory: FileId, after: u64) {
        self.change(|waiting| {
            if let Some(place) = waiting.iter_mut().rev().find(|(file, _)| *file == directory) {
                place.1 = after;
            }
        });
    }

    /// It has no entry any more.
    pub(crate) fn end(&self, directory: FileId) {
        self.change(|waiting| {
            if let Some(place) = waiting.iter().rposition(|(file, _)| *file == directory) {
                waiting.remove(place);
            }
        });
    }

    /// It cannot be read.
    pub(crate) fn put_aside(&self, directory: FileId, why: FileError) {
        self.failed.lock().push((directory, why));
        self.end(directory);
    }

    /// Those that were put aside wait again.
    pub(crate) fn try_again(&self) {
        let failed = std::mem::take(&mut *self.failed.lock());
        failed.into_iter().for_each(|(directory, _)| self.add(directory));
    }

    /// Whether something of a branch cannot be removed because it is lost.
    pub(crate) fn has_lost(&self, branch: u32) -> bool {
        self.failed.lock().iter().any(|(file, error)| file.branch == branch && error.is_loss())
    }

    /// A branch is no more.
    pub(crate) fn forget(&self, branch: u32) {
        self.failed.lock().retain(|(file, _)| file.branch != branch);
        self.change(|waiting| waiting.retain(|(file, _)| file.branch != branch));
    }

    /// A clone went with everything that it had.
    pub(crate) fn note_ended(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn change(&self, change: impl FnOnce(&mut Vec<(FileId, u64)>)) {
        let mut waiting = self.waiting.lock();
        change(&mut waiting);
        self.count.store(waiting.len(), Ordering::SeqCst);
    }

    /// Whether nobody can be in a tree that has lost its name.
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
            && self.ended.load(Ordering::SeqCst) == 0
            && self.failed.lock().is_empty()
    }

    pub(crate) fn has_any_of(&self, branch: u32) -> bool {
        let is_of = |file: &FileId| file.branch == branch;
        self.waiting.lock().iter().any(|(file, _)| is_of(file))
            || self.failed.lock().iter().any(|(file, _)| is_of(file))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// From now on somebody waits for the room.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        self.hurried.fetch_add(1, Ordering::SeqCst);
        self.hurry.notify_waiters();
        Hurry(self)
    }

    pub(crate) fn are_hurried(&self) -> bool {
        self.hurried.load(Ordering::SeqCst) > 0
    }

    /// Returns when somebody waits for the room.
    pub(crate) async fn until_hurried(&self) {
        loop {
            let mut hurry = std::pin::pin!(self.hurry.notified());
            hurry.as_mut().enable();
            if self.are_hurried() {
                return;
            }
            hurry.await;
        }
    }

    /// Those that cannot be read, and why.
    pub(crate) fn failures(&self) -> Vec<(FileId, String)> {
        self.failed.lock().iter().map(|(file, error)| (*file, error.to_string())).collect()
    }
}
