//! Files that nobody uses any more: those that have no name either end behind, one after the other.
//!
//! The kernel gives back what it has of files in masses, when a program ends that had many of them open, and it waits for no answer. Where something
//! is to be waited for, a tree that is read or a commit, they wait here as numbers, and not each with a task of its own.
//!
//! Not here: which file is one (`file::FileSystem::end_unused`).

use std::collections::VecDeque;
use std::sync::Arc;

use file::{FileSystem, Node};
use parking_lot::Mutex;
use platform::Platform;

use super::failures::Failures;

/// Files that wait.
#[derive(Default)]
pub(crate) struct Unused(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    nodes: VecDeque<Node>,
    /// Whether a task is at it.
    is_worked: bool,
}

impl Unused {
    /// One more.
    pub(crate) fn add(
        self: &Arc<Self>,
        node: Node,
        platform: &Platform,
        system: &Arc<FileSystem>,
        failures: &Arc<Failures>,
    ) {
        {
            let mut waiting = self.0.lock();
            waiting.nodes.push_back(node);
            if std::mem::replace(&mut waiting.is_worked, true) {
                return;
            }
        }
        let (unused, platform) = (Arc::clone(self), platform.clone());
        let (system, failures) = (Arc::clone(system), Arc::clone(failures));
        let tasks = Arc::clone(&platform.tasks);
        tasks.aside(Box::pin(async move {
            while let Some(node) = unused.next(system.is_ending()) {
                if let Err(error) = system.end_unused(node).await {
                    failures.note(&platform, || format!("cannot end {}: {error}", node.file));
                }
            }
        }));
    }

    /// The next, unless the file system `is_ending`: then they are for its next opening.
    fn next(&self, is_ending: bool) -> Option<Node> {
        let mut waiting = self.0.lock();
        if is_ending {
            waiting.nodes = VecDeque::new();
        }
        let next = waiting.nodes.pop_front();
        if next.is_none() {
            *waiting = Waiting::default();
        }
        next
    }
}
