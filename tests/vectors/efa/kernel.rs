// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel of the recording: the same fixed answers, and queues and doorbells that the test sees.

use super::super::trace::Ioctl;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPage, Kernel, Mapping, Protection, RawCommand};
use uverbs_efa::testing::{Bells, Words};
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_uapi::cmd::*;
use uverbs_uapi::efa::*;
use uverbs_uapi::ids::*;
use uverbs_uapi::verbs::{RDMA_DRIVER_EFA, ib_uverbs_qp_cap};
use zerocopy::{FromBytes, IntoBytes};

/// Offsets of the doorbells in their pages.
pub(super) const SQ_BELL: u32 = 0x20;
/// As [`SQ_BELL`].
pub(super) const RQ_BELL: u32 = 0x24;
/// As [`SQ_BELL`].
pub(super) const CQ_BELL: u32 = 0x30;
/// Offset of the first entry in the mapping of the send queue.
pub(super) const LLQ_START: usize = 0x40;

/// The last part of a key, which is a number of pages.
const LLQ: u64 = 1;
const SQ_PAGE: u64 = 2;
const RQ: u64 = 3;
const RQ_PAGE: u64 = 4;
const CQ: u64 = 5;
const CQ_PAGE: u64 = 6;

fn key(what: u64) -> u64 {
    what << 12
}

/// What a generation of the device has, as in `tests/efa-recorder/cases.c`.
#[derive(Clone, Copy, Debug)]
struct Generation {
    caps: u32,
    inline_ex: u16,
    batch: u16,
    min_sq_wr: u16,
    sub_cqs: u16,
}

fn generation(name: &str) -> Generation {
    const READ: u32 = EFA_QUERY_DEVICE_CAPS_RDMA_READ
        | EFA_QUERY_DEVICE_CAPS_RNR_RETRY
        | EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS
        | EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID;
    const ALL: u32 = READ | EFA_QUERY_DEVICE_CAPS_RDMA_WRITE | EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV;
    let (caps, inline_ex, batch, min_sq_wr, sub_cqs) = match name {
        "send" => (0, 0, 0, 0, 1),
        "read" => (READ, 0, 16, 0, 2),
        "write" => (ALL, 80, 32, 0, 2),
        "batch" => (ALL, 80, 4, 16, 3),
        other => panic!("generation {other}"),
    };
    Generation { caps, inline_ex, batch, min_sq_wr, sub_cqs }
}

/// What the test sees of the driver.
#[derive(Debug)]
pub(super) struct State {
    pub qp_num: u32,
    pub address_handle: u16,
    handles: u32,
    given: Option<(u16, u32)>,
    pub llq: Words,
    pub rq: Words,
    pub cq: Words,
    pub cq_request: Vec<u8>,
    pub qp_request: Vec<u8>,
    pub ioctls: Vec<Ioctl>,
}

/// The kernel.
pub(super) struct FixedKernel {
    generation: Generation,
    state: Mutex<State>,
    pub bells: Arc<Bells>,
}

