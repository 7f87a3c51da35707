// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path's error: which verb failed, on which object, and why.
//!
//! The data path does not use it; its errors ([`PostError`], [`PollError`], [`WcError`]) become one by `?`.

use crate::errno::Errno;
use crate::provider::{PollError, PostError, QueueError};
use crate::sync::LockError;
use crate::wc::WcError;
use core::fmt;
use std::borrow::Cow;

/// A verb that failed. The errors of the data path convert to it, so a function that returns it uses `?` on any call of the crate.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel, or another system call, returned an error.
    Os {
        /// The verb as the man pages name it, such as `ibv_create_qp` without its prefix: `create_qp`.
        verb: &'static str,
        /// The object of the call, such as `qp 17` or `device rxe0`.
        object: Cow<'static, str>,
        /// The kernel's errno.
        errno: Errno,
    },
    /// The device, its driver or the kernel does not support it.
    Unsupported {
        /// The verb.
        verb: &'static str,
        /// What is missing, and in which component.
        what: Cow<'static, str>,
    },
    /// An argument that is invalid; found without the kernel, or after the kernel's error.
    Invalid {
        /// The verb.
        verb: &'static str,
        /// The field or argument, by its verbs name.
        field: &'static str,
        /// The reason why it is invalid.
        reason: Cow<'static, str>,
    },
    /// The kernel or the device gave an invalid answer.
    Protocol {
        /// The verb.
        verb: &'static str,
        /// What is invalid.
        what: Cow<'static, str>,
    },
    /// `ENOMEM`: the process may not lock as much memory (`RLIMIT_MEMLOCK`, `ulimit -l`).
    LockedMemory {
        /// The verb.
        verb: &'static str,
        /// The object of the call.
        object: Cow<'static, str>,
        /// The limit, and what the call would need.
        sizes: Box<LockedSizes>,
    },
    /// A work request was not posted.
    Post(QueueError),
    /// A completion queue can't be polled.
    Poll(PollError),
    /// A queue can't be locked.
    Lock(LockError),
    /// A work request completed with an error.
    Completion(Box<WcError>),
}

/// The sizes of [`Error::LockedMemory`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockedSizes {
    /// The limit.
    pub limit: u64,
    /// What regions and queues of the process have locked.
    pub pinned: u64,
    /// What the call would lock in addition.
    pub needed: u64,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os { verb, object, errno } => write!(f, "{verb}({object}): {errno} ({errno:?})"),
            Self::LockedMemory { verb, object, sizes } => {
                let LockedSizes { limit, pinned, needed } = **sizes;
                let errno = Errno::ENOMEM;
                let kib = |bytes: u64| bytes.div_ceil(1024);
                write!(
                    f,
                    "{verb}({object}): {errno} ({errno:?}): it needs {} KiB of locked memory, {} KiB are in use, and the limit \
                     (`ulimit -l`) is {} KiB; it must be at least {}",
                    kib(needed),
                    kib(pinned),
                    limit / 1024,
                    kib(pinned.saturating_add(needed)),
                )
            }
            Self::Unsupported { verb, what } => write!(f, "{verb}: unsupported: {what}"),
            Self::Invalid { verb, field, reason } => write!(f, "{verb}: invalid {field}: {reason}"),
            Self::Protocol { verb, what } => write!(f, "{verb}: invalid answer: {what}"),
            Self::Post(error) => error.fmt(f),
            Self::Poll(error) => write!(f, "poll_cq: {error}"),
            Self::Lock(error) => write!(f, "lock: {error}"),
            Self::Completion(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

/// Result of a control verb.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// `verb` has no memory for this.
    pub fn no_memory(verb: &'static str, what: impl Into<Cow<'static, str>>, error: &std::io::Error) -> Self {
        Self::os(verb, what, error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw))
    }

    /// `verb(object)` failed with `errno`; an errno that means "not supported" becomes [`Error::Unsupported`].
    pub fn os(verb: &'static str, object: impl Into<Cow<'static, str>>, errno: Errno) -> Self {
        let object = object.into();
        if errno.is_unsupported() {
            return Self::Unsupported {
                verb,
                what: format!("{object}: the kernel answers {errno:?}").into(),
            };
        }
        Self::Os { verb, object, errno }
    }

    /// The device, driver or kernel lacks `what`.
    pub fn unsupported(verb: &'static str, what: impl Into<Cow<'static, str>>) -> Self {
        Self::Unsupported { verb, what: what.into() }
    }

    /// Argument `field` of `verb` is invalid.
    pub fn invalid(verb: &'static str, field: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { verb, field, reason: reason.into() }
    }

    /// The answer to `verb` is invalid.
    pub fn protocol(verb: &'static str, what: impl Into<Cow<'static, str>>) -> Self {
        Self::Protocol { verb, what: what.into() }
    }

    /// The errno a C caller would see.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Os { errno, .. } => *errno,
            Self::LockedMemory { .. } => Errno::ENOMEM,
            Self::Unsupported { .. } => Errno::EOPNOTSUPP,
            Self::Invalid { .. } => Errno::EINVAL,
            Self::Protocol { .. } => Errno::EPROTO,
            Self::Post(error) => error.errno(),
            Self::Poll(error) => error.errno(),
            Self::Lock(error) => PostError::from(*error).errno(),
            Self::Completion(error) => error.errno(),
        }
    }

    /// The verb that failed.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Os { verb, .. }
            | Self::LockedMemory { verb, .. }
            | Self::Unsupported { verb, .. }
            | Self::Invalid { verb, .. }
            | Self::Protocol { verb, .. } => verb,
            Self::Post(error) => error.queue.verb(),
            Self::Poll(_) | Self::Completion(_) => "poll_cq",
            Self::Lock(_) => "lock",
        }
    }

    /// Whether this means that the device, driver or kernel does not support the request.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::Post(error.into())
    }
}

impl From<QueueError> for Error {
    fn from(error: QueueError) -> Self {
        Self::Post(error)
    }
}

impl From<PollError> for Error {
    fn from(error: PollError) -> Self {
        Self::Poll(error)
    }
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<WcError> for Error {
    fn from(error: WcError) -> Self {
        Self::Completion(Box::new(error))
    }
}

impl From<Error> for Errno {
    /// Logs the reason, which the errno does not contain.
    fn from(e: Error) -> Self {
        log::debug!("{e}");
        e.errno()
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        let kind = Self::from_raw_os_error(e.errno().raw()).kind();
        Self::new(kind, e)
    }
}
