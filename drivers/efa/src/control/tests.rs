// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path over a simulated kernel: its commands, their order against the queues, and the effects of invalid answers.
#![expect(unsafe_code)]
// UNSAFETY: calls unsafe verbs; the kernel is simulated, and no device accesses memory.

mod place;

use super::{CqOptions, Efa, MrInterconnects, QpOptions};
use crate::testing::{Bells, Words, decode};
use crate::{Ah, QpShared};
use std::sync::{Arc, Mutex};
use uverbs_core::attr::*;
use uverbs_core::control::*;
use uverbs_core::kernel::{DoorbellPage, Kernel, Mapping, Protection, RawCommand, Registers, page_size};
use uverbs_core::provider::{
    CompletionQueue as _, CqParts, Dest, Driver, Object as _, Op, PollError, PostError, QpCreate,
    QpObject as _, QpParts, SendQueue as _, To, Wr,
};
use uverbs_core::{Errno, Error};
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_uapi::cmd::*;
use uverbs_uapi::efa::*;
use uverbs_uapi::ids::*;
use uverbs_uapi::verbs::ib_uverbs_qp_cap;
use zerocopy::{FromBytes, IntoBytes};

const EX: u32 = IB_USER_VERBS_CMD_FLAG_EXTENDED;
const QUERY_DEVICE: u32 = EX | IB_USER_VERBS_EX_CMD_QUERY_DEVICE;
const MODIFY_QP: u32 = EX | IB_USER_VERBS_EX_CMD_MODIFY_QP;

const CQ_KEY: u64 = 0x1000;
const SQ_KEY: u64 = 0x2000;
const RQ_KEY: u64 = 0x3000;
const SQ_BELL: u64 = 0x4000;
const RQ_BELL: u64 = 0x5000;
const CQ_BELL: u64 = 0x6000;
/// The send queue does not begin with its page.
const SQ_OFFSET: u32 = 0x40;

const CAPS: u32 = EFA_QUERY_DEVICE_CAPS_RDMA_READ
    | EFA_QUERY_DEVICE_CAPS_RDMA_WRITE
    | EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS
    | EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID
    | EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV;

/// What the kernel answers, and what it was asked.
#[derive(Debug)]
struct State {
    context: efa_ibv_alloc_ucontext_resp,
    device: efa_ibv_ex_query_device_resp,
    cq: efa_ibv_create_cq_resp,
    cqe: Option<u32>,
    qp: efa_ibv_create_qp_resp,
    qp_num: u32,
    refuse_modify: bool,
    refuse_destroy: bool,
    log: Vec<String>,
    /// The private input of the last command that had one.
    private: Vec<u8>,
    /// The QP whose state is in the log.
    watched: Option<Arc<QpShared>>,
    send_queue: Words,
    /// The page of all doorbells, if they are in memory.
    registers: Option<Words>,
}

struct FakeKernel {
    state: Mutex<State>,
    bells: Arc<Bells>,
}

impl Default for FakeKernel {
    fn default() -> Self {
        let state = State {
            context: efa_ibv_alloc_ucontext_resp {
                cmds_supp_udata_mask: EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE
                    | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
                sub_cqs_per_cq: 2,
                inline_buf_size: 32,
                max_llq_size: 0x1_0000,
                max_tx_batch: 4,
                min_sq_wr: 16,
                inline_buf_size_ex: 80,
                ..Default::default()
            },
            device: efa_ibv_ex_query_device_resp {
                max_sq_wr: 1024,
                max_rq_wr: 2048,
                max_sq_sge: 2,
                max_rq_sge: 3,
                max_rdma_size: 1 << 30,
                device_caps: CAPS,
                ..Default::default()
            },
            cq: efa_ibv_create_cq_resp {
                comp_mask: EFA_CREATE_CQ_RESP_DB_OFF,
                q_mmap_key: CQ_KEY,
                q_mmap_size: 0x4000,
                db_off: 0x30,
                db_mmap_key: CQ_BELL,
                ..Default::default()
            },
            cqe: None,
            qp: efa_ibv_create_qp_resp {
                rq_db_offset: 0x24,
                sq_db_offset: 0x20,
                llq_desc_offset: SQ_OFFSET,
                rq_mmap_key: RQ_KEY,
                rq_mmap_size: 0x8000,
                rq_db_mmap_key: RQ_BELL,
                sq_db_mmap_key: SQ_BELL,
                llq_desc_mmap_key: SQ_KEY,
                ..Default::default()
            },
            qp_num: 0x0305,
            refuse_modify: false,
            refuse_destroy: false,
            log: Vec::new(),
            private: Vec::new(),
            watched: None,
            send_queue: Words::new(0),
            registers: None,
        };
        Self { state: Mutex::new(state), bells: Arc::default() }
    }
}

