// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dispatchers that are run by threads, in real time.

use crate::bed::{DEPTH, End, Task, connect, join};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use uverbs::Rc;
use uverbs::attr::QpAttrMask;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Dispatcher, DispatcherThread, Error, Listener, Qp, Result};
use uverbs_cm::{ConnParam, EventChannel, PortSpace};
use uverbs_hca::Fabric;

fn ends() -> (End, End) {
    let fabric = Fabric::new(7);
    let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build(), false));
    connect(&a.qp, &b.qp);
    (a, b)
}

async fn echo(qp: &Qp<Rc, Mlx5>, n: usize) -> Result<()> {
    for _ in 0..n {
        let message = qp.recv().await?;
        qp.send(message.into_buf()).await?;
    }
    Ok(())
}

async fn ask(end: &End, n: u32) -> Result<()> {
    for i in 0..n {
        end.qp.send(end.filled(&i.to_ne_bytes())).await?;
        assert_eq!(&*end.qp.recv().await?, i.to_ne_bytes());
    }
    Ok(())
}

#[test]
fn each_thread_runs_its_own_dispatcher() {
    let (a, b) = ends();
    std::thread::scope(|scope| {
        scope.spawn(|| b.dispatcher.block_on(echo(&b.qp, 500)).unwrap());
        a.dispatcher.block_on(ask(&a, 500)).unwrap();
    });
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

#[test]
fn a_thread_of_its_own_runs_the_dispatcher() {
    let (a, b) = ends();
    let drivers = [a.dispatcher.spawn().unwrap(), b.dispatcher.spawn().unwrap()];
    std::thread::scope(|scope| {
        scope.spawn(|| b.dispatcher.block_on(echo(&b.qp, 500)).unwrap());
        a.dispatcher.block_on(ask(&a, 500)).unwrap();
    });
    drivers.into_iter().for_each(|driver| driver.join().unwrap());
    // The next one that waits runs it.
    std::thread::scope(|scope| {
        scope.spawn(|| b.dispatcher.block_on(echo(&b.qp, 5)).unwrap());
        a.dispatcher.block_on(ask(&a, 5)).unwrap();
    });
}

/// Several threads wait for futures of one dispatcher. Whichever leads, all end.
#[test]
fn threads_that_share_a_dispatcher_take_turns() {
    let (a, b) = ends();
    let pair = || {
        let [here, there] =
            [&a, &b].map(|end| end.dispatcher.qp(&end.pd).depth(4, 4).pool(&end.incoming).create().unwrap());
        connect(&here, &there);
        (here, there)
    };
    let pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    std::thread::scope(|scope| {
        for (i, (here, there)) in pairs.iter().enumerate() {
            // Different numbers, so that each thread leaves at another time.
            let n = 50 * (i + 1);
            let (a, b) = (&a, &b);
            scope.spawn(move || b.dispatcher.block_on(echo(there, n)).unwrap());
            scope.spawn(move || {
                let ask = async {
                    for j in 0..n as u32 {
                        here.send(a.filled(&j.to_ne_bytes())).await?;
                        assert_eq!(&*here.recv().await?, j.to_ne_bytes());
                    }
                    Ok::<_, Error>(())
                };
                a.dispatcher.block_on(ask).unwrap();
            });
        }
    });
}

/// An event loop of the program, with poll(2).
#[test]
fn the_program_can_run_the_dispatcher() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn turn(dispatcher: &Dispatcher<Mlx5>) {
        if dispatcher.poll_once().unwrap() > 0 {
            return;
        }
        let Some(limit) = dispatcher.prepare_sleep().unwrap() else { return };
        let timeout = limit.0.map_or(PollTimeout::NONE, |limit| {
            PollTimeout::try_from(limit + Duration::from_millis(1)).unwrap()
        });
        poll(&mut [PollFd::new(dispatcher.as_fd(), PollFlags::POLLIN)], timeout).unwrap();
        dispatcher.after_sleep().unwrap();
    }

    let (a, b) = ends();
    std::thread::scope(|scope| {
        scope.spawn(|| b.dispatcher.block_on(echo(&b.qp, 100)).unwrap());
        let mut work = core::pin::pin!(ask(&a, 100));
        let mut cx = core::task::Context::from_waker(core::task::Waker::noop());
        while work.as_mut().poll(&mut cx).is_pending() {
            turn(&a.dispatcher);
        }
    });
}

/// The loops take completions, events and wakeups that the thread which leads waits for, and then end.
#[test]
fn event_loops_beside_a_thread_that_leads() {
    use core::sync::atomic::AtomicBool;
    for _ in 0..10 {
        let (a, b) = ends();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if a.dispatcher.prepare_sleep().unwrap().is_some() {
                            a.dispatcher.after_sleep().unwrap();
                        }
                        std::thread::yield_now();
                    }
                });
            }
            scope.spawn(|| b.dispatcher.block_on(echo(&b.qp, 400)).unwrap());
            a.dispatcher.block_on(ask(&a, 200)).unwrap();
            stop.store(true, Ordering::Relaxed);
            a.dispatcher.block_on(ask(&a, 200)).unwrap();
        });
    }
}

