// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver on the software EFA, which shares only the formats with it: every operation, order and loss, resets and destruction.
#![expect(unsafe_code)]
// UNSAFETY: memory is leaked, consists of atomics, and stays registered as long as a test runs.

mod stress;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::collections::BTreeSet;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, Gid, GlobalRoute, QpAttr, QpAttrMask as M, QpInitAttr, QpState, QpType,
    SendOpsFlags,
};
use uverbs_core::control::{
    CompChannelHandle, ContextInfo, MrHandle, MrRange, PdHandle, comp_channel, query,
};
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, CqObject as _, CqParts, Data, Dest, Driver as _, Inline,
    Object as _, Op, PostError, QpCreate, QpObject as _, QpParts, RecvQueue as _, RemoteAddr, To, Wr,
};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_core::wr::{RawAh, Sge};
use uverbs_efa::{Ah, Completion, Efa};
use uverbs_efa_device::{EfaDevice, Fabric, Generation};
use uverbs_testkit::{Face, handle, post};

const QKEY: u32 = 0x1234;
const REGION: usize = 1 << 20;

/// Memory that the device accesses at the same time.
#[derive(Clone, Copy)]
struct Memory(&'static [AtomicU8]);

impl Memory {
    fn new() -> Self {
        Self(Box::leak((0..REGION).map(|_| AtomicU8::new(0)).collect()))
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.0[at..].iter().zip(bytes).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.0[at..at + len].iter().map(|place| place.load(Ordering::Relaxed)).collect()
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

/// Bytes of inline data, for which a device with entries of 128 bytes uses those.
fn inline_size(efa: &Efa) -> usize {
    efa.limits().inline_buf_size.max(efa.limits().inline_buf_size_ex).into()
}

/// A QP of a device, with its CQ and a region.
struct End {
    qp: QpParts<Efa>,
    cq: CqParts<Efa>,
    channel: Option<CompChannelHandle>,
    mr: MrHandle,
    pd: PdHandle,
    memory: Memory,
    efa: Efa,
    _info: ContextInfo,
}

impl End {
    fn new(device: &EfaDevice, qp_type: QpType, has_events: bool) -> Self {
        let (efa, info) = Efa::open(device.open()).unwrap();
        let pd = efa.alloc_pd().unwrap();
        let memory = Memory::new();
        let addr = memory.0.as_ptr().expose_provenance() as u64;
        let range = MrRange { addr, length: REGION as u64, iova: addr };
        let mut access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        if efa.limits().has_write() {
            access |= AccessFlags::REMOTE_WRITE;
        }
        // SAFETY: the memory is never freed and consists of atomics.
        let mr = unsafe { efa.reg_mr(info.core_support, &pd, range, access) }.unwrap();
        let channel = has_events.then(|| comp_channel::create(efa.kernel()).unwrap());
        let cq = efa.create_cq(&CqInitAttr::new(64), channel.as_ref(), 7).unwrap();
        let qp = Self::new_qp(&efa, &pd, &cq, qp_type);
        let end = Self { qp, cq, channel, mr, pd, memory, efa, _info: info };
        end.to_rts();
        end
    }

    fn new_qp(efa: &Efa, pd: &PdHandle, cq: &CqParts<Efa>, qp_type: QpType) -> QpParts<Efa> {
        let mut attr = QpInitAttr::new(qp_type);
        (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_inline_data) =
            (16, 16, inline_size(efa) as u32);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (2, 3);
        attr.send_ops_flags = SendOpsFlags::SEND | SendOpsFlags::SEND_WITH_IMM;
        if qp_type == QpType::Driver {
            attr.send_ops_flags |= SendOpsFlags::RDMA_READ;
            if efa.limits().has_write() {
                attr.send_ops_flags |= SendOpsFlags::RDMA_WRITE | SendOpsFlags::RDMA_WRITE_WITH_IMM;
            }
        }
        let cq = Some(&cq.cq);
        let create =
            QpCreate { pd: Some(pd), send_cq: cq, recv_cq: cq, exclusive: true, ..QpCreate::new(&attr) };
        // SAFETY: all objects are of one context.
        unsafe { efa.create_qp(&create) }.unwrap()
    }

    fn modify(&self, attr: &QpAttr, mask: M) {
        self.qp.qp.modify(attr, mask).unwrap();
    }

    fn to_rts(&self) {
        let attr = QpAttr::new().port_num(1).qkey(QKEY);
        self.modify(&attr.qp_state(QpState::INIT), M::STATE | M::PORT | M::PKEY_INDEX | M::QKEY);
        self.modify(&attr.qp_state(QpState::RTR), M::STATE);
        self.modify(&attr.qp_state(QpState::RTS), M::STATE | M::SQ_PSN);
    }

    fn to_reset(&self) {
        self.modify(&QpAttr::new().qp_state(QpState::RESET), M::STATE);
    }

    fn gid(&self) -> Gid {
        query::gid_entry(self.efa.kernel(), 1_u8, 0).unwrap().gid
    }

    fn ah(&self, peer: &Self) -> RawAh<Ah> {
        let attr = AhAttr::new(1).grh(Some(GlobalRoute::new(peer.gid())));
        let (object, ah) = self.efa.create_ah(&self.pd, &attr).unwrap();
        // It exists as long as the context.
        core::mem::forget(object);
        handle(ah)
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.memory.0[at..].as_ptr().addr() as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: self.memory.0[at..].as_ptr().addr() as u64, rkey: self.mr.rkey() }
    }

    fn to<'a>(&self, ah: &'a RawAh<Ah>) -> Dest<'a, RawAh<Ah>> {
        Dest::Ud(To { ah, remote_qpn: self.qp.qp.handle().qp_num(), remote_qkey: QKEY })
    }

    fn post(&mut self, face: Face, wr: Wr<'_, RawAh<Ah>>) -> Result<(), PostError> {
        let send = self.qp.send.as_mut().unwrap();
        // SAFETY: the memory is never freed, and consists of atomics.
        unsafe { post(send, face, &[wr.signaled()]) }.map_err(|refused| refused.error.unwrap())
    }

    fn recv(&mut self, id: u64, sges: &[Sge]) {
        // SAFETY: as in `post`.
        unsafe { self.qp.recv.as_mut().unwrap().post(id, sges) }.unwrap();
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut polled = Vec::new();
        self.cq.queue.poll_each(64, |completion| polled.push(*completion)).unwrap();
        polled
    }

    #[track_caller]
    fn one(&mut self) -> Completion {
        let polled = self.poll();
        assert_eq!(polled.len(), 1, "{polled:?}");
        polled[0]
    }

    /// Destroys all of it.
    fn end(self) {
        let Self { qp, cq, mr, pd, .. } = self;
        qp.qp.destroy().unwrap();
        cq.cq.destroy().unwrap();
        mr.destroy().unwrap();
        // Address handles still hold it.
        drop(pd);
    }
}

