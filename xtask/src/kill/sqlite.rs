//! SQLite in WAL mode with full synchronisation: each transaction that was acknowledged is there after the crash.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, bail};

use super::content::{self, Key};
use super::load::{Load, Round, Verified};
use crate::program::Program;
use crate::tools;

const ROW_BYTES: usize = 300;

#[derive(Debug)]
pub(super) struct Sqlite {
    round: Round,
    thread: u64,
    path: PathBuf,
    attempted: u64,
    acknowledged: u64,
    failure: Option<String>,
}

impl Sqlite {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Sqlite> {
        let path = round.folder.join("sqlite.db");
        if !tools::has("sqlite3") {
            bail!("the program sqlite3 is not here; `scripts/setup posix` installs it");
        }
        let make = "PRAGMA journal_mode=WAL; CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB);";
        Program::new("sqlite3").args(["-bail", "-batch"]).arg(&path).arg(make).output()?;
        Ok(Sqlite { round: round.clone(), thread, path, attempted: 0, acknowledged: 0, failure: None })
    }

    fn key(&self, id: u64) -> Key {
        Key::new(self.round.number, self.thread, id)
    }

    fn work(&mut self) -> Result<()> {
        let program = Program::new("sqlite3").args(["-bail", "-batch"]).arg(&self.path);
        let mut child = program.start(Stdio::piped(), Stdio::piped(), Stdio::null())?;
        let mut input = child.inner.stdin.take().expect("asked to be a pipe");
        let mut output = BufReader::new(child.inner.stdout.take().expect("asked to be a pipe"));
        // sqlite3 touches the mount; when that is dead it must not be asked to end in peace.
        let outcome = self.talk(&mut input, &mut output);
        child.kill();
        Ok(outcome?)
    }

    fn talk(&mut self, input: &mut impl Write, output: &mut impl BufRead) -> io::Result<()> {
        writeln!(input, "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=50; PRAGMA busy_timeout=10000;")?;
        loop {
            let id = self.attempted + 1;
            self.attempted = id;
            let body: String =
                content::make(self.key(id), 0, ROW_BYTES).iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(input, "BEGIN; INSERT INTO row VALUES ({id}, x'{body}'); COMMIT; SELECT 'done';")?;
            input.flush()?;
            let mut line = String::new();
            while line.trim_end() != "done" {
                line.clear();
                if output.read_line(&mut line)? == 0 {
                    return Err(io::Error::new(io::ErrorKind::BrokenPipe, "sqlite3 ended"));
                }
            }
            self.acknowledged = id;
            self.round.done(self.thread, id);
        }
    }
}

impl Load for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn run(&mut self) {
        if let Err(error) = self.work() {
            self.failure = self.round.judge(&io::Error::other(format!("{error:#}")));
        }
    }

    fn failure(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |words| bail!("sqlite: {words}"))
    }

    fn done(&self) -> u64 {
        self.acknowledged
    }

    fn verify(&self) -> Result<Verified> {
        let ask = "PRAGMA integrity_check; SELECT id, hex(body) FROM row ORDER BY id;";
        let program = Program::new("sqlite3").args(["-bail", "-batch"]).arg(&self.path).arg(ask);
        let answer = program.limit(Duration::from_secs(120)).output()?;
        let mut lines = answer.lines();
        match lines.next() {
            Some("ok") => {}
            other => bail!("integrity_check says {other:?}"),
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
