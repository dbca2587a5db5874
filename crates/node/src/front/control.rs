//! The command line's requests: each is a call of the file layer, and its answer as JSON.
//!
//! The same for a running daemon and for a command that has opened the node itself (`opening::ask`), so that both say the same.
//!
//! Not here: how the daemon ends (`desk`, `life`); how answers are shown (`command`).

mod batch;
mod clone;
mod disks;
mod fill;
mod layout;
mod maintain;
mod measure;
mod notices;
mod policy;
mod report;
mod transfer;
mod usage;

#[cfg(test)]
pub(crate) use measure::descriptions;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::id::FileId;
use base::units::Bytes;
use file::{Depth, FileError, FileSystem, Node, Remedy, SNAPSHOTS, View};
use fuse::{Meter, Notifier};
use parking_lot::Mutex;
use platform::Platform;
use platform::real::block_on;
use serde_json::{Value, json};

use self::report::Checked;
use self::transfer::Wanted;
use super::kernel::Kernel;
use crate::control::server::{Brought, Handler};
use crate::control::wire::{self, Request};
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::scrape::{self, Scraper};
use crate::{exposition, moment, opening};

/// Steps of one repair. What is not mended then keeps coming back, and somebody has to look at it.
const REPAIR_STEPS_MAX: usize = 1000;
/// How often one step is taken: one that is proposed again then has changed nothing.
const REPAIRS_OF_ONE_MAX: usize = 3;

/// Names and files that the outcome of a step lists.
const WORDS_MAX: usize = 1000;
/// What requests are answered from.
pub(crate) struct Control {
    /// Where metrics are published, or why they are not. First, so that nobody listens any more when the file system is released.
    published: OnceLock<Result<Scraper, Failure>>,
    folder: NodeFolder,
    platform: Platform,
    system: Arc<FileSystem>,
    started: Duration,
    mount: Option<Mounted>,
    is_daemon: bool,
    /// What the last check came to.
    plan: Mutex<Plan>,
    /// Held while the store's disks and the list of them in the folder are changed: by one at a time, or one would forget what another notes.
    disk_list: Mutex<()>,
}

/// What a check proposes.
#[derive(Clone, Debug, Default)]
struct Plan {
    remedies: BTreeSet<Remedy>,
    /// What gave the check no answer, in words.
    unanswered: Option<String>,
}

/// The mount of this node.
pub(crate) struct Mounted {
    /// Where.
    pub(crate) point: PathBuf,
    /// Of its files, `major:minor`.
    pub(crate) device: String,
    /// How requests travel.
    pub(crate) transport: &'static str,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) notifier: Notifier,
    pub(crate) meter: Meter,
}

impl Control {
    pub(crate) fn new(folder: &NodeFolder, platform: &Platform, system: &Arc<FileSystem>) -> Control {
        let (platform, system) = (platform.clone(), Arc::clone(system));
        let started = platform.clock.elapsed();
        Control {
            folder: folder.clone(),
            platform,
            system,
            started,
            mount: None,
            is_daemon: false,
            plan: Mutex::default(),
            disk_list: Mutex::default(),
            published: OnceLock::new(),
        }
    }

    /// For a daemon: its mount.
    pub(crate) fn of_daemon(self, mount: Option<Mounted>) -> Control {
        Control { mount, is_daemon: true, ..self }
    }

    /// Lets metrics be fetched at this address, until the control is dropped. Files matter more than metrics: where that fails, the
    /// log and `status` say so.
    pub(crate) fn publish_metrics(self: &Arc<Self>, address: SocketAddr) {
        // A client must not keep the file system open.
        let control = Arc::downgrade(self);
        let text = move || control.upgrade().map(|control| exposition::prometheus(&control.metrics()));
        let served = scrape::serve(address, Arc::clone(&self.platform.clock), text);
        match &served {
            Ok(scraper) => tracing::info!("metrics are at http://{}/metrics", scraper.address),
            Err(failure) => tracing::error!("{failure}"),
        }
        // Called once, when the desk opens.
        let _ = self.published.set(served);
    }

