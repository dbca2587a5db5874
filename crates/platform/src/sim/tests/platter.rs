//! A disk that turns: what requests take by where they lie.

use std::time::Duration;

use crate::disk::Open;
use crate::sim::{Platter, Spindle, World};

const DRIVE: Platter = Platter::SAS_7200;
const PAGE: u64 = 4096;

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[test]
fn the_arm_takes_longer_the_farther_it_goes() {
    assert_eq!(DRIVE.seek(DRIVE.cylinder_bytes - 1), Duration::ZERO);
    let next = DRIVE.seek(DRIVE.cylinder_bytes);
    assert!(next > DRIVE.seek_least && next < DRIVE.seek_least * 2, "{next:?}");
    let third = milliseconds(DRIVE.seek(DRIVE.bytes / 3));
    assert!((third - milliseconds(DRIVE.seek_average)).abs() < 0.01, "{third} ms");
    assert!(DRIVE.seek(DRIVE.bytes) > DRIVE.seek_average);
}

#[test]
fn a_request_at_random_waits_half_a_turn() {
    let world = World::new(1);
    let mut spindle = Spindle::new(DRIVE);
    let (mut now, count, spread) = (Duration::ZERO, 4000, 4 << 30);
    for _ in 0..count {
        now = spindle.request(now, world.below(spread / PAGE) * PAGE, PAGE, false);
    }
    // Half a turn, and the arm over a third of these cylinders: the published random writes of 4 KiB took 4.9 ms each.
    let each = milliseconds(now) / f64::from(count);
    let expected = milliseconds(DRIVE.turn / 2 + DRIVE.seek(spread / 3) + DRIVE.command);
    assert!((each - expected).abs() < 0.2, "{each} ms, expected {expected}");
    // Few lie by chance where it reads on: 2 MiB of 4 GiB.
    let sought = spindle.take().iter().filter(|placed| placed.is_sought).count();
    assert!(sought >= 3980, "{sought} of {count} were sought");
}

#[test]
fn what_follows_passes_by_itself() {
    let mut spindle = Spindle::new(DRIVE);
    let mebibyte = 1 << 20;
    let begun = spindle.request(Duration::ZERO, 0, mebibyte, false);
    let done = (1..1000).fold(begun, |now, number| spindle.request(now, number * mebibyte, mebibyte, false));
    let rate = 999.0 * mebibyte as f64 / (done - begun).as_secs_f64();
    assert!((rate / DRIVE.bytes_per_second as f64 - 1.0).abs() < 0.001, "{rate} bytes a second");
    assert_eq!(spindle.take().iter().filter(|placed| placed.is_sought).count(), 1);
    // It read on while nobody asked.
    let later = done + Duration::from_secs(1);
    assert_eq!(spindle.request(later, 1000 * mebibyte + PAGE, PAGE, false), later + DRIVE.command);
    // What it has passed comes by again in the next turn.
    let before = spindle.request(later, 0, PAGE, false);
    let again = spindle.request(before, 0, PAGE, false) - before;
    assert!(again >= DRIVE.turn - DRIVE.command && again < DRIVE.turn * 2, "{again:?}");
}

#[test]
fn writes_join_until_a_sync() {
    let mut spindle = Spindle::new(DRIVE);
    let first = spindle.request(Duration::ZERO, 0, PAGE, true);
    let second = spindle.request(first, PAGE, PAGE, true);
    assert_eq!(second - first, DRIVE.command);
    let synced = spindle.sync(second);
    assert_eq!(synced - second, DRIVE.command);
    let third = spindle.request(synced, 2 * PAGE, PAGE, true) - synced;
    assert!(third > DRIVE.turn / 2 && third < DRIVE.turn + DRIVE.command, "it has passed: {third:?}");
}

#[test]
fn requests_wait_for_those_before() {
    let mut spindle = Spindle::new(DRIVE);
    let first = spindle.request(Duration::ZERO, 1 << 30, 1 << 20, false);
    let second = spindle.request(Duration::ZERO, 0, PAGE, false);
    assert!(second > first);
    let placed = spindle.take();
    assert_eq!((placed[0].begun, placed[1].begun), (Duration::ZERO, first));
}

