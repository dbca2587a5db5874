//! Moments as files carry them.

/// Seconds and nanoseconds since 1970 UTC. Negative seconds are before it; `nanos` always counts forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded towards the past.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

impl Timestamp {
    /// The moment, with nanoseconds out of range cut to the last of their second (foreign input).
    #[must_use]
    pub fn new(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp { seconds, nanos: nanos.min(999_999_999) }
    }
}
