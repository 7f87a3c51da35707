// SPDX-License-Identifier: MIT OR Apache-2.0
//! Legacy and extended polling, through `&mut` and through `&`; resizing with waiting completions.

use crate::{Deadline, Face, LIMIT, Lab, Op, Outcome, Pair, PairEnd, Req, Spec, wait};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::{CqFlags, CqInitAttr, CqModeration, WcExFlags};
use uverbs::provider::Completion as _;
use uverbs::{Driver, Exclusive, PollError, Rc, Shared, WcStatus, WorkCompletion, raw::Cq};

type RcPair<D> = Pair<D, Rc, Exclusive>;

/// Generates `n` completions on A's CQ, with ids from `first` on, and waits for them.
fn complete<D: Driver>(pair: &mut RcPair<D>, first: u64, n: u64) -> Result<()> {
    let at = pair.b.remote(0);
    pair.b.word(0)?.store(u64::MAX, core::sync::atomic::Ordering::Release);
    for id in first..first + n {
        let data = id.to_le_bytes();
        pair.a.post(Face::Single, &[Req::new(id, Op::Write(at)).signaled().inline(&data)])?;
    }
    // The last write has arrived, and is acknowledged soon after.
    wait::until("the writes", LIMIT, || {
        Ok(pair.b.word(0)?.load(core::sync::atomic::Ordering::Acquire) == first + n - 1)
    })?;
    wait::rest(core::time::Duration::from_millis(10));
    Ok(())
}

/// Small arrays: completions are in order, and none is lost between the ways to poll.
fn every_way_to_poll_returns_all<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    complete(&mut pair, 0, 20)?;
    let cq = &pair.a.cq;
    let mut three = [WorkCompletion::default(); 3];
    let ids = |all: &[WorkCompletion]| all.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    ensure!(ids(cq.poll(&mut three)?) == [0, 1, 2]);
    ensure!(cq.poll(&mut [])?.is_empty());
    // Lazily: fields are read from the ring.
    let mut seen = vec![];
    let n = cq.poll_each(4, |wc| seen.push((wc.wr_id(), wc.status(), wc.qp_num(), wc.opcode())))?;
    let qp = pair.a.qp.qp_num();
    let want = |id| (id, WcStatus::SUCCESS, qp, uverbs::WcOpcode::RDMA_WRITE);
    ensure!(n == 4 && seen == [3, 4, 5, 6].map(want), "{seen:?}");
    // An extended poll of some completions.
    let walked = cq.poll_session(|poll| -> Result<Vec<u64>> {
        let mut ids = vec![];
        for turn in 0..5 {
            ids.push(poll.current().map(|wc| wc.wr_id()).unwrap_or(u64::MAX));
            if turn < 4 {
                poll.next()?;
            }
        }
        Ok(ids)
    })??;
    ensure!(walked == [7, 8, 9, 10, 11], "{walked:?}");
    ensure!(ids(cq.poll(&mut three)?) == [12, 13, 14]);
    // A poll that reaches the end of the ring.
    let walked = cq.poll_session(|poll| {
        let mut n = 1;
        while poll.next().is_ok() {
            n += 1;
        }
        (n, poll.next())
    })?;
    ensure!(walked == (5, Err(PollError::Empty)), "{walked:?}");
    ensure!(cq.poll_session(|_| ()) == Err(PollError::Empty));
    ensure!(cq.poll_each(1, |_| ())? == 0);
    // Polls again after an empty poll.
    complete(&mut pair, 100, 2)?;
    ensure!(ids(pair.a.cq.poll(&mut three)?) == [100, 101]);
    Ok(())
}

/// `ibv_poll_cq` on a queue of either locking.
fn poll_cq_returns_all<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    complete(&mut pair, 0, 3)?;
    let mut wc = [WorkCompletion::default(); 2];
    #[expect(unsafe_code, reason = "C's face")]
    // SAFETY: one thread.
    let mut poll = || unsafe { pair.a.cq.poll_raw(&mut wc) };
    ensure!((poll()?, poll()?, poll()?) == (2, 1, 0));
    let cq: Cq<Exclusive, D> = lab.a.create_cq_ex(&CqInitAttr::new(2), None)?;
    #[expect(unsafe_code, reason = "C's face")]
    // SAFETY: one thread.
    let n = unsafe { cq.poll_raw(&mut wc) }?;
    ensure!(n == 0);
    Ok(())
}

