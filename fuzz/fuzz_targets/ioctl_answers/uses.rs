// SPDX-License-Identifier: MIT OR Apache-2.0
//! Uses objects: posts, polls, modifies.
// UNSAFETY: posting is an `unsafe fn`; the simulated kernel reads no memory, and lists live as long as the call.

use crate::action::{Access, UseCq, UseMr, UseQp, UseSrq};
use crate::{AnyQp, World, each_cq, each_qp, kept, pick};
use core::ptr::null;
use uverbs::attr::{
    AdviseFlags, CqModeration, Gid, MrAdvice, QpAttr, QpAttrMask, QpState, SrqAttr, SrqAttrMask,
};
use uverbs::provider::{Completion as _, PollError, PostError};
use uverbs::wr::{RecvWr, SendWr, Sge, WrOpcode};
use uverbs::{ConnectAttr, Endpoint, PageBuf, WorkCompletion};
use uverbs_core::provider::raw::QpEx;

const SGE: Sge = Sge { addr: 0x1000, length: 8, lkey: 1 };

impl World {
    pub(crate) fn use_mr(&mut self, mr: u8, what: &UseMr) {
        let Some(mr) = pick(&mut self.mrs, mr) else { return };
        match what {
            UseMr::Rereg(pd, access) => {
                let pd = pd.and_then(|pd| pick(&mut self.pds, pd)).map(|pd| &*pd);
                let _ = kept(mr.rereg(pd, access.map(Access::flags)));
            }
            UseMr::ReregBuf(len) => {
                let Some(buf) = kept(PageBuf::new((*len).into())) else { return };
                let _ = kept(mr.rereg_buf(buf).map_err(|e| e.error));
            }
            UseMr::Advise(advice, from, to) => {
                let advice = match advice % 3 {
                    0 => MrAdvice::Prefetch,
                    1 => MrAdvice::PrefetchWrite,
                    _ => MrAdvice::PrefetchNoFault,
                };
                let flags = AdviseFlags::empty();
                let _ = kept(mr.advise(advice, flags, usize::from(*from)..usize::from(*to)));
            }
            UseMr::Copy(offset, byte) => {
                let mut back = [0; 5];
                let offset = usize::from(*offset);
                if kept(mr.write_at(offset, &[*byte; 5])).is_some() {
                    kept(mr.read_at(offset, &mut back)).expect("what can be written can be read");
                    assert_eq!(back, [*byte; 5]);
                } else {
                    assert!(offset + 5 > mr.len());
                }
                let _ = kept(mr.atomic_u64(offset));
            }
            UseMr::Sge(from, to) => {
                let range = usize::from(*from)..usize::from(*to);
                assert_eq!(kept(mr.sge(range.clone())).is_some(), from <= to && range.end <= mr.len());
                let _ = (mr.remote(range.start).is_ok(), mr.as_raw());
            }
        }
    }

    pub(crate) fn use_srq(&mut self, srq: u8, what: &UseSrq) {
        let Some(srq) = pick(&mut self.srqs, srq) else { return };
        match what {
            UseSrq::Post(n, num_sge) => {
                let sges = vec![SGE; (*num_sge).into()];
                let mut batch = srq.batch();
                for i in 0..*n {
                    // SAFETY: the named memory is not accessed.
                    unsafe { batch.push(i.into(), &sges) };
                }
                let _ = kept(batch.complete());
                let wr = RecvWr { sg_list: sges.as_ptr(), num_sge: (*num_sge).into(), ..RecvWr::new(7) };
                // SAFETY: the list and its entries are alive; one thread.
                let _ = unsafe { srq.post_srq_recv(&raw const wr) };
            }
            UseSrq::Modify { max_wr, limit, mask } => {
                let attr = SrqAttr::new((*max_wr).into()).max_sge(0).srq_limit((*limit).into());
                let _ = kept(srq.modify(&attr, SrqAttrMask::from_bits_retain((*mask).into())));
            }
            UseSrq::Query => drop(kept(srq.query())),
        }
    }

