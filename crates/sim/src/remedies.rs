//! What `hydrafs fsck --repair` does: a check, what it proposes, and again until there is nothing left to do.
//!
//! Not here: what must be true after it (`run/between`, `damage`).

use std::collections::BTreeSet;
use std::sync::Arc;

use file::{Depth, FileSystem, Remedy};

/// Rounds of checking and repairing after which there must be nothing left to do.
const REPAIR_ROUNDS_MAX: usize = 4;

/// What a check proposes, or why there is none. Nothing while a disk is missing (F-4), however much there is to tell.
pub(crate) async fn open_remedies(system: &Arc<FileSystem>) -> Result<BTreeSet<Remedy>, String> {
    let is_degraded = system.refuse_degraded().is_err();
    let store = system.check_store(Depth::Deep, &|_, _| {}).await;
    let files = system.check_files(&|_| {}).await.map_err(|error| format!("cannot check: {error}"))?;
    Ok(store.remedies.into_iter().chain(files.remedies).filter(|_| !is_degraded).collect())
}

/// Repairs until there is nothing left to do. Gives what was done, and what did not work.
pub(crate) async fn repair(system: &Arc<FileSystem>) -> (Vec<Remedy>, Vec<String>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for _ in 0..REPAIR_ROUNDS_MAX {
        let remedies = match open_remedies(system).await {
            Ok(remedies) => remedies,
            Err(error) => {
                failed.push(error);
                return (done, failed);
            }
        };
        if remedies.is_empty() {
            return (done, failed);
        }
        for remedy in remedies {
            let outcome = match remedy {
                Remedy::Trees { gives_up } => system.repair_files(gives_up, (0, 0)).await.map(drop),
                remedy => system.repair_store(remedy).await.map(drop),
            };
            if let Err(error) = outcome {
                failed.push(format!("cannot {remedy}: {error}"));
            }
            done.push(remedy);
        }
    }
    let left = system.check_files(&|_| {}).await.map_or(Vec::new(), |report| report.problems);
    failed.push(format!("there is no end to it: {done:?}, {left:?}"));
    (done, failed)
}
