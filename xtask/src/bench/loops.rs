//! Loop devices and file systems on them. Each is taken away by its own name when its guard is dropped, also after an error or Ctrl-C;
//! what a run left that was itself killed is found by the next one ([`left_in`]).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::program::Program;
use crate::{machine, volume};

/// A loop device over a file or another device, past the cache of what is below. Detached when dropped.
#[derive(Debug)]
pub(super) struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    pub(super) fn attach(below: &Path) -> Result<LoopDevice> {
        if !machine::is_root() {
            bail!("only root may attach a loop device: measure as root");
        }
        let losetup = Program::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(below);
        Ok(LoopDevice { path: losetup.output()?.trim().into() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's number of it, `7:0`.
    pub(super) fn number(&self) -> Result<String> {
        let file = self.attribute("dev");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(text.trim().to_owned())
    }

    /// A file of sysfs about it.
    pub(super) fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default()).join(name)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = detach(&self.path) {
            let path = self.path.display();
            eprintln!("xtask: {error:#}; `losetup --detach {path}` when it is not in use any more");
        }
    }
}

/// Not through [`Program`], which does nothing after Ctrl-C.
fn detach(device: &Path) -> Result<()> {
    let status = std::process::Command::new("losetup").arg("--detach").arg(device).status()?;
    if !status.success() {
        bail!("losetup --detach {} ended with {status}", device.display());
    }
    Ok(())
}

/// A mount of ours. Taken away when dropped.
#[derive(Debug)]
pub(super) struct Mount {
    point: PathBuf,
}

impl Mount {
    /// Mounts `source` at `point`, which is made.
    pub(super) fn make(kind: &str, source: &Path, point: &Path) -> Result<Mount> {
        fs::create_dir_all(point).with_context(|| format!("cannot make {}", point.display()))?;
        // What an earlier run left there.
        volume::take_away(point)?;
        let made = Mount { point: point.to_owned() };
        Program::new("mount").args(["-t", kind]).arg(source).arg(point).output()?;
        Ok(made)
    }

    /// A new ext4 on a device.
    pub(super) fn fresh_ext4(device: &Path, point: &Path) -> Result<Mount> {
        // Whole at once: else the kernel goes on making it for minutes, beside what is measured.
        let whole = "lazy_itable_init=0,lazy_journal_init=0";
        Program::new("mkfs.ext4").args(["-q", "-F", "-E", whole]).arg(device).output()?;
        Mount::make("ext4", device, point)
    }

    pub(super) fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = volume::take_away(&self.point) {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// A new sparse file of this size, for a loop device.
pub(super) fn image(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    file.set_len(bytes).with_context(|| format!("cannot size {}", path.display()))
}

/// What an earlier run left attached to files below `root`, and what stands on that, the upper ones first. Mounts on it must be gone.
pub(super) fn left_in(root: &Path) -> Result<Vec<LoopDevice>> {
    let mut found: Vec<LoopDevice> = Vec::new();
    let mut parts = vec![root.to_owned()];
    while let Some(part) = parts.pop() {
        for path in attached_to(&part)? {
            println!("   detaching {}, which an earlier run left", path.display());
            parts.push(path.clone());
            found.insert(0, LoopDevice { path });
        }
    }
    Ok(found)
}

/// Loop devices over a file in this folder, or over this device.
fn attached_to(part: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").context("cannot list /sys/block")? {
        let entry = entry?;
        // Only loop devices that are attached have it.
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if Path::new(backing.trim_end()).starts_with(part) {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}
