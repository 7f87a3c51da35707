// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes queues as a driver does, without code of a driver.
#![expect(unsafe_code)]
// UNSAFETY: the memory of a test is accessed by address, as that of a program.

use crate::engine::cq::{Cq, CqParts};
use crate::engine::mkey::Kind;
use crate::engine::qp::{Attr, Qp, QpKind, SendRing, State};
use crate::engine::recv::{RecvRing, Srq};
use crate::engine::{Device, Port};
use crate::memory::{Area, Fault, Memory};
use crate::{Fabric, Hca, Link};
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_fabric::process::{Mapped, ProcessRange};
use uverbs_mlx5_hw::cqe::{Cqe64, ErrCqe};
use uverbs_mlx5_hw::wqe::{
    AtomicSeg, CtrlSeg, DataSeg, MLX5_INVALID_LKEY, MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA,
    MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND,
    MLX5_OPCODE_SEND_IMM, MLX5_WQE_CTRL_CQ_UPDATE, RaddrSeg,
};
use uverbs_mlx5_hw::{Be32, Be64};
use zerocopy::{FromBytes, IntoBytes};

/// Memory of a test, which is mapped.
#[derive(Debug)]
pub(super) struct Ram {
    range: ProcessRange,
    _words: Box<[AtomicU64]>,
}

impl Ram {
    pub(super) fn new(len: usize) -> Arc<Self> {
        let words: Box<[AtomicU64]> = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let at = words.as_ptr().expose_provenance() as u64;
        // SAFETY: the words live as long as the range, and are atomics; tests access them by the range only.
        let range = unsafe { ProcessRange::new(at, len as u64) }.unwrap();
        Arc::new(Self { range, _words: words })
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.range.read(at as u64, &mut bytes).unwrap();
        bytes
    }

    pub(super) fn set(&self, at: usize, bytes: &[u8]) {
        self.range.write(at as u64, bytes).unwrap();
    }
}

impl Memory for Ram {
    fn len(&self) -> u64 {
        self.range.len()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.range.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.range.write(offset, from)
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<Mapped<'_>> {
        self.range.mapped(offset, len)
    }

    fn write_mapped(&self, offset: u64, from: Mapped<'_>) -> Result<(), Fault> {
        self.range.write_mapped(offset, from)
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.range.update(offset, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.range.load_be32(offset)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.range.publish(offset, bytes)
    }
}

pub(super) fn area(ram: &Arc<Ram>) -> Area {
    Area::new(Arc::clone(ram) as Arc<dyn Memory>, 0, ram.len()).unwrap()
}

pub(super) const PD: u32 = 5;
pub(super) const PAGE: u32 = 7;
/// Address of an end's memory.
pub(super) const BASE: u64 = 0x10_0000;
pub(super) const MEMORY: usize = 1 << 16;
pub(super) const BLOCKS: u32 = 64;
const RECEIVES: u32 = 16;
const STRIDE: usize = 64;
const ENTRIES: u32 = 64;
/// All access rights of a region.
pub(super) const ALL: u32 = 0x1f;

/// A completion as the device wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wc {
    pub(super) kind: u8,
    pub(super) opcode: u8,
    pub(super) counter: u16,
    pub(super) bytes: u32,
    pub(super) imm: u32,
    pub(super) uidx: u32,
    pub(super) qpn: u32,
    pub(super) solicited: bool,
    pub(super) slid: u16,
    pub(super) syndrome: u8,
}

/// A CQ and the state of its consumer.
#[derive(Debug)]
pub(super) struct TestCq {
    pub(super) cqn: u32,
    ring: Arc<Ram>,
    pub(super) record: Arc<Ram>,
    consumer: u32,
    armed: u32,
}

impl TestCq {
    pub(super) fn new(device: &mut Device) -> Self {
        let (ring, record) = (Ram::new(ENTRIES as usize * 64), Ram::new(8));
        ring.set(0, &vec![0xf1; ENTRIES as usize * 64]);
        let parts = CqParts {
            ring: area(&ring),
            entry: 64,
            record: area(&record),
            page: PAGE,
            ignore_overrun: false,
        };
        let cqn = device.number().unwrap();
        device.add_cq(cqn, Cq::new(parts).unwrap());
        Self { cqn, ring, record, consumer: 0, armed: 0 }
    }

    /// Requests an event: for the next completion, or for the next solicited one.
    pub(super) fn arm(&mut self, hca: &Hca, solicited_only: bool) {
        let word = (self.armed & 3) << 28 | u32::from(solicited_only) << 24 | self.consumer & 0xff_ffff;
        self.armed += 1;
        let value = (u64::from(word) << 32 | u64::from(self.cqn)).to_be_bytes();
        hca.beside(|device, cx| device.doorbell(cx, PAGE, 0x20, value, None));
    }

