//! `make soak`: simulated crashes, damaged images, many threads in few files, and real kills by turns, another load in each, with fresh seeds, until
//! told to stop or until one fails.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::kill::{self, Kind};
use crate::program::Program;
use crate::random::Random;
use crate::tools::{self, Profile};
use crate::{interrupt, volume};

/// Simulate crashes and kill daemons until told to stop (Ctrl-C).
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Seconds of simulation in each turn.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Kills in each turn.
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    /// Turns; 0: until told to stop.
    #[arg(long, default_value_t = 0)]
    turns: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let built =
        tools::cargo().args(["build", "--release", "--quiet", "--package", "sim", "--package", "lab"]).status()?;
    if !built.success() {
        bail!("sim or lab does not build; see the compiler's words above");
    }
    let binary = tools::hydrafs(Profile::Release)?;
    let mut turn = 0;
    while (arguments.turns == 0 || turn < arguments.turns) && !interrupt::is_asked() {
        turn += 1;
        println!("── turn {turn}: sim for {} s", arguments.seconds);
        let sim = Program::new(tools::target().join("release/sim"))
            .args(["--soak", "--seconds"])
            .arg(arguments.seconds.to_string());
        let status = sim.limit(Duration::from_secs(arguments.seconds + 600)).status();
        if interrupt::is_asked() {
            break;
        }
        if !status?.success() {
            bail!("a simulated crash broke a promise: its seed is above; `cargo run -p sim -- --seed N` replays it");
        }
        damage(arguments.seconds)?;
        if interrupt::is_asked() {
            break;
        }
        threads((arguments.seconds / 5).max(1))?;
        if interrupt::is_asked() {
            break;
        }
        if let Err(why) = volume::can_mount() {
            println!("── turn {turn}: no kills: {why}");
            continue;
        }
        let kind = Kind::TURNS[(turn as usize - 1) % Kind::TURNS.len()];
        if let Some(program) = kind.lacks() {
            println!("── turn {turn}: no kills of {}: {program} is not here", kind.words());
            continue;
        }
        let seed = Random::fresh_seed();
        println!("── turn {turn}: kill {} with seed {seed}", kind.words());
        match kill::torture(&binary, kind, arguments.rounds, seed) {
            Ok(survived) => println!("   {}", survived.words()),
            Err(_) if interrupt::is_asked() => break,
            Err(error) => return Err(error),
        }
    }
    println!("soak: ended after {turn} turns; nothing failed");
    Ok(ExitCode::SUCCESS)
}

/// Images of the simulator damaged so many times, a thing at a time.
fn damage(count: u64) -> Result<()> {
    let seed = Random::fresh_seed();
    println!("   {count} damages of images from seed {seed}");
    let sim = Program::new(tools::target().join("release/sim"));
    let sim = sim.args(["--damage".to_owned(), count.to_string(), "--seed".to_owned(), seed.to_string()]);
    let status = sim.limit(Duration::from_secs(count + 600)).status();
    if !interrupt::is_asked() && !status?.success() {
        bail!("damage was not found, or read: what was wrong is above");
    }
    Ok(())
}

/// Many threads in few files, in a folder of their own, which is kept if one did not see what it wrote.
fn threads(seconds: u64) -> Result<()> {
    let seed = Random::fresh_seed();
    let folder = tools::folder(&format!("threads-{seed}"))?;
    println!("   threads in few files for {seconds} s with seed {seed}");
    let lab = Program::new(tools::target().join("release/lab")).arg("threads").arg(&folder);
    let lab = lab.args(["--seconds".to_owned(), seconds.to_string(), "--seed".to_owned(), seed.to_string()]);
    let status = lab.limit(Duration::from_secs(seconds + 600)).status();
    if !interrupt::is_asked() && !status?.success() {
        bail!("a thread did not see what it wrote: what was wrong is above, and the node is in {}", folder.display());
    }
    volume::clear(&folder)
}
