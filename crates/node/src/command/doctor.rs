//! `hydrafs doctor`: checks whether this machine can mount, and fast; says what to mend, and mends it where root may.
//!
//! Each check is a function from a [`Machine`] to a [`Finding`]. A machine is a folder that looks like `/`, so that tests can make
//! one; what is written there is written only with `--fix`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::failure::Failure;

/// Check this machine, and say what to mend.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs doctor            look, change nothing\n  \
    sudo hydrafs doctor --fix switch io_uring for FUSE on and install the helpers of mount(8)\n\n\
    Exit code: 0 if a node can be mounted here, 1 if something must be mended first.")]
pub(super) struct Arguments {
    /// Mend what can be mended. Needs root.
    #[arg(long)]
    fix: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let machine = Machine { root: PathBuf::from("/"), is_root: rustix::process::geteuid().is_root() };
    if arguments.fix && !machine.is_root {
        return Err(Failure::new("cannot mend this machine", "only root may")
            .mend("run `sudo hydrafs doctor --fix`; nothing was changed"));
    }
    let mut findings = machine.look();
    if arguments.fix {
        for finding in &findings {
            if let Some(fix) = finding.fix {
                match fix(&machine) {
                    Ok(done) => super::remark(&done),
                    Err(error) => super::remark(&format!("cannot mend {}: {error}", finding.name)),
                }
            }
        }
        findings = machine.look();
    }
    if arguments.json {
        let list: Vec<_> = findings.iter().map(Finding::to_json).collect();
        super::say_json(&json!({ "checks": list }));
    } else {
        findings.iter().for_each(|finding| super::say(finding.line()));
    }
    let fails = findings.iter().any(|finding| finding.state == State::Bad);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Switches the ring on where that is possible without asking: as root, now, not for the next boot. True if it is on.
pub(super) fn switch_ring_on() -> bool {
    let machine = Machine { root: PathBuf::from("/"), is_root: rustix::process::geteuid().is_root() };
    let path = machine.path(RING_PARAMETER);
    let is_on = || read(&path).is_some_and(|text| text == "Y" || text == "1");
    is_on() || (machine.is_root && write(&path, "Y").is_ok() && is_on())
}

const RING_PARAMETER: &str = "sys/module/fuse/parameters/enable_uring";
/// Written for the next boot: the first where fuse is built in, the second where it is a module.
const RING_FILES: [(&str, &str); 2] = [
    ("etc/tmpfiles.d/hydrafs.conf", "w /sys/module/fuse/parameters/enable_uring - - - - Y\n"),
    ("etc/modprobe.d/hydrafs.conf", "options fuse enable_uring=1\n"),
];
const HELPERS: [&str; 3] = ["usr/sbin/mount.hydrafs", "usr/sbin/mount.fuse.hydrafs", "usr/sbin/umount.fuse.hydrafs"];
/// Packs, their indexes and journals of some disks, with room to spare.
const OPEN_FILES_MIN: u64 = 4096;
/// FUSE as we speak it needs 5.4 (zero-message opens, copy_file_range); statx of birth times and O_TMPFILE need 6.6.
const KERNEL_MIN: (u32, u32) = (5, 4);
const KERNEL_GOOD: (u32, u32) = (6, 6);

/// What is looked at.
struct Machine {
    root: PathBuf,
    is_root: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// It works, less well.
    Weak,
    /// A mount will fail.
    Bad,
}

type Fix = fn(&Machine) -> io::Result<String>;

/// What a check found.
struct Finding {
    name: &'static str,
    state: State,
    found: String,
    mend: String,
    fix: Option<Fix>,
}

impl Finding {
    fn new(name: &'static str, state: State, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { name, state, found: found.into(), mend: mend.into(), fix: None }
    }

    fn good(name: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(name, State::Good, found, "")
    }

    fn mended_by(self, fix: Fix) -> Finding {
        Finding { fix: Some(fix), ..self }
    }

    fn word(&self) -> &'static str {
        match self.state {
            State::Good => "good",
            State::Weak => "weak",
            State::Bad => "BAD",
        }
    }

    fn line(&self) -> String {
        let mend = if self.mend.is_empty() { String::new() } else { format!("\n{:7}-> {}", "", self.mend) };
        format!("{:6} {}: {}{mend}", self.word(), self.name, self.found)
    }

