// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reset and destroy while a CQ is polled: between two completions of the same poll, on the polling thread or another.
#![expect(unsafe_code)]
// UNSAFETY: posts receives that name no memory.

use super::Named;
use super::rig::{Cq, Elsewhere, Rig, SLOT, Wc, cap, connect, polled, reconnect, send, works};
use anyhow::{Context as _, Result, ensure};
use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use uverbs::mlx5::Mlx5;
use uverbs::{
    Exclusive,
    attr::{QpState, SrqAttr, SrqInitAttr, WqInitAttr, WqState},
};
use uverbs::{PollError, PostError, Rc, Ud, raw::Qp};
use uverbs_core::provider::Completion as _;
use uverbs_tests::{Outcome, Refused, Test};

/// The thread that makes the control call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The polling thread itself, in a callback.
    Itself,
    /// Another thread, while the callback waits for it.
    Another,
}

impl By {
    const BOTH: [Self; 2] = [Self::Itself, Self::Another];

    fn call(self, f: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        match self {
            Self::Itself => f(),
            Self::Another => Elsewhere::new(f).join()?,
        }
    }
}

/// Polls with a callback; `first` runs in the first call of it.
fn poll_each(cq: &Cq, first: impl FnOnce() -> Result<()>) -> Result<Vec<u64>> {
    let (mut first, mut result, mut ids) = (Some(first), Ok(()), Vec::new());
    cq.poll_each(16, |completion| {
        ids.push(completion.wr_id());
        if let Some(first) = first.take() {
            result = first();
        }
    })?;
    result.map(|()| ids)
}

/// After a reset in a callback, no earlier completion is reported, and the indices of the queue are correct.
fn reset_in_a_callback_discards_sends() -> Outcome {
    for (version, by) in [0, 1].into_iter().flat_map(|v| By::BOTH.map(|by| (v, by))) {
        let rig = Rig::new(version)?;
        let cq = rig.a.cq(63)?;
        let (mut a, mut b) = rig.pair(&cq, 8)?;
        send(&mut a, &mut b, 100..104)?;
        let (ac, bc, attr) = (a.control.clone(), b.control.clone(), rig.attr);
        let ids = poll_each(&cq, || by.call(move || reconnect(&ac, &bc, &attr)))?;
        ensure!(ids == [100], "version {version}, {by:?}: {ids:?}");
        works(&rig, &mut a, &mut b, &cq, 8).with_context(|| format!("version {version}, {by:?}"))?;
    }
    Ok(())
}

/// After a reset in a callback, a receive queue of 4 accepts 4 receives, and each completes once.
fn reset_in_a_callback_frees_receives() -> Outcome {
    for by in By::BOTH {
        let rig = Rig::new(1)?;
        let (qa, qb) = (rig.a.cq(63)?, rig.b.cq(63)?);
        let (mut a, mut b) = (rig.a.qp(&qa, &qa, 16)?, rig.b.qp(&qb, &qb, 4)?);
        rig.connect(&a.control, &b.control)?;
        let room = u64::from(b.cap().max_recv_wr);
        for id in 0..room {
            rig.b.recv(b.rq()?, id)?;
        }
        for _ in 0..3 {
            a.sq().post(0).signaled().send_inline(&[1; 60])?;
        }
        polled(&qa)?;
        let (ac, bc, attr) = (a.control.clone(), b.control.clone(), rig.attr);
        let ids = poll_each(&qb, || by.call(move || reconnect(&ac, &bc, &attr)))?;
        ensure!(ids == [0], "{by:?}: {ids:?}");
        let fill = vec![0xa5; SLOT];
        for id in 0..room {
            rig.b.mr.write_at(id as usize * SLOT, &fill)?;
        }
        for id in 10..10 + room {
            rig.b.recv(b.rq()?, id)?;
        }
        let more = rig.b.recv(b.rq()?, 99);
        ensure!(
            more == Err(Refused::new(PostError::QueueFull, Some(0))),
            "{by:?}: one more than fits: {more:?}"
        );
        for id in 10..10 + 3 * room {
            a.sq().post(0).signaled().send_inline(&[2; 60])?;
            ensure!(polled(&qa)?.len() == 1 && polled(&qb)? == [id], "{by:?}: receive {id}");
            rig.b.recv(b.rq()?, id + room)?;
        }
        let mut bytes = fill.clone();
        for id in 0..room {
            rig.b.mr.read_at(id as usize * SLOT, &mut bytes)?;
            ensure!(bytes == fill, "{by:?}: receive {id}, posted before the reset, was written after it");
        }
        rig.clean()?;
    }
    Ok(())
}

