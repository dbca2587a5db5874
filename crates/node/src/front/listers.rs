//! Who lists directories, and wants attributes with the names.
//!
//! Whenever a listing begins the kernel asks for attributes too (READDIRPLUS). For `ls -l`, `rm -r` or tar they save a LOOKUP of each name;
//! for `find`, which wants names, they are inodes read from the disk for nobody, 100 for each name that leads on. So a caller's first listing
//! has the attributes of directories alone, for a walk goes there next; if it then looks up a file in the directory that it listed, its
//! listings have all attributes from then on.
//!
//! A guess: forgetting a caller, or taking another of the same number for it, costs time and nothing else.
//!
//! Not here: what a listing looks like (`kernel/listing`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use file::Node;
use parking_lot::Mutex;

/// Callers, and listings, that are remembered.
const REMEMBERED_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Listers {
    memory: Mutex<Memory>,
    /// Whether a listing without attributes is remembered: most look-ups then need not take the lock.
    is_watching: AtomicBool,
}

#[derive(Default)]
struct Memory {
    /// Listings without attributes, and who made them.
    plain: VecDeque<(Node, u32)>,
    /// Who wants attributes.
    curious: VecDeque<u32>,
}

impl Listers {
    /// Whether a listing of `directory` by the process `caller` should have all attributes.
    pub(crate) fn wants_attributes(&self, directory: Node, caller: u32) -> bool {
        // The kernel tells 0 of who is in a namespace that we do not see.
        if caller == 0 {
            return true;
        }
        let mut memory = self.memory.lock();
        if memory.curious.contains(&caller) {
            return true;
        }
        if !memory.plain.contains(&(directory, caller)) {
            remember(&mut memory.plain, (directory, caller));
        }
        self.is_watching.store(true, Ordering::Relaxed);
        false
    }

    /// A file was looked up in `directory`: whoever listed it, or works for who did, wants attributes.
    pub(crate) fn looked_up(&self, directory: Node) {
        if !self.is_watching.load(Ordering::Relaxed) {
            return;
        }
        let mut memory = self.memory.lock();
        let Memory { plain, curious } = &mut *memory;
        plain.retain(|(listed, caller)| {
            let is_other = *listed != directory;
            if !is_other && !curious.contains(caller) {
                remember(curious, *caller);
            }
            is_other
        });
        let is_watching = !plain.is_empty();
        self.is_watching.store(is_watching, Ordering::Relaxed);
    }
}

fn remember<T>(list: &mut VecDeque<T>, value: T) {
    if list.len() == REMEMBERED_MAX {
        list.pop_front();
    }
    list.push_back(value);
}

#[cfg(test)]
mod tests {
    use base::id::FileId;
    use file::Node;

    use super::{Listers, REMEMBERED_MAX};

    fn directory(number: u64) -> Node {
        Node::live(FileId::main(number))
    }

    #[test]
    fn who_looks_up_what_it_listed_gets_attributes_from_then_on() {
        let listers = Listers::default();
        assert!(!listers.wants_attributes(directory(1), 70) && !listers.wants_attributes(directory(1), 71));
        listers.looked_up(directory(2));
        assert!(!listers.wants_attributes(directory(2), 70), "another directory");
        listers.looked_up(directory(1));
        assert!(listers.wants_attributes(directory(3), 70) && listers.wants_attributes(directory(1), 71));
        assert!(!listers.wants_attributes(directory(1), 72), "it never looked anything up");
        assert!(listers.wants_attributes(directory(1), 0), "nobody knows who");
    }

    #[test]
    fn the_longest_known_are_forgotten() {
        let listers = Listers::default();
        for caller in 1..=u32::try_from(REMEMBERED_MAX).unwrap() + 1 {
            assert!(!listers.wants_attributes(directory(u64::from(caller)), caller));
            listers.looked_up(directory(u64::from(caller)));
        }
        assert!(!listers.wants_attributes(directory(1), 1) && listers.wants_attributes(directory(2), 2));
    }
}
