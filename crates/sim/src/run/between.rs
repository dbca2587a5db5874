//! Between two lives: what is looked at after an opening, and what happens to disks while nobody looks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use file::{Attributes, Depth, FileSystem, Node as FileNode, PolicyReport, Reclaim, Remedy, Share, View};

use super::{Checked, Run};
use crate::client::Client;
use crate::history::History;
use crate::keeper::{compare_snapshot, window_of};
use crate::oracle::{Floors, Verdict, Window, verify_damaged, verify_order};
use crate::plan::{Sabotage, Trouble};
use crate::remedies::repair;
use crate::shared::Kept;
use crate::tree::{Tree, read_tree};

/// The check's number for a pack that recovery renamed to `.damaged`.
const PACK_SET_ASIDE: &str = "HF0017";

/// Its number for a fragment of a pack that is not known, and what it calls it.
const FRAGMENT_ALONE: (&str, &str) = ("HF0008", "a fragment");
/// Its numbers for what lies alone of a pack in fragments: what cannot be read, or is fewer than it should be.
const LEFT_ALONE: [&str; 5] = ["HF0007", "HF0008", "HF0009", "HF0020", "HF0021"];
/// Passes of reclaim after which no dead chunk is left.
const PASSES: u32 = 2;
/// Most chunks of a node without a file: the tree that has the root directory's inode, if that is large.
const CHUNKS_OF_NOTHING: u64 = 1;

/// The file of the index.
const INDEX: &str = "index";
/// The files that say which disk it is.
pub(super) const IDENTITY: [&str; 2] = ["disk", "disk.copy"];

impl Run {
    /// Where others have what lies on a disk it may go, or have rotted.
    pub(super) fn lose_disks(&mut self) -> Checked {
        self.bring_disks_back();
        if self.plan.drains && self.life > 0 && self.random.one_in(2) {
            self.look_without_a_disk()?;
        }
        if self.plan.absences {
            self.mends = self.bad.is_empty() || self.random.one_in(2);
            for disk in self.bad.clone().into_iter().filter(|_| !self.random.one_in(3)).collect::<Vec<usize>>() {
                self.lose_or_rot(disk);
            }
        }
        while self.life > 0 && self.bad.len() < self.plan.bad_disks && !self.random.one_in(3) {
            let Some(disk) = self.another_bad_disk() else { continue };
            self.lose_or_rot(disk);
        }
        if self.plan.absences && self.life > 0 {
            self.come_and_go()?;
        }
        Ok(())
    }

    fn lose_or_rot(&mut self, disk: usize) {
        if self.random.one_in(2) {
            self.note(&format!("disk {disk} is gone"));
            self.gone.insert(disk);
        } else {
            self.note(&format!("disk {disk} has rotted"));
            self.rot(disk);
        }
    }

    /// Openings in a row, each without some disks: the bad one is there or not, and of the others some that are good are gone, the same
    /// each time, so that what is left has all that any of these openings wrote. Whatever they do: when the good ones are back nothing is
    /// lost. The index may be lost too, at any time.
    fn come_and_go(&mut self) -> Checked {
        let gone = self.gone.clone();
        let good: Vec<usize> = (0..self.disks.len()).filter(|disk| !self.bad.contains(disk)).collect();
        let first = self.random.index(good.len());
        let count = self.random.index(good.len());
        let leaving: BTreeSet<usize> = (0..count).map(|step| good[(first + step) % good.len()]).collect();
        let was_failing = self.shared.is_failing();
        self.shared.state().is_failing = true;
        for _ in 0..self.random.below(4) {
            let bad: Vec<usize> = self.bad.iter().copied().filter(|_| self.random.one_in(2)).collect();
            self.gone = leaving.iter().copied().chain(bad).collect();
            self.lose_index();
            self.look(true)?;
        }
        if self.random.one_in(3) {
            // All that are there, to repair what others found.
            self.gone.clear();
            self.look(true)?;
        }
        self.gone = gone;
        self.lose_index();
        self.shared.state().is_failing = was_failing;
        Ok(())
    }

    /// The index is made of what lies in the packs: it may be lost with any disk, also with one of which nobody else has anything.
    fn lose_index(&mut self) {
        if !self.random.one_in(3) {
            return;
        }
        for disk in &self.disks {
            if disk.remove(INDEX) {
                self.note("the index is lost");
                self.shared.state().lost_index = true;
            }
        }
    }

