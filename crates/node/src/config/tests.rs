//! A setting is either in force or refused with its place.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::{Config, KEYS, Transport, starter};

fn parse(text: &str) -> Result<Config, String> {
    let mut config = Config::default();
    config.apply_file(text, Path::new("/n/hydrafs.toml")).map(|()| config).map_err(|failure| failure.to_string())
}

fn environment(variable: &str, value: &str) -> Result<Config, String> {
    let mut config = Config::default();
    let pair = (OsString::from(variable), OsString::from(value));
    config.apply_environment(std::iter::once(pair)).map(|()| config).map_err(|failure| failure.to_string())
}

/// The starter with its settings in force: the comment signs before them taken away.
pub(crate) fn bare_starter() -> String {
    starter()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect()
}

#[test]
fn the_starter_changes_nothing_and_so_does_it_without_its_comments() {
    assert_eq!(parse(&starter()), Ok(Config::default()));
    let bare = bare_starter();
    assert_ne!(bare, starter());
    assert_eq!(parse(&bare), Ok(Config::default()));
}

#[test]
fn values_take_units() {
    let config = parse("[memory]\nbudget = \"64 MiB\"\n[durability]\nflush_interval = \"250 ms\"\n").expect("valid");
    assert_eq!(config.memory_bytes, Some(64 << 20));
    assert_eq!(config.flush_interval, Duration::from_millis(250));
    let config = parse("[mount]\nallow_other = false\nqueue_depth = 4\ntransport = \"device\"").expect("valid");
    assert_eq!((config.allow_other, config.queue_depth, config.transport), (false, 4, Transport::Device));
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let message = parse("[memory]\n\nbugdet = \"1 GiB\"\n").expect_err("unknown");
    assert_eq!(
        message,
        "cannot use the configuration: /n/hydrafs.toml line 3; unknown key \"memory.bugdet\"; \
         the keys of [memory] are budget"
    );
    assert!(parse("[memroy]\n").expect_err("unknown").contains("line 1; unknown section or key \"memroy\""));
    assert!(parse("budget = 1\n").expect_err("unknown").contains("unknown section or key \"budget\""));
}

#[test]
fn wrong_values_and_broken_toml_are_refused_with_their_line() {
    for (text, line) in [
        ("[memory]\nbudget = \"5 parsecs\"", 2),
        ("[memory]\nbudget = \"1 KiB\"", 2),
        ("[memory]\nbudget = [1]", 2),
        ("[mount]\n\n\nqueue_depth = 0", 4),
        ("[log]\nlevel = \"loud\"", 2),
        ("[storage]\ncompression = \"zstd:99\"", 2),
        ("memory = 3", 1),
        ("[memory\n", 1),
        ("\n= 3", 2),
    ] {
        let message = parse(text).expect_err(text);
        assert!(message.contains(&format!("line {line};")), "{text:?}: {message}");
    }
}

#[test]
fn the_environment_overrides_and_is_checked() {
    assert_eq!(environment("HYDRAFS_MEMORY_BUDGET", "1 GiB").expect("valid").memory_bytes, Some(1 << 30));
    assert_eq!(environment("HYDRAFS_DURABILITY_FLUSH_INTERVAL", "1 s").expect("valid").flush_interval.as_secs(), 1);
    assert_eq!(environment("HYDRAFS_UNRELATED", "x"), Ok(Config::default()));
    assert_eq!(environment("PATH", "x"), Ok(Config::default()));
    assert!(environment("HYDRAFS_MEMORY_BUGDET", "1 GiB").expect_err("unknown").contains("memory.bugdet"));
    assert!(environment("HYDRAFS_LOG_LEVEL", "loud").expect_err("wrong").contains("HYDRAFS_LOG_LEVEL"));
}

#[test]
fn every_default_is_valid_and_keys_are_grouped_by_section() {
    let mut config = Config::default();
    KEYS.iter().for_each(|key| (key.set)(&mut config, key.default).expect(key.name));
    let mut sections: Vec<_> = KEYS.iter().map(|key| key.section).collect();
    sections.dedup();
    let count = sections.len();
    sections.sort_unstable();
    sections.dedup();
    assert_eq!(sections.len(), count, "a section is written once in the starter");
}
