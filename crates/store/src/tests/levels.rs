//! What asks for more copies gets them, whatever was there before; what asks for fewer does with fewer (K-9).

use std::sync::Arc;

use bytes::Bytes;
use platform::sim::each_seed;

use super::{Machine, content, hurried, options, reclaim};
use crate::{Class, Depth, Options, Recovered, Resilience, Store, StoreError};

const TWO: Resilience = Resilience::Copies(2);

fn contents(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 30_000)).collect()
}

fn try_open(machine: &Machine, options: &Options) -> Result<(Arc<Store>, Recovered), StoreError> {
    machine.run(Store::open(&machine.world.platform(), &machine.handles(), options.clone()))
}

fn open(machine: &Machine, options: &Options) -> Arc<Store> {
    try_open(machine, options).unwrap().0
}

fn end(machine: &Machine, store: Arc<Store>) {
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.restart();
}

/// On how many disks the chunk is that the index names.
fn copies(store: &Store, content: &Bytes) -> usize {
    let place = store.packs.index.lookup(&store.key().address(content), &store.counters).unwrap().unwrap();
    store.packs.known()[&place.pack].disks().count()
}

fn all_have(store: &Store, contents: &[Bytes], count: usize) {
    contents.iter().for_each(|content| assert_eq!(copies(store, content), count));
}

fn readable(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) -> usize {
    let read = |content: &&Bytes| {
        machine.run(store.get(Class::Data, &store.key().address(content))).is_ok_and(|read| read == **content)
    };
    contents.iter().filter(read).count()
}