    /// Opens what is there. `works`: and does what somebody may do who finds it so, until the power goes or not.
    fn look(&mut self, works: bool) -> Checked {
        self.note(&format!("a look without disks {:?}", self.gone));
        if works && self.random.one_in(3) {
            let after = self.random.pick(&[10, 60, 400]);
            self.world.cut_power_at(self.world.operations() + 1 + self.random.below(after));
        }
        match self.try_open()? {
            Ok((system, _)) => {
                let work = Duration::from_millis(self.random.below(2000));
                self.wait(self.world.platform().tasks.sleep(work))?;
                let count = if works { self.random.below(3) } else { 0 };
                for _ in 0..count {
                    let what = self.random.below(5);
                    let done = self.wait(async {
                        match what {
                            0 => format!("{:?}", system.scrub(Duration::ZERO, Share::FULL, &|_, _| {}).await.problems),
                            1 => format!("{:?}", system.restore_copies(Share::FULL, &|_, _| {}).await),
                            2 => {
                                let how = Reclaim { is_thorough: true, share: Share::FULL, ..Reclaim::default() };
                                format!("{:?}", system.reclaim(&how).await)
                            }
                            3 => format!("{:?}", repair(&system).await),
                            _ => format!("{:?}", system.commit().await),
                        }
                    })?;
                    self.note(&format!("work {what}: {done}"));
                }
                if self.random.one_in(2) {
                    let closed = self.wait(system.close())?;
                    self.note(&format!("closed: {closed:?}"));
                }
                drop(system);
            }
            Err(error) => self.note(&format!("refused: {error}")),
        }
        self.world.crash();
        self.world.restart();
        Ok(())
    }

    /// Whatever a node without a disk has, and does: when that is back nothing is lost.
    fn look_without_a_disk(&mut self) -> Checked {
        let disk = self.random.index(self.disks.len());
        self.gone.insert(disk);
        self.shared.state().is_failing = true;
        self.look(false)?;
        self.gone.clear();
        self.shared.state().is_failing = false;
        Ok(())
    }

    /// Those that were gone are there again, and so are those that nobody knew, for their identity was damaged.
    pub(super) fn bring_disks_back(&mut self) {
        self.gone.clear();
        for disk in &self.bad {
            for path in IDENTITY {
                let identity = &self.identities[*disk];
                self.disks[*disk].truncate(path, identity.len() as u64);
                self.disks[*disk].corrupt(path, 0, identity);
            }
        }
    }

    /// A disk that was good until now.
    fn another_bad_disk(&mut self) -> Option<usize> {
        let disk = self.random.index(self.disks.len());
        self.shared.state().is_failing = true;
        self.bad.insert(disk).then_some(disk)
    }

    fn rot(&mut self, disk: usize) {
        let files = self.disks[disk].durable_files();
        let visible = self.disks[disk].snapshot_files();
        let rots = |path: &str| path.starts_with("packs/") || (self.plan.disks_lie && !IDENTITY.contains(&path));
        for (path, bytes) in files.iter().filter(|(path, _)| rots(path)) {
            let length = visible.get(path).map_or(0, Vec::len).min(bytes.len()) as u64;
            for _ in 0..1 + self.random.below(4) {
                let at = self.random.below(bytes.len().max(1) as u64);
                if at < length {
                    self.disks[disk].flip_bit(path, at, 3);
                }
            }
        }
    }

    /// Whether what a disk says may be wrong.
    pub(super) fn may_lie(&self) -> bool {
        self.plan.disks_lie && !self.bad.is_empty()
    }

    /// The same while the node works: nobody is to hear of it.
    pub(super) fn have_disks_fail(&mut self) {
        while self.bad.len() < self.plan.bad_disks && self.random.one_in(2) {
            let Some(disk) = self.another_bad_disk() else { continue };
            let faults = self.plan.faults_of_bad(&mut self.random);
            self.note(&format!("disk {disk} is bad: {faults:?}"));
            self.disks[disk].set_faults(faults);
        }
    }

