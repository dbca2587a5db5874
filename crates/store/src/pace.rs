//! Pace: work that nobody waits for takes no more than a share of the time.
//!
//! Reclaim and scrub work in short steps. After a step the worker pauses for as long as its share asks for, so that the disks and the
//! cores belong to the callers meanwhile; how long a step took shows how busy those are, so the pauses grow with the load.
//!
//! A share is not enough: who takes a tenth of the time is met by a tenth of the calls, and of a hundred calls the slowest one is then
//! one that met a step. So a worker that gives way ([`Pace::beside`]) looks how many calls came while it worked, and after the pause
//! of its share waits until many more have come that did not meet it, or none come. It does not wait for ever: with callers who
//! never rest it has a part of its share still.
//!
//! Not here: what is done in a step.

use std::time::Duration;

use parking_lot::Mutex;
use platform::Platform;

/// Work after which a pause is worth a timer.
const STEP_MIN: Duration = Duration::from_millis(5);
/// How soon a worker that pauses hears that it has to end.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Of so many calls one may meet a worker that gives way: few enough that 99 of 100 are as fast as without it.
const CALLS_PER_MET: u64 = 400;
/// Pauses of its share that it gives way for at most.
const PAUSES_MAX: u32 = 40;
/// Callers rest when for so long none came.
const REST: Duration = Duration::from_millis(200);
/// How often it looks whether enough came.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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
    /// How many calls there were.
    calls: &'a (dyn Fn() -> u64 + Sync),
    /// When the present step began, by the monotonic clock, and how many calls there were then.
    since: Mutex<(Duration, u64)>,
}

impl<'a> Pace<'a> {
    /// Work that begins now and ends when `goes_on` says no. Its share may change meanwhile: somebody may come to wait for it.
    pub fn new(
        platform: &'a Platform,
        share: &'a (dyn Fn() -> Share + Sync),
        goes_on: &'a (dyn Fn() -> bool + Sync),
    ) -> Pace<'a> {
        Pace { platform, share, goes_on, calls: &|| 0, since: Mutex::new((platform.clock.elapsed(), 0)) }
    }

    /// The same beside callers to whom it gives way. `calls` tells how many calls they have made.
    #[must_use]
    pub fn beside(self, calls: &'a (dyn Fn() -> u64 + Sync)) -> Pace<'a> {
        self.since.lock().1 = calls();
        Pace { calls, ..self }
    }

    /// Between two steps: pauses if it is time. Whether to go on.
    pub async fn step(&self) -> bool {
        let clock = &self.platform.clock;
        let (since, calls) = *self.since.lock();
        let worked = clock.elapsed().saturating_sub(since);
        if worked >= STEP_MIN {
            self.pause(worked, (self.calls)().saturating_sub(calls)).await;
            *self.since.lock() = (clock.elapsed(), (self.calls)());
        }
        self.goes_on()
    }

    /// Pauses after work that took so long and that so many calls met.
    async fn pause(&self, worked: Duration, met: u64) {
        let clock = &self.platform.clock;
        let (from, enough) = (clock.elapsed(), (self.calls)() + met * CALLS_PER_MET);
        let mut last = ((self.calls)(), from);
        while (self.goes_on)() {
            let (now, calls, pause) = (clock.elapsed(), (self.calls)(), (self.share)().pause(worked));
            if calls != last.0 {
                last = (calls, now);
            }
            let rest = (from + pause).saturating_sub(now);
            let most = (from + pause * PAUSES_MAX).saturating_sub(now);
            let gives_way = calls < enough && now.saturating_sub(last.1) < REST;
            match (rest.is_zero(), gives_way && !most.is_zero()) {
                (true, false) => return,
                (true, true) => self.platform.tasks.sleep(most.min(LOOK_AGAIN)).await,
                (false, _) => self.platform.tasks.sleep(rest.min(PAUSE_MAX)).await,
            }
        }
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

    /// Steps of 10 ms that work at the default share takes in 100 s, beside callers of whom this tells how many calls there were.
    fn steps_beside(calls: impl Fn(Duration) -> u64 + Sync) -> u64 {
        let world = World::new(8);
        let (platform, start) = (world.platform(), world.elapsed());
        let elapsed = || world.elapsed() - start;
        let (goes_on, calls) = (|| elapsed() < Duration::from_secs(100), || calls(elapsed()));
        let steps = world.run_until(async {
            let pace = Pace::new(&platform, &|| Share::DEFAULT, &goes_on).beside(&calls);
            let mut steps = 0;
            loop {
                platform.tasks.sleep(Duration::from_millis(10)).await;
                steps += 1;
                if !pace.step().await {
                    break steps;
                }
            }
        });
        steps.expect("nothing halts it")
    }

    #[test]
    fn work_gives_way_to_callers_and_never_stands_still() {
        assert!((999..=1001).contains(&steps_beside(|_| 7)), "nobody calls");
        // Ten calls meet a step, and thousands come until the next one: as many as come in the longest pause.
        let often = steps_beside(|elapsed| elapsed.as_micros() as u64 / 1000);
        assert!((26..=29).contains(&often), "{often}");
        // Half of the time they rest.
        let at_times = steps_beside(|elapsed| elapsed.as_millis().min(50_000) as u64);
        assert!((505..=520).contains(&at_times), "{at_times}");
        // Few calls, of which each that is met costs it as long as it may wait.
        let seldom = steps_beside(|elapsed| elapsed.as_millis() as u64 / 130);
        assert!((100..=500).contains(&seldom), "{seldom}");
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
