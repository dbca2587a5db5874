//! Content: layers, holes, sizes, and what a crash leaves of them.

use base::id::FileId;

use super::{Machine, create, find, read_all};
use crate::{Allocate, AttributeChange, FileError, Kind, Node, Options, Seek, WriteHow, Written};

pub(super) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length).map(|_| (next() >> 32) as u8).collect()
}

#[test]
fn what_is_written_is_read_in_every_layer() {
    let machine = Machine::new(3);
    let mut system = machine.open();
    let mut expected = pattern(700_000, 1);
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 0, &expected, false).await.unwrap();
        // Into the tree, then journaled inline on top, then accepted on top of that.
        system.commit().await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        system.write(file, 300_000, b"journaled", false).await.unwrap();
        system.sync(file).await.unwrap();
        system.write(file, 300_005, b"accepted", false).await.unwrap();
        expected[300_000..300_009].copy_from_slice(b"journaled");
        expected[300_005..300_013].copy_from_slice(b"accepted");
        assert!(read_all(&system, Node::live(file)).await == expected);
        let mut middle = [0; 20];
        assert_eq!(system.read(Node::live(file), 299_998, &mut middle).await.unwrap(), 20);
        assert_eq!(middle[..], expected[299_998..300_018]);
        system.sync(file).await.unwrap();
    });
    system = machine.power_cycle(system);
    let node = machine.run(find(&system, "f")).unwrap();
    assert!(machine.run(read_all(&system, node)) == expected);
    machine.check(&system);
    machine.run(system.close()).unwrap();
    system = machine.power_cycle(system);
    assert!(machine.run(read_all(&system, node)) == expected);
    machine.check(&system);
}

#[test]
fn a_write_around_caches_says_whether_attributes_of_before_it_were_given() {
    let machine = Machine::new(4);
    let mut system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        let around = WriteHow { is_around_caches: true, clears_set_id: false };
        let outdates = async |how| system.write_telling(file, 0, b"x", how).await.unwrap().outdated_attributes;
        assert!(outdates(around).await, "given when it was made");
        assert!(!outdates(around).await, "told by the one before");
        system.attributes(Node::live(file)).await.unwrap();
        assert!(!outdates(WriteHow::default()).await, "who writes through caches has them told");
        assert!(outdates(around).await && !outdates(around).await, "and takes nothing away from the next");
        find(&system, "f").await.unwrap();
        assert!(outdates(around).await, "given with its name");

        let mode = |mode| AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        let clears = WriteHow { clears_set_id: true, ..WriteHow::default() };
        for (before, cleared_set_id) in [(0o4711, true), (0o2711, true), (0o2701, false), (0o711, false)] {
            system.set_attributes(file, &mode(before)).await.unwrap();
            let written = system.write_telling(file, 0, b"x", clears).await.unwrap();
            assert_eq!(written, Written { cleared_set_id, outdated_attributes: false }, "{before:o}");
        }
        system.sync_all().await.unwrap();
        assert!(outdates(around).await && !outdates(around).await);
    });
    system = machine.power_cycle(system);
    let node = machine.run(find(&system, "f")).unwrap();
    let around = WriteHow { is_around_caches: true, clears_set_id: false };
    let written = machine.run(system.write_telling(node.file, 0, b"x", around)).unwrap();
    assert!(written.outdated_attributes, "nobody knows what was given before");
    machine.check(&system);
}

