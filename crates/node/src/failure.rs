//! How a command fails: what was tried, where, why it did not work, and what the user can do.
//!
//! One shape for every message of the binary, so that all of them answer the same four questions:
//!
//! ```text
//! hydrafs: cannot open the node: /srv/n; the folder holds no file `node`; make a node with `hydrafs init /srv/n --disk DIR`
//!          what                  where   why                              mend
//! ```
//!
//! It travels over the control socket as it is (`control::wire`), so that a daemon's refusal reads like our own.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Why a command ends with an exit code that is not 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was tried: "cannot open the node".
    pub what: String,
    /// The place it concerns: a path, mostly. May be empty.
    pub place: String,
    /// What was found, and what was expected.
    pub why: String,
    /// What the user can do. May be empty.
    pub mend: String,
    /// The process's exit code.
    #[serde(default = "one")]
    pub code: u8,
}

fn one() -> u8 {
    1
}

impl Failure {
    /// A failure of `what` with a reason.
    pub fn new(what: impl Into<String>, why: impl fmt::Display) -> Failure {
        Failure { what: what.into(), place: String::new(), why: why.to_string(), mend: String::new(), code: 1 }
    }

    /// Where it happened.
    #[must_use]
    pub fn at(mut self, place: &Path) -> Failure {
        self.place = place.display().to_string();
        self
    }

    /// Where it happened, when that is not a path.
    #[must_use]
    pub fn place(mut self, place: impl Into<String>) -> Failure {
        self.place = place.into();
        self
    }

    /// What the user can do.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Failure {
        self.mend = mend.into();
        self
    }

    /// The exit code, where 1 is not the right one.
    #[must_use]
    pub fn code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.place.is_empty() {
            write!(f, ": {}", self.place)?;
        }
        let separator = if self.place.is_empty() { ": " } else { "; " };
        write!(f, "{separator}{}", self.why)?;
        if !self.mend.is_empty() {
            write!(f, "; {}", self.mend)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Failure;

    #[test]
    fn a_message_says_what_where_why_and_what_to_do() {
        let failure = Failure::new("cannot open the node", "it is a file").at(Path::new("/n")).mend("name a folder");
        assert_eq!(failure.to_string(), "cannot open the node: /n; it is a file; name a folder");
        assert_eq!(Failure::new("cannot start", "no memory").to_string(), "cannot start: no memory");
    }
}
