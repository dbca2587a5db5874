//! Layers inside a crate: the order of the `mod` lines in lib.rs. A module uses only modules declared before it.
//!
//! Paths from the crate's root are looked at (`crate::x`, also in groups): that is how one module names another. Names that
//! lib.rs re-exports count as names of the module they come from. Tests may use anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::source::line_of;
use super::{Source, Violation};

/// The modules of a crate in order, and where the names come from that its root re-exports.
#[derive(Debug, Default)]
struct Root {
    modules: Vec<String>,
    exports: BTreeMap<String, String>,
}

pub(super) fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let roots = sources.iter().filter(|source| source.path.ends_with("src/lib.rs"));
    for lib in roots {
        let root = Root::read(&lib.code());
        let dir = lib.path.parent().expect("src");
        for source in sources.iter().filter(|source| source.is_rust() && source.path.starts_with(dir)) {
            let module = module_of(&source.path, dir);
            if source.is_test() || source.path == lib.path || module == "main" {
                continue;
            }
            let place = root.place(&module);
            if place.is_none() && !root.modules.is_empty() {
                violations.push(Violation::new(
                    &source.path,
                    1,
                    format!("the module {module} is not declared in lib.rs"),
                ));
            }
            let code = source.code();
            for (at, name) in names_from_root(&code) {
                let (Some(user), Some(used)) = (place, root.place(&name)) else { continue };
                if used > user {
                    let used = root.modules[used].as_str();
                    let words = format!(
                        "the module {module} uses {used}, which lib.rs declares after it: a lower layer uses a higher one"
                    );
                    violations.push(Violation::new(&source.path, line_of(&code, at), words));
                }
            }
        }
    }
    violations
}

impl Root {
    fn read(code: &str) -> Root {
        let mut root = Root::default();
        for line in code.lines() {
            let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            if let Some(name) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) {
                root.modules.push(name.to_owned());
            }
        }
        for (at, _) in code.match_indices("use ") {
            let end = code[at..].find(';').map_or(code.len(), |end| at + end);
            let path: String = code[at + 4..end].chars().filter(|c| !c.is_whitespace()).collect();
            let path = path.trim_start_matches("self::").trim_start_matches("crate::");
            let Some((module, names)) = path.split_once("::") else { continue };
            if root.modules.iter().any(|known| known == module) {
                let names = names.split(['{', '}', ',', ':']).filter(|name| !name.is_empty());
                root.exports.extend(names.map(|name| (name.to_owned(), module.to_owned())));
            }
        }
        root
    }

    /// Where a module, or the module that a re-exported name comes from, stands in the order.
    fn place(&self, name: &str) -> Option<usize> {
        let position = |name: &str| self.modules.iter().position(|module| module == name);
        position(name).or_else(|| position(self.exports.get(name)?))
    }
}

/// `src/x.rs` and all below `src/x/` belong to the module x.
fn module_of(path: &Path, dir: &Path) -> String {
    let inner: PathBuf = path.strip_prefix(dir).expect("below src").to_owned();
    let first = inner.iter().next().unwrap_or_default().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// Where and which names are used as `crate::name`, also as `crate::{name, other::x}`.
fn names_from_root(code: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `pub(in crate::x)` and `$crate::x` are paths too; `mycrate::` is not.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(group_names(group).into_iter().map(|name| (at, name))),
            None => names.push((at, word(rest))),
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// First words of the parts of `a, b::{c, d}, e}`.
fn group_names(text: &str) -> Vec<String> {
    let (mut names, mut depth, mut is_start) = (Vec::new(), 0, true);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            c if is_start && !c.is_whitespace() => {
                names.push(word(&text[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::{check, group_names, names_from_root};

    #[test]
    fn names_are_found() {
        assert_eq!(group_names("a, b::{c, d}, self::e}; use f::{g}"), ["a", "b", "self"]);
        let names: Vec<String> = names_from_root("use crate::{a::X, b}; crate::c::d(); mycrate::e")
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn a_module_may_not_use_one_declared_after_it() {
        let file = |path: &str, text: &str| Source { path: path.into(), text: text.to_owned() };
        let sources = [
            file("crates/x/src/lib.rs", "mod low;\npub mod high;\npub use high::{Tall, Thing};\n"),
            file("crates/x/src/low.rs", "use crate::high;\n"),
            file("crates/x/src/low/deep.rs", "\nuse crate::Tall;\n// use crate::high;\n"),
            file("crates/x/src/low/tests.rs", "use crate::high;\n"),
            file("crates/x/src/high.rs", "use crate::low;\nuse crate::high::part;\n"),
            file("crates/x/src/lost.rs", ""),
        ];
        let found: Vec<(String, usize)> =
            check(&sources).into_iter().map(|found| (found.path.display().to_string(), found.line)).collect();
        let place = |path: &str, line| (format!("crates/x/src/{path}"), line);
        assert_eq!(found, [place("low.rs", 1), place("low/deep.rs", 2), place("lost.rs", 1)]);
    }
}