#[test]
fn files_have_places() {
    let world = World::new(1);
    let sim = world.disk("d", 1 << 30);
    sim.set_platter(DRIVE);
    let disk = sim.disk();
    let (one, two) = (disk.open("one", Open::Create).unwrap(), disk.open("two", Open::Create).unwrap());
    let page = [7; PAGE as usize];
    let before = world.elapsed();
    world
        .run_until(async {
            one.write_at(0, &page).await.unwrap();
            two.write_at(0, &page).await.unwrap();
            one.write_at((8 << 20) - 100, &page).await.unwrap();
            two.read_at(0, &mut [0; 10]).await.unwrap();
            two.sync().await.unwrap();
        })
        .unwrap();
    let places: Vec<(u64, u64, bool)> =
        sim.take_placed().iter().map(|placed| (placed.address, placed.bytes, placed.is_write)).collect();
    let (piece, page) = (8 << 20, PAGE);
    let expected = [
        (0, page, true),
        (piece, page, true),
        // A write over the end of a piece goes to two places.
        (piece - 100, 100, true),
        (2 * piece, page - 100, true),
        (piece, 10, false),
    ];
    assert_eq!(places, expected);
    assert!(sim.take_placed().is_empty(), "taken");
    assert!(world.elapsed() - before > DRIVE.turn, "the platter takes its time");
}

#[test]
fn who_waits_is_served_by_place() {
    let world = World::new(3);
    let sim = world.disk("d", 1 << 30);
    let disk = sim.disk();
    let file = disk.open("f", Open::Create).unwrap();
    world.run_until(file.write_at(0, &[7; 200_000])).unwrap().unwrap();
    sim.set_platter(DRIVE);
    let tasks = world.platform().tasks;
    // In any order of places, and by tasks in any order.
    for offset in [90_000, 10_000, 50_000, 130_000, 30_000] {
        let file = file.clone();
        tasks.spawn(
            "reader",
            Box::pin(async move {
                file.read_at(offset, &mut [0; 100]).await.unwrap();
            }),
        );
    }
    world.run_for(Duration::from_secs(1)).unwrap();
    let places: Vec<u64> = sim.take_placed().iter().map(|placed| placed.address).collect();
    assert_eq!(places.len(), 5);
    let turns = places.windows(2).filter(|two| two[1] < two[0]).count();
    assert!(turns <= 1, "upwards, and once from the lowest again: {places:?}");
}

#[test]
fn who_does_not_wait_any_more_leaves_the_drive_to_others() {
    let world = World::new(1);
    let sim = world.disk("d", 1 << 30);
    sim.set_platter(DRIVE);
    let file = sim.disk().open("f", Open::Create).unwrap();
    world
        .run_until(async {
            let page = [7; 4096];
            let mut given_up = Box::pin(file.write_at(1 << 20, &page));
            // Begun, and forgotten.
            let once = std::future::poll_fn(|context| std::task::Poll::Ready(given_up.as_mut().poll(context)));
            assert!(once.await.is_pending());
            drop(given_up);
            file.write_at(0, &page).await.unwrap();
            file.sync().await.unwrap();
        })
        .unwrap();
    assert_eq!(sim.snapshot_files()["f"].len(), 4096);
}

#[test]
fn a_restart_leaves_the_drive_free() {
    let world = World::new(1);
    let sim = world.disk("d", 1 << 30);
    let file = sim.disk().open("f", Open::Create).unwrap();
    world.run_until(file.write_at(0, &[7; 1 << 20])).unwrap().unwrap();
    sim.set_platter(DRIVE);
    for number in 0..100 {
        let file = file.clone();
        let read = async move { drop(file.read_at(number * 10_000, &mut [0; 10_000]).await) };
        world.platform().tasks.spawn("reader", Box::pin(read));
    }
    world.run_for(DRIVE.command).unwrap();
    world.crash();
    drop(sim.take_placed());
    let before = world.elapsed();
    let file = sim.disk().open("f", Open::Read).unwrap();
    world.run_until(file.read_at(0, &mut [0; 10])).unwrap().unwrap();
    let time = world.elapsed() - before;
    assert!(time < DRIVE.turn * 2, "nothing of the dead is waited for: {time:?}");
}

#[test]
fn who_cannot_wait_keeps_the_drive_busy() {
    let world = World::new(1);
    let sim = world.disk("d", 1 << 30);
    sim.set_platter(DRIVE);
    let file = sim.disk().open("f", Open::Create).unwrap();
    for number in 0..10 {
        file.raw().write_at(number * (16 << 20), &[7; 100]).unwrap();
    }
    assert_eq!(world.elapsed(), Duration::ZERO, "it does not wait");
    world.run_until(file.read_at(0, &mut [0; 100])).unwrap().unwrap();
    assert_eq!(sim.take_placed().len(), 11, "what was waited for is charged once");
    assert!(world.elapsed() > DRIVE.turn * 2, "who comes after waits for all of it: {:?}", world.elapsed());
}
