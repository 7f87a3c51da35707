// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control verbs over a scripted kernel: the commands that they send, and the results of valid, missing and invalid
//! answers.

mod explain;
mod locked;
mod queries;

use super::*;
use crate::attr::*;
use crate::kernel::script::{Script, scripted};
use core::sync::atomic::Ordering;
use uverbs_uapi::cmd::*;
use uverbs_uapi::ids::*;
use uverbs_uapi::verbs::*;
use zerocopy::IntoBytes;

fn alloc_pd(script: &Arc<Script>) -> PdHandle {
    script.expect_write::<ib_uverbs_alloc_pd>(IB_USER_VERBS_CMD_ALLOC_PD, |_, c| {
        c.answer(
            UVERBS_ATTR_CORE_OUT,
            ib_uverbs_alloc_pd_resp { pd_handle: 7, ..Default::default() }.as_bytes(),
        );
        Ok(())
    });
    pd::alloc(&script.kernel(), Uhw::none()).unwrap()
}

fn create_cq(script: &Arc<Script>, handle: u32) -> CqHandle {
    script.expect(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, move |c| {
        c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, handle.into());
        c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &127_u32.to_ne_bytes());
        Ok(())
    });
    cq::create(&script.kernel(), &CqInitAttr { cqe: 100, ..Default::default() }, None, 5, Uhw::none())
        .unwrap()
}

fn rc(send: u32) -> QpInitAttr {
    let mut attr = QpInitAttr::new(QpType::Rc);
    attr.cap =
        QpCap { max_send_wr: send, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    attr
}

/// Answers a QP creation with these sizes.
fn answer_qp(script: &Arc<Script>, handle: u64, qp_num: u32, cap: ib_uverbs_qp_cap) {
    script.expect(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, move |c| {
        assert!(c.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, handle));
        assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, cap.as_bytes()));
        assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &qp_num.to_ne_bytes()));
        Ok(())
    });
}

const CAP: ib_uverbs_qp_cap = ib_uverbs_qp_cap {
    max_send_wr: 16,
    max_recv_wr: 1,
    max_send_sge: 2,
    max_recv_sge: 1,
    max_inline_data: 32,
};

fn create_qp(script: &Arc<Script>) -> QpHandle {
    create_qp_of(script, &rc(10))
}

fn create_qp_of(script: &Arc<Script>, attr: &QpInitAttr) -> QpHandle {
    let (pd, cq) = (alloc_pd(script), create_cq(script, 8));
    answer_qp(script, 9, 0x11, CAP);
    let parents = QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..Default::default() };
    qp::create(parents, attr, 6, Uhw::none()).unwrap().0
}

/// The next command asks for the device's limits: 1 port, 100 work requests, 4 entries, 50 completions, ...
fn answer_limits(script: &Arc<Script>) {
    let extended = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    script.expect_write::<ib_uverbs_ex_query_device>(extended, |_, c| {
        let response_length = size_of::<ib_uverbs_ex_query_device_resp>() as u32;
        let mut resp = ib_uverbs_ex_query_device_resp { response_length, ..Default::default() };
        let base = &mut resp.base;
        (base.phys_port_cnt, base.max_qp_wr, base.max_sge, base.max_cqe) = (1, 100, 4, 500);
        (base.max_srq_wr, base.max_srq_sge) = (60, 3);
        (base.max_qp_rd_atom, base.max_qp_init_rd_atom) = (16, 8);
        c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes());
        Ok(())
    });
}

#[test]
fn a_missing_answer_and_an_impossible_handle_are_protocol_errors() {
    let script = Script::new();
    script.expect_write::<ib_uverbs_alloc_pd>(IB_USER_VERBS_CMD_ALLOC_PD, |_, _| Ok(()));
    assert_eq!(pd::alloc(&script.kernel(), Uhw::none()).unwrap_err().errno(), Errno::EPROTO);
    script.expect_write::<ib_uverbs_alloc_pd>(IB_USER_VERBS_CMD_ALLOC_PD, |_, c| {
        c.answer(UVERBS_ATTR_CORE_OUT, &u32::MAX.to_ne_bytes());
        Ok(())
    });
    assert!(matches!(
        pd::alloc(&script.kernel(), Uhw::none()),
        Err(Error::Protocol { verb: "alloc_pd", .. })
    ));
    script.done();
}

