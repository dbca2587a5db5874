//! FUSE over io_uring: one queue and one pinned thread per CPU, so that request and answer stay on the caller's CPU.
//!
//! The kernel (6.14 and newer, `fs/fuse/dev_uring.c`) makes demands that shape this module:
//!
//! - Once INIT agreed to io_uring, every request waits until *each possible* CPU's queue has an entry. So all threads
//!   make their rings and buffers before INIT is answered (`prepare`); if one cannot, or a policy of the machine keeps commands from FUSE, INIT
//!   does not agree.
//! - Once one entry was refused, requests go over /dev/fuse until each queue has an entry all the same, and over the rings from then on
//!   (`fuse_uring_do_register`). So entries that were refused are gone, and no more; only where a queue gets none do we go on over /dev/fuse,
//!   too (`register` reports it).
//! - When the connection ends, the kernel waits for every entry it holds to come back, which needs the queue's thread
//!   to enter its ring: a thread stays until then, and never blocks elsewhere.
//! - An entry added while requests wait in a queue does not take one up. See `queue` for what we do about that.
//!
//! And the scheduler makes one: see `courtesy` for how a caller is woken where it is, and `vigil` for CPUs that wake late.
//!
//! FORGET, INTERRUPT, notices and the end of the session still go over /dev/fuse: `device` keeps one reader.

mod courtesy;
mod mailbox;
mod queue;
mod slot;
mod vigil;

use crate::buffer::Area;
use crate::crew::{Crew, vital};
use crate::mount::{Unmounter, core_program};
use crate::settings::Settings;
pub(crate) use mailbox::Mailbox;
use queue::Queue;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use vigil::Watchers;

/// Whether FUSE over io_uring can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSupport {
    /// Yes.
    Available,
    /// The kernel could, but parameter `enable_uring` of module `fuse` is N. Root can change that: `enable_ring`.
    Disabled,
    /// The kernel cannot, or io_uring is forbidden here.
    Missing,
}

/// The kernel's switch.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether FUSE over io_uring can be used on this machine now.
pub fn ring_support() -> RingSupport {
    let Ok(value) = std::fs::read(PARAMETER) else { return RingSupport::Missing };
    if queue::new_ring().is_err() {
        return RingSupport::Missing;
    }
    if matches!(value.first(), Some(b'Y' | b'1')) { RingSupport::Available } else { RingSupport::Disabled }
}

/// Allows FUSE over io_uring on this machine until it restarts. Needs root. Sessions started before are not changed.
pub fn enable_ring() -> io::Result<()> {
    std::fs::write(PARAMETER, "Y").map_err(|error| io::Error::new(error.kind(), format!("{PARAMETER}: {error}")))
}

/// What the queues need to know.
pub(crate) struct Plan {
    pub(crate) crew: Arc<Crew>,
    pub(crate) device: Arc<OwnedFd>,
    /// Entries per CPU at the start, and at most.
    pub(crate) depth: usize,
    pub(crate) depth_max: usize,
    /// Where the mount is, for the nudge (`queue`), and how it ends when a ring breaks.
    pub(crate) unmounter: Unmounter,
    watchers: Watchers,
}

/// What a waiting queue is told next.
enum Order {
    Register,
    Serve,
}

/// All queues of a session.
pub(crate) struct Rings {
    queues: Vec<Member>,
}

struct Member {
    orders: mpsc::Sender<Order>,
    reports: mpsc::Receiver<io::Result<()>>,
    mailbox: Arc<Mailbox>,
    thread: JoinHandle<Vec<Area>>,
}

impl Plan {
    pub(crate) fn new(crew: Arc<Crew>, device: Arc<OwnedFd>, settings: &Settings, unmounter: Unmounter) -> Plan {
        // More would not fit the numbers of entries in a `u32` tag, nor any machine.
        let depth = settings.ring_depth.clamp(1, 4096);
        let watchers = Watchers::new(std::thread::available_parallelism().map_or(1, usize::from));
        Plan { crew, device, depth, depth_max: settings.ring_depth_max.clamp(depth, 16384), unmounter, watchers }
    }
}

