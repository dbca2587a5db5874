//! Room on the disks, for statfs(2): asked anew each time, and answered from memory when a disk does not answer.
//!
//! Everybody who looks at a machine calls df, and nobody must hang for it. So the disks are asked on a thread of its own, one at a
//! time, and who asks, or comes while somebody asks, waits for that at most [`PATIENCE`]. A transport's thread has to be free to take the
//! question: reads of a disk that hangs keep theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use file::Space;
use parking_lot::Mutex;
use platform::Platform;
use platform::task::first;
use tokio::sync::Notify;

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
    answered: Notify,
}

/// Somebody asks, until dropped.
struct Asking(Arc<Shared>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.is_asking.store(false, Ordering::SeqCst);
        self.0.answered.notify_waiters();
    }
}

impl Room {
    /// `space`: as of now.
    pub(crate) fn new(space: Space) -> Room {
        let (latest, is_asking, answered) = (Mutex::new(space), AtomicBool::new(false), Notify::new());
        Room { shared: Arc::new(Shared { latest, is_asking, answered }) }
    }

    /// What `ask` gives, or who asks already; or what was known before if it takes too long.
    pub(crate) async fn space(&self, platform: &Platform, ask: impl Future<Output = Space> + Send + 'static) -> Space {
        // Made first: it hears of every answer from now on.
        let answered = self.shared.answered.notified();
        if !self.shared.is_asking.swap(true, Ordering::SeqCst) {
            let asking = Asking(Arc::clone(&self.shared));
            let asked = async move {
                let space = ask.await;
                *asking.0.latest.lock() = space;
            };
            platform.tasks.spawn("space", Box::pin(asked));
        }
        first(answered, platform.tasks.sleep(PATIENCE)).await;
        *self.shared.latest.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use file::Space;
    use platform::sim::World;
    use tokio::sync::oneshot;

    use super::{Asking, Room};

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

    #[test]
    fn who_comes_while_the_disks_are_asked_hears_the_same() {
        let world = World::new(1);
        let platform = world.platform();
        let space = |free| Space { total: 100, free, files: 1, files_free: 1 };
        let room = Arc::new(Room::new(space(9)));
        let (answer, asked) = oneshot::channel::<()>();
        let (tell, heard) = oneshot::channel();
        let found = world.run_until(async {
            let (first, tasks) = (Arc::clone(&room), platform.clone());
            let slow = async move {
                let _ = asked.await;
                space(7)
            };
            let first = async move { tell.send(first.space(&tasks, slow).await.free).expect("somebody listens") };
            platform.tasks.spawn("first", Box::pin(first));
            platform.tasks.sleep(super::PATIENCE / 10).await;
            let later = platform.tasks.sleep(super::PATIENCE / 10);
            let disk = async move {
                later.await;
                answer.send(()).expect("it still waits");
            };
            platform.tasks.spawn("disk", Box::pin(disk));
            [room.space(&platform, async { unreachable!() }).await.free, heard.await.expect("told")]
        });
        assert_eq!(found.expect("nothing halts the machine"), [7, 7]);
    }

    #[test]
    fn a_question_that_is_dropped_keeps_nobody_from_asking() {
        let world = World::new(1);
        let platform = world.platform();
        let space = |free| Space { total: 100, free, files: 1, files_free: 1 };
        let room = Room::new(space(9));
        room.shared.is_asking.store(true, Ordering::SeqCst);
        drop(Asking(Arc::clone(&room.shared)));
        let found = world.run_until(async { room.space(&platform, async move { space(6) }).await.free });
        assert_eq!(found.expect("nothing halts the machine"), 6);
    }
}
