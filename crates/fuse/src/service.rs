//! What a file system implements, and how the transports call it.
//!
//! Transports see a `Handler`, which hides the type of the file system and boxes its futures: one allocation a
//! request, far below the price of the two system calls around it. A panic in the file system ends that one request
//! with EIO (its exchange is dropped while unwinding) and nothing else.

use crate::exchange::Exchange;
use crate::settings::Negotiated;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What the file system implements. One call per request.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. Takes the exchange by value and gives it back with its answer set.
    ///
    /// The future is first polled on the thread the request arrived on, which must not be blocked: other requests wait
    /// behind it. A future that is pending is put aside and answered later. Dropping the exchange answers EIO.
    /// A SETLKW may be cancelled at any time: its future is dropped, and the caller gets EINTR.
    fn serve(self: Arc<Self>, exchange: Exchange) -> impl Future<Output = Exchange> + Send + 'static;

    /// The kernel drops `count` of its references to `node`. There is no answer.
    fn forget(&self, node: u64, count: u64);

    /// The session is up; requests follow.
    fn started(&self, negotiated: &Negotiated) {
        let _ = negotiated;
    }

    /// The session is over: no request is being served or will come.
    fn destroyed(&self) {}
}

/// A request being served.
pub(crate) type Boxed = Pin<Box<dyn Future<Output = Exchange> + Send>>;

/// A file system of any type.
pub(crate) trait Handler: Send + Sync {
    fn serve(&self, exchange: Exchange) -> Boxed;
    fn forget(&self, node: u64, count: u64);
    fn started(&self, negotiated: &Negotiated);
    fn destroyed(&self);
}

/// The `Handler` of a `Service`.
pub(crate) struct Served<S>(pub(crate) Arc<S>);

impl<S: Service> Handler for Served<S> {
    fn serve(&self, exchange: Exchange) -> Boxed {
        Box::pin(self.0.clone().serve(exchange))
    }

    fn forget(&self, node: u64, count: u64) {
        self.0.forget(node, count);
    }

    fn started(&self, negotiated: &Negotiated) {
        self.0.started(negotiated);
    }

    fn destroyed(&self) {
        self.0.destroyed();
    }
}

/// Starts serving. `None` when the file system panicked: the exchange has been answered.
pub(crate) fn begin(handler: &dyn Handler, exchange: Exchange) -> Option<Boxed> {
    catch_unwind(AssertUnwindSafe(|| handler.serve(exchange))).ok()
}

/// Tells the file system to forget. A panic there costs a reference count, nothing else.
pub(crate) fn forget(handler: &dyn Handler, node: u64, count: u64) {
    let _ = catch_unwind(AssertUnwindSafe(|| handler.forget(node, count)));
}

/// Goes on serving. `Ready(None)` when the file system panicked: drop the future, which answers the exchange.
pub(crate) fn poll(future: &mut Boxed, context: &mut Context<'_>) -> Poll<Option<Exchange>> {
    match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(exchange)) => Poll::Ready(Some(exchange)),
        Err(_) => Poll::Ready(None),
    }
}
