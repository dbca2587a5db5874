//! What tools are built from and where: the project's folder, `hydrafs`, programs from the package registry.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::fs::{FlockOperation, flock};

use crate::program::Program;

/// The project's folder.
pub(crate) fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the project").to_owned()
}

/// Where cargo builds, and where tools keep their own folders.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => project().join(dir),
        None => project().join("target"),
    }
}

/// A folder of a tool's own below the target folder, there from now on.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    let folder = target().join(name);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // The mount table has no symbolic links.
    Ok(folder.canonicalize()?)
}

/// Claims a tool's folder and its mounts for this process, until the value is dropped or the process ends.
///
/// # Errors
/// Another process has claimed it: each would take the other's mounts for leavings of an earlier run.
pub(crate) fn claim(name: &str) -> Result<File> {
    let path = target().join(format!("{name}.lock"));
    std::fs::create_dir_all(target())?;
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => bail!("`cargo xtask {name}` is running already; wait for it, or stop it"),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Program {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // What cargo tells its children about us is not meant for what they build.
    let ours = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let ours = ours.filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
    let program = ours.fold(Program::new(cargo), |program, name| program.env_remove(&name));
    program.dir(&project()).limit(Duration::from_secs(3600))
}

/// How `hydrafs` is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// With debug assertions; quick to build.
    Dev,
    /// As users have it.
    Release,
}

/// Builds `hydrafs` and gives its path. `HYDRAFS_BINARY` names one that is there already.
pub(crate) fn hydrafs(profile: Profile) -> Result<PathBuf> {
    if let Some(binary) = named("HYDRAFS_BINARY")? {
        return Ok(binary);
    }
    let (name, dir) = match profile {
        Profile::Dev => ("dev", "debug"),
        Profile::Release => ("release", "release"),
    };
    let built = cargo().args(["build", "--quiet", "--package", "node", "--profile", name]).status()?;
    if !built.success() {
        bail!("hydrafs does not build; see the compiler's words above");
    }
    Ok(target().join(dir).join("hydrafs"))
}

/// A program that a variable names.
pub(crate) fn named(variable: &str) -> Result<Option<PathBuf>> {
    let Some(binary) = std::env::var_os(variable) else { return Ok(None) };
    let binary = std::path::absolute(&binary)?;
    if !binary.is_file() {
        bail!("{variable} is {}, and there is no such file", binary.display());
    }
    Ok(Some(binary))
}

/// Builds `lab`, as users would have it, and gives its path. `LAB_BINARY` names one that is there already.
pub(crate) fn lab() -> Result<PathBuf> {
    if let Some(binary) = named("LAB_BINARY")? {
        return Ok(binary);
    }
    let built = cargo().args(["build", "--quiet", "--package", "lab", "--release"]).status()?;
    if !built.success() {
        bail!("lab does not build; see the compiler's words above");
    }
    Ok(target().join("release/lab"))
}

/// Installs a program of the package registry below target/tools, if it is not there, and gives its path.
pub(crate) fn installed(package: &str, version: &str) -> Result<PathBuf> {
    let root = target().join("tools");
    let program = root.join("bin").join(package);
    let marker = root.join(format!("{package}-{version}"));
    if program.is_file() && marker.is_file() {
        return Ok(program);
    }
    println!("   installing {package} {version} from the package registry (once)");
    std::fs::create_dir_all(&root)?;
    // Not optimised: half the time to build, and they wait for the file system anyway.
    let install =
        cargo().args(["install", "--quiet", "--locked", "--force", "--debug", "--version", version, package, "--root"]);
    let install = install.arg(&root).env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false");
    // One folder for both: they share dependencies.
    let install = install.env("CARGO_TARGET_DIR", root.join("build")).log(&root.join(format!("{package}.log")));
    install.run().with_context(|| format!("cannot install {package} {version} from the package registry"))?;
    std::fs::write(marker, "")?;
    Ok(program)
}

/// libfuse's example of a pass-through (passthrough_ll), compiled below target/tools if it is not there.
pub(crate) fn pass_through() -> Result<PathBuf> {
    let source = Path::new("/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c");
    let program = target().join("tools/passthrough_ll");
    if program.is_file() {
        return Ok(program);
    }
    if !source.is_file() {
        bail!(
            "{} is not here: `scripts/setup bench` installs it, unless this system leaves documents out",
            source.display()
        );
    }
    std::fs::create_dir_all(target().join("tools"))?;
    let flags = Program::new("pkg-config").args(["--cflags", "--libs", "fuse3"]).output()?;
    let compiler = Program::new("cc").args(["-O2", "-D_FILE_OFFSET_BITS=64", "-o"]).arg(&program).arg(source);
    compiler.args(flags.split_whitespace()).output()?;
    Ok(program)
}

/// Whether a program can be found.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(also).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::claim;

    #[test]
    fn a_tool_is_claimed_once() {
        let name = format!("claim-test-{}", std::process::id());
        let first = claim(&name).expect("nobody has it");
        let error = claim(&name).expect_err("it is taken").to_string();
        assert!(error.contains("is running already"), "{error}");
        drop(first);
        claim(&name).expect("given back");
        std::fs::remove_file(super::target().join(format!("{name}.lock"))).expect("ours");
    }
}
