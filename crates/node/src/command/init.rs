//! `hydrafs init`: makes a node of a folder and some disks.
//!
//! Everything that can be refused is refused before the first change, and a failure half-way takes back what was made: a folder
//! that existed and was empty is empty again, a folder that did not exist is gone.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use file::{Domain, StoreError};
use platform::Platform;
use platform::disk::Disk;
use platform::real::{Directory, block_on};

use super::doctor;
use crate::failure::Failure;
use crate::node_folder::{self, Identity, NodeFolder};
use crate::{config, opening};

/// What was tried, in every message.
const WHAT: &str = "cannot make the node";
/// More than the file of a domain has.
const DOMAIN_BYTES_MAX: u64 = 4096;

/// Make a node: its state in the folder NODE, its data on one or more disks.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs init ./node --disk ./node/disk                 all in one folder, to try it\n  \
    hydrafs init /srv/node --disk /disks/a --disk /disks/b  two disks, used together\n  \
    hydrafs init /srv/backup --disk /disks/c --domain-of key   of the dedup domain whose key that is\n\n\
    A disk is an empty directory, best one on each physical disk. Settings are in NODE/hydrafs.toml afterwards.")]
pub(super) struct Arguments {
    /// A new folder for the node's state, or an empty one.
    node: PathBuf,
    /// A directory for data: new, or empty. May be given several times.
    #[arg(long = "disk", value_name = "DIR", required = true)]
    disks: Vec<PathBuf>,
    /// The key of another node's dedup domain (`hydrafs domain export`), to send snapshots to it and receive from it. Without: a domain of
    /// its own.
    #[arg(long, value_name = "FILE")]
    domain_of: Option<PathBuf>,
    /// The node's number in its cluster.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..0x4000), hide = true)]
    number: u16,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    check(arguments)?;
    let domain = arguments.domain_of.as_deref().map(read_domain).transpose()?;
    let mut made = Made::default();
    let folder = make(arguments, domain.as_ref(), &mut made).inspect_err(|_| made.take_back())?;
    let count = folder.identity.disks.len();
    let disks = if count == 1 { "1 disk".to_owned() } else { format!("{count} disks") };
    super::say(format!("made the node {} on {disks}", folder.path.display()));
    super::say(format!("mount it: hydrafs mount {} MOUNTPOINT", arguments.node.display()));
    if !doctor::switch_ring_on() {
        super::remark("io_uring for FUSE is off: `hydrafs doctor` says how to switch it on");
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks, and changes nothing.
fn check(arguments: &Arguments) -> Result<(), Failure> {
    let node = &arguments.node;
    if fs::symlink_metadata(node.join("node")).is_ok() {
        return Err(Failure::new(WHAT, "it is a node already")
            .at(node)
            .mend("name another folder; see it with `hydrafs status`; nothing was changed"));
    }
    // A folder that was prepared with settings is welcome.
    check_empty(node, &[config::FILE_NAME], "name a new folder for the node's state; nothing was changed")?;
    for disk in &arguments.disks {
        check_empty(disk, &[], "name a new or empty directory for each disk; nothing was changed")?;
    }
    check_apart(arguments)
}

/// A directory without entries but those, or nothing at all.
fn check_empty(path: &Path, allowed: &[&str], mend: &str) -> Result<(), Failure> {
    let cannot = |why: String| Failure::new(WHAT, why).at(path).mend(mend);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(cannot("it is not a directory".to_owned()));
        }
        Err(error) => return Err(cannot(error.to_string())),
    };
    for entry in entries {
        let name = entry.map_err(|error| cannot(error.to_string()))?.file_name();
        if !allowed.iter().any(|allowed| name == *allowed) {
            return Err(cannot(format!("it is in use: it holds \"{}\"", name.display())));
        }
    }
    Ok(())
}

/// No disk twice, none in another, and the folder in none: each would find the other's files among its own.
fn check_apart(arguments: &Arguments) -> Result<(), Failure> {
    let absolute = |path: &Path| {
        resolve(path).map_err(|error| Failure::new(WHAT, error).at(path).mend("name a path that can be reached"))
    };
    let node = absolute(&arguments.node)?;
    let disks: Vec<PathBuf> = arguments.disks.iter().map(|disk| absolute(disk)).collect::<Result<_, _>>()?;
    for (index, disk) in disks.iter().enumerate() {
        let refuse = |why: &str| {
            Failure::new(WHAT, why).at(disk).mend("name a directory of its own for each disk; nothing was changed")
        };
        if node.starts_with(disk) {
            return Err(refuse("the node's folder would lie in this disk"));
        }
        for other in &disks[..index] {
            if disk == other {
                return Err(refuse("this disk is named twice"));
            }
            if disk.starts_with(other) || other.starts_with(disk) {
                return Err(refuse("one disk would lie in another"));
            }
        }
        if disk.to_str().is_none() {
            return Err(refuse("the path is not UTF-8, which the node's file needs"));
        }
    }
    Ok(())
}

