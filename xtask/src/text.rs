//! Sizes, times and tables as a person reads them.

use std::time::Duration;

/// `1.4 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Million bytes a second.
pub(crate) fn rate(count: u64, time: Duration) -> String {
    format!("{:.0} MB/s", count as f64 / 1e6 / time.as_secs_f64().max(1e-9))
}

/// `4.2 s`, `3 min 10 s`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 90.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {} s", seconds as u64 / 60, seconds as u64 % 60)
    }
}

/// Three digits of a number, whatever its size.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The date as `2026-01-31T12-30-00`, in UTC: sorts by time and is a good file name.
pub(crate) fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = ((now / 86_400) as i64, now % 86_400);
    // Days to a civil date: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}-{:02}-{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Lines of cells, each column as wide as its widest cell; the first column to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    /// A table with these headings, the first `left` columns of which are texts.
    pub(crate) fn new(left: usize, headings: &[&str]) -> Table {
        let mut table = Table { rows: Vec::new(), left };
        table.row(headings.iter().map(|heading| (*heading).to_owned()));
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }

    /// For the terminal.
    pub(crate) fn text(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                line += &if column < self.left { format!("{cell}{pad}  ") } else { format!("{pad}{cell}  ") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// For a document.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if index == 0 {
                let rule = |column| if column < self.left { "---" } else { "---:" };
                text += &format!("| {} |\n", (0..row.len()).map(rule).collect::<Vec<_>>().join(" | "));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, bytes, count, last_lines};

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(count(1), "1");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
    }

    #[test]
    fn tables_line_up() {
        let mut table = Table::new(1, &["what", "n"]);
        table.row(["x".to_owned(), "100".to_owned()]);
        assert_eq!(table.text(), "what    n\nx     100\n");
        assert_eq!(table.markdown(), "| what | n |\n| --- | ---: |\n| x | 100 |\n");
    }
}
