//! A compiler at work in the mount; and suites that no package registry has.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Place;
use crate::program::Program;
use crate::tally::End;
use crate::tools;

/// Folders of the project that are no sources.
const NO_SOURCES: [&str; 5] = ["target", "demo", ".git", "bench", "node_modules"];

/// Copies the project's sources to `to`.
pub(crate) fn copy_project(to: &Path, log: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for name in
        crate::tree::names(&tools::project())?.into_iter().filter(|name| !NO_SOURCES.iter().any(|skip| name == skip))
    {
        Program::new("cp").args(["-a", "--"]).arg(tools::project().join(&name)).arg(to).log(log).run()?;
    }
    Ok(())
}

/// Builds this project with sources and target in the mount, and runs what came out.
pub(super) fn cargo_build(place: &Place) -> Result<End> {
    let sources = place.dir.join("project");
    copy_project(&sources, &place.log)?;
    let package = if place.is_quick { "base" } else { "node" };
    let build = |what: &str| {
        let cargo = tools::cargo().dir(&sources).args([what, "--offline", "--package", package]);
        cargo.env("CARGO_TARGET_DIR", sources.join("target")).log(&place.log).limit(Duration::from_secs(3600)).run()
    };
    build("build")?;
    build("build").context("a second build, with nothing to do")?;
    if place.is_quick {
        build("test")?;
        return Ok(End::Passed("crate base built and tested".to_owned()));
    }
    let version = Program::new(sources.join("target/debug/hydrafs")).arg("--version").output()?;
    if !version.starts_with("hydrafs ") {
        bail!("what was built says {version:?}");
    }
    Ok(End::Passed(format!("crate node built; what came out runs: {}", version.trim())))
}

pub(super) fn xfstests(_: &Place) -> Result<End> {
    Ok(End::Skipped("no package registry has it; docs/posix.md has what its sources' run found".to_owned()))
}

pub(super) fn ltp(_: &Place) -> Result<End> {
    Ok(End::Skipped("no package registry has it; docs/posix.md has what its sources' run found".to_owned()))
}

/// fsstress belongs to xfstests and LTP; stress-ng does its work here.
pub(super) fn fsstress(_: &Place) -> Result<End> {
    Ok(End::Skipped(
        "part of xfstests and LTP, which no package registry has; stress-ng took its place above".to_owned(),
    ))
}
