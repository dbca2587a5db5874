//! An index that is damaged while the store works.

use bytes::Bytes;

use super::{Machine, content};
use crate::{Class, StoreError};

const PAGE: usize = 4096;

/// A node with enough chunks of so many bytes that the index is a tree, and what is in it.
fn node(bytes: usize) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(11, 2, 64 << 20);
    let (store, _) = machine.open();
    let contents: Vec<Bytes> = (0..700).map(|number| content(number, bytes)).collect();
    machine.run(async {
        for some in contents.chunks(100) {
            store.put_many(Class::Data, some.to_vec()).await.unwrap();
            store.commit(b"roots", store.last_logged()).await.unwrap();
        }
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    (machine, contents)
}

/// X-4, for every page of the file and for some ways to be damaged.
#[test]
fn whatever_page_of_the_index_is_damaged_no_chunk_is_lost() {
    let (machine, contents) = node(600);
    let index = machine.disks[0].snapshot_files()["index"].clone();
    let mut made_again = 0;
    for (number, page) in index.chunks(PAGE).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        for how in 0..3_usize {
            let mut damaged = page.to_vec();
            match how {
                0 => damaged.fill(0xa5),
                1 => damaged[PAGE / 4..].iter_mut().step_by(97).for_each(|byte| *byte ^= 0x10),
                _ => damaged[64..96].fill(0xff),
            }
            machine.disks[0].install("index", &index);
            machine.disks[0].corrupt("index", (number * PAGE) as u64, &damaged);
            let (store, _) = machine.open();
            machine.run(async {
                for content in &contents {
                    let found = store.get(Class::Data, &store.key().address(content)).await;
                    assert_eq!(&found.unwrap(), content, "page {number}, damage {how}");
                }
                let absent = store.key().address(b"never put");
                assert!(matches!(store.get(Class::Data, &absent).await, Err(StoreError::Absent { .. })));
                store.put(Class::Data, b"after").await.unwrap();
                store.commit(b"roots", store.last_logged()).await.unwrap();
            });
            assert!(!store.is_index_doubted());
            made_again += store.counters().index_made_again.value();
            drop(store);
            machine.world.restart();
            let (store, recovered) = machine.open();
            assert_eq!(recovered.report.index_made_again, None, "page {number}, damage {how}: it is whole on disk");
            assert_eq!(store.status().index_entries + store.status().recent_entries, 701);
            drop(store);
            machine.world.restart();
        }
    }
    assert!(made_again > 10, "{made_again}");
}

/// A pack that is really gone costs its own chunks, and one search.
#[test]
fn what_is_lost_is_looked_for_once() {
    let (machine, contents) = node(5000);
    let pack = machine.disks[0].snapshot_files().into_keys().find(|path| path.starts_with("packs/")).unwrap();
    machine.disks[0].remove(&pack);
    machine.disks[0].remove("index");
    let (store, _) = machine.open();
    let lost = machine.run(async {
        let mut lost = 0;
        for content in &contents {
            match store.get(Class::Data, &store.key().address(content)).await {
                Ok(found) => assert_eq!(&found, content),
                Err(StoreError::Absent { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.commit(b"roots", store.last_logged()).await.unwrap();
        lost
    });
    assert!(lost > 0 && lost < contents.len());
    assert_eq!(store.counters().index_made_again.value(), 1);
    assert!(!store.is_index_doubted());
}
