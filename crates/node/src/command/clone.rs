//! `hydrafs clone`: a directory with everything below it once more, without copying any of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::info::Held;
use super::sync::mount_of;
use super::tree::write_pages_back;
use crate::control::wire::Request;
use crate::failure::Failure;

/// Clone a directory with everything below it: at once, whatever its size, and in no more room than what is changed later.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs clone /mnt/template /mnt/jobs/1        a writable copy of all of it, in milliseconds\n  \
    hydrafs clone /mnt/.snapshots/monday/etc /mnt/etc.monday   of what a snapshot shows\n  \
    rm -r /mnt/jobs/1                              it goes like any other directory\n\n\
    A clone shows the directory as it is at this moment. Both go their own way from then on. Files are neither linked nor renamed across\n\
    its border (EXDEV: mv(1) copies then); a single file is cloned by `cp --reflink`. What has a clone below it is not cloned as a whole.")]
pub(super) struct Arguments {
    /// A directory of the mount, or of a snapshot in it.
    source: PathBuf,
    /// What the clone is to be called; nothing of this name is there yet.
    target: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const WHAT: &str = "cannot clone the directory";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { source, target, json } = arguments;
    let refuse = |why: &str| Failure::new(WHAT, why).at(target);
    let name = target.file_name().ok_or_else(|| refuse("the target has no name of its own"))?;
    let name = name
        .to_str()
        .ok_or_else(|| refuse("the target's name is not UTF-8").mend("clone to another name and rename the clone"))?;
    let directory = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let (from, to) = (mount_of(source)?, mount_of(directory)?);
    if (&from.point, &from.source) != (&to.point, &to.source) {
        let why = format!("{} lies on another mount, {}", source.display(), from.point.display());
        return Err(refuse(&why).mend("a clone shares what its source has stored: `hydrafs cp -a` copies it"));
    }
    write_pages_back(&from.point);
    let held = (Held::open(source, WHAT)?, Held::open(directory, WHAT)?);
    let request = Request::Clone { source: held.0.inode, parent: held.1.inode, name: name.to_owned() };
    let answer = held.1.ask(&request, super::remark)?;
    if *json {
        super::say_json(&answer);
    } else {
        let seconds = answer["seconds"].as_f64().unwrap_or_default();
        super::say(format!("{} is a clone of {}, made in {:.1} ms", target.display(), source.display(), seconds * 1e3));
    }
    Ok(ExitCode::SUCCESS)
}
