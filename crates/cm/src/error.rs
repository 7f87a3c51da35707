// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the connection manager: the verb that failed, its object, and the reason.

use crate::reason::RejectReason;
use core::fmt;
use uverbs_core::Errno;

/// The failure of an operation of the connection manager, returned by the call or reported by an event.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no route to the address, or no RDMA device on it.
    #[non_exhaustive]
    NoRoute {
        /// The verb, such as `resolve_addr`.
        verb: &'static str,
        /// The identifier.
        object: String,
        /// The kernel's errno.
        errno: Errno,
    },
    /// The peer rejected the connection.
    #[non_exhaustive]
    Rejected {
        /// The verb.
        verb: &'static str,
        /// The identifier.
        object: String,
        /// The reason. [`RejectReason::INVALID_SERVICE_ID`] means that no program listens.
        reason: RejectReason,
        /// The private data of the rejection, padded with zeros to the size of its message.
        private_data: Vec<u8>,
    },
    /// The peer, or the network, did not answer in time; or a time limit of the caller has passed.
    #[non_exhaustive]
    TimedOut {
        /// The verb.
        verb: &'static str,
        /// The identifier.
        object: String,
    },
    /// The connection was ended before the verb was complete.
    #[non_exhaustive]
    Disconnected {
        /// The verb.
        verb: &'static str,
        /// The identifier.
        object: String,
    },
    /// The RDMA device of the identifier was removed.
    #[non_exhaustive]
    DeviceGone {
        /// The verb.
        verb: &'static str,
        /// The identifier.
        object: String,
    },
    /// Any other failure, of the connection manager or of a QP.
    Verbs(uverbs_core::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute { verb, object, errno } => {
                write!(f, "{verb}({object}): no route: {errno} ({errno:?})")
            }
            Self::Rejected { verb, object, reason, .. } => write!(f, "{verb}({object}): rejected: {reason}"),
            Self::TimedOut { verb, object } => write!(f, "{verb}({object}): timed out"),
            Self::Disconnected { verb, object } => write!(f, "{verb}({object}): disconnected"),
            Self::DeviceGone { verb, object } => write!(f, "{verb}({object}): the device was removed"),
            Self::Verbs(error) => error.fmt(f),
        }
    }
}

/// [`Verbs`](Error::Verbs) has the text of the error that it contains, and its source.
impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Verbs(error) => error.source(),
            _ => None,
        }
    }
}

/// The text is that of the error; [`Verbs`](Error::Verbs) is taken as it is.
impl From<Error> for uverbs_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Verbs(error) => error,
            Error::NoRoute { verb, object, errno } => Self::os(verb, format!("{object}: no route"), errno),
            Error::Rejected { verb, object, reason, .. } => {
                Self::os(verb, format!("{object}: rejected: {reason}"), Errno::ECONNREFUSED)
            }
            Error::TimedOut { verb, object } => Self::os(verb, object, Errno::ETIMEDOUT),
            Error::Disconnected { verb, object } => Self::os(verb, object, Errno::ECONNRESET),
            Error::DeviceGone { verb, object } => {
                Self::os(verb, format!("{object}: the device was removed"), Errno::ENODEV)
            }
        }
    }
}

impl From<uverbs_core::Error> for Error {
    fn from(error: uverbs_core::Error) -> Self {
        Self::Verbs(error)
    }
}

/// Result of an operation of the connection manager.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// A command failed with this errno.
    pub(crate) fn command(verb: &'static str, object: String, errno: Errno) -> Self {
        match errno {
            Errno::ETIMEDOUT => Self::TimedOut { verb, object },
            // Of iWARP the command itself connects by TCP (`siw_connect()`).
            Errno::ECONNREFUSED if verb == "connect" => Self::Rejected {
                verb,
                object,
                reason: RejectReason::INVALID_SERVICE_ID,
                private_data: Vec::new(),
            },
            // `ucma_get_ctx()` returns EIO for an identifier whose device was removed.
            Errno::EIO => Self::DeviceGone { verb, object },
            Errno::ENODEV if verb != "resolve_addr" && verb != "bind_addr" => {
                Self::DeviceGone { verb, object }
            }
            Errno::ENODEV | Errno::ENETUNREACH | Errno::EHOSTUNREACH => Self::NoRoute { verb, object, errno },
            _ => uverbs_core::Error::os(verb, object, errno).into(),
        }
    }

    /// The error as that of another verb: the one that waited for the event.
    pub(crate) fn of(mut self, name: &'static str) -> Self {
        match &mut self {
            Self::NoRoute { verb, .. }
            | Self::Rejected { verb, .. }
            | Self::TimedOut { verb, .. }
            | Self::Disconnected { verb, .. }
            | Self::DeviceGone { verb, .. } => *verb = name,
            Self::Verbs(_) => {}
        }
        self
    }

    pub(crate) fn invalid(verb: &'static str, field: &'static str, reason: String) -> Self {
        uverbs_core::Error::invalid(verb, field, reason).into()
    }

    pub(crate) fn protocol(verb: &'static str, what: impl Into<String>) -> Self {
        uverbs_core::Error::protocol(verb, what.into()).into()
    }

    /// The verb that failed.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::NoRoute { verb, .. }
            | Self::Rejected { verb, .. }
            | Self::TimedOut { verb, .. }
            | Self::Disconnected { verb, .. }
            | Self::DeviceGone { verb, .. } => verb,
            Self::Verbs(error) => error.verb(),
        }
    }

    /// The errno that a C caller would see.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoRoute { errno, .. } => *errno,
            Self::Rejected { .. } => Errno::ECONNREFUSED,
            Self::TimedOut { .. } => Errno::ETIMEDOUT,
            Self::Disconnected { .. } => Errno::ECONNRESET,
            Self::DeviceGone { .. } => Errno::ENODEV,
            Self::Verbs(error) => error.errno(),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        let kind = Self::from_raw_os_error(e.errno().raw()).kind();
        Self::new(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_verb_the_object_and_the_reason() {
        let error = Error::command("resolve_addr", "10.0.0.9:1".into(), Errno::ENETUNREACH);
        assert_eq!(
            error.to_string(),
            "resolve_addr(10.0.0.9:1): no route: Network is unreachable (ENETUNREACH)"
        );
        let gone = Error::command("connect", "id 3".into(), Errno::EIO);
        assert!(matches!(gone, Error::DeviceGone { .. }));
        assert_eq!(gone.to_string(), "connect(id 3): the device was removed");
        let other = Error::command("listen", "id 3".into(), Errno::EINVAL);
        assert_eq!((other.verb(), other.errno()), ("listen", Errno::EINVAL));
        let refused = Error::Rejected {
            verb: "connect",
            object: "id 1".into(),
            reason: RejectReason::CONSUMER_DEFINED,
            private_data: vec![],
        };
        assert_eq!(std::io::Error::from(refused).kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
