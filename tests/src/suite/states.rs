// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of a QP: every legal transition, the attributes that modify sets and query returns, and the send queue
//! while it is drained.

use crate::post::Typed;
use crate::{Face, Lab, Op, Outcome, Pair, Req, Spec, wait};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::{AccessFlags, EventType, Mtu, QpAttr, QpAttrMask as M, QpState, QpType};
use uverbs::{Driver, EventSource, Exclusive, Rc, Uc, Ud};

/// `query_qp` returns the sizes requested at creation, and the attributes of each transition.
fn round_trip<D: Driver, T: Typed<D>>(lab: &Lab<D>) -> Result<()> {
    let mut spec = Spec::new(lab);
    let Pair { a, b } = Pair::<D, T, Exclusive>::unconnected(lab, &spec)?;
    let is_rc = T::QP_TYPE == QpType::Rc;
    let (attr, init) = a.qp.query(M::all())?;
    ensure!(attr.qp_state == QpState::RESET, "{attr:?}");
    let (asked, has) = (spec.cap, attr.cap);
    ensure!(
        has.max_send_wr >= asked.max_send_wr
            && has.max_recv_wr >= asked.max_recv_wr
            && has.max_send_sge >= asked.max_send_sge
            && has.max_recv_sge >= asked.max_recv_sge
            && has.max_inline_data >= asked.max_inline_data,
        "{has:?} instead of {asked:?}"
    );
    ensure!(init.qp_type == T::QP_TYPE && !init.sq_sig_all, "{init:?}");
    ensure!(a.qp.cap().max_send_wr >= asked.max_send_wr);

    spec.attr.qkey = 0x1357_9bdf;
    spec.attr.path_mtu = Some(Mtu::MTU_512);
    spec.attr.access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    a.qp.init(&spec.attr)?;
    let (attr, _) = a.qp.query(M::all())?;
    ensure!(attr.qp_state == QpState::INIT && attr.port_num == 1 && attr.pkey_index == 0, "{attr:?}");
    if T::QP_TYPE == QpType::Ud {
        ensure!(attr.qkey == 0x1357_9bdf, "{attr:?}");
    } else {
        // mlx5_ib grants reads only from RTR on, when it knows how many are served (`set_qpc_atomic_flags()` in qp.c),
        // and never on UC.
        let granted = attr.qp_access_flags;
        ensure!([spec.attr.access, AccessFlags::REMOTE_WRITE].contains(&granted), "{attr:?}");
    }

    a.qp.control.ready_to_receive(&b.here, &spec.attr)?;
    let (attr, _) = a.qp.query(M::all())?;
    ensure!(attr.qp_state == QpState::RTR, "{attr:?}");
    if T::QP_TYPE != QpType::Ud {
        ensure!((attr.dest_qp_num, attr.rq_psn) == (b.here.qp_num, b.here.psn), "{attr:?}");
        ensure!(attr.path_mtu == Mtu::MTU_512, "{attr:?}");
        let grh = attr.ah_attr.grh.context("a route")?;
        ensure!(grh.dgid == b.here.gid && grh.sgid_index == lab.gid_index, "{attr:?}");
        ensure!(attr.ah_attr.port_num == 1, "{attr:?}");
    }
    if is_rc {
        ensure!(attr.max_dest_rd_atomic >= spec.attr.max_dest_rd_atomic, "{attr:?}");
        ensure!(attr.min_rnr_timer == spec.attr.min_rnr_timer, "{attr:?}");
    }

    a.qp.control.ready_to_send(&a.here, &spec.attr)?;
    let (attr, _) = a.qp.query(M::all())?;
    ensure!(attr.qp_state == QpState::RTS && attr.sq_psn == a.here.psn, "{attr:?}");
    if is_rc {
        ensure!((attr.timeout, attr.retry_cnt, attr.rnr_retry) == (16, 7, 7), "{attr:?}");
        ensure!(attr.max_rd_atomic >= spec.attr.max_rd_atomic, "{attr:?}");
        // Attributes that may change in RTS.
        let change =
            QpAttr::new().qp_state(QpState::RTS).min_rnr_timer(9).qp_access_flags(AccessFlags::REMOTE_READ);
        a.qp.modify(&change, M::STATE | M::MIN_RNR_TIMER | M::ACCESS_FLAGS)?;
        let (attr, _) = a.qp.query(M::all())?;
        ensure!((attr.min_rnr_timer, attr.qp_access_flags) == (9, AccessFlags::REMOTE_READ), "{attr:?}");
    }
    Ok(())
}

/// Every state leads to ERR and RESET, and then to RTS again.
fn every_state<D: Driver, T: Typed<D>>(lab: &Lab<D>) -> Result<()> {
    let spec = Spec::new(lab);
    let mut pair = Pair::<D, T, Exclusive>::unconnected(lab, &spec)?;
    let last = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];
    let has_sqd = lab.has_sqd()?;
    for state in last.into_iter().filter(|state| *state != QpState::SQD || has_sqd) {
        for end in [QpState::ERR, QpState::RESET] {
            let a = &pair.a;
            walk(lab, &pair, state).with_context(|| format!("to {state:?}"))?;
            ensure!(a.state()? == state, "{:?}, not {state:?}", a.state()?);
            if (state, end) == (QpState::RESET, QpState::ERR) {
                // There is no such transition.
                let e = a.qp.control.modify_state(end).err().context("RESET to ERR")?;
                ensure!(e.to_string().contains("is not a legal transition"), "{e}");
                continue;
            }
            a.set_state(end).with_context(|| format!("{state:?} to {end:?}"))?;
            ensure!(a.state()? == end);
            a.set_state(QpState::RESET)?;
        }
    }
    pair.connect(&spec.attr)?;
    pair.message(Face::Batch, 300, 5)
}

