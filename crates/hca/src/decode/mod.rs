// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes the bytes of a work queue element to a typed request.
//!
//! Written from the hardware format (`<infiniband/mlx5dv.h>`, the PRM's chapter on WQEs), not from any encoder. Any
//! bytes decode to a request or to an error; no input causes a panic. The decoder distinguishes fields that must be
//! zero from fields that are ignored: bytes that hardware ignores may be stale bytes of the ring's previous lap, and
//! libmlx5 leaves such bytes.

mod recv;
mod segment;
mod send;
#[cfg(test)]
mod tests;
mod umr;

pub(crate) use recv::TERMINATOR as RECEIVE_TERMINATOR;
pub use recv::{RecvWqe, recv_wqe, srq_next};
pub use segment::{Av, Segment};
pub(crate) use send::{Ctrl, Reserved, decode};
pub use send::{Eth, Op, Request, send_wqe};
pub use umr::{Entries, KeyUpdate, SetPsv, Umr};
pub use uverbs_decode::QueueKind;

use core::fmt;

/// The reason why bytes are not a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// Fewer bytes than in the size field, or too few for the segments of the opcode.
    Short,
    /// An opcode that does not exist, or not on this kind of queue.
    Opcode(u8),
    /// A field that must be zero is not; the offset is within the WQE.
    NotZero(u16),
    /// A completion or fence mode that does not exist.
    Mode(u8),
    /// Inline data longer than the WQE.
    Inline,
    /// A memory key update with fields that do not exist.
    Umr,
    /// Invalid fields for the Ethernet header.
    Eth,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
