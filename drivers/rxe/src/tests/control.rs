// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path over a simulated kernel: its commands, and the effects of invalid answers.

use crate::testing::heap_ring;
use crate::{KernelBell, Rxe, SendBell as _};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use uverbs_core::attr::*;
use uverbs_core::control::*;
use uverbs_core::kernel::{Kernel, Mapping, Protection, RawCommand, Uhw, WriteCommand};
use uverbs_core::provider::*;
use uverbs_core::{Errno, Error};
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_uapi::cmd::*;
use uverbs_uapi::ids::*;
use uverbs_uapi::rxe::{mminfo, rxe_create_ah_resp, rxe_create_qp_resp};
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

/// A ring that the kernel offers: the element size and slots that it reports, and the slots that exist.
type Offer = (u32, u32, u32);

struct FakeKernel {
    /// The names of the commands, in order.
    log: Mutex<Vec<String>>,
    /// Send queue, receive queue or completion queue.
    rings: Mutex<[Offer; 3]>,
    caps: Mutex<QpCap>,
    device_cap_flags_ex: u64,
    atomic_cap: u32,
    ah_num: u32,
    refuse_writes: AtomicBool,
    refuse_modify: AtomicBool,
    refuse_mmap: AtomicBool,
    refuse_destroy: AtomicBool,
    /// A flush takes long, and its end is in the log.
    slow_flush: AtomicBool,
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self {
            log: Mutex::default(),
            rings: Mutex::new([(9, 16, 16), (7, 8, 8), (7, 128, 128)]),
            caps: Mutex::new(QpCap::new(10, 5).sge(4, 2).inline(64)),
            device_cap_flags_ex: 1 << 38 | 1 << 40,
            atomic_cap: 1,
            ah_num: 7,
            refuse_writes: AtomicBool::new(false),
            refuse_modify: AtomicBool::new(false),
            refuse_mmap: AtomicBool::new(false),
            refuse_destroy: AtomicBool::new(false),
            slow_flush: AtomicBool::new(false),
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

    /// The mmap information of a ring: the offset is its index in `rings`.
    fn info(&self, which: u64) -> mminfo {
        mminfo { offset: which << 12, size: 1, pad: 0 }
    }

    fn write_command(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let number = c.input(UVERBS_ATTR_WRITE_CMD).map(|b| u64::read_from_bytes(b).unwrap()).unwrap() as u32;
        let input = c.input(UVERBS_ATTR_CORE_IN).unwrap_or_default().to_vec();
        self.note(format!("write {:#x}", number));
        const EX: u32 = IB_USER_VERBS_CMD_FLAG_EXTENDED;
        const QUERY_DEVICE: u32 = EX | IB_USER_VERBS_EX_CMD_QUERY_DEVICE;
        const MODIFY_QP: u32 = EX | IB_USER_VERBS_EX_CMD_MODIFY_QP;
        match number {
            QUERY_DEVICE => {
                let mut resp = ib_uverbs_ex_query_device_resp {
                    response_length: size_of::<ib_uverbs_ex_query_device_resp>() as u32,
                    device_cap_flags_ex: self.device_cap_flags_ex,
                    ..Default::default()
                };
                resp.base.atomic_cap = self.atomic_cap;
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_ALLOC_PD => {
                assert!(c.answer(
                    UVERBS_ATTR_CORE_OUT,
                    ib_uverbs_alloc_pd_resp { pd_handle: 1, ..Default::default() }.as_bytes()
                ));
            }
            MODIFY_QP => {
                if self.refuse_modify.load(Ordering::Relaxed) {
                    return Err(Errno::ENOMEM);
                }
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, ib_uverbs_ex_modify_qp_resp::default().as_bytes()));
            }
            IB_USER_VERBS_CMD_QUERY_QP => {
                let resp = ib_uverbs_query_qp_resp { qp_state: QpState::ERR.0 as u8, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_MODIFY_QP => {
                let request = ib_uverbs_modify_qp::read_from_bytes(&input).unwrap();
                assert_eq!((request.qp_handle, request.attr_mask, request.qp_state), (5, 1, 6));
                if self.slow_flush.load(Ordering::Relaxed) {
                    self.note("flush begins");
                    std::thread::sleep(Duration::from_millis(200));
                    self.note("flush ends");
                }
            }
            IB_USER_VERBS_CMD_CREATE_AH => {
                let resp = ib_uverbs_create_ah_resp { ah_handle: 3, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                let resp = rxe_create_ah_resp { ah_num: self.ah_num, reserved: 0 };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_RESIZE_CQ => {
                let resp = ib_uverbs_resize_cq_resp { cqe: 255, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, self.info(2).as_bytes()));
            }
            IB_USER_VERBS_CMD_MODIFY_SRQ => {
                let address = u64::read_from_bytes(c.input(UVERBS_ATTR_UHW_IN).unwrap()).unwrap();
                let info: [u64; 2] = zerocopy::transmute!(self.info(1));
                let to = core::ptr::with_exposed_provenance_mut::<[u64; 2]>(address as usize);
                // SAFETY: `to` has room for a `struct mminfo` and exists during the command (the contract of `Uhw::new`).
                unsafe { to.write(info) };
            }
            IB_USER_VERBS_CMD_POST_SEND => {
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, &[0; 4]));
            }
            IB_USER_VERBS_CMD_REQ_NOTIFY_CQ => {}
            other => panic!("unexpected write command {other:#x}"),
        }
        Ok(())
    }
}

impl Script for FakeKernel {
    fn ioctl(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => return self.write_command(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &4_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes()));
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                let fd = std::fs::File::open("/dev/null").unwrap();
                assert!(c.new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd.into()));
            }
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => {
                let mut entry = [0_u8; 40];
                entry[..16].copy_from_slice(&"10.0.0.1".parse::<Gid>().unwrap().0);
                assert!(c.answer(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &entry));
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                assert!(c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 2));
                assert!(c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &127_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, self.info(2).as_bytes()));
            }
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => {
                assert!(c.new_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 4));
                assert!(c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &5_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &2_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, self.info(1).as_bytes()));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => {
                assert!(!c.has(UVERBS_ATTR_UHW_IN), "rxe refuses private input");
                let asked =
                    ib_uverbs_qp_cap::read_from_bytes(c.input(UVERBS_ATTR_CREATE_QP_CAP).unwrap()).unwrap();
                self.note(format!("max_send_sge {}", asked.max_send_sge));
                assert!(c.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, 5));
                let cap = *self.caps.lock().unwrap();
                let got = ib_uverbs_qp_cap {
                    max_send_wr: cap.max_send_wr,
                    max_recv_wr: cap.max_recv_wr,
                    max_send_sge: cap.max_send_sge,
                    max_recv_sge: cap.max_recv_sge,
                    max_inline_data: cap.max_inline_data,
                };
                assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, got.as_bytes()));
                assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &17_u32.to_ne_bytes()));
                let resp = rxe_create_qp_resp { sq_mi: self.info(0), rq_mi: self.info(1) };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY) => {
                self.note("destroy qp");
                if self.refuse_destroy.load(Ordering::Relaxed) {
                    return Err(Errno::EBUSY);
                }
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => self.note("destroy cq"),
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY) => self.note("destroy srq"),
            (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY) => self.note("destroy ah"),
            other => panic!("unexpected command {other:?}"),
        }
        Ok(())
    }

    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.note(format!("direct {}", command.command()));
        if self.refuse_writes.load(Ordering::Relaxed) { Err(Errno::EACCES) } else { Ok(()) }
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        assert_eq!((len, protection), (1, Protection::ReadWrite));
        if self.refuse_mmap.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        let (log2, slots, real) = self.rings.lock().unwrap()[(offset >> 12) as usize];
        let (mapping, words) = heap_ring(log2, real);
        words.put(0, &log2.to_ne_bytes());
        words.put(4, &(slots - 1).to_ne_bytes());
        Ok(mapping)
    }

    fn driver_id(&self) -> u32 {
        Rxe::DRIVER_ID
    }
}