/// A poll inside a poll of the same thread is an error, not a deadlock.
fn nested_poll_is_an_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    complete(&mut pair, 0, 3)?;
    let cq = &pair.a.cq;
    let mut inner = vec![];
    cq.poll_each(1, |_| inner.push(cq.poll(&mut [WorkCompletion::default()]).map(<[_]>::len)))?;
    cq.poll_session(|_| inner.push(cq.poll(&mut [WorkCompletion::default()]).map(<[_]>::len)))?;
    ensure!(inner == [Err(PollError::SessionOpen); 2], "{inner:?}");
    ensure!(cq.poll(&mut [WorkCompletion::default(); 4])?.len() == 1);
    Ok(())
}

/// Through `&mut`, without a lock, with the fields of the extended poll requested.
fn exclusive_cq_reports_extended_fields<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pair = RcPair::new(lab)?;
    let attr = CqInitAttr::new(10).wc_flags(WcExFlags::STANDARD).flags(CqFlags::SINGLE_THREADED);
    let mut cq: Cq<Exclusive, D> = lab.a.create_cq_ex(&attr, None)?;
    let recv_cq: Cq<Exclusive, D> = lab.a.create_cq_ex(&attr, None)?;
    let spec = Spec::new(lab);
    let mut qp = pair.a.pd.raw_qp::<Rc>().send_cq(&cq).recv_cq(&recv_cq).cap(spec.cap).create()?;
    let here = qp.control.endpoint(5, &spec.attr)?;
    qp.init(&spec.attr)?;
    qp.connect(&here, &pair.b.here, &spec.attr)?;
    let Pair { mut b, .. } = pair;
    b.set_state(uverbs::attr::QpState::RESET)?;
    b.connect(&here, &spec.attr)?;
    b.recv_empty(4)?;
    for id in 0..4 {
        qp.sq().post(id).signaled().send_inline(&[])?;
    }
    b.ok(4)?;
    let mut ids = vec![];
    let mut deadline = Deadline::usual();
    while ids.len() < 4 {
        match cq.poll_session(|poll| poll.current().map(|wc| wc.to_wc())) {
            Ok(wc) => ids.extend(wc.map(|wc| wc.wr_id)),
            Err(PollError::Empty) => deadline.pause(),
            Err(e) => return Err(e.into()),
        }
        ensure!(!deadline.passed());
    }
    ensure!(ids == [0, 1, 2, 3], "{ids:?}");
    ensure!(cq.poll(&mut [WorkCompletion::default()])?.is_empty());
    // The poll may stay open on its own thread.
    let thread = std::thread::spawn(move || cq.poll_each(1, |_| ()).map(|_| ()));
    ensure!(thread.join().is_ok_and(|r| r.is_ok()));
    Ok(())
}

/// An extended CQ is not created with fields that it can't report.
fn unsupported_fields_are_refused<D: Driver>(lab: &Lab<D>) -> Outcome {
    for field in [
        WcExFlags::COMPLETION_TIMESTAMP,
        WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK,
        WcExFlags::CVLAN,
        WcExFlags::FLOW_TAG,
        WcExFlags::TM_INFO,
    ] {
        let attr = CqInitAttr::new(4).wc_flags(WcExFlags::STANDARD | field);
        let offered = field.intersects(WcExFlags::TIMESTAMPS) && lab.device.completion_timestamp_mask != 0;
        match lab.a.create_cq_ex::<Shared>(&attr, None) {
            Ok(_) => lab.note(format_args!("{field:?} was accepted")),
            // The wall clock needs more than the device's counter: a page of the kernel's that translates.
            Err(e) => ensure!(
                e.is_unsupported() && (!offered || field == WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK),
                "{field:?}: {e}"
            ),
        }
    }
    Ok(())
}

