//! Suites made for testing file systems: pjdfstest, fsx, stress-ng; and fio for what they leave out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Place, exceptions};
use crate::program::{Program, read_lossy};
use crate::tally::{Counts, End};
use crate::{machine, text, tools};

/// Versions in the package registry that were tried.
const PJDFSTEST_VERSION: &str = "0.2.2";
const FSX_VERSION: &str = "0.3.2";
const FSX_OPERATIONS_PER_RUN: u64 = 20_000;

/// Two users that every Debian and most other systems have, each with its own group: none has to be made.
const USERS: [&str; 6] = ["nobody", "daemon", "bin", "games", "mail", "www-data"];

/// Asynchronous direct writes beside reads through the kernel's cache: when all is over, both ways show the same content.
pub(super) fn direct_and_cached(place: &Place) -> Result<End> {
    let (file, direct) = (place.dir.join("file"), place.scratch("direct")?.join("file"));
    let rounds = if place.is_quick { 20 } else { 400 };
    for round in 0..rounds {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        // There may be no file yet.
                        let _ = fs::read(&file);
                    }
                });
            }
            let fio = Program::new("fio").arg(format!("--filename={}", file.display()));
            let fio = fio.args(["--name=direct", "--ioengine=libaio", "--direct=1", "--rw=randwrite", "--bs=64k"]);
            let fio = fio.args(["--size=640k", "--iodepth=10", "--randrepeat=0", "--refill_buffers"]);
            let written = fio.log(&place.log).run();
            is_over.store(true, Ordering::Relaxed);
            written
        })?;
        let copy = Program::new("dd").args(["bs=64k", "iflag=direct", "status=none"]);
        copy.arg(format!("if={}", file.display())).arg(format!("of={}", direct.display())).log(&place.log).run()?;
        if fs::read(&file)? != fs::read(&direct)? {
            bail!("round {round}: a read through the cache shows other content than one around it");
        }
    }
    Ok(End::Passed(format!("{rounds} files written by libaio while they were read through the cache")))
}

/// pjdfstest, all of it.
pub(super) fn pjdfstest(place: &Place) -> Result<End> {
    if !machine::is_root() {
        return Ok(End::Skipped("it changes owners and users, which only root may; run as root".to_owned()));
    }
    let program = tools::installed("pjdfstest", PJDFSTEST_VERSION)?;
    let users = users()?;
    let mut counts = pjdfstest_part(place, &program, &users, false)?;
    if place.is_ours {
        // In a process of their own: others leave removed files open, and then no file system can be made read-only.
        let remounted = pjdfstest_part(place, &program, &users, true)?;
        counts.ignored -= counts.ignored.min(remounted.passed + remounted.failed);
        counts.add(remounted);
    }
    let Counts { passed, failed, ignored } = counts;
    let known = exceptions::PJDFSTEST.len();
    let words =
        format!("{passed} of its tests passed, {failed} failed, {ignored} skipped, {known} of these known exceptions");
    Ok(End::Counted(counts, words))
}

/// All tests but those of read-only file systems, or only these.
fn pjdfstest_part(place: &Place, program: &Path, users: &[(String, String)], remounts: bool) -> Result<Counts> {
    let config = place.outside.join("pjdfstest.toml");
    fs::write(&config, pjdfstest_config(users, remounts))?;
    let run = Program::new(program).arg("-c").arg(&config).arg("-p").arg(&place.dir).args(remounts.then_some("erofs"));
    // A second file system, for what must not work from one to another.
    let second = place.scratch("second")?;
    let is_other = fs::metadata(&second)?.dev() != fs::metadata(&place.dir)?.dev();
    let run = if is_other { run.arg("-s").arg(second) } else { run };
    let run = run.env("PATH", path_with_plain_mount(&place.scratch("bin")?)?);
    let status = run.log(&place.log).limit(Duration::from_secs(1800)).status()?;
    let counts = pjdfstest_counts(&read_lossy(&place.log)).context("pjdfstest printed no summary")?;
    if !status.success() && counts.failed == 0 {
        bail!("pjdfstest ended with {status}");
    }
    Ok(counts)
}

