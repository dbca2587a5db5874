//! `make run` and `make stop`: a node in ./demo with a real tree of this machine in it, twice, compared byte for byte.
//!
//! Every run copies to new names, so that a second one works and shows that a third and fourth copy take no room.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};

use crate::program::Program;
use crate::text::{Table, bytes, count, rate, span};
use crate::tools::{self, Profile};
use crate::tree::{Comparison, Size, compare, size};
use crate::volume::{self, Volume};
use crate::{machine, tree};

/// Make a demonstration node in ./demo, mount it, and copy something real into it; or end it.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Make, mount, copy twice, verify, leave it mounted.
    Start {
        /// Copy this tree. Default: the Rust toolchain, or part of /usr.
        #[arg(long)]
        tree: Option<PathBuf>,
    },
    /// Unmount and end it; its data stays.
    Stop,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.verb {
        Verb::Start { tree } => start(tree.as_deref()),
        Verb::Stop => stop(),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn home() -> PathBuf {
    tools::project().join("demo")
}

fn start(tree: Option<&Path>) -> Result<()> {
    volume::can_mount()?;
    let binary = tools::hydrafs(Profile::Release)?;
    let (original, found) = choose(tree)?;
    println!("{}: {} files, {}", original.display(), count(found.files), bytes(found.bytes));
    let mut volume = open(&binary)?;
    let before = Stored::of(&volume)?;
    let first = next_name(&volume.point)?;
    let (mut rates, mut copies) = (Vec::new(), Vec::new());
    for number in [first, first + 1] {
        let copy = volume.point.join(format!("copy-{number}"));
        let began = Instant::now();
        println!("copying it to demo/mnt/copy-{number}");
        let cp = Program::new(&binary).args(["cp", "--archive"]).arg(&original).arg(&copy);
        if !cp.limit(Duration::from_secs(7200)).status()?.success() {
            bail!("`hydrafs cp` failed; see its words above");
        }
        volume.sync()?;
        rates.push(rate(found.bytes, began.elapsed()));
        copies.push(copy);
    }
    let after = Stored::of(&volume)?;
    let how = forget(&mut volume)?;
    let verified = verify(&original, &copies, found)?;
    let logical = size(&volume.point)?;

    println!("\n{}", table(logical, &before, &after, found, &rates, &verified, how).text());
    println!("demo/mnt stays mounted. Try:\n");
    let hydrafs = shown(&binary);
    for (command, words) in [
        (format!("ls -l demo/mnt/copy-{first}"), "it is a file system like any other"),
        (format!("{hydrafs} status demo/node"), "what it stores, and how it is"),
        (format!("{hydrafs} snapshot create demo/node monday"), "then look into demo/mnt/.snapshots/monday"),
        (format!("{hydrafs} stats demo/node"), "what it is doing, like vmstat"),
        (format!("{hydrafs} fsck --deep demo/node"), "read and check every byte that is stored"),
        ("make run".to_owned(), "copies it twice more, and takes almost no room"),
        ("make stop".to_owned(), "unmount and end; the data stays"),
    ] {
        println!("  {command:<62} # {words}");
    }
    volume.leave();
    Ok(())
}

fn stop() -> Result<()> {
    let (home, binary) = (home(), tools::target().join("release/hydrafs"));
    let point = home.join("mnt");
    match machine::mounted_at(&point)? {
        None => println!("nothing is mounted at demo/mnt"),
        Some(_) if binary.is_file() => {
            Program::new(&binary).arg("umount").arg(&point).limit(Duration::from_secs(300)).output()?;
            println!("unmounted demo/mnt; everything is on the disks");
        }
        Some(_) => {
            volume::take_away(&point)?;
            println!("took the mount at demo/mnt away; its daemon writes what it has and ends");
        }
    }
    if home.exists() {
        println!("the data is kept in demo/; `make run` mounts it again, `rm -rf demo` removes it");
    }
    Ok(())
}

/// The tree to copy, and what it holds: the Rust toolchain, or a part of /usr if there is no room for two of it.
fn choose(tree: Option<&Path>) -> Result<(PathBuf, Size)> {
    if let Some(tree) = tree {
        let tree = tree.canonicalize().with_context(|| format!("cannot use {}", tree.display()))?;
        return Ok((tree.clone(), size(&tree)?));
    }
    let toolchain =
        Program::new("rustc").args(["--print", "sysroot"]).output().ok().map(|path| PathBuf::from(path.trim()));
    let candidates = toolchain.into_iter().chain(["/usr/lib", "/usr/share", "/usr/include"].map(PathBuf::from));
    let room = machine::free_bytes(&tools::project())?;
    for tree in candidates.filter(|tree| tree.is_dir()) {
        let tree = tree.canonicalize()?;
        let found = size(&tree)?;
        // A tree that is stored once and hardly shrinks, and as much again for the journal and the build.
        if found.bytes > 10 << 20 && found.bytes * 2 < room {
            return Ok((tree, found));
        }
    }
    bail!("no tree of this machine fits: {} are free here; name one with --tree", bytes(room));
}

/// The demo's node, made and mounted if it is not.
fn open(binary: &Path) -> Result<Volume> {
    let home = home();
    std::fs::create_dir_all(&home)?;
    let point = home.join("mnt");
    let mounted = machine::mounted_at(&point)?;
    let is_dead = mounted.is_some() && std::fs::metadata(&point).is_err();
    if is_dead {
        println!("taking away the dead mount at demo/mnt");
        volume::take_away(&point)?;
    }
    let mut volume = Volume::over(binary, &home, &[home.join("disk-0"), home.join("disk-1")])?;
    if mounted.is_some() && !is_dead {
        volume.adopt()?;
        println!("demo/mnt is mounted already ({})", volume.transport()?);
    } else {
        volume.mount()?;
        println!("mounted demo/node at demo/mnt ({})", volume.transport()?);
    }
    Ok(volume)
}

/// The number of the next copy.
fn next_name(point: &Path) -> Result<u64> {
    let numbers =
        tree::names(point)?.into_iter().filter_map(|name| name.to_str()?.strip_prefix("copy-")?.parse::<u64>().ok());
    Ok(numbers.max().unwrap_or(0) + 1)
}

/// Forgets what is cached, so that verification reads what is stored. In words, how far that went.
fn forget(volume: &mut Volume) -> Result<&'static str> {
    // Somebody may use the mount: a shell in it is reason enough to leave it.
    let words = match volume.unmount() {
        Ok(()) => {
            volume.mount()?;
            "freshly mounted"
        }
        Err(_) => "mount in use: from its caches",
    };
    Ok(if machine::drop_caches() && words == "freshly mounted" { "freshly mounted, caches dropped" } else { words })
}

