//! The settings of a node: `hydrafs.toml` in its folder, then overrides from the environment.
//!
//! One table, [`KEYS`], says everything about a setting: section, name, default, help, and how its text changes a
//! [`Config`]. The commented starter that `init` writes, the refusal of unknown keys with their line, and the overrides
//! `HYDRAFS_<SECTION>_<KEY>` all follow from it, so that they cannot disagree.
//!
//! A misspelt key that is silently ignored is a setting that is silently not in force: unknown keys are an error, in the
//! file and (within a known section) in the environment.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use base::units::{Bytes, parse_bytes};
use file::Erasure;
use toml::de::{DeTable, DeValue};

use crate::failure::Failure;

/// File name in the node's folder.
pub const FILE_NAME: &str = "hydrafs.toml";

/// How requests of the kernel reach us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel offers it, /dev/fuse else.
    Auto,
    /// io_uring or an error.
    Ring,
    /// /dev/fuse.
    Device,
}

/// How chunks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// zstd of this level; what does not shrink is kept as it is.
    Zstd(i32),
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory that the daemon may use for caches and buffers; `None`: a quarter of RAM, at most 4 GiB.
    pub memory_bytes: Option<u64>,
    /// Everything written is local after this long, fsync or not.
    pub flush_interval: Duration,
    /// Records are folded into trees at least this often.
    pub commit_interval: Duration,
    /// What reclaim and scrub take of the time, in percent, while nobody waits for them.
    pub background_share: u8,
    /// On how many disks everything lies.
    pub copies: u8,
    /// What content lies in instead, with as many copies of everything else as survive as much.
    pub fragments: Option<Erasure>,
    /// What bringing things onto so many disks again takes of the time, in percent.
    pub repair_share: u8,
    /// What is stored is read again once in this time; zero: only when somebody says so.
    pub scrub_interval: Duration,
    /// Small files that lie scattered are brought together once in this time; zero: only when somebody says so.
    pub layout_interval: Duration,
    /// How long a disk may take to answer.
    pub disk_patience: Duration,
    /// Compression of chunks.
    pub compression: Compression,
    /// Whether other users than the daemon's may use the mount.
    pub allow_other: bool,
    /// Whether reading moves access times (relatime).
    pub access_times: bool,
    /// Transport of requests.
    pub transport: Transport,
    /// Requests that may be under way per queue.
    pub queue_depth: u32,
    /// Threads that read /dev/fuse; 0: one per CPU.
    pub threads: u32,
    /// Largest read or write request; `None`: what the memory budget leaves, see [`Config::request_bytes`].
    pub request_bytes: Option<u32>,
    /// How long a request may take before the mount is given up; zero: as long as it likes.
    pub request_patience: Duration,
    /// How far the kernel may read ahead of who reads a file in order.
    pub read_ahead_bytes: u64,
    /// How far we read ahead of the kernel, and of who reads past its cache.
    pub prefetch_bytes: u64,
    /// How much of small files is read ahead of who reads the files of a directory.
    pub prefetch_directory_bytes: u64,
    /// Whether nodes of trees stay in memory longer than file content.
    pub weighs_cache: bool,
    /// How long the kernel may keep attributes and names.
    pub cache_time: Duration,
    /// Least severe messages that are logged.
    pub log_level: tracing::Level,
    /// Where metrics can be fetched over HTTP; `None`: nowhere.
    pub metrics_listen: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Config {
        let mut config = Config {
            memory_bytes: None,
            flush_interval: Duration::ZERO,
            commit_interval: Duration::ZERO,
            background_share: 0,
            copies: 1,
            fragments: None,
            repair_share: 0,
            scrub_interval: Duration::ZERO,
            layout_interval: Duration::ZERO,
            disk_patience: Duration::ZERO,
            compression: Compression::None,
            allow_other: true,
            access_times: true,
            transport: Transport::Auto,
            queue_depth: 1,
            threads: 0,
            request_bytes: None,
            request_patience: Duration::ZERO,
            read_ahead_bytes: 0,
            prefetch_bytes: 0,
            prefetch_directory_bytes: 0,
            weighs_cache: true,
            cache_time: Duration::ZERO,
            log_level: tracing::Level::INFO,
            metrics_listen: None,
        };
        for key in KEYS {
            (key.set)(&mut config, key.default).expect("the defaults of KEYS are valid (tested)");
        }
        config
    }
}