    /// The bytes of the entry that is so many entries behind the next one, in whatever state.
    pub(super) fn ahead(&self, entries: u32) -> Vec<u8> {
        self.ring.get(((self.consumer + entries) % ENTRIES) as usize * 64, 64)
    }

    /// Consumes entries without a look at them. The program must have changed their owner bits if the device did not write them.
    pub(super) fn consume(&mut self, entries: u32) {
        for _ in 0..entries {
            let owner = (self.consumer / ENTRIES % 2) as u8;
            self.ring.set((self.consumer % ENTRIES) as usize * 64 + 63, &[owner]);
            self.consumer += 1;
        }
        self.record.set(0, &(self.consumer & 0xff_ffff).to_be_bytes());
    }

    /// The bytes of the next entry, if it is there.
    pub(super) fn peek(&self) -> Option<Vec<u8>> {
        let bytes = self.ring.get((self.consumer % ENTRIES) as usize * 64, 64);
        let cqe = Cqe64::read_from_bytes(&bytes).ok()?;
        let is_new = cqe.opcode() != 0xf && u32::from(cqe.owner()) == self.consumer / ENTRIES % 2;
        is_new.then_some(bytes)
    }

    pub(super) fn poll(&mut self) -> Option<Wc> {
        let at = (self.consumer % ENTRIES) as usize * 64;
        let bytes = self.ring.get(at, 64);
        let cqe = Cqe64::read_from_bytes(&bytes).unwrap();
        if cqe.opcode() == 0xf || u32::from(cqe.owner()) != self.consumer / ENTRIES % 2 {
            return None;
        }
        let error = ErrCqe::read_from_bytes(&bytes).unwrap();
        self.consumer += 1;
        self.record.set(0, &(self.consumer & 0xff_ffff).to_be_bytes());
        let failed = cqe.opcode() >= 12;
        Some(Wc {
            kind: cqe.opcode(),
            opcode: cqe.send_opcode(),
            counter: cqe.wqe_counter.get(),
            bytes: if failed { 0 } else { cqe.byte_cnt.get() },
            imm: if failed { 0 } else { cqe.imm_inval_pkey.get() },
            uidx: cqe.user_index(),
            qpn: cqe.qpn(),
            solicited: cqe.solicited(),
            slid: if failed { 0 } else { cqe.slid.get() },
            syndrome: if failed { error.syndrome } else { 0 },
        })
    }
}

/// One end of a connection: the device, the QP, its queues and memory.
pub(super) struct End {
    pub(super) hca: Hca,
    pub(super) qpn: u32,
    pub(super) key: u32,
    pub(super) memory: Arc<Ram>,
    pub(super) send_cq: TestCq,
    pub(super) recv_cq: TestCq,
    pub(super) sq: Arc<Ram>,
    rq: Arc<Ram>,
    pub(super) record: Arc<Ram>,
    pub(super) posted: u16,
    received: u16,
}

