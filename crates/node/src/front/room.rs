//! Room on the disks, for statfs(2): asked anew each time, and answered from memory when a disk does not answer.
//!
//! Everybody who looks at a machine calls df, and nobody must hang for it. So the disks are asked on a thread of its own, one at a
//! time, and who asks waits for that at most [`PATIENCE`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use file::Space;
use parking_lot::Mutex;
use platform::Platform;
use platform::task::first;
use tokio::sync::oneshot;

/// A disk that answers does so in microseconds.
const PATIENCE: Duration = Duration::from_millis(200);

/// What was last known.
pub(crate) struct Room {
    shared: Arc<Shared>,
}

struct Shared {
    latest: Mutex<Space>,
    /// Somebody asks the disks.
    is_asking: AtomicBool,
}

impl Room {
    /// `space`: as of now.
    pub(crate) fn new(space: Space) -> Room {
        Room { shared: Arc::new(Shared { latest: Mutex::new(space), is_asking: AtomicBool::new(false) }) }
    }

    /// What `ask` gives, or what it gave last if it takes too long.
    pub(crate) async fn space(&self, platform: &Platform, ask: impl Future<Output = Space> + Send + 'static) -> Space {
        if !self.shared.is_asking.swap(true, Ordering::SeqCst) {
            let (send, answer) = oneshot::channel();
            let shared = Arc::clone(&self.shared);
            let asking = async move {
                *shared.latest.lock() = ask.await;
                shared.is_asking.store(false, Ordering::SeqCst);
                // Who asked may have lost patience.
                let _ = send.send(());
            };
            platform.tasks.spawn("space", Box::pin(asking));
            first(answer, platform.tasks.sleep(PATIENCE)).await;
        }
        *self.shared.latest.lock()
    }
}

#[cfg(test)]
mod tests {
    use file::Space;
    use platform::sim::World;
    use tokio::sync::oneshot;

    use super::Room;

    #[test]
    fn a_disk_that_hangs_hangs_nobody() {
        let world = World::new(1);
        let platform = world.platform();
        let space = |free| Space { total: 100, free, files: 1, files_free: 1 };
        let room = Room::new(space(9));
        let (send, hung) = oneshot::channel::<()>();
        let found = world.run_until(async {
            let mut found = vec![room.space(&platform, async move { space(8) }).await.free];
            let hangs = async move {
                let _ = hung.await;
                space(7)
            };
            found.push(room.space(&platform, hangs).await.free);
            // While one hangs no other is sent after it.
            found.push(room.space(&platform, async { unreachable!() }).await.free);
            send.send(()).expect("it still waits");
            platform.tasks.sleep(super::PATIENCE).await;
            found.push(room.space(&platform, async move { space(6) }).await.free);
            found
        });
        assert_eq!(found.expect("nothing halts the machine"), [8, 8, 8, 6]);
    }
}