    fn to_json(&self) -> serde_json::Value {
        let state = self.word().to_lowercase();
        json!({ "name": self.name, "state": state, "found": self.found, "mend": self.mend, "can_fix": self.fix.is_some() })
    }
}

impl Machine {
    fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    fn look(&self) -> Vec<Finding> {
        vec![
            self.kernel(),
            self.device(),
            self.fusermount(),
            self.allow_other(),
            self.ring(),
            open_files(),
            self.helper(),
        ]
    }

    fn kernel(&self) -> Finding {
        let name = "kernel";
        let release = read(&self.path("proc/sys/kernel/osrelease")).unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
        match numbers.next().zip(numbers.next()) {
            Some(version) if version >= KERNEL_GOOD => Finding::good(name, release),
            Some(version) if version >= KERNEL_MIN => Finding::new(
                name,
                State::Weak,
                release,
                "Linux 6.6 adds O_TMPFILE and birth times, 6.14 io_uring for FUSE",
            ),
            Some(_) => Finding::new(name, State::Bad, release, "use Linux 5.4 or newer"),
            None => Finding::new(name, State::Weak, format!("\"{release}\" is no version"), "mount /proc"),
        }
    }

    fn device(&self) -> Finding {
        let name = "/dev/fuse";
        match fs::OpenOptions::new().read(true).write(true).open(self.path("dev/fuse")) {
            Ok(_) => Finding::good(name, "can be opened"),
            Err(error) => {
                let mend = match error.kind() {
                    io::ErrorKind::NotFound => "as root: modprobe fuse; in a container pass it in (--device /dev/fuse)",
                    io::ErrorKind::PermissionDenied => {
                        "as root: chmod 666 /dev/fuse, which is its usual mode; or mount as root"
                    }
                    _ => "a kernel with CONFIG_FUSE_FS is needed",
                };
                Finding::new(name, State::Bad, error.to_string(), mend)
            }
        }
    }

    fn fusermount(&self) -> Finding {
        let name = "fusermount3";
        let folders = ["usr/bin", "bin", "usr/local/bin"];
        let found = folders.iter().map(|folder| self.path(folder).join("fusermount3")).find(|path| path.exists());
        match found {
            Some(path) => Finding::good(name, path.display().to_string()),
            None if self.is_root => Finding::good(name, "not installed; root mounts without it"),
            None => Finding::new(name, State::Bad, "not installed", "as root: apt-get install fuse3; or mount as root"),
        }
    }

    fn allow_other(&self) -> Finding {
        let name = "user_allow_other";
        let text = read(&self.path("etc/fuse.conf")).unwrap_or_default();
        if text.lines().any(|line| line.trim() == "user_allow_other") {
            return Finding::good(name, "set in /etc/fuse.conf");
        }
        if self.is_root {
            return Finding::good(name, "not set; root needs it not");
        }
        let mend = "as root: echo user_allow_other >> /etc/fuse.conf; or set allow_other = false in hydrafs.toml";
        Finding::new(name, State::Weak, "not set in /etc/fuse.conf: your mounts can be used by you alone", mend)
    }

    fn ring(&self) -> Finding {
        let name = "io_uring for FUSE";
        if read(&self.path("proc/sys/kernel/io_uring_disabled")).is_some_and(|text| text != "0") {
            let mend = "as root: sysctl kernel.io_uring_disabled=0; until then /dev/fuse is used, which is slower";
            return Finding::new(name, State::Weak, "io_uring is disabled (kernel.io_uring_disabled)", mend);
        }
        match read(&self.path(RING_PARAMETER)).as_deref() {
            Some("Y" | "1") => Finding::good(name, "on"),
            Some(_) => {
                let mend =
                    "as root: hydrafs doctor --fix; until then /dev/fuse is used, which is slower with several users";
                Finding::new(name, State::Weak, "the kernel has it, and it is off", mend)
                    .mended_by(Machine::switch_ring_on)
            }
            None => Finding::new(name, State::Weak, "this kernel has it not", "Linux 6.14 has it; /dev/fuse is used"),
        }
    }

