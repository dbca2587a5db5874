//! Metrics as text: for Prometheus (exposition format 0.0.4), and as the reference in docs/metrics.md.
//!
//! A histogram's borders are powers of two of its unit in memory, which are exact: 1.024 us to 69 s, or 1 to 65536. All of one
//! name stand together, as the format wants it.

use base::metric::{Description, Distribution, Kind, Metric, Unit, Value};

/// The content type of [`prometheus`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text that Prometheus reads.
pub(crate) fn prometheus(metrics: &[Metric]) -> String {
    let mut text = String::new();
    let mut rest: Vec<&Metric> = metrics.iter().collect();
    while let Some(description) = rest.first().map(|metric| metric.description) {
        let (family, others) = rest.into_iter().partition(|metric| metric.description == description);
        rest = others;
        write_family(&mut text, &description, family);
    }
    text
}

fn write_family(text: &mut String, description: &Description, family: Vec<&Metric>) {
    let name = description.prometheus();
    let unit = description.unit;
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("# HELP {name} {}", escaped(description.help, false)));
    line(format!("# TYPE {name} {}", kind(description.kind)));
    for metric in family {
        let label = metric.label.as_ref().map(|(key, value)| format!("{key}=\"{}\"", escaped(value, true)));
        match &metric.value {
            Value::Number(number) => {
                let labels = label.map(|label| format!("{{{label}}}")).unwrap_or_default();
                line(format!("{name}{labels} {}", shown(unit, *number)));
            }
            Value::Distribution(values) => {
                let more = label.as_ref().map(|label| format!("{label},")).unwrap_or_default();
                for bound in bounds(unit) {
                    line(format!("{name}_bucket{{{more}le=\"{}\"}} {}", shown(unit, bound), values.count_to(bound)));
                }
                line(format!("{name}_bucket{{{more}le=\"+Inf\"}} {}", values.count()));
                let labels = label.map(|label| format!("{{{label}}}")).unwrap_or_default();
                line(format!("{name}_sum{labels} {}", shown(unit, values.sum())));
                line(format!("{name}_count{labels} {}", values.count()));
            }
        }
    }
}

fn bounds(unit: Unit) -> impl Iterator<Item = u64> {
    let bits = if unit == Unit::Seconds { 10..=36 } else { 0..=16 };
    bits.map(|bits| 1 << bits)
}

/// A value in the unit that is shown.
fn shown(unit: Unit, value: u64) -> String {
    if unit != Unit::Seconds {
        return value.to_string();
    }
    let text = format!("{}.{:09}", value / 1_000_000_000, value % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

fn escaped(text: &str, is_quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_quoted { text.replace('"', "\\\"") } else { text }
}

/// docs/metrics.md, which a test holds up to date.
#[cfg(test)]
pub(crate) fn reference(descriptions: &[Description]) -> String {
    let mut text = String::from(
        "# Metrics\n\n\
        Made from the declarations in the code by `cargo xtask tidy --update-metrics`; a test holds it up to date.\n\n\
        Prometheus fetches them where `listen` in the section `[metrics]` of `hydrafs.toml` says;\n\
        `hydrafs stats --prometheus NODE` prints the same. In JSON (`hydrafs stats --json`) a metric has the name between\n\
        `hydrafs_` and the unit, and times are in nanoseconds. Counters begin at 0 when the daemon starts. A histogram of times\n\
        shows as `_bucket`, `_sum` and `_count`, in seconds; times of requests and tasks that run at once add up, so a sum may\n\
        rise faster than the clock.\n",
    );
    let mut layers: Vec<&str> = descriptions.iter().map(|description| description.layer).collect();
    // Gauges come behind all else, whatever layer they are of.
    layers.sort_by_key(|layer| descriptions.iter().position(|description| description.layer == *layer));
    layers.dedup();
    for layer in layers {
        text.push_str(&format!("\n## {layer}\n\n| name | type | what |\n|---|---|---|\n"));
        for description in descriptions.iter().filter(|description| description.layer == layer) {
            let (name, help) = (description.prometheus(), description.help.replace('|', "\\|"));
            text.push_str(&format!("| `{name}` | {} | {help} |\n", kind(description.kind)));
        }
    }
    text
}

/// The distribution that a command's answer holds.
pub(crate) fn distribution(value: &serde_json::Value) -> Option<Distribution> {
    let buckets = value["buckets"].as_array()?;
    let bucket = |pair: &serde_json::Value| Some((usize::try_from(pair[0].as_u64()?).ok()?, pair[1].as_u64()?));
    Some(Distribution::of(value["sum"].as_u64()?, buckets.iter().filter_map(bucket)))
}

#[cfg(test)]
mod tests {
    use base::metric::{Description, Distribution, Kind, Metric, Unit, Value};

    use super::{prometheus, shown};

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let description = |name, kind, unit| Description { layer: "part", name, kind, unit, help: "it \\ is\nso" };
        let waits = description("wait", Kind::Histogram, Unit::Seconds);
        let label = |value: &str| Some(("op", value.to_owned()));
        let distribution = Value::Distribution(Distribution::of(3_000_000_001, [(0, 2), (usize::MAX, 1)]));
        let metrics = [
            Metric { description: waits, label: label("a\"b"), value: distribution.clone() },
            Metric {
                description: description("things", Kind::Counter, Unit::Count),
                label: None,
                value: Value::Number(u64::MAX),
            },
            Metric { description: waits, label: label("c"), value: distribution },
        ];
        let text = prometheus(&metrics);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "# HELP hydrafs_part_wait_seconds it \\\\ is\\nso");
        assert_eq!(lines[1], "# TYPE hydrafs_part_wait_seconds histogram");
        assert_eq!(lines[2], "hydrafs_part_wait_seconds_bucket{op=\"a\\\"b\",le=\"0.000001024\"} 2");
        assert_eq!(lines[28], "hydrafs_part_wait_seconds_bucket{op=\"a\\\"b\",le=\"68.719476736\"} 2");
        assert_eq!(lines[29], "hydrafs_part_wait_seconds_bucket{op=\"a\\\"b\",le=\"+Inf\"} 2");
        assert_eq!(lines[30], "hydrafs_part_wait_seconds_sum{op=\"a\\\"b\"} 3.000000001");
        assert_eq!(lines[31], "hydrafs_part_wait_seconds_count{op=\"a\\\"b\"} 2");
        assert_eq!(lines[61], "hydrafs_part_wait_seconds_count{op=\"c\"} 2", "one name stands together");
        assert_eq!(lines[64], "hydrafs_part_things_total 18446744073709551615");
        assert_eq!((shown(Unit::Seconds, 0), shown(Unit::Seconds, 10_000_000_000)), ("0".to_owned(), "10".to_owned()));
    }
}