impl FakeKernel {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap())
    }

    fn log(&self) -> Vec<String> {
        self.with(|state| core::mem::take(&mut state.log))
    }

    fn private<T: FromBytes>(&self) -> T {
        self.with(|state| T::read_from_bytes(&state.private).expect("private input of this size"))
    }
}

impl State {
    fn write_command(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let number = c.input(UVERBS_ATTR_WRITE_CMD).map(|b| u64::read_from_bytes(b).unwrap()).unwrap() as u32;
        match number {
            IB_USER_VERBS_CMD_ALLOC_PD => {
                let resp = ib_uverbs_alloc_pd_resp { pd_handle: 1, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                assert!(c.answer(
                    UVERBS_ATTR_UHW_OUT,
                    efa_ibv_alloc_pd_resp { pdn: 7, ..Default::default() }.as_bytes()
                ));
            }
            QUERY_DEVICE => {
                let base = ib_uverbs_query_device_resp {
                    max_qp: 100,
                    max_qp_wr: 4096,
                    max_sge: 2,
                    max_sge_rd: 1,
                    ..Default::default()
                };
                let resp = ib_uverbs_ex_query_device_resp {
                    base,
                    response_length: size_of::<ib_uverbs_ex_query_device_resp>() as u32,
                    ..Default::default()
                };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                // Some queries ask for this part, which an old kernel does not have.
                if self.context.cmds_supp_udata_mask & EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE != 0 {
                    c.answer(UVERBS_ATTR_UHW_OUT, self.device.as_bytes());
                }
            }
            IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => {
                let fd = std::fs::File::open("/dev/null").unwrap();
                assert!(c.new_fd(UVERBS_ATTR_CORE_OUT, fd.into()));
            }
            IB_USER_VERBS_CMD_CREATE_AH => {
                let resp = ib_uverbs_create_ah_resp { ah_handle: 9, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                let resp = efa_ibv_create_ah_resp { efa_address_handle: 0x1234, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            MODIFY_QP => {
                let request = ib_uverbs_ex_modify_qp::read_from_prefix(c.input(UVERBS_ATTR_CORE_IN).unwrap())
                    .unwrap()
                    .0;
                let state = self.watched.as_ref().map(|qp| qp.access.state().state());
                self.log.push(format!("modify to {} in {state:?}", QpState(request.base.qp_state.into())));
                if self.refuse_modify {
                    return Err(Errno::EINVAL);
                }
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, ib_uverbs_ex_modify_qp_resp::default().as_bytes()));
            }
            other => panic!("unexpected write command {other:#x}"),
        }
        Ok(())
    }
}

impl Script for FakeKernel {
    fn ioctl(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap();
        if let Some(private) = c.input(UVERBS_ATTR_UHW_IN) {
            state.private = private.to_vec();
        }
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => return state.write_command(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &4_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, state.context.as_bytes()));
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                let fd = std::fs::File::open("/dev/null").unwrap();
                assert!(c.new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd.into()));
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                let asked = u32::read_from_bytes(c.input(UVERBS_ATTR_CREATE_CQ_CQE).unwrap()).unwrap();
                assert!(c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 2));
                assert!(c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &state.cqe.unwrap_or(asked).to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, state.cq.as_bytes()));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => {
                let asked =
                    ib_uverbs_qp_cap::read_from_bytes(c.input(UVERBS_ATTR_CREATE_QP_CAP).unwrap()).unwrap();
                state.log.push(format!("create qp {}+{}", asked.max_send_wr, asked.max_recv_wr));
                assert!(c.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, 5));
                assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, asked.as_bytes()));
                assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &state.qp_num.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, state.qp.as_bytes()));
            }
            (UVERBS_OBJECT_MR, EFA_IB_METHOD_MR_QUERY) => {
                let validity = EFA_QUERY_MR_VALIDITY_RECV_IC_ID | EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID;
                for (id, value) in (EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY..).zip([validity, 3, 4, 5]) {
                    assert!(c.answer(id, &value.to_ne_bytes()));
                }
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY) => {
                let in_state = state.watched.as_ref().map(|qp| qp.access.state().state());
                state.log.push(format!("destroy qp in {in_state:?}"));
                if state.refuse_destroy {
                    return Err(Errno::EBUSY);
                }
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => state.log.push("destroy cq".into()),
            other => panic!("unexpected command {other:?}"),
        }
        Ok(())
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        let words = Words::new(len);
        match (offset, protection) {
            (CQ_KEY, Protection::Read) | (RQ_KEY, Protection::ReadWrite) => {}
            (SQ_KEY, Protection::ReadWrite) => self.with(|state| state.send_queue = words.clone()),
            _ => return Err(Errno::EINVAL),
        }
        Ok(words.map())
    }

    fn doorbells(&self, _: &dyn Kernel, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        assert!(len.is_multiple_of(page_size() as usize));
        if ![SQ_BELL, RQ_BELL, CQ_BELL].contains(&offset) {
            return Err(Errno::EINVAL);
        }
        let registers = self.with(|state| state.registers.clone());
        let page = registers.and_then(|words| Registers::new(Arc::new(words.map())));
        Ok(page.map_or_else(|| DoorbellPage::Port(self.bells.clone()), DoorbellPage::Mapped))
    }

    fn driver_id(&self) -> u32 {
        Efa::DRIVER_ID
    }
}

