//! The mount under suites and programs that were not written for it: `make posix`, and a quick part in `make test`.
//!
//! Each step has a name, a time, an outcome, and a log `target/posix/<where>-<step>.log`. Each runs in a folder of its own of a
//! fresh mount; over each transport the kernel offers, or in any directory (`--on`), to see whether a failure is the mount's.
//!
//! Not here: what a kill leaves (`kill`), how fast it is (`bench`).

mod exceptions;
pub(crate) mod git;
pub(crate) mod programs;
mod sqlite;
mod standstill;
mod suites;
mod trees;
mod upgrade;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::random::Random;
use crate::tally::{End, Tally};
use crate::tools::{self, Profile};
use crate::volume::{self, Volume};
use crate::{interrupt, machine};

/// Run POSIX suites and real programs on fresh mounts.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// A minute or two of each, as part of `make test`.
    #[arg(long)]
    quick: bool,
    /// Only steps whose name contains this; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Which way the kernel hands requests over.
    #[arg(long, value_enum, default_value_t = Transports::Both)]
    transport: Transports,
    /// Not on a mount of ours, but in this directory: is it the suite, or the mount?
    #[arg(long)]
    on: Option<PathBuf>,
    /// Repeats a run's choices.
    #[arg(long)]
    seed: Option<u64>,
    /// How hydrafs is compiled.
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
}

