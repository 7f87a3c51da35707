// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one case on one face: every step, and all results in the file.

use crate::compare::{Lazy, compare_bytes, compare_record, compare_wc};
use crate::faces::{self, Posted};
use crate::memory;
use crate::model::{Case, Cq, HwCqe, Num, Op, Qp, Sent, Step, Wc};
use crate::request::{self, Request};
use crate::rig::{QpSpec, Rig, state, watch};
use crate::trace::Trace;
use anyhow::{Context as _, Result, bail, ensure};
use std::sync::Arc;
use uverbs_core::attr::CqFlags;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Object as _, PollError, PostError, RecvQueue as _, SendQueue as _,
};
use uverbs_core::wc::WorkCompletion;
use uverbs_mlx5::{RecvQueue, SendQueue, SharedRecvQueue};
use uverbs_testkit::Refused;

/// A way to run a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Face {
    /// `ibv_post_send`.
    List,
    /// The `wr_*` vtable.
    Wr,
    /// Both, if the case has both.
    Mixed,
    /// Typed batches, and polling by a closure.
    Typed,
    /// C's calls, for cases without posts to a send queue.
    Raw,
}

impl Face {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Wr => "wr",
            Self::Mixed => "list+wr",
            Self::Typed => "typed",
            Self::Raw => "raw",
        }
    }
}

fn sends(steps: &[Step]) -> impl Iterator<Item = &Step> {
    fn flat(step: &Step) -> Box<dyn Iterator<Item = &Step> + '_> {
        match step {
            Step::OnQp2 { step } => Box::new(step.iter().flat_map(flat)),
            other => Box::new(core::iter::once(other)),
        }
    }
    steps
        .iter()
        .flat_map(flat)
        .filter(|s| matches!(s, Step::PostSend { .. } | Step::WrApi { .. } | Step::BindMw { .. }))
}

/// The faces on which a case was recorded or can be expressed.
pub(crate) fn faces_of(case: &Case) -> Vec<Face> {
    let (mut list, mut wr) = (false, false);
    let (mut as_list, mut as_wr, mut as_typed) = (true, true, true);
    for step in sends(&case.steps) {
        match step {
            Step::WrApi { ops, out } => {
                wr = true;
                let requests = Request::of_session(ops);
                // A list has no DC address.
                let dc = ops.iter().any(|op| matches!(op, Op::SetDcAddr { .. } | Op::SetDcAddrStream { .. }));
                let stream = ops.iter().any(|op| matches!(op, Op::SetDcAddrStream { .. }));
                // The builder always binds as for type 2; on another face a type 1 bind is another operation.
                let type_1 = ops.iter().any(|op| matches!(op, Op::BindMw { mw, .. } if mw.mw_type == 1));
                as_typed &= requests.is_some() && !stream && !type_1;
                // A list posts the WRs before an error, a session none; in a list, inline data without entries are no
                // data.
                let empty =
                    ops.iter().any(|op| matches!(op, Op::SetInlineDataList { bufs } if bufs.is_empty()));
                as_list &= out.ret == 0 && !dc && !type_1 && !empty && requests.is_some();
            }
            Step::PostSend { wrs, out } => {
                list = true;
                let all = wrs.iter().map(Request::of_list).collect::<Option<Vec<_>>>().is_some();
                // A list can't express the destination of a WR on a DC initiator.
                let dci = case.qp.as_ref().is_some_and(|qp| qp.qp_type == "DCI");
                let whole = all && out.bad_wr < 1 && !dci;
                as_typed &= whole;
                as_wr &= whole;
            }
            _ => (list, as_wr) = (true, false),
        }
    }
    as_wr &= case.qp.as_ref().is_some_and(|qp| qp.ex);
    let mut faces = match (list, wr) {
        (false, false) => vec![Face::Raw],
        (true, true) => vec![Face::Mixed],
        (true, false) => vec![Face::List],
        (false, true) => vec![Face::Wr],
    };
    if wr && as_list {
        faces.push(Face::List);
    }
    if list && as_wr {
        faces.push(Face::Wr);
    }
    if as_typed {
        faces.push(Face::Typed);
    }
    faces
}

