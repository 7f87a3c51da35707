// SPDX-License-Identifier: MIT OR Apache-2.0
//! CQs whose completions the device compresses. A device that has no such completions refuses the CQ.

use crate::env::LabEnv;
use crate::{Deadline, Face, Lab, Op, Outcome, Pair, PairEnd, Req, Spec, wait};
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use uverbs::attr::{CqFlags, CqInitAttr, QpState, WcExFlags};
use uverbs::provider::Completion as _;
use uverbs::{Driver, Exclusive, PollError, Rc, Shared, WcStatus, WorkCompletion, raw::Cq};

/// Messages with one doorbell.
const TOGETHER: usize = 40;

/// Whether the device has compressed completions. Of the devices of these tests the software ConnectX of a process has.
fn has_them<D: Driver>(lab: &Lab<D>) -> Result<bool> {
    let has = lab.mlx5().is_some() && LabEnv::get().is_none();
    match lab.a.create_cq_ex::<Shared>(&CqInitAttr::new(8).compressed(true), None) {
        Ok(_) => Ok(true),
        Err(e) => {
            ensure!(!has && e.is_unsupported() && e.to_string().contains("compressed"), "{e}");
            lab.note(e);
            Ok(false)
        }
    }
}

fn spec<D: Driver>(lab: &Lab<D>) -> Spec {
    let mut spec = Spec::new(lab);
    // Data in completions are never compressed.
    (spec.compressed, spec.data_in_completions) = (true, false);
    spec
}

/// The length of a message: each has another one.
fn len(n: usize) -> usize {
    1 + n % 61
}

/// Sends messages from A to B by one call, and waits until the last of them has arrived.
fn send<D: Driver>(pair: &mut Pair<D, Rc, Exclusive>, from: usize) -> Result<()> {
    for n in from..from + TOGETHER {
        pair.b.recv(Face::Single, n as u64, 0..64)?;
    }
    let data = [7; 64];
    let reqs: Vec<_> = (from..from + TOGETHER)
        .map(|n| Req::new(n as u64, Op::Send).signaled().inline(&data[..len(n)]))
        .collect();
    pair.a.post(Face::Batch, &reqs)?;
    pair.a.ok(TOGETHER)?;
    wait::rest(Duration::from_millis(10));
    Ok(())
}

fn check(seen: &[(u64, u32)], from: usize) -> Result<()> {
    let want: Vec<_> = (from..from + seen.len()).map(|n| (n as u64, len(n) as u32)).collect();
    ensure!(seen == want, "{seen:?} from {from} on");
    Ok(())
}

/// Each way to poll, some of a block at a time, over several laps of the ring.
fn every_way_to_poll_expands_them<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has_them(lab)? {
        return Ok(());
    }
    let mut spec = spec(lab);
    spec.cqe = 60;
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    for (round, some) in [1, 3, 5, 9, 64].into_iter().cycle().take(15).enumerate() {
        let from = round * TOGETHER;
        send(&mut pair, from)?;
        let mut seen = vec![];
        let mut deadline = Deadline::usual();
        while seen.len() < TOGETHER {
            let before = seen.len();
            match round % 3 {
                0 => {
                    let mut wc = [WorkCompletion::default(); 64];
                    let wc = pair.b.cq.poll(&mut wc[..some])?;
                    seen.extend(wc.iter().map(|wc| (wc.wr_id, wc.byte_len)));
                }
                1 => {
                    pair.b.cq.poll_each(some, |wc| seen.push((wc.wr_id(), wc.byte_len())))?;
                }
                _ => {
                    let polled = pair.b.cq.poll_session(|poll| {
                        let mut n = 0;
                        loop {
                            seen.extend(poll.current().map(|wc| (wc.wr_id(), wc.byte_len())));
                            n += 1;
                            if n == some || poll.next().is_err() {
                                break;
                            }
                        }
                    });
                    ensure!(matches!(polled, Ok(()) | Err(PollError::Empty)), "{polled:?}");
                }
            }
            ensure!(!deadline.passed(), "only {seen:?}");
            if seen.len() == before {
                deadline.pause();
            }
        }
        check(&seen, from)?;
        pair.b.idle()?;
    }
    Ok(())
}

