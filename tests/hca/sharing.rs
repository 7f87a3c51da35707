// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues that several objects and threads share, while some of the objects are created and destroyed.

use anyhow::{Context as _, Result, bail, ensure};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::thread;
use uverbs::attr::{EventType, QpState, SrqAttr, SrqInitAttr};
use uverbs::{Driver, EventSource, Exclusive, PostError, Rc, Shared, WorkCompletion, raw::Srq};
use uverbs_tests::pair::{builder_ops, region};
use uverbs_tests::post::post_srq_recv;
use uverbs_tests::sges::sge;
use uverbs_tests::{Deadline, Face, Lab, Lock, Op, Outcome, Pair, PairEnd, Req, Spec, wait};

type NoSrq<D> = Srq<Shared, D>;
type Both<D, L> = (uverbs::raw::Qp<Rc, L, D>, PairEnd<D, Rc, L>);

/// A pair whose end A completes to a shared CQ.
fn on_cq<D: Driver, L: Lock>(
    lab: &Lab<D>,
    spec: &Spec,
    pd: &uverbs::ProtectionDomain<D>,
    cq: &uverbs::raw::Cq<Shared, D>,
) -> Result<Both<D, L>> {
    let ops = builder_ops::<D, Rc>(lab)?;
    let none = None::<&NoSrq<D>>;
    let mut b = PairEnd::on(lab.b.alloc_pd()?, lab.b.create_cq(spec.cqe, None)?, spec, ops, 5, none)?;
    let qp = L::builder::<D, Rc>(pd).cq(cq).cap(spec.cap).send_ops(ops).create()?;
    let here = qp.control.endpoint(4, &spec.attr)?;
    qp.init(&spec.attr)?;
    qp.connect(&here, &b.here, &spec.attr)?;
    b.connect(&here, &spec.attr)?;
    Ok((qp, b))
}

/// QPs are created, used and destroyed repeatedly while a thread polls their CQ and another QP is in use. The
/// completions of that QP come once and in order, and there is none of a destroyed QP.
fn destroy_during_polls_leaves_no_completions<D: Driver>(lab: &Lab<D>) -> Outcome {
    ended_while_polled(lab, |qp| Ok(qp.close()?))
}

/// As [`destroy_during_polls_leaves_no_completions`], with a transition to RESET.
fn reset_during_polls_leaves_no_completions<D: Driver>(lab: &Lab<D>) -> Outcome {
    ended_while_polled(lab, |qp| {
        qp.control.modify_state(QpState::RESET)?;
        // The RESET removes all completions of the QP; destroying it then succeeds.
        Ok(qp.close()?)
    })
}

