// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues as rings: many laps, full and empty queues, the largest and the smallest requests.

use crate::post::Typed;
use crate::{Face, LIMIT, Lab, Lock, Op, Outcome, Pair, Refused, Req, Spec, pattern, post_recv, wait};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::QpState;
use uverbs::wr::Sge;
use uverbs::{Driver, Exclusive, PostError, Rc, SendFlags, Shared, Ud, WcOpcode};

/// Thousands of messages through rings of a few slots, in batches of various sizes on various faces.
fn laps<D: Driver, T: Typed<D>, L: Lock>(lab: &Lab<D>, total: u64) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.cap.max_send_wr = 13;
    spec.cap.max_recv_wr = 13;
    spec.cqe = 30;
    let Pair { mut a, mut b } = Pair::<D, T, L>::with(lab, &spec)?;
    let grh = crate::pair::grh::<T>();
    let (mut next, mut turn) = (0_u64, 0_usize);
    while next < total {
        let n = 1 + turn % 13;
        let ids: Vec<u64> = (next..next + n as u64).collect();
        let slots: Vec<_> = (0..n).map(|i| [b.sge(i * 128..i * 128 + grh + 16)]).collect();
        let recvs: Vec<_> = ids.iter().zip(&slots).map(|(id, s)| (*id, &s[..])).collect();
        post_recv(b.qp.rq_mut()?, [Face::List, Face::Batch, Face::Single][turn % 3], &recvs)?;
        // Half of the batches inline, half from memory.
        let data: Vec<_> = ids.iter().map(|id| pattern::bytes(*id, 16)).collect();
        a.mr.write_at(0, &data.concat())?;
        let sges: Vec<_> = (0..n).map(|i| [a.sge(i * 16..i * 16 + 16)]).collect();
        let reqs: Vec<_> = (0..n)
            .map(|i| {
                let req = Req::new(ids[i], Op::Send);
                let req = if turn % 2 == 0 { req.inline(&data[i]) } else { req.sges(&sges[i]) };
                if i + 1 == n { req.signaled() } else { req }
            })
            .collect();
        a.post(Face::ALL[turn / 2 % 4], &reqs).with_context(|| format!("message {next}"))?;
        let sent = a.ok(1)?[0];
        ensure!(sent.wr_id == ids[n - 1], "{sent:?}");
        let got: Vec<_> = b.ok(n)?.iter().map(|wc| wc.wr_id).collect();
        ensure!(got == ids, "{ids:?} completed as {got:?}");
        for (i, id) in ids.iter().enumerate() {
            b.check(i * 128 + grh..i * 128 + grh + 16, *id).with_context(|| format!("message {id}"))?;
        }
        next += n as u64;
        turn += 1;
    }
    Ok(())
}

/// On every face, a full queue refuses a post and names the request that did not fit, and works again when requests
/// have completed.
fn full_queue_refuses_and_recovers<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !lab.has_sqd()? {
        return Ok(());
    }
    let mut spec = Spec::new(lab);
    spec.cap.max_send_wr = 10;
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let room = a.qp.cap().max_send_wr as usize;
    ensure!(room >= 10);
    for (turn, face) in Face::ALL.into_iter().enumerate() {
        // In SQD, the queue executes nothing.
        a.drain()?;
        let reqs: Vec<_> = (0..room as u64 + 3).map(|i| Req::new(i, Op::Send).signaled()).collect();
        let before = turn % room;
        a.post(Face::Single, &reqs[..before])?;
        let refused = a.post(face, &reqs[before..]);
        let bad = Some(room - before);
        let (want, posted) = match face {
            Face::List | Face::Single => (Refused::new(PostError::QueueFull, bad), room),
            Face::Builder | Face::Batch => (Refused::new(PostError::QueueFull, None), before),
        };
        ensure!(refused == Err(want), "{face:?}: {refused:?}");
        if posted < room {
            a.post(face, &reqs[posted..room])?;
        }
        let full = a.post(face, &reqs[..1]);
        ensure!(full.is_err_and(|e| e.error == Some(PostError::QueueFull)), "{face:?}");
        a.idle()?;
        b.recv_empty(room)?;
        a.set_state(QpState::RTS)?;
        let ids: Vec<_> = a.ok(room)?.iter().map(|wc| wc.wr_id).collect();
        ensure!(ids == (0..room as u64).collect::<Vec<_>>(), "{face:?}: {ids:?}");
        b.ok(room)?;
    }
    Ok(())
}

