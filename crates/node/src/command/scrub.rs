//! `hydrafs scrub`: reads what is stored again, so that damage is found while there is something to mend it with.

use std::path::PathBuf;
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::{check_share, number, with_bar};
use crate::config;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::moment;
use crate::node_folder::NodeFolder;

/// Read what is stored again and verify it, what was not checked for longest first. A node that is open does it by itself.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs scrub --dry-run ./node            say how much there is to read, and how old the last check is\n  \
    hydrafs scrub ./node                      read everything, with the share of the time that the settings give it\n  \
    hydrafs scrub --share 100 ./node          as fast as it goes\n  \
    hydrafs scrub --older-than \"7 d\" ./node   only what was not checked for a week\n\n\
    Changes nothing; what is damaged is named, and `hydrafs fsck --deep --repair` says what can be done.\n\
    Exit code: 0 if all that was read is whole; 1 if something is damaged.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Only say what would be read.
    #[arg(long)]
    dry_run: bool,
    /// Only packs whose last check is at least as old: \"7 d\", \"12 h\".
    #[arg(long, value_name = "TIME", default_value = "0 s")]
    older_than: String,
    /// Percentage of the time that it may take; the rest belongs to who uses the node. Default: `storage.background_share`.
    #[arg(long, value_name = "PERCENT")]
    share: Option<u8>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let older_than = config::duration(&arguments.older_than, 0, u64::MAX)
        .map_err(|expected| Failure::new("cannot scrub the node", expected).place(&arguments.older_than))?;
    check_share(arguments.share, "cannot scrub the node")?;
    let folder = NodeFolder::open(&arguments.node)?;
    let Arguments { dry_run, share, .. } = *arguments;
    let answer = with_bar(&folder, Request::Scrub { dry_run, older_than_seconds: older_than.as_secs(), share })?;
    if arguments.json {
        super::say_json(&answer);
    } else {
        lines(&answer).iter().for_each(super::say);
    }
    let is_damaged = number(&answer, "/status/damaged_packs") > 0;
    Ok(if is_damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn lines(answer: &Value) -> Vec<String> {
    let bytes = |name: &str| Bytes(number(answer, name));
    let mut lines = Vec::new();
    if answer["dry_run"] == json!(true) {
        let packs = number(answer, "/planned_packs");
        lines.push(format!("would read {} in {packs} packs", bytes("/planned_bytes")));
    } else {
        let seconds = answer["seconds"].as_f64().unwrap_or_default();
        let (packs, chunks) = (number(answer, "/packs"), number(answer, "/chunks"));
        lines.push(format!("read {} in {packs} packs, {chunks} chunks, in {seconds:.1} s", bytes("/bytes")));
        if answer["complete"] != json!(true) {
            lines.push("ended early: the node was closed; the next scrub goes on where this one ended".to_owned());
        }
        let mended = answer["mended"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.extend(mended.map(|problem| format!("MENDED: {problem}")));
        let problems = answer["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.extend(problems.map(|problem| format!("DAMAGED: {problem}")));
        if let further @ 1.. = number(answer, "/further") {
            lines.push(format!("DAMAGED: {further} more"));
        }
    }
    lines.push(age(&answer["status"]));
    match number(answer, "/status/damaged_packs") {
        0 => {}
        packs => lines
            .push(format!("{packs} packs are damaged; `hydrafs fsck --deep --repair --dry-run` says what can be done")),
    }
    lines
}

/// How old the last check of what is stored is, in words.
pub(super) fn age(status: &Value) -> String {
    let known = match number(status, "/oldest_seconds") {
        0..60 => "every byte was written or checked within the last minute".to_owned(),
        oldest => format!("every byte was written or checked within the last {}", moment::span(oldest)),
    };
    match number(status, "/unknown_packs") {
        0 => known,
        packs => format!(
            "of {} (packs: {packs}) nobody knows when it was checked; of the rest {known}",
            Bytes(number(status, "/unknown_bytes"))
        ),
    }
}