/// The loop sleeps. The thread that leads reads the wakeup for a new timer, and leaves: the loop must learn of the timer.
#[test]
fn an_event_loop_learns_what_a_leader_has_read() {
    use core::task::{Context, Waker};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::sync::mpsc;

    let (a, b) = ends();
    let (leads, when) = mpsc::channel();
    std::thread::scope(|scope| {
        let dispatcher = &a.dispatcher;
        let qp = &a.qp;
        let leader = scope.spawn(move || {
            dispatcher.block_on(async {
                leads.send(()).unwrap();
                qp.recv().await
            })
        });
        when.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let limit = dispatcher.prepare_sleep().unwrap().expect("nothing to do");
        assert_eq!(limit.0, None, "no timer");
        let mut timer = core::pin::pin!(dispatcher.sleep(Duration::from_secs(600)));
        assert!(timer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The leader reads the wakeup, and sleeps as long as the timer.
        std::thread::sleep(Duration::from_millis(50));
        b.dispatcher.block_on(b.qp.send(b.filled(b"end"))).unwrap();
        assert_eq!(&*leader.join().unwrap().unwrap(), b"end");
        let limit = Some(PollTimeout::from(5000_u16));
        assert_eq!(poll(&mut [PollFd::new(dispatcher.as_fd(), PollFlags::POLLIN)], limit).unwrap(), 1);
        dispatcher.after_sleep().unwrap();
        let limit = dispatcher.prepare_sleep().unwrap().expect("nothing to do").0.expect("a timer");
        assert!(limit <= Duration::from_secs(600), "{limit:?}");
    });
}

/// A task that its waker runs at once, in the thread of the dispatcher, drops the handle of that thread.
#[test]
fn a_thread_can_be_dropped_by_a_waker_that_it_calls() {
    use std::sync::{Arc, Mutex, mpsc};
    struct DropsIt(Mutex<Option<(DispatcherThread, mpsc::Sender<()>)>>);
    impl std::task::Wake for DropsIt {
        fn wake(self: Arc<Self>) {
            let (driver, dropped) = self.0.lock().unwrap().take().unwrap();
            drop(driver);
            dropped.send(()).unwrap();
        }
    }
    let (a, b) = ends();
    let (dropped, when) = mpsc::channel();
    let driver = a.dispatcher.spawn().unwrap();
    let waker = Arc::new(DropsIt(Mutex::new(Some((driver, dropped))))).into();
    let mut recv = core::pin::pin!(a.qp.recv());
    assert!(recv.as_mut().poll(&mut core::task::Context::from_waker(&waker)).is_pending());
    b.dispatcher.block_on(b.qp.send(b.filled(b"end"))).unwrap();
    when.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(&*a.dispatcher.block_on(recv).unwrap(), b"end");
}

#[test]
fn deadlines_end_the_sleep_of_another_thread() {
    let (a, _b) = ends();
    let driver = a.dispatcher.spawn().unwrap();
    let limit = Duration::from_millis(20);
    for _ in 0..3 {
        let before = std::time::Instant::now();
        let error = a.dispatcher.block_on(a.dispatcher.timeout(limit, a.qp.recv())).unwrap_err();
        assert!(matches!(error, Error::TimedOut));
        assert!(before.elapsed() >= limit);
    }
    driver.join().unwrap();
}

/// The peer is in the same thread: the dispatcher of the one is run while the other waits.
#[test]
fn a_connection_within_a_dispatcher() {
    let (a, _b) = ends();
    let [x, y] = [(); 2].map(|()| a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap());
    connect(&x, &y);
    a.dispatcher
        .block_on(async {
            x.send(a.filled(b"self")).await?;
            assert_eq!(&*y.recv().await?, b"self");
            x.shutdown().await?;
            y.shutdown().await
        })
        .unwrap();
}

/// Counts the polls of a future.
async fn counted<F: Future>(future: F, polls: &AtomicUsize) -> F::Output {
    let mut future = core::pin::pin!(future);
    core::future::poll_fn(|cx| {
        polls.fetch_add(1, Ordering::Relaxed);
        future.as_mut().poll(cx)
    })
    .await
}

/// In one task, and in several threads, each of which may lead.
#[test]
fn tasks_that_wait_for_one_descriptor_sleep_until_it_is_readable() {
    const READERS: usize = 3;
    let (a, _b) = ends();
    let (near, mut far) = std::io::pipe().unwrap();
    let (taken, polls) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Reads until the readers together have taken `n` bytes.
    let read = async |n: usize| {
        while taken.load(Ordering::Acquire) < n {
            a.dispatcher.readable(&near).await?;
            let mut byte = [0];
            // The descriptor is blocking, so at most one reads.
            if taken.compare_exchange(n - 1, n, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                (&near).read_exact(&mut byte)?;
            }
        }
        Ok::<_, Error>(())
    };
    let quiet = |far: &mut std::io::PipeWriter| {
        std::thread::sleep(Duration::from_millis(100));
        let before = polls.load(Ordering::Relaxed);
        far.write_all(b"x").unwrap();
        before
    };
    let of_task = std::thread::scope(|scope| {
        let writer = scope.spawn(|| quiet(&mut far));
        let tasks = (0..READERS).map(|_| Box::pin(counted(read(1), &polls)) as Task<'_>);
        a.dispatcher.block_on(join(tasks.collect())).unwrap();
        writer.join().unwrap()
    });
    polls.store(0, Ordering::Relaxed);
    let of_threads = std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| a.dispatcher.block_on(counted(read(2), &polls)).unwrap());
        }
        quiet(&mut far)
    });
    assert!(of_task < 20 && of_threads < 20, "{of_task} and {of_threads} polls, and nothing was readable");
}