/// Resizes with waiting completions: none is lost or duplicated; a size that is too small is refused.
fn resize_keeps_completions<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.cqe = 20;
    let mut pair = RcPair::with(lab, &spec)?;
    complete(&mut pair, 0, 20)?;
    let got = pair.a.cq.resize(100)?;
    ensure!(got >= 100, "{got}");
    complete(&mut pair, 20, 50)?;
    let ids = |all: &[WorkCompletion]| all.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    ensure!(ids(&pair.a.ok(30)?) == (0..30).collect::<Vec<_>>());
    let refused = pair.a.cq.resize(10);
    ensure!(refused.is_err(), "40 completions fit into {refused:?}");
    let got = pair.a.cq.resize(41)?;
    ensure!(got >= 41);
    complete(&mut pair, 70, 1)?;
    ensure!(ids(&pair.a.ok(41)?) == (30..71).collect::<Vec<_>>());
    // Resizes of an empty CQ, and during an extended poll.
    pair.a.cq.resize(16)?;
    complete(&mut pair, 200, 8)?;
    let cq = &pair.a.cq;
    let inner = cq.poll_session(|_| cq.resize(64).map_err(|e| e.errno()))?;
    ensure!(inner.is_err(), "{inner:?}");
    pair.a.cq.resize(64)?;
    ensure!(ids(&pair.a.ok(7)?) == (201..208).collect::<Vec<_>>());
    pair.a.idle()
}

/// `modify_cq` succeeds or is `Unsupported`.
fn modify_cq_works_or_is_unsupported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let cq = lab.a.create_cq(4, None)?;
    let offered = lab.device.cq_mod_caps.max_cq_count != 0;
    match cq.modify_moderation(CqModeration::new(2, 10)) {
        Ok(()) => ensure!(offered, "it succeeded, but the device does not have it"),
        Err(e) => ensure!(e.is_unsupported() && !offered, "{e}"),
    }
    Ok(())
}

/// Completions have timestamps, in the device's cycles and by the wall clock.
fn completions_have_timestamps<D: Driver>(lab: &Lab<D>) -> Outcome {
    let wc_flags = WcExFlags::COMPLETION_TIMESTAMP | WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK;
    let attr = CqInitAttr::new(16).wc_flags(wc_flags);
    let mut cq: Cq<Exclusive, D> = match lab.a.create_cq_ex(&attr, None) {
        Ok(cq) => cq,
        Err(e) if e.is_unsupported() => {
            lab.note(format_args!("{e}"));
            return Ok(());
        }
        Err(e) => return Err(e.into()),
    };
    let spec = Spec::new(lab);
    let PairEnd { pd, mr, .. } = RcPair::new(lab)?.a;
    let mut qp = pd.raw_qp::<Rc>().cq(&cq).cap(spec.cap).create()?;
    let here = qp.control.endpoint(1, &spec.attr)?;
    qp.init(&spec.attr)?;
    qp.connect(&here, &here, &spec.attr)?;
    let mut times = vec![];
    for wr_id in 0..3 {
        qp.sq().post(wr_id).signaled().write_inline(&[1; 8], mr.remote(0)?)?;
        let mut deadline = Deadline::usual();
        let (id, status, time) = loop {
            match cq.poll_session(|poll| {
                let wc = poll.current()?;
                Some((wc.wr_id(), wc.status(), (wc.completion_ts(), wc.completion_wallclock_ns())))
            }) {
                Ok(wc) => break wc.context("no entry")?,
                Err(PollError::Empty) => deadline.pause(),
                Err(e) => return Err(e.into()),
            }
            ensure!(!deadline.passed());
        };
        ensure!((id, status) == (wr_id, WcStatus::SUCCESS), "{id}: {status:?}");
        times.push(time);
    }
    ensure!(times.is_sorted() && times[0].0.is_some() && times[0].1.is_some_and(|t| t != 0), "{times:?}");
    Ok(())
}

crate::tests!(
    every_way_to_poll_returns_all,
    poll_cq_returns_all,
    nested_poll_is_an_error,
    exclusive_cq_reports_extended_fields,
    unsupported_fields_are_refused,
    completions_have_timestamps,
    resize_keeps_completions,
    modify_cq_works_or_is_unsupported,
);
