// SPDX-License-Identifier: MIT OR Apache-2.0
//! A positive `errno` value as the kernel and the verbs report it.
//!
//! A newtype over the integer, not an enum: the kernel may return any number, and an unknown number must reach the user
//! unchanged.

use core::fmt;

/// A positive `errno` value (errno(3)), never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(core::num::NonZeroI32);

macro_rules! errnos {
    ($($name:ident $doc:literal),* $(,)?) => {
        impl Errno {
            $(#[doc = $doc] pub const $name: Errno = Errno::from_const(libc::$name);)*

            /// The symbolic name, for the values that verbs and uverbs use.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0.get() {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM "Operation not permitted.",
    ENOENT "No such object (an empty completion queue, for an extended poll).",
    EINTR "Interrupted by a signal.",
    EIO "The device was removed, or has failed.",
    EBADF "Not an open file.",
    EAGAIN "No data yet; try again.",
    ENOMEM "No memory, or the work queue is full (ibv_post_send(3)).",
    EACCES "Access denied.",
    EFAULT "Bad address.",
    EBUSY "The object is still in use.",
    ENODEV "No such device, or it was removed.",
    ENODATA "No data: an empty entry of a table.",
    EINVAL "Invalid argument.",
    EMFILE "Too many open files.",
    ENFILE "Too many open files in the system.",
    ENOSPC "No room: a table or a limit is exhausted, or an answer did not fit.",
    EDOM "A value out of the command's domain.",
    ERANGE "Out of range.",
    EDEADLK "The calling thread already holds the queue.",
    ENOSYS "The kernel has no such function.",
    EPROTO "The answer is invalid.",
    EOVERFLOW "A value does not fit.",
    EMSGSIZE "A message is longer than the transport allows.",
    EPROTONOSUPPORT "The kernel's uverbs does not support this object, method or attribute.",
    EOPNOTSUPP "The device or the driver does not support it.",
    ENOTCONN "The queue pair is not connected.",
    ECONNRESET "The peer ended the connection.",
    ETIMEDOUT "Timed out.",
    ECANCELED "The work request was flushed.",
    ECONNREFUSED "Connection refused.",
    EADDRINUSE "The address or the port is in use.",
    EADDRNOTAVAIL "No device of this machine has the address.",
    EAFNOSUPPORT "The address is one of another family.",
    EHOSTUNREACH "No route to the host.",
    ENETUNREACH "The network is unreachable.",
    EEXIST "The object exists already.",
    ESTALE "The object belongs to another process.",
    EDQUOT "A quota is exhausted.",
    EREMOTEIO "The device's firmware refuses a command.",
}

impl Errno {
    /// From a positive errno value; 0 and negative values (which are mistakes of a caller or a kernel) become `EPROTO`.
    #[must_use]
    pub const fn from_raw(value: i32) -> Self {
        if value > 0 { Self::from_const(value) } else { Self::EPROTO }
    }

    /// The errno of the last libc call of this thread that failed.
    #[must_use]
    pub fn last() -> Self {
        Self::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The positive value.
    #[must_use]
    #[inline]
    pub const fn raw(self) -> i32 {
        self.0.get()
    }

    /// Whether this means "not supported" rather than "invalid": the kernel returns `EPROTONOSUPPORT` for an unknown
    /// object, method or mandatory attribute, and `EOPNOTSUPP` or `ENOSYS` for a missing driver operation.
    #[must_use]
    pub const fn is_unsupported(self) -> bool {
        matches!(self, Self::EOPNOTSUPP | Self::ENOSYS | Self::EPROTONOSUPPORT)
    }

    const fn from_const(value: i32) -> Self {
        match core::num::NonZeroI32::new(value) {
            Some(v) => Self(v),
            None => panic!("errno 0 is not an error"),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::errno::Errno::from_raw(self.raw()) {
            nix::errno::Errno::UnknownErrno => write!(f, "unknown error {}", self.raw()),
            errno => f.write_str(errno.desc()),
        }
    }
}

impl core::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> Self {
        Self::from_raw_os_error(e.raw())
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(e: nix::errno::Errno) -> Self {
        Self::from_raw(e as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    #[test]
    fn an_errno_of_zero_or_less_is_not_success() {
        assert_eq!(Errno::from_raw(0), Errno::EPROTO);
        assert_eq!(Errno::from_raw(-22), Errno::EPROTO);
        assert_eq!(Errno::from_raw(22), Errno::EINVAL);
        assert_eq!(size_of::<Option<Errno>>(), 4);
    }

    #[test]
    fn the_message_has_text_and_name() {
        let shown = |raw| format!("{} ({:?})", Errno::from_raw(raw), Errno::from_raw(raw));
        assert_eq!(shown(61), "No data available (ENODATA)");
        assert_eq!(shown(99_999), "unknown error 99999 (errno 99999)");
    }
}
