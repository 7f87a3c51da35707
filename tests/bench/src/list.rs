// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: `ibv_post_send`, lists of C's work requests.
#![expect(unsafe_code)]
// UNSAFETY: C's lists are raw pointers.

use crate::burst::Burst;
use crate::face::{Face, Peer, REMOTE_QKEY, REMOTE_QPN};
use crate::places::{Places, RKEY, remote_addr};
use crate::world::{Pair, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::cell::RefCell;
use core::hint::black_box;
use uverbs::mlx5::Mlx5;
use uverbs::qp::SendQueue;
use uverbs::wr::{RecvWr, SendFlags, SendWr, Sge, WrAtomic, WrOpcode, WrRdma, WrUd};
use uverbs::{Exclusive, Rc};

/// The operation of the requests of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An RDMA write of one entry.
    Write,
    /// An RDMA write of 32 bytes inline.
    Inline,
    /// A send of one entry.
    Send,
    /// A send of three entries.
    Send3,
    /// A compare and swap.
    CompareSwap,
    /// A datagram.
    Datagram,
}

/// The entries of a chunk's requests, three to each; they live as long as the process.
fn entries(p: &Places, length: u32) -> &'static [[Sge; 3]] {
    let sge = |k: u64| Sge { addr: p.addr + 64 * k, length, lkey: p.lkey };
    vec![[sge(0), sge(1), sge(2)]; CHUNK as usize].leak()
}

/// Three entries of 64 bytes for each request of a chunk.
pub fn three_entries(p: &Places) -> &'static [[Sge; 3]] {
    entries(p, 64)
}

/// A chunk of requests, linked into lists of `batch`. It lives as long as the process.
pub fn sends(p: &Places, what: What, batch: u32) -> &'static [SendWr] {
    let length = match what {
        What::Inline => 32,
        What::CompareSwap => 8,
        _ => 64,
    };
    let entries = entries(p, length);
    let request = |i: u32| {
        let mut wr = SendWr::new(
            i.into(),
            match what {
                What::Write | What::Inline => WrOpcode::RDMA_WRITE,
                What::CompareSwap => WrOpcode::ATOMIC_CMP_AND_SWP,
                _ => WrOpcode::SEND,
            },
        );
        wr.sg_list = entries[i as usize].as_ptr();
        wr.num_sge = if what == What::Send3 { 3 } else { 1 };
        let inline = if what == What::Inline { SendFlags::INLINE } else { SendFlags::empty() };
        wr.send_flags = (SendFlags::SIGNALED | inline).bits();
        let (remote_addr, rkey, number) = (remote_addr(i), RKEY, u64::from(i));
        match what {
            What::Write | What::Inline => wr.wr.rdma = WrRdma { remote_addr, rkey },
            What::CompareSwap => {
                wr.wr.atomic = WrAtomic { remote_addr, compare_add: number, swap: number + 1, rkey };
            }
            What::Datagram => {
                wr.wr.ud = WrUd { ah: p.ah.as_raw(), remote_qpn: REMOTE_QPN, remote_qkey: REMOTE_QKEY };
            }
            What::Send | What::Send3 => {}
        }
        wr
    };
    let wrs = (0..CHUNK).map(request).collect::<Vec<_>>().leak();
    for i in (0..CHUNK).filter(|i| i % batch != batch - 1) {
        wrs[i as usize].next = &raw const wrs[i as usize + 1];
    }
    wrs
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
    add(rows, w, "post_send write", What::Write, &w.rc, 1);
    add(rows, w, "post_send inline", What::Inline, &w.rc, 2);
    add(rows, w, "post_send send", What::Send, &w.rc, 1);
    add(rows, w, "post_send send3", What::Send3, &w.rc3, 1);
    add(rows, w, "post_send cmp_swp", What::CompareSwap, &w.rc, 1);
    add(rows, w, "post_send ud", What::Datagram, &w.ud, 2);
}

fn add<L: Face, T: Peer>(
    rows: &mut Rows,
    w: &'static World<L>,
    name: &str,
    what: What,
    pair: &'static RefCell<Pair<T, L>>,
    blocks: u32,
) {
    for batch in [1, BATCH] {
        let wrs = sends(&w.p, what, batch);
        rows.add("raw", name, batch, CHUNK, move || post(w, pair, blocks, wrs, batch));
    }
}

fn post<L: Face, T: Peer>(w: &World<L>, pair: &RefCell<Pair<T, L>>, blocks: u32, wrs: &[SendWr], batch: u32) {
    pair.borrow_mut().chunk(&w.send_cq, blocks, |queue| posts(queue, wrs, black_box(batch as usize)));
}

#[inline(never)]
fn posts<L: Face, T: Peer>(queue: &SendQueue<Mlx5, T, L>, wrs: &[SendWr], batch: usize) {
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
        let wrs = sends(&w.p, What::Write, batch);
        rows.add("raw", "post_send write burst", batch, CHUNK, move || {
            let posts = |queue: &mut _| burst_posts(queue, wrs, black_box(batch as usize), target);
            w.rc.borrow_mut().chunk(&w.send_cq, 1, posts);
        });
    }
}

#[inline(never)]
fn burst_posts(queue: &SendQueue<Mlx5, Rc, Exclusive>, wrs: &[SendWr], batch: usize, target: &Burst) {
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
