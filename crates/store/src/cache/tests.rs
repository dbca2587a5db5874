//! The cache against a slow model of what was published, and its readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::sim::World;
use proptest::prelude::*;

use super::{Cache, ENTRY_BYTES, Evicted, Origin, Shard, Weights};
use crate::counters::Counters;
use crate::format::Class;

fn address(number: u8) -> ChunkAddress {
    ChunkAddress([number; ChunkAddress::BYTES])
}

fn content(number: u8) -> Bytes {
    Bytes::from(vec![number; 100 + 10 * usize::from(number % 7)])
}

/// What was published, word by word: each chunk has a number for its weight, and all are looked through.
struct Model {
    capacity: u64,
    weights: Weights,
    /// Oldest first: number, class, weight, whether it was read ahead and not used, whether it was let off.
    chunks: Vec<(u8, Class, u8, bool, bool)>,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| content(chunk.0).len() as u64 + ENTRY_BYTES).sum()
    }

    fn hit(&mut self, number: u8) -> bool {
        let Some(at) = self.chunks.iter().position(|chunk| chunk.0 == number) else { return false };
        let (_, class, ..) = self.chunks.remove(at);
        self.chunks.push((number, class, self.weights.of(class), false, false));
        true
    }

    fn insert(&mut self, number: u8, class: Class, is_ahead: bool) {
        let bytes = content(number).len() as u64 + ENTRY_BYTES;
        if self.chunks.iter().any(|chunk| chunk.0 == number) || bytes > self.capacity {
            return;
        }
        while self.bytes() + bytes > self.capacity {
            let Some(at) = self.chunks.iter().position(|chunk| chunk.2 == 0) else {
                self.chunks.iter_mut().for_each(|chunk| chunk.2 -= 1);
                continue;
            };
            let (number, class, _, is_unused, was_spared) = self.chunks.remove(at);
            if is_unused && !was_spared {
                self.chunks.push((number, class, self.weights.of(class), true, true));
            }
        }
        self.chunks.push((number, class, self.weights.of(class), is_ahead, false));
    }
}

proptest! {
    #[test]
    fn what_stays_is_what_the_model_keeps(
        is_weighted: bool,
        steps in prop::collection::vec((0..40_u8, 0..4_u8), 1..400),
    ) {
        let weights = if is_weighted { Weights::WEIGHTED } else { Weights::EQUAL };
        let mut model = Model { capacity: 4000, weights, chunks: Vec::new() };
        let mut shard = Shard::new(4000, weights);
        for (number, step) in steps {
            let class = if number % 3 == 0 { Class::Metadata } else { Class::Data };
            let hit = shard.hit(&address(number)).map(|(found, _)| found);
            prop_assert_eq!(hit.is_some(), model.hit(number));
            prop_assert!(hit.is_none_or(|found| found == content(number)));
            if step > 0 {
                let origin = if step == 1 { Origin::Ahead } else { Origin::Wanted };
                shard.insert(class, &address(number), &content(number), origin);
                model.insert(number, class, step == 1);
            }
            prop_assert_eq!(shard.bytes, model.bytes());
            prop_assert!(shard.bytes <= shard.capacity, "W-1");
            let mut kept: Vec<u8> = shard.places.keys().map(|address| address.0[0]).collect();
            let mut expected: Vec<u8> = model.chunks.iter().map(|chunk| chunk.0).collect();
            kept.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(kept, expected);
        }
    }
}

fn filled(count: u8) -> Shard {
    let mut shard = Shard::new(u64::from(count) * (100 + ENTRY_BYTES), Weights::WEIGHTED);
    for number in 0..count {
        shard.insert(Class::Data, &address(7 * number), &content(7 * number), Origin::Wanted);
    }
    assert_eq!(shard.places.len(), usize::from(count));
    shard
}

/// W-2
#[test]
fn what_a_reader_has_in_hand_stays() {
    let mut shard = filled(4);
    let in_hand = shard.hit(&address(0)).unwrap();
    for number in 10..30 {
        shard.insert(Class::Data, &address(7 * number), &content(7 * number), Origin::Wanted);
        assert!(shard.places.contains_key(&address(0)));
    }
    drop(in_hand);
    for number in 10..20 {
        shard.insert(Class::Data, &address(7 * number), &content(0), Origin::Wanted);
    }
    assert!(!shard.places.contains_key(&address(0)));

    let all: Vec<_> = shard.places.keys().copied().collect::<Vec<_>>().iter().map(|key| shard.hit(key)).collect();
    assert_eq!(shard.insert(Class::Metadata, &address(1), &content(0), Origin::Wanted), Evicted::default());
    assert!(!shard.places.contains_key(&address(1)), "it stays out");
    drop(all);
}

/// W-4
#[test]
fn what_was_read_ahead_is_let_off_once() {
    let mut shard = Shard::new(4 * (100 + ENTRY_BYTES), Weights::EQUAL);
    shard.insert(Class::Data, &address(0), &content(0), Origin::Ahead);
    let mut unused = 0;
    let mut add = |shard: &mut Shard, number: u8| {
        unused += shard.insert(Class::Data, &address(7 * number), &content(0), Origin::Wanted).unused;
        (shard.places.contains_key(&address(0)), unused)
    };
    let found: Vec<_> = (1..9).map(|number| add(&mut shard, number)).collect();
    let expected = [(true, 0), (true, 0), (true, 0), (true, 0), (true, 0), (true, 0), (false, 1), (false, 1)];
    assert_eq!(found, expected);
}

