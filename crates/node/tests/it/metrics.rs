//! What is measured of a real mount: fetched over HTTP and read as strictly as Prometheus does, shown by `stats` and `profile`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use serde_json::Value;

use crate::mount::over_each_transport_mut;
use crate::support::{Folder, Mounted, hydrafs, succeed};

/// A mount with metrics on any free port. `None` where this machine cannot mount.
fn start(folder: &Folder) -> Option<(Mounted, String)> {
    let mounted = Mounted::start(&folder.node("n"), &folder.make("m"), &[("HYDRAFS_METRICS_LISTEN", "127.0.0.1:0")])?;
    let address = status(&mounted)["metrics"].as_str().expect("status says where").to_owned();
    Some((mounted, address))
}

fn status(mounted: &Mounted) -> Value {
    json(&[OsStr::new("status"), OsStr::new("--json"), mounted.node.as_os_str()])
}

fn json(arguments: &[&OsStr]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

/// Sends bytes and gives all that comes back. Whoever is hung up on hears nothing.
fn exchange(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

fn fetch(address: &str) -> String {
    let answer = exchange(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

/// A line of the text: name, labels, value.
type Line = (String, BTreeMap<String, String>, f64);

/// Reads the exposition format 0.0.4, and accepts nothing else: families stand together behind their HELP and TYPE, no line comes
/// twice, names are legal, histograms are cumulative, end with +Inf and agree with their counts. Gives the lines by series.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let (mut found, mut families) = (BTreeMap::new(), BTreeSet::new());
    let (mut family, mut kind) = (String::new(), String::new());
    let mut buckets: Vec<Line> = Vec::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a name and words");
            assert!(families.insert(name.to_owned()), "{name} stands in two places");
            assert!(!words.is_empty() && kind != "none", "{line}");
            (family, kind) = (name.to_owned(), "none".to_owned());
            continue;
        }
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            kind = declared.strip_prefix(&format!("{family} ")).expect("the type of this family").to_owned();
            assert!(["counter", "gauge", "histogram"].contains(&&kind[..]), "{line}");
            assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
            continue;
        }
        let (name, labels, value) = sample(line);
        let part = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} in the family {family}"));
        match (&kind[..], part) {
            ("counter" | "gauge", "") => assert!(value >= 0.0 && !labels.contains_key("le"), "{line}"),
            ("histogram", "_bucket") => buckets.push((name.clone(), labels, value)),
            ("histogram", "_sum") => assert!(value >= 0.0),
            ("histogram", "_count") => check_buckets(&std::mem::take(&mut buckets), &labels, value),
            _ => panic!("{line} of the type {kind}"),
        }
        let (series, _) = line.rsplit_once(' ').expect("a value");
        assert!(found.insert(series.to_owned(), value).is_none(), "{series} comes twice");
    }
    assert!(buckets.is_empty(), "buckets without a count");
    found
}

fn check_buckets(buckets: &[Line], labels: &BTreeMap<String, String>, count: f64) {
    let (mut last_bound, mut last) = (f64::NEG_INFINITY, 0.0);
    for (name, of, value) in buckets {
        let mut of = of.clone();
        let bound = of.remove("le").expect("a border").replace("+Inf", "inf").parse::<f64>().expect("a number");
        assert_eq!(&of, labels, "{name}: the buckets of one histogram stand together");
        assert!(bound > last_bound && *value >= last, "{name}: {bound} after {last_bound}, {value} after {last}");
        (last_bound, last) = (bound, *value);
    }
    assert!(last_bound == f64::INFINITY && last == count, "the last bucket has all: {last} of {count}");
}

/// `name{label="value",...} number`.
fn sample(line: &str) -> Line {
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').expect("a value");
    let (name, mut rest) = line.split_at(end);
    assert!(name.starts_with("hydrafs_"), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        let (inside, value) = inside.rsplit_once('}').expect("a closing brace");
        rest = value;
        for pair in inside.split(',') {
            let (key, value) = pair.split_once("=\"").expect("a quoted value");
            let value = value.strip_suffix('"').expect("a closing quote");
            assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()) && !value.contains(['"', '\\']), "{line}");
            assert!(labels.insert(key.to_owned(), value.to_owned()).is_none(), "{line}");
        }
    }
    let value = rest.strip_prefix(' ').expect("one space").parse().unwrap_or_else(|_| panic!("{line}"));
    (name.to_owned(), labels, value)
}

/// Something of everything: a name, data that is all of one byte, an fsync, a listing.
fn work(mounted: &Mounted, byte: u8) {
    let path = mounted.point.join("f");
    let mut file = File::create(&path).expect("room");
    file.write_all(&vec![byte; 300_000]).and_then(|()| file.sync_all()).expect("room");
    assert_eq!(fs::read_dir(&mounted.point).expect("a listing").filter_map(Result::ok).count(), 1);
}

