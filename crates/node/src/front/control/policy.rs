//! What people ask for files against the loss of disks.
//!
//! Not here: how content is kept so (`store`), who inherits what (`file`).

use file::{COPIES_MAX, Resilience, Status, View};
use platform::real::block_on;
use serde_json::{Value, json};

use super::Control;
use super::maintain::{Teller, beside};
use crate::failure::Failure;

impl Control {
    pub(super) fn set_policy(
        &self,
        inode: u64,
        (copies, fragments): (Option<u8>, Option<&str>),
        recursive: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot set the policy";
        let refuse = |why: &str| Failure::new(what, why).place(inode.to_string()).mend("nothing was changed");
        let resilience = match (copies, fragments) {
            (None, None) => Resilience::OfNode,
            (None, Some(text)) => Resilience::Fragments(text.parse().map_err(|why: String| refuse(&why))?),
            (Some(_), Some(_)) => return Err(refuse("it cannot be in copies and in fragments")),
            (Some(copies @ 1..=COPIES_MAX), None) => Resilience::Copies(copies),
            (Some(_), None) => return Err(refuse(&format!("there are 1 to {COPIES_MAX} copies"))),
        };
        let node = self.find(inode).ok_or_else(|| refuse("no file has this inode number"))?;
        if node.view != View::LIVE {
            return Err(refuse("it is in a snapshot, which does not change"));
        }
        let report = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |files| teller.tell(files, None, &|rate| format!("set for {files} files, {rate}/s"));
            block_on(self.system.set_policy_below(node.file, resilience, recursive, &tell))
        });
        let report = report.map_err(self.explain(what))?;
        Ok(json!({
            "files": report.files,
            "chunks_stored_anew": report.raised,
            "failed": report.failed,
            "problems": report.problems,
        }))
    }
}

/// Content that lies on fewer disks than its file asks for; null where there is none.
pub(super) fn raising(status: &Status) -> Value {
    let raising = status.raising.as_ref();
    raising.map_or(Value::Null, |report| json!({ "failed": report.failed, "problems": report.problems }))
}

/// Copies that are asked for; null where the settings say how many, or fragments are.
pub(super) fn copies(resilience: Resilience) -> Value {
    match resilience {
        Resilience::OfNode | Resilience::Fragments(_) => Value::Null,
        Resilience::Copies(copies) => json!(copies),
    }
}

/// Fragments that are asked for, if any are.
pub(super) fn fragments(resilience: Resilience) -> Value {
    match resilience {
        Resilience::OfNode | Resilience::Copies(_) => Value::Null,
        Resilience::Fragments(erasure) => json!(erasure.to_string()),
    }
}
