//! What is known not to pass, each with its reason. Shown in the outcome; an entry that passes again is a failure, so that
//! the list only gets shorter.

/// Tests of pjdfstest that fail on a HydraFS mount.
pub(super) const PJDFSTEST: &[(&str, &str)] = &[];

/// Stressors of stress-ng that are not run, and why.
pub(super) const STRESSORS: &[(&str, &str)] = &[
    ("bind-mount", "mounts over the machine's own folders"),
    ("binderfs", "mounts a file system of its own"),
    ("procfs", "reads /proc only"),
    ("sysfs", "reads /sys only"),
    ("ioprio", "no file system call"),
    ("eventfd", "no file system call"),
    ("dup", "no file system call"),
    ("fanotify", "watches the whole machine's mounts, and needs none of ours"),
    ("io", "sync(2) of the whole machine, which does not reach a FUSE file system"),
    ("chdir", "makes 8,192 directories first and never ends on a busy machine, ext4 included"),
];