/// Two devices and their QPs, with address handles of each other.
fn pair(seed: u64, qp_type: QpType) -> (Fabric, [EfaDevice; 2], End, End, RawAh<Ah>, RawAh<Ah>) {
    pair_of(Generation::default(), seed, qp_type)
}

fn pair_of(
    generation: Generation,
    seed: u64,
    qp_type: QpType,
) -> (Fabric, [EfaDevice; 2], End, End, RawAh<Ah>, RawAh<Ah>) {
    let fabric = Fabric::deterministic(seed);
    let devices = ["efa_0", "efa_1"].map(|name| fabric.device(name).generation(generation).build());
    let (x, y) = (End::new(&devices[0], qp_type, false), End::new(&devices[1], qp_type, false));
    let (to_y, to_x) = (x.ah(&y), y.ah(&x));
    (fabric, devices, x, y, to_y, to_x)
}

fn no_mistakes(devices: &[EfaDevice]) {
    for device in devices {
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn every_operation_on_every_interface() {
    for generation in [Generation::First, Generation::Third, Generation::Fifth] {
        let (fabric, devices, mut x, mut y, to_y, to_x) = pair_of(generation, 3, QpType::Driver);
        fabric.loss(0.05).duplicate(0.05);
        // More than each ring has entries.
        for round in 0..40 {
            let face = Face::ALL[round % 4];
            sends(&fabric, face, round, [&mut x, &mut y], [&to_y, &to_x]);
            inline_sends(&fabric, face, [&mut x, &mut y], &to_y);
            if face != Face::List {
                remote_operations(&fabric, face, round, [&mut x, &mut y], &to_y);
            }
        }
        no_mistakes(&devices);
    }
}

/// A send of two entries to a receive of three.
fn sends(fabric: &Fabric, face: Face, seed: usize, [x, y]: [&mut End; 2], [to_y, to_x]: [&RawAh<Ah>; 2]) {
    let data = pattern(3000, seed);
    x.memory.put(100, &data);
    y.recv(50, &[y.sge(0, 1000), y.sge(5000, 1000), y.sge(9000, 1500)]);
    let sges = [x.sge(100, 1200), x.sge(1300, 1800)];
    x.post(face, Wr::new(1, Op::SendImm(0x11_2233)).sges(&sges).to(y.to(to_y))).unwrap();
    fabric.run();
    let (sent, got) = (x.one(), y.one());
    assert_eq!((sent.wr_id(), sent.status(), sent.opcode()), (1, WcStatus::SUCCESS, WcOpcode::SEND));
    let (status, opcode) = (got.status(), got.opcode());
    assert_eq!((got.wr_id(), status, opcode, got.byte_len()), (50, WcStatus::SUCCESS, WcOpcode::RECV, 3000));
    let imm = got.imm_data_or_invalidated_rkey();
    assert_eq!((got.wc_flags(), imm), (WcFlags::WITH_IMM, 0x11_2233_u32.to_be()));
    assert_eq!((got.src_qp(), got.source_ah()), (x.qp.qp.handle().qp_num(), Some(to_x.driver.0)));
    assert_eq!([y.memory.get(0, 1000), y.memory.get(5000, 1000), y.memory.get(9000, 1000)].concat(), data);
}

/// Inline sends of all sizes about those of the entries, of two buffers each.
fn inline_sends(fabric: &Fabric, face: Face, [x, y]: [&mut End; 2], to_y: &RawAh<Ah>) {
    let most = inline_size(&x.efa);
    for len in [1, 17, 32, most] {
        let data = pattern(len, len);
        let (first, second) = data.split_at(len / 3);
        y.memory.put(0, &[0; 100]);
        y.recv(51, &[y.sge(0, 100)]);
        let inline = Data::Inline(Inline::List(&[first, second]));
        x.post(face, Wr::new(2, Op::Send).data(inline).to(y.to(to_y))).unwrap();
        fabric.run();
        assert_eq!((x.one().wr_id(), y.one().byte_len() as usize), (2, len));
        assert_eq!(y.memory.get(0, len + 1), [&data[..], &[0]].concat());
    }
    let long = Wr::new(2, Op::Send).inline(&[1; 100][..most + 1]).to(y.to(to_y));
    assert_eq!(x.post(face, long), Err(PostError::InlineTooLong));
}

/// A read, and writes if the device has them.
fn remote_operations(fabric: &Fabric, face: Face, seed: usize, [x, y]: [&mut End; 2], to_y: &RawAh<Ah>) {
    let data = pattern(70_000, seed + 10);
    y.memory.put(200_000, &data);
    let (local, short, long) = ([x.sge(300_000, 70_000)], [x.sge(100, 3000)], [x.sge(0, 90_000)]);
    x.post(face, Wr::new(3, Op::Read(y.remote(200_000))).sges(&local).to(y.to(to_y))).unwrap();
    let write = Wr::new(4, Op::Write(y.remote(400_000))).sges(&short).to(y.to(to_y));
    let has_write = x.efa.limits().has_write();
    if has_write {
        y.recv(52, &[y.sge(0, 1)]);
        x.post(face, write).unwrap();
        let write = Wr::new(5, Op::WriteImm(y.remote(500_000), 9)).sges(&long).to(y.to(to_y));
        x.post(face, write).unwrap();
    } else {
        assert_eq!(x.post(face, write), Err(PostError::IllegalOpcode));
    }
    fabric.run();
    let done: BTreeSet<_> = x.poll().iter().map(|c| (c.wr_id(), c.status().0)).collect();
    let all = BTreeSet::from([(3, 0), (4, 0), (5, 0)]);
    assert_eq!(done, if has_write { all } else { BTreeSet::from([(3, 0)]) });
    assert_eq!(x.memory.get(300_000, 70_000), data);
    if has_write {
        assert_eq!(y.memory.get(400_000, 3000), x.memory.get(100, 3000));
        assert_eq!(y.memory.get(500_000, 90_000), x.memory.get(0, 90_000));
        let got = y.one();
        assert_eq!((got.wr_id(), got.opcode(), got.byte_len()), (52, WcOpcode::RECV_RDMA_WITH_IMM, 90_000));
    }
}

#[test]
fn datagrams_are_sends_only() {
    let (fabric, devices, mut x, mut y, to_y, _) = pair(4, QpType::Ud);
    y.recv(1, &[y.sge(0, 100)]);
    x.post(Face::Builder, Wr::new(2, Op::Send).inline(b"hello").to(y.to(&to_y))).unwrap();
    fabric.run();
    // The header that a datagram comes with.
    assert_eq!((x.one().wr_id(), y.one().byte_len()), (2, 40 + 5));
    assert_eq!(y.memory.get(40, 5), b"hello");
    let sges = [x.sge(0, 8)];
    let read = Wr::new(3, Op::Read(y.remote(0))).sges(&sges);
    assert_eq!(x.post(Face::Single, read.to(y.to(&to_y))), Err(PostError::IllegalOpcode));
    no_mistakes(&devices);
}

#[test]
fn errors_of_the_device_have_a_status() {
    let (fabric, devices, mut x, mut y, to_y, _) = pair(5, QpType::Driver);
    let status = |x: &mut End, wr: Wr<'_, RawAh<Ah>>| {
        x.post(Face::Single, wr).unwrap();
        fabric.run();
        x.one().status()
    };
    let to = |qpn| Dest::Ud(To { ah: &to_y, remote_qpn: qpn, remote_qkey: QKEY });
    assert_eq!(status(&mut x, Wr::new(1, Op::Send).to(to(0xfff0))), WcStatus::REM_INV_RD_REQ_ERR);
    assert_eq!(status(&mut x, Wr::new(1, Op::Send).to(y.to(&to_y))), WcStatus::RNR_RETRY_EXC_ERR);
    let wrong = [Sge { lkey: 0x12_3456, ..x.sge(0, 8) }];
    assert_eq!(status(&mut x, Wr::new(1, Op::Send).sges(&wrong).to(y.to(&to_y))), WcStatus::LOC_PROT_ERR);
    let long = [x.sge(0, 9000)];
    assert_eq!(status(&mut x, Wr::new(1, Op::Send).sges(&long).to(y.to(&to_y))), WcStatus::LOC_LEN_ERR);
    let remote = RemoteAddr { rkey: 1, ..y.remote(0) };
    let read = [x.sge(0, 8)];
    assert_eq!(
        status(&mut x, Wr::new(1, Op::Read(remote)).sges(&read).to(y.to(&to_y))),
        WcStatus::REM_ACCESS_ERR
    );
    // The QP still works.
    y.recv(1, &[y.sge(0, 10)]);
    assert_eq!(status(&mut x, Wr::new(1, Op::Send).inline(b"x").to(y.to(&to_y))), WcStatus::SUCCESS);
    // A peer without an address handle of this device takes sends, but no reads.
    let third = devices[0].fabric().device("efa_2").build();
    let z = End::new(&third, QpType::Driver, false);
    let to_z = x.ah(&z);
    assert_eq!(
        status(&mut x, Wr::new(1, Op::Read(z.remote(0))).sges(&read).to(z.to(&to_z))),
        WcStatus::REM_OP_ERR
    );
    let _to_x = z.ah(&x);
    assert_eq!(
        status(&mut x, Wr::new(1, Op::Read(z.remote(0))).sges(&read).to(z.to(&to_z))),
        WcStatus::SUCCESS
    );
    no_mistakes(&devices);
}

#[test]
fn messages_arrive_once_in_any_order_over_lost_packets() {
    let (fabric, devices, mut x, mut y, to_y, _) = pair(6, QpType::Driver);
    fabric.loss(0.05);
    let (mut sent, mut done, mut received) = (0_u64, BTreeSet::new(), Vec::new());
    let mut receives = 0_u64;
    while done.len() < 1000 {
        while receives - (received.len() as u64) < 16 {
            y.recv(receives, &[y.sge((receives % 16) as usize * 64, 64)]);
            receives += 1;
        }
        while sent < 1000 && sent - (done.len() as u64) < 8 {
            let wr = Wr::new(sent, Op::SendImm(sent as u32)).to(y.to(&to_y));
            match x.post(Face::ALL[sent as usize % 4], wr.inline(&sent.to_le_bytes())) {
                Ok(()) => sent += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        fabric.run();
        for completion in x.poll() {
            assert_eq!(completion.status(), WcStatus::SUCCESS);
            assert!(done.insert(completion.wr_id()), "{} twice", completion.wr_id());
        }
        received.extend(y.poll().iter().map(|c| u32::from_be(c.imm_data_or_invalidated_rkey())));
    }
    let order = received.clone();
    received.sort_unstable();
    assert_eq!(received, (0..1000).collect::<Vec<_>>());
    assert_ne!(order, received, "unordered");
    no_mistakes(&devices);
}

#[test]
fn an_armed_queue_raises_one_event() {
    let fabric = Fabric::deterministic(7);
    let device = fabric.device("efa_0").build();
    let mut x = End::new(&device, QpType::Driver, true);
    let to_x = x.ah(&x);
    let channel = x.channel.take().unwrap();
    channel.set_nonblocking(true).unwrap();
    for round in 0..6 {
        x.cq.queue.req_notify(false).unwrap();
        assert_eq!(channel.next_event().unwrap(), None);
        x.recv(1, &[x.sge(0, 64)]);
        let to = x.to(&to_x);
        x.post(Face::Single, Wr::new(2, Op::Send).inline(b"event").to(to)).unwrap();
        fabric.run();
        assert_eq!(
            (channel.next_event().unwrap(), channel.next_event().unwrap()),
            (Some(7), None),
            "round {round}"
        );
        x.cq.cq.notify().cq_event();
        assert_eq!(x.poll().len(), 2);
    }
    no_mistakes(&[device]);
}

#[test]
fn a_reset_qp_begins_again_and_its_completions_are_gone() {
    let (fabric, devices, mut x, mut y, to_y, _) = pair(8, QpType::Driver);
    for round in 0..5 {
        for id in 0..8 {
            y.recv(id, &[y.sge(0, 64)]);
        }
        for id in 0..5 {
            x.post(Face::ALL[id as usize % 4], Wr::new(id, Op::Send).inline(&[round; 9]).to(y.to(&to_y)))
                .unwrap();
        }
        fabric.run();
        if round == 4 {
            break;
        }
        x.to_reset();
        y.to_reset();
        fabric.run();
        assert_eq!((x.poll(), y.poll()), (vec![], vec![]), "round {round}");
        x.to_rts();
        y.to_rts();
    }
    assert_eq!((x.poll().len(), y.poll().len()), (5, 5));
    no_mistakes(&devices);
}

#[test]
fn objects_end_with_requests_in_flight() {
    let (fabric, devices, mut x, mut y, to_y, _) = pair(9, QpType::Driver);
    y.recv(1, &[y.sge(0, 64)]);
    x.post(Face::Single, Wr::new(1, Op::Send).inline(b"x").to(y.to(&to_y))).unwrap();
    x.end();
    fabric.run();
    y.end();
    for device in &devices {
        let objects = device.objects();
        for kind in ["qp", "cq", "mr"] {
            assert_eq!(objects.get(kind).copied().unwrap_or_default(), 0, "{kind}: {objects:?}");
        }
    }
    no_mistakes(&devices);
}

#[test]
fn a_number_that_the_device_gives_again_is_another_queue() {
    let (fabric, devices, mut x, mut y, to_y, _) = pair(10, QpType::Driver);
    for round in 0..20_u64 {
        for id in 0..4 {
            y.recv(id, &[y.sge(0, 64)]);
            x.post(Face::Single, Wr::new(round * 4 + id, Op::Send).inline(b"x").to(y.to(&to_y))).unwrap();
        }
        fabric.run();
        assert_eq!(y.poll().len(), 4);
        if round % 2 == 0 {
            let ids: Vec<_> = x.poll().iter().map(Completion::wr_id).collect();
            assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), (round * 4..round * 4 + 4).collect());
        }
        let new = End::new_qp(&x.efa, &x.pd, &x.cq, QpType::Driver);
        let old = core::mem::replace(&mut x.qp, new);
        old.qp.destroy().unwrap();
        assert_eq!(x.poll(), []);
        x.to_rts();
    }
    no_mistakes(&devices);
}

#[test]
fn a_list_of_more_than_the_device_takes_has_several_doorbells() {
    let fabric = Fabric::deterministic(11);
    let devices = ["efa_0", "efa_1"].map(|name| fabric.device(name).max_tx_batch(3).build());
    let [mut x, mut y] = devices.each_ref().map(|device| End::new(device, QpType::Driver, false));
    let to_y = x.ah(&y);
    for face in Face::ALL {
        (0..8).for_each(|id| y.recv(id, &[y.sge(0, 64)]));
        let wr = |id| Wr::new(id, Op::Send).signaled().inline(b"x").to(y.to(&to_y));
        let wrs: Vec<_> = (0..8).map(wr).collect();
        // SAFETY: as in `End::post`.
        unsafe { post(x.qp.send.as_mut().unwrap(), face, &wrs) }.unwrap();
        fabric.run();
        assert_eq!((x.poll().len(), y.poll().len()), (8, 8));
    }
    no_mistakes(&devices);
}

/// Threads that post and poll on a device in real time, while another resets the QP.
#[test]
fn resets_against_posts_and_polls_in_parallel() {
    let device = EfaDevice::new();
    let x = End::new(&device, QpType::Driver, false);
    let ah = x.ah(&x).driver;
    let qpn = x.qp.qp.handle().qp_num();
    let End { qp, mut cq, .. } = x;
    let QpParts { qp, send, .. } = qp;
    let (mut send, stop) = (send.unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let to_x = handle(ah);
            let (mut id, to) = (0, Dest::Ud(To { ah: &to_x, remote_qpn: qpn, remote_qkey: QKEY }));
            while !stop.load(Ordering::Relaxed) {
                let wr = Wr::new(id, Op::Send).signaled().inline(b"parallel").to(to);
                // SAFETY: no registered memory is named.
                match unsafe { post(&mut send, Face::ALL[id as usize % 4], &[wr]) }
                    .map_err(|refused| refused.error.unwrap())
                {
                    Ok(()) => id += 1,
                    Err(PostError::QueueFull | PostError::BadState) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(id > 100);
        });
        scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                cq.queue
                    .poll_each(8, |completion| {
                        assert!(seen.insert(completion.wr_id()), "{} twice", completion.wr_id())
                    })
                    .unwrap();
            }
            assert!(seen.len() > 10);
        });
        let modify = |attr: QpAttr, mask| qp.modify(&attr, mask).unwrap();
        for _ in 0..100 {
            modify(QpAttr::new().qp_state(QpState::RESET), M::STATE);
            let attr = QpAttr::new().port_num(1).qkey(QKEY);
            modify(attr.qp_state(QpState::INIT), M::STATE | M::PORT | M::PKEY_INDEX | M::QKEY);
            modify(attr.qp_state(QpState::RTR), M::STATE);
            modify(attr.qp_state(QpState::RTS), M::STATE | M::SQ_PSN);
            std::thread::sleep(core::time::Duration::from_millis(2));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(device.violations(), []);
}

