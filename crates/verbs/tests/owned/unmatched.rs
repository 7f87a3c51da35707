// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of every kind end while another thread polls their CQ: each completion finds its work request.

use crate::bed::{BUFS, CAP, SIZE, attr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use uverbs::mlx5::Mlx5;
use uverbs::{AnyDriver, Context, Driver, ProtectionDomain, Rc, Shared, Uc, Ud, XrcSend};
use uverbs::{Cq, Pool, Srq};
use uverbs::{
    Exclusive, Private,
    attr::{AhAttr, QpCap, SrqAttr, SrqInitAttr, SrqType},
};
use uverbs_hca::Hca;

const SEND: QpCap = CAP.max_recv_wr(0).max_recv_sge(0);
const ROUNDS: u32 = 60;

/// What the rounds use.
struct Parts<'a, D: Driver> {
    context: &'a Context<D>,
    pd: &'a ProtectionDomain<D>,
    pool: &'a Pool<Private, D>,
    cq: &'a Cq<Shared, D>,
}

impl<D: Driver> Parts<'_, D> {
    /// Where the port itself is.
    fn here(&self) -> AhAttr {
        let (gid, lid) = (self.context.query_gid(1, 3).unwrap(), self.context.query_port(1).unwrap().lid);
        attr().ah_attr(&uverbs::Endpoint { gid, lid, ..uverbs::Endpoint::default() })
    }
}

fn srq(srq_type: SrqType) -> SrqInitAttr {
    let limits = SrqAttr::new(8);
    SrqInitAttr::new(limits).srq_type(srq_type)
}

/// Calls `round` again and again while another thread polls the CQ.
fn polled<D: Driver>(round: impl Fn(u32, &Parts<'_, D>)) {
    let hca = Hca::new();
    let context = Context::<D>::from_kernel(hca.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let (pool, cq) = (pd.pool(BUFS, SIZE).unwrap(), context.cq_with::<Shared>(512, None).unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                if cq.poll_each(4, |done| drop(done.complete())) == Ok(0) {
                    thread::yield_now();
                }
            }
        });
        let parts = Parts { context: &context, pd: &pd, pool: &pool, cq: &cq };
        (0..ROUNDS).for_each(|n| round(n, &parts));
        stop.store(true, Ordering::Release);
    });
    assert_eq!((pool.available() as u32, cq.unmatched()), (BUFS, Ok(0)));
    drop((pool, pd, context, cq));
    assert!(hca.violations().is_empty(), "{:?}", hca.violations());
}

macro_rules! connected {
    ($($name:ident: $transport:ty, $driver:ty;)*) => {$(
        #[test]
        fn $name() {
            polled::<$driver>(|n, parts| {
                let mut qp = parts.pd.qp::<$transport>().cq(parts.cq).cap(CAP).create().unwrap();
                let attr = attr().qkey(7);
                qp.init(&attr).unwrap();
                let here = qp.control().endpoint(1, &attr).unwrap();
                qp.connect(&here, &here, &attr).unwrap();
                for i in 0..n % 5 {
                    if let Some(buf) = parts.pool.try_get() {
                        qp.rq().unwrap().post(i.into(), buf).unwrap();
                    }
                    let Some(mut buf) = parts.pool.try_get() else { continue };
                    buf.fill(b"x").unwrap();
                    let wr = qp.sq().post(i.into());
                    // Some are complete with a later one.
                    let wr = if i % 3 == 2 { wr } else { wr.signaled() };
                    wr.send(buf).unwrap();
                }
                if n % 2 == 0 {
                    qp.reset().unwrap();
                }
            });
        }
    )*};
}

connected! {
    rc_queues_end_while_they_are_polled: Rc, Mlx5;
    uc_queues_end_while_they_are_polled: Uc, Mlx5;
    queues_of_any_driver_end_while_they_are_polled: Rc, AnyDriver;
}

#[test]
fn datagram_queues_end_while_they_are_polled() {
    polled::<Mlx5>(|n, parts| {
        let attr = attr().qkey(7);
        let mut qp = parts.pd.qp::<Ud>().cq(parts.cq).cap(CAP).create().unwrap();
        qp.init(&attr).unwrap();
        let here = qp.control().endpoint(1, &attr).unwrap();
        qp.connect(&here, &here, &attr).unwrap();
        let (ah, number) = (parts.pd.create_ah(&parts.here()).unwrap(), qp.qp_num());
        for i in 0..n % 5 {
            if let Some(buf) = parts.pool.try_get() {
                qp.rq().unwrap().post(i.into(), buf).unwrap();
            }
            qp.sq().post_to(i.into(), &ah, number, 7).signaled().send_inline(b"x").unwrap();
        }
    });
}

#[test]
fn xrc_queues_end_while_they_are_polled() {
    polled::<Mlx5>(|n, parts| {
        let xrcd = parts.context.open_xrcd(None, true, false).unwrap();
        let init = srq(SrqType::Xrc);
        let mut queue: Srq<Exclusive, Mlx5> = parts.pd.xrc_srq(&init, &xrcd, parts.cq).unwrap();
        let receiver = xrcd.recv_qp().create_recv().unwrap();
        let mut sender = parts.pd.qp::<XrcSend>().send_cq(parts.cq).cap(SEND).create().unwrap();
        let attr = attr();
        let (here, there) =
            (sender.control().endpoint(1, &attr).unwrap(), receiver.endpoint(2, &attr).unwrap());
        sender.init(&attr).unwrap();
        sender.connect(&here, &there, &attr).unwrap();
        receiver.init(&attr).unwrap();
        receiver.connect(&there, &here, &attr).unwrap();
        let number = queue.srq_num().unwrap();
        for i in 0..n % 5 {
            if let Some(buf) = parts.pool.try_get() {
                queue.post(i.into(), buf).unwrap();
            }
            sender.sq().post_srq(i.into(), number).signaled().send_inline(b"x").unwrap();
        }
        if n % 2 == 0 {
            drop(sender);
            drop(receiver);
        } else {
            drop(receiver);
            drop(sender);
        }
        queue.close().map_err(|(_, error)| error).unwrap();
    });
}

#[test]
fn dynamic_queues_end_while_they_are_polled() {
    polled::<Mlx5>(|n, parts| {
        let attr = attr();
        let mut queue: Srq<Exclusive, Mlx5> = parts.pd.srq(&srq(SrqType::Basic)).unwrap();
        let target = parts.pd.dct(parts.cq, &queue, 5).unwrap();
        let dctn = target.connect(&attr, &parts.here()).unwrap();
        let mut initiator = parts.pd.dci().cq(parts.cq).cap(SEND).create().unwrap();
        initiator.control().connect_dci(&attr).unwrap();
        let ah = parts.pd.create_ah(&parts.here()).unwrap();
        for i in 0..n % 5 {
            if let Some(buf) = parts.pool.try_get() {
                queue.post(i.into(), buf).unwrap();
            }
            initiator.sq().post_dc(i.into(), &ah, dctn, 5).signaled().send_inline(b"x").unwrap();
        }
        if n % 2 == 0 {
            drop(target);
            drop(initiator);
        } else {
            drop(initiator);
            drop(target);
        }
        queue.close().map_err(|(_, error)| error).unwrap();
    });
}
