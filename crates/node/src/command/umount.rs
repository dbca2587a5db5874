//! `hydrafs umount`: ends a mount and its daemon; returns when everything is on the disks.
//!
//! The daemon is found through the mount table and asked to end; it unmounts by itself, so that a mount in use is left as it is.
//! A dead mount, whose daemon is gone, is only taken away: what that daemon had made local is safe.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::mount::abandoned;
use super::stop::say_stopped;
use super::sync::{has_died, has_other_daemon, other_daemon};
use crate::control::client::{Daemon, Stopped};
use crate::failure::Failure;
use crate::mounts;
use crate::start::{self, How};

/// End a mount and its daemon; return when everything that was written is on the disks.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs umount /mnt\n  \
    hydrafs umount --lazy /mnt    even if programs still use it; they get errors from then on")]
pub(super) struct Arguments {
    /// Where it is mounted.
    pub(super) mountpoint: PathBuf,
    /// Take the mount away even if it is in use.
    #[arg(long, short)]
    pub(super) lazy: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    umount(arguments)?.map_or(Ok(ExitCode::SUCCESS), say_stopped)
}

/// Unmounts. Gives what came of the daemon, if there was one.
pub(super) fn umount(arguments: &Arguments) -> Result<Option<Stopped>, Failure> {
    let point = mounts::absolute(&arguments.mountpoint)
        .map_err(|error| Failure::new("cannot unmount", error).at(&arguments.mountpoint))?;
    let table = mounts::read()?;
    let not_ours = |why: String| {
        Failure::new("cannot unmount", why).at(&point).mend("see the mounts of HydraFS with `findmnt -t fuse.hydrafs`")
    };
    let mount = match mounts::at(&table, &point) {
        Some(mount) if mount.is_hydrafs() => mount,
        Some(mount) => return Err(not_ours(format!("it is a mount of another file system ({})", mount.kind))),
        None => return Err(not_ours("nothing is mounted there".to_owned())),
    };
    let unmount =
        |how: How| start::unmount(&point, how).map_err(|error| Failure::new("cannot unmount", error).at(&point));
    let wished = if arguments.lazy { How::Detached } else { How::Gently };
    // With the lock kept, nobody mounts it anew meanwhile.
    let dead_or_wished = || match abandoned(mount) {
        Some(_lock) => unmount(How::Abandoned).map(|()| true),
        None => unmount(wished).map(|()| false),
    };
    // A bind mount, or one that was bound elsewhere: the others stay, and the daemon for them.
    if table.iter().filter(|other| other.device == mount.device).count() > 1 {
        return dead_or_wished().map(|_| None);
    }
    // One of before knows no such question, and the mount can be ended all the same.
    if has_other_daemon(mount).unwrap_or(false) {
        if !has_died(mount) {
            return Err(other_daemon("cannot unmount", mount));
        }
        // The node was mounted elsewhere since, and stays so.
        unmount(How::Detached)?;
        return Ok(took_away(&point));
    }
    let Some(daemon) = Daemon::reach(&mount.source)? else {
        // Who still uses a dead mount gets errors either way.
        if dead_or_wished()? {
            return Ok(took_away(&point));
        }
        super::remark(&format!(
            "unmounted {}; no daemon answers at {}: if the node was moved from there, its daemon makes everything local and ends",
            point.display(),
            mount.source.display()
        ));
        return Ok(None);
    };
    let stopped = daemon.stop(arguments.lazy, super::remark)?;
    if matches!(stopped, Stopped::Kept(_))
        && mounts::at(&mounts::read()?, &point).is_some_and(mounts::Mount::is_hydrafs)
    {
        // The last one is not where the daemon made it.
        return unmount(wished).map(|()| None);
    }
    Ok(Some(stopped))
}

/// Says that a mount was taken away whose daemon had ended, and left nothing to do.
fn took_away(point: &Path) -> Option<Stopped> {
    super::remark(&format!("took away the dead mount at {}: its daemon had ended before", point.display()));
    None
}
