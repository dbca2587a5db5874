//! Every request that a device is given, with its time and its place: the kernel's tracepoint block_rq_issue, in an instance of its own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::super::loops::Mount;

const EVENT: &str = "events/block/block_rq_issue";
/// For each processor. A line of the ring takes about 100 bytes.
const RING_KIBIBYTES: u64 = 32 << 10;

/// A request that the device was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Access {
    /// Of the kernel's clock.
    pub(in super::super) seconds: f64,
    pub(in super::super) is_write: bool,
    /// Of 512 bytes, as the next.
    pub(in super::super) sector: u64,
    pub(in super::super) sectors: u64,
}

/// How often a request did not begin where the one before it ended. The first counts.
pub(in super::super) fn seeks(accesses: &[Access]) -> u64 {
    let mut place = None;
    let mut count = 0;
    for access in accesses {
        count += u64::from(place != Some(access.sector));
        place = Some(access.sector + access.sectors);
    }
    count
}

/// Of each, seconds since the first and mebibytes since the beginning of the device.
pub(in super::super) fn places(accesses: &[Access]) -> Vec<(f64, f64)> {
    let begun = accesses.first().map_or(0.0, |access| access.seconds);
    accesses.iter().map(|access| (access.seconds - begun, access.sector as f64 / 2048.0)).collect()
}

/// An instance of the tracer for one device. Removed when dropped.
#[derive(Debug)]
pub(in super::super) struct Trace {
    // In this order: the instance goes before the mount that it is seen through.
    instance: Instance,
    _tracing: Mount,
}

#[derive(Debug)]
struct Instance(PathBuf);

impl Trace {
    /// For the device with this number, `7:1`. Traces nothing yet.
    pub(in super::super) fn prepare(home: &Path, number: &str) -> Result<Trace> {
        let tracing = Mount::make("tracefs", Path::new("tracefs"), &home.join("tracing"))?;
        // Nobody else measures this device: what has this name was left by an earlier run.
        let path = tracing.point().join("instances").join(format!("hydrafs-bench-{number}"));
        if path.exists() {
            fs::remove_dir(&path).with_context(|| format!("cannot remove the tracer {}", path.display()))?;
        }
        fs::create_dir(&path).with_context(|| format!("cannot make the tracer {}", path.display()))?;
        let trace = Trace { instance: Instance(path), _tracing: tracing };
        trace.instance.set("buffer_size_kb", &RING_KIBIBYTES.to_string())?;
        trace.instance.set(&format!("{EVENT}/filter"), &format!("dev == {}", filter_number(number)?))?;
        trace.instance.set(&format!("{EVENT}/enable"), "1")?;
        trace.instance.set("tracing_on", "0")?;
        Ok(trace)
    }

    /// Begins anew.
    pub(in super::super) fn begin(&self) -> Result<()> {
        self.instance.set("trace", "")?;
        self.instance.set("tracing_on", "1")
    }

    /// What came since it began, in the order of time.
    pub(in super::super) fn take(&self) -> Result<Vec<Access>> {
        self.instance.set("tracing_on", "0")?;
        let path = self.instance.0.join("trace");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Some((kept, written)) = entries(&text)
            && kept < written
        {
            bail!("the tracer kept {kept} requests of {written}: its ring is too small");
        }
        Ok(text.lines().filter_map(parse).collect())
    }
}

impl Instance {
    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write `{value}` to {}", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("xtask: cannot remove the tracer {}: {error}; `rmdir` it", self.0.display());
        }
    }
}

/// The kernel's inner number of a device: `7:1` is 7 << 20 | 1.
fn filter_number(number: &str) -> Result<u64> {
    let (major, minor) = number.split_once(':').context("a device's number has two parts")?;
    Ok(major.parse::<u64>()? << 20 | minor.parse::<u64>()?)
}

/// `# entries-in-buffer/entries-written: 3/3   #P:2`.
fn entries(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/entries-written:"))?;
    let (kept, written) = line.split_whitespace().next()?.split_once('/')?;
    Some((kept.parse().ok()?, written.parse().ok()?))
}

/// `  fio-8 [001] ..... 1234.567890: block_rq_issue: 7,1 R 4096 () 2056 + 8 none,0,0 [fio]`; a flush and a discard move no data.
fn parse(line: &str) -> Option<Access> {
    let (head, request) = line.split_once(": block_rq_issue: ")?;
    let seconds = head.rsplit(' ').next()?.parse().ok()?;
    let mut fields = request.split_whitespace();
    let kind = fields.nth(1)?;
    let (_, place) = request.split_once(") ")?;
    let mut place = place.split_whitespace();
    let (sector, plus, sectors) = (place.next()?.parse().ok()?, place.next()?, place.next()?.parse().ok()?);
    let moves_data = sectors > 0 && !kind.contains('D') && kind.contains(['R', 'W']);
    (plus == "+" && moves_data).then_some(Access { seconds, is_write: kind.contains('W'), sector, sectors })
}

#[cfg(test)]
mod tests {
    use super::{Access, entries, filter_number, parse, seeks};

    #[test]
    fn the_tracers_lines_are_read() {
        let read =
            "             fio-812     [001] .....  1234.567890: block_rq_issue: 7,1 RA 4096 () 2056 + 8 none,0,0 [fio]";
        let expected = Access { seconds: 1234.56789, is_write: false, sector: 2056, sectors: 8 };
        assert_eq!(parse(read), Some(expected));
        let write =
            "   kworker/u8:1-77      [000] d..2.  9.000001: block_rq_issue: 7,1 FWS 512 () 8 + 1 be,0,4 [kworker/u8:1]";
        assert_eq!(parse(write).map(|access| (access.is_write, access.sector, access.sectors)), Some((true, 8, 1)));
        for nothing in [
            "  a-1 [000] d..2.  9.000001: block_rq_issue: 7,1 FF 0 () 18446744073709551615 + 0 none,0,0 [a]",
            "  a-1 [000] d..2.  9.000001: block_rq_issue: 7,1 DS 0 () 8 + 8 none,0,0 [a]",
            "  a-1 [000] d..2.  9.000001: block_rq_complete: 7,1 R () 8 + 8 none,0,0 [0]",
            "# tracer: nop",
        ] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
        assert_eq!(entries("# tracer: nop\n#\n# entries-in-buffer/entries-written: 31/42   #P:2\n"), Some((31, 42)));
        assert_eq!(filter_number("7:1").ok(), Some(7_340_033));
    }

    #[test]
    fn a_seek_is_where_a_request_does_not_follow() {
        let at = |sector| Access { seconds: 0.0, is_write: false, sector, sectors: 8 };
        assert_eq!(seeks(&[]), 0);
        assert_eq!(seeks(&[at(0), at(8), at(16)]), 1);
        assert_eq!(seeks(&[at(16), at(8), at(16), at(16)]), 3);
    }
}
