// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control path over a simulated kernel: its commands, and the effects of refusals and invalid answers.

/// Calls an `unsafe` verb of the driver.
macro_rules! played {
    ($call:expr) => {{
        // SAFETY: the kernel is simulated, so only the test accesses the queues; the arguments are the parts of one object.
        let result = unsafe { $call };
        result
    }};
}

mod kernel;
mod locked;
mod objects;
mod registers;
mod wrong_answers;

use super::qp::QpControl;
use super::*;
use crate::cq::CqeCompression;
use core::sync::atomic::Ordering::Relaxed;
use kernel::{FakeKernel, record_word};
use uverbs_core::Errno;
use uverbs_core::attr::{
    Gid, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, RxHashConf, RxHashFields, SendOpsFlags,
    SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, WcExFlags, WqAttr, WqInitAttr, WqState,
};
use uverbs_core::control::{wq, xrcd};
use uverbs_core::kernel::page_size;
use uverbs_core::provider::wire::WireRemote as _;
use uverbs_core::provider::{
    CompletionQueue as _, CqObject as _, Object as _, Op, PostError, QpObject as _, RecvQueue,
    SendQueue as _, SrqObject as _, WqObject as _, Wr,
};
use uverbs_mlx5_hw::doorbell::{MLX5_RCV_DBR, MLX5_SND_DBR};
use uverbs_testkit::kernel::Scripted;
use uverbs_uapi::mlx5::*;

struct Stage {
    kernel: Arc<Scripted<FakeKernel>>,
    mlx5: Mlx5,
    pd: PdHandle,
    cq: CqParts<Mlx5>,
}

impl Stage {
    fn new(kernel: FakeKernel, options: &Options) -> Self {
        let kernel = Arc::new(Scripted(kernel));
        let (mlx5, _) = Mlx5::open_with(Arc::clone(&kernel) as Arc<dyn Kernel>, options).unwrap();
        let pd = mlx5.alloc_pd().unwrap();
        let cq = mlx5.create_cq(&CqInitAttr::new(100), None, 0).unwrap();
        assert_eq!((cq.cqe, cq.queue.cqe()), (127, 127));
        kernel.take_log();
        Self { kernel, mlx5, pd, cq }
    }

    fn plain() -> Self {
        Self::new(FakeKernel::default(), &Options::default())
    }

    fn attr(qp_type: QpType) -> QpInitAttr {
        let cap = QpCap::new(16, 8);
        QpInitAttr { cap, ..QpInitAttr::new(qp_type) }
    }

    fn try_qp(&self, attr: &QpInitAttr, td: Option<&ThreadDomain>) -> Result<QpParts<Mlx5>> {
        self.try_qp_of(attr, td, false)
    }

    fn try_qp_of(
        &self,
        attr: &QpInitAttr,
        td: Option<&ThreadDomain>,
        exclusive: bool,
    ) -> Result<QpParts<Mlx5>> {
        let cq = Some(&self.cq.cq);
        played!(self.mlx5.create_qp(&QpCreate {
            pd: Some(&self.pd),
            send_cq: cq,
            recv_cq: if attr.qp_type.has_recv_queue() { cq } else { None },
            td,
            exclusive,
            data_in_completions: true,
            ..QpCreate::new(attr)
        }))
    }

    fn qp(&self, qp_type: QpType) -> QpParts<Mlx5> {
        self.try_qp(&Self::attr(qp_type), None).unwrap()
    }

    fn to(&self, qp: &QpParts<Mlx5>, state: QpState) -> Result<()> {
        let attr = QpAttr::new().qp_state(state).port_num(1);
        let mask =
            QpAttrMask::STATE | if state == QpState::INIT { QpAttrMask::PORT } else { QpAttrMask::empty() };
        qp.qp.modify(&attr, mask)
    }
}

fn words(qp: &QpControl) -> (u32, u32) {
    let dbrec = qp.dbrec().unwrap();
    (record_word(dbrec, MLX5_RCV_DBR), record_word(dbrec, MLX5_SND_DBR))
}

/// Posts a receive without memory.
fn post_recv(queue: &mut impl RecvQueue) {
    // SAFETY: the receive has no entries, so it names no memory.
    #[expect(unsafe_code)]
    let posted = unsafe { queue.post(7, &[]) };
    posted.unwrap();
}

