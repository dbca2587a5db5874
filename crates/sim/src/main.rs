//! `sim`: replays one seed, runs a range of them, or goes on until told to stop.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use platform::task::parallel;
use sim::{Failure, Findings, Plan, Summary};

/// Runs the file system on a simulated machine and looks for broken promises.
///
/// Without --plan each seed has a plan of its own.
#[derive(Parser)]
#[command(
    name = "sim",
    after_help = "Examples:\n  sim --seed 17 --verbose\n  sim --seeds 0..2000\n  sim --soak --seconds 3600 --plan power\n  sim --damage 10000"
)]
struct Arguments {
    /// Replay this seed.
    #[arg(long, conflicts_with_all = ["seeds", "soak"])]
    seed: Option<u64>,
    /// Run these seeds: FIRST..END, without END.
    #[arg(long, value_parser = parse_range, conflicts_with = "soak")]
    seeds: Option<(u64, u64)>,
    /// Damage so many things at rest, one at a time, on images from --seed on (0 if not given).
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["seeds", "soak", "plan"])]
    damage: Option<u64>,
    /// Run new seeds until one fails, or until told to stop.
    #[arg(long)]
    soak: bool,
    /// Stop a soak after this time.
    #[arg(long, requires = "soak")]
    seconds: Option<u64>,
    /// Run all seeds under this plan.
    #[arg(long, value_parser = parse_plan)]
    plan: Option<Plan>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Print every operation.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let failed = match (arguments.seed, arguments.seeds) {
        (first, _) if arguments.damage.is_some() => {
            run_damage(first.unwrap_or(0), arguments.damage.unwrap_or_default())
        }
        (Some(seed), _) => run_range(&arguments, seed, seed + 1),
        (None, Some((first, end))) => run_range(&arguments, first, end),
        (None, None) if arguments.soak => soak(&arguments),
        (None, None) => run_range(&arguments, 0, 200),
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// After so many failures there is something else to do than to go on.
const DAMAGED_FAILURES_MAX: usize = 100;
/// Images that are damaged side by side.
const DAMAGED_IMAGES: u64 = 8;
/// Seeds that run side by side before the rate is printed.
const BATCH: u64 = 50;

/// Runs seeds on all cores. Gives the number of those that failed.
fn run_range(arguments: &Arguments, first: u64, end: u64) -> u64 {
    let clock = platform::real::platform().clock;
    let (mut total, mut failed, mut done) = (Summary::default(), 0, 0);
    for start in (first..end).step_by(usize::try_from(BATCH).unwrap_or(1)) {
        let batch = run_batch(arguments, start, end.min(start + BATCH), &mut total);
        failed += batch;
        done += end.min(start + BATCH) - start;
        if batch > 0 && !arguments.keep_going {
            break;
        }
    }
    let seconds = clock.elapsed().as_secs_f64();
    println!("{done} seeds, {failed} failed, {:.1} seeds/s in {seconds:.1} s", done as f64 / seconds);
    println!("{total}");
    failed
}

fn run_batch(arguments: &Arguments, first: u64, end: u64, total: &mut Summary) -> u64 {
    let seeds: Vec<u64> = (first..end).collect();
    let tasks = platform::real::platform().tasks;
    let results: Vec<Result<Summary, Box<Failure>>> = parallel(&tasks, seeds, |seed| {
        let plan = arguments.plan.unwrap_or_else(|| Plan::of(seed));
        sim::run(seed, &plan, arguments.verbose)
    });
    let mut failed = 0;
    for result in results {
        match result {
            Ok(summary) => total.add(&summary),
            Err(failure) => {
                failed += 1;
                println!("\n{failure}\n");
            }
        }
    }
    failed
}

/// Gives the number of damages that were not dealt with as they should be.
fn run_damage(first: u64, count: u64) -> u64 {
    let tasks = platform::real::platform().tasks;
    let (mut total, mut next) = (Findings::default(), first);
    while total.damaged < count && total.failures.len() < DAMAGED_FAILURES_MAX {
        let images = (next..next + DAMAGED_IMAGES).map(|seed| (seed, sim::plan_of(seed))).collect();
        next += DAMAGED_IMAGES;
        for findings in parallel(&tasks, images, sim::damage) {
            match findings {
                Ok(findings) => total.add(findings),
                Err(what) => total.failures.push(what),
            }
        }
        println!("{total}");
    }
    for failure in &total.failures {
        println!("{failure}");
    }
    total.failures.len() as u64
}

fn soak(arguments: &Arguments) -> u64 {
    let platform = platform::real::platform();
    let mut bytes = [0; 8];
    platform.chance.fill(&mut bytes);
    // Below 2^40, so that a person can type one.
    let next = AtomicU64::new(u64::from_le_bytes(bytes) >> 24);
    let (mut total, mut failed, mut done) = (Summary::default(), 0, 0);
    println!("from seed {}; end with Ctrl-C", next.load(Ordering::Relaxed));
    loop {
        let first = next.fetch_add(BATCH, Ordering::Relaxed);
        failed += run_batch(arguments, first, first + BATCH, &mut total);
        done += BATCH;
        let seconds = platform.clock.elapsed().as_secs_f64();
        println!("{done} seeds, {failed} failed, {:.1} seeds/s, {} changes", done as f64 / seconds, total.changes);
        let is_over = arguments.seconds.is_some_and(|limit| seconds >= limit as f64);
        if is_over || (failed > 0 && !arguments.keep_going) {
            println!("{total}");
            return failed;
        }
    }
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    match parsed {
        Some((first, end)) if first < end => Ok((first, end)),
        _ => Err(format!("\"{text}\" is no range of seeds: expected FIRST..END, such as 0..2000")),
    }
}

fn parse_plan(text: &str) -> Result<Plan, String> {
    Plan::find(text).ok_or_else(|| {
        let names: Vec<String> = Plan::all().iter().map(|plan| format!("{} ({})", plan.name, plan.about)).collect();
        format!("there is no plan \"{text}\"; there are: {}", names.join(", "))
    })
}
