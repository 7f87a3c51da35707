// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests that fail during execution: they have the correct status, the rest is flushed, and the QP is usable
//! after a reset.

use crate::pair::region;
use crate::sges::sge;
use crate::wait::{self, statuses};
use crate::{Face, Lab, Op, Outcome, Pair, RemoteAddr, Req, Spec, post_recv};
use anyhow::{Context as _, Result, ensure};
use uverbs::{Driver, Exclusive, MemoryRegion, PageBuf, Rc, Shared, Uc, Ud, WcStatus};
use uverbs::{
    Exposed,
    attr::{AccessFlags, QpState},
};

type RcPair<D> = Pair<D, Rc, Exclusive>;

/// A missing answer is an error after three timeouts of 67 ms (4.096 us << 14), so that the tests are fast. A peer that is
/// alive answers within this time even if its CPU is taken away for some time slices.
pub(super) fn hasty<D: Driver>(lab: &Lab<D>) -> Spec {
    let mut spec = Spec::new(lab);
    (spec.attr.timeout, spec.attr.retry_cnt, spec.attr.rnr_retry, spec.attr.min_rnr_timer) = (14, 2, 2, 1);
    spec
}

/// The status of a wrong local key by the specification, and those of the kernel's rxe: the second on 6.1, the third on
/// later kernels, where a WR that fails before it is sent is flushed and its status lost (`rxe_requester()`, label
/// `err`).
pub(super) const LOCAL_PROTECTION: &[WcStatus] =
    &[WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
pub(super) const REMOTE_ACCESS: &[WcStatus] = &[WcStatus::REM_ACCESS_ERR];

/// Posts a valid request, the invalid one, and two more, one of them unsignaled. The valid one succeeds, the invalid
/// one has one of these statuses, the others are flushed, and the QP is in ERR. Then the QP is connected again.
fn fails_with<D: Driver>(
    lab: &Lab<D>,
    pair: &mut RcPair<D>,
    wrong: Req<'_, D>,
    allowed: &[WcStatus],
) -> Result<()> {
    let (at, word) = (pair.b.remote(32 << 10), [7; 8]);
    let good: Req<'_, D> = Req::new(1, Op::Write(at)).inline(&word);
    pair.a.post(Face::Single, &[good.signaled()])?;
    pair.a.ok(1)?;
    let reqs =
        [Req { wr_id: 2, ..wrong }.signaled(), Req { wr_id: 3, ..good }, Req { wr_id: 4, ..good }.signaled()];
    pair.a.post(Face::Batch, &reqs)?;
    let flushed = WcStatus::WR_FLUSH_ERR;
    let got = pair.a.wait(3)?;
    let status = allowed.iter().find(|s| **s == got[0].status).unwrap_or(&allowed[0]);
    let want = [(2, *status), (3, flushed), (4, flushed)];
    ensure!(statuses(&got) == want, "{}, expected {want:?}", wait::list(&got));
    ensure!(got.iter().all(|wc| wc.qp_num == pair.a.qp.qp_num()), "{got:?}");
    ensure!(pair.a.state()? == QpState::ERR, "the QP is in {:?}", pair.a.state()?);
    // WRs that are posted now are flushed, too, on both queues.
    pair.a.post(Face::List, &[Req { wr_id: 5, ..good }])?;
    ensure!(statuses(&pair.a.wait(1)?) == [(5, flushed)]);
    revive(lab, pair)
}

/// Resets and connects both QPs, and sends a message.
pub(super) fn revive<D: Driver>(lab: &Lab<D>, pair: &mut RcPair<D>) -> Result<()> {
    pair.reconnect(&lab.connect_attr()).context("up again")?;
    while !pair.a.cq.poll(&mut [uverbs::WorkCompletion::default()])?.is_empty() {}
    while !pair.b.cq.poll(&mut [uverbs::WorkCompletion::default()])?.is_empty() {}
    pair.message(Face::Single, 3000, 77).context("a message after the reset")
}

/// A key that no region has.
pub(super) fn unknown_key(key: u32) -> u32 {
    key ^ 0x00ff_ff00
}

fn invalid_rkey_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let sges = [pair.a.sge(0..100)];
    let at = pair.b.remote(0);
    let wrong = RemoteAddr { rkey: unknown_key(at.rkey), ..at };
    for op in [Op::Write(wrong), Op::Read(wrong)] {
        fails_with(lab, &mut pair, Req::new(0, op).sges(&sges), REMOTE_ACCESS)
            .with_context(|| format!("{op:?}"))?;
    }
    let sges = [pair.a.sge(0..8)];
    for op in [Op::FetchAdd(wrong, 1), Op::CmpSwp(wrong, 0, 1)] {
        fails_with(lab, &mut pair, Req::new(0, op).sges(&sges), REMOTE_ACCESS)
            .with_context(|| format!("{op:?}"))?;
    }
    Ok(())
}