/// Runs the case. The error has the difference.
pub(crate) fn run(case: &Case, face: Face, trace: &Arc<Trace>) -> Result<()> {
    memory::refill_scatter();
    let ctx = match (&case.qp, &case.srq) {
        (Some(qp), _) => qp.ctx.as_str(),
        (None, Some(srq)) => srq.ctx.as_deref().unwrap_or("eth"),
        _ => "eth",
    };
    let cqe_size = case.cq.as_ref().map_or(64, |cq| cq.cqe_size);
    let mut rig = Rig::open(ctx, cqe_size, trace)?;
    if let Some(cq) = &case.cq {
        create_cq(&mut rig, cq, &case.name)?;
    }
    let has_srq = case.srq.is_some()
        || case.steps.iter().any(|s| matches!(s, Step::SrqInfo { .. } | Step::PostSrqRecv { .. }));
    if has_srq {
        create_srq(&mut rig, case)?;
    }
    if let Some(qp) = &case.qp {
        create_qp(&mut rig, qp, has_srq)?;
    }
    let mut runner = Runner { rig, face };
    for (n, step) in case.steps.iter().enumerate() {
        runner.step(0, step).with_context(|| format!("step {n}"))?;
    }
    Ok(())
}

fn create_cq(rig: &mut Rig, cq: &Cq, name: &str) -> Result<()> {
    let single = name.starts_with("ex64-single") || name.contains("-single ");
    let flags = if single { CqFlags::SINGLE_THREADED } else { CqFlags::empty() };
    rig.create_cq(cq.cqe_cnt - 1, cq.wc_flags.0, flags)?;
    ensure!(rig.cq()?.face.get_mut().cqe() + 1 == cq.cqe_cnt, "a CQ of another size");
    ensure!(rig.cq()?.size() == cq.cqe_size as usize, "entries of another size");
    Ok(())
}

/// The SRQ of a case: its size is not in every case, but follows from its links.
fn create_srq(rig: &mut Rig, case: &Case) -> Result<()> {
    let number = |key: &str| {
        case.srq
            .as_ref()
            .and_then(|srq| srq.rest.get(key))
            .and_then(serde_json::Value::as_u64)
            .map(|n| n as u32)
    };
    let mut total = number("wqe_total");
    let mut stride = number("stride");
    for step in &case.steps {
        match step {
            Step::SrqInfo { wqe_total, stride: s, .. } => (total, stride) = (Some(*wqe_total), Some(*s)),
            Step::CheckSrq { next_wqe_index, .. } => total = total.or(Some(next_wqe_index.len() as u32)),
            _ => {}
        }
    }
    let max_wr = match (number("max_wr"), total) {
        (Some(max_wr), _) => max_wr,
        // The device owns half of the ring, and one element is never posted.
        (None, Some(total)) => total / 2 - 1,
        (None, None) => 7,
    };
    let posted = case.steps.iter().filter_map(|step| match step {
        Step::PostSrqRecv { wrs, ret: 0, .. } => wrs.iter().map(|wr| wr.sg_list.len() as u32).max(),
        _ => None,
    });
    let max_sge = match (number("max_sge"), stride) {
        (Some(max_sge), _) => max_sge,
        (None, Some(stride)) => stride / 16 - 1,
        (None, None) => posted.max().unwrap_or(1).max(1),
    };
    let xrc = case.srq.as_ref().and_then(|srq| srq.srq_type.as_deref()) == Some("XRC");
    rig.create_srq(max_wr, max_sge, xrc)?;
    let srq = rig.srq.as_ref().context("an SRQ")?;
    if let Some(stride) = stride {
        ensure!(srq.stride == stride as usize, "elements of {} bytes, not {stride}", srq.stride);
    }
    Ok(())
}

