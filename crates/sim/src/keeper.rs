//! The keeper: a task beside the clients that takes, compares and deletes snapshots, commits, syncs, reclaims and checks; and the nemesis,
//! which does what the world does to a machine: sets its clock, fills its disks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base::id::FileId;
use file::{FileError, FileSystem, Node, Reclaim, Resilience, Share, StoreError};
use platform::sim::{SimDisk, World};

use crate::client::Client;
use crate::history::History;
use crate::oracle::{Floors, Window};
use crate::random::Random;
use crate::shared::{Asked, Judgement, Kept, Shared, Stop};
use crate::tree::read_tree;

/// Snapshots that are kept at a time.
const SNAPSHOTS_MAX: usize = 3;
/// Numbers of what a keeper does: what comes often has several.
pub(crate) const KEEPINGS: u64 = 14;

/// See the module's head.
pub(crate) struct Keeper {
    pub(crate) system: Arc<FileSystem>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) random: Random,
}

impl Keeper {
    /// Works as long as the clients do.
    pub(crate) async fn work(mut self) {
        loop {
            let most = match &self.shared.plan {
                plan if !plan.is_short() => self.random.pick(plan.pauses()),
                plan if plan.reclaims_often => 20,
                _ => 300,
            };
            let pause = Duration::from_millis(1 + self.random.below(most));
            self.shared.platform.tasks.sleep(pause).await;
            if self.shared.state().working == 0 {
                return;
            }
            let number = self.random.below(KEEPINGS);
            match self.perform(number).await {
                Ok(()) => {}
                Err(Stop::Over) => return,
                Err(Stop::Wrong(what)) => {
                    self.shared.fail("keeper", what);
                    return;
                }
            }
        }
    }

    /// The work of a number below [`KEEPINGS`].
    pub(crate) async fn perform(&mut self, number: u64) -> Result<(), Stop> {
        match number {
            _ if self.shared.plan.reclaims_often && !self.random.one_in(4) => self.reclaim().await,
            0..=2 => self.take().await,
            3 => self.delete().await,
            4..=5 => self.compare().await,
            6 => self.commit().await,
            7 => self.sync().await,
            8 => self.check().await,
            9..=12 if self.shared.plan.fragments.is_some() && self.random.one_in(2) => self.mend().await,
            9..=13 if self.shared.plan.drains && self.random.one_in(2) => self.drain().await,
            9..=12 if self.shared.plan.bad_disks > 0 && self.random.one_in(4) => self.set_policy().await,
            9..=12 => self.reclaim().await,
            _ => Ok(()),
        }
    }

