//! A compiler at work: sources that an editor synced are there after the crash, and a build completes and makes what they say.
//!
//! cargo syncs nothing. What it had built may be gone, and is built again; what is there must be whole (V-2, V-4).

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::{Load, Round, Verified};
use crate::program::Program;
use crate::tools;

/// Libraries, each used by the program.
const CRATES: u64 = 3;

#[derive(Debug)]
pub(super) struct Cargo {
    round: Round,
    thread: u64,
    project: PathBuf,
    /// Versions written, written and synced, and built.
    attempted: u64,
    synced: u64,
    built: u64,
}

impl Cargo {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Cargo> {
        let project = round.folder.join(format!("cargo-{thread}"));
        let made = Cargo { round: round.clone(), thread, project, attempted: 0, synced: 0, built: 0 };
        let uses: String =
            (0..CRATES).map(|number| format!("part{number} = {{ path = \"part{number}\" }}\n")).collect();
        let sum: Vec<String> = (0..CRATES).map(|number| format!("part{number}::value()")).collect();
        made.write(
            "Cargo.toml",
            &format!("[workspace]\n[package]\nname = \"whole\"\nedition = \"2024\"\n[dependencies]\n{uses}"),
        )?;
        made.write("src/main.rs", &format!("fn main() {{ println!(\"{{}}\", {}); }}\n", sum.join(" + ")))?;
        for number in 0..CRATES {
            let manifest = format!("[package]\nname = \"part{number}\"\nedition = \"2024\"\n");
            made.write(&format!("part{number}/Cargo.toml"), &manifest)?;
            made.write_part(number, 0)?;
        }
        made.build().context("the first build")?;
        Ok(made)
    }

    /// As an editor does it: the new file is synced, and renamed over the old one.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.project.join(name);
        let parent = path.parent().expect("below the project");
        fs::create_dir_all(parent)?;
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, &path)?;
        Ok(File::open(parent)?.sync_all()?)
    }

    fn write_part(&self, number: u64, version: u64) -> Result<()> {
        self.write(&format!("part{number}/src/lib.rs"), &source(number, version))
    }

    fn build(&self) -> Result<()> {
        let cargo = tools::cargo().dir(&self.project).args(["build", "--quiet", "--offline"]);
        // Not the wrappers and flags of who runs us.
        let cargo = cargo.env("CARGO_TARGET_DIR", "target").env_remove("RUSTC_WRAPPER").env_remove("RUSTFLAGS");
        cargo.limit(Duration::from_secs(120)).output().map(drop)
    }

    /// What the program that was built says.
    fn answer(&self) -> Result<u64> {
        let words = Program::new(self.project.join("target/debug/whole")).output()?;
        words.trim().parse().with_context(|| format!("the program says {words:?}"))
    }

    fn step(&mut self) -> Result<()> {
        let version = self.attempted + 1;
        self.attempted = version;
        self.write_part(version % CRATES, version)?;
        self.synced = version;
        self.round.done(self.thread, version);
        self.build()?;
        self.built = version;
        Ok(())
    }

    /// The newest version up to `last` that a part has.
    fn newest(number: u64, last: u64) -> u64 {
        (0..=last).rev().find(|version| *version == 0 || version % CRATES == number).unwrap_or(0)
    }
}

/// The source of a part, long enough that it takes some time to compile.
fn source(number: u64, version: u64) -> String {
    let functions: String = (0..200)
        .map(|index| format!("pub fn f{index}(x: u64) -> String {{ format!(\"{{x}} {index} {number}\") }}\n"))
        .collect();
    format!("pub fn value() -> u64 {{ {} }}\n{functions}", value(number, version))
}

fn value(number: u64, version: u64) -> u64 {
    1000 * version + number
}

impl Load for Cargo {
    fn name(&self) -> &str {
        "cargo"
    }

    fn run(&mut self) -> Option<String> {
        let round = self.round.clone();
        round.until_killed(|| self.step())
    }

    fn done(&self) -> u64 {
        self.built
    }

    fn verify(&self) -> Result<Verified> {
        let mut bytes = 0;
        for number in 0..CRATES {
            let path = self.project.join(format!("part{number}/src/lib.rs"));
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let may = [Cargo::newest(number, self.synced), Cargo::newest(number, self.attempted)];
            ensure!(
                may.iter().any(|version| text == source(number, *version)),
                "{} is of none of the versions {may:?} that were written last, the first of which was synced",
                path.display()
            );
            bytes += text.len() as u64;
            // An edit of after the crash: what cargo thinks of the one before is not known.
            self.write_part(number, self.attempted + 1)?;
        }
        self.build().context("a build after the crash")?;
        let (answer, expected) = (self.answer()?, (0..CRATES).map(|n| value(n, self.attempted + 1)).sum::<u64>());
        ensure!(answer == expected, "the program that was built after the crash says {answer}, expected {expected}");
        Ok(Verified { synced: self.synced, present: self.synced, bytes })
    }
}
