//! `hydrafs gc`: gives the room of what nobody needs any more back.

use std::path::PathBuf;
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::{check_share, number, with_bar};
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// Give back the room of what no file and no snapshot needs any more. A mounted node does it by itself when enough was removed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs gc --dry-run ./node         say what there is to gain\n  \
    hydrafs gc ./node                   do it, with the share of the time that the node's settings give it\n  \
    hydrafs gc --share 100 ./node       as fast as it goes\n  \
    hydrafs gc --thorough ./node        to the last chunk, if all of a pack's others have to be copied for it\n\n\
    Works while the node is used, and on one that no daemon has open. Exit code: 0, or 1 if some packs could not be looked at.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Copy what is needed out of every pack that holds anything that is not; else packs stay that are at least half needed.
    #[arg(long)]
    thorough: bool,
    /// Percentage of the time that it may take; the rest belongs to who uses the node. Default: `storage.background_share`.
    #[arg(long, value_name = "PERCENT")]
    share: Option<u8>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    check_share(arguments.share, "cannot give room back")?;
    let folder = NodeFolder::open(&arguments.node)?;
    let Arguments { dry_run, thorough, share, .. } = *arguments;
    let answer = with_bar(&folder, Request::Gc { dry_run, thorough, share })?;
    if arguments.json {
        super::say_json(&answer);
    } else {
        lines(&answer).iter().for_each(super::say);
    }
    let problems = answer["problems"].as_array().is_some_and(|problems| !problems.is_empty());
    Ok(if problems { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn lines(answer: &Value) -> Vec<String> {
    let is_plan = answer["dry_run"] == json!(true);
    let bytes = |name: &str| Bytes(number(answer, name));
    let (dead, sparse) = (number(answer, "/packs_dead"), number(answer, "/packs_sparse"));
    let would = |plan: &'static str, done: &'static str| if is_plan { plan } else { done };
    let open = match (is_plan, number(answer, "/packs_open")) {
        (true, 1..) => "; those that are being filled are left out of a plan",
        _ => "",
    };
    let mut lines = vec![
        format!("packs looked at     {}{open}", number(answer, "/packs_examined")),
        format!("needed by nobody    {dead}"),
        format!(
            "needed in part      {sparse}, {} of which {} copied",
            bytes("/bytes_copied"),
            would("would be", "was")
        ),
        format!("room {}     {}", would("to gain", "gained "), bytes("/bytes_freed")),
    ];
    if number(answer, "/bytes_dead_left") > 0 {
        lines.push(format!(
            "left                {} that nobody needs, in packs that are mostly needed; `--thorough` takes those too",
            bytes("/bytes_dead_left")
        ));
    }
    let problems = answer["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.extend(problems.map(|problem| format!("PROBLEM: {problem}")));
    lines.push(format!("free                {} of {}", bytes("/space/free_bytes"), bytes("/space/total_bytes")));
    lines
}