    fn explain(&self, what: &str) -> impl Fn(FileError) -> Failure {
        move |error| opening::explain(what, &self.folder, &error)
    }

    /// Node numbers of files that the kernel was given and may be written: of one that it has let go it has no pages.
    fn cached(&self) -> Vec<u64> {
        let Some(Mounted { kernel, .. }) = &self.mount else { return Vec::new() };
        self.system.references().into_iter().filter_map(|(file, _)| kernel.number_of(Node::live(file))).collect()
    }

    fn create_snapshot(&self, name: &str, of: Option<u64>) -> Result<Value, Failure> {
        let what = "cannot take the snapshot";
        let root = match of {
            None => FileId::ROOT,
            Some(inode) => self.directory_of_snapshot(inode, what)?,
        };
        let snapshot = block_on(self.system.snapshot_of(name, root)).map_err(|error| match error {
            FileError::NotDirectory => {
                Failure::new(what, "it is not a directory").mend("name a directory of the mount")
            }
            FileError::NoEntry => Failure::new(what, "the directory was removed").mend("nothing was changed"),
            FileError::Exists => Failure::new(what, "there is a snapshot of this name")
                .place(name)
                .mend("choose another name, or delete the old one first; nothing was changed"),
            FileError::Invalid(why) => Failure::new(what, why).place(name).mend("choose another name"),
            error => self.explain(what)(error),
        })?;
        self.snapshots_changed(name);
        Ok(self.describe_snapshot(&snapshot))
    }

    fn directory_of_snapshot(&self, inode: u64, what: &str) -> Result<FileId, Failure> {
        let refuse = |why: &str| Failure::new(what, why).place(inode.to_string()).mend("nothing was changed");
        let node = self.find(inode).ok_or_else(|| refuse("no file has this inode number"))?;
        match node.view {
            View::LIVE => Ok(node.file),
            _ => Err(refuse("it is in a snapshot already")),
        }
    }

    fn describe_snapshot(&self, snapshot: &file::Snapshot) -> Value {
        // A path that damage keeps from being told is no reason to tell nothing.
        let of = block_on(self.system.path_of(snapshot)).unwrap_or_else(|error| format!("{} ({error})", snapshot.root));
        json!({ "name": snapshot.name, "taken": moment::utc(snapshot.taken), "of": of })
    }

    fn delete_snapshot(&self, name: &str) -> Result<Value, Failure> {
        let what = "cannot delete the snapshot";
        block_on(self.system.delete_snapshot(name)).map_err(|error| match error {
            FileError::NoEntry => Failure::new(what, "there is no snapshot of this name")
                .place(name)
                .mend("see `hydrafs snapshot list`; nothing was changed"),
            FileError::Busy(why) => {
                Failure::new(what, why).place(name).mend("wait for that, or end it; nothing was changed")
            }
            error => self.explain(what)(error),
        })?;
        self.snapshots_changed(name);
        Ok(json!({ "name": name }))
    }

    /// The kernel's cached listing of `.snapshots` is not true any more. Whether it knows the directory is not counted.
    fn snapshots_changed(&self, name: &str) {
        if let Some(mount) = &self.mount {
            notices::names_changed_in(mount, SNAPSHOTS.number, [name.as_bytes()]);
        }
    }

    fn find(&self, inode: u64) -> Option<Node> {
        match &self.mount {
            Some(mount) => mount.kernel.find_inode(inode),
            None => Some(Node::live(FileId::main(inode))),
        }
    }

    fn info(&self, inode: u64) -> Result<Value, Failure> {
        let what = "cannot describe the file";
        let unknown = || Failure::new(what, "no file has this inode number").place(inode.to_string());
        let node = self.find(inode).ok_or_else(unknown)?;
        let description = block_on(self.system.describe(node)).map_err(|error| match error {
            FileError::NoEntry => unknown(),
            error => self.explain(what)(error),
        })?;
        Ok(report::description(node, &description))
    }

