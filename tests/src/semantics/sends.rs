// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases of sends, on every face that can say them.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests by C's faces and below the types of the safe ones. What they name is either the memory
// of a bench, which lives and is reached as atomics only, or is refused before the device could see it. Lists, arrays
// and handles belong to the `Stage`, which outlives every call.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the calls of one builder, all under the same promise"
)]

use super::table::{Named, Table};
use super::{Held, On, Row, Want, check_list, hold_all};
use anyhow::{Context as _, Result, ensure};
use core::cell::Cell;
use core::ptr::{self, null};
use uverbs::attr::{QpState, QpType};
use uverbs::provider::op::{self, FlushArgs, MwBind, TsoArgs};
use uverbs::provider::raw::{self, QpEx};
use uverbs::provider::{
    Connected, DcTarget, Inline, InlineList, NoData, Operation, Payload, RemoteSrq, SendBatch, SendQueue, To,
    WireRemote, WireSge, Wr, WrBuilder,
};
use uverbs::wr::{
    IbvAh, IbvDataBuf, IbvMr, IbvMw, IbvMwBindInfo, RawAh, SendWr, Sge, WrAtomic, WrBindMw, WrOpcode, WrRdma,
    WrTail, WrUd, WrUnion,
};
use uverbs::{ImmData, PostError, SendFlags};
use uverbs_core::sync::{Locked, Locking};

/// A queue to hold rows on.
pub trait SendBench {
    /// The engine.
    type Queue: WrBuilder + 'static;
    /// Its locking.
    type Lock: Locking;
    /// The driver's name.
    const DRIVER: &'static str;

    /// The device, if it is a special one: only rows that name it are held.
    fn device(&self) -> &'static str {
        Self::DRIVER
    }
    /// The QP's type.
    fn qp_type(&self) -> QpType;
    /// The queue.
    fn queue(&self) -> &Locked<Self::Queue, Self::Lock>;
    /// What work requests are made of.
    fn facts(&self) -> Facts;
    /// Brings the QP into a state; `false` if it can't get there.
    fn enter(&mut self, state: QpState) -> Result<bool>;
    /// The ids of what was posted since the last call.
    fn posted(&mut self) -> Result<Vec<u64>>;
    /// Makes sure that nothing else was posted in this state.
    fn leave(&mut self) -> Result<()>;
}

/// What a bench has.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// 8 KiB of local memory.
    pub local: (u64, u32),
    /// An aligned word at the peer.
    pub remote: (u64, u32),
    /// An address of the driver.
    pub ah: *const IbvAh,
    /// Number and queue key of a datagram's receiver.
    pub receiver: (u32, u32),
    /// Entries that a WR may have.
    pub max_sge: usize,
    /// Inline bytes that a WR may have.
    pub max_inline: usize,
    /// WRs that fit.
    pub capacity: usize,
}

const SIGNALED: u32 = 2;
const INLINE: u32 = 8;
const IP_CSUM: u32 = 16;
const UNKNOWN_FLAG: u32 = 1 << 31;

/// Number of a shared receive queue of the peer.
const SRQN: u32 = 1;

/// The window of a bind that is too long.
const MORE_THAN_2_GIB: u64 = (1 << 31) + 1;

/// A message that no path carries as one datagram.
const LONGER_THAN_ANY_MTU: u32 = 4097;

/// How the WRs of a QP type say where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The connection says it.
    Peer,
    /// An address handle, the receiver's number and key.
    Datagram,
    /// The connection, and a number of a shared receive queue.
    Xrc,
    /// The frame itself says it.
    Raw,
    /// An address handle, the target's number and key.
    Dc,
}

impl Kind {
    fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::Ud => Self::Datagram,
            QpType::XrcSend => Self::Xrc,
            QpType::RawPacket => Self::Raw,
            QpType::Driver => Self::Dc,
            _ => Self::Peer,
        }
    }

    /// Whether a send is what WRs of this kind do; the others write into the peer's word, which disturbs nobody.
    fn sends(self) -> bool {
        matches!(self, Self::Datagram | Self::Raw)
    }
}

