//! Sizes as people write them: `64 KiB`, `1.5 GiB`, `10MB`.

use std::fmt;

/// A number of bytes that prints itself with a binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 6] =
    [("EiB", 1 << 60), ("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, scale) in UNITS {
            if self.0 >= scale {
                // Two decimals of the integer quotient: exact enough to read, no float rounding at the top.
                let hundredths = u128::from(self.0) * 100 / u128::from(scale);
                return write!(f, "{}.{:02} {unit}", hundredths / 100, hundredths % 100);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    /// The text as given.
    pub text: String,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is not a size: expected a number and a unit, such as \"64 KiB\", \"1.5 GiB\" or \"500 MB\"",
            self.text
        )
    }
}

impl std::error::Error for SizeError {}

/// Reads a size: digits with an optional fraction, an optional space, and one of B, K, KB, KiB, … E, EB, EiB.
/// `KB` is 1000 bytes, `K` and `KiB` are 1024, as in coreutils.
pub fn parse_bytes(text: &str) -> Result<Bytes, SizeError> {
    let bad = || SizeError { text: text.to_owned() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale = unit_scale(unit.trim()).ok_or_else(bad)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let mut total = u128::from(whole) * u128::from(scale);
    if !fraction.is_empty() {
        let digits: u64 = fraction.parse().map_err(|_| bad())?;
        let power = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
        total += u128::from(digits) * u128::from(scale) / power;
    }
    u64::try_from(total).map(Bytes).map_err(|_| bad())
}

fn unit_scale(unit: &str) -> Option<u64> {
    let upper = unit.to_ascii_uppercase();
    let power = match upper.chars().next() {
        None | Some('B') => return (upper.len() <= 1).then_some(1),
        Some(first) => u32::try_from("KMGTPE".find(first)?).ok()? + 1,
    };
    match &upper[1..] {
        "" | "IB" => Some(1024u64.pow(power)),
        "B" => Some(1000u64.pow(power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, parse_bytes};

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17 B", 17),
            ("64KiB", 65536),
            ("64 k", 65536),
            ("64 KB", 64000),
            ("1.5 GiB", 3 << 29),
            ("8E", 8 << 60),
        ] {
            assert_eq!(parse_bytes(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "KiB", "1..2", "5 parsecs", "-1", "99E", "1.5.5G", "1 KiBB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_with_a_unit() {
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "15.99 EiB");
    }
}
