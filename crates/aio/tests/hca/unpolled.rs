// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that run the dispatcher, and then are not polled any more: others go on.
#![cfg(feature = "tokio")]

use crate::bed::{End, connect};
use core::future::{Future, pending, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;
use tokio::runtime::{Builder, Runtime};
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Dispatcher, Error, Qp, Result};
use uverbs_hca::Fabric;

/// The time in which a test that does not hang ends.
const LIMIT: Duration = Duration::from_secs(20);

type Left = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The runtime of the future that is left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Home {
    Runs,
    /// It is not run any more.
    Stands,
    Shut,
}

/// Who waits besides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Other {
    Thread,
    /// A task with a future, in the runtime of the one that is left, or in another one.
    Here,
    There,
    /// A task besides one that runs the dispatcher.
    Driven,
}

/// Two devices, of which the peer answers.
struct Bed {
    a: End,
    dispatcher: Dispatcher<Mlx5>,
    qp: Qp<Rc, Mlx5>,
    _peer: uverbs_aio::DispatcherThread,
}

impl Bed {
    fn new(spin: Duration) -> Self {
        let fabric = Fabric::new(7);
        let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build(), false));
        let dispatcher = a.dispatcher.another().spin(spin).build().unwrap();
        let qp = dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
        connect(&qp, &b.qp);
        let peer = b.dispatcher.spawn().unwrap();
        thread::spawn(move || {
            b.dispatcher.block_on(async {
                while let Ok(message) = b.qp.recv().await {
                    b.qp.send(message.into_buf()).await?;
                }
                Ok::<_, Error>(())
            })
        });
        Self { a, dispatcher, qp, _peer: peer }
    }

    /// Some messages, with a pause between them in which nothing is expected any more, and a timer.
    fn work(&self) -> impl Future<Output = Result<()>> + Send + 'static {
        let (qp, pool, dispatcher) = (self.qp.clone(), self.a.pool.clone(), self.dispatcher.clone());
        async move {
            for i in 0..2_u8 {
                let mut buf = pool.get().unwrap();
                buf.fill(&[i])?;
                qp.send(buf).await?;
                assert_eq!(*qp.recv().await?, [i]);
                dispatcher.sleep(Duration::from_millis(3)).await;
            }
            Ok(())
        }
    }

    fn left(&self, of_drive: bool) -> Left {
        let dispatcher = self.dispatcher.clone();
        match of_drive {
            true => Box::pin(async move { drop(dispatcher.drive().await) }),
            false => Box::pin(async move { drop(dispatcher.drive_with(pending::<()>()).await) }),
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Polls a future some times, so that it has run the dispatcher, and is in the middle of its wait.
async fn begin(left: &mut Left, polls: u32) {
    for _ in 0..polls {
        poll_fn(|cx| {
            assert!(left.as_mut().poll(&mut Context::from_waker(cx.waker())).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }
}

/// Each way to leave a future, beside each kind of waiter.
fn others_go_on(of_drive: bool, is_forgotten: bool, spin: Duration, home: Home, other: Other) {
    let what = format!("drive: {of_drive}, forgotten: {is_forgotten}, spin: {spin:?}, {home:?}, {other:?}");
    let bed = Bed::new(spin);
    let (ended, end) = mpsc::channel();
    let mut left = bed.left(of_drive);
    let at_home = Arc::new(runtime());
    at_home.block_on(begin(&mut left, 3));
    let kept = if is_forgotten {
        core::mem::forget(left);
        None
    } else {
        Some(left)
    };
    let at_home = if home == Home::Shut {
        Arc::into_inner(at_home).unwrap().shutdown_background();
        None
    } else {
        Some(at_home)
    };
    let running = at_home.clone().filter(|_| home == Home::Runs && other != Other::Here);
    if let Some(at_home) = running {
        thread::spawn(move || at_home.block_on(pending::<()>()));
    }
    let (work, dispatcher) = (bed.work(), bed.dispatcher.clone());
    thread::spawn(move || {
        let result = match other {
            Other::Thread => dispatcher.block_on(work),
            Other::Here => at_home.unwrap().block_on(dispatcher.drive_with(work)).unwrap(),
            Other::There => runtime().block_on(dispatcher.drive_with(work)).unwrap(),
            Other::Driven => runtime().block_on(async {
                let driving = tokio::spawn(dispatcher.drive());
                let result = work.await;
                driving.abort();
                result
            }),
        };
        ended.send(result).unwrap();
    });
    let result = end.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("it hangs: {what}"));
    assert!(result.is_ok(), "{result:?}: {what}");
    drop(kept);
}

fn each_way(of_drive: bool, is_forgotten: bool) {
    // With the second one it is left while it polls without sleeping.
    for spin in [Duration::ZERO, Duration::from_secs(1000)] {
        for home in [Home::Runs, Home::Stands, Home::Shut] {
            for other in [Other::Thread, Other::Here, Other::There, Other::Driven] {
                if other != Other::Here || home != Home::Shut {
                    others_go_on(of_drive, is_forgotten, spin, home, other);
                }
            }
        }
    }
}

#[test]
fn a_future_that_is_not_polled_stops_no_other() {
    each_way(false, false);
}

#[test]
fn a_future_that_is_forgotten_stops_no_other() {
    each_way(false, true);
}

#[test]
fn a_task_that_is_not_polled_stops_no_other() {
    each_way(true, false);
    each_way(true, true);
}

/// A branch of `select!` that is not polled while another branch waits.
#[test]
fn a_branch_of_select_may_drive_while_another_one_waits() {
    for spin in [Duration::ZERO, Duration::from_micros(50), Duration::from_secs(1000)] {
        let bed = Bed::new(spin);
        let (work, dispatcher) = (bed.work(), bed.dispatcher.clone());
        let handled = runtime().block_on(async {
            let mut tick = tokio::time::interval(Duration::from_millis(20));
            tick.tick().await;
            let mut background = core::pin::pin!(dispatcher.drive_with(pending::<()>()));
            tokio::select! {
                _ = &mut background => unreachable!(),
                _ = tick.tick() => tokio::time::timeout(LIMIT, dispatcher.drive_with(work)).await,
            }
        });
        handled.expect("it hangs").unwrap().unwrap();
    }
}

/// A future that was called to go on with the dispatcher, and does not: the one that called it has left.
#[test]
fn a_future_that_is_called_and_not_polled_stops_no_other() {
    let bed = Bed::new(Duration::from_secs(1000));
    let (works, dispatcher) = ([bed.work(), bed.work()], bed.dispatcher.clone());
    runtime().block_on(async {
        let mut left: Vec<_> = (0..5).map(|_| bed.left(false)).collect();
        for left in &mut left {
            begin(left, 1).await;
        }
        for work in works {
            let worked = tokio::time::timeout(LIMIT, dispatcher.drive_with(work)).await;
            worked.expect("it hangs").unwrap().unwrap();
        }
    });
}

/// A thread leads. Tasks that wait meanwhile, and their runtimes, go on when it leaves.
#[test]
fn tasks_go_on_when_a_thread_leaves() {
    for is_left in [false, true] {
        let bed = Bed::new(Duration::ZERO);
        let dispatcher = bed.dispatcher.clone();
        let (leads, when) = mpsc::channel();
        let leader = thread::spawn(move || {
            dispatcher.block_on(async {
                leads.send(()).unwrap();
                dispatcher.sleep(Duration::from_millis(50)).await;
            });
        });
        when.recv().unwrap();
        let (work, dispatcher) = (bed.work(), bed.dispatcher.clone());
        runtime().block_on(async {
            let mut left = bed.left(false);
            if is_left {
                begin(&mut left, 1).await;
            }
            let worked = tokio::time::timeout(LIMIT, dispatcher.drive_with(work)).await;
            worked.expect("it hangs").unwrap().unwrap();
        });
        leader.join().unwrap();
    }
}

/// A future that moves to another runtime, because its own one was shut down.
#[test]
fn a_future_survives_its_runtime() {
    let bed = Bed::new(Duration::ZERO);
    let (work, dispatcher) = (bed.work(), bed.dispatcher.clone());
    let mut moves = Box::pin(async move { dispatcher.drive_with(work).await });
    let first = runtime();
    first.block_on(async {
        let once = poll_fn(|cx| Poll::Ready(moves.as_mut().poll(cx).is_pending()));
        assert!(once.await);
    });
    drop(first);
    let worked = runtime().block_on(async { tokio::time::timeout(LIMIT, moves).await });
    worked.expect("it hangs").unwrap().unwrap();
}

/// An event loop of the program takes events and wakeups for which tasks wait, and then ends.
#[test]
fn an_event_loop_beside_tasks() {
    for _ in 0..5 {
        let bed = Bed::new(Duration::ZERO);
        let stop = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    if bed.dispatcher.prepare_sleep().unwrap().is_some() {
                        bed.dispatcher.after_sleep().unwrap();
                    }
                    thread::yield_now();
                }
            });
            runtime().block_on(async {
                for i in 0..6 {
                    let worked = tokio::time::timeout(LIMIT, bed.dispatcher.drive_with(bed.work())).await;
                    worked.expect("it hangs").unwrap().unwrap();
                    stop.fetch_add(usize::from(i == 2), Ordering::Relaxed);
                }
            });
        });
    }
}