fn ended_while_polled<D: Driver>(
    lab: &Lab<D>,
    end: impl Fn(uverbs::raw::Qp<Rc, Exclusive, D>) -> Result<()>,
) -> Outcome {
    const TURNS: u64 = 60;
    let spec = Spec::new(lab);
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(1024, None)?;
    let (mut steady, steady_b) = on_cq::<D, Exclusive>(lab, &spec, &pd, &cq)?;
    let (stop, gone) = (AtomicBool::new(false), AtomicU64::new(0));
    let word = [1_u8; 8];
    let mut posted = 0_u64;
    let polled = AtomicU64::new(0);
    let seen = thread::scope(|scope| -> Result<Vec<WorkCompletion>> {
        let poller = scope.spawn(|| -> Result<Vec<WorkCompletion>> {
            let mut all = Vec::new();
            let mut some = [WorkCompletion::default(); 8];
            let mut rest = 0;
            // After the end, polls until the CQ is empty.
            while rest < 3 {
                // A QP that was destroyed before the poll began must have no completion in it.
                let before = gone.load(Ordering::Acquire);
                let got = cq.poll(&mut some)?;
                for wc in got {
                    ensure!(wc.wr_id >> 32 == 0 || wc.wr_id >> 32 > before, "of a destroyed QP: {wc:?}");
                }
                all.extend_from_slice(got);
                polled.store(all.iter().filter(|wc| wc.wr_id >> 32 == 0).count() as u64, Ordering::Release);
                rest = if stop.load(Ordering::Acquire) && got.is_empty() { rest + 1 } else { 0 };
                if got.is_empty() {
                    thread::yield_now();
                }
            }
            Ok(all)
        });
        let mut work = || -> Result<()> {
            for turn in 1..=TURNS {
                let (mut qp, b) = on_cq::<D, Exclusive>(lab, &spec, &pd, &cq)?;
                for i in 0..20 {
                    let at = b.remote(0);
                    let req: Req<'_, D> = Req::new(turn << 32 | i, Op::Write(at)).signaled().inline(&word);
                    uverbs_tests::post(&mut qp, Face::ALL[turn as usize % 4], &[req])?;
                    if i % 4 == 0 {
                        let req = Req::new(posted, Op::Write(steady_b.remote(0))).signaled().inline(&word);
                        uverbs_tests::post(&mut steady, Face::Single, &[req])?;
                        posted += 1;
                    }
                }
                end(qp)?;
                gone.store(turn, Ordering::Release);
                let mut deadline = Deadline::usual();
                while polled.load(Ordering::Acquire) < posted {
                    ensure!(!deadline.passed(), "the other QP's completions are missing");
                    deadline.pause();
                }
            }
            Ok(())
        };
        let worked = work();
        stop.store(true, Ordering::Release);
        let seen = poller.join().map_err(|_| anyhow::anyhow!("the poller panicked"))?;
        worked?;
        seen
    })?;
    ensure!(seen.iter().all(|wc| wc.status.is_success()), "{}", wait::list(&seen));
    let steady: Vec<u64> = seen.iter().map(|wc| wc.wr_id).filter(|id| id >> 32 == 0).collect();
    ensure!(steady.iter().copied().eq(0..posted), "the other QP's completions: {steady:?}");
    // The completions of each destroyed QP are the first ones, in order.
    let mut next = BTreeMap::new();
    for id in seen.iter().map(|wc| wc.wr_id).filter(|id| id >> 32 != 0) {
        let n: &mut u64 = next.entry(id >> 32).or_default();
        ensure!(id & 0xffff_ffff == *n, "{id:#x} after {n}");
        *n += 1;
    }
    lab.note(format_args!(
        "{} completions; {} WRs of the destroyed or reset QPs",
        seen.len() as u64 - posted,
        TURNS * 20
    ));
    Ok(())
}

