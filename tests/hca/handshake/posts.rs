// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resets during posts: in the middle of a stopped post, and between the steps of a batch or session.
#![expect(unsafe_code)]
// UNSAFETY: stops a thread of this process by a signal whose handler uses atomics only.

use super::Named;
use super::rig::{Elsewhere, Rig, polled, reconnect, send, works};
use anyhow::{Context as _, Result, anyhow, ensure};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;
use uverbs::attr::QpState;
use uverbs::mlx5::Mlx5;
use uverbs::{Exclusive, PostError, Rc, Shared, WcStatus, WorkCompletion, raw::Qp};
use uverbs_hca::Fabric;
use uverbs_tests::post::{builder, post_queue};
use uverbs_tests::{Face, Op, Outcome, Req, Test, wait};

/// Stops the thread of a post at its doorbell while the QP is reset and brought to RTS again. Afterwards no WR of that
/// post completes, on any face, and the indices of the queue are correct.
fn reset_discards_a_post_stopped_at_its_doorbell() -> Outcome {
    for (face, n) in Face::ALL.into_iter().flat_map(|face| [(face, 1), (face, 3)]) {
        let what = format!("{face:?}, {n}");
        let rig = Rig::new(1)?;
        let cq = rig.a.cq(127)?;
        let (mut a, mut b) = rig.pair(&cq, 8)?;
        // A few sends first, so that the indices are not 0.
        send(&mut a, &mut b, 0..5)?;
        ensure!(polled(&cq)?.len() == 5);
        let (stopped, is_stopped) = channel();
        let (go_on, may_go_on) = channel::<()>();
        rig.a.hooks.on_doorbell(move || {
            let _ = stopped.send(());
            let _ = may_go_on.recv_timeout(Duration::from_secs(60));
        });
        let (ac, bc, attr) = (a.control.clone(), b.control.clone(), rig.attr);
        let Qp { send: mut sq, recv, control } = a;
        let poster = Elsewhere::new(move || {
            let reqs: Vec<Req<'_, Mlx5>> =
                (100..100 + n).map(|id| Req::new(id, Op::Send).signaled().inline(b"old")).collect();
            let result = post_queue(&mut sq, face, &reqs);
            (result, sq)
        });
        is_stopped.recv_timeout(Duration::from_secs(60)).context("the post did not ring")?;
        let reset = Elsewhere::new(move || reconnect(&ac, &bc, &attr));
        // The reset may wait for the post or not, but no WR of the post may complete afterwards.
        let waited = !reset.moment();
        go_on.send(())?;
        reset.join()?.with_context(|| what.clone())?;
        let (result, sq) = poster.join()?;
        let mut a = Qp { send: sq, recv, control };
        rig.fabric.run();
        let ids = polled(&cq)?;
        ensure!(
            ids.is_empty(),
            "{what}: {ids:?} were posted before the reset; the post: {result:?}, waited: {waited}"
        );
        works(&rig, &mut a, &mut b, &cq, 8).with_context(|| format!("{what}; {result:?}"))?;
    }
    Ok(())
}

/// A post in a thread that a signal stops at an arbitrary point.
#[derive(Debug)]
struct Stopper;

/// The thread to stop, and whether it is stopped.
static STOP: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Only one test at a time uses the signal.
static SIGNAL: Mutex<()> = Mutex::new(());

extern "C" fn stand_still(_: libc::c_int) {
    // Short, and the processor is free for the reset that the thread holds up.
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    STOPPED.store(true, Ordering::SeqCst);
    while STOP.load(Ordering::SeqCst) {
        let none = core::ptr::null_mut();
        // SAFETY: pselect(2) may be called in a handler (signal-safety(7)); it reads a time, which exists, and has no sets.
        unsafe { libc::pselect(0, none, none, none, &raw const pause, core::ptr::null()) };
    }
    STOPPED.store(false, Ordering::SeqCst);
}