fn access_beyond_the_region_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let sges = [pair.a.sge(0..100)];
    let end = pair.b.mr.len();
    let before = RemoteAddr { addr: pair.b.mr.addr() - 1, ..pair.b.remote(0) };
    for op in [Op::Write(pair.b.remote(end - 99)), Op::Read(pair.b.remote(end - 99)), Op::Write(before)] {
        fails_with(lab, &mut pair, Req::new(0, op).sges(&sges), REMOTE_ACCESS)
            .with_context(|| format!("{op:?}"))?;
    }
    Ok(())
}

/// A region grants only the rights that it was registered with.
fn access_without_region_rights_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    use AccessFlags as F;
    let mut pair = RcPair::new(lab)?;
    let sges = [pair.a.sge(0..8)];
    let place = |mr: &MemoryRegion<PageBuf, Exposed, D>| RemoteAddr { addr: mr.addr(), rkey: mr.rkey() };
    for (access, op) in [
        (F::LOCAL_WRITE | F::REMOTE_READ, Op::Write as fn(RemoteAddr) -> Op),
        (F::LOCAL_WRITE | F::REMOTE_WRITE, Op::Read),
        (F::LOCAL_WRITE | F::REMOTE_WRITE | F::REMOTE_READ, |r| Op::FetchAdd(r, 1)),
        (F::LOCAL_WRITE, |r| Op::CmpSwp(r, 1, 1)),
    ] {
        let mr = region(&pair.b.pd, 4096, access)?;
        let op = op(place(&mr));
        fails_with(lab, &mut pair, Req::new(0, op).sges(&sges), REMOTE_ACCESS)
            .with_context(|| format!("{op:?} on {access:?}"))?;
    }
    Ok(())
}

/// A region of another domain can't be used.
fn region_of_another_domain_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let other = lab.b.alloc_pd()?;
    let mr = region(&other, 4096, lab.full_access())?;
    let sges = [pair.a.sge(0..8)];
    let at = RemoteAddr { addr: mr.addr(), rkey: mr.rkey() };
    fails_with(lab, &mut pair, Req::new(0, Op::Write(at)).sges(&sges), REMOTE_ACCESS)?;
    let other = lab.a.alloc_pd()?;
    let mr = region(&other, 4096, lab.full_access())?;
    let sges = [sge(&mr, 0..8)];
    let at = pair.b.remote(0);
    fails_with(lab, &mut pair, Req::new(0, Op::Write(at)).sges(&sges), LOCAL_PROTECTION)
}

/// The QP grants only the rights that were set.
fn access_without_qp_rights_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.attr.access = AccessFlags::empty();
    for op in [Op::Write as fn(RemoteAddr) -> Op, Op::Read, |r| Op::FetchAdd(r, 1)] {
        let Pair { mut a, b } = RcPair::with(lab, &spec)?;
        let sges = [a.sge(0..8)];
        let op = op(b.remote(0));
        a.post(Face::Single, &[Req::new(1, op).signaled().sges(&sges)])?;
        let got = a.wait(1)?;
        // The specification says "invalid request" (C9-90 ff.); devices differ.
        let either = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR];
        ensure!(either.contains(&got[0].status), "{op:?}: {}", wait::list(&got));
    }
    Ok(())
}