struct Stage {
    kernel: Arc<Scripted<FakeKernel>>,
    efa: Efa,
    pd: PdHandle,
}

fn kernel(f: impl FnOnce(&mut State)) -> Arc<Scripted<FakeKernel>> {
    let kernel = Arc::new(Scripted(FakeKernel::default()));
    kernel.with(f);
    kernel
}

impl Stage {
    fn new(f: impl FnOnce(&mut State)) -> Self {
        let kernel = kernel(f);
        let (efa, info) = Efa::open(kernel.clone()).unwrap();
        assert_eq!(info.num_comp_vectors, 4);
        let pd = efa.alloc_pd().unwrap();
        Self { kernel, efa, pd }
    }

    fn cq(&self) -> CqParts<Efa> {
        self.efa.create_cq(&CqInitAttr::new(100), None, 0).unwrap()
    }

    fn create<'a>(&'a self, cq: &'a CqParts<Efa>, attr: &'a QpInitAttr) -> QpCreate<'a, Efa> {
        let cq = Some(&cq.cq);
        QpCreate {
            pd: Some(&self.pd),
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            xrcd: None,
            attr,
            td: None,
            exclusive: true,
            data_in_completions: false,
            user_handle: 0,
        }
    }

    fn qp(&self, cq: &CqParts<Efa>, attr: &QpInitAttr) -> Result<QpParts<Efa>, Error> {
        // SAFETY: no data in completions.
        unsafe { self.efa.create_qp(&self.create(cq, attr)) }
    }

    fn modify(&self, qp: &QpParts<Efa>, state: QpState) -> Result<(), Error> {
        let mut attr = QpAttr::default();
        attr.qp_state = state;
        qp.qp.modify(&attr, QpAttrMask::STATE)
    }
}

fn srd(max_send_wr: u32, max_inline_data: u32) -> QpInitAttr {
    let mut attr = QpInitAttr::new(QpType::Driver);
    (attr.cap.max_send_wr, attr.cap.max_inline_data) = (max_send_wr, max_inline_data);
    (attr.cap.max_recv_wr, attr.cap.max_send_sge, attr.cap.max_recv_sge) = (10, 2, 3);
    attr
}