/// As above, with a queue that is full because the peer has no receive.
fn full_queue_recovers_after_rnr<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.cap.max_send_wr = 10;
    spec.attr.rnr_retry = 7;
    spec.attr.min_rnr_timer = 1;
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let room = a.qp.cap().max_send_wr as usize;
    let data = pattern::bytes(3, 32);
    let req: Req<'_, D> = Req::new(3, Op::Send).signaled().inline(&data);
    for turn in 0..3 {
        for _ in 0..room {
            a.post(Face::Single, &[req])?;
        }
        let full = a.post(Face::Single, &[req]);
        ensure!(full == Err(Refused::new(PostError::QueueFull, Some(0))), "turn {turn}: {full:?}");
        a.idle()?;
        for i in 0..room {
            b.recv(Face::Single, 0, i * 32..(i + 1) * 32)?;
        }
        a.ok(room)?;
        b.ok(room)?;
        for i in 0..room {
            b.check(i * 32..(i + 1) * 32, 3)?;
            b.clear(i * 32..(i + 1) * 32)?;
        }
    }
    Ok(())
}

/// The queue accepts as many receives as it reports, and no more.
fn receive_queue_takes_what_it_reports<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    let room = b.qp.cap().max_recv_wr as usize;
    for face in [Face::List, Face::Batch, Face::Single] {
        let recvs: Vec<_> = (0..room as u64 + 1).map(|i| (i, &[][..])).collect();
        let refused = post_recv(b.qp.rq()?, face, &recvs);
        let bad = (face != Face::Batch).then_some(room);
        ensure!(refused == Err(Refused::new(PostError::QueueFull, bad)), "{face:?}: {refused:?}");
        if face == Face::Batch {
            post_recv(b.qp.rq()?, face, &recvs[..room])?;
        }
        for turn in 0..room {
            let req = Req::new(1, Op::Send);
            let last = turn % 16 == 15 || turn + 1 == room;
            a.post(Face::Single, &[if last { req.signaled() } else { req }])?;
            if last {
                a.ok(1)?;
            }
        }
        let ids: Vec<_> = b.ok(room)?.iter().map(|wc| wc.wr_id).collect();
        ensure!(ids == (0..room as u64).collect::<Vec<_>>());
    }
    Ok(())
}

/// Messages of 0 bytes: without entries, and with entries of length 0, also between others.
fn zero_length_messages_arrive<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    a.fill(0..64, 1)?;
    for face in Face::ALL {
        let empty = [a.sge(8..8), a.sge(0..0)];
        let mixed = [a.sge(8..8), a.sge(0..5), a.sge(3..3), a.sge(5..9)];
        let (at, read) = (b.remote(0), b.remote(32));
        b.recv_empty(2)?;
        let sges = [b.sge(0..5), Sge::default(), b.sge(5..64)];
        post_recv(b.qp.rq()?, face, &[(3, &sges)])?;
        b.recv_empty(1)?;
        a.post(
            face,
            &[
                Req::new(1, Op::Send).signaled(),
                Req::new(2, Op::Send).signaled().sges(&empty),
                Req::new(3, Op::Send).signaled().sges(&mixed),
                Req::new(4, Op::Write(at)).signaled().sges(&empty),
                Req::new(5, Op::WriteImm(at, 1)).signaled(),
                Req::new(6, Op::Read(read)).signaled().sges(&empty),
                Req::new(7, Op::Read(read)).signaled(),
            ],
        )?;
        let sent: Vec<_> = a.ok(7)?.iter().map(|wc| wc.wr_id).collect();
        ensure!(sent == [1, 2, 3, 4, 5, 6, 7], "{face:?}: {sent:?}");
        let got: Vec<_> = b.ok(4)?.iter().map(|wc| wc.byte_len).collect();
        ensure!(got == [0, 0, 9, 0], "{face:?}: {got:?}");
        b.check(0..9, 1)?;
        b.clear(0..64)?;
    }
    Ok(())
}

/// As many entries as the device allows, gathered and scattered.
fn longest_sge_lists_work<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    let max = lab.device.max_sge;
    (spec.cap.max_send_sge, spec.cap.max_recv_sge) = (max, max);
    (spec.cap.max_send_wr, spec.cap.max_recv_wr) = (4, 4);
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let n = max as usize;
    for face in Face::ALL {
        a.fill(0..n * 100, 8)?;
        b.clear(0..n * 100)?;
        let from: Vec<_> = (0..n).map(|i| a.sge(i * 100..(i + 1) * 100)).collect();
        // The entries are divided at other positions than those of the sender.
        let cut = |i: usize| (i * 100 + 37 * (i % 2)).min(n * 100);
        let mut to: Vec<_> = (0..n).map(|i| b.sge(cut(i)..cut(i + 1))).collect();
        to[n - 1] = b.sge(cut(n - 1)..n * 100);
        post_recv(b.qp.rq()?, face, &[(1, &to)])?;
        a.post(face, &[Req::new(1, Op::Send).signaled().sges(&from)])?;
        a.ok(1)?;
        ensure!(b.ok(1)?[0].byte_len as usize == n * 100);
        b.check(0..n * 100, 8).with_context(|| format!("{face:?}"))?;
        // A read into as many entries.
        let to: Vec<_> = (0..n).rev().map(|i| a.sge(i * 100..(i + 1) * 100)).collect();
        a.post(face, &[Req::new(2, Op::Read(b.remote(0))).signaled().sges(&to)])?;
        a.ok(1)?;
        let mut turned = Vec::new();
        for i in (0..n).rev() {
            turned.extend(a.bytes(i * 100..(i + 1) * 100)?);
        }
        ensure!(turned == pattern::bytes(8, n * 100), "{face:?}: the read differs");
    }
    Ok(())
}

