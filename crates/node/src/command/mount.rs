//! `hydrafs mount`: starts the daemon on a node and mounts it; returns when the mount is usable.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::daemon;
use crate::failure::Failure;
use crate::life;
use crate::mounts;
use crate::node_folder::{Lock, NodeFolder};
use crate::start::{self, How, MountOptions};

/// Mount a node: start its daemon, and return when the mount is usable.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs mount ./node /mnt\n  \
    hydrafs mount --foreground ./node /mnt        stay, and log to the terminal\n  \
    hydrafs mount --degraded ./node /mnt          a disk is gone: serve what lies on the others\n  \
    mount -t hydrafs /srv/node /mnt               the same (after `hydrafs doctor --fix`)\n  \
    /srv/node /mnt hydrafs defaults,nofail 0 0    the same, as a line of /etc/fstab")]
pub(super) struct Arguments {
    /// The node's folder, made by `hydrafs init`.
    pub(super) node: PathBuf,
    /// An empty directory.
    pub(super) mountpoint: PathBuf,
    /// Do not go to the background; log to standard error.
    #[arg(long, short)]
    pub(super) foreground: bool,
    /// Go on although disks are missing, if one that has the journal is there: what lies on them alone cannot be read until they are back. Then
    /// `hydrafs restart` takes them in.
    #[arg(long)]
    pub(super) degraded: bool,
    /// Mount options as for mount(8): ro, noexec, nosuid, nodev, noatime, allow_other, noallow_other, degraded; usual ones that do not
    /// concern us are ignored.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Ignore mount options that are not known.
    #[arg(long, hide = true)]
    pub(super) sloppy: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(words) = mount(arguments, super::remark)? {
        super::say(words);
    }
    Ok(ExitCode::SUCCESS)
}

/// Mounts. Gives what the daemon in the background said; in the foreground it is over then. `remark` hears what is waited for.
pub(super) fn mount(arguments: &Arguments, remark: fn(&str)) -> Result<Option<String>, Failure> {
    daemon::detach();
    let options = parse_options(&arguments.options, arguments.sloppy)?;
    let is_degraded = arguments.degraded || options.degraded;
    let folder = NodeFolder::open(&arguments.node)?.degraded(is_degraded);
    if options.remount {
        start::remount(&folder, &arguments.mountpoint, options)?;
        return Ok(None);
    }
    let point = mount_point(&arguments.mountpoint, &folder)?;
    if arguments.foreground {
        life::run(&folder, Some((&point, options)))?;
        return Ok(None);
    }
    // Bad settings and a second daemon are cheap to find here, in the user's own terminal.
    folder.config()?;
    drop(folder.lock_when_ended(remark)?);
    let mut command = vec![OsStr::new("mount"), OsStr::new("--foreground"), folder.path.as_os_str(), point.as_os_str()];
    for options in &arguments.options {
        command.extend([OsStr::new("-o"), OsStr::new(options)]);
    }
    if arguments.degraded {
        command.push(OsStr::new("--degraded"));
    }
    if arguments.sloppy {
        command.push(OsStr::new("--sloppy"));
    }
    daemon::start(&command, &folder.path).map(Some)
}

/// Options of mount(8) that mean nothing to us or are somebody else's: time stamps are kept relatime, the network and the boot
/// order are systemd's.
const IGNORED: [&str; 18] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "diratime",
    "nodiratime",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "default_permissions",
];

/// Reads lists of mount options: of two that contradict each other the later one counts, as with mount(8).
pub(crate) fn parse_options(lists: &[String], sloppy: bool) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::default();
    for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        match name {
            "ro" | "rw" => options.read_only = name == "ro",
            "nosuid" | "suid" => options.no_set_id = name == "nosuid",
            "nodev" | "dev" => options.no_devices = name == "nodev",
            "noexec" | "exec" => options.no_execute = name == "noexec",
            "noatime" | "atime" | "relatime" | "strictatime" => options.no_access_times = name == "noatime",
            "allow_other" => options.allow_other = Some(true),
            "noallow_other" => options.allow_other = Some(false),
            "degraded" => options.degraded = true,
            "remount" => options.remount = true,
            _ if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            // Written by mount(8) into the options of its helpers.
            "comment" | "uhelper" | "helper" => {}
            _ if sloppy => {}
            _ => {
                return Err(Failure::new("cannot mount", format!("the mount option \"{option}\" is not known"))
                    .mend("leave it out; known are ro, nosuid, nodev, noexec, noatime, remount, allow_other, noallow_other, degraded"));
            }
        }
    }
    Ok(options)
}

