//! A node's folder: who the node is, which disks are its own, and the lock that one daemon holds.
//!
//! ```text
//! NODE/node            format, uuid, number, disks        (this module; written by init and `hydrafs disk`)
//! NODE/hydrafs.toml    settings                           (config)
//! NODE/lock            flock of the running daemon; who it is, for messages, its [`Stage`], and the device of its mount
//! NODE/control.sock    the running daemon's control socket (control)
//! NODE/hydrafs.log     log of a daemon that runs in the background (daemon)
//! ```
//!
//! No data lies here: the disks know themselves, and the store checks that they belong together.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::id::NodeNumber;
use platform::disk::Disk;
use platform::real::{Directory, set_patience};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::{self, Config};
use crate::failure::Failure;
use crate::mounts;

/// Version of the folder's layout and of the file `node`.
pub const FORMAT: i64 = 1;
const NODE_FILE: &str = "node";
const LOCK_FILE: &str = "lock";
/// Largest `node` file that is read: a thousand disks with long paths fit.
const NODE_FILE_BYTES_MAX: u64 = 4 << 20;

/// How long a daemon that has lost its mount may take to make everything local before who waits for its lock is refused.
const ENDING_PATIENCE: Duration = Duration::from_secs(300);
/// How long it may take to notice that it has lost it.
const NOTICING_PATIENCE: Duration = Duration::from_secs(2);
/// How often the lock is tried meanwhile.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Content of the file `node`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// [`FORMAT`] at the time of writing.
    pub format: i64,
    /// Random and unique, for people and logs.
    pub uuid: String,
    /// Number of the node in its cluster: the upper bits of the ids of files made here.
    pub number: u16,
    /// Its disks; a relative path is relative to the folder, so that a node with its disks inside can be moved.
    pub disks: Vec<PathBuf>,
}

/// A node's folder, found and read.
#[derive(Clone, Debug)]
pub struct NodeFolder {
    /// Absolute, without symbolic links: the source in the mount table.
    pub path: PathBuf,
    /// Who the node is.
    pub identity: Identity,
    /// Whether this process opens the node also if disks are missing, unless the journal is on no other.
    pub goes_without_disks: bool,
}

