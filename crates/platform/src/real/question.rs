//! A question to a device that may not answer.
//!
//! Everybody who looks at a machine asks how much room is left, and nobody must hang for it. So it is asked on a thread aside, one at a
//! time; who asks waits for the answer at most [`PATIENCE`], and not at all once it is overdue. Who comes while somebody asks has it asked
//! anew: an answer is never older than the question.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::aside;
use super::aside::{Job, finish};

/// A device that answers does so in microseconds.
const PATIENCE: Duration = Duration::from_millis(200);

/// A question that is asked again and again.
pub(super) struct Question<T> {
    shared: Arc<Shared<T>>,
    patience: Duration,
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
        Question::with_patience(PATIENCE)
    }

    fn with_patience(patience: Duration) -> Question<T> {
        let state = State { count: 0, latest: None, is_asked: false, is_overdue: false };
        Question { shared: Arc::new(Shared { state: Mutex::new(state), answered: Condvar::new() }), patience }
    }

    /// What `ask` gives, or that of somebody who began to ask later; `None` if it takes too long.
    pub(super) fn ask(&self, ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut state = self.shared.state.lock();
        if state.is_overdue {
            return None;
        }
        let wanted = state.count + 1 + u64::from(state.is_asked);
        let (mut ask, deadline) = (Some(ask), Instant::now() + self.patience);
        loop {
            if state.count >= wanted {
                return state.latest.clone();
            }
            if let Some(ask) = ask.take_if(|_| !state.is_asked) {
                state.is_asked = true;
                drop(state);
                self.begin(ask);
                state = self.shared.state.lock();
            } else if self.shared.answered.wait_until(&mut state, deadline).timed_out() && state.count < wanted {
                // The answer may have come before this had the lock again: then nobody is asked who could be late.
                state.is_overdue = state.is_asked;
                return None;
            }
        }
    }

    fn begin(&self, ask: impl FnOnce() -> T + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let task = Box::pin(async move {
            let answer = ask();
            let mut state = shared.state.lock();
            *state = State { count: state.count + 1, latest: Some(answer), is_asked: false, is_overdue: false };
            shared.answered.notify_all();
        });
        if let Err(job) = aside().run(Job::Task(task)) {
            finish(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::Question;

    /// Of a test that waits for answers, however busy the machine is.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_device_that_hangs_hangs_nobody() {
        // Nobody waits.
        let question = Question::with_patience(Duration::ZERO);
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
        // It is overdue until its answer is noted; then it is asked anew.
        let patient = Question { shared: question.shared, patience: LONG };
        while patient.ask(|| 3) != Some(3) {}
    }

    #[test]
    fn an_answer_is_never_older_than_the_question() {
        let question = Question::with_patience(LONG);
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
            // Where the first one wakes late, the second one's answer is there already, which is as good.
            assert!(matches!(first.join().expect("no panic"), Some(7 | 8)));
            assert_eq!(second.join().expect("no panic"), Some(8), "never that of the first question");
        });
    }
}