/// One setting.
struct Key {
    section: &'static str,
    name: &'static str,
    /// As text, without quotes.
    default: &'static str,
    /// Lines of the starter's comment.
    help: &'static str,
    /// Reads the text into the config, or says what would have been right.
    set: fn(&mut Config, &str) -> Result<(), String>,
}

const KEYS: &[Key] = &[
    Key {
        section: "memory",
        name: "budget",
        default: "auto",
        help: "Memory for caches and write buffers. \"auto\" is a quarter of RAM, at most 4 GiB.\nSizes take units: \"512 MiB\", \"2 GiB\".",
        set: |config, text| {
            config.memory_bytes = match text {
                "auto" => None,
                text => Some(size(text, 32 << 20, 1 << 44)?),
            };
            Ok(())
        },
    },
    Key {
        section: "durability",
        name: "flush_interval",
        default: "5 s",
        help: "What was written survives a crash of this machine after this long, even without fsync.\nChanges through a shared mapping (mmap) count from when the kernel hands them over, about 30 s later.",
        set: |config, text| duration(text, 50, 3_600_000).map(|interval| config.flush_interval = interval),
    },
    Key {
        section: "durability",
        name: "commit_interval",
        default: "30 s",
        help: "The journal is folded into trees at least this often; the journal's length bounds the time of a recovery.",
        set: |config, text| duration(text, 100, 24 * 3_600_000).map(|interval| config.commit_interval = interval),
    },
    Key {
        section: "storage",
        name: "compression",
        default: "zstd:1",
        help: "Compression of new chunks: \"none\", or \"zstd:LEVEL\" with a level of 1 to 19.\nWhat does not shrink is stored as it is.",
        set: |config, text| compression(text).map(|compression| config.compression = compression),
    },
    Key {
        section: "storage",
        name: "copies",
        default: "1",
        help: "On how many disks of this node everything lies: with 2 any disk may fail, with 3 any two. Trees lie on two anyway,\nwhere there are two. What is stored already is brought onto as many in the background. Takes as many times the room.",
        set: |config, text| count(text, 1, 8).map(|copies| config.copies = copies as u8),
    },
    Key {
        section: "storage",
        name: "fragments",
        default: "none",
        help: "\"4+2\": content of files is cut into 4 fragments with 2 of parity, each on a disk of its own, instead of `copies`: any two\nof six disks may fail, for half as much room again. What is new, names and trees lie in as many copies as survive as much.",
        set: |config, text| {
            config.fragments = match text {
                "none" => None,
                text => Some(text.parse().map_err(|why: String| format!("{why}, or none"))?),
            };
            Ok(())
        },
    },
    Key {
        section: "storage",
        name: "disk_patience",
        default: "120 s",
        help: "How long a disk may take for one request. Who waits for it then gets an error, and a disk that hangs while it writes is used no more\nuntil the node is opened again. What the system below retries by itself should be shorter.",
        set: |config, text| duration(text, 5000, 3_600_000).map(|patience| config.disk_patience = patience),
    },
    Key {
        section: "storage",
        name: "repair_share",
        default: "50",
        help: "Percentage of the time that is taken to bring what lay on a disk that failed onto others.",
        set: |config, text| count(text, 1, 100).map(|share| config.repair_share = share as u8),
    },
    Key {
        section: "storage",
        name: "background_share",
        default: "10",
        help: "Percentage of the time that work which nobody waits for may take: giving room back, reading again what is stored, and\n`layout_interval`.\nBeside programs that never rest it takes less, down to a fortieth of that, unless somebody waits for room.",
        set: |config, text| count(text, 1, 100).map(|share| config.background_share = share as u8),
    },
    Key {
        section: "storage",
        name: "scrub_interval",
        default: "28 d",
        help: "Everything that is stored is read again and verified once in this time, so that damage is found while there is\nsomething to mend it with. 0 is only when `hydrafs scrub` says so.",
        set: |config, text| duration(text, 0, 3650 * 24 * 3_600_000).map(|interval| config.scrub_interval = interval),
    },
    Key {
        section: "storage",
        name: "layout_interval",
        default: "0",
        help: "Small files that lie scattered, because they were written one by one, are written next to each other once in this time, as\n`hydrafs optimize` does it: \"28 d\" where disks turn. What moves takes its room twice until it comes back, and wears flash. It is\nlooked for within `background_share`, and not while less than a fifth of the room is free. 0 is only when somebody says so.",
        set: |config, text| duration(text, 0, 3650 * 24 * 3_600_000).map(|interval| config.layout_interval = interval),
    },
    Key {
        section: "read",
        name: "prefetch",
        default: "8 MiB",
        help: "How far file content is read ahead of who reads a file in order, backwards or in equal steps, where the memory budget\nleaves room for it. Nodes of trees are read four times as far ahead. 0 is not at all.",
        set: |config, text| size(text, 0, 256 << 20).map(|bytes| config.prefetch_bytes = bytes),
    },
    Key {
        section: "read",
        name: "prefetch_directory",
        default: "32 MiB",
        help: "How much of a directory's small files is read ahead of who reads them one by one, in the order in which they lie on\nthe disks, and as much of directories for who lists those of a directory, where the memory budget leaves room for it.\n0 is not at all.",
        set: |config, text| size(text, 0, 256 << 20).map(|bytes| config.prefetch_directory_bytes = bytes),
    },
    Key {
        section: "read",
        name: "cache",
        default: "weighted",
        help: "What leaves memory first: \"weighted\" (file content before nodes of trees) or \"plain\" (what was not used for longest).",
        set: |config, text| {
            config.weighs_cache = match text {
                "weighted" => true,
                "plain" => false,
                _ => return Err("expected weighted or plain".to_owned()),
            };
            Ok(())
        },
    },
    Key {
        section: "mount",
        name: "allow_other",
        default: "true",
        help: "Whether other users than the one who mounts may use the mount (the kernel checks their permissions).\nAs an ordinary user this needs `user_allow_other` in /etc/fuse.conf.",
        set: |config, text| boolean(text).map(|allow| config.allow_other = allow),
    },
    Key {
        section: "mount",
        name: "access_times",
        default: "relatime",
        help: "When reading moves a file's access time: \"relatime\" (if it is not newer than the last change, or a day old)\nor \"noatime\" (never). The mount option noatime says it for one mount.",
        set: |config, text| {
            config.access_times = match text {
                "relatime" => true,
                "noatime" => false,
                _ => return Err("expected relatime or noatime".to_owned()),
            };
            Ok(())
        },
    },
    Key {
        section: "mount",
        name: "transport",
        default: "auto",
        help: "How the kernel hands us requests: \"auto\", \"ring\" (io_uring; needs the module parameter fuse.enable_uring) or \"device\".",
        set: |config, text| {
            config.transport = match text {
                "auto" => Transport::Auto,
                "ring" => Transport::Ring,
                "device" => Transport::Device,
                _ => return Err("expected \"auto\", \"ring\" or \"device\"".to_owned()),
            };
            Ok(())
        },
    },
    Key {
        section: "mount",
        name: "queue_depth",
        default: "8",
        help: "Requests under way in each per-CPU queue. Each takes `request_size` of memory per CPU.",
        set: |config, text| count(text, 1, 256).map(|depth| config.queue_depth = depth),
    },
    Key {
        section: "mount",
        name: "threads",
        default: "0",
        help: "Threads that serve /dev/fuse; 0 is one per CPU.",
        set: |config, text| count(text, 0, 256).map(|threads| config.threads = threads),
    },
    Key {
        section: "mount",
        name: "request_size",
        default: "auto",
        help: "Largest read or write that the kernel hands over in one piece. \"auto\" is 1 MiB, or less where the queues of all CPUs\nwould take more than an eighth of the memory budget. More than 1 MiB needs the sysctl fs.fuse.max_pages_limit to be raised.",
        set: |config, text| {
            config.request_bytes = match text {
                "auto" => None,
                text => Some(u32::try_from(size(text, 4096, 16 << 20)?).map_err(|_| "too large".to_owned())?),
            };
            Ok(())
        },
    },
    Key {
        section: "mount",
        name: "request_patience",
        default: "1 h",
        help: "How long one request of a program may take. Who waits longer waits for a daemon that stands still: the kernel takes the mount\nfrom it, everybody gets an error, and `hydrafs mount` makes it again. Longer than the slowest sync of all that memory holds.\nOver io_uring, who waits for a daemon that a signal has stopped waits until that is killed.\n0 is as long as it takes, as on kernels before 6.15.",
        set: |config, text| duration(text, 0, 18 * 3_600_000).map(|patience| config.request_patience = patience),
    },
    Key {
        section: "mount",
        name: "read_ahead",
        default: "1 MiB",
        help: "How far the kernel reads ahead of who reads a file in order. Needs root; else it is the kernel's 128 KiB.",
        set: |config, text| size(text, 0, 1 << 30).map(|bytes| config.read_ahead_bytes = bytes),
    },
    Key {
        section: "mount",
        name: "cache_time",
        default: "1 d",
        help: "How long the kernel may keep names and attributes. All changes go through the kernel, so long is safe.",
        set: |config, text| duration(text, 0, 30 * 24 * 3_600_000).map(|time| config.cache_time = time),
    },
    Key {
        section: "log",
        name: "level",
        default: "info",
        help: "Least severe messages to log: \"error\", \"warn\", \"info\", \"debug\" or \"trace\".",
        set: |config, text| {
            config.log_level = text
                .parse()
                .map_err(|_| "expected \"error\", \"warn\", \"info\", \"debug\" or \"trace\"".to_owned())?;
            Ok(())
        },
    },
    Key {
        section: "metrics",
        name: "listen",
        default: "off",
        help: "Where Prometheus can fetch http://ADDRESS:PORT/metrics: \"off\", or an address such as \"127.0.0.1:9899\"\n\
            (port 0: any free one, see `hydrafs status`). Who reaches it can read it; no names or content of files are in it.",
        set: |config, text| {
            let address =
                || text.parse().map_err(|_| "expected \"off\" or ADDRESS:PORT, such as \"127.0.0.1:9899\"".to_owned());
            config.metrics_listen = if text == "off" { None } else { Some(address()?) };
            Ok(())
        },
    },
];

