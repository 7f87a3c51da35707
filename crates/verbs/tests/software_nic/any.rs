// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver that is selected at run time: no type in this file names mlx5.

use crate::{CAP, LIMIT};
use core::ptr;
use std::time::Instant;
use uverbs::attr::{AccessFlags, CqInitAttr, QpState, SrqAttr, SrqInitAttr};
use uverbs::provider::Completion as _;
use uverbs::wr::{SendWr, WrOpcode, WrUd, WrUnion};
use uverbs::{
    AnyDriver, ConnectAttr, Context, ImmData, MemoryRegion, ProtectionDomain, Rc, Ud, WcOpcode,
    WorkCompletion, raw,
};
use uverbs::{Cq, Srq};
use uverbs_hca::Hca;

struct Service {
    context: Context,
    pd: ProtectionDomain,
    cq: raw::Cq,
    mr: MemoryRegion<Vec<u8>>,
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

impl Service {
    fn new(hca: &Hca) -> Self {
        let context = Context::<AnyDriver>::from_kernel(hca.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let sizes = CqInitAttr::new(64);
        let cq = context.create_cq_ex(&sizes, None).unwrap();
        let mr = pd.reg_mr(vec![0; 4096], ALL).unwrap();
        Self { context, pd, cq, mr }
    }

    fn poll(&mut self) -> WorkCompletion {
        let begin = Instant::now();
        let mut done = None;
        while done.is_none() {
            assert!(begin.elapsed() < LIMIT);
            self.cq.poll_each(1, |c| done = Some((c.to_wc(), c.wr_id()))).unwrap();
        }
        let (wc, wr_id) = done.unwrap();
        assert_eq!(wc.wr_id, wr_id);
        wc.status.ok().unwrap();
        wc
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        self.mr.read_at(at, &mut out).unwrap();
        out
    }
}

#[test]
fn connected_queues_post_and_poll() {
    let hca = Hca::new();
    let mut service = Service::new(&hca);
    let attr = ConnectAttr::new().access(ALL);
    let mut qp: raw::Qp<Rc> = service.pd.raw_qp().cq(&service.cq).cap(CAP).create().unwrap();
    qp.init(&attr).unwrap();
    let here = qp.control.endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();

    service.mr.write_at(0, b"sent").unwrap();
    let (from, into) = (service.mr.sge(0..4).unwrap(), service.mr.sge(64..128).unwrap());
    let peer = service.mr.remote_region(0..4096).unwrap();
    // SAFETY: the region lives until the completions, and is not accessed before.
    unsafe { qp.rq().unwrap().post(1, &[into]) }.unwrap();
    // SAFETY: as above.
    unsafe { qp.sq().post(2).signaled().send_imm(&[from], ImmData::new(9)) }.unwrap();
    let done = [service.poll(), service.poll()];
    let imm = |wc: &WorkCompletion| wc.imm_data().map(ImmData::get);
    assert!(done.iter().any(|wc| wc.wr_id == 1 && imm(wc) == Some(9)), "{done:?}");
    assert_eq!(service.bytes(64), *b"sent");

    // A batch: inline, by an entry, a read, an atomic.
    let mut batch = qp.sq().batch();
    batch.wr(3).write_inline(b"inline", peer.remote(256..262).unwrap());
    // SAFETY: the region lives until the completions, and is not accessed before.
    unsafe { batch.wr(4).write(&[from], peer.remote(320..324).unwrap()) };
    // SAFETY: as above.
    unsafe { batch.wr(5).read(&[service.mr.sge(512..518).unwrap()], peer.remote(256..262).unwrap()) };
    let old = service.mr.sge(1024..1032).unwrap();
    // SAFETY: as above.
    unsafe { batch.wr(6).signaled().fetch_add(&[old], peer.remote(2048..2056).unwrap(), 5) };
    batch.complete().unwrap();
    assert_eq!((service.poll().wr_id, service.bytes(2048)), (6, 5_u64.to_ne_bytes()));
    assert_eq!((service.bytes(256), service.bytes(320)), (*b"inline", *b"sent"));
    assert_eq!(service.bytes(512), *b"inline");
    assert_eq!(hca.violations(), []);
}

#[test]
fn datagrams_go_to_a_shared_queue_typed_and_as_lists() {
    let hca = Hca::new();
    let mut service = Service::new(&hca);
    let sizes = SrqAttr::new(8);
    let init = SrqInitAttr::new(sizes);
    let mut srq: raw::Srq = service.pd.create_srq(&init).unwrap();
    let mut qp = service.pd.raw_qp::<Ud>().cq(&service.cq).srq(&srq).cap(CAP).create().unwrap();
    let attr = ConnectAttr::default().on(&service.context).unwrap();
    qp.init(&attr).unwrap();
    let here = qp.control.endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
    let ah = service.pd.create_ah(&attr.ah_attr(&here)).unwrap();
    for wr_id in 0..4 {
        let at = wr_id as usize * 128;
        // SAFETY: the region lives until the completions, and is not accessed before.
        unsafe { srq.post(wr_id, &[service.mr.sge(at..at + 128).unwrap()]) }.unwrap();
    }
    let number = qp.qp_num();
    qp.sq().post_to(10, &ah, number, attr.qkey).send_inline(b"typed").unwrap();
    // A list of C: two datagrams.
    let mut wr = SendWr::new(11, WrOpcode::SEND);
    wr.wr = WrUnion { ud: WrUd { ah: ah.as_raw(), remote_qpn: number, remote_qkey: attr.qkey } };
    let second = SendWr { wr_id: 12, next: ptr::null(), ..wr };
    wr.next = &raw const second;
    // SAFETY: a list of two valid nodes without entries; the handle lives during the call.
    unsafe { qp.sq().post_send(&raw const wr) }.unwrap();
    for expected in 0..3 {
        let wc = service.poll();
        assert_eq!((wc.wr_id, wc.opcode), (expected, WcOpcode::RECV));
    }
    assert_eq!(service.bytes(40), *b"typed");
    assert_eq!(hca.violations(), []);
}

/// The owner of the receives learns from the driver which completions a reset has removed.
#[test]
fn a_reset_gives_the_receives_of_a_shared_queue_back() {
    let hca = Hca::new();
    let service = Service::new(&hca);
    let sizes = SrqAttr::new(8);
    let init = SrqInitAttr::new(sizes);
    let cq: Cq = service.context.cq_with(16, None).unwrap();
    let pool = service.pd.pool(4, 64).unwrap();
    let mut srq: Srq = service.pd.srq(&init).unwrap();
    let mut qp = service.pd.qp::<Rc>().cq(&cq).srq(&srq).cap(CAP).create().unwrap();
    let attr = ConnectAttr::default().on(&service.context).unwrap();
    qp.init(&attr).unwrap();
    let here = qp.control().endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
    srq.post(1, pool.get().unwrap()).unwrap();
    qp.sq().post(2).send_inline(b"not polled").unwrap();
    hca.run();
    assert_eq!(pool.available(), 3);
    qp.reset().unwrap();
    assert_eq!(pool.available(), 4);
}

/// A driver that knows the kind of a failed completion says so here, too.
#[test]
fn the_kind_of_a_flushed_completion_is_known() {
    let hca = Hca::new();
    let mut service = Service::new(&hca);
    let attr = ConnectAttr::default();
    let mut qp: raw::Qp<Rc> = service.pd.raw_qp().cq(&service.cq).cap(CAP).create().unwrap();
    qp.init(&attr).unwrap();
    let here = qp.control.endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
    qp.control.modify_state(QpState::ERR).unwrap();
    let into = service.mr.sge(0..64).unwrap();
    // SAFETY: the device does not use the region after the flush.
    unsafe { qp.rq().unwrap().post(1, &[into]) }.unwrap();
    qp.sq().post(2).signaled().send_inline(b"late").unwrap();
    let (begin, mut seen) = (Instant::now(), Vec::new());
    while seen.len() < 2 {
        assert!(begin.elapsed() < LIMIT, "{seen:?}");
        service.cq.poll_each(2, |c| seen.push((c.wr_id(), c.is_receive()))).unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, Some(true)), (2, Some(false))]);
}
