//! `hydrafs stop`: ends the daemon of a node, mounted or not.

use std::path::PathBuf;
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::Value;

use super::number;
use crate::control::client::{Daemon, Stopped};
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// End a node's daemon: unmount, make everything local, end. Fails and changes nothing while the mount is in use.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs stop ./node\n  \
    hydrafs stop --lazy ./node    even if programs still use the mount; they get errors from then on")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Take the mount away even if it is in use.
    #[arg(long)]
    lazy: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = NodeFolder::open(&arguments.node)?;
    say_stopped(Daemon::find(&folder.path)?.stop(arguments.lazy, super::remark)?)
}

/// What there was to do, or why it goes on.
pub(super) fn say_stopped(stopped: Stopped) -> Result<ExitCode, Failure> {
    match stopped {
        Stopped::Ended(outcome) => {
            say_flushed(&outcome);
            Ok(ExitCode::SUCCESS)
        }
        Stopped::Kept(why) => Err(why),
    }
}

/// What there was to do at the end.
fn say_flushed(outcome: &Value) {
    let seconds = outcome.pointer("/seconds").and_then(Value::as_f64).unwrap_or_default();
    super::say(format!(
        "flushed {} of {} files in {seconds:.1} s; everything is on the disks",
        Bytes(number(outcome, "/flushed_bytes")),
        number(outcome, "/flushed_files"),
    ));
}
