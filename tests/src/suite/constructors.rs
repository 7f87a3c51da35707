// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values out of range: every constructor and control verb returns an error that names verb and field, with or without
//! a call of the kernel, and leaves no object.

use crate::env::End;
use crate::lab::PORT;
use crate::pair::region;
use crate::post::{Typed, post_srq_recv};
use crate::{Face, Lab, Lock, Op, Outcome, Pair, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use std::os::fd::AsFd;
use uverbs::attr::{
    AccessFlags, AhAttr, CqInitAttr, DeviceCapFlags, Gid, Mtu, MwType, QpAttr, QpAttrMask as M, QpCap,
    QpState, QpType, SendOpsFlags, SrqAttr, SrqAttrMask, SrqInitAttr, WcExFlags,
};
use uverbs::{
    Driver, Error, Exclusive, PageBuf, ProtectionDomain, Rc, Shared, Uc, Ud,
    raw::{Cq, Srq},
};

const CAP: QpCap = QpCap::new(8, 8).sge(2, 2);

/// Checks that the call failed, and that the error has the verb and the fault.
fn refused<T>(what: &str, result: Result<T, Error>, verb: &str, field: &str) -> Result<String> {
    let error = result.err().with_context(|| format!("{verb} accepts {what}"))?;
    ensure!(error.verb() == verb, "{what}: {error} names {}, not {verb}", error.verb());
    let text = error.to_string();
    ensure!(text.starts_with(verb) && text.contains(field), "{what}: {text:?} does not name {field}");
    ensure!(!error.is_unsupported(), "{what}: {text}");
    Ok(text)
}

/// Checks that the call failed because the device does not support it.
fn unsupported<T>(what: &str, result: Result<T, Error>, verb: &str) -> Result<()> {
    let error = result.err().with_context(|| format!("{verb} accepts {what}"))?;
    ensure!(error.verb() == verb && error.is_unsupported(), "{what}: {error}");
    Ok(())
}

/// Repeats refused calls, and checks that the numbers of the kernel's objects and of open files do not change.
fn without_leaks<D: Driver>(lab: &Lab<D>, turn: impl Fn() -> Outcome) -> Outcome {
    turn()?;
    let files = crate::child::open_files()?;
    let before = lab.bed.resources(End::A)?;
    for _ in 0..3 {
        turn()?;
    }
    let after = lab.bed.resources(End::A)?;
    ensure!(before == after, "left behind: {before:?} became {after:?}");
    ensure!(files == crate::child::open_files()?, "files left open");
    Ok(())
}

fn create_cq_refuses_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    let create = |cqe, comp_vector| {
        let attr = CqInitAttr::new(cqe).comp_vector(comp_vector);
        lab.a.create_cq_ex::<Exclusive>(&attr, None)
    };
    without_leaks(lab, || {
        refused("0 entries", create(0, 0), "create_cq", "cqe")?;
        refused("2^31 entries", create(1 << 31, 0), "create_cq", "cqe")?;
        refused("more than the device has", create(lab.device.max_cqe + 1, 0), "create_cq", "cqe")?;
        for vector in [lab.a.num_comp_vectors(), u32::MAX] {
            refused("an unknown vector", create(16, vector), "create_cq", "comp_vector")?;
        }
        let attr = CqInitAttr::new(4).wc_flags(WcExFlags::from_bits_retain(1 << 40));
        unsupported("an unknown field", lab.a.create_cq_ex::<Exclusive>(&attr, None), "create_cq")
    })
}

