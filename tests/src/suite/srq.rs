// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues.

use crate::pair::{GRH, builder_ops};
use crate::post::{Typed, post_srq_recv, recv_nodes};
use crate::sges::sge;
use crate::wait::{LIMIT, QUIET, readable, statuses};
use crate::{Face, Lab, Lock, Op, Outcome, Pair, PairEnd, Refused, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::{EventType, QpState, SrqAttr, SrqAttrMask, SrqInitAttr};
use uverbs::{Driver, EventSource, Exclusive, PostError, Rc, Shared, Uc, Ud, WcStatus, raw::Srq};

pub(super) fn attr(max_wr: u32) -> SrqInitAttr {
    SrqInitAttr::new(SrqAttr::new(max_wr).max_sge(4))
}

/// A pair whose end B receives from an SRQ, on a domain and a CQ of B that others may use.
pub(super) fn pair_on<D: Driver, T: Typed<D>, LS: Lock>(
    lab: &Lab<D>,
    spec: &Spec,
    srq: &Srq<LS, D>,
    pd: &uverbs::ProtectionDomain<D>,
) -> Result<Pair<D, T, Exclusive>> {
    let mut pair = Pair::<D, T, Exclusive>::unconnected(lab, spec)?;
    let cq = lab.b.create_cq(spec.cqe, None)?;
    pair.b = PairEnd::on(pd.clone(), cq, spec, builder_ops::<D, T>(lab)?, 99, Some(srq))?;
    ensure!(pair.b.qp.recv.is_none(), "a QP with an SRQ has no receive queue");
    pair.connect(&spec.attr)?;
    Ok(pair)
}

/// Several QPs receive from one SRQ, to which every face posts.
fn several_qps_in<D: Driver, LS: Lock>(lab: &Lab<D>) -> Result<()> {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<LS>(&attr(20))?;
    ensure!(srq.attr().max_wr >= 20 && srq.attr().max_sge >= 4, "{:?}", srq.attr());
    let mut rc = pair_on::<D, Rc, LS>(lab, &spec, &srq, &pd)?;
    let mut other = pair_on::<D, Rc, LS>(lab, &spec, &srq, &pd)?;
    let mr = crate::pair::region(&pd, 1 << 16, lab.full_access())?;
    for turn in 0..60_u64 {
        let face = [Face::List, Face::Batch, Face::Single][turn as usize % 3];
        let sges = [[sge(&mr, 0..64)], [sge(&mr, 64..128)]];
        post_srq_recv(&mut srq, face, &[(turn * 2, &sges[0]), (turn * 2 + 1, &sges[1])])?;
        let data = (turn * 2).to_le_bytes();
        rc.a.post(Face::Batch, &[Req::new(1, Op::Send).signaled().inline(&data)])?;
        rc.a.ok(1)?;
        let got = rc.b.ok(1)?[0];
        ensure!(got.wr_id == turn * 2 && got.qp_num == rc.b.qp.qp_num(), "{got:?}");
        let data2 = (turn * 2 + 1).to_le_bytes();
        other.a.post(Face::Batch, &[Req::new(1, Op::Send).signaled().inline(&data2)])?;
        other.a.ok(1)?;
        let got = other.b.ok(1)?[0];
        ensure!(got.wr_id == turn * 2 + 1 && got.qp_num == other.b.qp.qp_num(), "{got:?}");
        let mut both = [0; 72];
        mr.read_at(0, &mut both)?;
        ensure!(both[..8] == data && both[64..] == data2, "turn {turn}");
    }
    // The SRQ exists as long as a QP uses it, also after its handle was dropped.
    drop(srq);
    drop(rc);
    Ok(())
}

fn several_qps_receive_from_one_srq<D: Driver>(lab: &Lab<D>) -> Outcome {
    several_qps_in::<D, Exclusive>(lab).context("exclusive")?;
    several_qps_in::<D, Shared>(lab).context("shared")
}

/// On the unreliable transports, too, with the GRH of datagrams.
fn uc_and_ud_receive_from_an_srq<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<Exclusive>(&attr(20))?;
    let mr = crate::pair::region(&pd, 4096, lab.full_access())?;
    let data = *b"sixteen bytes...";
    let check = |at: usize| -> Result<()> {
        let mut got = [0; 16];
        mr.read_at(at, &mut got)?;
        ensure!(got == data, "{got:?}");
        mr.write_at(0, &[0; 256])?;
        Ok(())
    };
    let uc = pair_on::<D, Uc, Exclusive>(lab, &spec, &srq, &pd);
    match uc {
        Ok(Pair { mut a, b }) => {
            post_srq_recv(&mut srq, Face::Batch, &[(1, &[sge(&mr, 0..256)])])?;
            a.post(Face::Batch, &[Req::new(1, Op::Send).inline(&data)])?;
            ensure!(b.ok(1)?[0].byte_len == 16);
            check(0)?;
        }
        Err(e) => lab.note(format_args!("no SRQ on UC: {e:#}")),
    }
    let ud = pair_on::<D, Ud, Exclusive>(lab, &spec, &srq, &pd);
    let Pair { mut a, b } = ud.context("UD with an SRQ")?;
    post_srq_recv(&mut srq, Face::Batch, &[(1, &[sge(&mr, 0..256)])])?;
    a.post(Face::Batch, &[Req::new(1, Op::Send).inline(&data)])?;
    ensure!(b.ok(1)?[0].byte_len == 56);
    check(GRH)
}

