//! What a unit comes to in the directories that are there: which of them it changes, what is made, what is replaced, and what cannot be.
//!
//! A plan changes nothing. It is made twice: without locks, to know which directories to lock, and with them, to be carried out.
//!
//! Not here: the records (`write`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::id::FileId;
use base::limits::{LINKS_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use base::time::Timestamp;
use bytes::Bytes;
use foldhash::fast::FixedState;

use super::unit::{BatchContent, BatchEntry, BatchWrite};
use crate::acl;
use crate::attribute::check_xattr_name;
use crate::attributes::{Attributes, Kind, MODE_MASK, NewFile, without_set_id};
use crate::directory::{Slots, check_name, expect_directory};
use crate::failure::FileError;
use crate::format::Xattrs;
use crate::inode::Inode;
use crate::namespace::{Inherited, inherited};
use crate::system::{FileSystem, untrue};

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// What the unit makes: its place among the plan's `born`.
    Born(usize),
    /// What was there before.
    There(FileId, Kind),
}

/// A name in a directory.
pub(super) struct Named {
    pub(super) name: Box<[u8]>,
    pub(super) kind: Kind,
    pub(super) target: Target,
}

/// A directory that the unit goes to or through.
pub(super) struct Directory {
    /// None: the unit makes it.
    pub(super) inode: Option<Arc<Inode>>,
    /// Its place among `born`, if it is made.
    pub(super) born: Option<usize>,
    branch: u32,
    /// What is made in it inherits from these.
    attributes: Attributes,
    default_acl: Option<Vec<u8>>,
    /// Names by cookie: new ones, and those that lead to something else from now on.
    pub(super) names: BTreeMap<u64, Named>,
    /// Entries and directories more than before.
    pub(super) growth: i64,
    pub(super) subdirectories: i64,
    /// What an entry says of it.
    pub(super) set: Option<Set>,
}

/// Attributes that a directory gets that is there.
pub(super) struct Set {
    pub(super) attributes: Attributes,
    /// No value: it goes.
    pub(super) xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// A file that the unit makes.
pub(super) struct Born {
    /// The entry that says what it is.
    pub(super) entry: usize,
    /// The directory that it is made in.
    pub(super) home: usize,
    /// What its id and parent are is decided at the end.
    pub(super) attributes: Attributes,
    pub(super) target: Bytes,
    pub(super) xattrs: Xattrs,
    /// Names that lead to it; none: another entry of the unit took its place.
    pub(super) names: i64,
    /// Its place among the directories, if it is one.
    pub(super) directory: Option<usize>,
}

/// What a file that is replaced leaves to the one that takes its place.
struct Kept {
    mode: u32,
    uid: u32,
    gid: u32,
    access: Option<Vec<u8>>,
}

/// A file that is there and gets names, or loses some.
pub(super) struct Relinked {
    pub(super) inode: Arc<Inode>,
    pub(super) names: i64,
}

/// What a file would be that takes its name later.
pub(super) struct Conceived {
    /// Where its name will be.
    pub(super) directory: Arc<Inode>,
    /// Without links, and with the size that its entry says.
    pub(super) attributes: Attributes,
    pub(super) xattrs: Xattrs,
}

/// See the module's head.
pub(super) struct Plan<'a> {
    system: &'a FileSystem,
    how: BatchWrite,
    now: Timestamp,
    pub(super) directories: Vec<Directory>,
    pub(super) born: Vec<Born>,
    pub(super) relinked: BTreeMap<FileId, Relinked>,
    /// Paths that were followed, and where they lead.
    by_path: HashMap<&'a [u8], Result<usize, FileError>, FixedState>,
    /// Directories that are there.
    by_file: HashMap<FileId, usize, FixedState>,
}