fn resize_cq_refuses_invalid_sizes<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::new(lab)?;
    without_leaks(lab, || {
        let cq = &pair.a.cq;
        refused("0 entries", cq.resize(0), "resize_cq", "cqe")?;
        refused("2^31 entries", cq.resize(1 << 31), "resize_cq", "cqe")?;
        refused("more than the device has", cq.resize(lab.device.max_cqe + 1), "resize_cq", "cqe")?;
        Ok(())
    })?;
    // A size below the number of waiting completions: nothing is lost.
    let data = [7; 8];
    for wr_id in 0..20 {
        let at = pair.b.remote(0);
        pair.a.post(Face::Single, &[Req::new(wr_id, Op::Write(at)).signaled().inline(&data)])?;
    }
    // A write on another connection, so that all completions are there. rxe compares the requested size with the
    // waiting completions; if the rounded size is compared, all of them fit.
    crate::wait::until("the last one", crate::LIMIT, || {
        Ok(pair.a.cq.resize(19).map_or(true, |cqe| D::NAME != "rxe" && cqe >= 20))
    })?;
    refused("fewer than are waiting", pair.a.cq.resize(4), "resize_cq", "cqe")?;
    ensure!(pair.a.ok(20)?.iter().map(|wc| wc.wr_id).eq(0..20), "completions are lost");
    pair.a.cq.resize(4)?;
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(pair.b.remote(0))).signaled().inline(&data)])?;
    pair.a.ok(1)?;
    Ok(())
}

/// A domain and a CQ for the creation of QPs.
fn parents<D: Driver>(lab: &Lab<D>) -> Result<(ProtectionDomain<D>, Cq<Shared, D>)> {
    Ok((lab.a.alloc_pd()?, lab.a.create_cq(16, None)?))
}

fn qp_sizes<D: Driver, T: Typed<D>>(lab: &Lab<D>) -> Outcome {
    let (pd, cq) = parents(lab)?;
    let create = |cap| pd.raw_qp::<T>().cq(&cq).cap(cap).create();
    without_leaks(lab, || {
        let device = &lab.device;
        // Newer kernels compute the limit of mlx5 for the longest requests; there is room for four times as many short
        // ones.
        for huge in [device.max_qp_wr * 4 + 1, 1 << 31, u32::MAX] {
            let what = format!("{huge} work requests");
            refused(&what, create(CAP.max_send_wr(huge)), "create_qp", "max_send_wr")?;
            refused(&what, create(CAP.max_recv_wr(huge)), "create_qp", "max_recv_wr")?;
        }
        // A device may support more than its attributes show.
        for (send, recv) in [(device.max_sge + 1, 1), (1, device.max_sge + 1)] {
            let what = format!("{send} and {recv} entries");
            match create(CAP.max_send_sge(send).max_recv_sge(recv)) {
                Ok(qp) => {
                    let cap = qp.cap();
                    ensure!(cap.max_send_sge >= send && cap.max_recv_sge >= recv, "{what}: {cap:?}");
                }
                Err(e) => {
                    let field = if send > recv { "max_send_sge" } else { "max_recv_sge" };
                    refused(&what, Err::<(), _>(e), "create_qp", field)?;
                }
            }
        }
        for huge in [1 << 20, 1 << 31, u32::MAX] {
            let what = format!("{huge} entries");
            refused(&what, create(CAP.max_send_sge(huge)), "create_qp", "max_send_sge")?;
            refused(&what, create(CAP.max_recv_sge(huge)), "create_qp", "max_recv_sge")?;
        }
        for huge in [1 << 20, u32::MAX] {
            let what = format!("{huge} inline bytes");
            refused(&what, create(CAP.inline(huge)), "create_qp", "max_inline_data")?;
        }
        refused("no CQ", pd.raw_qp::<T>().cap(CAP).create(), "create_qp", "send_cq")?;
        refused("no receive CQ", pd.raw_qp::<T>().send_cq(&cq).cap(CAP).create(), "create_qp", "recv_cq")?;
        Ok(())
    })
}

/// Queues of size 0: creation fails, or creates a QP that refuses every post.
fn qps_without_queues_refuse_posts<D: Driver>(lab: &Lab<D>) -> Outcome {
    without_leaks(lab, || {
        let (pd, cq) = parents(lab)?;
        let nothing = QpCap::new(0, 0).sge(0, 0);
        for cap in [nothing, CAP.max_send_sge(0).max_recv_sge(0), CAP.max_send_wr(0), CAP.max_recv_wr(0)] {
            let mut qp = match pd.raw_qp::<Rc>().cq(&cq).cap(cap).create() {
                Ok(qp) => qp,
                Err(e) => {
                    ensure!(e.verb() == "create_qp", "{cap:?}: {e}");
                    continue;
                }
            };
            let got = *qp.cap();
            if got.max_recv_wr == 0 && qp.recv.is_none() {
                ensure!(cap.max_recv_wr == 0, "{cap:?}: no receive queue");
                qp.close()?;
                continue;
            }
            qp.init(&lab.connect_attr())?;
            let recvs: Vec<_> = (0..u64::from(got.max_recv_wr) + 1).map(|i| (i, &[][..])).collect();
            let refused = crate::post_recv(qp.rq()?, Face::List, &recvs).err().context("one too many")?;
            ensure!(
                (refused.error, refused.bad) == (Some(uverbs::PostError::QueueFull), Some(recvs.len() - 1)),
                "{cap:?}: {refused}"
            );
            qp.close()?;
        }
        Ok(())
    })
}

