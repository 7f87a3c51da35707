// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data path's errors: small, `Copy`, made without allocation.

use crate::errno::Errno;
use crate::sync::LockError;
use core::fmt;

/// Why a work request was not posted.
///
/// `docs/src/reference/semantics.md` has a table of invalid posts, with the error on each face and the errno that C gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// As many WRs are outstanding as the queue was created for.
    QueueFull,
    /// More scatter/gather entries than `max_send_sge` or `max_recv_sge`, or a negative number.
    TooManySge,
    /// More inline data than `max_inline_data`.
    InlineTooLong,
    /// The QP's state does not allow posting to this queue.
    BadState,
    /// The QP type, the device or this QP's `send_ops_flags` do not have this opcode.
    IllegalOpcode,
    /// A send flag that this opcode or QP type does not have (`INLINE` on a read).
    IllegalFlag,
    /// The device completes every send, so each must be signaled (`SIGNALED`, or `sq_sig_all`).
    Unsignaled,
    /// An entry longer than 2^31 bytes, or a total length that no message may have.
    InvalidLength,
    /// A remote address of an atomic that is not aligned to 8 bytes.
    Misaligned,
    /// An invalid argument of the work request (a NULL handle, access flags, the size of a header).
    InvalidArgument,
    /// The device does not support the operation, or not with these arguments (atomics on a device without them).
    Unsupported,
    /// A setter that the builder needs was not called.
    MissingSetter,
    /// A setter was called twice for one builder.
    DoubledSetter,
    /// A setter without a builder before it, or one that the builder does not have.
    OrphanSetter,
    /// `wr_start` or `post_send` inside a session that this thread has open.
    SessionOpen,
    /// A builder, setter, `wr_complete` or `wr_abort` without `wr_start`.
    NoSession,
    /// A NULL list.
    NullList,
    /// The QP has no such queue (a receive on a QP with an SRQ).
    NoQueue,
    /// The queue belongs to the process that forked this one. A post of the child would corrupt the parent's queue.
    Forked,
    /// The device was removed. Nothing that is in flight will complete.
    Removed,
    /// The doorbell failed after the WRs were published: they may still run, and nothing was rolled back.
    Doorbell(Errno),
    /// The queue memory holds a value that no correct kernel or device writes.
    Corrupt,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the work queue is full",
            Self::TooManySge => "too many scatter/gather entries",
            Self::InlineTooLong => "inline data longer than max_inline_data",
            Self::BadState => "the QP's state does not allow posting to this queue",
            Self::IllegalOpcode => "opcode not available on this QP",
            Self::IllegalFlag => "send flag not allowed with this opcode or QP type",
            Self::Unsignaled => {
                "unsignaled: the device completes every send, so each needs SIGNALED, or the QP sq_sig_all"
            }
            Self::InvalidLength => "invalid length of a scatter/gather entry or of the message",
            Self::Misaligned => "remote address not aligned",
            Self::InvalidArgument => "invalid argument in the work request",
            Self::Unsupported => "not supported by the device",
            Self::MissingSetter => "a mandatory setter is missing",
            Self::DoubledSetter => "a setter was called twice",
            Self::OrphanSetter => "a setter without a builder that has it",
            Self::SessionOpen => "a session is already open on this queue",
            Self::NoSession => "no open session",
            Self::NullList => "the list of work requests is NULL",
            Self::NoQueue => "the QP has no such queue",
            Self::Forked => "the queue belongs to the process that forked this one",
            Self::Removed => "the device was removed",
            Self::Doorbell(errno) => return write!(f, "the doorbell failed after publication: {errno}"),
            Self::Corrupt => "the queue's shared indices are corrupt",
        })
    }
}

impl core::error::Error for PostError {}

