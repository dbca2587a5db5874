//! Random operations, a power cut at a random one, and what must be there afterwards.
//!
//! The model knows what was acknowledged. After a crash: chunks that were settled are there and right; the frames that come back
//! are those that were logged, without gap, at least up to the last sync; the roots are those of the last commit that
//! succeeded, or of one that was under way. Several lives follow each other on the same disks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::id::{ChunkAddress, Position};
use bytes::Bytes;
use parking_lot::Mutex;
use platform::sim::{Faults, each_seed, seeds_asked_for};
use platform::task::Boxed;

use super::{Machine, content, hurried, sweep};
use crate::{Class, Depth, Moment, Recovered, Store, StoreError};

impl Model {
    /// What was accepted when a settle began is settled when it ends, unless it was let go meanwhile.
    fn note_settled(&mut self, before: &BTreeMap<ChunkAddress, Accepted>) {
        let kept = before.iter().filter(|(address, moment)| self.accepted.get(*address) == Some(*moment));
        self.settled.extend(kept.map(|(address, _)| *address));
    }

    /// Before everything that was accepted and is not settled.
    fn oldest(&self) -> Option<Moment> {
        let waiting = self.accepted.iter().filter(|(address, _)| !self.settled.contains(*address));
        waiting.map(|(_, accepted)| accepted.since).min()
    }

    /// What was accepted before now, and is not settled, may be lost (K-12).
    fn note_dropped(&mut self, now: Moment) {
        let settled = &self.settled;
        self.accepted.retain(|address, accepted| accepted.since == now || settled.contains(address));
    }
}

/// When a chunk was accepted, and a moment of the store before that.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Accepted {
    at: u64,
    since: Moment,
}

/// What was promised, and what may be.
#[derive(Default)]
struct Model {
    /// Everything ever put, by address.
    contents: BTreeMap<ChunkAddress, Bytes>,
    /// What is accepted and still wanted.
    accepted: BTreeMap<ChunkAddress, Accepted>,
    moment: u64,
    in_flight: Vec<Vec<ChunkAddress>>,
    settled: BTreeSet<ChunkAddress>,
    /// Every frame of the present history, by position.
    frames: BTreeMap<u64, Vec<u8>>,
    synced: u64,
    /// Roots and covered position of commits that may be found, the oldest first; the first of them was acknowledged.
    commits: Vec<(Vec<u8>, u64)>,
    is_committing: bool,
    is_reclaiming: bool,
}

pub(super) struct Run {
    pub(super) machine: Machine,
    model: Arc<Mutex<Model>>,
}

impl Run {
    pub(super) fn new(seed: u64) -> Run {
        let disks = 1 + usize::try_from(seed % 3).unwrap();
        let machine = Machine::new(seed, disks, 96 << 20);
        let model = Model { commits: vec![(b"first".to_vec(), 0)], ..Model::default() };
        Run { machine, model: Arc::new(Mutex::new(model)) }
    }

    fn below(&self, bound: u64) -> u64 {
        self.machine.world.below(bound)
    }

    /// One operation as a task of its own: several run at once.
    fn operation(&self, store: &Arc<Store>) -> Boxed<()> {
        let (store, model) = (store.clone(), self.model.clone());
        let (kind, first, count, length) = (self.below(21), self.below(300), self.below(12), self.below(3_000));
        Box::pin(async move {
            let _ = match kind {
                0..=6 => put(&store, &model, first, count).await,
                7 | 8 => settle(&store, &model).await,
                9..=12 => log(&store, &model, usize::try_from(length).unwrap()),
                13..=15 => sync(&store, &model).await,
                16 | 17 => commit(&store, &model, first).await,
                18 => reclaim(&store, &model, first).await,
                _ => read_some(&store, &model, first).await,
            };
        })
    }

    /// A life: operations until the power goes or they are done.
    pub(super) fn live(&self, store: &Arc<Store>, operations: u64) {
        let world = &self.machine.world;
        for _ in 0..operations {
            if !world.is_powered() {
                break;
            }
            let operation = self.operation(store);
            if self.below(3) == 0 {
                world.run_until(operation).unwrap();
            } else {
                world.platform().tasks.spawn("operation", operation);
            }
        }
        // What was spawned ends by itself or dies with the power.
        world.run_for(std::time::Duration::from_secs(60)).unwrap();
    }