/// Operations that the QP type does not have.
fn create_qp_refuses_missing_operations<D: Driver>(lab: &Lab<D>) -> Outcome {
    use SendOpsFlags as F;
    let (pd, cq) = parents(lab)?;
    without_leaks(lab, || {
        for op in [F::RDMA_READ, F::ATOMIC_CMP_AND_SWP, F::ATOMIC_FETCH_AND_ADD, F::FLUSH, F::TSO] {
            unsupported(
                &format!("{op:?} on UC"),
                pd.raw_qp::<Uc>().cq(&cq).cap(CAP).send_ops(op).create(),
                "create_qp",
            )?;
        }
        for op in
            [F::RDMA_WRITE, F::RDMA_WRITE_WITH_IMM, F::RDMA_READ, F::SEND_WITH_INV, F::LOCAL_INV, F::BIND_MW]
        {
            let create = pd.raw_qp::<Ud>().cq(&cq).cap(CAP).send_ops(F::SEND | op).create();
            unsupported(&format!("{op:?} on UD"), create, "create_qp")?;
        }
        let unknown = F::from_bits_retain(1 << 50);
        unsupported(
            "an unknown operation",
            pd.raw_qp::<Rc>().cq(&cq).cap(CAP).send_ops(unknown).create(),
            "create_qp",
        )
    })
}

fn srqs_refuse_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let create = |max_wr, max_sge, srq_limit| {
        let attr = SrqAttr::new(max_wr).max_sge(max_sge).srq_limit(srq_limit);
        pd.create_srq::<Exclusive>(&SrqInitAttr::new(attr))
    };
    without_leaks(lab, || {
        let device = &lab.device;
        refused("0 work requests", create(0, 1, 0), "create_srq", "max_wr")?;
        for huge in [device.max_srq_wr + 1, 1 << 31, u32::MAX] {
            refused(&format!("{huge} work requests"), create(huge, 1, 0), "create_srq", "max_wr")?;
        }
        for huge in [device.max_srq_sge + 1, 1 << 31, u32::MAX] {
            refused(&format!("{huge} entries"), create(8, huge, 0), "create_srq", "max_sge")?;
        }
        refused("a limit above the size", create(8, 1, 9), "create_srq", "srq_limit")?;
        Ok(())
    })?;
    let mut srq: Srq<Exclusive, D> = create(8, 1, 0)?;
    let (size, device) = (srq.attr().max_wr, &lab.device);
    let mut modify = |attr: SrqAttr, mask| srq.modify(&attr, mask);
    let none = SrqAttr::default();
    refused("an empty mask", modify(none, SrqAttrMask::empty()), "modify_srq", "srq_attr_mask")?;
    let unknown = SrqAttrMask::from_bits_retain(4);
    refused("an unknown bit", modify(none, unknown), "modify_srq", "srq_attr_mask")?;
    let limit = none.srq_limit(size + 1);
    refused("a limit above the size", modify(limit, SrqAttrMask::LIMIT), "modify_srq", "srq_limit")?;
    if lab.has(DeviceCapFlags::SRQ_RESIZE) {
        refused("0 work requests", modify(none, SrqAttrMask::MAX_WR), "modify_srq", "max_wr")?;
        let huge = none.max_wr(device.max_srq_wr + 1);
        refused("more than the device has", modify(huge, SrqAttrMask::MAX_WR), "modify_srq", "max_wr")?;
        let both = none.max_wr(16).srq_limit(17);
        let result = modify(both, SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT);
        refused("both, which together do not fit", result, "modify_srq", "srq_limit")?;
    } else {
        let resize = none.max_wr(16);
        unsupported("a resize", modify(resize, SrqAttrMask::MAX_WR), "modify_srq")?;
    }
    // The SRQ still works. (Below the limit the event would come immediately on some devices.)
    let recvs: Vec<_> = (0..5).map(|i| (i, &[][..])).collect();
    post_srq_recv(&mut srq, Face::List, &recvs)?;
    let mut modify = |attr: SrqAttr, mask| srq.modify(&attr, mask);
    modify(none.srq_limit(3), SrqAttrMask::LIMIT)?;
    ensure!(srq.query()?.srq_limit == 3 && srq.query()?.max_wr >= 8, "{:?}", srq.query()?);
    Ok(())
}

