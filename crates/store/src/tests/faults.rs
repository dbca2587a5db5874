//! Disks that err, flip and lose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::id::{ChunkAddress, Position};
use bytes::Bytes;
use platform::sim::{Faults, each_seed, seeds_asked_for};
use platform::task::{First, first};

use super::crash::crash_and_verify;
use super::{Machine, content, hurried, options};
use crate::disks::DiskSet;
use crate::index::Change;
use crate::pack::{PackKnown, PackState};
use crate::{Class, Depth, MissingStatus, Options, Recovered, Store, StoreError};

/// Errors that are told: nothing promised may be lost by them, crashes included.
fn honest() -> Faults {
    Faults { read_error: 0.005, write_error: 0.01, sync_error: 0.03, flip_read: 0.005, ..Faults::default() }
}

#[test]
fn nothing_promised_is_lost_when_disks_err_and_the_power_goes() {
    each_seed(1000..1060, |seed| crash_and_verify(seed, &honest()));
}

#[test]
fn put_your_seed_here() {
    let seeds = seeds_asked_for();
    each_seed(seeds, |seed| crash_and_verify(seed, &honest()));
}

/// Who seals packs may be dropped halfway, with the request that he works for: they are not left open until the next opening.
#[test]
fn a_pack_whose_sealing_was_dropped_is_sealed_by_the_next() {
    let mut dropped = 0;
    while !is_sealed_within(Duration::from_millis(5 * dropped)) {
        dropped += 1;
    }
    assert!(dropped > 4, "{dropped}");
}