/// The lock on a node's folder, held until dropped.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl NodeFolder {
    /// Finds and reads the folder at `path`.
    pub fn open(path: &Path) -> Result<NodeFolder, Failure> {
        let cannot = |why: String| Failure::new("cannot open the node", why).at(path);
        let make = || format!("make a node with `hydrafs init {} --disk DIR`, or name another folder", path.display());
        let absolute = path.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => cannot("there is no such folder".to_owned()).mend(make()),
            _ => cannot(error.to_string()),
        })?;
        if !absolute.is_dir() {
            return Err(
                cannot("it is not a folder; a node is a folder that `hydrafs init` made".to_owned()).mend(make())
            );
        }
        let file = absolute.join(NODE_FILE);
        let text = match read_bounded(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(cannot("this folder is no HydraFS node: it holds no file `node`".to_owned()).mend(make()));
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(cannot(error.to_string())
                    .at(&file)
                    .mend("run the command as the user who made it, or as root"));
            }
            Err(error) => return Err(cannot(error.to_string()).at(&file)),
        };
        let identity = Identity::parse(&text, &file)?;
        Ok(NodeFolder { path: absolute, identity, goes_without_disks: false })
    }

    /// Writes a new node's files, durably. The folder exists.
    pub fn create(path: &Path, identity: Identity) -> Result<NodeFolder, Failure> {
        let cannot = |error: std::io::Error| Failure::new("cannot write the node's files", error).at(path);
        let settings = path.join(config::FILE_NAME);
        if !settings.exists() {
            write_durably(&settings, config::starter().as_bytes()).map_err(cannot)?;
        }
        // The file `node` comes last: with it the folder is a node.
        identity.write(path).map_err(cannot)?;
        let path = path.canonicalize().map_err(cannot)?;
        Ok(NodeFolder { path, identity, goes_without_disks: false })
    }

    /// Notes one more disk, an absolute path.
    pub fn note_disk(&self, disk: &Path) -> Result<(), Failure> {
        self.change_disks(|disks| {
            if !disks.iter().any(|known| self.path.join(known) == disk) {
                disks.push(disk.strip_prefix(&self.path).unwrap_or(disk).to_owned());
            }
        })
    }

    /// Forgets a disk.
    pub fn forget_disk(&self, disk: &Path) -> Result<(), Failure> {
        self.change_disks(|disks| disks.retain(|known| self.path.join(known) != disk))
    }

    /// Forgets all others than these.
    pub fn keep_disks(&self, members: &[&Path]) -> Result<(), Failure> {
        self.change_disks(|disks| disks.retain(|known| members.contains(&self.path.join(known).as_path())))
    }

    fn change_disks(&self, change: impl FnOnce(&mut Vec<PathBuf>)) -> Result<(), Failure> {
        // As it is now: another command may have changed it since it was read.
        let mut identity = NodeFolder::open(&self.path)?.identity;
        change(&mut identity.disks);
        identity.write(&self.path).map_err(|error| Failure::new("cannot note the node's disks", error).at(&self.path))
    }

    /// The node's settings.
    pub fn config(&self) -> Result<Config, Failure> {
        let config = Config::load(&self.path.join(config::FILE_NAME), std::env::vars_os())?;
        // Whoever asks for it is about to use the disks.
        set_patience(config.disk_patience);
        Ok(config)
    }

    /// The node's number.
    #[must_use]
    pub fn number(&self) -> NodeNumber {
        NodeNumber(self.identity.number)
    }

    /// Where its disks are.
    #[must_use]
    pub fn disk_paths(&self) -> Vec<PathBuf> {
        self.identity.disks.iter().map(|disk| self.path.join(disk)).collect()
    }

    /// The same folder, for a command that was told to go without disks that are missing.
    #[must_use]
    pub fn degraded(self, goes_without_disks: bool) -> NodeFolder {
        NodeFolder { goes_without_disks, ..self }
    }

    /// Opens the directories of its disks. Whether they are this node's, and whether one can be missing, is for the store to say.
    pub fn disks(&self) -> Result<Vec<Disk>, Failure> {
        let open = |path: PathBuf| {
            const MEND: &str = "mount or reconnect the disk, or bring its folder back, then try again; `--degraded` (of mount, \
                                serve and fsck) goes without a disk that does not have the journal alone; nothing was changed";
            match Directory::open(&path) {
                Ok(disk) => Ok(disk),
                Err(error) if self.goes_without_disks => Ok(Disk::missing(path.display().to_string(), error.detail)),
                Err(error) => Err(Failure::new("cannot open a disk of the node", error.detail).at(&path).mend(MEND)),
            }
        };
        self.disk_paths().into_iter().map(open).collect()
    }

    /// The directories of those of its disks that can be opened.
    pub(crate) fn disks_there(&self) -> Vec<Disk> {
        self.disk_paths().iter().filter_map(|path| Directory::open(path).ok()).collect()
    }

    /// Takes the lock, or says who holds it.
    pub fn lock(&self) -> Result<Lock, Failure> {
        self.try_lock()?.map_err(|holder| self.in_use(&holder))
    }

    /// Takes the lock, also if a daemon still has it whose mount was taken away: umount(8) returns before that daemon has made
    /// everything local. `say` hears that it is waited for.
    #[expect(clippy::disallowed_methods, reason = "a command that waits for another process")]
    pub fn lock_when_ended(&self, say: impl FnOnce(&str)) -> Result<Lock, Failure> {
        let begin = Instant::now();
        let mut say = Some(say);
        loop {
            let holder = match self.try_lock()? {
                Ok(lock) => {
                    self.wait_for_disks();
                    return Ok(lock);
                }
                Err(holder) => holder,
            };
            let patience = match holder.stage {
                Some(Stage::Ending) => ENDING_PATIENCE,
                Some(Stage::Mounted) if !self.is_mounted()? => NOTICING_PATIENCE,
                _ => Duration::ZERO,
            };
            if begin.elapsed() >= patience {
                return Err(self.in_use(&holder));
            }
            if let Some(say) = say.take_if(|_| holder.stage == Some(Stage::Ending)) {
                say(&format!("waiting for {}, which makes everything local and ends", holder.name));
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Waits a moment for its disks. A process that ends lets go of all its locks at once, in any order: who has got the node's may find
    /// those of the disks still held.
    #[expect(clippy::disallowed_methods, reason = "a command that waits for another process")]
    fn wait_for_disks(&self) {
        let begin = Instant::now();
        // What keeps them from being opened is told when they are.
        while self.disks().is_ok_and(|disks| !file::are_free(&disks)) && begin.elapsed() < NOTICING_PATIENCE {
            std::thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Whether the mount table of this process has a mount of this node.
    fn is_mounted(&self) -> Result<bool, Failure> {
        Ok(mounts::read()?.iter().any(|mount| mount.is_hydrafs() && mount.source == self.path))
    }

    /// Takes the lock, or gives who holds it.
    fn try_lock(&self) -> Result<Result<Lock, Holder>, Failure> {
        let path = self.path.join(LOCK_FILE);
        let cannot = |error: std::io::Error| Failure::new("cannot lock the node", error).at(&path);
        let mut options = OpenOptions::new();
        // A link that its owner has put there leads nobody else to a file of a third.
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(cannot)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Lock { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                // Who holds it is a courtesy: without it the message is still right.
                Ok(Err(Holder::read(&file).unwrap_or_else(|_| Holder::parse(""))))
            }
            Err(error) => Err(cannot(error.into())),
        }
    }

    fn in_use(&self, holder: &Holder) -> Failure {
        Failure::new("cannot use the node", format!("{} is using it", holder.name)).at(&self.path).mend(format!(
            "see `hydrafs status {0}`, or end it with `hydrafs stop {0}`; nothing was changed",
            self.path.display()
        ))
    }
}

/// What the lock file says of who holds the lock: a line for people, a line with the stage, and one with its mount, if it has one. The last
/// stays when a daemon dies, and tells its mount from one of another node that has this folder's name for its source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: String,
    /// `None` also for what another version wrote.
    pub(crate) stage: Option<Stage>,
    /// The device number of its mount, `major:minor`; empty: it has none. `None`: a version wrote it that notes no mount.
    pub(crate) mount: Option<String>,
}

/// Where the holder of a lock is in its life, for who waits for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has the lock for as long as it likes.
    Working,
    /// It ends when its mount is taken away.
    Mounted,
    /// It makes everything local and ends.
    Ending,
}

impl Stage {
    const ALL: [(Stage, &str); 3] =
        [(Stage::Working, "working"), (Stage::Mounted, "mounted"), (Stage::Ending, "ending")];
}

impl Holder {
    pub(crate) fn parse(text: &str) -> Holder {
        let mut lines = text.lines();
        let name = lines.next().filter(|name| !name.is_empty()).unwrap_or("another process").to_owned();
        let word = lines.next();
        let stage = Stage::ALL.iter().find(|(_, known)| Some(*known) == word).map(|(stage, _)| *stage);
        let mount = lines.next().or(word.is_none().then_some("")).map(|device| device.trim().to_owned());
        Holder { name, stage, mount }
    }

    pub(crate) fn text(name: &str, stage: Stage, mount: Option<&str>) -> String {
        let word = Stage::ALL.iter().find(|(known, _)| *known == stage).map(|(_, word)| *word);
        // A path may hold a line's end.
        format!("{}\n{}\n{}\n", name.replace('\n', " "), word.unwrap_or_default(), mount.unwrap_or_default())
    }

    fn read(file: &File) -> std::io::Result<Holder> {
        let mut text = [0; 4096 + 64];
        let bytes = file.read_at(&mut text, 0)?;
        Ok(Holder::parse(&String::from_utf8_lossy(&text[..bytes])))
    }
}

impl Lock {
    /// A lock that another process of the same daemon took: it is on the open file, whoever has it.
    #[must_use]
    pub fn handed_over(descriptor: std::os::fd::OwnedFd) -> Lock {
        Lock { file: File::from(descriptor) }
    }

    /// The open file, to hand it over.
    pub fn descriptor(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// The device number (`major:minor`) of the mount that the last daemon noted; empty if it ended without that mount. `None`: nobody can tell.
    #[must_use]
    pub fn noted_mount(&self) -> Option<String> {
        Holder::read(&self.file).ok()?.mount
    }

    /// Notes who holds the lock, for who wants it next, and the device number (`major:minor`) of its mount.
    pub fn describe(&self, holder: &str, stage: Stage, mount: Option<&str>) {
        let text = Holder::text(holder, stage, mount);
        // Whoever reads meanwhile finds the lines of one holder: what an older one left comes after them.
        let write = |mut file: &File| {
            file.rewind()?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        if let Err(error) = write(&self.file) {
            tracing::warn!("cannot note the process id in the lock file: {error}");
        }
    }
}

impl Identity {
    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let body = toml::to_string(self).expect("an identity is plain numbers and strings; paths were checked");
        let text = format!("# A HydraFS node. Written by `hydrafs`; settings are in {}.\n{body}", config::FILE_NAME);
        write_durably(&folder.join(NODE_FILE), text.as_bytes())
    }

    pub(crate) fn parse(text: &str, path: &Path) -> Result<Identity, Failure> {
        let cannot = |why: String| Failure::new("cannot read the node's identity", why).at(path);
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            cannot(error.message().to_owned())
                .mend("bring the file back from a backup, or write it anew as in docs/format.md")
        })?;
        match table.get("format").and_then(toml::Value::as_integer) {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => {
                let why = format!("its format is {newer}, this program knows formats up to {FORMAT}");
                return Err(cannot(why).mend("use a newer hydrafs; nothing was changed"));
            }
            other => {
                let found = other.map_or("no format".to_owned(), |format| format!("format {format}"));
                return Err(cannot(format!("expected a file with `format = {FORMAT}`, found {found}"))
                    .mend("if this folder was made by something else, name another"));
            }
        }
        let identity: Identity =
            table.try_into().map_err(|error: toml::de::Error| cannot(error.message().to_owned()))?;
        if identity.disks.is_empty() {
            return Err(cannot("it names no disk".to_owned()).mend("bring the file back from a backup"));
        }
        Ok(identity)
    }
}

