//! A part of a batch that is read: the files whose content is known by now, and the chunks that they want, each told to the file that wants it.
//!
//! Not here: finding out what files want, and reading it (`read`).

use base::id::{ChunkAddress, Version};
use bytes::Bytes;
use store::{Ordered, OrderedRoom, StoreError};

use crate::attributes::{Attributes, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::read::Settled;

/// A piece of content that came.
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) content: Bytes,
    /// Of the chunk that it is of, which it keeps.
    chunk_bytes: u64,
    _room: OrderedRoom,
}

/// A file of a part.
pub(super) struct Wanted {
    /// Its number in the batch.
    pub(super) index: u32,
    pub(super) node: Node,
    pub(super) attributes: Attributes,
    /// Of the moment that its content is of.
    pub(super) version: Version,
    /// Pieces that have not come.
    missing: u32,
    pieces: Vec<Piece>,
    state: Fate,
}

/// How a file fares.
#[derive(Clone, Debug)]
enum Fate {
    Waits,
    /// A chunk of it cannot be read.
    Failed(StoreError),
    /// It is done with, or read by itself later.
    Over,
}

/// Where a chunk goes.
struct Target {
    file: u32,
    skip: u32,
    offset: u64,
    length: u32,
}

/// What came of a chunk.
pub(super) enum Came {
    /// More is to come of that file.
    Piece,
    /// It was the last of a file: all pieces, in order, or why not.
    Whole(Box<Wanted>, Result<Vec<Piece>, FileError>),
}

/// A part of a batch.
#[derive(Default)]
pub(super) struct Part {
    files: Vec<Option<Wanted>>,
    targets: Vec<Target>,
    addresses: Vec<ChunkAddress>,
    /// Files without content on the disks.
    pub(super) empty: Vec<Wanted>,
    /// Files that are read by themselves, by number.
    pub(super) alone: Vec<u32>,
    /// And those that cannot be read.
    pub(super) failed: Vec<(u32, FileError)>,
    /// Bytes of content in files that wait for more.
    held: u64,
}

impl Part {
    /// Bytes that it takes in memory, beside content.
    pub(super) fn bytes(&self) -> u64 {
        let of_chunks = (size_of::<Target>() + size_of::<Piece>()) as u64 + Ordered::list_bytes();
        let files = (self.files.len() + self.empty.len()) * size_of::<Option<Wanted>>();
        let others = self.alone.len() * size_of::<u32>() + self.failed.len() * size_of::<(u32, FileError)>();
        self.targets.len() as u64 * of_chunks + (files + others) as u64
    }

    /// Takes a file in, with where its content lies.
    pub(super) fn add(
        &mut self,
        index: u32,
        node: Node,
        (attributes, version): (Attributes, Version),
        settled: Vec<Settled>,
    ) {
        let file = u32::try_from(self.files.len()).expect("fewer than a batch has");
        let first = self.targets.len();
        for (range, extent) in settled {
            let Extent::Chunk { address, skip, .. } = extent else { continue };
            let length = u32::try_from(range.end - range.start).expect("no longer than a chunk");
            self.targets.push(Target { file, skip, offset: range.start, length });
            self.addresses.push(address);
        }
        let missing = u32::try_from(self.targets.len() - first).expect("a bounded list");
        let wanted = Wanted { index, node, attributes, version, missing, pieces: Vec::new(), state: Fate::Waits };
        if missing == 0 {
            self.empty.push(wanted);
        } else {
            self.files.push(Some(wanted));
        }
    }

    /// What is to be read.
    pub(super) fn take_addresses(&mut self) -> Vec<ChunkAddress> {
        std::mem::take(&mut self.addresses)
    }

    /// A chunk came. Files that wait for more keep no more than so many bytes: a file that would is read by itself.
    pub(super) fn came(
        &mut self,
        number: usize,
        content: Result<Bytes, StoreError>,
        room: OrderedRoom,
        held_max: u64,
    ) -> Came {
        let target = &self.targets[number];
        let place = &mut self.files[target.file as usize];
        let file = place.as_mut().expect("it waits for this");
        file.missing -= 1;
        if !matches!(file.state, Fate::Over) {
            match content.and_then(|content| Ok((content.len() as u64, piece_of(&content, target)?))) {
                Ok((chunk_bytes, content)) => {
                    self.held += chunk_bytes;
                    file.pieces.push(Piece { offset: target.offset, content, chunk_bytes, _room: room });
                }
                Err(error) => file.state = Fate::Failed(error),
            }
        }
        if file.missing > 0 {
            if self.held > held_max {
                self.held -= file.held();
                file.pieces.clear();
                self.alone.extend((!matches!(file.state, Fate::Over)).then_some(file.index));
                file.state = Fate::Over;
            }
            return Came::Piece;
        }
        let mut file = place.take().expect("it is there");
        self.held -= file.held();
        let mut pieces = std::mem::take(&mut file.pieces);
        pieces.sort_unstable_by_key(|piece| piece.offset);
        match std::mem::replace(&mut file.state, Fate::Over) {
            Fate::Waits => Came::Whole(Box::new(file), Ok(pieces)),
            Fate::Failed(error) => Came::Whole(Box::new(file), Err(error.into())),
            Fate::Over => Came::Piece,
        }
    }
}

impl Wanted {
    fn held(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.chunk_bytes).sum()
    }
}

/// The piece of a chunk that a file has.
fn piece_of(content: &Bytes, target: &Target) -> Result<Bytes, StoreError> {
    let start = target.skip as usize;
    let end = start + target.length as usize;
    if end > content.len() {
        let error = base::codec::Reader::new(content).refuse("extent within its chunk");
        return Err(crate::system::undecodable("extent", format!("offset {}", target.offset), error));
    }
    Ok(content.slice(start..end))
}
