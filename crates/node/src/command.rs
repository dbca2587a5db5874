//! The command line: one file per verb, each with its arguments, its help and its `run`.
//!
//! A verb returns an exit code, or a [`Failure`] that is printed here, once, as `hydrafs: what: where; why; what to do`. Verbs that
//! read have `--json`: one JSON value on standard output, for programs; everything for people goes through [`say`] too.
//!
//! The same program is the helper of mount(8) when it is called `mount.hydrafs`, and of umount(8) when it is called
//! `umount.fuse.hydrafs` (`hydrafs doctor --fix` makes the links).

mod beneath;
mod clone;
mod completion;
mod cp;
mod diff;
mod disk;
mod doctor;
mod domain;
mod du;
mod fsck;
mod gc;
mod info;
mod init;
pub(crate) mod mount;
mod mount_helper;
mod optimize;
mod path_list;
mod policy;
mod profile;
mod receive;
mod restart;
mod rm;
mod sample;
mod scrub;
mod send;
mod serve;
mod snapshot;
mod stats;
mod status;
mod stop;
mod sync;
mod take_over;
pub(crate) mod tar;
mod tree;
mod umount;
mod walk;
mod warmup;
mod whole;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use base::units::Bytes;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::{daemon, start};

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "hydrafs",
    version,
    about = "A file system over the disks you have: fast as the local disk, each block stored once, checked on each read.",
    after_help = "Examples:\n  \
        hydrafs init ./node --disk /disks/a --disk /disks/b   make a node on two disks\n  \
        hydrafs mount ./node /mnt                             use it\n  \
        hydrafs cp -a /usr/share /mnt                         copy something in\n  \
        hydrafs status ./node                                 see what it stores\n  \
        hydrafs umount /mnt                                   end it; everything is on the disks\n\n\
        `hydrafs doctor` checks this machine and says what to mend. Each command has its own --help.",
    disable_help_subcommand = true
)]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Init(init::Arguments),
    Mount(mount::Arguments),
    Serve(serve::Arguments),
    Umount(umount::Arguments),
    Stop(stop::Arguments),
    Restart(restart::Arguments),
    #[command(hide = true)]
    TakeOver(take_over::Arguments),
    Status(status::Arguments),
    Stats(stats::Arguments),
    Profile(profile::Arguments),
    Info(info::Arguments),
    Sync(sync::Arguments),
    Fsck(fsck::Arguments),
    Scrub(scrub::Arguments),
    Gc(gc::Arguments),
    Disk(disk::Arguments),
    Domain(domain::Arguments),
    Policy(policy::Arguments),
    Snapshot(snapshot::Arguments),
    Clone(clone::Arguments),
    Send(send::Arguments),
    Receive(receive::Arguments),
    Cp(cp::Arguments),
    Rm(rm::Arguments),
    Du(du::Arguments),
    Walk(walk::Arguments),
    Diff(diff::Arguments),
    Tar(tar::Arguments),
    Optimize(optimize::Arguments),
    Warmup(warmup::Arguments),
    Doctor(doctor::Arguments),
    Completion(completion::Arguments),
}

/// Runs the program with these arguments, the first being its name.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let name =
        arguments.first().and_then(|name| Path::new(name).file_name()).map(|name| name.to_string_lossy().into_owned());
    let result = match name.as_deref() {
        Some("mount.hydrafs" | "mount.fuse.hydrafs") => mount_helper::mount(&arguments),
        Some("umount.fuse.hydrafs" | "umount.hydrafs") => mount_helper::umount(&arguments),
        _ => run(CommandLine::parse_from(arguments).verb),
    };
    with_all_said(result.unwrap_or_else(|failure| {
        if !daemon::failed(&failure) {
            // Standard error may be closed; the exit code still says it.
            let _ = writeln!(io::stderr(), "hydrafs: {failure}");
        }
        ExitCode::from(failure.code)
    }))
}

