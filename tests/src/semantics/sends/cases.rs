// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases of sends, in the form of each face.

// UNSAFETY: posts work requests. They name the memory of a bench, which is alive and accessed by atomics only, or memory
// that is refused before the device could access it.

use super::stage::{INLINE, IP_CSUM, MORE_THAN_2_GIB, Stage, UNKNOWN_FLAG};
use core::ptr::null;
use uverbs::ImmData;
use uverbs::provider::op::{FlushArgs, TsoArgs};
use uverbs::provider::raw::QpEx;
use uverbs::provider::{Data, Dest, Inline, Op, SendBatch as _, SendQueue, WireRemote as _, Wr, WrBuilder};
use uverbs::wr::{IbvDataBuf, IbvMwBindInfo, SendWr, WrAtomic, WrOpcode, WrUd, WrUnion};

/// The position of a case in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Between valid WRs.
    Between,
    /// Before a valid WR.
    First,
    /// No list: NULL.
    NoList,
    /// Behind as many valid WRs as the queue has room for.
    Full,
    /// A valid post while a session is open.
    InSession,
    /// A session that was not started.
    NotStarted,
}

pub(super) type ListFn<Q> = fn(&Stage<'_, Q>) -> SendWr;
pub(super) type WrFn<Q> = fn(&mut QpEx<'_>, &Stage<'_, Q>);
pub(super) type BatchFn<Q> = fn(&mut <Q as SendQueue>::Batch<'_>, &Stage<'_, Q>);

pub(super) struct Case<Q: SendQueue + 'static> {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) list: Option<ListFn<Q>>,
    pub(super) wr: Option<WrFn<Q>>,
    pub(super) batch: Option<BatchFn<Q>>,
}

/// A case: `name: form; list; wr; batch`, each `_` if the face can't express it.
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
        // SAFETY: pointers are those of the `Stage`, which outlives the call. Entries name memory of a bench that is
        // accessed by atomics only, or the session refuses them.
        unsafe { $call }
    };
}