/// What the work requests of all cases point to.
struct Stage<'a, Q: SendQueue> {
    facts: Facts,
    kind: Kind,
    ah: &'a RawAh<Q::Ah>,
    /// The WR that is made now.
    id: Cell<u64>,
    right: Vec<Sge>,
    many: Vec<Sge>,
    empty: Vec<Sge>,
    over: Vec<Sge>,
    exact: Vec<Sge>,
    halves: Vec<Sge>,
    short: Vec<Sge>,
    fours: Vec<Sge>,
    datagram_sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// Entries that name `bytes`, for inline data: too long; as long as may be, and one more; 8 bytes.
    inline_over: [Sge; 1],
    inline_two: [Sge; 2],
    inline_short: [Sge; 1],
    mw: IbvMw,
    mr: IbvMr,
}

impl<'a, Q: SendQueue> Stage<'a, Q> {
    fn new(facts: Facts, qp_type: QpType) -> Result<Self> {
        // SAFETY: a live handle of this queue's driver, by what a bench promises.
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

    fn empty(&self) -> &[Sge] {
        &self.empty[..self.facts.max_sge]
    }

    fn at_limit(&self) -> &[u8] {
        &self.bytes[..self.facts.max_inline]
    }

    fn at(&self) -> Q::Remote {
        Q::Remote::new(self.facts.remote.0, self.facts.remote.1)
    }

    fn odd(&self) -> Q::Remote {
        Q::Remote::new(self.facts.remote.0 + 4, self.facts.remote.1)
    }

    fn to(&self) -> To<'_, Q::Ah> {
        let (remote_qpn, remote_qkey) = self.facts.receiver;
        To { ah: &self.ah.driver, remote_qpn, remote_qkey }
    }

    fn target(&self) -> DcTarget<'_, Q::Ah> {
        let (remote_dctn, key) = self.facts.receiver;
        DcTarget { ah: &self.ah.driver, remote_dctn, remote_dc_key: key.into() }
    }

    /// A bind of so many bytes of no region.
    fn bind(&self, length: u64) -> op::BindMw<Q::Remote> {
        let bind = MwBind { mw_rkey: 0x100, mw_type: 1, rkey: 0x101, mr_lkey: 0, addr: 0, length, access: 0 };
        // SAFETY: 0 bytes open nothing, and a bind of more is refused, as there is no such region.
        unsafe { op::BindMw::new(bind) }
    }

    // Nodes of a list.

    fn node(&self, opcode: WrOpcode, sges: &[Sge], flags: u32) -> SendWr {
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

    /// The operation that every queue has, and that disturbs nobody: see [`Kind::sends`].
    fn main(&self, sges: &[Sge], flags: u32) -> SendWr {
        self.node(if self.kind.sends() { WrOpcode::SEND } else { WrOpcode::RDMA_WRITE }, sges, flags)
    }

    fn inline(&self, opcode: WrOpcode, sges: &[Sge]) -> SendWr {
        self.node(opcode, sges, INLINE)
    }

    fn bind_node(&self, mw: *const IbvMw, length: u64) -> SendWr {
        let bind_info = IbvMwBindInfo { mr: null(), addr: 0, length, mw_access_flags: 0 };
        let tail = WrTail { bind_mw: WrBindMw { mw, rkey: 0x101, bind_info } };
        SendWr { tail, ..self.node(WrOpcode::BIND_MW, &[], 0) }
    }

    // Builders.

    fn begin(&self, ex: &mut QpEx<'_>, flags: u32) {
        (ex.wr_id, ex.wr_flags) = (self.id.get(), SIGNALED | flags);
    }

    fn begin_main(&self, ex: &mut QpEx<'_>, flags: u32) {
        self.begin(ex, flags);
        let (addr, rkey) = self.facts.remote;
        // SAFETY: see the top of this file.
        unsafe { if self.kind.sends() { ex.wr_send() } else { ex.wr_rdma_write(rkey, addr) } }
    }

    fn set(&self, ex: &mut QpEx<'_>, sges: &[Sge]) {
        // SAFETY: see the top of this file.
        unsafe { ex.wr_set_sge_list(sges.len(), sges.as_ptr()) }
    }

    fn address(&self, ex: &mut QpEx<'_>) {
        let (qpn, qkey) = self.facts.receiver;
        // SAFETY: see the top of this file.
        unsafe { ex.wr_set_ud_addr(self.facts.ah, qpn, qkey) }
    }

    /// The setter that the QP type needs besides that of the data.
    fn destination(&self, ex: &mut QpEx<'_>) {
        match self.kind {
            Kind::Datagram => self.address(ex),
            // SAFETY: see the top of this file.
            Kind::Xrc => unsafe { ex.wr_set_xrc_srqn(SRQN) },
            // A DC target is no setter of the verbs'; the reference vectors hold those sessions.
            Kind::Peer | Kind::Raw | Kind::Dc => {}
        }
    }

    fn build_main(&self, ex: &mut QpEx<'_>, flags: u32, sges: &[Sge]) {
        self.begin_main(ex, flags);
        // One entry goes by the setter for one.
        match sges {
            // SAFETY: see the top of this file.
            [one] => unsafe { ex.wr_set_sge(one.lkey, one.addr, one.length) },
            _ => self.set(ex, sges),
        }
        self.destination(ex);
    }

    fn build_inline(&self, ex: &mut QpEx<'_>, data: &[u8]) {
        self.begin_main(ex, 0);
        // SAFETY: see the top of this file.
        unsafe { ex.wr_set_inline_data(data.as_ptr(), data.len()) }
        self.destination(ex);
    }

    // Batches.

    fn wire(&self, sges: &[Sge]) -> Vec<Q::Sge> {
        let all: Result<Vec<_>, _> = sges.iter().map(|s| Q::Sge::new(s.addr, s.length, s.lkey)).collect();
        all.expect("entries that have a wire form")
    }

    fn push<O, P>(&self, batch: &mut Q::Batch<'_>, flags: u32, op: O, data: P)
    where
        O: Operation<Remote = Q::Remote>,
        P: Payload<Q::Sge>,
    {
        let wr = Wr { wr_id: self.id.get(), flags: SendFlags::from_bits_retain(SIGNALED | flags) };
        // SAFETY: see the top of this file.
        unsafe {
            match self.kind {
                Kind::Datagram => batch.push(wr, self.to(), op, data),
                Kind::Xrc => batch.push(wr, RemoteSrq(SRQN), op, data),
                Kind::Dc => batch.push(wr, self.target(), op, data),
                Kind::Peer | Kind::Raw => batch.push(wr, Connected, op, data),
            }
        }
    }

    fn push_main<P: Payload<Q::Sge>>(&self, batch: &mut Q::Batch<'_>, flags: u32, data: P) {
        if self.kind.sends() {
            self.push(batch, flags, op::Send::new(), data);
        } else {
            self.push(batch, flags, op::Write::new(self.at()), data);
        }
    }

    fn push_sges(&self, batch: &mut Q::Batch<'_>, flags: u32, sges: &[Sge]) {
        self.push_main(batch, flags, &*self.wire(sges));
    }
}

/// Where in a call a case stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Between right ones.
    Between,
    /// Before a right one.
    First,
    /// There is no list.
    NoList,
    /// Behind as many right ones as fit.
    Full,
    /// A right post while a session is open.
    InSession,
    /// A session that was not started.
    NotStarted,
}

