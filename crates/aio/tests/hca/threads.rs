// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dispatchers that are run by threads, in real time.

use crate::bed::{DEPTH, End, connect};
use core::time::Duration;
use std::os::fd::AsFd;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Dispatcher, DriverThread, Error, Qp, Result};
use uverbs_hca::Fabric;

fn ends() -> (End, End) {
    let fabric = Fabric::new(7);
    let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build(), false));
    connect(&a.qp, &b.qp);
    (a, b)
}

async fn echo(qp: &Qp<Mlx5>, n: usize) -> Result<()> {
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

/// A task that its waker runs at once, in the thread of the dispatcher, drops the handle of that thread.
#[test]
fn a_thread_can_be_dropped_by_a_waker_that_it_calls() {
    use std::sync::{Arc, Mutex, mpsc};
    struct DropsIt(Mutex<Option<(DriverThread, mpsc::Sender<()>)>>);
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

/// Both traits of tokio, and the tasks of a split stream.
#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_work_with_the_traits_of_tokio() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use uverbs_aio::{Listener, RdmaStream};
    use uverbs_cm::EventChannel;

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