/// A message to itself, and its two completions.
fn exchange(x: &mut End, id: u64) {
    let (ah, qpn) = (x.ah(x), x.qp.qp.handle().qp_num());
    x.cq.queue.req_notify(false).unwrap();
    x.recv(id, &[x.sge(0, 64)]);
    let to = Dest::Ud(To { ah: &ah, remote_qpn: qpn, remote_qkey: QKEY });
    x.post(Face::Single, Wr::new(id, Op::Send).inline(b"x").to(to)).unwrap();
    let begin = std::time::Instant::now();
    let mut polled = 0;
    while polled < 2 {
        assert!(begin.elapsed().as_secs() < 60, "{polled} completions of {id}");
        polled += x.poll().iter().inspect(|done| assert_eq!(done.wr_id(), id)).count();
    }
}

/// A thread polls and arms a CQ while another destroys it. The device gives its number, and the place of its doorbell, to
/// the next CQ, whose completions and events are its own.
#[test]
fn the_end_of_a_cq_against_polls_in_parallel() {
    let device = EfaDevice::new();
    let mut x = End::new(&device, QpType::Driver, true);
    for round in 0..40_u64 {
        exchange(&mut x, round);
        if round % 2 == 0 {
            // Completions that no one has polled.
            (0..4).for_each(|_| x.recv(99, &[x.sge(0, 64)]));
            x.modify(&QpAttr::new().qp_state(QpState::ERR), M::STATE);
        }
        let End { qp, cq, channel, mr, pd, memory, efa, _info } = x;
        qp.qp.destroy().unwrap();
        let CqParts { cq, mut queue, .. } = cq;
        let (stop, polls) = (AtomicBool::new(false), AtomicU64::new(0));
        let wait = |more| {
            let until = polls.load(Ordering::Relaxed) + more;
            while polls.load(Ordering::Relaxed) < until {
                std::thread::yield_now();
            }
        };
        x = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    queue.poll_each(4, |done| panic!("{done:?} of a queue that ended")).unwrap();
                    let _ = queue.req_notify(false);
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            });
            wait(1);
            cq.destroy().unwrap();
            let cq = efa.create_cq(&CqInitAttr::new(64), channel.as_ref(), 7).unwrap();
            let qp = End::new_qp(&efa, &pd, &cq, QpType::Driver);
            let mut x = End { qp, cq, channel, mr, pd, memory, efa, _info };
            x.to_rts();
            exchange(&mut x, round + 1000);
            wait(10);
            stop.store(true, Ordering::Relaxed);
            x
        });
    }
    assert_eq!(device.violations(), []);
}