fn create_qp(rig: &mut Rig, qp: &Qp, with_srq: bool) -> Result<()> {
    rig.create_qp(&QpSpec::of(qp)?, with_srq).context("create_qp")?;
    let index = rig.qps.len() - 1;
    let made = &rig.qps[index];
    let (request, cap) = (&made.request, made.cap);
    let sizes = (request.sq_wqe_count, request.rq_wqe_count, cap.max_send_wr);
    let want = (qp.sq_wqe_cnt, qp.rq_wqe_cnt, qp.cap.max_send_wr);
    ensure!(sizes == want, "sizes {sizes:?}, not {want:?}");
    ensure!(request.uidx == qp.uidx, "user index {}, not {}", request.uidx, qp.uidx);
    ensure!(made.qp.handle().qp_num() == qp.qpn, "QP number");
    if qp.sq_start_index != 0 {
        rig.bring_up(index, state("RTS")?)?;
        rig.advance(index, qp.sq_start_index)?;
        ensure!(qp.state == "RTS", "a case with a used queue in state {}", qp.state);
    } else {
        rig.bring_up(index, state(&qp.state)?)?;
    }
    drop(rig.kernel.take_rings());
    Ok(())
}

struct Runner {
    rig: Rig,
    face: Face,
}

/// Compares the return value of a call.
fn compare_result(
    want: (i32, i32),
    got: Posted,
    errno: impl Fn(PostError) -> i32,
    whole: bool,
) -> Result<()> {
    let (ret, bad) = match got {
        Ok(()) => (0, None),
        Err(Refused { error, bad }) => (error.map_or(0, errno), bad),
    };
    ensure!(ret == want.0, "returned {ret} ({got:?}), not {}", want.0);
    // Only a list names the WR.
    if !whole && want.1 >= 0 {
        ensure!(bad == usize::try_from(want.1).ok(), "bad_wr {bad:?}, not {}", want.1);
    }
    Ok(())
}