/// Every field of `modify_qp` that can be out of range.
fn modify_qp_refuses_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &Spec::new(lab))?;
    let (a, b) = (&pair.a, &pair.b);
    let attr = lab.connect_attr();
    let path = attr.ah_attr(&b.here);
    let modify = |attr: QpAttr, mask: M| a.qp.modify(&attr, mask);
    let to = |qp_state| QpAttr::new().qp_state(qp_state);
    let init = M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS;

    for port_num in [0, 99, 255] {
        let init_attr = to(QpState::INIT).port_num(port_num);
        refused(&format!("port {port_num}"), modify(init_attr, init), "modify_qp", "port_num")?;
    }
    let unknown = M::from_bits_retain(1 << 30);
    refused("an unknown bit", modify(to(QpState::INIT), init | unknown), "modify_qp", "attr_mask")?;
    refused("no state", modify(to(QpState(7)), M::STATE), "modify_qp", "qp_state")?;
    let text = refused("a leap", modify(to(QpState::RTS), M::STATE), "modify_qp", "attr_mask")?;
    ensure!(text.contains("RESET->RTS on RC is not a legal transition"), "{text}");
    ensure!(a.state()? == QpState::RESET);

    a.qp.init(&attr)?;
    let rtr =
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let good = to(QpState::RTR)
        .path_mtu(Mtu::MTU_1024)
        .dest_qp_num(b.here.qp_num)
        .ah_attr(path)
        .max_dest_rd_atomic(1);
    let grh = path.grh.context("a global route")?;
    let off_table = u8::try_from(lab.port.gid_tbl_len).unwrap_or(u8::MAX);
    let with_index = |sgid_index| path.grh(Some(grh.sgid_index(sgid_index)));
    let wrong = [
        ("a PSN of 25 bits", "rq_psn", good.rq_psn(1 << 24)),
        ("a QP number of 25 bits", "dest_qp_num", good.dest_qp_num(1 << 24)),
        ("MTU code 9", "path_mtu", good.path_mtu(Mtu(9))),
        ("MTU code 0", "path_mtu", good.path_mtu(Mtu(0))),
        ("an RNR timer of 32", "min_rnr_timer", good.min_rnr_timer(32)),
        ("255 reads", "max_dest_rd_atomic", good.max_dest_rd_atomic(255)),
        ("port 0 in the path", "port_num", good.ah_attr(path.port_num(0))),
        ("port 99 in the path", "port_num", good.ah_attr(path.port_num(99))),
        ("a GID beyond the table", "sgid_index", good.ah_attr(with_index(off_table))),
        ("an empty GID", "sgid_index", good.ah_attr(with_index(off_table - 1))),
        ("service level 16", "sl", good.ah_attr(path.sl(16))),
    ];
    let no_route = ("no global route", "grh", good.ah_attr(path.grh(None)));
    // InfiniBand needs none.
    let no_route = lab.is_ethernet().then_some(no_route);
    for (what, field, attr) in wrong.into_iter().chain(no_route) {
        refused(what, modify(attr, rtr), "modify_qp", field)?;
        ensure!(a.state()? == QpState::INIT, "{what} left INIT");
    }
    let text = refused("no MTU", modify(good, rtr - M::PATH_MTU), "modify_qp", "attr_mask")?;
    ensure!(text.contains("INIT->RTR on RC lacks PATH_MTU"), "{text}");

    // `connect` refuses values for RTS before it moves the QP.
    for (field, attr) in [
        ("timeout", attr.timeout(32)),
        ("retry_cnt", attr.retry_cnt(8)),
        ("max_rd_atomic", attr.max_rd_atomic(255)),
    ] {
        refused(field, a.qp.control.connect(&a.here, &b.here, &attr), "modify_qp", field)?;
        ensure!(a.state()? == QpState::INIT, "connect with a wrong {field} left INIT");
    }

    a.qp.control.ready_to_receive(&b.here, &attr)?;
    let rts = M::STATE | M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let good = to(QpState::RTS).timeout(14).retry_cnt(7).rnr_retry(7).max_rd_atomic(1);
    let wrong = [
        ("a PSN of 25 bits", "sq_psn", good.sq_psn(1 << 24)),
        ("a timeout of 32", "timeout", good.timeout(32)),
        ("8 retries", "retry_cnt", good.retry_cnt(8)),
        ("8 RNR retries", "rnr_retry", good.rnr_retry(8)),
        ("255 reads", "max_rd_atomic", good.max_rd_atomic(255)),
    ];
    for (what, field, attr) in wrong {
        refused(what, modify(attr, rts), "modify_qp", field)?;
        ensure!(a.state()? == QpState::RTR, "{what} left RTR");
    }
    let text = refused("a queue key", modify(good.qkey(1), rts | M::QKEY), "modify_qp", "attr_mask")?;
    ensure!(text.contains("RTR->RTS on RC can't set QKEY"), "{text}");
    refused("SQE", modify(to(QpState::SQE), M::STATE), "modify_qp", "attr_mask")?;

    // After all refusals, the QP still reaches RTS.
    a.set_state(QpState::RESET)?;
    pair.connect(&attr)?;
    pair.message(Face::Batch, 500, 3)
}

