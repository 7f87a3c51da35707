// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that share queues: no message is lost or duplicated, and each thread's messages are in order.

use crate::pair::{builder_ops, region};
use crate::post::{List, post_prepared, session};
use crate::{Deadline, Face, Lab, Op, Outcome, Pair, PairEnd, Refused, Req, Spec, post_recv, wait};
use anyhow::{Result, bail, ensure};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use uverbs::attr::{QpState, SrqAttr, SrqInitAttr};
use uverbs::raw::SendQueue;
use uverbs::wr::Sge;
use uverbs::{Driver, Exclusive, PostError, Rc, Shared, WcStatus, WorkCompletion, raw::Srq};

/// The message of a thread: its number, and the count of its earlier messages.
fn message(thread: u64, n: u64) -> [u8; 8] {
    (thread << 32 | n).to_le_bytes()
}

/// Posts one message by the face that belongs to the thread.
fn post_one<D: Driver>(sq: &SendQueue<Rc, Shared, D>, thread: u64, n: u64) -> Result<(), PostError> {
    let data = message(thread, n);
    let req: Req<'_, D> = Req::new(thread << 32 | n, Op::Send).signaled().inline(&data);
    match thread {
        0 => Ok(sq.lock()?.post(req.wr_id).signaled().send_inline(&data)?),
        1 => session(sq, |wr| wr.request(&req)),
        _ => post_prepared(sq, &List::new(&[req]))
            .map_err(|Refused { error, .. }| error.unwrap_or(PostError::NullList)),
    }
}

/// Three threads post to one QP, by three faces, and poll its CQ; B receives all messages, those of each thread in
/// order.
fn threads_share_a_qp_and_a_cq<D: Driver>(lab: &Lab<D>) -> Outcome {
    const EACH: u64 = 300;
    const THREADS: u64 = 3;
    let mut spec = Spec::new(lab);
    spec.cqe = 1024;
    // A late receiver must not fail the test.
    (spec.attr.rnr_retry, spec.attr.min_rnr_timer) = (7, 1);
    let Pair { a, mut b } = Pair::<D, Rc, Shared>::with(lab, &spec)?;
    let sq = &a.qp.send;
    // Each thread keeps the completions that it polled: a common lock would order the threads, and hide races in the
    // queues.
    let mut done: Vec<WorkCompletion> = Vec::new();
    let failed = AtomicBool::new(false);
    let poll = |into: &mut Vec<WorkCompletion>| -> Result<bool> {
        let mut some = [WorkCompletion::default(); 8];
        let got = a.cq.poll(&mut some)?;
        into.extend_from_slice(got);
        Ok(!got.is_empty())
    };
    let work = |id: u64| -> Result<Vec<WorkCompletion>> {
        let mut mine = Vec::new();
        let mut deadline = Deadline::usual();
        for n in 0..EACH {
            loop {
                match post_one(sq, id, n) {
                    Ok(()) => break,
                    Err(PostError::QueueFull) => {}
                    Err(e) => bail!("thread {id}, message {n}: {e}"),
                }
                ensure!(
                    !deadline.passed() && !failed.load(Ordering::Relaxed),
                    "thread {id} makes no progress"
                );
                if !poll(&mut mine)? {
                    deadline.pause();
                }
            }
            if n % 4 == 3 {
                poll(&mut mine)?;
            }
        }
        Ok(mine)
    };
    // Receives are posted in the order of their slots.
    let slots: Vec<[Sge; 1]> = (0..64).map(|i| [b.sge(i * 8..i * 8 + 8)]).collect();
    let mut next = [0_u64; THREADS as usize];
    let post = |b: &mut PairEnd<D, Rc, Shared>, slot: usize| {
        post_recv(b.qp.rq_mut()?, Face::Single, &[(slot as u64, &slots[slot])])
    };
    for slot in 0..64 {
        post(&mut b, slot)?;
    }
    let all = (EACH * THREADS) as usize;
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..THREADS).map(|id| scope.spawn(move || work(id))).collect();
        let mut receive = || -> Result<()> {
            for _ in 0..all {
                let got = b.ok(1)?[0];
                let slot = got.wr_id as usize;
                let word =
                    u64::from_le_bytes(b.bytes(slot * 8..slot * 8 + 8)?.try_into().unwrap_or_default());
                let (id, n) = (word >> 32, word & 0xffff_ffff);
                ensure!(id < THREADS && n == next[id as usize], "message {n} of thread {id} after {next:?}");
                next[id as usize] += 1;
                post(&mut b, slot)?;
            }
            Ok(())
        };
        let received = receive();
        failed.store(received.is_err(), Ordering::Relaxed);
        for thread in threads {
            done.extend(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        received
    })?;
    let mut deadline = Deadline::usual();
    while done.len() < all {
        ensure!(!deadline.passed(), "completions are missing");
        if !poll(&mut done)? {
            deadline.pause();
        }
    }
    let mut ids = done;
    ensure!(ids.iter().all(|wc| wc.status.is_success()), "{}", wait::list(&ids));
    ids.sort_by_key(|wc| wc.wr_id);
    let want = (0..THREADS).flat_map(|id| (0..EACH).map(move |n| id << 32 | n));
    ensure!(ids.iter().map(|wc| wc.wr_id).eq(want), "completions are missing or doubled");
    a.idle()
}

