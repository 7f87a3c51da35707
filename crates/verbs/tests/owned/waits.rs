// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a buffer of a pool: threads and futures.

use crate::bed::{BUFS, CAP, End, connect_self, pair};
use core::future::Future;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use std::thread;
use std::time::Instant;
use uverbs::mlx5::Mlx5;
use uverbs::{Acquire, Buf, Cq, Errno, Pool, Private, Rc, Shared};
use uverbs_hca::{Fabric, Hca};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);

/// A pool of `n` buffers, none of which is free, and its buffers.
fn empty(n: u32) -> (End, Pool<Private, Mlx5>, Vec<Buf<Private, Mlx5>>) {
    let end = End::new(Fabric::deterministic(7).device("hca0").build());
    let pool = end.pd.pool_with(n, 64).build().unwrap();
    let bufs = (0..n).map(|_| pool.get().unwrap()).collect();
    (end, pool, bufs)
}

/// Counts its wakes, and may panic.
struct Count {
    wakes: AtomicU32,
    panics: bool,
}

impl Count {
    fn new(panics: bool) -> Arc<Self> {
        Arc::new(Self { wakes: AtomicU32::new(0), panics })
    }
    fn wakes(&self) -> u32 {
        self.wakes.load(Ordering::Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "the panic of a waker, which the test expects");
    }
}

type Waiting = Pin<Box<Acquire<Private, Mlx5>>>;

/// A future that waits.
fn waiting(pool: &Pool<Private, Mlx5>, count: &Arc<Count>) -> Waiting {
    let mut acquire = Box::pin(pool.acquire_async());
    assert!(poll(&mut acquire, count).is_none());
    acquire
}

fn poll(acquire: &mut Waiting, count: &Arc<Count>) -> Option<Buf<Private, Mlx5>> {
    let waker = Waker::from(count.clone());
    match acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(buf) => Some(buf.unwrap()),
        Poll::Pending => None,
    }
}

#[test]
fn a_limit_ends_the_wait() {
    let (_end, pool, mut bufs) = empty(2);
    let begin = Instant::now();
    let error = pool.acquire(SHORT).unwrap_err();
    assert!(error.errno() == Errno::ETIMEDOUT && begin.elapsed() >= SHORT, "{error}");
    assert!(error.to_string().contains("acquire"), "{error}");
    assert!(pool.acquire(Duration::ZERO).is_err());
    bufs.pop();
    // Nobody waits any more, so the others find it.
    assert!(pool.acquire(Duration::ZERO).is_ok() && pool.try_get().is_some());
    assert_eq!(pool.available(), 1);
}

/// Drops of another thread wake all that wait, each once.
#[test]
fn drops_of_other_threads_wake_those_that_wait() {
    let (_end, pool, bufs) = empty(3);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let pool = &pool;
                scope.spawn(move || (0..50).for_each(|_| drop(pool.acquire(LONG).unwrap())))
            })
            .collect();
        for buf in bufs {
            thread::sleep(Duration::from_millis(2));
            drop(buf);
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    assert_eq!(pool.available(), 3);
}

/// Threads and futures that give up at any time lose no buffer.
#[test]
fn no_buffer_is_lost_where_waits_end_at_any_time() {
    let (_end, pool, bufs) = empty(2);
    drop(bufs);
    thread::scope(|scope| {
        for i in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..400 {
                    match (i + round) % 3 {
                        0 => drop(pool.acquire(Duration::from_micros(round))),
                        1 => {
                            let count = Count::new(false);
                            let mut acquire = Box::pin(pool.acquire_async());
                            let first = poll(&mut acquire, &count);
                            if first.is_none() && round % 2 == 0 {
                                drop(poll(&mut acquire, &count));
                            }
                        }
                        _ => drop(pool.get()),
                    }
                }
            });
        }
    });
    assert_eq!(pool.available(), 2);
    assert!(pool.acquire(Duration::ZERO).is_ok());
}

