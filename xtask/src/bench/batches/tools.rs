//! How sets are read and written by tools: cp, tar and rsync on ext4, `hydrafs cp` and `hydrafs tar` on ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, bail};

use super::super::Side;
use super::PATIENCE;
use super::set::Set;
use crate::program::Program;

/// Reads `dir/files`, into `out` or to nowhere.
pub(super) fn read(side: Side, binary: &Path, dir: &Path, out: &Path) -> Result<()> {
    match side {
        Side::Tar | Side::HydrafsTar => {
            let tar = tar(side, binary).args(["-c", "-f", "-", "-C"]).arg(dir).arg("files");
            drain(tar)
        }
        _ => copier(side, binary)?.arg(dir.join("files")).arg(out).output().map(drop),
    }
}

/// An archive goes by.
pub(super) fn keeps_what_it_reads(side: Side) -> bool {
    !matches!(side, Side::Tar | Side::HydrafsTar)
}

/// What `write` takes: the set in memory, or an archive of it.
pub(super) fn source(side: Side, memory: &Path, set: &Set, content: u64) -> Result<PathBuf> {
    let (files, archive) = (memory.join("files"), memory.join("files.tar"));
    if files.exists() {
        fs::remove_dir_all(&files)?;
    }
    set.write(&files, content)?;
    if keeps_what_it_reads(side) {
        return Ok(files);
    }
    Program::new("tar").arg("-cf").arg(&archive).arg("-C").arg(memory).arg("files").output()?;
    fs::remove_dir_all(&files)?;
    Ok(archive)
}

/// Writes the source into `dir/files`, over what is there.
pub(super) fn write(side: Side, binary: &Path, source: &Path, dir: &Path) -> Result<()> {
    match side {
        Side::Tar | Side::HydrafsTar => {
            tar(side, binary).args(["-x", "-f"]).arg(source).arg("-C").arg(dir).output().map(drop)
        }
        _ => copier(side, binary)?.arg(source).arg(dir).output().map(drop),
    }
}

/// Copies a tree into a directory.
pub(super) fn copier(side: Side, binary: &Path) -> Result<Program> {
    let program = match side {
        Side::Hydrafs => Program::new(binary).args(["cp", "-r", "--quiet"]),
        Side::Copy => Program::new("cp").arg("-r"),
        // Files of one size and one second are no less different.
        Side::Rsync => Program::new("rsync").args(["-a", "--ignore-times"]),
        _ => bail!("{} is no tool that copies", side.words()),
    };
    Ok(program.limit(PATIENCE))
}

fn tar(side: Side, binary: &Path) -> Program {
    let program = if side == Side::HydrafsTar { Program::new(binary).arg("tar") } else { Program::new("tar") };
    program.limit(PATIENCE)
}

/// Whether this `hydrafs` has the verb.
pub(in super::super) fn has_verb(binary: &Path, verb: &str) -> bool {
    Program::new(binary).args([verb, "--help"]).outcome().is_ok_and(|(status, ..)| status.success())
}

/// Runs it and takes what it writes. Not to /dev/null, which tar knows, and then reads nothing.
fn drain(program: Program) -> Result<()> {
    let mut child = program.start(Stdio::null(), Stdio::piped(), Stdio::inherit())?;
    let mut output = child.inner.stdout.take().expect("asked to be a pipe");
    let bytes = std::io::copy(&mut output, &mut std::io::sink())?;
    let status = child.wait()?;
    if !status.success() || bytes == 0 {
        bail!("tar ended with {status} after {bytes} bytes");
    }
    Ok(())
}
