//! `hydrafs policy`: what is asked for files and directories against the loss of disks.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use super::info::Held;
use super::number;
use crate::control::wire::Request;
use crate::failure::Failure;

/// Say on how many disks files lie, file by file or for whole directories. What is made in a directory inherits.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs policy get /mnt/photos\n  \
    hydrafs policy set --copies 3 --recursive /mnt/photos   what is there, and what will be\n  \
    hydrafs policy set --fragments 4+2 --recursive /mnt/videos   two of six disks may fail, for half as much room again\n  \
    hydrafs policy set --copies 1 /mnt/scratch              what will be made there\n  \
    hydrafs policy set --copies node /mnt/scratch           as `storage` in the settings says, again\n\n\
    More copies: content that is there is stored anew where it lies on too few disks; names, trees and the journal follow in the\n\
    background. Fewer copies: what was written before stays as it is. Content that several files share has the copies of the one that\n\
    asks for most. What was interrupted goes on in the background (RAISING in `hydrafs status`).\n\n\
    k+m fragments survive the loss of any m of their disks, as m+1 copies do. Content lies in so many copies first, and is cut into\n\
    fragments in the background. Names and trees stay in copies.")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Show what is asked for a file or directory.
    Get {
        /// A file or directory in a mount.
        path: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask for so many copies, or for fragments.
    #[command(group(clap::ArgGroup::new("what").required(true).args(["copies", "fragments"])))]
    Set {
        /// A file or directory in a mount.
        path: PathBuf,
        /// 1 to 8, each on a disk of its own; `node`: as the settings say.
        #[arg(long, value_parser = parse_copies)]
        copies: Option<Copies>,
        /// k+m: in k fragments and m of parity, each on a disk of its own, any k of which are enough.
        #[arg(long, value_name = "K+M")]
        fragments: Option<file::Erasure>,
        /// Everything below it too.
        #[arg(long)]
        recursive: bool,
    },
}

/// As many, or as the settings say.
type Copies = Option<u8>;

fn parse_copies(text: &str) -> Result<Copies, String> {
    let copies = || text.parse().ok().filter(|copies| (1..=file::COPIES_MAX).contains(copies));
    match text {
        "node" => Ok(None),
        _ => copies().map(Some).ok_or_else(|| format!("expected 1 to {}, or node", file::COPIES_MAX)),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Get { path, json } => {
            let held = Held::open(path, "cannot show the policy")?;
            let info = held.ask(&Request::Info { inode: held.inode }, super::remark);
            let info = info.map_err(|failure| failure.at(path))?;
            if *json {
                super::say_json(&json!({ "copies": info["copies"], "fragments": info["fragments"] }))
            } else {
                super::say(words(&info))
            }
        }
        Verb::Set { path, copies, fragments, recursive } => {
            let held = Held::open(path, "cannot set the policy")?;
            let fragments = fragments.map(|erasure| erasure.to_string());
            let (inode, copies, recursive) = (held.inode, copies.flatten(), *recursive);
            let request = Request::PolicySet { inode, copies, fragments, recursive };
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let answer = held.ask(&request, |progress| bar.set_message(progress.to_owned()));
            bar.finish_and_clear();
            let answer = answer.map_err(|failure| failure.at(path))?;
            let (files, chunks) = (number(&answer, "/files"), number(&answer, "/chunks_stored_anew"));
            super::say(format!("set for {files} files and directories; {chunks} chunks were stored anew"));
            let failed = number(&answer, "/failed");
            if failed > 0 {
                for problem in answer["problems"].as_array().into_iter().flatten() {
                    super::remark(problem.as_str().unwrap_or_default());
                }
                super::remark(&format!(
                    "content of {failed} of them lies on fewer disks than is asked for; it is tried again in the background (`hydrafs status`), \
                     and what cannot be read is for `hydrafs fsck`"
                ));
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is asked for a file that was described.
pub(super) fn words(info: &Value) -> String {
    if let Some(fragments) = info["fragments"].as_str() {
        return format!("{fragments} fragments");
    }
    match info["copies"].as_u64() {
        None => "as many copies as the settings say".to_owned(),
        Some(1) => "one copy".to_owned(),
        Some(copies) => format!("{copies} copies"),
    }
}