/// The tests of read-only file systems call `mount -o remount,ro`, which looks for the helper of the mount's type: that is there only
/// where hydrafs is installed. A `mount` of ours, first in PATH, leaves helpers out (-i). It asks again for a second while the mount
/// is busy: the kernel tells a FUSE file system of closed files a moment later, and a removed one counts as in use until then.
fn path_with_plain_mount(dir: &Path) -> Result<std::ffi::OsString> {
    let old = std::env::var_os("PATH").unwrap_or_default();
    let real = std::env::split_paths(&old)
        .map(|dir| dir.join("mount"))
        .find(|path| path.is_file())
        .context("there is no mount(8)")?;
    let script = dir.join("mount");
    fs::write(
        &script,
        format!(
            "#!/bin/sh\nfor try in 1 2 3 4 5 6 7 8 9; do\n  '{0}' -i \"$@\" 2>/dev/null && exit 0\n  sleep 0.1\ndone\nexec '{0}' -i \"$@\"\n",
            real.display()
        ),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(std::env::join_paths([dir.to_owned()].into_iter().chain(std::env::split_paths(&old)))?)
}

/// Two users with groups of their own.
fn users() -> Result<Vec<(String, String)>> {
    let read = |path| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let (passwd, group) = (read("/etc/passwd")?, read("/etc/group")?);
    let groups: BTreeMap<&str, &str> =
        group.lines().filter_map(|line| line.split(':').nth(2).zip(line.split(':').next())).collect();
    let of_user = |user: &&str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(user))?;
        let name = groups.get(line.split(':').nth(3)?)?;
        Some(((*user).to_owned(), (*name).to_owned()))
    };
    let users: Vec<(String, String)> = USERS.iter().filter_map(of_user).take(2).collect();
    if users.len() < 2 {
        bail!("of the users {} fewer than two are on this machine", USERS.join(", "));
    }
    Ok(users)
}

fn pjdfstest_config(users: &[(String, String)], may_remount: bool) -> String {
    let entries: Vec<String> = users.iter().map(|(user, group)| format!("[\"{user}\", \"{group}\"]")).collect();
    let known: Vec<String> = exceptions::PJDFSTEST.iter().map(|(test, _)| format!("\"{test}\"")).collect();
    // Not: chflags and nfsv4_acls, which are FreeBSD's.
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.005\nallow_remount = {may_remount}\nexpected_failures = [{}]\n\
         [dummy_auth]\nentries = [{}]\n",
        known.join(", "),
        entries.join(", ")
    )
}

/// Reads `Summary: 0 failed, 15 skipped, 383 passed, 0 expected failures, 398 total`, which has colours.
fn pjdfstest_counts(log: &str) -> Option<Counts> {
    let line = log.lines().rfind(|line| line.contains("Summary") && line.contains("total"))?;
    let line = without_colours(line);
    let number = |word: &str| {
        let part = line.split([',', ':']).find(|part| part.trim().ends_with(word))?;
        part.trim().split(' ').next()?.parse::<u64>().ok()
    };
    Some(Counts {
        passed: number(" passed")?,
        failed: number(" failed")?,
        ignored: number(" skipped")? + number("expected failures")?,
    })
}

