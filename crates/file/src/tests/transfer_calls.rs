//! Each call to a disk fails once, by itself, whichever it is (M-9), under a stream that is sent or that arrives.
//!
//! What is received is a snapshot or none, and the stream may come again; what is sent is the whole stream or ends with the disk's failure, and the
//! snapshot is let go of. Nothing else on either node has changed.

use std::sync::Arc;

use base::id::FileId;
use platform::disk::DiskErrorKind;

use super::calls::{KINDS, expect_excused, options};
use super::content::pattern;
use super::transfer::{History, beside, expect_same, receive, send};
use super::{Machine, create, read_all};
use crate::{FileSystem, Kind, Node, Options, Sending, TransferError};

/// Calls of each kind of failure, spread evenly.
const CALLS: u64 = 30;

/// Nothing is read from memory.
fn cold() -> Options {
    let mut options = Options { dirty_bytes_max: 16 << 20, inodes_max: 1, ..Options::default() };
    options.store.cache_bytes = 0;
    options.store.index_cache_bytes = 0;
    options
}

fn sender(seed: u64) -> (Machine, Arc<FileSystem>) {
    let machine = Machine::with(seed, 1 << 30, cold());
    let system = machine.open();
    machine.run(async {
        History::new(12).go_on(&system, 200).await;
        system.snapshot("s").await.unwrap();
    });
    let system = machine.power_cycle(system);
    (machine, system)
}

/// What is not to fail any more.
fn calm(machine: &Machine) {
    machine.world.fail_at(u64::MAX, DiskErrorKind::Failed);
}

/// How many operations it was, and whether it was noticed. `fails`: which of them fails, and how.
fn arrive((here, one): (&Machine, &FileSystem), stream: &[u8], fails: Option<(u64, DiskErrorKind)>) -> (u64, bool) {
    let there = Machine { options: options(), ..beside(95, here) };
    let two = there.open();
    let mine = there.run(async {
        let mine = create(&two, FileId::ROOT, "mine", Kind::Regular).await.file;
        two.write(mine, 0, &pattern(100_000, 3), false).await.unwrap();
        two.snapshot("mine").await.unwrap();
        mine
    });
    let begun = there.world.operations();
    if let Some((number, kind)) = fails {
        there.world.fail_at(begun + number, kind);
    }
    let received = receive(&there, &two, stream);
    let done = there.world.operations() - begun;
    calm(&there);
    match (&received, fails) {
        (Ok(_), _) => {}
        // Neither cut nor incomplete: nothing of the stream was wrong.
        (Err(TransferError::File(error)), Some((_, kind))) => expect_excused(error, kind, "receive"),
        (Err(error), _) => panic!("{error}"),
    }
    // The only disk may have been taken out: another life goes on.
    let loses_power = fails.is_some_and(|(number, _)| number % 2 == 0);
    let two = if loses_power { there.power_cycle(two) } else { there.crash(two) };
    let has = two.find_snapshot(b"s").is_some();
    assert!(has || received.is_err(), "a snapshot that was received is gone");
    if !has {
        receive(&there, &two, stream).unwrap();
    }
    expect_same((here, one), (&there, &two), "s");
    there.run(async {
        assert!(read_all(&two, Node::live(mine)).await == pattern(100_000, 3));
        two.reclaim(&crate::Reclaim::default()).await.unwrap();
    });
    there.check(&two);
    expect_same((here, one), (&there, &two), "s");
    (done, received.is_err())
}

#[test]
fn any_call_under_a_stream_that_arrives_may_fail() {
    let here = Machine::new(94);
    let one = here.open();
    here.run(async {
        History::new(12).go_on(&one, 200).await;
        one.snapshot("s").await.unwrap();
    });
    let (stream, _) = send(&here, &one, "s", None);
    let (all, _) = arrive((&here, &one), &stream, None);
    assert!(all > CALLS, "{all} operations");
    for (kind, first) in KINDS.into_iter().zip(1..) {
        let numbers = (first..=all).step_by(usize::try_from(all.div_ceil(CALLS)).unwrap());
        let told = numbers.filter(|number| arrive((&here, &one), &stream, Some((*number, kind))).1).count();
        assert!(told > 0, "no {kind:?} was noticed: the test shows nothing");
    }
}

#[test]
fn any_call_under_a_stream_that_is_sent_may_fail() {
    let whole = {
        let (here, one) = sender(96);
        send(&here, &one, "s", None).0
    };
    let how = Sending { snapshot: "s", from: None, resume: None, tell: &|_| {} };
    let sent = |fails: Option<(u64, DiskErrorKind)>| {
        let (here, one) = sender(96);
        let begun = here.world.operations();
        if let Some((number, kind)) = fails {
            here.world.fail_at(begun + number, kind);
        }
        let mut stream = Vec::new();
        let outcome = here.run(one.send(&how, Some(&mut stream)));
        let done = here.world.operations() - begun;
        calm(&here);
        match (&outcome, fails) {
            (Ok(_), _) => assert!(stream == whole, "another stream"),
            (Err(TransferError::File(error)), Some((_, kind))) => {
                assert!(whole.starts_with(&stream), "it goes on otherwise");
                expect_excused(error, kind, "send");
            }
            (Err(error), _) => panic!("{error}"),
        }
        // It is let go of, by whoever failed, too.
        here.run(async {
            one.delete_snapshot("s").await.unwrap();
            one.snapshot("s").await.unwrap();
        });
        let one = here.power_cycle(one);
        let (_, again) = send(&here, &one, "s", None);
        assert!(again.chunks > 0);
        here.check(&one);
        (done, outcome.is_err())
    };
    let (all, _) = sent(None);
    assert!(all > CALLS, "{all} operations");
    // A call that changes nothing fails in no other way (M-9). What failed once is read again, and nobody hears of it.
    let mut told = 0;
    for (kind, first) in [(DiskErrorKind::Failed, 1), (DiskErrorKind::Silent, 2)] {
        let numbers = (first..=all).step_by(usize::try_from(all.div_ceil(CALLS)).unwrap());
        told += numbers.filter(|number| sent(Some((*number, kind))).1).count();
    }
    assert!(told > 0, "nothing was noticed: the test shows nothing");
}
