//! A tree is the map that it was told to be, and equal maps are equal trees.

use std::collections::{BTreeMap, BTreeSet};

use base::id::ChunkAddress;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::Machine;
use crate::format::Root;
use crate::tree::{Difference, Edits, Start, Step, Trees};

/// Batches of edits over few keys, so that they meet, with values up to a few hundred bytes.
fn batches() -> impl Strategy<Value = Vec<Vec<(u64, Option<Vec<u8>>)>>> {
    let key = (0..2000_u64, any::<bool>()).prop_map(|(key, is_far)| if is_far { key << 50 } else { key });
    let value = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..300));
    proptest::collection::vec(proptest::collection::vec((key, value), 0..400), 1..6)
}

/// First and last key, and how many entries are wanted at a time.
fn ranges() -> impl Strategy<Value = Vec<(u64, u64, usize)>> {
    let key = || (0..2100_u64, any::<bool>()).prop_map(|(key, is_far)| if is_far { key << 50 } else { key });
    let range = (key(), key(), prop_oneof![Just(1), 2..300_usize, Just(usize::MAX)]);
    proptest::collection::vec(range.prop_map(|(one, other, limit)| (one.min(other), one.max(other), limit)), 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_a_sorted_map(batches in batches(), inline in 0..2_usize, ranges in ranges()) {
        let machine = Machine::new(1);
        let system = machine.open();
        let trees = Trees::new(system.store.clone());
        let inline_bytes_max = inline * 512;
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut root = Root::Empty;
        for batch in batches {
            let edits: Edits = batch.into_iter().collect();
            for (key, value) in &edits {
                match value {
                    Some(value) => model.insert(*key, value.clone()),
                    None => model.remove(key),
                };
            }
            root = machine.run(trees.update(&root, edits, inline_bytes_max)).unwrap();
        }
        let (mut found, mut from) = (BTreeMap::new(), Some(0));
        while let Some(at) = from {
            let (entries, next) = machine.run(trees.scan(&root, at, 7)).unwrap();
            found.extend(entries.into_iter().map(|(key, value)| (key, value.to_vec())));
            from = next;
        }
        prop_assert_eq!(&found, &model);
        for key in (0..2000).chain((0..2000).map(|key| key << 50)).step_by(7) {
            let value = machine.run(trees.get(&root, key)).unwrap();
            prop_assert_eq!(value.as_deref(), model.get(&key).map(Vec::as_slice));
            let floor = machine.run(trees.floor(&root, key)).unwrap().map(|(key, _)| key);
            prop_assert_eq!(floor, model.range(..=key).next_back().map(|(key, _)| *key));
        }
        for (first, last, limit) in ranges {
            for start in [Start::AtOrAbove, Start::AtOrBelow] {
                let below = if start == Start::AtOrBelow { model.range(..=first).next_back() } else { None };
                let begin = below.map_or(first, |(key, _)| *key);
                let expected: Vec<u64> = model.range(begin..=last.max(begin)).map(|(key, _)| *key).collect();
                let (mut found, mut from, mut start) = (Vec::new(), Some(first), start);
                while let Some(at) = from {
                    let (entries, next) = machine.run(trees.range(&root, at..=last, start, limit)).unwrap();
                    found.extend(entries.into_iter().map(|(key, _)| key));
                    (from, start) = (next, Start::AtOrAbove);
                }
                prop_assert_eq!(found, expected, "{}..={} {:?}", first, last, start);
            }
        }
        // Whatever its history, the same content is the same tree.
        let at_once: Edits = model.into_iter().map(|(key, value)| (key, Some(value))).collect();
        let again = machine.run(trees.update(&Root::Empty, at_once, inline_bytes_max)).unwrap();
        prop_assert_eq!(again, root);
    }
}

/// The addresses of all nodes of a tree.
fn nodes(machine: &Machine, trees: &Trees, root: &Root) -> BTreeSet<ChunkAddress> {
    let mut found = BTreeSet::new();
    let mut visit = |address: &ChunkAddress, _| found.insert(*address);
    machine.run(trees.walk(root, &mut visit, &mut |_, _| Ok(()))).unwrap();
    found
}

/// A key, its value, and that of the other tree.
type Told = (u64, Vec<u8>, Option<Vec<u8>>);

/// What a walk over two trees tells: values, and nodes, each after all that is below it.
fn difference(machine: &Machine, trees: &Trees, this: &Root, other: &Root) -> (Vec<Told>, Vec<ChunkAddress>) {
    let (mut values, mut nodes) = (Vec::new(), Vec::new());
    machine.run(async {
        let mut walk = Difference::begin(trees, this, other).await.unwrap();
        while let Some(step) = walk.next(trees).await.unwrap() {
            match step {
                Step::Value { key, value, other } => {
                    values.push((key, value.to_vec(), other.map(|other| other.to_vec())));
                }
                Step::Node(address) => nodes.push(address),
            }
        }
    });
    (values, nodes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_over_two_trees_tells_what_only_one_has(batches in batches(), change in batches()) {
        let machine = Machine::new(1);
        let system = machine.open();
        let trees = Trees::new(system.store.clone());
        let mut roots = [Root::Empty, Root::Empty];
        let mut models: [BTreeMap<u64, Vec<u8>>; 2] = Default::default();
        for (number, batch) in batches.into_iter().map(|batch| (0, batch)).chain(change.into_iter().map(|batch| (1, batch))) {
            if number == 1 && roots[1] == Root::Empty {
                (roots[1], models[1]) = (roots[0].clone(), models[0].clone());
            }
            // A change is of few keys, mostly.
            let batch = batch.into_iter().take(if number == 1 { 30 } else { usize::MAX });
            let edits: Edits = batch.collect();
            for (key, value) in &edits {
                match value {
                    Some(value) => models[number].insert(*key, value.clone()),
                    None => models[number].remove(key),
                };
            }
            roots[number] = machine.run(trees.update(&roots[number], edits, 512)).unwrap();
        }
        for (this, other) in [(0, 1), (1, 0)] {
            let (values, told) = difference(&machine, &trees, &roots[this], &roots[other]);
            let expected: Vec<_> = models[this]
                .iter()
                .filter(|(key, value)| models[other].get(key) != Some(value))
                .map(|(key, value)| (*key, value.clone(), models[other].get(key).cloned()))
                .collect();
            prop_assert_eq!(values, expected);
            let [all, before] = [this, other].map(|number| nodes(&machine, &trees, &roots[number]));
            let expected: BTreeSet<_> = all.difference(&before).copied().collect();
            prop_assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), expected, "only what differs is told");
            prop_assert!(told.len() <= all.len());
            if let (Some(last), Root::Node { address, .. }) = (told.last(), &roots[this]) {
                prop_assert_eq!(last, address, "the top comes last");
            }
        }
    }
}

