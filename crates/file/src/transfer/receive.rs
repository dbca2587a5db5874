//! Receiving a snapshot.

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use base::codec::Writer;
use base::id::FileId;
use bytes::Bytes;
use store::{Moment, Parcel, StoreError};

use super::format::{Head, NoHead, PART_BYTES, Part, START_BYTES};
use super::levels::Levels;
use super::surplus::Surplus;
use super::{TransferError, identity, place, stream_of, token};
use crate::attributes::Kind;
use crate::commit::RootsChange;
use crate::failure::FileError;
use crate::format::SnapshotValue;
use crate::left_out::Whole;
use crate::receipts::{Arrived, Receipt};
use crate::snapshot::{Snapshot, check_snapshot_name};
use crate::system::{FileSystem, decode_branch};
use crate::tree::Edits;

/// Content that is verified and put together, on all cores.
const BATCH_BYTES: u64 = 2 << 20;
/// Chunks of a batch: of tree nodes many make little.
const BATCH_CHUNKS: usize = 256;
/// After so many bytes what came is made durable: a stream that is cut goes on there.
const SETTLE_BYTES: u64 = 64 << 20;

/// How to receive.
#[derive(Clone, Copy)]
pub struct Receiving<'a> {
    /// The name that the snapshot gets; none: the one that it had.
    pub name: Option<&'a str>,
    /// Hears how far it is.
    pub tell: &'a (dyn Fn(&Received) + Sync),
}

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Chunks.
    pub chunks: u64,
    /// Of them, those that were here already.
    pub had: u64,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Chunks that were stored anew because files ask for more than the settings do.
    pub raised: u64,
    /// Files that ask for more than there are disks for: their content lies as the settings say.
    pub unmet: u64,
}

/// A stream that is being read.
struct Incoming<'a> {
    source: &'a mut (dyn Read + Send),
    received: Received,
    batch: Vec<Parcel>,
    batch_bytes: u64,
    /// Number of the next chunk that is put.
    number: u64,
    unsettled: u64,
    receipt: Arc<Receipt>,
    /// What of it was durable when it was settled last, and a moment before what came since.
    kept: Arrived,
    since: Moment,
}

impl FileSystem {
    /// Reads what [`FileSystem::send`] wrote, and makes the snapshot, durable when this returns (I-114).
    ///
    /// # Errors
    /// `NoStream`, `OtherDomain`, `NoBase`, and `Exists` for the name: nothing was changed. `Cut`: what came is kept for a while.
    /// `Incomplete`, or the store's.
    pub async fn receive(
        &self,
        how: &Receiving<'_>,
        source: &mut (dyn Read + Send),
    ) -> Result<(Snapshot, Received), TransferError> {
        let _place = place(&self.receives)?;
        let key = self.store.key();
        let bytes = read_head(source)?;
        let Head { identity: sent, base, first, mut snapshot } =
            Head::decode(&bytes, key).map_err(|why| explain(why, &key.identity()))?;
        if let Some(name) = how.name {
            name.clone_into(&mut snapshot.name);
        }
        check_snapshot_name(&snapshot.name)?;
        if self.find_snapshot(snapshot.name.as_bytes()).is_some() {
            return Err(FileError::Exists.into());
        }
        if identity(&snapshot, key) != sent {
            return Err(TransferError::NoStream("its head says two things about the snapshot".to_owned()));
        }
        let base_held = match base {
            None => None,
            Some(base) => Some(self.hold(|value| identity(value, key) == base).await.ok_or(TransferError::NoBase)?),
        };
        let stream = stream_of(&sent, base.as_ref(), key);
        let receipt = self.receipts.begin(stream);
        if receipt.arrived().count != receipt.arrived().durable {
            // Who began it did not come to an end, and nobody settled what came.
            receipt.note(Arrived::default());
        }
        let mut incoming = Incoming {
            source,
            received: Received { bytes: bytes.len() as u64, ..Received::default() },
            batch: Vec::new(),
            batch_bytes: 0,
            number: first,
            unsettled: 0,
            receipt: receipt.clone(),
            kept: receipt.arrived(),
            since: self.store.moment(),
        };
        let arrived = self.take_all(&mut incoming, &bytes, how).await;
        if matches!(arrived, Err(Stop::Stream(_))) {
            // What came before the cut. Of a batch that is wrong nothing is left.
            let _ = self.put_arrived(&mut incoming).await;
        }
        let mut received = std::mem::take(&mut incoming.received);
        self.counters.received_bytes.add(received.bytes);
        let arrived = match arrived {
            Err(Stop::Stream(why)) => return Err(self.cut(&mut incoming, why, &stream).await),
            Err(Stop::Failed(error)) => Err(error.into()),
            Ok(()) => self.make_received(snapshot, base_held.as_ref().map(|base| &base.value), &mut received).await,
        };
        if arrived.is_err() {
            // Who brings the rest goes on from what is durable.
            let _ = self.settle_arrived(&mut incoming).await;
        }
        if let Ok(_) | Err(TransferError::File(FileError::NoSpace) | TransferError::Incomplete(_)) = &arrived {
            // Who goes on from it would not bring what is missing.
            self.receipts.end(&receipt);
        }
        if arrived.is_err() {
            // What came may be what fills the disks.
            self.note_dropped(received.bytes);
        }
        arrived.map(|snapshot| (snapshot, received))
    }

