// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control calls while other threads post and poll: resets, destruction with numbers that are used again, and the end of a CQ.

use crate::bed::{BUFS, CAP, QKEY, SIZE, attr, on_both};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeSet;
use std::time::Instant;
use uverbs::{Context, Driver, Srd};
use uverbs_efa_device::{EfaDevice, Fabric};
use uverbs_testkit::stress::length;

on_both! { numbers_are_used_again_while_another_thread_polls cqs_end_while_others_are_polled }

/// QPs come and go, with sends in flight, while another thread polls their CQ. No completion of an earlier QP gives the buffer of a later
/// one back.
fn numbers_are_used_again_while_another_thread_polls<D: Driver>() {
    let device = Fabric::new(3).device("efa_0").build();
    device.fabric().loss(0.1);
    let context = Context::<D>::from_kernel(device.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.cq_with::<uverbs::Shared>(256, None).unwrap();
    let pool = pd.pool(BUFS as u32, SIZE).unwrap();
    let (stop, polled) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut numbers = BTreeSet::new();
    let mut qps = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let n = cq.poll_each(16, |done| {
                    let wr_id = done.wr_id();
                    let received = done.wc().opcode == uverbs::WcOpcode::RECV;
                    let buf = done.buf().expect("a buffer");
                    // A send's buffer has the number of its QP's life.
                    assert!(received || buf.iter().all(|byte| *byte == wr_id as u8), "of another request");
                });
                match n.unwrap() {
                    0 => std::thread::yield_now(),
                    n => drop(polled.fetch_add(n as u64, Ordering::Relaxed)),
                }
            }
        });
        let end = Instant::now() + length() * 2 / 3;
        // Until a number is used again; on a slow machine, or under emulation, this takes longer.
        let limit = end + Duration::from_secs(120);
        let has_reused = |numbers: &BTreeSet<u32>, qps: u64| (numbers.len() as u64) < qps;
        while Instant::now() < end || (!has_reused(&numbers, qps) && Instant::now() < limit) {
            qps += 1;
            let mut qp = pd.qp::<Srd>().cq(&cq).cap(CAP).create().unwrap();
            numbers.insert(qp.qp_num());
            for life in 0..2 {
                let here = crate::bed::start(&qp);
                let ah = pd.create_ah(&attr().on(&context).unwrap().ah_attr(&here)).unwrap();
                for n in 0..6_u64 {
                    if let Ok(buf) = pool.get() {
                        let _ = qp.rq().unwrap().post(n, buf);
                    }
                    if let Ok(mut buf) = pool.get() {
                        let wr_id = (qps * 16 + n) & 0xff;
                        buf.fill(&[wr_id as u8; 700]).unwrap();
                        let _ = qp.sq().post_to(wr_id, &ah, here.qp_num, QKEY).send(buf);
                    }
                }
                if qps % 3 == 0 {
                    std::thread::yield_now();
                }
                if life == 0 {
                    qp.reset().unwrap();
                }
            }
            qp.close().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!((numbers.len() as u64) < qps, "{qps} QPs with {} numbers", numbers.len());
    assert_eq!(pool.available(), BUFS, "after {qps} QPs and {polled:?} completions");
    assert_eq!((cq.unmatched().unwrap(), device.violations()), (0, vec![]));
}

/// The number of a CQ that ends is used again by the next one, while a thread polls another CQ, and the doorbells of all share a page.
fn cqs_end_while_others_are_polled<D: Driver>() {
    let device = EfaDevice::new();
    let context = Context::<D>::from_kernel(device.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let stop = AtomicBool::new(false);
    let steady = context.shared_cq(64).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                steady.req_notify(false).unwrap();
                steady.poll_each(16, |done| drop(done)).unwrap();
            }
        });
        let end = Instant::now() + length() / 3;
        let mut rounds = 0;
        while Instant::now() < end || rounds < 10 {
            rounds += 1;
            let mut cq = context.cq(16).unwrap();
            let mut qp = pd.qp::<Srd>().send_cq(&cq).recv_cq(&steady).cap(CAP).create().unwrap();
            let here = crate::bed::start(&qp);
            let ah = pd.create_ah(&attr().on(&context).unwrap().ah_attr(&here)).unwrap();
            cq.req_notify(false).unwrap();
            qp.sq().post_to(rounds, &ah, here.qp_num, QKEY).send_inline(b"x").unwrap();
            if rounds % 2 == 0 {
                // The peer has no receive, so nothing is complete; the other half ends with a completion in the ring.
                let _ = cq.poll_one().unwrap();
            }
            drop((qp, cq));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(device.violations(), []);
}