fn without_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// fsx: random operations on one file, each read compared with what it must give.
pub(super) fn fsx(place: &Place) -> Result<End> {
    let program = tools::installed("fsx", FSX_VERSION)?;
    let operations: u64 = if place.is_quick { 20_000 } else { 1_000_000 };
    let config = place.outside.join("fsx.toml");
    let weights = [
        ("close_open", 1),
        ("read", 10),
        ("write", 10),
        ("mapread", 10),
        ("mapwrite", 10),
        ("invalidate", 1),
        ("truncate", 5),
        ("fsync", 1),
        ("fdatasync", 1),
        ("posix_fallocate", 3),
        ("punch_hole", 5),
        ("sendfile", 3),
        ("posix_fadvise", 1),
        ("copy_file_range", 5),
    ];
    let weights: String = weights.iter().map(|(name, weight)| format!("{name} = {weight}\n")).collect();
    // Never of 0 bytes: fallocate(2) refuses that on every file system, and fsx takes the refusal for the end.
    fs::write(&config, format!("flen = 1048576\n[opsize]\nmax = 65536\nmin = 1\nalign = 1\n[weights]\n{weights}"))?;
    // Several processes one after the other: fsx never unmaps, and with each mapping the kernel's walks get longer.
    let runs = operations.div_ceil(FSX_OPERATIONS_PER_RUN);
    for (number, seed) in (place.seed..).take(usize::try_from(runs)?).enumerate() {
        let run = Program::new(&program).arg("-f").arg(&config).arg("-N").arg(FSX_OPERATIONS_PER_RUN.to_string());
        let run = run.arg("-S").arg(seed.to_string()).arg("-P").arg(&place.outside);
        let run = run.arg(place.dir.join(format!("file-{number}")));
        run.log(&place.log).limit(Duration::from_secs(600)).run()?;
    }
    Ok(End::Passed(format!(
        "{} operations with mmap, holes and copy_file_range, seeds from {}",
        text::count(runs * FSX_OPERATIONS_PER_RUN),
        place.seed
    )))
}

