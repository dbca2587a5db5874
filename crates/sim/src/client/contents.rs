//! Operations on the content of files.

use file::{Allocate, AttributeChange, FileError, View};

use super::{Client, Done};
use crate::content::Content;
use crate::model::{Key, Model};
use crate::plan::Sabotage;
use crate::shared::Stop;

impl Client {
    pub(super) async fn write(&mut self) -> Done {
        if self.shared.plan.streams && self.random.one_in(4) {
            return self.write_stream().await;
        }
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        let size = model.node(key).content.size();
        let most = if self.is_tight() { 256 << 10 } else { 128 << 10 };
        let length = if self.is_tight() && self.random.one_in(2) { most } else { self.random.length(most) };
        let offset = match self.random.below(6) {
            0 | 1 => size,
            2 => size + self.random.below(100_000),
            3 => 0,
            _ => self.random.below(size + 1),
        };
        self.write_at(key, offset, length).await
    }

    /// Many writes in a row at the end of a file.
    pub(super) async fn write_stream(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        let length = self.random.pick(&[4 << 10, 32 << 10, 60_000]);
        let writes = if self.shared.plan.streams { 60 } else { 10 };
        for _ in 0..2 + self.random.below(writes) {
            let size = self.model().node(key).content.size();
            self.write_at(key, size, length).await?;
        }
        Ok(())
    }

    async fn write_at(&mut self, key: Key, offset: u64, length: u64) -> Done {
        if offset + length > self.file_bytes_max {
            return Ok(());
        }
        let mut model = self.model();
        let data = self.random.content(length);
        let what = format!("write {length} bytes at {offset} of {}", model.path(key));
        let (system, file) = (self.system.clone(), self.file(&model, key));
        model.content_mut(key).write(offset, &data);
        let lies = self.lies(Sabotage::ForgetWrites);
        let call = async {
            match (lies, self_clears(length)) {
                (true, _) => Ok(()),
                // As who fills a buffer of ours, which takes set-id bits away.
                (false, true) if offset.is_multiple_of(2) => {
                    let fill = |buffer: &mut [u8]| {
                        buffer.copy_from_slice(&data);
                        data.len()
                    };
                    system.write_by(file, offset, data.len(), fill).await.map(drop)
                }
                (false, clears_set_id) => system.write(file, offset, &data, clears_set_id).await,
            }
        };
        let before = self.shared.platform.clock.now();
        if self.change(what, Ok(model), None, call).await?.is_some()
            && self.random.one_in(10)
            && !self.shared.plan.steps_clock
            && !lies
        {
            let after = self.shared.platform.clock.now();
            let node = file::Node::live(file);
            if let Some(found) = self.look("stat", self.system.clone().attributes(node)).await?
                && (found.modified < before || found.modified > after || found.changed != found.modified)
            {
                let what = format!("written between {before:?} and {after:?}, but the times are {found:?}");
                return Err(Stop::Wrong(what));
            }
        }
        Ok(())
    }

    pub(super) async fn truncate(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        let old = model.node(key).content.size();
        let size = match self.random.below(6) {
            0 => 0,
            1 => old,
            2 => (old + self.random.below(50_000)).min(self.file_bytes_max),
            3 => old.saturating_sub(1 + self.random.below(10)),
            _ => self.random.below(old + 1),
        };
        let mut changed = model.clone();
        changed.content_mut(key).truncate(size);
        let what = format!("truncate {} from {old} to {size}", model.path(key));
        let (system, file) = (self.system.clone(), self.file(&model, key));
        let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
        let call = system.set_attributes(file, &change);
        if let Some(attributes) = self.change(what, Ok(changed), None, call).await? {
            self.expect_attributes(key, &attributes).await?;
        }
        Ok(())
    }

    pub(super) async fn allocate(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        let size = model.node(key).content.size();
        let offset = self.random.below(size + 10_000);
        let length = self.random.length(80_000);
        let end = (offset + length).min(self.file_bytes_max);
        if end <= offset {
            return Ok(());
        }
        let keep_size = self.random.one_in(2);
        let how = match self.random.below(4) {
            0 => Allocate::Reserve { keep_size },
            1 => Allocate::Zero { keep_size },
            _ => Allocate::Punch,
        };
        let mut changed = model.clone();
        allocate(changed.content_mut(key), how, offset, end);
        let what = format!("{how:?} {offset}..{end} of {} ({size} bytes)", model.path(key));
        let (system, file) = (self.system.clone(), self.file(&model, key));
        self.change(what, Ok(changed), None, system.allocate(file, how, offset, end - offset)).await?;
        Ok(())
    }

