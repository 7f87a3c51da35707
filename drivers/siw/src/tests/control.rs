// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path over a simulated kernel: its commands, and the effects of invalid answers.

use crate::{KernelBell, SendBell as _, Siw};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use uverbs_core::attr::*;
use uverbs_core::control::*;
use uverbs_core::kernel::{Kernel, Mapping, Protection, RawCommand, Uhw, WriteCommand};
use uverbs_core::provider::*;
use uverbs_core::{Errno, Error};
use uverbs_soft::testing::heap;
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_uapi::cmd::*;
use uverbs_uapi::ids::*;
use uverbs_uapi::siw::*;
use uverbs_uapi::verbs::ib_uverbs_qp_cap;
use zerocopy::{FromBytes, IntoBytes};

/// Calls an `unsafe` verb of the driver.
macro_rules! played {
    ($call:expr) => {{
        // SAFETY: the kernel is simulated, so only the test accesses the queues; the arguments are the parts of one object.
        #[expect(unsafe_code, reason = "the contract of the driver's verbs")]
        let result = unsafe { $call };
        result
    }};
}

/// The answers about one ring: its elements, its mmap offset, and the bytes that exist there.
#[derive(Clone, Copy)]
struct Offer {
    slots: u32,
    key: u64,
    bytes: usize,
}

/// Send queue, receive queue, completion queue.
const RINGS: [Offer; 3] = [
    Offer { slots: 16, key: 0, bytes: 16 * 120 },
    Offer { slots: 8, key: 0x1000, bytes: 8 * 112 },
    Offer { slots: 128, key: 0x2000, bytes: 128 * 32 + 8 },
];

struct FakeKernel {
    /// The names of the commands, in order.
    log: Mutex<Vec<String>>,
    rings: Mutex<[Offer; 3]>,
    /// The number in the driver's part of the answer.
    qp_id: Mutex<u32>,
    refuse_writes: AtomicBool,
    refuse_modify: AtomicBool,
    /// The state in the answer to a query.
    reported: AtomicU32,
    /// Whether a doorbell finds the QP connected.
    connected: AtomicBool,
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self {
            log: Mutex::default(),
            rings: Mutex::new(RINGS),
            qp_id: Mutex::new(17),
            refuse_writes: AtomicBool::new(false),
            refuse_modify: AtomicBool::new(false),
            reported: AtomicU32::new(QpState::RESET.0),
            connected: AtomicBool::new(true),
        }
    }
}

impl FakeKernel {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    fn take_log(&self) -> Vec<String> {
        core::mem::take(&mut self.log.lock().unwrap())
    }

    fn write_command(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let number = c.input(UVERBS_ATTR_WRITE_CMD).map(|b| u64::read_from_bytes(b).unwrap()).unwrap() as u32;
        self.note(format!("write {number:#x}"));
        const MODIFY_QP: u32 = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP;
        match number {
            IB_USER_VERBS_CMD_ALLOC_PD => {
                let resp = ib_uverbs_alloc_pd_resp { pd_handle: 1, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            MODIFY_QP => {
                if self.refuse_modify.load(Ordering::Relaxed) {
                    return Err(Errno::EINVAL);
                }
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, ib_uverbs_ex_modify_qp_resp::default().as_bytes()));
            }
            IB_USER_VERBS_CMD_REG_MR => {
                // The kernel reads the request and writes the response (`siw_reg_user_mr()`).
                assert_eq!(c.input(UVERBS_ATTR_UHW_IN), Some(&[0; 8][..]));
                let stag = siw_uresp_reg_mr { stag: 0x100, pad: 0 };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, stag.as_bytes()));
                let resp =
                    ib_uverbs_reg_mr_resp { mr_handle: 6, lkey: 0x100, rkey: 0x100, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_QUERY_QP => {
                let qp_state = self.reported.load(Ordering::Relaxed) as u8;
                let resp = ib_uverbs_query_qp_resp { qp_state, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_MODIFY_SRQ => {}
            IB_USER_VERBS_CMD_POST_SEND => {
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, &[0; 4]));
            }
            other => panic!("unexpected write command {other:#x}"),
        }
        Ok(())
    }
}