#[test]
fn what_a_caller_puts_into_our_buffer_is_written_as_if_it_were_copied() {
    let machine = Machine::new(5);
    let mut system = machine.open();
    let run = system.write_by_bytes(u64::MAX);
    let (mut expected, mut salt) = (Vec::new(), 0);
    // Whole buffers in a row, little at the end; whole ones over what is there, in place, across two, at an odd place, behind a hole; nothing.
    let pieces = [
        (0, run),
        (run, run),
        (2 * run, 1000),
        (run, run),
        (run / 2, run),
        (run + 77, run - 3),
        (5 * run, run),
        (4 * run + 5, run),
        (100, 7),
        (9 * run, 0),
    ];
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        for round in 0..2 {
            for (offset, length) in pieces {
                salt += 1;
                let data = pattern(length, salt);
                // More is asked for than there is, sometimes.
                let asked = (length + salt as usize % 2 * 1000).min(run);
                let fill = |buffer: &mut [u8]| {
                    buffer[..length].copy_from_slice(&data);
                    length
                };
                assert_eq!(system.write_by(file, offset as u64, asked, fill).await.unwrap(), length);
                if length > 0 {
                    expected.resize(expected.len().max(offset + length), 0);
                    expected[offset..offset + length].copy_from_slice(&data);
                }
            }
            assert!(read_all(&system, Node::live(file)).await == expected, "round {round}");
            // The buffers of the next round were used before.
            system.sync_all().await.unwrap();
            assert_eq!(system.dirty_bytes(), 0);
        }
    });
    system = machine.power_cycle(system);
    let node = machine.run(find(&system, "f")).unwrap();
    assert!(machine.run(read_all(&system, node)) == expected);
    machine.check(&system);
}

#[test]
fn holes_read_as_zeroes_and_take_no_space() {
    let machine = Machine::new(4);
    let system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "sparse", Kind::Regular).await.file;
        let node = Node::live(file);
        let far = 1_u64 << 43;
        system.write(file, far, &[7; 8192], false).await.unwrap();
        for is_committed in [false, true] {
            let attributes = system.attributes(node).await.unwrap();
            assert_eq!((attributes.size, attributes.allocated), (far + 8192, 8192), "committed: {is_committed}");
            assert_eq!(system.seek(node, 5, Seek::Data).await.unwrap(), far);
            assert_eq!(system.seek(node, 0, Seek::Hole).await.unwrap(), 0);
            assert_eq!(system.seek(node, far, Seek::Hole).await.unwrap(), far + 8192);
            assert!(matches!(system.seek(node, far + 8192, Seek::Data).await, Err(FileError::NoSuchOffset)));
            let mut bytes = [1; 100];
            assert_eq!(system.read(node, 1 << 30, &mut bytes).await.unwrap(), 100);
            assert_eq!(bytes, [0; 100]);
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
        }
        system.allocate(file, Allocate::Punch, far + 4096, 4096).await.unwrap();
        assert_eq!(system.attributes(node).await.unwrap().allocated, 4096);
        system.allocate(file, Allocate::Reserve { keep_size: true }, 0, 1 << 20).await.unwrap();
        assert_eq!(system.attributes(node).await.unwrap().allocated, 4096 + (1 << 20));
        let smaller = AttributeChange { size: Some(10), ..AttributeChange::default() };
        assert_eq!(system.set_attributes(file, &smaller).await.unwrap().allocated, 10);
        let larger = AttributeChange { size: Some(5000), ..AttributeChange::default() };
        let attributes = system.set_attributes(file, &larger).await.unwrap();
        assert_eq!((attributes.size, attributes.allocated), (5000, 10));
    });
    machine.check(&system);
}

#[test]
fn a_truncated_file_shows_nothing_of_what_it_held() {
    let machine = Machine::new(5);
    let mut system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 0, &pattern(100_000, 2), false).await.unwrap();
        system.sync_all().await.unwrap();
        let size = |size| AttributeChange { size: Some(size), ..AttributeChange::default() };
        system.set_attributes(file, &size(50_000)).await.unwrap();
        system.set_attributes(file, &size(90_000)).await.unwrap();
        system.sync(file).await.unwrap();
        file
    });
    let mut expected = pattern(100_000, 2)[..50_000].to_vec();
    expected.resize(90_000, 0);
    for _ in 0..2 {
        assert!(machine.run(read_all(&system, Node::live(file))) == expected);
        machine.check(&system);
        system = machine.power_cycle(system);
    }
}

