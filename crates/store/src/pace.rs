//! Pace: work that nobody waits for takes no more than a share of the time.
//!
//! Reclaim and scrub work in short steps. After a step the worker pauses for as long as its share asks for, so that the disks and the
//! cores belong to the callers meanwhile; how long a step took shows how busy those are, so the pauses grow with the load.
//!
//! Not here: what is done in a step.

use std::time::Duration;

use parking_lot::Mutex;
use platform::Platform;

/// Work after which a pause is worth a timer.
const STEP_MIN: Duration = Duration::from_millis(5);
/// How soon a worker that pauses hears that it has to end.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// How much of the time work may take: 1 to 100 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u8);

impl Share {
    /// No pauses.
    pub const FULL: Share = Share(100);
    /// A tenth: what work in the background takes unless somebody says otherwise.
    pub const DEFAULT: Share = Share(10);

    /// Of so many percent; `None` outside of 1 to 100.
    #[must_use]
    pub fn percent(percent: u8) -> Option<Share> {
        (1..=100).contains(&percent).then_some(Share(percent))
    }

    /// How long to pause after work of this length.
    fn pause(self, worked: Duration) -> Duration {
        worked * u32::from(100 - self.0) / u32::from(self.0)
    }
}

/// The pace of one piece of work.
pub struct Pace<'a> {
    platform: &'a Platform,
    share: &'a (dyn Fn() -> Share + Sync),
    goes_on: &'a (dyn Fn() -> bool + Sync),
    /// When the present step began, by the monotonic clock.
    since: Mutex<Duration>,
}

impl<'a> Pace<'a> {
    /// Work that begins now and ends when `goes_on` says no. Its share may change meanwhile: somebody may come to wait for it.
    pub fn new(
        platform: &'a Platform,
        share: &'a (dyn Fn() -> Share + Sync),
        goes_on: &'a (dyn Fn() -> bool + Sync),
    ) -> Pace<'a> {
        Pace { platform, share, goes_on, since: Mutex::new(platform.clock.elapsed()) }
    }

    /// Between two steps: pauses if it is time. Whether to go on.
    pub async fn step(&self) -> bool {
        let clock = &self.platform.clock;
        let worked = clock.elapsed().saturating_sub(*self.since.lock());
        if worked >= STEP_MIN {
            let paused_from = clock.elapsed();
            while (self.goes_on)() {
                let rest = (paused_from + (self.share)().pause(worked)).saturating_sub(clock.elapsed());
                if rest.is_zero() {
                    break;
                }
                self.platform.tasks.sleep(rest.min(PAUSE_MAX)).await;
            }
            *self.since.lock() = clock.elapsed();
        }
        self.goes_on()
    }

    /// Whether nobody ended it.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        (self.goes_on)()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use platform::sim::World;

    use super::{Pace, Share};

    #[test]
    fn a_tenth_of_the_time_is_nine_parts_of_pause() {
        assert_eq!(Share::DEFAULT.pause(Duration::from_millis(10)), Duration::from_millis(90));
        assert_eq!(Share::FULL.pause(Duration::from_secs(1)), Duration::ZERO);
        assert_eq!((Share::percent(0), Share::percent(101)), (None, None));
    }

    #[test]
    fn work_takes_its_share_and_hears_when_to_end() {
        let world = World::new(7);
        let (platform, start) = (world.platform(), world.elapsed());
        let goes_on = || world.elapsed() - start < Duration::from_secs(100);
        let steps = world.run_until(async {
            let pace = Pace::new(&platform, &|| Share::DEFAULT, &goes_on);
            let mut steps = 0;
            loop {
                platform.tasks.sleep(Duration::from_millis(100)).await;
                steps += 1;
                if !pace.step().await {
                    break steps;
                }
            }
        });
        let steps = steps.expect("nothing halts it");
        assert!((99..=101).contains(&steps), "{steps} steps of 100 ms in 100 s");
    }
}
