//! `rsync --fsync`: what a run that ended had copied is there after the crash, and another run makes the trees equal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::content::{self, Key};
use super::load::{Load, Round, Verified};
use crate::program::Program;
use crate::tree::{Comparison, compare};

/// Directories, each copied by one run of rsync.
const PARTS: u64 = 6;
const FILES: u64 = 12;

#[derive(Debug)]
pub(super) struct Rsync {
    round: Round,
    thread: u64,
    source: PathBuf,
    target: PathBuf,
    /// Runs begun and ended; each `PARTS` of them copy everything.
    begun: u64,
    ended: u64,
}

impl Rsync {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Rsync> {
        let source = round.outside.join(format!("rsync-{thread}"));
        let target = round.folder.join(format!("rsync-{thread}"));
        fs::create_dir(&target)?;
        let made = Rsync { round: round.clone(), thread, source, target, begun: 0, ended: 0 };
        if made.source.exists() {
            fs::remove_dir_all(&made.source)?;
        }
        fs::create_dir(&made.source)?;
        for part in 0..PARTS {
            made.edit(part, 0)?;
        }
        touch(&made.source, 0)?;
        Ok(made)
    }

    /// Gives the files of a part the content of a lap: other bytes, at times of the same length.
    fn edit(&self, part: u64, lap: u64) -> Result<()> {
        let dir = self.source.join(format!("part-{part}"));
        fs::create_dir_all(dir.join("below"))?;
        for file in 0..FILES {
            // Only some change in a lap, so that rsync has to find out which.
            if lap > 0 && !(file + lap).is_multiple_of(3) {
                continue;
            }
            let key = Key::new(self.round.number, self.thread, (lap * PARTS + part) * FILES + file);
            let bytes = 1 + (part * 31 + file * file * file * 97) % 60_000;
            let name = if file % 4 == 0 { format!("below/{file}") } else { file.to_string() };
            fs::write(dir.join(&name), content::make(key, 0, bytes as usize))?;
            touch(&dir.join(&name), lap)?;
        }
        touch(&dir.join("below"), lap)?;
        touch(&dir, lap)
    }

    fn copy(&self, from: &str) -> Result<()> {
        Program::new("rsync")
            .args(["-a", "--fsync", "--delete", "--"])
            .arg(format!("{}/{from}", self.source.display()))
            .arg(format!("{}/{from}", self.target.display()))
            .limit(Duration::from_secs(120))
            .output()
            .map(drop)
    }

    pub(super) fn step(&mut self) -> Result<()> {
        let (lap, part) = (self.begun / PARTS, self.begun % PARTS);
        self.edit(part, lap)?;
        self.begun += 1;
        self.copy(&format!("part-{part}/"))?;
        // rsync syncs files and then renames them; the renames are synced by nobody.
        File::open(&self.target)?.sync_all()?;
        self.ended = self.begun;
        self.round.done(self.thread, self.ended);
        Ok(())
    }

    /// Whether what rsync left of a part must be what its source is now.
    fn is_settled(&self, part: u64) -> bool {
        part < self.ended
            && self.begun.checked_sub(1).is_none_or(|last| self.begun == self.ended || last % PARTS != part)
    }
}

/// Gives a file a time of its lap: rsync compares sizes, which stay, and whole seconds.
fn touch(path: &Path, lap: u64) -> Result<()> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + lap);
    Ok(File::open(path)?.set_modified(time)?)
}

impl Load for Rsync {
    fn name(&self) -> &str {
        "rsync"
    }

    fn run(&mut self) -> Option<String> {
        let round = self.round.clone();
        round.until_killed(|| self.step())
    }

    fn done(&self) -> u64 {
        self.ended
    }

    fn verify(&self) -> Result<Verified> {
        let (mut settled, bar) = (Verified::default(), ProgressBar::hidden());
        for part in (0..PARTS).filter(|part| self.is_settled(*part)) {
            let name = format!("part-{part}");
            let size = compare(&self.source.join(&name), &self.target.join(&name), Comparison::CONTENT, &bar)
                .with_context(|| format!("{name} was copied and synced"))?;
            settled.add(Verified { synced: size.files, present: 0, bytes: size.bytes });
        }
        self.copy("").context("rsync after the crash")?;
        let what = Comparison { attributes: false, hard_links: false, ..Comparison::FULL };
        let size = compare(&self.source, &self.target, what, &bar).context("rsync ran again after the crash")?;
        Ok(Verified { present: size.files, ..settled })
    }
}
