// SPDX-License-Identifier: MIT OR Apache-2.0
//! A poll that stalls when it has left the queue, while the queue of its completion ends and its number is given to a new one.

use crate::cq::*;
use crate::flight::{Flight, QueueKind};
use crate::pool::NO_DOMAIN;
use crate::{AnyDriver, ConnectAttr, ProtectionDomain, Rc};
use crate::{Pool, Qp, Srq};
use core::cell::RefCell;
use uverbs_core::attr::{QpCap, SrqAttr, SrqInitAttr};
use uverbs_hca::Hca;
use uverbs_mlx5::Mlx5;

/// Calls a function when the poll has left the queue, as if the thread were stopped there and others went on.
struct Stall<C, S> {
    inner: C,
    stall: S,
}

impl<Q: Engine + ?Sized, C: Claimant<Q>, S: FnMut()> Claimant<Q> for Stall<C, S> {
    type Claim = C::Claim;
    fn claim(&mut self, completion: &Q::Completion<'_>) -> C::Claim {
        self.inner.claim(completion)
    }
    fn pass(&mut self, completion: &Q::Completion<'_>, claim: C::Claim) {
        (self.stall)();
        self.inner.pass(completion, claim);
    }
}

/// As [`Stall`], but claims after the stall: what a poll must not do.
struct Late<C, S> {
    inner: C,
    stall: S,
}

