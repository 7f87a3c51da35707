// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a buffer of a pool: threads and futures, in the order in which they came.
//!
//! While somebody waits, the stack of free buffers is [watched](IndexStack): a buffer that comes back is given to the first of those that wait, and
//! [`Pool::try_get`] finds none. So none overtakes another, none is woken in vain, and no wake is lost: what is given is a number, which the
//! one that waits takes, or gives on when it stops to wait.

use super::{Buf, Pool, PoolInner};
use crate::access::Access;
use crate::mr::Private;
use crate::open::AnyDriver;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Instant;
use uverbs_core::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;
use uverbs_core::sync::ProcessMutex;

/// Those that wait for a buffer, by their numbers, which are in the order in which they came.
#[derive(Debug)]
pub(super) struct Waiters {
    list: ProcessMutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    waiting: BTreeMap<u64, Waker>,
    /// The buffers of those that were given one and have not taken it yet.
    given: BTreeMap<u64, u32>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { list: ProcessMutex::new(List::default()) }
    }
}

impl<D: Driver> PoolInner<D> {
    /// Gives a buffer that comes back to the first of those that wait. Wakers are code of the program: they are called, and dropped,
    /// without the lock.
    #[cold]
    #[inline(never)]
    pub(super) fn give(&self, index: u32) {
        let waker = match self.waiters.list.lock() {
            Ok(mut list) => match list.waiting.pop_first() {
                Some((number, waker)) => {
                    list.given.insert(number, index);
                    if list.waiting.is_empty() {
                        self.free.unwatch();
                    }
                    Some(waker)
                }
                None => {
                    self.put_back(index);
                    None
                }
            },
            // A child of fork(2), in which nobody waits.
            Err(_) => {
                self.put_back(index);
                None
            }
        };
        if let Some(waker) = waker {
            crate::held::contain(|| waker.wake());
        }
    }

    /// Puts a buffer on the stack, which nobody watches.
    #[expect(unsafe_code, reason = "an index without a check")]
    fn put_back(&self, index: u32) {
        self.free.unwatch();
        // SAFETY: as in `give_back`: this number was taken from the stack. The lock excludes that the stack is watched again; in a
        // child of fork(2) the buffer is lost then.
        let _ = unsafe { self.free.push(index) };
    }

    /// A buffer; or the waker is called when there is one for this number.
    fn poll(&self, number: &mut Option<u64>, waker: &Waker) -> Poll<Result<u32>> {
        if number.is_none()
            && let Some(index) = self.free.pop()
        {
            return Poll::Ready(Ok(index));
        }
        let waker = waker.clone();
        let Ok(mut list) = self.waiters.list.lock() else {
            return Poll::Ready(Err(Error::os("acquire", "pool in a child of fork", Errno::ESTALE)));
        };
        let own = match *number {
            Some(own) => match list.given.remove(&own) {
                Some(index) => {
                    drop(list);
                    *number = None;
                    return Poll::Ready(Ok(index));
                }
                None => own,
            },
            None => {
                if list.waiting.is_empty()
                    && let Some(index) = self.free.pop_or_watch()
                {
                    drop(list);
                    return Poll::Ready(Ok(index));
                }
                self.counts.waits();
                list.next += 1;
                *number.insert(list.next)
            }
        };
        let last = list.waiting.insert(own, waker);
        drop(list);
        drop(last);
        Poll::Pending
    }

    /// Stops to wait. A buffer that was given meanwhile.
    fn leave(&self, number: u64) -> Option<u32> {
        let mut list = self.waiters.list.lock().ok()?;
        let waker = list.waiting.remove(&number);
        if waker.is_some() && list.waiting.is_empty() {
            self.free.unwatch();
        }
        let given = list.given.remove(&number);
        drop(list);
        drop(waker);
        given
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<D: Driver, A: Access> Pool<A, D> {
    /// A buffer, as [`get`](Self::get). Waits until there is one, at most for `limit`. Those that wait, by this function or by
    /// [`acquire_async`](Self::acquire_async), get buffers in the order in which they came, and before `get`.
    ///
    /// The thread must not be the only one that polls the CQs of the buffers in flight: a buffer comes back when its completion is
    /// polled, or when its queue ends.
    ///
    /// # Errors
    /// `ETIMEDOUT` after `limit`; `ESTALE` in a child of fork(2), if a thread of its parent was about to wait at the time of the fork.
    pub fn acquire(&self, limit: Duration) -> Result<Buf<A, D>> {
        if let Some(buf) = self.inner.free.pop().and_then(|index| self.buf_at(index)) {
            return Ok(buf);
        }
        let end = Instant::now().checked_add(limit);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut acquire = self.acquire_async();
        loop {
            if let Poll::Ready(result) = acquire.poll_with(&waker) {
                return result;
            }
            match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => break,
                Some(left) => thread::park_timeout(left),
            }
        }
        let reason = || Error::os("acquire", format!("pool: no buffer in {limit:?}"), Errno::ETIMEDOUT);
        acquire.leave().ok_or_else(|| {
            self.inner.counts.timeout();
            reason()
        })
    }

    /// A buffer, as [`acquire`](Self::acquire), as a future of any executor. A future that is dropped passes its place on. One
    /// that has been given a buffer and is neither polled nor dropped keeps it.
    pub fn acquire_async(&self) -> Acquire<A, D> {
        Acquire { pool: self.clone(), number: None }
    }
}

/// A buffer of a pool, when there is one: see [`Pool::acquire_async`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Acquire<A: Access = Private, D: Driver = AnyDriver> {
    pool: Pool<A, D>,
    /// Its place among those that wait.
    number: Option<u64>,
}

impl<D: Driver, A: Access> fmt::Debug for Acquire<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("waits", &self.number.is_some()).finish_non_exhaustive()
    }
}

impl<D: Driver, A: Access> Acquire<A, D> {
    fn poll_with(&mut self, waker: &Waker) -> Poll<Result<Buf<A, D>>> {
        let Self { pool, number } = self;
        pool.inner.poll(number, waker).map(|index| {
            let unknown = || Error::os("acquire", "pool", Errno::EIO);
            index.and_then(|index| pool.buf_at(index).ok_or_else(unknown))
        })
    }

    /// Stops to wait. A buffer that was given meanwhile.
    fn leave(&mut self) -> Option<Buf<A, D>> {
        let number = self.number.take()?;
        self.pool.inner.leave(number).and_then(|index| self.pool.buf_at(index))
    }
}

// Nothing in it is pinned.
impl<D: Driver, A: Access> Unpin for Acquire<A, D> {}

impl<D: Driver, A: Access> Future for Acquire<A, D> {
    type Output = Result<Buf<A, D>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_with(cx.waker())
    }
}

impl<D: Driver, A: Access> Drop for Acquire<A, D> {
    fn drop(&mut self) {
        // What was given goes to the next one.
        drop(self.leave());
    }
}
