//! The desk: where a daemon answers the command line, while its file system comes and goes.
//!
//! Ending and restarting concern the daemon as a whole, so they are passed to its main thread; everything else is the
//! [`Control`]'s of the moment. Between the end of one and the beginning of the next the desk is closed, and says so.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use super::control::Control;
use crate::control::server::{Brought, Handler};
use crate::control::wire::Request;
use crate::failure::Failure;

/// What the daemon's main thread is asked.
pub(crate) enum Wish {
    /// End.
    Stop {
        /// Even while the mount is in use.
        detach: bool,
    },
    /// Go on in a new process.
    Restart {
        /// The program, if not the one that was started.
        program: Option<PathBuf>,
    },
}

/// A wish, and where its progress and outcome go. Who asked may have left.
pub(crate) struct Asked {
    pub(crate) wish: Wish,
    pub(crate) answer: Answer,
}

/// Where an answer goes.
#[derive(Clone)]
pub(crate) struct Answer(Sender<Update>);

enum Update {
    Progress(String),
    Done(Result<Value, Failure>),
}

impl Answer {
    pub(crate) fn progress(&self, text: impl Into<String>) {
        let _ = self.0.send(Update::Progress(text.into()));
    }

    pub(crate) fn done(&self, outcome: Result<Value, Failure>) {
        let _ = self.0.send(Update::Done(outcome));
    }

    /// Nobody asked.
    #[cfg(test)]
    pub(crate) fn to_nobody() -> Answer {
        Answer(channel().0)
    }
}

/// Tells the daemon's main thread; false if it does not listen any more.
pub(crate) type Tell = Box<dyn Fn(Asked) -> bool + Send + Sync>;

/// Answers on the control socket.
pub(crate) struct Desk {
    tell: Tell,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    control: Option<Arc<Control>>,
    busy: usize,
}

impl Desk {
    /// Closed at first.
    pub(crate) fn new(tell: Tell) -> Desk {
        Desk { tell, state: Mutex::default(), ended: Condvar::new() }
    }

    /// From now on this one answers.
    pub(crate) fn open(&self, control: Arc<Control>) {
        self.state.lock().control = Some(control);
    }

    /// Nobody new is answered. Who is being answered has so long; if that is not enough, the desk stays open (`None`).
    pub(crate) fn close(&self, patience: Duration) -> Option<Arc<Control>> {
        let mut state = self.state.lock();
        let control = state.control.take();
        let busy = self.ended.wait_while_for(&mut state, |state| state.busy > 0, patience);
        if busy.timed_out() {
            state.control = control;
            return None;
        }
        control
    }

    fn wish(&self, wish: Wish, progress: &mut dyn FnMut(&str)) -> Result<Value, Failure> {
        let gone = || Failure::new("cannot reach the daemon", "it is ending already");
        let (answer, updates) = channel();
        if !(self.tell)(Asked { wish, answer: Answer(answer) }) {
            return Err(gone());
        }
        for update in updates {
            match update {
                Update::Progress(text) => progress(&text),
                Update::Done(outcome) => return outcome,
            }
        }
        Err(gone())
    }
}

impl Handler for Desk {
    fn handle(
        &self,
        request: Request,
        brought: Brought<'_, '_>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        match request {
            Request::Stop { detach } => self.wish(Wish::Stop { detach }, progress),
            Request::Restart { program } => self.wish(Wish::Restart { program }, progress),
            request => {
                let control = {
                    let mut state = self.state.lock();
                    let closed = || {
                        Failure::new("cannot ask the daemon", "it is restarting or ending")
                            .mend("try again in a moment")
                    };
                    let control = state.control.clone().ok_or_else(closed)?;
                    state.busy += 1;
                    control
                };
                let _busy = Busy(self);
                control.handle(request, brought, progress)
            }
        }
    }
}

/// Somebody is being answered.
struct Busy<'a>(&'a Desk);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.ended.notify_all();
    }
}
