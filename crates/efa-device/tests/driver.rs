// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver `uverbs-efa` on the device: what both believe of the formats and of the kernel's answers.
#![expect(unsafe_code)]
// UNSAFETY: posts requests that name memory of the test, which is never freed and consists of atomics.

use core::sync::atomic::{AtomicU8, Ordering};
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, GlobalRoute, QpAttr, QpAttrMask as M, QpCap, QpInitAttr, QpState,
    QpType, SendOpsFlags,
};
use uverbs_core::control::{self, AhHandle, CoreSupport, MrHandle, MrRange, PdHandle};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{
    CompletionQueue as _, CqParts, Dest, Driver as _, Object as _, Op, QpCreate, QpObject as _, QpParts,
    RecvBatch as _, RecvQueue as _, RemoteAddr, To, Wr,
};
use uverbs_core::wc::{WcOpcode, WcStatus, WorkCompletion};
use uverbs_core::wr::{RawAh, SendFlags, Sge};
use uverbs_efa::control::{Cq, Qp};
use uverbs_efa::{Ah, CompletionQueue, Efa, RecvQueue, SendQueue};
use uverbs_efa_device::{EfaDevice, Fabric, Generation};
use uverbs_testkit::{Face, handle, post};

const QKEY: u32 = 0x1111;
const REGION: usize = 1 << 18;

/// A QP of the driver with what it needs.
struct End {
    efa: Efa,
    pd: PdHandle,
    mr: MrHandle,
    memory: &'static [AtomicU8],
    _cq: Cq,
    polled: CompletionQueue,
    qp: Qp,
    send: SendQueue,
    recv: RecvQueue,
    _ahs: Vec<AhHandle>,
}

impl End {
    fn new(device: &EfaDevice, qp_type: QpType, inline: u32) -> Self {
        let (efa, _) = Efa::open(device.open()).unwrap();
        let pd = efa.alloc_pd().unwrap();
        let memory: &'static [AtomicU8] = Box::leak((0..REGION).map(|_| AtomicU8::new(0)).collect());
        let addr = memory.as_ptr().expose_provenance() as u64;
        let range = MrRange { addr, length: REGION as u64, iova: addr };
        let mut access = AccessFlags::LOCAL_WRITE;
        if efa.limits().has_write() {
            access |= AccessFlags::REMOTE_WRITE;
        }
        if efa.limits().has_read() {
            access |= AccessFlags::REMOTE_READ;
        }
        // SAFETY: the memory is never freed and consists of atomics.
        let mr = unsafe { control::mr::reg(CoreSupport(1), &pd, range, access, Uhw::none()) }.unwrap();
        let CqParts { cq, queue: polled, .. } = efa.create_cq(&CqInitAttr::new(300), None, 1).unwrap();
        let mut init = QpInitAttr::new(qp_type);
        init.cap = QpCap::new(32, 32).sge(2, 2).inline(inline);
        if qp_type == QpType::Driver {
            init.send_ops_flags = SendOpsFlags::SEND;
            init.send_ops_flags.set(SendOpsFlags::RDMA_READ, efa.limits().has_read());
            init.send_ops_flags.set(SendOpsFlags::RDMA_WRITE, efa.limits().has_write());
        }
        let create = QpCreate {
            pd: Some(&pd),
            send_cq: Some(&cq),
            recv_cq: Some(&cq),
            srq: None,
            xrcd: None,
            attr: &init,
            td: None,
            exclusive: true,
            data_in_completions: false,
            user_handle: 2,
        };
        // SAFETY: no data in completions.
        let QpParts { qp, send, recv, .. } = unsafe { efa.create_qp(&create) }.unwrap();
        let (send, recv) = (send.unwrap(), recv.unwrap());
        let end = Self { efa, pd, mr, memory, _cq: cq, polled, qp, send, recv, _ahs: Vec::new() };
        let attr = QpAttr::new().port_num(1).qkey(QKEY);
        let modify = |state, mask| end.qp.modify(&attr.qp_state(state), M::STATE | mask).unwrap();
        modify(QpState::INIT, M::PORT | M::PKEY_INDEX | M::QKEY);
        modify(QpState::RTR, M::empty());
        modify(QpState::RTS, M::SQ_PSN);
        end
    }

