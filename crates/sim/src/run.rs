//! A run: one world, several lives, and what must be true between them.
//!
//! A life: open (perhaps losing the power meanwhile, perhaps again), compare with the oracle, let the clients work, end. Act one
//! is work under faults; the next opening is act two: the faults are gone, and everything promised must be there. What is
//! looked at then: `between`.

mod between;
#[cfg(test)]
mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use file::{FileSystem, Kind, NewFile, Node as FileNode, Options, View, format_node};
use platform::disk::Disk;
use platform::sim::{Faults, SimDisk, World};
use platform::task::{First, first};
use tokio::sync::Semaphore;

use crate::client::Client;
use crate::failure::Summary;
use crate::history::History;
use crate::keeper::{Keeper, fill_disks, step_clock};
use crate::plan::{Plan, Trouble};
use crate::random::Random;
use crate::shared::Shared;
use crate::tree::read_tree;

/// Steps of the world in one go: a run that needs more goes in circles.
const STEPS_MAX: u64 = 500_000;
/// The same where a life takes minutes.
const LONG_STEPS_MAX: u64 = 10 * STEPS_MAX;
/// Virtual time in which every operation of a life comes to an end, also on the slowest disk.
const LIFE_MAX: Duration = Duration::from_secs(40_000);

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The clients finish, the file system is closed.
    Close,
    /// The process dies at some time.
    Crash,
    /// The power goes during a disk's operation.
    Cut,
    /// The power goes at some time.
    PowerOff,
}

/// See the module's head.
pub(crate) struct Run {
    seed: u64,
    plan: Plan,
    pub(crate) world: Arc<World>,
    disks: Vec<SimDisk>,
    /// What each disk says that it is.
    identities: Vec<Vec<u8>>,
    /// The disks that are not there in this life.
    gone: BTreeSet<usize>,
    /// The disks of which others may have to make good what they lack, until everything lies where it should again.
    bad: BTreeSet<usize>,
    pub(crate) shared: Arc<Shared>,
    random: Random,
    clients: usize,
    pub(crate) life: u64,
    /// Of the present life.
    flush_interval: Duration,
    /// Whether what is bad is mended at the next opening that can.
    mends: bool,
}

type Checked = Result<(), String>;

/// What lies on the disks, and what was written there.
pub(crate) struct Image {
    /// Name and files of each disk.
    pub(crate) disks: Vec<(String, BTreeMap<String, Vec<u8>>)>,
    /// What it is opened with.
    pub(crate) options: Options,
    /// Of each client.
    pub(crate) histories: Vec<History>,
    /// The step of each client that is in the trees: later ones may be in the journal alone.
    pub(crate) covered: Vec<usize>,
}

/// Snapshots of an image: so many that their list does not lie inside the roots.
const IMAGE_SNAPSHOTS: u64 = 12;

impl Run {
    pub(crate) fn new(seed: u64, mut plan: Plan, is_verbose: bool) -> Run {
        if plan.absences && seed % 3 == 2 {
            // The same with whole packs.
            plan.fragments = None;
        }
        let world = Arc::new(World::new(seed));
        world.set_step_limit(if plan.is_short() { STEPS_MAX } else { LONG_STEPS_MAX });
        let mut random = Random::stream(seed, "run");
        let count = plan.disks_min() + random.below(3);
        let capacity = |random: &mut Random| plan.capacity(random);
        let disks: Vec<SimDisk> =
            (0..count).map(|number| world.disk(&format!("/d{number}"), capacity(&mut random))).collect();
        let shared = Shared::new(plan, world.platform(), disks[0].disk(), is_verbose);
        let clients = 1 + random.index(4);
        Run {
            seed,
            plan,
            world,
            disks,
            identities: Vec::new(),
            gone: BTreeSet::new(),
            bad: BTreeSet::new(),
            shared,
            random,
            clients,
            life: 0,
            flush_interval: Duration::ZERO,
            mends: true,
        }
    }

    /// Everything.
    pub(crate) fn go(&mut self) -> Result<Summary, String> {
        self.format()?;
        let lives = 1 + self.random.below(self.plan.lives);
        let mut lived = 0;
        while lived < lives || self.elapsed() < self.plan.lasts {
            lived += 1;
            self.lose_disks()?;
            let Some(system) = self.open_and_verify()? else { return Ok(self.summary()) };
            self.live(system)?;
        }
        self.bring_disks_back();
        self.mends = true;
        let Some(system) = self.open_and_verify()? else { return Ok(self.summary()) };
        if !self.plan.may_lose() {
            self.close(&system)?;
            drop(system);
            self.world.crash();
            if let Some(system) = self.open_and_verify()? {
                self.check(&system)?;
                self.finish_removals(&system)?;
                self.leave_nothing(&system)?;
            }
        }
        Ok(self.summary())
    }