    /// copy_file_range between two files, or within one.
    pub(super) async fn copy(&mut self) -> Done {
        let model = self.model();
        let (Some(from), Some(to)) = (self.any_file(&model), self.any_file(&model)) else { return Ok(()) };
        let source = model.node(from).content.clone();
        let from_node = self.node(&model, from);
        self.copy_between(from_node, &source, to, &model.path(from)).await
    }

    /// The same with a source in a snapshot.
    pub(super) async fn copy_from_snapshot(&mut self) -> Done {
        let model = self.model();
        let Some(to) = self.any_file(&model) else { return Ok(()) };
        let Some((name, old)) = self.any_snapshot() else { return Ok(()) };
        let Some(from) = self.any_file(&old) else { return Ok(()) };
        let Some(file::Node { view, .. }) = self.system.find_snapshot(name.as_bytes()) else {
            return Ok(());
        };
        let source = old.node(from).content.clone();
        let from_node = file::Node { view, file: self.file(&old, from) };
        assert!(view != View::LIVE, "a snapshot has a view of its own");
        self.copy_between(from_node, &source, to, &format!(".snapshots/{name}{}", old.path(from))).await
    }

    /// A snapshot that is there, and this client's directory in it.
    pub(super) fn any_snapshot(&mut self) -> Option<(String, Model)> {
        let taken: Vec<_> = {
            let state = self.shared.state();
            let kept = state.snapshots.iter().filter(|kept| !kept.is_leaving);
            kept.filter_map(|kept| Some((kept.name.clone(), kept.models.get(self.number)?.clone()))).collect()
        };
        if taken.is_empty() { None } else { Some(taken[self.random.index(taken.len())].clone()) }
    }

    async fn copy_between(&mut self, from: file::Node, source: &Content, to: Key, shown: &str) -> Done {
        let model = self.model();
        let node = self.node(&model, to);
        let size = model.node(to).content.size();
        let from_offset = self.random.below(source.size() + 1);
        let wanted = self.random.length(source.size().max(1));
        let length = wanted.min(source.size() - from_offset);
        let to_offset = if self.random.one_in(2) { size } else { self.random.below(size + 5_000) };
        let overlaps = from == node && from_offset < to_offset + length && to_offset < from_offset + length;
        if to_offset + length > self.file_bytes_max || overlaps {
            return Ok(());
        }
        let mut changed = model.clone();
        if length > 0 {
            changed.content_mut(to).copy(source, from_offset, to_offset, length);
        }
        let what = format!("copy {from_offset}+{length} of {shown} to {to_offset} of {}", model.path(to));
        let system = self.system.clone();
        let shared = self.shared.clone();
        let is_snapshot = from.view != View::LIVE;
        let call = async {
            match system.copy_range(from, from_offset, node.file, to_offset, wanted).await {
                // The keeper deleted the snapshot meanwhile: as if there had been no room.
                Err(FileError::Stale | FileError::NoEntry) if is_snapshot => Ok(None),
                Ok(copied) => Ok(Some(copied)),
                Err(error) => Err(error),
            }
        };
        match self.change(what, Ok(changed), None, call).await? {
            Some(Some(copied)) if copied != length => {
                Err(Stop::Wrong(format!("copied {copied} bytes of {shown}, not {length}")))
            }
            Some(None) => {
                shared.withdraw(self.number);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Half of the writes are those of a user who may not keep set-id bits. No file here has any.
fn self_clears(length: u64) -> bool {
    length.is_multiple_of(2)
}

fn allocate(content: &mut Content, how: Allocate, offset: u64, end: u64) {
    match how {
        Allocate::Punch => content.punch(offset..end),
        Allocate::Reserve { keep_size } => {
            content.allocate(offset..end);
            if !keep_size {
                content.grow(end);
            }
        }
        Allocate::Zero { keep_size } => {
            content.punch(offset..end);
            content.allocate(offset..end);
            if !keep_size {
                content.grow(end);
            }
        }
    }
}
