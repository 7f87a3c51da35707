// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: why an operation failed, with the buffer that it had.

use std::io;
use std::sync::Arc;
use uverbs::{PollError, PostError, WcStatus};

/// Why an operation failed. It can be cloned, because one cause may end many operations.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The work request can't be posted.
    #[error("post: {0}")]
    Post(PostError),
    /// The work request completed with an error. The QP is in ERR then.
    #[error("completion with error: {status}")]
    Completion {
        /// The status of the completion.
        status: WcStatus,
        /// The vendor's reason.
        vendor_err: u32,
    },
    /// The QP had this event, after which it has no more receives: they are those of an SRQ.
    #[error("the queue pair had the event: {0}")]
    QpEvent(uverbs::attr::EventType),
    /// The QP was shut down.
    #[error("the queue pair is shut down")]
    Closed,
    /// The device was removed. Buffers in flight are lost, because the device may still use them.
    #[error("the device was removed")]
    DeviceRemoved,
    /// The time limit was reached. The work request continues; its buffer goes back to its pool when it is complete.
    #[error("the operation was not complete in time")]
    TimedOut,
    /// The CQ can't be polled.
    #[error("poll: {0}")]
    Poll(PollError),
    /// A control verb failed.
    #[error(transparent)]
    Verbs(Arc<uverbs::Error>),
    /// The connection manager: no route, rejected, disconnected.
    #[error(transparent)]
    Cm(Arc<uverbs_cm::Error>),
    /// A system call failed, or the stream to the peer.
    #[error(transparent)]
    Io(Arc<io::Error>),
}

/// Result of an operation.
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl From<uverbs::Error> for Error {
    fn from(error: uverbs::Error) -> Self {
        Self::Verbs(Arc::new(error))
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
        Self::Post(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind;
        let kind = match &error {
            Error::Post(PostError::InvalidLength | PostError::InlineTooLong | PostError::InvalidArgument) => {
                ErrorKind::InvalidInput
            }
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
pub struct Failed<B> {
    /// The reason.
    pub error: Error,
    /// What the operation had taken. `None` if the device may still use it ([`Error::DeviceRemoved`], [`Error::TimedOut`], a
    /// doorbell that failed): it goes back to its pool later, or never.
    pub returned: Option<B>,
}

impl<B> core::fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: core::fmt::Debug> core::error::Error for Failed<B> {
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
