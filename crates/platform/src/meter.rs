//! How long a device takes, for whoever asks where the time went.
//!
//! Counted is each call of the system about the content of a file: what it read that memory did not have, what it was given, and each sync. A call
//! that fails counts, and one that was given up does when it ends after all. What waits before a call, for a thread or a lock, is not in it.
//!
//! Not here: who makes the calls (`real`); a simulated device has a clock of its own, and is not measured.

base::metrics! {
    /// What a device was asked for.
    disk:
    read: Histogram, Seconds, "a disk reads what memory does not have, by disk";
    write: Histogram, Seconds, "a disk is given bytes, by disk; of some, memory keeps them until a sync";
    sync: Histogram, Seconds, "a disk makes the content of a file durable, by disk";
}
