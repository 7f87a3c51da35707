// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of many QPs: a CQ to which they complete in turn, and the fifth exclusive QP of a context.
#![expect(unsafe_code)]
// UNSAFETY: C's lists are raw pointers.

use crate::device::Kind;
use crate::face::Face;
use crate::list::{What, sends};
use crate::poll::{each, raw};
use crate::world::{Cq, Pair, Wants, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::cell::{OnceCell, RefCell};
use uverbs::Rc;
use uverbs::wr::SendWr;

/// QPs that complete to one CQ.
#[derive(Debug)]
struct Many<L: Face> {
    pairs: Vec<Pair<Rc, L>>,
    cq: Cq<L>,
    wrs: &'static [SendWr],
}

impl<L: Face> Many<L> {
    fn new(w: &World<L>, count: u32) -> Self {
        let cq = Cq::new(&w.context, count.max(CHUNK) * 2);
        let wants = Wants { wrs: 4, ..Wants::default() };
        let pairs = (0..count).map(|_| Pair::new(&w.pd, &cq, &cq, None, wants)).collect();
        Self { pairs, cq, wrs: sends(&w.p, What::Write, 1) }
    }

    /// Posts and completes `ops` requests, one QP after the other.
    fn fill(&mut self, ops: u32) {
        let count = self.pairs.len();
        for i in 0..ops as usize {
            let pair = &mut self.pairs[i % count];
            let queue = pair.qp.send.as_ref().expect("a send queue");
            // SAFETY: a request that lives as long as the process; one thread; no device reads the memory that it
            // names.
            unsafe { queue.post_send(&raw const self.wrs[i % self.wrs.len()]) }.unwrap_or_else(ok);
            self.cq.ring.complete(pair.whose, pair.posted as u16, Kind::Requester);
            pair.posted = pair.posted.wrapping_add(1);
        }
    }
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    for count in [64, 4096] {
        // Created when a row is first run.
        let many: &'static OnceCell<RefCell<Many<L>>> = Box::leak(Box::default());
        let get = move || many.get_or_init(|| RefCell::new(Many::new(w, count))).borrow_mut();
        let (name, ops) = (format!("poll {count} QPs"), count.max(CHUNK));
        rows.add("typed", &name, BATCH, ops, move || {
            let mut many = get();
            many.fill(ops);
            each(&mut many.cq, BATCH, ops);
        });
        rows.add("raw", &name, BATCH, ops, move || {
            let mut many = get();
            many.fill(ops);
            raw(&many.cq, BATCH, ops);
        });
    }
}