impl Rings {
    /// Makes a thread, a ring and buffers for every possible CPU. Nothing is known to the kernel's FUSE yet.
    /// `areas`: slots of another process, with their requests, and the queue of each.
    pub(crate) fn prepare(plan: Plan, mut areas: Vec<(u16, Area)>) -> io::Result<Rings> {
        // Without it a queue that once had nothing could hang (`queue`).
        core_program("stat")?;
        queue::reach(&plan.device)?;
        let plan = Arc::new(plan);
        let mut rings = Rings { queues: Vec::new() };
        for index in 0..possible_cpus()? {
            let own = areas.extract_if(.., |(queue, _)| *queue == index).map(|(_, area)| area).collect();
            rings.queues.push(Member::spawn(&plan, index, own)?);
        }
        if let Some((queue, _)) = areas.first() {
            return Err(io::Error::other(format!("there is no CPU {queue} to go on for")));
        }
        // Dropping `rings` on an error drops the orders, which ends the threads that are there.
        rings.reports()?;
        Ok(rings)
    }

    /// Registers all entries. An error if a queue gets none: the kernel goes on over /dev/fuse; the rings then idle until the end.
    pub(crate) fn register(&self) -> io::Result<()> {
        self.order(|| Order::Register);
        self.reports()
    }

    /// Lets the queues serve.
    pub(crate) fn serve(&self) {
        self.order(|| Order::Serve);
    }

    /// Waits until every queue has ended: the connection is over and it has got its slots back, or it is parked. Gives the slots
    /// that are parked.
    pub(crate) fn finish(mut self) -> Vec<(u16, Area)> {
        let mut parked = Vec::new();
        let threads: Vec<_> = self.end().collect();
        for (index, thread) in (0..).zip(threads) {
            let result = thread.join();
            debug_assert!(result.is_ok(), "a ring thread panicked");
            parked.extend(result.unwrap_or_default().into_iter().map(|area| (index, area)));
        }
        parked
    }

    /// How the queues are woken to see that they are to park.
    pub(crate) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.queues.iter().map(|member| member.mailbox.clone()).collect()
    }

    /// Tells every queue to end. One that never served is waiting for orders, and hears that none will come.
    fn end(&mut self) -> impl Iterator<Item = JoinHandle<Vec<Area>>> {
        self.queues.drain(..).map(|member| {
            member.mailbox.end();
            member.thread
        })
    }

    fn order(&self, order: impl Fn() -> Order) {
        for member in &self.queues {
            // A thread that has gone has reported why.
            let _ = member.orders.send(order());
        }
    }

    fn reports(&self) -> io::Result<()> {
        let gone = |_| Err(io::Error::other("a ring thread ended early"));
        // All are heard before the first error counts, so that no thread is still at work.
        let reports: Vec<_> = self.queues.iter().map(|member| member.reports.recv().unwrap_or_else(gone)).collect();
        reports.into_iter().collect()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // A session that did not come up: its mount is taken away, and the threads end by themselves.
        self.end().for_each(drop);
    }
}

impl Member {
    fn spawn(plan: &Arc<Plan>, index: u16, areas: Vec<Area>) -> io::Result<Member> {
        let mailbox = Mailbox::new()?;
        let (orders, orders_in) = mpsc::channel();
        let (reports_out, reports) = mpsc::channel();
        let (plan, letters) = (plan.clone(), mailbox.clone());
        let thread = Builder::new()
            .name(format!("fuse-ring-{index}"))
            .spawn(move || vital(|| live(&plan, index, letters, areas, &orders_in, &reports_out)))?;
        Ok(Member { orders, reports, mailbox, thread })
    }
}

