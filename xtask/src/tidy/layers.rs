//! The line of crates (ARCHITECTURE.md): who may use whom, against each Cargo.toml.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::Violation;

/// Each crate and those of ours that it may use. A crate that is not here is a violation: decide where it stands first.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("fuzz", &["base"]),
    ("skipped", &[]),
    ("platform", &["base", "skipped"]),
    ("store", &["base", "platform", "fuzz"]),
    ("file", &["base", "platform", "store", "fuzz"]),
    ("fuse", &["base", "fuzz", "skipped"]),
    ("node", &["base", "platform", "store", "file", "fuse", "fuzz", "skipped"]),
    ("sim", &["base", "platform", "store", "file", "node"]),
    ("lab", &["base", "platform", "store", "file"]),
];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root.join("crates")).context("cannot list crates")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = Path::new("crates").join(&name).join("Cargo.toml");
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        let manifest = text.parse::<Table>().with_context(|| format!("{} is no TOML", path.display()))?;
        let used = dependencies(&manifest);
        violations.extend(judge(&name, &used).into_iter().map(|words| Violation::new(&path, 1, words)));
        found.insert(name);
    }
    for (name, _) in LAYERS.iter().filter(|(name, _)| !found.contains(*name)) {
        violations.push(Violation::new("xtask/src/tidy/layers.rs", 1, format!("there is no crate {name}")));
    }
    Ok(violations)
}

/// Names of all crates that a manifest uses, for whatever purpose and target.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let mut names = BTreeSet::new();
    for (key, value) in manifest {
        match value {
            Value::Table(table) if KINDS.contains(&key.as_str()) => names.extend(table.keys().cloned()),
            Value::Table(table) if key == "target" => {
                names.extend(table.values().filter_map(Value::as_table).flat_map(dependencies));
            }
            _ => {}
        }
    }
    names
}

fn judge(name: &str, used: &BTreeSet<String>) -> Vec<String> {
    let Some((_, allowed)) = LAYERS.iter().find(|(known, _)| *known == name) else {
        return vec![format!("the crate {name} has no place in the line of crates (xtask/src/tidy/layers.rs)")];
    };
    let ours = used.iter().filter(|used| LAYERS.iter().any(|(known, _)| known == used));
    let wrong = ours.filter(|used| !allowed.contains(&used.as_str()));
    wrong.map(|used| format!("{name} may not use {used}: it may use {}", allowed.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::{dependencies, judge};

    #[test]
    fn a_lower_crate_may_not_use_a_higher_one() {
        let text = "[dependencies]\nbase = 1\nfile = 1\n[target.'cfg(unix)'.dev-dependencies]\nnode = 1\nserde = 1\n";
        let used = dependencies(&text.parse().expect("TOML"));
        assert_eq!(judge("store", &used).len(), 2, "{:?}", judge("store", &used));
        assert_eq!(judge("sim", &used), Vec::<String>::new());
        assert_eq!(judge("cluster", &used).len(), 1);
    }
}
