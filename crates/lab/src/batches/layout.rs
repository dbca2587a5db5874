//! How ext4 lays out and reads small files, for the times of the same disk: an inode's part of its table and then the data, for each file.
//!
//! Groups of 128 MiB with 8192 inodes. A directory's files have their inodes in its group, and a group is filled before the next. A table is
//! read 128 KiB at a time (inode_readahead_blks), and what was read stays in memory. Small files are allocated when they are written back,
//! one behind the other (the locality group of mballoc), so data lies in the order in which files were created.
//!
//! What is written back is written in the order of the calls; inodes follow at the end, in order. The journal is left out.

use std::collections::BTreeSet;
use std::time::Duration;

use platform::sim::{Placed, Platter, Spindle};

use super::{Operation, Set};

const GROUP_BYTES: u64 = 128 << 20;
const GROUP_INODES: usize = 8192;
const INODE_BYTES: u64 = 256;
/// What is read of a table at once.
const TABLE_PART_BYTES: u64 = 128 << 10;
/// Where data begins in a group.
const TABLE_BYTES: u64 = GROUP_INODES as u64 * INODE_BYTES;
/// The most in a request.
const REQUEST_BYTES: u64 = 512 << 10;

/// The disk's time for this.
pub(super) fn one_by_one(set: &Set, operation: Operation) -> (Duration, Vec<Placed>) {
    let mut spindle = Spindle::new(Platter::SAS_7200);
    let places = data_places(set);
    let mut now = Duration::ZERO;
    // Parts of tables that are in memory, or are to be written.
    let mut parts = BTreeSet::new();
    let (seed, is_write) = match operation {
        Operation::Create => (1, true),
        Operation::Overwrite => (2, true),
        Operation::Read => (3, false),
    };
    for number in set.order_of(seed) {
        let part = table_part(number);
        if parts.insert(part) && !matches!(operation, Operation::Create) {
            now = spindle.request(now, part, TABLE_PART_BYTES, false);
        }
        now = data(&mut spindle, now, places[number], set.file_bytes as u64, is_write);
    }
    if is_write {
        now = parts.iter().fold(now, |now, part| spindle.request(now, *part, TABLE_PART_BYTES, true));
        now = spindle.sync(now);
    }
    (now, spindle.take())
}

fn data(spindle: &mut Spindle, now: Duration, place: u64, bytes: u64, is_write: bool) -> Duration {
    let requests = (0..bytes).step_by(REQUEST_BYTES as usize);
    requests.fold(now, |now, at| spindle.request(now, place + at, REQUEST_BYTES.min(bytes - at), is_write))
}

/// Where the data of each file lies.
fn data_places(set: &Set) -> Vec<u64> {
    let mut places = vec![0; set.files];
    let mut at = 0;
    for number in set.order_of(1) {
        let room = GROUP_BYTES - TABLE_BYTES;
        // A file does not go over the end of a group here.
        if at % room + set.file_bytes as u64 > room {
            at = (at / room + 1) * room;
        }
        places[number] = at / room * GROUP_BYTES + TABLE_BYTES + at % room;
        at += set.file_bytes as u64;
    }
    places
}

/// The part of a table that holds this file's inode.
fn table_part(number: usize) -> u64 {
    let (group, index) = ((number / GROUP_INODES) as u64, (number % GROUP_INODES) as u64);
    group * GROUP_BYTES + index * INODE_BYTES / TABLE_PART_BYTES * TABLE_PART_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::Order;
    use super::{Operation, Set, data_places, one_by_one};

    #[test]
    fn data_lies_in_the_order_of_creation_and_nothing_over_another() {
        let set = Set { files: 40_000, file_bytes: 4 << 10, order: Order::Random, published: [0.0; 4] };
        let places = data_places(&set);
        let created: Vec<u64> = set.order_of(1).into_iter().map(|number| places[number]).collect();
        assert!(created.windows(2).all(|two| two[1] >= two[0] + (4 << 10)));
    }

    #[test]
    fn random_reads_seek_for_each_file_and_reads_in_order_do_not() {
        let set = |order| Set { files: 4000, file_bytes: 4 << 10, order, published: [0.0; 4] };
        let each = |order| one_by_one(&set(order), Operation::Read).0.as_secs_f64() * 1e3 / 4000.0;
        assert!(each(Order::Random) > 4.0, "{} ms", each(Order::Random));
        assert!(each(Order::Listed) < 0.5, "{} ms", each(Order::Listed));
    }
}