/// Posts a write of 0 bytes.
fn post_send(qp: &mut QpParts<Mlx5>) -> core::result::Result<(), PostError> {
    let write = Op::Write(crate::Remote::new(0, 0));
    // SAFETY: the WR has no data, so it names no memory.
    #[expect(unsafe_code)]
    unsafe {
        qp.send.as_mut().unwrap().post(&Wr::new(0, write))
    }
}

#[test]
fn a_context_requests_the_supported_features() {
    let kernel = Arc::new(Scripted(FakeKernel::default()));
    let options = Options { num_low_lat_uuars: 6, ..Options::default() };
    let (mlx5, info) = Mlx5::open_with(Arc::clone(&kernel) as Arc<dyn Kernel>, &options).unwrap();
    assert_eq!(info.num_comp_vectors, 4);
    let request: mlx5_ib_alloc_ucontext_req_v2 = kernel.private();
    assert_eq!((request.total_num_bfregs, request.num_low_latency_bfregs), (16, 6));
    assert_eq!((request.max_cqe_version, request.lib_caps), (1, 3));
    let facts = &mlx5.facts;
    assert_eq!((facts.min_inline, facts.max_tso, facts.dump_fill_mkey), (0, 1 << 18, 0x300));
    assert!(facts.atomics && facts.raw_csum && facts.ece && !facts.real_time_ts);
    let device = mlx5.query_device().unwrap();
    assert_eq!((device.tso_caps.max_tso, device.tso_caps.supported_qpts), (1 << 18, 1 << 8));
    assert_eq!(kernel.take_log(), ["alloc uar type 1"], "the page that arms CQs");
    drop((mlx5, info));
    assert_eq!(kernel.take_log(), ["destroy uar"]);
}