    /// Puts every chunk of a stream, to its end.
    async fn take_all(&self, incoming: &mut Incoming<'_>, head: &[u8], how: &Receiving<'_>) -> Result<(), Stop> {
        loop {
            if self.is_ending() {
                return Err(Stop::Stream("the node is being closed".to_owned()));
            }
            let part = incoming.read(PART_BYTES)?;
            let damaged = |error: base::codec::DecodeError| Stop::Stream(format!("it is damaged: {error}"));
            match Part::decode(&part).map_err(damaged)? {
                Part::Chunk { class, packing, raw, stored, address } => {
                    let payload = Bytes::from(incoming.read(stored as usize)?);
                    incoming.batch.push(Parcel { class, packing, raw, address, payload });
                    incoming.batch_bytes += u64::from(raw);
                    if incoming.batch_bytes >= BATCH_BYTES || incoming.batch.len() >= BATCH_CHUNKS {
                        self.put_arrived(incoming).await?;
                        (how.tell)(&incoming.received);
                    }
                }
                end @ Part::End { count, .. } => {
                    self.put_arrived(incoming).await?;
                    if end != Part::end(count, head, self.store.key()) || count != incoming.number {
                        let why = format!("its end is not right: {count} chunks it says, and {} came", incoming.number);
                        return Err(Stop::Stream(why));
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Puts what was read, and notes it in the receipt before anybody can take it for unneeded (I-113).
    async fn put_arrived(&self, incoming: &mut Incoming<'_>) -> Result<(), Stop> {
        let batch = std::mem::take(&mut incoming.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let numbers = incoming.number..;
        let entry = |(number, parcel): (u64, &Parcel)| {
            let mut writer = Writer::with_capacity(32);
            writer.address(&parcel.address);
            (number, Some(writer.into_bytes()))
        };
        let edits: Edits = numbers.zip(&batch).map(entry).collect();
        let (count, bytes) = (batch.len() as u64, std::mem::take(&mut incoming.batch_bytes));
        let mut arrived = incoming.receipt.arrived();
        let mut has_made_room = false;
        let new = loop {
            let grace = self.grace.enter(incoming.number);
            let new = match self.store.put_parcels(batch.clone()).await {
                // What was put of it and is in no receipt may go.
                Err(StoreError::Full { .. }) if !has_made_room => {
                    drop(grace);
                    has_made_room = true;
                    self.make_room().await.map_err(Stop::of)?;
                    continue;
                }
                put => put.map_err(Stop::of)?,
            };
            arrived.arrivals = self.trees.update(&arrived.arrivals, edits, 0).await.map_err(Stop::of)?;
            incoming.number += count;
            arrived.count = arrived.count.max(incoming.number);
            arrived.touched = self.platform.clock.elapsed();
            incoming.receipt.note(arrived);
            break new;
        };
        self.counters.chunks_received.add(count);
        incoming.received.chunks += count;
        incoming.received.had += count - new;
        incoming.unsettled += bytes;
        if incoming.unsettled >= SETTLE_BYTES {
            incoming.unsettled = 0;
            self.settle_arrived(incoming).await.map_err(Stop::of)?;
        }
        Ok(())
    }

    /// Makes durable all that the receipt names. Where that fails it names what was durable before, and the rest comes again.
    async fn settle_arrived(&self, incoming: &mut Incoming<'_>) -> Result<(), FileError> {
        let (arrived, next) = (incoming.receipt.arrived(), self.store.moment());
        let settled = self.store.settle(incoming.since).await;
        if settled.is_ok() {
            (incoming.kept, incoming.since) = (Arrived { durable: arrived.count, ..arrived }, next);
        }
        incoming.receipt.note(incoming.kept.clone());
        Ok(settled?)
    }

    /// What came is made durable, so that it need not come again.
    async fn cut(&self, incoming: &mut Incoming<'_>, why: String, stream: &[u8; 32]) -> TransferError {
        // What is not durable comes again.
        let _ = self.settle_arrived(incoming).await;
        let chunks = incoming.receipt.arrived().durable;
        TransferError::Cut { why, chunks, token: token(stream, chunks) }
    }

    /// I-114. From the look at what is here until it has a name no reclaim takes anything away.
    async fn make_received(
        &self,
        snapshot: SnapshotValue,
        base: Option<&SnapshotValue>,
        received: &mut Received,
    ) -> Result<Snapshot, TransferError> {
        let _no_reclaim = self.without_passes().await;
        let since = self.store.moment();
        self.expect_all(&snapshot, base).await?;
        let Levels { raised, unmet } = self.raise_received(&snapshot, base).await?;
        (received.raised, received.unmet) = (raised, unmet);
        let _change = self.snapshot_change.lock().await;
        let name = snapshot.name.clone();
        if self.find_snapshot(name.as_bytes()).is_some() {
            return Err(FileError::Exists.into());
        }
        self.commit_with(Some(RootsChange::Receive(since, Box::new(snapshot))), Whole::AsFarAsRead).await?;
        // I-103.
        let _ = self.store.renew_root().await;
        let made = self.snapshots().into_iter().find(|snapshot| snapshot.name == name);
        Ok(made.ok_or(FileError::Stale)?)
    }

    /// Whether all that a snapshot needs is here, if all that the one before needs is.
    async fn expect_all(&self, snapshot: &SnapshotValue, base: Option<&SnapshotValue>) -> Result<(), TransferError> {
        let missing = |error: FileError| match error.is_loss() {
            true => TransferError::Incomplete(error.to_string()),
            false => TransferError::File(error),
        };
        let mut surplus = Surplus::new(&self.trees, snapshot, base);
        while let Some((_, address)) = surplus.next().await.map_err(|error| missing(error.into()))? {
            self.refuse_if_ending()?;
            if !self.store.has(&address).await {
                return Err(TransferError::Incomplete(address.to_string()));
            }
        }
        let catalog = match snapshot.root.branch {
            0 => Some(snapshot.catalog.clone()),
            // It was of a directory in a clone, whose files are in a catalog of their own.
            branch => {
                let found = self.trees.get(&snapshot.branches, u64::from(branch)).await;
                let found = found.map_err(|error| missing(error.into()))?;
                let decoded = found.map(|bytes| decode_branch(u64::from(branch), &bytes)).transpose();
                decoded.map_err(|error| missing(error.into()))?.map(|(_, branch)| branch.catalog)
            }
        };
        let root = match &catalog {
            Some(catalog) => self.load(catalog, snapshot.root).await.map_err(missing)?,
            None => None,
        };
        match root {
            Some(root) if root.attributes.kind == Kind::Directory => Ok(()),
            _ => Err(TransferError::Incomplete(words_of(snapshot.root))),
        }
    }
}

fn words_of(root: FileId) -> String {
    format!("the directory that it shows ({root})")
}

/// Why a stream is not read on.
enum Stop {
    /// It ended too early, or is damaged.
    Stream(String),
    /// This node failed.
    Failed(FileError),
}

impl Stop {
    /// A chunk that is not what it says is the stream's failure, anything else this node's.
    fn of(error: impl Into<FileError>) -> Stop {
        match error.into() {
            FileError::Store(
                error @ (StoreError::TooLarge { .. } | StoreError::Corrupt { what: "a chunk that was sent", .. }),
            ) => Stop::Stream(error.to_string()),
            error => Stop::Failed(error),
        }
    }
}

impl Incoming<'_> {
    /// Exactly so many bytes; the caller has compared them with a limit.
    fn read(&mut self, count: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; count];
        self.source.read_exact(&mut bytes).map_err(|error| Stop::Stream(words(&error)))?;
        self.received.bytes += count as u64;
        Ok(bytes)
    }
}

fn words(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it ended too early".to_owned(),
        _ => format!("it cannot be read: {error}"),
    }
}

fn read_head(source: &mut (dyn Read + Send)) -> Result<Vec<u8>, TransferError> {
    let cannot = |error: std::io::Error| TransferError::NoStream(words(&error));
    let mut head = vec![0; START_BYTES];
    source.read_exact(&mut head).map_err(cannot)?;
    let length = Head::bytes(&head).map_err(|why| explain(why, &[0; 32]))?;
    head.resize(length, 0);
    source.read_exact(&mut head[START_BYTES..]).map_err(cannot)?;
    Ok(head)
}

fn explain(why: NoHead, ours: &[u8; 32]) -> TransferError {
    let short = |domain: &[u8; 32]| domain[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match why {
        NoHead::Foreign => TransferError::NoStream("it is no stream of `hydrafs send`".to_owned()),
        NoHead::Version(version) => {
            TransferError::NoStream(format!("it is a stream of version {version}, which this program does not know"))
        }
        NoHead::OtherDomain(domain) => TransferError::OtherDomain([short(&domain), short(ours)]),
        NoHead::Damaged(error) => TransferError::NoStream(format!("its head is damaged: {error}")),
    }
}