/// Destroys a QP, with or without a reset before.
fn end(qp: Qp<Rc, Exclusive, Mlx5>, destroy: bool) -> Result<()> {
    if destroy {
        qp.close()?;
    } else {
        qp.control.modify_state(QpState::RESET)?;
    }
    Ok(())
}

/// One of two QPs of a CQ is reset or destroyed in a callback, with completions before and after those of the other QP.
fn other_qp_keeps_its_completions() -> Outcome {
    for (version, by) in [0, 1].into_iter().flat_map(|v| By::BOTH.map(|by| (v, by))) {
        for destroy in [false, true] {
            for first in [false, true] {
                let what = format!("version {version}, {by:?}, destroy {destroy}, first {first}");
                let rig = Rig::new(version)?;
                let cq = rig.a.cq(63)?;
                let (mut victim, mut steady) = (rig.pair(&cq, 8)?, rig.pair(&cq, 8)?);
                if first {
                    core::mem::swap(&mut victim, &mut steady);
                }
                let (mut va, mut vb) = victim;
                let (mut sa, mut sb) = steady;
                for turn in 0..3 {
                    send(&mut sa, &mut sb, 10 * turn..10 * turn + 2)?;
                    send(&mut va, &mut vb, 100 + 10 * turn..100 + 10 * turn + 2)?;
                }
                let end = move || end(va, destroy);
                // A poll may end early if a queue is reset in its callback; the next poll returns the rest.
                let mut ids = poll_each(&cq, || by.call(end))?;
                ids.extend(polled(&cq)?);
                ensure!(ids == [0, 1, 10, 11, 20, 21], "{what}: {ids:?}");
                works(&rig, &mut sa, &mut sb, &cq, 8).context(what)?;
            }
        }
    }
    Ok(())
}

/// One of two QPs of a CQ is reset or destroyed during an extended poll.
fn other_qp_keeps_its_completions_in_a_session() -> Outcome {
    for (version, by) in [0, 1].into_iter().flat_map(|v| By::BOTH.map(|by| (v, by))) {
        for destroy in [false, true] {
            let what = format!("version {version}, {by:?}, destroy {destroy}");
            let rig = Rig::new(version)?;
            let cq = rig.a.cq(63)?;
            let ((mut va, mut vb), (mut sa, mut sb)) = (rig.pair(&cq, 8)?, rig.pair(&cq, 8)?);
            send(&mut va, &mut vb, 100..102)?;
            send(&mut sa, &mut sb, 0..2)?;
            send(&mut va, &mut vb, 102..104)?;
            let end = move || end(va, destroy);
            let seen = cq.poll_session(|poll| -> Result<Vec<u64>> {
                let mut ids: Vec<u64> = poll.current().map(|c| c.wr_id()).into_iter().collect();
                by.call(end)?;
                loop {
                    match poll.next() {
                        Ok(()) => ids.extend(poll.current().map(|c| c.wr_id())),
                        Err(PollError::Empty) => return Ok(ids),
                        Err(e) => return Err(e.into()),
                    }
                }
            })??;
            // A session that is no longer valid may end early; the other completions come later.
            let mut ids = seen.clone();
            ids.extend(polled(&cq)?);
            ensure!(ids == [100, 0, 1], "{what}: {seen:?}, all: {ids:?}");
            works(&rig, &mut sa, &mut sb, &cq, 8).context(what)?;
        }
    }
    Ok(())
}