/// The life of a queue's thread: prepare, register, serve, each when told to.
fn live(
    plan: &Arc<Plan>,
    index: u16,
    mailbox: Arc<Mailbox>,
    areas: Vec<Area>,
    orders: &mpsc::Receiver<Order>,
    reports: &mpsc::Sender<io::Result<()>>,
) -> Vec<Area> {
    // The session may have given up already.
    let report = |result: io::Result<()>| drop(reports.send(result));
    let is_here = queue::pin_thread(index);
    let mut queue = match Queue::new(plan.clone(), index, mailbox, is_here, areas) {
        Ok(queue) => queue,
        Err(error) => {
            report(Err(error));
            return Vec::new();
        }
    };
    report(Ok(()));
    let Ok(Order::Register) = orders.recv() else { return Vec::new() };
    report(queue.register());
    // To serve, or because it is all over; in both cases the kernel has slots to give back.
    let is_serving = matches!(orders.recv(), Ok(Order::Serve));
    queue.run();
    if is_serving {
        plan.crew.park.leave();
    }
    let parked = queue.take_parked();
    queue.leave();
    parked
}

/// Whether each CPU that is on can be reached from here: the slots of others cannot be parked.
pub(crate) fn has_all_cpus() -> bool {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|list| count_cpus(&list));
    let (Some(online), Ok(possible)) = (online, possible_cpus()) else { return false };
    // On a thread of its own, because it stays where it was tied to last.
    let count = Builder::new().spawn(move || (0..possible).filter(|cpu| queue::pin_thread(*cpu)).count());
    count.is_ok_and(|count| count.join().is_ok_and(|count| count >= usize::from(online)))
}

/// How many CPUs this machine may ever have: the kernel wants a queue for each.
fn possible_cpus() -> io::Result<u16> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_cpus(&list).ok_or_else(|| io::Error::other(format!("list of possible CPUs \"{}\"", list.trim())))
}

/// Counts a list like "0-3,8".
fn count_cpus(list: &str) -> Option<u16> {
    let mut count = 0_u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::{Plan, Rings, count_cpus, queue};
    use crate::crew::Crew;
    use crate::exchange::Exchange;
    use crate::mount::{Place, Unmounter};
    use crate::request::Dialect;
    use crate::service::{Boxed, Handler};
    use crate::settings::{Negotiated, Settings};
    use std::sync::Arc;
    use std::time::Instant;

    struct Nobody;

    impl Handler for Nobody {
        fn serve(&self, _: Exchange) -> Boxed {
            unreachable!("nothing is asked")
        }

        fn forget(&self, _: u64, _: u64) {}
        fn started(&self, _: &Negotiated) {}
        fn destroyed(&self) {}
    }

    /// Of a session whose device refuses every entry, for it is none.
    fn plan() -> Plan {
        let crew = Crew::new(Box::new(Nobody), 1 << 16, Dialect { setxattr_ext: false });
        let device = std::io::pipe().expect("a pipe").0.into();
        let place = Place { mountpoint: "/nowhere".into(), device: "0:0".to_owned(), unique: None, by_helper: false };
        Plan::new(Arc::new(crew), Arc::new(device), &Settings::default(), Unmounter::of(place))
    }

    #[test]
    fn queues_that_get_no_entry_are_an_error_and_leave_the_session_as_it_is() {
        if queue::new_ring().is_err() {
            // io_uring is forbidden here.
            return;
        }
        let plan = plan();
        let crew = plan.crew.clone();
        let rings = Rings::prepare(plan, Vec::new()).expect("rings");
        let refused = rings.register().expect_err("a pipe takes no entry");
        assert!(refused.to_string().contains("io_uring queue of CPU"), "{refused}");
        assert!(rings.finish().is_empty(), "no slot has a request");
        crew.park.want();
        assert!(crew.park.have_all_stopped(Instant::now()), "it goes on over /dev/fuse, and parks there");
        assert!(crew.park.decide(true));
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(count_cpus("0-1\n"), Some(2));
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        assert_eq!(count_cpus(""), None);
        assert_eq!(count_cpus("3-1"), None);
    }
}
