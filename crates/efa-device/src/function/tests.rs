// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function as the kernel's driver uses it: registers, commands, and queues in the machine's memory.

use super::bus::{Bus, Pages};
use super::{CQ_BELL, DOORBELL_BAR, Function, PAGE};
use crate::device::{Device, Port};
use crate::{Fabric, Generation, Plugged};
use core::time::Duration;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use uverbs_efa_hw::admin::{
    AcqCommonDesc, AenqCommonDesc, AqCommonDesc, CtrlBuffInfo,
    EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_INDIRECT_MASK, EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK,
    EFA_ADMIN_BAD_OPCODE, EFA_ADMIN_ILLEGAL_PARAMETER, EFA_ADMIN_RESOURCE_BUSY, EFA_ADMIN_SUCCESS,
    EFA_ADMIN_UNSUPPORTED_OPCODE, Eqe, MemAddr,
};
use uverbs_efa_hw::cmd::{
    AllocPdResp, AllocUarResp, CreateAhCmd, CreateAhResp, CreateCqCmd, CreateCqResp, CreateEqCmd,
    CreateEqResp, CreateQpCmd, CreateQpResp, DeallocPdCmd, DeregMrCmd, DestroyCqCmd, DestroyEqCmd,
    DestroyQpCmd, EFA_ADMIN_ALLOC_MR, EFA_ADMIN_ALLOC_PD, EFA_ADMIN_ALLOC_UAR, EFA_ADMIN_CREATE_AH,
    EFA_ADMIN_CREATE_CQ, EFA_ADMIN_CREATE_EQ, EFA_ADMIN_CREATE_QP, EFA_ADMIN_DEALLOC_PD, EFA_ADMIN_DEREG_MR,
    EFA_ADMIN_DESTROY_CQ, EFA_ADMIN_DESTROY_EQ, EFA_ADMIN_DESTROY_QP, EFA_ADMIN_GET_FEATURE,
    EFA_ADMIN_GET_STATS, EFA_ADMIN_MODIFY_QP, EFA_ADMIN_QP_TYPE_SRD, EFA_ADMIN_QUERY_QP, EFA_ADMIN_REG_MR,
    EFA_ADMIN_SET_FEATURE, ModifyQpCmd, QpAllocSize, QueryQpCmd, QueryQpResp, RegMrCmd, RegMrResp,
};
use uverbs_efa_hw::feature::{
    AenqConfig, BasicStats, DeviceAttr, EFA_ADMIN_AENQ_CONFIG, EFA_ADMIN_DEVICE_ATTR, EFA_ADMIN_KEEP_ALIVE,
    EFA_ADMIN_QUEUE_ATTR_1, EFA_ADMIN_QUEUE_ATTR_2, FeatureCommonDesc, GetFeatureCmd, GetStatsCmd,
    QueueAttr1, SetFeatureCmd,
};
use uverbs_efa_hw::io::{RxCdesc, RxDesc, TxBufDesc, TxMetaDesc};
use uverbs_efa_hw::regs::{
    CqDoorbell, EFA_REGS_ACQ_BASE_HI_OFF, EFA_REGS_ACQ_BASE_LO_OFF, EFA_REGS_ACQ_CAPS_OFF,
    EFA_REGS_AENQ_BASE_HI_OFF, EFA_REGS_AENQ_BASE_LO_OFF, EFA_REGS_AENQ_CAPS_OFF, EFA_REGS_AENQ_CONS_DB_OFF,
    EFA_REGS_AQ_BASE_HI_OFF, EFA_REGS_AQ_BASE_LO_OFF, EFA_REGS_AQ_CAPS_OFF, EFA_REGS_AQ_PROD_DB_OFF,
    EFA_REGS_CAPS_OFF, EFA_REGS_DEV_CTL_OFF, EFA_REGS_DEV_STS_FATAL_ERROR_MASK, EFA_REGS_DEV_STS_OFF,
    EFA_REGS_DEV_STS_READY_MASK, EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK, EFA_REGS_EQ_DB_ARM_MASK,
    EFA_REGS_EQ_DB_OFF, EFA_REGS_INTR_MASK_OFF, EFA_REGS_MMIO_REG_READ_OFF, EFA_REGS_MMIO_RESP_HI_OFF,
    EFA_REGS_MMIO_RESP_LO_OFF, EFA_REGS_VERSION_OFF, MmioReqReadLessResp,
};
use uverbs_fabric::memory::Fault;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The memory of a machine.
#[derive(Debug)]
struct Machine {
    memory: Mutex<Vec<u8>>,
    interrupts: Mutex<Vec<u8>>,
}

