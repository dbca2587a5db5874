//! The project's own tools: `cargo xtask VERB`. The Makefile calls them; so can you.
//!
//! ```text
//! demo, check, soak         what make run, make test and make soak do
//! posix, kill, bench        the mount under suites, under kill -9, beside ext4
//! fuzz                      damaged bytes for every decoder, for longer than `cargo test`
//! tidy                      rules that the compiler does not know, also run by `cargo test`
//!    │ stand on
//! volume                    a node with a mount that is taken away again whatever happens
//! tree, program, tools      trees of files compared, programs run and ended, things built and installed
//! interrupt, random, text   Ctrl-C, numbers from a seed, units and tables
//! ```
//!
//! Truths kept by all of it: every process and mount that was made is ended by its own id, also after an error, a panic or Ctrl-C;
//! a step that did not run says so and why, and never counts as passed.
//!
//! Not here: the simulator (`sim`), which needs no machine.
#![allow(clippy::disallowed_methods, reason = "tools run on the real machine: `platform` is what they test")]

mod random;
mod text;

mod interrupt;
mod machine;
mod program;
mod tally;
mod tree;

mod tools;
mod volume;

mod bench;
mod demo;
mod fuzz;
mod kill;
mod posix;
mod tidy;

mod check;
mod soak;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own tools.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Demo(demo::Arguments),
    Test(check::Arguments),
    Posix(posix::Arguments),
    Kill(kill::Arguments),
    Soak(soak::Arguments),
    Fuzz(fuzz::Arguments),
    Bench(bench::Arguments),
    Tidy(tidy::Arguments),
}

fn main() -> ExitCode {
    interrupt::watch();
    let result = match CommandLine::parse().verb {
        Verb::Demo(arguments) => demo::run(&arguments),
        Verb::Test(arguments) => check::run(&arguments),
        Verb::Posix(arguments) => posix::run(&arguments),
        Verb::Kill(arguments) => kill::run(&arguments),
        Verb::Soak(arguments) => soak::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Tidy(arguments) => tidy::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::CommandLine::command().debug_assert();
    }
}