impl Config {
    /// The config of a node: defaults, then the file at `path` (none is fine), then the environment.
    pub fn load(path: &Path, environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Config, Failure> {
        let mut config = Config::default();
        match std::fs::read_to_string(path) {
            Ok(text) => config.apply_file(&text, path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::new("cannot read the configuration", error).at(path)),
        }
        config.apply_environment(environment)?;
        Ok(config)
    }

    pub(crate) fn apply_file(&mut self, text: &str, path: &Path) -> Result<(), Failure> {
        let refuse = |offset: usize, why: String, mend: String| {
            let line = text[..offset.min(text.len())].matches('\n').count() + 1;
            Failure::new("cannot use the configuration", why)
                .place(format!("{} line {line}", path.display()))
                .mend(mend)
        };
        let document = DeTable::parse(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            refuse(offset, error.message().to_owned(), "write it as TOML: [section], then key = value".to_owned())
        })?;
        for (section, value) in document.get_ref() {
            let offset = section.span().start;
            let section: &str = section.get_ref();
            if KEYS.iter().all(|key| key.section != section) {
                let why = format!("unknown section or key \"{section}\"");
                return Err(refuse(offset, why, format!("the sections are {}", sections())));
            }
            let DeValue::Table(table) = value.get_ref() else {
                return Err(refuse(offset, format!("\"{section}\" is a section"), format!("write [{section}]")));
            };
            for (name, value) in table {
                let key = find(section, name.get_ref())
                    .ok_or_else(|| unknown(section, name.get_ref()))
                    .map_err(|(why, mend)| refuse(name.span().start, why, mend))?;
                let found = match value.get_ref() {
                    DeValue::String(text) => text.to_string(),
                    DeValue::Integer(number) => number.as_str().to_owned(),
                    DeValue::Boolean(fact) => fact.to_string(),
                    _ => String::new(),
                };
                (key.set)(self, &found).map_err(|expected| {
                    let why = format!("{section}.{} = {found:?} cannot be", key.name);
                    refuse(value.span().start, why, expected)
                })?;
            }
        }
        Ok(())
    }

