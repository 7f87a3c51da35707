// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations whose completion no task waits for.
//!
//! Most of them make no completion: an event, a poll and a wake for each would cost more than the post. Every n-th is signaled, where n
//! is half of the queue's depth; its completion frees the entries and the buffers of those before it.

use crate::dispatcher::{FORKED, wake};
use crate::error::Failed;
use crate::op::{Op, Payload, State};
use crate::qp::QpInner;
use crate::sync::lock;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use uverbs::owned::Rejected;
use uverbs::{Driver, PostError, SendFlags};

/// An operation that is ready when it is posted; see [`Op::detach`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Detached<D: Driver, P: Payload<D>> {
    op: Op<D, P>,
    /// It makes no completion, even if no other one frees its entry.
    silent: bool,
}

impl<D: Driver, P: Payload<D>> Unpin for Detached<D, P> {}

impl<D: Driver, P: Payload<D>> fmt::Debug for Detached<D, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Detached").field(&self.op).finish()
    }
}

impl<D: Driver, P: Payload<D>> Op<D, P> {
    /// Posts it, and does not wait until it is complete: the future waits for an entry of the queue only, and is the cheapest way to send
    /// a message.
    ///
    /// Its buffer goes back to its pool with a later completion: the queue keeps the buffers of at most half of its
    /// depth until the next operation. If it fails, the QP is in state ERR, and the next operations and receives have an error.
    /// [`Qp::shutdown`](crate::Qp::shutdown) does not wait for the detached operations at the end: a program awaits its last
    /// message.
    pub fn detach(self) -> Detached<D, P> {
        Detached { op: self, silent: false }
    }

    /// As [`detach`](Self::detach), without a completion: the caller posts another operation with one, before the queue is full
    /// of these.
    pub(crate) fn silent(self) -> Detached<D, P> {
        Detached { op: self, silent: true }
    }
}

impl<D: Driver> QpInner<D> {
    /// The number of detached operations of which the last makes a completion.
    fn signal_interval(&self) -> u32 {
        (self.depth() / 2).max(1)
    }
}

impl<D: Driver, P: Payload<D>> Future for Detached<D, P> {
    type Output = Result<(), Failed<P::Back>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { op: Op { qp, request, flags, state }, silent } = self.get_mut();
        let State::New { payload, mut ticket } = core::mem::replace(state, State::Finished) else {
            panic!("polled after it was ready");
        };
        if qp.is_forked() {
            return Poll::Ready(Err(Failed { error: FORKED, returned: Some(payload.unposted()) }));
        }
        // Dropped after the lock.
        let mut old = None;
        let mut guard = lock(&qp.sends);
        let sends = &mut *guard;
        let mut refusal = None;
        if sends.closed.is_some() || !sends.turnstile.pass_alone(&mut ticket, 1, sends.free) {
            refusal = sends.refusal(&mut ticket);
            if refusal.is_none() && !sends.turnstile.pass(&mut ticket, 1, sends.free, cx.waker(), &mut old) {
                *state = State::New { payload, ticket };
                return Poll::Pending;
            }
        }
        let (None, Some(queue)) = (&refusal, &mut sends.queue) else {
            let mut wakes = Vec::new();
            let error = refusal.unwrap_or(PostError::QueueFull.into());
            old = sends.leave(&mut ticket, &mut wakes);
            drop(guard);
            drop(old);
            wake(&mut wakes);
            return Poll::Ready(Err(Failed { error, returned: Some(payload.unposted()) }));
        };
        let signaled = !*silent && sends.silent + 1 >= qp.signal_interval();
        let key = if signaled { sends.slots.insert(Waker::noop().clone()) } else { None };
        let (wr_id, flags) = match key {
            Some(key) => (qp.route().send(key), *flags),
            None => (qp.route().silent(), *flags - SendFlags::SIGNALED),
        };
        let posted = if signaled && key.is_none() {
            // Without a completion the entries of those before it would not come back.
            Err(Rejected { error: PostError::QueueFull, returned: Some(payload) })
        } else {
            payload.post(queue, (wr_id, flags), request)
        };
        let in_flight = matches!(posted, Ok(()) | Err(Rejected { error: PostError::Doorbell(_), .. }));
        match key {
            Some(key) if in_flight => {
                sends.slots.abandon(key);
                sends.posted(key, 1);
            }
            Some(key) => _ = sends.slots.remove(key),
            None if in_flight => {
                sends.free -= 1;
                sends.silent += 1;
            }
            None => {}
        }
        let Err(Rejected { error, returned }) = posted else { return Poll::Ready(Ok(())) };
        let mut wakes = Vec::new();
        if !in_flight {
            // It does not use its entry.
            sends.turnstile.wake(sends.free, &mut wakes);
        }
        drop(guard);
        wake(&mut wakes);
        Poll::Ready(Err(Failed { error: error.into(), returned: returned.map(P::unposted) }))
    }
}