/// Whether it was, and what was not is by who comes next.
fn is_sealed_within(time: Duration) -> bool {
    let machine = Machine::new(9, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.disks[0].set_faults(Faults { latency: Duration::from_millis(10), ..Faults::default() });
    machine.run(async {
        store.put(Class::Data, &content(1, 30_000)).await.unwrap();
        let sealed = first(store.packs.seal_all(), store.platform.tasks.sleep(time)).await;
        store.packs.seal_all().await;
        let open: Vec<u64> =
            store.packs.known().into_iter().filter(|(_, known)| !is_sealed(known)).map(|(pack, _)| pack).collect();
        assert_eq!(open, Vec::<u64>::new(), "dropped after {time:?}");
        store.close().await.unwrap();
        matches!(sealed, First::Left(_))
    })
}

fn is_sealed(known: &PackKnown) -> bool {
    matches!(known.state, PackState::Sealed)
}

/// What was promised to a pack, and is in its file, is promised no more, whoever is dropped: else the disk would seem to have less and less room.
#[test]
fn writes_that_were_dropped_leave_no_promise() {
    let machine = Machine::new(13, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.disks[0].set_faults(Faults { latency: Duration::from_millis(10), ..Faults::default() });
    machine.run(async {
        // In the first write of what is there, then in the second, of what came since.
        for (number, time) in [(1, 5), (3, 15)] {
            store.put(Class::Data, &content(number, 30_000)).await.unwrap();
            let sleep = store.platform.tasks.sleep(Duration::from_millis(time));
            let settled = first(store.settle(store.moment()), sleep).await;
            assert!(matches!(settled, First::Right(())));
        }
        assert!(store.packs.seal_all().await);
    });
    let disk = &store.pool.disks[0];
    disk.look().unwrap();
    assert_eq!(disk.free(), disk.disk.space().unwrap().free);
}

/// M-8: what memory has wrong is not the disk's, and costs nothing that was promised.
#[test]
fn a_bit_that_flips_on_its_way_into_memory_costs_nothing() {
    let machine = Machine::new(8, 1, 64 << 20);
    let (store, _) = machine.open();
    let kept: Vec<Bytes> = (0..4).map(|number| content(number * 2, 30_000)).collect();
    machine.run(async {
        store.put_many(Class::Data, kept.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        for frame in [&b"one"[..], b"two", b"three"] {
            store.sync_log(store.log(frame)).await.unwrap();
        }
    });
    let files = machine.disks[0].snapshot_files();
    let place = |needle: &[u8]| -> (String, u64) {
        let found = |bytes: &Vec<u8>| bytes.windows(needle.len()).position(|window| window == needle);
        let (path, at) = files.iter().find_map(|(path, bytes)| Some((path.clone(), found(bytes)?))).unwrap();
        (path, at as u64)
    };
    for (needle, bit) in [(&kept[1][..64], 3), (b"three", 1), (b"two", 7)] {
        let (path, at) = place(needle);
        machine.disks[0].misread(&path, at, bit);
    }
    machine.run(async {
        for content in &kept {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
    let (path, at) = place(&kept[2][..64]);
    machine.disks[0].misread(&path, at, 0);
    drop(store);
    // The process dies; what the page cache has stays.
    machine.world.crash();
    let (store, recovered) = machine.open();
    assert_eq!(
        recovered.frames.iter().map(|(_, frame)| &frame[..]).collect::<Vec<_>>(),
        [&b"one"[..], b"two", b"three"]
    );
    machine.run(async {
        for content in &kept {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
}

/// P-4.
#[test]
fn a_disk_that_fails_to_read_takes_nothing_new_while_another_has_room() {
    let machine = Machine::new(9, 2, 64 << 20);
    let (store, _) = machine.open();
    let contents =
        |numbers: std::ops::Range<u64>| -> Vec<Bytes> { numbers.map(|number| content(number * 2, 30_000)).collect() };
    machine.run(store.put_many(Class::Data, contents(0..100))).unwrap();
    machine.run(store.settle(store.moment())).unwrap();
    let packed = |disk: usize| store.status().disks[disk].pack_bytes;
    let before = [packed(0), packed(1)];
    assert!(before.iter().all(|bytes| *bytes > 1 << 20), "{before:?}");
    machine.disks[1].set_faults(Faults { read_error: 1.0, ..Faults::default() });
    let read = machine.run(async {
        let mut read = 0;
        for content in contents(0..100) {
            read += u64::from(store.get(Class::Data, &store.key().address(&content)).await.is_ok());
        }
        read
    });
    assert!((20..80).contains(&read), "{read} of 100 were on the other disk, or in memory");
    machine.disks[1].set_faults(Faults::default());
    let status = store.status();
    assert!(status.disks[1].is_good && status.disks[1].reads_failed > 0 && status.disks[0].reads_failed == 0);
    assert!(status.disks[1].health.starts_with("it failed "), "{}", status.disks[1].health);
    machine.run(store.put_many(Class::Data, contents(100..200))).unwrap();
    machine.run(store.settle(store.moment())).unwrap();
    assert!(packed(1) - before[1] < 64 << 10 && packed(0) - before[0] > 2 << 20, "{before:?} {:?}", status.disks);
    // Full beats failing: what fits nowhere else goes there.
    machine.disks[0].set_capacity(20 << 20);
    machine.run(store.put_many(Class::Data, contents(200..600))).unwrap();
    machine.run(store.settle(store.moment())).unwrap();
    assert!(packed(1) > before[1] + (2 << 20), "{:?}", store.status().disks);
}

/// Whatever a disk does, bytes are right or there are none.
#[test]
fn wrong_bytes_are_never_returned() {
    each_seed(0..40, |seed| {
        let machine = Machine::new(seed, 1 + usize::try_from(seed % 2).unwrap(), 96 << 20);
        let mut contents: BTreeMap<ChunkAddress, Bytes> = BTreeMap::new();
        let mut frames: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
        let mut roots = vec![b"first".to_vec()];
        for life in 0..4_u64 {
            let faults = Faults {
                read_error: 0.002,
                flip_read: 0.01,
                stale_read: 0.01,
                flip_write: 0.02,
                lost_write: 0.01,
                misdirected_write: 0.01,
                sync_error: 0.003,
                ..Faults::default()
            };
            machine.disks.iter().for_each(|disk| disk.set_faults(faults.clone()));
            let Ok((store, recovered)) = machine.try_open() else {
                machine.world.restart();
                continue;
            };
            assert!(roots.contains(&recovered.roots), "roots that were never given");
            for (position, frame) in &recovered.frames {
                assert!(frames[&position.0].contains(frame), "a frame that was never logged");
            }
            machine.run(async {
                for step in 0..30_u64 {
                    let number = life * 1000 + seed * 7 + step % 20;
                    let content = content(number, 100 + 3000 * usize::try_from(step % 10).unwrap());
                    contents.insert(store.key().address(&content), content.clone());
                    let _ = store.put_many(Class::Data, vec![content]).await;
                    let frame = Bytes::from(format!("frame {life} {step}"));
                    let at = store.log(&frame);
                    frames.entry(at.0).or_default().push(frame);
                    match step % 5 {
                        0 => drop(store.settle(store.moment()).await),
                        1 => drop(store.sync_log(at).await),
                        2 => {
                            let new = format!("roots {life} {step}").into_bytes();
                            roots.push(new.clone());
                            let _ = store.commit(store.moment(), &new, Position(at.0)).await;
                        }
                        _ => {}
                    }
                }
                for (address, content) in &contents {
                    if let Ok(found) = store.get(Class::Data, address).await {
                        assert_eq!(found, content);
                    }
                }
            });
            drop(store);
            machine.world.restart();
        }
    });
}

/// The only disk of a node gives other bytes at every reading, from some operation of an opening on: whatever is cut off, set aside or made
/// again for that is what it reads right later.
#[test]
fn a_lone_disk_that_lies_is_refused_or_errs_and_costs_nothing() {
    const OPERATIONS_MAX: u64 = 5_000;
    let (mut refused, mut failed, mut from) = (0, 0, 0);
    loop {
        let machine = Machine::new(from, 1, 64 << 20);
        let (store, _) = machine.open();
        let contents: Vec<Bytes> = (0..60).map(|number| content(number * 2, 20_000)).collect();
        // So long that a wrong bit of what was read hits one of them, mostly.
        let frames: Vec<Vec<u8>> = (0..4).map(|number| content(1001 + number * 2, 700_000).to_vec()).collect();
        machine.run(async {
            store.put_many(Class::Data, contents[..40].to_vec()).await.unwrap();
            store.commit(store.moment(), b"roots", Position(0)).await.unwrap();
            store.put_many(Class::Data, contents[40..].to_vec()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            for frame in &frames {
                store.log(frame);
            }
            store.sync_log(store.last_logged()).await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let (world, disk) = (&machine.world, &machine.disks[0]);
        let (platform, handles, begun) = (world.platform(), machine.handles(), world.operations());
        let lies = async {
            while world.operations() < begun + from {
                platform.tasks.sleep(Duration::from_micros(1)).await;
            }
            disk.set_faults(Faults { flip_read: 1.0, ..Faults::default() });
            std::future::pending::<()>().await;
        };
        let opened = machine.run(first(Store::open(&platform, &handles, options()), lies));
        let First::Left(opened) = opened else { unreachable!("it lies for ever") };
        let is_over = disk.faults() == Faults::default();
        let expect = |recovered: &Recovered, when: &str| {
            assert_eq!(recovered.roots, b"roots", "{when}, it lies from {from} on");
            let found: Vec<&[u8]> = recovered.frames.iter().map(|(_, frame)| &frame[..]).collect();
            assert!(found == frames, "{} frames {when}, it lies from {from} on", found.len());
        };
        match opened {
            Err(error) => {
                assert!(error.to_string().contains("/d0/"), "{error}");
                refused += 1;
            }
            Ok((store, recovered)) => {
                expect(&recovered, "from a disk that lies");
                disk.set_faults(Faults { flip_read: 1.0, ..Faults::default() });
                machine.run(async {
                    for content in &contents {
                        match store.get(Class::Data, &store.key().address(content)).await {
                            Ok(found) => assert_eq!(&found, content),
                            Err(StoreError::Corrupt { .. } | StoreError::Disk(_)) => failed += 1,
                            Err(error) => panic!("it lies from {from} on: {error}"),
                        }
                    }
                });
            }
        }
        let asked = world.operations() - begun;
        assert!(asked < OPERATIONS_MAX, "{asked} operations, it lies from {from} on");
        disk.set_faults(Faults::default());
        world.restart();
        let (store, recovered) = machine.open();
        expect(&recovered, "afterwards");
        machine.run(async {
            for content in &contents {
                let found = store.get(Class::Data, &store.key().address(content)).await;
                assert_eq!(&found.unwrap(), content, "it lied from {from} on");
            }
            let problems = store.check(Depth::Deep, &|_, _| {}).await.problems;
            assert!(problems.is_empty(), "it lied from {from} on: {problems:?}");
        });
        if is_over {
            break;
        }
        from += 3;
    }
    assert!(refused > 5 && failed > 100, "refused {refused} of {from} times, {failed} reads failed");
}

#[test]
fn a_dead_disk_costs_nothing_that_was_not_on_it_alone() {
    let machine = Machine::new(5, 3, 64 << 20);
    let (store, _) = machine.open();
    // The first disk takes its run and writes it, the second has the rest in its buffer.
    let contents: Vec<Bytes> = (0..45).map(|number| content(number * 2, 30_000)).collect();
    machine.run(async {
        let addresses = store.put_many(Class::Data, contents.clone()).await.unwrap();
        machine.disks[1].set_faults(Faults { is_dead: true, ..Faults::default() });
        store.settle(store.moment()).await.unwrap();
        let status = store.status();
        assert_eq!(status.disks.iter().map(|disk| disk.is_good).collect::<Vec<_>>(), [true, false, true]);
        // What is at risk is known: each chunk lies on one disk.
        assert_eq!(status.disks.iter().map(|disk| disk.chunks).sum::<u64>(), status.chunks());
        assert_eq!(status.disks.iter().map(|disk| disk.has_journal).collect::<Vec<_>>(), [true, false, false]);
        let frame = store.log(b"frame");
        store.sync_log(frame).await.unwrap();
        store.commit(store.moment(), b"without disk 1", frame).await.unwrap();
        for (address, content) in addresses.iter().zip(&contents) {
            assert_eq!(store.get(Class::Data, address).await.unwrap(), content);
        }
    });
    drop(store);
    machine.disks[1].set_faults(Faults::default());
    machine.world.restart();
    let (store, recovered) = machine.open();
    assert_eq!(recovered.roots, b"without disk 1");
    machine.run(async {
        for content in &contents {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
}

/// What a disk that failed at work has alone is what nobody could read without it; copied to others it is at risk no more.
#[test]
fn what_lies_alone_on_a_disk_that_failed_is_counted_until_it_lies_elsewhere() {
    let machine = Machine::new(5, 3, 64 << 20);
    let contents: Vec<Bytes> = (0..90).map(|number| content(number * 2, 30_000)).collect();
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    // It is in no cache.
    let (store, _) = machine.open();
    let fails = |faults| machine.disks[1].set_faults(faults);
    let (unwritable, dead) = (
        Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() },
        Faults { is_dead: true, ..Faults::default() },
    );
    let unreadable = || {
        machine.run(async {
            let (mut chunks, mut bytes) = (0, 0);
            for content in &contents {
                let read = store.get(Class::Data, &store.key().address(content)).await;
                (chunks, bytes) =
                    if read.is_err() { (chunks + 1, bytes + content.len() as u64) } else { (chunks, bytes) };
            }
            (chunks, bytes)
        })
    };
    fails(unwritable.clone());
    machine.run(async {
        store.put_many(Class::Data, (500..560).map(|number| content(number, 30_000)).collect()).await.unwrap();
        // Its superblock goes to every disk.
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
    });
    let status = store.status();
    assert_eq!(status.disks.iter().map(|disk| disk.is_good).collect::<Vec<_>>(), [true, false, true]);
    let at_risk = &status.disks[1].alone;
    assert!(at_risk.packs > 0 && at_risk.pack_bytes >= at_risk.content_bytes, "{at_risk:?}");
    assert_eq!(&status.lacking, at_risk, "none of it is on a good disk");
    fails(dead.clone());
    assert_eq!((at_risk.chunks, at_risk.content_bytes), unreadable());
    fails(unwritable);
    let report = machine.run(store.restore_copies(&hurried(&store), &|_, _| {}));
    assert_eq!((report.written, report.lacking, report.problems), (at_risk.packs, 0, vec![]));
    let status = store.status();
    assert_eq!((&status.disks[1].alone, &status.lacking), (&MissingStatus::default(), &MissingStatus::default()));
    fails(dead);
    assert_eq!(unreadable(), (0, 0));
}

#[test]
fn a_journal_that_fails_on_the_last_disk_makes_the_store_read_only_until_it_is_opened_again() {
    let machine = Machine::new(6, 1, 64 << 20);
    let (store, _) = machine.open();
    let (kept, content) = (content(1, 5000), content(2, 5000));
    machine.run(async {
        store.put(Class::Data, &kept).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        store.log(b"durable");
        store.sync_log(Position(1)).await.unwrap();
        machine.disks[0].set_faults(Faults { sync_error: 1.0, ..Faults::default() });
        store.log(b"lost");
        assert!(matches!(store.sync_log(Position(2)).await, Err(StoreError::ReadOnly { .. })));
        machine.disks[0].set_faults(Faults::default());
        assert!(matches!(store.sync_log(Position(2)).await, Err(StoreError::ReadOnly { .. })), "it stays so");
        assert_eq!(store.get(Class::Data, &store.key().address(&kept)).await.unwrap(), kept);
    });
    assert!(store.status().journal_failure.is_some());
    drop(store);
    machine.world.restart();
    let (store, recovered) = machine.open();
    assert_eq!(&recovered.frames[0].1[..], b"durable");
    machine.run(async {
        store.put(Class::Data, &content).await.unwrap();
        store.log(b"again");
        store.sync_log(store.last_logged()).await.unwrap();
    });
}

/// J-9: a group that the only home does not take goes to another disk, and so does what comes after it; nothing that was synced before is missing.
#[test]
fn where_the_only_disk_with_the_journal_fails_it_goes_on_on_another_one() {
    let ways = [
        Faults { write_error: 1.0, ..Faults::default() },
        Faults { sync_error: 1.0, ..Faults::default() },
        Faults { is_dead: true, ..Faults::default() },
    ];
    for (way, faults) in ways.into_iter().enumerate() {
        for is_new in [false, true] {
            let machine = Machine::new(6, 3, 64 << 20);
            let (store, _) = machine.open();
            machine.run(async {
                if !is_new {
                    store.log(b"before");
                    store.sync_log(Position(1)).await.unwrap();
                }
                // Two at once: the first of those that are left fails too.
                machine.disks[0].set_faults(faults.clone());
                machine.disks[1].set_faults(faults.clone());
                for frame in [b"while", b"after"] {
                    store.log(frame);
                    store.sync_log(store.last_logged()).await.unwrap();
                }
            });
            assert!(store.status().journal_failure.is_none());
            assert_eq!(store.pool.homes().iter().collect::<Vec<_>>(), [2], "way {way}");
            let frames =
                |recovered: &Recovered| recovered.frames.iter().map(|(_, frame)| frame.to_vec()).collect::<Vec<_>>();
            let all: Vec<Vec<u8>> = [&b"before"[..], b"while", b"after"]
                .iter()
                .skip(usize::from(is_new))
                .map(|frame| frame.to_vec())
                .collect();
            drop(store);
            machine.world.crash();
            machine.world.restart();
            machine.disks.iter().for_each(|disk| disk.set_faults(Faults::default()));
            let (store, recovered) = machine.open();
            assert_eq!(frames(&recovered), all, "way {way}");
            // What a superblock covers needs no disk that failed.
            machine.run(async {
                machine.disks[0].set_faults(faults.clone());
                machine.disks[1].set_faults(faults.clone());
                store.log(b"covered");
                store.sync_log(store.last_logged()).await.unwrap();
                for _ in 0..2 {
                    store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
                }
                store.log(b"last");
                store.sync_log(store.last_logged()).await.unwrap();
            });
            drop(store);
            machine.world.crash();
            machine.world.restart();
            machine.disks.iter().for_each(|disk| disk.set_faults(Faults::default()));
            let options = Options { goes_without_disks: true, ..options() };
            let last = [machine.disks[2].disk()];
            let (_, recovered) = machine.run(Store::open(&machine.world.platform(), &last, options)).unwrap();
            assert_eq!(
                (frames(&recovered), &recovered.roots[..]),
                (vec![b"last".to_vec()], &b"roots"[..]),
                "way {way}"
            );
        }
    }
}

/// Packs that are written run by run, long before they are sealed.
fn with_long_packs(machine: &Machine) -> Arc<Store> {
    let options = Options { pack_bytes: 32 << 20, run_bytes: 0, ..options() };
    machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap().0
}

/// K-12.
#[test]
fn what_went_with_a_disk_before_it_was_durable_is_told_and_can_be_put_again() {
    let machine = Machine::new(5, 2, 64 << 20);
    let store = with_long_packs(&machine);
    let contents: Vec<Bytes> = (0..200).map(|number| content(number * 2, 30_000)).collect();
    let dropped = |result| matches!(result, Err(StoreError::Dropped { chunks, .. }) if chunks > 0);
    machine.run(async {
        let since = store.moment();
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        // Somebody else has the same, of which all is here.
        let other = store.moment();
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        machine.disks[1].set_faults(Faults { is_dead: true, ..Faults::default() });
        let told = store.settle(since).await;
        assert!(dropped(told.clone()), "{told:?} {:?}", store.status().disks);
        assert!(dropped(store.settle(other).await), "each hears of it");
        assert!(dropped(store.commit(since, b"roots", Position(0)).await));
        // Who has nothing of that time goes on.
        let later = store.moment();
        store.settle(later).await.unwrap();
        let lost = contents.iter().filter(|content| !store.contains(&store.key().address(content))).count();
        assert!((1..150).contains(&lost), "{lost} of them");
        assert!(store.counters().chunks_dropped.value() >= lost as u64);
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.settle(later).await.unwrap();
        store.commit(later, b"roots", Position(0)).await.unwrap();
        for content in &contents {
            let address = store.key().address(content);
            assert!(store.is_durable(&address));
            assert_eq!(store.get(Class::Data, &address).await.unwrap(), content);
        }
    });
}

/// K-12: what is lost where it was stored last is named where it lay before, also where the index file knows nothing of that.
#[test]
fn what_lies_elsewhere_is_named_there_again() {
    let machine = Machine::new(6, 2, 64 << 20);
    let store = with_long_packs(&machine);
    let contents: Vec<Bytes> = (0..100).map(|number| content(number * 2, 30_000)).collect();
    let addresses: Vec<_> = contents.iter().map(|content| store.key().address(content)).collect();
    let disk_of = |address| {
        let place = store.packs.index.recent(address).expect("nothing is in the file yet");
        store.packs.known_pack(place.pack).unwrap().disks().first().unwrap()
    };
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        let before: Vec<usize> = addresses.iter().map(disk_of).collect();
        // As if each had been found rotten: all are stored anew.
        addresses.iter().for_each(|address| store.packs.doubt(*address));
        let since = store.moment();
        // Others first, so that they do not come to the same disks again.
        store.put_many(Class::Data, vec![content(1001, 1_200_000 - 200_000)]).await.unwrap();
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        let after: Vec<usize> = addresses.iter().map(disk_of).collect();
        let moved = before.iter().zip(&after).filter(|(before, after)| (**before, **after) == (0, 1)).count();
        assert!(moved > 5, "{moved} went from disk 0 to disk 1: the test shows nothing");
        machine.disks[1].set_faults(Faults { is_dead: true, ..Faults::default() });
        assert!(matches!(store.settle(since).await, Err(StoreError::Dropped { .. })));
        for ((address, content), before) in addresses.iter().zip(&contents).zip(before) {
            if before == 0 {
                assert_eq!(store.get(Class::Data, address).await.unwrap(), content);
            }
        }
    });
}

/// X-5 and K-12: a pack that waited for room keeps as its own what is named where it may be lost yet: when it is, the index file has it.
#[test]
fn a_pack_that_waited_keeps_what_may_be_lost_where_it_is_named() {
    let machine = Machine::new(7, 2, 64 << 20);
    let store = with_long_packs(&machine);
    let contents: Vec<Bytes> = (0..30).map(|number| content(number * 2, 30_000)).collect();
    let addresses: Vec<_> = contents.iter().map(|content| store.key().address(content)).collect();
    let packs_of = |store: &Store| -> Vec<u64> {
        let place = |address| store.packs.index.lookup(address, &store.packs.counters).unwrap().unwrap();
        addresses.iter().map(|address| place(address).pack).collect()
    };
    machine.run(async {
        // All in the first pack of disk 0, with more that is written and not durable when the disk fills.
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        store.put(Class::Data, &content(1001, 100_000)).await.unwrap();
        let filled = &machine.disks[0];
        let space = filled.disk().space().unwrap();
        filled.set_capacity(space.total - space.free);
        store.settle(store.moment()).await.unwrap();
        let waiting = packs_of(&store);
        assert_eq!(waiting, vec![waiting[0]; contents.len()]);
        let state = store.packs.known_pack(waiting[0]).unwrap().state;
        assert!(matches!(state, PackState::Open(pack) if pack.is_found()), "it waits");
        // As if each had been found rotten: all are stored anew, on disk 1.
        addresses.iter().for_each(|address| store.packs.doubt(*address));
        let since = store.moment();
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        assert!(!packs_of(&store).contains(&waiting[0]));
        filled.set_capacity(64 << 20);
        assert!(store.packs.seal_unsealed().await);
        machine.disks[1].set_faults(Faults { is_dead: true, ..Faults::default() });
        assert!(matches!(store.settle(since).await, Err(StoreError::Dropped { .. })));
        assert!(packs_of(&store).contains(&waiting[0]), "some are lost on disk 1");
        store.commit(store.moment(), b"after", Position(0)).await.unwrap();
        assert!(!store.packs.is_sealed_waiting(), "the index file has it");
    });
    drop(store);
    machine.world.crash();
    machine.world.restart();
    machine.disks[1].set_faults(Faults::default());
    let store = with_long_packs(&machine);
    machine.run(async {
        for (content, address) in contents.iter().zip(&addresses) {
            assert!(store.packs.index.lookup(address, &store.packs.counters).unwrap().is_some());
            assert_eq!(store.get(Class::Data, address).await.unwrap(), content);
        }
    });
}

/// where a pack that waited and one that was filled meanwhile have the same chunk, the later place is named; and where that has gone
/// before the index file heard of the one that waited, the place there is.
#[test]
fn of_two_packs_with_a_chunk_the_later_is_named_and_then_the_one_that_is_left() {
    for goes in [false, true] {
        let machine = Machine::new(8, 2, 64 << 20);
        let store = with_long_packs(&machine);
        let contents: Vec<Bytes> = (0..20).map(|number| content(number * 2, 30_000)).collect();
        let addresses: Vec<_> = contents.iter().map(|content| store.key().address(content)).collect();
        let expect_in = |pack: u64, when: &str| {
            for address in &addresses {
                let place = store.packs.index.lookup(address, &store.packs.counters).unwrap();
                assert_eq!(place.map(|place| place.pack), Some(pack), "{when}");
            }
        };
        machine.run(async {
            // Pack 1 on disk 0; then all in pack 2 on disk 1, with more that is written and not durable when the disk fills.
            store
                .put_many(Class::Data, (0..40).map(|number| content(2000 + number * 2, 30_000)).collect())
                .await
                .unwrap();
            store.put_many(Class::Data, contents.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            expect_in(2, "at first");
            store.put(Class::Data, &content(1001, 100_000)).await.unwrap();
            let filled = &machine.disks[1];
            let space = filled.disk().space().unwrap();
            filled.set_capacity(space.total - space.free);
            store.settle(store.moment()).await.unwrap();
            let state = store.packs.known_pack(2).unwrap().state;
            assert!(matches!(state, PackState::Open(pack) if pack.is_found()), "it waits");
            // As if each had been found rotten.
            addresses.iter().for_each(|address| store.packs.doubt(*address));
            store.put_many(Class::Data, contents.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            expect_in(1, "put again");
            if goes {
                // What the cut frees is no room there.
                filled.set_capacity(1 << 19);
                store.packs.seal_on(DiskSet::of(0)).await;
                store.commit(store.moment(), b"one", Position(0)).await.unwrap();
                assert!(addresses.iter().all(|address| store.packs.index.recent(address).is_none()));
                expect_in(1, "in the file");
            }
            filled.set_capacity(64 << 20);
            assert!(store.packs.seal_all().await);
            if goes {
                let change = Change { removed: vec![(1, addresses.clone())], ..Change::default() };
                store.packs.index.commit(&store.pool.for_index().disk, &change, &store.counters).unwrap();
            }
            store.commit(store.moment(), b"both", Position(0)).await.unwrap();
            assert!(!store.packs.is_sealed_waiting(), "the index file has them");
            assert!(addresses.iter().all(|address| store.packs.index.recent(address).is_none()));
            expect_in(if goes { 2 } else { 1 }, "in the end");
        });
    }
}