#[test]
fn a_context_tells_what_the_driver_obeys_and_the_device_has() {
    let stage = Stage::new(|_| ());
    let request: efa_ibv_alloc_ucontext_cmd = stage.kernel.private();
    assert_eq!(request.supported_caps, 3);
    let limits = stage.efa.limits();
    assert_eq!((limits.sub_cqs, limits.inline_buf_size, limits.inline_buf_size_ex), (2, 32, 80));
    assert_eq!((limits.max_sq_wr, limits.max_rq_wr, limits.max_rdma_size), (1024, 2048, 1 << 30));
    assert!(limits.has_read() && limits.has_write());
    assert_eq!(stage.efa.query_device().unwrap().max_qp_wr, 1024, "the memory of a send queue");

    let old = |state: &mut State| state.context.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_CREATE_AH;
    let old = Stage::new(old);
    assert_eq!(
        (old.efa.limits().device_caps, old.efa.limits().max_sq_sge, old.efa.limits().max_sq_wr),
        (0, 2, 4096)
    );

    let without_ah = kernel(|state| state.context.cmds_supp_udata_mask = 1);
    assert!(matches!(Efa::open(without_ah), Err(Error::Unsupported { .. })));
    let without_cqs = kernel(|state| state.context.sub_cqs_per_cq = 0);
    assert!(matches!(Efa::open(without_cqs), Err(Error::Protocol { .. })));
}

#[test]
fn a_cq_asks_for_wide_entries_in_all_sub_cqs() {
    let stage = Stage::new(|_| ());
    let cq = stage.cq();
    let request: efa_ibv_create_cq = stage.kernel.private();
    assert_eq!((request.cq_entry_size, request.num_sub_cqs, request.flags), (32, 2, 0));
    assert_eq!(cq.cqe, 128);

    let (channel, options) =
        (comp_channel::create(stage.efa.kernel()).unwrap(), CqOptions { source_gid: true });
    let mut cq = stage.efa.new_cq(&CqInitAttr::new(1), options, Some(&channel), 0).unwrap();
    let request: efa_ibv_create_cq = stage.kernel.private();
    assert_eq!(request.flags, EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL | EFA_CREATE_CQ_WITH_SGID);
    cq.queue.req_notify(false).unwrap();
    cq.cq.destroy().unwrap();
    // Its doorbell may be that of another CQ.
    assert_eq!(cq.queue.req_notify(false), Err(PollError::Arm(Errno::EINVAL)));

    let plain = Stage::new(|state| state.device.device_caps = 0);
    let unsupported = |attr: CqInitAttr, options, channel| {
        let error = plain.efa.new_cq(&attr, options, channel, 0).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    };
    unsupported(CqInitAttr::new(1), CqOptions::default(), Some(&channel));
    unsupported(CqInitAttr::new(1), options, None);
    unsupported(CqInitAttr::new(1).wc_flags(WcExFlags::COMPLETION_TIMESTAMP), CqOptions::default(), None);
    unsupported(CqInitAttr::new(1).flags(CqFlags::IGNORE_OVERRUN), CqOptions::default(), None);
    unsupported(CqInitAttr::new(1).compressed(true), CqOptions::default(), None);
}

#[test]
fn a_cq_whose_answer_is_wrong_is_destroyed() {
    let wrong: [fn(&mut State); 5] = [
        |state| state.cq.q_mmap_size = 128 * 2 * 32 - 1,
        |state| state.cq.q_mmap_key = 1,
        |state| state.cq.db_mmap_key = 1,
        |state| state.cq.db_off = 2,
        |state| state.cqe = Some(192),
    ];
    for (i, wrong) in wrong.into_iter().enumerate() {
        let stage = Stage::new(wrong);
        let error = stage.efa.create_cq(&CqInitAttr::new(100), None, 0).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. } | Error::Os { .. }), "{i}: {error}");
        assert_eq!(stage.kernel.log(), ["destroy cq"], "{i}");
    }
}

