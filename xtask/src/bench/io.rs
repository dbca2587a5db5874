//! Workloads of plain calls, on bytes that no compressor shrinks and no run has seen before.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{COLD, Line, Run, Side, Unit, WARM, megabytes, per_second};
use crate::random::Random;

const MIB: usize = 1 << 20;
const PAGE: u64 = 4096;
/// Read and written at random.
const RANDOM_FILE_BYTES: u64 = 256 << 20;
const RANDOM_OPERATIONS: u64 = 20_000;

const FSYNC_AT_END: &str = "one fsync at the end";
const FSYNC_EACH: &str = "fsync of each";

const fn line(name: &'static str, unit: Unit, terms: &'static str) -> Line {
    Line { name, unit, terms }
}

fn random_of(run: &Run<'_>, what: u64) -> Random {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Random::new(time.as_nanos() as u64 ^ u64::from(run.number) << 8 ^ what)
}

/// Made before the clock runs.
fn fresh_bytes(run: &Run<'_>, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random_of(run, 1).fill(&mut bytes);
    bytes
}

pub(super) fn sequential(run: &mut Run<'_>) -> Result<()> {
    let bytes = fresh_bytes(run, run.scaled(1 << 30) as usize);
    let (path, count) = (run.dir.join("file"), bytes.len() as u64);
    let unique = line("write 1 GiB, 1 MiB at a time", Unit::MegabytesPerSecond, FSYNC_AT_END);
    if run.side == Side::Cutting {
        run.record(&unique, megabytes(count, cut_and_hash(&bytes)?));
        return Ok(());
    }
    have_memory(count);
    let time = write_all(&path, &bytes)?;
    run.record(&unique, megabytes(count, time));
    run.cool()?;
    let again = line("write the same 1 GiB into another file", Unit::MegabytesPerSecond, FSYNC_AT_END);
    have_memory(count);
    let time = write_all(&run.dir.join("again"), &bytes)?;
    run.record(&again, megabytes(count, time));
    drop(bytes);
    run.cool()?;
    have_memory(count);
    for terms in [COLD, WARM] {
        let time = read_all(&path)?;
        run.record(&line("read 1 GiB, 1 MiB at a time", Unit::MegabytesPerSecond, terms), megabytes(count, time));
    }
    Ok(())
}

/// Has the machine hold free memory for a stream, in its page cache and in a daemon's buffers. A virtual machine gives what is free back to
/// its host, and to get a GiB of it again takes a second (measured): more than the stream itself, whoever writes it.
fn have_memory(stream_bytes: u64) {
    let mut memory = vec![0_u8; stream_bytes as usize * 2];
    memory.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
}

fn write_all(path: &Path, bytes: &[u8]) -> Result<Duration> {
    let started = Instant::now();
    let mut file = File::create(path)?;
    for piece in bytes.chunks(MIB) {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    Ok(started.elapsed())
}

/// What every stream must go through, and nothing else: each core cuts its part of the bytes, with the sizes that `store` asks for, and
/// hashes the chunks.
fn cut_and_hash(bytes: &[u8]) -> Result<Duration> {
    let cores = std::thread::available_parallelism().context("how many cores there are is not known")?.get();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for part in bytes.chunks(bytes.len().div_ceil(cores)) {
            scope.spawn(|| {
                for chunk in fastcdc::v2020::FastCDC::new(part, 64 << 10, 64 << 10, 256 << 10) {
                    let hash = blake3::keyed_hash(&[7; 32], &part[chunk.offset..chunk.offset + chunk.length]);
                    std::hint::black_box(hash);
                }
            });
        }
    });
    Ok(started.elapsed())
}

fn read_all(path: &Path) -> Result<Duration> {
    let mut buffer = vec![0; MIB];
    let started = Instant::now();
    let mut file = File::open(path)?;
    while file.read(&mut buffer)? > 0 {}
    Ok(started.elapsed())
}

/// A file of fresh bytes, on the disk.
fn laid_out(run: &Run<'_>) -> Result<(File, u64)> {
    let bytes = fresh_bytes(run, run.scaled(RANDOM_FILE_BYTES) as usize / PAGE as usize * PAGE as usize);
    let path = run.dir.join("file");
    fs::write(&path, &bytes)?;
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.sync_all()?;
    run.sync()?;
    Ok((file, bytes.len() as u64 / PAGE))
}

