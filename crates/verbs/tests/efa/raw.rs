// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw queues: typed posts, lists of C, and the builders.

use crate::bed::{CAP, QKEY, RIGHTS, attr, on_both};
use core::ptr;
use uverbs::attr::{AccessFlags, CqInitAttr, QpState, SendOpsFlags};
use uverbs::wr::{ImmData, SendFlags, SendWr, WrOpcode, WrUd, WrUnion};
use uverbs::{
    AddressHandle, Context, Driver, Endpoint, Exclusive, MemoryRegion, PostError, ProtectionDomain, Srd,
    WcFlags, WcOpcode, WorkCompletion, raw,
};
use uverbs_efa_device::{EfaDevice, Fabric};

on_both! { typed_posts lists_of_c builders }

const OPS: SendOpsFlags = SendOpsFlags::SEND
    .union(SendOpsFlags::SEND_WITH_IMM)
    .union(SendOpsFlags::RDMA_READ)
    .union(SendOpsFlags::RDMA_WRITE)
    .union(SendOpsFlags::RDMA_WRITE_WITH_IMM);

pub(crate) struct End<D: Driver> {
    pub(crate) qp: raw::Qp<Srd, Exclusive, D>,
    cq: raw::Cq<Exclusive, D>,
    pub(crate) mr: MemoryRegion<Vec<u8>, uverbs::Exposed, D>,
    pd: ProtectionDomain<D>,
    context: Context<D>,
    pub(crate) here: Endpoint,
    pub(crate) device: EfaDevice,
}

impl<D: Driver> End<D> {
    fn new(device: EfaDevice) -> Self {
        let context = Context::<D>::from_kernel(device.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_ex(&CqInitAttr::new(64), None).unwrap();
        let mr = pd.reg_mr(vec![0; 4096], AccessFlags::LOCAL_WRITE | RIGHTS).unwrap();
        let qp = pd.raw_qp::<Srd>().cq(&cq).cap(CAP).send_ops(OPS).create().unwrap();
        qp.init(&attr()).unwrap();
        assert_eq!(qp.control.state().unwrap(), QpState::INIT);
        let here = qp.control.endpoint(0, &attr()).unwrap();
        qp.connect(&here, &here, &attr()).unwrap();
        assert_eq!(qp.control.state().unwrap(), QpState::RTS);
        Self { qp, cq, mr, pd, context, here, device }
    }

    fn ah(&self, peer: &Self) -> AddressHandle<D> {
        self.pd.create_ah(&attr().on(&self.context).unwrap().ah_attr(&peer.here)).unwrap()
    }

    #[track_caller]
    pub(crate) fn poll(&mut self) -> WorkCompletion {
        for _ in 0..1000 {
            let mut wc = [WorkCompletion::default()];
            if let [wc] = *self.cq.poll(&mut wc).unwrap() {
                wc.status.ok().unwrap();
                return wc;
            }
            self.device.run();
        }
        panic!("no completion");
    }

    pub(crate) fn recv(&mut self, wr_id: u64, at: core::ops::Range<usize>) {
        let sge = self.mr.sge(at).unwrap();
        // SAFETY: the region lives until the completion, and is accessed by copies.
        unsafe { self.qp.rq().unwrap().post(wr_id, &[sge]) }.unwrap();
    }

    pub(crate) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        self.mr.read_at(at, &mut out).unwrap();
        out
    }
}

pub(crate) fn pair<D: Driver>() -> (End<D>, End<D>, AddressHandle<D>, AddressHandle<D>) {
    let fabric = Fabric::deterministic(11);
    let [a, b] = ["efa_0", "efa_1"].map(|name| End::<D>::new(fabric.device(name).build()));
    let (to_b, to_a) = (a.ah(&b), b.ah(&a));
    (a, b, to_b, to_a)
}

