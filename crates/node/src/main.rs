//! `hydrafs`: the one program of the project. Everything is in the library, so that tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    node::command::main(std::env::args_os())
}