impl Arguments {
    fn asks_for(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transports {
    /// io_uring, then /dev/fuse.
    Both,
    /// io_uring.
    Ring,
    /// /dev/fuse.
    Device,
}

/// Where a step works, and how much it does.
#[derive(Clone, Debug)]
struct Place {
    /// In the file system under test: the step's own.
    dir: PathBuf,
    /// Outside of it: for originals and tools' own files.
    outside: PathBuf,
    log: PathBuf,
    /// Whether it is a mount of ours, which may be made read-only for a moment.
    is_ours: bool,
    is_quick: bool,
    seed: u64,
}

impl Place {
    /// A new empty directory outside of the file system under test.
    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.outside.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }
}

type Step = (&'static str, fn(&Place) -> Result<End>);

/// All steps, quick ones first: what fails, fails early.
const STEPS: [Step; 14] = [
    ("pjdfstest", suites::pjdfstest),
    ("fsx", suites::fsx),
    ("stress-ng one by one", suites::stress_each),
    ("stress-ng together", suites::stress_together),
    ("direct and cached", suites::direct_and_cached),
    ("sqlite", sqlite::torture),
    ("tar", trees::tar),
    ("rsync", trees::rsync),
    ("cp", trees::copy),
    ("git", git::clone),
    ("cargo build", programs::cargo_build),
    ("xfstests", programs::xfstests),
    ("LTP", programs::ltp),
    ("fsstress", programs::fsstress),
];

/// Steps that the quick part makes over one transport alone: what takes long in them are programs that see neither, or another step has
/// them do the same together.
const ONCE: [&str; 3] = ["cargo build", "sqlite", "stress-ng one by one"];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    Ok(tally(arguments)?.close())
}

/// The quick part, on a `hydrafs` that is built.
pub(crate) fn quick(profile: Profile) -> Result<Tally> {
    tally(&Arguments { quick: true, only: Vec::new(), transport: Transports::Both, on: None, seed: None, profile })
}

fn tally(arguments: &Arguments) -> Result<Tally> {
    let _claim = tools::claim("posix")?;
    let root = tools::folder("posix")?;
    let seed = arguments.seed.unwrap_or_else(Random::fresh_seed);
    println!("posix: seed {seed}, logs in {}", root.display());
    let mut tally = Tally::new();
    if let Some(dir) = &arguments.on {
        let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
        steps(&mut tally, arguments, "there", &dir.join("posix"), &root, seed)?;
        return Ok(tally);
    }
    let binary = tools::hydrafs(arguments.profile)?;
    // `init` switches io_uring for FUSE on where it may.
    drop(Volume::fresh(&binary, &root.join("first"))?);
    volume::clear(&root.join("first"))?;
    for transport in ["ring", "device"] {
        let is_wanted = match arguments.transport {
            Transports::Both => true,
            Transports::Ring => transport == "ring",
            Transports::Device => transport == "device",
        };
        if !is_wanted {
            continue;
        }
        if transport == "ring"
            && let Err(why) = machine::ring_support()
        {
            tally.step("mount over io_uring", || Ok(End::Skipped(why)));
            continue;
        }
        on_mount(&mut tally, arguments, &binary, transport, &root, seed)?;
    }
    // Not in the quick part: it builds another daemon.
    if !arguments.quick && arguments.asks_for("upgrade") {
        let home = tools::folder("posix/upgrade")?;
        tally.step("upgrade", || upgrade::upgrade(&home));
    }
    Ok(tally)
}

fn on_mount(
    tally: &mut Tally,
    arguments: &Arguments,
    binary: &Path,
    transport: &str,
    root: &Path,
    seed: u64,
) -> Result<()> {
    let home = root.join(transport);
    let mut volume = Volume::fresh(binary, &home)?;
    volume.mount_short()?;
    volume.set("mount", "transport", transport);
    let mounted = tally.step(&format!("{transport}: mount"), || {
        volume.mount()?;
        let found = volume.transport()?;
        let expected = if transport == "ring" { "io_uring" } else { "/dev/fuse" };
        if found != expected {
            bail!("asked for {expected}, and the mount uses {found}");
        }
        Ok(End::Passed(format!("on {found}")))
    });
    if !mounted {
        return Ok(());
    }
    let point = volume.point.clone();
    steps(tally, arguments, transport, &point.join("posix"), root, seed)?;
    if !volume.is_alive() {
        tally.step(&format!("{transport}: daemon"), || {
            bail!("the daemon died; its log is {}", volume.node.join("hydrafs.log").display())
        });
    }
    let ended = tally.step(&format!("{transport}: umount and fsck"), || {
        volume.unmount()?;
        let report = volume.fsck(true)?;
        Ok(End::Passed(format!("clean: {} files, {} chunks read", report["files"], report["chunks"])))
    });
    if ended {
        drop(volume);
        volume::clear(&home)?;
    }
    // Not in the quick part: it waits for most of a minute.
    if !arguments.quick && arguments.asks_for("standstill") {
        let home = root.join(format!("{transport}-standstill"));
        let ended =
            tally.step(&format!("{transport}: standstill"), || standstill::standstill(binary, &home, transport));
        if ended {
            volume::clear(&home)?;
        }
    }
    Ok(())
}

fn steps(tally: &mut Tally, arguments: &Arguments, place: &str, dir: &Path, root: &Path, seed: u64) -> Result<()> {
    let outside = root.join("outside");
    std::fs::create_dir_all(&outside)?;
    let has_been = arguments.quick && place == "device" && machine::ring_support().is_ok();
    let is_once = |name: &str| has_been && ONCE.contains(&name);
    let is_wanted = |name: &str| arguments.asks_for(name) && !is_once(name);
    for (name, run) in STEPS.iter().filter(|(name, _)| is_wanted(name)) {
        let plain = name.replace(' ', "-");
        let log = root.join(format!("{place}-{plain}.log"));
        let place_of_step = Place {
            dir: dir.join(&plain),
            outside: outside.clone(),
            log: log.clone(),
            is_ours: arguments.on.is_none(),
            is_quick: arguments.quick,
            seed,
        };
        tally.step(&format!("{place}: {name}"), || {
            std::fs::write(&log, "")?;
            std::fs::create_dir_all(&place_of_step.dir).context("cannot make a directory for the step")?;
            let end = run(&place_of_step).with_context(|| format!("see {}", log.display()))?;
            // What a step leaves would only slow the next ones down. A step that failed leaves its evidence.
            std::fs::remove_dir_all(&place_of_step.dir).context("cannot remove what the step left")?;
            Ok(end)
        });
        interrupt::check()?;
    }
    Ok(())
}
