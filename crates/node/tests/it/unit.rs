//! The systemd unit: what systemd reads in it, and a daemon under what it forbids.
//!
//! Nothing of the unit gives the service a mount name space of its own, and nothing that it forbids is needed: the daemon has all that it has
//! without it. What the filter forbids is made from the unit's own lines.
//!
//! Not here: the messages to the service manager (`restart`). Nor is systemd run: limits, times, RestrictSUIDSGID and LockPersonality are not tried.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::str::FromStr;
use std::time::Duration;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use syscalls::Sysno;

use crate::support::{Folder, Mounted, hydrafs, is_mounted, run, spawn, succeed};

/// `systemd-escape --path /mnt/my-fs`.
pub(crate) const INSTANCE: &str = "mnt-my\\x2dfs";

/// Options of systemd.exec(5) that give a service a mount name space of its own.
const APART: [&str; 29] = [
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "ExecPaths",
    "ExtensionDirectories",
    "ExtensionImages",
    "InaccessiblePaths",
    "LogNamespace",
    "MountAPIVFS",
    "MountFlags",
    "MountImages",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateTmp",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "RootImage",
    "TemporaryFileSystem",
];

fn unit() -> String {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/hydrafs@.service");
    fs::read_to_string(unit).expect("it is part of the project")
}

/// What the unit says of an option, which it has once.
fn option<'a>(unit: &'a str, name: &str) -> &'a str {
    let values: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect();
    let [value] = values[..] else { panic!("{name} is in the unit {} times", values.len()) };
    value
}

/// What cannot be started is not told by `spawn`.
fn is_here(program: &str) -> bool {
    let found = run(Command::new("sh").args(["-c", "command -v \"$0\"", program])).status.success();
    if !found {
        skipped::because(format_args!("there is no {program} here"));
    }
    found
}

#[test]
fn systemd_understands_the_unit() {
    let text = unit();
    // Anything that gives the service a mount name space of its own would hide the mount from everybody else.
    for option in APART {
        assert!(
            !text.lines().any(|line| line.starts_with(option) && line[option.len()..].starts_with('=')),
            "{option}"
        );
    }
    // The program need not be installed here.
    let folder = Folder::new("unit");
    let text = text.replace("/usr/bin/hydrafs", env!("CARGO_BIN_EXE_hydrafs"));
    fs::write(folder.join("hydrafs@.service"), text).expect("room");
    if !is_here("systemd-analyze") {
        return;
    }
    let verify = |log_level: &str| {
        let mut verify = Command::new("systemd-analyze");
        verify.arg("verify").arg(folder.join(format!("hydrafs@{INSTANCE}.service")));
        let output = run(verify.env("SYSTEMD_LOG_LEVEL", log_level));
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    let said = verify("warning");
    assert!(!said.contains("hydrafs"), "{said}");
    // What it would run, with a backslash shown as two.
    let said = verify("debug");
    for command in
        ["mount --foreground \"/etc/hydrafs/mnt-my\\\\x2dfs\" /mnt/my-fs", "restart \"/etc/hydrafs/mnt-my\\\\x2dfs\""]
    {
        assert!(
            said.lines().any(|line| line.contains("Command Line:") && line.ends_with(command)),
            "{command}: {said}"
        );
    }
}

/// The system calls of these groups and of all groups within them, as this systemd knows them.
fn allowed(groups: &str) -> BTreeSet<String> {
    let output = run(Command::new("systemd-analyze").args(["syscall-filter", "--no-pager"]));
    let text = String::from_utf8(output.stdout).expect("names");
    let mut known: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut group = "";
    for line in text.lines().filter(|line| !line.is_empty() && !line.trim_start().starts_with('#')) {
        match line.strip_prefix("    ") {
            Some(name) => known.entry(group).or_default().push(name),
            None => group = line,
        }
    }
    let (mut names, mut wanted) = (BTreeSet::new(), groups.split(' ').collect::<Vec<_>>());
    while let Some(name) = wanted.pop() {
        match name.starts_with('@') {
            true => wanted.extend(known.get(name).unwrap_or_else(|| panic!("{name} is no group of systemd's"))),
            false => drop(names.insert(name.to_owned())),
        }
    }
    names
}

/// An argument of a system call, of which these bits have this value.
fn bits(argument: u8, mask: i32, value: i32) -> SeccompRule {
    let (mask, value) = (u64::from(mask.cast_unsigned()), u64::from(value.cast_unsigned()));
    let is_so = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value);
    SeccompRule::new(vec![is_so.expect("six arguments at most")]).expect("a condition")
}