/// One SRQ, four QPs with a CQ each, and a thread that polls each: every receive completes once, on the QP to which the
/// message was sent.
fn srq_receives_complete_once_on_many_cqs<D: Driver>(lab: &Lab<D>) -> Outcome {
    const EACH: u64 = 200;
    const N: usize = 4;
    let mut spec = Spec::new(lab);
    (spec.attr.rnr_retry, spec.attr.min_rnr_timer) = (7, 1);
    let pd = lab.b.alloc_pd()?;
    let attr = SrqInitAttr::new(SrqAttr::new(30).max_sge(2));
    let mut srq: Srq<Exclusive, D> = pd.create_srq(&attr)?;
    let room = srq.attr().max_wr as usize;
    let ops = builder_ops::<D, Rc>(lab)?;
    let mut pairs = Vec::new();
    for _ in 0..N {
        let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
        let cq = lab.b.create_cq(spec.cqe, None)?;
        pair.b = PairEnd::on(pd.clone(), cq, &spec, ops, 9, Some(&srq))?;
        pair.connect(&spec.attr)?;
        pairs.push(pair);
    }
    // Each outstanding receive has separate memory, because pollers of several CQs may scatter inline data at the same
    // time.
    let mr = region(&pd, 8 * EACH as usize * N, lab.full_access())?;
    let sges_of = |id: u64| {
        let at = id as usize * 8;
        [sge(&mr, at..at + 3), sge(&mr, at + 3..at + 8)]
    };
    let received = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let all = EACH * N as u64;
    let mut ids = thread::scope(|scope| -> Result<Vec<u64>> {
        let received = &received;
        let failed = &failed;
        let threads: Vec<_> = pairs
            .iter_mut()
            .map(|pair| {
                scope.spawn(move || -> Result<Vec<u64>> {
                    let mut ids = Vec::new();
                    let mut work = || -> Result<()> {
                        for n in 0..EACH {
                            let req = Req::new(n, Op::Send).signaled().inline(&[1; 8]);
                            pair.a.post(Face::ALL[n as usize % 4], &[req])?;
                            pair.a.ok(1).with_context(|| format!("sender {n}, {:?}", pair.b.qp.qp_num()))?;
                            let got = pair.b.ok(1).with_context(|| format!("receiver {n}"))?[0];
                            ensure!(got.qp_num == pair.b.qp.qp_num() && got.byte_len == 8, "{got:?}");
                            ids.push(got.wr_id);
                            received.fetch_add(1, Ordering::Release);
                        }
                        Ok(())
                    };
                    let worked = work();
                    failed.fetch_or(worked.is_err(), Ordering::Release);
                    worked.map(|()| ids)
                })
            })
            .collect();
        let mut post = || -> Result<()> {
            let mut deadline = Deadline::usual();
            for id in 0..all {
                loop {
                    // The index is read before the post, because a receive may become free only after it.
                    let done = received.load(Ordering::Acquire);
                    match post_srq_recv(
                        &mut srq,
                        [Face::List, Face::Batch, Face::Single][id as usize % 3],
                        &[(id, &sges_of(id))],
                    ) {
                        Ok(()) => break,
                        Err(e) if e.error == Some(PostError::QueueFull) => {
                            let out = id - done;
                            ensure!(out + N as u64 >= room as u64, "full with {out} of {room}");
                            deadline.pause();
                        }
                        Err(e) => bail!("receive {id}: {e}"),
                    }
                    ensure!(!failed.load(Ordering::Acquire) && !deadline.passed(), "no message is received");
                }
                deadline = Deadline::usual();
            }
            Ok(())
        };
        let posted = post();
        let mut ids = Vec::new();
        for thread in threads {
            ids.extend(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        posted.map(|()| ids)
    })?;
    ids.sort_unstable();
    ensure!(ids.iter().copied().eq(0..all), "receives are missing or duplicated");
    // All receives are free again.
    let sges = sges_of(0);
    let recvs: Vec<_> = (0..room as u64).map(|i| (i, &sges[..])).collect();
    post_srq_recv(&mut srq, Face::List, &recvs).context("the whole SRQ at the end")?;
    ensure!(post_srq_recv(&mut srq, Face::List, &recvs[..1]).is_err(), "one more than fits");
    Ok(())
}

/// A CQ is resized up and down during traffic and polls: no completion is lost or duplicated.
fn resize_during_polls_loses_no_completion<D: Driver>(lab: &Lab<D>) -> Outcome {
    const N: u64 = 2000;
    let mut spec = Spec::new(lab);
    spec.cap.max_send_wr = 32;
    spec.cqe = 64;
    let Pair { mut a, b } = Pair::<D, Rc, Shared>::with(lab, &spec)?;
    let at = b.remote(0);
    let stop = AtomicBool::new(false);
    let (cq, qp) = (&a.cq, &mut a.qp);
    let mut resized = [0_u32; 2];
    let seen = thread::scope(|scope| -> Result<Vec<u64>> {
        let poller = scope.spawn(|| -> Result<Vec<u64>> {
            let mut seen = Vec::new();
            let mut some = [WorkCompletion::default(); 7];
            let mut deadline = Deadline::usual();
            while seen.len() < N as usize && !stop.load(Ordering::Acquire) {
                let got = cq.poll(&mut some)?;
                if got.is_empty() {
                    ensure!(!deadline.passed(), "{} of {N} completions", seen.len());
                    deadline.pause();
                } else {
                    ensure!(got.iter().all(|wc| wc.status.is_success()), "{}", wait::list(got));
                    deadline = Deadline::usual();
                }
                seen.extend(got.iter().map(|wc| wc.wr_id));
            }
            Ok(seen)
        });
        let mut work = || -> Result<()> {
            let mut deadline = Deadline::usual();
            for id in 0..N {
                loop {
                    let req: Req<'_, D> = Req::new(id, Op::Write(at)).signaled().inline(&[1; 8]);
                    match uverbs_tests::post(qp, Face::ALL[id as usize % 4], &[req]) {
                        Ok(()) => break,
                        Err(e) if e.error == Some(PostError::QueueFull) => deadline.pause(),
                        Err(e) => bail!("{e}"),
                    }
                    ensure!(!deadline.passed(), "no progress at {id}");
                }
                deadline = Deadline::usual();
                if id % 50 == 10 {
                    let cqe = if id % 100 == 10 { 40 + id as u32 % 500 } else { 33 };
                    // A size below the number of waiting completions is refused; then the CQ is unchanged.
                    let done = cq.resize(cqe).is_ok();
                    resized[usize::from(done)] += 1;
                }
            }
            Ok(())
        };
        let worked = work();
        if worked.is_err() {
            stop.store(true, Ordering::Release);
        }
        let seen = poller.join().map_err(|_| anyhow::anyhow!("the poller panicked"))?;
        worked?;
        seen
    })?;
    ensure!(seen.iter().copied().eq(0..N), "completions are lost, duplicated or out of order");
    ensure!(resized[1] > 10, "{resized:?} resizes");
    lab.note(format_args!("{} resizes, {} refused", resized[1], resized[0]));
    Ok(())
}

/// The limit event is raised while several QPs take receives from the SRQ, each time that the limit is armed.
fn srq_limit_event_with_several_qps<D: Driver>(lab: &Lab<D>) -> Outcome {
    use uverbs::attr::SrqAttrMask;
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let attr = SrqInitAttr::new(SrqAttr::new(40));
    let mut srq: Srq<Shared, D> = pd.create_srq(&attr)?;
    let ops = builder_ops::<D, Rc>(lab)?;
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
        let cq = lab.b.create_cq(spec.cqe, None)?;
        pair.b = PairEnd::on(pd.clone(), cq, &spec, ops, 9, Some(&srq))?;
        pair.connect(&spec.attr)?;
        pairs.push(pair);
    }
    lab.b.set_async_nonblocking(true)?;
    for turn in 0..4 {
        let limit = 5 + turn;
        let recvs: Vec<_> = (0..20).map(|i| (i, &[][..])).collect();
        post_srq_recv(&mut srq, Face::Batch, &recvs)?;
        srq.modify(&SrqAttr::new(0).srq_limit(limit).max_sge(0), SrqAttrMask::LIMIT)?;
        let mut events = 0;
        for n in 0..20 {
            let pair = &mut pairs[n % 3];
            pair.a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
            pair.a.ok(1)?;
            pair.b.ok(1)?;
            let left = 20 - (n as u32 + 1);
            let event = if left < limit && events == 0 {
                ensure!(
                    wait::readable(lab.b.async_fd(), wait::LIMIT)?,
                    "no event at {left}, the limit is {limit}"
                );
                Some(lab.b.get_async_event()?)
            } else {
                lab.b.get_async_event().ok()
            };
            if let Some(event) = event {
                ensure!(event.event_type == EventType::SRQ_LIMIT_REACHED, "{event:?}");
                ensure!(event.source == EventSource::Srq(srq.id()), "{event:?}");
                ensure!(left < limit && events == 0, "an event at {left}, the limit is {limit}");
                events += 1;
            }
        }
        ensure!(events == 1, "{events} events in turn {turn}");
    }
    Ok(())
}

uverbs_tests::tests!(
    destroy_during_polls_leaves_no_completions,
    reset_during_polls_leaves_no_completions,
    srq_receives_complete_once_on_many_cqs,
    resize_during_polls_loses_no_completion,
    srq_limit_event_with_several_qps,
);