fn create_ah_refuses_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let gid = lab.b.query_gid(PORT, lab.gid_index.into())?;
    let dlid = lab.b.query_port(PORT)?.lid;
    let off_table = u8::try_from(lab.port.gid_tbl_len).unwrap_or(u8::MAX);
    without_leaks(lab, || {
        let global = |index| AhAttr::global(PORT, index, gid).dlid(dlid);
        let good = global(lab.gid_index);
        let create = |attr: AhAttr| pd.create_ah(&attr);
        for port_num in [0, 99, 255] {
            refused(&format!("port {port_num}"), create(good.port_num(port_num)), "create_ah", "port_num")?;
        }
        if lab.is_ethernet() {
            refused("no global route", create(good.grh(None)), "create_ah", "grh")?;
        }
        for index in [off_table - 1, off_table] {
            let what = format!("GID {index}");
            refused(&what, create(global(index)), "create_ah", "sgid_index")?;
        }
        refused("service level 16", create(good.sl(16)), "create_ah", "sl")?;
        let mut flow = good;
        flow.grh.as_mut().context("a route")?.flow_label = 1 << 20;
        refused("a flow label of 21 bits", create(flow), "create_ah", "flow_label")?;
        create(good)?.close()?;
        Ok(())
    })
}

fn reg_mr_refuses_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    use AccessFlags as F;
    let pd = lab.a.alloc_pd()?;
    without_leaks(lab, || {
        let buf = || PageBuf::new(8192);
        let reg = |access| Ok::<_, Error>(pd.reg_mr(buf()?, access).map_err(|e| e.error));
        refused("REMOTE_WRITE alone", reg(F::REMOTE_WRITE)?, "reg_mr", "access")?;
        refused("REMOTE_ATOMIC alone", reg(F::REMOTE_ATOMIC)?, "reg_mr", "access")?;
        refused("unknown bits", reg(F::LOCAL_WRITE | F::from_bits_retain(1 << 19))?, "reg_mr", "access")?;
        refused("the top bit", reg(F::from_bits_retain(1 << 31))?, "reg_mr", "access")?;
        let iova = |iova| Ok::<_, Error>(pd.reg_mr_iova(buf()?, iova, F::LOCAL_WRITE).map_err(|e| e.error));
        refused("an address within a page", iova(0x1_0004)?, "reg_mr", "iova")?;
        let private = |access| Ok::<_, Error>(pd.reg_private(buf()?, access).map_err(|e| e.error));
        for access in [F::LOCAL_WRITE | F::REMOTE_WRITE, F::LOCAL_WRITE | F::REMOTE_ATOMIC, F::MW_BIND] {
            refused(&format!("private {access:?}"), private(access)?, "reg_mr", "access")?;
        }
        // The buffer is returned unchanged.
        let failed = pd.reg_mr(vec![7_u8; 100], F::REMOTE_WRITE).err().context("REMOTE_WRITE alone")?;
        ensure!(failed.buf.context("the buffer")? == [7; 100]);

        let mr = region(&pd, 4096, lab.full_access())?;
        let len = mr.len();
        for range in [0..len + 1, len..len + 1, usize::MAX - 1..usize::MAX] {
            refused(&format!("{range:?}"), mr.sge(range.clone()).map(drop), "sge", "range")?;
        }
        let mut out = [0; 2];
        ensure!(mr.read_at(len - 1, &mut out).is_err() && mr.write_at(len - 1, &out).is_err());
        ensure!(mr.read_at(usize::MAX, &mut out).is_err() && mr.write_at(usize::MAX, &out).is_err());
        ensure!(mr.atomic_u64(4).is_err() && mr.atomic_u64(len).is_err());

        // Not a dma-buf; a driver that supports them must detect it by the file.
        let file = std::fs::File::open("/dev/null")?;
        let error = pd.reg_dmabuf_mr(file.as_fd(), 0, 4096, 0, F::LOCAL_WRITE).err().context("/dev/null")?;
        let text = error.to_string();
        ensure!(error.verb() == "reg_dmabuf_mr" && text.contains("fd "), "{text}");
        let odp = pd.reg_dmabuf_mr(file.as_fd(), 0, 4096, 0, F::LOCAL_WRITE | F::ON_DEMAND);
        refused("a dma-buf on demand", odp, "reg_dmabuf_mr", "access")?;
        let wrap = pd.reg_dmabuf_mr(file.as_fd(), u64::MAX - 4095, 8192, 0, F::LOCAL_WRITE);
        refused("a range that wraps", wrap, "reg_dmabuf_mr", "length")?;
        // The only parameter of a window is its type, which can't be invalid.
        for mw_type in [MwType::Type1, MwType::Type2] {
            match pd.alloc_mw(mw_type) {
                Ok(mw) => mw.close()?,
                Err(e) => ensure!(e.verb() == "alloc_mw" && e.is_unsupported(), "{e}"),
            }
        }
        Ok(())
    })
}

