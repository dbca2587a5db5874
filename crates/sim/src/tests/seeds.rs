//! Seeds: those that found something first, then a few hundred more, and the proof that the oracle can fail.
//!
//! - a seed that found a defect is replayed for ever, with a line on what it found
//! - every plan runs on seeds of its own
//! - the same seed makes the same steps
//! - reclaim beside others on the same files: `reclaim.rs`
//! - lies are found out: a write, a sync, a removal, a reclaim that did not happen, and a disk that loses writes

use std::sync::Arc;

use crate::{Failure, Plan, Sabotage, Summary, run};
use platform::task::{Tasks, parallel};

/// Seeds that show a defect when its cure is taken away, by plan. A seed means the same only as long as the workload and the file
/// layer take the same steps: who changes either much looks for new ones, with the cure undone.
const FOUND: &[(&str, u64)] = &[
    // `put_in_order`: the footer of a pack whose sync had failed was read from the page cache, and synced without being written again.
    ("errors", 4665),
    // `stream_bytes`: with a write buffer below 1 MiB a stream was flushed in a circle that cut no chunk off and gave no room.
    ("power", 1),
    ("power", 2),
    // `rename`: of `d/x` over `d` locked the state of `d` twice, and the file system stood still.
    ("calm", 6),
    ("calm", 9),
    // `local_size`: a flush, then a sync, made a size local that the file had never had, when a truncate had taken the
    // kept end of a stream away.
    ("power", 457),
    // `FileError::from`: a disk that was full when the index was written made a write fail with EIO instead of ENOSPC.
    ("full", 64),
    // `check_files`: chunks on their way out of a sparse pack passed for absent.
    ("power", 216),
    // `allocate_extents`: a reservation behind data that a crash took was counted again when the file grew over it.
    ("power", 516),
    // `resize`: a truncation behind accepted data unmarked a file that had a reservation beyond its logged size; after a crash it counted twice.
    ("power", 702762),
    // `write_batch`: the index named a chunk in the newer of two packs, one of a rescue, and forgot it when that one went: nobody
    // needed it, but the pack that stayed had it still.
    ("errors", 3865),
    // `begin_for`: a commit covered frames that no life had written, and what a torn group of the life before had left followed them.
    ("power", 50132),
    // `covered`: the newest segment went, for its length was not that of this life, and an older one, which the crash before had left with frames
    // behind a gap, was asked for what came next.
    ("power", 1150010060),
    // `prepare`: segments that nobody needed were back after a power cut, and no new one had room on the full disk.
    ("full", 14487),
    // `begin_now`: frames that only a disk had which was gone for a life followed on what was read without it, when it was back.
    ("copies", 3418),
    // `agree`: of a pack that a crash had left open the header was on one of two disks, and the other was sealed as one that is to lie on one.
    ("copies", 8009),
    // `lost`: an index was made where the one header of a pack that could be read was on a disk that was missing, and believed when that was back.
    ("absences", 2_400_004_959),
    // `lower`: the index named the copy on fewer disks, for the pack with the other was short while it was made.
    ("absences", 7005),
    // `restore_copies`: what had rotted where it alone was, and nobody needed, kept its pack from being copied, for ever.
    ("copies", 6182),
    // `open_pack`: a power cut tore the table of groups off a chunk whose content was whole, and the pack was sealed so.
    ("clones", 3420),
    // `drop_hidden`: a file that was open and got a name again while its clone was pruned lost that with those that lead nowhere.
    ("clones", 3059),
    // `recover_fragments`: what the power had left of a pack that was being removed, and then rotted, passed for one that could not be mended.
    ("fragments", 325),
    // `Check::sealed`: a pack that was cut into fragments while it was checked passed for one whose files are gone.
    ("fragments", 607),
    // `snapshot_of`: a root directory that could not be read passed for one that had been removed.
    ("rot", 4637),
    // `prune`: names of a removed tree in a clone were taken from the links of a file by the pruning and by the removal, and it ended.
    ("batches", 722),
    // `refuse_clones_below`: a clone in a tree that was removed, and had not gone yet, kept the directory above from being cloned.
    ("batches", 797),
    // `check_branches`: a clone in one that was removed, and had not gone yet, passed for one without a name.
    ("batches", 21549),
    // `admit_change`: commits failed for want of room, and removals, which would have given it, failed with them.
    ("full", 219),
    // A crash while the first chunk of a pack was written in part: the file was set aside as damaged.
    ("calm", 1009),
    // `check_files` took a chunk for absent that was bad in a pack's whole file, and good in its fragments (T-3).
    ("fragments", 834_431_310_985),
    // `needless_fragments`: a fragment that had rotted and was on another disk too was neither written again nor removed.
    ("liars", 32),
    ("liars", 157),
    // `place`: an index that was made again on the disk that lied was damaged at once, and nobody found a chunk any more.
    ("liars", 2566),
    // Scrub did not read the index, and what had rotted there was met by the next opening.
    ("liars", 2627),
    // What a disk had of a pack that went on without it was taken for the pack, beside its fragments, when the index was made anew.
    ("liars", 20_000_039),
    // `Roll::go_on`: what failed to settle while a stream was flushed was asked for once more at the end, which is a panic.
    ("streams", 22000120),
    ("streams", 22000169),
    // The oracle: a file that a batch was replacing when the power went passed for the one that was to come.
    ("batches", 40007377),
    // The oracle: what a stat told of allocation after the power had gone, while it counted, passed for wrong.
    ("clock", 60004405),
    ("streams", 60005571),
    // `OpenPack::append_directory`: a pack that was found open was sealed with its footer before the end of its file.
    ("drains", 149),
    // `Index::insert_recent`: a bundle that had the content of a chunk took that one's name, and the chunk counted as absent.
    ("power", 92000298),
    // `recover_packs`: what was left of a removed pack on a disk that had been away was taken in as one that the index lacks.
    ("fragments", 92000385),
    // The oracle: what a failed removal left of a pack, where the index was lost too, counted as damage once some of its chunks verified.
    ("liars", 100_939_543_981),
    // `lies_better`: after a life without a disk, and with the index lost, a chunk lay in a pack on that disk and in one on the other. The one went
    // for the other, of which nobody had brought it back onto two.
    ("absences", 181240220657),
    // `end_orphans`: an opening that committed between the unlinked files that it ended asked for one whose clone had gone with that commit.
    ("batches", 1070000049),
    // `replay`: a spare segment that a power cut had left with holes in it was taken, and the first write into one ended the journal of a full disk.
    ("full", 3_000_108),
    // `is_better`: what a failed disk had left of a pack that was removed without it was taken in, and named in place of a copy on two disks.
    ("absences", 1_750_008_623),
    // `clone_of`, of the simulator: a clone that was to be refused, of a snapshot that was deleted meanwhile, passed for one that was made.
    ("clones", 1_770_000_567),
    // `pruned`: a removed directory that was empty and had not ended was let go of, and kept its clone from going for ever.
    ("batches", 2_300_004_625),
    // `full_on`: a file that a failed sync had left without its directory, on a disk that was good again, passed for a copy for its length.
    ("errors", 2_361_004_538),
];

