//! What is asked of the kernel at INIT, and what came of it.
//!
//! The kernel offers bits, we take those both sides want; nothing is assumed beyond what it offered. The defaults suit
//! a file system that keeps its own truth and lets the kernel cache by validity times: no writeback caching (slower in
//! every case that we measured, and wrong with several clients), locks left to the kernel.

use crate::flags::init;
use crate::request::Dialect;
use crate::wire;

/// The way requests travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel and its settings allow it, else the device.
    #[default]
    Auto,
    /// FUSE over io_uring. Asked for, `mount` fails where it is not ready.
    Ring,
    /// read(2) and write(2) on /dev/fuse.
    Device,
}

/// How a session is run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which transport to use.
    pub transport: Transport,
    /// Threads reading /dev/fuse when that is the transport; 0 is one per CPU, at least two.
    pub threads: usize,
    /// Requests per CPU the kernel may hand out at once over io_uring. Each has a buffer of `write_bytes_max`, which
    /// costs memory only as far as it is used.
    pub ring_depth: usize,
    /// To how many requests per CPU a ring may grow while late answers occupy it.
    pub ring_depth_max: usize,
    /// Largest WRITE and READ. Beyond 1 MiB the sysctl `fs.fuse.max_pages_limit` has to be raised too.
    pub write_bytes_max: u32,
    /// Largest read-ahead; the kernel also caps it at the mount's own (128 KiB unless changed).
    pub readahead_bytes_max: u32,
    /// Background requests (read-ahead, asynchronous direct I/O) the kernel may have open over /dev/fuse.
    pub background_max: u16,
    /// How long a request may take before the kernel ends the connection, and with it everybody's waiting: to the second, found out within the
    /// next 15 s, at most 18 hours; `None` is for ever, as on kernels before 6.15.
    pub request_patience: Option<std::time::Duration>,
    /// How long requests may still finish after the mount has gone; then they are dropped.
    pub grace: std::time::Duration,
    /// What is asked for.
    pub features: Features,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            transport: Transport::Auto,
            threads: 0,
            ring_depth: 8,
            ring_depth_max: 256,
            write_bytes_max: 1 << 20,
            readahead_bytes_max: 1 << 20,
            background_max: 64,
            request_patience: None,
            grace: std::time::Duration::from_secs(2),
            features: Features::default(),
        }
    }
}