impl Runner {
    fn step(&mut self, qp: usize, step: &Step) -> Result<()> {
        match step {
            Step::PostSend { wrs, out } => {
                let requests =
                    || wrs.iter().map(Request::of_list).collect::<Option<Vec<_>>>().context("a face");
                match self.face {
                    Face::Typed => {
                        let requests = requests()?;
                        self.send(qp, out, true, |send| faces::batch(send, &requests))
                    }
                    Face::Wr => {
                        let requests = requests()?;
                        self.send(qp, out, true, |send| faces::session_of(send, &requests))
                    }
                    _ => self.send(qp, out, false, |send| faces::post_list(send, wrs)),
                }
            }
            Step::WrApi { ops, out } => {
                let requests = || Request::of_session(ops).context("a face");
                match self.face {
                    Face::Typed => {
                        let requests = requests()?;
                        self.send(qp, out, true, |send| faces::batch(send, &requests))
                    }
                    Face::List => {
                        let requests = requests()?;
                        self.send(qp, out, true, |send| faces::post_requests(send, &requests))
                    }
                    _ => self.send(qp, out, true, |send| faces::session(send, ops)),
                }
            }
            Step::BindMw { mw, wr_id, send_flags, bind_info, rkey_after, out } => {
                // `ibv_bind_mw` advances the key's low byte before it posts, and keeps it if that succeeds.
                let old = mw.rkey.u32();
                let next = old & !0xff | (old + 1) & 0xff;
                ensure!(rkey_after.u32() == if out.ret == 0 { next } else { old }, "the key afterwards");
                let bind = request::bind(mw, Num(next.into()), bind_info);
                let flags = request::flags(send_flags);
                self.send(qp, out, false, |send| faces::post_bind(send, wr_id.0, flags, &bind))
            }
            Step::PostRecv { wrs, ret, bad_wr, rq, rq_dbrec } => {
                let typed = self.face == Face::Typed && *bad_wr < 1;
                let side = &mut self.rig.qps[qp];
                let (record, _) = side.records();
                let Some(queue) = side.recv.as_mut() else {
                    ensure!(*ret != 0, "the QP has no receive queue");
                    return Ok(());
                };
                let (result, written) = watch(record, || {
                    if typed { faces::recv_batch(queue, wrs) } else { faces::recv_list(queue, wrs) }
                });
                compare_result((*ret, *bad_wr), result, |e| RecvQueue::errno(e).raw(), typed)?;
                compare_record("receives", *rq_dbrec, written)?;
                for wqe in &rq.wqes {
                    let Some(want) = &wqe.hex else { continue };
                    compare_bytes(&format!("receive WQE {}", wqe.idx), want, &side.rqe(wqe.idx))?;
                }
                Ok(())
            }
            Step::PostSrqRecv { wrs, ret, bad_wr, srq, srq_dbrec } => {
                let typed = self.face == Face::Typed && *bad_wr < 1;
                let side = self.rig.srq.as_mut().context("an SRQ")?;
                let (record, face) = (side.request.db_addr, &mut side.face);
                let (result, written) = watch(record, || {
                    if typed { faces::recv_batch(face, wrs) } else { faces::recv_list(face, wrs) }
                });
                compare_result((*ret, *bad_wr), result, |e| SharedRecvQueue::errno(e).raw(), typed)?;
                compare_record("SRQ", *srq_dbrec, written)?;
                for wqe in &srq.wqes {
                    let Some(want) = &wqe.hex else { continue };
                    let got = side.element(wqe.idx);
                    compare_bytes(&format!("SRQ WQE {}", wqe.idx), want, &got[..want.len().min(got.len())])?;
                }
                Ok(())
            }
            Step::Modify { state: name, sq_dbrec_after, rq_dbrec_after, cq_ci_dbrec } => {
                let (recv, send) = self.rig.qps[qp].records();
                let target = state(name)?;
                let record = |addr| {
                    let b = memory::read(addr, 4);
                    u32::from_be_bytes([b[0], b[1], b[2], b[3]])
                };
                // A record that is not in the file may have been written or not.
                self.rig.modify(qp, target)?;
                if let Some(want) = sq_dbrec_after {
                    ensure!(record(send) == *want, "send record {}, not {want}", record(send));
                }
                if let Some(want) = rq_dbrec_after {
                    ensure!(record(recv) == *want, "receive record {}, not {want}", record(recv));
                }
                if let Some(want) = cq_ci_dbrec {
                    // The poller removes entries of destroyed queues and updates the consumer index; an empty poll does
                    // this.
                    let cq = self.rig.cq()?;
                    let _ = cq.face.get_mut().poll_each(0, |_| ());
                    ensure!(cq.consumed() == *want, "consumer index {}, not {want}", cq.consumed());
                }
                Ok(())
            }
            Step::HwCqes { cqes } => cqes.iter().try_for_each(|cqe| self.complete(cqe)),
            Step::HwRaw { pos, op_own, hex } => {
                let cq = self.rig.cq()?;
                let mut bytes = match hex {
                    Some(hex) => hex.bytes().context("an entry")?,
                    None => vec![0; 64],
                };
                if let Some(last) = bytes.last_mut() {
                    *last = *op_own;
                }
                // Only the fields of the step, if it has no entry.
                let from = if hex.is_some() { 0 } else { bytes.len() - 1 };
                cq.put(*pos, &bytes[from..]);
                Ok(())
            }
            Step::PollCq { num_entries, ret, wcs, cq_ci_dbrec } => {
                self.poll(*num_entries, *ret, wcs, *cq_ci_dbrec)
            }
            Step::StartPoll { max, start_ret, wcs, next_ret, cq_ci_dbrec } => {
                self.extended(*max, *start_ret, wcs, *next_ret, *cq_ci_dbrec)
            }
            Step::CheckMem { addr, hex } => {
                compare_bytes(&format!("memory at {:#x}", addr.0), hex, &memory::read(addr.0, hex.len()))
            }
            Step::CheckSrq { next_wqe_index, .. } => self.links(next_wqe_index),
            Step::SrqInfo { stride, wqe_total, .. } => {
                let srq = self.rig.srq.as_ref().context("an SRQ")?;
                ensure!(srq.stride == *stride as usize, "stride {}", srq.stride);
                ensure!(srq.srq.shared().ring.mask() + 1 == *wqe_total, "elements");
                Ok(())
            }
            Step::CreateQp2 { qp } => create_qp(&mut self.rig, qp, false),
            Step::OnQp2 { step } => {
                let other = self.rig.qps.len() - 1;
                step.iter().try_for_each(|step| self.step(other, step))
            }
            Step::ReqNotifyCq { solicited_only, cqn, cq_arm_dbrec, uar_0x20 } => {
                let cq = self.rig.cq()?;
                cq.face.get_mut().req_notify(solicited_only.0 != 0)?;
                ensure!(cq.cq.shared().cqn() == *cqn, "CQ number");
                ensure!(cq.armed() == cq_arm_dbrec.u32(), "armed with {:#x}", cq.armed());
                let rings = self.rig.kernel.take_rings();
                let [rung] = &rings[..] else { bail!("{} registers", rings.len()) };
                ensure!(rung.offset % 4096 == 0x20, "register {:#x}", rung.offset);
                compare_bytes("the register", uar_0x20, &rung.bytes)
            }
            Step::GetCqEvent => {
                self.rig.cq()?.cq.shared().event();
                Ok(())
            }
            Step::PollOnly => Ok(()),
        }
    }

