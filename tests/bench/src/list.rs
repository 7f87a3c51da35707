// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: `ibv_post_send`, lists of C's work requests.
#![expect(unsafe_code)]
// UNSAFETY: C's lists are raw pointers.

use crate::burst::Burst;
use crate::face::{Face, REMOTE_QKEY, REMOTE_QPN, REMOTE_SRQN};
use crate::matrix::{Call, Data, Operation, Post, Transport};
use crate::places::{MAX_ENTRIES, MSS, Places, RKEY, remote_addr};
use crate::world::{Pair, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::cell::RefCell;
use core::hint::black_box;
use uverbs::mlx5::Mlx5;
use uverbs::provider::op::MwBind;
use uverbs::qp::transport::Sends;
use uverbs::raw::SendQueue;
use uverbs::wr::{
    IbvMwBindInfo, RecvWr, SendFlags, SendWr, Sge, WrAtomic, WrBindMw, WrOpcode, WrRdma, WrTso, WrUd,
};
use uverbs::{Driver, Exclusive, Rc};

/// RDMA writes of one entry.
pub const WRITE: Post = post(Operation::Write, Data::Usual);

/// A post by a list, of an RC QP.
const fn post(operation: Operation, data: Data) -> Post {
    Post { call: Call::List, transport: Transport::Rc, operation, data }
}

/// The entries of a request.
pub type Entries = [Sge; MAX_ENTRIES];

/// The entries of a chunk's requests; they live as long as the process.
pub fn entries(p: &Places, length: u32) -> &'static [Entries] {
    let sge = |k: usize| Sge { addr: p.addr + 64 * k as u64, length, lkey: p.lkey };
    vec![core::array::from_fn(sge); CHUNK as usize].leak()
}

/// A chunk of requests, linked into lists of `batch`. It lives as long as the process.
pub fn sends(p: &Places, post: Post, batch: u32) -> &'static [SendWr] {
    let (operation, is_inline) = (post.operation, matches!(post.data, Data::Inline(_)));
    let (num_sge, length) = match post.data {
        Data::Usual if matches!(operation, Operation::CmpSwp | Operation::FetchAdd) => (1, 8),
        Data::Usual if matches!(operation, Operation::LocalInv | Operation::BindMw) => (0, 0),
        Data::Usual => (1, 64),
        Data::Entries(n) => (n, 64),
        Data::Inline(n) => (1, n),
        Data::InlineList(n) => (n, 64),
    };
    let entries = entries(p, length);
    let request = |i: u32| {
        let mut wr = SendWr::new(i.into(), WrOpcode(operation.opcode()));
        wr.sg_list = entries[i as usize].as_ptr();
        wr.num_sge = num_sge as i32;
        let inline = if is_inline { SendFlags::INLINE } else { SendFlags::empty() };
        wr.send_flags = (SendFlags::SIGNALED | inline).bits();
        wr.imm_data_or_invalidate_rkey = p.imm(i).to_be();
        let (remote_addr, rkey, number) = (remote_addr(i), RKEY, u64::from(i));
        match operation {
            Operation::CmpSwp | Operation::FetchAdd => {
                wr.wr.atomic = WrAtomic { remote_addr, compare_add: number, swap: number + 1, rkey };
            }
            Operation::LocalInv => wr.imm_data_or_invalidate_rkey = p.window_key,
            Operation::BindMw => {
                wr.tail.bind_mw =
                    WrBindMw { mw: p.raw_window(), rkey: p.window_key, bind_info: bind_info(p) };
            }
            Operation::Tso => {
                let hdr_sz = p.header.len() as u16;
                wr.tail.tso = WrTso { hdr: p.header.as_ptr(), hdr_sz, mss: MSS };
            }
            _ if post.transport == Transport::Ud => {
                wr.wr.ud = WrUd { ah: p.ah.as_raw(), remote_qpn: REMOTE_QPN, remote_qkey: REMOTE_QKEY };
            }
            _ => wr.wr.rdma = WrRdma { remote_addr, rkey },
        }
        wr.xrc_remote_srqn = REMOTE_SRQN;
        wr
    };
    let wrs = (0..CHUNK).map(request).collect::<Vec<_>>().leak();
    for i in (0..CHUNK).filter(|i| i % batch != batch - 1) {
        wrs[i as usize].next = &raw const wrs[i as usize + 1];
    }
    wrs
}

/// A bind of the places' window to their region.
pub fn bind_info(p: &Places) -> IbvMwBindInfo {
    let MwBind { addr, length, access, .. } = p.bind;
    IbvMwBindInfo { mr: p.raw_region(), addr, length, mw_access_flags: access }
}

/// A chunk of receives, linked into lists of `batch`. It lives as long as the process.
pub fn recvs(p: &Places, batch: u32) -> &'static [RecvWr] {
    let entries = entries(p, 64);
    let receive = |i: u32| {
        let mut wr = RecvWr::new(i.into());
        (wr.sg_list, wr.num_sge) = (entries[i as usize].as_ptr(), 1);
        wr
    };
    let wrs = (0..CHUNK).map(receive).collect::<Vec<_>>().leak();
    for i in (0..CHUNK).filter(|i| i % batch != batch - 1) {
        wrs[i as usize].next = &raw const wrs[i as usize + 1];
    }
    wrs
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    add(rows, w, "post_send inline", post(Operation::Write, Data::Inline(32)), &w.rc);
    add(rows, w, "post_send send3", post(Operation::Send, Data::Entries(3)), &w.rc3);
}

fn add<L: Face>(
    rows: &mut Rows,
    w: &'static World<L>,
    name: &str,
    post: Post,
    pair: &'static RefCell<Pair<Rc, L>>,
) {
    for batch in [1, BATCH] {
        let wrs = sends(&w.p, post, batch);
        rows.add("raw", name, batch, CHUNK, move || {
            pair.borrow_mut().chunk(&w.send_cq, |queue| posts(queue, wrs, black_box(batch as usize)));
        });
    }
}

/// Posts a chunk, in lists of `batch`.
#[inline(never)]
pub fn posts<D: Driver, L: Face, T: Sends>(queue: &SendQueue<T, L, D>, wrs: &[SendWr], batch: usize) {
    let mut first = 0;
    while first < wrs.len() {
        // SAFETY: lists that live as long as the process; one thread; no device reads the memory that they name.
        unsafe { queue.post_send(&raw const wrs[first]) }.unwrap_or_else(ok);
        first += batch;
    }
}

/// Adds the rows of exclusive queues alone: with bursts to write-combining memory.
pub fn more_rows(rows: &mut Rows, w: &'static World<Exclusive>) {
    let target = &*Box::leak(Box::new(Burst::default()));
    for batch in [1, BATCH] {
        let wrs = sends(&w.p, WRITE, batch);
        rows.add("raw", "post_send write burst", batch, CHUNK, move || {
            let posts = |queue: &mut _| burst_posts(queue, wrs, black_box(batch as usize), target);
            w.rc.borrow_mut().chunk(&w.send_cq, posts);
        });
    }
}

#[inline(never)]
fn burst_posts(queue: &SendQueue<Rc, Exclusive, Mlx5>, wrs: &[SendWr], batch: usize, target: &Burst) {
    let mut first = 0;
    while first < wrs.len() {
        // SAFETY: lists that live as long as the process; one thread; no device reads the memory that they name.
        unsafe { queue.post_send(&raw const wrs[first]) }.unwrap_or_else(ok);
        if batch == 1 {
            target.write::<8>(first)
        } else {
            target.write::<1>(first / batch)
        }
        first += batch;
    }
}