type ListFn<Q> = fn(&Stage<'_, Q>) -> SendWr;
type WrFn<Q> = fn(&mut QpEx<'_>, &Stage<'_, Q>);
type BatchFn<Q> = fn(&mut <Q as SendQueue>::Batch<'_>, &Stage<'_, Q>);

struct Case<Q: SendQueue + 'static> {
    name: &'static str,
    form: Form,
    list: Option<ListFn<Q>>,
    wr: Option<WrFn<Q>>,
    batch: Option<BatchFn<Q>>,
}

/// A case: `name: form; list; wr; batch`, each `_` where the face can't say it.
macro_rules! cases {
    (@some _) => { None };
    (@some ($f:expr)) => { Some($f) };
    ($($name:literal $form:ident $list:tt $wr:tt $batch:tt)*) => {
        vec![$(Case {
            name: $name,
            form: Form::$form,
            list: cases!(@some $list),
            wr: cases!(@some $wr),
            batch: cases!(@some $batch),
        }),*]
    };
}

/// A call of the raw face.
macro_rules! call {
    ($call:expr) => {
        // SAFETY: see the top of this file.
        unsafe { $call }
    };
}

#[rustfmt::skip]
fn cases<Q: WrBuilder + 'static>() -> Vec<Case<Q>> {
    use WrOpcode as O;
    const TSO: TsoArgs<'static> = TsoArgs { header: &[], mss: 1 };
    const FLUSH: FlushArgs = FlushArgs { length: 8, placement: 1, level: 0 };
    cases! {
        "right" Between
            (|s| s.main(&s.right, 0))
            (|ex, s| s.build_main(ex, 0, &s.right))
            (|b, s| s.push_sges(b, 0, &s.right))
        "NULL list" NoList (|s| s.main(&s.right, 0)) _ _
        "queue full" Full
            (|s| s.main(&s.right, 0))
            (|ex, s| s.build_main(ex, 0, &s.right))
            (|b, s| s.push_sges(b, 0, &s.right))

        "too many sges" Between
            (|s| s.main(&s.many, 0))
            (|ex, s| s.build_main(ex, 0, &s.many))
            (|b, s| s.push_sges(b, 0, &s.many))
        "too many empty sges" Between
            (|s| s.main(&s.empty, 0))
            (|ex, s| s.build_main(ex, 0, &s.empty))
            (|b, s| s.push_sges(b, 0, &s.empty))
        "negative num_sge" Between (|s| SendWr { num_sge: -1, ..s.main(&s.right, 0) }) _ _
        "NULL sg_list" Between
            (|s| SendWr { sg_list: null(), ..s.main(&s.right, 0) })
            (|ex, s| { s.begin_main(ex, 0); call!(ex.wr_set_sge_list(1, null())); s.destination(ex); })
            _
        "NULL inline data" Between
            _
            (|ex, s| { s.begin_main(ex, 0); call!(ex.wr_set_inline_data(null(), 5)); s.destination(ex); })
            _
        "sge > 2^31" Between
            (|s| s.main(&s.over, 0))
            (|ex, s| s.build_main(ex, 0, &s.over))
            _
        "sge of 2^31" Between
            (|s| s.main(&s.exact, 0))
            (|ex, s| s.build_main(ex, 0, &s.exact))
            (|b, s| s.push_sges(b, 0, &s.exact))
        "sum of 2^31" Between
            (|s| s.main(&s.halves, 0))
            (|ex, s| s.build_main(ex, 0, &s.halves))
            (|b, s| s.push_sges(b, 0, &s.halves))
        "inline too long" Between
            (|s| s.main(&s.inline_over, INLINE))
            (|ex, s| s.build_inline(ex, &s.bytes))
            (|b, s| s.push_main(b, 0, Inline(&s.bytes)))
        "inline list too long" Between
            (|s| s.main(&s.inline_two, INLINE))
            (|ex, s| {
                s.begin_main(ex, 0);
                let buf = |length| IbvDataBuf { addr: s.bytes.as_ptr(), length };
                let two = [buf(s.facts.max_inline), buf(1)];
                call!(ex.wr_set_inline_data_list(2, two.as_ptr()));
                s.destination(ex);
            })
            (|b, s| s.push_main(b, 0, InlineList(&[s.at_limit(), &s.bytes[..1]])))

        "TSO" Between
            (|s| s.node(O::TSO, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_tso(s.bytes.as_ptr(), 1, 1)) })
            (|b, s| s.push(b, 0, op::Tso::new(TSO), NoData))
        "TSO without a header" Between
            (|s| s.node(O::TSO, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_tso(s.bytes.as_ptr(), 1, 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::Tso::new(TSO), &*s.wire(&s.right)))
        "DRIVER1" Between (|s| s.node(O::DRIVER1, &[], 0)) _ _
        "unknown opcode" Between (|s| s.node(O(77), &[], 0)) _ _
        "FLUSH" Between
            (|s| s.node(O::FLUSH, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_flush(s.facts.remote.1, s.facts.remote.0, 8, 1, 0)) })
            (|b, s| s.push(b, 0, op::Flush::new(s.at(), FLUSH), NoData))
        "ATOMIC_WRITE" Between
            (|s| s.node(O::ATOMIC_WRITE, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_write(s.facts.remote.1, s.facts.remote.0, [0; 8].as_ptr())) })
            (|b, s| s.push(b, 0, op::AtomicWrite::new(s.at(), [0; 8]), NoData))
        "READ" Between
            (|s| s.node(O::RDMA_READ, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_rdma_read(s.facts.remote.1, s.facts.remote.0)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::Read::new(s.at()), &*s.wire(&s.right)))
        "FETCH_AND_ADD" Between
            (|s| s.node(O::ATOMIC_FETCH_AND_ADD, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.facts.remote.0, 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::FetchAdd::new(s.at(), 1), &*s.wire(&s.right)))
        "CMP_AND_SWP" Between
            (|s| s.node(O::ATOMIC_CMP_AND_SWP, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_cmp_swp(s.facts.remote.1, s.facts.remote.0, 1, 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::CmpSwp::new(s.at(), 1, 1), &*s.wire(&s.right)))
        "WRITE" Between
            (|s| s.node(O::RDMA_WRITE, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_rdma_write(s.facts.remote.1, s.facts.remote.0)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::Write::new(s.at()), &*s.wire(&s.right)))
        "WRITE_WITH_IMM" Between
            (|s| s.node(O::RDMA_WRITE_WITH_IMM, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_rdma_write_imm(s.facts.remote.1, s.facts.remote.0, ImmData::new(1))); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::WriteImm::new(s.at(), ImmData::new(1)), &*s.wire(&s.right)))
        "SEND_WITH_IMM" Between
            (|s| s.node(O::SEND_WITH_IMM, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_imm(ImmData::new(1))); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::SendImm::new(ImmData::new(1)), &*s.wire(&s.right)))
        "SEND_WITH_INV" Between
            (|s| s.node(O::SEND_WITH_INV, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_inv(1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::SendInv::new(1), &*s.wire(&s.right)))
        "LOCAL_INV" Between
            (|s| s.node(O::LOCAL_INV, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_local_inv(1)) })
            (|b, s| s.push(b, 0, op::LocalInv::new(1), NoData))
        "BIND_MW" Between
            (|s| s.bind_node(&raw const s.mw, 0))
            (|ex, s| {
                s.begin(ex, 0);
                let info = IbvMwBindInfo { mr: null(), addr: 0, length: 0, mw_access_flags: 0 };
                call!(ex.wr_bind_mw(&raw const s.mw, 0x101, &raw const info))
            })
            (|b, s| s.push(b, 0, s.bind(0), NoData))
        // What the benches leave out when they make a QP.
        "not in send_ops_flags" Between
            _
            (|ex, s| {
                s.begin(ex, 0);
                let (addr, rkey) = s.facts.remote;
                call!(if s.kind.sends() { ex.wr_send_imm(ImmData::new(1)) } else { ex.wr_rdma_write_imm(rkey, addr, ImmData::new(1)) });
                s.set(ex, &s.right);
                s.destination(ex);
            })
            _

        "IP_CSUM" Between
            (|s| s.main(&s.right, IP_CSUM))
            (|ex, s| s.build_main(ex, IP_CSUM, &s.right))
            (|b, s| s.push_sges(b, IP_CSUM, &s.right))
        "unknown flag" Between
            (|s| s.main(&s.right, UNKNOWN_FLAG))
            (|ex, s| s.build_main(ex, UNKNOWN_FLAG, &s.right))
            (|b, s| s.push_sges(b, UNKNOWN_FLAG, &s.right))
        "inline READ" Between
            (|s| s.inline(O::RDMA_READ, &s.inline_short))
            (|ex, s| {
                s.begin(ex, 0);
                call!(ex.wr_rdma_read(s.facts.remote.1, s.facts.remote.0));
                call!(ex.wr_set_inline_data(s.bytes.as_ptr(), 8));
            })
            (|b, s| s.push(b, 0, op::Read::new(s.at()), Inline(&s.bytes[..8])))
        "inline atomic" Between
            (|s| s.inline(O::ATOMIC_FETCH_AND_ADD, &s.inline_short))
            (|ex, s| {
                s.begin(ex, 0);
                call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.facts.remote.0, 1));
                call!(ex.wr_set_inline_data(s.bytes.as_ptr(), 8));
            })
            (|b, s| s.push(b, 0, op::FetchAdd::new(s.at(), 1), Inline(&s.bytes[..8])))
        "INLINE in wr_flags" Between
            _
            (|ex, s| s.build_main(ex, INLINE, &s.right))
            (|b, s| s.push_sges(b, INLINE, &s.right))

        "misaligned atomic" Between
            (|s| {
                let mut wr = s.node(O::ATOMIC_FETCH_AND_ADD, &s.right, 0);
                wr.wr.atomic = WrAtomic { remote_addr: s.odd().addr(), compare_add: 1, swap: 0, rkey: s.facts.remote.1 };
                wr
            })
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.odd().addr(), 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, op::FetchAdd::new(s.odd(), 1), &*s.wire(&s.right)))
        "atomic of 7 bytes" Between
            (|s| s.node(O::ATOMIC_CMP_AND_SWP, &s.short, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_cmp_swp(s.facts.remote.1, s.facts.remote.0, 1, 1)); s.set(ex, &s.short) })
            (|b, s| s.push(b, 0, op::CmpSwp::new(s.at(), 1, 1), &*s.wire(&s.short)))
        "atomic of 4 + 4 bytes" Between
            (|s| s.node(O::ATOMIC_FETCH_AND_ADD, &s.fours, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.facts.remote.0, 1)); s.set(ex, &s.fours) })
            (|b, s| s.push(b, 0, op::FetchAdd::new(s.at(), 1), &*s.wire(&s.fours)))
        "bind > 2^31" Between
            (|s| {
                let mut wr = s.bind_node(&raw const s.mw, MORE_THAN_2_GIB);
                wr.tail.bind_mw.bind_info.mr = &raw const s.mr;
                wr
            })
            (|ex, s| {
                s.begin(ex, 0);
                let info = IbvMwBindInfo { mr: &raw const s.mr, addr: 0, length: MORE_THAN_2_GIB, mw_access_flags: 0 };
                call!(ex.wr_bind_mw(&raw const s.mw, 0x101, &raw const info))
            })
            (|b, s| s.push(b, 0, s.bind(MORE_THAN_2_GIB), NoData))
        "bind with sges" Between
            (|s| SendWr { sg_list: s.right.as_ptr(), num_sge: 1, ..s.bind_node(&raw const s.mw, 0) })
            _
            (|b, s| s.push(b, 0, s.bind(0), &*s.wire(&s.right)))
        "bind of no window" Between
            (|s| s.bind_node(null(), 0))
            (|ex, s| {
                s.begin(ex, 0);
                let info = IbvMwBindInfo { mr: null(), addr: 0, length: 0, mw_access_flags: 0 };
                call!(ex.wr_bind_mw(null(), 0x101, &raw const info))
            })
            _
        "bind of no region" Between
            (|s| s.bind_node(&raw const s.mw, 8))
            (|ex, s| {
                s.begin(ex, 0);
                let info = IbvMwBindInfo { mr: null(), addr: 0, length: 8, mw_access_flags: 0 };
                call!(ex.wr_bind_mw(&raw const s.mw, 0x101, &raw const info))
            })
            _
        "NULL bind_info" Between
            _
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_bind_mw(&raw const s.mw, 0x101, null())) })
            _
        "NULL ah" Between
            (|s| SendWr { wr: WrUnion { ud: WrUd { ah: null(), remote_qpn: 1, remote_qkey: 1 } }, ..s.main(&s.right, 0) })
            (|ex, s| { s.begin_main(ex, 0); s.set(ex, &s.right); call!(ex.wr_set_ud_addr(null(), 1, 1)) })
            _
        "no address" Between
            _
            _
            (|b, s| {
                let wr = Wr { wr_id: s.id.get(), flags: SendFlags::SIGNALED };
                call!(b.push(wr, Connected, op::Send::new(), NoData))
            })
        "address of a datagram" Between
            _
            _
            (|b, s| {
                let wr = Wr { wr_id: s.id.get(), flags: SendFlags::SIGNALED };
                call!(b.push(wr, s.to(), op::Send::new(), NoData))
            })
        "XRC destination" Between
            _
            _
            (|b, s| {
                let wr = Wr { wr_id: s.id.get(), flags: SendFlags::SIGNALED };
                call!(b.push(wr, RemoteSrq(1), op::Send::new(), NoData))
            })

        "no data setter" Between _ (|ex, s| { s.begin_main(ex, 0); s.destination(ex) }) _
        "no address setter" Between _ (|ex, s| { s.begin_main(ex, 0); s.set(ex, &s.right) }) _
        "data setter twice" Between
            _
            (|ex, s| {
                s.build_main(ex, 0, &s.right);
                call!(ex.wr_set_inline_data(s.bytes.as_ptr(), 1));
            })
            _
        "address setter twice" Between _ (|ex, s| { s.build_main(ex, 0, &s.right); s.destination(ex) }) _
        "data setter first" First _ (|ex, s| s.set(ex, &s.right)) _
        "data setter on LOCAL_INV" Between _ (|ex, s| { s.begin(ex, 0); call!(ex.wr_local_inv(1)); s.set(ex, &s.right) }) _
        "data setter on a bind" Between
            _
            (|ex, s| {
                s.begin(ex, 0);
                let info = IbvMwBindInfo { mr: null(), addr: 0, length: 0, mw_access_flags: 0 };
                call!(ex.wr_bind_mw(&raw const s.mw, 0x101, &raw const info));
                s.set(ex, &s.right);
            })
            _
        "address setter on a peer" Between _ (|ex, s| { s.build_main(ex, 0, &s.right); s.address(ex) }) _
        "XRC setter" Between _ (|ex, s| { s.build_main(ex, 0, &s.right); call!(ex.wr_set_xrc_srqn(1)) }) _
        "second wr_start" Between _ (|ex, s| { s.build_main(ex, 0, &s.right); call!(ex.wr_start()) }) _
        "inside a session" InSession
            (|s| s.main(&s.right, 0))
            _
            (|b, s| s.push_sges(b, 0, &s.right))
        "no wr_start" NotStarted _ (|ex, s| s.build_main(ex, 0, &s.right)) _

        "no data" Between
            (|s| SendWr { sg_list: null(), ..s.main(&[], 0) })
            (|ex, s| { s.begin_main(ex, 0); call!(ex.wr_set_sge_list(0, null())); s.destination(ex) })
            (|b, s| s.push_main(b, 0, NoData))
        "empty sges" Between
            (|s| s.main(s.empty(), 0))
            (|ex, s| s.build_main(ex, 0, s.empty()))
            (|b, s| s.push_sges(b, 0, s.empty()))
        "inline at the limit" Between
            (|s| s.main(&s.inline_two[..1], INLINE))
            (|ex, s| s.build_inline(ex, s.at_limit()))
            (|b, s| s.push_main(b, 0, Inline(s.at_limit())))
        "FENCE and SOLICITED" Between
            (|s| s.main(&s.right, 5))
            (|ex, s| s.build_main(ex, 5, &s.right))
            (|b, s| s.push_sges(b, 5, &s.right))
        "message > path MTU" Between
            (|s| s.main(&s.datagram_sges, 0))
            (|ex, s| s.build_main(ex, 0, &s.datagram_sges))
            (|b, s| s.push_sges(b, 0, &s.datagram_sges))
    }
}