#[test]
fn a_context_has_commands_for_the_firmware_as_requested_and_permitted() {
    let open = |devx, refused| {
        let kernel = FakeKernel::default();
        kernel.refuse_devx.store(refused, Relaxed);
        let options = Options { devx, ..Options::default() };
        Mlx5::open_with(Arc::new(Scripted(kernel)), &options).map(|(mlx5, _)| mlx5.facts.may_command)
    };
    for (devx, permitted, refused) in [
        (Devx::Off, Some(false), Some(false)),
        (Devx::IfPermitted, Some(true), Some(false)),
        (Devx::Required, Some(true), None),
    ] {
        assert_eq!(open(devx, false).ok(), permitted, "{devx:?}, permitted");
        assert_eq!(open(devx, true).ok(), refused, "{devx:?}, refused");
    }
    assert_eq!(open(Devx::Required, true).unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn an_invalid_context_answer_is_an_error() {
    type Change = fn(&mut mlx5_ib_alloc_ucontext_resp);
    let changes: [Change; 5] = [
        |r| r.cqe_version = 2,
        |r| r.num_ports = 0,
        |r| r.num_ports = 256,
        |r| r.num_uars_per_page = 17,
        |r| r.tot_bfregs = 17,
    ];
    for change in changes {
        let kernel = FakeKernel::default();
        change(&mut kernel.context.lock().unwrap());
        let error = Mlx5::open_with(Arc::new(Scripted(kernel)), &Options::default()).unwrap_err();
        assert_eq!(error.errno(), Errno::EPROTO, "{error}");
    }
    // With an invalid register size, BlueFlame is disabled, and the context can be opened.
    let kernel = FakeKernel::default();
    kernel.context.lock().unwrap().bf_reg_size = 300;
    let stage = Stage::new(kernel, &Options::default());
    stage.qp(QpType::Rc);
    assert!(stage.kernel.take_log().is_empty(), "all QPs write to the uncached page");
}

#[test]
fn a_qp_is_created_with_its_memory_and_register() {
    let stage = Stage::plain();
    let qp = stage.qp(QpType::Rc);
    assert_eq!(stage.kernel.take_log(), ["alloc uar type 0"]);
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!((request.sq_wqe_count, request.rq_wqe_count, request.rq_wqe_shift), (64, 8, 4));
    assert_eq!(request.flags, MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_UAR_PAGE_INDEX);
    assert_eq!((request.uidx, request.ece_options, request.sq_buf_addr), (0, 0x1000_0000, 0));
    assert!(request.buf_addr != 0 && request.buf_addr.is_multiple_of(4096));
    assert_eq!(request.db_addr, qp.qp.control().unwrap().dbrec().unwrap().addr());
    assert_eq!((qp.cap.max_send_wr, qp.cap.max_recv_wr, qp.cap.max_inline_data), (16, 8, 60));
    assert_eq!(
        (qp.qp.control().unwrap().shared().qp_num, qp.qp.control().unwrap().shared().uidx),
        (qp.qp.handle().qp_num(), 0)
    );
    let again = stage.qp(QpType::Rc);
    assert_eq!(again.qp.control().unwrap().shared().uidx, 1);
    assert!(stage.kernel.take_log().is_empty(), "a page has two registers");
}

#[test]
fn the_send_queue_of_a_raw_packet_qp_has_its_own_buffer() {
    let stage = Stage::plain();
    let mut qp = stage.qp(QpType::RawPacket);
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert!(request.buf_addr != 0 && request.sq_buf_addr != 0 && request.buf_addr != request.sq_buf_addr);
    // The device uses the receive queue in INIT already, so the record is written only from RTR on.
    stage.to(&qp, QpState::INIT).unwrap();
    assert!(qp.qp.control().unwrap().shared().csum());
    post_recv(qp.recv.as_mut().unwrap());
    post_recv(qp.recv.as_mut().unwrap());
    assert_eq!(words(qp.qp.control().unwrap()), (0, 0));
    stage.to(&qp, QpState::RTR).unwrap();
    assert_eq!(words(qp.qp.control().unwrap()), (2, 0));
    post_recv(qp.recv.as_mut().unwrap());
    assert_eq!(words(qp.qp.control().unwrap()), (3, 0));
}

#[test]
fn qps_without_queues_take_no_register() {
    let stage = Stage::plain();
    let mut attr = Stage::attr(QpType::Rc);
    attr.cap = QpCap::new(0, 0).sge(0, 3);
    let qp = stage.try_qp(&attr, None).unwrap();
    assert!(qp.send.is_none() && qp.recv.is_none());
    assert_eq!(qp.cap, QpCap::default());
    assert!(stage.kernel.take_log().is_empty());
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!((request.buf_addr, request.sq_wqe_count, request.rq_wqe_count), (0, 0, 0));
    assert_ne!(request.flags & MLX5_QP_FLAG_UAR_PAGE_INDEX, 0);
}

#[test]
fn features_that_mlx5_lacks_are_unsupported_without_a_command() {
    let stage = Stage::plain();
    let refused = |attr: QpInitAttr| stage.try_qp(&attr, None).unwrap_err();
    let ops = SendOpsFlags::SEND | SendOpsFlags::TSO;
    assert!(refused(QpInitAttr { send_ops_flags: ops, ..Stage::attr(QpType::Ud) }).is_unsupported());
    assert!(
        refused(QpInitAttr { send_ops_flags: SendOpsFlags::FLUSH, ..Stage::attr(QpType::Rc) })
            .is_unsupported()
    );
    assert!(refused(QpInitAttr { max_tso_header: 64, ..Stage::attr(QpType::Rc) }).is_unsupported());
    let srq = SrqInitAttr::default().srq_type(SrqType::Tm);
    let create = SrqCreate { pd: &stage.pd, attr: &srq, xrc: None, td: None, user_handle: 0 };
    assert!(stage.mlx5.create_srq(&create).unwrap_err().is_unsupported());
    let tm = CqInitAttr::new(1).wc_flags(WcExFlags::TM_INFO);
    assert!(stage.mlx5.create_cq(&tm, None, 0).unwrap_err().is_unsupported());
    let wall = CqInitAttr::new(1).wc_flags(WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK);
    assert!(stage.mlx5.create_cq(&wall, None, 0).unwrap_err().is_unsupported());
    assert!(stage.kernel.take_log().is_empty());
}

#[test]
fn builders_of_missing_operations_are_unsupported_at_creation() {
    let mut kernel = FakeKernel::default();
    (kernel.atomic_cap, kernel.max_tso) = (0, 0);
    let stage = Stage::new(kernel, &Options::default());
    let create = |qp_type, send_ops_flags| {
        stage.try_qp(&QpInitAttr { send_ops_flags, ..Stage::attr(qp_type) }, None).map(drop)
    };
    for flag in [SendOpsFlags::ATOMIC_CMP_AND_SWP, SendOpsFlags::ATOMIC_FETCH_AND_ADD] {
        for qp_type in [QpType::Rc, QpType::XrcSend, QpType::Driver] {
            let error = create(qp_type, SendOpsFlags::SEND | flag).unwrap_err();
            assert!(error.is_unsupported(), "{error}");
        }
    }
    assert!(create(QpType::RawPacket, SendOpsFlags::TSO).unwrap_err().is_unsupported());
    assert!(stage.kernel.take_log().is_empty(), "no command");
    create(QpType::Rc, SendOpsFlags::SEND | SendOpsFlags::RDMA_READ).unwrap();
    create(QpType::RawPacket, SendOpsFlags::SEND).unwrap();
}

#[test]
fn an_invalid_object_number_undoes_the_creation() {
    let stage = Stage::plain();
    stage.kernel.number.store(1 << 24, Relaxed);
    let cq = stage.mlx5.create_cq(&CqInitAttr::new(1), None, 0);
    assert_eq!(cq.unwrap_err().errno(), Errno::EPROTO);
    let attr = SrqAttr::new(10);
    let srq = SrqInitAttr::new(attr);
    let create = SrqCreate { pd: &stage.pd, attr: &srq, xrc: None, td: None, user_handle: 0 };
    assert_eq!(stage.mlx5.create_srq(&create).unwrap_err().errno(), Errno::EPROTO);
    assert_eq!(stage.try_qp(&Stage::attr(QpType::Rc), None).unwrap_err().errno(), Errno::EPROTO);
    assert_eq!(stage.kernel.take_log(), ["destroy cq", "destroy srq", "alloc uar type 0", "destroy qp"]);
    // The register was returned.
    stage.kernel.number.store(5, Relaxed);
    stage.qp(QpType::Rc);
    assert!(stage.kernel.take_log().is_empty());
}

#[test]
fn a_reset_removes_all_posts_and_an_error_changes_nothing() {
    let stage = Stage::plain();
    let mut qp = stage.qp(QpType::Rc);
    assert_eq!(post_send(&mut qp), Err(PostError::BadState));
    stage.to(&qp, QpState::INIT).unwrap();
    post_recv(qp.recv.as_mut().unwrap());
    stage.to(&qp, QpState::RTR).unwrap();
    stage.to(&qp, QpState::RTS).unwrap();
    post_send(&mut qp).unwrap();
    post_send(&mut qp).unwrap();
    assert_eq!(words(qp.qp.control().unwrap()), (1, 2));
    // The halves of the register are used alternately.
    let rung: Vec<_> = stage.kernel.rung().iter().map(|(_, at, n)| (*at, *n)).collect();
    assert_eq!(rung, [(0x800, 64), (0x900, 64)]);

    // If the kernel refuses the call, nothing changes.
    stage.kernel.refuse_modify.store(true, Relaxed);
    stage.kernel.qp_state.store(3, Relaxed);
    stage.to(&qp, QpState::RESET).unwrap_err();
    assert_eq!(
        (words(qp.qp.control().unwrap()), qp.qp.control().unwrap().shared().state()),
        ((1, 2), QpState::RTS)
    );
    post_send(&mut qp).unwrap();
    // If the call fails because the device moved the QP to ERR, the new state is stored.
    stage.kernel.qp_state.store(6, Relaxed);
    stage.to(&qp, QpState::SQD).unwrap_err();
    assert_eq!(qp.qp.control().unwrap().shared().state(), QpState::ERR);
    stage.kernel.refuse_modify.store(false, Relaxed);

    stage.to(&qp, QpState::RESET).unwrap();
    assert_eq!(
        (words(qp.qp.control().unwrap()), qp.qp.control().unwrap().shared().state()),
        ((0, 0), QpState::RESET)
    );
    assert_eq!(post_send(&mut qp), Err(PostError::BadState));
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.to(&qp, state).unwrap();
        assert_eq!(words(qp.qp.control().unwrap()), (0, 0), "{state}");
    }
    post_send(&mut qp).unwrap();
    assert_eq!(words(qp.qp.control().unwrap()), (0, 1));
}

#[test]
fn a_refused_destroy_returns_the_qp() {
    let stage = Stage::plain();
    let mut qp = stage.qp(QpType::Rc);
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.to(&qp, state).unwrap();
    }
    stage.kernel.refuse_destroy.store(true, Relaxed);
    let (object, error) = qp.qp.destroy().unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    qp.qp = object;
    assert_eq!(qp.qp.control().unwrap().shared().state(), QpState::RTS);
    post_send(&mut qp).unwrap();
    stage.kernel.refuse_destroy.store(false, Relaxed);
    let shared = Arc::clone(qp.qp.control().unwrap().shared());
    let QpParts { qp, mut send, recv, cap } = qp;
    qp.destroy().unwrap();
    assert_eq!(shared.state(), QpState::RESET);
    // The remaining send queue posts nothing.
    let write = Op::Write(crate::Remote::new(0, 0));
    // SAFETY: the WR has no data, so it names no memory.
    #[expect(unsafe_code)]
    let posted = unsafe { send.as_mut().unwrap().post(&Wr::new(0, write)) };
    assert_eq!(posted, Err(PostError::BadState));
    drop((recv, cap));
}

