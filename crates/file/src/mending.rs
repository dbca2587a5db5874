//! How far a mender is, and how long it will take.
//!
//! Not here: the mender.

use std::time::Duration;

/// How far the mender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mending {
    /// Bytes that it has written.
    pub bytes_done: u64,
    /// Bytes that it has written, and will have.
    pub bytes_in_all: u64,
    /// How long it will take for the rest at its pace until now. `None`: it has none yet.
    pub time_left: Option<Duration>,
    /// On the clock of time that passes.
    began: Duration,
}

impl Mending {
    /// What it is now, after what it was.
    pub(crate) fn now(before: Option<Mending>, now: Duration, bytes_done: u64, bytes_in_all: u64) -> Mending {
        // A second round begins anew.
        let began = before.filter(|before| before.bytes_done <= bytes_done).map_or(now, |before| before.began);
        let (bytes_left, elapsed) = (bytes_in_all.saturating_sub(bytes_done), now.saturating_sub(began));
        let time_left = (bytes_done > 0 && !elapsed.is_zero())
            .then(|| elapsed.as_secs_f64() * bytes_left as f64 / bytes_done as f64)
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Mending { bytes_done, bytes_in_all, time_left, began }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Mending;

    #[test]
    fn the_rest_takes_as_long_as_what_was_done_for_as_much() {
        let at = Duration::from_secs;
        let begun = Mending::now(None, at(100), 0, 1000);
        assert_eq!(begun.time_left, None, "it has no pace yet");
        let further = Mending::now(Some(begun), at(110), 200, 1000);
        assert_eq!(further.time_left, Some(at(40)));
        let last = Mending::now(Some(further), at(150), 1000, 1000);
        assert_eq!(last.time_left, Some(at(0)));
        let again = Mending::now(Some(last), at(160), 0, 500);
        assert_eq!(again.time_left, None);
        assert_eq!(
            Mending::now(Some(again), at(161), 100, 500).time_left,
            Some(at(4)),
            "the first round's time does not count"
        );
    }
}