    fn check(&self, deep: bool, progress: &mut dyn FnMut(&str)) -> Result<Checked, Failure> {
        let cannot = self.explain("cannot check the node");
        let (send, receive) = std::sync::mpsc::channel::<String>();
        let check = || {
            let send = Mutex::new(send);
            let tell = |text: String| drop(send.lock().send(text));
            let depth = if deep { Depth::Deep } else { Depth::Shallow };
            // The store first: which files need the chunks that are damaged is seen after it.
            let store = block_on(self.system.check_store(depth, &|done, total| {
                tell(format!("looked at {} of {}", Bytes(done), Bytes(total)));
            }));
            let files = block_on(self.system.check_files(&|count| tell(format!("looked at {count} files"))))?;
            let is_degraded = self.system.refuse_degraded().is_err();
            Ok(Checked { deep, is_degraded, files, store })
        };
        let checked = std::thread::scope(|scope| {
            let worker = scope.spawn(check);
            receive.iter().for_each(|text| progress(&text));
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let checked = checked.map_err(cannot)?;
        *self.plan.lock() = Plan { remedies: checked.plan(), unanswered: checked.unanswered() };
        Ok(checked)
    }

    /// Does what is planned, looks again, and goes on while there is something new to do.
    fn repair(&self, deep: bool, accept_loss: bool, progress: &mut dyn FnMut(&str)) -> Result<Value, Failure> {
        self.system.refuse_degraded().map_err(self.explain("cannot repair the node"))?;
        let mut steps: Vec<(Remedy, Result<String, String>)> = Vec::new();
        let mut tried = BTreeSet::new();
        // What could not be read of the store in this run, in words: nothing is known to be lost then (I-101).
        let mut unanswered = None;
        loop {
            let plan = self.plan.lock().clone();
            unanswered = unanswered.or(plan.unanswered);
            let remedies: Vec<Remedy> = plan.remedies.difference(&tried).copied().collect();
            for (number, remedy) in remedies.iter().enumerate() {
                progress(&format!("step {} of {}: {remedy}", number + 1, remedies.len()));
                let outcome = self.carry_out(*remedy, accept_loss, unanswered.as_deref());
                let is_of_trees = matches!(remedy, Remedy::Trees { .. });
                if let (Err(why), false) = (&outcome, is_of_trees) {
                    unanswered.get_or_insert_with(|| format!("cannot {remedy}: {why}"));
                }
                // Trees are written again once: what is wrong with them then, another time would not mend. Nor does what was done some times
                // and is proposed again.
                let times = steps.iter().filter(|(done, _)| done == remedy).count() + 1;
                if outcome.is_err() || is_of_trees || times == REPAIRS_OF_ONE_MAX {
                    tried.insert(*remedy);
                }
                steps.push((*remedy, outcome));
            }
            let checked = self.check(deep, progress)?;
            if steps.len() >= REPAIR_STEPS_MAX || self.plan.lock().remedies.is_subset(&tried) {
                return Ok(checked.after(&steps));
            }
        }
    }

    fn carry_out(&self, remedy: Remedy, accept_loss: bool, unanswered: Option<&str>) -> Result<String, String> {
        let words = |error: FileError| error.to_string();
        let Remedy::Trees { gives_up } = remedy else {
            return block_on(self.system.repair_store(remedy)).map_err(words);
        };
        if self.is_daemon {
            return Err(
                "not while a daemon has the node open: end it (`hydrafs umount` or `hydrafs stop`), and repair then"
                    .into(),
            );
        }
        if gives_up && !accept_loss {
            return Err("not without --accept-loss, for what cannot be read now is lost then".into());
        }
        if let Some(unanswered) = unanswered.filter(|_| gives_up) {
            return Err(format!(
                "not while a part of the store gives no answer, for what is missing may lie there ({unanswered}): mend the disk, and \
                 repair again. If it cannot be mended, take away the file that cannot be read, once a repair has copied what can be \
                 read of it (`fsck --repair --deep` tells how much that is)"
            ));
        }
        let folder = std::fs::metadata(&self.folder.path).map_err(|error| error.to_string())?;
        let done = block_on(self.system.repair_files(gives_up, (folder.uid(), folder.gid()))).map_err(words)?;
        let shown = done.iter().take(WORDS_MAX).cloned().collect::<Vec<_>>().join("; ");
        let more = done.len().saturating_sub(WORDS_MAX);
        Ok(match (done.is_empty(), more) {
            (true, _) => "there was nothing to do any more".to_owned(),
            (_, 0) => shown,
            _ => format!("{shown}; and {more} more"),
        })
    }
}

impl Handler for Control {
    fn handle(
        &self,
        request: Request,
        brought: Brought<'_, '_>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        match request {
            Request::Status {} => Ok(self.status()),
            Request::Counters {} => Ok(self.counters()),
            Request::Metrics {} => Ok(json!({ "text": exposition::prometheus(&self.metrics()) })),
            Request::Info { inode } => self.info(inode),
            Request::Sync {} => {
                block_on(self.system.sync_all()).map_err(self.explain("cannot sync"))?;
                Ok(json!({}))
            }
            Request::Cached {} => Ok(json!({ "steps": wire::steps(self.cached()) })),
            Request::Device {} => Ok(json!({ "device": self.mount.as_ref().map(|mount| &mount.device) })),
            Request::SnapshotCreate { name, of } => self.create_snapshot(&name, of),
            Request::SnapshotList {} => {
                let list: Vec<Value> =
                    self.system.snapshots().iter().map(|snapshot| self.describe_snapshot(snapshot)).collect();
                Ok(json!({ "snapshots": list }))
            }
            Request::SnapshotDelete { name } => self.delete_snapshot(&name),
            Request::Clone { source, parent, name } => self.clone_tree(source, parent, &name),
            Request::Send { snapshot, from, resume, dry_run } => {
                self.send(&Wanted { snapshot, from, resume, dry_run }, brought.descriptor, progress)
            }
            Request::Receive { name } => self.receive(name.as_deref(), brought.descriptor, progress),
            Request::Usage { inode } => self.usage(inode, progress),
            Request::BatchCopy { source, parent, name, anew } => {
                self.batch_copy((source, parent, &name), anew, progress)
            }
            Request::BatchRemove { parent, name } => self.batch_remove(parent, &name),
            Request::BatchRead(how) => self.batch_read(&how, brought),
            Request::BatchCompare(how) => self.batch_compare(&how, brought),
            Request::BatchWrite(how) => self.batch_write(&how, brought),
            Request::Fill { inode, offset, length } => self.fill(inode, (offset, length), brought.descriptor),
            Request::Fsck { deep } => self.check(deep, progress).map(|checked| checked.to_json()),
            Request::Gc { dry_run, thorough, share } => self.collect((dry_run, thorough), share, progress),
            Request::Scrub { dry_run, older_than_seconds, share } => {
                self.scrub(Duration::from_secs(older_than_seconds), share, dry_run, progress)
            }
            Request::Optimize { inode, dry_run, share } => self.optimize(inode, (dry_run, share), progress),
            Request::Warmup { inodes, metadata } => self.warm_up(&inodes, metadata, progress),
            Request::PolicySet { inode, copies, fragments, recursive } => {
                self.set_policy(inode, (copies, fragments.as_deref()), recursive, progress)
            }
            Request::DiskAdd { path } => self.add_disk(&path),
            Request::DiskDrain { disk, dry_run: true, .. } => self.drain_plan(disk),
            Request::DiskDrain { disk, stop: true, .. } => self.take_part_again(disk),
            Request::DiskDrain { disk, share, accept_fewer, .. } => {
                self.drain_disk(disk, (share, accept_fewer), progress)
            }
            Request::DiskRemove { disk, accept_loss } => self.remove_disk(disk, accept_loss),
            Request::Repair { deep, accept_loss } => self.repair(deep, accept_loss, progress),
            Request::Stop { .. } | Request::Restart { .. } => {
                Err(Failure::new("cannot reach the daemon", "none runs").at(&self.folder.path))
            }
        }
    }
}
