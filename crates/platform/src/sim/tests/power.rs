//! What a power loss may take, and what it may not.

use std::collections::{BTreeMap, BTreeSet};

use crate::disk::{Disk, DiskError, DiskErrorKind, File, Open};
use crate::sim::{Faults, SimDisk, World, each_seed};

fn disk(world: &World) -> (SimDisk, Disk) {
    let sim = world.disk("d", 1 << 20);
    let disk = sim.disk();
    (sim, disk)
}

/// A file whose name is durable, with these bytes, durable.
fn durable_file(disk: &Disk, path: &str, bytes: &[u8]) -> File {
    let file = disk.open(path, Open::Create).unwrap();
    file.raw().write_at(0, bytes).unwrap();
    file.raw().sync().unwrap();
    disk.sync_directory("").unwrap();
    file
}

#[test]
fn what_was_not_synced_may_be_lost_or_kept_and_what_was_is_there() {
    let mut outcomes = BTreeSet::new();
    each_seed(0..100, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        durable_file(&disk, "synced", &[1; 5000]);
        durable_file(&disk, "loose", b"old").raw().write_at(0, b"new").unwrap();
        world.restart();
        let mut files = sim.snapshot_files();
        assert_eq!(files.remove("synced").unwrap(), [1; 5000]);
        outcomes.insert(files.remove("loose").unwrap());
        assert_eq!(sim.durable_files(), sim.snapshot_files(), "after a power loss all is durable");
    });
    assert_eq!(outcomes, BTreeSet::from([b"old".to_vec(), b"new".to_vec()]));
}

#[test]
fn writes_tear_at_sectors_and_overtake_each_other() {
    let mut patterns = BTreeSet::new();
    each_seed(0..300, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        let file = durable_file(&disk, "f", &[b'.'; 2048]);
        // Neither end is the end of a sector: sectors 0 to 2 are touched by the first, 2 and 3 by the second.
        file.raw().write_at(100, &[b'a'; 1200]).unwrap();
        file.raw().write_at(1300, &[b'b'; 700]).unwrap();
        world.restart();
        let bytes = sim.snapshot_files().remove("f").unwrap();
        assert_eq!(bytes.len(), 2048);
        let mut pattern = String::new();
        for sector in bytes.chunks(512) {
            let mut runs = sector.to_vec();
            runs.dedup();
            pattern += &(String::from_utf8(runs).unwrap() + "|");
        }
        patterns.insert(pattern);
    });
    // Sector 2 is untouched, or as after the first write, or as after both: never the second without the first.
    let allowed: BTreeSet<String> = [".|", ".a|"]
        .iter()
        .flat_map(|zero| [".|", "a|"].map(|one| format!("{zero}{one}")))
        .flat_map(|head| [".|", "a.|", "ab|"].map(|two| format!("{head}{two}")))
        .flat_map(|head| [".|", "b.|"].map(|three| format!("{head}{three}")))
        .collect();
    assert!(patterns.is_subset(&allowed), "not allowed: {:?}", patterns.difference(&allowed));
    assert!(patterns.contains(".|.|ab|b.|"), "the second write alone");
    assert!(patterns.contains(".a|a|a.|.|"), "the first write alone");
    assert!(patterns.contains(".a|.|.|.|"), "the first write torn");
}

#[test]
fn lengths_are_lost_as_well_and_zeroes_may_appear() {
    let mut outcomes = BTreeSet::new();
    each_seed(0..300, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        let file = durable_file(&disk, "f", &[1; 512]);
        file.raw().write_at(512, &[2; 512]).unwrap();
        file.raw().set_length(100).unwrap();
        world.restart();
        let bytes = sim.snapshot_files().remove("f").unwrap();
        outcomes.insert((bytes.len(), bytes.get(512).copied()));
    });
    assert_eq!(outcomes, BTreeSet::from([(100, None), (512, None), (1024, Some(0)), (1024, Some(2))]));
}