struct Stage {
    kernel: Arc<Scripted<FakeKernel>>,
    rxe: Rxe,
    pd: PdHandle,
    cq: CqParts<Rxe>,
}

impl Stage {
    fn new(kernel: FakeKernel) -> Self {
        let kernel = Arc::new(Scripted(kernel));
        let (rxe, info) = Rxe::open(Arc::clone(&kernel) as Arc<dyn Kernel>).unwrap();
        assert_eq!(info.num_comp_vectors, 4);
        let pd = pd::alloc(rxe.kernel(), Uhw::none()).unwrap();
        let cq = rxe.create_cq(&CqInitAttr::new(100), None, 0).unwrap();
        assert_eq!((cq.cqe, cq.queue.cqe()), (127, 127));
        kernel.take_log();
        Self { kernel, rxe, pd, cq }
    }

    fn qp(&self, attr: &QpInitAttr) -> uverbs_core::Result<QpParts<Rxe>> {
        let cq = Some(&self.cq.cq);
        played!(self.rxe.create_qp(&QpCreate {
            pd: Some(&self.pd),
            send_cq: cq,
            recv_cq: cq,
            exclusive: true,
            ..QpCreate::new(attr)
        }))
    }
}

fn rc() -> QpInitAttr {
    QpInitAttr::new(QpType::Rc)
}

