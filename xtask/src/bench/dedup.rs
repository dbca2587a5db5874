//! What is stored of two things that are much alike, and how long that takes: beside restic and borg, which dedup and compress too.
//!
//! All do the same work: take the first, take the second, take the second once more, have everything on the disk; also that is read, for restic and
//! borg are told not to go by its times. Each compresses as it does by default. restic
//! encrypts, and cannot do without; borg is told not to. Like these two `hydrafs cp -a` reads what it takes and stores it; "one by one" is
//! cp(1) through the mount, where each file costs the calls of the kernel.
//!
//! Not here: reading it back.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Line, Run, Side, Unit, described, ground};
use crate::program::Program;
use crate::random::Random;
use crate::{tools, tree};

/// One input, twice: as it was, and changed.
struct Pair {
    first: PathBuf,
    second: PathBuf,
}

/// Lines of an input.
struct Lines {
    first: Line,
    second: Line,
    again: Line,
    stored: Line,
    taken: Line,
}

const AGAIN: &str =
    "synced at the end; all of it is read; HydraFS was mounted anew before, the others' repositories were just written";
const SYNCED: &str = "synced at the end; each with its own default compression";

const fn lines([first, second, again, stored, taken]: [&'static str; 5]) -> Lines {
    const fn line(name: &'static str, unit: Unit) -> Line {
        Line { name, unit, terms: SYNCED }
    }
    let again = Line { name: again, unit: Unit::Seconds, terms: AGAIN };
    Lines {
        first: line(first, Unit::Seconds),
        second: line(second, Unit::Seconds),
        again,
        stored: line(stored, Unit::Megabytes),
        taken: line(taken, Unit::Megabytes),
    }
}

const SOURCES: Lines = lines([
    "ingest of a source tree",
    "ingest of its next version",
    "ingest of that version once more",
    "stored of two versions of a source tree",
    "taken of the disk for two versions of a source tree",
]);
const TOOLCHAINS: Lines = lines([
    "ingest of a toolchain",
    "ingest of another toolchain",
    "ingest of that toolchain once more",
    "stored of two toolchains",
    "taken of the disk for two toolchains",
]);
const IMAGE: Lines = lines([
    "ingest of a disk image",
    "ingest of its copy, a twentieth of it changed",
    "ingest of that copy once more",
    "stored of a disk image and its changed copy",
    "taken of the disk for a disk image and its changed copy",
]);

/// Who is compared with, for the description.
pub(super) fn versions() -> Result<String> {
    let restic = Program::new("restic").arg("version").output()?;
    let borg = Program::new("borg").arg("--version").output()?;
    let restic = restic.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    Ok(format!("{restic} (encrypts; zstd, \"auto\"), {} (no encryption; lz4)", borg.trim()))
}

pub(super) fn sources(run: &mut Run<'_>) -> Result<()> {
    let (name, versions) =
        if run.is_quick { ("libc", ["0.2.178", "0.2.191"]) } else { ("aws-lc-sys", ["0.46.0", "0.47.0"]) };
    let [first, second] = versions.map(|version| vendored(&run.inputs.root, name, version));
    ingest(run, &SOURCES, &Pair { first: first?, second: second? })
}

pub(super) fn toolchains(run: &mut Run<'_>) -> Result<()> {
    let sysroot = PathBuf::from(Program::new("rustc").args(["--print", "sysroot"]).output()?.trim());
    let all = sysroot.parent().context("the toolchain lies in no folder")?;
    let mut found: Vec<PathBuf> = tree::names(all)?.into_iter().map(|name| all.join(name)).collect();
    // A symbolic link is a toolchain by another name.
    found.retain(|path| path.join("bin/rustc").is_file() && !path.is_symlink());
    let [second, first, ..] = found.as_slice() else {
        let why = format!(
            "{} toolchains lie in {}, and it wants two: rustup toolchain install nightly",
            found.len(),
            all.display()
        );
        run.report.did_not_run("dedup toolchains", why);
        return Ok(());
    };
    let part = if run.is_quick { "bin" } else { "" };
    ingest(run, &TOOLCHAINS, &Pair { first: first.join(part), second: second.join(part) })
}

pub(super) fn image(run: &mut Run<'_>) -> Result<()> {
    let [first, second] = ["image", "image-changed"].map(|name| run.inputs.root.join(name));
    if !second.exists() {
        println!(" preparing a disk image (once)");
        let bytes = tree::size(&run.inputs.tree)?.bytes * 2;
        let unfinished = run.inputs.root.join("image.unfinished");
        File::create(&unfinished)?.set_len(bytes.next_multiple_of(1 << 20))?;
        Program::new("mkfs.ext4").args(["-q", "-F", "-d"]).arg(&run.inputs.tree).arg(&unfinished).output()?;
        fs::rename(&unfinished, &first)?;
        Program::new("cp").arg("--").arg(&first).arg(&unfinished).output()?;
        change(&unfinished)?;
        fs::rename(unfinished, &second)?;
    }
    ingest(run, &IMAGE, &Pair { first, second })
}

/// Overwrites a twentieth of a file with fresh bytes, in places from 4 KiB to 1 MiB.
fn change(path: &Path) -> Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let blocks = file.metadata()?.len() / 4096;
    let (mut random, mut left) = (Random::new(5), blocks / 20);
    while left > 0 {
        let count = (1 << random.below(9)).min(left);
        let mut bytes = vec![0; count as usize * 4096];
        random.fill(&mut bytes);
        file.seek(SeekFrom::Start(random.below(blocks - count) * 4096))?;
        file.write_all(&bytes)?;
        left -= count;
    }
    Ok(file.sync_all()?)
}

