//! `hydrafs completion`: a script that teaches a shell our command line.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::CommandLine;
use crate::failure::Failure;

/// Print a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs completion bash > /usr/share/bash-completion/completions/hydrafs\n  \
    hydrafs completion fish > ~/.config/fish/completions/hydrafs.fish")]
pub(super) struct Arguments {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut CommandLine::command(), "hydrafs", &mut script);
    super::say(String::from_utf8_lossy(&script).trim_end());
    Ok(ExitCode::SUCCESS)
}
