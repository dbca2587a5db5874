//! A sync that is begun with the write after which it always came.

use std::time::Duration;

use super::{Machine, create, find, read_all};
use crate::Kind;
use base::id::FileId;

/// Long enough for the disk, and short beside the interval after which everything is flushed.
const SOON: Duration = Duration::from_millis(50);

/// Who wrote and synced by turns finds his next write on the disk though the power goes before he syncs; who only wrote does not.
#[test]
fn what_is_always_synced_next_is_durable_soon_after_the_write() {
    let machine = Machine::new(73);
    let system = machine.open();
    machine.run(async {
        let log = create(&system, FileId::ROOT, "log", Kind::Regular).await.file;
        let other = create(&system, FileId::ROOT, "other", Kind::Regular).await.file;
        for round in 0..5 {
            for part in 0..3 {
                system.write(log, (round * 3 + part) * 100, &[b'0' + part as u8; 100], false).await.unwrap();
            }
            if round < 4 {
                system.sync(log).await.unwrap();
                assert_eq!(system.counters.syncs_begun.value(), 0);
            }
        }
        assert_eq!(system.counters.syncs_begun.value(), 1);
        system.write(other, 0, b"only written", false).await.unwrap();
        system.platform.tasks.sleep(SOON).await;
        assert_eq!(system.counters.inlined_bytes.value(), 1500);
    });
    let system = machine.power_cycle(system);
    let content =
        |path: &'static str| machine.run(async { read_all(&system, find(&system, path).await.unwrap()).await });
    assert_eq!(content("log").len(), 1500);
    assert_eq!(content("log")[1200..], [[b'0'; 100], [b'1'; 100], [b'2'; 100]].concat());
    assert_eq!(content("other"), b"");
    machine.check(&system);
}

/// A sync that was begun takes nothing away from what comes between it and the sync that follows.
#[test]
fn what_is_written_after_a_sync_was_begun_is_synced_by_the_next() {
    let machine = Machine::new(74);
    let system = machine.open();
    machine.run(async {
        let log = create(&system, FileId::ROOT, "log", Kind::Regular).await.file;
        for round in 0..5 {
            system.write(log, round, &[b'a' + round as u8], false).await.unwrap();
            if round < 4 {
                system.sync(log).await.unwrap();
            }
        }
        system.write(log, 5, b"z", false).await.unwrap();
        assert_eq!((system.counters.syncs_begun.value(), system.counters.syncs_begun_vain.value()), (1, 1));
        system.sync(log).await.unwrap();
    });
    let system = machine.power_cycle(system);
    let content = machine.run(async { read_all(&system, find(&system, "log").await.unwrap()).await });
    assert_eq!(content, b"abcdez");
    machine.check(&system);
}