fn invalid_lkey_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let at = pair.b.remote(0);
    let good = pair.a.sge(0..100);
    let end = pair.a.mr.len();
    let wrong_key = [uverbs::wr::Sge { lkey: unknown_key(good.lkey), ..good }];
    let beyond = [pair.a.sge(end - 99..end + 1)];
    let second = [good, wrong_key[0]];
    for sges in [&wrong_key[..], &beyond, &second] {
        for op in [Op::Send, Op::Write(at)] {
            fails_with(lab, &mut pair, Req::new(0, op).sges(sges), LOCAL_PROTECTION)
                .with_context(|| format!("{op:?} from {sges:x?}"))?;
        }
    }
    Ok(())
}

/// The local memory of a read must be writable.
fn read_into_read_only_memory_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let mr = region(&pair.a.pd, 4096, AccessFlags::REMOTE_READ)?;
    let sges = [sge(&mr, 0..64)];
    let from = pair.b.remote(0);
    fails_with(lab, &mut pair, Req::new(0, Op::Read(from)).sges(&sges), LOCAL_PROTECTION)
}

/// A message longer than the receive: the sender's request is invalid, the receiver's length is wrong.
fn message_longer_than_the_receive_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    for len in [101, 5000] {
        let mut pair = RcPair::new(lab)?;
        pair.b.recv(Face::Single, 21, 0..100)?;
        pair.b.recv(Face::Single, 22, 0..100)?;
        let sges = [pair.a.sge(0..len)];
        pair.a.post(Face::Single, &[Req::new(1, Op::Send).signaled().sges(&sges)])?;
        let sent = pair.a.wait(1)?[0].status;
        // rxe reports the second (`RESPST_ERR_MALFORMED_WQE`).
        let sender = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
        ensure!(sender.contains(&sent), "{len} bytes: {sent:?}");
        let got = statuses(&pair.b.wait(2)?);
        lab.note(format_args!(
            "{len} bytes into 100: {sent:?} for the sender, {:?} for the receiver",
            got[0].1
        ));
        let receiver = [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR];
        ensure!(got[0].0 == 21 && receiver.contains(&got[0].1), "{len} bytes: {got:?}");
        ensure!(got[1] == (22, WcStatus::WR_FLUSH_ERR), "{len} bytes: {got:?}");
        ensure!(pair.b.state()? == QpState::ERR);
        ensure!(pair.b.bytes(100..200)? == [0; 100], "written beyond the receive");
        revive(lab, &mut pair)?;
    }
    Ok(())
}

/// A receive with an invalid key: the receiver is at fault, and both ends get an error.
fn receive_with_an_invalid_key_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let good = pair.b.sge(0..100);
    let wrong = [uverbs::wr::Sge { lkey: unknown_key(good.lkey), ..good }];
    post_recv(pair.b.qp.rq()?, Face::Single, &[(21, &wrong), (22, &wrong)])?;
    let data = [5; 40];
    pair.a.post(Face::Single, &[Req::new(1, Op::Send).signaled().inline(&data)])?;
    let got = statuses(&pair.a.wait(1)?);
    ensure!(got == [(1, WcStatus::REM_OP_ERR)], "{got:?}");
    let got = statuses(&pair.b.wait(2)?);
    let receiver = [WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR];
    ensure!(got[0].0 == 21 && receiver.contains(&got[0].1), "{got:?}");
    lab.note(format_args!("a receive with an invalid key: {:?}", got[0].1));
    ensure!(got[1] == (22, WcStatus::WR_FLUSH_ERR), "{got:?}");
    revive(lab, &mut pair)
}

/// The receiver is not ready until the retries are exceeded.
fn rnr_retry_exceeded_completes_with_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::with(lab, &hasty(lab))?;
    let send = Req::new(0, Op::Send);
    fails_with(lab, &mut pair, send, &[WcStatus::RNR_RETRY_EXC_ERR])?;
    // The peer had no error.
    pair.b.idle()
}

/// The peer's QP is destroyed.
fn destroyed_peer_completes_with_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, b } = RcPair::with(lab, &hasty(lab))?;
    let at = b.remote(0);
    drop(b);
    let data = [1; 8];
    let reqs =
        [Req::new(1, Op::Write(at)).signaled().inline(&data), Req::new(2, Op::Send), Req::new(3, Op::Send)];
    a.post(Face::Batch, &reqs)?;
    let flushed = WcStatus::WR_FLUSH_ERR;
    let got = a.wait(3)?;
    let want = [(1, WcStatus::RETRY_EXC_ERR), (2, flushed), (3, flushed)];
    ensure!(statuses(&got) == want, "{}", wait::list(&got));
    ensure!(a.state()? == QpState::ERR);
    Ok(())
}