    /// What every opened store must be, after any history.
    pub(super) fn verify(&self, store: &Arc<Store>, recovered: &Recovered) {
        let mut model = self.model.lock();
        let found = (recovered.roots.clone(), recovered.covered.0);
        let at = model.commits.iter().position(|commit| *commit == found);
        let at = at.unwrap_or_else(|| panic!("roots {found:?} are none of {:?}", model.commits));
        model.commits.drain(..at);
        model.commits.truncate(1);
        model.is_committing = false;
        let last = recovered.frames.last().map_or(recovered.covered, |(position, _)| *position);
        assert!(last.0 >= model.synced, "frame {} was synced, the last is {}", model.synced, last.0);
        for (index, (position, frame)) in recovered.frames.iter().enumerate() {
            assert_eq!(position.0, recovered.covered.0 + 1 + index as u64, "no gaps");
            assert_eq!(&frame[..], &model.frames[&position.0][..], "frame {}", position.0);
        }
        model.frames.retain(|position, _| *position <= last.0);
        model.synced = last.0;
        assert_eq!(store.last_durable(), last);
        assert!(recovered.report.problems.is_empty(), "{:?}", recovered.report.problems);
        let (contents, settled) = (model.contents.clone(), model.settled.clone());
        drop(model);
        self.machine.run(async {
            for (address, content) in &contents {
                match store.get(Class::Data, address).await {
                    Ok(found) => assert_eq!(found, content),
                    Err(StoreError::Absent { .. }) => assert!(!settled.contains(address), "{address} was settled"),
                    Err(error) => panic!("{address}: {error}"),
                }
            }
        });
        // Chunks that were only accepted may be gone: an honest model forgets them.
        let mut model = self.model.lock();
        model.accepted.retain(|address, _| settled.contains(address));
        model.in_flight.clear();
        model.is_reclaiming = false;
    }
}

async fn put(store: &Store, model: &Mutex<Model>, first: u64, count: u64) -> Result<(), StoreError> {
    let class = if first.is_multiple_of(5) { Class::Metadata } else { Class::Data };
    // Mostly small; some are large enough to fill packs.
    let length = |number: u64| if number % 11 == 10 { 150_000 } else { usize::try_from(number * 37 % 5_000).unwrap() };
    let contents: Vec<Bytes> = (first..first + count).map(|number| content(number, length(number))).collect();
    let addresses: Vec<ChunkAddress> = contents.iter().map(|content| store.key().address(content)).collect();
    {
        let mut model = model.lock();
        model.contents.extend(addresses.iter().copied().zip(contents.iter().cloned()));
        model.in_flight.push(addresses.clone());
    }
    let since = store.moment();
    let result = store.put_many(class, contents).await;
    let mut model = model.lock();
    let at = model.in_flight.iter().position(|other| *other == addresses).unwrap();
    model.in_flight.swap_remove(at);
    assert_eq!(result?, addresses);
    model.moment += 1;
    let at = model.moment;
    for address in addresses {
        model.accepted.entry(address).or_insert(Accepted { at, since });
    }
    Ok(())
}

async fn settle(store: &Store, model: &Mutex<Model>) -> Result<(), StoreError> {
    let (accepted, since) = {
        let model = model.lock();
        (model.accepted.clone(), model.oldest())
    };
    let settled = store.settle(since.unwrap_or_else(|| store.moment())).await;
    note(store, model, &settled, &accepted);
    settled
}

/// What came of settling what was accepted before.
fn note(
    store: &Store,
    model: &Mutex<Model>,
    settled: &Result<(), StoreError>,
    accepted: &BTreeMap<ChunkAddress, Accepted>,
) {
    let mut model = model.lock();
    match settled {
        Ok(()) => model.note_settled(accepted),
        Err(StoreError::Dropped { .. }) => model.note_dropped(store.moment()),
        Err(_) => {}
    }
}

fn log(store: &Store, model: &Mutex<Model>, length: usize) -> Result<(), StoreError> {
    let mut model = model.lock();
    let mut frame = vec![0xf0; length];
    frame.extend_from_slice(&(store.last_logged().0 + 1).to_le_bytes());
    let position = store.log(&frame);
    model.frames.insert(position.0, frame);
    Ok(())
}

async fn sync(store: &Store, model: &Mutex<Model>) -> Result<(), StoreError> {
    let upto = store.last_logged();
    store.sync_log(upto).await?;
    let mut model = model.lock();
    model.synced = model.synced.max(upto.0);
    Ok(())
}

