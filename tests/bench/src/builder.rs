// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: the `wr_*` calls of `ibv_wr_start` and `ibv_wr_complete`.
#![expect(unsafe_code)]
// UNSAFETY: C's calls name memory.

use crate::face::{Face, Peer, REMOTE_QKEY, REMOTE_QPN};
use crate::list::three_entries;
use crate::places::{Places, RKEY, remote_addr};
use crate::world::{Pair, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::cell::RefCell;
use core::hint::black_box;
use uverbs::provider::raw::QpEx;
use uverbs::wr::{SendFlags, Sge};

/// A request by the calls of a session that is open.
trait Calls {
    /// # Safety
    /// Inside a session of this thread.
    unsafe fn put(qp: &mut QpEx<'_>, p: &Places, i: u32, three: &[[Sge; 3]]);
}

/// Defines requests: the statements are calls on `qp` with the places `p`, the number `i` and the lists of entries `three`.
macro_rules! calls {
    ($($name:ident = |$qp:ident, $p:ident, $i:ident, $three:ident| $($call:expr),+;)*) => {$(
        struct $name;
        impl Calls for $name {
            #[inline(always)]
            unsafe fn put($qp: &mut QpEx<'_>, $p: &Places, $i: u32, $three: &[[Sge; 3]]) {
                // SAFETY: the caller is inside a session; the memory lives as long as the process.
                $(unsafe { $call };)+
            }
        }
    )*};
}

calls! {
    Write = |qp, p, i, _t| qp.wr_rdma_write(RKEY, remote_addr(i)), qp.wr_set_sge(p.lkey, p.addr, 64);
    Inline = |qp, p, i, _t| qp.wr_rdma_write(RKEY, remote_addr(i)), qp.wr_set_inline_data(p.data.as_ptr(), 32);
    Send = |qp, p, _i, _t| qp.wr_send(), qp.wr_set_sge(p.lkey, p.addr, 64);
    SendInline = |qp, p, _i, _t| qp.wr_send(), qp.wr_set_inline_data(p.data.as_ptr(), 32);
    Send3 = |qp, _p, i, three| qp.wr_send(), qp.wr_set_sge_list(3, three[i as usize].as_ptr());
    Read = |qp, p, i, _t| qp.wr_rdma_read(RKEY, remote_addr(i)), qp.wr_set_sge(p.lkey, p.addr, 64);
    FetchAdd = |qp, p, i, _t| qp.wr_atomic_fetch_add(RKEY, remote_addr(i), 7), qp.wr_set_sge(p.lkey, p.addr, 8);
    Datagram = |qp, p, _i, _t| qp.wr_send(), qp.wr_set_ud_addr(p.ah.as_raw(), REMOTE_QPN, REMOTE_QKEY),
        qp.wr_set_sge(p.lkey, p.addr, 64);
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    add::<L, _, Write>(rows, w, "wr write", &w.rc_ex, 1);
    add::<L, _, Inline>(rows, w, "wr inline", &w.rc_ex, 2);
    add::<L, _, Send>(rows, w, "wr send", &w.rc_ex, 1);
    add::<L, _, SendInline>(rows, w, "wr send inline", &w.rc_ex, 1);
    add::<L, _, Send3>(rows, w, "wr send3", &w.rc3_ex, 1);
    add::<L, _, Read>(rows, w, "wr read", &w.rc_ex, 1);
    add::<L, _, FetchAdd>(rows, w, "wr fetch_add", &w.rc_ex, 1);
    add::<L, _, Datagram>(rows, w, "wr ud", &w.ud_ex, 2);
}

fn add<L: Face, T: Peer, C: Calls + 'static>(
    rows: &mut Rows,
    w: &'static World<L>,
    name: &str,
    pair: &'static RefCell<Pair<T, L>>,
    blocks: u32,
) {
    let three = three_entries(&w.p);
    for batch in [1, BATCH] {
        rows.add("raw", name, batch, CHUNK, move || run::<L, T, C>(w, pair, blocks, batch, three));
    }
}

fn run<L: Face, T: Peer, C: Calls>(
    w: &World<L>,
    pair: &RefCell<Pair<T, L>>,
    blocks: u32,
    batch: u32,
    three: &[[Sge; 3]],
) {
    pair.borrow_mut().chunk_by(
        &w.send_cq,
        blocks,
        |queue| queue.qp_ex().expect("a QP with send operations"),
        // A C program does not know the functions behind the pointers.
        |qp| sessions::<C>(black_box(qp), black_box(&w.p), black_box(batch), three),
    );
}

#[inline(never)]
fn sessions<C: Calls>(qp: &mut QpEx<'_>, p: &Places, batch: u32, three: &[[Sge; 3]]) {
    let mut first = 0;
    while first < CHUNK {
        // SAFETY: one thread, no session is open.
        unsafe { qp.wr_start() };
        for i in first..first + batch {
            qp.wr_id = i.into();
            qp.wr_flags = SendFlags::SIGNALED.bits();
            // SAFETY: inside the session.
            unsafe { C::put(qp, p, i, three) };
        }
        // SAFETY: inside the session.
        unsafe { qp.wr_complete() }.unwrap_or_else(ok);
        first += batch;
    }
}