    /// When all disks are there again everything is brought onto as many of them as it should be on, and what has rotted is written again.
    pub(super) fn mend(&mut self, system: &Arc<FileSystem>) -> Checked {
        // Also after a life in which nothing failed: a pack may have been on one disk alone when the power went.
        let has_copies = self.plan.bad_disks > 0 || self.plan.drains;
        if !has_copies || !self.mends || system.refuse_degraded().is_err() {
            return Ok(());
        }
        self.note("mend");
        // What nobody read is found by reading everything; then what lay on one disk alone in the journal is covered.
        let report = self.wait(async {
            let scrubbed = system.scrub(Duration::ZERO, Share::FULL, &|_, _| {}).await;
            for problem in scrubbed.problems {
                self.note(&format!("scrub found {problem:?}"));
            }
            system.sync_all().await?;
            system.commit().await?;
            system.commit().await?;
            system.raise_left(Share::FULL).await;
            Ok::<_, file::FileError>(system.restore_copies(Share::FULL, &|_, _| {}).await)
        })?;
        match report {
            Ok(report) if report.problems.is_empty() || self.shared.lost_index() => {
                self.note(&format!("mended: {report:?}"));
                self.bad.clear();
                self.shared.state().is_failing = false;
                self.repair(system)?;
                self.verify_policies(system)
            }
            Ok(report) => Err(format!("not everything lies where it should: {:?}", report.problems)),
            Err(error) => Err(format!("nothing fails, but the node cannot be mended: {error}")),
        }
    }

    ///
    fn verify_policies(&mut self, system: &Arc<FileSystem>) -> Checked {
        let report =
            self.wait(system.check_policies())?.map_err(|error| format!("policies cannot be checked: {error}"))?;
        self.note(&format!("policies: {report:?}"));
        match report {
            PolicyReport { raised: 0, failed: 0, .. } => Ok(()),
            report => Err(format!("content lies on fewer disks than its files ask for: {report:?}")),
        }
    }

    /// Where the index was lost it may have again what is left of packs that were removed, and has rotted since. A repair takes that away, and
    /// nothing else.
    fn repair(&mut self, system: &Arc<FileSystem>) -> Checked {
        if !self.shared.lost_index() {
            return Ok(());
        }
        let (done, failed) = self.wait(repair(system))?;
        self.note(&format!("repaired: {done:?}"));
        if !failed.is_empty() {
            return Err(format!("the repair ({done:?}) failed: {failed:?}"));
        }
        if done.iter().any(|remedy| matches!(remedy, Remedy::Trees { .. })) {
            return Err(format!("nothing is lost, but the trees were written again: {done:?}"));
        }
        self.shared.state().lost_index = false;
        self.verify_snapshots(system)?;
        self.verify_live(system)?;
        self.check(system)
    }

    /// after a clean close every attribute is as before. A clone may have been pruned since: then links that no name below it has
    /// are not counted any more, and the next look compares them with the model.
    pub(super) fn verify_closed(&mut self, system: &Arc<FileSystem>) -> Checked {
        let closed = std::mem::take(&mut self.shared.state().closed);
        for (file, before) in closed {
            let found = self.wait(system.attributes(FileNode::live(file)))?;
            let is_same = found.as_ref().is_ok_and(|found| {
                let is_pruned = file.branch != 0 && (1..before.links).contains(&found.links);
                let links = if is_pruned { found.links } else { before.links };
                *found == Attributes { links, ..before.clone() }
            });
            if !is_same {
                return Err(format!("{file} was closed with {before:?} and opened with {found:?}"));
            }
        }
        Ok(())
    }

