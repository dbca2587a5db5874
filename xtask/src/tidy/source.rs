//! The files of the project, and Rust code without its comments and strings.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A text file of the project.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// From the project's folder on.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl Source {
    pub(super) fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }

    pub(super) fn is_markdown(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "md")
    }

    /// Whether it holds tests only.
    pub(super) fn is_test(&self) -> bool {
        self.path.iter().any(|part| part == "tests" || part == "tests.rs")
    }

    /// Its code, with comments, strings and the inline test module blanked; lines stay where they are.
    pub(super) fn code(&self) -> String {
        let code = blank(&self.text);
        let Some(test) = code.find("#[cfg(test)]\nmod tests {") else { return code };
        let rest = code[test..].chars().filter(|c| *c == '\n').collect::<String>();
        format!("{}{rest}", &code[..test])
    }
}

/// The line that a byte of a text lies in, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Folders that hold nothing of ours.
const SKIPPED: [&str; 5] = ["target", "demo", ".git", "results", "node_modules"];
/// Names and endings of text files.
const TEXTS: [&str; 8] = ["rs", "md", "toml", "sh", "yml", "yaml", "Makefile", "run"];

/// All text files below the project's folder. Not asked of git: a copy of the project without it is tidy too.
pub(super) fn read(root: &Path) -> Result<Vec<Source>> {
    let (mut sources, mut waiting) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type()?.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    waiting.push(path);
                }
                continue;
            }
            let ending = name.rsplit('.').next().unwrap_or_default();
            let is_script = path.parent().is_some_and(|parent| parent.ends_with("scripts"));
            if TEXTS.contains(&ending) || is_script {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                sources.push(Source { path: path.strip_prefix(root).expect("below the root").to_owned(), text });
            }
        }
    }
    sources.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(sources)
}

/// Rust code with comments and the inside of strings replaced by spaces, newlines kept. Good enough for code that compiles.
pub(super) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    let mut erase = |from: usize, to: usize| {
        out[from..to].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    };
    while at < bytes.len() {
        let end = match &bytes[at..] {
            [b'/', b'/', ..] => Some(find(bytes, at, b"\n").unwrap_or(bytes.len())),
            [b'/', b'*', ..] => Some(find(bytes, at + 2, b"*/").map_or(bytes.len(), |end| end + 2)),
            [b'r', b'"' | b'#', ..] if at == 0 || !is_word(bytes[at - 1]) => raw_string(bytes, at),
            [b'"', ..] => Some(quoted(bytes, at + 1, b'"')),
            // A character, not a lifetime: it is closed after one character or an escape.
            [b'\'', b'\\', ..] => Some(quoted(bytes, at + 1, b'\'')),
            [b'\'', _, b'\'', ..] => Some(at + 3),
            _ => None,
        };
        match end {
            Some(end) => {
                erase(at, end);
                at = end;
            }
            None => at += 1,
        }
    }
    String::from_utf8(out).unwrap_or_default()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes.get(from..)?.windows(what.len()).position(|window| window == what).map(|at| from + at)
}

/// Behind the closing quote.
fn quoted(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Behind the closing quote of `r"..."`, `r#"..."#`; nothing for a raw identifier.
fn raw_string(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = from + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    Some(find(bytes, open + 1, &close).map_or(bytes.len(), |end| end + close.len()))
}

#[cfg(test)]
mod tests {
    use super::{Source, blank};

    #[test]
    fn comments_and_strings_are_blanked() {
        let code = "a // b\nc /* d\ne */ f \"g \\\" h\" i 'j' '\\'' k r#\"l \" m\"# n<'o> r#p";
        let words: Vec<String> = blank(code).split_whitespace().map(ToOwned::to_owned).collect();
        assert_eq!(words, ["a", "c", "f", "i", "k", "n<'o>", "r#p"]);
        assert_eq!(blank(code).matches('\n').count(), 2);
    }

    #[test]
    fn the_inline_test_module_is_no_code() {
        let text = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n".to_owned();
        let code = Source { path: "x.rs".into(), text }.code();
        assert!(code.contains("crate::a") && !code.contains("crate::b"));
    }
}