#[test]
fn a_refused_destroy_returns_the_handle_and_a_child_sends_no_command() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    script.expect(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, |c| {
        assert_eq!(c.handle(UVERBS_ATTR_DESTROY_PD_HANDLE), Some(7));
        Err(Errno::EBUSY)
    });
    let (pd, error) = pd.destroy().unwrap_err();
    assert_eq!(error.to_string(), "dealloc_pd(pd 7 of script0): Device or resource busy (EBUSY)");
    script.creator.store(false, Ordering::Relaxed);
    assert!(pd.destroy().is_ok());
    script.done();
}

#[test]
fn methods_that_the_kernel_lacks_are_unsupported() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    let core = CoreSupport::default();
    for errno in [Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EPROTONOSUPPORT] {
        script.expect(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, move |_| Err(errno));
        let file = std::fs::File::open("/").unwrap();
        let dmabuf = std::os::fd::AsFd::as_fd(&file);
        let access = AccessFlags::LOCAL_WRITE;
        assert!(mr::reg_dmabuf(core, &pd, dmabuf, 0, 4096, 0, access).unwrap_err().is_unsupported());
        script.expect_write::<ib_uverbs_open_xrcd>(IB_USER_VERBS_CMD_OPEN_XRCD, move |request, _| {
            assert_eq!((request.fd, request.oflags), (u32::MAX, 0));
            Err(errno)
        });
        assert!(xrcd::open(&script.kernel(), None, false, false).unwrap_err().is_unsupported());
        script.expect(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, move |_| Err(errno));
        let sge = crate::wr::Sge { addr: 0, length: 1, lkey: 2 };
        let advice = mr::advise(&pd, MrAdvice::Prefetch, AdviseFlags::FLUSH, &[sge]);
        assert!(advice.unwrap_err().is_unsupported());
    }
    script.done();
}

#[test]
fn a_cq_is_created_resized_moderated_and_destroyed() {
    let script = Script::new();
    script.expect(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, |c| {
        let ids: Vec<_> = c.attrs().map(|a| a.id).collect();
        assert_eq!(ids, [0, 1, 2, 4, 6, 5]);
        assert_eq!(c.input(UVERBS_ATTR_CREATE_CQ_CQE), Some(&100_u32.to_ne_bytes()[..]));
        assert_eq!(c.input(UVERBS_ATTR_CREATE_CQ_USER_HANDLE), Some(&5_u64.to_ne_bytes()[..]));
        assert_eq!(c.input(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR), Some(&3_u32.to_ne_bytes()[..]));
        assert_eq!(c.input(UVERBS_ATTR_CREATE_CQ_FLAGS), Some(&3_u64.to_ne_bytes()[..]));
        c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 8);
        c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &127_u32.to_ne_bytes());
        Ok(())
    });
    let attr = CqInitAttr {
        cqe: 100,
        comp_vector: 3,
        wc_flags: WcExFlags::COMPLETION_TIMESTAMP,
        flags: CqFlags::IGNORE_OVERRUN | CqFlags::SINGLE_THREADED,
        compressed: false,
    };
    let cq = cq::create(&script.kernel(), &attr, None, 5, Uhw::none()).unwrap();
    assert_eq!((cq.handle(), cq.cqe()), (8, 127));

    script.expect_write::<ib_uverbs_resize_cq>(IB_USER_VERBS_CMD_RESIZE_CQ, |request, c| {
        assert_eq!((request.cq_handle, request.cqe), (8, 200));
        c.answer(UVERBS_ATTR_CORE_OUT, &255_u32.to_ne_bytes());
        Ok(())
    });
    assert_eq!(cq.resize(200, Uhw::none()).unwrap(), 255);
    script.expect_write::<ib_uverbs_resize_cq>(IB_USER_VERBS_CMD_RESIZE_CQ, |_, c| {
        c.answer(UVERBS_ATTR_CORE_OUT, &1_u32.to_ne_bytes());
        Ok(())
    });
    assert!(matches!(cq.resize(200, Uhw::none()), Err(Error::Protocol { .. })));
    assert_eq!(cq.cqe(), 255);

    let moderate = IB_USER_VERBS_EX_CMD_MODIFY_CQ | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    script.expect_write::<ib_uverbs_ex_modify_cq>(moderate, |request, _| {
        assert_eq!(
            (request.cq_handle, request.attr_mask, request.attr.cq_count, request.attr.cq_period),
            (8, 1, 4, 9)
        );
        Err(Errno::EOPNOTSUPP)
    });
    assert!(cq.moderate(CqModeration { cq_count: 4, cq_period: 9 }).unwrap_err().is_unsupported());

    script.expect(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, |c| {
        let resp = ib_uverbs_destroy_cq_resp { comp_events_reported: 3, async_events_reported: 1 };
        c.answer(UVERBS_ATTR_DESTROY_CQ_RESP, resp.as_bytes());
        Ok(())
    });
    assert_eq!(cq.destroy().unwrap(), CqEvents { comp_events_reported: 3, async_events_reported: 1 });
    script.done();
}

