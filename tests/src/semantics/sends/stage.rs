// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of the work requests of all cases, and the calls that pass one to each face.

// UNSAFETY: posts work requests. They name the memory of a bench, which is alive and accessed by atomics only, or
// memory that is refused before the device could access it.

use super::Facts;
use anyhow::{Context as _, Result};
use core::cell::Cell;
use core::ptr::{self, null};
use uverbs::SendFlags;
use uverbs::attr::QpType;
use uverbs::provider::op::MwBind;
use uverbs::provider::raw::QpEx;
use uverbs::provider::{Data, DcTarget, Dest, Op, SendBatch, SendQueue, To, WireRemote, WireSge, Wr};
use uverbs::wr::{
    IbvMr, IbvMw, IbvMwBindInfo, RawAh, SendWr, Sge, WrAtomic, WrBindMw, WrOpcode, WrRdma, WrTail, WrUd,
    WrUnion,
};

pub(super) const SIGNALED: u32 = 2;
pub(super) const INLINE: u32 = 8;
pub(super) const IP_CSUM: u32 = 16;
pub(super) const UNKNOWN_FLAG: u32 = 1 << 31;

/// Number of a shared receive queue of the peer.
pub(super) const SRQN: u32 = 1;

/// The window of a bind that is too long.
pub(super) const MORE_THAN_2_GIB: u64 = (1 << 31) + 1;

/// Length of a message that is longer than any path MTU.
pub(super) const LONGER_THAN_ANY_MTU: u32 = 4097;

/// How the WRs of a QP type name their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By the connection.
    Peer,
    /// An address handle, the receiver's number and key.
    Datagram,
    /// The connection, and a number of a shared receive queue.
    Xrc,
    /// In the frame.
    Raw,
    /// An address handle, the target's number and key.
    Dc,
}

impl Kind {
    pub(super) fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Ud => Self::Datagram,
            QpType::XrcSend => Self::Xrc,
            QpType::RawPacket => Self::Raw,
            QpType::Driver => Self::Dc,
            _ => Self::Peer,
        }
    }

    /// Whether WRs of this kind are sends; the others write to the peer's word, which has no other effect.
    pub(super) fn sends(self) -> bool {
        matches!(self, Self::Datagram | Self::Raw)
    }
}

/// The data that the work requests of all cases point to.
pub(super) struct Stage<'a, Q: SendQueue> {
    pub(super) facts: Facts,
    pub(super) kind: Kind,
    pub(super) ah: &'a RawAh<Q::Ah>,
    /// Id of the next WR.
    pub(super) id: Cell<u64>,
    pub(super) right: Vec<Sge>,
    pub(super) many: Vec<Sge>,
    pub(super) empty: Vec<Sge>,
    pub(super) over: Vec<Sge>,
    pub(super) exact: Vec<Sge>,
    pub(super) halves: Vec<Sge>,
    pub(super) short: Vec<Sge>,
    pub(super) fours: Vec<Sge>,
    pub(super) datagram_sges: Vec<Sge>,
    pub(super) bytes: Vec<u8>,
    /// Entries that name `bytes`, for inline data: longer than the limit; at the limit, and one more; 8 bytes.
    pub(super) inline_over: [Sge; 1],
    pub(super) inline_two: [Sge; 2],
    pub(super) inline_short: [Sge; 1],
    pub(super) mw: IbvMw,
    pub(super) mr: IbvMr,
}

impl<'a, Q: SendQueue> Stage<'a, Q> {
    pub(super) fn new(facts: Facts, qp_type: QpType) -> Result<Self> {
        // SAFETY: a live handle of this queue's driver, by the contract of a bench.
        let ah = unsafe { facts.ah.cast::<RawAh<Q::Ah>>().as_ref() }.context("an address")?;
        let (addr, lkey) = facts.local;
        let sge = |length| Sge { addr, length, lkey };
        let null = ptr::null_mut();
        let bytes = vec![7; facts.max_inline + 1];
        let bytes_at = bytes.as_ptr().expose_provenance() as u64;
        let inline = |length: usize| Sge { addr: bytes_at, length: length as u32, lkey: 0xdead };
        Ok(Self {
            facts,
            kind: Kind::of(qp_type),
            ah,
            id: Cell::new(0),
            right: vec![sge(8)],
            many: vec![sge(8); facts.max_sge + 1],
            empty: vec![Sge::default(); facts.max_sge + 1],
            over: vec![sge((1 << 31) + 1)],
            exact: vec![sge(1 << 31)],
            halves: vec![sge(1 << 30); 2],
            short: vec![sge(7)],
            fours: vec![sge(4); 2],
            datagram_sges: vec![sge(LONGER_THAN_ANY_MTU)],
            inline_over: [inline(bytes.len())],
            inline_two: [inline(facts.max_inline), inline(1)],
            inline_short: [inline(8)],
            bytes,
            mw: IbvMw { context: null, pd: null, rkey: 0x100, handle: 0, mw_type: 1 },
            mr: IbvMr { context: null, pd: null, addr: null, length: 0, handle: 0, lkey, rkey: lkey },
        })
    }

