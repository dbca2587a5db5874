//! Ctrl-C: the first one is noted and everything that was made is taken away; a second one ends at once.
//!
//! Nothing here kills anything: whoever waits asks [`check`] and gives up with an error, and guards clean up on the way out.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Begins to watch for signals.
pub(crate) fn watch() {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the second signal finds the flag set.
        let second = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&ASKED));
        let first = signal_hook::flag::register(signal, Arc::clone(&ASKED));
        if let Err(error) = second.and(first) {
            eprintln!("xtask: cannot watch for signal {signal}: {error}; Ctrl-C may leave a mount behind");
        }
    }
}

/// Whether somebody wants an end.
pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error if somebody wants an end.
pub(crate) fn check() -> Result<()> {
    if is_asked() {
        bail!("interrupted; everything that was started is ended");
    }
    Ok(())
}

/// Sleeps, unless somebody wants an end.
pub(crate) fn sleep(time: std::time::Duration) -> Result<()> {
    let end = std::time::Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(50)));
    }
}