#[test]
fn a_cq_smaller_than_requested_is_destroyed() {
    let script = Script::new();
    script
        .expect(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, |c| {
            c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 8);
            c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &99_u32.to_ne_bytes());
            Ok(())
        })
        .expect(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, |c| {
            assert_eq!(c.handle(UVERBS_ATTR_DESTROY_CQ_HANDLE), Some(8));
            Ok(())
        });
    let attr = CqInitAttr { cqe: 100, ..Default::default() };
    let error = cq::create(&script.kernel(), &attr, None, 5, Uhw::none()).unwrap_err();
    assert!(matches!(error, Error::Protocol { verb: "create_cq", .. }), "{error}");
    script.done();
    for cqe in [0, 1 << 31, u32::MAX] {
        let attr = CqInitAttr { cqe, ..Default::default() };
        let error = cq::create(&script.kernel(), &attr, None, 5, Uhw::none()).unwrap_err();
        assert!(matches!(error, Error::Invalid { field: "cqe", .. }));
    }
}

#[test]
fn a_qp_is_created_with_its_attributes_only() {
    let script = Script::new();
    let (pd, cq) = (alloc_pd(&script), create_cq(&script, 8));
    script.expect(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, |c| {
        let ids: Vec<_> = c.attrs().map(|a| a.id).collect();
        // handle, user handle, cap, type, answers, pd, both cqs, flags
        assert_eq!(ids, [0, 7, 8, 9, 13, 14, 2, 4, 5, 10]);
        assert_eq!(c.input(UVERBS_ATTR_CREATE_QP_USER_HANDLE), Some(&6_u64.to_ne_bytes()[..]));
        assert_eq!(c.input(UVERBS_ATTR_CREATE_QP_TYPE), Some(&2_u64.to_ne_bytes()[..]));
        assert_eq!(c.input(UVERBS_ATTR_CREATE_QP_FLAGS), Some(&(1_u64 << 12).to_ne_bytes()[..]));
        assert_eq!(c.input(UVERBS_ATTR_CREATE_QP_CAP), Some([10_u32, 1, 1, 1, 0].as_bytes()));
        assert_eq!(c.handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE), Some(7));
        assert_eq!(c.handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE), Some(8));
        c.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, 9);
        c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, CAP.as_bytes());
        c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &0x11_u32.to_ne_bytes());
        Ok(())
    });
    let parents = QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..Default::default() };
    let attr = QpInitAttr { sq_sig_all: true, ..rc(10) };
    let (qp, cap) = qp::create(parents, &attr, 6, Uhw::none()).unwrap();
    assert_eq!((qp.handle(), qp.qp_num(), qp.qp_type(), cap.max_inline_data), (9, 0x11, QpType::Rc, 32));
    script.expect(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, |c| {
        c.answer(UVERBS_ATTR_DESTROY_QP_RESP, &2_u32.to_ne_bytes());
        Ok(())
    });
    assert_eq!(scripted!(qp.destroy()).unwrap(), 2);
    script.done();
}