#[test]
fn those_that_wait_are_served_in_their_order() {
    let (_end, pool, mut bufs) = empty(3);
    let counts = [(); 3].map(|()| Count::new(false));
    let mut waits = counts.each_ref().map(|count| waiting(&pool, count));
    bufs.pop();
    assert_eq!(counts.each_ref().map(|count| count.wakes()), [1, 0, 0]);
    assert!(pool.try_get().is_none() && pool.available() == 0, "it is given");
    assert!(poll(&mut waits[1], &counts[1]).is_none(), "not to this one");
    // None comes between.
    assert!(poll(&mut Box::pin(pool.acquire_async()), &Count::new(false)).is_none());
    bufs.pop();
    let second = poll(&mut waits[1], &counts[1]).expect("the second");
    let first = poll(&mut waits[0], &counts[0]).expect("the first");
    drop(second);
    assert!(poll(&mut waits[2], &counts[2]).is_some());
    drop((first, bufs));
    assert_eq!(pool.available(), 3);
}

#[test]
fn a_future_that_is_dropped_passes_its_buffer_on() {
    let (_end, pool, mut bufs) = empty(1);
    let counts = [(); 3].map(|()| Count::new(false));
    let mut waits = counts.each_ref().map(|count| Some(waiting(&pool, count)));
    // One that waits, and one that has been given a buffer.
    waits[1] = None;
    bufs.pop();
    waits[0] = None;
    assert_eq!(counts.each_ref().map(|count| count.wakes()), [1, 0, 1]);
    let [_, _, last] = &mut waits;
    let buf = poll(last.as_mut().unwrap(), &counts[2]).expect("the last one");
    drop(buf);
    assert!(pool.try_get().is_some());
    // The last one that waits is dropped: the pool is as before.
    let buf = pool.try_get();
    drop(waiting(&pool, &counts[0]));
    drop(buf);
    assert!(pool.try_get().is_some() && pool.available() == 1);
}

/// A future that is leaked takes at most one buffer with it; one that is not polled keeps at most one.
#[test]
fn leaked_and_idle_futures_keep_one_buffer() {
    let (_end, pool, mut bufs) = empty(3);
    let counts = [(); 3].map(|()| Count::new(false));
    let [leaked, idle, mut last] = counts.each_ref().map(|count| waiting(&pool, count));
    core::mem::forget(leaked);
    bufs.pop();
    bufs.pop();
    assert!(poll(&mut last, &counts[2]).is_none());
    bufs.pop();
    drop(poll(&mut last, &counts[2]).expect("a buffer"));
    assert_eq!(pool.available(), 1);
    drop(idle);
    assert_eq!(pool.available(), 2);
}

/// A waker that panics while a buffer is given back, in a drop and in a poll: neither ends, and the buffer is not lost.
#[test]
fn a_panic_of_a_waker_loses_nothing() {
    let (mut a, mut b) = pair();
    b.receives(1);
    let pool = a.pd.pool_with(1, 64).build().unwrap();
    let panics = Count::new(true);
    let mut buf = pool.get().unwrap();
    buf.fill(b"sent").unwrap();
    let mut first = waiting(&pool, &panics);
    a.qp.sq().post(1).send(buf).unwrap();
    a.qp.sq().post(2).signaled().write_inline(b"", &uverbs::RemoteRegion::new(0, 0, 0).unwrap()).unwrap();
    let done = a.next();
    assert_eq!((done.wc.wr_id, panics.wakes()), (2, 1));
    let buf = poll(&mut first, &panics).expect("given before the panic");
    let mut second = waiting(&pool, &panics);
    drop(buf);
    assert_eq!(panics.wakes(), 2);
    drop(poll(&mut second, &panics).unwrap());
    assert_eq!(pool.available(), 1);
}