fn cache(capacity: u64) -> Arc<Cache> {
    Arc::new(Cache::new(capacity, Weights::WEIGHTED, &Arc::new(Counters::default())))
}

/// W-3
#[test]
fn of_many_who_want_a_chunk_one_reads_it() {
    let world = World::new(1);
    let (cache, reads) = (cache(1 << 20), Arc::new(AtomicUsize::new(0)));
    for number in 0..20 {
        let (cache, reads, tasks) = (Arc::clone(&cache), Arc::clone(&reads), world.platform().tasks);
        let sleeper = Arc::clone(&tasks);
        let wants = async move {
            let read = async {
                let count = reads.fetch_add(1, Ordering::SeqCst);
                sleeper.sleep(std::time::Duration::from_millis(5)).await;
                if count < 2 { Err("it failed") } else { Ok(content(3)) }
            };
            let found = cache.read_through(Class::Data, &address(3), read).await;
            assert!(found.is_err() || found == Ok(content(3)), "{number}");
        };
        tasks.spawn("reader", Box::pin(wants));
    }
    world.run_for(std::time::Duration::from_secs(10)).unwrap();
    assert_eq!(reads.load(Ordering::SeqCst), 3, "two failed, and their readers say so");
    assert!(cache.has(&address(3)));
    assert!(cache.shards.iter().all(|shard| shard.lock().reading.is_empty()));
}

#[test]
fn who_reads_ahead_is_waited_for_and_may_give_up() {
    let cache = cache(1 << 20);
    let mut context = Context::from_waker(Waker::noop());
    let claim = cache.claim(&address(5)).expect("nobody has it");
    assert!(cache.claim(&address(5)).is_none());
    let (five, six) = (address(5), address(6));
    let mut reader = Box::pin(cache.read_through(Class::Data, &five, async { Ok::<_, ()>(content(1)) }));
    assert!(reader.as_mut().poll(&mut context).is_pending());
    cache.insert(Class::Data, &address(5), &content(5), Origin::Ahead);
    drop(claim);
    assert_eq!(reader.as_mut().poll(&mut context), Poll::Ready(Ok(content(5))), "what was read ahead");
    assert!(cache.claim(&address(5)).is_none());

    let claim = cache.claim(&address(6)).expect("nobody has it");
    let given_up = Box::pin(cache.read_through(Class::Data, &six, async { Ok::<_, ()>(content(6)) }));
    let mut reader = Box::pin(cache.read_through(Class::Data, &six, async { Ok::<_, ()>(content(6)) }));
    assert!(reader.as_mut().poll(&mut context).is_pending());
    drop(given_up);
    drop(claim);
    assert_eq!(reader.as_mut().poll(&mut context), Poll::Ready(Ok(content(6))), "it reads itself");
    drop(reader);
    assert!(cache.shards.iter().all(|shard| shard.lock().reading.is_empty()));
}

/// W-5
#[test]
fn what_a_warm_up_brings_in_outlives_everything_before_it_and_is_counted_once() {
    for (class, origin) in
        [(Class::Metadata, Origin::Wanted), (Class::Data, Origin::Ahead), (Class::Metadata, Origin::Ahead)]
    {
        let capacity = 20 * (100 + ENTRY_BYTES);
        let mut shard = Shard::new(capacity, Weights::WEIGHTED);
        let chunk = |number: u8| (address(number), Bytes::from(vec![number; 100]));
        for number in 0..20 {
            let (address, content) = chunk(number);
            shard.insert(class, &address, &content, origin);
        }
        shard.begin_warming();
        assert_eq!((shard.warm_bytes, shard.bytes), (0, capacity));
        assert!(shard.hit(&address(19)).is_some() && shard.hit(&address(19)).is_some());
        assert_eq!(shard.warm_bytes, 100 + ENTRY_BYTES, "counted once");
        for number in 100..119 {
            let (address, content) = chunk(number);
            let evicted = shard.insert(Class::Data, &address, &content, Origin::Ahead);
            assert_eq!(evicted.chunks, 1, "{number}");
        }
        assert!(!shard.has_lost && shard.warm_bytes == capacity);
        assert!((100..119).chain([19]).all(|number| shard.places.contains_key(&address(number))));
        // The next one pushes out what it should not.
        let (address, content) = chunk(120);
        shard.insert(Class::Data, &address, &content, Origin::Ahead);
        assert!(shard.has_lost && shard.warm_bytes == capacity);
        shard.begin_warming();
        assert!(!shard.has_lost && shard.warm_bytes == 0);
        shard.insert(
            Class::Data,
            &chunk(121).0,
            &Bytes::from(vec![0; usize::try_from(capacity).unwrap()]),
            Origin::Ahead,
        );
        assert!(shard.has_lost, "it has no room for that");
    }
}
