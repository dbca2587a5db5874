//! `cargo xtask fuzz`: the fuzz targets of all crates for longer than `cargo test` runs them, with fresh seeds, a round after the other.
//!
//! A failure keeps its input below `crates/<crate>/fuzz/<target>`; from then on every test run tries it.
//! Not here: the targets (each crate's tests), how inputs are damaged (`crates/fuzz`).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::random::Random;
use crate::{interrupt, tools};

/// Crates with targets.
const CRATES: [&str; 4] = ["store", "file", "fuse", "node"];
/// Names of the tests that run targets: of structures, and of whole nodes and trees.
const TESTS: [&str; 2] = ["fuzz", "hostile"];
/// How many times as much a round does as a plain test run.
const TIMES: u32 = 10;

/// Fuzz every decoder, and nodes and trees that lie.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Only this target, such as `superblock` or `tree-inode`; the names are the folders below crates/*/fuzz.
    target: Option<String>,
    /// For so long, in whole rounds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first round's seed; the next ones count on.
    #[arg(long)]
    seed: Option<u64>,
    /// Write the corpora: samples, and the shortest input for each refusal.
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let first = arguments.seed.unwrap_or_else(Random::fresh_seed);
    let (start, mut seed) = (Instant::now(), first);
    loop {
        println!("── seed {seed}");
        for package in CRATES {
            let program = tools::cargo().args(["test", "--quiet", "--lib", "--package", package, "--", "--nocapture"]);
            let mut program =
                program.args(TESTS).env("FUZZ_SEED", seed.to_string()).env("FUZZ_TIMES", TIMES.to_string());
            if let Some(target) = &arguments.target {
                program = program.env("FUZZ_TARGET", target);
            }
            if arguments.keep {
                program = program.env("FUZZ_KEEP", "1");
            }
            let status = program.status()?;
            if interrupt::is_asked() {
                return Ok(ExitCode::SUCCESS);
            }
            if !status.success() {
                bail!("a target of {package} failed with seed {seed}; its input is kept below crates/{package}/fuzz");
            }
        }
        seed = seed.wrapping_add(1);
        if start.elapsed() >= Duration::from_secs(arguments.seconds) {
            println!("fuzz: seeds {first} to {}; nothing failed", seed.wrapping_sub(1));
            return Ok(ExitCode::SUCCESS);
        }
    }
}
