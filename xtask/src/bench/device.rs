//! A device that does so many requests a second and no more, whatever the machine's disk can do: as slow in seeking as a hard disk, or an SSD
//! of some ten thousand and so many bytes.
//!
//! The limit is that of a cgroup (v1, blkio.throttle). It is set on the root group, where everything that is not in a group of its own
//! is: programs, our daemon, and the kernel's own threads, which write back what programs wrote and commit ext4's journal.
//!
//! That limit counts what is *submitted*, and file systems submit a piece for each small file; the block layer then merges neighbours, and a
//! disk does what comes out. So there are two loop devices on top of each other. File systems are on the upper one, which has
//! no limit and merges, with the scheduler of hard disks (mq-deadline); each request that comes out of it is submitted to the lower one, which
//! has the limit. A batch of neighbours counts once on both sides that way. At most 512 KiB are in a request.
//!
//! The limit works in slices of 0.1 s: after a pause as many requests pass at once as belong into one, so times of less than half a second say
//! little. The counters do.
//!
//! What the limit does not know: that the next request begins where the last one ended. Small files that are read in their order on the
//! disk, one by one, cost a hard disk less than here; the model of a disk in `lab batches` knows that.
//!
//! It is tried before it is used ([`Device::try_limit`]): a machine without the controller would measure nothing and not notice.

mod count;
mod trace;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub(super) use self::count::Count;
pub(super) use self::trace::{Trace, places, seeks};
use super::direct::{self, PAGE, Page};
use super::loops::{self, LoopDevice, Mount};
use crate::{machine, text};

/// Size of the image, which is sparse.
const IMAGE_BYTES: u64 = 8 << 30;

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    /// Reads, and as many writes.
    pub(super) requests_per_second: u64,
    /// Read, and as many written; `None`: as many as fit the requests.
    pub(super) bytes_per_second: Option<u64>,
}

/// A disk of 7200 rounds a minute seeks 8 to 9 ms and waits half a round, 4.2 ms; with several requests to choose from it does some
/// more than the 80 a second that this makes. 100 to 200 are usual.
pub(super) const SEEK: Limit =
    Limit { name: "150 requests a second", requests_per_second: 150, bytes_per_second: None };
/// SATA SSDs do some ten thousand, and what their cable carries: the published one read 4 GB of large files in 8.5 s and wrote them in 11 s. With
/// requests alone limited, large files would be those of a device ten times as fast, which is what the processors can copy.
pub(super) const SSD: Limit = Limit {
    name: "10,000 requests and 500 MB a second",
    requests_per_second: 10_000,
    bytes_per_second: Some(500_000_000),
};

/// An ext4 on a limited device. The limit holds only while [`Device::limited`] works.
#[derive(Debug)]
pub(super) struct Device {
    // In this order: the mount goes before what it stands on.
    trace: Option<Trace>,
    ext4: Mount,
    upper: Upper,
    throttle: Throttle,
    _lower: LoopDevice,
}

impl Device {
    /// A fresh one in this folder.
    pub(super) fn make(home: &Path, limit: Limit) -> Result<Device> {
        let image = home.join("image");
        loops::image(&image, IMAGE_BYTES)?;
        let lower = LoopDevice::attach(&image)?;
        let throttle = Throttle::of(&lower, limit)?;
        let upper = Upper::over(&lower)?;
        let ext4 = Mount::fresh_ext4(upper.0.path(), &home.join("ext4"))?;
        let mut device = Device { trace: None, ext4, upper, throttle, _lower: lower };
        device.try_limit()?;
        device.trace = Some(Trace::prepare(home, &device.upper.0.number()?)?);
        Ok(device)
    }

    pub(super) fn point(&self) -> &Path {
        self.ext4.point()
    }

    pub(super) fn count(&self) -> Result<Count> {
        Count::of(&self.upper.0.number()?)
    }