fn queries_refuse_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    without_leaks(lab, || {
        let a = &lab.a;
        for port in [0, 99, 255] {
            let what = format!("port {port}");
            refused(&what, a.query_port(port), "query_port", "port")?;
            refused(&what, a.query_gid(port, 0), "query_gid", "port")?;
            refused(&what, a.query_pkey(port, 0), "query_pkey", "port")?;
        }
        let gids = lab.port.gid_tbl_len;
        for index in [gids - 1, gids, u32::MAX] {
            refused(
                &format!("GID {index}"),
                a.query_gid_ex(PORT, index),
                "query_gid",
                &format!("index {index} "),
            )?;
        }
        for index in [lab.port.pkey_tbl_len, u16::MAX] {
            refused(
                &format!("P_Key {index}"),
                a.query_pkey(PORT, index),
                "query_pkey",
                &format!("index {index} "),
            )?;
        }
        Ok(())
    })
}

fn attach_mcast_refuses_invalid_groups<D: Driver>(lab: &Lab<D>) -> Outcome {
    let (pd, cq) = parents(lab)?;
    let group: Gid = "ff0e::ffff:ef01:0203".parse().ok().context("a group")?;
    without_leaks(lab, || {
        let qp = pd.raw_qp::<Ud>().cq(&cq).cap(CAP).create()?;
        qp.init(&lab.connect_attr())?;
        for (what, gid) in [("a host's address", lab.a.query_gid(PORT, 0)?), ("no address", Gid::ZERO)] {
            refused(what, qp.control.attach_mcast(gid, 0), "attach_mcast", "gid")?;
            refused(what, qp.control.detach_mcast(gid, 0), "detach_mcast", "gid")?;
        }
        refused(
            "a group of which it is not a member",
            qp.control.detach_mcast(group, 0),
            "detach_mcast",
            "qp",
        )?;
        for qp_type in [QpType::Rc, QpType::Uc] {
            let connected = match qp_type {
                QpType::Rc => pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create()?.control,
                _ => pd.raw_qp::<Uc>().cq(&cq).cap(CAP).create()?.control,
            };
            refused("a connected QP", connected.attach_mcast(group, 0), "attach_mcast", "qp")?;
        }
        Ok(())
    })
}

