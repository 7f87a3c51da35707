// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that name their destination: datagrams, reliable datagrams, XRC, dynamic connections.

use crate::destination::Addressed;
use crate::op::Op;
use crate::pair::Qp;
use crate::payload::Payload;
use uverbs::qp::transport::{HasPeer, Reads, Reliable, Writes};
use uverbs::wr::ImmData;
use uverbs::{Driver, Memory, Operation, RemoteRegion, Source};

impl<D: Driver, T: Addressed> Qp<T, D> {
    fn op_to<P: Payload<D>>(&self, to: &T::To<D>, op: Operation, data: P) -> Op<P, D> {
        Op::begin(&self.inner, T::to(to), op, data)
    }

    /// `IBV_WR_SEND`: sends a message to this destination. A datagram has at most the path MTU; it may be lost, and is then complete
    /// nevertheless.
    ///
    /// # Errors
    /// Those of the post, of the completion, or [`Error::Closed`](crate::Error::Closed); all operations have these.
    pub fn send_to<B: Payload<D> + Source<D>>(&self, data: B, to: &T::To<D>) -> Op<B, D> {
        self.op_to(to, Operation::Send, data)
    }

    /// `IBV_WR_SEND_WITH_IMM`: the immediate arrives in the peer's message.
    pub fn send_imm_to<B: Payload<D> + Source<D>>(&self, data: B, imm: ImmData, to: &T::To<D>) -> Op<B, D> {
        self.op_to(to, Operation::SendImm(imm.get()), data)
    }

    /// `IBV_WR_SEND`, of bytes that are copied when it is posted; at most the QP's `max_inline_data`.
    pub fn send_inline_to<'a>(&self, data: &'a [u8], to: &T::To<D>) -> Op<&'a [u8], D> {
        self.op_to(to, Operation::Send, data)
    }

    /// As [`send_inline_to`](Self::send_inline_to), with an immediate.
    pub fn send_imm_inline_to<'a>(&self, data: &'a [u8], imm: ImmData, to: &T::To<D>) -> Op<&'a [u8], D> {
        self.op_to(to, Operation::SendImm(imm.get()), data)
    }
}

impl<D: Driver, T: Addressed + HasPeer> Qp<T, D> {
    /// `IBV_WR_SEND_WITH_INV`: the peer's `rkey` is invalidated when the message arrives.
    pub fn send_inv_to<B: Payload<D> + Source<D>>(&self, data: B, rkey: u32, to: &T::To<D>) -> Op<B, D> {
        self.op_to(to, Operation::SendInv(rkey), data)
    }
}

impl<D: Driver, T: Addressed + Writes> Qp<T, D> {
    /// `IBV_WR_RDMA_WRITE`: writes to the front of `region`, which is memory of this destination.
    pub fn write_to<B: Payload<D> + Source<D>>(
        &self,
        data: B,
        region: &RemoteRegion,
        to: &T::To<D>,
    ) -> Op<B, D> {
        self.op_to(to, Operation::Write(*region), data)
    }

    /// `IBV_WR_RDMA_WRITE`, of bytes that are copied when it is posted.
    pub fn write_inline_to<'a>(
        &self,
        data: &'a [u8],
        region: &RemoteRegion,
        to: &T::To<D>,
    ) -> Op<&'a [u8], D> {
        self.op_to(to, Operation::Write(*region), data)
    }

    /// `IBV_WR_RDMA_WRITE_WITH_IMM`: as [`write_to`](Self::write_to); the destination also gets an empty message with the immediate.
    pub fn write_imm_to<B: Payload<D> + Source<D>>(
        &self,
        data: B,
        region: &RemoteRegion,
        imm: ImmData,
        to: &T::To<D>,
    ) -> Op<B, D> {
        self.op_to(to, Operation::WriteImm(*region, imm.get()), data)
    }

    /// As [`write_imm_to`](Self::write_imm_to), of bytes that are copied when it is posted.
    pub fn write_imm_inline_to<'a>(
        &self,
        data: &'a [u8],
        region: &RemoteRegion,
        imm: ImmData,
        to: &T::To<D>,
    ) -> Op<&'a [u8], D> {
        self.op_to(to, Operation::WriteImm(*region, imm.get()), data)
    }
}

impl<D: Driver, T: Addressed + Reads> Qp<T, D> {
    /// `IBV_WR_RDMA_READ`: reads as many bytes as the data have from the front of `region`, which is memory of this destination.
    pub fn read_from<B: Payload<D> + Memory<D>>(
        &self,
        data: B,
        region: &RemoteRegion,
        from: &T::To<D>,
    ) -> Op<B, D> {
        self.op_to(from, Operation::Read(*region), data)
    }
}

impl<D: Driver, T: Addressed + Reliable> Qp<T, D> {
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`, as `fetch_add` of a connected QP.
    pub fn fetch_add_to<B: Payload<D> + Memory<D>>(
        &self,
        data: B,
        at: &RemoteRegion,
        add: u64,
        to: &T::To<D>,
    ) -> Op<B, D> {
        self.op_to(to, Operation::FetchAdd(*at, add), data.into_word())
    }

    /// `IBV_WR_ATOMIC_CMP_AND_SWP`, as `compare_swap` of a connected QP.
    pub fn compare_swap_to<B: Payload<D> + Memory<D>>(
        &self,
        data: B,
        at: &RemoteRegion,
        (compare, swap): (u64, u64),
        to: &T::To<D>,
    ) -> Op<B, D> {
        self.op_to(to, Operation::CmpSwp(*at, compare, swap), data.into_word())
    }
}