/// A callback that panics leaves the CQ as if it had returned: a reset does not block, and the next poll returns the
/// other completions.
fn panic_in_a_callback_ends_the_poll() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(63)?;
    let (mut a, mut b) = rig.pair(&cq, 8)?;
    send(&mut a, &mut b, 0..4)?;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(|| cq.poll_each(16, |_| panic!("in a callback"))));
    std::panic::set_hook(hook);
    ensure!(result.is_err());
    let ids = polled(&cq)?;
    ensure!(ids == [1, 2, 3], "{ids:?}");
    send(&mut a, &mut b, 4..6)?;
    let (ac, bc, attr) = (a.control.clone(), b.control.clone(), rig.attr);
    Elsewhere::new(move || reconnect(&ac, &bc, &attr)).join()??;
    let ids = polled(&cq)?;
    ensure!(ids.is_empty(), "{ids:?}");
    works(&rig, &mut a, &mut b, &cq, 8)
}

/// The ways in which QPs end.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Close,
    Reset,
    /// Moved to ERR first, so that there are more completions.
    Flush,
}

/// Completions of QPs that were reset or destroyed use no entries of the CQ: new QPs can complete without a poll.
fn ended_qps_free_cq_entries() -> Outcome {
    for (version, ending) in
        [0, 1].into_iter().flat_map(|v| [Ending::Close, Ending::Reset, Ending::Flush].map(|e| (v, e)))
    {
        let rig = Rig::new(version)?;
        let (send_cq, recv_cq) = (rig.a.cq(15)?, rig.a.cq(15)?);
        for round in 0..6 {
            let what = format!("version {version}, {ending:?}, round {round}");
            let peer = rig.b.cq(63)?;
            let mut a = rig.a.qp(&send_cq, &recv_cq, 4)?;
            let mut b = rig.b.qp(&peer, &peer, 4)?;
            rig.connect(&a.control, &b.control)?;
            send(&mut a, &mut b, 0..4)?;
            send(&mut b, &mut a, 0..4)?;
            match ending {
                Ending::Close => {}
                Ending::Reset => a.control.modify_state(QpState::RESET)?,
                Ending::Flush => a.control.modify_state(QpState::ERR)?,
            }
            if let Ending::Reset = ending {
                // RESET alone removes the completions, before the QP is destroyed.
                ensure!(polled(&send_cq)?.is_empty() && polled(&recv_cq)?.is_empty(), "{what}");
                rig.connect(&a.control, &rig.b.qp(&peer, &peer, 4)?.control)?;
            }
            a.close()?;
            rig.clean().context(what)?;
        }
        ensure!(polled(&send_cq)?.is_empty() && polled(&recv_cq)?.is_empty());
    }
    Ok(())
}

/// As above, for datagrams, with one CQ for both queues of a QP.
fn ended_ud_qps_free_cq_entries() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(15)?;
    for round in 0..6 {
        let mut a = rig.a.pd.raw_qp::<Ud>().cq(&cq).cap(cap(4)).create()?;
        let attr = &rig.attr;
        a.init(attr)?;
        let here = a.control.endpoint(3, attr)?;
        a.connect(&here, &here, attr)?;
        let ah = rig.a.pd.create_ah(&attr.ah_attr(&here))?;
        let qpn = a.qp_num();
        for id in 0..4 {
            rig.a.recv(a.rq()?, id)?;
            a.sq().post_to(id, &ah, qpn, attr.qkey).signaled().send_inline(b"12345678")?;
        }
        rig.fabric.run();
        if round % 2 == 0 {
            a.control.modify_state(QpState::RESET)?;
            ensure!(polled(&cq)?.is_empty(), "round {round}");
        }
        a.close()?;
        rig.clean().with_context(|| format!("round {round}"))?;
    }
    ensure!(polled(&cq)?.is_empty());
    Ok(())
}

