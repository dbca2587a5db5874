//! Documents against code: formats, invariants, links.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Source, Violation};
use crate::tools;

/// Files that lay out bytes: on disk, and between kernel, daemon and command line.
const FORMATS: [&str; 11] = [
    "crates/store/src/format.rs",
    "crates/store/src/format/root.rs",
    "crates/store/src/format/pack.rs",
    "crates/store/src/format/place.rs",
    "crates/store/src/format/journal.rs",
    "crates/store/src/format/domain.rs",
    "crates/store/src/index/format.rs",
    "crates/file/src/format.rs",
    "crates/file/src/tree/format.rs",
    "crates/file/src/transfer/format.rs",
    "crates/node/src/control/batch/wire.rs",
];
const FORMAT_DOCUMENT: &str = "docs/format.md";
const INVARIANTS_DOCUMENT: &str = "docs/invariants.md";
/// Begins the line of [`FORMAT_DOCUMENT`] that holds the hash.
const HASH_LINE: &str = "Hash of the code that this document describes:";

pub(super) fn check(root: &Path, sources: &[Source]) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let find = |path: &str| sources.iter().find(|source| source.path == Path::new(path));
    match find(FORMAT_DOCUMENT) {
        Some(document) => {
            let hash = format_hash(root)?;
            if !document.text.lines().any(|line| line.starts_with(HASH_LINE) && line.contains(&hash)) {
                let words =
                    "a format changed: read this document again, mend it, then `cargo xtask tidy --update-format-hash`";
                violations.push(Violation::new(FORMAT_DOCUMENT, 1, words));
            }
        }
        None => violations.push(Violation::new(FORMAT_DOCUMENT, 1, "is missing: it describes every byte on disk")),
    }
    match find(INVARIANTS_DOCUMENT) {
        Some(document) => violations.extend(invariants(&document.text, sources)),
        None => violations.push(Violation::new(INVARIANTS_DOCUMENT, 1, "is missing: it lists the numbered truths")),
    }
    violations.extend(sources.iter().filter(|source| source.is_markdown()).flat_map(|source| links(root, source)));
    Ok(violations)
}

/// Over the code of the formats, comments included: a reason that changes is a change too. Tests are left out.
fn format_hash(root: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for path in FORMATS {
        let text = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        hasher.update(path.as_bytes()).update(code.as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// Writes the present hash into the document.
pub(super) fn update_format_hash(root: &Path) -> Result<()> {
    let path = root.join(FORMAT_DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = format!("{HASH_LINE} `{}`", format_hash(root)?);
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    match lines.iter_mut().find(|line| line.starts_with(HASH_LINE)) {
        Some(found) => *found = line,
        None => lines.extend([String::new(), line]),
    }
    fs::write(&path, lines.join("\n") + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote the hash of the formats into {FORMAT_DOCUMENT}");
    Ok(())
}

/// Has the test of docs/metrics.md write it: the declarations are known to the crate `node` alone, and it keeps that test.
pub(super) fn update_metrics() -> Result<()> {
    let test = ["test", "--quiet", "--package", "node", "--lib", "the_metrics_reference_is_up_to_date"];
    let status = tools::cargo().args(test).env("HYDRAFS_UPDATE_METRICS_REFERENCE", "1").status()?;
    ensure!(status.success(), "docs/metrics.md was not written: the test ended with {status}");
    println!("wrote docs/metrics.md");
    Ok(())
}

/// Invariants that code cites and the document does not have, and numbers that it gives to two.
fn invariants(document: &str, sources: &[Source]) -> Vec<Violation> {
    let known: BTreeSet<String> = document.lines().flat_map(cited).collect();
    let mut violations = Vec::new();
    let mut given = BTreeSet::new();
    for (index, line) in document.lines().enumerate() {
        let Some((number, _)) = line.strip_prefix("- **").and_then(|line| line.split_once("**")) else { continue };
        if cited(number) == [number] && !given.insert(number) {
            violations.push(Violation::new(INVARIANTS_DOCUMENT, index + 1, format!("{number} is given already")));
        }
    }
    for source in sources.iter().filter(|source| source.is_rust() && !source.path.starts_with("xtask")) {
        for (index, line) in source.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            let unknown = cited(comment).into_iter().filter(|number| !known.contains(number));
            violations.extend(unknown.map(|number| {
                Violation::new(&source.path, index + 1, format!("{number} is not in {INVARIANTS_DOCUMENT}"))
            }));
        }
    }
    violations
}

/// Words like `I-40`: a capital letter, a dash, a number.
fn cited(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '-');
    let is_number = |word: &&str| {
        let Some((letter, number)) = word.split_once('-') else { return false };
        letter.len() == 1
            && letter.chars().all(|c| c.is_ascii_uppercase())
            && (1..=3).contains(&number.len())
            && number.chars().all(|c| c.is_ascii_digit())
    };
    words.filter(is_number).map(ToOwned::to_owned).collect()
}

/// Links of a document to files that are not there.
fn links(root: &Path, source: &Source) -> Vec<Violation> {
    let dir = root.join(&source.path).parent().expect("in the project").to_owned();
    let mut violations = Vec::new();
    let mut is_code = false;
    for (index, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for part in line.split("](").skip(1) {
            let Some((target, _)) = part.split_once(')') else { continue };
            let file = target.split(['#', ' ']).next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.starts_with("mailto:") || dir.join(file).exists() {
                continue;
            }
            violations.push(Violation::new(&source.path, index + 1, format!("the link to {target} leads nowhere")));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Source;
    use super::{cited, invariants, links};

    #[test]
    fn citations_are_found() {
        assert_eq!(cited("- **I-40** holds; see K-3, not UTF-8, A-x, B-1234 or X-2b."), ["I-40", "K-3"]);
    }

    #[test]
    fn unknown_invariants_and_dead_links_are_found() {
        let code =
            Source { path: "crates/a/src/b.rs".into(), text: "//! I-1 holds.\n// J-9 too\nlet x = I-5;\n".to_owned() };
        let found = invariants("| I-1 | a sealed pack never changes |", &[code]);
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [2]);
        let twice = "- **F-5** one truth, as F-4 is\n- **F-6** another\n- **F-5** (`a.rs`) a third\n";
        assert_eq!(invariants(twice, &[]).iter().map(|found| found.line).collect::<Vec<_>>(), [3]);
        let text = "[a](Cargo.toml) [b](no/such.md#x) [c](https://x) [d](#here)\n```\n[e](nowhere)\n```\n".to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(links(root, &Source { path: "README.md".into(), text }).len(), 1);
    }
}