/// Stressors that touch files, those that stress-ng counts to its class "filesystem" and some others.
fn stressors() -> Result<Vec<String>> {
    let (_, output, errors) = Program::new("stress-ng").args(["--class", "filesystem?"]).outcome()?;
    let text = output + &errors;
    let (_, list) =
        text.split_once("stressors:").context("stress-ng lists no stressors of its class \"filesystem\"")?;
    let more = ["aiol", "mmap", "readahead", "revio", "seek", "sendfile"];
    let is_excepted = |name: &&str| exceptions::STRESSORS.iter().any(|(excepted, _)| excepted == name);
    let mut names: Vec<String> =
        list.split_whitespace().chain(more).filter(|name| !is_excepted(name)).map(ToOwned::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// One stressor after the other, with verification.
pub(super) fn stress_each(place: &Place) -> Result<End> {
    let names = stressors()?;
    let seconds = if place.is_quick { 1 } else { 5 };
    let quick = [
        "copy-file",
        "dentry",
        "fallocate",
        "fpunch",
        "getdent",
        "hdd",
        "iomix",
        "link",
        "lockofd",
        "mmap",
        "rename",
        "utime",
        "xattr",
    ];
    let names: Vec<String> =
        names.into_iter().filter(|name| !place.is_quick || quick.contains(&name.as_str())).collect();
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    for name in &names {
        let dir = place.dir.join(name);
        fs::create_dir_all(&dir)?;
        match stress(place, &dir, std::slice::from_ref(name), 2, seconds)? {
            Verdict::Good => {}
            Verdict::NotRun(why) => skipped.push(format!("{name} ({why})")),
            Verdict::Bad(why) => failed.push(format!("{name}: {why}")),
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} stressors failed: {}", failed.len(), names.len(), failed.join("; "));
    }
    let skipped = if skipped.is_empty() { String::new() } else { format!("; not supported: {}", skipped.join(", ")) };
    Ok(End::Passed(format!("{} stressors, {seconds} s each, verified{skipped}", names.len())))
}

/// All at once in one directory: they meet each other's files.
pub(super) fn stress_together(place: &Place) -> Result<End> {
    let all = [
        "access",
        "chmod",
        "chown",
        "copy-file",
        "dentry",
        "dir",
        "fallocate",
        "filename",
        "flock",
        "fpunch",
        "fstat",
        "getdent",
        "hdd",
        "iomix",
        "link",
        "lockofd",
        "mmap",
        "open",
        "rename",
        "seek",
        "symlink",
        "touch",
        "utime",
        "xattr",
    ];
    let known = stressors()?;
    let names: Vec<String> = all.into_iter().map(ToOwned::to_owned).filter(|name| known.contains(name)).collect();
    let seconds = if place.is_quick { 5 } else { 180 };
    match stress(place, &place.dir, &names, 1, seconds)? {
        Verdict::Good => Ok(End::Passed(format!("{} stressors at once for {seconds} s, verified", names.len()))),
        Verdict::NotRun(why) => Ok(End::Skipped(why)),
        Verdict::Bad(why) => bail!("{why}"),
    }
}

enum Verdict {
    Good,
    NotRun(String),
    Bad(String),
}

fn stress(place: &Place, dir: &Path, names: &[String], workers: u32, seconds: u64) -> Result<Verdict> {
    let log = with_name(&place.log, "one");
    fs::write(&log, "")?;
    // In the mount as well: some stressors make files where they are started.
    let mut run = Program::new("stress-ng")
        .dir(dir)
        .args(["--verify", "--timestamp", "--oomable", "--timeout"])
        .arg(format!("{seconds}s"));
    run = run.arg("--temp-path").arg(dir).args([
        "--hdd-bytes",
        "64m",
        "--iomix-bytes",
        "64m",
        "--fallocate-bytes",
        "64m",
        "--copy-file-bytes",
        "128m",
    ]);
    for name in names {
        run = run.arg(format!("--{name}")).arg(workers.to_string());
        if name == "mmap" {
            run = run.args(["--mmap-file", "--mmap-bytes", "32m"]);
        }
    }
    // They stop by themselves; some tidy up for a while.
    let status = run.log(&log).limit(Duration::from_secs(seconds + 240)).status();
    let words = read_lossy(&log);
    let mut whole = read_lossy(&place.log);
    whole += &words;
    fs::write(&place.log, whole)?;
    fs::remove_file(&log)?;
    let line =
        |part: &[&str]| words.lines().find(|line| part.iter().any(|part| line.contains(part))).map(ToOwned::to_owned);
    if let Some(line) = line(&["fail:", "error:", "corrupt"]) {
        return Ok(Verdict::Bad(line));
    }
    match status {
        Ok(status) if status.success() => Ok(line(&["skipping", "not supported"])
            .map_or(Verdict::Good, |_| Verdict::NotRun("stress-ng skips it here".to_owned()))),
        // 3: not run for want of something, 4: not implemented here (stress-ng(1), exit status).
        Ok(status) if matches!(status.code(), Some(3 | 4)) => {
            Ok(Verdict::NotRun("stress-ng cannot run it here".to_owned()))
        }
        // 7: it does not trust its count of rounds. Stressors like iomix kill their workers in the end, and one may die between the two halves
        // of counting, whatever the file system does; what that did wrong would be a 2 and a "fail:".
        Ok(status) if status.code() == Some(7) && words.contains("successful run completed") => Ok(Verdict::Good),
        Ok(status) => Ok(Verdict::Bad(format!("ended with {status}: {}", text::last_lines(&words, 2)))),
        Err(error) => Ok(Verdict::Bad(format!("{error:#}").lines().next().unwrap_or_default().to_owned())),
    }
}

fn with_name(log: &Path, name: &str) -> PathBuf {
    log.with_extension(format!("{name}.log"))
}

#[cfg(test)]
mod tests {
    use super::{pjdfstest_config, pjdfstest_counts};
    use crate::tally::Counts;

    #[test]
    fn the_summary_is_read_through_its_colours() {
        let log = "x ok\n\n\u{1b}[1;32mSummary\u{1b}[0m: 2 \u{1b}[1;31mfailed\u{1b}[0m, 15 \u{1b}[33mskipped\u{1b}[0m, 381 passed, 1 expected failures, 399 total\n";
        assert_eq!(pjdfstest_counts(log), Some(Counts { passed: 381, failed: 2, ignored: 16 }));
        assert_eq!(pjdfstest_counts("panicked"), None);
    }

    #[test]
    fn the_configuration_is_toml() {
        let users = [("nobody".to_owned(), "nogroup".to_owned()), ("daemon".to_owned(), "daemon".to_owned())];
        let config: toml::Table = pjdfstest_config(&users, true).parse().expect("TOML");
        assert_eq!(config["dummy_auth"]["entries"].as_array().map(Vec::len), Some(2));
    }
}