fn typed_posts<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>();
    let qpn = b.here.qp_num;
    a.mr.write_at(0, b"sent").unwrap();
    b.recv(1, 0..64);
    b.recv(2, 64..128);
    b.recv(3, 128..192);
    let sge = [a.mr.sge(0..4).unwrap()];
    // SAFETY: the region lives until the completions, and is accessed by copies.
    unsafe { a.qp.sq().post_to(1, &to_b, qpn, QKEY).signaled().send_imm(&sge, ImmData::new(9)) }.unwrap();
    assert_eq!((a.poll().wr_id, b.poll().imm_data()), (1, Some(ImmData::new(9))));
    assert_eq!(b.bytes(0), *b"sent");
    // SAFETY: as above.
    unsafe { a.qp.sq().post_to(2, &to_b, qpn, QKEY).signaled().read(&sge, b.mr.remote(2).unwrap()) }.unwrap();
    assert_eq!((a.poll().wr_id, a.bytes(0)), (2, *b"nt\0\0"));
    let mut batch = a.qp.sq().batch();
    // SAFETY: as above.
    unsafe { batch.wr_to(3, &to_b, qpn, QKEY).signaled().write(&sge, b.mr.remote(1000).unwrap()) };
    batch.wr_to(4, &to_b, qpn, QKEY).signaled().send_inline(b"inline");
    // SAFETY: as above.
    unsafe {
        batch.wr_to(5, &to_b, qpn, QKEY).signaled().write_imm(
            &sge,
            b.mr.remote(1004).unwrap(),
            ImmData::new(3),
        )
    };
    batch.complete().unwrap();
    let mut done: Vec<_> = (0..3).map(|_| a.poll().wr_id).collect();
    done.sort_unstable();
    assert_eq!(done, [3, 4, 5]);
    let done = [b.poll(), b.poll()];
    assert!(
        done.iter().any(|wc| wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM && wc.wc_flags == WcFlags::WITH_IMM)
    );
    assert!(done.iter().any(|wc| wc.opcode == WcOpcode::RECV && wc.byte_len == 6));
    assert_eq!(b.bytes(1000), *b"nt\0\0nt\0\0");
    // Inline data have no place in a write, unless the QP was created for it.
    let written =
        a.qp.sq().post_to(6, &to_b, qpn, QKEY).signaled().write_inline(b"x", b.mr.remote(0).unwrap());
    assert_eq!(written.unwrap_err().reason, PostError::IllegalFlag);
    assert_eq!((a.device.violations(), b.device.violations()), (vec![], vec![]));
}

fn lists_of_c<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>();
    a.mr.write_at(0, b"first, second").unwrap();
    let addr = a.mr.addr();
    let sges =
        [(0, 5), (7, 6)].map(|(at, length)| uverbs::wr::Sge { addr: addr + at, length, lkey: a.mr.lkey() });
    b.recv(1, 0..64);
    b.recv(2, 64..128);
    let remote_qpn = b.here.qp_num;
    let ud = |ah| WrUnion { ud: WrUd { ah, remote_qpn, remote_qkey: QKEY } };
    let mut second = SendWr::new(2, WrOpcode::SEND_WITH_IMM);
    (second.sg_list, second.num_sge, second.send_flags) = (&raw const sges[1], 1, SendFlags::SIGNALED.bits());
    (second.imm_data_or_invalidate_rkey, second.wr) = (5_u32.to_be(), ud(to_b.as_raw()));
    let mut first = SendWr { next: &raw const second, ..SendWr::new(1, WrOpcode::SEND) };
    (first.sg_list, first.num_sge, first.send_flags) = (&raw const sges[0], 1, SendFlags::SIGNALED.bits());
    first.wr = ud(to_b.as_raw());
    // SAFETY: the list and the address handle are valid during the call; the region lives until the completions.
    unsafe { a.qp.send.post_send(&raw const first) }.map_err(|bad| bad.error).unwrap();
    let mut sent = [a.poll().wr_id, a.poll().wr_id];
    sent.sort_unstable();
    assert_eq!(sent, [1, 2]);
    let done = [b.poll(), b.poll()];
    assert!(done.iter().any(|wc| wc.imm_data() == Some(ImmData::new(5)) && wc.byte_len == 6), "{done:?}");
    // Without an address handle, and unsignaled: the node is named.
    let unsignaled = SendWr { send_flags: 0, next: ptr::null(), ..first };
    // SAFETY: as above.
    let bad = unsafe { a.qp.send.post_send(&raw const unsignaled) }.unwrap_err();
    assert_eq!((bad.error, bad.wr), (PostError::Unsignaled, &raw const unsignaled));
    let nowhere = SendWr { next: ptr::null(), wr: ud(ptr::null()), ..first };
    // SAFETY: as above.
    let bad = unsafe { a.qp.send.post_send(&raw const nowhere) }.unwrap_err();
    assert_eq!((bad.error, bad.wr), (PostError::InvalidArgument, &raw const nowhere));
}

fn builders<D: Driver>() {
    let (mut a, b, to_b, _to_a) = pair::<D>();
    b.mr.write_at(0, b"theirs").unwrap();
    let remote = (b.mr.addr(), b.mr.rkey());
    let (addr, lkey) = (a.mr.addr(), a.mr.lkey());
    {
        let mut qp = a.qp.send.qp_ex().unwrap();
        (qp.wr_id, qp.wr_flags) = (7, SendFlags::SIGNALED.bits());
        // SAFETY: one thread uses the queue.
        unsafe { qp.wr_start() };
        // SAFETY: inside the session.
        unsafe { qp.wr_rdma_read(remote.1, remote.0) };
        // SAFETY: inside the session; the handle is one of this driver, and lives during the call.
        unsafe { qp.wr_set_ud_addr(to_b.as_raw(), b.here.qp_num, QKEY) };
        // SAFETY: inside the session; the region lives until the completion, and is accessed by copies.
        unsafe { qp.wr_set_sge(lkey, addr, 6) };
        // SAFETY: inside the session.
        unsafe { qp.wr_complete() }.unwrap();
    }
    assert_eq!((a.poll().wr_id, a.bytes(0)), (7, *b"theirs"));
}