#[test]
fn reported_sizes_are_those_that_fit() {
    let t = Stage::new(FakeKernel::default());
    let mut attr = rc();
    attr.cap.max_inline_data = 8;
    let qp = t.qp(&attr).unwrap();
    // An inline size without entries is requested together with one entry; otherwise newer kernels fail the WRs.
    assert_eq!(t.kernel.take_log(), ["max_send_sge 1"]);
    let want = QpCap::new(15, 7).sge(4, 2).inline(64);
    assert_eq!(qp.cap, want);
    assert_eq!(qp.qp.shared().state(), QpState::RESET);
    qp.qp.destroy().unwrap();
    assert_eq!(t.kernel.take_log(), ["destroy qp"]);
}

#[test]
fn there_are_no_indirect_keys() {
    let t = Stage::new(FakeKernel::default());
    let attr = QpInitAttr { max_mkey_entries: 1, ..rc() };
    let errors = [t.qp(&attr).map(drop), t.rxe.create_mkey(&t.pd, 1).map(drop)].map(Result::unwrap_err);
    assert!(errors.iter().all(|error| matches!(error, Error::Unsupported { .. })), "{errors:?}");
    assert_eq!(t.kernel.take_log(), [""; 0]);
}

#[test]
fn invalid_rings_fail_the_creation_and_leave_no_object() {
    let t = Stage::new(FakeKernel::default());
    for (which, offer) in [
        (0, (8, 16, 16)),      // 208 bytes and 4 entries do not fit in 256
        (0, (9, 32, 16)),      // more slots than are mapped
        (0, (9, 15, 16)),      // no power of two
        (0, (9, 1 << 30, 16)), // absurd
        (1, (6, 8, 8)),        // 40 bytes and 2 entries do not fit in 64
        (1, (7, 4, 4)),        // room for 3 of 5
    ] {
        let old = core::mem::replace(&mut t.kernel.rings.lock().unwrap()[which], offer);
        let mut attr = rc();
        attr.cap.max_recv_wr = 5;
        let error = t.qp(&attr).unwrap_err();
        assert!(matches!(error, Error::Protocol { verb: "create_qp", .. }), "{offer:?}: {error}");
        assert_eq!(t.kernel.take_log().last().unwrap(), "destroy qp");
        t.kernel.rings.lock().unwrap()[which] = old;
    }
    t.kernel.refuse_mmap.store(true, Ordering::Relaxed);
    assert_eq!(t.qp(&rc()).unwrap_err().errno(), Errno::ENOMEM);
    assert_eq!(t.kernel.take_log().last().unwrap(), "destroy qp");
    let error = t.rxe.create_cq(&CqInitAttr::new(1), None, 0).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOMEM);
    assert_eq!(t.kernel.take_log(), ["destroy cq"]);
}