#[test]
fn prometheus_reads_what_was_done() {
    let folder = Folder::new("prometheus");
    let Some((mounted, address)) = start(&folder) else { return };
    work(&mounted, 1);
    let before = parse(&fetch(&address));
    work(&mounted, 2);
    succeed(&[OsStr::new("sync"), mounted.point.as_os_str()]);
    let now = parse(&fetch(&address));
    let grown = |series: &str| {
        let at = |metrics: &BTreeMap<String, f64>| *metrics.get(series).unwrap_or_else(|| panic!("no {series}"));
        at(&now) - at(&before)
    };
    assert_eq!(grown("hydrafs_fuse_requests_total{op=\"fsync\"}"), 1.0);
    assert_eq!(grown("hydrafs_fuse_request_seconds_count{op=\"fsync\"}"), 1.0);
    assert_eq!(grown("hydrafs_file_sync_seconds_count"), 1.0);
    assert_eq!(grown("hydrafs_file_write_bytes_total"), 300_000.0);
    assert!(grown("hydrafs_store_log_sync_seconds_count") >= 1.0, "an fsync syncs the journal");
    assert!(grown("hydrafs_store_log_sync_seconds_sum") <= grown("hydrafs_node_uptime_seconds"), "one at a time");
    assert!(grown("hydrafs_store_settle_seconds_count") >= 1.0, "300 KB are stored as chunks");
    let asked = |what: &str| grown(&format!("hydrafs_disk_{what}_seconds_count{{disk=\"0\"}}"));
    assert!(asked("write") >= 2.0 && asked("sync") >= 2.0, "a pack and the journal are written and synced");
    assert!(now["hydrafs_store_disk_free_bytes{disk=\"0\"}"] > 0.0 && now["hydrafs_node_resident_bytes"] > 1e6);

    // Whatever is there is in the reference, and the command prints the same.
    let reference =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).expect("the reference");
    for family in fetch(&address).lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = family.split(' ').next().expect("a name");
        assert!(reference.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
    }
    let printed = parse(&succeed(&[OsStr::new("stats"), OsStr::new("--prometheus"), mounted.node.as_os_str()]));
    assert_eq!(printed.keys().collect::<Vec<_>>(), now.keys().collect::<Vec<_>>());
    mounted.umount();
}

#[test]
fn hostile_clients_harm_nobody() {
    let folder = Folder::new("hostile");
    let Some((mounted, address)) = start(&folder) else { return };
    let long = [&b"GET /metrics HTTP/1.1\r\nA: "[..], &vec![b'a'; 1 << 20]].concat();
    for (request, expected) in [
        (&long[..], "HTTP/1.1 431 "),
        (b"\0\xff\0\xff\r\n\r\n", "HTTP/1.1 400 "),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
    ] {
        let answer = exchange(&address, request);
        // Whoever sends a mebibyte may be reset before it reads why.
        assert!(answer.starts_with(expected) || (request.len() > 100_000 && answer.is_empty()), "{answer}");
    }
    // Many who say nothing: the first few take all places, the others are hung up on at once.
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    let mut last = silent.pop().expect("a hundred");
    assert!(!matches!(last.read(&mut [0]), Ok(1)), "hung up on");
    work(&mounted, 1);
    assert!(status(&mounted)["mount"]["requests"].as_u64().expect("a number") > 0);
    // When they leave, their places are free again.
    for stream in &mut silent {
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0]);
    }
    parse(&fetch(&address));
    mounted.umount();
}

#[test]
fn an_address_in_use_stops_nothing_but_metrics() {
    let folder = Folder::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[("HYDRAFS_METRICS_LISTEN", &address)]) else { return };
    work(&mounted, 1);
    let status = status(&mounted);
    assert_eq!(status["metrics"], Value::Null);
    let failure = status["failures"][0].as_str().expect("a failure");
    assert!(failure.starts_with(&format!("cannot publish metrics: {address}; ")), "{failure}");
    mounted.umount();
}