#[test]
fn an_invalid_answer_destroys_the_new_qp() {
    for (qp_num, cap) in [
        (1 << 24, CAP),
        (1, ib_uverbs_qp_cap { max_send_wr: 9, ..CAP }),
        (1, ib_uverbs_qp_cap { max_recv_sge: 0, ..CAP }),
    ] {
        let script = Script::new();
        let (pd, cq) = (alloc_pd(&script), create_cq(&script, 8));
        answer_qp(&script, 9, qp_num, cap);
        script.expect(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, |_| Ok(()));
        let parents =
            QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..Default::default() };
        let error = qp::create(parents, &rc(10), 6, Uhw::none()).unwrap_err();
        assert!(matches!(error, Error::Protocol { verb: "create_qp", .. }), "{error}");
        script.done();
    }
    // Without a handle there is nothing to destroy.
    let script = Script::new();
    let (pd, cq) = (alloc_pd(&script), create_cq(&script, 8));
    answer_qp(&script, u64::MAX, 1, CAP);
    let parents = QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..Default::default() };
    assert!(matches!(qp::create(parents, &rc(10), 6, Uhw::none()), Err(Error::Protocol { .. })));
    script.done();
}

#[test]
fn errors_name_parents_and_flags_that_the_qp_type_cannot_have() {
    let script = Script::new();
    let (pd, cq) = (alloc_pd(&script), create_cq(&script, 8));
    let all = QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..Default::default() };
    let create = |parents, attr: &QpInitAttr| match qp::create(parents, attr, 0, Uhw::none()) {
        Err(Error::Invalid { verb: "create_qp", field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(create(QpParents { pd: None, ..all }, &rc(1)), "pd");
    assert_eq!(create(QpParents { send_cq: None, ..all }, &rc(1)), "send_cq");
    assert_eq!(create(QpParents { recv_cq: None, ..all }, &rc(1)), "recv_cq");
    assert_eq!(create(all, &QpInitAttr::new(QpType::XrcSend)), "recv_cq");
    assert_eq!(create(QpParents::default(), &QpInitAttr::new(QpType::XrcRecv)), "xrcd");
    let flags = |qp_type, create_flags| QpInitAttr { create_flags, ..QpInitAttr::new(qp_type) };
    assert_eq!(create(all, &flags(QpType::Rc, QpCreateFlags::BLOCK_SELF_MCAST_LB)), "create_flags");
    assert_eq!(create(all, &flags(QpType::Ud, QpCreateFlags::SCATTER_FCS)), "create_flags");
    assert_eq!(create(all, &flags(QpType::Ud, QpCreateFlags::from_bits_retain(1))), "create_flags");
    let source = QpInitAttr { source_qpn: 1 << 24, ..flags(QpType::Ud, QpCreateFlags::SOURCE_QPN) };
    assert_eq!(create(all, &source), "source_qpn");
    script.done();
}

#[test]
fn modify_sends_only_masked_attributes_and_explains_a_refusal() {
    let script = Script::new();
    let qp = create_qp(&script);
    let attr = QpAttr {
        qp_state: QpState::RTR,
        path_mtu: Mtu::MTU_1024,
        dest_qp_num: 0x99,
        rq_psn: 5,
        sq_psn: 0xabc,
        ah_attr: AhAttr::global(1, 2, Gid([3; 16])),
        ..Default::default()
    };
    let command = IB_USER_VERBS_EX_CMD_MODIFY_QP | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    let mask =
        QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    script.expect_write::<ib_uverbs_ex_modify_qp>(command, move |request, c| {
        let base = request.base;
        assert_eq!((base.qp_handle, base.attr_mask, base.qp_state, base.path_mtu), (9, mask.bits(), 2, 3));
        assert_eq!((base.dest_qp_num, base.rq_psn, base.sq_psn), (0x99, 5, 0), "sq_psn is not in the mask");
        assert_eq!((base.dest.is_global, base.dest.port_num, base.dest.sgid_index), (1, 1, 2));
        assert_eq!(base.dest.dgid, [3; 16]);
        c.answer(UVERBS_ATTR_CORE_OUT, [0_u32, 8].as_bytes());
        Ok(())
    });
    scripted!(qp.modify(Some(QpState::INIT), &attr, mask, Uhw::none())).unwrap();

    let refuse = |errno| {
        script.expect_write::<ib_uverbs_ex_modify_qp>(command, move |_, _| Err(errno));
    };
    refuse(Errno::EINVAL);
    let error = scripted!(qp.modify(Some(QpState::INIT), &attr, mask, Uhw::none())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "modify_qp: invalid attr_mask: INIT->RTR on RC lacks MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC"
    );
    // The state is queried if the caller does not know it.
    refuse(Errno::EINVAL);
    script.expect_write::<ib_uverbs_query_qp>(IB_USER_VERBS_CMD_QUERY_QP, |request, c| {
        assert_eq!((request.qp_handle, request.attr_mask), (9, 1));
        c.answer(
            UVERBS_ATTR_CORE_OUT,
            ib_uverbs_query_qp_resp { qp_state: 6, ..Default::default() }.as_bytes(),
        );
        Ok(())
    });
    let error = scripted!(qp.modify(None, &attr, mask, Uhw::none())).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: invalid attr_mask: ERR->RTR on RC is not a legal transition");
    // Nothing wrong with the mask: a value was.
    refuse(Errno::EINVAL);
    let full = mask | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::MAX_DEST_RD_ATOMIC;
    let extended = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    script.expect_write::<ib_uverbs_ex_query_device>(extended, |_, _| Err(Errno::EIO));
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, |_| Err(Errno::EIO));
    script.expect_write::<ib_uverbs_ex_query_device>(extended, |_, _| Err(Errno::EIO));
    let error = scripted!(qp.modify(Some(QpState::INIT), &attr, full, Uhw::none())).unwrap_err();
    assert!(error.to_string().starts_with("modify_qp(qp 9 of script0):"), "{error}");
    // The attributes of the device show which limit is exceeded.
    refuse(Errno::EINVAL);
    answer_limits(&script);
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, |_| Err(Errno::ENODATA));
    let error = scripted!(qp.modify(Some(QpState::INIT), &attr, full, Uhw::none())).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: invalid ah_attr: sgid_index: port 1 has no GID 2");
    refuse(Errno::ENODEV);
    let error = scripted!(qp.modify(Some(QpState::INIT), &attr, mask, Uhw::none())).unwrap_err();
    assert_eq!(error.errno(), Errno::ENODEV);
    // Never sent.
    let wrong = QpAttr { timeout: 32, ..attr };
    assert!(scripted!(qp.modify(None, &wrong, QpAttrMask::TIMEOUT, Uhw::none())).is_err());
    script.done();
}