#[test]
fn a_qp_has_the_sizes_of_libefa() {
    // Requests, inline bytes and options; entries and bytes of the send queue.
    for (wrs, inline, inline_write, entries, bytes) in [
        (1, 0, false, 16, 16 * 64),
        (17, 32, false, 32, 32 * 64),
        (20, 33, false, 32, 32 * 128),
        (20, 8, true, 32, 32 * 128),
        (1024, 0, false, 1024, 1024 * 64),
    ] {
        let stage = Stage::new(|_| ());
        let cq = stage.cq();
        let options = QpOptions { inline_write, unsolicited_write_recv: inline_write, sl: 5 };
        let attr = srd(wrs, inline);
        let queues = stage.efa.new_qp(&stage.create(&cq, &attr), options).unwrap();
        let request: efa_ibv_create_qp = stage.kernel.private();
        assert_eq!((queues.cap.max_send_wr, request.sq_ring_size), (entries, bytes));
        // 30 buffers, rounded up.
        assert_eq!((queues.cap.max_recv_wr, request.rq_ring_size), (10, 32 * 16));
        assert_eq!((request.driver_qp_type, request.flags, request.sl), (0, inline_write.into(), 5));
        let (send, recv) = (queues.send.unwrap(), queues.recv.unwrap());
        assert_eq!((send.capacity(), recv.capacity(), recv.max_sge()), (entries, 10, 3));
        let batch = if bytes / entries == 128 { 2 } else { 4 };
        assert_eq!(send.config().max_batch, batch, "units of 64 bytes");
        assert_eq!(stage.kernel.log(), [format!("create qp {entries}+10")]);
    }
}

#[test]
fn what_the_device_lacks_is_refused_at_creation() {
    let stage = Stage::new(|_| ());
    let cq = stage.cq();
    let error = |attr: &QpInitAttr| stage.qp(&cq, attr).unwrap_err();
    let unsupported = |attr: QpInitAttr| {
        let error = error(&attr);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        error.to_string()
    };
    let rc = unsupported(QpInitAttr { qp_type: QpType::Rc, ..srd(1, 0) });
    assert!(rc.contains("SRD"), "{rc}");
    unsupported(QpInitAttr { qp_type: QpType::RawPacket, ..srd(1, 0) });
    let atomics = unsupported(QpInitAttr {
        send_ops_flags: SendOpsFlags::SEND | SendOpsFlags::ATOMIC_FETCH_AND_ADD,
        ..srd(1, 0)
    });
    assert!(atomics.contains("ATOMIC_FETCH_AND_ADD") && !atomics.contains("SEND,"), "{atomics}");
    unsupported(QpInitAttr { qp_type: QpType::Ud, send_ops_flags: SendOpsFlags::RDMA_READ, ..srd(1, 0) });
    unsupported(QpInitAttr { max_tso_header: 1, ..srd(1, 0) });
    unsupported(QpInitAttr { create_flags: QpCreateFlags::BLOCK_SELF_MCAST_LB, ..srd(1, 0) });
    let ops = SendOpsFlags::SEND | SendOpsFlags::RDMA_READ | SendOpsFlags::RDMA_WRITE_WITH_IMM;
    assert!(stage.qp(&cq, &QpInitAttr { send_ops_flags: ops, ..srd(1, 0) }).is_ok());

    let sizes = |f: fn(&mut QpCap)| {
        let mut attr = srd(1, 0);
        f(&mut attr.cap);
        match error(&attr) {
            Error::Invalid { field, .. } => field,
            other => panic!("{other}"),
        }
    };
    assert_eq!(sizes(|cap| cap.max_send_sge = 3), "max_send_sge");
    assert_eq!(sizes(|cap| cap.max_recv_sge = 4), "max_recv_sge");
    assert_eq!(sizes(|cap| cap.max_inline_data = 81), "max_inline_data");
    assert_eq!(sizes(|cap| cap.max_send_wr = 1025), "max_send_wr");
    assert_eq!(sizes(|cap| (cap.max_send_wr, cap.max_inline_data) = (513, 33)), "max_send_wr");
    assert_eq!(sizes(|cap| cap.max_recv_wr = 683), "max_recv_wr");

    let old = Stage::new(|state| state.device.device_caps = EFA_QUERY_DEVICE_CAPS_RDMA_READ);
    let cq = old.cq();
    let write = QpInitAttr { send_ops_flags: SendOpsFlags::RDMA_WRITE, ..srd(1, 0) };
    assert!(matches!(old.qp(&cq, &write), Err(Error::Unsupported { .. })));
}

