//! What this machine is, for documents and for decisions: file systems, kernel, memory, caches.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: PathBuf,
}

/// The mount table; later mounts come later.
pub(crate) fn mounts() -> Result<Vec<Mounted>> {
    let table = fs::read("/proc/self/mountinfo").context("cannot read the mount table")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(mounted).collect())
}

/// proc_pid_mountinfo(5): five fields, the point being the fifth; options until ` - `; type, source, options.
fn mounted(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    Some(Mounted {
        point: unescape(fields.get(4)?).into(),
        kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?).into(),
    })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// The mount that `path` lies on. Not asked of the path, which may be a dead mount.
pub(crate) fn mount_of(path: &Path) -> Result<Mounted> {
    let covering = mounts()?.into_iter().filter(|mount| path.starts_with(&mount.point));
    let found = covering.max_by_key(|mount| mount.point.as_os_str().as_bytes().len());
    found.with_context(|| format!("{} lies on no mount", path.display()))
}

/// What is mounted exactly at `path`, topmost.
pub(crate) fn mounted_at(path: &Path) -> Result<Option<Mounted>> {
    Ok(mounts()?.into_iter().rev().find(|mount| mount.point == path))
}

/// Bytes free for us where `path` lies.
pub(crate) fn free_bytes(path: &Path) -> Result<u64> {
    let space = rustix::fs::statvfs(path).with_context(|| format!("cannot ask for the space at {}", path.display()))?;
    Ok(space.f_bavail * space.f_frsize)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Drops the kernel's clean caches. False if this machine does not let us.
pub(crate) fn drop_caches() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// The machine's memory.
pub(crate) fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

/// The processor, memory, kernel and distribution, in a line each.
pub(crate) fn description(disk: &Path) -> Vec<(&'static str, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str, split: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).map(ToOwned::to_owned);
        line.and_then(|line| line.split_once(split).map(|(_, value)| value.trim().trim_matches('"').to_owned()))
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let model = field(&read("/proc/cpuinfo"), "model name", ":").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let load = read("/proc/loadavg");
    let on = mount_of(disk).map(|mount| mount.kind).unwrap_or_else(|_| "unknown".to_owned());
    vec![
        ("processors", format!("{cpus} x {model}")),
        ("memory", crate::text::bytes(memory_bytes().unwrap_or_default())),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("system", field(&read("/etc/os-release"), "PRETTY_NAME", "=").unwrap_or_else(|| "unknown".to_owned())),
        ("file system of the disk", on),
        ("load average at the start", load.split(' ').take(3).collect::<Vec<_>>().join(" ")),
    ]
}

/// Whether the kernel would serve FUSE over io_uring; why not, if not.
pub(crate) fn ring_support() -> Result<(), String> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    if read("/proc/sys/kernel/io_uring_disabled").is_some_and(|text| text != "0") {
        return Err("io_uring is disabled here (sysctl kernel.io_uring_disabled)".to_owned());
    }
    match read("/sys/module/fuse/parameters/enable_uring").as_deref() {
        Some("Y" | "1") => Ok(()),
        Some(_) => {
            Err("it is switched off (module parameter fuse.enable_uring); root may: hydrafs doctor --fix".to_owned())
        }
        None => Err("this kernel has no FUSE over io_uring (Linux 6.14 has it)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{mounted, unescape};

    #[test]
    fn mount_lines_are_read() {
        let line = b"30 22 0:41 / /srv/my\\040mnt rw,nosuid shared:5 - fuse.hydrafs /srv/node rw,user_id=0";
        let mount = mounted(line).expect("a good line");
        assert_eq!(mount.point, Path::new("/srv/my mnt"));
        assert_eq!((mount.kind.as_str(), mount.source.as_path()), ("fuse.hydrafs", Path::new("/srv/node")));
        assert_eq!(mounted(b"30 22"), None);
        assert_eq!(unescape(b"a\\13"), "a\\13");
    }
}
