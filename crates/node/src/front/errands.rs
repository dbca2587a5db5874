//! Errands: requests that wait for a disk, beside the transport's threads.
//!
//! A transport's thread serves all requests of its CPU. An fsync of much data there would hold up everybody else, so what waits long runs
//! elsewhere.

use std::future::Future;
use std::sync::Arc;

use platform::task::Tasks;
use tokio::sync::{Semaphore, oneshot};

/// Errands at a time. More wait.
const ERRANDS_MAX: usize = 16;

/// Runs errands.
pub(crate) struct Errands {
    tasks: Arc<dyn Tasks>,
    places: Arc<Semaphore>,
}

impl Errands {
    pub(crate) fn new(tasks: Arc<dyn Tasks>) -> Errands {
        Errands { tasks, places: Arc::new(Semaphore::new(ERRANDS_MAX)) }
    }

    /// Runs a future beside the caller and gives its result.
    ///
    /// # Panics
    /// If the future did.
    pub(crate) async fn run<T: Send + 'static>(&self, errand: impl Future<Output = T> + Send + 'static) -> T {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("never closed");
        let errand = async move {
            let result = errand.await;
            drop(place);
            result
        };
        self.run_at_once(errand).await
    }

    /// The same without a place: for what errands wait for. Were it one of them, all of them might wait for a place for it.
    pub(crate) async fn run_at_once<T: Send + 'static>(&self, errand: impl Future<Output = T> + Send + 'static) -> T {
        let (send, receive) = oneshot::channel();
        self.tasks.aside(Box::pin(async move {
            let result = errand.await;
            // Who waited for the result may be gone.
            let _ = send.send(result);
        }));
        receive.await.unwrap_or_else(|_| panic!("the errand panicked; its request has been answered"))
    }
}
