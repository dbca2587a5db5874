//! Chunks that go from one store to another.

use std::sync::Arc;

use base::id::NodeNumber;
use bytes::Bytes;
use platform::disk::Disk;
use platform::sim::World;

use super::{Machine, options};
use crate::{Class, Domain, Packing, Parcel, Store, StoreError};

fn text(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((at as u64 / 7 * seed) % 11) as u8).collect()
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A store in each of two worlds, and the disks of the second.
fn of_one_domain(machine: &Machine, other: &World) -> (Arc<Store>, Arc<Store>, Vec<Disk>) {
    let (disks, there) = (machine.handles(), vec![other.disk("/other", 1 << 30).disk()]);
    let (domain, platform) = (machine.run(Domain::of(&disks)).unwrap(), other.platform());
    let created = Store::create_in(&domain, &platform, &there, NodeNumber(8), b"first");
    other.run_until(created).expect("no halt").unwrap();
    let (from, _) = machine.run(Store::open(&machine.world.platform(), &disks, options())).unwrap();
    let (to, _) = other.run_until(Store::open(&platform, &there, options())).expect("no halt").unwrap();
    (from, to, there)
}

#[test]
fn what_is_sent_is_stored_as_it_was_and_what_is_no_such_chunk_is_refused() {
    let (machine, other) = (Machine::new(1, 1, 1 << 30), World::new(2));
    let (from, to, there) = of_one_domain(&machine, &other);
    let contents = [
        (Class::Data, text(3, 100_000)),
        (Class::Data, noise(4, 70_000)),
        (Class::Data, noise(5, 100)),
        (Class::Metadata, text(6, 5000)),
    ];
    let parcels: Vec<Parcel> = machine.run(async {
        let mut parcels = Vec::new();
        for (class, content) in &contents {
            let address = from.put(*class, content).await.unwrap();
            let parcel = from.parcel(*class, &address).await.unwrap();
            assert_eq!(from.parcel_bytes(&address), Some(parcel.payload.len() as u64));
            parcels.push(parcel);
        }
        parcels
    });
    let packings: Vec<Packing> = parcels.iter().map(|parcel| parcel.packing).collect();
    assert_eq!(packings, [Packing::Zstd, Packing::Raw, Packing::Raw, Packing::Zstd]);
    other
        .run_until(async {
            for parcel in &parcels {
                // Each byte of the payload, its length, its name.
                let mut damaged = parcel.clone();
                damaged.payload = Bytes::from([&parcel.payload[..50], b"?", &parcel.payload[51..]].concat());
                let mut short = parcel.clone();
                short.payload = parcel.payload.slice(..parcel.payload.len() - 1);
                let mut renamed = parcel.clone();
                renamed.address.0[31] ^= 1;
                let mut long = parcel.clone();
                long.raw += 1;
                let mut longer = parcel.clone();
                longer.raw = u32::MAX;
                for wrong in [damaged, short, renamed, long, longer] {
                    let refused = to.put_parcels(vec![parcels[0].clone(), wrong]).await;
                    assert!(
                        matches!(refused, Err(StoreError::Corrupt { .. } | StoreError::TooLarge { .. })),
                        "{refused:?}"
                    );
                }
                assert!(!to.contains(&parcel.address), "nothing of a wrong batch is stored (C-4)");
            }
            assert_eq!(to.put_parcels(parcels.clone()).await.unwrap(), 4);
            assert_eq!(to.put_parcels([parcels.clone(), parcels.clone()].concat()).await.unwrap(), 0);
            to.settle(to.moment()).await.unwrap();
        })
        .expect("no halt");
    drop(to);
    other.restart();
    let (to, _) = other.run_until(Store::open(&other.platform(), &there, options())).expect("no halt").unwrap();
    other
        .run_until(async {
            for ((class, content), parcel) in contents.iter().zip(&parcels) {
                assert!(to.get(*class, &parcel.address).await.unwrap() == content[..]);
                assert_eq!(to.parcel(*class, &parcel.address).await.unwrap().packing, parcel.packing);
            }
        })
        .expect("no halt");
}

/// What lies in bundles goes without them, compressed by itself, and lies in others there.
#[test]
fn what_lies_in_bundles_goes_alone_and_is_bundled_there() {
    let (machine, other) = (Machine::new(3, 1, 1 << 30), World::new(4));
    let (from, to, _) = of_one_domain(&machine, &other);
    let contents: Vec<Bytes> = (3..43).map(|number| Bytes::from(text(number, 3000 + number as usize))).collect();
    let parcels: Vec<Parcel> = machine.run(async {
        let addresses = from.put_many(Class::Data, contents.clone()).await.unwrap();
        let mut parcels = Vec::new();
        for address in &addresses {
            parcels.push(from.parcel(Class::Data, address).await.unwrap());
        }
        parcels
    });
    assert!(from.counters().chunks_bundled.value() == 40);
    assert!(parcels.iter().all(|parcel| parcel.packing == Packing::Zstd && parcel.payload.len() < 1500));
    other
        .run_until(async {
            assert_eq!(to.put_parcels(parcels).await.unwrap(), 40);
            assert_eq!(to.counters().chunks_bundled.value(), 40);
            for content in &contents {
                assert_eq!(to.read(&to.key().address(content)).await.unwrap(), content);
            }
        })
        .expect("no halt");
}
