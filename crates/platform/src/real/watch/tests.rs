//! A task whose thread hangs.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread::{current, spawn};

use super::super::aside::{begin, carry, finish};
use super::super::call::{Call, Device, Effect};
use super::{Post, TICKS};
use crate::disk::{DiskError, DiskErrorKind};

fn silent() -> DiskError {
    let words = || "it".to_owned();
    DiskError { kind: DiskErrorKind::Silent, operation: "ask", path: words(), detail: words() }
}

#[test]
fn a_task_makes_its_calls_on_its_thread_and_leaves_one_that_hangs() {
    let device = Arc::<Device>::default();
    let (send, receive) = channel();
    let (tell, has_begun) = channel();
    let (say, said) = channel();
    let task = async move {
        let here = Call::new(&device, Effect::Change, silent(), || Ok(current().id()));
        say.send(begin(here).await.map_err(|error| error.kind)).expect("awaited below");
        let hangs = Call::new(&device, Effect::Change, silent(), move || {
            tell.send(Post::own()).expect("awaited below");
            receive.recv().expect("sent below");
            Ok(current().id())
        });
        say.send(begin(hangs).await.map_err(|error| error.kind)).expect("awaited below");
    };
    let thread = spawn(move || carry(Box::pin(task)));
    assert_eq!(said.recv().expect("told"), Ok(thread.thread().id()));
    let post = has_begun.recv().expect("it begins");
    // The watch itself may tick too.
    for _ in 0..TICKS / 2 {
        assert!(post.tick().is_none(), "before the patience ends");
    }
    let (_, job) = (0..=TICKS).find_map(|_| post.tick()).expect("the task goes on elsewhere");
    assert!(post.tick().is_none(), "once");
    finish(job);
    assert_eq!(said.recv().expect("told"), Err(DiskErrorKind::Silent));
    send.send(()).expect("it hangs");
    thread.join().expect("no panic");
}

#[test]
fn several_calls_of_one_task_are_made_side_by_side() {
    let device = Arc::<Device>::default();
    let (send, receive) = channel();
    let (say, said) = channel();
    let task = async move {
        // Whichever is made here, the other one is not.
        let waits =
            Call::new(&device, Effect::Change, silent(), move || Ok(receive.recv().expect("sent by the other")));
        let sends = Call::new(&device, Effect::Change, silent(), move || {
            send.send(7).expect("the other waits");
            Ok(())
        });
        let (mut waits, mut sends) = (Box::pin(begin(waits)), Box::pin(begin(sends)));
        let mut got = None;
        let both = poll_fn(|context| {
            if let Poll::Ready(number) = waits.as_mut().poll(context) {
                got = Some(number.expect("no error"));
            }
            if got.is_some() { sends.as_mut().poll(context) } else { Poll::Pending }
        });
        both.await.expect("no error");
        say.send(got).expect("awaited below");
    };
    let thread = spawn(move || carry(Box::pin(task)));
    assert_eq!(said.recv().expect("told"), Some(7));
    thread.join().expect("no panic");
}