#[test]
fn features_that_rxe_lacks_are_unsupported_without_a_command() {
    use SendOpsFlags as F;
    let t = Stage::new(FakeKernel { device_cap_flags_ex: 0, atomic_cap: 0, ..Default::default() });
    let with_ops = |qp_type, send_ops_flags| QpInitAttr { send_ops_flags, ..QpInitAttr::new(qp_type) };
    for attr in [
        QpInitAttr::new(QpType::RawPacket),
        QpInitAttr::new(QpType::XrcSend),
        QpInitAttr::new(QpType::XrcRecv),
        QpInitAttr { create_flags: QpCreateFlags::BLOCK_SELF_MCAST_LB, ..QpInitAttr::new(QpType::Ud) },
        QpInitAttr { max_tso_header: 1, ..rc() },
        with_ops(QpType::Rc, F::TSO),
        with_ops(QpType::Rc, F::FLUSH),
        with_ops(QpType::Rc, F::SEND | F::ATOMIC_CMP_AND_SWP),
        with_ops(QpType::Rc, F::ATOMIC_FETCH_AND_ADD),
        with_ops(QpType::Rc, F::ATOMIC_WRITE),
        with_ops(QpType::Uc, F::RDMA_READ),
        with_ops(QpType::Uc, F::SEND_WITH_INV),
        with_ops(QpType::Ud, F::RDMA_WRITE),
    ] {
        let error = t.qp(&attr).unwrap_err();
        assert!(error.is_unsupported(), "{attr:?}: {error}");
    }
    for attr in [
        CqInitAttr::new(1).wc_flags(WcExFlags::COMPLETION_TIMESTAMP),
        CqInitAttr::new(1).flags(CqFlags::IGNORE_OVERRUN),
        CqInitAttr::new(1).compressed(true),
    ] {
        assert!(t.rxe.create_cq(&attr, None, 0).unwrap_err().is_unsupported());
    }
    let attr = SrqInitAttr::default().srq_type(SrqType::Tm);
    let create = SrqCreate { pd: &t.pd, attr: &attr, xrc: None, td: None, user_handle: 0 };
    assert!(t.rxe.create_srq(&create).unwrap_err().is_unsupported());
    assert!(t.kernel.take_log().is_empty());
    // Features that the kernel reports are accepted.
    let t = Stage::new(FakeKernel::default());
    t.qp(&with_ops(QpType::Rc, F::all().difference(F::TSO))).unwrap();
}

#[test]
fn the_posters_follow_the_state() {
    let t = Stage::new(FakeKernel::default());
    let mut qp = t.qp(&rc()).unwrap();
    let to = |qp_state| QpAttr::new().qp_state(qp_state).qkey(7);
    let modify = |qp: &QpParts<Rxe>, state, mask| qp.qp.modify(&to(state), mask);
    let state = QpAttrMask::STATE;
    for s in [QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD] {
        modify(&qp, s, state).unwrap();
        assert_eq!(qp.qp.shared().state(), s);
    }
    t.kernel.take_log();
    modify(&qp, QpState::RTS, state | QpAttrMask::QKEY).unwrap();
    let modified = format!("write {:#x}", IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP);
    assert_eq!(t.kernel.take_log(), [modified.as_str(), "direct 28"], "leaving SQD rings");
    // More reads than the simulated kernel's 0.
    let attr = to(QpState::RTS).max_dest_rd_atomic(1);
    let error = qp.qp.modify(&attr, QpAttrMask::MAX_DEST_RD_ATOMIC).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: invalid max_dest_rd_atomic: 1 is above the device's 0");
    assert!(t.kernel.take_log().is_empty(), "no command");
    // A change of other attributes does not change the state.
    modify(&qp, QpState::RESET, QpAttrMask::QKEY).unwrap();
    assert_eq!((qp.qp.shared().state(), qp.qp.shared().own().get()), (QpState::RTS, 7));

    modify(&qp, QpState::ERR, state).unwrap();
    t.kernel.take_log();
    let recv = qp.recv.as_mut().unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { recv.post(1, &[]) }.unwrap();
    let flushed = format!("write {IB_USER_VERBS_CMD_MODIFY_QP:#x}");
    assert_eq!(t.kernel.take_log(), [flushed.as_str()]);

    // If the kernel refuses the call, the stored state becomes that of the kernel, which is ERR here.
    modify(&qp, QpState::RTS, state).unwrap();
    t.kernel.refuse_modify.store(true, Ordering::Relaxed);
    for s in [QpState::SQD, QpState::RESET] {
        assert_eq!(modify(&qp, s, state).unwrap_err().errno(), Errno::ENOMEM);
        assert_eq!(qp.qp.shared().state(), QpState::ERR);
    }
    qp.qp.destroy().unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    let late = unsafe { qp.recv.as_mut().unwrap().post(1, &[]) };
    assert_eq!(late, Err(PostError::BadState));
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
    let t = Stage::new(FakeKernel::default());
    let mut queue = t.cq.queue;
    queue.req_notify(false).unwrap();
    t.kernel.refuse_writes.store(true, Ordering::Relaxed);
    queue.req_notify(true).unwrap();
    assert_eq!(t.kernel.take_log(), ["direct 23", "direct 23", "write 0x17"]);
}