/// What the unit forbids a process, as systemd has the kernel enforce it.
fn filters(unit: &str) -> [BpfProgram; 2] {
    let architecture: TargetArch = std::env::consts::ARCH.try_into().expect("one that seccomp has");
    let make = |rules, otherwise, then| -> BpfProgram {
        let filter = SeccompFilter::new(rules, otherwise, then, architecture).expect("two actions");
        filter.try_into().expect("short enough")
    };
    let names = allowed(option(unit, "SystemCallFilter"));
    // systemd names calls of all architectures.
    let numbers = names.iter().filter_map(|name| Sysno::from_str(name).ok());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        numbers.map(|number| (i64::from(number.id()), Vec::new())).collect();
    assert!(rules.len() > 200, "{} of {names:?}", rules.len());
    let families = option(unit, "RestrictAddressFamilies").split(' ').map(|family| match family {
        "AF_UNIX" => libc::AF_UNIX,
        "AF_INET" => libc::AF_INET,
        "AF_INET6" => libc::AF_INET6,
        family => panic!("{family}: teach this test what it is"),
    });
    rules.insert(libc::SYS_socket, families.map(|family| bits(0, -1, family)).collect());
    for switch in ["MemoryDenyWriteExecute", "RestrictNamespaces", "RestrictRealtime", "NoNewPrivileges"] {
        assert_eq!(option(unit, switch), "yes", "{switch}: teach this test what it is");
    }
    // MemoryDenyWriteExecute: no page that may be both, and none that may become what it was not.
    let both = libc::PROT_WRITE | libc::PROT_EXEC;
    let not_both = [0, libc::PROT_WRITE, libc::PROT_EXEC].map(|protection| bits(2, both, protection));
    rules.insert(libc::SYS_mmap, not_both.to_vec());
    for call in [libc::SYS_mprotect, libc::SYS_pkey_mprotect] {
        rules.insert(call, vec![bits(2, libc::PROT_EXEC, 0)]);
    }
    rules.insert(libc::SYS_shmat, vec![bits(2, libc::SHM_EXEC, 0)]);
    // RestrictNamespaces. Flags of clone3 are in memory, where no filter sees them: it is told that there is no such call.
    let spaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        rules.insert(call, vec![bits(0, spaces, 0)]);
    }
    rules.remove(&libc::SYS_setns);
    // RestrictRealtime.
    let plain = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
    rules.insert(libc::SYS_sched_setscheduler, plain.map(|policy| bits(1, -1, policy)).to_vec());
    let no_such_call = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let newer = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    assert_eq!(option(unit, "SystemCallErrorNumber"), "EPERM");
    [
        make(rules, SeccompAction::Errno(libc::EPERM.cast_unsigned()), SeccompAction::Allow),
        make(newer, SeccompAction::Allow, no_such_call),
    ]
}