    fn ah_to(&mut self, peer: &Self) -> RawAh<Ah> {
        let gid = control::query::gid_entry(peer.efa.kernel(), 1_u8, 0).unwrap().gid;
        let (ah, driver) =
            self.efa.create_ah(&self.pd, &AhAttr::new(1).grh(Some(GlobalRoute::new(gid)))).unwrap();
        self._ahs.push(ah);
        handle(driver)
    }

    fn addr(&self, at: usize) -> u64 {
        self.mr_addr() + at as u64
    }

    fn mr_addr(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.addr(at), length: len as u32, lkey: self.mr.lkey() }
    }

    fn fill(&self, at: usize, len: usize, seed: usize) -> Vec<u8> {
        let data: Vec<u8> = (0..len).map(|i| (i * 13 + i / 256 + seed) as u8).collect();
        self.memory[at..].iter().zip(&data).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
        data
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.memory[at..at + len].iter().map(|place| place.load(Ordering::Relaxed)).collect()
    }

    fn post(&mut self, face: Face, ah: &RawAh<Ah>, peer: u32, wr: Wr<'_, RawAh<Ah>>) {
        let to = Dest::Ud(To { ah, remote_qpn: peer, remote_qkey: QKEY });
        let wr = wr.flags(SendFlags::SIGNALED).to(to);
        // SAFETY: the memory is never freed and consists of atomics.
        let result = unsafe { post(&mut self.send, face, &[wr]) };
        assert!(result.is_ok(), "{:?}", result.err().and_then(|refused| refused.error));
    }

    fn recv(&mut self, wr_id: u64, sges: &[Sge]) {
        let mut batch = self.recv.batch();
        // SAFETY: as above.
        unsafe { batch.push(wr_id, sges) };
        batch.complete().unwrap();
    }

    fn poll(&mut self) -> Vec<WorkCompletion> {
        let mut wc = [WorkCompletion::default(); 64];
        let n = self.polled.poll_cq(&mut wc).unwrap();
        wc[..n].to_vec()
    }
}

fn pair(fabric: &Fabric, generation: Generation) -> (EfaDevice, EfaDevice) {
    let build = |name| fabric.device(name).generation(generation).build();
    (build("efa_0"), build("efa_1"))
}

