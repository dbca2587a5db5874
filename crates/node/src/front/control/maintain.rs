//! Maintenance that somebody asks for: room that comes back, what is stored read again.
//!
//! Not here: what goes on in the background (`file`).

use std::sync::mpsc::Sender;
use std::time::Duration;

use base::units::Bytes;
use file::{Problem, Reclaim, ReclaimProgress, Share};
use parking_lot::Mutex;
use platform::Platform;
use platform::real::block_on;
use serde_json::{Value, json};

use super::Control;
use crate::failure::Failure;
use crate::moment;

/// Between two lines of progress.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

impl Control {
    pub(super) fn collect(
        &self,
        (dry_run, thorough): (bool, bool),
        share: Option<u8>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot give room back";
        let share = self.share(share, what)?;
        let files = self.system.files_made();
        let started = self.platform.clock.elapsed();
        let report = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |done| match done {
                ReclaimProgress::Marked { files: walked } => {
                    teller.tell(walked, None, &|_| format!("walked {walked} files; at most {files} were ever made"));
                }
                ReclaimProgress::Swept { packs, all_packs } => {
                    teller.tell(packs, Some(all_packs), &|_| format!("looked at {packs} of {all_packs} packs"));
                }
            };
            block_on(self.system.reclaim(&Reclaim {
                is_rehearsal: dry_run,
                is_thorough: thorough,
                share,
                tell: &tell,
                ..Reclaim::default()
            }))
        })
        .map_err(self.explain(what))?;
        let space = self.system.space();
        Ok(json!({
            "dry_run": dry_run,
            "thorough": thorough,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
            "packs_examined": report.packs_examined,
            "packs_open": report.packs_open,
            "packs_dead": report.packs_dead,
            "packs_sparse": report.packs_sparse,
            "packs_deleted": report.packs_deleted,
            "bytes_freed": report.bytes_freed,
            "bytes_copied": report.bytes_copied,
            "bytes_dead_left": report.bytes_dead_left,
            "problems": report.problems,
            "space": { "total_bytes": space.total, "free_bytes": space.free },
        }))
    }

    pub(super) fn scrub(
        &self,
        older_than: Duration,
        share: Option<u8>,
        dry_run: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let share = self.share(share, "cannot scrub the node")?;
        let plan = self.system.scrub_plan(older_than);
        let mut answer = json!({
            "dry_run": dry_run,
            "planned_packs": plan.packs,
            "planned_bytes": plan.bytes,
        });
        if !dry_run {
            let started = self.platform.clock.elapsed();
            let report = beside(progress, |send| {
                let teller = Teller::new(&self.platform, send);
                let tell = |done, all| {
                    teller.tell(done, Some(all), &|rate| {
                        format!("read {} of {}, {}/s", Bytes(done), Bytes(all), Bytes(rate))
                    });
                };
                block_on(self.system.scrub(older_than, share, &tell))
            });
            answer["seconds"] = json!(self.platform.clock.elapsed().saturating_sub(started).as_secs_f64());
            answer["complete"] = json!(report.is_complete);
            answer["packs"] = json!(report.packs);
            answer["chunks"] = json!(report.chunks);
            answer["bytes"] = json!(report.bytes);
            answer["problems"] = json!(report.problems.iter().map(Problem::to_string).collect::<Vec<_>>());
            answer["further"] = json!(report.further);
            answer["mended"] = json!(report.mended.iter().map(Problem::to_string).collect::<Vec<_>>());
        }
        answer["status"] = status(&self.system.status().store.scrub);
        Ok(answer)
    }

    pub(super) fn share(&self, percent: Option<u8>, what: &'static str) -> Result<Share, Failure> {
        let Some(percent) = percent else { return Ok(self.system.background_share()) };
        Share::percent(percent).ok_or_else(|| {
            Failure::new(what, "a share is a percentage of 1 to 100")
                .place(percent.to_string())
                .mend("nothing was changed")
        })
    }
}

/// How old the last look at what is stored is.
pub(super) fn status(scrub: &file::ScrubStatus) -> Value {
    json!({
        "bytes": scrub.bytes,
        "oldest_seconds": scrub.oldest.as_secs(),
        "unknown_packs": scrub.packs_unknown,
        "unknown_bytes": scrub.bytes_unknown,
        "damaged_packs": scrub.damaged.len(),
    })
}

/// Does work on a thread of its own while this one tells what the work sends.
pub(super) fn beside<T: Send>(progress: &mut dyn FnMut(&str), work: impl FnOnce(Sender<String>) -> T + Send) -> T {
    let (send, receive) = std::sync::mpsc::channel::<String>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(send));
        receive.iter().for_each(|text| progress(&text));
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Tells now and then how far work is, and how long it will take.
pub(super) struct Teller<'a> {
    platform: &'a Platform,
    started: Duration,
    state: Mutex<(Duration, Sender<String>)>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(platform: &'a Platform, send: Sender<String>) -> Teller<'a> {
        let started = platform.clock.elapsed();
        Teller { platform, started, state: Mutex::new((started, send)) }
    }

    /// `text` hears of the rate, in units of `done` per second.
    pub(super) fn tell(&self, done: u64, all: Option<u64>, text: &dyn Fn(u64) -> String) {
        let now = self.platform.clock.elapsed();
        let mut state = self.state.lock();
        if now.saturating_sub(state.0) < TELL_INTERVAL {
            return;
        }
        state.0 = now;
        let seconds = now.saturating_sub(self.started).as_secs_f64().max(1e-3);
        let rate = (done as f64 / seconds) as u64;
        let left = all.filter(|_| rate > 0).map(|all| all.saturating_sub(done) / rate);
        let left = left.map_or_else(String::new, |left| format!(", {} left", moment::span(left)));
        // A peer that left does not stop the work.
        let _ = state.1.send(format!("{}{left}", text(rate)));
    }
}
