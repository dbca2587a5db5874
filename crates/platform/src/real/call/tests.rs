//! A device that hangs, as a channel that nobody sends on yet.

use std::fs::File;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Wake, Waker};
use std::thread::{spawn, yield_now};

use super::{Blocking, Call, Device, Effect, Patience, Waiting};
use crate::disk::{DiskError, DiskErrorKind};
use crate::real::block_on;

fn silent() -> DiskError {
    let words = || "it".to_owned();
    DiskError { kind: DiskErrorKind::Silent, operation: "ask", path: words(), detail: words() }
}

/// Ticks after which the tests give up.
const PATIENCE: Patience = Patience { usual: 5, short: 2 };
/// The tick at which they do.
const LAST: u32 = PATIENCE.usual + 1;

/// A call that has begun on a thread and hangs; and what ends it.
fn hung(device: &Arc<Device>, effect: Effect) -> (Arc<Call<i32>>, Sender<i32>) {
    let (send, receive): (_, Receiver<i32>) = channel();
    let (tell, has_begun) = channel();
    let call = Call::new(device, effect, silent(), move || {
        tell.send(()).expect("awaited below");
        Ok(receive.recv().expect("sent by the test"))
    });
    let made = Arc::clone(&call);
    spawn(move || made.run());
    has_begun.recv().expect("it begins");
    (call, send)
}

/// A call that answers at once.
fn quick(device: &Arc<Device>, effect: Effect) -> Arc<Call<i32>> {
    Call::new(device, effect, silent(), || Ok(7))
}

fn kind(result: Result<i32, DiskError>) -> Result<i32, DiskErrorKind> {
    result.map_err(|error| error.kind)
}

/// What comes of a call that is made now.
fn made(call: &Arc<Call<i32>>) -> Result<i32, DiskErrorKind> {
    call.run();
    kind(call.wait())
}

fn until_nothing_is_owed(device: &Device) {
    while device.is_silent() {
        yield_now();
    }
}

/// B-1, B-2.
#[test]
fn a_device_that_was_given_up_is_asked_for_nothing_before_it_has_answered() {
    let device = Arc::<Device>::default();
    let (call, end) = hung(&device, Effect::Change);
    let before = quick(&device, Effect::Change);
    assert!((1..LAST).all(|ticks| !call.waits(ticks, PATIENCE)) && device.is_slow() && !device.is_silent());
    assert!(call.waits(LAST, PATIENCE));
    assert_eq!(kind(block_on(Waiting::new(Arc::clone(&call)))), Err(DiskErrorKind::Silent));
    for effect in [Effect::Change, Effect::Read, Effect::Look] {
        let refused = quick(&device, effect);
        assert!(!refused.is_wanted());
        assert_eq!(kind(refused.wait()), Err(DiskErrorKind::Silent));
    }
    // What was asked for before may end as it likes.
    assert_eq!(made(&before), Ok(7));
    assert!(device.is_silent());
    end.send(1).expect("it hangs");
    until_nothing_is_owed(&device);
    assert_eq!(made(&quick(&device, Effect::Change)), Ok(7));
    assert!(!device.is_slow());
}

/// One bad sector takes no disk out.
#[test]
fn a_read_that_was_given_up_keeps_others_from_reading_alone() {
    let device = Arc::<Device>::default();
    let (call, end) = hung(&device, Effect::Read);
    let (change, end_change) = hung(&device, Effect::Change);
    assert!(call.waits(LAST, PATIENCE) && !change.waits(LAST - 1, PATIENCE));
    assert_eq!(kind(quick(&device, Effect::Read).wait()), Err(DiskErrorKind::Silent));
    assert_eq!(made(&quick(&device, Effect::Look)), Ok(7));
    assert_eq!(made(&quick(&device, Effect::Change)), Ok(7));
    end.send(1).and_then(|()| end_change.send(2)).expect("they hang");
    assert_eq!(kind(change.wait()), Ok(2));
    until_nothing_is_owed(&device);
}