    fn apply_environment(&mut self, environment: impl Iterator<Item = (OsString, OsString)>) -> Result<(), Failure> {
        for (variable, value) in environment {
            let Some(rest) = variable.to_str().and_then(|name| name.strip_prefix("HYDRAFS_")) else { continue };
            let rest = rest.to_ascii_lowercase();
            let of_section = |key: &&Key| rest.strip_prefix(key.section).is_some_and(|name| name.starts_with('_'));
            let Some(section) = KEYS.iter().find(of_section).map(|key| key.section) else { continue };
            let name = &rest[section.len() + 1..];
            let refuse = |why: String, mend: String| {
                Failure::new("cannot use the environment", why).place(variable.display().to_string()).mend(mend)
            };
            let key =
                find(section, name).ok_or_else(|| unknown(section, name)).map_err(|(why, mend)| refuse(why, mend))?;
            let value = value.to_string_lossy();
            (key.set)(self, &value).map_err(|expected| refuse(format!("{value:?} cannot be"), expected))?;
        }
        Ok(())
    }

    /// Bytes of the largest request, given the machine's RAM and CPUs: each CPU has a queue of them.
    #[must_use]
    pub fn request_bytes(&self, ram_bytes: u64, cpus: usize) -> u32 {
        const SIZES: [u32; 4] = [1 << 20, 512 << 10, 256 << 10, 128 << 10];
        let together = |bytes: u32| u64::from(bytes) * u64::from(self.queue_depth) * cpus as u64;
        let fits = |bytes: &u32| together(*bytes) <= self.memory(ram_bytes) / 8;
        self.request_bytes.unwrap_or_else(|| SIZES.into_iter().find(fits).unwrap_or(SIZES[3]))
    }

