// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completions in any order: a work request's buffer comes back with its own completion, not before.

use crate::bed::{BUFS, QKEY, on_both, pair};
use std::collections::BTreeSet;
use uverbs::Driver;

on_both! { a_buffer_comes_back_with_its_own_completion slots_are_used_again_in_any_order }

/// Posts sends of very different lengths, and polls one completion after the other. Returns the order of the completions.
fn a_round<D: Driver>(seed: u64) -> Vec<u64> {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(seed);
    a.device.fabric().loss(0.2);
    b.receives(16);
    for n in 0..16 {
        let buf = a.filled(&vec![n as u8; if n % 2 == 0 { 4000 } else { 1 }]);
        a.qp.sq().post_to(n, &to_b, b.here.qp_num, QKEY).send(buf).unwrap();
    }
    let mut order = Vec::new();
    for n in 1..=16 {
        let done = a.ok();
        let wr_id = done.wc.wr_id;
        assert_eq!(a.pool.available(), BUFS - 16 + n - 1, "seed {seed}: only what is complete came back");
        assert!(done.buf().unwrap().iter().all(|byte| u64::from(*byte) == wr_id));
        order.push(wr_id);
    }
    assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 16);
    assert_eq!((a.cq.unmatched().unwrap(), a.pool.available()), (0, BUFS));
    order
}

fn a_buffer_comes_back_with_its_own_completion<D: Driver>() {
    let orders: Vec<_> = (0..16).map(a_round::<D>).collect();
    assert!(orders.iter().any(|order| !order.is_sorted()), "the device completes in any order: {orders:?}");
}

/// The oldest request stays in flight while others complete: the slots of these are used again.
fn slots_are_used_again_in_any_order<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(5);
    // It waits for a receive of a QP that has none.
    let cq = b.context.cq_with::<uverbs::Exclusive>(64, None).unwrap();
    let waiting = b.pd.qp::<uverbs::Srd>().cq(&cq).cap(crate::bed::CAP).create().unwrap();
    let there = crate::bed::start(&waiting);
    let buf = a.filled(b"waits");
    a.qp.sq().post_to(999, &to_b, there.qp_num, QKEY).send(buf).unwrap();
    let mut posted = 0_u64;
    for round in 0..20 {
        b.receives(15);
        let mut batch = a.qp.sq().batch();
        let bufs: Vec<_> =
            (0..15).map(|n| (round * 15 + n, a.pool.get().unwrap().filled(&[n as u8]).into_buf())).collect();
        for (wr_id, buf) in bufs {
            batch.wr_to(wr_id, &to_b, b.here.qp_num, QKEY).send(buf.unwrap());
            posted += 1;
        }
        batch.complete().unwrap();
        let mut done: Vec<_> = (0..15).map(|_| a.ok().wc.wr_id).collect();
        done.sort_unstable();
        assert_eq!(done, (round * 15..round * 15 + 15).collect::<Vec<_>>());
        (0..15).for_each(|_| drop(b.ok()));
        assert_eq!(a.pool.available(), BUFS - 1, "one is in flight");
        // Those that fail are taken back, with the slots that they had skipped.
        let buf = a.filled(&[0; 100]);
        let refused = a.qp.sq().post_to(1, &to_b, 1 << 16, QKEY).send(buf);
        assert_eq!(refused.unwrap_err().error.reason, uverbs::PostError::InvalidArgument);
        let buf = a.filled(&[0; 100]);
        let mut batch = a.qp.sq().batch();
        batch.wr_to(1, &to_b, 1 << 16, QKEY).send(buf);
        batch.complete().unwrap_err();
    }
    assert_eq!(posted, 300);
    #[cfg(feature = "counters")]
    assert_eq!(a.qp.counters().send.posts, posted + 1);
    assert_eq!(a.pool.available(), BUFS - 1);
    a.qp.reset().unwrap();
    assert_eq!(a.pool.available(), BUFS);
    assert_eq!(a.cq.unmatched().unwrap(), 0);
}