#[test]
fn a_user_index_is_free_when_all_parts_of_its_qp_are_dropped() {
    let stage = Stage::plain();
    let index = |stage: &Stage| stage.kernel.private::<mlx5_ib_create_qp>().uidx;
    let first = stage.qp(QpType::Rc);
    assert_eq!(index(&stage), 0);
    let QpParts { qp, send, recv, .. } = first;
    qp.destroy().unwrap();
    let _second = stage.qp(QpType::Rc);
    assert_eq!(index(&stage), 1, "its queues still exist");
    drop((send, recv));
    let _third = stage.qp(QpType::Rc);
    assert_eq!(index(&stage), 0);
}

#[test]
fn an_srq_has_its_own_index_only_for_xrc() {
    let stage = Stage::plain();
    let attr = SrqAttr::new(100).max_sge(2).srq_limit(5);
    let init = SrqInitAttr::new(attr);
    let create = SrqCreate { pd: &stage.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
    let mut basic = stage.mlx5.create_srq(&create).unwrap();
    let request: mlx5_ib_create_srq = stage.kernel.private();
    assert_eq!((request.uidx, basic.attr.max_wr, basic.attr.max_sge), (0, 127, 3));
    post_recv(&mut basic.queue);

    let xrcd = xrcd::open(stage.mlx5.kernel(), None, false, false).unwrap();
    let _qp = stage.qp(QpType::Rc);
    let init = init.srq_type(SrqType::Xrc);
    let xrc = Some((&xrcd, &stage.cq.cq));
    let create = SrqCreate { xrc, attr: &init, ..create };
    let xrc = stage.mlx5.create_srq(&create).unwrap();
    let request: mlx5_ib_create_srq = stage.kernel.private();
    assert_eq!((request.uidx, xrc.srq.shared().uidx()), (1, 1));
    let SrqParts { srq, queue, .. } = xrc;
    srq.destroy().unwrap();
    drop(queue);
    let resize = basic.srq.modify(&mut basic.queue, &attr, SrqAttrMask::MAX_WR);
    assert!(resize.unwrap_err().is_unsupported());
    basic.srq.modify(&mut basic.queue, &attr, SrqAttrMask::LIMIT).unwrap();
}

#[test]
fn with_cqe_version_0_completions_have_the_qp_number() {
    let kernel = FakeKernel::default();
    kernel.context.lock().unwrap().cqe_version = 0;
    let stage = Stage::new(kernel, &Options::default());
    let qp = stage.qp(QpType::Rc);
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!(request.uidx, NO_UIDX);
    assert_eq!(qp.qp.control().unwrap().shared().uidx, qp.qp.handle().qp_num());
}

#[test]
fn address_handles_depend_on_the_link_layer() {
    let stage = Stage::plain();
    let attr = AhAttr::global(1, 3, "10.0.0.9".parse::<Gid>().unwrap());
    stage.mlx5.create_ah(&stage.pd, &attr).unwrap();
    let refused = |mlx5: &Mlx5, attr: AhAttr| mlx5.create_ah(&stage.pd, &attr).unwrap_err().to_string();
    assert!(refused(&stage.mlx5, attr.grh(None)).contains("grh"));
    assert!(refused(&stage.mlx5, attr.port_num(2)).contains("port_num"));
    assert!(refused(&stage.mlx5, attr.port_num(0)).contains("port_num"));

    let mut kernel = FakeKernel::default();
    kernel.link_layer = 1;
    let ib = Stage::new(kernel, &Options::default());
    ib.mlx5.create_ah(&ib.pd, &attr.grh(None).dlid(4)).unwrap();
    let old = FakeKernel::default();
    old.context.lock().unwrap().cmds_supp_uhw = 0;
    let old = Stage::new(old, &Options::default());
    assert!(old.mlx5.create_ah(&old.pd, &attr).unwrap_err().is_unsupported());
}

#[test]
fn a_cq_can_have_large_entries() {
    let options = Options { cqe_size: 128, ..Options::default() };
    let stage = Stage::new(FakeKernel::default(), &options);
    let request: mlx5_ib_create_cq = stage.kernel.private();
    assert_eq!((request.cqe_size, request.flags), (128, MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX));
    assert_eq!(u32::from(request.uar_page_index), stage.mlx5.uars.arm_page().unwrap());
}

#[test]
fn a_cq_has_the_compression_that_the_device_has() {
    let make = |compressed, cqe_size, compression| {
        let mut kernel = FakeKernel::default();
        kernel.compressed = compressed;
        let stage = Stage::new(kernel, &Options::default());
        let options = CqOptions { cqe_size, compression: Some(compression), ..CqOptions::default() };
        let cq = stage.mlx5.create_cq_with(&CqInitAttr::new(100), options, None, 0)?;
        let request: mlx5_ib_create_cq = stage.kernel.private();
        assert_eq!(cq.queue.ring().compression(), Some(compression));
        Ok::<_, Error>((request.cqe_comp_en, request.cqe_comp_res_format))
    };
    let wide = MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP;
    assert_eq!(make((64, 0), None, CqeCompression::Hash).unwrap(), (1, 1));
    assert_eq!(make((64, 0), None, CqeCompression::Checksum).unwrap(), (1, 2));
    assert_eq!(make((64, wide), Some(128), CqeCompression::Checksum).unwrap(), (1, 2));
    for (compressed, size, compression) in [
        ((0, wide), None, CqeCompression::Hash),
        ((64, wide), None, CqeCompression::ChecksumAndStride),
        ((64, 0), Some(128), CqeCompression::Hash),
    ] {
        let error = make(compressed, size, compression).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("compressed"), "{error}");
    }
    let mut kernel = FakeKernel::default();
    kernel.compressed = (64, wide);
    let stage = Stage::new(kernel, &Options::default());
    let make = |compressed| {
        stage.mlx5.create_cq(&CqInitAttr::new(100).compressed(compressed), None, 0).unwrap();
        let request: mlx5_ib_create_cq = stage.kernel.private();
        (request.cqe_comp_en, request.cqe_comp_res_format)
    };
    assert_eq!((make(false), make(true)), ((0, 0), (1, 1)));
    let cq = Stage::plain().mlx5.create_cq(&CqInitAttr::new(100).compressed(true), None, 0);
    assert!(cq.unwrap_err().is_unsupported());
}