/// The peer is in ERR or RESET: it does not answer.
fn silent_peer_completes_with_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    for state in [QpState::ERR, QpState::RESET] {
        let mut pair = RcPair::with(lab, &hasty(lab))?;
        pair.b.set_state(state)?;
        pair.a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
        let got = statuses(&pair.a.wait(1)?);
        ensure!(got == [(1, WcStatus::RETRY_EXC_ERR)], "{state:?}: {got:?}");
        revive(lab, &mut pair)?;
    }
    Ok(())
}

/// Going to ERR flushes both queues, and so do posts after it, of every face.
fn err_flushes_both_queues_and_later_posts<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = hasty(lab);
    let mut pair = RcPair::with(lab, &Spec { attr: spec.attr.rnr_retry(7), ..spec })?;
    let flushed = |ids: core::ops::Range<u64>| ids.map(|id| (id, WcStatus::WR_FLUSH_ERR)).collect::<Vec<_>>();
    // The first one was sent without a receive at the peer; the others wait behind it.
    let sends: Vec<_> = (0..6).map(|i| Req::new(i, Op::Send)).collect();
    pair.a.post(Face::Batch, &sends)?;
    pair.a.recv_empty(5)?;
    pair.a.set_state(QpState::ERR)?;
    let mut got = pair.a.wait(11)?;
    let (recvs, sends): (Vec<_>, Vec<_>) = got.drain(..).partition(|wc| wc.opcode.is_recv());
    // The opcode of a failed request is not valid; sends and receives are distinguished by their numbers.
    let all = [statuses(&sends), statuses(&recvs)].concat();
    let mut ids: Vec<_> = all.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ensure!(ids == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5], "{all:?}");
    ensure!(all.iter().all(|(_, s)| *s == WcStatus::WR_FLUSH_ERR), "{all:?}");
    for face in Face::ALL {
        let sends: Vec<_> = (10..13).map(|i| Req::new(i, Op::Send)).collect();
        pair.a.post(face, &sends)?;
        let got = statuses(&pair.a.wait(3)?);
        ensure!(got == flushed(10..13), "sends by {face:?}: {got:?}");
    }
    for face in [Face::List, Face::Batch, Face::Single] {
        post_recv(pair.a.qp.rq()?, face, &[(20, &[]), (21, &[]), (22, &[])])?;
        let got = statuses(&pair.a.wait(3)?);
        ensure!(got == flushed(20..23), "receives by {face:?}: {got:?}");
    }
    pair.a.idle()?;
    revive(lab, &mut pair)
}

/// Full queues are flushed completely and in order, also to a CQ that both QPs share.
fn err_flushes_full_queues_in_order<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = hasty(lab);
    spec.attr.rnr_retry = 7;
    let mut pair = Pair::<D, Rc, Shared>::with(lab, &spec)?;
    let (sends, recvs) = (pair.a.qp.cap().max_send_wr as usize, pair.a.qp.cap().max_recv_wr as usize);
    pair.a.recv_empty(recvs)?;
    let reqs: Vec<_> = (0..sends as u64).map(|i| Req::new(1000 + i, Op::Send)).collect();
    pair.a.post(Face::Batch, &reqs)?;
    pair.a.set_state(QpState::ERR)?;
    let got = statuses(&pair.a.wait(sends + recvs)?);
    ensure!(got.iter().all(|(_, s)| *s == WcStatus::WR_FLUSH_ERR), "{got:?}");
    let order = |from: u64| {
        got.iter().map(|(id, _)| *id).filter(|id| (*id >= 1000) == (from >= 1000)).collect::<Vec<_>>()
    };
    ensure!(order(0) == (0..recvs as u64).collect::<Vec<_>>(), "receives are flushed in another order");
    ensure!(
        order(1000) == (1000..1000 + sends as u64).collect::<Vec<_>>(),
        "sends are flushed in another order"
    );
    pair.a.idle()
}