/// Checks the directory to mount on; mends a dead mount of ours. Returns its absolute path.
fn mount_point(point: &Path, folder: &NodeFolder) -> Result<PathBuf, Failure> {
    let cannot = |why: String| Failure::new("cannot mount", why).at(point);
    let absolute = mounts::absolute(point).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            cannot("there is no such directory".to_owned()).mend(format!("make it: mkdir {}", point.display()))
        }
        _ => cannot(error.to_string()),
    })?;
    // Before the mount itself is asked. The kernel may go on answering for a dead one from what it has kept, and one whose connection
    // something keeps open does not answer at all.
    if mounts::at(&mounts::read()?, &absolute).is_some_and(mounts::Mount::is_hydrafs) {
        take_dead_mount_away(&absolute, false)?;
    }
    let mut found = std::fs::metadata(&absolute);
    if found.as_ref().is_err_and(mounts::is_dead) {
        take_dead_mount_away(&absolute, true)?;
        found = std::fs::metadata(&absolute);
    }
    let metadata = found.map_err(|error| cannot(error.to_string()))?;
    if !metadata.is_dir() {
        return Err(cannot("it is not a directory".to_owned()).mend("name an empty directory"));
    }
    if let Some(mount) = mounts::at(&mounts::read()?, &absolute) {
        let why = format!("{} ({}) is mounted there already", mount.source.display(), mount.kind);
        let mend = if mount.is_hydrafs() {
            format!("end it with `hydrafs umount {}`, or name another directory", absolute.display())
        } else {
            "name another directory".to_owned()
        };
        return Err(cannot(why).mend(mend));
    }
    if folder.path.starts_with(&absolute) || folder.disk_paths().iter().any(|disk| disk.starts_with(&absolute)) {
        return Err(cannot("the node or one of its disks lies below it and would be hidden".to_owned())
            .mend("name a directory that does not hold them"));
    }
    if std::fs::read_dir(&absolute).map_err(|error| cannot(error.to_string()))?.next().is_some() {
        return Err(cannot("the directory is not empty: its files would be hidden".to_owned())
            .mend("name an empty directory; nothing was changed"));
    }
    if !rustix::process::geteuid().is_root() && metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(
            cannot("the directory belongs to somebody else".to_owned()).mend("mount on a directory of your own")
        );
    }
    Ok(absolute)
}

/// The node's lock if this is a mount of ours whose daemon has ended without taking it away: nobody else holds it, and while it is kept
/// nobody mounts the node anew. The daemon must have noted this very mount: where the node's folder was moved and another one has its place, a
/// free lock there says nothing of who serves the mount.
pub(super) fn abandoned(mount: &mounts::Mount) -> Option<Lock> {
    let lock = NodeFolder::open(&mount.source).ok().filter(|_| mount.is_hydrafs())?.lock().ok()?;
    lock.noted_mount().is_none_or(|device| mount.has_device(&device)).then_some(lock)
}

/// Whether it is such a mount.
pub(super) fn is_abandoned(mount: &mounts::Mount) -> bool {
    abandoned(mount).is_some()
}

/// What to say of such a mount.
pub(super) fn dead(what: &str, mount: &mounts::Mount) -> Failure {
    let mend = format!("mend it with `hydrafs mount {} {}`", mount.source.display(), mount.point.display());
    Failure::new(what, "the daemon of this mount has died").at(&mount.point).mend(mend)
}

/// Takes a mount away whose daemon is gone, if it is one of ours. `is_dead`: it has answered so; else that is to be found out.
fn take_dead_mount_away(point: &Path, is_dead: bool) -> Result<(), Failure> {
    let dead = |why: &str| Failure::new("cannot mount", why).at(point);
    let table = mounts::read()?;
    let mount = match mounts::at(&table, point) {
        Some(mount) if mount.is_hydrafs() => mount,
        _ => {
            return Err(dead("a dead mount of another file system is in the way")
                .mend(format!("take it away with `umount -l {}` (or `fusermount3 -uz`)", point.display())));
        }
    };
    // Kept until it has gone: by force nobody else's is taken away, who mends it at the same time.
    let lock = abandoned(mount);
    let how = match (&lock, is_dead) {
        (Some(_), _) => How::Abandoned,
        (None, true) => How::Detached,
        (None, false) => return Ok(()),
    };
    start::unmount(point, how).map_err(|error| {
        dead("the mount is dead (its daemon has ended) and cannot be taken away")
            .mend(format!("{error}; as root: umount -l {}", point.display()))
    })?;
    super::remark(&format!("took away the dead mount at {}: its daemon had ended", point.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse_options;

    #[test]
    fn usual_options_are_understood_or_ignored_and_others_refused() {
        let list = ["rw,noatime,_netdev,nofail,x-systemd.automount".to_owned(), "nosuid,,ro,degraded".to_owned()];
        let options = parse_options(&list, false).expect("usual ones");
        assert!(
            options.read_only
                && options.degraded
                && options.no_set_id
                && options.no_access_times
                && !options.no_execute
                && options.allow_other.is_none()
        );
        let list = ["ro,noexec,nodev,nosuid,noatime".to_owned(), "rw,exec,dev,suid,relatime".to_owned()];
        let options = parse_options(&list, false).expect("usual ones");
        let (is_open, sees_reads) =
            (!options.no_execute && !options.no_devices && !options.no_set_id, !options.no_access_times);
        assert!(!options.read_only && is_open && sees_reads, "the later one counts");
        let message = parse_options(&["compress=9".to_owned()], false).expect_err("unknown").to_string();
        assert!(message.contains("\"compress=9\" is not known"), "{message}");
        parse_options(&["compress=9".to_owned()], true).expect("sloppy");
    }
}