#[test]
fn a_dc_initiator_is_created_as_qp_type_driver() {
    let stage = Stage::plain();
    let mut attr = Stage::attr(QpType::Driver);
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    let qp = stage.try_qp(&attr, None).unwrap();
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!(request.flags, MLX5_QP_FLAG_TYPE_DCI | MLX5_QP_FLAG_UAR_PAGE_INDEX);
    assert!(qp.send.is_some() && qp.recv.is_none());
}

#[test]
fn streams_of_a_dc_initiator_are_within_the_devices_limits() {
    let stage = Stage::plain();
    let make = |qp_type, log_num_concurrent, log_num_errored| {
        let mut attr = Stage::attr(qp_type);
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
        let streams = dv::DciStreams { log_num_concurrent, log_num_errored };
        let options = QpOptions { dci_streams: Some(streams), ..QpOptions::default() };
        let cq = Some(&stage.cq.cq);
        let create = QpCreate {
            pd: Some(&stage.pd),
            send_cq: cq,
            recv_cq: cq,
            exclusive: true,
            ..QpCreate::new(&attr)
        };
        played!(stage.mlx5.create_qp_with(&create, &options)).map(drop)
    };
    make(QpType::Driver, 5, 4).unwrap();
    let request: mlx5_ib_create_qp = stage.kernel.private();
    let flags = MLX5_QP_FLAG_TYPE_DCI | MLX5_QP_FLAG_DCI_STREAM;
    assert_eq!(request.flags & flags, flags);
    assert_eq!((request.dci_streams.log_num_concurent, request.dci_streams.log_num_errored), (5, 4));
    for (concurrent, errored, field) in [(6, 4, "log_num_concurrent"), (5, 5, "log_num_errored")] {
        let error = make(QpType::Driver, concurrent, errored).unwrap_err();
        assert!(matches!(error, Error::Invalid { field: found, .. } if found == field), "{error}");
    }
    assert!(make(QpType::Rc, 0, 0).unwrap_err().is_unsupported());
}