#[test]
fn several_tasks_accept_connections() {
    const EACH: usize = 4;
    let (a, b) = ends();
    let [at_a, at_b] = [&a, &b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let listener = Listener::bind(&b.dispatcher, &at_b, (b.hca.addresses()[0], 7471).into()).unwrap();
    let server = listener.local_addr().unwrap();
    let polls = AtomicUsize::new(0);
    let qp = |end: &End| end.dispatcher.qp(&end.pd).depth(4, 4).pool(&end.incoming).create().unwrap();
    let serve = async || {
        for _ in 0..EACH {
            let request = counted(listener.accept(), &polls).await?;
            let qp = qp(&b);
            let link = request.accept(&qp, &ConnParam::default()).await?;
            echo(&qp, 1).await?;
            link.disconnected(&b.dispatcher).await?;
        }
        Ok::<_, Error>(())
    };
    let before = std::thread::scope(|scope| {
        scope.spawn(|| b.dispatcher.block_on(join(vec![Box::pin(serve()), Box::pin(serve())])).unwrap());
        scope.spawn(|| b.dispatcher.block_on(serve()).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let before = polls.load(Ordering::Relaxed);
        a.dispatcher.block_on(async {
            for _ in 0..3 * EACH {
                let qp = qp(&a);
                let id = at_a.open_another().unwrap().create_id(PortSpace::Tcp).unwrap();
                id.set_ack_timeout(17).unwrap();
                let link = qp.connect_by(id, None, server, &ConnParam::default()).await.unwrap();
                assert_eq!(qp.control().query(QpAttrMask::TIMEOUT).unwrap().0.timeout, 17);
                qp.send(a.filled(b"x")).await.unwrap();
                assert_eq!(&*qp.recv().await.unwrap(), b"x");
                link.disconnect().unwrap();
            }
        });
        before
    });
    assert!(before < 20, "{before} polls, and nobody has connected");
}

/// The end is one event, and each task that waits gets it, also later.
#[test]
fn an_end_is_reported_to_each_task_that_waits() {
    let (a, b) = ends();
    let [at_a, at_b] = [&a, &b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let listener = Listener::bind(&b.dispatcher, &at_b, (b.hca.addresses()[0], 7471).into()).unwrap();
    let server = listener.local_addr().unwrap();
    let [qp_a, qp_b] =
        [&a, &b].map(|end| end.dispatcher.qp(&end.pd).depth(4, 4).pool(&end.incoming).create().unwrap());
    let param = ConnParam::default();
    let (active, passive) = std::thread::scope(|scope| {
        let accepting = scope
            .spawn(|| b.dispatcher.block_on(async { listener.accept().await?.accept(&qp_b, &param).await }));
        let active = a.dispatcher.block_on(qp_a.connect_to(&at_a, server, &param)).unwrap();
        (active, accepting.join().unwrap().unwrap())
    });
    let limit = Duration::from_secs(20);
    let disconnected = async || b.dispatcher.timeout(limit, passive.disconnected(&b.dispatcher)).await;
    let accepted = async || match b.dispatcher.timeout(limit, listener.accept()).await {
        Err(Error::Cm(error)) if matches!(*error, uverbs_cm::Error::DeviceGone { .. }) => Ok(()),
        other => panic!("{other:?}"),
    };
    let waiting =
        || b.dispatcher.block_on(join(vec![Box::pin(disconnected()), Box::pin(disconnected())])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(waiting);
        scope.spawn(waiting);
        std::thread::sleep(Duration::from_millis(50));
        active.disconnect().unwrap();
    });
    b.dispatcher.block_on(disconnected()).unwrap();

    let waiting = || b.dispatcher.block_on(join(vec![Box::pin(accepted()), Box::pin(accepted())])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(waiting);
        scope.spawn(waiting);
        std::thread::sleep(Duration::from_millis(50));
        b.hca.unplug();
    });
    b.dispatcher.block_on(accepted()).unwrap();
}

/// Both traits of tokio, and the tasks of a split stream.
#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_work_with_the_traits_of_tokio() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use uverbs_aio::RdmaStream;

    let (a, b) = ends();
    let drivers = [&a, &b].map(|end| tokio::spawn(end.dispatcher.clone().drive()));
    let [at_a, at_b] = [&a, &b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let listener = Listener::bind(&b.dispatcher, &at_b, (b.hca.addresses()[0], 7471).into()).unwrap();
    let server = listener.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        let stream = RdmaStream::builder(&b.dispatcher, &b.pd).accept(&listener).await?;
        let (mut read, mut write) = tokio::io::split(stream);
        tokio::io::copy(&mut read, &mut write).await?;
        write.shutdown().await?;
        read.unsplit(write).shutdown().await
    });
    let stream = RdmaStream::builder(&a.dispatcher, &a.pd).connect(&at_a, server).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let writer = tokio::spawn({
        let data = data.clone();
        async move {
            write.write_all(&data).await?;
            write.shutdown().await?;
            Ok::<_, std::io::Error>(write)
        }
    });
    let mut all = Vec::new();
    read.read_to_end(&mut all).await.unwrap();
    assert!(all == data);
    let write = writer.await.unwrap().unwrap();
    read.unsplit(write).shutdown().await.unwrap();
    echo.await.unwrap().unwrap();
    drivers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_of_tokio_runs_the_dispatcher() {
    let (a, b) = ends();
    let drivers = [&a, &b].map(|end| tokio::spawn(end.dispatcher.clone().drive()));
    let server = tokio::spawn(async move {
        echo(&b.qp, 300).await?;
        b.qp.shutdown().await?;
        Ok::<_, Error>(b)
    });
    ask(&a, 300).await.unwrap();
    let b = server.await.unwrap().unwrap();
    let limit = Duration::from_millis(5);
    assert!(matches!(a.dispatcher.timeout(limit, a.qp.recv()).await, Err(Error::TimedOut)));
    for driver in drivers {
        driver.abort();
        assert!(driver.await.unwrap_err().is_cancelled());
    }
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(0);
    // Another one can run it.
    a.dispatcher.block_on(a.qp.shutdown()).unwrap();
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_of_tokio_waits_and_runs_the_dispatcher() {
    let (a, b) = ends();
    let server =
        tokio::spawn(
            async move { b.dispatcher.drive_with(echo(&b.qp, 200)).await.map(|result| (result, b)) },
        );
    a.dispatcher.drive_with(ask(&a, 200)).await.unwrap().unwrap();
    let (result, b) = server.await.unwrap().unwrap();
    result.unwrap();
    a.assert_no_leak(DEPTH);
    b.assert_no_leak(DEPTH);
}

/// Tasks and threads wait for futures of one dispatcher, and one that leads is dropped. Whichever leads, all others end.
#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_threads_that_share_a_dispatcher_take_turns() {
    let (a, b) = ends();
    let (a, b) = (std::sync::Arc::new(a), std::sync::Arc::new(b));
    // It leads first, and leaves without being ready.
    let never = a.dispatcher.drive_with(core::future::pending::<()>());
    assert!(tokio::time::timeout(Duration::from_millis(5), never).await.is_err());
    let mut asking = Vec::new();
    for i in 0..3 {
        let n = 50 * (i + 1);
        let [here, there] =
            [&a, &b].map(|end| end.dispatcher.qp(&end.pd).depth(4, 4).pool(&end.incoming).create().unwrap());
        connect(&here, &there);
        let server = b.clone();
        std::thread::spawn(move || server.dispatcher.block_on(echo(&there, n)).unwrap());
        let end = a.clone();
        let ask = async move {
            for j in 0..n as u32 {
                here.send(end.filled(&j.to_ne_bytes())).await?;
                assert_eq!(&*here.recv().await?, j.to_ne_bytes());
            }
            Ok::<_, Error>(())
        };
        let dispatcher = a.dispatcher.clone();
        asking.push(match i {
            0 => tokio::task::spawn_blocking(move || dispatcher.block_on(ask)),
            _ => tokio::spawn(async move { dispatcher.drive_with(ask).await? }),
        });
    }
    for asked in asking {
        asked.await.unwrap().unwrap();
    }
}
