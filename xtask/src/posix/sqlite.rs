//! SQLite in WAL mode: several writers and a reader, clients killed in the middle, the books always balanced.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Place;
use crate::program::Program;
use crate::random::Random;
use crate::tally::End;
use crate::{interrupt, text, tools};

const ACCOUNTS: u64 = 1000;
const TOTAL: u64 = ACCOUNTS * 100;
/// At a time; SQLite lets them wait for each other.
const WRITERS: usize = 3;
/// Transactions of one client, most of which are killed before that.
const TRANSACTIONS: u64 = 400;

pub(super) fn torture(place: &Place) -> Result<End> {
    if !tools::has("sqlite3") {
        return Ok(End::Skipped("sqlite3 is not installed; `scripts/setup posix` does it".to_owned()));
    }
    let database = place.dir.join("bank.db");
    let ask = |sql: &str| {
        Program::new("sqlite3").args(["-bail", "-batch", "-cmd", ".timeout 60000"]).arg(&database).arg(sql).output()
    };
    ask(&format!(
        "PRAGMA journal_mode=WAL; CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, note TEXT);
         CREATE TABLE entry (id INTEGER PRIMARY KEY, source INTEGER, target INTEGER, amount INTEGER, note TEXT);
         CREATE INDEX by_source ON entry (source, amount); CREATE INDEX by_target ON entry (target, amount);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {}) INSERT INTO account SELECT i, 100, hex(randomblob(50)) FROM n;",
        ACCOUNTS - 1
    ))?;
    let time = Duration::from_secs(if place.is_quick { 6 } else { 120 });
    let (started, mut random, mut killed) = (Instant::now(), Random::new(place.seed), 0);
    while started.elapsed() < time {
        killed += clients(place, &mut random)?;
        judge(&ask)?;
    }
    let entries = ask("PRAGMA wal_checkpoint(TRUNCATE); VACUUM; PRAGMA integrity_check; SELECT count(*) FROM entry;")?;
    if !entries.contains("ok") {
        bail!("after VACUUM: {entries}");
    }
    judge(&ask)?;
    let count: u64 = entries.lines().last().and_then(|line| line.parse().ok()).context("no count of entries")?;
    if count == 0 {
        bail!("no transaction went through");
    }
    Ok(End::Passed(format!(
        "{} transactions, {killed} clients killed, integrity_check ok each time",
        text::count(count)
    )))
}

/// Starts writers with a script each, and kills them at a moment of chance. How many did not end by themselves.
fn clients(place: &Place, random: &mut Random) -> Result<u64> {
    let mut children = Vec::new();
    for writer in 0..WRITERS {
        let program = Program::new("sqlite3").args(["-bail", "-batch"]).arg(place.dir.join("bank.db"));
        let log = fs::File::options().append(true).open(&place.log)?;
        let mut child = program.start(Stdio::piped(), Stdio::null(), log.into())?;
        let mut input = child.inner.stdin.take().expect("asked to be a pipe");
        let script = script(random, writer as u64);
        // A client that is killed does not read its script to the end.
        let feeder = std::thread::spawn(move || input.write_all(script.as_bytes()));
        children.push((child, feeder));
    }
    interrupt::sleep(Duration::from_millis(random.between(100, 1500)))?;
    let mut killed = 0;
    for (mut child, feeder) in children {
        match child.inner.try_wait()? {
            Some(status) if !status.success() => bail!("a client failed with {status}; its words are in the log"),
            Some(_) => drop(child),
            None => {
                child.kill();
                killed += 1;
            }
        }
        let _ = feeder.join();
    }
    Ok(killed)
}

fn script(random: &mut Random, writer: u64) -> String {
    let mut script = format!(
        "PRAGMA busy_timeout=60000; PRAGMA synchronous={};\n",
        ["NORMAL", "FULL", "EXTRA"][writer as usize % 3]
    );
    for _ in 0..TRANSACTIONS {
        let (source, target, amount) = (random.below(ACCOUNTS), random.below(ACCOUNTS), random.below(50));
        script += &format!(
            "BEGIN IMMEDIATE; UPDATE account SET balance = balance - {amount}, note = hex(randomblob({})) WHERE id = {source}; \
             UPDATE account SET balance = balance + {amount} WHERE id = {target}; \
             INSERT INTO entry (source, target, amount, note) VALUES ({source}, {target}, {amount}, hex(randomblob(100))); {};\n",
            random.below(200),
            if random.one_in(20) { "ROLLBACK" } else { "COMMIT" },
        );
    }
    script
}

/// Nothing is lost between accounts, and each balance is what its entries say.
fn judge(ask: &impl Fn(&str) -> Result<String>) -> Result<()> {
    let answer = ask("PRAGMA integrity_check; SELECT sum(balance) FROM account;
         SELECT count(*) FROM account a WHERE balance != 100
           - (SELECT coalesce(sum(amount), 0) FROM entry WHERE source = a.id)
           + (SELECT coalesce(sum(amount), 0) FROM entry WHERE target = a.id);")?;
    let lines: Vec<&str> = answer.lines().collect();
    if lines != ["ok", &TOTAL.to_string(), "0"] {
        bail!("the books are wrong: integrity, sum and wrong accounts are {lines:?}, expected ok, {TOTAL}, 0");
    }
    Ok(())
}
