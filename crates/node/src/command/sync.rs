//! `hydrafs sync`: all that was written below a path is local when it returns.
//!
//! Needed because the kernel forwards neither sync(2) nor syncfs(2) to a FUSE file system (measured). Two steps: the kernel gives the daemon
//! the pages that were changed through mappings, then the daemon makes all it has accepted local.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::mount::{dead, is_abandoned};
use crate::control::client::Daemon;
use crate::control::wire::{self, Request};
use crate::failure::Failure;
use crate::mounts;

/// Make everything that was written in the mount of PATH survive a crash. Plain sync(1) does not reach FUSE file systems.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs sync /mnt             returns when all is on the disks")]
pub(super) struct Arguments {
    /// A path in a mount.
    path: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    sync(&arguments.path)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes everything local in the mount that `path` lies in.
#[expect(clippy::disallowed_methods, reason = "a mount is the outside")]
pub(super) fn sync(path: &Path) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new("cannot sync", error).at(path);
    let mount = mount_of(path)?;
    // All pages are on their way at once; none of them is waited for (`fuse::bring_pages`). The mount point does for every path in it, also
    // where the path cannot be opened: a socket, a file of somebody else.
    let opened = std::fs::File::open(&mount.point);
    rustix::fs::syncfs(opened.map_err(cannot)?).map_err(|error| cannot(error.into()))?;
    // Some of them at a time, for which the daemon has the memory.
    let (mut brought, mut number, mut parts) = (Ok(()), 0, 1);
    while number < parts {
        let part = Some((number, if number == 0 { 0 } else { parts }));
        let cached = match Daemon::find(&mount.source)?.ask(&Request::Cached { part }, super::remark) {
            // A daemon from before an upgrade tells all at once.
            Err(failure) if failure.what == wire::NOT_UNDERSTOOD => {
                Daemon::find(&mount.source)?.ask(&Request::Cached { part: None }, super::remark)?
            }
            cached => cached?,
        };
        parts = cached["parts"].as_u64().and_then(|parts| u32::try_from(parts).ok()).unwrap_or(1);
        let result = fuse::bring_pages(&mount.point, wire::ascending(&cached["steps"]));
        number = if is_refused(&result) { parts } else { number + 1 };
        brought = brought.and(result);
    }
    // Also where some of them could not be brought: for all the rest.
    Daemon::find(&mount.source)?.ask(&Request::Sync {}, super::remark)?;
    if is_refused(&brought) {
        super::remark(
            "what programs changed through mappings and did not msync(2) may be missing: root alone can have the kernel give it",
        );
        return Ok(());
    }
    brought.map_err(cannot)
}

fn is_refused(brought: &std::io::Result<()>) -> bool {
    matches!(brought, Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The mount of ours that a path lies in. The daemon that its source leads to is that of this mount: in a folder that has taken the place of the
/// node's, inode numbers mean other files (I-158).
pub(super) fn mount_of(path: &Path) -> Result<mounts::Mount, Failure> {
    let mount = mount_above(path)?;
    if has_other_daemon(&mount)? {
        return Err(other_daemon("cannot use the file system", &mount));
    }
    Ok(mount)
}

/// The path by which the mount is found that something lies in itself: a symbolic link in a mount is a thing of its directory, wherever it leads.
pub(super) fn itself(path: &Path) -> &Path {
    let above = path.parent().map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    above.filter(|above| path.is_symlink() && mount_above(above).is_ok()).unwrap_or(path)
}

/// The same, whose daemon is not asked, or was.
pub(super) fn mount_above(path: &Path) -> Result<mounts::Mount, Failure> {
    let cannot = |why: String| Failure::new("cannot find the file system", why).at(path);
    let absolute = mounts::absolute(path).map_err(|error| cannot(error.to_string()))?;
    match mounts::covering(&mounts::read()?, &absolute) {
        Some(mount) if is_abandoned(mount) => Err(dead("cannot use the file system", mount)),
        Some(mount) if mount.is_hydrafs() => Ok(mount.clone()),
        Some(mount) => Err(cannot(format!("it lies on {} ({}), not on HydraFS", mount.point.display(), mount.kind))
            .mend("name a path below a mount of HydraFS; `findmnt -t fuse.hydrafs` lists them")),
        None => Err(cannot("it lies on no mount".to_owned())),
    }
}

/// Whether the source of a mount leads to a daemon that is not this mount's.
pub(super) fn has_other_daemon(mount: &mounts::Mount) -> Result<bool, Failure> {
    let Some(daemon) = Daemon::reach(&mount.source)? else { return Ok(false) };
    let answer = match daemon.ask(&Request::Device {}, |_| {}) {
        // One of before knows no such question: nothing speaks against it.
        Err(failure) if failure.what == wire::NOT_UNDERSTOOD => return Ok(false),
        answer => answer?,
    };
    Ok(!answer["device"].as_str().is_some_and(|device| mount.has_device(device)))
}

/// Whether a mount says that its daemon has ended. To be asked where another daemon has been found: that its source has a daemon tells nothing then.
pub(super) fn has_died(mount: &mounts::Mount) -> bool {
    // The kernel keeps no answer to this.
    rustix::fs::statfs(&mount.point).is_err_and(|error| mounts::is_dead(&error.into()))
}

/// The failure that this is.
pub(super) fn other_daemon(what: &str, mount: &mounts::Mount) -> Failure {
    if has_died(mount) {
        let mend =
            format!("take it away with `hydrafs umount {}`: its node is mounted elsewhere", mount.point.display());
        return Failure::new(what, "the daemon of this mount has died").at(&mount.point).mend(mend);
    }
    let why = format!(
        "the daemon of {} serves another mount: its node has taken the place of this one",
        mount.source.display()
    );
    let mend =
        "its folder was moved: end its daemon with `hydrafs stop FOLDER`, and mount it from there; nothing was changed";
    Failure::new(what, why).at(&mount.point).mend(mend)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::has_other_daemon;
    use crate::control::SOCKET_NAME;
    use crate::control::wire::{Answer, NOT_UNDERSTOOD, write_line};
    use crate::failure::Failure;
    use crate::mounts;

    /// One of before this question goes on to be asked what it knows.
    #[test]
    fn a_daemon_that_does_not_know_its_device_is_no_other() {
        let folder = std::env::temp_dir().join(format!("hydrafs-device-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let listener = UnixListener::bind(folder.join(SOCKET_NAME)).expect("a free name");
        let line = format!("36 35 0:98 / /m rw - fuse.hydrafs {} rw", folder.display());
        let mount = mounts::parse(line.as_bytes()).pop().expect("a mount");
        let answers = [
            (Answer::Failed(Failure::new(NOT_UNDERSTOOD, "unknown variant `device`")), Some(false)),
            (Answer::Failed(Failure::new("cannot ask the daemon", "something else")), None),
            (Answer::Done(serde_json::json!({ "device": "0:98" })), Some(false)),
            (Answer::Done(serde_json::json!({ "device": "0:99" })), Some(true)),
        ];
        for (answer, expected) in answers {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (stream, _) = listener.accept().expect("somebody asks");
                    BufReader::new(&stream).read_line(&mut String::new()).expect("a request");
                    write_line(&mut &stream, &answer).expect("it listens");
                });
                assert_eq!(has_other_daemon(&mount).ok(), expected);
            });
        }
        std::fs::remove_dir_all(&folder).expect("our own folder");
    }
}