impl<Q: Engine + ?Sized, C: Claimant<Q>, S: FnMut()> Claimant<Q> for Late<C, S> {
    type Claim = ();
    fn claim(&mut self, _: &Q::Completion<'_>) {}
    fn pass(&mut self, completion: &Q::Completion<'_>, (): ()) {
        (self.stall)();
        let claim = self.inner.claim(completion);
        self.inner.pass(completion, claim);
    }
}

type SharedCq<D> = Cq<Shared, D>;

const BUFS: usize = 32;
const CAP: QpCap = QpCap::new(16, 16).inline(64);

struct Bed<D: Driver> {
    pool: Pool<Private, D>,
    cq: SharedCq<D>,
    srq: Srq<Exclusive, D>,
    pd: ProtectionDomain<D>,
    context: Context<D>,
    hca: Hca,
}

impl<D: Driver> Bed<D> {
    fn new() -> Self {
        let hca = Hca::new();
        let context = Context::<D>::from_kernel(hca.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let limits = SrqAttr::new(16);
        let srq = pd.srq(&SrqInitAttr::new(limits)).unwrap();
        let (pool, cq) = (pd.pool(BUFS as u32, 64).unwrap(), context.cq_with(64, None).unwrap());
        Self { pool, cq, srq, pd, context, hca }
    }

    fn buf(&self) -> Buf<Private, D> {
        let mut buf = self.pool.get().unwrap();
        buf.fill(b"bytes").unwrap();
        buf
    }

    /// A QP that is connected to itself, with receives of its own or of the shared queue.
    fn qp(&self, shared: bool) -> Qp<Rc, Exclusive, D> {
        let builder = self.pd.qp::<Rc>().cq(&self.cq).cap(CAP);
        let qp = if shared { builder.srq(&self.srq) } else { builder }.create().unwrap();
        connect(&qp);
        qp
    }

    /// After the destruction of a QP: creates and destroys queues until those of the next QP get these numbers again.
    fn spin(&self, [send, recv]: &[u32; 2]) {
        let context = self.context.inner();
        let queue = || Flight::new(context, QueueKind::Recv { cq: u64::MAX }, NO_DOMAIN, 1, 1).unwrap();
        // Without the bit that tells sends from receives.
        let is_before = |queue: &Flight<D>, key: &u32| queue.slab.key() << 1 == before(*key) << 1;
        for round in 0..5000 {
            // The index that was returned last is given first.
            let (a, b) = (queue(), queue());
            if round > 0 && is_before(&a, recv) && is_before(&b, send) {
                a.close(context);
                b.close(context);
                return;
            }
            b.close(context);
            a.close(context);
        }
        panic!("the numbers do not come again");
    }
}

/// The key of the queue before that of `key` with the same index: the generations of an index have 11 bits.
fn before(key: u32) -> u32 {
    let (index, generation) = (key & 0xf_ffff, key >> 20 & 0x7ff);
    index | (generation.wrapping_sub(1) & 0x7ff) << 20
}

fn connect<D: Driver>(qp: &Qp<Rc, Exclusive, D>) {
    let attr = ConnectAttr::default();
    qp.init(&attr).unwrap();
    let here = qp.control().endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
}

/// The keys of its queues.
fn keys<D: Driver>(qp: &Qp<Rc, Exclusive, D>) -> [u32; 2] {
    [qp.send.flight().slab.key(), qp.recv.as_ref().unwrap().flight().slab.key()]
}

/// The user's numbers of the completions of a poll during which `stall` runs when the poll has left the queue for the first time.
fn poll<D: Driver>(cq: &SharedCq<D>, max: usize, mut stall: impl FnMut(), late: bool) -> Vec<u64> {
    let ids = RefCell::new(Vec::new());
    let state = &mut *cq.state.lock().unwrap();
    let inner =
        Pass { known: &mut state.known, f: |done: Polled<'_, '_, D>| ids.borrow_mut().push(done.wr_id()) };
    let mut begun = false;
    let stall = || {
        if !core::mem::replace(&mut begun, true) {
            stall();
        }
    };
    let polled = match late {
        false => cq.queue.poll_claiming(max, Stall { inner, stall }),
        true => cq.queue.poll_claiming(max, Late { inner, stall }),
    };
    polled.unwrap();
    ids.into_inner()
}

/// A send and a receive of a QP are polled; meanwhile the QP ends, and a new one, whose queues get the same numbers, posts a receive.
fn a_new_queue_with_the_numbers_of_an_old_one<D: Driver>(max: usize, late: bool) {
    let bed = Bed::<D>::new();
    let mut old = bed.qp(false);
    let old_keys = keys(&old);
    // The CQ knows the queues, whose counts are one further then, and has polled others.
    old.rq().unwrap().post(1, bed.buf()).unwrap();
    old.sq().post(2).signaled().send(bed.buf()).unwrap();
    bed.hca.run();
    let mut ended = Some(old);
    let new = RefCell::new(None);
    let stall = || {
        drop(ended.take());
        bed.spin(&old_keys);
        let mut qp = bed.qp(false);
        assert_eq!(keys(&qp), old_keys, "the numbers of the old queues");
        qp.rq().unwrap().post(11, bed.buf()).unwrap();
        // No completion, and no later one: its buffer stays.
        qp.sq().post(12).send(bed.buf()).unwrap();
        new.replace(Some(qp));
    };
    let ids = poll(&bed.cq, max, stall, late);
    if late {
        assert!(ids.contains(&11) || ids.contains(&12), "{ids:?}: this test would not find the fault");
        return;
    }
    assert_eq!(ids.len(), 1, "that which was in the poll; the others were removed with the QP: {ids:?}");
    assert!([1, 2].contains(&ids[0]), "{ids:?}");
    // The new queue's are its own. A receive and an unsignaled send: one completion, and one buffer that stays.
    bed.hca.run();
    assert_eq!(poll(&bed.cq, 16, || (), false), [11]);
    assert_eq!((bed.pool.available(), bed.cq.unmatched()), (BUFS - 1, Ok(0)));
    drop(new.into_inner());
    assert_eq!(bed.pool.available(), BUFS);
    assert!(bed.hca.violations().is_empty(), "{:?}", bed.hca.violations());
}

#[test]
fn a_poll_that_stalls_reports_no_completion_of_a_new_queue() {
    for max in [1, 16] {
        a_new_queue_with_the_numbers_of_an_old_one::<Mlx5>(max, false);
        a_new_queue_with_the_numbers_of_an_old_one::<AnyDriver>(max, false);
    }
}

/// The control of the test above: it reports the new queue's, if it looks for the entries after the stall.
#[test]
fn a_poll_that_claims_too_late_would() {
    a_new_queue_with_the_numbers_of_an_old_one::<Mlx5>(1, true);
}

/// Unsignaled sends before the completion that is polled are complete with it; those of the QP's next life are not.
#[test]
fn a_poll_that_stalls_completes_no_sends_of_the_next_life() {
    for end in [false, true] {
        let bed = Bed::<Mlx5>::new();
        let qp = RefCell::new(bed.qp(true));
        let mut srq = bed.srq;
        (0..6).for_each(|i| srq.post(i, bed.pool.get().unwrap()).unwrap());
        for i in 20..24 {
            let mut qp = qp.borrow_mut();
            let wr = qp.sq().post(i);
            if i == 23 { wr.signaled() } else { wr }.send_inline(b"first").unwrap();
        }
        bed.hca.run();
        let stall = || {
            let mut qp = qp.borrow_mut();
            if end {
                let builder = bed.pd.qp::<Rc>().cq(&bed.cq).srq(&srq).cap(CAP);
                *qp = builder.create().unwrap();
            } else {
                qp.reset().unwrap();
            }
            connect(&qp);
            // Of its next life, and not complete before the device runs again.
            for _ in 0..2 {
                let mut buf = bed.pool.get().unwrap();
                buf.fill(b"second").unwrap();
                qp.sq().post(30).send(buf).unwrap();
            }
        };
        let before = bed.pool.available();
        let ids = poll(&bed.cq, 16, stall, false);
        assert_eq!(ids.len(), 1, "{ids:?}");
        // The four receives of the old life came back, with their completion or by its end; the two sends of the new one did not.
        assert_eq!(bed.pool.available(), before + 4 - 2, "{ids:?}");
        bed.hca.run();
        while !poll(&bed.cq, 16, || (), false).is_empty() {}
        assert_eq!(bed.cq.unmatched(), Ok(0));
        drop(qp);
        srq.close().map_err(|(_, error)| error).unwrap();
        assert_eq!(bed.pool.available(), BUFS);
        assert!(bed.hca.violations().is_empty(), "{:?}", bed.hca.violations());
    }
}