impl Machine {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { memory: Mutex::new(vec![0; bytes]), interrupts: Mutex::default() })
    }

    fn get<T: FromBytes>(&self, addr: u64) -> T {
        let memory = self.memory.lock().unwrap();
        T::read_from_prefix(&memory[addr as usize..]).unwrap().0
    }

    fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        self.memory.lock().unwrap()[addr as usize..][..len].to_vec()
    }

    fn put(&self, addr: u64, bytes: &[u8]) {
        self.write(addr, bytes).unwrap();
    }

    fn taken(&self) -> Vec<u8> {
        core::mem::take(&mut self.interrupts.lock().unwrap())
    }
}

impl Bus for Machine {
    fn read(&self, addr: u64, to: &mut [u8]) -> Result<(), Fault> {
        let (memory, at) = (self.memory.lock().unwrap(), usize::try_from(addr).map_err(|_| Fault)?);
        let end = at.checked_add(to.len()).ok_or(Fault)?;
        to.copy_from_slice(memory.get(at..end).ok_or(Fault)?);
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Fault> {
        let (mut memory, at) = (self.memory.lock().unwrap(), usize::try_from(addr).map_err(|_| Fault)?);
        let end = at.checked_add(from.len()).ok_or(Fault)?;
        memory.get_mut(at..end).ok_or(Fault)?.copy_from_slice(from);
        Ok(())
    }

    fn publish(&self, addr: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        if addr.is_multiple_of(8) { self.write(addr, &bytes) } else { Err(Fault) }
    }

    fn interrupt(&self, vector: u8) {
        self.interrupts.lock().unwrap().push(vector);
    }
}

/// Where things are in the machine's memory.
const AQ: u64 = 0x1000;
const ACQ: u64 = 0x2000;
const AENQ: u64 = 0x3000;
const RESP: u64 = 0x4000;
const EQ: u64 = 0x5000;
const CQ: u64 = 0x6000;
const RQ: u64 = 0xa000;
const DATA: u64 = 0x10_000;
const BYTES: usize = 0x40_0000;
const DEPTH: u16 = 32;

/// A driver.
struct Driver {
    plugged: Plugged<Function>,
    machine: Arc<Machine>,
    llq: Arc<Machine>,
    posted: u16,
    mmio: u16,
}

impl Driver {
    fn new(fabric: &Fabric, name: &str) -> Self {
        let (machine, llq) = (Machine::new(BYTES), Machine::new(1 << 20));
        let (bus, ring): (Arc<dyn Bus>, Arc<dyn Bus>) =
            (Arc::<Machine>::clone(&machine), Arc::<Machine>::clone(&llq));
        let plugged = fabric.device(name).generation(Generation::Third).build_with(|config, device, _| {
            let llq = Pages::contiguous(&ring, 0, Function::llq_bytes(&device.caps)).unwrap();
            Function::new(config.guid, bus, Arc::new(llq))
        });
        let mut driver = Self { plugged, machine, llq, posted: 0, mmio: 0 };
        driver.start();
        driver
    }

