//! Copies of real trees and of a zoo of odd files, there and back, compared by our own eyes.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, utimensat};

use super::Place;
use crate::program::Program;
use crate::tally::End;
use crate::tree::{Comparison, Size, compare, size};
use crate::{machine, text};

/// Real trees that most machines have, the first that is there counts; the quick one is small.
const TREES: [&str; 4] = ["/usr/share/doc", "/usr/include", "/usr/share", "/usr/lib"];
const TREES_QUICK: [&str; 4] = ["/usr/share/perl5", "/usr/share/zoneinfo", "/usr/share/perl", "/etc"];

/// What to copy: a real tree, and all kinds of files that are rare in real ones.
fn originals(place: &Place, has_socket: bool) -> Result<[PathBuf; 2]> {
    let trees = if place.is_quick { TREES_QUICK } else { TREES };
    let real =
        trees.iter().map(PathBuf::from).find(|path| path.is_dir()).context("this machine has no tree to copy")?;
    let zoo = place.scratch("zoo")?;
    make_zoo(&zoo, has_socket, if place.is_quick { 100 << 20 } else { 5 << 30 })?;
    Ok([real.canonicalize()?, zoo])
}

/// tar, into the mount and out again.
pub(super) fn tar(place: &Place) -> Result<End> {
    // tar leaves sockets out.
    round_trip(place, false, |from, to, log| {
        let all = ["--acls", "--xattrs", "--xattrs-include=*", "--sparse", "--numeric-owner"];
        let archive = to.with_extension("tar");
        let tar = || Program::new("tar").args(all).log(log).limit(Duration::from_secs(1800));
        tar().arg("-cf").arg(&archive).arg("-C").arg(from).arg(".").run()?;
        tar().arg("-xpf").arg(&archive).arg("-C").arg(to).run()?;
        Ok(fs::remove_file(&archive)?)
    })
}

/// rsync -aHAX, into the mount and out again; asked once more with --checksum, it finds nothing to do.
pub(super) fn rsync(place: &Place) -> Result<End> {
    round_trip(place, true, |from, to, log| {
        let source = slash(from);
        let rsync =
            || Program::new("rsync").args(["-aHAX", "--devices", "--specials"]).limit(Duration::from_secs(1800));
        rsync().arg("--sparse").arg(&source).arg(to).log(log).run()?;
        let again =
            rsync().args(["--checksum", "--itemize-changes", "--dry-run", "--delete"]).arg(&source).arg(to).output()?;
        if !again.trim().is_empty() {
            bail!("rsync --checksum would change what it has just copied:\n{}", text::last_lines(&again, 8));
        }
        Ok(())
    })
}

/// cp -a, which copies ranges and holes its own way.
pub(super) fn copy(place: &Place) -> Result<End> {
    round_trip(place, true, |from, to, log| {
        let source = from.join(".");
        Program::new("cp")
            .args(["-a", "--sparse=auto", "--"])
            .arg(&source)
            .arg(to)
            .log(log)
            .limit(Duration::from_secs(1800))
            .run()
    })
}

/// Copies each original into the mount, within it, and out again; each copy must equal the original.
fn round_trip(place: &Place, has_socket: bool, copy: impl Fn(&Path, &Path, &Path) -> Result<()>) -> Result<End> {
    let mut sum = Size::default();
    for (index, original) in originals(place, has_socket)?.iter().enumerate() {
        let (inside, second) = (place.dir.join(format!("copy-{index}")), place.dir.join(format!("second-{index}")));
        let outside = place.scratch(&format!("back-{index}"))?;
        fs::create_dir(&inside)?;
        fs::create_dir(&second)?;
        let bar = ProgressBar::hidden();
        let legs = [
            (original, &inside, "into the mount"),
            (&inside, &second, "within the mount"),
            (&inside, &outside, "out of the mount"),
        ];
        for (from, to, words) in legs {
            copy(from, to, &place.log).with_context(|| words.to_owned())?;
            compare(original, to, Comparison::FULL, &bar).with_context(|| words.to_owned())?;
        }
        let found = size(original)?;
        sum.files += found.files;
        sum.bytes += found.bytes;
        sum.directories += found.directories;
        sum.others += found.others;
        fs::remove_dir_all(&outside)?;
    }
    Ok(End::Passed(format!(
        "{} entries with {}, into, within and out of the mount, each equal",
        text::count(sum.entries()),
        text::bytes(sum.bytes)
    )))
}