impl Script for FakeKernel {
    fn ioctl(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let [sq, rq, cq] = *self.rings.lock().unwrap();
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => return self.write_command(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &4_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, siw_uresp_alloc_ctx::default().as_bytes()));
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                let fd = std::fs::File::open("/dev/null").unwrap();
                assert!(c.new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd.into()));
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                assert!(c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 2));
                assert!(c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &cq.slots.to_ne_bytes()));
                let resp = siw_uresp_create_cq { cq_id: 9, num_cqe: cq.slots, cq_key: cq.key };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => {
                assert!(c.new_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 4));
                assert!(c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &5_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &2_u32.to_ne_bytes()));
                let resp = siw_uresp_create_srq { num_rqe: rq.slots, pad: 0, srq_key: rq.key };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => {
                let asked =
                    ib_uverbs_qp_cap::read_from_bytes(c.input(UVERBS_ATTR_CREATE_QP_CAP).unwrap()).unwrap();
                self.note(format!("create qp {}+{}", asked.max_send_wr, asked.max_recv_wr));
                assert!(c.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, 5));
                // The kernel returns the sizes of the request.
                assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, asked.as_bytes()));
                assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &17_u32.to_ne_bytes()));
                let resp = siw_uresp_create_qp {
                    qp_id: *self.qp_id.lock().unwrap(),
                    num_sqe: sq.slots,
                    num_rqe: rq.slots,
                    pad: 0,
                    sq_key: sq.key,
                    rq_key: rq.key,
                };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY) => self.note("destroy qp"),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => self.note("destroy cq"),
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY) => self.note("destroy srq"),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY) => self.note("destroy mr"),
            other => panic!("unexpected command {other:?}"),
        }
        Ok(())
    }

    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.note(format!("direct {}", command.command()));
        if self.refuse_writes.load(Ordering::Relaxed) {
            return Err(Errno::EACCES);
        }
        if self.connected.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    fn mmap(&self, offset: u64, _len: usize, protection: Protection) -> Result<Mapping, Errno> {
        assert_eq!(protection, Protection::ReadWrite);
        let rings = *self.rings.lock().unwrap();
        let ring = rings.iter().find(|ring| ring.key == offset).ok_or(Errno::EINVAL)?;
        Ok(heap(ring.bytes).0)
    }

    fn driver_id(&self) -> u32 {
        Siw::DRIVER_ID
    }
}

struct Stage {
    kernel: Arc<Scripted<FakeKernel>>,
    siw: Siw,
    pd: PdHandle,
    cq: CqParts<Siw>,
}

impl Stage {
    fn new() -> Self {
        let kernel = Arc::new(Scripted(FakeKernel::default()));
        let (siw, info) = Siw::open(Arc::clone(&kernel) as Arc<dyn Kernel>).unwrap();
        assert_eq!(info.num_comp_vectors, 4);
        let pd = pd::alloc(siw.kernel(), Uhw::none()).unwrap();
        let cq = siw.create_cq(&CqInitAttr::new(100), None, 0).unwrap();
        assert_eq!((cq.cqe, cq.queue.cqe()), (128, 128));
        kernel.take_log();
        Self { kernel, siw, pd, cq }
    }

    fn qp(&self, attr: &QpInitAttr) -> uverbs_core::Result<QpParts<Siw>> {
        let cq = Some(&self.cq.cq);
        played!(self.siw.create_qp(&QpCreate {
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
        }))
    }

    fn set_ring(&self, which: usize, offer: Offer) {
        self.kernel.rings.lock().unwrap()[which] = offer;
    }

    fn srq(&self, attr: &SrqInitAttr) -> uverbs_core::Result<SrqParts<Siw>> {
        let create = SrqCreate { pd: &self.pd, attr, xrc: None, td: None, user_handle: 0 };
        self.siw.create_srq(&create)
    }
}

