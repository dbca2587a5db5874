//! The two sides and the ground they stand on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Side;
use crate::program::Program;
use crate::volume::{self, Volume};
use crate::{machine, text};

/// Size of the loop device's file, which is sparse: a run needs about 20 GiB of it.
const LOOP_BYTES: u64 = 40 << 30;

/// A mounted HydraFS, and a directory of the ext4 that its disks are directories of.
#[derive(Debug)]
pub(super) struct Sides {
    // In this order: the mount goes before what it stands on.
    volume: Volume,
    ext4: PathBuf,
    words: String,
    binary: PathBuf,
    home: PathBuf,
    disks: [PathBuf; 2],
    _ground: Option<Loop>,
}

impl Sides {
    pub(super) fn make(binary: &Path, root: &Path) -> Result<Sides> {
        let home = root.join("sides");
        volume::clear(&home)?;
        fs::create_dir_all(&home)?;
        let below = machine::mount_of(&home)?;
        let (base, ground) = if below.kind == "ext4" {
            (home.clone(), None)
        } else {
            let ground = Loop::make(&home)?;
            (ground.point.clone(), Some(ground))
        };
        let words = match &ground {
            None => format!("directories of the ext4 at {}", below.point.display()),
            Some(_) => format!("directories of an ext4 on a loop device, its file on {}", below.kind),
        };
        let ext4 = base.join("ext4");
        fs::create_dir(&ext4)?;
        let (home, disks) = (home.join("hydrafs"), [base.join("disk-0"), base.join("disk-1")]);
        let mut volume = Volume::over(binary, &home, &disks)?;
        volume.mount()?;
        let words = format!(
            "both sides are {words}; HydraFS on two of them, over {}, a new node for each run",
            volume.transport()?
        );
        let free = machine::free_bytes(&base)?;
        if free < 20 << 30 {
            println!("only {} are free: a whole run needs about 20 GiB", text::bytes(free));
        }
        Ok(Sides { volume, ext4, words, binary: binary.to_owned(), home, disks, _ground: ground })
    }

    /// A new, empty node: it must not find in a run what it stored in the one before.
    pub(super) fn renew(&mut self) -> Result<()> {
        self.volume.unmount()?;
        volume::clear(&self.home)?;
        for disk in &self.disks {
            fs::remove_dir_all(disk).with_context(|| format!("cannot remove {}", disk.display()))?;
        }
        self.volume = Volume::over(&self.binary, &self.home, &self.disks)?;
        self.volume.mount()
    }

    /// What they stand on.
    pub(super) fn words(&self) -> String {
        self.words.clone()
    }

    pub(super) fn dir(&self, side: Side) -> PathBuf {
        match side {
            Side::Hydrafs => self.volume.point.clone(),
            Side::Ext4 => self.ext4.clone(),
        }
    }

    /// Everything written on this side is on the disk.
    pub(super) fn sync(&self, side: Side) -> Result<()> {
        match side {
            Side::Hydrafs => self.volume.sync(),
            Side::Ext4 => sync_ext4(&self.ext4),
        }
    }

    /// Both sides have nothing left to write: each side's run is its own.
    pub(super) fn settle(&self) -> Result<()> {
        self.sync(Side::Hydrafs)?;
        self.sync(Side::Ext4)
    }

    /// Nothing of this side is cached.
    pub(super) fn cool(&mut self, side: Side) -> Result<()> {
        self.sync(side)?;
        if side == Side::Hydrafs {
            self.volume.unmount()?;
            self.volume.mount()?;
        }
        sync_ext4(&self.ext4)?;
        if !machine::drop_caches() {
            bail!("cannot drop the kernel's caches: measure as root");
        }
        Ok(())
    }
}

fn sync_ext4(dir: &Path) -> Result<()> {
    let dir = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    rustix::fs::syncfs(dir).context("syncfs failed")
}

/// An ext4 in a file. Unmounted and detached when dropped.
#[derive(Debug)]
struct Loop {
    point: PathBuf,
    device: String,
}

impl Loop {
    fn make(home: &Path) -> Result<Loop> {
        if !machine::is_root() {
            bail!("the project does not lie on an ext4, and only root may make one on a loop device: measure as root");
        }
        let (file, point) = (home.join("ext4.image"), home.join("ground"));
        fs::create_dir_all(&point)?;
        File::create(&file)?.set_len(LOOP_BYTES)?;
        Program::new("mkfs.ext4").args(["-q", "-F"]).arg(&file).output()?;
        let device =
            Program::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file).output()?.trim().to_owned();
        let made = Loop { point, device };
        Program::new("mount").args(["-t", "ext4"]).arg(&made.device).arg(&made.point).output()?;
        Ok(made)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let ended = volume::take_away(&self.point).and_then(|()| detach(&self.device));
        if let Err(error) = ended {
            eprintln!("xtask: {error:#}; `losetup -d {}` when it is not in use any more", self.device);
        }
    }
}

/// Not through [`Program`], which does nothing after Ctrl-C.
fn detach(device: &str) -> Result<()> {
    let status = std::process::Command::new("losetup").args(["--detach", device]).status()?;
    if !status.success() {
        bail!("losetup --detach {device} ended with {status}");
    }
    Ok(())
}
