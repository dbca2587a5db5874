//! `lab`: experiments on the layers below the kernel. How near streams through the file layer come to what the store alone can do, and what
//! reading ahead and the weighted cache are worth where a disk is far away; what memory many chunks take; what ways of cutting store; what memory batches of many entries take; and masses of
//! small files on a disk that turns; and many threads in few files.
//!
//! Each result is a line of JSON; `cargo xtask bench` makes tables and plots of them.
//!
//! Not here: what users see, through the kernel (`cargo xtask bench`).

mod batches;
mod chunks;
mod cuts;
mod far;
mod masses;
mod stream;
mod threads;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "lab", about = "Experiments on the layers below the kernel")]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Streams through the file layer beside the raw store: written with duplicates, and read cold.
    Stream {
        /// A folder for nodes; what the experiment makes there it removes.
        folder: PathBuf,
        /// Bytes of each stream, in MiB.
        #[arg(long, default_value_t = 512)]
        mebibytes: u64,
        /// Percent of duplicates.
        #[arg(long, value_delimiter = ',', default_value = "0,25,50,75,100")]
        duplicates: Vec<u64>,
        /// What the streams are made of.
        #[arg(long, value_enum, default_value = "random")]
        fill: stream::Fill,
        /// What is measured, in this order and back. One alone is for a profile.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "raw,raw-cut,file")]
        sides: Vec<stream::Side>,
    },
    /// The memory of a store with few chunks, and with a hundred times as many: 15 GiB and 1.5 TiB of an average size.
    Chunks {
        /// A folder for nodes; what the experiment makes there it removes.
        folder: PathBuf,
        /// How many chunks.
        #[arg(long, value_delimiter = ',', default_value = "163840,16384000")]
        counts: Vec<u64>,
    },
    /// What several ways of cutting store of some trees, one after the other.
    Cuts {
        /// Folders or files, as versions come.
        #[arg(required = true)]
        trees: Vec<PathBuf>,
    },
    /// The memory of batches of few entries, and of a hundred times as many.
    Masses {
        /// A folder for nodes; what the experiment makes there it removes.
        folder: PathBuf,
        /// How many files.
        #[arg(long, value_delimiter = ',', default_value = "100000,10000000")]
        counts: Vec<u64>,
    },
    /// Masses of small files on a simulated disk that turns, one by one and as batches, beside what was published of ext4.
    Batches {
        /// Bytes of each set, in MiB.
        #[arg(long, default_value_t = 64)]
        mebibytes: usize,
    },
    /// Many threads write, copy and remove in few files, while everything is flushed, committed and reclaimed: each sees what it wrote. Fails
    /// with the first thing that was not what it should be.
    Threads {
        /// A folder for nodes; what the experiment makes there it removes, unless it failed.
        folder: PathBuf,
        /// How long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// What is chosen; the timing is the machine's.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// One cold stream read from a simulated disk of 5 ms, with and without each of the two measures of the read path.
    Far,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().experiment {
        Experiment::Stream { folder, mebibytes, duplicates, fill, sides } => {
            stream::run(&folder, mebibytes << 20, &duplicates, fill, &sides)
        }
        Experiment::Chunks { folder, counts } => chunks::run(&folder, &counts),
        Experiment::Cuts { trees } => cuts::run(&trees),
        Experiment::Masses { folder, counts } => masses::run(&folder, &counts),
        Experiment::Batches { mebibytes } => batches::run(mebibytes),
        Experiment::Threads { folder, seconds, seed } => threads::run(&folder, seconds, seed),
        Experiment::Far => far::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}