    ///
    pub(super) fn verify_snapshots(&mut self, system: &Arc<FileSystem>) -> Checked {
        let (kept, asked) = {
            let mut state = self.shared.state();
            (state.snapshots.clone(), state.asked.take())
        };
        let names: Vec<String> = system.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        for name in &names {
            let is_known = kept.iter().any(|kept| kept.name == *name);
            if !is_known && asked.as_ref().is_none_or(|asked| asked.name != *name) {
                return Err(format!("snapshot {name} should not be there"));
            }
        }
        for kept in &kept {
            let is_there = names.contains(&kept.name);
            if !is_there && kept.is_leaving {
                self.shared.state().snapshots.retain(|other| other.name != kept.name);
                continue;
            }
            if !is_there {
                return Err(format!("snapshot {} is lost", kept.name));
            }
            if self.random.one_in(2) {
                let compared = self.wait(compare_snapshot(system, kept))?;
                compared.map_err(|error| format!("snapshot {}: {error}", kept.name))??;
            }
        }
        if let Some(asked) = asked.filter(|asked| names.contains(&asked.name)) {
            let view = system.find_snapshot(asked.name.as_bytes()).map_or(View::LIVE, |node| node.view);
            let models =
                self.verify_directories(system, view, |history, client| window_of(history, asked.floors[client]))?;
            let models = models.into_iter().map(|(_, verdict)| verdict.model).collect();
            let kept = Kept { name: asked.name, models, is_leaving: false };
            self.shared.state().snapshots.push(kept);
        }
        self.shared.state().snapshots.iter_mut().for_each(|kept| kept.is_leaving = false);
        Ok(())
    }

    /// compares the present with the histories, which then begin anew.
    pub(super) fn verify_live(&mut self, system: &Arc<FileSystem>) -> Checked {
        let verdicts = self.verify_directories(system, View::LIVE, |history, _| Window {
            history,
            names: history.names_floor,
            content: history.content_floor,
            last: history.last(),
            floors: Floors::Synced,
        })?;
        let pairs: Vec<(&History, &Verdict)> = verdicts.iter().map(|(history, verdict)| (history, verdict)).collect();
        verify_order(&pairs)?;
        for (client, (history, verdict)) in verdicts.iter().enumerate() {
            let (floor, last) = (history.names_floor, history.last());
            self.note(&format!(
                "client {client} has step {} to {} of {last}, synced were {floor}",
                verdict.first, verdict.last
            ));
        }
        let histories = verdicts.into_iter().map(|(_, verdict)| History::new(verdict.model)).collect();
        self.shared.state().histories = histories;
        Ok(())
    }