/// A resize between two polls of a block, and while the device writes more.
fn a_resize_keeps_them<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has_them(lab)? {
        return Ok(());
    }
    let mut spec = spec(lab);
    spec.cqe = 60;
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    for (round, size) in [200, 50, 127, 300].into_iter().enumerate() {
        let from = round * TOGETHER;
        send(&mut pair, from)?;
        let seen = |all: &[WorkCompletion]| all.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>();
        let mut wc = [WorkCompletion::default(); 5];
        check(&seen(pair.b.cq.poll(&mut wc)?), from)?;
        pair.b.cq.resize(size)?;
        check(&seen(&pair.b.ok(TOGETHER - 5)?), from + 5)?;
        pair.b.idle()?;
    }
    Ok(())
}

/// A RESET leaves none of them, whether the poll has expanded them or not.
fn a_reset_removes_them<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has_them(lab)? {
        return Ok(());
    }
    let spec = spec(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    for round in 0..3 {
        send(&mut pair, 0)?;
        let mut wc = [WorkCompletion::default(); 9];
        let polled = pair.b.cq.poll(&mut wc[..round * 4])?;
        ensure!(polled.len() == round * 4);
        pair.b.set_state(QpState::RESET)?;
        pair.b.idle()?;
        pair.reconnect(&spec.attr)?;
        send(&mut pair, TOGETHER)?;
        let seen: Vec<_> = pair.b.ok(TOGETHER)?.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
        check(&seen, TOGETHER)?;
        pair.a.idle()?;
    }
    Ok(())
}

/// Without a lock, with timestamps, which do not decrease; and completions of requests.
fn exclusive_queues_and_requests_have_them<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has_them(lab)? {
        return Ok(());
    }
    let attr = CqInitAttr::new(100)
        .compressed(true)
        .wc_flags(WcExFlags::STANDARD | WcExFlags::COMPLETION_TIMESTAMP)
        .flags(CqFlags::SINGLE_THREADED);
    let mut cq: Cq<Exclusive, D> = lab.a.create_cq_ex(&attr, None)?;
    let spec = Spec::new(lab);
    let PairEnd { pd, mr, .. } = Pair::<D, Rc, Exclusive>::new(lab)?.a;
    let mut qp = pd.raw_qp::<Rc>().cq(&cq).cap(spec.cap).create()?;
    let here = qp.control.endpoint(1, &spec.attr)?;
    qp.init(&spec.attr)?;
    qp.connect(&here, &here, &spec.attr)?;
    for round in 0..4 {
        let sq = qp.sq();
        let mut batch = sq.batch();
        for n in 0..TOGETHER as u64 {
            batch.wr(n).signaled().write_inline(&[1; 8], mr.remote(0)?);
        }
        batch.complete()?;
        let (mut ids, mut times) = (vec![], vec![]);
        let mut deadline = Deadline::usual();
        while ids.len() < TOGETHER {
            let polled = cq.poll_session(|poll| {
                let wc = poll.current().context("no entry")?;
                ensure!(wc.status() == WcStatus::SUCCESS && wc.qp_num() == qp.qp_num());
                ids.push(wc.wr_id());
                times.extend(wc.completion_ts());
                Ok(())
            });
            match polled {
                Ok(result) => result?,
                Err(PollError::Empty) => deadline.pause(),
                Err(e) => return Err(e.into()),
            }
            ensure!(!deadline.passed());
        }
        ensure!(ids == (0..TOGETHER as u64).collect::<Vec<_>>(), "{round}: {ids:?}");
        ensure!(times.len() == TOGETHER && times.is_sorted(), "{times:?}");
    }
    Ok(())
}

crate::tests!(
    every_way_to_poll_expands_them,
    a_resize_keeps_them,
    a_reset_removes_them,
    exclusive_queues_and_requests_have_them,
);