#[test]
fn a_restart_serves_metrics_on() {
    over_each_transport_mut("metrics-on", |mounted| {
        let file = mounted.node.join("hydrafs.toml");
        let listen = |address: &str| fs::write(&file, format!("[metrics]\nlisten = \"{address}\"\n")).expect("room");
        let fsyncs = |address: &str| parse(&fetch(address)).get("hydrafs_fuse_requests_total{op=\"fsync\"}").copied();
        let address = |mounted: &Mounted| status(mounted)["metrics"].as_str().map(str::to_owned);
        assert_eq!(address(mounted), None);
        listen("127.0.0.1:0");
        mounted.restart();
        let place = address(mounted).expect("settings are read anew");
        work(mounted, 1);
        work(mounted, 2);
        assert_eq!(fsyncs(&place), Some(2.0));

        // The next process at the same place, though a client of the former has not finished its request.
        listen(&place);
        let mut slow = TcpStream::connect(&place).expect("it listens");
        slow.write_all(b"GET /metrics HTTP/1.1\r\n").expect("it reads");
        mounted.restart();
        assert_eq!(address(mounted).as_ref(), Some(&place), "{}", status(mounted)["failures"]);
        assert_eq!(fsyncs(&place), None, "counted by another process");
        work(mounted, 3);
        assert_eq!(fsyncs(&place), Some(1.0));

        // And this one again, when the next is not ready.
        let arguments = ["restart", "--binary", "/bin/false"].map(OsStr::new);
        let refused = hydrafs(&[&arguments[..], &[mounted.node.as_os_str()]].concat());
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert_eq!(address(mounted).as_ref(), Some(&place), "{}", status(mounted)["failures"]);
        work(mounted, 4);
        assert_eq!(fsyncs(&place), Some(1.0));
    });
}

#[test]
fn a_profile_says_where_the_time_of_a_command_went() {
    let folder = Folder::new("profile");
    let Some((mounted, _)) = start(&folder) else { return };
    let (file, node) = (mounted.point.join("f"), mounted.node.as_os_str());
    // A directory of which nothing was committed is all in memory, and nobody looks for a name in its tree.
    fs::write(mounted.point.join("before"), "before").expect("room");
    succeed(&[OsStr::new("snapshot"), OsStr::new("create"), node, OsStr::new("before")]);
    let script = format!(
        "dd if=/dev/zero of={0} bs=4k count=20 conv=fsync 2>/dev/null; dd if={0} of=/dev/null bs=4k iflag=direct \
         2>/dev/null; echo done; exit 3",
        file.display()
    );
    let arguments = ["profile", "--json"].map(OsStr::new);
    let command = ["--", "sh", "-c", &script].map(OsStr::new);
    let output = hydrafs(&[&arguments[..], &[node], &command].concat());
    assert_eq!(output.status.code(), Some(3), "the command's exit code: {output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("done\n"), "the command's words are not in the JSON");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let requests = &found["requests"];
    assert_eq!((&requests["write"]["count"], &requests["fsync"]["count"]), (&20.into(), &1.into()), "{found}");
    // Histograms agree with each other: a part is not longer than the whole.
    let sum = |value: &Value| value["sum"].as_u64().expect("a sum");
    let (fsync, wait, sync) =
        (&requests["fsync"], &found["waits"]["store_log_wait"], &found["works"]["store_log_sync"]);
    assert!(sum(fsync) > 0 && sum(wait) > 0 && sum(sync) > 0, "{found}");
    assert!(sum(&found["disks"]["disk_sync"]) > 0, "{found}");
    assert!(sum(sync) as f64 <= found["seconds"].as_f64().expect("seconds") * 1e9, "{found}");
    let (reads, stored) = (&requests["read"], &found["works"]["file_read_stored"]);
    assert!(sum(stored) > 0 && sum(stored) <= sum(reads), "{found}");
    assert!(sum(&found["works"]["file_find"]) > 0, "{found}");
    assert!(
        sum(fsync) <= fsync["count"].as_u64().expect("a count") * fsync["max"].as_u64().expect("a time"),
        "{found}"
    );

    let text = succeed(
        &[&[OsStr::new("profile"), node][..], &["--", "ls", "-l"].map(OsStr::new), &[file.as_os_str()]].concat(),
    );
    assert!(text.contains(" watched: "), "{text}");
    let text = succeed(&[OsStr::new("profile"), node, OsStr::new("0.01")]);
    assert!(text.contains(" watched: "), "{text}");
    let table = succeed(&["stats", "--latency"].map(OsStr::new).into_iter().chain([node]).collect::<Vec<_>>());
    assert!(["request fsync ", "store log_sync ", "disk sync 0 "].iter().all(|row| table.contains(row)), "{table}");
    mounted.umount();
}

#[test]
fn a_profile_that_cannot_be_says_why() {
    let folder = Folder::new("no-profile");
    let node = folder.node("n");
    let fail = |arguments: &[&OsStr], words: &str| {
        let output = hydrafs(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(words), "{arguments:?}: {message}");
    };
    fail(&[OsStr::new("profile"), node.as_os_str(), OsStr::new("1")], "no daemon runs on this node");
    fail(&[OsStr::new("stats"), OsStr::new("--prometheus"), node.as_os_str()], "no daemon runs on this node");
    fail(&[OsStr::new("profile"), node.as_os_str(), OsStr::new("0")], "expected seconds");
    fail(
        &[OsStr::new("profile"), node.as_os_str(), OsStr::new("1"), OsStr::new("--"), OsStr::new("true")],
        "cannot be used with",
    );
}
