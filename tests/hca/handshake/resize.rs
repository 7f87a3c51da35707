// SPDX-License-Identifier: MIT OR Apache-2.0
//! QPs that are reset or destroyed while their CQ is resized: after the device got the new ring and before the driver
//! switches to it, with completions in the old ring, in the new one, in both or in none.

use super::Named;
use super::rig::{Elsewhere, Rig, cap, polled, send, works};
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use uverbs::attr::{QpState, SrqAttr, SrqInitAttr};
use uverbs::mlx5::Mlx5;
use uverbs::{
    Exclusive, PostError, Rc,
    raw::{Qp, Srq},
};
use uverbs_tests::post::post_srq_recv;
use uverbs_tests::{Face, Outcome, Test};

/// The control call in the middle of the resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Close,
    Reset,
}

/// A thread that the hook started.
type Started = Arc<Mutex<Option<Elsewhere<Result<()>>>>>;

/// The QP of A is reset or destroyed in the middle of a resize. `before` and `within` are the numbers of completions in
/// the old and in the new ring.
fn ended(version: u8, ending: Ending, before: u64, within: u64, cqe: u32, first: bool) -> Outcome {
    let rig = Rig::new(version)?;
    let cq = rig.a.cq(63)?;
    let (mut victim, mut steady) = (rig.pair(&cq, 8)?, rig.pair(&cq, 8)?);
    if !first {
        core::mem::swap(&mut victim, &mut steady);
    }
    let (mut va, mut vb) = victim;
    let (mut sa, mut sb) = steady;
    // Completions of the other QP are between those of the QP that ends.
    send(&mut va, &mut vb, 100..100 + before)?;
    send(&mut sa, &mut sb, 0..1)?;
    let started = Started::default();
    let start = Arc::clone(&started);
    let (sa_before, fabric) = (sa.control.clone(), rig.fabric.clone());
    drop(sa_before);
    rig.a.hooks.on_resize(move || {
        let sent = send(&mut va, &mut vb, 200..200 + within);
        fabric.run();
        // A control call that waits for the end of the resize is correct, too, so the test waits for it only for a
        // short time.
        let elsewhere = Elsewhere::new(move || {
            sent?;
            match ending {
                Ending::Close => va.close()?,
                Ending::Reset => va.control.modify_state(QpState::RESET)?,
            }
            // If it was only reset, it is destroyed now.
            Ok(())
        });
        elsewhere.moment();
        *start.lock().unwrap_or_else(PoisonError::into_inner) = Some(elsewhere);
    });
    cq.resize(cqe).context("resize")?;
    let ended = started.lock().unwrap_or_else(PoisonError::into_inner).take().context("no hook ran")?;
    ended.join()?.context("the end of the QP")?;
    let ids = polled(&cq).context("poll")?;
    ensure!(ids == [0], "{ids:?} of the other QP");
    // A new QP gets the user index of the old one. Completions of the old QP must not be attributed to it.
    let (mut na, mut nb) = rig.pair(&cq, 8)?;
    for id in 300..303 {
        na.sq().post(id).signaled().send_inline(b"")?;
    }
    let ids = polled(&cq)?;
    ensure!(ids.is_empty(), "{ids:?} succeeded without a receive");
    for id in 300..303 {
        rig.b.recv(nb.rq()?, id)?;
    }
    rig.fabric.run_for(Duration::from_secs(1));
    let ids = polled(&cq)?;
    ensure!(ids == [300, 301, 302], "{ids:?} of the new QP");
    works(&rig, &mut sa, &mut sb, &cq, 8)
}