impl Stopper {
    fn new() -> Result<Self> {
        // SAFETY: all zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = stand_still as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a handler that uses atomics and pselect(2) only; the old action is not requested.
        let result = unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut()) };
        ensure!(result == 0, "sigaction: {}", std::io::Error::last_os_error());
        Ok(Self)
    }

    /// Stops a thread at its current instruction.
    fn stop(&self, thread: libc::pthread_t) -> Result<()> {
        STOP.store(true, Ordering::SeqCst);
        // SAFETY: a thread that is not joined yet.
        let result = unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
        ensure!(result == 0, "pthread_kill: {result}");
        let start = Instant::now();
        while !STOPPED.load(Ordering::SeqCst) {
            ensure!(start.elapsed() < Duration::from_secs(60), "the thread does not stop");
            thread::yield_now();
        }
        Ok(())
    }

    fn go_on(&self) {
        STOP.store(false, Ordering::SeqCst);
        while STOPPED.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }
}

/// A thread that posts is stopped at an arbitrary point while its QP is reset and set up again: its earlier posts are
/// discarded.
///
/// After that there are no posts, except perhaps that one call. So at most one message finds a receive, and if sends
/// are posted, at most one message arrives; neither belongs to a post that returned before.
fn stopped_anywhere(receives: bool, face: Face) -> Outcome {
    let _signal = SIGNAL.lock().map_err(|_| anyhow!("another test panicked"))?;
    let stopper = Stopper::new()?;
    let fabric = Fabric::new(1);
    let mut rig = Rig::on(fabric, 1)?;
    rig.attr.rnr_retry = 0;
    let (qa, qb) = (rig.a.cq(4000)?, rig.b.cq(4000)?);
    let deadline = Instant::now() + Duration::from_millis(1500);
    let mut turns = 0;
    // At least four turns, also on a slow machine.
    while turns < 4 || turns < 40 && Instant::now() < deadline {
        turns += 1;
        let a: Qp<Rc, Exclusive, Mlx5> = rig.a.qp(&qa, &qa, 256)?;
        let b: Qp<Rc, Exclusive, Mlx5> = rig.b.qp(&qb, &qb, 2048)?;
        rig.connect(&a.control, &b.control)?;
        let (ac, bc) = (a.control.clone(), b.control.clone());
        let (Qp { send: mut sq, recv: a_recv, .. }, Qp { send: b_send, recv: rq, .. }) = (a, b);
        let mut rq = rq.context("a receive queue")?;
        let quit = AtomicBool::new(false);
        // The number of posts that have returned, and the maximum.
        let posted = AtomicU64::new(0);
        let pthread = AtomicU64::new(0);
        thread::scope(|scope| -> Outcome {
            let poster = scope.spawn(|| -> Outcome {
                // SAFETY: takes nothing.
                pthread.store(unsafe { libc::pthread_self() }, Ordering::SeqCst);
                let mut id = 0;
                while !quit.load(Ordering::SeqCst) {
                    id += 1;
                    let result = if receives {
                        let recvs = [(id, &[][..])];
                        uverbs_tests::post_recv(&mut rq, face, &recvs)
                    } else {
                        // Not signaled, because the CQ is not polled.
                        post_queue(&mut sq, face, &[Req::<Mlx5>::new(id, Op::Send).inline(b"")])
                    };
                    match result.map_err(|e| e.error) {
                        Ok(()) | Err(Some(PostError::QueueFull | PostError::BadState)) => {}
                        Err(e) => return Err(anyhow!("post {id}: {e:?}")),
                    }
                    posted.store(id, Ordering::SeqCst);
                }
                Ok(())
            });
            let result = (|| -> Outcome {
                while posted.load(Ordering::SeqCst) < 20 {
                    thread::yield_now();
                }
                (0..turns % 7).for_each(|_| thread::yield_now());
                stopper.stop(pthread.load(Ordering::SeqCst))?;
                let done = posted.load(Ordering::SeqCst);
                quit.store(true, Ordering::SeqCst);
                let (ac2, bc2, attr) = (ac.clone(), bc.clone(), rig.attr);
                let reset = Elsewhere::new(move || reconnect(&ac2, &bc2, &attr));
                reset.moment_short();
                stopper.go_on();
                reset.join()?.context("reset")?;
                let _ = done;
                Ok(())
            })();
            stopper.go_on();
            quit.store(true, Ordering::SeqCst);
            poster.join().map_err(|_| anyhow!("the poster panicked"))??;
            result
        })?;
        let what = format!("turn {turns}, {face:?}, receives {receives}");
        let last = posted.load(Ordering::SeqCst);
        let mut wc = [WorkCompletion::default(); 8];
        // A WR that completes now was posted by the last call.
        for (cq, mine) in [(&qa, !receives), (&qb, receives)] {
            for wc in cq.poll(&mut wc)? {
                let flushed = wc.status == WcStatus::RNR_RETRY_EXC_ERR || wc.status == WcStatus::WR_FLUSH_ERR;
                ensure!(mine && wc.wr_id == last && flushed, "{what}: {wc:?}, the last was {last}");
            }
        }
        if receives {
            let mut taken = 0;
            while taken < 2 {
                sq.post(1000 + taken).signaled().send_inline(b"")?;
                let status = wait::completions(&qa, 1)?[0].status;
                if status != WcStatus::SUCCESS {
                    break;
                }
                taken += 1;
            }
            ensure!(taken <= 1, "{what}: {taken} messages were received, but at most one receive was posted");
            for wc in qb.poll(&mut wc)? {
                ensure!(wc.wr_id == last, "{what}: receive {} took a message, the last was {last}", wc.wr_id);
            }
        } else {
            // If the last send was posted, it waits for a receive; otherwise the queue is empty and usable.
            ensure!(matches!(ac.state()?, QpState::RTS | QpState::ERR));
        }
        drop((sq, a_recv, rq, b_send));
        rig.clean().context(what)?;
    }
    Ok(())
}

