// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of many QPs with small rings, to which a program posts in turn and which complete to one CQ; and of one QP with a
//! small ring.
#![expect(unsafe_code)]
// UNSAFETY: C's lists are raw pointers.

use crate::device::Kind;
use crate::face::Face;
use crate::list::{WRITE, sends};
use crate::measure::measured;
use crate::poll::{each, raw};
use crate::posts::Write;
use crate::world::{Cq, Pair, Wants, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::cell::{OnceCell, RefCell};
use core::hint::black_box;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs::wr::SendWr;

/// Requests of a small ring.
const RING: u32 = 4;

/// QPs that complete to one CQ.
#[derive(Debug)]
struct Many<L: Face> {
    pairs: Vec<Pair<Rc, L>>,
    cq: Cq<L>,
    wrs: &'static [SendWr],
    ops: u32,
}

impl<L: Face> Many<L> {
    fn new(w: &World<L>, count: u32) -> Self {
        let ops = count.max(CHUNK);
        let cq = Cq::new(&w.context, (ops * 2).next_power_of_two());
        let pairs = (0..count).map(|_| Pair::new(&w.pd, &cq, &cq, None, small())).collect();
        Self { pairs, cq, wrs: sends(&w.p, WRITE, 1), ops }
    }

    /// Completes what was posted, one QP after the other.
    fn complete(&mut self) {
        let count = self.pairs.len();
        for i in 0..self.ops as usize {
            let pair = &mut self.pairs[i % count];
            self.cq.ring.complete(pair.whose, pair.posted as u16, Kind::Requester);
            pair.posted = pair.posted.wrapping_add(1);
        }
    }
}

/// A QP with a small ring.
fn small() -> Wants {
    Wants { wrs: RING, inline: 0, ..Wants::default() }
}

/// Posts by lists, to one QP after the other.
#[inline(never)]
fn raw_posts<L: Face>(pairs: &[Pair<Rc, L>], wrs: &[SendWr], ops: u32) {
    for i in 0..ops as usize {
        let queue = &pairs[i % pairs.len()].qp.send;
        // SAFETY: a request that lives as long as the process; one thread; no device reads the memory that it names.
        unsafe { queue.post_send(&raw const wrs[i % wrs.len()]) }.unwrap_or_else(ok);
    }
}

/// Posts by the typed face, to one QP after the other.
#[inline(never)]
fn typed_posts<L: Face>(pairs: &mut [Pair<Rc, L>], w: &World<L>, ops: u32) {
    let count = pairs.len();
    for i in 0..ops {
        let queue = &mut pairs[i as usize % count].qp.send;
        L::post::<Mlx5, Rc, Write>(queue, &w.p, i % CHUNK).unwrap_or_else(ok);
    }
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    for count in [64, 1024, 10_000] {
        // Created when a row is first run.
        let many: &'static OnceCell<RefCell<Many<L>>> = Box::leak(Box::default());
        let get = move || many.get_or_init(|| RefCell::new(Many::new(w, count))).borrow_mut();
        let ops = count.max(CHUNK);
        let name = format!("poll {count} QPs");
        rows.add("typed", &name, BATCH, ops, move || {
            let many = &mut *get();
            raw_posts(&many.pairs, many.wrs, ops);
            many.complete();
            each(&mut many.cq, BATCH, ops);
        });
        rows.add("raw", &name, BATCH, ops, move || {
            let many = &mut *get();
            raw_posts(&many.pairs, many.wrs, ops);
            many.complete();
            raw(&many.cq, BATCH, ops);
        });
        let name = format!("post {count} QPs");
        rows.add("typed", &name, 1, ops, move || {
            let many = &mut *get();
            measured(|| typed_posts(black_box(&mut many.pairs), w, ops));
            many.complete();
            drain(&mut many.cq, ops);
        });
        rows.add("raw", &name, 1, ops, move || {
            let many = &mut *get();
            measured(|| raw_posts(black_box(&many.pairs), many.wrs, ops));
            many.complete();
            drain(&mut many.cq, ops);
        });
    }
    let ring: &'static OnceCell<RefCell<Pair<Rc, L>>> = Box::leak(Box::default());
    let get = move || {
        let new = || Pair::new(&w.pd, &w.send_cq.borrow(), &w.recv_cq.borrow(), None, small());
        ring.get_or_init(|| RefCell::new(new())).borrow_mut()
    };
    rows.add("typed", "post small ring", 1, CHUNK, move || {
        for first in (0..CHUNK).step_by(RING as usize) {
            let pair = &mut *get();
            measured(|| {
                let queue = black_box(&mut pair.qp.send);
                for i in first..first + RING {
                    L::post::<Mlx5, Rc, Write>(queue, &w.p, i).unwrap_or_else(ok);
                }
            });
            complete_and_poll(w, pair, first);
        }
    });
    let wrs = sends(&w.p, WRITE, 1);
    rows.add("raw", "post small ring", 1, CHUNK, move || {
        for first in (0..CHUNK).step_by(RING as usize) {
            let pair = &mut *get();
            measured(|| {
                let queue = black_box(&pair.qp.send);
                crate::list::posts(queue, &wrs[first as usize..(first + RING) as usize], 1);
            });
            complete_and_poll(w, pair, first);
        }
    });
}

/// Completes and polls the requests of a small ring from the `first` on.
fn complete_and_poll<L: Face>(w: &World<L>, pair: &mut Pair<Rc, L>, first: u32) {
    pair.posted = pair.posted.wrapping_add(RING);
    let cq = &mut *w.send_cq.borrow_mut();
    cq.ring.complete(pair.whose, (pair.posted - 1) as u16, Kind::Requester);
    cq.drain(1, u64::from(first + RING - 1));
}

/// Polls so many completions.
fn drain<L: Face>(cq: &mut Cq<L>, n: u32) {
    let mut left = n as usize;
    while left > 0 {
        let got = L::poll_each(&mut cq.queue, left, |_| {}).unwrap_or_else(ok);
        assert_ne!(got, 0, "completions");
        left -= got;
    }
}