impl PostError {
    /// The errno a C caller gets, unless the driver's reference differs (see [`SendQueue::errno`]).
    ///
    /// [`SendQueue::errno`]: crate::provider::SendQueue::errno
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::QueueFull => Errno::ENOMEM,
            Self::Doorbell(errno) => errno,
            Self::Corrupt | Self::Removed => Errno::EIO,
            Self::Forked => Errno::ESTALE,
            Self::SessionOpen => Errno::EBUSY,
            Self::Unsupported => Errno::EOPNOTSUPP,
            _ => Errno::EINVAL,
        }
    }
}

/// A queue, as errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueName {
    /// The kind above, the number in the lower bits.
    // codegen: words
    kind_number: u32,
    depth: u32,
}

/// The bits of [`QueueName`]'s number. QP and WQ numbers have 24 (IBA 9.2.2).
const NUMBER_BITS: u32 = 28;

/// The kinds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueKind {
    /// The error does not name its queue.
    Unnamed = 0,
    /// The send queue of a QP.
    Send = 1,
    /// The receive queue of a QP.
    Recv = 2,
    /// A shared receive queue.
    Srq = 3,
    /// A work queue.
    Wq = 4,
}

impl QueueName {
    /// No name.
    pub const UNNAMED: Self = Self::new(QueueKind::Unnamed, 0, 0);

    /// The queue of the object with this number (`qp_num`, `wq_num`, or the kernel's handle of an SRQ), created for `depth` work
    /// requests.
    #[must_use]
    pub const fn new(kind: QueueKind, number: u32, depth: u32) -> Self {
        Self { kind_number: (kind as u32) << NUMBER_BITS | (number & ((1 << NUMBER_BITS) - 1)), depth }
    }

    /// As a number, whose highest bit is 0.
    #[must_use]
    pub const fn bits(self) -> u64 {
        (self.kind_number as u64) << 32 | self.depth as u64
    }

    /// Of a number of [`bits`](Self::bits).
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { kind_number: (bits >> 32) as u32, depth: bits as u32 }
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(self) -> QueueKind {
        match self.kind_number >> NUMBER_BITS & 7 {
            1 => QueueKind::Send,
            2 => QueueKind::Recv,
            3 => QueueKind::Srq,
            4 => QueueKind::Wq,
            _ => QueueKind::Unnamed,
        }
    }

    /// The number of its QP, SRQ or WQ.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.kind_number & ((1 << NUMBER_BITS) - 1)
    }

    /// The number of work requests for which it was created.
    #[must_use]
    pub const fn depth(self) -> u32 {
        self.depth
    }

    /// The verb that posts to it.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self.kind() {
            QueueKind::Unnamed => "post",
            QueueKind::Send => "post_send",
            QueueKind::Recv => "post_recv",
            QueueKind::Srq => "post_srq_recv",
            QueueKind::Wq => "post_wq_recv",
        }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            QueueKind::Unnamed => f.write_str("queue"),
            QueueKind::Send | QueueKind::Recv => write!(f, "qp {:#x}", self.number()),
            QueueKind::Srq => write!(f, "srq {}", self.number()),
            QueueKind::Wq => write!(f, "wq {:#x}", self.number()),
        }
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {self}, depth {}", self.kind(), self.depth)
    }
}

/// A post that failed: the reason, and the queue.
///
/// ```
/// use uverbs_core::provider::{PostError, QueueError, QueueKind, QueueName};
///
/// let name = QueueName::new(QueueKind::Send, 0x102, 16);
/// let full = QueueError::new(PostError::QueueFull, name);
/// assert_eq!(full.to_string(), "post_send(qp 0x102): the work queue is full: it was created for 16 work requests");
/// assert!(full == PostError::QueueFull);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueError {
    /// The reason.
    pub reason: PostError,
    /// The queue.
    pub queue: QueueName,
}

impl QueueError {
    /// The error of this queue.
    #[must_use]
    pub const fn new(reason: PostError, queue: QueueName) -> Self {
        Self { reason, queue }
    }

    /// The errno that C would get.
    #[must_use]
    pub const fn errno(self) -> Errno {
        self.reason.errno()
    }
}