/// Starts hydrafs as a process of the unit, with its log in a file.
#[expect(unsafe_code, reason = "seccomp(2) in the child")]
fn spawn_in_unit(unit: &str, arguments: &[&Path], socket: &Path, log: &Path) -> Child {
    let named = option(unit, "CapabilityBoundingSet").to_ascii_lowercase();
    let bounds = named.split(' ').map(|name| name.replace("cap_", ",+")).collect::<String>();
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set=-all{bounds}")).arg("--no-new-privs").arg(env!("CARGO_BIN_EXE_hydrafs"));
    command.args(arguments).env("NOTIFY_SOCKET", socket);
    let log = OpenOptions::new().create(true).append(true).open(log).expect("room");
    command.stdout(log.try_clone().expect("a file")).stderr(log);
    let filters = filters(unit);
    let restrict = move || {
        // The last first: it forbids nothing that the next one needs.
        filters.iter().rev().try_for_each(|filter| seccompiler::apply_filter(filter)).map_err(std::io::Error::other)
    };
    // SAFETY: unless it fails, it makes system calls alone, and reads memory that was prepared before.
    spawn(unsafe { command.pre_exec(restrict) }).expect("setpriv is here")
}

/// Mounts, works, goes on in a new process and ends under all that the unit forbids, and lacks nothing.
#[test]
fn a_daemon_works_under_what_the_unit_forbids() {
    let unit = unit();
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return skipped::because("/dev/fuse cannot be opened here");
    }
    if !rustix::process::geteuid().is_root() {
        return skipped::because("only root has the capabilities of the unit");
    }
    if !is_here("systemd-analyze") {
        return;
    }
    let folder = Folder::new("service");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let free = Mounted::start(&node, &point, &[]).expect("/dev/fuse is here");
    let transport = |at: &Path| {
        let status = succeed(&["status".as_ref(), "--json".as_ref(), at.as_os_str()]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status["mount"]["transport"].clone()
    };
    let expected = transport(&node);
    assert!(expected.is_string(), "{expected}");
    free.umount();

    let manager = UnixDatagram::bind(folder.join("notify")).expect("room");
    // A message that never comes fails the test instead of hanging it.
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let (socket, log) = (folder.join("notify"), folder.join("log"));
    let said = || fs::read_to_string(&log).expect("a log");
    let hear = |wanted: &str| {
        let mut buffer = [0; 4096];
        loop {
            let bytes = manager.recv(&mut buffer).unwrap_or_else(|error| panic!("no {wanted}: {error}: {}", said()));
            if String::from_utf8_lossy(&buffer[..bytes]).lines().any(|line| line.starts_with(wanted)) {
                return;
            }
        }
    };
    let mount = ["mount".as_ref(), "--foreground".as_ref(), &*node, &*point];
    let mut daemon = spawn_in_unit(&unit, &mount, &socket, &log);
    hear("READY=1");
    let mut mounted = Mounted::running(&node, &point);
    assert_eq!(transport(&node), expected, "{}", said());
    let work = |name: &str| {
        let file = File::create_new(point.join(name)).expect("room");
        std::io::Write::write_all(&mut &file, &[7; 3_000_000]).expect("room");
        file.sync_all().expect("a disk");
        fs::create_dir(point.join(format!("{name} of"))).expect("room");
        fs::rename(point.join(name), point.join(format!("{name} of/it"))).expect("room");
        succeed(&["snapshot".as_ref(), "create".as_ref(), node.as_os_str(), name.as_ref()]);
        succeed(&["gc".as_ref(), node.as_os_str()]);
        assert!(succeed(&["fsck".as_ref(), "--deep".as_ref(), node.as_os_str()]).contains("all is well"));
        assert!(fs::read(point.join(format!("{name} of/it"))).expect("there") == [7; 3_000_000]);
    };
    work("first");
    let restart = spawn_in_unit(&unit, &["restart".as_ref(), &*node], &socket, &log).wait();
    assert!(restart.expect("our child").success(), "{}", said());
    hear("MAINPID=");
    assert!(daemon.wait().expect("our child").success(), "{}", said());
    mounted.follow();
    assert_eq!(transport(&node), expected, "{}", said());
    work("second");
    mounted.signal(rustix::process::Signal::TERM);
    mounted.wait();
    assert!(!is_mounted(&point));
    assert!(!said().contains("not permitted"), "{}", said());
    let output = hydrafs(&["fsck".as_ref(), "--deep".as_ref(), node.as_os_str()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
