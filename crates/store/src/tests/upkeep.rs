//! Each call to a disk fails once, by itself, whichever it is (M-9), while a store does what it does for itself: packs are cut into fragments, what
//! is gone or has rotted is made again, everything is scrubbed, checked and repaired, dead packs go, and a disk is drained and removed.
//!
//! Whatever comes of that: another opening has all content, can bring everything into order, and then finds nothing wrong.
//!
//! Not here: the same of puts, commits and openings (`calls`), several failures at a time (crate `sim`).

use std::time::Duration;

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::disk::DiskErrorKind;
use platform::sim::seeds_asked_for;

use super::calls::{KINDS, each_call};
use super::fragments::{cut_all, paths_of_fragments};
use super::{Machine, content, hurried, options, reclaim};
use crate::{Class, Depth, Erasure, Options, Store, StoreError};

const DISKS: usize = 4;
/// The one that goes.
const GOES: usize = 3;

fn some(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 30_000)).collect()
}

fn open(machine: &Machine) -> Result<std::sync::Arc<Store>, StoreError> {
    let options = Options { fragments: Erasure::new(2, 1), goes_without_disks: true, ..options() };
    machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).map(|(store, _)| store)
}

async fn put(store: &Store, contents: &[Bytes], roots: &[u8]) -> Result<(), StoreError> {
    store.put_many(Class::Data, contents.to_vec()).await?;
    store.put(Class::Metadata, roots).await?;
    store.commit(store.moment(), roots, store.log(b"frame")).await
}

fn end(machine: &Machine, keeps_power: bool) {
    // What has not failed until now is not to fail in what follows.
    machine.world.fail_at(u64::MAX, DiskErrorKind::Failed);
    if keeps_power { machine.world.restart() } else { machine.world.crash() }
}

/// All of it, whatever fails.
async fn take_care(store: &Store, is_live: &(dyn Fn(&ChunkAddress) -> bool + Sync)) {
    cut_all(store).await;
    store.scrub(Duration::ZERO, &hurried(store), &|_, _| {}).await;
    for remedy in store.check(Depth::Deep, &|_, _| {}).await.remedies {
        let _ = store.repair(remedy).await;
    }
    let _ = reclaim(store, is_live).await;
    if store.drain_disk(GOES as u64, true).await.is_err() {
        return;
    }
    cut_all(store).await;
    let _ = store.commit(store.moment(), b"drained", store.last_logged()).await;
    let _ = store.renew_root().await;
    if let Ok(gone) = store.remove_disk(GOES as u64, false).await {
        let _ = gone.wipe();
    }
}

/// How many operations it was. `fails`: which of them fails, and how.
fn upkeep(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> u64 {
    let machine = Machine::new(seed, DISKS, 64 << 20);
    let (first, later) = (some(0..160), some(200..230));
    let store = open(&machine).unwrap();
    machine.run(async {
        put(&store, &first, b"first").await.unwrap();
        cut_all(&store).await;
        store.close().await.unwrap();
    });
    // A fourth goes; of every other pack one fragment is gone or has rotted.
    let goes: Vec<ChunkAddress> = first[..40].iter().map(|content| store.key().address(content)).collect();
    drop(store);
    end(&machine, true);
    let fragments = paths_of_fragments(&machine, 1);
    assert!(fragments.len() > 1, "{fragments:?}");
    for (number, (path, bytes)) in fragments.iter().enumerate() {
        match number % 4 {
            0 => assert!(machine.disks[1].remove(path)),
            2 => machine.disks[1].flip_bit(path, bytes - 5000, 3),
            _ => {}
        }
    }
    let begun = machine.world.operations();
    if let Some((number, kind)) = fails {
        machine.world.fail_at(begun + number, kind);
    }
    let mut is_put = false;
    if let Ok(store) = open(&machine) {
        machine.run(async {
            is_put = put(&store, &later, b"later").await.is_ok();
            take_care(&store, &|address| !goes.contains(address)).await;
            let _ = store.close().await;
        });
    }
    let done = machine.world.operations() - begun;
    end(&machine, fails.is_some_and(|(number, _)| number % 2 == 0));
    let store = open(&machine).unwrap();
    machine.run(async {
        let lives = first[40..].iter().chain(later.iter().filter(|_| is_put));
        let expect_all = async |when: &str| {
            for content in lives.clone() {
                let found = store.get(Class::Data, &store.key().address(content)).await;
                assert!(found.as_ref().is_ok_and(|found| found == content), "{when}: {found:?}");
            }
        };
        expect_all("opened").await;
        for _ in 0..3 {
            for remedy in store.check(Depth::Deep, &|_, _| {}).await.remedies {
                store.repair(remedy).await.unwrap();
            }
            cut_all(&store).await;
        }
        expect_all("in order").await;
        let left = store.check(Depth::Deep, &|_, _| {}).await.problems;
        // What was set aside nobody removes.
        assert!(left.iter().all(|problem| problem.code == "HF0017"), "{left:?}");
        store.close().await.unwrap();
    });
    done
}

#[test]
fn any_call_of_the_upkeep_may_fail() {
    for (kind, seed) in KINDS.into_iter().zip(0..) {
        each_call((upkeep, 500), kind, seed..seed + 1, 61);
    }
}

/// More calls of each seed, by hand.
#[test]
fn put_your_seed_here() {
    for kind in KINDS {
        each_call((upkeep, 500), kind, seeds_asked_for(), 5);
    }
}