fn verify(original: &Path, copies: &[PathBuf], found: Size) -> Result<String> {
    let style = ProgressStyle::with_template("verifying {bar:40} {percent} %, {eta} left").expect("a valid template");
    let bar = ProgressBar::new((found.files + found.others) * copies.len() as u64).with_style(style);
    let began = Instant::now();
    let what = Comparison { owners: machine::is_root(), ..Comparison::FULL };
    let mut read = 0;
    for copy in copies {
        read += compare(original, copy, what, &bar).context("the copy is not the original")?.bytes;
    }
    bar.finish_and_clear();
    Ok(format!("{} ({})", rate(read, began.elapsed()), span(began.elapsed())))
}

/// What the node stores of content.
#[derive(Clone, Copy, Debug)]
struct Stored {
    /// Distinct chunks.
    content: u64,
    /// As they lie on the disks.
    stored: u64,
    metadata: u64,
}

impl Stored {
    fn of(volume: &Volume) -> Result<Stored> {
        let status = volume.status()?;
        let number = |path: &str| {
            status
                .pointer(path)
                .and_then(serde_json::Value::as_u64)
                .with_context(|| format!("`hydrafs status --json` has no {path}"))
        };
        Ok(Stored {
            content: number("/data/content_bytes")?,
            stored: number("/data/stored_bytes")?,
            metadata: number("/metadata/stored_bytes")?,
        })
    }
}

fn table(
    logical: Size,
    before: &Stored,
    after: &Stored,
    found: Size,
    rates: &[String],
    verified: &str,
    how: &str,
) -> Table {
    let ratio = |large: u64, small: u64| {
        if small == 0 { "-".to_owned() } else { format!("{:.2} : 1", large as f64 / small as f64) }
    };
    let mut table = Table::new(3, &["", "", ""]);
    let mut row = |what: &str, value: String, words: String| table.row([what.to_owned(), value, words]);
    row("copied now", bytes(found.bytes * 2), format!("2 x {} files", count(found.files)));
    row("  new content", bytes(after.content - before.content), "chunks that were not there yet".to_owned());
    row("  stored for it", bytes(after.stored - before.stored), "after compression".to_owned());
    row("first copy", rates[0].clone(), "until it is on the disks (sync)".to_owned());
    row("second copy", rates[1].clone(), "the same content: only names and checks".to_owned());
    row("verified", verified.to_owned(), format!("byte for byte, with modes, times, links, attributes; {how}"));
    row("in all: logical", bytes(logical.bytes), format!("{} files", count(logical.files)));
    row(
        "in all: stored",
        bytes(after.stored + after.metadata),
        format!("{} of them trees and names", bytes(after.metadata)),
    );
    row("deduplication", ratio(logical.bytes, after.content), "logical : distinct content".to_owned());
    row("compression", ratio(after.content, after.stored), "distinct content : stored".to_owned());
    row("together", ratio(logical.bytes, after.stored + after.metadata), "logical : stored".to_owned());
    table
}

/// From the project's folder, where that is shorter.
fn shown(binary: &Path) -> String {
    binary.strip_prefix(tools::project()).unwrap_or(binary).display().to_string()
}