/// Makes a folder for its owner only, with its parents. Returns the topmost one that was made, to undo it.
pub fn make_folder(path: &Path) -> std::io::Result<Option<PathBuf>> {
    let made = path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).last();
    let made = made.map(Path::to_owned);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    Ok(made)
}

/// Writes a file aside, syncs it, renames it into place and syncs its directory. It stays its owner's, whoever writes it.
#[expect(clippy::disallowed_methods, reason = "the node's folder is the outside")]
fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let aside = path.with_added_extension("new");
    // What a crash left, or a link that its owner has put there: nobody is led to a file of a third.
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    file.write_all(bytes)?;
    if let Ok(former) = fs::symlink_metadata(path) {
        // Only root may give it away, and not everywhere.
        let _ = std::os::unix::fs::fchown(&file, Some(former.uid()), Some(former.gid()));
    }
    file.sync_all()?;
    fs::rename(&aside, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[expect(clippy::disallowed_methods, reason = "the node's folder is the outside")]
fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(NODE_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Holder, Identity, Stage};

    fn parse(text: &str) -> Result<Identity, String> {
        Identity::parse(text, Path::new("/n/node")).map_err(|failure| failure.to_string())
    }

    #[test]
    fn an_identity_reads_back() {
        let identity = Identity {
            format: 1,
            uuid: "0".repeat(32),
            number: 1,
            disks: vec![PathBuf::from("/d/\u{e9} \"x\""), PathBuf::from("disk")],
        };
        assert_eq!(parse(&toml::to_string(&identity).expect("plain")), Ok(identity));
    }

    #[test]
    fn a_holder_reads_back_and_what_another_version_wrote_is_a_name() {
        for (stage, _) in Stage::ALL {
            let text = Holder::text("its daemon (process 7, mounted at /a\nending)", stage, Some("0:41"));
            let found = Holder::parse(&text);
            assert_eq!(found.mount.as_deref(), Some("0:41"));
            assert_eq!(found.stage, Some(stage));
            assert_eq!(found.name, "its daemon (process 7, mounted at /a ending)");
        }
        let of_old = Holder::parse("its daemon (process 7)");
        assert_eq!((of_old.name.as_str(), of_old.stage), ("its daemon (process 7)", None));
        assert_eq!(Holder::parse("").name, "another process");
    }

    #[test]
    fn newer_foreign_and_broken_files_are_told_apart() {
        assert!(
            parse("format = 2\nshape = 'round'").expect_err("newer").contains("its format is 2, this program knows")
        );
        assert!(parse("hello = 1").expect_err("foreign").contains("found no format"));
        assert!(parse("format = 1\ndisks = []\nuuid = ''\nnumber = 1").expect_err("none").contains("names no disk"));
        for broken in ["format = ", "format = 1", "\0", "format = 1\nuuid = 'x'\nnumber = 70000\ndisks = ['/d']"] {
            parse(broken).expect_err(broken);
        }
    }
}