const FACES: [&str; 3] = ["post_send", "wr_*", "batch"];

/// Holds every row of sends for this QP type, in every state that the bench can reach.
pub fn hold<B: SendBench>(bench: &mut B) -> Result<Held> {
    let qp_type = bench.qp_type();
    let cases = cases::<B::Queue>();
    check_cases(&cases)?;
    let mut next_id = 1;
    let on = On { driver: B::DRIVER, device: bench.device(), qp_type };
    hold_all(
        bench,
        on,
        &FACES,
        B::enter,
        |bench, row, face, want| {
            let case = cases.iter().find(|c| c.name == row.case).context("nobody knows this case")?;
            let stage = Stage::<B::Queue>::new(bench.facts(), qp_type)?;
            let posted = hold_one(bench.queue(), case, face, want, &stage, &mut next_id)?;
            let got = bench.posted()?;
            ensure!(got == posted, "posted {got:?}, should be {posted:?}");
            if let Err(error) = row.result {
                let (told, want) = (B::Queue::errno(error).name(), row.errno(B::DRIVER));
                ensure!(told == Some(want), "C gets {told:?} for {error:?}, should get {want}");
            }
            Ok(())
        },
        B::leave,
    )
}

/// Every case and face that the tests know has a row.
fn check_cases<Q: WrBuilder + 'static>(cases: &[Case<Q>]) -> Result<()> {
    let table = Table::read()?;
    for case in cases {
        for (face, said) in FACES.iter().zip([case.list.is_some(), case.wr.is_some(), case.batch.is_some()]) {
            let row =
                table.rows.iter().any(|r: &Row| r.case == case.name && r.faces.iter().any(|f| f == face));
            ensure!(said == row, "docs/semantics.md: {} by {face}: a row {row}, a test {said}", case.name);
        }
    }
    Ok(())
}