    fn enter<R>(&self, f: impl FnOnce(&mut Device, &mut Function, &mut Port<'_>) -> R) -> R {
        self.plugged.enter(f).unwrap()
    }

    fn write(&self, offset: u32, value: u32) {
        self.enter(|device, function, port| function.write_register(device, port, offset, value));
    }

    /// Reads a register by the answer in memory.
    fn read(&mut self, offset: u32) -> u32 {
        self.mmio += 1;
        self.write(EFA_REGS_MMIO_REG_READ_OFF, u32::from(self.mmio) | offset << 16);
        let resp: MmioReqReadLessResp = self.machine.get(RESP);
        assert_eq!((resp.req_id, u32::from(resp.reg_off)), (self.mmio, offset));
        resp.reg_val
    }

    /// Sets where answers to reads of registers are written.
    fn set_answers(&self) {
        self.write(EFA_REGS_MMIO_RESP_LO_OFF, RESP as u32);
        self.write(EFA_REGS_MMIO_RESP_HI_OFF, 0);
    }

    /// Resets the device, and sets its queues.
    fn start(&mut self) {
        self.set_answers();
        assert!(self.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_READY_MASK != 0);
        self.write(EFA_REGS_DEV_CTL_OFF, 1);
        self.set_answers();
        assert!(self.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK != 0);
        self.write(EFA_REGS_DEV_CTL_OFF, 0);
        assert!(self.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK == 0);
        for (offset, value) in [
            (EFA_REGS_AQ_BASE_LO_OFF, AQ as u32),
            (EFA_REGS_AQ_BASE_HI_OFF, 0),
            (EFA_REGS_AQ_CAPS_OFF, u32::from(DEPTH) | 64 << 16),
            (EFA_REGS_ACQ_BASE_LO_OFF, ACQ as u32),
            (EFA_REGS_ACQ_BASE_HI_OFF, 0),
            (EFA_REGS_ACQ_CAPS_OFF, u32::from(DEPTH) | 64 << 16 | 1 << 24),
            (EFA_REGS_AENQ_BASE_LO_OFF, AENQ as u32),
            (EFA_REGS_AENQ_BASE_HI_OFF, 0),
            (EFA_REGS_AENQ_CAPS_OFF, 16 | 64 << 16 | 2 << 24),
            (EFA_REGS_AENQ_CONS_DB_OFF, 0),
            (EFA_REGS_INTR_MASK_OFF, 0),
        ] {
            self.write(offset, value);
        }
        self.posted = 0;
    }

    /// Executes a command; the status, and the answer.
    fn run<R: FromBytes>(&mut self, opcode: u8, cmd: &(impl IntoBytes + Immutable)) -> (u8, R) {
        let mut entry = [0; 64];
        entry[..cmd.as_bytes().len()].copy_from_slice(cmd.as_bytes());
        let (round, index) = (self.posted / DEPTH, u64::from(self.posted % DEPTH));
        let id = self.posted & 0xfff;
        entry[..2].copy_from_slice(&id.to_le_bytes());
        entry[2] = opcode;
        entry[3] = entry[3] & 6 | u8::from(round.is_multiple_of(2));
        self.machine.put(AQ + index * 64, &entry);
        self.posted = self.posted.wrapping_add(1);
        self.write(EFA_REGS_AQ_PROD_DB_OFF, self.posted.into());
        assert_eq!(self.machine.taken(), [1], "one interrupt of its vector");
        let answer: AcqCommonDesc = self.machine.get(ACQ + index * 64);
        assert_eq!((answer.command, answer.flags), (id, u8::from(round.is_multiple_of(2))));
        assert_eq!(answer.sq_head_indx, self.posted);
        (answer.status, self.machine.get(ACQ + index * 64))
    }

    fn ok<R: FromBytes>(&mut self, opcode: u8, cmd: &(impl IntoBytes + Immutable)) -> R {
        let (status, resp) = self.run(opcode, cmd);
        assert_eq!(status, EFA_ADMIN_SUCCESS);
        resp
    }

    fn status(&mut self, opcode: u8, cmd: &(impl IntoBytes + Immutable)) -> u8 {
        self.run::<AcqCommonDesc>(opcode, cmd).0
    }

    fn bell(&self, offset: u32, value: u32) {
        self.enter(|device, function, port| function.write_doorbell(device, port, offset.into(), value));
    }

    fn feature<T: FromBytes>(&mut self, feature_id: u8) -> (u8, T) {
        let feature_common = FeatureCommonDesc { feature_id, ..FeatureCommonDesc::default() };
        let cmd = GetFeatureCmd { feature_common, ..GetFeatureCmd::default() };
        let (status, bytes): (u8, [u8; 64]) = self.run(EFA_ADMIN_GET_FEATURE, &cmd);
        (status, T::read_from_prefix(&bytes[8..]).unwrap().0)
    }
}

const NOTHING: AqCommonDesc = AqCommonDesc { command_id: 0, opcode: 0, flags: 0 };

/// The objects of a driver with one QP.
struct Objects {
    pd: u16,
    uar: u16,
    eqn: u16,
    cq: CreateCqResp,
    qp: CreateQpResp,
    mr: RegMrResp,
}

impl Driver {
    fn reg(&mut self, pd: u16, page: u64) -> (u8, RegMrResp) {
        let cmd = RegMrCmd {
            pd,
            pbl: [page, 0, 0, 0],
            mr_length: 4096,
            flags: 12,
            permissions: 7,
            page_num: 1,
            iova: 0x7000_0000,
            ..RegMrCmd::default()
        };
        self.run(EFA_ADMIN_REG_MR, &cmd)
    }