    pub(super) fn empty(&self) -> &[Sge] {
        &self.empty[..self.facts.max_sge]
    }

    pub(super) fn at_limit(&self) -> &[u8] {
        &self.bytes[..self.facts.max_inline]
    }

    pub(super) fn at(&self) -> Q::Remote {
        Q::Remote::new(self.facts.remote.0, self.facts.remote.1)
    }

    pub(super) fn odd(&self) -> Q::Remote {
        Q::Remote::new(self.facts.remote.0 + 4, self.facts.remote.1)
    }

    pub(super) fn datagram(&self) -> Dest<'_, Q::Ah> {
        let (remote_qpn, remote_qkey) = self.facts.receiver;
        Dest::Ud(To { ah: &self.ah.driver, remote_qpn, remote_qkey })
    }

    /// The destination of the queue's kind.
    pub(super) fn to(&self) -> Dest<'_, Q::Ah> {
        let (remote_dctn, key) = self.facts.receiver;
        match self.kind {
            Kind::Datagram => self.datagram(),
            Kind::Xrc => Dest::Xrc(SRQN),
            Kind::Dc => Dest::Dc(DcTarget { ah: &self.ah.driver, remote_dctn, remote_dc_key: key.into() }),
            Kind::Peer | Kind::Raw => Dest::Peer,
        }
    }

    /// A bind of this many bytes, without a region. One of 0 bytes gives no access, and a longer one is refused, because the
    /// region does not exist.
    pub(super) fn bind(&self, length: u64) -> Op<'static, Q::Remote> {
        Op::BindMw(MwBind { mw_rkey: 0x100, mw_type: 1, rkey: 0x101, mr_lkey: 0, addr: 0, length, access: 0 })
    }

    // Nodes of a list.

    pub(super) fn node(&self, opcode: WrOpcode, sges: &[Sge], flags: u32) -> SendWr {
        let mut wr = SendWr::new(self.id.get(), opcode);
        (wr.sg_list, wr.num_sge, wr.send_flags) = (sges.as_ptr(), sges.len() as i32, SIGNALED | flags);
        let (remote_addr, rkey) = self.facts.remote;
        let (remote_qpn, remote_qkey) = self.facts.receiver;
        wr.xrc_remote_srqn = if self.kind == Kind::Xrc { SRQN } else { 0 };
        wr.wr = match (self.kind, opcode) {
            (Kind::Datagram, _) => WrUnion { ud: WrUd { ah: self.facts.ah, remote_qpn, remote_qkey } },
            (_, WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD) => {
                WrUnion { atomic: WrAtomic { remote_addr, compare_add: 0, swap: 0, rkey } }
            }
            _ => WrUnion { rdma: WrRdma { remote_addr, rkey } },
        };
        wr
    }

    /// An operation that every queue has, without other effects: see [`Kind::sends`].
    pub(super) fn main(&self, sges: &[Sge], flags: u32) -> SendWr {
        self.node(if self.kind.sends() { WrOpcode::SEND } else { WrOpcode::RDMA_WRITE }, sges, flags)
    }

    pub(super) fn inline(&self, opcode: WrOpcode, sges: &[Sge]) -> SendWr {
        self.node(opcode, sges, INLINE)
    }

    pub(super) fn bind_node(&self, mw: *const IbvMw, length: u64) -> SendWr {
        let bind_info = IbvMwBindInfo { mr: null(), addr: 0, length, mw_access_flags: 0 };
        let tail = WrTail { bind_mw: WrBindMw { mw, rkey: 0x101, bind_info } };
        SendWr { tail, ..self.node(WrOpcode::BIND_MW, &[], 0) }
    }

    // Builders.

    pub(super) fn begin(&self, ex: &mut QpEx<'_>, flags: u32) {
        (ex.wr_id, ex.wr_flags) = (self.id.get(), SIGNALED | flags);
    }

    pub(super) fn begin_main(&self, ex: &mut QpEx<'_>, flags: u32) {
        self.begin(ex, flags);
        let (addr, rkey) = self.facts.remote;
        // SAFETY: the session is open, or the queue refuses the call; the calls take no pointers.
        unsafe { if self.kind.sends() { ex.wr_send() } else { ex.wr_rdma_write(rkey, addr) } }
    }

    pub(super) fn set(&self, ex: &mut QpEx<'_>, sges: &[Sge]) {
        // SAFETY: the session is open, or the queue refuses the call. The entries name memory of a bench that is
        // accessed by atomics only, or the session refuses them.
        unsafe { ex.wr_set_sge_list(sges.len(), sges.as_ptr()) }
    }

    pub(super) fn address(&self, ex: &mut QpEx<'_>) {
        let (qpn, qkey) = self.facts.receiver;
        // SAFETY: the session is open, or the queue refuses the call; the address handle belongs to the lab, which
        // outlives the call.
        unsafe { ex.wr_set_ud_addr(self.facts.ah, qpn, qkey) }
    }

    /// The setter that the QP type needs besides that of the data.
    pub(super) fn destination(&self, ex: &mut QpEx<'_>) {
        match self.kind {
            Kind::Datagram => self.address(ex),
            // SAFETY: the session is open, or the queue refuses the call; the call takes no pointers.
            Kind::Xrc => unsafe { ex.wr_set_xrc_srqn(SRQN) },
            // The setter of a DC target is not one of the verbs; the reference vectors check those sessions.
            Kind::Peer | Kind::Raw | Kind::Dc => {}
        }
    }

    pub(super) fn build_main(&self, ex: &mut QpEx<'_>, flags: u32, sges: &[Sge]) {
        self.begin_main(ex, flags);
        // The setter for one entry, or for a list.
        match sges {
            // SAFETY: the session is open, or the queue refuses the call. The entry names memory of a bench that is
            // accessed by atomics only.
            [one] => unsafe { ex.wr_set_sge(one.lkey, one.addr, one.length) },
            _ => self.set(ex, sges),
        }
        self.destination(ex);
    }

    pub(super) fn build_inline(&self, ex: &mut QpEx<'_>, data: &[u8]) {
        self.begin_main(ex, 0);
        // SAFETY: the session is open, or the queue refuses the call; `data` is a slice, which is valid during the
        // call.
        unsafe { ex.wr_set_inline_data(data.as_ptr(), data.len()) }
        self.destination(ex);
    }

    // Batches.

    pub(super) fn wire(&self, sges: &[Sge]) -> Vec<Q::Sge> {
        let all: Result<Vec<_>, _> = sges.iter().map(|s| Q::Sge::new(s.addr, s.length, s.lkey)).collect();
        all.expect("entries that have a wire form")
    }

    pub(super) fn push(
        &self,
        batch: &mut Q::Batch<'_>,
        flags: u32,
        op: Op<'_, Q::Remote>,
        data: Data<'_, Q::Sge>,
    ) {
        let flags = SendFlags::from_bits_retain(SIGNALED | flags);
        let wr = Wr { wr_id: self.id.get(), flags, to: self.to(), op, data };
        // SAFETY: entries name memory of a bench that is accessed by atomics only, or the batch refuses them. Binds give no
        // access.
        unsafe { batch.push(&wr) };
    }

    pub(super) fn push_main(&self, batch: &mut Q::Batch<'_>, flags: u32, data: Data<'_, Q::Sge>) {
        let op = if self.kind.sends() { Op::Send } else { Op::Write(self.at()) };
        self.push(batch, flags, op, data);
    }

    pub(super) fn push_sges(&self, batch: &mut Q::Batch<'_>, flags: u32, sges: &[Sge]) {
        self.push_main(batch, flags, Data::Sges(&self.wire(sges)));
    }
}
