//! Parsing of options and of the mount table. Mounting itself is tested in `tests/`.

use super::{MountOptions, Parsed, parse_line, receive_device, unescape};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

#[test]
fn options_become_bits_and_words() {
    let extra = vec!["noatime,nosuid".to_owned(), "suid".to_owned(), "x-systemd.automount".to_owned()];
    let options = MountOptions { allow_other: true, read_only: true, extra, ..Default::default() };
    let parsed = Parsed::new(&options).expect("all are known");
    assert_eq!(parsed.flags, libc::MS_RDONLY | libc::MS_NOATIME);
    assert_eq!(parsed.words, ["allow_other", "default_permissions"]);
}

#[test]
fn unknown_options_are_refused_by_name() {
    let options = MountOptions { extra: vec!["fd=7".to_owned()], ..Default::default() };
    let error = Parsed::new(&options).err().expect("refused");
    assert!(error.to_string().contains("fd=7"), "{error}");
}

#[test]
fn lines_of_the_mount_table_are_read() {
    let line = b"58 29 0:46 / /mnt/a\\040b rw,relatime shared:7 - fuse.hydrafs my\\040node rw,user_id=0";
    let line = parse_line(line).expect("a line");
    assert_eq!((line.device.as_str(), line.mountpoint.as_slice()), ("0:46", b"/mnt/a b".as_slice()));
    assert_eq!(line.kind, "fuse.hydrafs");
    assert_eq!(parse_line(b"58 29"), None);
}

#[test]
fn broken_escapes_stay_as_they_are() {
    assert_eq!(unescape(b"a\\04"), b"a\\04");
    assert_eq!(unescape(b"\\999"), b"\\999");
    assert_eq!(unescape(b"\\134"), b"\\");
}

#[test]
fn a_helper_that_sends_nothing_is_an_error() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    drop(theirs);
    assert!(ours.as_raw_fd() >= 0 && receive_device(&ours).is_err());
}