/// Posts a case by a face, and compares the answer. Gives the ids that should be posted.
fn hold_one<Q: WrBuilder + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    case: &Case<Q>,
    face: &str,
    want: Want,
    stage: &Stage<'_, Q>,
    next_id: &mut u64,
) -> Result<Vec<u64>> {
    let right = cases::<Q>().into_iter().find(|c| c.name == "right").context("the right one")?;
    // Which of the WRs is the case.
    let (n, it) = match case.form {
        Form::Between => (3, 1),
        Form::First => (2, 0),
        Form::NoList => (0, 0),
        Form::Full => (stage.facts.capacity + 2, stage.facts.capacity),
        Form::InSession | Form::NotStarted => (1, 0),
    };
    let ids: Vec<u64> = (0..n as u64).map(|i| *next_id + i).collect();
    *next_id += n as u64;
    let which = |i: usize| {
        stage.id.set(ids[i]);
        if i == it { case } else { &right }
    };
    let mut ex = QpEx::new(queue);
    let in_session = case.form == Form::InSession;
    if in_session {
        // SAFETY: see the top of this file; aborted below.
        unsafe { ex.wr_start() };
        stage.build_main(&mut ex, 0, &stage.right);
    }
    let all_or_nothing = |result: Result<(), PostError>| {
        ensure!(result == want.result, "{result:?}, should be {:?}", want.result);
        Ok(if result.is_ok() { ids.len() } else { 0 })
    };
    let posted = match face {
        "post_send" => {
            let mut nodes = Vec::with_capacity(n);
            for i in 0..n {
                nodes.push(which(i).list.context("a list can't say this")?(stage));
            }
            for i in 1..n {
                nodes[i - 1].next = &raw const nodes[i];
            }
            let first = nodes.first().map_or(null(), ptr::from_ref);
            // SAFETY: see the top of this file.
            let got = unsafe { raw::post_send(queue, first) };
            let posted = check_list(want, got, &nodes, it)?;
            // At the front of a list, nothing is posted.
            if want.named == Named::It && it != 0 && case.form != Form::Full {
                // SAFETY: see the top of this file.
                let got = unsafe { raw::post_send(queue, &raw const nodes[it]) };
                check_list(want, got, &nodes, it).context("as the first of a list")?;
            }
            posted
        }
        "wr_*" => {
            let start = case.form != Form::NotStarted;
            let mut run = |from: usize, to: usize| -> Result<Result<(), PostError>> {
                if start {
                    // SAFETY: see the top of this file.
                    unsafe { ex.wr_start() };
                }
                for i in from..to {
                    which(i).wr.context("a builder can't say this")?(&mut ex, stage);
                }
                // SAFETY: see the top of this file.
                Ok(unsafe { ex.wr_complete() })
            };
            let posted = all_or_nothing(run(0, n)?)?;
            if want.result.is_err() && case.form != Form::Full {
                all_or_nothing(run(it, it + 1)?).context("as the last of a session")?;
            }
            posted
        }
        "batch" => {
            // SAFETY: left below; no reference is used in between but this.
            let result = match unsafe { queue.enter() } {
                Err(reentered) => Err(reentered.into()),
                Ok(q) => {
                    let mut batch = q.batch();
                    for i in 0..n {
                        which(i).batch.context("a batch can't say this")?(&mut batch, stage);
                    }
                    let result = batch.complete();
                    // SAFETY: entered above.
                    unsafe { queue.leave() };
                    result
                }
            };
            all_or_nothing(result)?
        }
        other => anyhow::bail!("not a face of sends: {other}"),
    };
    if in_session {
        // SAFETY: see the top of this file.
        unsafe { ex.wr_abort() };
    }
    Ok(ids[..posted].to_vec())
}