/// The sources of a crate with all that it needs, as cargo takes them from the package registry. Made once.
fn vendored(root: &Path, name: &str, version: &str) -> Result<PathBuf> {
    let home = root.join(format!("{name}-{version}"));
    let sources = home.join("sources");
    let marker = home.join("is-complete");
    if !marker.exists() {
        println!(" fetching {name} {version} from the package registry (once)");
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        fs::create_dir_all(home.join("src"))?;
        fs::write(home.join("src/lib.rs"), "")?;
        let manifest = format!("[workspace]\n[package]\nname = \"input\"\n[dependencies]\n{name} = \"={version}\"\n");
        fs::write(home.join("Cargo.toml"), manifest)?;
        tools::cargo().dir(&home).args(["vendor", "--quiet", "sources"]).output()?;
        fs::write(marker, "")?;
    }
    Ok(sources)
}

fn ingest(run: &mut Run<'_>, lines: &Lines, pair: &Pair) -> Result<()> {
    if run.side == Side::Hydrafs && run.number == 0 {
        println!(" {}, then {}", described(&pair.first)?, described(&pair.second)?);
    }
    let repository = run.dir.join("repository");
    prepare(run, &repository)?;
    run.sync()?;
    ingest_one(run, &lines.first, &repository, (&pair.first, "first"))?;
    ingest_one(run, &lines.second, &repository, (&pair.second, "second"))?;
    let (stored, taken) = if run.side.is_ours() {
        // Ended cleanly, so that the trees are stored too, and not only in the journal.
        run.sides.volume().unmount()?;
        run.sides.volume().mount()?;
        let status = run.sides.volume().status()?;
        let bytes =
            |class: &str| status[class]["stored_bytes"].as_u64().context("`hydrafs status` tells no stored bytes");
        (bytes("data")? + bytes("metadata")?, run.sides.disk_bytes()?)
    } else {
        (tree::size(&repository)?.bytes, ground::allocated(&repository)?)
    };
    run.record(&lines.stored, stored as f64 / 1e6);
    run.record(&lines.taken, taken as f64 / 1e6);
    // Last, for its names and trees are not of the two.
    ingest_one(run, &lines.again, &repository, (&pair.second, "again"))
}

fn ingest_one(run: &mut Run<'_>, line: &Line, repository: &Path, (path, name): (&Path, &str)) -> Result<()> {
    read(path)?;
    let started = Instant::now();
    take(run, repository, path, name)?;
    run.sync()?;
    run.record(line, started.elapsed().as_secs_f64());
    Ok(())
}

/// restic and borg keep their caches where they are removed with the run.
fn backup(name: &str, dir: &Path) -> Program {
    let program = Program::new(name).env("RESTIC_PASSWORD", "bench").env("RESTIC_CACHE_DIR", dir.join("cache"));
    program.env("BORG_BASE_DIR", dir.join("home"))
}

pub(super) fn prepare(run: &Run<'_>, repository: &Path) -> Result<()> {
    match run.side {
        Side::Restic => backup("restic", &run.dir).arg("init").arg("--repo").arg(repository).output().map(drop),
        Side::Borg => backup("borg", &run.dir).args(["init", "--encryption=none"]).arg(repository).output().map(drop),
        _ => Ok(fs::create_dir(repository)?),
    }
}

/// Has a side read all of it, whether it knows its times or not.
pub(super) fn take(run: &Run<'_>, repository: &Path, path: &Path, name: &str) -> Result<()> {
    let program = match run.side {
        Side::Restic => {
            backup("restic", &run.dir).args(["backup", "--force", "--quiet", "--repo"]).arg(repository).arg(path)
        }
        Side::Borg => {
            let archive = format!("{}::{name}", repository.display());
            backup("borg", &run.dir).args(["create", "--files-cache=disabled"]).arg(archive).arg(path)
        }
        Side::Hydrafs => {
            Program::new(run.sides.binary()).args(["cp", "-a", "--quiet"]).arg(path).arg(repository.join(name))
        }
        _ => Program::new("cp").args(["-a", "--"]).arg(path).arg(repository.join(name)),
    };
    program.limit(Duration::from_secs(3600)).output().map(drop)
}

/// Reads all content of a file or tree, so that it is cached on each side's turn.
pub(super) fn read(path: &Path) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    tree::walk(path, |relative, metadata| {
        if metadata.is_file() {
            let path = if relative.as_os_str().is_empty() { path.to_owned() } else { path.join(relative) };
            let mut file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
            while file.read(&mut buffer)? > 0 {}
        }
        Ok(())
    })
}