impl FixedKernel {
    pub(super) fn new(name: &str) -> Arc<Scripted<Self>> {
        let none = || Words::new(0);
        let state = State {
            qp_num: 0x105,
            address_handle: 0x1234,
            handles: 0,
            given: None,
            llq: none(),
            rq: none(),
            cq: none(),
            cq_request: Vec::new(),
            qp_request: Vec::new(),
            ioctls: Vec::new(),
        };
        Arc::new(Scripted(Self {
            generation: generation(name),
            state: Mutex::new(state),
            bells: Arc::default(),
        }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn query_device(&self, c: &mut RawCommand<'_, '_>) {
        let base = ib_uverbs_query_device_resp {
            max_qp: 1024,
            max_qp_wr: 4096,
            max_sge: 2,
            max_sge_rd: 1,
            max_cqe: 0x8000,
            phys_port_cnt: 1,
            ..Default::default()
        };
        let response_length = size_of::<ib_uverbs_ex_query_device_resp>() as u32;
        let resp = ib_uverbs_ex_query_device_resp { base, response_length, ..Default::default() };
        c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes());
        let device = efa_ibv_ex_query_device_resp {
            max_sq_wr: 4096,
            max_rq_wr: 8192,
            max_sq_sge: 2,
            max_rq_sge: 3,
            max_rdma_size: 1 << 30,
            device_caps: self.generation.caps,
            ..Default::default()
        };
        c.answer(UVERBS_ATTR_UHW_OUT, device.as_bytes());
    }

    fn write_command(&self, state: &mut State, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        const QUERY: u32 = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;
        let number = c.input(UVERBS_ATTR_WRITE_CMD).ok_or(Errno::EINVAL)?;
        let (number, _) = u32::read_from_prefix(number).map_err(|_| Errno::EINVAL)?;
        match number {
            QUERY => self.query_device(c),
            IB_USER_VERBS_CMD_ALLOC_PD => {
                c.answer(UVERBS_ATTR_CORE_OUT, &state.handle().to_ne_bytes());
                let resp = efa_ibv_alloc_pd_resp { pdn: 0x31, ..Default::default() };
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            IB_USER_VERBS_CMD_REG_MR => {
                let handle = state.handle();
                c.answer(UVERBS_ATTR_CORE_OUT, [handle, 0x18_1a00 + handle, 0x18_1a00 + handle].as_bytes());
            }
            IB_USER_VERBS_CMD_CREATE_AH => {
                c.answer(UVERBS_ATTR_CORE_OUT, &state.handle().to_ne_bytes());
                let efa_address_handle = state.address_handle;
                let resp = efa_ibv_create_ah_resp { efa_address_handle, ..Default::default() };
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => {
                c.new_fd(UVERBS_ATTR_CORE_OUT, File::open("/dev/null").map_err(|_| Errno::EMFILE)?.into());
            }
            _ => {
                c.answer(UVERBS_ATTR_CORE_OUT, &[]);
                c.answer(UVERBS_ATTR_UHW_OUT, &[]);
            }
        }
        Ok(())
    }

    fn run(&self, state: &mut State, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let g = self.generation;
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => return self.write_command(state, c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &4_u32.to_ne_bytes());
                c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes());
                let resp = efa_ibv_alloc_ucontext_resp {
                    cmds_supp_udata_mask: EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE
                        | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
                    sub_cqs_per_cq: g.sub_cqs,
                    inline_buf_size: 32,
                    max_llq_size: 0x1_0000,
                    max_tx_batch: g.batch,
                    min_sq_wr: g.min_sq_wr,
                    inline_buf_size_ex: g.inline_ex,
                    ..Default::default()
                };
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                c.new_fd(0, File::open("/dev/null").map_err(|_| Errno::EMFILE)?.into());
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                state.cq_request = c.input(UVERBS_ATTR_UHW_IN).ok_or(Errno::EINVAL)?.to_vec();
                let (q, _) =
                    efa_ibv_create_cq::read_from_prefix(&state.cq_request).map_err(|_| Errno::EINVAL)?;
                let cqe = c.input(UVERBS_ATTR_CREATE_CQ_CQE).ok_or(Errno::EINVAL)?;
                let (cqe, _) = u32::read_from_prefix(cqe).map_err(|_| Errno::EINVAL)?;
                let mut resp = efa_ibv_create_cq_resp {
                    q_mmap_key: key(CQ),
                    q_mmap_size: (u64::from(cqe) * u64::from(q.cq_entry_size) * u64::from(q.num_sub_cqs))
                        .next_multiple_of(4096),
                    cq_idx: 5,
                    ..Default::default()
                };
                if q.flags & EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL != 0 {
                    resp.comp_mask = EFA_CREATE_CQ_RESP_DB_OFF;
                    (resp.db_off, resp.db_mmap_key) = (CQ_BELL, key(CQ_PAGE));
                }
                state.give(c, UVERBS_ATTR_CREATE_CQ_HANDLE);
                c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &cqe.to_ne_bytes());
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => {
                state.qp_request = c.input(UVERBS_ATTR_UHW_IN).ok_or(Errno::EINVAL)?.to_vec();
                let (q, _) =
                    efa_ibv_create_qp::read_from_prefix(&state.qp_request).map_err(|_| Errno::EINVAL)?;
                let cap = c.input(UVERBS_ATTR_CREATE_QP_CAP).ok_or(Errno::EINVAL)?;
                let cap = ib_uverbs_qp_cap::read_from_bytes(cap).map_err(|_| Errno::EINVAL)?;
                let resp = efa_ibv_create_qp_resp {
                    rq_db_offset: RQ_BELL,
                    sq_db_offset: SQ_BELL,
                    llq_desc_offset: LLQ_START as u32,
                    rq_mmap_key: key(RQ),
                    rq_mmap_size: u64::from(q.rq_ring_size).next_multiple_of(4096),
                    rq_db_mmap_key: key(RQ_PAGE),
                    sq_db_mmap_key: key(SQ_PAGE),
                    llq_desc_mmap_key: key(LLQ),
                    ..Default::default()
                };
                state.give(c, UVERBS_ATTR_CREATE_QP_HANDLE);
                c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, cap.as_bytes());
                c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &state.qp_num.to_ne_bytes());
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            (UVERBS_OBJECT_MR, EFA_IB_METHOD_MR_QUERY) => {
                for (id, value) in (EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY..).zip([5_u16, 3, 4, 6]) {
                    c.answer(id, &value.to_ne_bytes());
                }
            }
            // Destruction.
            _ => {
                for id in c.attrs().map(|a| a.id).collect::<Vec<_>>() {
                    c.answer(id, &[]);
                }
            }
        }
        Ok(())
    }
}

impl State {
    fn handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }

    fn give(&mut self, c: &mut RawCommand<'_, '_>, id: u16) {
        let handle = self.handle();
        self.given = Some((id, handle));
        c.new_handle(id, handle.into());
    }
}

impl Script for FixedKernel {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let mut state = self.state();
        let mut ioctl = Ioctl::asked(command);
        state.given = None;
        let result = self.run(&mut state, command);
        ioctl.answered(command, result, state.given);
        state.ioctls.push(ioctl);
        result
    }

    fn mmap(&self, offset: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
        let words = Words::new(len);
        let mut state = self.state();
        match offset >> 12 {
            LLQ => state.llq = words.clone(),
            RQ => state.rq = words.clone(),
            CQ => state.cq = words.clone(),
            _ => return Err(Errno::EINVAL),
        }
        Ok(words.map())
    }

    fn doorbells(&self, _: &dyn Kernel, offset: u64, _: usize) -> Result<DoorbellPage, Errno> {
        match offset >> 12 {
            SQ_PAGE | RQ_PAGE | CQ_PAGE => Ok(DoorbellPage::Port(self.bells.clone())),
            _ => Err(Errno::EINVAL),
        }
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_EFA
    }
}