    fn switch_ring_on(&self) -> io::Result<String> {
        write(&self.path(RING_PARAMETER), "Y")?;
        for (file, content) in RING_FILES {
            let path = self.path(file);
            if path.parent().is_some_and(Path::is_dir) {
                write(&path, content)?;
            }
        }
        Ok("switched io_uring for FUSE on, now and for the next boots; mounts use it from their next start".to_owned())
    }

    fn helper(&self) -> Finding {
        let name = "mount.hydrafs";
        let ours = std::env::current_exe().ok();
        let wrong = HELPERS.iter().find(|helper| self.path(helper).canonicalize().ok() != ours);
        match wrong {
            None => Finding::good(name, "mount(8), umount(8) and fstab know hydrafs"),
            Some(helper) => {
                let found = format!("/{helper} does not lead to this program: mount(8) and fstab will not use it");
                let mend = "as root: hydrafs doctor --fix (after the program is where it will stay)";
                Finding::new(name, State::Weak, found, mend).mended_by(Machine::link_helpers)
            }
        }
    }

    fn link_helpers(&self) -> io::Result<String> {
        let ours = std::env::current_exe()?;
        for helper in HELPERS {
            let path = self.path(helper);
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => fs::remove_file(&path)?,
                Ok(_) => return Err(io::Error::other(format!("{} is there and is no link", path.display()))),
                Err(_) => {}
            }
            std::os::unix::fs::symlink(&ours, &path)?;
        }
        Ok(format!("linked /{} to {}", HELPERS.join(", /"), ours.display()))
    }
}

fn open_files() -> Finding {
    let name = "open files";
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < OPEN_FILES_MIN => {
            let mend = "raise the hard limit: `ulimit -Hn`, LimitNOFILE= of the service, /etc/security/limits.conf";
            Finding::new(name, State::Weak, format!("at most {limit}, {OPEN_FILES_MIN} are enough"), mend)
        }
        Some(limit) => Finding::good(name, format!("up to {limit}")),
        None => Finding::good(name, "unlimited"),
    }
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[expect(clippy::disallowed_methods, reason = "the machine's settings are the outside")]
fn write(path: &Path, content: &str) -> io::Result<()> {
    fs::write(path, content)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a machine is made of files")]
mod tests {
    use std::fs;

    use super::{HELPERS, Machine, RING_PARAMETER, State};

    #[test]
    fn a_bare_machine_is_bad_and_what_can_be_mended_is() {
        let root = std::env::temp_dir().join(format!("hydrafs-doctor-{}", std::process::id()));
        for folder in ["dev", "proc/sys/kernel", "sys/module/fuse/parameters", "usr/sbin", "etc/tmpfiles.d"] {
            fs::create_dir_all(root.join(folder)).expect("a temporary folder");
        }
        fs::write(root.join(RING_PARAMETER), "N\n").expect("room");
        fs::write(root.join("proc/sys/kernel/osrelease"), "6.18.44-x\n").expect("room");
        let machine = Machine { root: root.clone(), is_root: false };
        let state = |name: &str| {
            let findings = machine.look();
            findings.iter().find(|finding| finding.name == name).expect("a check of this name").state
        };
        assert_eq!(state("kernel"), State::Good);
        assert_eq!(state("/dev/fuse"), State::Bad);
        assert_eq!(state("fusermount3"), State::Bad);
        assert_eq!(state("user_allow_other"), State::Weak);
        assert_eq!(state("io_uring for FUSE"), State::Weak);
        assert_eq!(state("mount.hydrafs"), State::Weak);
        for finding in machine.look() {
            assert!(finding.state == State::Good || !finding.mend.is_empty(), "{}", finding.line());
            finding.fix.into_iter().for_each(|fix| drop(fix(&machine).expect("the folder is ours")));
        }
        assert_eq!(state("io_uring for FUSE"), State::Good);
        assert_eq!(state("mount.hydrafs"), State::Good);
        assert!(root.join("etc/tmpfiles.d/hydrafs.conf").exists() && !root.join("etc/modprobe.d").exists());

        fs::remove_file(root.join(HELPERS[0])).expect("a link");
        fs::write(root.join(HELPERS[0]), "somebody else's").expect("room");
        machine.link_helpers().expect_err("a file that is no link is left alone");
        fs::remove_dir_all(&root).expect("our own folder");
    }
}
