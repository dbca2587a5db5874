//! Rules that the compiler does not know, checked on the text of the project; `cargo test` runs them too (`tests` below).
//!
//! - a crate uses only crates of layers below it ([`layers`]), and a module only modules declared before it ([`order`]);
//! - a file over 200 lines opens with an essay, none is over 1,000 lines, nothing is left to do without a name ([`text`]);
//! - each number of an invariant that code cites is in docs/invariants.md, links in documents lead somewhere, and the document of
//!   the formats was read again when a format changed ([`documents`]);
//! - each number of a problem that `fsck` finds is in that document, and stays there, and a test names it ([`problems`]).
//!
//! What cannot be avoided stands in [`ALLOWED`] with its reason; an entry that is not needed any more is a violation itself.

mod documents;
mod layers;
mod order;
mod problems;
mod source;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use self::source::Source;
use crate::tools;

/// Check the rules that the compiler does not know: layers, order of modules, documents, unwanted words.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Say that docs/format.md was read and agrees with the formats in the code: write their new hash into it.
    #[arg(long)]
    update_format_hash: bool,
    /// Write docs/metrics.md from the declarations of metrics in the code.
    #[arg(long)]
    update_metrics: bool,
}

/// An exception.
struct Allowed {
    /// The file, from the project's folder on.
    path: &'static str,
    /// Part of the violation's words.
    words: &'static str,
    /// Why it cannot be avoided.
    reason: &'static str,
}

/// Exceptions from the rules.
const ALLOWED: &[Allowed] = &[];

/// A broken rule, at a line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: PathBuf,
    line: usize,
    words: String,
}

impl Violation {
    fn new(path: impl Into<PathBuf>, line: usize, words: impl Into<String>) -> Violation {
        Violation { path: path.into(), line, words: words.into() }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.update_format_hash {
        documents::update_format_hash(&tools::project())?;
    }
    if arguments.update_metrics {
        documents::update_metrics()?;
    }
    let (violations, files) = check()?;
    for violation in &violations {
        println!("{}:{}: {}", violation.path.display(), violation.line, violation.words);
    }
    match violations.len() {
        0 => println!("tidy: {files} files keep the rules"),
        count => println!("tidy: {count} violations in {files} files"),
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All violations that are not allowed, and how many files were looked at.
fn check() -> Result<(Vec<Violation>, usize)> {
    let root = tools::project();
    let sources = source::read(&root)?;
    let mut violations = Vec::new();
    violations.extend(layers::check(&root)?);
    violations.extend(order::check(&sources));
    violations.extend(sources.iter().flat_map(text::check));
    violations.extend(documents::check(&root, &sources)?);
    violations.extend(problems::check(&sources));
    let mut used = vec![false; ALLOWED.len()];
    violations.retain(|violation| {
        let index = ALLOWED.iter().position(|allowed| {
            violation.path == *allowed.path && violation.words.contains(allowed.words) && !allowed.reason.is_empty()
        });
        if let Some(index) = index {
            used[index] = true;
        }
        index.is_none()
    });
    for (allowed, used) in ALLOWED.iter().zip(used) {
        if !used {
            let words = format!("the exception \"{}\" of {} is not needed any more", allowed.words, allowed.path);
            violations.push(Violation::new("xtask/src/tidy.rs", 1, words));
        }
    }
    violations.sort();
    Ok((violations, sources.len()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_project_is_tidy() {
        let (violations, files) = super::check().expect("the project can be read");
        assert!(files > 50, "only {files} files were found: the check looks at the wrong place");
        let lines =
            violations.iter().map(|found| format!("{}:{}: {}\n", found.path.display(), found.line, found.words));
        assert!(
            violations.is_empty(),
            "{} violations (see also `cargo xtask tidy`):\n{}",
            violations.len(),
            lines.collect::<String>()
        );
    }
}
