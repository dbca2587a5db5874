//! The simulator: a whole file system on simulated disks from one seed, with clients, faults and an oracle.
//!
//! [`run`] makes a machine, formats a node on its disks, and lets it live several times. In each life a few clients work at once, each in a
//! directory of its own beside an exact model of it; a keeper takes and compares snapshots; a nemesis fills disks and sets the clock.
//! A life ends by a close, the death of the process, or a power cut at any operation of a disk, and what the next life finds is
//! compared with what was promised. Everything follows from the seed and the plan: the same two give the same
//! steps, to the last operation of a disk.
//!
//! Layers: `random`, `content`, `model` (what a directory is), `history` (what it was), `plan` (what goes wrong), `tree` (what is there),
//! `oracle` (what may be there: the promises ), `shared`, `client` and `keeper` (who works), `remedies` (who repairs), `run` (lives), `damage` (what a rotten disk may do).
//!
//! Not here: the simulated world (`platform::sim`), tests of single functions (each crate's own), FUSE, several nodes.
#![forbid(unsafe_code)]

mod content;
mod failure;
mod random;

mod model;

mod history;
mod plan;
mod tree;

mod oracle;

mod shared;

mod client;
mod keeper;
mod remedies;

mod run;

mod damage;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use damage::{Findings, damage, plan_of};
pub use failure::{Failure, Summary};
pub use plan::{Plan, Sabotage, Trouble};

/// Runs a seed under a plan.
///
/// # Errors
/// The first promise that was not kept. A panic is one.
pub fn run(seed: u64, plan: &Plan, is_verbose: bool) -> Result<Summary, Box<Failure>> {
    let mut run = run::Run::new(seed, *plan, is_verbose);
    let shared = run.shared.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| run.go()));
    let what = match outcome {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(what)) => what,
        Err(panic) => format!("panic: {}", words(panic.as_ref())),
    };
    let history = shared.log_about(&what);
    Err(Box::new(Failure { seed, plan: plan.name, life: run.life, what, history }))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
