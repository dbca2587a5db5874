//! What all threads of a session share, whichever transport they run.

use crate::counters::{Meter, Tally};
use crate::exchange::Core;
use crate::flags::opcode;
use crate::interrupt::Interrupts;
use crate::late::Late;
use crate::park::Park;
use crate::request::{self, Dialect};
use crate::service::{self, Boxed, Handler};
use std::sync::Arc;

/// What all threads of a session share.
pub(crate) struct Crew {
    pub(crate) handler: Box<dyn Handler>,
    /// Bytes of the largest payload of a request or answer.
    pub(crate) payload_bytes: usize,
    pub(crate) dialect: Dialect,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) late: Arc<Late>,
    pub(crate) park: Park,
    pub(crate) meter: Meter,
}

/// What to do with a request that has arrived.
pub(crate) enum Duty {
    /// The file system answers it.
    Serve,
    /// It has been dealt with and gets no answer.
    Nothing,
    /// The transport answers with success and nothing more.
    Agree,
}

impl Crew {
    pub(crate) fn new(handler: Box<dyn Handler>, payload_bytes: usize, dialect: Dialect) -> Crew {
        let interrupts = Arc::<Interrupts>::default();
        let late = Late::new(interrupts.clone());
        Crew { handler, payload_bytes, dialect, interrupts, late, park: Park::default(), meter: Meter::default() }
    }

    /// Sorts out a request that has just arrived: those about the session are dealt with here.
    pub(crate) fn take(&self, core: &Core, tally: &Tally) -> Duty {
        tally.request(core.header.opcode);
        match core.header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => self.forget(core, tally),
            opcode::INTERRUPT => {
                tally.counters.interrupts.add(1);
                if let Ok(unique) = core.reader().and_then(request::interrupted) {
                    self.interrupts.interrupt(unique);
                }
            }
            // The answer to a question we never ask.
            opcode::NOTIFY_REPLY => {}
            // The end of the session is seen when the device says so.
            opcode::DESTROY => return Duty::Agree,
            _ => return Duty::Serve,
        }
        Duty::Nothing
    }

    fn forget(&self, core: &Core, tally: &Tally) {
        let nodes = core.reader().and_then(|reader| request::forgotten(&core.header, reader));
        // A FORGET that makes no sense has no caller to tell.
        for (node, count) in nodes.into_iter().flatten() {
            tally.counters.forgets.add(1);
            service::forget(self.handler.as_ref(), node, count);
        }
    }
}

/// The number under which an INTERRUPT may cancel this request: only a waiting lock is given up.
pub(crate) fn interruptible(core: &Core) -> Option<u64> {
    (core.header.opcode == opcode::SETLKW).then_some(core.header.unique)
}

/// A future that is put aside.
pub(crate) struct Pending {
    pub(crate) future: Boxed,
    /// The request's number if it can be interrupted.
    pub(crate) interruptible: Option<u64>,
}

/// The work of a thread that takes requests. If it panicked, and nobody took the requests that the kernel keeps for it, their callers would wait
/// for ever: the process ends instead, and the mount says that it is dead.
pub(crate) fn vital<R>(work: impl FnOnce() -> R) -> R {
    struct Vital;
    impl Drop for Vital {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    let _vital = Vital;
    work()
}