#[test]
fn a_qp_whose_answer_is_wrong_is_destroyed() {
    let wrong: [fn(&mut State); 8] = [
        |state| state.qp.llq_desc_mmap_key = 1,
        |state| state.qp.llq_desc_offset = 8,
        |state| state.qp.llq_desc_offset = 0x7fff_ffc0,
        |state| state.qp.rq_mmap_size = 32 * 16 - 1,
        |state| state.qp.rq_mmap_key = 1,
        |state| state.qp.sq_db_offset = 1,
        |state| state.qp.rq_db_mmap_key = 1,
        |state| state.qp_num = 0x1_0000,
    ];
    for (i, wrong) in wrong.into_iter().enumerate() {
        let stage = Stage::new(wrong);
        let cq = stage.cq();
        let error = stage.qp(&cq, &srd(1, 0)).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. } | Error::Os { .. }), "{i}: {error}");
        assert_eq!(stage.kernel.log(), ["create qp 16+10", "destroy qp in None"], "{i}");
    }
}

fn post(qp: &mut QpParts<Efa>) -> Result<(), PostError> {
    let to = Dest::Ud(To { ah: &Ah(3), remote_qpn: 4, remote_qkey: 5 });
    // SAFETY: no memory is named.
    unsafe { qp.send.as_mut().unwrap().post(&Wr::new(1, Op::Send).signaled().to(to)) }
}

#[test]
fn the_queues_are_closed_while_the_kernel_resets_or_destroys() {
    let stage = Stage::new(|_| ());
    let cq = stage.cq();
    let mut qp = stage.qp(&cq, &srd(1, 0)).unwrap();
    stage.kernel.with(|state| state.watched = Some(Arc::clone(qp.qp.shared())));
    stage.kernel.log();
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        assert_eq!(post(&mut qp), Err(PostError::BadState));
        stage.modify(&qp, state).unwrap();
    }
    post(&mut qp).unwrap();
    let entry = stage.kernel.with(|state| state.send_queue.bytes(SQ_OFFSET as usize, 64));
    assert_eq!(decode(&entry, false).ah, 3);
    assert_eq!(stage.kernel.bells.take(), [(0x20, 1)]);
    let closed = QpState(0x7d);
    let log = |to: QpState, from: QpState| format!("modify to {to} in {:?}", Some(from));
    let steps =
        [(QpState::INIT, QpState::RESET), (QpState::RTR, QpState::INIT), (QpState::RTS, QpState::RTR)];
    assert_eq!(stage.kernel.log(), steps.map(|(to, from)| log(to, from)));

    stage.kernel.with(|state| state.refuse_modify = true);
    for (to, from) in [(QpState::RESET, closed), (QpState::ERR, QpState::ERR)] {
        assert!(stage.modify(&qp, to).is_err());
        assert_eq!(stage.kernel.log(), [log(to, from)]);
        assert_eq!(post(&mut qp), Ok(()), "the state of before");
    }
    stage.kernel.with(|state| state.refuse_modify = false);
    stage.kernel.bells.take();
    stage.modify(&qp, QpState::ERR).unwrap();
    assert_eq!(post(&mut qp), Err(PostError::BadState));
    for state in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.modify(&qp, state).unwrap();
    }
    assert_eq!(stage.kernel.log()[1], log(QpState::RESET, closed));
    post(&mut qp).unwrap();
    assert_eq!(stage.kernel.bells.take(), [(0x20, 1)], "the queue begins again");

    stage.kernel.with(|state| state.refuse_destroy = true);
    let (object, _) = qp.qp.destroy().unwrap_err();
    assert_eq!(object.shared().access.state().state(), QpState::RTS);
    stage.kernel.with(|state| state.refuse_destroy = false);
    object.destroy().unwrap();
    assert_eq!(stage.kernel.log()[0], format!("destroy qp in {:?}", Some(closed)));
}