#[test]
fn sends_reads_and_writes_of_the_driver_are_executed() {
    for generation in [Generation::First, Generation::Third, Generation::Fifth] {
        let fabric = Fabric::deterministic(4);
        let (a, b) = pair(&fabric, generation);
        let inline = if generation >= Generation::Fourth { 80 } else { 32 };
        let (mut x, mut y) = (End::new(&a, QpType::Driver, inline), End::new(&b, QpType::Driver, 0));
        let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
        fabric.loss(0.05).duplicate(0.05);
        for round in 0..100_u64 {
            let qpn = y.qp.handle().qp_num();
            let data = x.fill(0, 6000, round as usize);
            let sges = [y.sge(100, 4000), y.sge(10_000, 4000)];
            y.recv(round, &sges);
            let (one, two) = (x.sge(0, 2500), x.sge(2500, 3500));
            x.post(Face::Builder, &to_y, qpn, Wr::new(round, Op::Send).sges(&[one, two]));
            fabric.run();
            let (sent, got) = (x.poll(), y.poll());
            assert_eq!((sent.len(), sent[0].wr_id, sent[0].status), (1, round, WcStatus::SUCCESS));
            assert_eq!(
                (got.len(), got[0].wr_id, got[0].byte_len, got[0].src_qp),
                (1, round, 6000, x.qp.handle().qp_num())
            );
            assert_eq!((got[0].opcode, got[0].status), (WcOpcode::RECV, WcStatus::SUCCESS));
            assert_eq!([y.get(100, 4000), y.get(10_000, 2000)].concat(), data);
            let bytes = x.fill(0, inline as usize, 7);
            y.recv(round, &[y.sge(0, 100)]);
            x.post(Face::Single, &to_y, qpn, Wr::new(9, Op::Send).inline(&bytes));
            fabric.run();
            assert_eq!((x.poll().len(), y.poll()[0].byte_len), (1, inline));
            assert_eq!(y.get(0, inline as usize), bytes);
            let remote = RemoteAddr { addr: y.addr(50_000), rkey: y.mr.rkey() };
            let data = y.fill(50_000, 90_000, round as usize);
            let local = x.sge(50_000, 90_000);
            x.post(Face::Batch, &to_y, qpn, Wr::new(77, Op::Read(remote)).sges(&[local]));
            fabric.run();
            let done = x.poll();
            assert_eq!((done[0].wr_id, done[0].status), (77, WcStatus::SUCCESS));
            assert_eq!(x.get(50_000, 90_000), data);
            if generation >= Generation::Third {
                let data = x.fill(20_000, 70_000, round as usize + 1);
                let local = x.sge(20_000, 70_000);
                x.post(Face::Builder, &to_y, qpn, Wr::new(78, Op::Write(remote)).sges(&[local]));
                fabric.run();
                assert_eq!(x.poll()[0].status, WcStatus::SUCCESS);
                assert_eq!(y.get(50_000, 70_000), data);
            }
        }
        assert!(a.violations().is_empty() && b.violations().is_empty(), "{:?}", a.violations());
    }
}

#[test]
fn datagrams_of_the_driver_are_executed() {
    let fabric = Fabric::deterministic(4);
    let (a, b) = pair(&fabric, Generation::default());
    let (mut x, mut y) = (End::new(&a, QpType::Ud, 0), End::new(&b, QpType::Ud, 0));
    let to_y = x.ah_to(&y);
    for round in 0..100_u64 {
        let data = x.fill(0, 500, round as usize);
        y.recv(round, &[y.sge(0, 1000)]);
        let sge = x.sge(0, 500);
        x.post(Face::List, &to_y, y.qp.handle().qp_num(), Wr::new(round, Op::Send).sges(&[sge]));
        assert_eq!((x.poll()[0].status, y.poll()[0].wr_id), (WcStatus::SUCCESS, round));
        assert_eq!(y.get(40, 500), data);
    }
    assert!(a.violations().is_empty() && b.violations().is_empty());
}

#[test]
fn errors_of_the_device_are_statuses_of_the_driver() {
    let fabric = Fabric::deterministic(4);
    let (a, b) = pair(&fabric, Generation::default());
    let (mut x, mut y) = (End::new(&a, QpType::Driver, 0), End::new(&b, QpType::Driver, 0));
    let to_y = x.ah_to(&y);
    let (qpn, local) = (y.qp.handle().qp_num(), x.sge(0, 100));
    let status = |x: &mut End, qpn, op| {
        x.post(Face::Single, &to_y, qpn, Wr::new(1, op).sges(&[local]));
        fabric.run();
        let done = x.poll();
        assert_eq!(done.len(), 1);
        done[0].status
    };
    assert_eq!(status(&mut x, qpn, Op::Send), WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(status(&mut x, qpn ^ 1, Op::Send), WcStatus::REM_INV_RD_REQ_ERR);
    let remote = RemoteAddr { addr: y.addr(0), rkey: y.mr.rkey() };
    assert_ne!(status(&mut x, qpn, Op::Write(remote)), WcStatus::SUCCESS, "the peer has no address handle");
    y.ah_to(&x);
    assert_eq!(status(&mut x, qpn, Op::Write(remote)), WcStatus::SUCCESS);
    let wrong = RemoteAddr { rkey: remote.rkey ^ 1, ..remote };
    assert_eq!(status(&mut x, qpn, Op::Write(wrong)), WcStatus::REM_ACCESS_ERR);
}