/// Declares the features once: field, bit, default, meaning.
macro_rules! features {
    ($($(#[$doc:meta])* $field:ident = $bit:ident, $default:literal;)*) => {
        /// What the kernel is asked to do, and after INIT what it will do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Features { $($(#[$doc])* pub $field: bool),* }

        impl Default for Features {
            fn default() -> Features {
                Features { $($field: $default),* }
            }
        }

        impl Features {
            pub(crate) fn bits(self) -> u64 {
                0 $(| if self.$field { init::$bit } else { 0 })*
            }

            pub(crate) fn from_bits(bits: u64) -> Features {
                Features { $($field: bits & init::$bit != 0),* }
            }
        }
    };
}

features! {
    /// POSIX ACLs in `system.posix_acl_*` are honoured by the kernel (which then checks permissions itself).
    posix_acl = POSIX_ACL, true;
    /// The file system drops suid, sgid and capabilities when told to (`KILL_SUIDGID`).
    killpriv_v2 = HANDLE_KILLPRIV_V2, true;
    /// The file system applies the umask; needed for default ACLs.
    dont_mask = DONT_MASK, true;
    /// READDIRPLUS is spoken.
    readdirplus = DO_READDIRPLUS, true;
    /// The kernel chooses between READDIR and READDIRPLUS.
    readdirplus_auto = READDIRPLUS_AUTO, true;
    /// LOOKUP and READDIR of one directory may run at the same time.
    parallel_dirops = PARALLEL_DIROPS, true;
    /// Several reads of one file may be open.
    async_read = ASYNC_READ, true;
    /// Direct I/O is split and sent at once.
    async_dio = ASYNC_DIO, true;
    /// `O_TRUNC` arrives with OPEN instead of as a SETATTR.
    atomic_o_trunc = ATOMIC_O_TRUNC, true;
    /// LOOKUP of "." and ".." is answered, so that file handles survive (NFS export).
    export_support = EXPORT_SUPPORT, true;
    /// Targets of symbolic links are cached.
    cache_symlinks = CACHE_SYMLINKS, true;
    /// Cached data is dropped when size or modification time turn out to have changed.
    auto_inval_data = AUTO_INVAL_DATA, true;
    /// Cached data is dropped only on notification.
    explicit_inval_data = EXPLICIT_INVAL_DATA, false;
    /// SETXATTR carries its flags.
    setxattr_ext = SETXATTR_EXT, true;
    /// Shared mappings of files opened with `DIRECT_IO`.
    direct_io_allow_mmap = DIRECT_IO_ALLOW_MMAP, true;
    /// ioctl(2) on directories.
    ioctl_dir = IOCTL_DIR, true;
    /// The kernel collects writes in its cache.
    writeback_cache = WRITEBACK_CACHE, false;
    /// fcntl(2) locks are asked of the file system.
    posix_locks = POSIX_LOCKS, false;
    /// flock(2) locks are asked of the file system.
    flock_locks = FLOCK_LOCKS, false;
    /// Files may be read and written through a backing file.
    passthrough = PASSTHROUGH, false;
}

/// What INIT came to.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// Minor protocol version in use (major is 7).
    pub minor: u32,
    /// The transport in use when the session started.
    pub transport: Transport,
    /// Largest WRITE.
    pub write_bytes_max: u32,
    /// Largest read-ahead.
    pub readahead_bytes_max: u32,
    /// What the kernel will do.
    pub features: Features,
    /// Whether `Notifier::expire_entry` is known.
    pub expire_only: bool,
    /// Bytes of the largest payload of a request or answer.
    pub(crate) payload_bytes: usize,
    pub(crate) dialect: Dialect,
}

impl Negotiated {
    /// The part of INIT's bits that we act on later.
    pub(crate) fn bits(&self) -> u64 {
        let ring = if self.transport == Transport::Ring { init::OVER_IO_URING } else { 0 };
        self.features.bits() | ring | if self.expire_only { init::HAS_EXPIRE_ONLY } else { 0 }
    }

    /// As agreed by another process, from its bits and sizes.
    pub(crate) fn agreed(minor: u32, bits: u64, sizes: [u32; 3]) -> Negotiated {
        let [write_bytes_max, readahead_bytes_max, payload_bytes] = sizes;
        Negotiated {
            minor,
            transport: if bits & init::OVER_IO_URING != 0 { Transport::Ring } else { Transport::Device },
            write_bytes_max,
            readahead_bytes_max,
            features: Features::from_bits(bits),
            expire_only: bits & init::HAS_EXPIRE_ONLY != 0,
            payload_bytes: payload_bytes as usize,
            dialect: Dialect { setxattr_ext: bits & init::SETXATTR_EXT != 0 },
        }
    }
}

/// Our minor version; the kernel and we speak the lower of both.
pub(crate) const MINOR: u32 = 45;
/// Below this (Linux 3.15) structures had other sizes.
pub(crate) const MINOR_MIN: u32 = 23;

/// Decides the answer to INIT. `ring` says whether io_uring can and should be used.
pub(crate) fn negotiate(
    sent: &wire::InitIn,
    extension: &wire::InitExtIn,
    settings: &Settings,
    ring: bool,
) -> (wire::InitOut, Negotiated) {
    let offered = u64::from(sent.flags)
        | if u64::from(sent.flags) & init::INIT_EXT != 0 { u64::from(extension.flags2) << 32 } else { 0 };
    let always = init::BIG_WRITES | init::MAX_PAGES | init::ABORT_ERROR | init::INIT_EXT | init::HAS_EXPIRE_ONLY;
    let patience_s =
        settings.request_patience.map_or(0, |patience| patience.as_secs().clamp(1, u16::MAX.into()) as u16);
    let wanted = settings.features.bits()
        | always
        | if ring { init::OVER_IO_URING } else { 0 }
        | if patience_s > 0 { init::REQUEST_TIMEOUT } else { 0 };
    let mut taken = offered & wanted;
    if taken & init::EXPLICIT_INVAL_DATA != 0 {
        taken &= !init::AUTO_INVAL_DATA;
    }

    let page_bytes = crate::mount::page_bytes();
    let pages_wanted = settings.write_bytes_max.div_ceil(page_bytes).clamp(1, 65535);
    // Kernels before 4.20 have no MAX_PAGES and send at most 32 pages.
    let pages = if taken & init::MAX_PAGES != 0 { pages_wanted } else { pages_wanted.min(32) };
    let write_bytes_max = settings.write_bytes_max.clamp(page_bytes, pages * page_bytes);
    let readahead_bytes_max = settings.readahead_bytes_max.min(sent.readahead_bytes_max);
    let minor = sent.minor.min(MINOR);
    let transport = if taken & init::OVER_IO_URING != 0 { Transport::Ring } else { Transport::Device };

    let answer = wire::InitOut {
        major: 7,
        minor: MINOR,
        readahead_bytes_max,
        flags: taken as u32,
        background_max: settings.background_max,
        congestion: settings.background_max / 4 * 3,
        write_bytes_max,
        time_granularity_ns: 1,
        pages_max: pages as u16,
        flags2: (taken >> 32) as u32,
        stack_depth_max: u32::from(taken & init::PASSTHROUGH != 0),
        request_timeout_s: if taken & init::REQUEST_TIMEOUT != 0 { patience_s } else { 0 },
        ..Default::default()
    };
    let negotiated = Negotiated {
        minor,
        transport,
        write_bytes_max,
        readahead_bytes_max,
        features: Features::from_bits(taken),
        expire_only: taken & init::HAS_EXPIRE_ONLY != 0,
        payload_bytes: (pages * page_bytes).max(write_bytes_max).max(8192) as usize,
        dialect: Dialect { setxattr_ext: taken & init::SETXATTR_EXT != 0 },
    };
    (answer, negotiated)
}

#[cfg(test)]
mod tests {
    use super::{Settings, init, negotiate};
    use crate::wire;
    use std::time::Duration;

    #[test]
    fn a_bound_on_requests_is_asked_for_where_the_kernel_has_one() {
        let answered = |offered: u64, request_patience| {
            let flags2 = (offered >> 32) as u32;
            let sent = wire::InitIn { major: 7, minor: 43, readahead_bytes_max: 1 << 20, flags: init::INIT_EXT as u32 };
            let settings = Settings { request_patience, ..Settings::default() };
            let (answer, _) = negotiate(&sent, &wire::InitExtIn { flags2, ..Default::default() }, &settings, false);
            (answer.flags2 & (init::REQUEST_TIMEOUT >> 32) as u32 != 0, answer.request_timeout_s)
        };
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(answered(init::REQUEST_TIMEOUT, hour), (true, 3600));
        assert_eq!(answered(0, hour), (false, 0), "an older kernel");
        assert_eq!(answered(init::REQUEST_TIMEOUT, None), (false, 0));
        assert_eq!(answered(init::REQUEST_TIMEOUT, Some(Duration::from_millis(60))), (true, 1), "0 would be for ever");
        assert_eq!(answered(init::REQUEST_TIMEOUT, Some(Duration::MAX)), (true, u16::MAX));
    }
}