/// From RESET to a state.
fn walk<D: Driver, T: Typed<D>>(lab: &Lab<D>, pair: &Pair<D, T, Exclusive>, to: QpState) -> Result<()> {
    let (a, attr) = (&pair.a, lab.connect_attr());
    if to == QpState::RESET {
        return Ok(());
    }
    a.qp.init(&attr)?;
    if to == QpState::INIT {
        return Ok(());
    }
    a.qp.control.ready_to_receive(&pair.b.here, &attr)?;
    if to == QpState::RTR {
        return Ok(());
    }
    a.qp.control.ready_to_send(&a.here, &attr)?;
    match to {
        QpState::RTS => Ok(()),
        QpState::SQD => a.drain(),
        _ => a.set_state(to),
    }
}

/// In SQD, a send queue accepts requests and executes none; back in RTS it executes all, in order.
fn drained_queue_runs_no_requests<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !lab.has_sqd()? {
        return Ok(());
    }
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    for turn in 0..3 {
        b.recv_empty(12)?;
        a.recv_empty(1)?;
        a.drain()?;
        ensure!(a.state()? == QpState::SQD);
        for face in Face::ALL {
            let reqs: Vec<_> = (0..3).map(|i| Req::new(i, Op::Send).signaled()).collect();
            a.post(face, &reqs)?;
        }
        a.idle().with_context(|| format!("turn {turn}"))?;
        b.idle()?;
        // The receive queue continues to work.
        b.post(Face::Single, &[Req::new(1, Op::Send)])?;
        a.ok(1).context("a receive while drained")?;
        a.set_state(QpState::RTS)?;
        ensure!(a.ok(12)?.iter().map(|wc| wc.wr_id).eq([0, 1, 2].into_iter().cycle().take(12)));
        b.ok(12)?;
    }
    Ok(())
}

/// The event of a drained send queue names its QP.
fn drained_queue_raises_an_event<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !lab.has_sqd()? {
        return Ok(());
    }
    let Pair { a, .. } = Pair::<D, Rc, Exclusive>::new(lab)?;
    lab.a.set_async_nonblocking(true)?;
    while lab.a.get_async_event().is_ok() {}
    let attr = QpAttr::new().qp_state(QpState::SQD).en_sqd_async_notify(true);
    a.qp.modify(&attr, M::STATE | M::EN_SQD_ASYNC_NOTIFY)?;
    ensure!(wait::readable(lab.a.async_fd(), wait::LIMIT)?, "no event");
    let event = lab.a.get_async_event()?;
    ensure!(event.event_type == EventType::SQ_DRAINED, "{event:?}");
    ensure!(event.source == EventSource::Qp(a.qp.qp_num()), "{event:?}");
    Ok(())
}

/// The error for an `EINVAL` of the kernel names the attributes that the transition lacks or refuses.
fn refusals_name_the_attributes<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { a, b } = Pair::<D, Rc, Exclusive>::unconnected(lab, &Spec::new(lab))?;
    let refusal = |attr: QpAttr, mask: M| -> Result<String> {
        Ok(a.qp.modify(&attr, mask).err().with_context(|| format!("{mask:?} was accepted"))?.to_string())
    };
    let to = |qp_state| QpAttr::new().qp_state(qp_state).port_num(1);
    let text = refusal(to(QpState::INIT), M::STATE | M::PORT)?;
    ensure!(text.contains("RESET->INIT on RC lacks ACCESS_FLAGS, PKEY_INDEX"), "{text}");
    let text = refusal(to(QpState::RTS), M::STATE)?;
    ensure!(text.contains("RESET->RTS on RC is not a legal transition"), "{text}");
    a.qp.init(&lab.connect_attr())?;
    let text = refusal(to(QpState::RTR).dest_qp_num(b.qp.qp_num()), M::STATE | M::DEST_QPN)?;
    ensure!(text.contains("INIT->RTR on RC lacks") && text.contains("PATH_MTU"), "{text}");
    let text = refusal(to(QpState::INIT).qkey(1), M::STATE | M::QKEY)?;
    ensure!(text.contains("can't set QKEY"), "{text}");
    ensure!(a.state()? == QpState::INIT, "a refused modify_qp changed the state");
    Ok(())
}

crate::tests!(
    query_qp_returns_attributes_rc = round_trip::<D, Rc>,
    query_qp_returns_attributes_uc = round_trip::<D, Uc>,
    query_qp_returns_attributes_ud = round_trip::<D, Ud>,
    every_state_leads_to_err_and_reset_rc = every_state::<D, Rc>,
    every_state_leads_to_err_and_reset_uc = every_state::<D, Uc>,
    every_state_leads_to_err_and_reset_ud = every_state::<D, Ud>,
    drained_queue_runs_no_requests,
    drained_queue_raises_an_event,
    refusals_name_the_attributes,
);