#[test]
fn content_that_is_asked_for_again_with_more_copies_is_stored_anew() {
    let machine = Machine::new(1, 3, 64 << 20);
    let store = open(&machine, &options());
    let (plain, both, more) = (contents(0..40), contents(100..140), contents(200..240));
    machine.run(async {
        store.put_many(Class::Data, [&plain[..], &both].concat()).await.unwrap();
        store.put_as(TWO, [&both[..], &more].concat()).await.unwrap();
        // Whoever asks for less is served by what is there.
        store.put_many(Class::Data, [&both[..], &more].concat()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    let expect = |store: &Arc<Store>| {
        all_have(store, &plain, 1);
        all_have(store, &both, 2);
        all_have(store, &more, 2);
    };
    expect(&store);
    let stored = store.status().data.chunks;
    assert_eq!(stored, 40 + 40 + 80);
    machine.run(store.put_as(TWO, both.clone())).unwrap();
    assert_eq!(store.status().data.chunks, stored, "once is enough");
    // The packs of more copies are sealed before or after those of fewer, with a crash or without one.
    end(&machine, store);
    let store = open(&machine, &options());
    expect(&store);
    drop(store);
    machine.world.crash();
    machine.world.restart();
    // An index that is made again names them too.
    for disk in &machine.disks {
        disk.remove("index");
    }
    let store = open(&machine, &options());
    expect(&store);
    // The copies in packs with fewer go, and nothing else.
    let live: Vec<_> = [&plain[..], &both, &more].concat().iter().map(|content| store.key().address(content)).collect();
    let marks = |store: &Arc<Store>| machine.run(reclaim(store, &|address| live.contains(address))).unwrap();
    marks(&store);
    expect(&store);
    assert_eq!(readable(&machine, &store, &[&plain[..], &both, &more].concat()), 120);
}

/// Settings may ask for less again, and then nobody would mend it.
#[test]
fn what_lies_on_more_disks_by_the_settings_alone_does_not_stand_for_what_was_chosen() {
    let machine = Machine::new(7, 3, 64 << 20);
    let contents = contents(0..40);
    let pack_of = |store: &Store| {
        let place = store.packs.index.lookup(&store.key().address(&contents[0]), &store.counters).unwrap().unwrap();
        place.pack
    };
    let store = open(&machine, &options());
    machine.run(store.put_many(Class::Data, contents.clone())).unwrap();
    end(&machine, store);
    let more = Options { copies: 2, ..options() };
    let store = open(&machine, &more);
    machine.run(store.restore_copies(&hurried(&store), &|_, _| {}));
    all_have(&store, &contents, 2);
    let plain = pack_of(&store);
    let addresses: Vec<_> = contents.iter().map(|content| store.key().address(content)).collect();
    assert_eq!(machine.run(store.raise(TWO, &addresses)).unwrap(), 40, "settings are nobody's choice");
    let chosen = pack_of(&store);
    let expect = |store: &Store| {
        assert!(!store.packs.stands_for(plain, chosen) && store.packs.stands_for(chosen, plain));
        assert!(machine.run(store.lower(TWO, &addresses)).is_empty());
    };
    expect(&store);
    end(&machine, store);
    expect(&open(&machine, &options()));
}

/// What was asked for a pack stands in its header. One that is lost on one disk costs that neither there (N-3) nor where an index is made of what there
/// is, be the pack sealed or not.
#[test]
fn what_was_chosen_for_a_pack_is_known_as_long_as_one_of_its_headers_is() {
    for (seed, is_sealed) in [(8, false), (9, true)] {
        for rotten in 0..2 {
            let machine = Machine::new(seed, 2, 64 << 20);
            let store = open(&machine, &options());
            let contents = contents(0..10);
            machine.run(async {
                store.put_as(TWO, contents.clone()).await.unwrap();
                store.settle(store.moment()).await.unwrap();
                if is_sealed {
                    store.close().await.unwrap();
                }
            });
            drop(store);
            machine.world.crash();
            machine.world.restart();
            let packs = |disk: usize| {
                let files = machine.disks[disk].durable_files();
                files.into_iter().filter(|(path, _)| path.starts_with("packs/")).collect::<Vec<_>>()
            };
            for (path, bytes) in packs(rotten) {
                assert_eq!(bytes[12], 2, "content");
                machine.disks[rotten].corrupt(&path, 0, &[0; crate::format::PackHeader::BYTES]);
            }
            for disk in &machine.disks {
                disk.remove("index");
            }
            let store = open(&machine, &options());
            let addresses: Vec<_> = contents.iter().map(|content| store.key().address(content)).collect();
            assert!(machine.run(store.lower(TWO, &addresses)).is_empty(), "sealed {is_sealed}, lost on disk {rotten}");
            end(&machine, store);
            if !is_sealed {
                assert_eq!(packs(0), packs(1));
            }
        }
    }
}

/// K-15: an index is made where the one header that can be read is on a disk that is missing, and believed when that is back.
#[test]
fn nothing_lies_on_fewer_disks_for_a_header_that_is_lost_while_others_are_missing() {
    for (seed, is_sealed) in [(10, false), (11, true)] {
        let machine = Machine::new(seed, 2, 64 << 20);
        let options = Options { goes_without_disks: true, ..options() };
        let store = open(&machine, &options);
        let contents = contents(0..10);
        machine.run(async {
            store.raise_floor(TWO).await.unwrap();
            store.put_as(TWO, contents.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            let last = store.log(b"frame");
            store.commit(store.moment(), b"second", last).await.unwrap();
            if is_sealed {
                store.close().await.unwrap();
            }
        });
        drop(store);
        machine.world.crash();
        machine.world.restart();
        for (path, _) in machine.disks[0].durable_files().into_iter().filter(|(path, _)| path.starts_with("packs/")) {
            machine.disks[0].corrupt(&path, 0, &[0; crate::format::PackHeader::BYTES]);
        }
        for disk in &machine.disks {
            disk.remove("index");
        }
        let (platform, alone) = (machine.world.platform(), [machine.disks[0].disk()]);
        let (store, _) = machine.run(Store::open(&platform, &alone, options.clone())).unwrap();
        assert_eq!(readable(&machine, &store, &contents), contents.len());
        end(&machine, store);
        let store = open(&machine, &options);
        let addresses: Vec<_> = contents.iter().map(|content| store.key().address(content)).collect();
        machine.run(store.restore_copies(&hurried(&store), &|_, _| {}));
        assert!(machine.run(store.lower(TWO, &addresses)).is_empty(), "sealed {is_sealed}");
        all_have(&store, &contents, 2);
    }
}

#[test]
fn what_lies_on_one_disk_is_raised_and_survives_its_loss() {
    let machine = Machine::new(2, 3, 64 << 20);
    let store = open(&machine, &options());
    let (kept, scratch) = (contents(0..100), contents(200..300));
    machine.run(async {
        store.put_many(Class::Data, [&kept[..], &scratch].concat()).await.unwrap();
        let addresses: Vec<_> = kept.iter().map(|content| store.key().address(content)).collect();
        assert_eq!(store.raise(TWO, &addresses).await.unwrap(), 100);
        assert_eq!(store.raise(TWO, &addresses).await.unwrap(), 0);
        store.raise_floor(Resilience::Copies(2)).await.unwrap();
        let last = store.log(b"frame");
        store.commit(store.moment(), b"second", last).await.unwrap();
        store.restore_copies(&hurried(&store), &|_, _| {}).await;
    });
    end(&machine, store);
    for gone in 0..3 {
        let there = (0..3).filter(|disk| *disk != gone).map(|disk| machine.disks[disk].disk()).collect::<Vec<_>>();
        let options = Options { goes_without_disks: true, ..options() };
        let (store, recovered) = machine.run(Store::open(&machine.world.platform(), &there, options)).unwrap();
        assert_eq!(recovered.roots, b"second", "the journal and its superblock are there");
        assert_eq!(readable(&machine, &store, &kept), 100);
        assert!(readable(&machine, &store, &scratch) < 100 || gone > 0);
        drop(store);
        machine.world.restart();
    }
}

/// Three copies on four disks: whichever two of them go, everything is there, the journal too.
#[test]
fn three_copies_survive_any_two_disks() {
    let options = Options { copies: 3, goes_without_disks: true, ..options() };
    for gone in (0..4).flat_map(|one| (one + 1..4).map(move |other| [one, other])) {
        let machine = Machine::new(5, 4, 64 << 20);
        let store = open(&machine, &options);
        let contents = contents(0..80);
        machine.run(async {
            store.put_many(Class::Data, contents.clone()).await.unwrap();
            let last = store.log(b"covered");
            store.commit(store.moment(), b"second", last).await.unwrap();
            store.sync_log(store.log(b"not covered")).await.unwrap();
        });
        // Without a clean end: open packs and the journal's frames are what counts.
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let there =
            (0..4).filter(|disk| !gone.contains(disk)).map(|disk| machine.disks[disk].disk()).collect::<Vec<_>>();
        let (store, recovered) = machine.run(Store::open(&machine.world.platform(), &there, options.clone())).unwrap();
        assert_eq!((&recovered.roots[..], recovered.frames.len()), (&b"second"[..], 1), "without {gone:?}");
        assert_eq!(readable(&machine, &store, &contents), 80, "without {gone:?}");
    }
}

/// Two copies are the rule, and what says one gets one, also after the mender has looked.
#[test]
fn what_asks_for_fewer_copies_than_the_node_keeps_them_few() {
    let machine = Machine::new(3, 3, 64 << 20);
    let options = Options { copies: 2, ..options() };
    let store = open(&machine, &options);
    let (scratch, plain) = (contents(0..40), contents(100..140));
    machine.run(async {
        store.put_as(Resilience::Copies(1), scratch.clone()).await.unwrap();
        store.put_many(Class::Data, plain.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    end(&machine, store);
    let store = open(&machine, &options);
    assert!(!store.lacks_copies());
    machine.run(store.restore_copies(&hurried(&store), &|_, _| {}));
    all_have(&store, &scratch, 1);
    all_have(&store, &plain, 2);
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
    // And reclaim moves them as what they are.
    let live: Vec<_> =
        scratch.iter().step_by(2).chain(&plain[..10]).map(|content| store.key().address(content)).collect();
    machine.run(reclaim(&store, &|address| live.contains(address))).unwrap();
    scratch.iter().step_by(2).for_each(|content| assert_eq!(copies(&store, content), 1));
    all_have(&store, &plain[..10], 2);
}

#[test]
fn more_copies_than_disks_are_refused() {
    let machine = Machine::new(4, 2, 64 << 20);
    let store = open(&machine, &options());
    let told = machine.run(store.raise_floor(Resilience::Copies(3)));
    assert!(
        matches!(&told, Err(StoreError::Refused { why, .. }) if why.contains("2 disks take something")),
        "{told:?}"
    );
    machine.run(store.raise_floor(Resilience::Copies(2))).unwrap();
}

/// K-9 with crashes: what was settled on two disks is on two disks.
#[test]
fn a_power_cut_makes_no_copy_of_fewer_disks_count() {
    each_seed(0..60, |seed| {
        let machine = Machine::new(50 + seed, 3, 64 << 20);
        let (first, second) = (contents(0..60), contents(20..80));
        let mut settled = false;
        machine.world.cut_power_at(machine.world.operations() + 20 + seed * 5);
        let _ = machine.world.run_until(async {
            let (store, _) = Store::open(&machine.world.platform(), &machine.handles(), options()).await?;
            store.put_many(Class::Data, first.clone()).await?;
            store.put_as(TWO, second.clone()).await?;
            store.settle(store.moment()).await?;
            settled = true;
            store.put_many(Class::Data, contents(300..400)).await?;
            let last = store.log(b"frame");
            store.commit(store.moment(), b"second", last).await?;
            store.close().await
        });
        machine.world.restart();
        machine.world.cut_power_at(u64::MAX);
        let store = open(&machine, &options());
        machine.run(store.restore_copies(&hurried(&store), &|_, _| {}));
        if settled {
            all_have(&store, &second, 2);
        }
        // A pack in which nothing was whole when the power went is set aside.
        let problems = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
        assert!(problems.iter().all(|problem| problem.code == "HF0017"), "seed {seed}: {problems:?}");
    });
}
