// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the kernel, for which the messages name the cause.

use super::*;

#[test]
fn a_refusal_names_the_size_above_the_devices_limit() {
    let script = Script::new();
    let (pd, cq) = (alloc_pd(&script), create_cq(&script, 8));
    let refuse = |object, method| {
        script.expect(object, method, |_| Err(Errno::EINVAL));
        answer_limits(&script);
    };
    let parents = QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..Default::default() };
    let qp_error = |cap: QpCap| {
        refuse(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE);
        let attr = QpInitAttr { cap, ..rc(10) };
        qp::create(parents, &attr, 6, Uhw::none()).unwrap_err().to_string()
    };
    let cap = rc(10).cap;
    for (cap, text) in [
        (QpCap { max_send_wr: 101, ..cap }, "max_send_wr: 101 is above the device's 100"),
        (QpCap { max_recv_wr: 102, ..cap }, "max_recv_wr: 102 is above the device's 100"),
        (QpCap { max_send_sge: 5, ..cap }, "max_send_sge: 5 is above the device's 4"),
        (QpCap { max_recv_sge: 6, ..cap }, "max_recv_sge: 6 is above the device's 4"),
    ] {
        assert_eq!(qp_error(cap), format!("create_qp: invalid {text}"));
    }
    let error = qp_error(QpCap { max_inline_data: 1 << 20, ..cap });
    assert!(error.starts_with("create_qp(RC qp on device script0, QpCap {"), "{error}");
    assert!(error.contains("max_inline_data: 1048576") && error.ends_with("(EINVAL)"), "{error}");

    refuse(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE);
    let attr = CqInitAttr { cqe: 501, ..Default::default() };
    let error = cq::create(&script.kernel(), &attr, None, 5, Uhw::none()).unwrap_err();
    assert_eq!(error.to_string(), "create_cq: invalid cqe: 501 is above the device's 500");
    let resize = |cqe, explained: bool| {
        script.expect_write::<ib_uverbs_resize_cq>(IB_USER_VERBS_CMD_RESIZE_CQ, |_, _| Err(Errno::EINVAL));
        answer_limits(&script);
        let error = cq.resize(cqe, Uhw::none()).unwrap_err();
        assert_eq!(matches!(error, Error::Invalid { field: "cqe", .. }), explained, "{error}");
        error.to_string()
    };
    assert_eq!(resize(501, true), "resize_cq: invalid cqe: 501 is above the device's 500");
    assert_eq!(resize(2, true), "resize_cq: invalid cqe: more completions are waiting than 2");
    resize(400, false);

    let srq_error = |attr: SrqAttr| {
        refuse(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE);
        let parents = SrqParents { pd: &pd, xrcd: None, cq: None };
        let attr = SrqInitAttr { attr, ..Default::default() };
        srq::create(parents, &attr, 6, Uhw::none()).unwrap_err().to_string()
    };
    let attr = SrqAttr { max_wr: 61, max_sge: 1, srq_limit: 0 };
    assert_eq!(srq_error(attr), "create_srq: invalid max_wr: 61 is above the device's 60");
    let attr = SrqAttr { max_wr: 6, max_sge: 4, srq_limit: 0 };
    assert_eq!(srq_error(attr), "create_srq: invalid max_sge: 4 is above the device's 3");

    // Another errno is not explained.
    script.expect(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, |_| Err(Errno::ENOMEM));
    let error = qp::create(parents, &rc(1000), 6, Uhw::none()).unwrap_err();
    assert_eq!(error.to_string(), "create_qp(RC qp on device script0): Out of memory (ENOMEM)");
    script.done();
}

#[test]
fn a_refused_address_names_port_route_or_gid() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    let refuse = || {
        script.expect_write::<ib_uverbs_create_ah>(IB_USER_VERBS_CMD_CREATE_AH, |_, _| Err(Errno::EINVAL));
        answer_limits(&script);
    };
    let refusal = |attr: &AhAttr| ah::create(&pd, attr, Uhw::none()).unwrap_err().to_string();
    refuse();
    let error = refusal(&AhAttr::global(2, 0, Gid::ZERO));
    assert_eq!(error, "create_ah: invalid attr: port_num: the device has no port 2");
    let link = |layer: u8| {
        refuse();
        script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, move |c| {
            let mut resp = ib_uverbs_query_port_resp_ex::default();
            resp.legacy_resp.link_layer = layer;
            c.answer(UVERBS_ATTR_QUERY_PORT_RESP, resp.as_bytes());
            Ok(())
        });
    };
    link(2);
    let local = AhAttr { port_num: 1, ..AhAttr::default() };
    assert_eq!(refusal(&local), "create_ah: invalid attr: grh: required on Ethernet");
    link(1);
    assert_eq!(refusal(&local), "create_ah(pd 7 of script0): Invalid argument (EINVAL)");
    refuse();
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, |_| Err(Errno::EINVAL));
    let error = refusal(&AhAttr::global(1, 200, Gid::ZERO));
    assert_eq!(error, "create_ah: invalid attr: sgid_index: port 1 has no GID 200");
    // An empty entry keeps its errno.
    script.expect_write::<ib_uverbs_create_ah>(IB_USER_VERBS_CMD_CREATE_AH, |_, _| Err(Errno::ENODATA));
    answer_limits(&script);
    script.expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, |_| Err(Errno::ENODATA));
    let error = ah::create(&pd, &AhAttr::global(1, 20, Gid::ZERO), Uhw::none()).unwrap_err();
    assert_eq!(error.errno(), Errno::ENODATA);
    assert!(error.to_string().starts_with("create_ah(attr: sgid_index: port 1 has no GID 20)"), "{error}");
    script.done();
}

#[test]
fn a_refused_srq_change_names_the_value() {
    let script = Script::new();
    let pd = alloc_pd(&script);
    script.expect(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, |c| {
        c.new_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 4);
        c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &10_u32.to_ne_bytes());
        c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &1_u32.to_ne_bytes());
        Ok(())
    });
    let parents = SrqParents { pd: &pd, xrcd: None, cq: None };
    let attr = SrqAttr { max_wr: 10, max_sge: 1, srq_limit: 0 };
    let (srq, _) = srq::create(parents, &SrqInitAttr { attr, ..Default::default() }, 6, Uhw::none()).unwrap();
    let refuse = || {
        script.expect_write::<ib_uverbs_modify_srq>(IB_USER_VERBS_CMD_MODIFY_SRQ, |_, _| Err(Errno::EINVAL));
    };
    let refusal = |attr: SrqAttr, mask| srq.modify(&attr, mask, Uhw::none()).unwrap_err().to_string();
    refuse();
    let error = refusal(SrqAttr::default(), SrqAttrMask::MAX_WR);
    assert_eq!(error, "modify_srq: invalid max_wr: 0 work requests");
    refuse();
    answer_limits(&script);
    let error = refusal(SrqAttr { max_wr: 1000, ..attr }, SrqAttrMask::MAX_WR);
    assert_eq!(error, "modify_srq: invalid max_wr: 1000 is above the device's 60");
    refuse();
    answer_limits(&script);
    script.expect_write::<ib_uverbs_query_srq>(IB_USER_VERBS_CMD_QUERY_SRQ, |_, c| {
        let resp = ib_uverbs_query_srq_resp { max_wr: 10, max_sge: 1, ..Default::default() };
        c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes());
        Ok(())
    });
    let error = refusal(SrqAttr { srq_limit: 11, ..attr }, SrqAttrMask::LIMIT);
    assert_eq!(error, "modify_srq: invalid srq_limit: 11 is above max_wr 10");
    script.done();
}