/// All that are under way are given up soon after the first, and what comes later soon, until one is quick.
#[test]
fn a_device_that_was_given_up_is_waited_for_less() {
    let device = Arc::<Device>::default();
    let (first, end_first) = hung(&device, Effect::Look);
    let (second, end_second) = hung(&device, Effect::Look);
    assert!(!second.waits(3, PATIENCE) && first.waits(LAST, PATIENCE) && second.waits(4, PATIENCE));
    end_first.send(1).and_then(|()| end_second.send(1)).expect("they hang");
    until_nothing_is_owed(&device);
    let (third, end) = hung(&device, Effect::Look);
    assert!(!third.waits(2, PATIENCE) && third.waits(3, PATIENCE));
    end.send(1).expect("it hangs");
    until_nothing_is_owed(&device);
    assert_eq!(made(&quick(&device, Effect::Look)), Ok(7));
    let (fourth, end) = hung(&device, Effect::Look);
    assert!(!fourth.waits(3, PATIENCE));
    end.send(1).expect("it hangs");
}

/// B-3: what changes nothing is left alone.
#[test]
fn what_changes_a_disk_is_waited_for_by_who_drops_it() {
    let device = Arc::<Device>::default();
    let (call, end) = hung(&device, Effect::Change);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let (waiting, noted) = (Waiting::new(call), Arc::clone(&is_dropped));
    let (tell, is_about_to) = channel();
    let dropper = spawn(move || {
        tell.send(()).expect("awaited below");
        drop(waiting);
        noted.store(true, Ordering::SeqCst);
    });
    is_about_to.recv().expect("it drops it");
    (0..1000).for_each(|_| yield_now());
    assert!(!is_dropped.load(Ordering::SeqCst));
    end.send(1).expect("it hangs");
    dropper.join().expect("no panic");

    let (call, end) = hung(&device, Effect::Look);
    drop(Waiting::new(call));
    end.send(1).expect("it hangs");
    // Given up, it is waited for no longer.
    let (call, end) = hung(&device, Effect::Change);
    assert!(call.waits(LAST, PATIENCE));
    drop(Waiting::new(call));
    end.send(1).expect("it hangs");
    until_nothing_is_owed(&device);
}

/// B-5.
#[test]
fn a_change_that_is_under_way_holds_the_lock() {
    let (device, lock) = (Arc::<Device>::default(), Arc::new(File::open("/").expect("a root")));
    device.lock_with(&lock);
    let (look, end_look) = hung(&device, Effect::Look);
    assert_eq!(Arc::strong_count(&lock), 1);
    let (change, end) = hung(&device, Effect::Change);
    assert!(change.waits(LAST, PATIENCE) && look.waits(LAST, PATIENCE));
    drop((change, look));
    assert_eq!(Arc::strong_count(&lock), 2);
    end_look.send(1).and_then(|()| end.send(1)).expect("they hang");
    until_nothing_is_owed(&device);
    assert_eq!(Arc::strong_count(&lock), 1);
}

/// B-5: who closes a store and opens it again was refused by the last change of its own, if the thread that made that was slow to go on.
#[test]
fn who_hears_that_a_change_ended_finds_the_lock_free() {
    struct Hears(Arc<File>, AtomicUsize);
    impl Wake for Hears {
        fn wake(self: Arc<Hears>) {
            self.1.store(Arc::strong_count(&self.0), Ordering::SeqCst);
        }
    }
    let (device, lock) = (Arc::<Device>::default(), Arc::new(File::open("/").expect("a root")));
    device.lock_with(&lock);
    let call = quick(&device, Effect::Change);
    let hears = Arc::new(Hears(lock, AtomicUsize::new(0)));
    let (mut waiting, waker) = (pin!(Waiting::new(Arc::clone(&call))), Waker::from(Arc::clone(&hears)));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    call.run();
    assert_eq!(hears.1.load(Ordering::SeqCst), 1, "its own alone");
    assert_eq!(kind(block_on(waiting)), Ok(7));
}

#[test]
fn what_is_not_wanted_before_it_begins_never_begins() {
    let call: Arc<Call<i32>> = Call::new(&Arc::default(), Effect::Change, silent(), || unreachable!());
    drop(Waiting::new(Arc::clone(&call)));
    call.run();
}

#[test]
fn a_panic_is_an_error_and_so_is_the_want_of_a_thread() {
    let device = Arc::<Device>::default();
    let call: Arc<Call<i32>> = Call::new(&device, Effect::Look, silent(), || panic!("of the test"));
    assert_eq!(made(&call), Err(DiskErrorKind::Failed));
    let call = quick(&device, Effect::Look);
    call.refuse();
    assert_eq!(made(&call), Err(DiskErrorKind::Failed));
}