#[test]
fn two_large_trees_are_compared_by_what_differs() {
    let machine = Machine::new(1);
    let system = machine.open();
    let trees = Trees::new(system.store.clone());
    let many: Edits = (0..50_000).map(|key| (key, Some(vec![7; 40]))).collect();
    let root = machine.run(trees.update(&Root::Empty, many, 512)).unwrap();
    let changed = machine.run(trees.update(&root, Edits::from([(25_000, Some(vec![8; 40]))]), 512)).unwrap();
    let read = || system.store.counters().chunks_read.value();
    let before = read();
    let (values, told) = difference(&machine, &trees, &changed, &root);
    assert_eq!((values.len(), values[0].0), (1, 25_000));
    let Root::Node { level, .. } = changed else { panic!("{changed:?}") };
    assert_eq!(told.len(), usize::from(level) + 1);
    assert!(read() - before <= 2 * (u64::from(level) + 1), "{} of {} nodes read", read() - before, 50_000 * 52 / 8192);
}

#[test]
fn a_change_of_one_key_writes_one_node_a_level() {
    let machine = Machine::new(1);
    let system = machine.open();
    let trees = Trees::new(system.store.clone());
    let many: Edits = (0..50_000).map(|key| (key, Some(vec![7; 40]))).collect();
    let root = machine.run(trees.update(&Root::Empty, many, 512)).unwrap();
    let Root::Node { level, .. } = root else { panic!("{root:?}") };
    let before = system.store.counters().chunks_put.value();
    machine.run(trees.update(&root, Edits::from([(25_000, Some(vec![8; 40]))]), 512)).unwrap();
    let written = system.store.counters().chunks_put.value() - before;
    assert!(written <= 2 * u64::from(level + 1), "{written} nodes for {level} levels");
}
