//! Interrupts: a caller waiting for a lock got a signal and wants to stop waiting.
//!
//! Only SETLKW is given up; every other request is worth finishing. An INTERRUPT may be read by one thread before
//! another has parked the request it is about, so the last few numbers that fitted nothing are remembered and looked
//! up when a request is parked. Numbers are never used twice by the kernel.

use crate::lock::lock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// Numbers of unmatched interrupts kept. An interrupt outruns its request by microseconds; this many never come in one.
const EARLY_COUNT_MAX: usize = 256;

/// Where a waiting request can be cancelled.
pub(crate) trait Cancel: Send + Sync {
    /// Drops the future of request `unique`, if it is still waiting.
    fn cancel(self: Arc<Self>, unique: u64);
}

/// The waiting requests of a session that can be interrupted.
#[derive(Default)]
pub(crate) struct Interrupts {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    waiting: BTreeMap<u64, Arc<dyn Cancel>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    /// A request has been parked; it is cancelled at once if its interrupt is already here.
    pub(crate) fn wait(&self, unique: u64, target: Arc<dyn Cancel>) {
        let mut table = lock(&self.table);
        match table.early.iter().position(|early| *early == unique) {
            None => drop(table.waiting.insert(unique, target)),
            Some(index) => {
                table.early.remove(index);
                drop(table);
                target.cancel(unique);
            }
        }
    }

    /// A parked request has ended.
    pub(crate) fn end(&self, unique: u64) {
        let target = lock(&self.table).waiting.remove(&unique);
        drop(target);
    }

    /// The kernel says request `unique` was interrupted.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut table = lock(&self.table);
        match table.waiting.remove(&unique) {
            Some(target) => {
                drop(table);
                target.cancel(unique);
            }
            None => {
                if table.early.len() == EARLY_COUNT_MAX {
                    table.early.pop_front();
                }
                table.early.push_back(unique);
            }
        }
    }

    /// The session ends: nobody waits for a lock any more.
    pub(crate) fn interrupt_all(&self) {
        let waiting = std::mem::take(&mut lock(&self.table).waiting);
        for (unique, target) in waiting {
            target.cancel(unique);
        }
    }
}
