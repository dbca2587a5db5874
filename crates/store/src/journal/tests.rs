//! Torn tails, at every byte.

use std::collections::BTreeMap;

use base::id::Position;
use base::limits::FRAME_BYTES_MAX;
use platform::disk::{DiskErrorKind, Open};
use platform::sim::{Faults, each_seed};

use crate::format::{FrameHeader, SegmentHeader};
use crate::tests::{Machine, options};
use crate::{Options, Store, StoreError};

/// Frames of one life that are cut off anywhere leave a prefix, and what is logged afterwards follows it.
#[test]
fn a_tail_that_is_torn_anywhere_leaves_a_prefix() {
    each_seed(0..40, |seed| {
        let machine = Machine::new(seed, 1, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            for number in 1..=20_u8 {
                store.log(&vec![number; usize::from(number) * 13]);
            }
            store.sync_log(Position(10)).await.unwrap();
        });
        assert_eq!(store.last_durable(), Position(20), "one group");
        drop(store);
        machine.world.restart();
        let files = machine.disks[0].snapshot_files();
        let (path, bytes) = files.iter().find(|(path, _)| path.starts_with("journal/")).unwrap();
        let end: usize =
            SegmentHeader::FRAMES_AT + (1..=20).map(|number| FrameHeader::frame_bytes(number * 13)).sum::<usize>();
        let frames = end - SegmentHeader::FRAMES_AT;
        let tear = usize::try_from(machine.world.below(frames as u64)).unwrap() + SegmentHeader::FRAMES_AT;
        machine.disks[0].corrupt(path, tear as u64, &vec![0; bytes.len() - tear]);
        let (store, recovered) = machine.open();
        let count = u8::try_from(recovered.frames.len()).unwrap();
        assert!(count < 20);
        for ((position, frame), number) in recovered.frames.iter().zip(1..) {
            assert_eq!((position.0, &frame[..]), (u64::from(number), &vec![number; usize::from(number) * 13][..]));
        }
        let position = store.log(b"after");
        assert_eq!(position, Position(u64::from(count) + 1));
        machine.run(store.sync_log(position)).unwrap();
        drop(store);
        machine.world.restart();
        let (_, recovered) = machine.open();
        assert_eq!(recovered.frames.len(), usize::from(count) + 1);
        assert_eq!(&recovered.frames.last().unwrap().1[..], b"after");
    });
}