/// RESET discards the posted WRs without completions.
fn reset_empties_both_queues<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !lab.has_sqd()? {
        return Ok(());
    }
    let mut pair = RcPair::new(lab)?;
    pair.b.recv_empty(7)?;
    pair.a.drain()?;
    let sends: Vec<_> = (0..7).map(|i| Req::new(i, Op::Send).signaled()).collect();
    pair.a.post(Face::Batch, &sends)?;
    pair.a.set_state(QpState::RESET)?;
    pair.b.set_state(QpState::RESET)?;
    pair.a.idle()?;
    pair.b.idle()?;
    pair.connect(&lab.connect_attr())?;
    let room = pair.a.qp.cap().max_send_wr as usize;
    let at = pair.b.remote(0);
    let sends: Vec<_> = (0..room as u64).map(|i| Req::new(i, Op::Write(at)).signaled()).collect();
    pair.a.post(Face::List, &sends).context("the whole queue after a reset")?;
    let ids: Vec<_> = pair.a.ok(room)?.iter().map(|wc| wc.wr_id).collect();
    ensure!(ids == (0..room as u64).collect::<Vec<_>>(), "{ids:?}");
    let room = pair.b.qp.cap().max_recv_wr as usize;
    pair.b.recv_empty(room).context("the whole receive queue after a reset")
}

/// On UC the sender gets no error; the receiver is not affected.
fn uc_sender_gets_no_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Uc, Exclusive>::new(lab)?;
    let data = [3; 16];
    // No receive, and an invalid key.
    let wrong = RemoteAddr { rkey: unknown_key(b.mr.rkey()), ..b.remote(0) };
    a.post(Face::Batch, &[Req::new(1, Op::Send).signaled().inline(&data)])?;
    a.post(Face::Batch, &[Req::new(2, Op::Write(wrong)).signaled().inline(&data)])?;
    a.ok(2)?;
    wait::rest(wait::QUIET);
    ensure!(b.bytes(0..16)? == [0; 16]);
    b.recv(Face::Single, 3, 0..16)?;
    a.post(Face::Batch, &[Req::new(3, Op::Send).signaled().inline(&data)])?;
    a.ok(1)?;
    b.ok(1)?;
    ensure!(b.bytes(0..16)? == data);
    Ok(())
}

/// Errors on UD: a wrong queue key, a QP that does not exist, no receive.
fn ud_sender_gets_no_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Ud, Exclusive>::new(lab)?;
    let data = [3; 16];
    a.post(Face::Batch, &[Req::new(1, Op::Send).signaled().inline(&data)])?;
    a.ok(1)?;
    // It is dropped when it arrives, which may be later, so the receive waits for that.
    b.idle()?;
    b.recv(Face::Single, 21, 0..100)?;
    let (qpn, qkey) = a.there;
    a.there = (qpn, qkey ^ 1);
    a.post(Face::Batch, &[Req::new(2, Op::Send).signaled().inline(&data)])?;
    a.there = (0x00ab_cdef, qkey);
    a.post(Face::Batch, &[Req::new(3, Op::Send).signaled().inline(&data)])?;
    a.ok(2)?;
    b.idle()?;
    a.there = (qpn, qkey);
    a.post(Face::Batch, &[Req::new(4, Op::Send).signaled().inline(&data)])?;
    a.ok(1)?;
    ensure!(statuses(&b.wait(1)?) == [(21, WcStatus::SUCCESS)]);
    Ok(())
}

crate::tests!(
    invalid_rkey_fails,
    access_beyond_the_region_fails,
    access_without_region_rights_fails,
    region_of_another_domain_fails,
    access_without_qp_rights_fails,
    invalid_lkey_fails,
    read_into_read_only_memory_fails,
    message_longer_than_the_receive_fails,
    receive_with_an_invalid_key_fails,
    rnr_retry_exceeded_completes_with_error,
    destroyed_peer_completes_with_error,
    silent_peer_completes_with_error,
    err_flushes_both_queues_and_later_posts,
    err_flushes_full_queues_in_order,
    reset_empties_both_queues,
    uc_sender_gets_no_error,
    ud_sender_gets_no_error,
);
