//! PostgreSQL: one cluster with data checksums lives through all rounds. Its server dies with the mount, and recovers after each kill.
//!
//! pgbench is the load, and its books must balance. Two clients beside it count: each of their transactions that was acknowledged is
//! there, none twice, none in part. Every page is read against its checksum, and tables against their indexes.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::client::Client;
use super::load::{Load, Round, Verified};
use crate::machine;
use crate::program::{Child, Program, read_lossy};
use crate::{interrupt, text};

/// PostgreSQL does not run as root; this is `nobody` everywhere.
const NOBODY: u32 = 65534;
const CLIENTS: u64 = 2;
const START: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Postgres {
    round: Round,
    cluster: Cluster,
    server: Option<Child>,
    counts: [Count; CLIENTS as usize],
    /// Transactions that pgbench had done before this round, and that were acknowledged to it in it.
    benched_before: u64,
    benched: u64,
}

#[derive(Debug, Default)]
struct Count {
    attempted: AtomicU64,
    acknowledged: AtomicU64,
}

/// Where a cluster is, and its programs.
#[derive(Clone, Debug)]
struct Cluster {
    programs: PathBuf,
    data: PathBuf,
    /// Not in the mount: the socket, whose path must be short, and pgbench's logs.
    outside: PathBuf,
    log: PathBuf,
}

impl Postgres {
    pub(super) fn new(round: &Round) -> Result<Postgres> {
        let programs = programs().context("PostgreSQL is not here; `scripts/setup soak` installs it")?;
        let data = round.point().join("postgres");
        let outside = std::env::temp_dir().canonicalize()?.join(format!("hydrafs-pg-{}", std::process::id()));
        let cluster = Cluster { programs, data, outside, log: round.outside.join("postgres.log") };
        cluster.make_outside()?;
        let is_new = !cluster.data.join("PG_VERSION").exists();
        if is_new {
            cluster.make()?;
        }
        let server = cluster.start()?;
        if is_new {
            cluster.program("pgbench").args(["-i", "-q", "-s", "1"]).output()?;
        }
        let number = round.number;
        let old = number.saturating_sub(2);
        cluster.ask(&format!("DROP TABLE IF EXISTS round_{old}"))?;
        cluster.ask(&format!(
            "CREATE TABLE round_{number} (client INT, sequence BIGINT, body TEXT, PRIMARY KEY (client, sequence))"
        ))?;
        let benched_before = cluster.count("SELECT count(*) FROM pgbench_history")?;
        let (counts, server) = (Default::default(), Some(server));
        Ok(Postgres { round: round.clone(), cluster, server, counts, benched_before, benched: 0 })
    }

    fn client(&self, number: u64) -> Option<String> {
        self.round.judge(&self.transactions(number).expect_err("a client ends with an error"))
    }