#[test]
fn a_dc_target_has_the_number_that_rtr_returns() {
    let stage = Stage::plain();
    let init = SrqInitAttr::new(SrqAttr::new(4));
    let create = SrqCreate { pd: &stage.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
    let srq = stage.mlx5.create_srq(&create).unwrap();
    let create = DctCreate {
        pd: &stage.pd,
        cq: &stage.cq.cq,
        srq: &srq.srq,
        dc_key: 0x1122_3344_5566_7788,
        data_in_completions: true,
        user_handle: 0,
    };
    let dct = played!(stage.mlx5.create_dct(&create)).unwrap();
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!((request.flags, request.sq_buf_addr), (MLX5_QP_FLAG_TYPE_DCT, create.dc_key));
    assert_eq!((request.buf_addr, request.db_addr, request.sq_wqe_count), (0, 0, 0));
    let modify = |state| {
        let attr = QpAttr::new().qp_state(state);
        dct.modify(&attr, QpAttrMask::STATE).map(|()| dct.dct_number())
    };
    assert!(dct.is_dct());
    assert_eq!(modify(QpState::INIT).unwrap(), None);
    stage.kernel.number.store(0x4321, Relaxed);
    assert_eq!(modify(QpState::RTR).unwrap(), Some(0x4321));
    stage.kernel.number.store(1 << 24, Relaxed);
    assert_eq!(modify(QpState::RTR).unwrap_err().errno(), Errno::EPROTO);
    dct.destroy().unwrap();
}

#[test]
fn a_work_queue_accepts_receives_when_it_is_ready() {
    let stage = Stage::plain();
    let attr = WqInitAttr::new(5).max_sge(3);
    let cq = &stage.cq.cq;
    let create = WqCreate { pd: &stage.pd, cq, attr: &attr, user_handle: 0 };
    let mut wq = stage.mlx5.create_wq(&create).unwrap();
    let request: mlx5_ib_create_wq = stage.kernel.private();
    assert_eq!((request.rq_wqe_count, request.rq_wqe_shift, request.user_index), (8, 6, 0));
    assert_eq!((wq.attr.max_wr, wq.attr.max_sge), (8, 4));
    // SAFETY: the receive has no entries, so it names no memory.
    #[expect(unsafe_code)]
    let early = unsafe { wq.queue.post(7, &[]) };
    assert_eq!(early, Err(PostError::BadState));
    let to = |wq: &WqParts<Mlx5>, state| {
        let attr = WqAttr::new().wq_state(state);
        wq.wq.modify(&attr).unwrap();
    };
    to(&wq, WqState::RDY);
    post_recv(&mut wq.queue);
    assert_eq!(words(wq.wq.control()), (1, 0), "published at once, without a QP state");
    to(&wq, WqState::ERR);
    to(&wq, WqState::RESET);
    assert_eq!(words(wq.wq.control()), (0, 0));

    let table = wq::create_rwq_ind_table(stage.mlx5.kernel(), &[wq.wq.handle()], Uhw::none()).unwrap();
    let hash = RxHashConf::new(&[7; 40], RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4);
    let create = RssQpCreate { pd: &stage.pd, table: &table, hash, user_handle: 0 };
    let qp = stage.mlx5.create_rss_qp(&create).unwrap();
    let request: mlx5_ib_create_qp_rss = stage.kernel.private();
    assert_eq!((request.rx_hash_fields_mask, request.rx_hash_function, request.rx_key_len), (3, 1, 40));
    assert_eq!(request.rx_hash_key.concat()[38..42], [7, 7, 0, 0]);
    let long = RxHashConf::new(&[7; 129], hash.fields);
    assert_eq!(
        stage.mlx5.create_rss_qp(&RssQpCreate { hash: long, ..create }).unwrap_err().errno(),
        Errno::EINVAL
    );
    let attr = QpAttr::new().qp_state(QpState::INIT);
    assert!(qp.modify(&attr, QpAttrMask::STATE).unwrap_err().is_unsupported());
    assert!(qp.query(QpAttrMask::STATE).unwrap_err().is_unsupported());
    qp.destroy().unwrap();
    stage.kernel.take_log();
    let shared = Arc::clone(wq.wq.control().shared());
    wq.wq.destroy().unwrap();
    assert_eq!(shared.state(), QpState::RESET);
    assert_eq!(stage.kernel.take_log(), ["destroy wq"]);
}

#[test]
fn device_memory_is_mapped_at_its_offset() {
    let stage = Stage::plain();
    let dm = stage.mlx5.alloc_dm(100, 0).unwrap();
    // The mmap command, with the page index (of more than 8 bits) split around it.
    let (page, offset) = (page_size(), (8 << 8 | 2 | 1 << 16) * u64::from(page_size()));
    assert_eq!(stage.kernel.take_log(), [format!("mmap {offset:#x} {page} ReadWrite")]);
    assert_eq!(dm.start, 0x40);
    assert!(dm.mapping.copy_in(dm.start, &[1, 2, 3, 4]));
    dm.handle.destroy().unwrap();
    stage.kernel.refuse_mmap.store(true, Relaxed);
    stage.kernel.take_log();
    assert_eq!(stage.mlx5.alloc_dm(4096, 0).unwrap_err().errno(), Errno::ENOMEM);
    assert_eq!(stage.kernel.take_log()[1..], ["destroy dm"]);
}

/// Whether this address is mapped.
fn is_mapped(addr: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (first, last) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        (number(first)..number(last)).contains(&addr)
    })
}