    fn verify_directories<'a>(
        &self,
        system: &Arc<FileSystem>,
        view: View,
        window: impl for<'b> Fn(&'b History, usize) -> Window<'b>,
    ) -> Result<Vec<(History, Verdict)>, String> {
        let histories = self.shared.state().histories.clone();
        let mut verdicts = Vec::new();
        for (client, history) in histories.into_iter().enumerate() {
            let tree = self.read(system, view, client, false)?;
            let verdict = window(&history, client).verify(&tree).map_err(|what| format!("client {client}: {what}"))?;
            verdicts.push((history, verdict));
        }
        Ok(verdicts)
    }

    fn read(&self, system: &Arc<FileSystem>, view: View, client: usize, allows_damage: bool) -> Result<Tree, String> {
        let read = self.wait(read_tree(system, view, &Client::directory(client), allows_damage))?;
        read.map_err(|error| format!("client {client}: the directory cannot be read: {error}"))
    }

    ///
    pub(super) fn verify_damaged(&self, system: &Arc<FileSystem>) -> Checked {
        let histories = self.shared.state().histories.clone();
        for (client, history) in histories.iter().enumerate() {
            let Ok(tree) = self.wait(read_tree(system, View::LIVE, &Client::directory(client), true))? else {
                continue;
            };
            self.note(&format!("client {client}: {} nodes, {} damaged", tree.nodes.len(), tree.damage.len()));
            verify_damaged(history, 0, &tree).map_err(|what| format!("client {client}: {what}"))?;
        }
        // Whatever they say: they must not panic.
        let _ = self.wait(system.check_files(&|_| {}))?;
        let _ = self.wait(system.close())?;
        Ok(())
    }

    /// Both layers find nothing wrong.
    pub(super) fn check(&self, system: &Arc<FileSystem>) -> Checked {
        self.note("check");
        let report = self.wait(system.check_files(&|_| {}))?.map_err(|error| format!("check: {error}"))?;
        let store = self.wait(system.check_store(Depth::Deep, &|_, _| {}))?;
        let mut problems: Vec<_> = report.problems.into_iter().chain(store.problems).collect();
        // A pack torn by a power cut before its first sync cannot be told from a rotten one: the store sets it aside for a
        // person to look at. Nothing that was promised is in it, or the comparison before this one would have missed it.
        problems.retain(|problem| problem.code != PACK_SET_ASIDE || !self.plan.cuts_power);
        // Of a pack that was removed a fragment stays on a disk that fails. With the index lost too nobody can tell that from what is left of a
        // pack that is lost: it is told, and left for a person to look at (E-2; seed 1898 of plan liars).
        problems.retain(|problem| (problem.code, problem.what) != FRAGMENT_ALONE || !self.plan.disks_lie);
        problems.retain(|problem| !LEFT_ALONE.contains(&problem.code) || !self.shared.lost_index());
        if problems.is_empty() { Ok(()) } else { Err(format!("the check found {problems:?}")) }
    }

    /// What was removed as a tree has gone, and left nothing: a file that it should have taken would be one without a name.
    pub(super) fn finish_removals(&self, system: &Arc<FileSystem>) -> Checked {
        if system.removing() == 0 {
            return Ok(());
        }
        self.wait(system.finish_removals())?.map_err(|error| format!("removing trees: {error}"))?;
        if system.removing() > 0 {
            return Err(format!("{} directories are still to be removed", system.removing()));
        }
        self.check(system)
    }

    /// without snapshots and directories two passes of reclaim leave next to nothing, whatever happened before.
    pub(super) fn leave_nothing(&self, system: &Arc<FileSystem>) -> Checked {
        self.note("remove everything");
        let clients = self.clients;
        let passes = if self.plan.sabotage == Some(Sabotage::KeepDead) { 0 } else { PASSES };
        let removed = self.wait(async {
            for snapshot in system.snapshots() {
                system.delete_snapshot(&snapshot.name).await?;
            }
            for client in 0..clients {
                system.batch_remove(FileId::ROOT, &Client::directory(client)).await?;
            }
            system.finish_removals().await?;
            // Old roots stay until both superblocks are newer.
            system.commit().await?;
            system.commit().await?;
            let how = Reclaim { is_thorough: true, ..Reclaim::default() };
            let mut reports = Vec::new();
            for _ in 0..passes {
                reports.push(system.reclaim(&how).await?);
            }
            Ok::<_, file::FileError>(reports)
        })?;
        let reports = removed.map_err(|error| format!("removing everything: {error}"))?;
        let left = system.status().store.chunks();
        if left > CHUNKS_OF_NOTHING {
            return Err(format!("nothing is there, and {left} chunks are: {reports:?}"));
        }
        self.check(system)
    }

    /// raises the floors to what was acknowledged long ago.
    pub(super) fn expect_bounded_loss(&self) {
        let is_calm = self.plan.trouble == Trouble::None && !self.plan.is_slow && self.world.is_powered();
        if !is_calm || self.plan.sabotage == Some(Sabotage::LoseWrites) {
            return;
        }
        let bound = self.flush_interval * 2 + Duration::from_secs(2);
        let Some(limit) = self.world.elapsed().checked_sub(bound) else { return };
        let mut state = self.shared.state();
        for history in &mut state.histories {
            let old = history.steps.iter().rposition(|step| step.ended.is_some() && step.at <= limit).unwrap_or(0);
            history.names_floor = history.names_floor.max(old);
            history.content_floor = history.content_floor.max(old);
        }
    }

    /// Damage while nobody looks.
    pub(super) fn rot_at_rest(&mut self) {
        for _ in 0..self.random.below(4) {
            let disk = &self.disks[self.random.index(self.disks.len())];
            let files: Vec<(String, u64)> =
                disk.snapshot_files().into_iter().map(|(path, bytes)| (path, bytes.len() as u64)).collect();
            let files: Vec<&(String, u64)> = files.iter().filter(|(_, length)| *length > 0).collect();
            if files.is_empty() {
                continue;
            }
            let (path, length) = files[self.random.index(files.len())];
            let most = if self.random.one_in(3) { (*length).min(8192) } else { *length };
            let offset = self.random.below(most);
            match self.random.below(8) {
                0 => disk.truncate(path, offset),
                1 => drop(disk.remove(path)),
                2 | 3 => {
                    let count = self.random.below((*length - offset).min(5000) + 1);
                    let bytes = self.random.content(count);
                    disk.corrupt(path, offset, &bytes);
                }
                _ => disk.flip_bit(path, offset, u32::try_from(self.random.below(8)).unwrap_or(0)),
            }
            self.shared.log("rot", &format!("{path} at {offset} of {length}"));
        }
    }
}
