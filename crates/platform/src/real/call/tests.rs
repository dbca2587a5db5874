//! A device that hangs, as a channel that nobody sends on yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{spawn, yield_now};

use super::{Blocking, Call, Owed, Waiting};
use crate::disk::{DiskError, DiskErrorKind};
use crate::real::block_on;

fn silent() -> DiskError {
    let words = || "it".to_owned();
    DiskError { kind: DiskErrorKind::Silent, operation: "ask", path: words(), detail: words() }
}

/// A call that has begun on a thread and hangs; and what ends it.
fn hung(owed: &Owed) -> (Arc<Call<i32>>, Sender<i32>) {
    let (send, receive): (_, Receiver<i32>) = channel();
    let (tell, has_begun) = channel();
    let call = Call::new(owed, silent(), move || {
        tell.send(()).expect("awaited below");
        Ok(receive.recv().expect("sent by the test"))
    });
    let made = Arc::clone(&call);
    spawn(move || made.run());
    has_begun.recv().expect("it begins");
    (call, send)
}

fn kind(result: Result<i32, DiskError>) -> Result<i32, DiskErrorKind> {
    result.map_err(|error| error.kind)
}

fn until_nothing_is_owed(owed: &Owed) {
    while owed.load(Ordering::SeqCst) > 0 {
        yield_now();
    }
}

/// B-1, B-2.
#[test]
fn a_device_that_was_given_up_is_asked_for_nothing_before_it_has_answered() {
    let owed = Owed::default();
    let (call, end) = hung(&owed);
    let other = Call::new(&owed, silent(), || Ok(7));
    assert!(call.give_up());
    assert!(!call.give_up(), "once");
    assert_eq!(kind(block_on(Waiting::new(Arc::clone(&call), true))), Err(DiskErrorKind::Silent));
    let refused = Call::new(&owed, silent(), || unreachable!());
    assert!(!refused.is_wanted());
    assert_eq!(kind(refused.wait()), Err(DiskErrorKind::Silent));
    // What was under way before may end as it likes.
    other.run();
    assert!(!other.give_up());
    assert_eq!(kind(other.wait()), Ok(7));
    assert_eq!(owed.load(Ordering::SeqCst), 1);
    end.send(1).expect("it hangs");
    until_nothing_is_owed(&owed);
    let next = Call::new(&owed, silent(), || Ok(8));
    next.run();
    assert_eq!(kind(next.wait()), Ok(8));
}

/// B-3: what changes nothing is left alone.
#[test]
fn what_changes_a_disk_is_waited_for_by_who_drops_it() {
    let owed = Owed::default();
    let (call, end) = hung(&owed);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let (waiting, noted) = (Waiting::new(call, true), Arc::clone(&is_dropped));
    let dropper = spawn(move || {
        drop(waiting);
        noted.store(true, Ordering::SeqCst);
    });
    (0..1000).for_each(|_| yield_now());
    assert!(!is_dropped.load(Ordering::SeqCst));
    end.send(1).expect("it hangs");
    dropper.join().expect("no panic");

    let (call, end) = hung(&owed);
    drop(Waiting::new(call, false));
    drop(end);
    // Given up, it is waited for no longer.
    let (call, end) = hung(&owed);
    assert!(call.give_up());
    drop(Waiting::new(call, true));
    end.send(1).expect("it hangs");
    until_nothing_is_owed(&owed);
}

#[test]
fn what_is_not_wanted_before_it_begins_never_begins() {
    let call: Arc<Call<i32>> = Call::new(&Owed::default(), silent(), || unreachable!());
    drop(Waiting::new(Arc::clone(&call), true));
    call.run();
}

#[test]
fn a_panic_is_an_error() {
    let call: Arc<Call<i32>> = Call::new(&Owed::default(), silent(), || panic!("of the test"));
    call.run();
    assert_eq!(kind(call.wait()), Err(DiskErrorKind::Failed));
}