impl PartialEq<PostError> for QueueError {
    fn eq(&self, other: &PostError) -> bool {
        self.reason == *other
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, queue } = self;
        match queue.kind() {
            QueueKind::Unnamed => return reason.fmt(f),
            _ => write!(f, "{}({queue}): ", queue.verb())?,
        }
        reason.fmt(f)?;
        match reason {
            PostError::QueueFull => write!(f, ": it was created for {} work requests", queue.depth),
            _ => Ok(()),
        }
    }
}

impl core::error::Error for QueueError {}

impl From<QueueError> for PostError {
    fn from(error: QueueError) -> Self {
        error.reason
    }
}

/// An error without a name.
impl From<PostError> for QueueError {
    fn from(reason: PostError) -> Self {
        Self::new(reason, QueueName::UNNAMED)
    }
}

/// As [`PostError`]'s.
impl From<LockError> for QueueError {
    fn from(error: LockError) -> Self {
        PostError::from(error).into()
    }
}

impl From<QueueError> for std::io::Error {
    fn from(e: QueueError) -> Self {
        Self::new(Self::from(e.errno()).kind(), e)
    }
}

impl From<LockError> for PostError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Reentered => Self::SessionOpen,
            LockError::Forked => Self::Forked,
        }
    }
}

impl From<PostError> for std::io::Error {
    fn from(e: PostError) -> Self {
        Self::new(Self::from(e.errno()).kind(), e)
    }
}

/// The first WR of a list that was not posted; all before it were.
#[derive(Debug)]
pub struct BadWr<W> {
    /// The error.
    pub error: PostError,
    /// The WR, as C's `bad_wr`. NULL if the error has no WR: an empty list, or a failed doorbell.
    pub wr: *const W,
}

// Not derived: a derived implementation would require it of `W`, too.
impl<W> Clone for BadWr<W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for BadWr<W> {}
impl<W> PartialEq for BadWr<W> {
    fn eq(&self, other: &Self) -> bool {
        self.error == other.error && self.wr == other.wr
    }
}
impl<W> Eq for BadWr<W> {}

/// The reason why a poll returned no completion, or no further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PollError {
    /// Nothing to poll (extended polling; `ENOENT` in C).
    Empty,
    /// The queue memory holds a value that no correct kernel or device writes.
    Corrupt,
    /// The queue belongs to the process that forked this one. A poll of the child would take the parent's completions.
    Forked,
    /// The device was removed, and what has completed before was polled.
    Removed,
    /// Another poll of this thread is open.
    SessionOpen,
    /// `next_poll`, `end_poll` or a field without `start_poll`.
    NoSession,
    /// The attributes of the poll are invalid.
    InvalidArgument,
    /// The notification could not be requested.
    Arm(Errno),
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the completion queue is empty",
            Self::Corrupt => "the completion queue's memory is corrupt",
            Self::Forked => "the completion queue belongs to the process that forked this one",
            Self::Removed => "the device was removed",
            Self::SessionOpen => "a poll is already open on this completion queue",
            Self::NoSession => "no open poll",
            Self::InvalidArgument => "invalid poll attributes",
            Self::Arm(errno) => return write!(f, "arming failed: {errno}"),
        })
    }
}

impl core::error::Error for PollError {}

impl PollError {
    /// The errno a C caller gets.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Empty => Errno::ENOENT,
            Self::Corrupt | Self::Removed => Errno::EIO,
            Self::Forked => Errno::ESTALE,
            Self::SessionOpen => Errno::EBUSY,
            Self::NoSession | Self::InvalidArgument => Errno::EINVAL,
            Self::Arm(errno) => errno,
        }
    }
}

impl From<LockError> for PollError {
    // codegen: call
    #[cold]
    #[inline(never)]
    fn from(error: LockError) -> Self {
        match error {
            LockError::Reentered => Self::SessionOpen,
            LockError::Forked => Self::Forked,
        }
    }
}

impl From<PollError> for std::io::Error {
    fn from(e: PollError) -> Self {
        Self::new(Self::from(e.errno()).kind(), e)
    }
}
