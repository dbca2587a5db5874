//! `hydrafs`: the one program of the project. Everything is in the library, so that tests can reach it.

use std::process::ExitCode;

/// The daemon's memory is chunks, inodes and records of all sizes, made on one thread and dropped on another.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    node::command::main(std::env::args_os())
}
