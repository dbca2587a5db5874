//! SQLite with full synchronisation, in any of its journal modes: each transaction that was acknowledged is there after the crash,
//! and each is there whole or not at all.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, bail};

use super::client::Client;
use super::content::{self, Key};
use super::load::{Load, Round, Verified};
use crate::program::Program;

const ROW_BYTES: usize = 300;
/// A transaction writes itself into each row that is a multiple of this many before its own.
const STRIDE: u64 = 97;

/// How SQLite can undo a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Journal {
    Wal,
    Delete,
    Truncate,
    Persist,
}

impl Journal {
    pub(super) const ROLLBACK: [Journal; 3] = [Journal::Delete, Journal::Truncate, Journal::Persist];

    /// The mode, and the least `synchronous` at which SQLite itself promises that a commit survives a power cut: with DELETE it is the
    /// unlink of the journal that commits, and only EXTRA syncs the directory after it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Journal::Wal => ("WAL", "FULL"),
            Journal::Delete => ("DELETE", "EXTRA"),
            Journal::Truncate => ("TRUNCATE", "FULL"),
            Journal::Persist => ("PERSIST", "FULL"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Sqlite {
    round: Round,
    thread: u64,
    journal: Journal,
    name: String,
    path: PathBuf,
    attempted: u64,
    acknowledged: u64,
}

impl Sqlite {
    pub(super) fn new(round: &Round, thread: u64, journal: Journal) -> Result<Sqlite> {
        let (mode, _) = journal.words();
        let name = format!("sqlite {}", mode.to_lowercase());
        let path = round.folder.join(format!("sqlite-{thread}.db"));
        let make = "CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB, touched INTEGER);";
        let make = format!("PRAGMA journal_mode={mode}; {make}");
        Program::new("sqlite3").args(["-bail", "-batch"]).arg(&path).arg(make).output()?;
        Ok(Sqlite { round: round.clone(), thread, journal, name, path, attempted: 0, acknowledged: 0 })
    }

    fn key(&self, id: u64) -> Key {
        Key::new(self.round.number, self.thread, id)
    }

    fn connect(&self) -> Result<Client> {
        let mut client =
            Client::start(Program::new("sqlite3").args(["-bail", "-batch"]).arg(&self.path), Stdio::null())?;
        let (mode, synchronous) = self.journal.words();
        // The journal's mode is the connection's own, except for WAL.
        let settings = format!(
            "PRAGMA journal_mode={mode}; PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint=50; PRAGMA busy_timeout=10000;"
        );
        client.say(&settings)?;
        Ok(client)
    }

    /// So many of them.
    pub(super) fn transactions(&mut self, count: u64) -> Result<()> {
        let mut client = self.connect()?;
        (0..count).try_for_each(|_| Ok(self.transaction(&mut client)?))
    }

    fn transaction(&mut self, client: &mut Client) -> io::Result<()> {
        let id = self.attempted + 1;
        self.attempted = id;
        let body: String = content::make(self.key(id), 0, ROW_BYTES).iter().map(|byte| format!("{byte:02x}")).collect();
        client.say(&format!(
            "BEGIN; INSERT INTO row VALUES ({id}, x'{body}', {id}); \
             UPDATE row SET touched = {id} WHERE id % {STRIDE} = {}; COMMIT; SELECT 'done';",
            id % STRIDE
        ))?;
        client.until_done()?;
        // SQLite says done also if it could not open the directory to sync it, which is so when the daemon died after the unlink. A
        // daemon that answers now lived through all of it; its answer to this call is kept in no cache.
        rustix::fs::statvfs(&self.round.folder)?;
        self.acknowledged = id;
        self.round.done(self.thread, id);
        Ok(())
    }
}

impl Load for Sqlite {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self) -> Option<String> {
        let error = self.transactions(u64::MAX).expect_err("a load ends with an error");
        self.round.judge(&error)
    }

    fn done(&self) -> u64 {
        self.acknowledged
    }

    fn verify(&self) -> Result<Verified> {
        let ask = format!(
            "PRAGMA integrity_check; \
             SELECT count(*) FROM row, (SELECT max(id) AS last FROM row) WHERE touched != last - (last - id) % {STRIDE}; \
             SELECT id, hex(body) FROM row ORDER BY id;"
        );
        let program = Program::new("sqlite3").args(["-bail", "-batch"]).arg(&self.path).arg(ask);
        let answer = program.limit(Duration::from_secs(120)).output()?;
        let mut lines = answer.lines();
        match lines.next() {
            Some("ok") => {}
            other => bail!("integrity_check says {other:?}"),
        }
        match lines.next() {
            Some("0") => {}
            other => {
                bail!("a transaction is there in part: {other:?} rows lack what their transaction wrote into them")
            }
        }
        let mut count = 0;
        for line in lines {
            count += 1;
            let Some((id, body)) = line.split_once('|') else { bail!("not a row: {line}") };
            if id != count.to_string() {
                bail!("row {count} is missing: {id} comes instead");
            }
            let bytes: Vec<u8> =
                (0..body.len() / 2).filter_map(|at| u8::from_str_radix(&body[2 * at..2 * at + 2], 16).ok()).collect();
            content::check(self.key(count), 0, &bytes)?;
        }
        if count < self.acknowledged || count > self.attempted {
            bail!("{count} rows; {} were acknowledged, {} attempted", self.acknowledged, self.attempted);
        }
        let bytes = fs::metadata(&self.path)?.len();
        Ok(Verified { synced: self.acknowledged, present: count, bytes })
    }
}