    /// The memory budget in bytes, given the machine's RAM.
    #[must_use]
    pub fn memory(&self, ram_bytes: u64) -> u64 {
        // A quarter of RAM, at most 4 GiB.
        self.memory_bytes.unwrap_or((ram_bytes / 4).clamp(64 << 20, 4 << 30))
    }
}

/// The file that `init` writes: every key, its default commented out, with what it does.
#[must_use]
pub fn starter() -> String {
    let mut text = String::from(
        "# Settings of this HydraFS node. Lines that start with # show the defaults: take the # away to change one.\n\
         # Each can also be set by an environment variable, HYDRAFS_<SECTION>_<KEY>, such as HYDRAFS_LOG_LEVEL=debug.\n\
         # The daemon reads this file when it starts.\n",
    );
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            text.push_str(&format!("\n[{section}]\n"));
        }
        key.help.lines().for_each(|line| text.push_str(&format!("# {line}\n")));
        let plain = matches!(key.default, "true" | "false") || key.default.bytes().all(|byte| byte.is_ascii_digit());
        let quote = if plain { "" } else { "\"" };
        text.push_str(&format!("#{} = {quote}{}{quote}\n", key.name, key.default));
    }
    text
}

fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

fn unknown(section: &str, name: &str) -> (String, String) {
    let names: Vec<&str> = KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
    (format!("unknown key \"{section}.{name}\""), format!("the keys of [{section}] are {}", names.join(", ")))
}

fn sections() -> String {
    let mut names: Vec<&str> = KEYS.iter().map(|key| key.section).collect();
    names.dedup();
    names.join(", ")
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

fn count(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let expected = || format!("expected a number of {least} to {most}");
    text.parse().ok().filter(|count| (least..=most).contains(count)).ok_or_else(expected)
}

fn size(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?.0;
    if (least..=most).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("expected {} to {}", Bytes(least), Bytes(most)))
}

/// A duration with a unit: `250 ms`, `5 s`, `10 min`, `1 h`, `1 d`. A bare number is seconds.
pub(crate) fn duration(text: &str, ms_min: u64, ms_max: u64) -> Result<Duration, String> {
    let expected = || "expected a time such as \"250 ms\", \"5 s\", \"10 min\", \"1 h\" or \"1 d\"".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(expected()),
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(expected)?;
    if (ms_min..=ms_max).contains(&ms) {
        return Ok(Duration::from_millis(ms));
    }
    Err(format!("expected {ms_min} ms to {} s", ms_max / 1000))
}

fn compression(text: &str) -> Result<Compression, String> {
    let expected = || "expected \"none\" or \"zstd:LEVEL\" with a level of 1 to 19".to_owned();
    match text.split_once(':').unwrap_or((text, "1")) {
        ("none", "1") => Ok(Compression::None),
        ("zstd", level) => {
            level.parse().ok().filter(|level| (1..=19).contains(level)).map(Compression::Zstd).ok_or_else(expected)
        }
        _ => Err(expected()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
