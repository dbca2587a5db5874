//! A program that takes statements on its standard input and is asked to say when it has done one.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use anyhow::Result;

use crate::program::{Child, Program};

/// Ended when dropped, and not in peace: it touches the mount, which may be dead.
#[derive(Debug)]
pub(super) struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(super) fn start(program: Program, errors: Stdio) -> Result<Client> {
        let mut child = program.start(Stdio::piped(), Stdio::piped(), errors)?;
        let input = child.inner.stdin.take().expect("asked to be a pipe");
        let output = BufReader::new(child.inner.stdout.take().expect("asked to be a pipe"));
        Ok(Client { child, input, output })
    }

    pub(super) fn say(&mut self, words: &str) -> io::Result<()> {
        writeln!(self.input, "{words}")?;
        self.input.flush()
    }

    /// Waits until it printed `done` alone on a line.
    pub(super) fn until_done(&mut self) -> io::Result<()> {
        let mut line = String::new();
        while line.trim_end() != "done" {
            line.clear();
            if self.output.read_line(&mut line)? == 0 {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the client ended"));
            }
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.child.kill();
    }
}
