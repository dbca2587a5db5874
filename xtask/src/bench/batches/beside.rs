//! What somebody who reads at random notices of a batch beside him: of one that reads a hundred thousand cold files, and of one that writes as many.

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
/// A file that no cache holds at the default budget.
const READ_BYTES: u64 = 2 << 30;
const FILES: u64 = 100_000;
const ALONE: Duration = Duration::from_secs(10);
/// How often it is looked whether the batch has ended.
const SLICE: Duration = Duration::from_millis(50);

const TERMS: &str = "4 KiB at random past the kernel's cache";
const fn line(name: &'static str) -> Line {
    Line { name, unit: Unit::Microseconds, terms: TERMS }
}
/// Half of the reads, and 99 of 100, are faster.
const ALONE_LINES: [Line; 2] = [line("a read, half are faster: alone"), line("a read, 99 of 100 are faster: alone")];
const READING_LINES: [Line; 2] = [
    line("a read, half are faster: beside a batch that reads"),
    line("a read, 99 of 100 are faster: beside a batch that reads"),
];
const WRITING_LINES: [Line; 2] = [
    line("a read, half are faster: beside a batch that writes"),
    line("a read, 99 of 100 are faster: beside a batch that writes"),
];

pub(in super::super) fn beside(run: &mut Run<'_>) -> Result<()> {
    let bytes = run.scaled(READ_BYTES / MIB as u64) * MIB as u64;
    let set = Set { files: run.scaled(FILES), file_bytes: 4 << 10, order: Order::Random };
    let memory = Mount::make("tmpfs", Path::new("none"), &run.inputs.root.join("memory"))?;
    write_data(&run.dir.join("data"), bytes)?;
    set.write(&run.dir.join("files"), super::FIRST)?;
    let (binary, out) = (run.sides.binary().to_owned(), memory.point().join("out"));
    fs::create_dir(&out)?;
    let source = tools::source(Side::Hydrafs, memory.point(), &set, super::BESIDE)?;
    for _ in 0..run.runs {
        run.cool()?;
        let mut reader = Reader::open(&run.dir.join("data"), bytes)?;
        // What is asked for first is in memory then.
        reader.alone()?;
        let alone = reader.alone()?;
        let batch = tools::copier(Side::Hydrafs, &binary)?.arg(run.dir.join("files")).arg(&out);
        let reading = reader.beside(batch.start(Stdio::null(), Stdio::null(), Stdio::inherit())?)?;
        let to = run.dir.join("beside");
        fs::create_dir(&to)?;
        let batch = tools::copier(Side::Hydrafs, &binary)?.arg(&source).arg(&to);
        let writing = reader.beside(batch.start(Stdio::null(), Stdio::null(), Stdio::inherit())?)?;
        for (lines, times) in [(ALONE_LINES, alone), (READING_LINES, reading), (WRITING_LINES, writing)] {
            for (line, percent) in lines.iter().zip([50, 99]) {
                run.record(line, below(&times, percent)?);
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