/// The absolute path of something whose last parts may not exist yet.
pub(super) fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    let mut existing = std::path::absolute(path)?;
    let mut missing = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |path, name| path.join(name))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let Some(name) = existing.file_name().map(ToOwned::to_owned) else {
            return Err(std::io::Error::from(std::io::ErrorKind::NotFound));
        };
        missing.push(name);
        existing.pop();
    }
}

/// The domain whose key is in a file, which others must not be able to read.
fn read_domain(path: &Path) -> Result<Domain, Failure> {
    let refuse = |why: String| Failure::new(WHAT, why).at(path);
    let cannot = |error: std::io::Error| refuse(error.to_string()).mend("nothing was changed");
    let mut file = fs::OpenOptions::new().read(true).open(path).map_err(cannot)?;
    let found = file.metadata().map_err(cannot)?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        return Err(refuse(format!("others can read it (mode {:o}), and it is a secret", found.mode() & 0o777))
            .mend(format!("`chmod 600 {}`, if nobody has read it; nothing was changed", path.display())));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(DOMAIN_BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    Domain::from_file(&bytes, &path.to_string_lossy()).map_err(|error| match error {
        StoreError::Refused { why, advice, .. } => {
            refuse(why.trim_end_matches('.').to_owned()).mend(format!("{advice} Nothing was changed"))
        }
        error => refuse(error.to_string()),
    })
}

fn make(arguments: &Arguments, domain: Option<&Domain>, made: &mut Made) -> Result<NodeFolder, Failure> {
    made.folder(&arguments.node, &["node", "node.new", "hydrafs.toml", "hydrafs.toml.new"])?;
    let mut disks = Vec::new();
    for path in &arguments.disks {
        made.disk(path)?;
        disks.push(Directory::open(path).map_err(|error| opening::explain_disk(WHAT, &error))?);
    }
    let platform = platform::real::platform();
    let identity = Identity {
        format: node_folder::FORMAT,
        uuid: random_uuid(&platform),
        number: arguments.number,
        disks: relative(&arguments.node, &arguments.disks)?,
    };
    format(&platform, &disks, arguments, domain)?;
    NodeFolder::create(&arguments.node, identity)
}

fn format(platform: &Platform, disks: &[Disk], arguments: &Arguments, domain: Option<&Domain>) -> Result<(), Failure> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let number = base::id::NodeNumber(arguments.number);
    let formatted = match domain {
        None => block_on(file::format_node(platform, disks, number, uid, gid)),
        Some(domain) => block_on(file::format_node_in(domain, platform, disks, number, (uid, gid))),
    };
    formatted.map_err(|error| {
        let identity = Identity { format: 0, uuid: String::new(), number: arguments.number, disks: Vec::new() };
        opening::explain(
            WHAT,
            &NodeFolder { path: arguments.node.clone(), identity, goes_without_disks: false },
            &error,
        )
    })
}

/// Disks inside the folder are noted relative to it, so that it can be moved as a whole.
fn relative(node: &Path, disks: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let cannot = |error: std::io::Error| Failure::new(WHAT, error).at(node);
    let node = node.canonicalize().map_err(cannot)?;
    let inside = |disk: &PathBuf| {
        let disk = disk.canonicalize().map_err(cannot)?;
        Ok(disk.strip_prefix(&node).map(Path::to_owned).unwrap_or(disk))
    };
    disks.iter().map(inside).collect()
}

fn random_uuid(platform: &Platform) -> String {
    let mut bytes = [0; 16];
    platform.chance.fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was made, to take it back.
#[derive(Default)]
struct Made {
    /// Folders that did not exist, by their topmost new one.
    folders: Vec<PathBuf>,
    /// Disks that existed and were empty.
    disks: Vec<PathBuf>,
    /// Files in a folder that existed.
    files: Vec<PathBuf>,
}

impl Made {
    fn folder(&mut self, path: &Path, files: &[&str]) -> Result<bool, Failure> {
        let new = node_folder::make_folder(path).map_err(|error| {
            Failure::new(WHAT, format!("cannot make the folder: {error}"))
                .at(path)
                .mend("name a place where you may write; nothing was changed")
        })?;
        let is_new = new.is_some();
        self.folders.extend(new);
        if !is_new {
            let files = files.iter().map(|file| path.join(file)).filter(|file| !file.exists());
            self.files.extend(files);
        }
        Ok(is_new)
    }

    fn disk(&mut self, path: &Path) -> Result<(), Failure> {
        if !self.folder(path, &[])? {
            self.disks.push(path.to_owned());
        }
        Ok(())
    }

    /// A failure here hides nothing: the first one is told, and what is left is visible.
    fn take_back(&self) {
        for disk in &self.disks {
            for entry in fs::read_dir(disk).into_iter().flatten().flatten() {
                let path = entry.path();
                let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        }
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for folder in &self.folders {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