/// Whether the queue is empty, told without a post: a batch of as many as fit, and a wrong one, fails by the wrong one.
pub fn is_empty<Q: WrBuilder + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    facts: Facts,
    qp_type: QpType,
) -> Result<bool> {
    let stage = Stage::<Q>::new(facts, qp_type)?;
    // SAFETY: left below; no reference is used in between but this.
    let q = unsafe { queue.enter() }.map_err(PostError::from)?;
    let mut batch = q.batch();
    for _ in 0..facts.capacity - 1 {
        stage.push_main(&mut batch, 0, NoData);
    }
    stage.push_sges(&mut batch, 0, &stage.many);
    let result = batch.complete();
    // SAFETY: entered above.
    unsafe { queue.leave() };
    match result {
        Err(PostError::TooManySge) => Ok(true),
        Err(PostError::QueueFull) => Ok(false),
        other => anyhow::bail!("{other:?}"),
    }
}

/// A right work request, by C's list: what benches mark the end with.
pub fn post_right<Q: WrBuilder + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    facts: Facts,
    qp_type: QpType,
    wr_id: u64,
) -> Result<()> {
    let stage = Stage::<Q>::new(facts, qp_type)?;
    stage.id.set(wr_id);
    let node = stage.main(&stage.right, 0);
    // SAFETY: see the top of this file.
    unsafe { raw::post_send(queue, &raw const node) }.map_err(|bad| bad.error).context("a right one")
}
