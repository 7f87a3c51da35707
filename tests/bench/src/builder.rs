// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: the `wr_*` calls of `ibv_wr_start` and `ibv_wr_complete`.
#![expect(unsafe_code)]
// UNSAFETY: C's calls name memory.

use crate::face::{Face, Peer, REMOTE_QKEY, REMOTE_QPN, REMOTE_SRQN};
use crate::list::{Entries, bind_info, entries};
use crate::matrix::{Call, Data, Operation, Post, Transport};
use crate::places::{MSS, Places, RKEY, remote_addr};
use crate::world::{Pair, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::cell::RefCell;
use core::hint::black_box;
use uverbs::Rc;
use uverbs::attr::SendOpsFlags;
use uverbs::provider::raw::QpEx;
use uverbs::wr::{IbvDataBuf, IbvMwBindInfo, SendFlags};

/// A function that posts a chunk, in sessions of `batch`.
pub type Session = fn(&mut QpEx<'_>, &Places, u32, &Shape);

/// The data of the requests that are more than one entry.
#[derive(Debug)]
pub struct Shape {
    entries: &'static [Entries],
    bufs: [IbvDataBuf; 4],
    bind_info: IbvMwBindInfo,
    /// The number of entries, of bytes inline, or of buffers.
    count: usize,
}

/// The operations that the QPs of a transport are created with.
pub fn ops_of(transport: Transport) -> SendOpsFlags {
    let flag = |operation: &Operation| match operation {
        Operation::Send => SendOpsFlags::SEND,
        Operation::SendImm => SendOpsFlags::SEND_WITH_IMM,
        Operation::SendInv => SendOpsFlags::SEND_WITH_INV,
        Operation::Write => SendOpsFlags::RDMA_WRITE,
        Operation::WriteImm => SendOpsFlags::RDMA_WRITE_WITH_IMM,
        Operation::Read => SendOpsFlags::RDMA_READ,
        Operation::CmpSwp => SendOpsFlags::ATOMIC_CMP_AND_SWP,
        Operation::FetchAdd => SendOpsFlags::ATOMIC_FETCH_AND_ADD,
        Operation::LocalInv => SendOpsFlags::LOCAL_INV,
        Operation::BindMw => SendOpsFlags::BIND_MW,
        Operation::Tso => SendOpsFlags::TSO,
    };
    transport.operations().iter().map(flag).fold(SendOpsFlags::empty(), SendOpsFlags::union)
}

/// Defines sessions: the statements are calls on `qp` with the places `p`, the number `i` and the shape `s`.
macro_rules! sessions {
    ($places:ty, $shape:ty; $($name:ident = |$qp:ident, $p:ident, $i:ident, $s:ident| $($call:expr),+;)*) => {$(
        #[inline(never)]
        fn $name($qp: &mut QpEx<'_>, $p: &$places, batch: u32, $s: &$shape) {
            let mut first = 0;
            while first < CHUNK {
                // SAFETY: one thread, no session is open.
                unsafe { $qp.wr_start() };
                for $i in first..first + batch {
                    $qp.wr_id = $i.into();
                    $qp.wr_flags = SendFlags::SIGNALED.bits();
                    // SAFETY: inside the session; the memory lives as long as the process.
                    $(unsafe { $call };)+
                }
                // SAFETY: inside the session.
                unsafe { $qp.wr_complete() }.unwrap_or_else(ok);
                first += batch;
            }
        }
    )*};
}
pub(crate) use sessions;

sessions! {
    Places, Shape;
    send = |qp, p, i, _s| qp.wr_send(), entry(qp, p, 64);
    send_imm = |qp, p, i, _s| qp.wr_send_imm(p.imm(i)), entry(qp, p, 64);
    send_inv = |qp, p, i, _s| qp.wr_send_inv(RKEY), entry(qp, p, 64);
    write = |qp, p, i, _s| qp.wr_rdma_write(RKEY, remote_addr(i)), entry(qp, p, 64);
    write_imm = |qp, p, i, _s| qp.wr_rdma_write_imm(RKEY, remote_addr(i), p.imm(i)), entry(qp, p, 64);
    read = |qp, p, i, _s| qp.wr_rdma_read(RKEY, remote_addr(i)), entry(qp, p, 64);
    cmp_swp = |qp, p, i, _s| swap(qp, i), entry(qp, p, 8);
    fetch_add = |qp, p, i, _s| qp.wr_atomic_fetch_add(RKEY, remote_addr(i), 7), entry(qp, p, 8);
    local_inv = |qp, p, i, _s| qp.wr_local_inv(p.window_key);
    bind_mw = |qp, p, i, s| qp.wr_bind_mw(p.raw_window(), p.window_key, &raw const s.bind_info);
    tso = |qp, p, i, _s| qp.wr_send_tso(p.header.as_ptr(), p.header.len() as u16, MSS), entry(qp, p, 64);
    send_ud = |qp, p, i, _s| qp.wr_send(), to_ud(qp, p), entry(qp, p, 64);
    send_imm_ud = |qp, p, i, _s| qp.wr_send_imm(p.imm(i)), to_ud(qp, p), entry(qp, p, 64);
    send_xrc = |qp, p, i, _s| qp.wr_send(), to_xrc(qp), entry(qp, p, 64);
    send_imm_xrc = |qp, p, i, _s| qp.wr_send_imm(p.imm(i)), to_xrc(qp), entry(qp, p, 64);
    send_inv_xrc = |qp, p, i, _s| qp.wr_send_inv(RKEY), to_xrc(qp), entry(qp, p, 64);
    write_xrc = |qp, p, i, _s| qp.wr_rdma_write(RKEY, remote_addr(i)), to_xrc(qp), entry(qp, p, 64);
    write_imm_xrc = |qp, p, i, _s| qp.wr_rdma_write_imm(RKEY, remote_addr(i), p.imm(i)), to_xrc(qp), entry(qp, p, 64);
    read_xrc = |qp, p, i, _s| qp.wr_rdma_read(RKEY, remote_addr(i)), to_xrc(qp), entry(qp, p, 64);
    cmp_swp_xrc = |qp, p, i, _s| swap(qp, i), to_xrc(qp), entry(qp, p, 8);
    fetch_add_xrc = |qp, p, i, _s| qp.wr_atomic_fetch_add(RKEY, remote_addr(i), 7), to_xrc(qp), entry(qp, p, 8);
    write_list = |qp, _p, i, s| qp.wr_rdma_write(RKEY, remote_addr(i)),
        qp.wr_set_sge_list(s.count, s.entries[i as usize].as_ptr());
    write_inline = |qp, p, i, s| qp.wr_rdma_write(RKEY, remote_addr(i)),
        qp.wr_set_inline_data(p.bytes.as_ptr(), s.count);
    write_inline_list = |qp, _p, i, s| qp.wr_rdma_write(RKEY, remote_addr(i)),
        qp.wr_set_inline_data_list(s.count, s.bufs.as_ptr());
    send_list = |qp, _p, i, s| qp.wr_send(), qp.wr_set_sge_list(s.count, s.entries[i as usize].as_ptr());
    send_inline = |qp, p, i, s| qp.wr_send(), qp.wr_set_inline_data(p.bytes.as_ptr(), s.count);
}

/// # Safety
/// Inside a session.
#[inline(always)]
unsafe fn entry(qp: &mut QpEx<'_>, p: &Places, length: u32) {
    // SAFETY: inside a session (the contract of this function); no device uses the memory.
    unsafe { qp.wr_set_sge(p.lkey, p.addr, length) }
}

/// # Safety
/// Inside a session.
#[inline(always)]
unsafe fn swap(qp: &mut QpEx<'_>, i: u32) {
    // SAFETY: inside a session (the contract of this function).
    unsafe { qp.wr_atomic_cmp_swp(RKEY, remote_addr(i), i.into(), u64::from(i) + 1) }
}

/// # Safety
/// Inside a session.
#[inline(always)]
unsafe fn to_ud(qp: &mut QpEx<'_>, p: &Places) {
    // SAFETY: inside a session (the contract of this function); the address handle lives as long as the process.
    unsafe { qp.wr_set_ud_addr(p.ah.as_raw(), REMOTE_QPN, REMOTE_QKEY) }
}

/// # Safety
/// Inside a session.
#[inline(always)]
unsafe fn to_xrc(qp: &mut QpEx<'_>) {
    // SAFETY: inside a session (the contract of this function).
    unsafe { qp.wr_set_xrc_srqn(REMOTE_SRQN) }
}

/// The function of a row of the table of posts.
pub fn session(post: &Post) -> Option<Session> {
    use Operation as O;
    let session: Session = match (post.operation, post.transport, post.data) {
        (O::LocalInv, ..) => local_inv,
        (O::BindMw, ..) => bind_mw,
        (O::Tso, ..) => tso,
        (_, Transport::Dc, _) => return None,
        (O::Write, _, Data::Entries(_)) => write_list,
        (O::Write, _, Data::Inline(_)) => write_inline,
        (O::Write, _, Data::InlineList(_)) => write_inline_list,
        (O::Send, _, Data::Entries(_)) => send_list,
        (O::Send, _, Data::Inline(_)) => send_inline,
        (O::Send, Transport::Ud, _) => send_ud,
        (O::SendImm, Transport::Ud, _) => send_imm_ud,
        (O::Send, Transport::Xrc, _) => send_xrc,
        (O::SendImm, Transport::Xrc, _) => send_imm_xrc,
        (O::SendInv, Transport::Xrc, _) => send_inv_xrc,
        (O::Write, Transport::Xrc, _) => write_xrc,
        (O::WriteImm, Transport::Xrc, _) => write_imm_xrc,
        (O::Read, Transport::Xrc, _) => read_xrc,
        (O::CmpSwp, Transport::Xrc, _) => cmp_swp_xrc,
        (O::FetchAdd, Transport::Xrc, _) => fetch_add_xrc,
        (O::Send, ..) => send,
        (O::SendImm, ..) => send_imm,
        (O::SendInv, ..) => send_inv,
        (O::Write, ..) => write,
        (O::WriteImm, ..) => write_imm,
        (O::Read, ..) => read,
        (O::CmpSwp, ..) => cmp_swp,
        (O::FetchAdd, ..) => fetch_add,
    };
    Some(session)
}

/// Adds the rows that are not in the table of posts.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    let mut add = |name: &str, operation, data, pair: &'static RefCell<Pair<Rc, L>>| {
        let post = Post { call: Call::Builder, transport: Transport::Rc, operation, data };
        let session = session(&post).expect("a row of RC");
        let shape = &*Box::leak(Box::new(Shape::new(&w.p, data)));
        for batch in [1, BATCH] {
            let chunk = move || run(w, &mut pair.borrow_mut(), batch, session, shape);
            rows.add("raw", name, batch, CHUNK, chunk);
        }
    };
    add("wr inline", Operation::Write, Data::Inline(32), &w.rc_ex);
    add("wr send inline", Operation::Send, Data::Inline(32), &w.rc_ex);
    add("wr send3", Operation::Send, Data::Entries(3), &w.rc3_ex);
}

impl Shape {
    /// The shape of requests with these data.
    pub fn new(p: &Places, data: Data) -> Self {
        let buf = IbvDataBuf { addr: p.bytes.as_ptr(), length: 64 };
        let count = match data {
            Data::Usual => 1,
            Data::Entries(n) | Data::Inline(n) | Data::InlineList(n) => n as usize,
        };
        Self { entries: entries(p, 64), bufs: [buf; 4], bind_info: bind_info(p), count }
    }
}

/// Runs a chunk of sessions on a QP.
pub fn run<L: Face, T: Peer>(
    w: &World<L>,
    pair: &mut Pair<T, L>,
    batch: u32,
    session: Session,
    shape: &Shape,
) {
    pair.chunk_by(
        &w.send_cq,
        |queue| queue.qp_ex().expect("a QP with send operations"),
        // A C program does not know the functions behind the pointers.
        |qp| session(black_box(qp), black_box(&w.p), black_box(batch), black_box(shape)),
    );
}
