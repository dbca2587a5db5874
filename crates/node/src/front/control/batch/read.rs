//! Files and trees that are read into windows.
//!
//! One thread walks ahead; this one describes a group of entries and then has the content of all of its files read, in the order in which
//! it lies on the disks. Who reads slowly holds up the batch and nothing else: a piece waits until a window is given back.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use file::{Attributes, BatchFate, BatchRead, BatchSink, FileError, Kind, Node, Taken, Walked};
use parking_lot::{Condvar, Mutex};
use platform::real::block_on;
use serde_json::{Value, json};

use super::list::List;
use super::{CLOSED, lost};
use crate::control::batch::memory::{Filling, Memory};
use crate::control::batch::wire::{Entry, Leads, PATH_BYTES_MAX, PIECE_HEAD_BYTES, Record, of_root, piece_head};
use crate::control::server::{Brought, Line};
use crate::control::wire::{Answer, BatchReading, Filled, ROOTS_MAX, Turn};
use crate::failure::Failure;
use crate::front::control::Control;
use crate::front::nodes::inode_number;

/// Entries that are described together, and whose content is read together: each group is a pass over the disks, so the more the better.
const LISTED_MAX: usize = 4 << 10;
const READ_MAX: usize = 32 << 10;
/// What memory has of one of them, about: while one group is read the next is found.
const FOUND_BYTES: u64 = 600;
/// Files of several names that are remembered, so that their content is told once: so many bytes of paths, and more where memory is.
const LINKED_BYTES_MIN: u64 = 16 << 20;
/// What one takes beside its path.
const LINKED_BYTES: u64 = 100;
/// Why a file of several names is told of more than once.
const NO_ROOM_FOR_LINKS: &str = "memory holds no more first names of files that have several: this one, and its further names, are files of their own";
const WHAT: &str = "cannot read a batch";
const TORN: &str = "it was written to each time it was read, and parts of what came may be older than others";
/// Bytes of a path below a root, which has a number in front of it.
const WALKED_BYTES_MAX: usize = PATH_BYTES_MAX - 24;
/// How long a client may take nothing while others wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a walk has found.
struct Found {
    path: Vec<u8>,
    node: Node,
    attributes: Attributes,
}

/// An entry, of what its content is to be read, and whether a further name of it would be a file of its own.
type Described = (Entry, Option<Node>, bool);

/// A walk's next: an entry, or where it could not go on.
type Step = Result<Found, (Vec<u8>, FileError)>;

/// A path of so many bytes at most; of a longer one as many of the directories that it leads through.
fn within(path: &[u8], bytes_max: usize) -> &[u8] {
    match path.get(..=bytes_max) {
        Some(longer) => &path[..longer.iter().rposition(|byte| *byte == b'/').unwrap_or(0)],
        None => path,
    }
}

/// What memory has of a step.
fn bytes_of(step: &Step) -> u64 {
    let path = match step {
        Ok(Found { path, .. }) | Err((path, _)) => path,
    };
    path.len() as u64 + FOUND_BYTES
}

/// What a walk has found and nobody has taken, in bytes: paths are long where somebody wants them to be.
struct Ahead {
    most: u64,
    /// `None`: nobody takes any more.
    bytes: Mutex<Option<u64>>,
    taken: Condvar,
}

impl Ahead {
    fn of(most: u64) -> Ahead {
        Ahead { most, bytes: Mutex::new(Some(0)), taken: Condvar::new() }
    }

    /// Waits for room; false: nobody takes any more. What is larger than all has its turn alone.
    fn take(&self, more: u64) -> bool {
        let mut bytes = self.bytes.lock();
        self.taken.wait_while(&mut bytes, |bytes| bytes.is_some_and(|bytes| bytes > 0 && bytes + more > self.most));
        if let Some(bytes) = &mut *bytes {
            *bytes += more;
        }
        bytes.is_some()
    }

    fn give(&self, taken: u64) {
        if let Some(bytes) = &mut *self.bytes.lock() {
            *bytes = bytes.saturating_sub(taken);
        }
        self.taken.notify_one();
    }
}

/// Who takes what a walk has found. Dropped: nobody does any more.
struct Taker<'a>(&'a Ahead);

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        *self.0.bytes.lock() = None;
        self.0.taken.notify_one();
    }
}

/// The first name of a file that has several, and how many further ones are to come, as far as it is known.
struct First {
    path: Vec<u8>,
    further: u32,
}

/// First names, of files whose further ones may come.
struct Linked {
    names: HashMap<Node, First>,
    bytes: u64,
    bytes_max: u64,
}

