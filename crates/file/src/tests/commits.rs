//! When commits come, what they cost, and what a moment in the middle of many changes leaves behind (Ungureanu et al., FAST 2010: the commit server).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::id::FileId;
use platform::sim::Faults;

use super::content::pattern;
use super::{Machine, create, read_all};
use crate::{FileSystem, Kind, Node, Options};

const INTERVAL: Duration = Duration::from_secs(10);
const NEVER: Duration = Duration::from_secs(1 << 20);

fn machine(options: Options) -> Machine {
    Machine::with(61, 1 << 30, options)
}

fn commits(system: &FileSystem) -> u64 {
    system.counters.commit.distribution().count()
}

async fn files(system: &FileSystem, count: usize) -> Vec<FileId> {
    let mut files = Vec::new();
    for number in 0..count {
        files.push(create(system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await.file);
    }
    files
}

#[test]
fn a_commit_comes_once_in_an_interval_if_there_is_something_to_commit() {
    let machine = machine(Options { commit_interval: INTERVAL, ..Options::default() });
    let system = machine.open();
    machine.run(async {
        let tasks = machine.world.platform().tasks;
        files(&system, 1).await;
        let before = commits(&system);
        tasks.sleep(INTERVAL / 2).await;
        assert_eq!(commits(&system), before);
        tasks.sleep(INTERVAL).await;
        assert_eq!(commits(&system), before + 1);
        tasks.sleep(INTERVAL * 5).await;
        assert_eq!(commits(&system), before + 1, "there was nothing to commit");
    });
}

#[test]
fn a_commit_comes_at_once_when_there_is_enough() {
    let of_bytes = Options { commit_journal_bytes: 64 << 10, ..Options::default() };
    let of_files = Options { uncommitted_files_max: 40, ..Options::default() };
    for options in [of_bytes, of_files] {
        let machine = machine(Options { commit_interval: NEVER, ..options });
        let system = machine.open();
        machine.run(async {
            let tasks = machine.world.platform().tasks;
            // Far from enough.
            let few = files(&system, 8).await;
            tasks.sleep(Duration::from_secs(60)).await;
            let before = commits(&system);
            for number in 0..30 {
                let directory = create(&system, FileId::ROOT, &format!("d{number}"), Kind::Directory).await.file;
                create(&system, directory, "inside", Kind::Regular).await;
                system.write(few[number % few.len()], 0, &pattern(4096, number as u64), false).await.unwrap();
                system.sync(few[number % few.len()]).await.unwrap();
            }
            tasks.sleep(Duration::from_secs(1)).await;
            assert!(commits(&system) > before, "a second later");
            assert!(!system.is_commit_due());
        });
    }
}

/// What a commit costs goes by the files that changed, and not by how often they did; what lies in them it does not read.
#[test]
fn many_records_of_a_file_cost_a_commit_as_much_as_one_and_no_content_is_read() {
    let machine = machine(Options { commit_interval: NEVER, ..Options::default() });
    let system = machine.open();
    let changed = |records: u64| {
        machine.run(async {
            let files = files_of(&system).await;
            for record in 0..records {
                for (number, file) in files.iter().enumerate() {
                    let at = 100_000 + record * 5000 + number as u64 * 7;
                    system.write(*file, at, &pattern(100, record), false).await.unwrap();
                    system.sync(*file).await.unwrap();
                }
            }
            let counters = system.store.counters();
            let count =
                || (counters.cache_data_hits.value() + counters.cache_data_misses.value(), counters.chunks_put.value());
            let (reads, puts) = count();
            system.commit().await.unwrap();
            let (reads_then, puts_then) = count();
            assert_eq!(reads_then, reads, "chunks of content that the commit asked for");
            puts_then - puts
        })
    };
    let (one, many) = (changed(1), changed(64));
    // A chunk of what was written for each record, and then as many nodes as before.
    assert!(one > FILES as u64 && many > FILES as u64 * 64, "{one}, {many}: nodes were put, and all of the content");
    let nodes = |chunks: u64, records: u64| chunks.saturating_sub(FILES as u64 * records);
    assert!(nodes(many, 64) <= 4 * nodes(one, 1).max(1), "{one}, {many}");
}

const FILES: usize = 5;

/// Files of 1 MB that are stored.
async fn files_of(system: &FileSystem) -> Vec<FileId> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let name = format!("large{number}");
        let file = match system.lookup(Node::live(FileId::ROOT), name.as_bytes()).await {
            Ok((node, _)) => node.file,
            Err(_) => create(system, FileId::ROOT, &name, Kind::Regular).await.file,
        };
        if system.attributes(Node::live(file)).await.unwrap().size == 0 {
            system.write(file, 0, &pattern(1_000_000, number as u64), false).await.unwrap();
        }
        files.push(file);
    }
    system.sync_all().await.unwrap();
    system.commit().await.unwrap();
    files
}

/// The three cases of the paper: all records of a file are before T (it is clean then), some are (it stays, with the rest), or none (it is not touched).
#[test]
fn what_comes_in_the_middle_of_a_commit_waits_for_the_next_one() {
    let machine = machine(Options { commit_interval: NEVER, ..Options::default() });
    let system = machine.open();
    let files = machine.run(async {
        let files = files(&system, 4).await;
        system.commit().await.unwrap();
        assert_eq!(system.uncommitted_files(), 0);
        files
    });
    let [before, both, after, untouched] = files[..] else { unreachable!("four were made") };
    let write = async |system: &FileSystem, file, at: u64, bytes: &[u8]| {
        system.write(file, at, bytes, false).await.unwrap();
        system.sync(file).await.unwrap();
    };
    machine.run(async {
        write(&system, before, 0, b"before").await;
        write(&system, both, 0, b"before").await;
    });
    let written = system.counters.commit_inodes.value();
    machine.disk.set_faults(Faults { latency: Duration::from_millis(50), ..Faults::default() });
    machine.run(async {
        let mut commit = pin!(system.commit());
        let is_done = poll_fn(|context| Poll::Ready(commit.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "its moment is over, and it waits for the disk");
        let mut rest = pin!(async {
            write(&system, both, 6, b" and after").await;
            write(&system, after, 0, b"after").await;
        });
        let (mut is_committed, mut is_written) = (false, false);
        poll_fn(|context| {
            is_written = is_written || rest.as_mut().poll(context).is_ready();
            if is_written && !is_committed {
                is_committed = commit.as_mut().poll(context).map(|done| done.unwrap()).is_ready();
            }
            if is_committed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    machine.disk.set_faults(Faults::default());
    assert_eq!(system.counters.commit_inodes.value() - written, 2, "files that had records before T");
    assert_eq!(system.uncommitted_files(), 2, "files that have records after T");
    let expect = |system: &Arc<FileSystem>| {
        for (file, content) in
            [(before, &b"before"[..]), (both, b"before and after"), (after, b"after"), (untouched, b"")]
        {
            assert_eq!(machine.run(read_all(system, Node::live(file))), content);
        }
    };
    expect(&system);
    // What came after T is in the journal alone.
    let system = machine.power_cycle(system);
    expect(&system);
    machine.run(system.commit()).unwrap();
    assert_eq!(system.uncommitted_files(), 0);
    machine.check(&system);
    expect(&system);
}