/// The halves of an exclusive QP belong to two threads.
fn threads_use_the_halves_of_a_qp<D: Driver>(lab: &Lab<D>) -> Outcome {
    const N: u64 = 200;
    let mut spec = Spec::new(lab);
    (spec.attr.rnr_retry, spec.attr.min_rnr_timer) = (7, 1);
    let Pair { a, b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let PairEnd { qp, cq, .. } = a;
    let uverbs::raw::Qp { send: mut sq, recv, control } = qp;
    let sender = thread::spawn(move || -> Result<()> {
        for n in 0..N {
            sq.post(n).signaled().send_inline(&n.to_le_bytes())?;
            wait::successes(&cq, 1)?;
        }
        drop(sq);
        Ok(())
    });
    drop(recv);
    let mut b = b;
    for n in 0..N {
        b.recv(Face::Single, n, 0..8)?;
        b.ok(1)?;
        ensure!(b.bytes(0..8)? == n.to_le_bytes());
    }
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    ensure!(control.state()? == QpState::RTS, "the control half keeps the QP");
    Ok(())
}

/// A thread posts while another one moves the QP to ERR: each accepted post has exactly one completion.
fn posts_during_err_complete_once<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.cqe = 4096.min(lab.device.max_cqe);
    for _ in 0..3 {
        let Pair { a, b } = Pair::<D, Rc, Shared>::with(lab, &spec)?;
        let sq = &a.qp.send;
        let at = b.remote(0);
        let stop = AtomicBool::new(false);
        let taken = AtomicUsize::new(0);
        let polled = AtomicUsize::new(0);
        let mut all = Vec::new();
        thread::scope(|scope| -> Result<()> {
            let poster = scope.spawn(|| -> Result<()> {
                let to = uverbs::provider::WireRemote::new(at.addr, at.rkey);
                // Until the end: the queue may be slower than this thread, and after the last post nothing is flushed. But the CQ
                // has room for every completion.
                while !stop.load(Ordering::Acquire) {
                    let posted = taken.load(Ordering::Relaxed);
                    if posted.saturating_sub(polled.load(Ordering::Acquire)) >= spec.cqe as usize {
                        thread::yield_now();
                        continue;
                    }
                    let id = posted as u64;
                    match sq
                        .lock()
                        .map_err(PostError::from)?
                        .post(id)
                        .signaled()
                        .write_inline(b"12345678", to)
                    {
                        Ok(()) => {
                            taken.fetch_add(1, Ordering::Release);
                        }
                        Err(error) if error == PostError::QueueFull => thread::yield_now(),
                        Err(e) => bail!("{e}"),
                    }
                }
                Ok(())
            });
            let mut some = [WorkCompletion::default(); 16];
            let mut deadline = Deadline::usual();
            let mut failed = false;
            while !deadline.passed() && !stop.load(Ordering::Relaxed) {
                all.extend_from_slice(a.cq.poll(&mut some)?);
                polled.store(all.len(), Ordering::Release);
                if !failed && all.len() > 40 {
                    a.set_state(QpState::ERR)?;
                    failed = true;
                }
                if failed && all.iter().filter(|wc| !wc.status.is_success()).count() > 100 {
                    stop.store(true, Ordering::Release);
                }
                deadline.pause();
            }
            stop.store(true, Ordering::Release);
            poster.join().map_err(|_| anyhow::anyhow!("the poster panicked"))?
        })?;
        let taken = taken.load(Ordering::Acquire);
        all.extend(wait::completions(&a.cq, taken - all.len())?);
        ensure!(all.iter().map(|wc| wc.wr_id).eq(0..taken as u64), "{}", wait::list(&all));
        let good = all.iter().take_while(|wc| wc.status.is_success()).count();
        ensure!(
            all[good..].iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR),
            "{}",
            wait::list(&all[good..])
        );
        a.idle()?;
    }
    Ok(())
}