fn rc() -> QpInitAttr {
    let cap = QpCap::new(10, 5).sge(4, 2).inline(8);
    QpInitAttr { cap, ..QpInitAttr::new(QpType::Rc) }
}

#[test]
fn reported_sizes_are_those_that_fit() {
    let t = Stage::new();
    let qp = t.qp(&rc()).unwrap();
    assert_eq!(t.kernel.take_log(), ["create qp 10+5"]);
    let want = QpCap::new(16, 8).sge(4, 2).inline(80);
    assert_eq!((qp.cap, qp.qp.shared().state()), (want, QpState::RESET));
    qp.qp.destroy().unwrap();
    assert_eq!(t.kernel.take_log(), ["destroy qp"]);
    // The kernel refuses a QP without a send queue, and offers no empty receive queue.
    t.qp(&QpInitAttr::new(QpType::Rc)).unwrap();
    assert_eq!(t.kernel.take_log(), ["create qp 1+1"]);
}

#[test]
fn invalid_answers_fail_the_creation_and_leave_no_object() {
    let t = Stage::new();
    let [sq, rq, cq] = RINGS;
    for (which, offer) in [
        (0, Offer { slots: 15, ..sq }),
        (0, Offer { slots: 0, ..sq }),
        (0, Offer { slots: 1 << 31, ..sq }),
        (0, Offer { slots: 8, ..sq }),
        (0, Offer { key: SIW_INVAL_UOBJ_KEY, ..sq }),
        (0, Offer { bytes: 16 * 120 - 1, ..sq }),
        (1, Offer { slots: 4, ..rq }),
        (1, Offer { slots: 0, ..rq }),
        (1, Offer { bytes: 8, ..rq }),
    ] {
        t.set_ring(which, offer);
        let error = t.qp(&rc()).unwrap_err();
        assert!(
            matches!(error, Error::Protocol { verb: "create_qp", .. }),
            "{which} {}: {error}",
            offer.slots
        );
        assert_eq!(t.kernel.take_log().last().unwrap(), "destroy qp");
        t.set_ring(which, RINGS[which]);
    }
    // Completions would be attributed to another QP.
    *t.kernel.qp_id.lock().unwrap() = 18;
    assert!(matches!(t.qp(&rc()).unwrap_err(), Error::Protocol { .. }));
    assert_eq!(t.kernel.take_log().last().unwrap(), "destroy qp");

    for offer in [Offer { slots: 64, ..cq }, Offer { slots: 100, ..cq }, Offer { bytes: 128 * 32, ..cq }] {
        t.set_ring(2, offer);
        let error = t.siw.create_cq(&CqInitAttr::new(100), None, 0).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        assert_eq!(t.kernel.take_log(), ["destroy cq"]);
    }
    t.set_ring(1, Offer { slots: 3, ..rq });
    let attr = SrqInitAttr::new(SrqAttr::new(5).max_sge(2));
    assert!(matches!(t.srq(&attr).unwrap_err(), Error::Protocol { .. }));
    assert_eq!(t.kernel.take_log(), ["destroy srq"]);
}