pub(super) fn random_read(run: &mut Run<'_>) -> Result<()> {
    let (file, pages) = laid_out(run)?;
    drop(file);
    run.cool()?;
    let file = File::open(run.dir.join("file"))?;
    // The second pass asks for the same pages.
    let random = random_of(run, 2);
    let operations = run.scaled(RANDOM_OPERATIONS);
    for terms in [COLD, WARM] {
        let (mut random, mut page) = (random.clone(), vec![0; PAGE as usize]);
        let started = Instant::now();
        for _ in 0..operations {
            file.read_exact_at(&mut page, random.below(pages) * PAGE)?;
        }
        run.record(&line("read 4 KiB at random", Unit::PerSecond, terms), per_second(operations, started.elapsed()));
    }
    Ok(())
}

pub(super) fn random_write(run: &mut Run<'_>) -> Result<()> {
    let (file, pages) = laid_out(run)?;
    let mut random = random_of(run, 3);
    let operations = run.scaled(RANDOM_OPERATIONS);
    let bytes = fresh_bytes(run, operations as usize * PAGE as usize);
    let started = Instant::now();
    for page in bytes.chunks(PAGE as usize) {
        file.write_all_at(page, random.below(pages) * PAGE)?;
    }
    file.sync_all()?;
    run.record(
        &line("write 4 KiB at random", Unit::PerSecond, FSYNC_AT_END),
        per_second(operations, started.elapsed()),
    );
    Ok(())
}

pub(super) fn small_files(run: &mut Run<'_>) -> Result<()> {
    small_files_of(run, 4000, FSYNC_EACH)
}

pub(super) fn fsync_latency(run: &mut Run<'_>) -> Result<()> {
    fsync_latency_of(run, 2000, FSYNC_EACH)
}

/// Both where a sync is slow, so that those who wait at the same time can share one.
pub(super) fn syncs_on_seeks(run: &mut Run<'_>) -> Result<()> {
    let terms = "fsync of each; 150 requests a second";
    small_files_of(run, 400, terms)?;
    fsync_latency_of(run, 200, terms)
}

pub(super) fn syncs_on_ssd(run: &mut Run<'_>) -> Result<()> {
    let terms = "fsync of each; 10,000 requests and 500 MB a second";
    small_files_of(run, 4000, terms)?;
    fsync_latency_of(run, 2000, terms)
}

fn small_files_of(run: &mut Run<'_>, count: u64, terms: &'static str) -> Result<()> {
    const THREADS: u64 = 8;
    const BYTES: usize = 16 * 1024;
    let each = run.scaled(count) / THREADS;
    let bytes = fresh_bytes(run, (THREADS * each) as usize * BYTES);
    let dir = run.dir.clone();
    let work = |(thread, bytes): (usize, &[u8])| -> Result<()> {
        for (number, content) in bytes.chunks(BYTES).enumerate() {
            let mut file = File::create(dir.join(format!("{thread}-{number}")))?;
            file.write_all(content)?;
            file.sync_all()?;
        }
        Ok(())
    };
    let parts: Vec<_> = bytes.chunks(each as usize * BYTES).enumerate().collect();
    let time = run.sides.limited_work(|| {
        let started = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || work(part))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it returns its errors"))
        })?;
        Ok(started.elapsed())
    })?;
    let line = line("create, write 16 KiB, fsync, close: 8 threads", Unit::PerSecond, terms);
    run.record(&line, per_second(THREADS * each, time));
    Ok(())
}

fn fsync_latency_of(run: &mut Run<'_>, count: u64, terms: &'static str) -> Result<()> {
    let operations = run.scaled(count) as usize;
    let bytes = fresh_bytes(run, operations * PAGE as usize);
    let mut file = File::create(run.dir.join("log"))?;
    let mut times = run.sides.limited_work(|| {
        let mut times = Vec::with_capacity(operations);
        for page in bytes.chunks(PAGE as usize) {
            let started = Instant::now();
            file.write_all(page)?;
            file.sync_data()?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    })?;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().context("no operation was timed");
    let (median, late) = (at(0.5)?, at(0.99)?);
    run.record(&line("append 4 KiB and fdatasync, half are faster", Unit::Microseconds, terms), median);
    run.record(&line("append 4 KiB and fdatasync, 99 of 100 are faster", Unit::Microseconds, terms), late);
    Ok(())
}
