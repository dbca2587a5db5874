//! Rules on the text of a single file.

use super::{Source, Violation};

/// From this length on a file has to say what it is for.
const ESSAY_LINES: usize = 200;
/// No file is longer.
const LINES_MAX: usize = 1000;

/// Names that accept anything, and words of which docs/glossary.md has a better one, as parts of the names of files.
const UNWANTED_FILES: [&str; 7] = ["util", "utils", "common", "manager", "helper", "helpers", "misc"];
/// The same in the names of types.
const UNWANTED_TYPES: [&str; 4] = ["Manager", "Helper", "Util", "Utils"];

pub(super) fn check(source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut broken = |line: usize, words: String| violations.push(Violation::new(&source.path, line, words));
    let lines: Vec<&str> = source.text.lines().collect();
    if source.is_rust() {
        if lines.len() > ESSAY_LINES && !opens_with_essay(&lines) {
            broken(1, format!("{} lines, and it does not open with `//!`: say what it is for", lines.len()));
        }
        if lines.len() > LINES_MAX {
            broken(1, format!("{} lines: at most {LINES_MAX}; find the two ideas in it", lines.len()));
        }
        let stem = source.path.file_stem().unwrap_or_default().to_string_lossy();
        if UNWANTED_FILES.contains(&stem.as_ref()) {
            broken(1, format!("the file name \"{stem}\" accepts anything: name what is in it"));
        }
        for (index, line) in source.code().lines().enumerate() {
            if let Some(name) = declared_type(line)
                && let Some(word) = UNWANTED_TYPES.iter().find(|word| name.ends_with(**word))
            {
                broken(index + 1, format!("the type {name}: \"{word}\" says nothing (docs/glossary.md)"));
            }
        }
    }
    for (index, line) in lines.iter().enumerate() {
        if source.is_rust()
            && let Some(word) = left_to_do(line)
        {
            broken(index + 1, format!("{word} without a name: write {word}(name), so that somebody is asked"));
        }
        if let Some(word) = of_one_machine(line) {
            broken(index + 1, format!("\"{word}\" is true on one developer's machine only"));
        }
    }
    violations
}

/// Attributes of the crate may stand before it.
fn opens_with_essay(lines: &[&str]) -> bool {
    let first = lines.iter().find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
    first.is_some_and(|line| line.starts_with("//!"))
}

/// The name of the type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub(super) ")).unwrap_or(line);
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|word| line.strip_prefix(word))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// A mark of unfinished work without a name in parentheses behind it.
fn left_to_do(line: &str) -> Option<&'static str> {
    let comment = line.split_once("//")?.1;
    // In halves: this file would find itself.
    let words: [&'static str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    words.into_iter().find(|word| {
        let behind = comment.split_once(word).map(|(_, rest)| rest);
        behind.is_some_and(|rest| !rest.starts_with('(') && !rest.starts_with(|c: char| c.is_alphanumeric()))
    })
}

/// A path or host name that is true on one developer's machine only.
fn of_one_machine(line: &str) -> Option<&'static str> {
    // In halves: this file would find itself.
    let words: [&'static str; 6] = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("arti", "factory"),
        concat!("index.cra", "tes.io"),
        concat!("~/.ru", "stup"),
        concat!("/home/", "user"),
    ];
    words.into_iter().find(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::check;

    fn found(path: &str, text: String) -> Vec<String> {
        check(&Source { path: path.into(), text }).into_iter().map(|found| found.words).collect()
    }

    #[test]
    fn each_rule_is_checked() {
        assert_eq!(found("a.rs", "//! An essay.\n".to_owned()), Vec::<String>::new());
        assert_eq!(found("a.rs", "\n".repeat(201)).len(), 1);
        assert_eq!(found("a.rs", format!("#![x]\n//! Essay.\n{}", "\n".repeat(300))).len(), 0);
        assert_eq!(found("a.rs", format!("//! Essay.\n{}", "\n".repeat(1001))).len(), 1);
        assert_eq!(found("src/util.rs", String::new()).len(), 1);
        assert_eq!(found("a.rs", "pub(crate) struct PackManager;\nstruct Managerial;\n".to_owned()).len(), 1);
        let mark = concat!("// TO", "DO");
        assert_eq!(found("a.rs", format!("{mark} later\n{mark}(ann) sooner\n")).len(), 1);
        assert_eq!(found("a.md", format!("see {}x\n", concat!("/wo", "rk/"))).len(), 1);
    }
}
