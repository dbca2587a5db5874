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
mod repair;
mod report;
mod transfer;
mod usage;

#[cfg(test)]
pub(crate) use measure::descriptions;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::id::FileId;
use file::{FileError, FileSystem, Node, SNAPSHOTS, View};
use fuse::{Meter, Notifier};
use parking_lot::Mutex;
use platform::Platform;
use platform::real::block_on;
use serde::Serialize;
use serde_json::{Value, json};

use self::repair::Rounds;
use self::transfer::Wanted;
use super::kernel::Kernel;
use crate::control::server::{Brought, Handler};
use crate::control::wire::{self, Request};
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::scrape::{self, Scraper};
use crate::{exposition, moment, opening};

/// What failures an answer names may come to, in bytes of the answer; all of them are counted.
const NAMED_BYTES_MAX: usize = 16 << 20;

/// Failures that an answer names, and what they come to.
#[derive(Default)]
struct Named(Vec<Value>, usize);

impl Named {
    /// Names one more, where there is room for it.
    fn add(&mut self, failure: impl Serialize) {
        let named = json!(failure);
        self.1 += named.to_string().len() + 1;
        if self.1 <= NAMED_BYTES_MAX {
            self.0.push(named);
        }
    }
}

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
    /// Of the last repair, or of none yet.
    rounds: Mutex<Rounds>,
    /// Held while the store's disks and the list of them in the folder are changed: by one at a time, or one would forget what another notes.
    disk_list: Mutex<()>,
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
            rounds: Mutex::default(),
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
    fn cached(&self, part: Option<(u32, u32)>) -> Value {
        let Some(Mounted { kernel, .. }) = &self.mount else { return json!({ "steps": [], "parts": 1 }) };
        let (number, parts) = match part {
            None => (0, 1),
            Some((_, 0)) => (0, self.system.reference_parts()),
            Some(part) => part,
        };
        let files = self.system.referenced_files(number, parts).into_iter();
        let numbers = files.filter_map(|file| kernel.number_of(Node::live(file))).collect();
        json!({ "steps": wire::steps(numbers), "parts": parts })
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
            Request::Cached { part } => Ok(self.cached(part)),
            Request::Device {} => Ok(json!({ "device": self.mount.as_ref().map(|mount| &mount.device) })),
            Request::On { device, request } => {
                if self.mount.as_ref().is_none_or(|mount| mount.device != device) {
                    let why = format!("the daemon of {} serves another mount", self.folder.path.display());
                    return Err(Failure::new("cannot use the file system", why).mend("nothing was changed"));
                }
                self.handle(*request, brought, progress)
            }
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
                self.batch_copy((source, parent, &name), anew, brought, progress)
            }
            Request::BatchRemove { parent, names, recursive } => self.batch_remove(parent, &names, recursive),
            Request::BatchRead(how) => self.batch_read(&how, brought),
            Request::BatchCompare(how) => self.batch_compare(&how, brought),
            Request::BatchWrite(how) => self.batch_write(&how, brought),
            Request::Fill { inode, offset, length } => self.fill(inode, (offset, length), brought.descriptor),
            Request::Fsck { deep } => self.fsck(deep, progress),
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
            Request::DiskMeasure {} => Ok(json!({ "all": block_on(self.system.measure_speeds()) })),
            Request::DiskRemove { disk, accept_loss } => self.remove_disk(disk, accept_loss),
            Request::Repair { deep, accept_loss } => self.repair(deep, accept_loss, progress),
            Request::Stop { .. } | Request::Restart { .. } => {
                Err(Failure::new("cannot reach the daemon", "none runs").at(&self.folder.path))
            }
        }
    }
}