/// With `sq_sig_all` every request has a completion.
fn sq_sig_all_signals_every_send<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec { sq_sig_all: true, ..Spec::new(lab) };
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    for face in Face::ALL {
        b.recv_empty(3)?;
        let reqs: Vec<_> = (0..3).map(|i| Req::new(i, Op::Send)).collect();
        a.post(face, &reqs)?;
        ensure!(wait::opcodes(&a.ok(3)?) == [0, 1, 2].map(|i| (i, WcOpcode::SEND)), "{face:?}");
        b.ok(3)?;
    }
    ensure!(a.qp.query(uverbs::attr::QpAttrMask::CAP)?.1.sq_sig_all, "query_qp does not return it");
    Ok(())
}

/// Slots of unsignaled requests become free when a later request completes.
fn unsignaled_sends_free_their_slots<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.cap.max_send_wr = 16;
    let Pair { mut a, b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    for turn in 0..200_u64 {
        let word = turn.to_le_bytes();
        let write = Req::new(turn, Op::Write(b.remote(0))).inline(&word);
        let mut reqs = [write; 16];
        reqs[15] = write.signaled();
        a.post(Face::ALL[turn as usize % 4], &reqs).with_context(|| format!("turn {turn}"))?;
        ensure!(a.ok(1)?[0].wr_id == turn);
    }
    a.idle()?;
    ensure!(b.bytes(0..8)? == 199_u64.to_le_bytes());
    Ok(())
}

/// A fenced send has the data of the read before it.
fn fenced_send_waits_for_reads<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    for (turn, face) in Face::ALL.into_iter().cycle().take(40).enumerate() {
        let seed = turn as u64;
        b.fill(0..4096, seed)?;
        a.clear(0..4096)?;
        b.clear(8192..8192 + 4096)?;
        b.recv(Face::Single, seed, 8192..8192 + 4096)?;
        let sges = [a.sge(0..4096)];
        a.post(
            face,
            &[
                Req::new(1, Op::Read(b.remote(0))).sges(&sges),
                Req::new(2, Op::Send).signaled().flags(SendFlags::FENCE).sges(&sges),
            ],
        )?;
        a.ok(1)?;
        b.ok(1)?;
        b.check(8192..8192 + 4096, seed).with_context(|| format!("turn {turn} by {face:?}"))?;
    }
    Ok(())
}

/// A queue of the maximum size of the device is created and used.
fn largest_queue_works<D: Driver>(lab: &Lab<D>) -> Result<()> {
    let mut spec = Spec::new(lab);
    // The largest queue of a device may need more memory than the lab has.
    let n = lab.device.max_qp_wr.min(4000);
    spec.cap.max_send_wr = n;
    spec.cap.max_send_sge = 1;
    spec.cap.max_inline_data = 0;
    spec.cqe = n.min(lab.device.max_cqe);
    let Pair { mut a, b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let sges = [a.sge(0..8)];
    let reqs: Vec<_> =
        (0..u64::from(n)).map(|i| Req::new(i, Op::Write(b.remote(0))).signaled().sges(&sges)).collect();
    // The queue is filled at once if the device can be stopped by SQD. Otherwise requests that complete meanwhile free
    // no slots, because nothing is polled.
    let has_sqd = lab.has_sqd()?;
    if has_sqd {
        a.drain()?;
    }
    a.post(Face::Batch, &reqs)?;
    if has_sqd {
        a.set_state(QpState::RTS)?;
    }
    let mut seen = 0;
    wait::until("all of it", LIMIT, || {
        let n = a.cq.poll_each(64, |wc| {
            use uverbs::provider::Completion as _;
            assert_eq!((wc.wr_id(), wc.status()), (seen, uverbs::WcStatus::SUCCESS));
            seen += 1;
        })?;
        let _ = n;
        Ok(seen == u64::from(spec.cap.max_send_wr))
    })
}

crate::tests!(
    queues_wrap_around_rc = |lab| laps::<D, Rc, Exclusive>(lab, 5000),
    queues_wrap_around_shared = |lab| laps::<D, Rc, Shared>(lab, 2000),
    queues_wrap_around_ud = |lab| laps::<D, Ud, Exclusive>(lab, 2000),
    full_queue_refuses_and_recovers,
    full_queue_recovers_after_rnr,
    receive_queue_takes_what_it_reports,
    zero_length_messages_arrive,
    longest_sge_lists_work,
    sq_sig_all_signals_every_send,
    unsignaled_sends_free_their_slots,
    fenced_send_waits_for_reads,
    largest_queue_works,
);
