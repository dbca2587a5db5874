//! Errands: requests that wait for a disk, beside the transport's threads.
//!
//! A transport's thread serves all requests of its CPU. An fsync of much data there would hold up everybody else, so what waits long runs
//! elsewhere.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use platform::task::{First, Tasks, first};
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
        ended(self.begin(errand)).await
    }

    /// The same without a place: for what errands wait for. Were it one of them, all of them might wait for a place for it. What takes longer
    /// than `patience` goes on, and is not waited for any more.
    pub(crate) async fn run_at_once(&self, patience: Duration, errand: impl Future<Output = ()> + Send + 'static) {
        match first(ended(self.begin(errand)), self.tasks.sleep(patience)).await {
            First::Left(()) | First::Right(()) => {}
        }
    }

    /// Begins it, and gives where its result comes.
    fn begin<T: Send + 'static>(&self, errand: impl Future<Output = T> + Send + 'static) -> oneshot::Receiver<T> {
        let (send, receive) = oneshot::channel();
        self.tasks.aside(Box::pin(async move {
            let result = errand.await;
            // Who waited for the result may be gone.
            let _ = send.send(result);
        }));
        receive
    }
}

async fn ended<T>(result: oneshot::Receiver<T>) -> T {
    result.await.unwrap_or_else(|_| panic!("the errand panicked; its request has been answered"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use platform::sim::World;
    use tokio::sync::oneshot;

    use super::Errands;

    #[test]
    fn what_takes_longer_than_who_waits_has_patience_goes_on() {
        let world = World::new(1);
        let platform = world.platform();
        let errands = Errands::new(platform.tasks.clone());
        let (patience, (wait, waited), (tell, told)) = (Duration::from_secs(1), oneshot::channel(), oneshot::channel());
        let outcome = world.run_until(async {
            let begin = platform.clock.elapsed();
            errands.run_at_once(patience, async {}).await;
            assert!(platform.clock.elapsed() - begin < patience, "it was done at once");
            let errand = async move {
                waited.await.expect("it is sent");
                tell.send("done").expect("it is heard");
            };
            errands.run_at_once(patience, errand).await;
            assert!(platform.clock.elapsed() - begin >= patience);
            wait.send(()).expect("it goes on");
            told.await
        });
        assert_eq!(outcome.expect("nothing halts the machine"), Ok("done"));
    }
}
