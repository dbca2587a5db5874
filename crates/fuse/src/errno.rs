//! Error numbers, as the kernel wants them: positive here, negated on the wire.

use std::fmt;

/// A positive errno. Anything that is not one the kernel accepts (1 to 511) is sent as EIO.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Names of the numbers a file system answers with.
macro_rules! errnos {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("See errno(3): ", stringify!($name), ".")] pub const $name: Errno = Errno(libc::$name);)*
            /// The attribute does not exist (ENOATTR elsewhere).
            pub const NO_XATTR: Errno = Errno(libc::ENODATA);
        }
        impl fmt::Debug for Errno {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $(libc::$name => to.write_str(stringify!($name)),)*
                    other => write!(to, "errno {other}"),
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL
    ENFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP
    ENODATA ETIME EPROTO EOVERFLOW EOPNOTSUPP ECONNABORTED ENOTCONN ETIMEDOUT EHOSTUNREACH ESTALE EDQUOT ECANCELED
}

impl Errno {
    /// The number for the wire: 0 is no error, and the kernel refuses -512 and beyond.
    pub(crate) fn negated(self) -> i32 {
        if (1..512).contains(&self.0) { -self.0 } else { -libc::EIO }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(to)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