#[test]
fn query_qp_keeps_unknown_values() {
    let script = Script::new();
    let qp = create_qp(&script);
    script.expect_write::<ib_uverbs_query_qp>(IB_USER_VERBS_CMD_QUERY_QP, |_, c| {
        c.answer(UVERBS_ATTR_CORE_OUT, &[0xff; size_of::<ib_uverbs_query_qp_resp>()]);
        Ok(())
    });
    let (attr, init) = qp.query(QpAttrMask::all()).unwrap();
    assert_eq!((attr.qp_state, attr.path_mtu), (QpState(255), Mtu(255)));
    assert!(init.sq_sig_all && init.qp_type == QpType::Rc && attr.ah_attr.grh.is_some());
    script.done();
}

#[test]
fn an_srq_is_created_modified_and_queried() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    let init = SrqInitAttr { attr: SrqAttr { max_wr: 10, max_sge: 2, srq_limit: 0 }, ..Default::default() };
    let parents = SrqParents { pd: &pd, xrcd: None, cq: None };
    let answer = |wr: u32| {
        script.expect(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, move |c| {
            assert_eq!(c.attrs().map(|a| a.id).collect::<Vec<_>>(), [0, 1, 9, 4, 5, 6, 7, 11, 12]);
            c.new_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 4);
            c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &wr.to_ne_bytes());
            c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &2_u32.to_ne_bytes());
            Ok(())
        });
    };
    answer(15);
    let (srq, got) = srq::create(parents, &init, 1, Uhw::none()).unwrap();
    assert_eq!((srq.handle(), srq.srq_num(), got.max_wr), (4, None, 15));
    answer(9);
    script.expect(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, |_| Ok(()));
    assert!(matches!(srq::create(parents, &init, 1, Uhw::none()), Err(Error::Protocol { .. })));

    script.expect_write::<ib_uverbs_modify_srq>(IB_USER_VERBS_CMD_MODIFY_SRQ, |request, c| {
        assert_eq!((request.srq_handle, request.attr_mask, request.srq_limit), (4, 2, 5));
        assert!(!c.has(UVERBS_ATTR_CORE_OUT));
        Ok(())
    });
    let limit = SrqAttr { srq_limit: 5, ..Default::default() };
    srq.modify(&limit, SrqAttrMask::LIMIT, Uhw::none()).unwrap();
    assert!(matches!(srq.modify(&limit, SrqAttrMask::empty(), Uhw::none()), Err(Error::Invalid { .. })));
    script.expect_write::<ib_uverbs_query_srq>(IB_USER_VERBS_CMD_QUERY_SRQ, |_, c| {
        c.answer(UVERBS_ATTR_CORE_OUT, [15_u32, 2, 5, 0].as_bytes());
        Ok(())
    });
    assert_eq!(srq.query().unwrap(), SrqAttr { max_wr: 15, max_sge: 2, srq_limit: 5 });

    let xrc = SrqInitAttr { srq_type: SrqType::Xrc, ..init };
    assert!(matches!(srq::create(parents, &xrc, 1, Uhw::none()), Err(Error::Invalid { field: "xrcd", .. })));
    let none = SrqInitAttr::default();
    assert!(matches!(
        srq::create(parents, &none, 1, Uhw::none()),
        Err(Error::Invalid { field: "max_wr", .. })
    ));
    script.done();
}