impl<'a> Plan<'a> {
    pub(super) async fn begin(
        system: &'a FileSystem,
        top: Arc<Inode>,
        how: &BatchWrite,
    ) -> Result<Plan<'a>, FileError> {
        system.refuse_removed(&top).await?;
        let now = system.now();
        let mut plan = Plan {
            system,
            how: *how,
            now,
            directories: Vec::new(),
            born: Vec::new(),
            relinked: BTreeMap::new(),
            by_path: HashMap::default(),
            by_file: HashMap::default(),
        };
        let top = plan.enter_inode(top).await?;
        plan.by_path.insert(b"", Ok(top));
        Ok(plan)
    }

    /// The branch of what is made.
    pub(super) fn branch(&self, born: &Born) -> u32 {
        self.directories[born.home].branch
    }

    /// The id of a directory, when those of what is made are known.
    pub(super) fn file(&self, place: usize, files: &[FileId]) -> FileId {
        let directory = &self.directories[place];
        let born = || files[directory.born.expect("what is not there is made")];
        directory.inode.as_ref().map_or_else(born, |inode| inode.file)
    }

    /// The directory of an entry that was added; nothing for the top, which has no name here.
    pub(super) fn home(&self, path: &[u8]) -> Option<usize> {
        let above = Some(path).filter(|path| !path.is_empty()).map(|path| split(path).0);
        above.and_then(|above| self.by_path.get(above)?.as_ref().ok().copied())
    }

    /// Looks no further than which directories an entry goes to. Gives what is asked for its content.
    pub(super) async fn look(&mut self, number: usize, entry: &'a BatchEntry) -> Option<store::Resilience> {
        if entry.kind == Kind::Directory && !matches!(entry.content, BatchContent::Link(_)) {
            let _ = self.add(number, entry).await;
            return None;
        }
        if let BatchContent::Link(path) = &entry.content {
            let _ = self.follow(split(path).0).await;
        }
        let home = match self.follow(split(&entry.path).0).await {
            Ok(home) => home,
            // It may be made by the time that names are, and is most likely in nothing but the top then.
            Err(FileError::NoEntry) => 0,
            Err(_) => return None,
        };
        entry.check().ok().map(|()| self.directories[home].attributes.resilience)
    }

    /// Adds an entry; what its name leads to.
    pub(super) async fn add(&mut self, number: usize, entry: &'a BatchEntry) -> Result<Target, FileError> {
        entry.check()?;
        if entry.path.is_empty() {
            return self.add_to_top(entry).await;
        }
        check_path(&entry.path)?;
        let (above, name) = split(&entry.path);
        let home = self.follow(above).await?;
        match &self.directories[home].inode {
            Some(inode) => {
                self.system.check_new_name(inode.file, name)?;
                self.system.refuse_left_out(inode)?;
            }
            None => check_name(name)?,
        }
        let (cookie, found) = self.find(home, name).await?;
        if let BatchContent::Link(path) = &entry.content {
            return self.add_link(home, (cookie, name), found, path).await;
        }
        if entry.kind == Kind::Directory {
            let target = match found {
                Some(target) => self.merge(target, entry).await?,
                None => self.bear(number, entry, home, (cookie, name, true))?,
            };
            let place = self.directory_of(target).expect("one is made or merged with");
            self.by_path.insert(&entry.path, Ok(place));
            return Ok(target);
        }
        self.may_replace(found).await?;
        let kept = self.kept(found, entry).await?;
        let target = self.bear(number, entry, home, (cookie, name, found.is_none()))?;
        if let (Target::Born(born), Some(Kept { mode, uid, gid, access })) = (target, kept) {
            let Born { attributes, xattrs, .. } = &mut self.born[born];
            *attributes = Attributes { mode, uid, gid, ..attributes.clone() };
            xattrs.remove(acl::ACCESS);
            xattrs.extend(access.map(|access| (acl::ACCESS.to_vec(), access)));
        }
        if let Some(found) = found {
            self.relink(found, -1);
        }
        Ok(target)
    }

    /// What a file that takes the place of one keeps of it where attributes are not preserved: as if that had been written to.
    async fn kept(&self, found: Option<Target>, entry: &BatchEntry) -> Result<Option<Kept>, FileError> {
        let Some(found) = found.filter(|_| !self.how.preserve && entry.kind == Kind::Regular) else { return Ok(None) };
        let kept = |attributes: &Attributes, xattrs: Option<&Xattrs>| {
            let Attributes { kind, mode, uid, gid, .. } = *attributes;
            let access = xattrs.and_then(|xattrs| xattrs.get(acl::ACCESS)).cloned();
            (kind == Kind::Regular).then_some(Kept { mode: without_set_id(mode), uid, gid, access })
        };
        Ok(match found {
            Target::Born(born) => kept(&self.born[born].attributes, Some(&self.born[born].xattrs)),
            Target::There(file, _) => {
                let inode = &self.relinked[&file].inode;
                self.system.load_xattrs(inode).await?;
                let state = inode.state.lock();
                kept(&state.attributes, state.xattrs.as_ref())
            }
        })
    }

    /// What the file of an entry would be, in a directory that is there.
    pub(super) async fn conceive(&mut self, entry: &'a BatchEntry) -> Result<Conceived, FileError> {
        entry.check()?;
        let (above, name) = split(&entry.path);
        let home = self.follow(above).await?;
        if self.find(home, name).await?.1.is_some() {
            return Err(FileError::Exists);
        }
        let (attributes, xattrs) = self.birth(entry, home)?;
        let directory = self.directories[home].inode.clone().expect("a plan to which nothing was added makes none");
        Ok(Conceived { directory, attributes, xattrs })
    }

    async fn add_to_top(&mut self, entry: &BatchEntry) -> Result<Target, FileError> {
        if entry.kind != Kind::Directory || matches!(entry.content, BatchContent::Link(_)) {
            return Err(FileError::IsDirectory);
        }
        self.set(0, entry).await?;
        Ok(Target::There(self.directories[0].attributes.file, Kind::Directory))
    }

    async fn add_link(
        &mut self,
        home: usize,
        (cookie, name): (u64, &[u8]),
        found: Option<Target>,
        path: &'a [u8],
    ) -> Result<Target, FileError> {
        check_path(path)?;
        let (above, first) = split(path);
        let at = self.follow(above).await?;
        let target = self.find(at, first).await?.1.ok_or(FileError::NoEntry)?;
        if self.is_directory(target) {
            return Err(FileError::NotPermitted("a directory has one name"));
        }
        if self.branch_of(target) != self.directories[home].branch {
            return Err(FileError::CrossView);
        }
        match (found, target) {
            (Some(Target::Born(one)), Target::Born(other)) if one == other => return Ok(target),
            (Some(Target::There(one, _)), Target::There(other, _)) if one == other => return Ok(target),
            _ => {}
        }
        self.may_replace(found).await?;
        if self.know(target).await? >= i64::from(LINKS_MAX) {
            return Err(FileError::TooManyLinks);
        }
        self.relink(target, 1);
        if let Some(found) = found {
            self.relink(found, -1);
        }
        self.name(home, cookie, name, target, found.is_none());
        Ok(target)
    }

    /// Whether what is there, if anything is, makes room for another file of its name.
    async fn may_replace(&mut self, found: Option<Target>) -> Result<(), FileError> {
        let Some(found) = found else { return Ok(()) };
        match (self.how.replace, self.is_directory(found)) {
            (false, _) => Err(FileError::Exists),
            (true, true) => Err(FileError::IsDirectory),
            (true, false) => self.know(found).await.map(|_| ()),
        }
    }

    /// A directory's entry meets something of that name.
    async fn merge(&mut self, found: Target, entry: &BatchEntry) -> Result<Target, FileError> {
        let place = match found {
            Target::Born(born) => self.born[born].directory,
            Target::There(file, Kind::Directory) => Some(self.enter(file).await?),
            Target::There(..) => None,
        };
        let refusal = if self.how.replace { FileError::NotDirectory } else { FileError::Exists };
        let place = place.ok_or(refusal)?;
        self.set(place, entry).await?;
        Ok(found)
    }

    /// A directory that is there, or was made by another entry, becomes what the entry says.
    async fn set(&mut self, place: usize, entry: &BatchEntry) -> Result<(), FileError> {
        if !self.how.preserve {
            return Ok(());
        }
        let mut mode = entry.mode & MODE_MASK;
        let xattrs = said(entry, &mut mode, Xattrs::new())?;
        let (access, has_default) = match &self.directories[place].inode {
            Some(inode) => {
                self.system.refuse_left_out(inode)?;
                self.system.load_xattrs(inode).await?;
                let state = inode.state.lock();
                let list = |name: &[u8]| state.xattrs.as_ref().and_then(|xattrs| xattrs.get(name)).cloned();
                (list(acl::ACCESS), list(acl::DEFAULT).is_some())
            }
            None => (None, false),
        };
        let directory = &mut self.directories[place];
        let attributes = Attributes {
            mode,
            uid: entry.uid,
            gid: entry.gid,
            modified: entry.modified,
            accessed: entry.accessed,
            changed: self.now,
            ..directory.attributes.clone()
        };
        directory.attributes = attributes.clone();
        match directory.born {
            Some(born) => {
                self.born[born].attributes = attributes;
                self.born[born].xattrs.extend(xattrs);
            }
            None => {
                let mut xattrs: Vec<_> = xattrs.into_iter().map(|(name, value)| (name, Some(value))).collect();
                let is_said = self.how.lists || entry.xattrs.iter().any(|(name, _)| *name == *acl::ACCESS);
                if self.how.lists && has_default && !xattrs.iter().any(|(name, _)| *name == *acl::DEFAULT) {
                    xattrs.push((acl::DEFAULT.to_vec(), None));
                }
                if let Some(access) = access
                    && !xattrs.iter().any(|(name, _)| *name == *acl::ACCESS)
                {
                    // A list that says no more than the mode goes, and one of which nothing is said follows the mode.
                    let value = if is_said { None } else { Some(acl::change_mode(&access, mode)?) };
                    xattrs.push((acl::ACCESS.to_vec(), value));
                }
                // Of several entries the last one counts, attribute by attribute.
                let mut before = directory.set.take().map_or_else(Vec::new, |set| set.xattrs);
                before.extend(xattrs);
                directory.set = Some(Set { attributes, xattrs: before });
            }
        }
        Ok(())
    }

    /// Makes something in a directory.
    fn bear(
        &mut self,
        number: usize,
        entry: &BatchEntry,
        home: usize,
        (cookie, name, is_new): (u64, &[u8], bool),
    ) -> Result<Target, FileError> {
        let (attributes, xattrs) = self.birth(entry, home)?;
        let born = self.born.len();
        let directory = (entry.kind == Kind::Directory).then_some(self.directories.len());
        if directory.is_some() {
            self.directories.push(Directory {
                inode: None,
                born: Some(born),
                branch: self.directories[home].branch,
                default_acl: xattrs.get(acl::DEFAULT).cloned(),
                attributes: attributes.clone(),
                names: BTreeMap::new(),
                growth: 0,
                subdirectories: 0,
                set: None,
            });
        }
        let target = match &entry.content {
            BatchContent::Target(target) => target.clone(),
            _ => Bytes::new(),
        };
        self.born.push(Born { entry: number, home, attributes, target, xattrs, names: 1, directory });
        let target = Target::Born(born);
        self.name(home, cookie, name, target, is_new);
        Ok(target)
    }

    fn birth(&self, entry: &BatchEntry, home: usize) -> Result<(Attributes, Xattrs), FileError> {
        let directory = &self.directories[home];
        let target = match &entry.content {
            BatchContent::Target(target) => target,
            _ => &Bytes::new(),
        };
        let new = NewFile {
            kind: entry.kind,
            mode: entry.mode,
            umask: self.how.umask,
            uid: entry.uid,
            gid: entry.gid,
            device: entry.device,
            target,
        };
        let Inherited { mut mode, gid, xattrs } = if self.how.preserve {
            Inherited { mode: entry.mode & MODE_MASK, gid: entry.gid, xattrs: Vec::new() }
        } else {
            inherited(&directory.attributes, &new, directory.default_acl.as_deref())?
        };
        let xattrs = xattrs.into_iter().map(|(name, value)| (name.to_vec(), value)).collect();
        let xattrs = said(entry, &mut mode, xattrs)?;
        let size = match &entry.content {
            BatchContent::Data(_, size) => *size,
            _ => target.len() as u64,
        };
        let (modified, accessed) =
            if self.how.preserve { (entry.modified, entry.accessed) } else { (self.now, self.now) };
        let attributes = Attributes {
            file: FileId::NONE,
            kind: entry.kind,
            mode,
            uid: entry.uid,
            gid,
            links: 0,
            device: entry.device,
            size,
            allocated: 0,
            accessed,
            modified,
            changed: self.now,
            born: self.now,
            parent: FileId::NONE,
            is_preallocated: false,
            resilience: directory.attributes.resilience,
        };
        Ok((attributes, xattrs))
    }

    fn name(&mut self, home: usize, cookie: u64, name: &[u8], target: Target, is_new: bool) {
        let kind = match target {
            Target::Born(born) => self.born[born].attributes.kind,
            Target::There(_, kind) => kind,
        };
        let directory = &mut self.directories[home];
        directory.names.insert(cookie, Named { name: name.into(), kind, target });
        directory.growth += i64::from(is_new);
        directory.subdirectories += i64::from(kind == Kind::Directory);
    }

    /// Has a file at hand whose names are to change. Gives how many there will be, as far as is planned.
    async fn know(&mut self, target: Target) -> Result<i64, FileError> {
        let file = match target {
            Target::Born(born) => return Ok(self.born[born].names),
            Target::There(file, _) => file,
        };
        if !self.relinked.contains_key(&file) {
            let inode = self.system.live(file).await?;
            // Entries may lie: a directory is locked as one, and has no further names.
            if inode.state.lock().attributes.kind == Kind::Directory {
                let found = "a directory";
                return Err(
                    untrue("directory entry", file.to_string(), "something that is no directory", &found).into()
                );
            }
            self.relinked.insert(file, Relinked { inode, names: 0 });
        }
        let Relinked { inode, names } = &self.relinked[&file];
        let links = inode.state.lock().attributes.links;
        Ok(i64::from(links) + names)
    }

    /// A file at hand has a name more or less.
    fn relink(&mut self, target: Target, names: i64) {
        match target {
            Target::Born(born) => self.born[born].names += names,
            Target::There(file, _) => self.relinked.get_mut(&file).expect("at hand").names += names,
        }
    }

    fn is_directory(&self, target: Target) -> bool {
        match target {
            Target::Born(born) => self.born[born].directory.is_some(),
            Target::There(_, kind) => kind == Kind::Directory,
        }
    }

    fn directory_of(&self, target: Target) -> Option<usize> {
        match target {
            Target::Born(born) => self.born[born].directory,
            Target::There(file, _) => self.by_file.get(&file).copied(),
        }
    }

    fn branch_of(&self, target: Target) -> u32 {
        match target {
            Target::Born(born) => self.branch(&self.born[born]),
            Target::There(file, _) => file.branch,
        }
    }

    /// The directory that a path leads to.
    async fn follow(&mut self, path: &'a [u8]) -> Result<usize, FileError> {
        let (mut known, mut missing) = (path, Vec::new());
        let mut at = loop {
            if let Some(found) = self.by_path.get(known) {
                break found.clone();
            }
            missing.push(known);
            known = split(known).0;
        };
        while let Some(path) = missing.pop() {
            at = match at {
                Ok(above) => self.step(above, split(path).1).await,
                lost => lost,
            };
            self.by_path.insert(path, at.clone());
        }
        at
    }

    async fn step(&mut self, above: usize, name: &[u8]) -> Result<usize, FileError> {
        check_name(name).map_err(|_| FileError::Invalid("a path with a name that cannot be"))?;
        let target = self.find(above, name).await?.1.ok_or(FileError::NoEntry)?;
        match target {
            Target::There(file, Kind::Directory) => self.enter(file).await,
            Target::Born(born) => self.born[born].directory.ok_or(FileError::NotDirectory),
            Target::There(..) => Err(FileError::NotDirectory),
        }
    }

    async fn enter(&mut self, file: FileId) -> Result<usize, FileError> {
        match self.by_file.get(&file) {
            Some(place) => Ok(*place),
            None => self.enter_inode(self.system.live(file).await?).await,
        }
    }

    async fn enter_inode(&mut self, inode: Arc<Inode>) -> Result<usize, FileError> {
        if !self.how.preserve {
            self.system.load_xattrs(&inode).await?;
        }
        let (attributes, default_acl) = {
            let state = inode.state.lock();
            expect_directory(&state)?;
            let default_acl = state.xattrs.as_ref().and_then(|xattrs| xattrs.get(acl::DEFAULT)).cloned();
            (state.attributes.clone(), default_acl)
        };
        let place = self.directories.len();
        self.by_file.insert(inode.file, place);
        self.directories.push(Directory {
            branch: inode.file.branch,
            inode: Some(inode),
            born: None,
            attributes,
            default_acl,
            names: BTreeMap::new(),
            growth: 0,
            subdirectories: 0,
            set: None,
        });
        Ok(place)
    }

    /// What a name leads to, and its cookie: the one that it has, or one that is free.
    async fn find(&self, place: usize, name: &[u8]) -> Result<(u64, Option<Target>), FileError> {
        let directory = &self.directories[place];
        let cookies = self.system.cookies(name);
        let mut planned = directory.names.range(cookies.clone());
        if let Some((cookie, named)) = planned.find(|(_, named)| *named.name == *name) {
            return Ok((*cookie, Some(named.target)));
        }
        let slots = match &directory.inode {
            Some(inode) => self.system.slots(inode, name).await?,
            None => Slots::none(*cookies.start()),
        };
        if let Some((cookie, entry)) = slots.find(name) {
            return Ok((cookie, Some(Target::There(entry.file, entry.kind))));
        }
        Ok((slots.free_beside(|cookie| directory.names.contains_key(&cookie))?, None))
    }
}

/// A path is seen from the unit's directory.
fn check_path(path: &[u8]) -> Result<(), FileError> {
    if path.starts_with(b"/") { Err(FileError::Invalid("a path that begins with a slash")) } else { Ok(()) }
}

/// The path of the directory, and the name there.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The extended attributes of an entry over others; an access list changes the mode with it.
fn said(entry: &BatchEntry, mode: &mut u32, mut xattrs: Xattrs) -> Result<Xattrs, FileError> {
    for (name, value) in &entry.xattrs {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FileError::AttributeTooLarge);
        }
        let mut stored = Some(value.clone());
        if *name == *acl::ACCESS {
            let rights;
            (rights, stored) = acl::to_mode(value)?;
            *mode = *mode & !0o777 | rights;
        } else if *name == *acl::DEFAULT {
            acl::check(value)?;
            if entry.kind != Kind::Directory {
                return Err(FileError::NotPermitted("only a directory has a default access control list"));
            }
        }
        match stored {
            Some(value) => xattrs.insert(name.clone(), value),
            None => xattrs.remove(name),
        };
    }
    let bytes: usize = xattrs.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    if bytes > XATTR_TOTAL_BYTES_MAX { Err(FileError::AttributeTooLarge) } else { Ok(xattrs) }
}