/// A receive that is too short for a datagram and its GRH: an error, or dropped; nothing is written beyond it.
fn short_receives_are_not_overrun<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    for room in [0, 10, GRH, GRH + 15] {
        let pd = lab.b.alloc_pd()?;
        let mut srq = pd.create_srq::<Exclusive>(&attr(4))?;
        let mr = crate::pair::region(&pd, 4096, lab.full_access())?;
        let Pair { mut a, b } = pair_on::<D, Ud, Exclusive>(lab, &spec, &srq, &pd)?;
        post_srq_recv(&mut srq, Face::Batch, &[(1, &[sge(&mr, 0..room)])])?;
        a.post(Face::Batch, &[Req::new(1, Op::Send).signaled().inline(&[5; 16])])?;
        a.ok(1)?;
        crate::wait::rest(QUIET);
        let mut wc = [uverbs::WorkCompletion::default()];
        match b.cq.poll(&mut wc)? {
            [] => lab.note(format_args!("16 bytes into {room} are dropped")),
            [wc] => ensure!(wc.wr_id == 1 && !wc.status.is_success(), "{room} bytes: {wc:?}"),
            more => anyhow::bail!("{more:?}"),
        }
        let mut beyond = [0; 100];
        mr.read_at(room, &mut beyond)?;
        ensure!(beyond == [0; 100], "written beyond {room} bytes");
    }
    Ok(())
}

/// A QP that enters ERR leaves the SRQ's receives, and raises an event that it takes no more, if the kernel supports
/// that.
fn err_raises_last_wqe_reached<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let srq = pd.create_srq::<Exclusive>(&attr(4))?;
    let Pair { a: _a, b } = pair_on::<D, Rc, Exclusive>(lab, &spec, &srq, &pd)?;
    lab.b.set_async_nonblocking(true)?;
    b.set_state(QpState::ERR)?;
    if readable(lab.b.async_fd(), QUIET)? {
        let event = lab.b.get_async_event()?;
        ensure!(event.event_type == EventType::QP_LAST_WQE_REACHED, "{event:?}");
        ensure!(event.source == EventSource::Qp(b.qp.qp_num()), "{event:?}");
    } else {
        lab.note("no event for the last receive taken");
    }
    Ok(())
}

/// The SRQ accepts exactly as many receives as it has room for, also after several QPs have used receives out of order.
fn full_srq_refuses_receives<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<Exclusive>(&attr(10))?;
    let room = srq.attr().max_wr as usize;
    let Pair { mut a, b } = pair_on::<D, Rc, Exclusive>(lab, &spec, &srq, &pd)?;
    for face in [Face::List, Face::Batch, Face::Single, Face::List] {
        let recvs: Vec<_> = (0..room as u64 + 2).map(|i| (i, &[][..])).collect();
        let refused = post_srq_recv(&mut srq, face, &recvs);
        let bad = (face != Face::Batch).then_some(room);
        ensure!(refused == Err(Refused::new(PostError::QueueFull, bad)), "{face:?}: {refused:?}");
        if face == Face::Batch {
            post_srq_recv(&mut srq, face, &recvs[..room])?;
        }
        for _ in 0..room {
            a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
            a.ok(1)?;
        }
        ensure!(b.ok(room)?.iter().map(|wc| wc.wr_id).eq(0..room as u64), "{face:?}");
    }
    Ok(())
}