/// Seeds of each plan beyond those; half for the long one. `make soak` runs fresh ones.
const SEEDS_PER_PLAN: u64 = 4;

fn tasks() -> Arc<dyn Tasks> {
    platform::real::platform().tasks
}

fn run_all(runs: Vec<(Plan, u64)>) -> Vec<Result<Summary, Box<Failure>>> {
    parallel(&tasks(), runs, |(plan, seed)| run(seed, &plan, false))
}

fn expect_all(runs: Vec<(Plan, u64)>) {
    let failures: Vec<String> =
        run_all(runs).into_iter().filter_map(Result::err).map(|failure| failure.to_string()).collect();
    assert!(failures.is_empty(), "{} seeds failed:\n\n{}", failures.len(), failures.join("\n\n"));
}

fn plan(name: &str) -> Plan {
    Plan::find(name).unwrap_or_else(|| panic!("no plan {name}"))
}

#[test]
fn seeds_that_found_something_stay_quiet() {
    expect_all(FOUND.iter().map(|(name, seed)| (plan(name), *seed)).collect());
}

#[test]
fn every_plan_keeps_every_promise() {
    let count = |plan: &Plan| match plan.name {
        "long" => SEEDS_PER_PLAN / 2,
        "hours" => SEEDS_PER_PLAN / 4,
        _ => SEEDS_PER_PLAN,
    };
    let seeds = |plan: &'static Plan| (1000..1000 + count(plan)).map(|seed| (*plan, seed));
    expect_all(Plan::all().iter().flat_map(seeds).collect());
}

#[test]
fn the_same_seed_makes_the_same_steps() {
    for plan in Plan::all() {
        let runs = run_all(vec![(*plan, 5), (*plan, 5), (*plan, 6)]);
        let summaries: Vec<Summary> = runs.into_iter().map(|run| run.expect("a quiet seed")).collect();
        assert_eq!(summaries[0], summaries[1], "plan {}: a hidden input", plan.name);
        assert_ne!(summaries[0].trace, summaries[2].trace, "plan {}: the seed decides", plan.name);
    }
}

#[test]
fn lies_are_found_out() {
    for sabotage in [
        Sabotage::ForgetWrites,
        Sabotage::SkipSyncs,
        Sabotage::ForgetRemovals,
        Sabotage::TearUnits,
        Sabotage::LoseWrites,
        Sabotage::KeepDead,
    ] {
        let under = if sabotage == Sabotage::TearUnits { "batches" } else { "power" };
        let lying = Plan { sabotage: Some(sabotage), ..plan(under) };
        // A few at a time: most lies are found out soon.
        let (mut asked, mut found) = (0, 0);
        while found < 3 {
            assert!(asked < 24, "{sabotage:?}: only {found} of {asked} runs noticed");
            let runs = (asked..asked + 4).map(|seed| (lying, seed)).collect();
            found += run_all(runs).into_iter().filter(Result::is_err).count();
            asked += 4;
        }
    }
}