async fn commit(store: &Store, model: &Mutex<Model>, salt: u64) -> Result<(), StoreError> {
    // Commits are the caller's to order: one at a time.
    let ((covered, at), roots) = {
        let mut model = model.lock();
        if std::mem::replace(&mut model.is_committing, true) {
            return Ok(());
        }
        let covered = store.last_logged().0.saturating_sub(salt % 3).max(model.commits[0].1);
        let roots = format!("roots {covered} {salt} {}", model.frames.len()).into_bytes();
        model.commits.push((roots.clone(), covered));
        let covered = (covered, model.commits.len() - 1);
        (covered, roots)
    };
    let (accepted, since) = {
        let model = model.lock();
        (model.accepted.clone(), model.oldest())
    };
    let result = store.commit(since.unwrap_or_else(|| store.moment()), &roots, Position(covered)).await;
    note(store, model, &result, &accepted);
    let mut model = model.lock();
    model.is_committing = false;
    result?;
    model.commits.drain(..at);
    Ok(())
}

/// Lets a quarter of everything go and gives its room back, while others go on putting the same contents.
async fn reclaim(store: &Store, model: &Mutex<Model>, salt: u64) -> Result<(), StoreError> {
    if std::mem::replace(&mut model.lock().is_reclaiming, true) {
        return Ok(());
    }
    let mut marks = match store.begin_mark(false).await {
        Ok(marks) => marks,
        Err(error) => {
            model.lock().is_reclaiming = false;
            return Err(error);
        }
    };
    let live: BTreeSet<ChunkAddress> = {
        let mut model = model.lock();
        let goes = |address: &ChunkAddress| u64::from(address.0[0]) % 4 != salt % 4;
        model.accepted.retain(|address, _| goes(address));
        model.settled.retain(goes);
        model.accepted.keys().chain(model.in_flight.iter().flatten()).copied().collect()
    };
    marks.keep(&|address| live.contains(address), &hurried(store)).await;
    let result = sweep(store, marks, &|| true).await;
    model.lock().is_reclaiming = false;
    result.map(drop)
}

async fn read_some(store: &Arc<Store>, model: &Mutex<Model>, salt: u64) -> Result<(), StoreError> {
    let wanted: Vec<ChunkAddress> = {
        let model = model.lock();
        let skip = usize::try_from(salt).unwrap() % model.accepted.len().max(1);
        model.accepted.keys().skip(skip).take(5).copied().collect()
    };
    for address in wanted {
        let found = store.get(Class::Data, &address).await?;
        assert_eq!(found, model.lock().contents[&address]);
    }
    Ok(())
}

/// A history of several lives, on disks that fail like this.
pub(super) fn crash_and_verify(seed: u64, faults: &Faults) {
    let run = Run::new(seed);
    let world = &run.machine.world;
    let set_faults = |faults: &Faults| run.machine.disks.iter().for_each(|disk| disk.set_faults(faults.clone()));
    for _ in 0..2 + run.below(3) {
        set_faults(faults);
        // The power may go while opening as well.
        for _ in 0..run.below(3) {
            world.cut_power_at(world.operations() + 1 + run.below(60));
            let opened = run.machine.try_open();
            let is_excused = opened.is_ok() || !world.is_powered() || *faults != Faults::default();
            assert!(is_excused, "refused without reason: {}", opened.err().unwrap());
            world.restart();
        }
        set_faults(&Faults::default());
        let (store, recovered) = run.machine.open();
        run.verify(&store, &recovered);
        set_faults(faults);
        world.cut_power_at(world.operations() + 1 + run.below(250));
        run.live(&store, 60);
        // The death of the process alone, or of the whole machine.
        if world.is_powered() && run.below(2) == 0 {
            world.cut_power_at(u64::MAX);
            world.crash();
        } else {
            world.restart();
        }
    }
    set_faults(&Faults::default());
    world.restart();
    let (store, recovered) = run.machine.open();
    run.verify(&store, &recovered);
    let report = run.machine.run(store.check(Depth::Deep, &|_, _| {}));
    // A pack whose only chunks were torn is set aside: nobody can tell that from one that rotted.
    let problems: Vec<_> = report.problems.iter().filter(|problem| problem.code != "HF0017").collect();
    assert!(problems.is_empty(), "{problems:?}");
    // It still works.
    run.live(&store, 20);
    run.machine.run(store.close()).unwrap();
}

#[test]
fn nothing_promised_is_lost_when_the_power_goes() {
    each_seed(0..50, |seed| crash_and_verify(seed, &Faults::default()));
}

// A second test for the second core.
#[test]
fn nothing_promised_is_lost_when_the_power_goes_again() {
    each_seed(100..150, |seed| crash_and_verify(seed, &Faults::default()));
}

#[test]
fn put_your_seed_here() {
    let seeds = seeds_asked_for();
    each_seed(seeds, |seed| crash_and_verify(seed, &Faults::default()));
}
