//! The sides and the ground they stand on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Side;
use crate::program::{Child, Program};
use crate::volume::{self, Volume};
use crate::{machine, text, tree};

/// Size of the loop device's file, which is sparse: a run needs about 20 GiB of it.
const LOOP_BYTES: u64 = 40 << 30;

/// A mounted HydraFS, and a directory of the ext4 that its disks are directories of.
#[derive(Debug)]
pub(super) struct Sides {
    // In this order: the mounts go before what they stand on.
    volume: Volume,
    pass_through: Option<PassThrough>,
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
        let words =
            format!("all are {words}; HydraFS on two of them, over {}, a new node for each run", volume.transport()?);
        let free = machine::free_bytes(&base)?;
        if free < 20 << 30 {
            println!("only {} are free: a whole run needs about 20 GiB", text::bytes(free));
        }
        let (binary, pass_through) = (binary.to_owned(), None);
        Ok(Sides { volume, ext4, pass_through, words, binary, home, disks, _ground: ground })
    }

    /// Whether this side's directory is of the file system that is to be measured, and not of what would show if that were gone.
    pub(super) fn is_in_place(&self, side: Side) -> Result<bool> {
        let kind = machine::mount_of(&self.dir(side))?.kind;
        Ok(match side {
            Side::Hydrafs => kind == "fuse.hydrafs",
            Side::PassThrough => kind == "fuse.passthrough_ll",
            _ => kind == "ext4",
        })
    }

    /// Mounts what the pass-through side needs.
    pub(super) fn pass_through(&mut self, program: &Path) -> Result<()> {
        let point = self.ext4.with_file_name("pass-through");
        fs::create_dir_all(&point)?;
        self.pass_through = Some(PassThrough::mount(program, &self.ext4, &point)?);
        Ok(())
    }

    /// A new, empty node: it must not find in a run what it stored in the one before.
    pub(super) fn renew(&mut self) -> Result<()> {
        self.renew_with(&[])
    }

    /// A new, empty node with settings: section, key, value.
    pub(super) fn renew_with(&mut self, settings: &[(&str, &str, &str)]) -> Result<()> {
        self.volume.unmount()?;
        volume::clear(&self.home)?;
        for disk in &self.disks {
            fs::remove_dir_all(disk).with_context(|| format!("cannot remove {}", disk.display()))?;
        }
        self.volume = Volume::over(&self.binary, &self.home, &self.disks)?;
        settings.iter().for_each(|(section, key, value)| self.volume.set(section, key, value));
        self.volume.mount()
    }

    /// Our side's node.
    pub(super) fn volume(&mut self) -> &mut Volume {
        &mut self.volume
    }

    /// Bytes that the node's disks take, of the disk that they stand on.
    pub(super) fn disk_bytes(&self) -> Result<u64> {
        self.disks.iter().map(|disk| allocated(disk)).sum()
    }

    /// What they stand on.
    pub(super) fn words(&self) -> String {
        self.words.clone()
    }

    pub(super) fn dir(&self, side: Side) -> PathBuf {
        match side {
            Side::Hydrafs => self.volume.point.clone(),
            Side::PassThrough => self.ext4.with_file_name("pass-through"),
            _ => self.ext4.clone(),
        }
    }

    /// Everything written on this side is on the disk.
    pub(super) fn sync(&self, side: Side) -> Result<()> {
        match side {
            Side::Hydrafs => self.volume.sync(),
            // syncfs does not reach a FUSE server; the pass-through keeps nothing back.
            _ => sync_ext4(&self.ext4),
        }
    }

    /// No side has anything left to write: each side's run is its own.
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
        if side == Side::PassThrough {
            let mounted = self.pass_through.take().context("the pass-through is not mounted")?;
            let program = mounted.program.clone();
            drop(mounted);
            self.pass_through(&program)?;
        }
        self.drop_caches()
    }

    /// The kernel caches nothing of the disk.
    pub(super) fn drop_caches(&self) -> Result<()> {
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

/// Bytes that a tree takes of its disk.
pub(super) fn allocated(root: &Path) -> Result<u64> {
    let mut blocks = 0;
    tree::walk(root, |_, metadata| {
        blocks += metadata.blocks();
        Ok(())
    })?;
    Ok(blocks * 512)
}

/// libfuse's example, on a directory. Unmounted and ended when dropped.
#[derive(Debug)]
struct PassThrough {
    program: PathBuf,
    point: PathBuf,
    child: Child,
}

impl PassThrough {
    fn mount(program: &Path, source: &Path, point: &Path) -> Result<PassThrough> {
        // It keeps a descriptor open for each file that the kernel knows.
        let all = "ulimit -S -n \"$(ulimit -H -n)\" && exec \"$@\"";
        // As ours: with extended attributes, without which the kernel asks it for no ACL and no capability; with permissions, which
        // cost a request for the attributes of a directory that has changed; and the kernel keeps names, attributes and pages.
        let source = format!("source={},xattr,default_permissions,cache=always", source.display());
        let child = Program::new("sh").args(["-c", all, "sh"]).arg(program).arg("-f").arg("-o").arg(source).arg(point);
        let child = child.limit(Duration::MAX).start(Stdio::null(), Stdio::null(), Stdio::inherit())?;
        let mut mounted = PassThrough { program: program.to_owned(), point: point.to_owned(), child };
        let asked = Instant::now();
        while machine::mounted_at(point)?.is_none() {
            if mounted.child.inner.try_wait()?.is_some() || asked.elapsed() > Duration::from_secs(20) {
                bail!("the pass-through does not mount at {}; its words are above", point.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mounted)
    }
}

impl Drop for PassThrough {
    fn drop(&mut self) {
        if let Err(error) = volume::take_away(&self.point) {
            eprintln!("xtask: {error:#}");
        }
        self.child.end();
    }
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