/// J-8: what a torn group left behind its gap does not follow what a commit of the next life covers, written or not. R-6: it is not there
/// any more.
#[test]
fn leftovers_of_a_torn_group_never_count_again() {
    for covered in 0..6_u64 {
        let machine = Machine::new(5, 1, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            for number in 1..=5_u8 {
                store.log(&[number; 100]);
            }
            store.sync_log(Position(5)).await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let files = machine.disks[0].snapshot_files();
        let (path, _) = files.iter().find(|(path, _)| path.starts_with("journal/")).unwrap();
        machine.disks[0].corrupt(path, (SegmentHeader::FRAMES_AT + FrameHeader::BYTES) as u64, &[9; 10]);
        let (store, recovered) = machine.open();
        assert_eq!((recovered.frames.len(), recovered.report.frames_cut), (0, 4), "the first of the group is torn");
        machine.run(async {
            for _ in 0..covered {
                store.log(b"of the new life");
            }
            store.commit(store.moment(), b"roots", Position(covered)).await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let (_, recovered) = machine.open();
        assert_eq!((recovered.covered, recovered.frames.len()), (Position(covered), 0));
        assert_eq!(recovered.report.frames_cut, 0);
    }
}

/// what is erased may be the only witness of the group before it. Whenever the power goes, rot in that group is damage and no torn tail.
#[test]
fn what_lies_before_a_torn_group_stays_known() {
    for cut in 1.. {
        let machine = Machine::new(6, 1, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            for group in 0..3_u8 {
                for number in 1..=3 {
                    store.log(&[group * 3 + number; 100]);
                }
                store.sync_log(store.last_logged()).await.unwrap();
            }
        });
        drop(store);
        machine.world.restart();
        let rot = |number: u8| {
            let files = machine.disks[0].snapshot_files();
            let place = |(path, bytes): (&String, &Vec<u8>)| {
                let at = bytes.windows(100).position(|window| window == [number; 100])?;
                path.starts_with("journal/").then(|| (path.clone(), at as u64))
            };
            let (path, at) = files.iter().find_map(place).expect("the frame is there");
            machine.disks[0].flip_bit(&path, at, 1);
        };
        // The first of the last group, as if it had been torn.
        rot(7);
        machine.world.cut_power_at(machine.world.operations() + cut);
        let (platform, disks) = (machine.world.platform(), machine.handles());
        let opened = machine.world.run_until(Store::open(&platform, &disks, options())).unwrap().ok();
        if let Some((_, recovered)) = &opened {
            assert_eq!((recovered.frames.len(), recovered.report.frames_cut), (6, 2));
        }
        let is_done = opened.is_some();
        drop(opened);
        machine.world.restart();
        rot(5);
        let refused = machine.try_open().map(drop);
        assert!(matches!(refused, Err(StoreError::FramesLost { first: 5, .. })), "after {cut} operations: {refused:?}");
        if is_done {
            assert!(cut > 10, "the cuts fell into the opening");
            return;
        }
    }
}

/// Segments are used again, and what they held before never counts.
#[test]
fn segments_are_used_again() {
    let machine = Machine::new(1, 1, 128 << 20);
    for life in 0..3 {
        let (store, recovered) = machine.open();
        for (expected, (position, _)) in (recovered.covered.0 + 1..).zip(&recovered.frames) {
            assert_eq!(position.0, expected);
        }
        machine.run(async {
            for round in 0..12_u8 {
                for _ in 0..4 {
                    store.log(&vec![round; 400_000]);
                }
                store.sync_log(store.last_logged()).await.unwrap();
                store.commit(store.moment(), &[life, round], Position(store.last_logged().0 - 2)).await.unwrap();
            }
        });
        let status = store.status();
        assert!(store.counters().log_segments_recycled.value() > 3);
        assert!(status.journal_segments <= 8 && store.journal_bytes() < 2_000_000, "{status:?}");
        drop(store);
        machine.world.restart();
    }
}

/// J-5: a leader that comes after the clean end was written must not make a frame durable that the next opening does not look for.
#[test]
fn nothing_is_written_after_a_close() {
    let machine = Machine::new(2, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        store.log(b"one");
        store.commit(store.moment(), b"roots", Position(1)).await.unwrap();
        store.close().await.unwrap();
        let late = store.log(b"late");
        assert!(store.journal.write_group().await.is_err());
        assert!(store.last_durable() < late && store.sync_log(late).await.is_err());
    });
}

/// Segments whose unused part is full of what looks like frames, as a user's file can be: opening ends soon.
#[test]
fn what_looks_like_frames_does_not_hold_an_opening_up() {
    // Whoever made them knows the positions, and not the life that they are written under. Where the segment's header has rotted the first
    // frame tells the positions; where that has rotted too, anything might be a position; then one of two orders is right by chance.
    let mut refused = 0;
    for (position, durable, rotten) in [
        (5_000_000, 1, vec![]),
        (3, 3, vec![]),
        (3, 1, vec![]),
        (3, 1, vec![20]),
        (1, 3, vec![20]),
        (3, 1, vec![20, SegmentHeader::FRAMES_AT as u64 + 33]),
        (1, 3, vec![20, SegmentHeader::FRAMES_AT as u64 + 33]),
    ] {
        let machine = Machine::new(4, 1, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            store.log(b"one");
            store.sync_log(Position(1)).await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let files = machine.disks[0].snapshot_files();
        let (path, bytes) = files.iter().find(|(_, bytes)| bytes.windows(4).any(|window| window == b"Fram")).unwrap();
        let behind = SegmentHeader::FRAMES_AT + 64;
        let mut fakes = bytes[behind..].to_vec();
        let length = u32::try_from(FRAME_BYTES_MAX / 2).unwrap().to_le_bytes();
        for fake in fakes.chunks_exact_mut(FrameHeader::BYTES) {
            fake[..4].copy_from_slice(&FrameHeader::MAGIC);
            fake[4..8].copy_from_slice(&length);
            fake[16..24].copy_from_slice(&u64::to_le_bytes(position));
            fake[24..32].copy_from_slice(&u64::to_le_bytes(durable));
        }
        machine.disks[0].corrupt(path, behind as u64, &fakes);
        rotten.iter().for_each(|at| machine.disks[0].flip_bit(path, *at, 1));
        match machine.try_open() {
            Ok((_, recovered)) => assert_eq!(recovered.frames.len(), usize::from(rotten.len() < 2)),
            Err(error) => {
                assert!(rotten.len() == 2 && matches!(error, StoreError::FramesLost { first: 1, .. }), "{error}");
                refused += 1;
                // What nobody can tell apart is given up where somebody says so, and for good.
                let given_up = Options { gives_up_frames: true, ..options() };
                let platform = machine.world.platform();
                let (store, recovered) = machine.run(Store::open(&platform, &machine.handles(), given_up)).unwrap();
                assert!(recovered.frames.is_empty() && recovered.report.problems[0].contains("given up"));
                machine.run(async { store.sync_log(store.log(b"after")).await.unwrap() });
                drop(store);
                machine.world.restart();
                let (_, recovered) = machine.open();
                assert_eq!((recovered.frames.len(), recovered.report.problems.len()), (1, 0));
            }
        }
    }
    assert_eq!(refused, 1);
}

/// Segments that nobody needs take room from a disk that may be full: seed 14487.
#[test]
fn what_is_left_of_segments_does_not_stay() {
    let machine = Machine::new(15, 1, 64 << 20);
    let open = |segment_bytes: u64| {
        let (platform, disks) = (machine.world.platform(), machine.handles());
        let options = Options { segment_bytes, ..options() };
        machine.run(Store::open(&platform, &disks, options)).unwrap().0
    };
    let lengths = || -> Vec<usize> {
        let files = machine.disks[0].snapshot_files();
        files.into_iter().filter(|(path, _)| path.starts_with("journal/")).map(|(_, bytes)| bytes.len()).collect()
    };
    let large = 8 << 20;
    for (segment_bytes, has_large) in [(large, true), (0, false)] {
        let store = open(segment_bytes);
        machine.run(async {
            // The superblock before the newest needs what it does not cover.
            for _ in 0..3 {
                store.sync_log(store.log(b"frame")).await.unwrap();
                store.commit(store.moment(), b"", store.last_logged()).await.unwrap();
            }
        });
        drop(store);
        machine.world.restart();
        assert_eq!(lengths().contains(&(large as usize)), has_large, "{:?}", lengths());
    }

    // The power went while one was being made.
    machine.run(async {
        let file = machine.handles()[0].open("journal/00000000000000ff.segment", Open::Create).unwrap();
        file.write_at(0, &[0; 100_000]).await.unwrap();
        file.sync().await.unwrap();
        machine.handles()[0].sync_directory("journal").unwrap();
    });
    assert!(lengths().contains(&100_000));
    let (_store, recovered) = machine.open();
    assert!(recovered.frames.is_empty());
    assert!(!lengths().contains(&100_000), "{:?}", lengths());
}

/// J-4: an opening does not read what only the superblock before the newest needs, so a rotten header there says nothing.
#[test]
fn a_segment_that_was_not_read_is_not_free() {
    let machine = Machine::new(16, 1, 64 << 20);
    let (store, _) = machine.open();
    let frame = |number: u8| vec![number; 1_000_000];
    machine.run(async {
        let first = store.log(&frame(0));
        for number in 1..3 {
            store.log(&frame(number));
        }
        store.sync_log(store.last_logged()).await.unwrap();
        store.commit(store.moment(), b"the older", first).await.unwrap();
        // They begin another segment, and a third one.
        for number in 3..9 {
            store.log(&frame(number));
        }
        store.sync_log(store.last_logged()).await.unwrap();
        store.commit(store.moment(), b"the newer", store.last_logged()).await.unwrap();
    });
    drop(store);
    machine.world.restart();
    let files = machine.disks[0].snapshot_files();
    let beginning = [1; 100];
    let holds_first = |(path, bytes): &(&String, &Vec<u8>)| {
        path.starts_with("journal/") && bytes.windows(100).any(|window| window == beginning)
    };
    let (path, _) = files.iter().find(holds_first).expect("it was written");
    machine.disks[0].flip_bit(path, 0, 1);
    let (store, recovered) = machine.open();
    assert_eq!((recovered.roots.as_slice(), recovered.frames.len()), (b"the newer".as_slice(), 0));
    // It goes to a segment that is free.
    machine.run(async { store.sync_log(store.log(&frame(9))).await.unwrap() });
    drop(store);
    machine.world.restart();
    let superblock = &machine.disks[0].snapshot_files()["superblock"];
    let at = superblock.windows(9).position(|window| window == b"the newer").expect("a slot has it");
    machine.disks[0].flip_bit("superblock", at as u64, 1);
    let (_store, recovered) = machine.open();
    assert_eq!(recovered.roots, b"the older");
    let found: Vec<u8> = recovered.frames.iter().map(|(_, frame)| frame[0]).collect();
    assert_eq!(found, (1..10).collect::<Vec<_>>());
}

/// Two disks have the journal; segments of 4 MiB.
fn on_two_disks(seed: u64) -> (Machine, std::sync::Arc<Store>) {
    let machine = Machine::new(seed, 2, 96 << 20);
    let options = Options { copies: 2, goes_without_disks: true, ..options() };
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap();
    (machine, store)
}

/// Frames that fill segments, and commits that free them. What finds no room is tried once more.
async fn fill_segments(store: &Store, rounds: std::ops::Range<u8>) {
    let may_be_full = |result: Result<(), StoreError>| match result {
        Err(StoreError::Full { .. }) => false,
        result => result.is_ok() || panic!("{result:?}"),
    };
    for round in rounds {
        let last = store.log(&vec![round; 1_000_000]);
        if !may_be_full(store.sync_log(last).await) {
            store.sync_log(last).await.unwrap();
        }
        if !may_be_full(store.commit(store.moment(), b"roots", last).await) {
            store.commit(store.moment(), b"roots", last).await.unwrap();
        }
    }
}

fn segments_of(machine: &Machine, disk: usize) -> BTreeMap<String, Vec<u8>> {
    machine.disks[disk].snapshot_files().into_iter().filter(|(path, _)| path.starts_with("journal/")).collect()
}

/// J-9: whatever call finds no room, that disk is well and stays a home, and no file stays that is of no segment.
#[test]
fn no_room_at_any_call_leaves_the_journal_on_its_disks() {
    let work = |fails: Option<u64>| {
        let (machine, store) = on_two_disks(31);
        let begun = machine.world.operations();
        if let Some(number) = fails {
            machine.world.fail_at(begun + number, DiskErrorKind::Full);
        }
        machine.run(fill_segments(&store, 0..8));
        let good: Vec<usize> = (0..2).filter(|disk| store.pool.disks[*disk].is_good()).collect();
        assert!(good.iter().all(|disk| store.pool.homes().has(*disk)), "operation {fails:?}");
        for disk in &good {
            let segments = segments_of(&machine, *disk);
            assert_eq!(segments.len() as u64, store.journal.segment_count(), "operation {fails:?}");
            assert!(segments == segments_of(&machine, good[0]), "operation {fails:?}: both have the same");
        }
        (machine.world.operations() - begun, good.len())
    };
    let (count, _) = work(None);
    assert!(count > 60, "{count} operations are no work");
    let well = (1..=count).filter(|number| work(Some(*number)).1 == 2).count();
    // Where frames go there is room already: who says that there is none has failed.
    assert!(well > 20, "{well} of {count}");
}

/// J-9: spare segments of homes that are none any more take no room, and keep no others from being kept.
#[test]
fn spares_of_former_homes_go() {
    let (machine, store) = on_two_disks(32);
    machine.run(fill_segments(&store, 0..16));
    let before = segments_of(&machine, 0).len();
    assert!(before > 1, "{before}");
    machine.disks[1].set_faults(Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() });
    machine.run(async {
        for frame in [&b"one home fails"[..], b"one home is left"] {
            store.log(frame);
            store.sync_log(store.last_logged()).await.unwrap();
        }
    });
    assert_eq!(store.pool.homes().iter().collect::<Vec<_>>(), [0]);
    let left = segments_of(&machine, 0);
    assert_eq!(left.len() as u64, store.journal.segment_count());
    // What is freed from here on is used again.
    machine.run(fill_segments(&store, 16..24));
    assert!(store.counters().log_segments_recycled.value() > 0);
    let left = segments_of(&machine, 0);
    assert_eq!(left.len() as u64, store.journal.segment_count());
}
