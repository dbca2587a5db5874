//! What somebody who reads at random notices of a batch beside him: of one that reads cold files, and of one that writes as many; on this machine's
//! disk, and on one that does 150 requests a second.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::direct::{self, PAGE, Page};
use super::super::loops::Mount;
use super::super::{Line, Run, Side, Unit};
use super::set::{Order, Set};
use super::tools;
use crate::interrupt;
use crate::program::Child;
use crate::random::Random;

const MIB: usize = 1 << 20;
/// Where it is done, and with what.
struct Ground {
    /// Of the file that is read at random.
    read_bytes: u64,
    /// In the batch.
    files: u64,
    terms: &'static str,
}

/// A file that no cache holds at the default budget.
const HERE: Ground = Ground { read_bytes: 2 << 30, files: 100_000, terms: "4 KiB at random past the kernel's cache" };
/// The same: in the seconds that are measured a smaller one would be read ahead as a whole.
const SEEKING: Ground = Ground {
    read_bytes: 4 << 30,
    files: 20_000,
    terms: "4 KiB at random past the kernel's cache; 150 requests a second",
};

const ALONE: Duration = Duration::from_secs(10);
/// How often it is looked whether the batch has ended.
const SLICE: Duration = Duration::from_millis(50);

/// Half of the reads, and 99 of 100, are faster.
const ALONE_NAMES: [&str; 2] = ["a read, half are faster: alone", "a read, 99 of 100 are faster: alone"];
const READING_NAMES: [&str; 2] =
    ["a read, half are faster: beside a batch that reads", "a read, 99 of 100 are faster: beside a batch that reads"];
const WRITING_NAMES: [&str; 2] =
    ["a read, half are faster: beside a batch that writes", "a read, 99 of 100 are faster: beside a batch that writes"];

pub(in super::super) fn beside(run: &mut Run<'_>) -> Result<()> {
    on(run, &HERE)
}

pub(in super::super) fn beside_on_seeks(run: &mut Run<'_>) -> Result<()> {
    on(run, &SEEKING)
}

fn on(run: &mut Run<'_>, ground: &Ground) -> Result<()> {
    let bytes = run.scaled(ground.read_bytes / MIB as u64) * MIB as u64;
    let set = Set { files: run.scaled(ground.files), file_bytes: 4 << 10, order: Order::Random };
    let memory = Mount::make("tmpfs", Path::new("none"), &run.inputs.root.join("memory"))?;
    write_data(&run.dir.join("data"), bytes)?;
    set.write(&run.dir.join("files"), super::FIRST)?;
    let (binary, out) = (run.sides.binary().to_owned(), memory.point().join("out"));
    fs::create_dir(&out)?;
    let source = tools::source(Side::Hydrafs, memory.point(), &set, super::BESIDE)?;
    for _ in 0..run.runs {
        run.cool()?;
        let mut reader = Reader::open(&run.dir.join("data"), bytes)?;
        let (files, to) = (run.dir.join("files"), run.dir.join("beside"));
        fs::create_dir(&to)?;
        let [alone, reading, writing] = run.sides.limited_work(|| {
            // What is asked for first is in memory then.
            reader.alone()?;
            let alone = reader.alone()?;
            let batch = tools::copier(Side::Hydrafs, &binary)?.arg(&files).arg(&out);
            let reading = reader.beside(batch.start(Stdio::null(), Stdio::null(), Stdio::inherit())?)?;
            let batch = tools::copier(Side::Hydrafs, &binary)?.arg(&source).arg(&to);
            let writing = reader.beside(batch.start(Stdio::null(), Stdio::null(), Stdio::inherit())?)?;
            Ok([alone, reading, writing])
        })?;
        for (names, times) in [(ALONE_NAMES, alone), (READING_NAMES, reading), (WRITING_NAMES, writing)] {
            for (name, percent) in names.into_iter().zip([50, 99]) {
                let line = Line { name, unit: Unit::Microseconds, terms: ground.terms };
                run.record(&line, below(&times, percent)?);
            }
        }
        fs::remove_dir_all(out.join("files"))?;
        fs::remove_dir_all(&to)?;
    }
    Ok(())
}

fn write_data(path: &Path, bytes: u64) -> Result<()> {
    let (mut file, mut random, mut piece) = (File::create(path)?, Random::new(Random::fresh_seed()), vec![0; MIB]);
    for _ in 0..bytes / MIB as u64 {
        interrupt::check()?;
        random.fill(&mut piece);
        file.write_all(&piece)?;
    }
    Ok(())
}

/// One program that reads as fast as it is answered.
struct Reader {
    data: File,
    pages: u64,
    random: Random,
    page: Box<Page>,
}

impl Reader {
    fn open(path: &Path, bytes: u64) -> Result<Reader> {
        let (random, page) = (Random::new(Random::fresh_seed()), Page::new());
        Ok(Reader { data: direct::open(path)?, pages: bytes / PAGE as u64, random, page })
    }

    /// Times of reads, in microseconds, for so long.
    fn read_for(&mut self, time: Duration, times: &mut Vec<f64>) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            let at = self.random.below(self.pages) * PAGE as u64;
            let started = Instant::now();
            self.data.read_exact_at(&mut self.page.0, at)?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        interrupt::check()
    }

    fn alone(&mut self) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        self.read_for(ALONE, &mut times)?;
        Ok(times)
    }

    /// From a batch's beginning to its end.
    fn beside(&mut self, mut batch: Child) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while !batch.has_ended()? {
            self.read_for(SLICE, &mut times)?;
        }
        let status = batch.wait()?;
        anyhow::ensure!(status.success(), "the batch ended with {status}");
        Ok(times)
    }
}

/// What so many of a hundred are below.
fn below(times: &[f64], percent: usize) -> Result<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() * percent / 100).copied().context("no read was timed")
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn what_most_are_below() {
        let times: Vec<f64> = (0..1000).rev().map(f64::from).collect();
        assert_eq!(below(&times, 50).ok(), Some(500.0));
        assert_eq!(below(&times, 99).ok(), Some(990.0));
        assert!(below(&[], 50).is_err());
    }
}
