//! `hydrafs`: the one program of the project. Everything is in the library, so that tests can reach it.

use std::process::ExitCode;

/// The daemon's memory is chunks, inodes and records of all sizes, made on one thread and dropped on another. What is dropped goes back
/// to the system at once, for a user gave a budget: `.cargo/config.toml` says how soon.
#[global_allocator]
static MEMORY: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    node::command::main(std::env::args_os())
}
