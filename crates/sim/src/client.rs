//! A client: one task that works in its own directory, one operation after the other, and compares everything that it hears.
//!
//! The operation is drawn, its outcome predicted by the model, then the file system is called. `begin` notes the change before
//! the call and `acknowledge` after it, so that whoever ends the life knows what was under way.
//!
//! - `batches`: many files in one go
//! - `clones`: cloning directories
//! - `masses`: reading, walking and rewriting many files at once
//! - `names`: creating, linking, removing, renaming, attributes
//! - `contents`: writing, truncating, allocating, copying
//! - `looks`: reading, listing, `stat`; syncs

mod batches;
mod clones;
mod contents;
mod looks;
mod masses;
mod names;

use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use file::{FileError, FileSystem, Kind, Node as FileNode};

use crate::model::{Change, Key, Model, Name, show};
use crate::plan::{Sabotage, Trouble};
use crate::random::Random;
use crate::shared::{Judgement, Shared, Stop, describe};

/// Nodes that a client makes before it only removes and works with what there is.
const NODES_MAX: usize = 70;

/// Numbers of operations that every plan draws from: what comes often has several. Those that clone, and those of batches, come behind.
const COMMON: u64 = 142;
const CLONING: u64 = 3;
const BATCHING: u64 = 4;
/// Numbers in all.
#[cfg(test)]
pub(crate) const OPERATIONS: u64 = COMMON + CLONING + BATCHING;
/// One operation in so many clones, or is a batch, where the plan has such.
const CLONES_ONE_IN: u64 = 25;
const BATCHES_ONE_IN: u64 = 12;

/// See the module's head.
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) system: Arc<FileSystem>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) random: Random,
    /// Largest file.
    pub(crate) file_bytes_max: u64,
    /// How often it waits: small numbers make long lives.
    pub(crate) pause_one_in: u64,
}

/// What an operation of a client comes to.
type Done = Result<(), Stop>;

impl Client {
    /// The directory of a client in the root.
    pub(crate) fn directory(number: usize) -> Name {
        format!("c{number}").into_bytes()
    }

    /// Works until `operations` are done, or nothing more can be.
    pub(crate) async fn work(mut self, operations: u64) {
        for _ in 0..operations {
            match self.operation().await {
                Ok(()) => {}
                Err(Stop::Over) => break,
                Err(Stop::Wrong(what)) => {
                    self.shared.fail(&self.name(), what);
                    break;
                }
            }
            if self.random.one_in(self.pause_one_in) {
                let most = self.random.pick(self.shared.plan.pauses());
                let pause = Duration::from_millis(self.random.below(most));
                self.shared.platform.tasks.sleep(pause).await;
            }
        }
    }

    fn name(&self) -> String {
        format!("client {}", self.number)
    }

    async fn operation(&mut self) -> Done {
        let plan = self.shared.plan;
        let clones = plan.clones && self.random.one_in(CLONES_ONE_IN);
        let batches = !clones && plan.batches && self.random.one_in(BATCHES_ONE_IN);
        let (first, count) = match (clones, batches) {
            (true, _) => (COMMON, CLONING),
            (_, true) => (COMMON + CLONING, BATCHING),
            _ => (0, COMMON),
        };
        let number = first + self.random.below(count);
        self.perform(number).await
    }

    /// The operation of a number below `OPERATIONS`, its details drawn from `random`.
    pub(crate) async fn perform(&mut self, number: u64) -> Done {
        let crowded = self.model().nodes.len() >= NODES_MAX;
        match number {
            0..=11 if crowded => self.remove().await,
            0..=11 => self.create(Kind::Regular).await,
            12..=16 => self.create(Kind::Directory).await,
            17..=18 => self.create(Kind::Symlink).await,
            19 => self.create(Kind::Fifo).await,
            20..=21 => self.create_unnamed().await,
            22..=25 => self.link().await,
            26..=31 => self.remove().await,
            32..=33 => self.remove_directory().await,
            34..=36 => self.hold().await,
            37..=39 => self.forget().await,
            40..=50 => self.rename().await,
            51..=52 => self.change_mode().await,
            53 => self.change_times().await,
            54..=56 => self.set_xattr().await,
            57 => self.remove_xattr().await,
            58..=75 => self.write().await,
            76..=78 => self.write_stream().await,
            79..=84 => self.truncate().await,
            85..=91 => self.allocate().await,
            92..=96 => self.copy().await,
            97..=99 => self.copy_from_snapshot().await,
            100..=111 => self.read().await,
            112..=115 => self.seek().await,
            116..=118 => self.list().await,
            119..=120 => self.list_while_changing().await,
            121..=126 => self.look_at_one().await,
            127..=129 => self.look_up().await,
            130..=136 => self.sync_file().await,
            137 => self.sync_directory().await,
            138..=139 => self.sync_all().await,
            140 => self.commit().await,
            142..=143 => self.clone_tree().await,
            144 => self.clone_from_snapshot().await,
            145..=146 => self.batch_write().await,
            147 => self.batch_remove().await,
            148 => self.batch_copy().await,
            _ => self.look_at_all().await,
        }
    }

