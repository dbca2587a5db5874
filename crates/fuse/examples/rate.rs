//! How fast the transports are: a file system in memory, asked by 1 and by 4 clients, over each of them.
//!
//! `cargo run --release -p fuse --example rate`. Nothing is cached, so every call is a request. Needs root; io_uring only
//! where `fuse.enable_uring` is Y. Figures of one run on a busy machine say little: compare several.

#![allow(clippy::disallowed_methods, reason = "a client of a real kernel, with a clock")]

#[allow(dead_code, reason = "made for the tests, of which this needs half")]
#[path = "../tests/mounted/memory.rs"]
mod memory;

use fuse::{MountOptions, Session, Settings, Transport};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECONDS: u64 = 2;
const FILE_BYTES: usize = 64 << 20;

fn main() -> io::Result<()> {
    println!(
        "{:<10} {:>7} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "", "clients", "stat/s", "absent/s", "4 KiB r/s", "1 MiB MB/s", "1 MiB w MB/s"
    );
    for transport in [Transport::Device, Transport::Ring] {
        if let Err(error) = measure(transport) {
            println!("{transport:?}: {error}");
        }
    }
    Ok(())
}

fn measure(transport: Transport) -> io::Result<()> {
    let directory = std::env::temp_dir().join(format!("hydrafs-rate-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let mount = fuse::mount(&directory, &MountOptions::default())?;
    let service = memory::Memory::new(true);
    let session = Session::start(mount, service, &Settings { transport, ..Default::default() }, drop)?;
    let unmounter = session.unmounter();
    let running = std::thread::Builder::new().spawn(move || session.run())?;
    let result = rates(transport, &directory);
    unmounter.abort()?;
    let ended = running.join().unwrap_or_else(|_| Err(io::Error::other("the session panicked")));
    fs::remove_dir(&directory)?;
    result.and(ended.map(drop))
}

fn rates(transport: Transport, directory: &Path) -> io::Result<()> {
    let path = directory.join("file");
    let block = vec![7; 1 << 20];
    let file = File::create(&path)?;
    for index in 0..FILE_BYTES / block.len() {
        file.write_all_at(&block, (index * block.len()) as u64)?;
    }
    let at = |turn: u64, bytes: usize| (turn * 0x9e37_79b9) % (FILE_BYTES / bytes) as u64 * bytes as u64;
    let megabytes = |rate: f64| rate * f64::from(1 << 20) / 1e6;
    for clients in [1, 4] {
        let stat = rate(clients, |_| fs::metadata(&path).map(drop));
        let absent = rate(clients, |_| {
            fs::metadata(directory.join("absent")).map_or(Ok(()), |_| Err(io::Error::other("it is there")))
        });
        let open = || File::open(&path);
        let small = rate_with(clients, open, |file, turn| file.read_exact_at(&mut [0; 4096], at(turn, 4096)));
        let large = rate_with(
            clients,
            || Ok((open()?, vec![0; 1 << 20])),
            |(file, data), turn| file.read_exact_at(data, at(turn, 1 << 20)),
        );
        let writing = || File::options().write(true).open(&path);
        let write = rate_with(clients, writing, |file, turn| file.write_all_at(&block, at(turn, 1 << 20)));
        println!(
            "{:<10} {clients:>7} {stat:>12.0} {absent:>12.0} {small:>12.0} {:>12.0} {:>12.0}",
            format!("{transport:?}"),
            megabytes(large),
            megabytes(write)
        );
    }
    Ok(())
}

/// Calls per second of `call`, made by this many threads.
fn rate(clients: usize, call: impl Fn(u64) -> io::Result<()> + Sync) -> f64 {
    rate_with(clients, || Ok(()), |(), turn| call(turn))
}

fn rate_with<T>(
    clients: usize,
    prepare: impl Fn() -> io::Result<T> + Sync,
    call: impl Fn(&mut T, u64) -> io::Result<()> + Sync,
) -> f64 {
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (is_over, count, prepare, call) = (&is_over, &count, &prepare, &call);
            scope.spawn(move || {
                let mut own = prepare().expect("prepared");
                let mut turn = client as u64 * 1000;
                while !is_over.load(Ordering::Relaxed) {
                    call(&mut own, turn).expect("the call works");
                    turn += 1;
                }
                count.fetch_add(turn - client as u64 * 1000, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_secs(SECONDS));
        is_over.store(true, Ordering::Relaxed);
    });
    count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}