#[test]
fn names_survive_as_a_prefix() {
    let mut counts = BTreeSet::new();
    each_seed(0..100, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        durable_file(&disk, "old", b"old");
        disk.open("1", Open::Create).unwrap().raw().sync().unwrap();
        disk.open("2", Open::Create).unwrap();
        disk.rename("1", "3").unwrap();
        disk.remove("old").unwrap();
        disk.rename("2", "old").unwrap();
        world.restart();
        let names: Vec<String> = sim.snapshot_files().into_keys().collect();
        let prefixes: [&[&str]; 6] =
            [&["old"], &["1", "old"], &["1", "2", "old"], &["2", "3", "old"], &["2", "3"], &["3", "old"]];
        let count = prefixes.iter().position(|prefix| *prefix == names);
        counts.insert(count.unwrap_or_else(|| panic!("no prefix leads to {names:?}")));
    });
    assert_eq!(counts.len(), 6, "each prefix in some seed");
}

#[test]
fn a_directory_syncs_its_names_and_not_its_own() {
    let mut outcomes = BTreeSet::new();
    each_seed(0..100, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        disk.make_directory("a").unwrap();
        disk.sync_directory("").unwrap();
        disk.open("f", Open::Create).unwrap();
        disk.make_directory("b").unwrap();
        disk.open("a/f", Open::Create).unwrap();
        disk.open("b/f", Open::Create).unwrap();
        disk.rename("b/f", "a/g").unwrap();
        disk.open("b/h", Open::Create).unwrap();
        disk.sync_directory("a").unwrap();
        disk.sync_directory("b").unwrap();
        world.restart();
        outcomes.insert(sim.snapshot_files().into_keys().collect::<Vec<_>>().join(" "));
    });
    let expected = ["a/f a/g", "a/f a/g f", "a/f a/g b/h f"];
    assert_eq!(outcomes, expected.map(str::to_owned).into());
}

#[test]
fn a_file_written_durably_is_whole_whenever_the_power_goes() {
    for cut in 1..=10 {
        each_seed(0..40, |seed| {
            let world = World::new(seed);
            let (sim, disk) = disk(&world);
            durable_file(&disk, "f", b"old");
            world.cut_power_at(world.operations() + cut);
            let new = [7; 3000];
            let result = world.run_until(disk.write_durably("f", &new)).unwrap();
            assert_eq!(result.is_ok(), cut > 6, "six operations: remove, open, write, sync, rename, sync directory");
            world.restart();
            let bytes = sim.snapshot_files().remove("f").unwrap();
            assert!(bytes == new || (bytes == b"old" && cut <= 6), "cut at {cut}");
        });
    }
}

/// M-9.
#[test]
fn the_operation_with_a_number_fails_and_no_other() {
    use DiskErrorKind::{Failed, Full, ReadOnly, Silent};
    let mut refused = 0;
    for kind in [Failed, Full, ReadOnly, Silent] {
        for number in 1..=8 {
            let world = World::new(number);
            let (_, disk) = disk(&world);
            let file = durable_file(&disk, "f", b"bytes");
            world.fail_at(world.operations() + number, kind);
            let results = [
                file.raw().read_at(0, &mut [0; 4]).map(drop),
                disk.list("").map(drop),
                file.raw().write_at(0, b"x"),
                file.raw().sync(),
                disk.open("g", Open::Create).map(drop),
                disk.rename("f", "h"),
                disk.sync_directory(""),
                disk.lock("l").map(drop),
            ];
            // After a change without an answer, for a while.
            let mut is_silent = kind == Silent && number > 2;
            for (at, result) in (1..).zip(results) {
                let of_read = if kind == Silent { Silent } else { Failed };
                let expected = if at <= 2 { of_read } else { kind };
                let found = result.err().map(|error| error.kind);
                is_silent &= at <= number || found == Some(Silent);
                if at > number && is_silent {
                    refused += 1;
                } else {
                    assert_eq!(found, (at == number).then_some(expected), "{kind:?} at {at}");
                }
            }
        }
    }
    assert!(refused > 0, "some come after a change without an answer");
}

#[test]
fn a_failed_sync_may_lose_data_for_good() {
    let mut outcomes = BTreeSet::new();
    each_seed(0..200, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        let file = durable_file(&disk, "f", b"old");
        file.raw().write_at(0, b"new").unwrap();
        sim.set_faults(Faults { sync_error: 1.0, ..Faults::default() });
        assert!(file.raw().sync().is_err());
        sim.set_faults(Faults::default());
        let seen = sim.snapshot_files().remove("f").unwrap();
        file.raw().sync().expect("the next sync succeeds");
        world.restart();
        outcomes.insert((seen, sim.snapshot_files().remove("f").unwrap()));
    });
    let (old, new) = (b"old".to_vec(), b"new".to_vec());
    assert_eq!(outcomes, BTreeSet::from([(old.clone(), old.clone()), (new.clone(), new.clone()), (new, old)]));
}