#[test]
fn an_address_handle_is_created_with_its_route() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    script.expect_write::<ib_uverbs_create_ah>(IB_USER_VERBS_CMD_CREATE_AH, |request, c| {
        assert_eq!((request.pd_handle, request.attr.is_global, request.attr.port_num), (7, 1, 2));
        assert_eq!((request.attr.grh.sgid_index, request.attr.grh.hop_limit), (1, 64));
        c.answer(UVERBS_ATTR_CORE_OUT, &3_u32.to_ne_bytes());
        Ok(())
    });
    let ah = ah::create(&pd, &AhAttr::global(2, 1, Gid([1; 16])), Uhw::none()).unwrap();
    assert_eq!(ah.handle(), 3);
    let error = ah::create(&pd, &AhAttr::default(), Uhw::none()).unwrap_err();
    assert!(matches!(error, Error::Invalid { verb: "create_ah", field: "attr", .. }));
    script.done();
}

#[test]
fn only_multicast_gids_and_ud_qps_can_be_attached() {
    let script = Script::new();
    let qp = create_qp_of(&script, &QpInitAttr { qp_type: QpType::Ud, ..rc(10) });
    let group: Gid = "ff0e::1".parse().unwrap();
    script.expect_write::<ib_uverbs_attach_mcast>(IB_USER_VERBS_CMD_ATTACH_MCAST, move |request, _| {
        assert_eq!((request.gid, request.qp_handle, request.mlid), (group.0, 9, 0xc000));
        Ok(())
    });
    mcast::attach(&qp, group, 0xc000).unwrap();
    script.expect_write::<ib_uverbs_detach_mcast>(IB_USER_VERBS_CMD_DETACH_MCAST, |_, _| Err(Errno::EINVAL));
    assert_eq!(mcast::detach(&qp, group, 0xc000).unwrap_err().errno(), Errno::EINVAL);
    let error = mcast::attach(&qp, "fe80::1".parse().unwrap(), 0).unwrap_err();
    assert!(matches!(error, Error::Invalid { field: "gid", .. }));
    let error = mcast::attach(&create_qp(&script), group, 0).unwrap_err();
    assert_eq!(error.to_string(), "attach_mcast: invalid qp: RC QPs can't be attached");
    script.done();
}