/// Of many tasks that wait, only those are polled whose futures are woken, also if the thread that runs the dispatcher leaves.
#[test]
fn the_cost_of_a_turn_does_not_grow_with_the_tasks() {
    const TASKS: usize = 10_000;
    const TURNS: usize = 50;
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let bed = Bed::new(spin);
        let polls = Arc::new(AtomicUsize::new(0));
        runtime().block_on(async {
            for _ in 0..TASKS {
                let (dispatcher, polls) = (bed.dispatcher.clone(), polls.clone());
                tokio::spawn(async move {
                    let mut waits = core::pin::pin!(dispatcher.drive_with(pending::<()>()));
                    poll_fn(|cx| {
                        polls.fetch_add(1, Ordering::Relaxed);
                        waits.as_mut().poll(cx)
                    })
                    .await
                });
            }
            for _ in 0..TURNS {
                bed.dispatcher.drive_with(bed.work()).await.unwrap().unwrap();
            }
        });
        let polls = polls.load(Ordering::Relaxed);
        // Each is polled first, and may be called to poll the CQ while it is idle.
        assert!(polls < 4 * TASKS, "{polls} polls of {TASKS} tasks in {TURNS} turns, spin {spin:?}");
    }
}

/// The wakers of futures that were dropped are dropped, too, whether a thread leads or the runtime does.
#[test]
fn futures_that_are_dropped_leave_nothing() {
    const FUTURES: usize = 10_000;
    struct Task;
    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    for is_led in [true, false] {
        let bed = Bed::new(Duration::ZERO);
        let driver = is_led.then(|| bed.dispatcher.spawn().unwrap());
        if is_led {
            // It leads before the others come.
            bed.dispatcher.block_on(bed.dispatcher.sleep(Duration::from_millis(20)));
        }
        let runtime = runtime();
        // A thread that leads needs none.
        let _entered = (!is_led).then(|| runtime.enter());
        let tasks: Vec<_> = (0..FUTURES).map(|_| Arc::new(Task)).collect();
        let poll = |task: &Arc<Task>, i: usize| {
            let mut left = bed.left(i.is_multiple_of(2));
            let waker = Waker::from(task.clone());
            for _ in 0..2 {
                assert!(left.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            left
        };
        let alive = |tasks: &[Arc<Task>]| tasks.iter().filter(|task| Arc::strong_count(task) > 1).count();
        // One after the other, and at the same time.
        for (i, task) in tasks.iter().enumerate() {
            drop(poll(task, i));
        }
        assert_eq!(alive(&tasks), 0, "led: {is_led}");
        let mut all: Vec<_> = tasks.iter().enumerate().map(|(i, task)| poll(task, i)).collect();
        while let Some(left) = all.pop() {
            drop(left);
        }
        assert_eq!(alive(&tasks), 0, "led: {is_led}");
        drop(driver);
    }
}
