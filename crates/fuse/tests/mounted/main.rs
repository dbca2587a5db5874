//! The transports against the real kernel: a file system in memory, mounted in a temporary directory, used through
//! ordinary calls. Every case runs over /dev/fuse and over io_uring. Where FUSE cannot be mounted, or io_uring cannot be
//! switched on, a case is skipped and says why.

#![expect(unsafe_code, reason = "signals, pinning and fcntl(2) locks have no safe wrapper in std")]
#![allow(clippy::disallowed_methods, reason = "these tests are clients of a real kernel")]

mod cases;
mod memory;
mod stage;

macro_rules! on_both_transports {
    ($($case:ident)*) => {
        mod device {
            $(#[test] fn $case() { crate::stage::on_device(crate::cases::$case); })*
        }
        mod ring {
            $(#[test] fn $case() { crate::stage::on_ring(crate::cases::$case); })*
        }
    };
}

on_both_transports! {
    files_are_written_read_and_renamed
    directories_are_listed_whole
    attributes_beyond_stat_are_kept
    large_writes_arrive_whole
    many_threads_at_once
    slow_requests_hold_up_nobody
    more_slow_requests_than_slots
    a_waiting_lock_is_interrupted
    panics_end_one_request
    dropped_and_foreign_answers_arrive
    unmounting_ends_the_session
    a_busy_mount_is_not_unmounted
    force_ends_requests_that_wait
    notices_reach_the_kernel
    changed_pages_are_brought_and_waited_for
    names_are_forgotten
    the_mount_table_names_us
    a_session_is_parked_and_goes_on
    what_is_late_keeps_a_session_from_parking
}