fn reset_discards_stopped_sends() -> Outcome {
    Face::ALL.into_iter().try_for_each(|face| stopped_anywhere(false, face))
}

fn reset_discards_stopped_receives() -> Outcome {
    [Face::Single, Face::Batch, Face::List].into_iter().try_for_each(|face| stopped_anywhere(true, face))
}

/// Typed batches of sends and receives that were begun before a reset fail when they are completed. Forgotten and
/// dropped batches have no effect. Control calls on the same thread wait for none of them.
fn batches_begun_before_a_reset_fail() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(127)?;
    let (mut a, mut b) = rig.pair(&cq, 8)?;
    send(&mut a, &mut b, 0..3)?;
    ensure!(polled(&cq)?.len() == 3);
    let (ac, bc) = (a.control.clone(), b.control.clone());
    for turn in 0..4 {
        let mut batch = a.sq().batch();
        batch.wr(100).signaled().send_inline(b"");
        batch.wr(101).signaled().send_inline(b"");
        reconnect(&ac, &bc, &rig.attr)?;
        match turn {
            0 => {
                let result = batch.complete();
                ensure!(result.is_err_and(|error| error == PostError::BadState), "{result:?}");
            }
            1 => {
                // WRs that are added later are discarded, too.
                batch.wr(102).signaled().send_inline(b"");
                let result = batch.complete();
                ensure!(result.is_err_and(|error| error == PostError::BadState), "{result:?}");
            }
            2 => forget(batch),
            _ => drop(batch),
        }
        rig.fabric.run();
        ensure!(polled(&cq)?.is_empty(), "turn {turn}");
        works(&rig, &mut a, &mut b, &cq, 8).with_context(|| format!("turn {turn}"))?;
    }
    for turn in 0..3 {
        let mut batch = b.rq()?.batch();
        // SAFETY: names no memory.
        unsafe { batch.push(100, &[]) };
        reconnect(&ac, &bc, &rig.attr)?;
        match turn {
            0 => {
                let result = batch.complete();
                ensure!(result.is_err_and(|error| error == PostError::BadState), "{result:?}");
            }
            1 => forget(batch),
            _ => drop(batch),
        }
        works(&rig, &mut a, &mut b, &cq, 8).with_context(|| format!("receives, turn {turn}"))?;
    }
    Ok(())
}