    pub(crate) fn use_qp(&mut self, which: u8, what: &UseQp) {
        let Some(qp) = pick(&mut self.qps, which) else { return };
        match what {
            UseQp::State(state) => {
                let state = QpState(u32::from(state % 9));
                let _ = kept(each_qp!(qp, |qp| qp.control.modify_state(state)));
            }
            UseQp::Modify(state, mask, byte) => {
                let attr = QpAttr::new()
                    .qp_state(QpState((*state).into()))
                    .qkey(u32::from(*byte) << 24)
                    .timeout(*byte)
                    .dest_qp_num(u32::from(*byte) << 17);
                let mask = QpAttrMask::from_bits_retain(*mask);
                let _ = kept(each_qp!(qp, |qp| qp.modify(&attr, mask)));
            }
            UseQp::Connect => {
                let (attr, end) = (ConnectAttr::default(), Endpoint::default());
                let was_correct = self.kernel.was_correct();
                let fresh = each_qp!(qp, |qp| kept(qp.init(&attr)).is_some());
                let done = each_qp!(qp, |qp| kept(qp.connect(&end, &end, &attr)).is_some());
                assert!(fresh && done || !was_correct || !self.kernel.was_correct());
            }
            UseQp::Query => {
                let _ = kept(each_qp!(qp, |qp| qp.query(QpAttrMask::all())));
                let _ = kept(each_qp!(qp, |qp| qp.control.state()));
            }
            UseQp::Mcast(attach, right) => {
                let gid = Gid([if *right { 0xff } else { 0 }; 16]);
                let _ = kept(each_qp!(qp, |qp| if *attach {
                    qp.control.attach_mcast(gid, 0)
                } else {
                    qp.control.detach_mcast(gid, 0)
                }));
            }
            UseQp::Batch(n, complete) => {
                let result = match qp {
                    AnyQp::Rc(qp) => {
                        let mut batch = qp.sq().batch();
                        for i in 0..*n {
                            // SAFETY: the named memory is not accessed.
                            unsafe { batch.wr(i.into()).signaled().send(&[SGE; 2]) };
                            batch.wr(i.into()).send_inline(&[1; 9]);
                        }
                        if *complete {
                            batch.complete()
                        } else {
                            batch.abort();
                            Ok(())
                        }
                    }
                    AnyQp::Uc(qp) => qp
                        .sq()
                        .lock()
                        .map_err(Into::into)
                        .and_then(|mut sq| sq.post(1).send_inline(&vec![2; (*n).into()])),
                    AnyQp::Ud(qp) => match self.ahs.last() {
                        Some(ah) => qp.sq().post_to(1, ah, 2, 3).send_inline(&vec![2; (*n).into()]),
                        None => Err(PostError::InvalidArgument.into()),
                    },
                };
                let _ = kept(result);
            }
            UseQp::List(n, opcode) => {
                let list: Vec<SendWr> =
                    (0..*n).map(|i| SendWr::new(i.into(), WrOpcode((*opcode).into()))).collect();
                let mut list = list;
                for i in (1..list.len()).rev() {
                    let next = &raw const list[i];
                    list[i - 1].next = next;
                }
                let first = list.first().map_or(null(), |wr| &raw const *wr);
                let range = list.as_ptr_range();
                let result = each_qp!(qp, |qp| {
                    // SAFETY: the list is alive, has no data and no pointers; one thread.
                    unsafe { qp.sq().post_send(first) }
                });
                if let Err(bad) = result {
                    assert!(bad.wr.is_null() || range.contains(&bad.wr));
                }
            }
            UseQp::Builder(n, complete) => {
                each_qp!(qp, |qp| if let Some(ex) = qp.sq().qp_ex() {
                    builder(ex, *n, *complete);
                });
            }
            UseQp::Recv(n, num_sge) => {
                let sges = vec![SGE; usize::from(num_sge % 16)];
                let num_sge = sges.len() as i32;
                let list: Vec<RecvWr> = (0..*n)
                    .map(|i| RecvWr { sg_list: sges.as_ptr(), num_sge, ..RecvWr::new(i.into()) })
                    .collect();
                for wr in &list {
                    // SAFETY: the list of one and its entries are alive; one thread.
                    let _ = each_qp!(qp, |qp| unsafe { qp.post_recv(&raw const *wr) });
                }
                if let AnyQp::Rc(qp) = qp {
                    // SAFETY: the named memory is not accessed.
                    let _ = kept(qp.rq().and_then(|rq| unsafe { rq.post(1, &sges) }));
                }
            }
        }
    }

    pub(crate) fn use_cq(&mut self, which: u8, what: &UseCq) {
        let Some(cq) = pick(&mut self.cqs, which) else { return };
        match what {
            UseCq::Poll(max) => {
                let mut wc = vec![WorkCompletion::default(); (*max).into()];
                let n = kept(each_cq!(cq, |cq| cq.poll(&mut wc).map(<[_]>::len)));
                assert!(n.is_none_or(|n| n <= usize::from(*max)));
            }
            UseCq::Each(max) => {
                let mut seen = 0;
                let see = |c: &uverbs::rxe::Completion| {
                    seen += 1;
                    assert!(!format!("{:?}", c.to_wc()).is_empty());
                };
                let n = kept(each_cq!(cq, |cq| cq.poll_each((*max).into(), see)));
                assert_eq!(n.unwrap_or(0), seen);
                assert!(seen <= usize::from(*max));
            }
            UseCq::Session(max) => {
                let result = each_cq!(cq, |cq| cq.poll_session(|poll| {
                    for _ in 0..*max {
                        assert!(poll.current().is_some_and(|c| c.wr_id() == c.to_wc().wr_id));
                        if let Err(error) = poll.next() {
                            return Some(error);
                        }
                    }
                    None
                }));
                assert!(!matches!(result, Ok(Some(PollError::NoSession))));
            }
            UseCq::Arm(solicited) => {
                let _ = kept(each_cq!(cq, |cq| cq.req_notify(*solicited)));
            }
            UseCq::Resize(cqe, huge) => {
                let cqe = if *huge { u32::MAX / 2 + u32::from(*cqe) } else { (*cqe).into() };
                let got = kept(each_cq!(cq, |cq| cq.resize(cqe)));
                assert!(got.is_none_or(|got| got >= cqe));
            }
            UseCq::Moderate(cq_count, cq_period) => {
                let moderation = CqModeration::new(*cq_count, *cq_period);
                let _ = kept(each_cq!(cq, |cq| cq.modify_moderation(moderation)));
            }
        }
    }
}

fn builder(mut ex: QpEx<'_>, n: u8, complete: bool) {
    // SAFETY: one thread; ended below.
    unsafe { ex.wr_start() };
    for i in 0..n {
        ex.wr_id = i.into();
        // SAFETY: inside the session.
        unsafe { ex.wr_send() };
        // SAFETY: inside the session; the bytes are there.
        unsafe { ex.wr_set_inline_data(b"abc".as_ptr(), 3) };
    }
    if complete {
        // SAFETY: the thread that began it.
        let _ = kept(unsafe { ex.wr_complete() });
    } else {
        // SAFETY: the thread that began it.
        unsafe { ex.wr_abort() };
    }
}