pub(super) fn on<R>(hca: &Hca, f: impl FnOnce(&mut Device, &mut Port<'_>) -> R) -> R {
    hca.with_device(f)
}

impl End {
    pub(super) fn new(hca: &Hca, kind: QpKind) -> Self {
        let memory = Ram::new(MEMORY);
        let (sq, rq, record) =
            (Ram::new(BLOCKS as usize * 64), Ram::new(RECEIVES as usize * STRIDE), Ram::new(8));
        on(hca, |device, _| {
            let region = Kind::Region { memory: Arc::clone(&memory) as Arc<dyn Memory>, iova: BASE };
            let key = device.mkeys.add(0, PD, ALL, region).unwrap();
            let (send_cq, recv_cq) = (TestCq::new(device), TestCq::new(device));
            let qpn = device.number().unwrap();
            let mut qp = Qp::new(qpn, kind);
            (qp.pd, qp.uidx, qp.page) = (PD, 0x77, Some(PAGE));
            (qp.send_cqn, qp.recv_cqn) = (send_cq.cqn, recv_cq.cqn);
            qp.sq =
                Some(SendRing { ring: area(&sq), count: BLOCKS, record: area(&record), next: 0, posted: 0 });
            qp.rq = Some(RecvRing {
                ring: area(&rq),
                stride: STRIDE as u64,
                count: RECEIVES,
                record: area(&record),
                taken: 0,
                broken: false,
                padded: false,
            });
            device.add_qp(qp);
            Self {
                hca: hca.clone(),
                qpn,
                key,
                memory: Arc::clone(&memory),
                send_cq,
                recv_cq,
                sq: Arc::clone(&sq),
                rq: Arc::clone(&rq),
                record: Arc::clone(&record),
                posted: 0,
                received: 0,
            }
        })
    }

    pub(super) fn qp<R>(&self, f: impl FnOnce(&mut Device, &mut Port<'_>, &mut Qp) -> R) -> R {
        on(&self.hca, |device, cx| device.with_qp(cx, self.qpn, f).unwrap())
    }

    pub(super) fn state(&self) -> State {
        self.qp(|_, _, qp| qp.state)
    }

    pub(super) fn attr(&self, f: impl FnOnce(&mut Attr)) {
        self.qp(|_, _, qp| f(&mut qp.attr));
    }

    pub(super) fn set_state(&self, to: State) {
        self.qp(|device, cx, qp| device.set_state(cx, qp, to));
    }

    /// Moves the QP to RTS; the peer is this QP of the device with this LID.
    pub(super) fn connect(&self, dest_qpn: u32, dlid: u16, psn: u32) {
        self.attr(|a| {
            *a = Attr {
                dest_qpn,
                dlid,
                mtu: 256,
                sq_psn: psn,
                rq_psn: psn,
                access: 0xf,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                qkey: 0x1234,
                ..Attr::default()
            }
        });
        for to in [State::Init, State::Rtr, State::Rts] {
            self.set_state(to);
        }
    }

    /// Moves the QP to RESET. Its rings are empty then.
    pub(super) fn reset(&mut self) {
        self.set_state(State::Reset);
        (self.posted, self.received) = (0, 0);
        self.record.set(0, &[0; 8]);
    }

    /// Writes a WQE into the ring and updates the doorbell record. Does not ring the doorbell.
    pub(super) fn write_wqe(&mut self, opcode: u8, signaled: bool, imm: u32, segments: &[&[u8]]) -> u16 {
        let ce = if signaled { MLX5_WQE_CTRL_CQ_UPDATE } else { 0 };
        self.write_ctrl(opcode, ce, imm, segments)
    }

    pub(super) fn write_ctrl(&mut self, opcode: u8, fm_ce_se: u8, imm: u32, segments: &[&[u8]]) -> u16 {
        let index = self.posted;
        let body: Vec<u8> = segments.concat();
        let ds = (1 + body.len() / 16) as u8;
        let ctrl = CtrlSeg::new(0, index, opcode, self.qpn, ds, fm_ce_se, Be32::new(imm));
        let wqe = [ctrl.as_bytes(), &body].concat();
        for (i, block) in wqe.chunks(64).enumerate() {
            let slot = (u32::from(index) + i as u32) % BLOCKS;
            self.sq.set(slot as usize * 64, block);
        }
        self.posted = index.wrapping_add(u16::from(ds).div_ceil(4));
        self.record.set(4, &u32::from(self.posted).to_be_bytes());
        index
    }

    /// Rings the doorbell for the WQE at an index.
    pub(super) fn ring(&self, index: u16) {
        let mut value = [0; 8];
        value.copy_from_slice(&self.sq.get((u32::from(index) % BLOCKS) as usize * 64, 8));
        self.hca.beside(|device, cx| device.doorbell(cx, PAGE, 0x800, value, None));
    }

    pub(super) fn post(&mut self, opcode: u8, imm: u32, segments: &[&[u8]]) -> u16 {
        let index = self.write_wqe(opcode, true, imm, segments);
        self.ring(index);
        index
    }

    /// A list with this entry; an empty list for 0 bytes, because a byte count of 0 means 2^31.
    fn list(&self, at: u64, len: u32) -> Vec<u8> {
        if len == 0 { Vec::new() } else { self.sge(at, len).as_bytes().to_vec() }
    }

    pub(super) fn sge(&self, at: u64, len: u32) -> DataSeg {
        DataSeg::new(len, self.key, BASE + at)
    }

    pub(super) fn send(&mut self, at: u64, len: u32) -> u16 {
        let sge = self.sge(at, len);
        self.post(MLX5_OPCODE_SEND, 0, &[sge.as_bytes()])
    }

    pub(super) fn send_imm(&mut self, at: u64, len: u32, imm: u32) -> u16 {
        let sge = self.sge(at, len);
        self.post(MLX5_OPCODE_SEND_IMM, imm, &[sge.as_bytes()])
    }

    pub(super) fn write(&mut self, at: u64, len: u32, raddr: u64, rkey: u32) -> u16 {
        let list = self.list(at, len);
        self.post(MLX5_OPCODE_RDMA_WRITE, 0, &[remote(raddr, rkey).as_bytes(), &list])
    }

    pub(super) fn write_imm(&mut self, at: u64, len: u32, raddr: u64, rkey: u32, imm: u32) -> u16 {
        let list = self.list(at, len);
        self.post(MLX5_OPCODE_RDMA_WRITE_IMM, imm, &[remote(raddr, rkey).as_bytes(), &list])
    }

    pub(super) fn read(&mut self, at: u64, len: u32, raddr: u64, rkey: u32) -> u16 {
        let list = self.list(at, len);
        self.post(MLX5_OPCODE_RDMA_READ, 0, &[remote(raddr, rkey).as_bytes(), &list])
    }

    pub(super) fn fetch_add(&mut self, at: u64, raddr: u64, rkey: u32, add: u64) -> u16 {
        let sge = self.sge(at, 8);
        let atomic = AtomicSeg { swap_add: Be64::new(add), compare: Be64::new(0xdead) };
        let segments = [remote(raddr, rkey).as_bytes().to_vec(), atomic.as_bytes().to_vec()];
        self.post(MLX5_OPCODE_ATOMIC_FA, 0, &[&segments[0], &segments[1], sge.as_bytes()])
    }

    pub(super) fn cmp_swap(&mut self, at: u64, raddr: u64, rkey: u32, compare: u64, swap: u64) -> u16 {
        let sge = self.sge(at, 8);
        let atomic = AtomicSeg { swap_add: Be64::new(swap), compare: Be64::new(compare) };
        let segments = [remote(raddr, rkey).as_bytes().to_vec(), atomic.as_bytes().to_vec()];
        self.post(MLX5_OPCODE_ATOMIC_CS, 0, &[&segments[0], &segments[1], sge.as_bytes()])
    }

    pub(super) fn recv(&mut self, at: u64, len: u32) {
        self.recv_to(self.sge(at, len));
    }

    pub(super) fn recv_to(&mut self, sge: DataSeg) {
        self.recv_list(&[sge]);
    }

    /// Posts a receive with these entries, at most three.
    pub(super) fn recv_list(&mut self, list: &[DataSeg]) {
        let end = DataSeg::new(0, MLX5_INVALID_LKEY, 0);
        self.recv_bytes(&[list.as_bytes(), end.as_bytes()].concat());
    }

    /// Posts a receive with these bytes.
    pub(super) fn recv_bytes(&mut self, list: &[u8]) {
        let slot = usize::from(self.received) % RECEIVES as usize;
        self.rq.set(slot * STRIDE, list);
        self.received = self.received.wrapping_add(1);
        self.record.set(0, &u32::from(self.received).to_be_bytes());
    }

    /// Writes a pattern into the memory and returns it.
    pub(super) fn fill(&self, at: usize, len: usize, seed: u8) -> Vec<u8> {
        let data: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect();
        self.memory.set(at, &data);
        data
    }
}

pub(super) fn remote(raddr: u64, rkey: u32) -> RaddrSeg {
    RaddrSeg { raddr: Be64::new(raddr), rkey: Be32::new(rkey), reserved: Be32::new(0) }
}

/// A connected pair on two InfiniBand devices.
pub(super) fn pair(fabric: &Fabric, kind: QpKind, psn: u32) -> (End, End) {
    let hcas = ["hca0", "hca1"].map(|name| fabric.device(name).link(Link::InfiniBand).build());
    let (a, b) = (End::new(&hcas[0], kind), End::new(&hcas[1], kind));
    a.connect(b.qpn, 2, psn);
    b.connect(a.qpn, 1, psn);
    (a, b)
}

/// An SRQ and the state of its producer. WQEs are linked in order.
pub(super) struct TestSrq {
    pub(super) srqn: u32,
    ring: Arc<Ram>,
    record: Arc<Ram>,
    head: u16,
    posted: u32,
}

pub(super) const SRQ_WQES: u32 = 8;
const SRQ_STRIDE: usize = 32;

impl TestSrq {
    pub(super) fn new(hca: &Hca, limit: u32, xrc: Option<(u32, u32)>) -> Self {
        let (ring, record) = (Ram::new(SRQ_WQES as usize * SRQ_STRIDE), Ram::new(8));
        for i in 0..SRQ_WQES {
            let next = ((i + 1) % SRQ_WQES) as u16;
            ring.set(i as usize * SRQ_STRIDE + 2, &next.to_be_bytes());
        }
        let srqn = on(hca, |device, _| {
            let srqn = device.number().unwrap();
            let srq = Srq {
                ring: area(&ring),
                stride: SRQ_STRIDE as u64,
                count: SRQ_WQES,
                record: area(&record),
                head: 0,
                taken: 0,
                limit,
                pd: PD,
                xrc,
                uidx: 0x99,
                broken: false,
            };
            device.add_srq(srqn, srq);
            srqn
        });
        Self { srqn, ring, record, head: 0, posted: 0 }
    }

    /// Posts a receive. `mask` selects the bits of the count that are written to the doorbell record.
    pub(super) fn recv(&mut self, sge: DataSeg, mask: u32) {
        let at = usize::from(self.head) * SRQ_STRIDE;
        self.ring.set(at + 16, sge.as_bytes());
        self.head = u16::from_be_bytes(self.ring.get(at + 2, 2).try_into().unwrap());
        self.posted += 1;
        self.record.set(0, &(self.posted & mask).to_be_bytes());
    }
}
