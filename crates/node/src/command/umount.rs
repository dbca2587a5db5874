//! `hydrafs umount`: ends a mount and its daemon; returns when everything is on the disks.
//!
//! The daemon is found through the mount table and asked to end; it unmounts by itself, so that a mount in use is left as it is.
//! A dead mount, whose daemon is gone, is only taken away: what that daemon had made local is safe.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::mount::is_abandoned;
use super::stop::say_flushed;
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::{mounts, start};

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
    match Daemon::reach(&mount.source)? {
        Some(daemon) => {
            say_flushed(&daemon.stop(arguments.lazy, super::remark)?);
        }
        None => {
            // Who still uses a dead mount gets errors either way.
            let detach = arguments.lazy || is_abandoned(mount);
            start::unmount(&point, detach).map_err(|error| not_ours(format!("no daemon answers, and {error}")))?;
            super::remark(&format!("took away the dead mount at {}: its daemon had ended before", point.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}