/// Receives of an SRQ are free again if their completions are removed with a QP.
fn ended_qps_free_srq_receives() -> Outcome {
    for version in [0, 1] {
        for reset in [false, true] {
            let what = format!("version {version}, reset {reset}");
            let rig = Rig::new(version)?;
            let (qa, qb) = (rig.a.cq(1023)?, rig.b.cq(15)?);
            let attr = SrqAttr::new(8);
            let mut srq = rig.b.pd.create_srq::<Exclusive>(&SrqInitAttr::new(attr))?;
            let room = u64::from(srq.attr().max_wr);
            for _ in 0..6 {
                for id in 0..room {
                    // SAFETY: names no memory.
                    unsafe { srq.post(id, &[]) }.with_context(|| format!("{what}: receive {id}"))?;
                }
                // SAFETY: names no memory.
                let full = unsafe { srq.post(99, &[]) };
                ensure!(full.is_err_and(|error| error == PostError::QueueFull), "{what}: one more");
                let mut a = rig.a.qp(&qa, &qa, 16)?;
                let b: Qp<Rc, Exclusive, Mlx5> =
                    rig.b.pd.raw_qp::<Rc>().cq(&qb).cap(cap(4)).srq(&srq).create()?;
                rig.connect(&a.control, &b.control)?;
                for id in 0..room {
                    a.sq().post(id).signaled().send_inline(b"")?;
                }
                rig.fabric.run();
                ensure!(polled(&qa)?.len() == room as usize, "{what}");
                if reset {
                    b.control.modify_state(QpState::RESET)?;
                }
                b.close()?;
                rig.clean().with_context(|| what.clone())?;
            }
        }
    }
    Ok(())
}

/// As above, for an XRC receive QP, whose SRQ has the CQ.
fn ended_xrc_qps_free_srq_receives() -> Outcome {
    for version in [0, 1] {
        let rig = Rig::new(version)?;
        let (qa, qb) = (rig.a.cq(1023)?, rig.b.cq(15)?);
        let xrcd = rig.b.context.open_xrcd(None, true, false)?;
        let attr = SrqInitAttr::new(SrqAttr::new(8)).srq_type(uverbs::attr::SrqType::Xrc);
        let mut srq: uverbs::raw::Srq<Exclusive, Mlx5> =
            uverbs::raw::Srq::create_xrc(&rig.b.pd, &attr, &xrcd, &qb)?;
        let number = srq.srq_num()?;
        let room = u64::from(srq.attr().max_wr).min(8);
        for round in 0..6 {
            for id in 0..room {
                // SAFETY: names no memory.
                unsafe { srq.post(id, &[]) }.with_context(|| format!("round {round}, receive {id}"))?;
            }
            let mut a = rig
                .a
                .pd
                .raw_qp::<uverbs::XrcSend>()
                .send_cq(&qa)
                .cap(cap(16).max_recv_wr(0).max_recv_sge(0))
                .create()?;
            let b = xrcd.recv_qp().create_recv()?;
            connect(&a.control, &b, &rig.attr)?;
            for id in 0..room {
                a.sq().post_srq(id, number).signaled().send_inline(b"")?;
            }
            rig.fabric.run();
            ensure!(polled(&qa)?.len() == room as usize);
            // The completions belong to the SRQ and stay, but the QP may be destroyed in the middle of the poll.
            let ids = poll_each(&qb, || {
                drop(b);
                Ok(())
            })?;
            let mut all = ids;
            all.extend(polled(&qb)?);
            ensure!(all.len() <= room as usize && all.iter().copied().eq(0..all.len() as u64), "{all:?}");
            rig.clean().with_context(|| format!("version {version}, round {round}"))?;
        }
    }
    Ok(())
}