    fn summary(&self) -> Summary {
        let mut summary = self.shared.state().summary.clone();
        summary.trace = self.world.trace();
        summary.disk_operations = self.world.operations();
        summary.simulated = self.elapsed();
        summary
    }

    /// Simulated time since the run began.
    fn elapsed(&self) -> Duration {
        self.world.platform().clock.elapsed()
    }

    fn handles(&self) -> Vec<Disk> {
        let there = self.disks.iter().enumerate().filter(|(number, _)| !self.gone.contains(number));
        there.map(|(_, disk)| disk.disk()).collect()
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, String> {
        let outcome = self.world.run_until(future).map_err(|halt| halt.to_string())?;
        match self.shared.state().failure.clone() {
            Some(what) => Err(what),
            None => Ok(outcome),
        }
    }

    fn note(&self, what: &str) {
        self.shared.log("run", what);
    }

    // -------------------------------------------------------------------------------------------------------------
    // Beginning.

    /// A node with a directory for each client.
    fn format(&mut self) -> Checked {
        let platform = self.world.platform();
        self.wait(format_node(&platform, &self.handles(), NodeNumber(3), 0, 0))?
            .map_err(|error| format!("format: {error}"))?;
        let identity = |disk: &SimDisk| disk.durable_files().remove(between::IDENTITY[0]).unwrap_or_default();
        self.identities = self.disks.iter().map(identity).collect();
        let (system, _) = self.try_open()?.map_err(|error| format!("first opening: {error}"))?;
        let clients = self.clients;
        let made = self.wait(async {
            let mut histories = Vec::new();
            for client in 0..clients {
                let new =
                    NewFile { kind: Kind::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
                system.create_file(FileId::ROOT, &Client::directory(client), &new).await?;
                let tree = read_tree(&system, View::LIVE, &Client::directory(client), false).await?;
                histories.push(History::new(tree.to_model()));
            }
            system.close().await?;
            Ok::<_, file::FileError>(histories)
        });
        self.shared.state().histories = made?.map_err(|error| format!("first directories: {error}"))?;
        drop(system);
        self.world.crash();
        Ok(())
    }

    fn try_open(&mut self) -> Result<Result<(Arc<FileSystem>, file::OpenReport), file::FileError>, String> {
        let options = self.plan.options(&mut self.random);
        self.flush_interval = options.flush_interval;
        if self.plan.absences && !self.gone.is_empty() {
            // It may lie on one of them, and is made anew.
            self.shared.state().lost_index = true;
        }
        let platform = self.world.platform();
        self.wait(FileSystem::open(&platform, &self.handles(), options))
    }

    /// `None`: damaged disks were refused, or looked at and found to be excusable.
    fn open_and_verify(&mut self) -> Result<Option<Arc<FileSystem>>, String> {
        self.life += 1;
        self.shared.state().summary.lives += 1;
        if self.plan.cuts_power {
            self.lose_power_while_opening()?;
        }
        self.note(&format!("open, life {}", self.life));
        let (system, report) = match self.try_open()? {
            Ok(opened) => opened,
            Err(error) if self.plan.may_lose() => {
                self.note(&format!("refused: {error}"));
                self.shared.state().summary.openings_refused += 1;
                return Ok(None);
            }
            Err(error) => return Err(format!("the disks are whole, but opening them failed: {error}")),
        };
        if self.plan.may_lose() && self.life > 1 {
            self.verify_damaged(&system)?;
            return Ok(None);
        }
        let problems = &report.store.problems;
        for problem in problems {
            self.note(&format!("found by the opening: {problem}"));
        }
        // Where a removal failed, and the index is lost too, nobody can tell what is left of the pack from a pack that is lost. The opening asks for a
        // repair then, which has to take that away, and nothing else.
        if self.plan.disks_lie && problems.iter().any(|problem| problem.contains("fsck --repair")) {
            self.shared.state().lost_index = true;
        }
        let may_miss = self.plan.absences && (!self.bad.is_empty() || self.shared.lost_index());
        if !problems.is_empty() && self.gone.is_empty() && !self.may_lie() && !may_miss {
            return Err(format!("opening found problems: {problems:?}"));
        }
        self.verify_closed(&system)?;
        self.verify_snapshots(&system)?;
        self.verify_live(&system)?;
        self.mend(&system)?;
        if self.bad.is_empty() && self.random.one_in(2) {
            self.check(&system)?;
        }
        Ok(Some(system))
    }

    fn lose_power_while_opening(&mut self) -> Checked {
        for _ in 0..self.random.below(3) {
            let after = self.random.pick(&[10, 60, 400]);
            self.world.cut_power_at(self.world.operations() + 1 + self.random.below(after));
            let opened = self.try_open()?;
            match opened {
                Ok((system, _)) => {
                    let work = Duration::from_millis(self.random.below(2000));
                    self.wait(self.world.platform().tasks.sleep(work))?;
                    drop(system);
                }
                Err(_) if !self.world.is_powered() => {}
                Err(error) => return Err(format!("opening was refused without reason: {error}")),
            }
            self.note("the power went while opening");
            self.shared.state().summary.power_cuts += 1;
            self.world.restart();
        }
        Ok(())
    }

    /// A node that has worked and is at rest, with a clean end or none: what `damage` damages.
    pub(crate) fn image(&mut self) -> Result<Image, String> {
        self.format()?;
        let Some(system) = self.open_and_verify()? else { return Err("whole disks were refused".to_owned()) };
        self.work_to_the_end(&system)?;
        let covered = self.shared.acknowledged();
        let taken = self.wait(async {
            for number in 0..IMAGE_SNAPSHOTS {
                system.snapshot(&format!("image {number}")).await?;
            }
            Ok::<_, file::FileError>(())
        })?;
        taken.map_err(|error| format!("snapshot: {error}"))?;
        self.life += 1;
        self.work_to_the_end(&system)?;
        let synced = self.wait(async {
            system.sync_all().await?;
            if self.plan.bad_disks > 0 {
                system.restore_copies(file::Share::FULL, &|_, _| {}).await;
            }
            // One frame more: that something is missing before it can be seen.
            let new = NewFile { kind: Kind::Regular, mode: 0, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
            system.create_file(FileId::ROOT, b"last", &new).await?;
            system.sync_all().await
        })?;
        synced.map_err(|error| format!("sync: {error}"))?;
        if self.random.one_in(2) {
            self.close(&system)?;
        }
        drop(system);
        self.world.crash();
        let state = self.shared.state();
        let disks = self.disks.iter().map(|disk| (disk.disk().path().to_owned(), disk.snapshot_files())).collect();
        let options = Options { access_times: false, ..self.plan.options(&mut self.random) };
        Ok(Image { disks, options, histories: state.histories.clone(), covered })
    }

    fn work_to_the_end(&mut self, system: &Arc<FileSystem>) -> Checked {
        self.work(system, End::Close)?;
        // The keeper ends by itself.
        self.wait(self.world.platform().tasks.sleep(Duration::from_secs(60)))
    }

    // -------------------------------------------------------------------------------------------------------------
    // A life.

    fn live(&mut self, system: Arc<FileSystem>) -> Checked {
        let end = self.choose_end();
        self.note(&format!("end: {end:?}"));
        for disk in &self.disks {
            disk.set_faults(self.plan.faults(&mut self.random));
        }
        self.have_disks_fail();
        if end == End::Cut {
            let after = self.random.pick(&[30, 300, 1500]);
            self.world.cut_power_at(self.world.operations() + 1 + self.random.below(after));
        }
        self.work(&system, end)?;
        let is_whole = self.world.is_powered() && end == End::Close;
        if is_whole {
            self.close(&system)?;
        }
        self.end(end, system);
        if self.plan.may_lose() {
            self.rot_at_rest();
        }
        Ok(())
    }

    /// Lets the clients work until they have done, or until the end that comes at some time.
    fn work(&mut self, system: &Arc<FileSystem>, end: End) -> Checked {
        let done = Arc::new(Semaphore::new(0));
        self.start_clients(system, &done);
        let time = match end {
            End::Close | End::Cut => LIFE_MAX,
            End::Crash | End::PowerOff => {
                let most = self.random.pick(self.plan.ends());
                Duration::from_millis(self.random.below(most))
            }
        };
        let all_done = done.acquire_many(u32::try_from(self.clients).unwrap_or(u32::MAX));
        let sleep = self.world.platform().tasks.sleep(time);
        let is_done = matches!(self.wait(first(all_done, sleep))?, First::Left(_));
        if !is_done && time == LIFE_MAX {
            return Err(format!("a client waits for ever: nothing came to an end in {LIFE_MAX:?}"));
        }
        Ok(())
    }

    fn choose_end(&mut self) -> End {
        match self.random.below(20) {
            0..=2 => End::Close,
            3..=7 => End::Crash,
            8..=15 if self.plan.cuts_power => End::Cut,
            _ if self.plan.cuts_power => End::PowerOff,
            8..=12 => End::Close,
            _ => End::Crash,
        }
    }

    fn start_clients(&mut self, system: &Arc<FileSystem>, done: &Arc<Semaphore>) {
        let tasks = self.world.platform().tasks;
        let (seed, life) = (self.seed, self.life);
        let stream = |name: &str| Random::stream(seed, &format!("{name}, life {life}"));
        self.shared.state().working = self.clients;
        let pause_one_in = self.random.pick(if self.plan.is_short() { &[4, 30, 1000] } else { &[1, 2, 4] });
        for number in 0..self.clients {
            let client = Client {
                number,
                system: system.clone(),
                shared: self.shared.clone(),
                random: stream(&format!("client {number}")),
                file_bytes_max: self.plan.file_bytes_max(),
                pause_one_in,
            };
            let operations = self.plan.operations / 4 + self.random.below(self.plan.operations);
            let (shared, done) = (self.shared.clone(), done.clone());
            let work = async move {
                client.work(operations).await;
                shared.state().working -= 1;
                done.add_permits(1);
            };
            tasks.spawn(&format!("client {number}"), Box::pin(work));
        }
        let keeper = Keeper { system: system.clone(), shared: self.shared.clone(), random: stream("keeper") };
        tasks.spawn("keeper", Box::pin(keeper.work()));
        if self.plan.steps_clock {
            let work = step_clock(Arc::downgrade(&self.world), self.shared.clone(), stream("clock"));
            tasks.spawn("clock", Box::pin(work));
        }
        if self.plan.trouble == Trouble::Full && self.random.one_in(2) {
            tasks.spawn("nemesis", Box::pin(fill_disks(self.disks.clone(), self.shared.clone(), stream("nemesis"))));
        }
    }

    /// The faults go, and a healthy file system must close; then everything accepted is there.
    fn close(&mut self, system: &Arc<FileSystem>) -> Checked {
        self.heal();
        self.note("close");
        // The keeper ends by itself.
        self.wait(self.world.platform().tasks.sleep(Duration::from_secs(60)))?;
        let acknowledged = self.shared.acknowledged();
        let closed = self.wait(async {
            let mut closed = Vec::new();
            for client in 0..self.clients {
                let tree = read_tree(system, View::LIVE, &Client::directory(client), false).await?;
                for file in tree.nodes.keys() {
                    closed.push((*file, system.attributes(FileNode::live(*file)).await?));
                }
            }
            system.close().await?;
            Ok::<_, file::FileError>(closed)
        })?;
        match closed {
            Ok(closed) => {
                self.shared.synced(&acknowledged, None, true);
                let mut state = self.shared.state();
                state.summary.closes += 1;
                if !self.plan.may_err() {
                    state.closed = closed;
                }
                Ok(())
            }
            Err(error) if self.plan.may_err() => {
                self.note(&format!("close failed: {error}"));
                Ok(())
            }
            Err(error) => Err(format!("closing failed without reason: {error}")),
        }
    }

    fn heal(&self) {
        for disk in &self.disks {
            disk.set_faults(Faults::default());
            disk.set_capacity(4 << 30);
        }
    }

    fn end(&mut self, end: End, system: Arc<FileSystem>) {
        self.note(&format!("{end:?} after {} disk operations", self.world.operations()));
        let cuts = end == End::Cut || end == End::PowerOff;
        if cuts {
            self.shared.state().summary.power_cuts += 1;
            self.world.restart();
        } else {
            self.expect_bounded_loss();
            self.shared.state().summary.crashes += u64::from(end == End::Crash);
            self.world.crash();
        }
        drop(system);
        self.heal();
        // Act two of a full disk is on a disk that is as small as before, half of the time.
        if self.plan.trouble == Trouble::Full && self.random.one_in(2) {
            for disk in &self.disks {
                let Ok(space) = disk.disk().space() else { continue };
                disk.set_capacity(space.total - space.free + (24 << 20) + self.random.below(24 << 20));
            }
        }
        self.shared.state().working = 0;
    }
}