#[test]
fn a_resize_uses_the_new_ring_or_reports_it_lost() {
    let mut t = Stage::new(FakeKernel::default());
    t.kernel.rings.lock().unwrap()[2] = (7, 256, 256);
    assert_eq!(t.cq.cq.resize(&mut t.cq.queue, 200).unwrap(), 255);
    assert_eq!((t.cq.queue.cqe(), t.cq.cq.handle().cqe()), (255, 255));
    // The kernel has resized the CQ to fewer entries than requested: the old ring is not used any more, and the queue is lost.
    assert_eq!(t.cq.cq.resize(&mut t.cq.queue, 300).unwrap_err().errno(), Errno::EPROTO);
    assert_eq!(t.cq.queue.poll_each(1, |_| ()), Err(PollError::Corrupt));
    assert_eq!(t.cq.cq.resize(&mut t.cq.queue, 200).unwrap(), 255);
    assert_eq!(t.cq.queue.poll_each(1, |_| ()), Ok(0));

    let attr = SrqInitAttr::new(SrqAttr::new(5).max_sge(2));
    let create = SrqCreate { pd: &t.pd, attr: &attr, xrc: None, td: None, user_handle: 0 };
    let mut srq = t.rxe.create_srq(&create).unwrap();
    assert_eq!(srq.attr.max_wr, 7);
    t.kernel.rings.lock().unwrap()[1] = (7, 64, 64);
    let more = SrqAttr::new(40).srq_limit(3).max_sge(0);
    srq.srq.modify(&mut srq.queue, &more, SrqAttrMask::LIMIT).unwrap();
    assert_eq!(srq.queue.capacity(), 7);
    srq.srq.modify(&mut srq.queue, &more, SrqAttrMask::MAX_WR).unwrap();
    assert_eq!(srq.queue.capacity(), 63);

    // A queue of a removed device stays closed, also with another ring.
    let mut removed = t.rxe.create_srq(&create).unwrap();
    removed.srq.notify().device_removed();
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { removed.queue.post(1, &[]) }, Err(PostError::Removed));
    removed.srq.modify(&mut removed.queue, &more, SrqAttrMask::MAX_WR).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { removed.queue.post(1, &[]) }, Err(PostError::Removed));
    // SAFETY: as above.
    assert_eq!(unsafe { srq.queue.post(1, &[]) }, Ok(()));

    t.kernel.refuse_mmap.store(true, Ordering::Relaxed);
    assert_eq!(t.cq.cq.resize(&mut t.cq.queue, 200).unwrap_err().errno(), Errno::ENOMEM);
    assert_eq!(t.cq.queue.poll_each(1, |_| ()), Err(PollError::Corrupt));
    let resized = srq.srq.modify(&mut srq.queue, &more, SrqAttrMask::MAX_WR);
    assert_eq!(resized.unwrap_err().errno(), Errno::ENOMEM);
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { srq.queue.post(1, &[]) }, Err(PostError::Corrupt));
}

#[test]
fn an_address_handle_has_the_kernels_number() {
    let attr = AhAttr::global(1, 3, "10.0.0.2".parse().unwrap());
    let t = Stage::new(FakeKernel::default());
    let (handle, ah) = t.rxe.create_ah(&t.pd, &attr).unwrap();
    assert_eq!((ah.num, ah.av), (7, Default::default()), "the kernel has the address");
    handle.destroy().unwrap();
    let t = Stage::new(FakeKernel { ah_num: 0, ..Default::default() });
    let (_, ah) = t.rxe.create_ah(&t.pd, &attr).unwrap();
    assert_eq!((ah.num, ah.av.network_type, ah.av.grh.sgid_index), (0, 1, 3));
}

#[test]
fn a_dropped_object_is_leaked_and_an_engine_may_be_dropped_first() {
    let t = Stage::new(FakeKernel::default());
    let QpParts { qp, send, recv, .. } = t.qp(&rc()).unwrap();
    let shared = Arc::clone(qp.shared());
    t.kernel.take_log();
    drop((send, recv));
    let _ = Some(qp);
    assert!(Arc::strong_count(&shared) > 1, "the kernel may write to its rings");
    assert!(t.kernel.take_log().is_empty(), "the kernel still has it");

    let QpParts { qp, send, recv, .. } = t.qp(&rc()).unwrap();
    let shared = Arc::clone(qp.shared());
    drop((send, recv));
    qp.destroy().unwrap();
    assert_eq!((Arc::strong_count(&shared), t.kernel.take_log().last().unwrap().as_str()), (1, "destroy qp"));
}