    // -------------------------------------------------------------------------------------------------------------
    // What operations share.

    /// The directory as the client knows it.
    fn model(&self) -> Model {
        self.shared.state().histories[self.number].model().clone()
    }

    fn log(&self, what: &str) {
        self.shared.log(&self.name(), what);
    }

    /// Calls the file system for a change with a predicted outcome. `None`: it did not happen, as was to be expected.
    async fn change<T>(
        &mut self,
        what: String,
        change: Change,
        logs: Option<Key>,
        call: impl Future<Output = Result<T, FileError>>,
    ) -> Result<Option<T>, Stop> {
        self.log(&format!("{what}{}", describe(&change)));
        let refusal = match change {
            Ok(model) => {
                self.shared.begin(self.number, what.clone(), model, logs);
                None
            }
            Err(refusal) => Some(refusal),
        };
        match (call.await, refusal) {
            (Ok(value), None) => {
                self.shared.acknowledge(self.number);
                Ok(Some(value))
            }
            (Ok(_), Some(refusal)) => Err(Stop::Wrong(format!("{what}: should have failed with {refusal:?}"))),
            (Err(error), Some(refusal)) if refusal.matches(&error) => Ok(None),
            (Err(error), refusal) => {
                self.judge(&what, &error)?;
                if refusal.is_none() {
                    self.shared.withdraw(self.number);
                }
                Ok(None)
            }
        }
    }

    /// Calls the file system for something that changes nothing. `None`: a fault kept it from answering.
    async fn look<T>(
        &mut self,
        what: &str,
        call: impl Future<Output = Result<T, FileError>>,
    ) -> Result<Option<T>, Stop> {
        match call.await {
            Ok(value) => {
                self.shared.state().summary.looks += 1;
                Ok(Some(value))
            }
            Err(error) => {
                self.log(&format!("{what} failed: {error}"));
                match self.shared.judge(&error) {
                    Judgement::Trouble if self.shared.is_powered() => Ok(None),
                    Judgement::Trouble => Err(Stop::Over),
                    // A look needs no room.
                    _ => Err(Stop::Wrong(format!("{what} failed: {error}"))),
                }
            }
        }
    }

    /// `Ok`: the operation did not happen for want of room.
    fn judge(&self, what: &str, error: &FileError) -> Done {
        self.log(&format!("{what} failed: {error}"));
        match self.shared.judge(error) {
            Judgement::NotDone => {
                self.shared.state().summary.refused += 1;
                Ok(())
            }
            Judgement::Trouble => {
                self.shared.state().summary.refused += 1;
                Err(Stop::Over)
            }
            Judgement::Wrong => Err(Stop::Wrong(format!("{what} failed without reason: {error}"))),
        }
    }

    fn file(&self, model: &Model, key: Key) -> FileId {
        model.node(key).file.expect("the model that a client sees has only acknowledged nodes")
    }

    fn node(&self, model: &Model, key: Key) -> FileNode {
        FileNode::live(self.file(model, key))
    }

    fn any_directory(&mut self, model: &Model) -> Key {
        let directories = model.directories();
        self.random.pick(&directories)
    }

    fn any_file(&mut self, model: &Model) -> Option<Key> {
        self.random.pick_any(&model.regular_files())
    }

    /// Some name that exists.
    fn any_name(&mut self, model: &Model) -> Option<(Key, Name)> {
        let names = model.names();
        if names.is_empty() { None } else { Some(names[self.random.index(names.len())].clone()) }
    }

    /// A name for something new; it may exist already.
    fn new_name(&mut self) -> Name {
        match self.random.below(40) {
            0 => vec![b'x'; 255],
            1 => b"\xff\xfe not text \x01\n".to_vec(),
            2 => b".hidden".to_vec(),
            3 => format!("{:0>200}", self.random.below(9)).into_bytes(),
            4 => vec![b'y'; 256],
            _ => format!("n{}", self.random.below(24)).into_bytes(),
        }
    }

    /// Whether this call is to be lied about (a test of the oracle).
    fn lies(&mut self, about: Sabotage) -> bool {
        let one_in = match about {
            // It shows only if a crash comes between the halves.
            Sabotage::TearUnits => 1,
            // It shows only if the next crash comes before anyone else's sync.
            Sabotage::SkipSyncs => 2,
            _ => 6,
        };
        self.shared.plan.sabotage == Some(about) && self.random.one_in(one_in)
    }

    fn place(&self, model: &Model, parent: Key, name: &[u8]) -> String {
        format!("{}/{}", model.path(parent), show(name))
    }

    fn is_tight(&self) -> bool {
        self.shared.plan.trouble == Trouble::Full
    }
}