/// As above, for a work queue.
fn ended_wqs_free_cq_entries() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(15)?;
    for round in 0..6 {
        let attr = WqInitAttr::new(8);
        let mut wq = rig.a.pd.create_wq::<Exclusive, _>(&cq, &attr)?;
        wq.modify_state(WqState::RDY)?;
        for id in 0..8 {
            // SAFETY: names no memory.
            unsafe { wq.post(id, &[])? };
        }
        // The receives are flushed, because there is no sender to complete them.
        wq.modify_state(WqState::ERR)?;
        rig.fabric.run();
        let mut first = true;
        let seen = RefCell::new(Vec::new());
        if round % 2 == 0 {
            let (mut result, mut wq) = (Ok(()), Some(wq));
            cq.poll_each(16, |completion| {
                seen.borrow_mut().push(completion.wr_id());
                if core::mem::take(&mut first) {
                    result = wq.as_ref().map_or(Ok(()), |wq| wq.modify_state(WqState::RESET));
                    wq = None;
                }
            })?;
            result?;
            let seen = seen.into_inner();
            ensure!(seen.len() <= 1, "{seen:?}");
        } else {
            drop(wq);
        }
        ensure!(cq.poll(&mut [Wc::default(); 8])?.is_empty(), "round {round}");
        rig.clean().with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// QPs are created and destroyed while another thread arms their CQ repeatedly.
fn cq_is_armed_while_qps_are_destroyed() -> Outcome {
    let rig = Rig::new(1)?;
    let channel = rig.a.context.create_comp_channel()?;
    channel.set_nonblocking(true)?;
    let cq: Cq = rig.a.context.create_cq(63, Some(&channel))?;
    let stop = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let armer = scope.spawn(|| -> Result<u32> {
            let mut n = 0;
            while !stop.load(core::sync::atomic::Ordering::Relaxed) {
                cq.req_notify(n % 2 == 0)?;
                let _ = channel.get_event();
                n += 1;
            }
            Ok(n)
        });
        let work = || -> Result<()> {
            for turn in 0..60 {
                let (mut a, mut b) = rig.pair(&cq, 8)?;
                send(&mut a, &mut b, 0..8)?;
                if turn % 2 == 0 {
                    a.control.modify_state(QpState::RESET)?;
                }
                a.close()?;
            }
            Ok(())
        };
        let worked = work();
        stop.store(true, core::sync::atomic::Ordering::Relaxed);
        let armed = armer.join().map_err(|_| anyhow::anyhow!("the arming thread panicked"))??;
        ensure!(armed > 0);
        worked
    })?;
    ensure!(polled(&cq)?.is_empty());
    rig.clean()
}

pub(super) fn tests() -> Vec<Test> {
    let all: &[Named] = &[
        ("reset_in_a_callback_discards_sends", reset_in_a_callback_discards_sends),
        ("reset_in_a_callback_frees_receives", reset_in_a_callback_frees_receives),
        ("other_qp_keeps_its_completions", other_qp_keeps_its_completions),
        ("other_qp_keeps_its_completions_in_a_session", other_qp_keeps_its_completions_in_a_session),
        ("panic_in_a_callback_ends_the_poll", panic_in_a_callback_ends_the_poll),
        ("ended_qps_free_cq_entries", ended_qps_free_cq_entries),
        ("ended_ud_qps_free_cq_entries", ended_ud_qps_free_cq_entries),
        ("ended_qps_free_srq_receives", ended_qps_free_srq_receives),
        ("ended_xrc_qps_free_srq_receives", ended_xrc_qps_free_srq_receives),
        ("ended_wqs_free_cq_entries", ended_wqs_free_cq_entries),
        ("cq_is_armed_while_qps_are_destroyed", cq_is_armed_while_qps_are_destroyed),
    ];
    all.iter()
        .map(|(name, test)| Test::long(&format!("handshake::polls::{name}"), super::LIMIT, test))
        .collect()
}