/// As above, with guards of shared queues: the lock of a forgotten batch is free.
fn shared_batches_begun_before_a_reset_fail() -> Outcome {
    let rig = Rig::new(1)?;
    let (cq, peer) = (rig.a.cq(127)?, rig.b.cq(127)?);
    let ops = uverbs::attr::SendOpsFlags::SEND;
    let a: Qp<Rc, Shared, Mlx5> =
        rig.a.pd.raw_qp::<Rc>().shared().cq(&cq).cap(super::rig::cap(8)).send_ops(ops).create()?;
    let mut b = rig.b.qp(&peer, &peer, 64)?;
    rig.connect(&a.control, &b.control)?;
    let sq = &a.send;
    for forgotten in [true, false] {
        let mut guard = sq.lock()?;
        let mut batch = guard.batch();
        batch.wr(1).signaled().send_inline(b"");
        reconnect(&a.control, &b.control, &rig.attr)?;
        if forgotten {
            forget(batch);
        } else {
            ensure!(batch.complete().is_err_and(|error| error == PostError::BadState));
        }
        drop(guard);
        for id in 0..8 {
            rig.b.recv(b.rq()?, id)?;
            sq.lock()?.post(id).signaled().send_inline(b"")?;
        }
        let ids = polled(&cq)?;
        ensure!(ids.iter().copied().eq(0..8), "{ids:?}");
        rig.clean()?;
    }
    Ok(())
}

/// Forgets a batch. It has no destructor now, but may get one.
fn forget<T>(batch: T) {
    let _ = ManuallyDrop::new(batch);
}

/// A builder session that was begun before a reset.
fn sessions_begun_before_a_reset_fail() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(127)?;
    let (mut a, mut b) = rig.pair(&cq, 8)?;
    let (ac, bc) = (a.control.clone(), b.control.clone());
    for turn in 0..3 {
        let sq = &a.send;
        let req: Req<'_, Mlx5> = Req::new(7, Op::Send).signaled().inline(b"");
        let mut session = builder(sq);
        session.start();
        session.request(&req);
        reconnect(&ac, &bc, &rig.attr)?;
        match turn {
            0 => ensure!(session.complete().is_err_and(|error| error == PostError::BadState)),
            1 => {
                session.request(&req);
                ensure!(session.complete().is_err_and(|error| error == PostError::BadState));
            }
            _ => session.abort(),
        }
        rig.fabric.run();
        ensure!(polled(&cq)?.is_empty(), "turn {turn}");
        works(&rig, &mut a, &mut b, &cq, 8).with_context(|| format!("turn {turn}"))?;
    }
    Ok(())
}

pub(super) fn tests() -> Vec<Test> {
    let all: &[Named] = &[
        ("reset_discards_a_post_stopped_at_its_doorbell", reset_discards_a_post_stopped_at_its_doorbell),
        ("reset_discards_stopped_sends", reset_discards_stopped_sends),
        ("reset_discards_stopped_receives", reset_discards_stopped_receives),
        ("batches_begun_before_a_reset_fail", batches_begun_before_a_reset_fail),
        ("shared_batches_begun_before_a_reset_fail", shared_batches_begun_before_a_reset_fail),
        ("sessions_begun_before_a_reset_fail", sessions_begun_before_a_reset_fail),
    ];
    all.iter()
        .map(|(name, test)| Test::long(&format!("handshake::posts::{name}"), super::LIMIT, test))
        .collect()
}
