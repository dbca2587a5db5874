//! `hydrafs domain`: the dedup domain of a node, and the file that takes other nodes into it.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use file::Domain;
use platform::real::block_on;
use rustix::fs::{FileType, Mode, fchmod, fstat};
use serde_json::json;

use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::opening;

/// Say which dedup domain a node is of, and give its key to make other nodes of it. Nodes of one domain call equal content the same:
/// `hydrafs send` and `hydrafs receive` go between them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs domain show ./node\n  \
    hydrafs domain export ./node > key\n  \
    hydrafs init ./other --disk /disks/c --domain-of key\n\n\
    The file is a secret: who has it can tell whether a node stores a content that he knows, and can make streams that the nodes of\n\
    the domain believe. Remove it when the other node is made. A node never changes its domain.")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Say which domain a node is of, as a short name that is no secret.
    Show {
        /// The node's folder.
        node: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write the key of the domain to standard output, which is to be a file or a pipe.
    Export {
        /// The node's folder.
        node: PathBuf,
    },
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Show { node, json } => {
            let name = domain_of(&NodeFolder::open(node)?, "cannot show the dedup domain")?.name();
            if *json { super::say_json(&json!({ "domain": name })) } else { super::say(name) }
        }
        Verb::Export { node } => export(&NodeFolder::open(node)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn domain_of(folder: &NodeFolder, what: &str) -> Result<Domain, Failure> {
    let disks = folder.disks()?;
    block_on(Domain::of(&disks)).map_err(|error| opening::explain(what, folder, &error.into()))
}

fn export(folder: &NodeFolder) -> Result<(), Failure> {
    const WHAT: &str = "cannot export the dedup domain";
    let out = io::stdout();
    if out.is_terminal() {
        let mend = "send it to a file: `hydrafs domain export NODE > FILE`";
        return Err(Failure::new(WHAT, "standard output is a terminal, and the key is a secret").mend(mend));
    }
    let domain = domain_of(folder, WHAT)?;
    close_to_others(&out).map_err(|error| Failure::new(WHAT, format!("cannot close the file to others: {error}")))?;
    let mut out = out.lock();
    out.write_all(&domain.to_file()).and_then(|()| out.flush()).map_err(|error| Failure::new(WHAT, error))?;
    super::remark(&format!(
        "this is the key of the dedup domain {}: keep it secret, and remove it after use",
        domain.name()
    ));
    Ok(())
}

/// A file is its owner's alone before the key is in it.
fn close_to_others(out: &impl AsFd) -> io::Result<()> {
    let found = fstat(out)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        fchmod(out, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(())
}