/// The kernel created the object but returned an invalid handle, so the memory that was passed to it must stay mapped.
#[test]
fn memory_that_the_kernel_may_hold_is_leaked() {
    let mut stage = Stage::plain();
    let cap = QpCap::new(4096, 4096);
    stage.kernel.next_handle.store(1 << 31, Relaxed);
    let unsure = |error: Error| assert_eq!(error.errno(), Errno::EPROTO, "{error}");

    let attr = CqInitAttr::new(4096);
    unsure(stage.mlx5.create_cq(&attr, None, 0).unwrap_err());
    let cq: mlx5_ib_create_cq = stage.kernel.private();
    assert!(is_mapped(cq.buf_addr) && is_mapped(cq.db_addr));

    let attr = SrqAttr::new(4096);
    let srq = SrqInitAttr::new(attr);
    let create = SrqCreate { pd: &stage.pd, attr: &srq, xrc: None, td: None, user_handle: 0 };
    unsure(stage.mlx5.create_srq(&create).unwrap_err());
    let srq: mlx5_ib_create_srq = stage.kernel.private();
    assert!(is_mapped(srq.buf_addr) && is_mapped(srq.db_addr));

    for qp_type in [QpType::Rc, QpType::RawPacket] {
        let attr = QpInitAttr { cap, ..QpInitAttr::new(qp_type) };
        unsure(stage.try_qp(&attr, None).unwrap_err());
        let qp: mlx5_ib_create_qp = stage.kernel.private();
        assert!(is_mapped(qp.buf_addr) && is_mapped(qp.db_addr));
        assert!(qp.sq_buf_addr == 0 || is_mapped(qp.sq_buf_addr));
    }

    let attr = WqInitAttr::new(4096);
    let cq = &stage.cq.cq;
    let create = WqCreate { pd: &stage.pd, cq, attr: &attr, user_handle: 0 };
    unsure(stage.mlx5.create_wq(&create).unwrap_err());
    let wq: mlx5_ib_create_wq = stage.kernel.private();
    assert!(is_mapped(wq.buf_addr) && is_mapped(wq.db_addr));

    stage.kernel.nonsense_resize.store(true, Relaxed);
    let CqParts { cq, queue, .. } = &mut stage.cq;
    unsure(cq.resize(queue, 4096).unwrap_err());
    let resize: mlx5_ib_resize_cq = stage.kernel.private();
    assert!(is_mapped(resize.buf_addr));
}

/// The kernel of the test would accept the size; the limit of its device is 0.
#[test]
fn a_ring_of_more_entries_than_the_device_has_is_not_filled() {
    let mut stage = Stage::plain();
    let CqParts { cq, queue, .. } = &mut stage.cq;
    let error = cq.resize(queue, 1 << 20).unwrap_err();
    assert_eq!(error.to_string(), "resize_cq: invalid cqe: 2097151 is above the device's 0");
}