    fn judge<T>(&self, what: &str, result: Result<T, file::FileError>) -> Result<Option<T>, Stop> {
        let error = match result {
            // What is done on some disks when the power goes nobody hears of, and others have the rest.
            Ok(_) if !self.shared.is_powered() => return Err(Stop::Over),
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        self.shared.log("keeper", &format!("{what} failed: {error}"));
        match self.shared.judge(&error) {
            Judgement::NotDone => Ok(None),
            Judgement::Trouble => Err(Stop::Over),
            Judgement::Wrong => Err(Stop::Wrong(format!("{what} failed without reason: {error}"))),
        }
    }

    async fn take(&mut self) -> Result<(), Stop> {
        let (name, floors) = {
            let mut state = self.shared.state();
            if state.snapshots.len() >= SNAPSHOTS_MAX || state.asked.is_some() {
                return Ok(());
            }
            state.snapshot_count += 1;
            let name = format!("s{}", state.snapshot_count);
            let floors: Vec<usize> = state.histories.iter().map(History::acknowledged).collect();
            state.asked = Some(Asked { name: name.clone(), floors: floors.clone() });
            (name, floors)
        };
        self.shared.log("keeper", &format!("take snapshot {name}"));
        let taken = self.judge("snapshot", self.system.snapshot(&name).await)?;
        let Some(taken) = taken else {
            // Full disks: it was not taken, and `recovered` would find it if it was.
            self.shared.state().asked = None;
            return match self.system.find_snapshot(name.as_bytes()) {
                None => Ok(()),
                Some(_) => Err(Stop::Wrong(format!("snapshot {name} failed and is there"))),
            };
        };
        self.shared.synced(&floors, None, true);
        let histories = self.shared.state().histories.clone();
        let mut models = Vec::new();
        for (client, history) in histories.iter().enumerate() {
            let read = read_tree(&self.system, taken.view, &Client::directory(client), false).await;
            let Some(tree) = self.judge("reading a snapshot", read)? else { return Ok(()) };
            let window = window_of(history, floors[client]);
            let verdict = window
                .verify(&tree)
                .map_err(|what| Stop::Wrong(format!("snapshot {name}, client {client}: {what}")))?;
            models.push(verdict.model);
        }
        let mut state = self.shared.state();
        state.summary.snapshots += 1;
        state.asked = None;
        state.snapshots.push(Kept { name, models, is_leaving: false });
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), Stop> {
        let name = {
            let mut state = self.shared.state();
            let count = state.snapshots.len();
            if count == 0 {
                return Ok(());
            }
            let kept = &mut state.snapshots[self.random.index(count)];
            kept.is_leaving = true;
            kept.name.clone()
        };
        self.shared.log("keeper", &format!("delete snapshot {name}"));
        let deleted = self.judge("deleting a snapshot", self.system.delete_snapshot(&name).await)?;
        let mut state = self.shared.state();
        if deleted.is_some() {
            state.snapshots.retain(|kept| kept.name != name);
        } else {
            state.snapshots.iter_mut().for_each(|kept| kept.is_leaving = false);
        }
        Ok(())
    }

    async fn compare(&mut self) -> Result<(), Stop> {
        let kept: Vec<Kept> = self.shared.state().snapshots.clone();
        if kept.is_empty() {
            return Ok(());
        }
        let kept = &kept[self.random.index(kept.len())];
        self.shared.log("keeper", &format!("compare snapshot {}", kept.name));
        match compare_snapshot(&self.system, kept).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(what)) => Err(Stop::Wrong(what)),
            Err(error) => self.judge("reading a snapshot", Err(error)).map(|_: Option<()>| ()),
        }
    }

    async fn commit(&mut self) -> Result<(), Stop> {
        self.shared.log("keeper", "commit");
        let acknowledged = self.shared.acknowledged();
        if self.judge("commit", self.system.commit().await)?.is_some() {
            self.shared.synced(&acknowledged, None, false);
        }
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), Stop> {
        self.shared.log("keeper", "sync everything");
        let acknowledged = self.shared.acknowledged();
        if self.judge("sync", self.system.sync_all().await)?.is_some() {
            self.shared.synced(&acknowledged, None, true);
        }
        Ok(())
    }

    /// Cuts what is sealed, and makes again what is lacking, while everybody works.
    async fn mend(&mut self) -> Result<(), Stop> {
        let report = self.system.restore_copies(Share::FULL, &|_, _| {}).await;
        self.shared.log("keeper", &format!("mended: {report:?}"));
        Ok(())
    }

    /// Has a disk take nothing new, or brings away what lies there, or has it take part again, while everybody works.
    async fn drain(&mut self) -> Result<(), Stop> {
        let disks = self.system.status().store.disks;
        let drained = disks.iter().find(|disk| disk.is_drained).map(|disk| disk.number);
        let (what, done) = match drained {
            None => {
                let disk = disks[self.random.index(disks.len())].number;
                (format!("drain disk {disk}"), self.system.drain_disk(disk, true).await)
            }
            Some(disk) if self.random.one_in(2) => {
                (format!("disk {disk} takes part again"), self.system.drain_disk(disk, false).await)
            }
            Some(disk) => {
                let emptied = self.system.empty_disk(disk, Share::FULL, &|_, _| {}).await;
                (format!("empty disk {disk}: {emptied:?}"), emptied.map(drop))
            }
        };
        self.shared.log("keeper", &what);
        self.judge(&what, done).map(drop)
    }

    /// Asks for more copies of what a client works with, or for as many as of the rest. Nobody is to notice.
    async fn set_policy(&mut self) -> Result<(), Stop> {
        let clients = self.shared.state().histories.len();
        let directory = Client::directory(self.random.index(clients));
        let in_fragments = self.shared.plan.erasure().map(Resilience::Fragments);
        let second = in_fragments.unwrap_or(Resilience::Copies(2));
        let resilience = self.random.pick(&[Resilience::OfNode, second, Resilience::Copies(3)]);
        self.shared.log("keeper", &format!("policy of {}: {resilience:?}", directory.escape_ascii()));
        let found = self.system.lookup(Node::live(FileId::ROOT), &directory).await;
        let Some((node, _)) = self.judge("looking up a directory", found)? else { return Ok(()) };
        let set = match self.system.set_policy_below(node.file, resilience, true, &|_| {}).await {
            // While a disk is out there may be too few.
            Err(error @ FileError::Store(StoreError::Refused { .. })) => {
                self.shared.log("keeper", &format!("refused: {error}"));
                return Ok(());
            }
            set => self.judge("setting a policy", set)?,
        };
        if let Some(report) = set {
            self.shared.log(
                "keeper",
                &format!("set for {} files, {} chunks raised, {} failed", report.files, report.raised, report.failed),
            );
        }
        Ok(())
    }

    /// Gives back what nobody needs, while everybody works: whoever still needed it will tell.
    async fn reclaim(&mut self) -> Result<(), Stop> {
        self.shared.log("keeper", "reclaim");
        let is_rehearsal = self.random.one_in(6);
        // A tenth of the time, or all of it; every dead chunk or the worst packs: by what was drawn already.
        let plan = &self.shared.plan;
        let is_thorough = plan.reclaims_often && (plan.is_short() || self.random.one_in(2));
        let share = if is_thorough { Share::FULL } else { Share::DEFAULT };
        let how = Reclaim { is_rehearsal, is_thorough, share, ..Reclaim::default() };
        let reclaimed = match self.system.reclaim(&how).await {
            // Room is given back when all disks work again.
            Err(error) if self.shared.is_failing() => {
                self.shared.log("keeper", &format!("reclaim failed: {error}"));
                None
            }
            reclaimed => self.judge("reclaim", reclaimed)?,
        };
        if let Some(report) = reclaimed {
            let (dead, sparse, deleted) = (report.packs_dead, report.packs_sparse, report.packs_deleted);
            let problems = report.problems.join("; ");
            self.shared
                .log("keeper", &format!("reclaimed: {dead} dead, {sparse} sparse, {deleted} deleted {problems}"));
            let mut state = self.shared.state();
            state.summary.packs_deleted += deleted;
            state.summary.reclaims += u64::from(!is_rehearsal);
        }
        if is_rehearsal {
            self.shared.log("keeper", "scrub");
            let report = self.system.scrub(Duration::ZERO, Share::DEFAULT, &|_, _| {}).await;
            if !report.problems.is_empty() && !self.may_find() {
                return Err(Stop::Wrong(format!("scrub found {:?}", report.problems)));
            }
        }
        Ok(())
    }

    /// Whether a check may find something: a lying or failing disk is one that it finds out.
    fn may_find(&self) -> bool {
        let shared = &self.shared;
        shared.plan.may_err() || !shared.is_powered() || shared.is_failing() || shared.lost_index()
    }

    async fn check(&mut self) -> Result<(), Stop> {
        self.shared.log("keeper", "check");
        let report = self.judge("check", self.system.check_files(&|_| {}).await)?;
        match report {
            Some(report) if !report.problems.is_empty() && !self.may_find() => {
                Err(Stop::Wrong(format!("the check found {:?}", report.problems)))
            }
            _ => Ok(()),
        }
    }
}

