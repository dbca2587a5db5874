//! Sending a snapshot.

use std::collections::HashSet;
use std::io::Write;

use base::id::ChunkAddress;
use foldhash::fast::FixedState;
use store::{Class, Parcel};

use super::format::{Head, PART_BYTES, Part};
use super::surplus::Surplus;
use super::{Held, TransferError, count_of, identity, place, stream_of};
use crate::failure::FileError;
use crate::format::SnapshotValue;
use crate::system::FileSystem;

/// Addresses in each of two sets, 9 MiB: of 8 GiB of content, about, or of all that differs if it is less. The order of a stream depends on it, so it
/// is no setting: a place in a stream means the same tomorrow.
const REMEMBERED_MAX: usize = 200_000;

/// What to send.
#[derive(Clone, Copy)]
pub struct Sending<'a> {
    /// The name of the snapshot.
    pub snapshot: &'a str,
    /// The name of one that the receiver has; none: it has nothing.
    pub from: Option<&'a str>,
    /// The place at which a stream that was cut is to go on, as the receiver said.
    pub resume: Option<&'a str>,
    /// Hears how far it is.
    pub tell: &'a (dyn Fn(&Sent) + Sync),
}

/// What went, or would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Chunks.
    pub chunks: u64,
    /// Of them, those of trees and attributes.
    pub metadata_chunks: u64,
    /// Chunks before the place at which it goes on.
    pub skipped: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

/// Addresses, up to a bound.
type Addresses = HashSet<ChunkAddress, FixedState>;

impl FileSystem {
    /// Writes a snapshot, or what it has and the one before has not, for [`FileSystem::receive`] of another node. Nothing of it is read for
    /// `None`: then it is said what would go.
    ///
    /// # Errors
    /// `NoSnapshot`, `NoSuchPlace`, `Output`, or the store's. The receiver sees that a stream did not come to its end.
    pub async fn send<'a>(
        &'a self,
        how: &Sending<'a>,
        sink: Option<&'a mut (dyn Write + Send)>,
    ) -> Result<Sent, TransferError> {
        let _place = place(&self.sends)?;
        let this = self.hold_named(how.snapshot).await?;
        let base = match how.from {
            Some(from) => Some(self.hold_named(from).await?),
            None => None,
        };
        let base = base.as_ref().map(|base| &base.value);
        let key = self.store.key();
        let identities = (identity(&this.value, key), base.map(|base| identity(base, key)));
        let first = match how.resume {
            None => 0,
            Some(token) => count_of(token, &stream_of(&identities.0, identities.1.as_ref(), key))
                .ok_or_else(|| TransferError::NoSuchPlace(token.to_owned()))?,
        };
        let head = Head { identity: identities.0, base: identities.1, first, snapshot: this.value.clone() };
        let head = head.encode(key);
        let mut out = Out { system: self, sink, sent: Sent::default(), tell: how.tell };
        out.write(&head)?;
        let count = self.send_chunks(&mut out, (&this.value, base), first).await?;
        if count < first {
            return Err(TransferError::NoSuchPlace(how.resume.unwrap_or_default().to_owned()));
        }
        out.write(&Part::end(count, &head, key).encode())?;
        out.flush()?;
        Ok(out.sent)
    }

    async fn hold_named(&self, name: &str) -> Result<Held<'_>, TransferError> {
        let held = self.hold(|value| value.name == name).await;
        held.ok_or_else(|| TransferError::NoSnapshot(name.to_owned()))
    }

    /// Gives their number, with those that were skipped.
    async fn send_chunks(
        &self,
        out: &mut Out<'_>,
        (this, base): (&SnapshotValue, Option<&SnapshotValue>),
        first: u64,
    ) -> Result<u64, TransferError> {
        let had = match base {
            Some(base) => self.only_before(base, this).await?,
            None => Addresses::default(),
        };
        let (mut sent, mut count) = (Addresses::default(), 0);
        let mut surplus = Surplus::new(&self.trees, this, base);
        while let Some((class, address)) = surplus.next().await? {
            if self.is_ending() {
                return Err(FileError::Busy("the node is being closed").into());
            }
            if sent.len() >= REMEMBERED_MAX {
                // What is forgotten goes again where it is shared.
                sent.clear();
            }
            if had.contains(&address) || !sent.insert(address) {
                continue;
            }
            count += 1;
            if count <= first {
                out.sent.skipped += 1;
            } else {
                out.send(class, &address).await?;
            }
        }
        Ok(count)
    }

    /// What the one before has and this one has not in the same place: what moved from there is not sent. A part of it, if it is much.
    async fn only_before(&self, base: &SnapshotValue, this: &SnapshotValue) -> Result<Addresses, TransferError> {
        let mut found = Addresses::default();
        let mut surplus = Surplus::new(&self.trees, base, Some(this));
        while let Some((_, address)) = surplus.next().await? {
            if found.len() >= REMEMBERED_MAX || self.is_ending() {
                break;
            }
            found.insert(address);
        }
        Ok(found)
    }
}

/// Where a stream goes.
struct Out<'a> {
    system: &'a FileSystem,
    sink: Option<&'a mut (dyn Write + Send)>,
    sent: Sent,
    tell: &'a (dyn Fn(&Sent) + Sync),
}

impl Out<'_> {
    async fn send(&mut self, class: Class, address: &ChunkAddress) -> Result<(), TransferError> {
        if self.sink.is_some() {
            let parcel = self.system.store.parcel(class, address).await?;
            let Parcel { class, packing, raw, address, payload } = parcel;
            let stored = u32::try_from(payload.len()).expect("a chunk is at most 1 MiB");
            self.write(&Part::Chunk { class, packing, raw, stored, address }.encode())?;
            self.write(&payload)?;
            self.system.counters.chunks_sent.add(1);
        } else {
            self.sent.bytes += PART_BYTES as u64 + self.system.store.parcel_bytes(address).unwrap_or_default();
        }
        self.sent.chunks += 1;
        self.sent.metadata_chunks += u64::from(class == Class::Metadata);
        (self.tell)(&self.sent);
        Ok(())
    }

    /// Nobody's grace is used: who reads the stream may take his time (I-90).
    fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.sent.bytes += bytes.len() as u64;
        let Some(sink) = &mut self.sink else { return Ok(()) };
        self.system.counters.sent_bytes.add(bytes.len() as u64);
        sink.write_all(bytes).map_err(TransferError::Output)
    }

    fn flush(&mut self) -> Result<(), TransferError> {
        self.sink.as_mut().map_or(Ok(()), |sink| sink.flush()).map_err(TransferError::Output)
    }
}