/// The limit event, once for each time that it is armed.
fn limit_event_is_raised_once<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<Exclusive>(&attr(20))?;
    let Pair { mut a, b } = pair_on::<D, Rc, Exclusive>(lab, &spec, &srq, &pd)?;
    let recvs: Vec<_> = (0..10).map(|i| (i, &[][..])).collect();
    post_srq_recv(&mut srq, Face::Batch, &recvs)?;
    lab.b.set_async_nonblocking(true)?;
    let mut send = |n: usize| -> Result<()> {
        for _ in 0..n {
            a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
            a.ok(1)?;
        }
        b.ok(n)?;
        Ok(())
    };
    for _ in 0..2 {
        srq.modify(&SrqAttr::new(0).srq_limit(5).max_sge(0), SrqAttrMask::LIMIT)?;
        ensure!(srq.query()?.srq_limit == 5, "{:?}", srq.query()?);
        send(5)?;
        ensure!(!readable(lab.b.async_fd(), QUIET)?, "too early: {:?}", lab.b.get_async_event());
        send(1)?;
        ensure!(readable(lab.b.async_fd(), LIMIT)?, "no limit event");
        let event = lab.b.get_async_event()?;
        ensure!(event.event_type == EventType::SRQ_LIMIT_REACHED, "{event:?}");
        ensure!(event.source == EventSource::Srq(srq.id()), "{event:?}");
        ensure!(srq.query()?.srq_limit == 0, "still armed");
        send(1)?;
        ensure!(!readable(lab.b.async_fd(), QUIET)?, "an event of a limit that is not armed");
        let recvs: Vec<_> = (0..7).map(|i| (i, &[][..])).collect();
        post_srq_recv(&mut srq, Face::Batch, &recvs)?;
    }
    Ok(())
}

/// The sizes are at least those requested; a resize keeps the posted receives.
fn resize_keeps_receives<D: Driver>(lab: &Lab<D>) -> Outcome {
    use uverbs::attr::DeviceCapFlags;
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<Exclusive>(&attr(6))?;
    let queried = srq.query()?;
    ensure!(queried.max_wr >= 6 && queried.max_sge >= 4, "{queried:?}");
    let Pair { mut a, b } = pair_on::<D, Rc, Exclusive>(lab, &spec, &srq, &pd)?;
    // The oldest receive is then not at the start of the ring.
    for _ in 0..3 {
        post_srq_recv(&mut srq, Face::Single, &[(0, &[])])?;
        a.post(Face::Single, &[Req::new(1, Op::Send)])?;
        b.ok(1)?;
    }
    let recvs: Vec<_> = (0..6).map(|i| (i, &[][..])).collect();
    post_srq_recv(&mut srq, Face::Batch, &recvs)?;
    let resized = srq.modify(&SrqAttr::new(100).max_sge(0), SrqAttrMask::MAX_WR);
    if !lab.has(DeviceCapFlags::SRQ_RESIZE) {
        ensure!(resized.is_err_and(|e| e.is_unsupported()));
        return Ok(());
    }
    resized?;
    let more: Vec<_> = (6..100).map(|i| (i, &[][..])).collect();
    post_srq_recv(&mut srq, Face::List, &more).context("the SRQ has 100 entries")?;
    for _ in 0..100 {
        a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
        a.ok(1)?;
    }
    ensure!(b.ok(100)?.iter().map(|wc| wc.wr_id).eq(0..100), "in another order");
    Ok(())
}

/// Invalid operations on an SRQ or its QP are refused.
fn invalid_operations_are_refused<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<Exclusive>(&attr(6))?;
    ensure!(srq.srq_num().is_err_and(|e| e.is_unsupported()), "only XRC SRQs have a number");
    let e = srq.modify(&SrqAttr::default(), SrqAttrMask::empty()).err();
    ensure!(e.as_ref().is_some_and(|e| e.to_string().contains("modify_srq: invalid srq_attr_mask")), "{e:?}");
    let e = srq.modify(&SrqAttr::new(0).srq_limit(1 << 20).max_sge(0), SrqAttrMask::LIMIT).err();
    ensure!(e.as_ref().is_some_and(|e| e.verb() == "modify_srq"), "{e:?}");
    let mut pair = pair_on::<D, Rc, Exclusive>(lab, &spec, &srq, &pd)?;
    ensure!(pair.b.qp.rq().err().is_some_and(|error| error == PostError::NoQueue));
    let nodes = recv_nodes(&[(1, &[])]);
    #[expect(unsafe_code, reason = "C's face")]
    // SAFETY: a live node that names no memory.
    let result = unsafe { pair.b.qp.post_recv(nodes.as_ptr()) };
    ensure!(result.is_err_and(|bad| bad.error == PostError::NoQueue && bad.wr == nodes.as_ptr()));
    // Receives in the SRQ are not flushed with a QP.
    post_srq_recv(&mut srq, Face::Single, &[(7, &[])])?;
    pair.b.set_state(QpState::ERR)?;
    pair.b.idle()?;
    pair.reconnect(&spec.attr)?;
    pair.a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
    ensure!(statuses(&pair.b.wait(1)?) == [(7, WcStatus::SUCCESS)]);
    Ok(())
}

crate::tests!(
    several_qps_receive_from_one_srq,
    uc_and_ud_receive_from_an_srq,
    short_receives_are_not_overrun,
    err_raises_last_wqe_reached,
    full_srq_refuses_receives,
    limit_event_is_raised_once,
    resize_keeps_receives,
    invalid_operations_are_refused,
);
