//! Receipts: what came of snapshots that are on their way here, and that no snapshot names yet.
//!
//! A receipt is a tree of the addresses that arrived, by their numbers in the stream, so it takes little memory however much that is.
//! Reclaim marks what it names. It ends with the daemon: what it named is then given back some day, unless the stream comes again first.
//!
//! I-113 A chunk that came in a stream is named by a receipt before the use that put it ends (I-90), until a snapshot names it.
//!
//! Not here: streams (`transfer`).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::format::Root;

/// Of streams that were cut, so many are kept, the newest.
const KEPT_MAX: usize = 4;
/// For so long.
const KEPT_TIME: Duration = Duration::from_secs(24 * 3600);

/// What came in one stream.
#[derive(Debug)]
pub(crate) struct Receipt {
    stream: [u8; 32],
    state: Mutex<Arrived>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    /// Number → address.
    pub(crate) arrivals: Root,
    /// Chunks that came, from the first on.
    pub(crate) count: u64,
    /// Of them, those that are durable.
    pub(crate) durable: u64,
    /// When the last of them came.
    pub(crate) touched: Duration,
}

impl Receipt {
    pub(crate) fn arrived(&self) -> Arrived {
        self.state.lock().clone()
    }

    pub(crate) fn note(&self, arrived: Arrived) {
        *self.state.lock() = arrived;
    }
}

/// All receipts of a file system.
#[derive(Debug, Default)]
pub(crate) struct Receipts(Mutex<Vec<Arc<Receipt>>>);

impl Receipts {
    /// The receipt of a stream: that of one that was cut, if it is here.
    pub(crate) fn begin(&self, stream: [u8; 32]) -> Arc<Receipt> {
        let mut kept = self.0.lock();
        // One that comes twice at a time has two.
        if let Some(receipt) = kept.iter().find(|receipt| receipt.stream == stream && is_idle(receipt)) {
            return Arc::clone(receipt);
        }
        let receipt = Arc::new(Receipt { stream, state: Mutex::default() });
        // It may be cut too.
        while kept.iter().filter(|receipt| is_idle(receipt)).count() >= KEPT_MAX {
            let oldest = kept.iter().position(is_idle).expect("there are some");
            kept.remove(oldest);
        }
        kept.push(Arc::clone(&receipt));
        receipt
    }

    /// A snapshot names what came, or nobody wants it any more.
    pub(crate) fn end(&self, receipt: &Arc<Receipt>) {
        self.0.lock().retain(|kept| !Arc::ptr_eq(kept, receipt));
    }

    /// The trees of all of them. Those that are too old end here.
    pub(crate) fn trees(&self, now: Duration) -> Vec<Root> {
        let mut kept = self.0.lock();
        kept.retain(|receipt| !is_idle(receipt) || now.saturating_sub(receipt.arrived().touched) < KEPT_TIME);
        kept.iter().map(|receipt| receipt.arrived().arrivals).collect()
    }
}

/// Whether no stream brings anything for it at the moment.
fn is_idle(receipt: &Arc<Receipt>) -> bool {
    Arc::strong_count(receipt) == 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{KEPT_MAX, KEPT_TIME, Receipts};

    #[test]
    fn what_was_cut_is_kept_for_a_while_and_what_comes_stays() {
        let receipts = Receipts::default();
        let busy = receipts.begin([0; 32]);
        let note = |stream, count| {
            let receipt = receipts.begin(stream);
            let mut arrived = receipt.arrived();
            arrived.count += count;
            receipt.note(arrived);
            receipt.arrived().count
        };
        assert_eq!(note([0; 32], 1), 1, "one that comes already has a receipt of its own");
        for stream in 1..=KEPT_MAX as u8 {
            assert_eq!(note([stream; 32], 5), 5);
        }
        assert_eq!(note([KEPT_MAX as u8; 32], 2), 7, "it goes on");
        assert_eq!(note([0; 32], 1), 1, "and the oldest was given up");
        assert_eq!(receipts.trees(KEPT_TIME / 2).len(), 1 + KEPT_MAX);
        assert_eq!(receipts.trees(KEPT_TIME + Duration::from_secs(1)).len(), 1);
        receipts.end(&busy);
        assert_eq!(receipts.trees(Duration::ZERO).len(), 0);
    }
}
