//! Lists of operations against the model, shrunk to the shortest that fails. What a seed does in a long history, a list does in a
//! few steps that a person can read: a step's number chooses the operation, its seed the details.
//!
//! `PROPTEST_CASES=10000 cargo test -p sim lists` tries more.

use std::sync::Arc;
use std::time::Duration;

use file::FileSystem;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, proptest};
use proptest::{collection, prop_oneof};

use super::{Checked, End, Run};
use crate::client::{Client, OPERATIONS};
use crate::keeper::{KEEPINGS, Keeper};
use crate::plan::Plan;
use crate::random::Random;
use crate::shared::Stop;

/// Lists in a plain test run.
const CASES: u32 = 25;

#[derive(Clone, Debug)]
enum Step {
    /// Of a client: which, and its details.
    Operation(u64, u64),
    /// Of the keeper: snapshots, commits, reclaims, checks.
    Keeping(u64, u64),
    /// The background tasks work for so many milliseconds.
    Pause(u64),
    /// A clean end, and the next life.
    Close,
    /// The process dies.
    Crash,
    /// The power goes.
    PowerOff,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..OPERATIONS, any::<u64>()).prop_map(|(number, seed)| Step::Operation(number, seed)),
        4 => (0..KEEPINGS, any::<u64>()).prop_map(|(number, seed)| Step::Keeping(number, seed)),
        2 => (0..6000_u64).prop_map(Step::Pause),
        1 => Just(Step::Close),
        1 => Just(Step::Crash),
        1 => Just(Step::PowerOff),
    ]
}

impl Run {
    fn follow(&mut self, list: &[Step]) -> Checked {
        self.clients = 1;
        self.format()?;
        let mut system = self.next_life()?;
        for step in list.iter().chain([&Step::Close]) {
            self.note(&format!("{step:?}"));
            match *step {
                Step::Operation(number, seed) => {
                    let mut client = self.client(&system, seed);
                    self.expect(client.perform(number))?;
                }
                Step::Keeping(number, seed) => {
                    let (shared, random) = (self.shared.clone(), Random::stream(seed, "keeper"));
                    let mut keeper = Keeper { system: system.clone(), shared, random };
                    self.expect(keeper.perform(number))?;
                }
                Step::Pause(ms) => self.wait(self.world.platform().tasks.sleep(Duration::from_millis(ms)))?,
                Step::Close => {
                    self.close(&system)?;
                    self.end(End::Close, system);
                    system = self.next_life()?;
                }
                Step::Crash => {
                    self.end(End::Crash, system);
                    system = self.next_life()?;
                }
                Step::PowerOff => {
                    self.end(End::PowerOff, system);
                    system = self.next_life()?;
                }
            }
        }
        self.check(&system)
    }

    fn client(&self, system: &Arc<FileSystem>, seed: u64) -> Client {
        Client {
            number: 0,
            system: system.clone(),
            shared: self.shared.clone(),
            random: Random::stream(seed, "client"),
            file_bytes_max: 500_000,
            pause_one_in: u64::MAX,
        }
    }

    fn next_life(&mut self) -> Result<Arc<FileSystem>, String> {
        self.open_and_verify()?.ok_or_else(|| "whole disks were refused".to_owned())
    }

    fn expect(&self, step: impl Future<Output = Result<(), Stop>>) -> Checked {
        match self.wait(step)? {
            Ok(()) => Ok(()),
            Err(Stop::Over) => Err("a disk without faults failed".to_owned()),
            Err(Stop::Wrong(what)) => Err(what),
        }
    }
}

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { CASES };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 5000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_list_of_operations_does_what_the_model_says(seed in any::<u64>(), list in collection::vec(any_step(), 1..80)) {
        let plan = Plan::find("calm").expect("it is the base of all");
        let mut run = Run::new(seed, plan, false);
        let outcome = run.follow(&list);
        prop_assert!(outcome.is_ok(), "{}\n{}", outcome.unwrap_err(), run.shared.log_about("").join("\n"));
    }
}

/// The test can fail: a write that did not happen is found.
#[test]
fn a_lie_is_found() {
    let sabotaged =
        Plan { sabotage: Some(crate::Sabotage::ForgetWrites), ..Plan::find("calm").expect("it is the base of all") };
    let create_write_look =
        |seed| vec![Step::Operation(0, seed), Step::Operation(60, seed), Step::Operation(141, seed)];
    let found =
        (0..100).filter(|seed| Run::new(1, sabotaged, false).follow(&create_write_look(*seed)).is_err()).count();
    assert!(found > 0, "one write in six is forgotten");
}
