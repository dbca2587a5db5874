//! What mount(8) and umount(8) call: `mount.hydrafs NODE MOUNTPOINT -o …` for `mount -t hydrafs` and fstab, and
//! `umount.fuse.hydrafs MOUNTPOINT`, so that umount(8) too returns only when everything is local: systemd's, a user's, a lazy one.
//! A plain `umount DIR` of root's asks the kernel alone for the type (libmount, `lookup_umount_fs_by_statfs`), hears "fuse" and
//! finds no helper of that name: it returns at once, the daemon makes everything local and ends, and the next `mount` waits for it.
//!
//! The forms are util-linux's: `mount.TYPE spec dir [-sfnv] [-N namespace] [-o options] [-t type]` (mount(8), "External
//! helpers") and `umount.TYPE dir [-flnrv] [-N namespace] [-t type]`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::{mount, umount};
use crate::failure::Failure;

/// Mount a node; called by mount(8).
#[derive(Parser, Debug)]
#[command(name = "mount.hydrafs")]
struct MountForm {
    /// The node's folder.
    node: PathBuf,
    /// Where to mount it.
    mountpoint: PathBuf,
    /// Mount options, separated by commas.
    #[arg(short, value_name = "OPTIONS")]
    o: Vec<String>,
    /// Tolerate unknown options.
    #[arg(short)]
    sloppy: bool,
    /// Only pretend.
    #[arg(short)]
    fake: bool,
    /// Ignored.
    #[arg(short)]
    n: bool,
    /// Say what is waited for.
    #[arg(short)]
    verbose: bool,
    /// Ignored.
    #[arg(short = 'N')]
    namespace: Option<String>,
    /// Ignored.
    #[arg(short)]
    type_: Option<String>,
}

/// Unmount; called by umount(8).
#[derive(Parser, Debug)]
#[command(name = "umount.fuse.hydrafs")]
struct UmountForm {
    /// What to unmount.
    mountpoint: PathBuf,
    /// Ignored: a dead mount needs no force.
    #[arg(short)]
    force: bool,
    /// Even if it is in use.
    #[arg(short)]
    lazy: bool,
    /// Ignored.
    #[arg(short)]
    n: bool,
    /// Ignored.
    #[arg(short)]
    r: bool,
    /// Ignored.
    #[arg(short)]
    verbose: bool,
    /// Ignored.
    #[arg(short = 'N')]
    namespace: Option<String>,
    /// Ignored.
    #[arg(short)]
    type_: Option<String>,
}

pub(super) fn mount(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let form = MountForm::parse_from(arguments);
    if form.fake {
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = mount::Arguments {
        node: form.node,
        mountpoint: form.mountpoint,
        foreground: false,
        // An option of the mount.
        degraded: false,
        options: form.o,
        sloppy: form.sloppy,
    };
    // mount(8) is silent when all is well, and so are its helpers.
    mount::mount(&arguments, if form.verbose { super::remark } else { |_| {} })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn umount(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let form = UmountForm::parse_from(arguments);
    // The mount has gone, which is all that umount(8) asks for, also where the daemon goes on because of others.
    umount::umount(&umount::Arguments { mountpoint: form.mountpoint, lazy: form.lazy })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_forms_of_util_linux_are_understood() {
        super::MountForm::command().debug_assert();
        super::UmountForm::command().debug_assert();
        let form = super::MountForm::try_parse_from(["mount.hydrafs", "/n", "/m", "-o", "rw,noatime", "-sv"]);
        let form = form.expect("the form of mount(8)");
        assert!(form.sloppy && form.verbose && !form.fake && form.o == ["rw,noatime"]);
        super::UmountForm::try_parse_from(["umount.fuse.hydrafs", "/m", "-l", "-n"]).expect("the form of umount(8)");
    }
}