    fn send(
        &mut self,
        qp: usize,
        out: &Sent,
        whole: bool,
        post: impl FnOnce(&mut faces::Send) -> Posted,
    ) -> Result<()> {
        let side = &mut self.rig.qps[qp];
        let (_, record) = side.records();
        let send = side.send.as_mut().context("a send queue")?;
        let (result, written) = watch(record, || post(send));
        compare_result((out.ret, out.bad_wr), result, |e| SendQueue::errno(e).raw(), whole)?;
        compare_record("sends", out.sq_dbrec, written)?;
        let bells = side.bells(self.rig.kernel.take_rings());
        for wqe in &out.sq.wqes {
            let want = wqe.hex.as_ref().context("a WQE")?;
            compare_bytes(&format!("WQE {}", wqe.idx), want, &side.wqe(wqe.idx, want.len()))?;
        }
        match (&out.bf, &bells[..]) {
            (None, []) => Ok(()),
            (Some(want), [(offset, bytes)]) => {
                ensure!(*offset == want.offset, "doorbell at {offset}, not {}", want.offset);
                ensure!(bytes.len() == want.len, "doorbell of {} bytes, not {}", bytes.len(), want.len);
                compare_bytes("doorbell", &want.hex, bytes)
            }
            (want, got) => bail!("{} doorbells, not {}", got.len(), u32::from(want.is_some())),
        }
    }

    fn complete(&mut self, cqe: &HwCqe) -> Result<()> {
        let bytes = cqe.hex.bytes().context("an entry")?;
        self.rig.cq()?.put(cqe.pos, &bytes);
        Ok(())
    }

