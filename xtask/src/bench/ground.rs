//! The sides and the ground they stand on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Side;
use super::device::{self, Count, Device, Limit};
use super::loops::{self, LoopDevice, Mount};
use crate::program::{Child, Program};
use crate::volume::{self, Volume};
use crate::{machine, text, tree};

/// Size of the loop device's file, which is sparse: a run needs about 20 GiB of it.
const LOOP_BYTES: u64 = 40 << 30;

/// A mounted HydraFS, and a directory of the ext4 that its disk is a directory of.
#[derive(Debug)]
pub(super) struct Sides {
    // In this order: the mounts go before what they stand on.
    volume: Volume,
    pass_through: Option<PassThrough>,
    ext4: PathBuf,
    words: String,
    binary: PathBuf,
    home: PathBuf,
    disk: PathBuf,
    ground: Ground,
}

/// What the sides stand on.
#[derive(Debug)]
enum Ground {
    /// The disk that the project lies on.
    Here,
    Loop(#[expect(dead_code, reason = "held until the sides are dropped")] Loop),
    Limited(Box<Device>),
}

impl Sides {
    /// On the project's disk if that is an ext4, or on one in a file of it.
    pub(super) fn make(binary: &Path, root: &Path) -> Result<Sides> {
        let home = fresh_home(root)?;
        let below = machine::mount_of(&home)?;
        let (base, ground) = if below.kind == "ext4" {
            (home.clone(), Ground::Here)
        } else {
            let ground = Loop::make(&home)?;
            (ground.ext4.point().to_owned(), Ground::Loop(ground))
        };
        let words = match &ground {
            Ground::Here => format!("directories of the ext4 at {}", below.point.display()),
            _ => format!("directories of an ext4 on a loop device, its file on {}", below.kind),
        };
        let free = machine::free_bytes(&base)?;
        if free < 20 << 30 {
            println!("only {} are free: a whole run needs about 20 GiB", text::bytes(free));
        }
        let mut sides = Sides::over(binary, &home, &base, ground)?;
        let transport = sides.volume.transport()?;
        sides.words = format!("all are {words}; HydraFS on one of them, over {transport}, a new node for each run");
        Ok(sides)
    }

    /// On a device of their own that does so many requests a second.
    pub(super) fn limited(binary: &Path, root: &Path, limit: Limit) -> Result<Sides> {
        let home = fresh_home(root)?;
        let device = Device::make(&home, limit)?;
        let base = device.point().to_owned();
        Sides::over(binary, &home, &base, Ground::Limited(Box::new(device)))
    }

    /// HydraFS has one disk, as ext4 has: to two directories of one it would write all trees twice, and be no safer (K-14). On the project's
    /// disk all sides lie equally deep: each name of a path takes the kernel time, which shows where it asks nobody.
    fn over(binary: &Path, home: &Path, base: &Path, ground: Ground) -> Result<Sides> {
        let ext4 = base.join("ext4/side");
        fs::create_dir_all(&ext4)?;
        let (home, disk) = (home.join("hydrafs"), base.join("disk"));
        let mut volume = Volume::over(binary, &home, std::slice::from_ref(&disk))?;
        volume.mount()?;
        let (binary, pass_through, words) = (binary.to_owned(), None, String::new());
        Ok(Sides { volume, pass_through, ext4, words, binary, home, disk, ground })
    }

    /// The limited device, if they stand on one.
    pub(super) fn device(&self) -> Option<&Device> {
        match &self.ground {
            Ground::Limited(device) => Some(device),
            Ground::Here | Ground::Loop(_) => None,
        }
    }

    /// Does some work with the device's limit on, if there is one.
    pub(super) fn limited_work<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.device() {
            Some(device) => device.limited(work),
            None => work(),
        }
    }

    /// What the device below did so far.
    pub(super) fn count(&self) -> Result<Count> {
        match self.device() {
            Some(device) => device.count(),
            None => {
                let number = fs::metadata(&self.ext4)?.dev();
                Count::of(&format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
            }
        }
    }

    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Whether this side's directory is of the file system that is to be measured, and not of what would show if that were gone.
    pub(super) fn is_in_place(&self, side: Side) -> Result<bool> {
        let kind = machine::mount_of(&self.dir(side))?.kind;
        Ok(match side {
            side if side.is_ours() => kind == "fuse.hydrafs",
            Side::PassThrough => kind == "fuse.passthrough_ll",
            _ => kind == "ext4",
        })
    }

    /// Mounts what the pass-through side needs.
    pub(super) fn pass_through(&mut self, program: &Path) -> Result<()> {
        let point = self.dir(Side::PassThrough);
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
        fs::remove_dir_all(&self.disk).with_context(|| format!("cannot remove {}", self.disk.display()))?;
        self.volume = Volume::over(&self.binary, &self.home, std::slice::from_ref(&self.disk))?;
        settings.iter().for_each(|(section, key, value)| self.volume.set(section, key, value));
        self.volume.mount()
    }

    /// Our side's node.
    pub(super) fn volume(&mut self) -> &mut Volume {
        &mut self.volume
    }

    /// Bytes that the node's disk takes, of the disk that it stands on.
    pub(super) fn disk_bytes(&self) -> Result<u64> {
        allocated(&self.disk)
    }

    /// What they stand on.
    pub(super) fn words(&self) -> String {
        self.words.clone()
    }

    pub(super) fn dir(&self, side: Side) -> PathBuf {
        match side {
            side if side.is_ours() => self.volume.point.clone(),
            Side::PassThrough => self.ext4.with_file_name("pass-through"),
            _ => self.ext4.clone(),
        }
    }

    /// Everything written on this side is on the disk.
    pub(super) fn sync(&self, side: Side) -> Result<()> {
        match side {
            side if side.is_ours() => self.volume.sync(),
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
        if side.is_ours() {
            self.volume.unmount()?;
            self.volume.mount()?;
            if let Some(device) = self.device() {
                // What the daemon does by itself after a while, with the limit on.
                self.drop_caches()?;
                device.limited(|| self.volume.measure_disks())?;
            }
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

/// The folder for sides below `root`, empty. What an earlier run left there is taken away.
fn fresh_home(root: &Path) -> Result<PathBuf> {
    let home = root.join("sides");
    take_away(&home)?;
    fs::create_dir_all(&home)?;
    Ok(home.canonicalize()?)
}

/// Removes a folder of sides, with mounts and devices that stand in it.
pub(super) fn take_away(home: &Path) -> Result<()> {
    volume::take_away_below(home)?;
    device::clear(home)?;
    volume::clear(home)
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

/// An ext4 in a file.
#[derive(Debug)]
struct Loop {
    // In this order: the mount goes before the device.
    ext4: Mount,
    _device: LoopDevice,
}

impl Loop {
    fn make(home: &Path) -> Result<Loop> {
        let file = home.join("ext4.image");
        loops::image(&file, LOOP_BYTES)?;
        let device =
            LoopDevice::attach(&file).context("the project does not lie on an ext4, so one is made in a file")?;
        let ext4 = Mount::fresh_ext4(device.path(), &home.join("ground"))?;
        Ok(Loop { ext4, _device: device })
    }
}