/// Two threads post to one SRQ, and two QPs receive from it.
fn threads_share_an_srq<D: Driver>(lab: &Lab<D>) -> Outcome {
    const EACH: u64 = 150;
    let mut spec = Spec::new(lab);
    (spec.attr.rnr_retry, spec.attr.min_rnr_timer) = (7, 1);
    let pd = lab.b.alloc_pd()?;
    let attr = SrqInitAttr::new(SrqAttr::new(32));
    let srq: Srq<Shared, D> = pd.create_srq(&attr)?;
    let ops = builder_ops::<D, Rc>(lab)?;
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
        let cq = lab.b.create_cq(spec.cqe, None)?;
        pair.b = PairEnd::on(pd.clone(), cq, &spec, ops, 9, Some(&srq))?;
        pair.connect(&spec.attr)?;
        pairs.push(pair);
    }
    let mr = region(&pd, 4096, lab.full_access())?;
    let post = |id: u64| -> Result<()> {
        let mut deadline = Deadline::usual();
        let sge = uverbs_testkit::wire(&[crate::sges::sge(&mr, 0..8)])?;
        for n in 0..EACH {
            loop {
                let mut guard = srq.lock().map_err(PostError::from)?;
                #[expect(unsafe_code, reason = "posting a receive")]
                // SAFETY: a region that outlives the queue's QPs, and lends no references.
                let result = unsafe { guard.post(id << 32 | n, &sge) };
                drop(guard);
                match result {
                    Ok(()) => break,
                    Err(error) if error == PostError::QueueFull => deadline.pause(),
                    Err(e) => bail!("{e}"),
                }
                ensure!(!deadline.passed(), "thread {id} makes no progress at {n}");
            }
        }
        Ok(())
    };
    let mut ids = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..2).map(|id| scope.spawn(move || post(id))).collect();
        for n in 0..EACH {
            for pair in &mut pairs {
                pair.a.post(Face::Single, &[Req::new(n, Op::Send).signaled().inline(&[1; 8])])?;
            }
            for pair in &pairs {
                pair.a.ok(1)?;
                ids.push(pair.b.ok(1)?[0].wr_id);
            }
        }
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    ids.sort_unstable();
    let want: Vec<_> = (0..2).flat_map(|id| (0..EACH).map(move |n| id << 32 | n)).collect();
    ensure!(ids == want, "receives are missing or doubled");
    Ok(())
}

crate::tests!(
    threads_share_a_qp_and_a_cq,
    threads_use_the_halves_of_a_qp,
    posts_during_err_complete_once,
    threads_share_an_srq
);
