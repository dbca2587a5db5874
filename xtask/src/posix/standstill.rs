//! A daemon that stands still: who waits for it gets an error in the end, and the next mount has everything.
//!
//! It takes as long as the kernel needs to find out: it looks each 15 s for requests that are too old.
//!
//! Not here: disks that stand still, which tests of the node have.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::program::Program;
use crate::tally::End;
use crate::text;
use crate::volume::Volume;

/// What is set, in seconds; more than twice as much is no bound.
const PATIENCE_S: u64 = 15;

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
    let limit = Duration::from_secs(3 * PATIENCE_S);
    let asked = Program::new("stat").args(["--file-system", "--"]).arg(&volume.point).limit(limit).outcome();
    let waited = started.elapsed();
    // Whatever came of it.
    volume.signal(Signal::CONT)?;
    let (status, said, _) = asked.context("nobody ended the waiting")?;
    if status.success() {
        bail!("a daemon that was stopped answered: {}", said.trim());
    }
    volume.has_ended(Duration::from_secs(30))?;

    volume.mount()?;
    let found = fs::read_to_string(&file).context("cannot read what was synced")?;
    if found != "synced" {
        bail!("{} holds {found:?} instead of what was synced", file.display());
    }
    volume.unmount()?;
    volume.fsck(true)?;
    Ok(End::Passed(format!("an error after {}, and the next mount is whole", text::span(waited))))
}
