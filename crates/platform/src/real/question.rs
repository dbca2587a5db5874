//! A question to a device that may not answer.
//!
//! Everybody who looks at a machine asks how much room is left, and nobody must hang for it. So it is asked on a thread aside, one at a
//! time; who asks, or comes while somebody asks, waits for the answer at most [`PATIENCE`], and not at all once it is overdue.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::aside;

/// A device that answers does so in microseconds.
const PATIENCE: Duration = Duration::from_millis(200);

/// A question that is asked again and again.
pub(super) struct Question<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

struct State<T> {
    /// Answers so far.
    count: u64,
    latest: Option<T>,
    is_asked: bool,
    /// Somebody waited in vain for the answer that is to come.
    is_overdue: bool,
}

impl<T: Clone + Send + 'static> Question<T> {
    pub(super) fn new() -> Question<T> {
        let state = State { count: 0, latest: None, is_asked: false, is_overdue: false };
        Question { shared: Arc::new(Shared { state: Mutex::new(state), answered: Condvar::new() }) }
    }

    /// What `ask` gives, or who asks already; `None` if that takes too long.
    pub(super) fn ask(&self, ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut state = self.shared.state.lock();
        if state.is_overdue {
            return None;
        }
        let count = state.count;
        if !std::mem::replace(&mut state.is_asked, true) {
            drop(state);
            let shared = Arc::clone(&self.shared);
            aside().run(Box::pin(async move {
                let answer = ask();
                let mut state = shared.state.lock();
                *state = State { count: state.count + 1, latest: Some(answer), is_asked: false, is_overdue: false };
                shared.answered.notify_all();
            }));
            state = self.shared.state.lock();
        }
        let waited = self.shared.answered.wait_while_for(&mut state, |state| state.count == count, PATIENCE);
        if waited.timed_out() && state.count == count {
            state.is_overdue = true;
            return None;
        }
        state.latest.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::Question;

    #[test]
    fn a_device_that_hangs_hangs_nobody() {
        let question = Question::new();
        assert_eq!(question.ask(|| 1), Some(1));
        let (send, receive) = channel();
        let (tell, told) = channel();
        let hangs = move || {
            let answer = receive.recv().expect("sent below");
            tell.send(()).expect("awaited below");
            answer
        };
        assert_eq!(question.ask(hangs), None);
        // While one hangs no other is sent after it.
        assert_eq!(question.ask(|| unreachable!()), None);
        send.send(2).expect("it still waits");
        told.recv().expect("it answers");
        // Its answer is for who comes until it is noted; then it is asked anew.
        while question.ask(|| 3) != Some(3) {}
        assert_eq!(question.ask(|| 4), Some(4));
    }

    #[test]
    fn who_comes_while_it_is_asked_hears_the_same() {
        let question = Question::new();
        let (begun, has_begun) = channel();
        let (send, receive) = channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                question.ask(move || {
                    begun.send(()).expect("awaited below");
                    receive.recv().expect("sent below")
                })
            });
            has_begun.recv().expect("asked above");
            let second = scope.spawn(|| question.ask(|| 8));
            send.send(7).expect("it waits");
            assert_eq!(first.join().expect("no panic"), Some(7));
            // It joined the first, or came after its answer.
            assert!(matches!(second.join().expect("no panic"), Some(7 | 8)));
        });
    }
}