/// Posts of values that do not fit their fields are refused before anything is written, with both lockings.
fn posts_refuse_invalid_values<D: Driver>(lab: &Lab<D>) -> Outcome {
    fn run<D: Driver, L: Lock>(lab: &Lab<D>) -> Outcome {
        let mut pair = Pair::<D, Rc, L>::new(lab)?;
        let too_long = [pair.a.sge(0..8); 64];
        let inline = vec![1; 1 << 20];
        for face in Face::ALL {
            let at = pair.b.remote(0);
            let req = Req::new(1, Op::Write(at)).signaled();
            for wrong in [req.sges(&too_long), req.inline(&inline)] {
                let refused = pair.a.post(face, &[wrong]).err().context("taken")?;
                let error = refused.error.context("an error")?;
                let text = error.to_string();
                ensure!(
                    text.contains("scatter/gather") || text.contains("max_inline_data"),
                    "{face:?}: {text}"
                );
            }
        }
        let recv = crate::post_recv(pair.a.qp.rq_mut()?, Face::Single, &[(1, &too_long)]);
        ensure!(recv.is_err_and(|e| e.error == Some(uverbs::PostError::TooManySge)));
        pair.a.idle()?;
        pair.message(Face::Batch, 100, 1)
    }
    run::<D, Exclusive>(lab)?;
    run::<D, Shared>(lab)
}

/// Closing a parent in use returns it; it can be closed after its children.
fn closing_an_object_in_use_returns_it<D: Driver>(lab: &Lab<D>) -> Outcome {
    without_leaks(lab, || {
        let (pd, cq) = parents(lab)?;
        let srq = pd.create_srq::<Exclusive>(&SrqInitAttr::new(SrqAttr::new(4)))?;
        let qp = pd.raw_qp::<Rc>().cq(&cq).srq(&srq).cap(CAP).create()?;
        let (srq, e) = srq.close().err().context("an SRQ in use is closed")?;
        ensure!(e.verb() == "destroy_srq" && e.errno() == uverbs::Errno::EBUSY, "{e}");
        let (pd, e) = pd.close().err().context("a domain in use is closed")?;
        ensure!(e.verb() == "dealloc_pd" && e.errno() == uverbs::Errno::EBUSY, "{e}");
        let (cq, e) = cq.close().err().context("a CQ in use is closed")?;
        ensure!(e.verb() == "destroy_cq" && e.errno() == uverbs::Errno::EBUSY, "{e}");
        qp.close()?;
        srq.close().map_err(|(_, e)| e)?;
        cq.close().map_err(|(_, e)| e)?;
        pd.close().map_err(|(_, e)| e)?;
        Ok(())
    })
}

crate::tests!(
    create_cq_refuses_invalid_values,
    resize_cq_refuses_invalid_sizes,
    create_qp_refuses_invalid_values_rc = qp_sizes::<D, Rc>,
    create_qp_refuses_invalid_values_uc = qp_sizes::<D, Uc>,
    create_qp_refuses_invalid_values_ud = qp_sizes::<D, Ud>,
    qps_without_queues_refuse_posts,
    create_qp_refuses_missing_operations,
    srqs_refuse_invalid_values,
    modify_qp_refuses_invalid_values,
    create_ah_refuses_invalid_values,
    reg_mr_refuses_invalid_values,
    queries_refuse_invalid_values,
    attach_mcast_refuses_invalid_groups,
    posts_refuse_invalid_values,
    closing_an_object_in_use_returns_it,
);