impl Linked {
    /// Meets one of so many names. The first one, if this is a further one; `Err`: there is no room to remember this one.
    fn meet(&mut self, node: Node, path: &[u8], links: u32) -> Result<Option<Vec<u8>>, ()> {
        if let Some(first) = self.names.get_mut(&node) {
            first.further -= 1;
            if first.further > 0 {
                return Ok(Some(first.path.clone()));
            }
            let First { path, .. } = self.names.remove(&node).expect("it was just found");
            self.bytes -= path.len() as u64 + LINKED_BYTES;
            return Ok(Some(path));
        }
        let bytes = path.len() as u64 + LINKED_BYTES;
        if links < 2 {
            return Ok(None);
        }
        if self.bytes + bytes > self.bytes_max {
            return Err(());
        }
        self.bytes += bytes;
        self.names.insert(node, First { path: path.to_vec(), further: links - 1 });
        Ok(None)
    }
}

/// A batch that is read.
struct Reader<'a, 'b> {
    control: &'a Control,
    how: &'a BatchReading,
    group_max: usize,
    filler: Mutex<Filler<'a, 'b>>,
    linked: Linked,
    /// The next entry's number.
    next: u64,
    entries: u64,
    lost: u64,
}

impl Control {
    pub(in crate::front::control) fn batch_read(
        &self,
        how: &BatchReading,
        brought: Brought<'_, '_>,
    ) -> Result<Value, Failure> {
        let (memory, line) = self.memory(WHAT, brought, (how.windows, how.window_bytes))?;
        if !(1..=ROOTS_MAX).contains(&how.roots.len()) {
            let why = format!("it is of 1 to {ROOTS_MAX} files and directories, not of {}", how.roots.len());
            return Err(Failure::new(WHAT, why));
        }
        let find = |root: &u64| {
            let why = "the daemon knows no file of this inode number";
            let unknown = || Failure::new(WHAT, why).place(root.to_string()).mend("keep it open meanwhile");
            self.find(*root).ok_or_else(unknown)
        };
        let roots = how.roots.iter().map(find).collect::<Result<Vec<Node>, Failure>>()?;
        let list = how.list.map(|listing| List::read(&memory, &listing, WHAT)).transpose()?;
        if list.is_some() && roots.len() > 1 {
            return Err(Failure::new(WHAT, "a list is of paths below one directory"));
        }
        let filler = Filler::begin(self, memory, line)?;
        let started = self.platform.clock.elapsed();
        let bytes_max = LINKED_BYTES_MIN.max(self.batch_bytes());
        let linked = Linked { names: HashMap::new(), bytes: 0, bytes_max };
        let filler = Mutex::new(filler);
        let group_max = match how.content {
            true => usize::try_from(self.batch_bytes() / FOUND_BYTES)
                .map_or(READ_MAX, |most| most.clamp(LISTED_MAX, READ_MAX)),
            false => LISTED_MAX,
        };
        let mut reader = Reader { control: self, how, group_max, filler, linked, next: 0, entries: 0, lost: 0 };
        let ahead = Ahead::of(group_max as u64 * FOUND_BYTES);
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel(group_max);
            let walker = scope.spawn(|| {
                let send = send;
                self.walk_into(&roots, list.as_ref(), &ahead, &send)
            });
            let read = reader.all(&ahead, receive);
            let walked = walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // What ended the reading ended the walk.
            read.and(walked)
        })?;
        let Reader { filler, entries, lost, .. } = reader;
        let (bytes, failed) = filler.into_inner().finish()?;
        let took: Duration = self.platform.clock.elapsed().saturating_sub(started);
        let seconds = took.as_secs_f64();
        Ok(json!({ "entries": entries, "failed": failed + lost, "bytes": bytes, "seconds": seconds }))
    }

    /// Walks them one after the other, or what is listed of the one: content is read in one order all the same, group by group.
    fn walk_into(
        &self,
        roots: &[Node],
        list: Option<&List>,
        ahead: &Ahead,
        send: &SyncSender<Step>,
    ) -> Result<(), Failure> {
        for (number, root) in roots.iter().enumerate() {
            let mut tell = |step: Result<Walked<'_>, (&[u8], FileError)>| {
                let path_of = |path: &[u8]| of_root(number, within(path, WALKED_BYTES_MAX));
                let step = match step {
                    Ok(Walked { path, .. }) if path.len() > WALKED_BYTES_MAX => {
                        Err((path_of(path), FileError::NameTooLong))
                    }
                    Ok(Walked { path, node, attributes }) => {
                        Ok(Found { path: path_of(path), node, attributes: attributes.clone() })
                    }
                    Err((path, error)) => Err((path_of(path), error)),
                };
                ahead.take(bytes_of(&step)) && send.send(step).is_ok()
            };
            let walked = match list {
                Some(list) => self.walk_list(*root, list, &mut tell),
                None => self.walk(*root, &mut tell),
            };
            match walked {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if roots.len() == 1 || self.is_closed().is_some() => return Err(self.explain(WHAT)(error)),
                // The others are read.
                Err(error) => {
                    let step = Err((of_root(number, b""), error));
                    if !ahead.take(bytes_of(&step)) || send.send(step).is_err() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Reader<'_, '_> {
    fn all(&mut self, ahead: &Ahead, steps: Receiver<Step>) -> Result<(), Failure> {
        // Nobody waits for who reads no more.
        let _taker = Taker(ahead);
        loop {
            let (mut group, mut bytes) = (Vec::new(), 0);
            while group.len() < self.group_max && bytes < ahead.most {
                // Who only lists is told at once what is known.
                let next = match self.how.content || group.is_empty() {
                    true => steps.recv().ok(),
                    false => steps.try_recv().ok(),
                };
                let Some(step) = next else { break };
                ahead.give(bytes_of(&step));
                bytes += bytes_of(&step);
                group.push(step);
            }
            if group.is_empty() {
                return Ok(());
            }
            self.group(group)?;
        }
    }

    fn group(&mut self, group: Vec<Step>) -> Result<(), Failure> {
        if self.how.xattrs {
            let nodes: Vec<Node> = group.iter().flatten().map(|found| found.node).collect();
            block_on(self.control.system.load_together(&nodes));
        }
        let (mut nodes, mut numbers) = (Vec::new(), Vec::new());
        for step in group {
            let described = match step {
                Ok(found) => self.describe(found),
                Err((path, error)) => Err((path, error)),
            };
            let record = match described {
                Ok((entry, content, is_split)) => {
                    if is_split {
                        self.lost += 1;
                        let (path, why) = (entry.path.clone(), NO_ROOM_FOR_LINKS.to_owned());
                        self.filler.get_mut().append(&Record::Lost { path, why }.encode())?;
                    }
                    if let Some(node) = content {
                        nodes.push(node);
                        numbers.push(self.next);
                    }
                    self.next += 1;
                    self.entries += 1;
                    Record::Entry(Box::new(entry))
                }
                Err((path, error)) => {
                    self.lost += 1;
                    Record::Lost { path, why: error.to_string() }
                }
            };
            self.filler.get_mut().append(&record.encode())?;
        }
        self.content(&nodes, &numbers)?;
        self.filler.get_mut().hand_over()
    }

    fn describe(&mut self, found: Found) -> Result<Described, (Vec<u8>, FileError)> {
        let Found { path, node, attributes } = found;
        let described = block_on(async {
            let leads = match attributes.kind {
                Kind::Symlink => Leads::Target(self.control.system.read_link(node).await?.to_vec()),
                _ => Leads::Nothing,
            };
            let mut xattrs = Vec::new();
            if self.how.xattrs {
                for name in self.control.system.xattrs(node).await? {
                    let value = self.control.system.xattr(node, &name).await?;
                    xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
            Ok((leads, xattrs))
        });
        let (mut leads, xattrs) = match described {
            Ok(described) => described,
            Err(error) => return Err((path, error)),
        };
        let mut is_split = false;
        if attributes.kind != Kind::Directory && attributes.links > 1 {
            match self.linked.meet(node, &path, attributes.links) {
                Ok(Some(first)) => leads = Leads::Link(first),
                Ok(None) => {}
                // Who only lists sees that by the numbers.
                Err(()) => is_split = self.how.content,
            }
        }
        let is_read = self.how.content && attributes.kind == Kind::Regular && leads == Leads::Nothing;
        let entry = Entry {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            device: attributes.device,
            links: attributes.links,
            inode: inode_number(node),
            size: attributes.size,
            allocated: attributes.allocated,
            modified: attributes.modified,
            accessed: attributes.accessed,
            changed: attributes.changed,
            leads,
            xattrs,
            ..Entry::new(path, attributes.kind)
        };
        Ok((entry, is_read.then_some(node), is_split))
    }

    fn content(&self, nodes: &[Node], numbers: &[u64]) -> Result<(), Failure> {
        if nodes.is_empty() {
            return Ok(());
        }
        let sink = Sink { filler: &self.filler, numbers };
        let memory = self.control.batch_bytes();
        self.filler.lock().has_memory = true;
        let report = block_on(self.control.system.batch_read(nodes, &BatchRead { memory, sink: &sink }));
        let mut filler = self.filler.lock();
        filler.has_memory = false;
        match &filler.failure {
            Some(failure) => Err(failure.clone()),
            // Files of this group have met no fate, and of the next nobody hears.
            None if !report.is_done => Err(Failure::new(WHAT, CLOSED)),
            None => Ok(()),
        }
    }
}

/// Takes what a batch reads.
struct Sink<'a, 'b, 'c> {
    filler: &'c Mutex<Filler<'a, 'b>>,
    /// Of each file that is read, its entry's number.
    numbers: &'c [u64],
}

impl BatchSink for Sink<'_, '_, '_> {
    fn begin(&self, index: usize, attributes: &Attributes) {
        let begin = Record::Begin { number: self.numbers[index], size: attributes.size };
        // What fails is kept, and the batch ends.
        let _ = self.filler.lock().append(&begin.encode());
    }

    fn piece(&self, index: usize, offset: u64, content: Bytes) -> Taken<'_> {
        let taken = self.filler.lock().piece(self.numbers[index], offset, &content);
        Box::pin(std::future::ready(taken.is_ok()))
    }

    fn done(&self, index: usize, fate: BatchFate) {
        let (mut filler, number) = (self.filler.lock(), self.numbers[index]);
        filler.failed += u64::from(!matches!(fate, BatchFate::Whole(_)));
        let (size, why) = match fate {
            BatchFate::Whole(attributes) => (attributes.size, String::new()),
            BatchFate::Torn(attributes) => (attributes.size, TORN.to_owned()),
            BatchFate::Failed(error) => (0, error.to_string()),
        };
        let _ = filler.append(&Record::End { number, size, why }.encode());
    }
}

/// Fills windows.
pub(super) struct Filler<'a, 'b> {
    control: &'a Control,
    memory: Memory,
    line: &'a mut Line<'b>,
    free: VecDeque<u32>,
    /// The window that is being filled.
    filling: Option<Filling>,
    /// Which windows the client has.
    away: Vec<bool>,
    /// Whether the batch has memory that others may wait for.
    pub(super) has_memory: bool,
    bytes: u64,
    failed: u64,
    failure: Option<Failure>,
}

impl<'a, 'b> Filler<'a, 'b> {
    pub(super) fn begin(
        control: &'a Control,
        memory: Memory,
        line: &'a mut Line<'b>,
    ) -> Result<Filler<'a, 'b>, Failure> {
        let window_bytes = memory.window_bytes();
        line.say(&Answer::Ready { window_bytes }).map_err(|error| lost(WHAT, &error))?;
        let (free, away) = ((0..memory.windows()).collect(), vec![false; memory.windows() as usize]);
        let has_memory = false;
        Ok(Filler { control, memory, line, free, filling: None, away, has_memory, bytes: 0, failed: 0, failure: None })
    }

    /// A piece, cut where a window ends.
    fn piece(&mut self, number: u64, mut offset: u64, mut content: &[u8]) -> Result<(), Failure> {
        self.bytes += content.len() as u64;
        while !content.is_empty() {
            let room = self.room(PIECE_HEAD_BYTES + 1)? - PIECE_HEAD_BYTES;
            let (now, later) = content.split_at(content.len().min(room));
            self.append(&piece_head(number, offset, now.len()))?;
            self.append(now)?;
            offset += now.len() as u64;
            content = later;
        }
        Ok(())
    }

    /// Appends what fits a window.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.room(bytes.len())?;
        let filling = self.filling.as_mut().expect("there is room in it");
        let put = filling.put(&self.memory, bytes);
        self.noted(put.map_err(|error| Failure::new(WHAT, error)))
    }

    /// Sees to it that a window with so much room is being filled; gives the room.
    fn room(&mut self, bytes: usize) -> Result<usize, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let size = self.memory.window_bytes() as usize;
        if bytes > size {
            return self.noted(Err(Failure::new(WHAT, "an entry is larger than a window").mend("make them larger")));
        }
        if self.filling.as_ref().is_some_and(|filling| size - (filling.bytes() as usize) < bytes) {
            self.hand_over()?;
        }
        if self.filling.is_none() {
            while self.free.is_empty() {
                self.wait()?;
            }
            self.filling = self.free.pop_front().map(Filling::begin);
        }
        Ok(size - self.filling.as_ref().map_or(0, Filling::bytes) as usize)
    }

    pub(super) fn hand_over(&mut self) -> Result<(), Failure> {
        let Some(filling) = self.filling.take() else { return Ok(()) };
        let ended = filling.end(&self.memory);
        let (window, bytes) = self.noted(ended.map_err(|error| Failure::new(WHAT, error)))?;
        self.away[window as usize] = true;
        let said = self.line.say(&Answer::Filled(Filled { window, bytes }));
        self.noted(said.map_err(|error| lost(WHAT, &error)))
    }

    /// Hands over what there is, and says what goes on.
    pub(super) fn remark(&mut self, text: String) -> Result<(), Failure> {
        self.hand_over()?;
        let said = self.line.say(&Answer::Progress(text));
        self.noted(said.map_err(|error| lost(WHAT, &error)))
    }

    /// Waits until the client gives a window back: as long as he likes, where nobody waits for the memory that he has meanwhile.
    fn wait(&mut self) -> Result<(), Failure> {
        let elapsed = || self.control.platform.clock.elapsed();
        let begin = elapsed();
        let is_over = || {
            let is_kept = self.has_memory
                && self.control.system.batches_waiting() > 0
                && elapsed().saturating_sub(begin) > PATIENCE;
            self.control.is_closed().or(is_kept.then_some("he took nothing for long, and others wait for the memory"))
        };
        let heard = match self.line.hear(&is_over) {
            Ok(Some(Turn::Given { window })) if self.away.get(window as usize) == Some(&true) => {
                self.away[window as usize] = false;
                self.free.push_back(window);
                Ok(())
            }
            Ok(Some(turn)) => Err(Failure::new(WHAT, format!("it makes no sense here: {turn:?}"))),
            Ok(None) => Err(lost(WHAT, &std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(lost(WHAT, &error)),
        };
        self.noted(heard)
    }

    /// Remembers what ends the batch.
    fn noted<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &result {
            self.failure.get_or_insert_with(|| failure.clone());
        }
        result
    }

    /// Waits until the client has read everything; gives the bytes of content, and how many files are not whole.
    pub(super) fn finish(mut self) -> Result<(u64, u64), Failure> {
        // What ended it is not over because the client goes on.
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.hand_over()?;
        while self.away.contains(&true) {
            self.wait()?;
        }
        Ok((self.bytes, self.failed))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use base::id::FileId;
    use file::Node;

    use super::{Ahead, LINKED_BYTES, Linked, Taker, within};

    #[test]
    fn first_names_are_remembered_until_the_last_one_came_and_no_more_than_there_is_room_for() {
        let node = |number| Node::live(FileId { number, ..FileId::ROOT });
        let mut linked = Linked { names: HashMap::new(), bytes: 0, bytes_max: 2 * (LINKED_BYTES + 1) };
        let first = |path: &[u8]| Ok(Some(path.to_vec()));
        assert_eq!((linked.meet(node(1), b"a", 3), linked.meet(node(2), b"b", 2)), (Ok(None), Ok(None)));
        assert_eq!(linked.meet(node(3), b"c", 2), Err(()), "there is no room");
        assert_eq!((linked.meet(node(1), b"d", 3), linked.meet(node(2), b"e", 2)), (first(b"a"), first(b"b")));
        // All names of the second came.
        assert_eq!((linked.meet(node(3), b"f", 2), linked.meet(node(1), b"g", 3)), (Ok(None), first(b"a")));
        assert_eq!(linked.meet(node(3), b"h", 2), first(b"f"));
        assert!(linked.names.is_empty() && linked.bytes == 0);
    }

    #[test]
    fn a_long_path_is_cut_between_names() {
        let cut = |path: &str, bytes_max| String::from_utf8_lossy(within(path.as_bytes(), bytes_max)).into_owned();
        assert_eq!(
            ["a/..b/c"; 8].iter().enumerate().map(|(bytes, path)| cut(path, bytes)).collect::<Vec<_>>(),
            ["", "a", "a", "a", "a", "a/..b", "a/..b", "a/..b/c"]
        );
        assert_eq!((cut("abc", 2), cut("abc", 3)), (String::new(), "abc".to_owned()));
    }

    #[test]
    fn a_walk_is_ahead_by_so_much_and_no_longer_than_somebody_takes_it() {
        let ahead = Ahead::of(1000);
        assert!(ahead.take(600) && ahead.take(400));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ahead.take(5000));
            ahead.give(600);
            assert!(!waiting.is_finished(), "what is larger than all has its turn alone");
            ahead.give(400);
            assert!(waiting.join().expect("no panic"));
        });
        // More than there is: the next waits for nobody all the same.
        ahead.give(6000);
        assert!(ahead.take(1000));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ahead.take(1));
            drop(Taker(&ahead));
            assert!(!waiting.join().expect("no panic"));
        });
        ahead.give(1);
        assert!(!ahead.take(1));
    }
}