/// What a snapshot may hold that was asked for at this step.
pub(crate) fn window_of(history: &History, floor: usize) -> Window<'_> {
    Window { history, names: floor, content: floor, last: history.last(), floors: Floors::Renamed }
}

/// Compares a snapshot with what was found in it when it was taken.
pub(crate) async fn compare_snapshot(system: &FileSystem, kept: &Kept) -> Result<Result<(), String>, file::FileError> {
    let Some(node) = system.find_snapshot(kept.name.as_bytes()) else {
        return Ok(Err(format!("snapshot {} is gone", kept.name)));
    };
    for (client, model) in kept.models.iter().enumerate() {
        let tree = read_tree(system, node.view, &Client::directory(client), false).await?;
        let history = History::new(model.clone());
        if let Err(what) = window_of(&history, 0).verify(&tree) {
            return Ok(Err(format!("snapshot {} changed, client {client}: {what}", kept.name)));
        }
    }
    Ok(Ok(()))
}

/// Sets the wall clock forward and back for as long as the world is there.
pub(crate) async fn step_clock(world: Weak<World>, shared: Arc<Shared>, mut random: Random) {
    const SECOND: i64 = 1_000_000_000;
    loop {
        shared.platform.tasks.sleep(Duration::from_millis(1 + random.below(200))).await;
        let Some(world) = world.upgrade() else { return };
        let step = random.pick(&[1, 50_000, SECOND, 3600 * SECOND, 400 * 86_400 * SECOND]);
        world.step_clock(if random.one_in(2) { step } else { -step });
        if shared.state().working == 0 {
            return;
        }
    }
}

/// Takes the room of disks and gives it back.
pub(crate) async fn fill_disks(disks: Vec<SimDisk>, shared: Arc<Shared>, mut random: Random) {
    loop {
        shared.platform.tasks.sleep(Duration::from_millis(1 + random.below(400))).await;
        if shared.state().working == 0 {
            return;
        }
        let disk = &disks[random.index(disks.len())];
        let Ok(space) = disk.disk().space() else { return };
        let used = space.total - space.free;
        let room = match random.below(4) {
            0 => random.below(64 << 10),
            1 => random.below(6 << 20),
            _ => random.below(40 << 20),
        };
        shared.log("nemesis", &format!("leaves {} {room} bytes of room", disk.disk().path()));
        disk.set_capacity(used + room);
    }
}
