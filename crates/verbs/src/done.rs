// SPDX-License-Identifier: MIT OR Apache-2.0
//! A successful completion as an answer: what was done, with the buffer that the work request owned.

use crate::cq::Completed;
use crate::mr::Private;
use crate::open::AnyDriver;
use crate::pool::Buf;
use uverbs_core::provider::Driver;
use uverbs_core::wc::WcOpcode;
use uverbs_core::wr::ImmData;

/// What a work request did. [`Completed::ok`] makes it of a completion without an error.
///
/// The buffers are those of a private [`Pool`](crate::Pool). `None` stands for a work request that copied its bytes (an inline send or
/// write). A work request with other memory (a list, an exposed buffer, a window) is [`Other`](Self::Other).
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "the buffer goes back to its pool when this is dropped"]
pub enum Done<D: Driver = AnyDriver> {
    /// A message was sent, with the bytes of this buffer.
    Sent(Option<Buf<Private, D>>),
    /// A message was received into this buffer, whose length is that of the message.
    Received(Buf<Private, D>),
    /// As [`Received`](Self::Received), with an immediate.
    ReceivedImm(Buf<Private, D>, ImmData),
    /// The bytes of this buffer were written to the memory of the peer.
    Written(Option<Buf<Private, D>>),
    /// The peer wrote to the memory of this side, with an immediate. This was the receive that the write used; nothing was written to
    /// its buffer.
    WrittenByPeer(Option<Buf<Private, D>>, ImmData),
    /// Memory of the peer was read into this buffer.
    Read(Buf<Private, D>),
    /// An atomic operation was done. The first 8 bytes of the buffer are the old value, in host byte order.
    Atomic(Buf<Private, D>),
    /// Another operation, or one with other memory, which [`Completed::take`] gives back.
    Other(Completed<D>),
}

impl<D: Driver> Done<D> {
    /// Of a completion without an error.
    pub(crate) fn of(completed: Completed<D>) -> Self {
        let (opcode, imm) = (completed.wc.opcode, completed.wc.imm_data());
        if completed.has_nothing() {
            return match (opcode, imm) {
                (WcOpcode::SEND, _) => Self::Sent(None),
                (WcOpcode::RDMA_WRITE, _) => Self::Written(None),
                (WcOpcode::RECV_RDMA_WITH_IMM, Some(imm)) => Self::WrittenByPeer(None, imm),
                _ => Self::Other(completed),
            };
        }
        let is_known = matches!(
            (opcode, imm),
            (WcOpcode::SEND | WcOpcode::RDMA_WRITE | WcOpcode::RDMA_READ, _)
                | (WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD | WcOpcode::RECV, _)
                | (WcOpcode::RECV_RDMA_WITH_IMM, Some(_))
        );
        if !is_known {
            return Self::Other(completed);
        }
        let buf = match completed.into_buf() {
            Ok(buf) => buf,
            Err(completed) => return Self::Other(completed),
        };
        match (opcode, imm) {
            (WcOpcode::RDMA_WRITE, _) => Self::Written(Some(buf)),
            (WcOpcode::RDMA_READ, _) => Self::Read(buf),
            (WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD, _) => Self::Atomic(buf),
            (WcOpcode::RECV_RDMA_WITH_IMM, Some(imm)) => Self::WrittenByPeer(Some(buf), imm),
            (WcOpcode::RECV, Some(imm)) => Self::ReceivedImm(buf, imm),
            (WcOpcode::RECV, None) => Self::Received(buf),
            _ => Self::Sent(Some(buf)),
        }
    }

    /// The buffer, if there is one.
    #[must_use]
    pub fn buf(self) -> Option<Buf<Private, D>> {
        match self {
            Self::Sent(buf) | Self::Written(buf) | Self::WrittenByPeer(buf, _) => buf,
            Self::Received(buf) | Self::ReceivedImm(buf, _) | Self::Read(buf) | Self::Atomic(buf) => {
                Some(buf)
            }
            Self::Other(completed) => completed.buf(),
        }
    }
}