    fn poll(&mut self, max: usize, ret: i32, wcs: &[Wc], consumed: u32) -> Result<()> {
        let typed = self.face == Face::Typed;
        let cq = self.rig.cq()?;
        let mut got = vec![WorkCompletion::default(); max];
        let result = if typed {
            let mut n = 0;
            // `to_wc` returns the same as `ibv_poll_cq`.
            let result = cq.face.get_mut().poll_each(max, |c| {
                got[n] = c.to_wc();
                n += 1;
            });
            ensure!(result.is_err() || result == Ok(n), "{n} completions, {result:?}");
            result
        } else {
            faces::poll_cq(&cq.face, &mut got)
        };
        match (ret, result) {
            (0.., Ok(n)) => {
                ensure!(n == ret as usize, "{n} completions, not {ret}");
                ensure!(n == wcs.len(), "the file has {} completions", wcs.len());
                for (i, (want, got)) in wcs.iter().zip(&got).enumerate() {
                    compare_wc(want, got).with_context(|| format!("completion {i}"))?;
                }
            }
            (..0, Err(PollError::Corrupt)) => {}
            (want, got) => bail!("poll_cq gave {got:?}, not {want}"),
        }
        ensure!(cq.consumed() == consumed, "consumer index {}, not {consumed}", cq.consumed());
        Ok(())
    }

    fn extended(
        &mut self,
        max: usize,
        start_ret: i32,
        wcs: &[Wc],
        next_ret: Option<i32>,
        consumed: u32,
    ) -> Result<()> {
        let code = |result: Result<(), PollError>| match result {
            Ok(()) => 0,
            // `CQ_POLL_ERR` of libmlx5, which is not an errno.
            Err(PollError::Corrupt) => -2,
            Err(error) => error.errno().raw(),
        };
        let cq = self.rig.cq()?;
        let engine = cq.face.get_mut();
        if self.face == Face::Typed {
            // Polls the same completions with a closure.
            let mut all = Vec::new();
            let result = engine.poll_each(max, |c| all.push(Lazy::of(c)));
            match (start_ret, next_ret, result) {
                (0, _, Ok(n)) => ensure!(n == wcs.len(), "{n} completions, not {}", wcs.len()),
                (2, _, Ok(0)) | (..0, _, Err(PollError::Corrupt)) => {}
                (start, next, got) => bail!("poll_each gave {got:?}, not {start} and {next:?}"),
            }
            for (i, (want, got)) in wcs.iter().zip(&all).enumerate() {
                got.compare(want).with_context(|| format!("completion {i}"))?;
            }
            if let (Some(..0), true) = (next_ret, start_ret == 0) {
                ensure!(engine.poll_each(1, |_| ()) == Err(PollError::Corrupt), "the error was lost");
            }
            if start_ret >= 0 {
                ensure!(cq.consumed() == consumed, "consumer index {}, not {consumed}", cq.consumed());
            }
            return Ok(());
        }
        let start = code(engine.start_poll());
        ensure!(start == start_ret, "start_poll gave {start}, not {start_ret}");
        if start == 0 {
            let mut next = 0;
            for (i, want) in wcs.iter().enumerate() {
                ensure!(next == 0, "next_poll gave {next} before completion {i}");
                let got = Lazy::of(&engine.current().context("a completion")?);
                got.compare(want).with_context(|| format!("completion {i}"))?;
                if i + 1 < max {
                    next = code(engine.next_poll());
                }
            }
            if let Some(want) = next_ret {
                ensure!(next == want, "next_poll gave {next}, not {want}");
            }
            engine.end_poll();
        }
        ensure!(cq.consumed() == consumed, "consumer index {}, not {consumed}", cq.consumed());
        Ok(())
    }

    /// Links of an SRQ: the poster may choose their order, if the device reaches every element of the list once.
    fn links(&self, want: &[u32]) -> Result<()> {
        let srq = self.rig.srq.as_ref().context("an SRQ")?;
        ensure!(srq.srq.shared().ring.mask() as usize + 1 == want.len(), "elements");
        let slots = srq.srq.shared().slots();
        let mut seen = vec![false; slots as usize];
        let mut at = 0;
        for _ in 0..slots {
            ensure!(at < slots, "a link to {at}, outside of the list");
            if core::mem::replace(&mut seen[at as usize], true) {
                break;
            }
            at = srq.next(at);
        }
        ensure!(at < slots, "a link to {at}, outside of the list");
        Ok(())
    }
}
