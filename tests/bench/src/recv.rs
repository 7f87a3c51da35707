// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: posts of receives, to a QP's own queue and to an SRQ, by the typed face and by C's lists.
#![expect(unsafe_code)]
// UNSAFETY: C's lists are raw pointers.

use crate::device::Kind;
use crate::face::{Device, Face};
use crate::list::recvs;
use crate::measure::measured;
use crate::places::Places;
use crate::world::{Cq, Pair, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::hint::black_box;
use uverbs::mlx5::Mlx5;
use uverbs::raw::RecvQueue;
use uverbs::wr::RecvWr;
use uverbs::{Driver, Rc, raw::Srq};

/// Completes a chunk of receives of the QP's own queue.
pub fn complete<L: Face>(pair: &mut Pair<Rc, L>, cq: &mut Cq<L>, kind: Kind) {
    for _ in 0..CHUNK {
        cq.ring.complete(pair.whose, pair.received, kind);
        pair.received = pair.received.wrapping_add(1);
    }
}

/// Completes a chunk of receives of the SRQ.
pub fn complete_srq<L: Face>(w: &World<L>, cq: &mut Cq<L>) {
    let (pair, mut free) = (w.rc_srq.borrow(), w.free.borrow_mut());
    for _ in 0..CHUNK {
        cq.ring.complete(pair.whose, free.take(), Kind::Responder);
    }
}

fn complete_and_poll<L: Face>(w: &World<L>) {
    let mut cq = w.recv_cq.borrow_mut();
    complete(&mut w.rc.borrow_mut(), &mut cq, Kind::Responder);
    cq.drain(CHUNK, u64::from(CHUNK) - 1);
}

fn complete_and_poll_srq<L: Face>(w: &World<L>) {
    let mut cq = w.recv_cq.borrow_mut();
    complete_srq(w, &mut cq);
    cq.drain(CHUNK, u64::from(CHUNK) - 1);
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    let own = move |posts: fn(&mut RecvQueue<L, Mlx5>, &Places)| {
        move || {
            let mut pair = w.rc.borrow_mut();
            let queue = pair.qp.recv.as_mut().expect("a receive queue");
            measured(|| posts(queue, black_box(&w.p)));
            drop(pair);
            complete_and_poll(w);
        }
    };
    rows.add("typed", "post_recv", 1, CHUNK, own(singles::<Mlx5, L, 1>));
    rows.add("typed", "post_recv", BATCH, CHUNK, own(batches::<Mlx5, L, 1>));
    let shared = move |posts: fn(&mut Srq<L, Mlx5>, &Places)| {
        move || {
            measured(|| posts(&mut w.srq.borrow_mut(), black_box(&w.p)));
            complete_and_poll_srq(w);
        }
    };
    rows.add("typed", "post_srq_recv", 1, CHUNK, shared(srq_singles));
    rows.add("typed", "post_srq_recv", BATCH, CHUNK, shared(srq_batches));
    for batch in [1, BATCH] {
        let wrs = recvs(&w.p, batch);
        rows.add("raw", "post_recv", batch, CHUNK, move || {
            let mut pair = w.rc.borrow_mut();
            let queue = pair.qp.recv.as_mut().expect("a receive queue");
            measured(|| lists(queue, wrs, black_box(batch as usize)));
            drop(pair);
            complete_and_poll(w);
        });
        rows.add("raw", "post_srq_recv", batch, CHUNK, move || {
            measured(|| srq_lists(&w.srq.borrow(), wrs, black_box(batch as usize)));
            complete_and_poll_srq(w);
        });
    }
}

#[inline(never)]
pub fn singles<D: Device, L: Face, const N: usize>(queue: &mut RecvQueue<L, D>, p: &D::Places) {
    for i in 0..CHUNK {
        L::recv::<D, N>(queue, p, i).unwrap_or_else(ok);
    }
}

#[inline(never)]
pub fn batches<D: Device, L: Face, const N: usize>(queue: &mut RecvQueue<L, D>, p: &D::Places) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        L::recv_batch::<D, N>(queue, p, first).unwrap_or_else(ok);
    }
}

#[inline(never)]
fn srq_singles<L: Face>(srq: &mut Srq<L, Mlx5>, p: &Places) {
    for i in 0..CHUNK {
        L::srq_recv::<Mlx5, 1>(srq, p, i).unwrap_or_else(ok);
    }
}

#[inline(never)]
fn srq_batches<L: Face>(srq: &mut Srq<L, Mlx5>, p: &Places) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        L::srq_recv_batch::<Mlx5, 1>(srq, p, first).unwrap_or_else(ok);
    }
}

#[inline(never)]
pub fn lists<D: Driver, L: Face>(queue: &RecvQueue<L, D>, wrs: &[RecvWr], batch: usize) {
    let mut first = 0;
    while first < wrs.len() {
        // SAFETY: lists that live as long as the process; one thread; no device writes the memory that they name.
        unsafe { queue.post_recv(&raw const wrs[first]) }.unwrap_or_else(ok);
        first += batch;
    }
}

#[inline(never)]
fn srq_lists<L: Face>(srq: &Srq<L, Mlx5>, wrs: &[RecvWr], batch: usize) {
    let mut first = 0;
    while first < wrs.len() {
        // SAFETY: the list lives as long as the process, one thread uses the queue, and no device writes the memory
        // that it names.
        unsafe { srq.post_srq_recv(&raw const wrs[first]) }.unwrap_or_else(ok);
        first += batch;
    }
}
