//! The numbers of what `fsck` finds: given for ever, described in docs/format.md ("Problems"), and each named by a test.
//!
//! Not here: what a number means, and whether two places that give it mean the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{Source, Violation};

const DOCUMENT: &str = "docs/format.md";
/// Part of the row of a number that no check gives any more: nothing else gets it.
const RETIRED: &str = "not given any more";

/// A layer that gives numbers.
struct Layer {
    /// How the paths of its checks begin.
    checks: &'static str,
    /// How its numbers begin.
    begins: &'static str,
    /// How many it has given, from 1 on without gaps. Who gives one more raises it; it never falls.
    given: usize,
}

const LAYERS: [Layer; 2] = [
    Layer { checks: "crates/store/src/check", begins: "HF0", given: 21 },
    Layer { checks: "crates/file/src/check", begins: "HF1", given: 26 },
];

pub(super) fn check(sources: &[Source]) -> Vec<Violation> {
    judge(&LAYERS, sources)
}

fn judge(layers: &[Layer], sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let document = sources.iter().find(|source| source.path == Path::new(DOCUMENT));
    let mut rows: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
    for (index, line) in document.iter().flat_map(|document| document.text.lines()).enumerate() {
        let Some((cell, rest)) = line.strip_prefix("| ").and_then(|row| row.split_once('|')) else { continue };
        for number in numbers(cell, "") {
            if rows.insert(number, (index + 1, rest.contains(RETIRED))).is_some() {
                violations.push(Violation::new(DOCUMENT, index + 1, format!("{number} has two rows")));
            }
        }
    }
    let ours = || sources.iter().filter(|source| source.is_markdown() || source.path.starts_with("crates"));
    for source in ours() {
        for (index, line) in source.text.lines().enumerate() {
            let unknown = numbers(line, "").filter(|number| !rows.contains_key(number));
            violations.extend(
                unknown.map(|number| {
                    Violation::new(&source.path, index + 1, format!("{number} has no row in {DOCUMENT}"))
                }),
            );
        }
    }
    let quoted = |is_one: &dyn Fn(&Source) -> bool| -> BTreeSet<&str> {
        ours()
            .filter(|source| source.is_rust() && is_one(source))
            .flat_map(|source| numbers(&source.text, "\""))
            .collect()
    };
    let tested = quoted(&Source::is_test);
    for Layer { checks, begins, given } in layers {
        let found = quoted(&|source| source.path.to_string_lossy().starts_with(checks));
        let of_layer: BTreeSet<String> = (1..=*given).map(|number| format!("{begins}{number:03}")).collect();
        let mut broken = |line: usize, words: String| violations.push(Violation::new(DOCUMENT, line, words));
        for number in &of_layer {
            match rows.get(number.as_str()) {
                None => broken(1, format!("{number} was given, and has no row: say there that it is {RETIRED}")),
                Some((line, true)) if found.contains(number.as_str()) => {
                    broken(*line, format!("{number} is {RETIRED}, and {checks} gives it"));
                }
                Some((line, false)) if !found.contains(number.as_str()) => {
                    broken(*line, format!("{checks} does not give {number}: say here that it is {RETIRED}"));
                }
                Some((line, false)) if !tested.contains(number.as_str()) => {
                    broken(*line, format!("no test names {number}"));
                }
                Some(_) => {}
            }
        }
        let others = found.into_iter().chain(rows.keys().copied().filter(|number| number.starts_with(begins)));
        for number in others.filter(|number| !of_layer.contains(*number)).collect::<BTreeSet<_>>() {
            broken(1, format!("{number} is none of the {given} that {checks} has given"));
        }
    }
    violations
}

/// What looks like a number of a problem, behind `opening`.
fn numbers<'a>(text: &'a str, opening: &'a str) -> impl Iterator<Item = &'a str> {
    let places = text.match_indices("HF").filter(move |(at, _)| text[..*at].ends_with(opening));
    let word = places.filter_map(|(at, _)| text.get(at..at + 6));
    word.filter(|word| word[2..].bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::{DOCUMENT, Layer, judge};

    fn found(rows: &str, check: &str, test: &str) -> Vec<String> {
        let layers = [Layer { checks: "crates/a/src/check", begins: "HF0", given: 3 }];
        let files = [(DOCUMENT, rows), ("crates/a/src/check/b.rs", check), ("crates/a/src/tests/b.rs", test)];
        let sources = files.map(|(path, text)| Source { path: path.into(), text: text.to_owned() });
        judge(&layers, &sources).into_iter().map(|found| found.words).collect()
    }

    #[test]
    fn numbers_are_given_described_and_tested() {
        let rows = "| HF0001, HF0002 | broken | mended |\n| HF0003 | not given any more | |\n";
        let (check, test) = (r#"note("HF0001"); note("HF0002")"#, r#"["HF0001", "HF0002, of none"]"#);
        assert_eq!(found(rows, check, test), Vec::<String>::new());
        for (rows, check, test, words) in [
            ("| HF0001, HF0002 | broken | |\n", check, test, "HF0003 was given, and has no row"),
            (&*format!("{rows}| HF0001 | again | |\n"), check, test, "HF0001 has two rows"),
            (&format!("{rows}| HF0004 | new | |\n"), &format!("{check} \"HF0004\""), test, "HF0004 is none of the 3"),
            (&format!("{rows}| HF0005 | new | |\n"), check, test, "HF0005 is none of the 3"),
            (rows, &format!("{check} // HF0009"), test, "HF0009 has no row"),
            (rows, r#"note("HF0001") // HF0002"#, test, "does not give HF0002"),
            (rows, &format!("{check} \"HF0003\""), test, "HF0003 is not given any more, and"),
            (rows, check, r#"["HF0001"] // HF0002"#, "no test names HF0002"),
        ] {
            let found = found(rows, check, test);
            assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
        }
    }
}
