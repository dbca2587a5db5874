//! What is foreseen of those who read directories.

use base::id::FileId;

use super::{DIRECTORIES, JUDGED, READ_MIN, READS_MAX, Siblings, TRUST, Wish};
use crate::attributes::Node;

const BYTES: u64 = 4096;
const MAX: u64 = 8 << 20;

fn directory(number: u64) -> Node {
    Node::live(FileId::main(number))
}

/// The wish comes true for the files from its cookie on, where cookies are the files' numbers.
fn fulfil(siblings: &Siblings, of: Node, wish: &Wish, end: u64) -> u64 {
    let files = wish.files.min(wish.bytes / BYTES).min(end - wish.after);
    let next = wish.after + files;
    siblings.asked(of, wish, (wish.after..next).map(|file| (file, BYTES)), (next < end).then_some(next));
    files
}

#[test]
fn who_reads_a_directory_has_the_rest_read_ahead_by_and_by() {
    let siblings = Siblings::new(MAX);
    let (mut asked, mut was_ahead) = (0, 0);
    for file in 0..5000 {
        let noted = siblings.note(directory(1), file, true);
        assert!(file >= READ_MIN - 1 || noted.wish.is_none());
        assert_eq!(noted.wasted, 0);
        was_ahead += u64::from(noted.was_ahead);
        if let Some(wish) = noted.wish {
            asked += fulfil(&siblings, directory(1), &wish, 5000);
        }
        assert!(asked <= (file + 1) * TRUST && (asked - was_ahead) * BYTES <= MAX + READ_MIN * BYTES);
    }
    assert_eq!((asked, was_ahead), (5000, 5000 - READ_MIN));
}

#[test]
fn in_any_order_too() {
    let siblings = Siblings::new(MAX);
    let mut was_ahead = 0;
    for number in 0..1009_u64 {
        let noted = siblings.note(directory(1), number * 367 % 1009, true);
        was_ahead += u64::from(noted.was_ahead);
        if let Some(wish) = noted.wish {
            fulfil(&siblings, directory(1), &wish, 1009);
        }
    }
    assert!(was_ahead > 980, "{was_ahead}");
}

#[test]
fn a_wrong_guess_costs_little_and_is_given_up() {
    let siblings = Siblings::new(MAX);
    let (mut asked, mut wasted) = (0, 0);
    // Files that no listing of what was read ahead has.
    for file in 0..4000 {
        let noted = siblings.note(directory(1), 1_000_000 + file, true);
        wasted += noted.wasted;
        if let Some(wish) = noted.wish {
            assert!(file < JUDGED + READ_MIN);
            asked += fulfil(&siblings, directory(1), &wish, 900_000);
        }
    }
    assert_eq!(asked, wasted);
    assert!(asked * BYTES <= MAX && asked > 0);
    // Who ends after a few has cost so many for each.
    let siblings = Siblings::new(MAX);
    let wishes = (0..READ_MIN).filter_map(|file| siblings.note(directory(2), file, true).wish);
    let asked: u64 = wishes.map(|wish| fulfil(&siblings, directory(2), &wish, 900_000)).sum();
    assert_eq!(asked, READ_MIN * TRUST);
}

#[test]
fn the_same_files_again_and_files_here_and_there_are_no_reader_of_a_directory() {
    let siblings = Siblings::new(MAX);
    for number in 0..1000 {
        assert!(siblings.note(directory(1), number % (READ_MIN - 1), true).wish.is_none());
        assert!(siblings.note(directory(10 + number), 7, true).wish.is_none());
    }
    let off = Siblings::new(0);
    assert!(!off.is_on());
}

#[test]
fn what_is_forgotten_is_cancelled_and_wasted() {
    for others in [DIRECTORIES as u64, 1] {
        let siblings = Siblings::new(MAX);
        let wish = (0..READ_MIN).find_map(|file| siblings.note(directory(1), file, true).wish).unwrap();
        let asked = fulfil(&siblings, directory(1), &wish, 900_000);
        let is_cancelled = || wish.is_cancelled.load(std::sync::atomic::Ordering::Relaxed);
        assert!(!is_cancelled());
        let mut wasted: u64 =
            (0..=READS_MAX).map(|read| siblings.note(directory(2 + read % others), read, false).wasted).sum();
        wasted += siblings.note(directory(1), 900, false).wasted;
        assert!(is_cancelled());
        assert_eq!(wasted, asked);
    }
}

#[test]
fn after_much_in_vain_it_takes_more_to_believe_and_less_again_when_it_comes_true() {
    let siblings = Siblings::new(MAX);
    // Five of each directory.
    let mut asked = Vec::new();
    for number in 0..200 {
        let wishes = (0..READ_MIN + 1).filter_map(|file| siblings.note(directory(number), file, true).wish);
        asked.push(wishes.map(|wish| fulfil(&siblings, directory(number), &wish, 300)).sum::<u64>());
    }
    assert!(asked.iter().filter(|asked| **asked > 0).count() <= DIRECTORIES + 1, "{asked:?}");
    // Whole directories: what memory has already is not read ahead.
    let begins = (1000..1030).map(|number| {
        let read = |file| {
            let wish = siblings.note(directory(number), file, true).wish?;
            siblings.asked(directory(number), &wish, (file + 1..300).map(|file| (file, BYTES)), None);
            Some(file)
        };
        (0..300).filter_map(read).collect::<Vec<_>>().first().copied()
    });
    assert_eq!(begins.last(), Some(Some(READ_MIN - 1)));
}