/// Wakers that use the pool.
#[test]
fn a_waker_may_use_the_pool() {
    struct Uses(Pool<Private, Mlx5>);
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            assert!(self.0.try_get().is_none());
            drop(self.0.acquire_async());
            assert!(self.0.acquire(Duration::ZERO).is_err());
        }
    }
    let (_end, pool, mut bufs) = empty(1);
    let waker = Waker::from(Arc::new(Uses(pool.clone())));
    let mut acquire = pin!(pool.acquire_async());
    assert!(acquire.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    bufs.pop();
    assert!(acquire.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

/// The program's pool is dropped: what waits keeps it.
#[test]
fn a_wait_keeps_the_pool() {
    let (end, pool, mut bufs) = empty(1);
    let count = Count::new(false);
    let mut acquire = waiting(&pool, &count);
    drop(pool);
    bufs.pop();
    let buf = poll(&mut acquire, &count).unwrap();
    drop(acquire);
    assert_eq!(end.hca.objects().get("mr"), Some(&2));
    drop(buf);
    assert_eq!(end.hca.objects().get("mr"), Some(&1));
}

/// Buffers come back when the queue of a removed device ends; until then the limit ends the wait.
#[test]
fn a_device_is_removed_during_a_wait() {
    let mut end = End::new(Hca::new());
    connect_self(&end.qp);
    let pool = end.pd.pool_with(1, 64).build().unwrap();
    end.qp.rq().unwrap().post(1, pool.get().unwrap()).unwrap();
    end.hca.unplug();
    assert_eq!(pool.acquire(SHORT).unwrap_err().errno(), Errno::ETIMEDOUT);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.acquire(LONG));
        thread::sleep(SHORT);
        drop(end);
        assert!(waiter.join().unwrap().is_ok());
    });
    assert_eq!(pool.available(), 1);
}

/// A thread polls, another waits for the buffers of its sends.
#[test]
fn a_poster_waits_for_its_poller() {
    const MESSAGES: u64 = 1000;
    let end = End::new(Hca::new());
    let cq: Cq<Shared, Mlx5> = end.context.cq_with(64, None).unwrap();
    let mut qp = end.pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
    connect_self(&qp);
    let table = end.pd.pool_with(1, 64).exposed(uverbs::attr::AccessFlags::REMOTE_WRITE).build().unwrap();
    let to = table.get().unwrap().remote_region();
    let pool = end.pd.pool_with(3, 64).build().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            while done < MESSAGES {
                match cq.poll_each(8, |completion| assert!(completion.status().is_success())).unwrap() {
                    0 => thread::yield_now(),
                    n => done += n as u64,
                }
            }
        });
        for i in 0..MESSAGES {
            let mut buf = pool.acquire(LONG).unwrap();
            buf.fill(&i.to_ne_bytes()).unwrap();
            qp.sq().post(i).signaled().write(buf, &to).unwrap();
        }
    });
    assert_eq!((pool.available(), end.available()), (3, BUFS));
}

#[test]
fn a_child_of_fork_does_not_hang() {
    let (_end, pool, mut bufs) = empty(1);
    let count = Count::new(false);
    let mut acquire = waiting(&pool, &count);
    // SAFETY: the child calls this crate only, which takes no lock that another thread can hold, and ends by `_exit`.
    #[expect(unsafe_code, reason = "fork")]
    let child = unsafe { nix::unistd::fork() }.unwrap();
    if let nix::unistd::ForkResult::Parent { child } = child {
        let status = nix::sys::wait::waitpid(child, None).unwrap();
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        bufs.pop();
        assert!(count.wakes() == 1 && poll(&mut acquire, &count).is_some());
        return;
    }
    let result = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        assert!(pool.acquire(SHORT).is_err());
        drop(bufs);
        drop(acquire);
        drop(pool);
    }));
    // SAFETY: ends the child without what the parent registered.
    #[expect(unsafe_code, reason = "_exit")]
    unsafe {
        nix::libc::_exit(i32::from(result.is_err()))
    }
}