fn slash(path: &Path) -> PathBuf {
    path.join("")
}

/// One of each kind of file, with what copies like to lose.
fn make_zoo(root: &Path, has_socket: bool, sparse_bytes: u64) -> Result<()> {
    let at = |name: &str| root.join(name);
    fs::write(at("empty"), "")?;
    fs::write(at("one byte"), "x")?;
    fs::write(at(&"n".repeat(255)), "a name of 255 bytes")?;
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"bytes \xff\xfe\n\t\\ and newline")), "a name that is no text")?;
    fs::write(at("linked"), "three names")?;
    fs::create_dir_all(at("deep/er/and/deeper"))?;
    fs::hard_link(at("linked"), at("deep/er/linked too"))?;
    fs::hard_link(at("linked"), at("linked as well"))?;
    std::os::unix::fs::symlink("linked", at("soft"))?;
    std::os::unix::fs::symlink("no/such/place", at("dangling"))?;
    std::os::unix::fs::symlink("x".repeat(1000), at("long target"))?;
    make_sparse(&at("sparse"), sparse_bytes)?;
    for (name, mode) in [("set-id", 0o6755), ("sticky", 0o1777), ("nothing", 0o000), ("read only", 0o444)] {
        fs::write(at(name), name)?;
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode))?;
    }
    let fifo = mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0);
    fifo.context("cannot make a fifo")?;
    if has_socket {
        mknodat(CWD, at("socket"), FileType::Socket, Mode::from_raw_mode(0o755), 0).context("cannot make a socket")?;
    }
    for index in 0..300 {
        fs::write(at(&format!("deep/{index}")), vec![index as u8; index * 37])?;
    }
    rustix::fs::setxattr(at("one byte"), "user.colour", b"blue\0green", XattrFlags::empty())
        .context("cannot set an attribute")?;
    rustix::fs::setxattr(at("deep"), "user.empty", b"", XattrFlags::empty()).context("cannot set an attribute")?;
    if machine::is_root() {
        make_roots_part(root)?;
    }
    set_times(root)
}

/// Each name another time, with nanoseconds; some before 1970 and some after 2038. None of now: rsync takes the same second for
/// the same time.
fn set_times(root: &Path) -> Result<()> {
    let mut number = 0;
    let mut paths = Vec::new();
    crate::tree::walk(root, |relative, _| {
        paths.push(if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(relative) });
        Ok(())
    })?;
    for path in paths.iter().rev() {
        number += 1;
        let seconds = [1_600_000_000, -86_400, 4_000_000_000, 1][number as usize % 4] + number;
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 + number };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("cannot set the time of {}", path.display()))?;
    }
    Ok(())
}

fn make_roots_part(root: &Path) -> Result<()> {
    let at = |name: &str| root.join(name);
    let device = rustix::fs::makedev(1, 3);
    mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), device)
        .context("cannot make a device")?;
    std::os::unix::fs::chown(at("deep/1"), Some(1), Some(2))?;
    std::os::unix::fs::lchown(at("soft"), Some(3), Some(4))?;
    rustix::fs::setxattr(at("one byte"), "trusted.secret", &[7; 900], XattrFlags::empty())
        .context("cannot set an attribute")?;
    for acl in ["u:daemon:rw", "g:daemon:r"] {
        Program::new("setfacl").args(["-m", acl]).arg(at("one byte")).output()?;
    }
    Program::new("setfacl").args(["-d", "-m", "u:daemon:rwx"]).arg(at("deep")).output()?;
    Ok(())
}

/// Data at the start, in the middle and at the end of a long hole.
fn make_sparse(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create(path)?;
    for offset in [0, 1 << 20, bytes / 2 + 123, bytes - 5] {
        file.write_all_at(b"data!", offset)?;
    }
    Ok(())
}