    /// Sees every request from now on, until the trace is taken.
    pub(super) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Does some work with the limit on.
    pub(super) fn limited<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.throttle.set(true)?;
        let done = work();
        self.throttle.set(false)?;
        done
    }

    /// Reads past the caches, writes that the kernel does behind, and what is merged: each is limited as it should be.
    fn try_limit(&self) -> Result<()> {
        let path = self.point().join("trial");
        let rate = self.throttle.limit.requests_per_second;
        // Far apart, so that none is merged.
        let (pieces, step) = (rate.clamp(100, 2000), 64 << 10);
        let file = File::options().create_new(true).write(true).open(&path)?;
        for number in 0..pieces {
            file.write_all_at(&vec![1; step as usize], number * step)?;
        }
        file.sync_all()?;
        let scattered = self.timed(|| {
            for number in 0..pieces {
                file.write_all_at(&[2; PAGE], number * step)?;
            }
            Ok(file.sync_all()?)
        })?;
        let read = self.timed(|| read_scattered(&path, pieces, step))?;
        let together = self.timed(|| {
            file.write_all_at(&vec![3; (pieces * PAGE as u64) as usize], 0)?;
            Ok(file.sync_all()?)
        })?;
        let bytes = pieces * step;
        let stream = self.timed(|| {
            file.write_all_at(&vec![4; bytes as usize], 0)?;
            Ok(file.sync_all()?)
        })?;
        fs::remove_file(&path)?;
        // Some are let through at once after a pause.
        let least = Duration::from_secs_f64(pieces as f64 / rate as f64 * 0.7);
        for (what, time) in [("writes that the kernel wrote back", scattered), ("reads past the cache", read)] {
            if time < least {
                bail!(
                    "the limit of {} does not hold: {pieces} {what} took {}, expected {} at least; \
                     something else governs the block devices of this machine",
                    self.throttle.limit.name,
                    text::span(time),
                    text::span(least)
                );
            }
        }
        let least_stream = self
            .throttle
            .limit
            .bytes_per_second
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64 * 0.7));
        if stream < least_stream {
            bail!(
                "the limit of {} does not hold: {} in a row were written in {}, expected {} at least",
                self.throttle.limit.name,
                text::bytes(bytes),
                text::span(stream),
                text::span(least_stream)
            );
        }
        if together > least {
            bail!(
                "{pieces} pages in a row took {} as one write, as long as apart: the block layer merges nothing here",
                text::span(together)
            );
        }
        Ok(())
    }

    fn timed(&self, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let started = Instant::now();
        self.limited(work)?;
        Ok(started.elapsed())
    }
}

fn read_scattered(path: &Path, pieces: u64, step: u64) -> Result<()> {
    let (file, mut page) = (direct::open(path)?, Page::new());
    (0..pieces).try_for_each(|number| Ok(file.read_exact_at(&mut page.0, number * step)?))
}

/// The device that merges. Its scheduler is put back when it is dropped.
#[derive(Debug)]
struct Upper(LoopDevice);

impl Upper {
    fn over(lower: &LoopDevice) -> Result<Upper> {
        let upper = Upper(LoopDevice::attach(lower.path())?);
        upper.schedule("mq-deadline").context("this kernel has no scheduler mq-deadline")?;
        Ok(upper)
    }

    fn schedule(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.0.attribute("queue/scheduler"), name)?)
    }
}

impl Drop for Upper {
    fn drop(&mut self) {
        // What loop devices have. The next who gets this number chooses for himself.
        let _ = self.schedule("none");
    }
}

/// A limit of requests and bytes. Lifted when dropped.
#[derive(Debug)]
struct Throttle {
    group: PathBuf,
    number: String,
    limit: Limit,
}

impl Throttle {
    fn of(device: &LoopDevice, limit: Limit) -> Result<Throttle> {
        let group = root_group()?.context("there is no cgroup (v1) with the controller blkio, which limits devices")?;
        Ok(Throttle { group, number: device.number()?, limit })
    }

    fn set(&self, is_on: bool) -> Result<()> {
        let limits = [(REQUESTS, Some(self.limit.requests_per_second)), (BYTES, self.limit.bytes_per_second)];
        for (files, rate) in limits {
            // 0 is no limit.
            let line = format!("{} {}", self.number, rate.filter(|_| is_on).unwrap_or(0));
            for file in files {
                let path = self.group.join(file);
                fs::write(&path, &line).with_context(|| format!("cannot write `{line}` to {}", path.display()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        if let Err(error) = self.set(false) {
            eprintln!("xtask: {error:#}");
        }
    }
}

const REQUESTS: [&str; 2] = ["blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"];
const BYTES: [&str; 2] = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];

/// Where limits for all are set.
fn root_group() -> Result<Option<PathBuf>> {
    let mut groups = machine::mounts()?.into_iter().filter(|mount| mount.kind == "cgroup").map(|mount| mount.point);
    Ok(groups.find(|point| point.join(REQUESTS[0]).is_file()))
}

/// Lifts limits and detaches devices that an earlier run left in this folder. Mounts on them must be gone.
pub(super) fn clear(home: &Path) -> Result<()> {
    let Ok(home) = home.canonicalize() else { return Ok(()) };
    for device in loops::left_in(&home)? {
        // Dropped at once: that lifts whatever there is. Without a group there is none.
        drop(Throttle::of(&device, SEEK));
    }
    Ok(())
}

/// Why no device can be limited here, if none can.
pub(super) fn why_not() -> Result<Option<String>> {
    let why = if !machine::is_root() {
        Some("only root may attach and limit loop devices")
    } else if root_group()?.is_none() {
        Some("no cgroup (v1) with the controller blkio is mounted here, which limits devices")
    } else {
        None
    };
    Ok(why.map(ToOwned::to_owned))
}