#[test]
fn features_that_siw_lacks_are_unsupported_without_a_command() {
    use SendOpsFlags as F;
    let mut t = Stage::new();
    let with_ops = |send_ops_flags| QpInitAttr { send_ops_flags, ..rc() };
    for attr in [
        QpInitAttr::new(QpType::Uc),
        QpInitAttr::new(QpType::Ud),
        QpInitAttr::new(QpType::XrcSend),
        QpInitAttr::new(QpType::RawPacket),
        QpInitAttr { create_flags: QpCreateFlags::BLOCK_SELF_MCAST_LB, ..rc() },
        QpInitAttr { max_tso_header: 1, ..rc() },
        with_ops(F::SEND_WITH_IMM),
        with_ops(F::RDMA_WRITE_WITH_IMM),
        with_ops(F::SEND | F::ATOMIC_CMP_AND_SWP),
        with_ops(F::ATOMIC_FETCH_AND_ADD),
        with_ops(F::LOCAL_INV),
        with_ops(F::BIND_MW),
    ] {
        let error = t.qp(&attr).unwrap_err();
        assert!(error.is_unsupported(), "{attr:?}: {error}");
    }
    for attr in [
        CqInitAttr::new(1).wc_flags(WcExFlags::COMPLETION_TIMESTAMP),
        CqInitAttr::new(1).flags(CqFlags::IGNORE_OVERRUN),
        CqInitAttr::new(1).compressed(true),
    ] {
        assert!(t.siw.create_cq(&attr, None, 0).unwrap_err().is_unsupported());
    }
    assert!(t.srq(&SrqInitAttr::default().srq_type(SrqType::Tm)).unwrap_err().is_unsupported());
    let resized = t.cq.cq.resize(&mut t.cq.queue, 200);
    assert!(resized.unwrap_err().is_unsupported());
    let ah = t.siw.create_ah(&t.pd, &AhAttr::global(1, 0, "10.0.0.1".parse().unwrap()));
    assert!(ah.unwrap_err().is_unsupported());
    let range = MrRange { addr: 0x1000, length: 8, iova: 0x1000 };
    let core = CoreSupport(1);
    for (range, access) in [
        (MrRange { iova: 0, ..range }, AccessFlags::LOCAL_WRITE),
        (range, AccessFlags::MW_BIND),
        (range, AccessFlags::ON_DEMAND),
    ] {
        assert!(played!(t.siw.reg_mr(core, &t.pd, range, access)).unwrap_err().is_unsupported());
    }
    assert!(t.kernel.take_log().is_empty());

    let mr = played!(t.siw.reg_mr(core, &t.pd, range, AccessFlags::LOCAL_WRITE)).unwrap();
    assert_eq!((mr.lkey(), mr.rkey()), (0x100, 0x100));
    mr.destroy().unwrap();
    let attr = SrqInitAttr::new(SrqAttr::new(5).max_sge(2));
    let mut srq = t.srq(&attr).unwrap();
    assert_eq!(srq.attr.max_wr, 8);
    t.kernel.take_log();
    let more = SrqAttr::new(40).srq_limit(3).max_sge(0);
    srq.srq.modify(&mut srq.queue, &more, SrqAttrMask::LIMIT).unwrap();
    assert_eq!(t.kernel.take_log().len(), 1);
    let resized = srq.srq.modify(&mut srq.queue, &more, SrqAttrMask::MAX_WR);
    assert!(resized.unwrap_err().is_unsupported() && t.kernel.take_log().is_empty());
    // SAFETY: receives without entries name no memory.
    let mut post = || unsafe { srq.queue.post(1, &[]) };
    assert_eq!(post(), Ok(()));
    srq.srq.notify().device_removed();
    assert_eq!(post(), Err(PostError::Removed));
}

