//! A daemon that stands still: who waits for it gets an error in the end, and the next mount has everything.
//!
//! It takes as long as the kernel needs to find out: it looks each 15 s for requests that are too old.
//!
//! Not here: disks that stand still, which tests of the node have.

use std::fs;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::program::{Child, Program};
use crate::tally::End;
use crate::volume::Volume;
use crate::{interrupt, text};

/// What is set, in seconds; more than twice as much is no bound.
const PATIENCE_S: u64 = 15;
const LIMIT: Duration = Duration::from_secs(3 * PATIENCE_S);
/// Who comes when the kernel has taken the mount away waits for nobody.
const NOW: Duration = Duration::from_secs(5);

pub(super) fn standstill(binary: &Path, home: &Path, transport: &str) -> Result<End> {
    let mut volume = Volume::fresh(binary, home)?;
    volume.set("mount", "transport", transport);
    volume.set("mount", "request_patience", &format!("{PATIENCE_S} s"));
    volume.mount()?;
    let file = volume.point.join("file");
    fs::write(&file, "synced").context("cannot write a file")?;
    volume.sync()?;

    volume.signal(Signal::STOP)?;
    let started = Instant::now();
    let look = || {
        let stat = Program::new("stat").args(["--file-system", "--"]).arg(&volume.point);
        stat.start(Stdio::null(), Stdio::null(), Stdio::null())
    };
    let mut first = look()?;
    let mut ended = ends_within(&mut first, LIMIT);
    let waited = started.elapsed();
    // The kernel does not take back what it has for a thread of the ring that is stopped (docs/posix.md); who comes later hears of the end.
    let is_kept = transport == "ring" && matches!(ended, Ok(None));
    // Dropped, a child is waited for, and no signal ends one that waits for the daemon: not before that goes on.
    let mut later = is_kept.then(look);
    let later_ended = match &mut later {
        Some(Ok(later)) => ends_within(later, NOW),
        _ => Ok(None),
    };
    // Whatever came of it.
    volume.signal(Signal::CONT)?;
    let mut words = format!("an error after {}", text::span(waited));
    if let Some(later) = later {
        later?;
        match later_ended? {
            None => bail!("nobody ended the waiting of who came after {}", text::span(waited)),
            Some(status) if status.success() => bail!("the mount was there after {}", text::span(waited)),
            Some(_) => {}
        }
        ended = ends_within(&mut first, LIMIT);
        words =
            format!("an error for who came after {}, for who was there when the daemon went on", text::span(waited));
    }
    match ended? {
        None => bail!("nobody ended the waiting"),
        Some(status) if status.success() => bail!("a daemon that was stopped answered"),
        Some(_) => {}
    }
    volume.has_ended(Duration::from_secs(30))?;

    volume.mount()?;
    let found = fs::read_to_string(&file).context("cannot read what was synced")?;
    if found != "synced" {
        bail!("{} holds {found:?} instead of what was synced", file.display());
    }
    volume.unmount()?;
    volume.fsck(true)?;
    Ok(End::Passed(format!("{words}, and the next mount is whole")))
}

/// How it ended, if it did.
fn ends_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    while !child.has_ended()? {
        if started.elapsed() > limit {
            return Ok(None);
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    child.wait().map(Some)
}