#[test]
fn windows_xrc_domains_and_their_qps_are_created() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    script.expect_write::<ib_uverbs_alloc_mw>(IB_USER_VERBS_CMD_ALLOC_MW, |request, c| {
        assert_eq!((request.pd_handle, request.mw_type), (7, 2));
        c.answer(UVERBS_ATTR_CORE_OUT, [3_u32, 0x55].as_bytes());
        Ok(())
    });
    let mw = mw::alloc(&pd, MwType::Type2, Uhw::none()).unwrap();
    assert_eq!((mw.handle(), mw.rkey(), mw.mw_type()), (3, 0x55, MwType::Type2));

    let file = tempfile::tempfile().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file).cast_unsigned();
    script.expect_write::<ib_uverbs_open_xrcd>(IB_USER_VERBS_CMD_OPEN_XRCD, move |request, c| {
        assert_eq!((request.fd, request.oflags), (number, libc::O_CREAT.cast_unsigned()));
        c.answer(UVERBS_ATTR_CORE_OUT, &6_u32.to_ne_bytes());
        Ok(())
    });
    let fd = std::os::fd::AsFd::as_fd(&file);
    let xrcd = xrcd::open(&script.kernel(), Some(fd), true, false).unwrap();

    let open = |qpn: u32| {
        script.expect_write::<ib_uverbs_open_qp>(IB_USER_VERBS_CMD_OPEN_QP, move |request, c| {
            assert_eq!(
                (request.pd_handle, request.qpn, request.qp_type, request.user_handle),
                (6, 0x11, 10, 1)
            );
            let resp = ib_uverbs_create_qp_resp { qp_handle: 12, qpn, ..Default::default() };
            c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes());
            Ok(())
        });
        qp::open(&xrcd, 0x11, 1, Uhw::none())
    };
    assert_eq!(open(0x11).unwrap().handle(), 12);
    script.done();
    assert!(matches!(qp::open(&xrcd, 1 << 24, 1, Uhw::none()), Err(Error::Invalid { .. })));
    // An answer for another QP: the QP is destroyed.
    script.expect_write::<ib_uverbs_open_qp>(IB_USER_VERBS_CMD_OPEN_QP, |_, c| {
        let resp = ib_uverbs_create_qp_resp { qp_handle: 12, qpn: 3, ..Default::default() };
        c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes());
        Ok(())
    });
    script.expect(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, |_| Ok(()));
    assert!(matches!(qp::open(&xrcd, 0x11, 1, Uhw::none()), Err(Error::Protocol { .. })));
    script.done();
}
