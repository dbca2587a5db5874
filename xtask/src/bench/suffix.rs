//! How long a recovery takes: by the length of the journal's suffix, which it should follow, and by what is stored, which it should not.
//!
//! Small writes, each synced, and no commit between: then SIGKILL. The length is what `hydrafs status` says just before, so that a commit
//! that came all the same shows.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use super::report::Curve;
use super::{Line, Run, Unit, node};
use crate::interrupt;
use crate::random::Random;

const MIB: u64 = 1 << 20;
/// What a write puts into the journal, but for what names it there.
const WRITE_BYTES: u64 = 4096;
/// Files that are written by turns.
const FILES: u64 = 64;

const fn line(name: &'static str) -> Line {
    Line {
        name,
        unit: Unit::Milliseconds,
        terms: "kill -9 after writes of 4 KiB, each synced; caches dropped; until the first stat",
    }
}

/// MiB stored, MiB written and synced, and the lines. A write that is synced alone takes whole pages of the journal.
const SIZES: [(u64, [(u64, Line); 4]); 2] = [
    (
        1 << 10,
        [
            (0, line("recovery with 1 GiB stored and an empty journal")),
            (2, line("recovery with 1 GiB stored and 2 MiB of synced writes")),
            (8, line("recovery with 1 GiB stored and 8 MiB of synced writes")),
            (32, line("recovery with 1 GiB stored and 32 MiB of synced writes")),
        ],
    ),
    (
        8 << 10,
        [
            (0, line("recovery with 8 GiB stored and an empty journal")),
            (2, line("recovery with 8 GiB stored and 2 MiB of synced writes")),
            (8, line("recovery with 8 GiB stored and 8 MiB of synced writes")),
            (32, line("recovery with 8 GiB stored and 32 MiB of synced writes")),
        ],
    ),
];

/// The same node grows from the one size to the other.
pub(super) fn recovery(run: &mut Run<'_>) -> Result<()> {
    run.sides.renew_with(&[("durability", "commit_interval", "1 h")])?;
    fs::create_dir(&run.dir)?;
    let name = run.dir.file_name().context("the run's folder has a name")?.to_string_lossy().into_owned();
    let (mut random, mut stored) = (Random::new(Random::fresh_seed()), 0);
    for (mebibytes, suffixes) in &SIZES {
        while stored < run.scaled(*mebibytes) {
            fs::write(run.dir.join(format!("file-{stored}")), node::fresh(&mut random, MIB as usize))?;
            stored += 1;
        }
        for _ in 0..run.runs {
            for (suffix, line) in suffixes {
                interrupt::check()?;
                // What was written before is committed.
                node::restart(run)?;
                write_suffix(run, run.scaled(suffix * MIB) / WRITE_BYTES, &mut random)?;
                let status = run.sides.volume().status()?;
                let bytes =
                    status["journal"]["bytes"].as_u64().context("`hydrafs status` tells no length of the journal")?;
                run.sides.volume().kill()?;
                run.sides.drop_caches()?;
                let time = run.sides.volume().mount_until_stat(&name)?.as_secs_f64() * 1e3;
                run.record(line, time);
                let series = format!("{} stored", crate::text::bytes(run.scaled(*mebibytes) * MIB));
                run.report.point(Curve::Recovery, &series, bytes as f64 / MIB as f64, time);
            }
        }
    }
    Ok(())
}

fn write_suffix(run: &Run<'_>, writes: u64, random: &mut Random) -> Result<()> {
    let open = |number| File::create(run.dir.join(format!("journaled-{number}")));
    let files = (0..FILES.min(writes)).map(open).collect::<std::io::Result<Vec<File>>>()?;
    for number in 0..writes {
        let file = &files[(number % FILES) as usize];
        file.write_all_at(&node::fresh(random, WRITE_BYTES as usize), number / FILES * WRITE_BYTES)?;
        file.sync_data()?;
    }
    Ok(())
}