#[test]
fn states_that_the_kernel_would_ignore_are_refused() {
    let t = Stage::new();
    let qp = t.qp(&rc()).unwrap();
    let modify = |state, mask| {
        let attr = QpAttr::new().qp_state(state);
        qp.qp.modify(&attr, mask)
    };
    let state = QpAttrMask::STATE;
    for s in [QpState::RESET, QpState::INIT, QpState::RTR] {
        modify(s, state).unwrap();
        assert_eq!(qp.qp.shared().state(), s);
    }
    modify(QpState::INIT, state).unwrap();
    assert_eq!(qp.qp.shared().state(), QpState::RTR);
    t.kernel.take_log();
    assert!(modify(QpState::RTR, state | QpAttrMask::DEST_QPN).unwrap_err().is_unsupported());
    for s in [QpState::RESET, QpState::SQE] {
        assert!(modify(s, state).unwrap_err().is_unsupported());
    }
    assert!(t.kernel.take_log().is_empty());
    // The kernel refuses RTS, because only its connection manager can connect the QP.
    t.kernel.refuse_modify.store(true, Ordering::Relaxed);
    let error = modify(QpState::RTS, state).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("connection manager"), "{error}");
    assert!(modify(QpState::ERR, state).is_err());
    assert_eq!(qp.qp.shared().state(), QpState::RTR, "the state before the refused change");
    t.kernel.refuse_modify.store(false, Ordering::Relaxed);
    for s in [QpState::SQD, QpState::ERR] {
        modify(s, state).unwrap();
        assert_eq!(qp.qp.shared().state(), s);
    }
    assert_eq!(modify(QpState::INIT, state).unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn the_state_is_that_of_the_kernel_or_follows_from_a_doorbell() {
    let t = Stage::new();
    let qp = t.qp(&rc()).unwrap();
    let set = |state| {
        let attr = QpAttr::new().qp_state(state);
        qp.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    };
    let state = || {
        let (attr, _) = qp.qp.query(QpAttrMask::STATE).unwrap();
        assert_eq!(attr.qp_state, attr.cur_qp_state);
        attr.qp_state
    };
    let reported = |state: QpState| t.kernel.reported.store(state.0, Ordering::Relaxed);
    let connected = |yes| t.kernel.connected.store(yes, Ordering::Relaxed);
    // Old kernels report RESET for each QP.
    connected(false);
    assert_eq!(state(), QpState::RESET);
    set(QpState::INIT);
    assert_eq!(state(), QpState::INIT);
    connected(true);
    assert_eq!(state(), QpState::RTS);
    // The kernel ends the connection.
    connected(false);
    assert_eq!(state(), QpState::ERR);
    crate::shared::note_flush(qp.qp.shared());
    connected(true);
    assert_eq!(state(), QpState::ERR);
    assert!(!qp.qp.is_flushed());
    t.kernel.refuse_modify.store(true, Ordering::Relaxed);
    let attr = QpAttr::new().qp_state(QpState::ERR);
    let refused = qp.qp.modify(&attr, QpAttrMask::STATE);
    assert!(refused.is_err() && !qp.qp.is_flushed());
    t.kernel.refuse_modify.store(false, Ordering::Relaxed);
    set(QpState::ERR);
    assert!(qp.qp.is_flushed());
    assert_eq!(state(), QpState::ERR);

    // Newer kernels report INIT for RESET, too.
    let qp = t.qp(&rc()).unwrap();
    let state = || qp.qp.query(QpAttrMask::STATE).unwrap().0.qp_state;
    let set = |state| {
        let attr = QpAttr::new().qp_state(state);
        qp.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    };
    t.kernel.take_log();
    reported(QpState::INIT);
    assert_eq!(state(), QpState::RESET);
    set(QpState::RTR);
    assert_eq!(state(), QpState::RTR);
    for (kernel, ours) in [
        (QpState::RTS, QpState::RTS),
        (QpState::SQD, QpState::SQD),
        (QpState::SQE, QpState::ERR),
        (QpState::ERR, QpState::ERR),
    ] {
        reported(kernel);
        assert_eq!(state(), ours);
    }
    set(QpState::SQD);
    for (kernel, ours) in [(QpState::INIT, QpState::SQD), (QpState::ERR, QpState::ERR)] {
        reported(kernel);
        assert_eq!(state(), ours);
    }
    assert!(!t.kernel.take_log().iter().any(|what| what.starts_with("direct")), "without a doorbell");
}

#[test]
fn after_a_refused_write_doorbells_use_the_ioctl() {
    let kernel = Arc::new(Scripted(FakeKernel::default()));
    let bell = KernelBell::new(Arc::clone(&kernel) as Arc<dyn Kernel>, 5);
    bell.ring().unwrap();
    assert_eq!(kernel.take_log(), ["direct 28"]);
    kernel.refuse_writes.store(true, Ordering::Relaxed);
    bell.ring().unwrap();
    bell.ring().unwrap();
    assert_eq!(kernel.take_log(), ["direct 28", "write 0x1c", "write 0x1c"]);
}
