//! git on the mount: clone of a large repository, fsck, checkouts, gc.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use super::Place;
use crate::program::Program;
use crate::random::Random;
use crate::tally::End;
use crate::tree::{Comparison, compare, walk};
use crate::{text, tools};

/// Source files of a machine that has Rust.
pub(crate) fn source_files(bytes_max: u64) -> Result<Vec<(PathBuf, PathBuf)>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let candidates = home
        .map(|home| home.join("registry/src"))
        .into_iter()
        .chain([PathBuf::from("/usr/include"), "/usr/share".into()]);
    let (mut files, mut bytes) = (Vec::new(), 0);
    for root in candidates.filter(|root| root.is_dir()) {
        walk(&root, |relative, metadata| {
            if metadata.is_file() && bytes < bytes_max && metadata.len() < 4 << 20 {
                bytes += metadata.len();
                files.push((root.join(relative), relative.to_owned()));
            }
            Ok(())
        })?;
    }
    Ok(files)
}

/// A bare repository at `path` with a history of `commits`, made from the sources on this machine. Made once.
pub(crate) fn repository(path: &Path, commits: u64, bytes_max: u64, log: &Path) -> Result<()> {
    let marker = path.join("is-complete");
    if marker.exists() {
        return Ok(());
    }
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    git(log).args(["init", "--quiet", "--bare", "--initial-branch=main"]).arg(path).run()?;
    let program = git(log).arg("-C").arg(path).args(["fast-import", "--quiet"]).limit(Duration::from_secs(1200));
    let errors = fs::File::options().append(true).create(true).open(log)?;
    let mut child = program.start(Stdio::piped(), Stdio::null(), errors.into())?;
    let input = child.inner.stdin.take().expect("asked to be a pipe");
    let files = source_files(bytes_max)?;
    write_history(std::io::BufWriter::new(input), &files, commits).context("git fast-import takes no more")?;
    let status = child.wait()?;
    if !status.success() {
        bail!("git fast-import ended with {status}");
    }
    fs::write(marker, "")?;
    Ok(())
}

/// Adds the files bit by bit, and changes some of the older ones each time, as people do.
fn write_history(mut out: impl Write, files: &[(PathBuf, PathBuf)], commits: u64) -> Result<()> {
    let mut random = Random::new(7);
    let per_commit = files.len().div_ceil(commits as usize).max(1);
    for (number, batch) in files.chunks(per_commit).enumerate() {
        let words = format!("Add {} files\n", batch.len());
        writeln!(
            out,
            "commit refs/heads/main\ncommitter A Tester <a@example.org> {} +0000",
            1_600_000_000 + number * 3600
        )?;
        write!(out, "data {}\n{words}", words.len())?;
        let old =
            (0..(per_commit / 4).min(number * per_commit)).map(|_| random.below((number * per_commit) as u64) as usize);
        let changed: Vec<&(PathBuf, PathBuf)> = old.map(|index| &files[index]).collect();
        for (is_changed, (path, name)) in
            batch.iter().map(|file| (false, file)).chain(changed.into_iter().map(|file| (true, file)))
        {
            let Some(name) = name.to_str().filter(|name| !name.contains(['"', '\n', '\\'])) else { continue };
            // A directory that is called so is no content that git takes.
            if name.split('/').any(|part| part == ".git") {
                continue;
            }
            let mut content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            if is_changed {
                content.extend_from_slice(format!("\nchanged in {number}\n").as_bytes());
            }
            writeln!(out, "M 100644 inline {name}\ndata {}", content.len())?;
            out.write_all(&content)?;
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}

/// Without the settings of whoever runs this.
pub(crate) fn git(log: &Path) -> Program {
    let program = Program::new("git").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    program.env("GIT_TERMINAL_PROMPT", "0").log(log).limit(Duration::from_secs(1800))
}

pub(super) fn clone(place: &Place) -> Result<End> {
    if !tools::has("git") {
        return Ok(End::Skipped("git is not installed; `scripts/setup posix` does it".to_owned()));
    }
    let (commits, bytes) = if place.is_quick { (20, 8 << 20) } else { (400, 300 << 20) };
    let original = place.outside.join(if place.is_quick { "quick.git" } else { "large.git" });
    repository(&original, commits, bytes, &place.log)?;
    let clone = place.dir.join("clone");
    git(&place.log).args(["clone", "--quiet", "--no-local"]).arg(&original).arg(&clone).run()?;
    let outside = place.scratch("checkout")?;
    git(&place.log).args(["clone", "--quiet", "--no-local"]).arg(&original).arg(&outside).run()?;
    let run = |arguments: &[&str]| git(&place.log).arg("-C").arg(&clone).args(arguments).run();
    let check = |words: &str| -> Result<()> {
        run(&["fsck", "--full", "--strict"]).with_context(|| format!("fsck {words}"))?;
        let status = Program::new("git").arg("-C").arg(&clone).args(["status", "--porcelain"]).output()?;
        if !status.is_empty() {
            bail!("git status {words} shows changes:\n{}", text::last_lines(&status, 5));
        }
        Ok(())
    };
    check("after the clone")?;
    run(&["checkout", "--quiet", "HEAD~10"])?;
    run(&["checkout", "--quiet", "main"])?;
    run(&["repack", "-a", "-d", "--quiet"])?;
    run(&["gc", "--quiet", "--prune=now"])?;
    check("after gc")?;
    let size = compare_checkouts(&outside, &clone)?;
    fs::remove_dir_all(&outside)?;
    Ok(End::Passed(format!(
        "{commits} commits, {} files: clone, fsck, checkouts, repack, gc, fsck; equal to a clone elsewhere",
        text::count(size)
    )))
}

/// Everything but git's own folder. Files were made at two times.
fn compare_checkouts(left: &Path, right: &Path) -> Result<u64> {
    let mut files = 0;
    for name in crate::tree::names(left)?.into_iter().filter(|name| name != ".git") {
        files += compare(&left.join(&name), &right.join(&name), Comparison::CONTENT, &ProgressBar::hidden())?.files;
    }
    Ok(files)
}