    fn objects(&mut self) -> Objects {
        let pd = self.ok::<AllocPdResp>(EFA_ADMIN_ALLOC_PD, &NOTHING).pd;
        let uar = self.ok::<AllocUarResp>(EFA_ADMIN_ALLOC_UAR, &NOTHING).uar;
        let eq = CreateEqCmd {
            depth: 16,
            msix_vec: 5,
            caps: 4,
            ba: MemAddr::new(EQ),
            event_bitmask: 1,
            ..CreateEqCmd::default()
        };
        let eqn = self.ok::<CreateEqResp>(EFA_ADMIN_CREATE_EQ, &eq).eqn;
        let cq = CreateCqCmd {
            cq_caps_1: 1 << 5,
            cq_caps_2: 4,
            sub_cq_depth: 64,
            eqn,
            cq_ba: MemAddr::new(CQ),
            num_sub_cqs: 2,
            uar,
            ..CreateCqCmd::default()
        };
        let cq = self.ok::<CreateCqResp>(EFA_ADMIN_CREATE_CQ, &cq);
        assert_eq!((cq.flags, cq.sub_cq_actual_depth), (1, 64));
        let qp = CreateQpCmd {
            pd,
            qp_type: EFA_ADMIN_QP_TYPE_SRD,
            rq_base_addr: RQ,
            send_cq_idx: cq.cq_idx.into(),
            recv_cq_idx: cq.cq_idx.into(),
            qp_alloc_size: QpAllocSize {
                send_queue_ring_size: 1024,
                send_queue_depth: 16,
                recv_queue_ring_size: 256,
                recv_queue_depth: 16,
            },
            uar,
            ..CreateQpCmd::default()
        };
        let qp = self.ok::<CreateQpResp>(EFA_ADMIN_CREATE_QP, &qp);
        for (modify_mask, cur_qp_state, qp_state) in [(7, 0, 1), (3, 1, 2), (11, 2, 3)] {
            let cmd = ModifyQpCmd {
                modify_mask,
                qp_handle: qp.qp_handle,
                qp_state,
                cur_qp_state,
                qkey: 9,
                ..ModifyQpCmd::default()
            };
            self.ok::<AcqCommonDesc>(EFA_ADMIN_MODIFY_QP, &cmd);
        }
        let (status, mr) = self.reg(pd, DATA);
        assert_eq!(status, EFA_ADMIN_SUCCESS);
        Objects { pd, uar, eqn, cq, qp, mr }
    }
}

#[test]
fn a_driver_starts_the_device_and_asks_what_it_can_do() {
    let fabric = Fabric::deterministic(1);
    let mut driver = Driver::new(&fabric, "a");
    assert_eq!((driver.read(EFA_REGS_VERSION_OFF), driver.read(EFA_REGS_CAPS_OFF) >> 8 & 0xff), (1, 48));
    let (_, attr) = driver.feature::<DeviceAttr>(EFA_ADMIN_DEVICE_ATTR);
    assert_eq!((attr.db_bar, attr.device_caps, attr.admin_api_version), (DOORBELL_BAR, 0xf, 1));
    assert_eq!(
        attr.supported_features >> EFA_ADMIN_QUEUE_ATTR_2,
        0,
        "the third generation has no long entries"
    );
    assert_eq!(driver.feature::<u64>(EFA_ADMIN_QUEUE_ATTR_2).0, EFA_ADMIN_UNSUPPORTED_OPCODE);
    let (_, queues) = driver.feature::<QueueAttr1>(EFA_ADMIN_QUEUE_ATTR_1);
    assert_eq!((queues.max_qp, queues.sub_cqs_per_cq, queues.max_llq_size), (256, 2, 4096 * 64));
    // Commands fill the ring several times.
    for _ in 0..100 {
        let pd = driver.ok::<AllocPdResp>(EFA_ADMIN_ALLOC_PD, &NOTHING).pd;
        driver.ok::<AcqCommonDesc>(EFA_ADMIN_DEALLOC_PD, &DeallocPdCmd { pd, ..DeallocPdCmd::default() });
    }
    for (opcode, status) in [
        (0, EFA_ADMIN_BAD_OPCODE),
        (21, EFA_ADMIN_BAD_OPCODE),
        (EFA_ADMIN_ALLOC_MR, EFA_ADMIN_UNSUPPORTED_OPCODE),
    ] {
        assert_eq!(driver.status(opcode, &NOTHING), status);
    }
    let stats = driver.ok::<[u8; 56]>(EFA_ADMIN_GET_STATS, &GetStatsCmd::default());
    assert_eq!(BasicStats::read_from_bytes(&stats[8..]).unwrap(), BasicStats::default());
}

#[test]
fn messages_pass_between_two_functions_with_events() {
    let fabric = Fabric::deterministic(1);
    let (mut a, mut b) = (Driver::new(&fabric, "a"), Driver::new(&fabric, "b"));
    let (x, y) = (a.objects(), b.objects());
    let gid = b.enter(|device, _, _| device.gid);
    let ah = a
        .ok::<CreateAhResp>(
            EFA_ADMIN_CREATE_AH,
            &CreateAhCmd { dest_addr: gid, pd: x.pd, ..CreateAhCmd::default() },
        )
        .ah;
    b.machine.put(RQ, RxDesc::new(7, 0x7000_0100, 500, y.mr.l_key, true, true).as_bytes());
    b.bell(y.qp.rq_db_offset, 1);
    b.write(EFA_REGS_EQ_DB_OFF, u32::from(y.eqn) | EFA_REGS_EQ_DB_ARM_MASK);
    b.bell(y.cq.db_offset, CqDoorbell { consumer_index: 0, cmd_sn: 0, arm: true }.pack());
    assert_eq!((b.machine.taken(), u64::from(y.cq.db_offset) % PAGE), (vec![], CQ_BELL));
    a.machine.put(DATA + 0x10, b"through two machines");
    let meta = TxMetaDesc {
        req_id: 3,
        ctrl1: 0x80,
        ctrl2: 0x1c,
        dest_qp_num: y.qp.qp_num,
        length: 1,
        ah,
        qkey: 9,
        ..TxMetaDesc::default()
    };
    let entry = [meta.as_bytes(), TxBufDesc::new(0x7000_0010, 20, x.mr.l_key).as_bytes()].concat();
    a.llq.put(x.qp.llq_descriptors_offset.into(), &entry);
    a.bell(x.qp.sq_db_offset, 1);
    fabric.run();
    assert_eq!(b.machine.bytes(DATA + 0x100, 20), b"through two machines");
    let cqe = |of: &Driver, sub: u16| of.machine.get::<RxCdesc>(CQ + u64::from(sub) * 64 * 16);
    let (sent, got) = (cqe(&a, x.qp.send_sub_cq_idx), cqe(&b, y.qp.recv_sub_cq_idx));
    assert_eq!((sent.common.req_id, sent.common.status, sent.common.phase()), (3, 0, true));
    assert_eq!((got.common.req_id, got.common.status, got.length, got.src_qp_num), (7, 0, 20, x.qp.qp_num));
    // The event, and its interrupt.
    let eqe: Eqe = b.machine.get(EQ);
    assert_eq!((eqe.common, eqe.comp_event.cqn, b.machine.taken()), (1, y.cq.cq_idx, vec![5]));
    assert_eq!(a.machine.taken(), [], "its queue is not armed");
}

#[test]
fn objects_are_destroyed_in_order_and_by_a_reset() {
    let fabric = Fabric::deterministic(1);
    let mut driver = Driver::new(&fabric, "a");
    let o = driver.objects();
    let state: QueryQpResp =
        driver.ok(EFA_ADMIN_QUERY_QP, &QueryQpCmd { qp_handle: o.qp.qp_handle, ..QueryQpCmd::default() });
    assert_eq!((state.qp_state, state.qkey), (3, 9));
    let cq = DestroyCqCmd { cq_idx: o.cq.cq_idx, ..DestroyCqCmd::default() };
    let (pd, eq) = (
        DeallocPdCmd { pd: o.pd, ..DeallocPdCmd::default() },
        DestroyEqCmd { eqn: o.eqn, ..DestroyEqCmd::default() },
    );
    assert_eq!(driver.status(EFA_ADMIN_DESTROY_CQ, &cq), EFA_ADMIN_RESOURCE_BUSY);
    assert_eq!(driver.status(EFA_ADMIN_DEALLOC_PD, &pd), EFA_ADMIN_RESOURCE_BUSY);
    assert_eq!(driver.status(EFA_ADMIN_DESTROY_EQ, &eq), EFA_ADMIN_RESOURCE_BUSY);
    let number = DestroyQpCmd { qp_handle: o.qp.qp_num.into(), ..DestroyQpCmd::default() };
    assert_eq!(driver.status(EFA_ADMIN_DESTROY_QP, &number), EFA_ADMIN_ILLEGAL_PARAMETER, "not the handle");
    let qp = DestroyQpCmd { qp_handle: o.qp.qp_handle, ..DestroyQpCmd::default() };
    driver.ok::<AcqCommonDesc>(EFA_ADMIN_DESTROY_QP, &qp);
    driver.ok::<AcqCommonDesc>(EFA_ADMIN_DESTROY_CQ, &cq);
    driver.ok::<AcqCommonDesc>(EFA_ADMIN_DESTROY_EQ, &eq);
    driver
        .ok::<AcqCommonDesc>(EFA_ADMIN_DEREG_MR, &DeregMrCmd { l_key: o.mr.l_key, ..DeregMrCmd::default() });
    driver.ok::<AcqCommonDesc>(EFA_ADMIN_DEALLOC_PD, &pd);
    assert_eq!(driver.status(EFA_ADMIN_DESTROY_QP, &qp), EFA_ADMIN_ILLEGAL_PARAMETER);
    driver.objects();
    driver.start();
    let again = driver.objects();
    assert_eq!((again.pd, again.uar, again.eqn, again.cq.cq_idx), (o.pd, o.uar, o.eqn, o.cq.cq_idx));
    assert_ne!(again.qp.qp_num, o.qp.qp_num, "numbers are not used again at once");
}

#[test]
fn regions_have_their_pages_in_the_command_in_a_list_or_in_chunks() {
    let fabric = Fabric::deterministic(1);
    let mut driver = Driver::new(&fabric, "a");
    let pd = driver.ok::<AllocPdResp>(EFA_ADMIN_ALLOC_PD, &NOTHING).pd;
    let base = RegMrCmd { pd, flags: 12, permissions: 1, iova: 0x7000_0ff0, ..RegMrCmd::default() };
    // Pages in the reverse order, so that a wrong order is detected.
    let page = |i: u64| DATA + 0x10_0000 - i * 4096;
    let data = |flags| AqCommonDesc { flags, ..NOTHING };
    let inline = RegMrCmd { pbl: [page(0), page(1), 0, 0], mr_length: 100, page_num: 2, ..base };
    for i in 0..520 {
        driver.machine.put(0x20_0000 + i * 8, &page(i % 200).to_le_bytes());
    }
    let info = |addr, length: u32| {
        let mut pbl = [0_u64; 4];
        let info = CtrlBuffInfo { length, address: MemAddr::new(addr) };
        pbl.as_mut_bytes()[..12].copy_from_slice(info.as_bytes());
        pbl
    };
    let length = |pages: u64| pages * 4096 - 0xff0;
    let list = RegMrCmd {
        aq_common_desc: data(EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK),
        pbl: info(0x20_0000, 8 * 100),
        mr_length: length(100),
        page_num: 100,
        ..base
    };
    // A chunk with two pages of a list.
    driver.machine.put(0x30_0000, &[0x20_0000_u64, 0x20_1000].map(u64::to_le_bytes).concat());
    let both = EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK | EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_INDIRECT_MASK;
    let chunks = RegMrCmd {
        aq_common_desc: data(both),
        pbl: info(0x30_0000, 28),
        mr_length: length(520),
        page_num: 520,
        ..base
    };
    let counted = [(inline, 2), (list, 100), (chunks, 520_u64)];
    // The kernel's driver does not say how many pages there are.
    let uncounted = counted.map(|(cmd, pages)| (RegMrCmd { page_num: 0, ..cmd }, pages));
    for (cmd, pages) in counted.into_iter().chain(uncounted) {
        let mr = driver.ok::<RegMrResp>(EFA_ADMIN_REG_MR, &cmd);
        driver.machine.put(page(0) + 0xff0, &[0xaa; 16]);
        driver.machine.put(page(1), &[0xbb; 16]);
        let last = page((pages - 1) % 200);
        driver.enter(|device, _, _| {
            let mut bytes = [0; 32];
            let (memory, at) = device.local_memory(pd, mr.l_key, 0x7000_0ff0, 32).unwrap();
            memory.read(at, &mut bytes).unwrap();
            assert_eq!(bytes, [[0xaa; 16], [0xbb; 16]].concat()[..]);
            let end = cmd.mr_length;
            memory.write(end - 4, &[1, 2, 3, 4]).unwrap();
            assert_eq!(memory.write(end - 3, &[1, 2, 3, 4]), Err(Fault));
        });
        let at = (0xff0 + cmd.mr_length - 4) % 4096;
        assert_eq!(driver.machine.bytes(last + at, 4), [1, 2, 3, 4]);
    }
    for wrong in [
        RegMrCmd { page_num: 3, ..inline },
        RegMrCmd { page_num: 1, ..inline },
        RegMrCmd { pbl: [page(0) + 8, page(1), 0, 0], ..inline },
        RegMrCmd { page_num: 5, mr_length: length(5), ..inline },
        RegMrCmd { flags: 11, ..inline },
        RegMrCmd { flags: 0x80, ..inline },
        RegMrCmd { mr_length: u64::MAX, ..inline },
        RegMrCmd { pd: 200, ..inline },
        RegMrCmd { pbl: info(u64::MAX - 100, 800), ..list },
        RegMrCmd { page_num: u32::MAX, ..list },
    ] {
        assert_eq!(driver.status(EFA_ADMIN_REG_MR, &wrong), EFA_ADMIN_ILLEGAL_PARAMETER);
    }
}

#[test]
fn signs_of_life_are_events_that_the_driver_must_request() {
    let fabric = Fabric::deterministic(1);
    let mut driver = Driver::new(&fabric, "a");
    let alive = |driver: &Driver| driver.enter(|_, function, port| function.keep_alive(port.now));
    assert!(!alive(&driver));
    let mut cmd = SetFeatureCmd {
        feature_common: FeatureCommonDesc {
            feature_id: EFA_ADMIN_AENQ_CONFIG,
            ..FeatureCommonDesc::default()
        },
        ..SetFeatureCmd::default()
    };
    cmd.u[1] = 1 << 9;
    assert_eq!(driver.status(EFA_ADMIN_SET_FEATURE, &cmd), EFA_ADMIN_ILLEGAL_PARAMETER);
    cmd.u[1] = 1 << EFA_ADMIN_KEEP_ALIVE;
    driver.ok::<AcqCommonDesc>(EFA_ADMIN_SET_FEATURE, &cmd);
    assert_eq!(
        driver.feature::<AenqConfig>(EFA_ADMIN_AENQ_CONFIG).1.enabled_groups,
        1 << EFA_ADMIN_KEEP_ALIVE
    );
    fabric.run_for(Duration::from_secs(5));
    for i in 0..50_u64 {
        assert!(alive(&driver));
        let event: AenqCommonDesc = driver.machine.get(AENQ + i % 16 * 64);
        assert_eq!((event.group, event.flags), (EFA_ADMIN_KEEP_ALIVE, u8::from((i / 16).is_multiple_of(2))));
        assert_eq!((event.timestamp_low, event.timestamp_high), (705_032_704, 1));
        assert_eq!(driver.machine.taken(), [2]);
        driver.write(EFA_REGS_AENQ_CONS_DB_OFF, i as u32 + 1);
    }
    // A driver that consumes nothing gets as many as its ring has.
    assert_eq!((0..20).filter(|_| alive(&driver)).count(), 16);
}

/// What one doorbell of a guest makes the device do is limited, and no command counts the entries of all regions.
#[test]
fn commands_and_page_lists_are_limited() {
    let fabric = Fabric::deterministic(1);
    let mut driver = Driver::new(&fabric, "efa_0");
    let pd = driver.ok::<AllocPdResp>(EFA_ADMIN_ALLOC_PD, &NOTHING).pd;
    let used = |driver: &Driver| driver.enter(|_, function, _| function.used_pages);
    let (first, second) = (driver.reg(pd, DATA).1, driver.reg(pd, DATA).1);
    assert_eq!(used(&driver), 2);
    // There is no such domain: the list, which has no memory, is not read.
    let flags = EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK;
    let wrong = RegMrCmd { pd: pd + 1, mr_length: 4096, flags: 12, page_num: 1, ..RegMrCmd::default() };
    let indirect = AqCommonDesc { flags, ..NOTHING };
    let cmd = RegMrCmd { aq_common_desc: indirect, ..wrong };
    assert_eq!((driver.status(EFA_ADMIN_REG_MR, &cmd), used(&driver)), (EFA_ADMIN_ILLEGAL_PARAMETER, 2));
    for (left, l_key) in [(1, first.l_key), (0, second.l_key)] {
        driver.ok::<AcqCommonDesc>(EFA_ADMIN_DEREG_MR, &DeregMrCmd { l_key, ..DeregMrCmd::default() });
        assert_eq!(used(&driver), left);
    }
    driver.reg(pd, DATA);
    driver.start();
    assert_eq!(used(&driver), 0);
    assert!(driver.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_FATAL_ERROR_MASK == 0);
    driver.write(EFA_REGS_AQ_CAPS_OFF, 0xffff | 64 << 16);
    assert!(driver.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_FATAL_ERROR_MASK != 0);
}

#[test]
fn a_command_outside_of_the_ring_is_a_fatal_error() {
    let fabric = Fabric::deterministic(1);
    let mut driver = Driver::new(&fabric, "a");
    driver.write(EFA_REGS_AQ_PROD_DB_OFF, u32::from(DEPTH) + 1);
    assert!(driver.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_FATAL_ERROR_MASK != 0);
    driver.start();
    assert!(driver.read(EFA_REGS_DEV_STS_OFF) & EFA_REGS_DEV_STS_FATAL_ERROR_MASK == 0);
    driver.objects();
    // An entry that was not written has the phase of another round.
    driver.write(EFA_REGS_AQ_PROD_DB_OFF, u32::from(driver.posted) + 20);
    driver.start();
    driver.objects();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest may write anything to registers, doorbells and commands. Another function continues to work.
    #[test]
    fn any_commands_and_registers_leave_the_device_working(
        ops in proptest::collection::vec((0..8_u8, any::<[u8; 60]>(), 0..24_u8, any::<u32>(), 0..0x70_u32), 1..80),
    ) {
        let fabric = Fabric::deterministic(1);
        let mut a = Driver::new(&fabric, "a");
        let o = a.objects();
        for (op, bytes, opcode, value, offset) in ops {
            match op {
                0 => a.write(offset / 4 * 4, value),
                1 => a.bell(value % 0x30_0000, u32::from(bytes[0])),
                2 => a.bell([o.qp.sq_db_offset, o.qp.rq_db_offset, o.cq.db_offset][usize::from(bytes[0] % 3)], value),
                3 => a.llq.put(o.qp.llq_descriptors_offset.into(), &bytes),
                4 => a.start(),
                _ => {
                    // Commands whose first fields are often valid.
                    let mut entry = [0; 64];
                    entry[4..].copy_from_slice(&bytes);
                    if value & 1 == 0 { entry[4..6].copy_from_slice(&o.pd.to_le_bytes()); }
                    if value & 2 == 0 { entry[40..].fill(0); }
                    if value & 4 == 0 { entry[4..8].copy_from_slice(&o.qp.qp_handle.to_le_bytes()); }
                    (entry[2], entry[3]) = (opcode, (value >> 8) as u8 & 6);
                    let (round, index) = (a.posted / DEPTH, u64::from(a.posted % DEPTH));
                    entry[3] |= u8::from(round.is_multiple_of(2));
                    a.machine.put(AQ + index * 64, &entry);
                    a.posted = a.posted.wrapping_add(1);
                    a.write(EFA_REGS_AQ_PROD_DB_OFF, a.posted.into());
                }
            }
        }
        fabric.run();
        a.machine.taken();
        Driver::new(&fabric, "b").objects();
        a.start();
        a.machine.taken();
        a.objects();
    }
}