#[test]
fn equal_content_is_stored_once_and_copies_share() {
    let machine = Machine::new(6);
    let system = machine.open();
    machine.run(async {
        let bytes = pattern(2_000_000, 3);
        let first = create(&system, FileId::ROOT, "a", Kind::Regular).await.file;
        let second = create(&system, FileId::ROOT, "b", Kind::Regular).await.file;
        let third = create(&system, FileId::ROOT, "c", Kind::Regular).await.file;
        system.write(first, 0, &bytes, false).await.unwrap();
        system.sync_all().await.unwrap();
        let before = system.store.counters().new_bytes.value();
        system.write(second, 0, &bytes, false).await.unwrap();
        system.sync_all().await.unwrap();
        assert_eq!(system.copy_range(Node::live(first), 1000, third, 77, 500_000).await.unwrap(), 500_000);
        assert_eq!(system.store.counters().new_bytes.value(), before);
        let copied = read_all(&system, Node::live(third)).await;
        assert!(copied[..77] == [0; 77] && copied[77..] == bytes[1000..501_000]);
    });
    machine.check(&system);
}

/// A truncation behind accepted data leaves the logged size where it was, and below the new size a reservation that nobody cut off (I-65).
#[test]
fn what_is_reserved_beyond_the_logged_size_is_counted_once() {
    let machine = Machine::new(7);
    let mut system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.allocate(file, Allocate::Reserve { keep_size: true }, 3603, 70).await.unwrap();
        system.write(file, 0, &[1; 97], false).await.unwrap();
        let larger = AttributeChange { size: Some(6326), ..AttributeChange::default() };
        assert_eq!(system.set_attributes(file, &larger).await.unwrap().size, 6326);
        system.sync_journal().await.unwrap();
        file
    });
    system = machine.power_cycle(system);
    machine.run(async {
        let attributes = system.attributes(Node::live(file)).await.unwrap();
        assert_eq!((attributes.size, attributes.allocated), (0, 70));
        system.write(file, 0, &[2; 5000], false).await.unwrap();
        assert_eq!(system.attributes(Node::live(file)).await.unwrap().allocated, 5000);
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    });
    machine.check(&system);
    system = machine.power_cycle(system);
    assert_eq!(machine.run(system.attributes(Node::live(file))).unwrap().allocated, 5000);
}

/// A hole over more extents than memory should hold: they go some at a time, and what lies beside it stays.
#[test]
fn a_hole_may_hide_any_number_of_extents() {
    const EXTENTS: u64 = 20_000;
    const STRIDE: u64 = 8192;
    let machine = Machine::new(25);
    let system = machine.open();
    let (punched, cut) = machine.run(async {
        let mut files = Vec::new();
        for name in ["punched", "cut"] {
            let file = create(&system, FileId::ROOT, name, Kind::Regular).await.file;
            for number in 0..EXTENTS {
                system.write(file, number * STRIDE, &pattern(100, number), false).await.unwrap();
            }
            files.push(file);
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        let hole = 2 * STRIDE + 50..(EXTENTS - 2) * STRIDE + 50;
        system.allocate(files[0], Allocate::Punch, hole.start, hole.end - hole.start).await.unwrap();
        let size = AttributeChange { size: Some(STRIDE + 50), ..AttributeChange::default() };
        system.set_attributes(files[1], &size).await.unwrap();
        system.commit().await.unwrap();
        (files[0], files[1])
    });
    machine.check(&system);
    let system = machine.power_cycle(system);
    machine.run(async {
        let mut bytes = read_all(&system, Node::live(punched)).await;
        for number in [0, 1, 2, EXTENTS - 2, EXTENTS - 1] {
            let seen = &mut bytes[(number * STRIDE) as usize..][..100];
            let mut expected = pattern(100, number);
            match number {
                2 => expected[50..].fill(0),
                number if number == EXTENTS - 2 => expected[..50].fill(0),
                _ => {}
            }
            assert_eq!(seen, expected, "{number}");
            seen.fill(0);
        }
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(system.attributes(Node::live(punched)).await.unwrap().allocated, 400);
        let bytes = read_all(&system, Node::live(cut)).await;
        assert_eq!((bytes.len() as u64, &bytes[STRIDE as usize..]), (STRIDE + 50, &pattern(100, 1)[..50]));
        assert_eq!(system.attributes(Node::live(cut)).await.unwrap().allocated, 150);
    });
}

/// Until the next commit it is in the table, and its tree is the committed one.
#[test]
fn who_has_a_file_open_reads_it_and_nobody_reads_one_that_is_no_more() {
    let machine = Machine::new(9);
    let system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        let copy = create(&system, FileId::ROOT, "copy", Kind::Regular).await.file;
        let (node, bytes) = (Node::live(file), pattern(300_000, 1));
        system.write(file, 0, &bytes, false).await.unwrap();
        system.commit().await.unwrap();
        system.write(file, 0, b"newer", false).await.unwrap();
        system.retain(node);
        system.remove_file(FileId::ROOT, b"f").await.unwrap();
        let read = read_all(&system, node).await;
        assert!(read[..5] == *b"newer" && read[5..] == bytes[5..]);
        let inode = system.inode(node).await.unwrap();
        system.forget(node, 1).await.unwrap();
        let mut buffer = [7; 10];
        assert!(matches!(system.read(node, 100, &mut buffer).await, Err(FileError::NoEntry)));
        assert!(matches!(system.seek(node, 0, Seek::Hole).await, Err(FileError::NoEntry)));
        assert!(matches!(system.copy_range(node, 0, copy, 0, 1000).await, Err(FileError::NoEntry)));
        assert!(matches!(system.allocated_ranges(&inode, 0..1000).await, Err(FileError::NoEntry)));
        assert!(matches!(system.layers(&inode, 0..1000).await, Err(FileError::NoEntry)));
        assert_eq!(buffer, [7; 10]);
    });
    machine.check(&system);
}