#[test]
fn without_power_nothing_works_and_nothing_changes() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let second = world.disk("second", 1 << 20).disk();
    let file = durable_file(&disk, "f", b"bytes");
    world.cut_power_at(world.operations() + 1);
    assert_eq!(file.raw().read_at(0, &mut [0; 4]).unwrap_err().detail, "power is gone");
    assert!(!world.is_powered());
    let before = sim.snapshot_files();
    let errors: [Option<DiskError>; 7] = [
        file.raw().write_at(0, b"x").err(),
        file.raw().sync().err(),
        file.length().err(),
        disk.remove("f").err(),
        disk.space().err(),
        second.open("g", Open::Create).err(),
        second.lock("l").err(),
    ];
    assert!(errors.iter().all(|error| error.as_ref().is_some_and(|error| error.kind == DiskErrorKind::Failed)));
    world.restart();
    assert_eq!(sim.snapshot_files(), before);
    assert!(file.raw().read_at(0, &mut [0; 4]).is_err(), "a file opened before the power loss");
    disk.open("f", Open::Read).unwrap();
}

/// Each step is one operation, so that step `n` is in flight when the power goes at operation `n`.
fn script(disk: &Disk) -> Result<(), DiskError> {
    let file = disk.open("a", Open::Create)?; // 1
    file.raw().write_at(0, &[b'A'; 1024])?; // 2
    file.raw().sync()?; // 3
    disk.sync_directory("")?; // 4
    file.raw().write_at(0, &[b'B'; 1024])?; // 5
    disk.open("b", Open::Create)?; // 6
    disk.rename("b", "c")?; // 7
    disk.sync_directory("")?; // 8
    disk.remove("c")?; // 9
    file.raw().sync() // 10
}

/// Contents of "a" and the other names that the fault model allows when the power goes at operation `cut`.
fn allowed(cut: u64) -> (BTreeSet<Option<String>>, BTreeSet<Option<&'static str>>) {
    let sectors: &[&str] = match cut {
        // Written, not yet synced: each sector is there, is missing before the end, or is beyond it.
        1 => &["", "-"],
        2 | 3 => &["-", "", "00", "A", "0A", "A0", "AA"],
        // Synced; only the name is not.
        4 => &["-", "AA"],
        5..=10 => &["AA", "AB", "BA", "BB"],
        _ => &["BB"],
    };
    let names: &[Option<&str>] = match cut {
        ..=5 => &[None],
        6 => &[None, Some("b")],
        7 | 8 => &[None, Some("b"), Some("c")],
        9.. => &[None, Some("c")],
    };
    // After step 8 a missing "c" is its removal, which is in flight at 9.
    let names = if cut == 8 { &[None, Some("b"), Some("c")] } else { names };
    let contents = sectors.iter().map(|text| (*text != "-").then(|| (*text).to_owned()));
    (contents.collect(), names.iter().copied().collect())
}

#[test]
fn a_cut_at_each_operation_leaves_exactly_what_the_model_allows() {
    let world = World::new(0);
    script(&disk(&world).1).unwrap();
    let count = world.operations();
    assert_eq!(count, 10);
    for cut in 1..=count + 1 {
        let (mut contents, mut names) = (BTreeSet::new(), BTreeSet::new());
        each_seed(0..400, |seed| {
            let world = World::new(seed);
            let (sim, disk) = disk(&world);
            world.cut_power_at(cut);
            assert_eq!(script(&disk).is_err(), cut <= count);
            world.restart();
            let mut files: BTreeMap<String, Vec<u8>> = sim.snapshot_files();
            contents.insert(files.remove("a").map(|bytes| {
                let one_per_sector = bytes.chunks(512).map(|sector| {
                    assert!(sector.len() == 512 && sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
                    if sector[0] == 0 { '0' } else { char::from(sector[0]) }
                });
                one_per_sector.collect::<String>()
            }));
            assert!(files.len() <= 1, "{files:?}");
            names.insert(files.into_keys().next().map(|name| if name == "b" { "b" } else { "c" }));
        });
        assert_eq!((contents, names), allowed(cut), "cut at operation {cut}");
    }
}