fn run(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Init(arguments) => init::run(&arguments),
        Verb::Mount(arguments) => mount::run(&arguments),
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Umount(arguments) => umount::run(&arguments),
        Verb::Stop(arguments) => stop::run(&arguments),
        Verb::Restart(arguments) => restart::run(&arguments),
        Verb::TakeOver(arguments) => take_over::run(&arguments),
        Verb::Status(arguments) => status::run(&arguments),
        Verb::Stats(arguments) => stats::run(&arguments),
        Verb::Profile(arguments) => profile::run(&arguments),
        Verb::Info(arguments) => info::run(&arguments),
        Verb::Sync(arguments) => sync::run(&arguments),
        Verb::Fsck(arguments) => fsck::run(&arguments),
        Verb::Scrub(arguments) => scrub::run(&arguments),
        Verb::Gc(arguments) => gc::run(&arguments),
        Verb::Disk(arguments) => disk::run(&arguments),
        Verb::Domain(arguments) => domain::run(&arguments),
        Verb::Policy(arguments) => policy::run(&arguments),
        Verb::Snapshot(arguments) => snapshot::run(&arguments),
        Verb::Clone(arguments) => clone::run(&arguments),
        Verb::Send(arguments) => send::run(&arguments),
        Verb::Receive(arguments) => receive::run(&arguments),
        Verb::Cp(arguments) => cp::run(&arguments),
        Verb::Rm(arguments) => rm::run(&arguments),
        Verb::Du(arguments) => du::run(&arguments),
        Verb::Walk(arguments) => walk::run(&arguments),
        Verb::Diff(arguments) => diff::run(&arguments),
        Verb::Tar(arguments) => tar::run(&arguments),
        Verb::Optimize(arguments) => optimize::run(&arguments),
        Verb::Warmup(arguments) => warmup::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Completion(arguments) => completion::run(&arguments),
    }
}

/// Why standard output took something no more.
static UNHEARD: OnceLock<io::ErrorKind> = OnceLock::new();

/// Writes a line to standard output. Whoever reads it may have gone (`| head`), or its disk be full: what a command does it does to its end all the same.
fn say(text: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        let _ = UNHEARD.set(error.kind());
    }
}

/// Whether nobody hears any more what is said: for a command that says something for ever.
fn is_unheard() -> bool {
    UNHEARD.get().is_some()
}

/// What a command ends with. Of what was said to nobody, because the reader wanted no more, he needs to hear nothing.
fn with_all_said(code: ExitCode) -> ExitCode {
    match UNHEARD.get() {
        Some(kind) if *kind != io::ErrorKind::BrokenPipe => {
            remark(&format!("not all of it was told: cannot write to standard output: {kind}"));
            if code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
        }
        _ => code,
    }
}

/// Writes a value for programs.
fn say_json(value: &serde_json::Value) {
    say(serde_json::to_string_pretty(value).expect("a JSON value can be written"));
}

/// Refuses a share of the time that is none, before a node is opened for it.
fn check_share(share: Option<u8>, what: &'static str) -> Result<(), Failure> {
    match share.filter(|percent| file::Share::percent(*percent).is_none()) {
        None => Ok(()),
        Some(percent) => {
            let why = "a share is a percentage of 1 to 100";
            Err(Failure::new(what, why).place(percent.to_string()).mend("nothing was changed"))
        }
    }
}

/// Asks the daemon, or the node itself where none runs, and shows a person how far it is.
fn with_bar(folder: &NodeFolder, request: Request) -> Result<serde_json::Value, Failure> {
    let (bar, answer) = with_bar_of(|progress| start::ask(folder, request, progress));
    bar.finish_and_clear();
    answer
}

/// Shows a person how far some work is; the bar is still there.
fn with_bar_of<T>(work: impl FnOnce(&mut dyn FnMut(&str)) -> T) -> (ProgressBar, T) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let done = work(&mut |progress: &str| bar.set_message(progress.to_owned()));
    (bar, done)
}

/// Bytes that went in the time that an answer tells.
fn rate(bytes: u64, answer: &serde_json::Value) -> String {
    let seconds = answer["seconds"].as_f64().unwrap_or_default();
    format!("{} in {seconds:.1} s ({}/s)", Bytes(bytes), Bytes((bytes as f64 / seconds.max(1e-3)) as u64))
}

/// Whether a path ends in `.` or `..`, which [`Path`] does not tell: what has no name of its own there.
fn is_dot(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    matches!(bytes[..end].rsplit(|byte| *byte == b'/').next(), Some(b"." | b".."))
}

/// A number in an answer of the daemon; 0 where there is none.
fn number(value: &serde_json::Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or_default()
}

/// A text in an answer of the daemon; empty where there is none.
fn text<'a>(value: &'a serde_json::Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default()
}

/// Writes to standard error, where standard output is for something else.
fn remark_plain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a passing remark, for a person who waits.
fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "hydrafs: {text}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::CommandLine::command().debug_assert();
    }
}