#[rustfmt::skip]
pub(super) fn cases<Q: WrBuilder + 'static>() -> Vec<Case<Q>> {
    use WrOpcode as O;
    const TSO: TsoArgs<'static> = TsoArgs { header: &[], mss: 1 };
    const FLUSH: FlushArgs = FlushArgs { length: 8, placement: 1, level: 0 };
    cases! {
        "valid" Between
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
            (|b, s| s.push_main(b, 0, Data::Inline(Inline::Bytes(&s.bytes))))
        "inline list too long" Between
            (|s| s.main(&s.inline_two, INLINE))
            (|ex, s| {
                s.begin_main(ex, 0);
                let buf = |length| IbvDataBuf { addr: s.bytes.as_ptr(), length };
                let two = [buf(s.facts.max_inline), buf(1)];
                call!(ex.wr_set_inline_data_list(2, two.as_ptr()));
                s.destination(ex);
            })
            (|b, s| s.push_main(b, 0, Data::Inline(Inline::List(&[s.at_limit(), &s.bytes[..1]]))))

        "TSO" Between
            (|s| s.node(O::TSO, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_tso(s.bytes.as_ptr(), 1, 1)) })
            (|b, s| s.push(b, 0, Op::Tso(TSO), Data::NONE))
        "TSO without a header" Between
            (|s| s.node(O::TSO, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_tso(s.bytes.as_ptr(), 1, 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::Tso(TSO), Data::Sges(&s.wire(&s.right))))
        "DRIVER1" Between (|s| s.node(O::DRIVER1, &[], 0)) _ _
        "unknown opcode" Between (|s| s.node(O(77), &[], 0)) _ _
        "FLUSH" Between
            (|s| s.node(O::FLUSH, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_flush(s.facts.remote.1, s.facts.remote.0, 8, 1, 0)) })
            (|b, s| s.push(b, 0, Op::Flush(s.at(), FLUSH), Data::NONE))
        "ATOMIC_WRITE" Between
            (|s| s.node(O::ATOMIC_WRITE, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_write(s.facts.remote.1, s.facts.remote.0, [0; 8].as_ptr())) })
            (|b, s| s.push(b, 0, Op::AtomicWrite(s.at(), [0; 8]), Data::NONE))
        "READ" Between
            (|s| s.node(O::RDMA_READ, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_rdma_read(s.facts.remote.1, s.facts.remote.0)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::Read(s.at()), Data::Sges(&s.wire(&s.right))))
        "FETCH_AND_ADD" Between
            (|s| s.node(O::ATOMIC_FETCH_AND_ADD, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.facts.remote.0, 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::FetchAdd(s.at(), 1), Data::Sges(&s.wire(&s.right))))
        "CMP_AND_SWP" Between
            (|s| s.node(O::ATOMIC_CMP_AND_SWP, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_cmp_swp(s.facts.remote.1, s.facts.remote.0, 1, 1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::CmpSwp(s.at(), 1, 1), Data::Sges(&s.wire(&s.right))))
        "WRITE" Between
            (|s| s.node(O::RDMA_WRITE, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_rdma_write(s.facts.remote.1, s.facts.remote.0)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::Write(s.at()), Data::Sges(&s.wire(&s.right))))
        "WRITE_WITH_IMM" Between
            (|s| s.node(O::RDMA_WRITE_WITH_IMM, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_rdma_write_imm(s.facts.remote.1, s.facts.remote.0, ImmData::new(1))); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::WriteImm(s.at(), 1), Data::Sges(&s.wire(&s.right))))
        "SEND_WITH_IMM" Between
            (|s| s.node(O::SEND_WITH_IMM, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_imm(ImmData::new(1))); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::SendImm(1), Data::Sges(&s.wire(&s.right))))
        "SEND_WITH_INV" Between
            (|s| s.node(O::SEND_WITH_INV, &s.right, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_send_inv(1)); s.set(ex, &s.right) })
            (|b, s| s.push(b, 0, Op::SendInv(1), Data::Sges(&s.wire(&s.right))))
        "LOCAL_INV" Between
            (|s| s.node(O::LOCAL_INV, &[], 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_local_inv(1)) })
            (|b, s| s.push(b, 0, Op::LocalInv(1), Data::NONE))
        "BIND_MW" Between
            (|s| s.bind_node(&raw const s.mw, 0))
            (|ex, s| {
                s.begin(ex, 0);
                let info = IbvMwBindInfo { mr: null(), addr: 0, length: 0, mw_access_flags: 0 };
                call!(ex.wr_bind_mw(&raw const s.mw, 0x101, &raw const info))
            })
            (|b, s| s.push(b, 0, s.bind(0), Data::NONE))
        // The operation that the benches leave out when they create a QP.
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
            (|b, s| s.push(b, 0, Op::Read(s.at()), Data::Inline(Inline::Bytes(&s.bytes[..8]))))
        "inline atomic" Between
            (|s| s.inline(O::ATOMIC_FETCH_AND_ADD, &s.inline_short))
            (|ex, s| {
                s.begin(ex, 0);
                call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.facts.remote.0, 1));
                call!(ex.wr_set_inline_data(s.bytes.as_ptr(), 8));
            })
            (|b, s| s.push(b, 0, Op::FetchAdd(s.at(), 1), Data::Inline(Inline::Bytes(&s.bytes[..8]))))
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
            (|ex, s| {
                s.begin(ex, 0);
                call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.odd().addr(), 1));
                s.set(ex, &s.right);
                s.destination(ex);
            })
            (|b, s| s.push(b, 0, Op::FetchAdd(s.odd(), 1), Data::Sges(&s.wire(&s.right))))
        "atomic of 7 bytes" Between
            (|s| s.node(O::ATOMIC_CMP_AND_SWP, &s.short, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_cmp_swp(s.facts.remote.1, s.facts.remote.0, 1, 1)); s.set(ex, &s.short) })
            (|b, s| s.push(b, 0, Op::CmpSwp(s.at(), 1, 1), Data::Sges(&s.wire(&s.short))))
        "atomic of 4 + 4 bytes" Between
            (|s| s.node(O::ATOMIC_FETCH_AND_ADD, &s.fours, 0))
            (|ex, s| { s.begin(ex, 0); call!(ex.wr_atomic_fetch_add(s.facts.remote.1, s.facts.remote.0, 1)); s.set(ex, &s.fours) })
            (|b, s| s.push(b, 0, Op::FetchAdd(s.at(), 1), Data::Sges(&s.wire(&s.fours))))
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
            (|b, s| s.push(b, 0, s.bind(MORE_THAN_2_GIB), Data::NONE))
        "bind with sges" Between
            (|s| SendWr { sg_list: s.right.as_ptr(), num_sge: 1, ..s.bind_node(&raw const s.mw, 0) })
            _
            (|b, s| s.push(b, 0, s.bind(0), Data::Sges(&s.wire(&s.right))))
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
                call!(b.push(&Wr::new(s.id.get(), Op::Send).signaled().to(Dest::Peer)))
            })
        "address of a datagram" Between
            _
            _
            (|b, s| {
                call!(b.push(&Wr::new(s.id.get(), Op::Send).signaled().to(s.datagram())))
            })
        "XRC destination" Between
            _
            _
            (|b, s| {
                call!(b.push(&Wr::new(s.id.get(), Op::Send).signaled().to(Dest::Xrc(1))))
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
            (|b, s| s.push_main(b, 0, Data::NONE))
        "empty sges" Between
            (|s| s.main(s.empty(), 0))
            (|ex, s| s.build_main(ex, 0, s.empty()))
            (|b, s| s.push_sges(b, 0, s.empty()))
        "inline at the limit" Between
            (|s| s.main(&s.inline_two[..1], INLINE))
            (|ex, s| s.build_inline(ex, s.at_limit()))
            (|b, s| s.push_main(b, 0, Data::Inline(Inline::Bytes(s.at_limit()))))
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