    /// Transactions until the server dies.
    fn transactions(&self, number: u64) -> Result<()> {
        let psql = self.cluster.program("psql").args(["-q", "-X", "-v", "ON_ERROR_STOP=1"]);
        let mut client = Client::start(psql, self.cluster.log()?)?;
        let (round, count) = (self.round.number, &self.counts[number as usize]);
        for sequence in 1.. {
            count.attempted.store(sequence, Ordering::SeqCst);
            client.say(&format!(
                "BEGIN; INSERT INTO round_{round} VALUES ({number}, {sequence}, {body}); \
                 UPDATE round_{round} SET body = body WHERE client = {number} AND sequence = {sequence} / 2; COMMIT;\n\\echo done",
                body = body(&number.to_string(), &sequence.to_string())
            ))?;
            client.until_done()?;
            count.acknowledged.store(sequence, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Until the server dies; what a client said before the kill. Each is judged when it ends, for the others go on.
    fn work(&mut self) -> Result<Option<String>> {
        let logs = self.cluster.outside.join(format!("pgbench-{}", self.round.number));
        fs::create_dir(&logs)?;
        own(&logs)?;
        let pgbench = self.cluster.program("pgbench").dir(&logs).args(["-n", "-c", "2", "-T", "3600", "-l"]);
        let mut pgbench = pgbench.start(Stdio::null(), Stdio::null(), self.cluster.log()?)?;
        let (outcomes, benched) = std::thread::scope(|scope| {
            let this = &*self;
            let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || this.client(number))).collect();
            let benched = until_killed(&mut pgbench, &this.round);
            let said = clients.into_iter().map(|client| client.join().expect("it returns what it said"));
            (said.collect::<Vec<_>>(), benched)
        });
        if let Some(server) = &mut self.server {
            server.quit(Duration::from_secs(10));
        }
        self.server = None;
        // It ends by itself when it loses its server, and only then its log is whole.
        let asked = Instant::now();
        while pgbench.inner.try_wait()?.is_none() && asked.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(pgbench);
        for name in crate::tree::names(&logs)? {
            self.benched += read_lossy(&logs.join(name)).lines().filter(|line| is_whole(line)).count() as u64;
        }
        fs::remove_dir_all(&logs)?;
        Ok(outcomes.into_iter().flatten().next().or(benched?))
    }

    /// Everything that can be asked of a server that runs.
    fn judge(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        let round = self.round.number;
        for (number, count) in (0..CLIENTS).zip(&self.counts) {
            let of = format!("FROM round_{round} WHERE client = {number}");
            let found = self.cluster.count(&format!("SELECT count(*) {of}"))?;
            let last = self.cluster.count(&format!("SELECT coalesce(max(sequence), 0) {of}"))?;
            let wrong =
                self.cluster.count(&format!("SELECT count(*) {of} AND body <> {}", body("client", "sequence")))?;
            let [attempted, acknowledged] =
                [&count.attempted, &count.acknowledged].map(|count| count.load(Ordering::SeqCst));
            ensure!(wrong == 0, "{wrong} rows of client {number} are not what it wrote");
            ensure!(
                found == last && last >= acknowledged && last <= attempted,
                "client {number} has {found} rows, the last is {last}; {acknowledged} were acknowledged, {attempted} attempted"
            );
            verified.add(Verified { synced: acknowledged, present: last, bytes: 0 });
        }
        let books = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) \
                     AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) \
                     AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
        let balanced = self.cluster.ask(books)?;
        ensure!(balanced == "t", "pgbench's books do not balance: {balanced:?}");
        let benched = self.cluster.count("SELECT count(*) FROM pgbench_history")?;
        let must = self.benched_before + self.benched;
        ensure!(benched >= must, "{benched} transactions of pgbench; {must} were acknowledged");
        verified.add(Verified { synced: self.benched, present: benched - self.benched_before, bytes: 0 });
        self.cluster.program("pg_amcheck").args(["--install-missing", "--heapallindexed", "bench"]).output()?;
        Ok(verified)
    }
}

impl Load for Postgres {
    fn name(&self) -> &str {
        "postgres"
    }

    fn run(&mut self) -> Option<String> {
        let words = self.work().unwrap_or_else(|error| self.round.judge(&error));
        words.map(|words| format!("{words}\n{}", self.cluster.last_words()))
    }

    fn done(&self) -> u64 {
        let acknowledged = self.counts.iter().map(|count| count.acknowledged.load(Ordering::SeqCst));
        acknowledged.sum::<u64>() + self.benched
    }

    fn verify(&self) -> Result<Verified> {
        let words = || self.cluster.last_words();
        let mut server = self.cluster.start().context("PostgreSQL does not recover")?;
        let verified = self.judge().with_context(words)?;
        self.cluster.stop(&mut server).with_context(words)?;
        let checked = self.cluster.program("pg_checksums").arg("--check").arg("-D").arg(&self.cluster.data).output()?;
        let blocks = checked.lines().find_map(|line| line.strip_prefix("Blocks scanned:"));
        let blocks: u64 = blocks.and_then(|words| words.trim().parse().ok()).context("pg_checksums read no block")?;
        Ok(Verified { bytes: blocks * 8192, ..verified })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.server = None;
        // In the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&self.cluster.outside);
    }
}

impl Cluster {
    fn make_outside(&self) -> Result<()> {
        fs::create_dir_all(&self.outside).with_context(|| format!("cannot make {}", self.outside.display()))?;
        own(&self.outside)
    }

    fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.data)?;
        own(&self.data)?;
        // Small segments of its log: many are made, renamed and reused.
        let initdb = self.program("initdb").arg("-D").arg(&self.data);
        initdb
            .args([
                "--data-checksums",
                "--wal-segsize=1",
                "--auth=trust",
                "--username=kill",
                "--no-locale",
                "--encoding=UTF8",
            ])
            .output()?;
        let mut server = self.start()?;
        self.program("createdb").arg("bench").output()?;
        self.stop(&mut server)
    }

    /// One of its programs, as a user that it accepts.
    fn program(&self, name: &str) -> Program {
        let program = self.programs.join(name);
        let program = if machine::is_root() {
            let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
            Program::new("setpriv").args(user).arg("--").arg(program)
        } else {
            Program::new(program)
        };
        let program = program.env("PGHOST", &self.outside).env("PGUSER", "kill").env("PGDATABASE", "bench");
        program.env("LC_ALL", "C").dir(&self.outside).limit(Duration::from_secs(120))
    }

    fn log(&self) -> Result<Stdio> {
        Ok(fs::File::options().append(true).create(true).open(&self.log)?.into())
    }

    fn last_words(&self) -> String {
        text::last_lines(&read_lossy(&self.log), 12)
    }

    /// Starts a server, which recovers first if it has to; returns when it answers.
    fn start(&self) -> Result<Child> {
        let server = self.program("postgres").arg("-D").arg(&self.data).arg("-k").arg(&self.outside);
        let settings = [
            "listen_addresses=",
            "shared_buffers=16MB",
            // Checkpoints under load: what a recovery begins with.
            "min_wal_size=2MB",
            "max_wal_size=8MB",
            "checkpoint_completion_target=0.5",
            // A server that lost its disk ends.
            "restart_after_crash=off",
        ];
        let server = settings.iter().fold(server, |server, setting| server.arg("-c").arg(setting));
        let mut server = server.limit(Duration::MAX).start(Stdio::null(), self.log()?, self.log()?)?;
        let asked = Instant::now();
        let ready = || self.program("pg_isready").arg("-q").status();
        while !ready()?.success() {
            interrupt::check()?;
            let ended = server.inner.try_wait()?;
            if ended.is_some() || asked.elapsed() > START {
                bail!("the server is not ready (ended: {ended:?})\n{}", self.last_words());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn stop(&self, server: &mut Child) -> Result<()> {
        self.program("pg_ctl").args(["stop", "-w", "-t", "60", "-m", "fast", "-D"]).arg(&self.data).output()?;
        server.wait().map(drop)
    }

    fn ask(&self, sql: &str) -> Result<String> {
        Ok(self
            .program("psql")
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql])
            .output()?
            .trim()
            .to_owned())
    }

    fn count(&self, sql: &str) -> Result<u64> {
        let answer = self.ask(sql)?;
        answer.parse().with_context(|| format!("`{sql}` gives {answer:?}"))
    }
}

/// Waits for the kill; what to say if pgbench, which has work for an hour, ended before it.
pub(super) fn until_killed(pgbench: &mut Child, round: &Round) -> Result<Option<String>> {
    while !round.is_killing() {
        if let Some(status) = pgbench.inner.try_wait()? {
            return Ok(round.judge(&format!("pgbench ended before the kill: {status}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

/// What a client writes, as SQL: some rows are larger than others, none fits twice on a page by chance.
fn body(client: &str, sequence: &str) -> String {
    format!("repeat(md5({client} || '-' || {sequence}), (1 + {sequence} % 30)::INT)")
}

/// A line of pgbench's log: client, transaction, time, script, seconds, microseconds.
fn is_whole(line: &str) -> bool {
    line.split_whitespace().count() == 6
}

/// Where PostgreSQL's programs are: Debian keeps the server's outside the path, a folder for each version.
pub(super) fn programs() -> Option<PathBuf> {
    let debian = crate::tree::names(Path::new("/usr/lib/postgresql")).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = debian.into_iter().rev().map(|version| Path::new("/usr/lib/postgresql").join(version).join("bin"));
    std::env::split_paths(&path).chain(debian).find(|dir| dir.join("initdb").is_file() && dir.join("pgbench").is_file())
}

fn own(dir: &Path) -> Result<()> {
    if machine::is_root() {
        chown(dir, Some(NOBODY), Some(NOBODY)).with_context(|| format!("cannot give {} away", dir.display()))?;
    }
    Ok(())
}