/// The kernel may give the handle of a destroyed QP to another one at once, which a flush of the first one would then move to ERR.
#[test]
fn a_post_in_progress_ends_before_its_qp_is_destroyed() {
    let t = Stage::new(FakeKernel::default());
    let QpParts { qp, recv, .. } = t.qp(&rc()).unwrap();
    let mut recv = recv.unwrap();
    qp.modify(&QpAttr::new().qp_state(QpState::ERR), QpAttrMask::STATE).unwrap();
    t.kernel.slow_flush.store(true, Ordering::Relaxed);
    t.kernel.take_log();
    std::thread::scope(|scope| {
        // SAFETY: the receive has no entries, so it names no memory.
        let poster = scope.spawn(move || (unsafe { recv.post(1, &[]) }, recv));
        while !t.kernel.log.lock().unwrap().iter().any(|line| line == "flush begins") {
            std::thread::yield_now();
        }
        qp.destroy().unwrap();
        let (posted, mut recv) = poster.join().unwrap();
        posted.unwrap();
        let log = t.kernel.take_log();
        assert_eq!(log[log.len() - 3..], ["flush begins", "flush ends", "destroy qp"]);
        // SAFETY: as above.
        assert_eq!(unsafe { recv.post(2, &[]) }, Err(PostError::BadState));
        assert!(t.kernel.take_log().is_empty());
    });
}

/// Its handle may be that of another CQ, which would raise an event that nobody has requested.
#[test]
fn the_engine_of_a_destroyed_cq_arms_nothing() {
    let t = Stage::new(FakeKernel::default());
    let CqParts { cq, mut queue, .. } = t.cq;
    queue.req_notify(false).unwrap();
    assert_eq!(t.kernel.take_log().len(), 1);
    cq.destroy().unwrap();
    assert_eq!(t.kernel.take_log(), ["destroy cq"]);
    assert_eq!(queue.req_notify(false), Err(PollError::Arm(Errno::EINVAL)));
    assert_eq!((queue.poll_each(1, |_| ()), t.kernel.take_log().len()), (Ok(0), 0));
}

#[test]
fn a_qp_that_the_kernel_does_not_destroy_takes_posts() {
    let t = Stage::new(FakeKernel::default());
    let QpParts { qp, recv, .. } = t.qp(&rc()).unwrap();
    let mut recv = recv.unwrap();
    qp.modify(&QpAttr::new().qp_state(QpState::INIT).port_num(1), QpAttrMask::STATE | QpAttrMask::PORT)
        .unwrap();
    t.kernel.refuse_destroy.store(true, Ordering::Relaxed);
    let (qp, error) = qp.destroy().unwrap_err();
    assert_eq!((error.errno(), qp.shared().state()), (Errno::EBUSY, QpState::INIT));
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { recv.post(1, &[]) }.unwrap();
    t.kernel.refuse_destroy.store(false, Ordering::Relaxed);
    qp.destroy().unwrap();
}

#[test]
fn objects_of_two_contexts_and_engines_of_others_are_refused() {
    let mut t = Stage::new(FakeKernel::default());
    let other = Stage::new(FakeKernel::default());
    let attr = rc();
    let create = QpCreate::<Rxe> {
        pd: Some(&t.pd),
        send_cq: Some(&t.cq.cq),
        recv_cq: Some(&other.cq.cq),
        srq: None,
        xrcd: None,
        attr: &attr,
        td: None,
        exclusive: true,
        data_in_completions: false,
        user_handle: 0,
    };
    let error = played!(t.rxe.create_qp(&create)).unwrap_err().to_string();
    assert!(error.starts_with("create_qp: invalid recv_cq: created from another context"), "{error}");
    let init = SrqInitAttr::new(SrqAttr::new(5));
    let create = SrqCreate { pd: &other.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
    let error = t.rxe.create_srq(&create).unwrap_err().to_string();
    assert!(error.starts_with("create_srq: invalid pd: created from another context"), "{error}");
    assert!(t.kernel.take_log().is_empty(), "no command");

    let error = other.cq.cq.resize(&mut t.cq.queue, 200).unwrap_err();
    assert_eq!(error.to_string(), "resize_cq: invalid cq: the engine of another CQ");
    let create = SrqCreate { pd: &t.pd, ..create };
    let [one, mut two] = [(); 2].map(|()| t.rxe.create_srq(&create).unwrap());
    let error = one.srq.modify(&mut two.queue, &init.attr, SrqAttrMask::LIMIT).unwrap_err();
    assert_eq!(error.to_string(), "modify_srq: invalid srq: the engine of another SRQ");
    assert_eq!(t.cq.queue.cqe(), 127);
}