#[test]
fn a_refused_transition_is_explained_by_the_rules_of_srd() {
    let stage = Stage::new(|state| state.refuse_modify = true);
    let cq = stage.cq();
    let qp = stage.qp(&cq, &srd(1, 0)).unwrap();
    let error = |state: QpState, mask| {
        let mut attr = QpAttr::default();
        (attr.qp_state, attr.port_num) = (state, 1);
        qp.qp.modify(&attr, mask | QpAttrMask::STATE).unwrap_err().to_string()
    };
    let lacks = error(QpState::INIT, QpAttrMask::PORT | QpAttrMask::PKEY_INDEX);
    assert!(lacks.contains("lacks QKEY") && lacks.contains("SRD"), "{lacks}");
    let all = QpAttrMask::PORT | QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY;
    let other = error(QpState::INIT, all);
    assert!(other.contains("EINVAL") && !other.contains("lacks"), "{other}");
    qp.qp.shared().open(QpState::RTR);
    let other = error(QpState::RTS, QpAttrMask::SQ_PSN | QpAttrMask::RNR_RETRY);
    assert!(other.contains("EINVAL"), "{other}");
    let av = error(QpState::RTS, QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT);
    assert!(av.contains("can't set TIMEOUT"), "{av}");
}

#[test]
fn a_number_that_is_used_again_has_another_generation() {
    let stage = Stage::new(|_| ());
    let cq = stage.cq();
    let mut numbers = Vec::new();
    for round in 0..4 {
        let mut qp = stage.qp(&cq, &srd(if round == 2 { 17 } else { 1 }, 0)).unwrap();
        let resets = [QpState::RESET].into_iter().cycle().take(round % 2);
        for state in resets.chain([QpState::INIT, QpState::RTR, QpState::RTS]) {
            stage.modify(&qp, state).unwrap();
        }
        post(&mut qp).unwrap();
        let entry = stage.kernel.with(|state| state.send_queue.bytes(SQ_OFFSET as usize, 64));
        numbers.push(decode(&entry, false).req_id);
        qp.qp.destroy().unwrap();
    }
    assert_eq!(numbers, [16, 48, 64, 112], "after a reset, and with queues of 16 and 32 requests");
}

#[test]
fn an_address_is_a_gid() {
    let stage = Stage::new(|_| ());
    let mut attr = AhAttr::default();
    (attr.port_num, attr.grh) = (1, Some(GlobalRoute::default()));
    let (_, ah) = stage.efa.create_ah(&stage.pd, &attr).unwrap();
    assert_eq!(ah, Ah(0x1234));
    attr.grh = None;
    assert!(matches!(stage.efa.create_ah(&stage.pd, &attr), Err(Error::Invalid { field: "grh", .. })));
}

#[test]
fn a_region_reports_its_interconnects() {
    let stage = Stage::new(|_| ());
    let queried = stage.efa.query_mr_of(6).unwrap();
    assert_eq!(queried, MrInterconnects { recv: Some(3), rdma_read: None, rdma_recv: Some(5) });
}

#[test]
fn objects_of_two_contexts_are_refused_and_dropped_ones_are_leaked() {
    let (here, other) = (Stage::new(|_| ()), Stage::new(|_| ()));
    let (cq, foreign, attr) = (here.cq(), other.cq(), srd(1, 0));
    let create = QpCreate { recv_cq: Some(&foreign.cq), ..here.create(&cq, &attr) };
    let error = here.efa.new_qp(&create, QpOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("create_qp: invalid recv_cq: created from another context"), "{error}");
    assert!(here.kernel.log().is_empty(), "no command");
    let QpParts { qp, send, recv, .. } = here.qp(&cq, &attr).unwrap();
    let shared = Arc::clone(qp.shared());
    here.kernel.log();
    drop((send, recv));
    let _ = Some(qp);
    assert!(Arc::strong_count(&shared) > 1 && here.kernel.log().is_empty());
}
