// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: why an operation failed, with the buffer that it had.

use core::fmt;
use std::io;
use std::sync::Arc;
use uverbs::{PollError, PostError, QueueError, QueueName, Rejected, WcStatus};

/// Why an operation failed. It can be cloned, because one cause may end many operations.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The work request can't be posted.
    Post(QueueError),
    /// The work request completed with an error. The QP is in ERR then.
    #[non_exhaustive]
    Completion {
        /// The status of the completion.
        status: WcStatus,
        /// The vendor's reason.
        vendor_err: u32,
        /// The local QP.
        qp_num: u32,
    },
    /// The QP had this event, after which it has no more receives: they are those of an SRQ.
    QpEvent(uverbs::attr::EventType),
    /// The QP was shut down, or all handles of its dispatcher were dropped.
    Closed,
    /// The device was removed. Buffers in flight are lost, because the device may still use them.
    DeviceRemoved,
    /// The time limit was reached. The work request continues; its buffer goes back to its pool when it is complete.
    TimedOut,
    /// The CQ can't be polled.
    Poll(PollError),
    /// A control verb failed.
    Verbs(Arc<uverbs::Error>),
    /// The connection manager: no route, rejected, disconnected.
    Cm(Arc<uverbs_cm::Error>),
    /// A system call failed, or the stream to the peer.
    Io(Arc<io::Error>),
}

impl Error {
    /// Where the cause of [`Completion`](Self::Completion) is.
    #[must_use]
    pub fn fault(&self) -> Option<uverbs::Fault> {
        match self {
            Self::Completion { status, .. } => status.fault(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(error) if error.queue == QueueName::UNNAMED => write!(f, "post: {error}"),
            Self::Post(error) => error.fmt(f),
            Self::Completion { status, vendor_err: 0, qp_num } => write!(f, "qp {qp_num:#x}: {status}"),
            Self::Completion { status, vendor_err, qp_num } => {
                write!(f, "qp {qp_num:#x}: {status}, vendor {vendor_err:#x}")
            }
            Self::QpEvent(event) => write!(f, "the queue pair had the event: {event}"),
            Self::Closed => f.write_str("the queue pair is shut down"),
            Self::DeviceRemoved => f.write_str("the device was removed"),
            Self::TimedOut => f.write_str("the operation was not complete in time"),
            Self::Poll(error) => write!(f, "poll: {error}"),
            Self::Verbs(error) => error.fmt(f),
            Self::Cm(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// [`Verbs`](Error::Verbs), [`Cm`](Error::Cm) and [`Io`](Error::Io) have the text of the error that they contain, and its source.
impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Verbs(error) => error.source(),
            Self::Cm(error) => error.source(),
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

/// Result of an operation.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl From<uverbs::Error> for Error {
    fn from(error: uverbs::Error) -> Self {
        Self::Verbs(Arc::new(error))
    }
}

impl From<uverbs::PoolEmpty> for Error {
    fn from(empty: uverbs::PoolEmpty) -> Self {
        uverbs::Error::from(empty).into()
    }
}

impl From<uverbs_cm::Error> for Error {
    fn from(error: uverbs_cm::Error) -> Self {
        Self::Cm(Arc::new(error))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<nix::errno::Errno> for Error {
    fn from(errno: nix::errno::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<PollError> for Error {
    fn from(error: PollError) -> Self {
        Self::Poll(error)
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

impl<B> From<Rejected<B>> for Error {
    fn from(rejected: Rejected<B>) -> Self {
        rejected.error.into()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind;
        let kind = match &error {
            Error::Post(QueueError {
                reason: PostError::InvalidLength | PostError::InlineTooLong | PostError::InvalidArgument,
                ..
            }) => ErrorKind::InvalidInput,
            Error::Post(_) | Error::Poll(_) => ErrorKind::Other,
            Error::Completion { status: WcStatus::RETRY_EXC_ERR | WcStatus::RNR_RETRY_EXC_ERR, .. } => {
                ErrorKind::TimedOut
            }
            Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. } => ErrorKind::ConnectionAborted,
            Error::Completion { .. } => ErrorKind::ConnectionReset,
            Error::Closed | Error::QpEvent(_) => ErrorKind::NotConnected,
            Error::DeviceRemoved => ErrorKind::BrokenPipe,
            Error::TimedOut => ErrorKind::TimedOut,
            Error::Verbs(error) => Self::from_raw_os_error(error.errno().raw()).kind(),
            Error::Cm(error) => Self::from_raw_os_error(error.errno().raw()).kind(),
            Error::Io(error) => error.kind(),
        };
        Self::new(kind, error)
    }
}

/// An operation that failed, with what it had taken.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed<B> {
    /// The reason.
    pub error: Error,
    /// What the operation had taken. `None` if the device may still use it ([`Error::DeviceRemoved`], [`Error::TimedOut`], a
    /// doorbell that failed): it goes back to its pool later, or never.
    pub returned: Option<B>,
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> core::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> From<Failed<B>> for io::Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error.into()
    }
}

/// Nothing is returned.
impl<B> From<Error> for Failed<B> {
    fn from(error: Error) -> Self {
        Self { error, returned: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::error::Error as _;

    #[test]
    fn an_error_of_another_crate_is_shown_as_it_is() {
        let io = io::Error::new(io::ErrorKind::InvalidData, "more credits than messages were sent");
        let error = Error::from(io);
        assert_eq!(error.to_string(), "more credits than messages were sent");
        assert!(error.source().is_none(), "the text would be printed twice");
        let error = Error::Completion { status: WcStatus::RETRY_EXC_ERR, vendor_err: 0x81, qp_num: 0x102 };
        assert_eq!(error.to_string(), "qp 0x102: transport retry counter exceeded (12), vendor 0x81");
        assert_eq!(error.fault(), Some(uverbs::Fault::Path));
        let failed = Failed { error, returned: Some(()) };
        assert!(failed.source().is_some_and(|source| source.to_string() == failed.to_string()));
    }
}