fn qps_ended_in_a_resize_leave_no_completions() -> Outcome {
    for version in [0, 1] {
        for ending in [Ending::Close, Ending::Reset] {
            for (before, within) in [(0, 0), (3, 0), (0, 3), (2, 2)] {
                for cqe in [127, 20] {
                    for first in [false, true] {
                        ended(version, ending, before, within, cqe, first).with_context(|| {
                            format!(
                                "version {version}, {ending:?}, {before} before, {within} within, to {cqe}, first {first}"
                            )
                        })?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// If a QP is destroyed in the middle of a resize, the receives that it took from an SRQ are free again.
fn qps_ended_in_a_resize_free_srq_receives() -> Outcome {
    for (version, before, within) in [(0, 2, 2), (1, 2, 2), (1, 4, 0), (1, 0, 4)] {
        let what = format!("version {version}, {before} before, {within} within");
        let rig = Rig::new(version)?;
        let (qa, qb) = (rig.a.cq(63)?, rig.b.cq(31)?);
        let attr = SrqAttr::new(4);
        let mut srq: Srq<Exclusive, Mlx5> = rig.b.pd.create_srq(&SrqInitAttr::new(attr))?;
        let room = srq.attr().max_wr as usize;
        let recvs: Vec<_> = (0..room as u64).map(|id| (id, &[][..])).collect();
        for round in 0..3 {
            post_srq_recv(&mut srq, Face::List, &recvs)
                .with_context(|| format!("{what}: the whole SRQ in round {round}"))?;
            ensure!(
                post_srq_recv(&mut srq, Face::List, &recvs[..1])
                    .is_err_and(|e| e.error == Some(PostError::QueueFull)),
                "{what}: one more"
            );
            let mut a = rig.a.qp(&qa, &qa, 16)?;
            let b: Qp<Rc, Exclusive, Mlx5> =
                rig.b.pd.raw_qp::<Rc>().cq(&qb).cap(cap(4)).srq(&srq).create()?;
            rig.connect(&a.control, &b.control)?;
            for id in 0..before {
                a.sq().post(id).signaled().send_inline(b"")?;
            }
            let started = Started::default();
            let start = Arc::clone(&started);
            rig.b.hooks.on_resize(move || {
                let send = (0..within as u64 + (room as u64).saturating_sub(4))
                    .try_for_each(|id| a.sq().post(id).signaled().send_inline(b""));
                let elsewhere = Elsewhere::new(move || {
                    send?;
                    Ok(b.close()?)
                });
                elsewhere.moment();
                *start.lock().unwrap_or_else(PoisonError::into_inner) = Some(elsewhere);
            });
            qb.resize(if round % 2 == 0 { 63 } else { 31 }).context("resize")?;
            let ended =
                started.lock().unwrap_or_else(PoisonError::into_inner).take().context("no hook ran")?;
            ended.join()?.context("the end of the QP")?;
            ensure!(polled(&qb)?.is_empty(), "{what}");
            polled(&qa)?;
            rig.clean().with_context(|| what.clone())?;
        }
    }
    Ok(())
}

/// A resize in a callback is refused without a deadlock, and the completions are still reported.
fn resize_in_a_callback_is_refused() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(63)?;
    let (mut a, mut b) = rig.pair(&cq, 8)?;
    send(&mut a, &mut b, 0..4)?;
    let (mut results, mut n) = (Vec::new(), 0);
    cq.poll_each(16, |_| {
        n += 1;
        results.push(cq.resize(127).map_err(|e| e.errno()));
    })?;
    ensure!(n == 4 && results.iter().all(|r| *r == Err(uverbs::Errno::EBUSY)), "{n}, {results:?}");
    cq.resize(127)?;
    works(&rig, &mut a, &mut b, &cq, 8)
}

pub(super) fn tests() -> Vec<Test> {
    let all: &[Named] = &[
        ("qps_ended_in_a_resize_leave_no_completions", qps_ended_in_a_resize_leave_no_completions),
        ("qps_ended_in_a_resize_free_srq_receives", qps_ended_in_a_resize_free_srq_receives),
        ("resize_in_a_callback_is_refused", resize_in_a_callback_is_refused),
    ];
    all.iter()
        .map(|(name, test)| Test::long(&format!("handshake::resize::{name}"), super::LIMIT, test))
        .collect()
}