/// A file of many extents is written over, in many places and then in one: a commit holds some of them at a time.
#[test]
fn what_lies_over_many_extents_is_committed_in_steps() {
    const PAGE: u64 = 4096;
    const PAGES: u64 = 20_000;
    const RUN_PAGES: u64 = 64;
    let machine = Machine::with(87, 2 << 30, Options { access_times: false, ..Options::default() });
    let mut system = machine.open();
    let file = machine.run(async {
        let [small, large, file] = ["small", "large", "file"];
        let [small, large, file] = [
            create(&system, FileId::ROOT, small, Kind::Regular).await.file,
            create(&system, FileId::ROOT, large, Kind::Regular).await.file,
            create(&system, FileId::ROOT, file, Kind::Regular).await.file,
        ];
        let pages = pattern(8 * PAGE as usize, 1);
        let page_of = |number: u64| number * 3 % 8 * PAGE;
        system.write(small, 0, &pages, false).await.unwrap();
        let other = pattern(1 << 20, 2);
        for at in 0..PAGES * PAGE / (1 << 20) + 1 {
            system.write(large, at << 20, &other, false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        // No two of them go on in each other.
        for number in 0..PAGES {
            system.copy_range(Node::live(small), page_of(number), file, number * PAGE, PAGE).await.unwrap();
        }
        system.commit().await.unwrap();
        let mut expected: Vec<u8> =
            (0..PAGES).flat_map(|number| &pages[page_of(number) as usize..][..PAGE as usize]).copied().collect();
        assert!(read_all(&system, Node::live(file)).await == expected);
        let mut over = async |from: u64, to: u64| {
            let mut at = from;
            while at < to {
                at += system.copy_range(Node::live(large), at, file, at, to - at).await.unwrap();
            }
            for at in from..to {
                expected[at as usize] = other[at as usize % other.len()];
            }
        };
        for run in 0..PAGES / (RUN_PAGES + 1) {
            let at = run * (RUN_PAGES + 1) * PAGE + 100;
            over(at, at + RUN_PAGES * PAGE).await;
        }
        system.commit().await.unwrap();
        over(2 * PAGE + 50, (PAGES - 2) * PAGE + 50).await;
        let scattered = system.attributes(Node::live(file)).await.unwrap().allocated;
        system.commit().await.unwrap();
        assert_eq!((scattered, expected.len() as u64), (PAGES * PAGE, PAGES * PAGE));
        assert_eq!(system.attributes(Node::live(file)).await.unwrap().allocated, PAGES * PAGE);
        assert!(read_all(&system, Node::live(file)).await == expected);
        file
    });
    machine.check(&system);
    system = machine.power_cycle(system);
    machine.run(async {
        assert_eq!(read_all(&system, Node::live(file)).await.len() as u64, PAGES * PAGE);
    });
    machine.check(&system);
}
