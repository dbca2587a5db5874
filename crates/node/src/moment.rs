//! Moments as people read them, in UTC.

use base::time::Timestamp;

/// `2026-09-01T12:34:56Z`.
#[must_use]
pub fn utc(moment: Timestamp) -> String {
    let (year, month, day) = date(moment.seconds.div_euclid(86_400));
    let second = moment.seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The same without colons, which some programs take for the end of a host's name.
#[must_use]
pub fn utc_name(moment: Timestamp) -> String {
    utc(moment).replace(':', "")
}

/// A length of time with its two largest units: `3 d 4 h`, `12 s`.
#[must_use]
pub fn span(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let first = units.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(units.len() - 1);
    let (name, unit) = units[first];
    let rest = units.get(first + 1).map(|(name, small)| (name, seconds % unit / small));
    match rest {
        Some((small, count)) if count > 0 => format!("{} {name} {count} {small}", seconds / unit),
        _ => format!("{} {name}", seconds / unit),
    }
}

/// Year, month and day of a day counted from 1970-01-01, by the proleptic Gregorian calendar. Years are counted from
/// March, so that the leap day comes last (after Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use base::time::Timestamp;

    use super::{span, utc, utc_name};

    #[test]
    fn moments_read_as_date_1_prints_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_788_266_096, "2026-09-01T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(Timestamp::new(seconds, 0)), text);
        }
        assert_eq!(utc_name(Timestamp::new(1_788_266_096, 0)), "2026-09-01T123456Z");
    }

    #[test]
    fn spans_have_two_units() {
        assert_eq!([0, 59, 60, 3725, 90_000].map(span), ["0 s", "59 s", "1 min", "1 h 2 min", "1 d 1 h"]);
    }
}
