// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations whose completion no task waits for.
//!
//! Most of them make no completion: an event, a poll and a wake for each would cost more than the post. Every n-th is signaled, where n
//! is half of the queue's depth; its completion frees the entries and the buffers of those before it.

use crate::dispatcher::{FORKED, wake};
use crate::error::{Failed, Result};
use crate::op::{Op, Payload, Request, State};
use crate::qp::{QpInner, Sends};
use crate::sync::lock;
use crate::turnstile::Ticket;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use uverbs::owned::{Buf, Rejected};
use uverbs::{Driver, PostError, SendFlags};

/// An operation that is ready when it is posted; see [`Op::detach`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Detached<D: Driver, P: Payload<D>> {
    op: Op<D, P>,
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
        Detached { op: self }
    }
}

impl<D: Driver> QpInner<D> {
    /// The number of detached operations of which the last makes a completion.
    fn signal_interval(&self) -> u32 {
        (self.depth() / 2).max(1)
    }

    /// Sends a message, and does not wait until it is complete, if the queue has an entry that no one else waits for. Returns the buffer
    /// if not, and the caller waits by a [`Detached`].
    ///
    /// # Errors
    /// Those of the post.
    #[inline]
    pub(crate) fn send_now(&self, buf: Buf<D>) -> Result<Option<Buf<D>>> {
        if self.is_forked() {
            return Err(FORKED);
        }
        let mut sends = lock(&self.sends);
        let free = sends.free;
        if sends.closed.is_some() || !sends.turnstile.pass_alone(&mut Ticket::default(), 1, free) {
            return Ok(Some(buf));
        }
        match sends.detach(self, buf, &Request::Send, SendFlags::SIGNALED) {
            Ok(()) => Ok(None),
            Err(Rejected { error, returned }) => {
                // Its pool has a lock.
                drop(sends);
                drop(returned);
                Err(error.into())
            }
        }
    }
}

impl<D: Driver> Sends<D> {
    /// Posts a work request for which no one waits. There is a free entry, and the caller's turn has come. One of several makes a
    /// completion, which frees the entries of those before it.
    #[inline]
    fn detach<P: Payload<D>>(
        &mut self,
        qp: &QpInner<D>,
        payload: P,
        request: &Request,
        flags: SendFlags,
    ) -> Result<(), Rejected<P>> {
        let full = |payload| Err(Rejected { error: PostError::QueueFull, returned: Some(payload) });
        let Some(queue) = &mut self.queue else { return full(payload) };
        if self.silent + 1 < qp.signal_interval() {
            let posted = payload.post(queue, (qp.route().silent(), flags - SendFlags::SIGNALED), request);
            if is_in_flight(&posted) {
                self.free -= 1;
                self.silent += 1;
            }
            return posted;
        }
        // Without a completion the entries of those before it would not come back.
        let Some(key) = self.slots.insert(Waker::noop().clone()) else { return full(payload) };
        let posted = payload.post(queue, (qp.route().send(key), flags), request);
        if is_in_flight(&posted) {
            self.slots.abandon(key);
            self.posted(key, 1);
        } else {
            self.slots.remove(key);
        }
        posted
    }
}

/// After a failed doorbell the device may execute the work request.
#[inline]
fn is_in_flight<P>(posted: &Result<(), Rejected<P>>) -> bool {
    matches!(posted, Ok(()) | Err(Rejected { error: PostError::Doorbell(_), .. }))
}

impl<D: Driver, P: Payload<D>> Future for Detached<D, P> {
    type Output = Result<(), Failed<P::Back>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Op { qp, request, flags, state } = &mut self.get_mut().op;
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
        let posted = match refusal {
            None => sends.detach(qp, payload, request, *flags),
            Some(error) => {
                let mut wakes = Vec::new();
                old = sends.leave(&mut ticket, &mut wakes);
                drop(guard);
                drop(old);
                wake(&mut wakes);
                return Poll::Ready(Err(Failed { error, returned: Some(payload.unposted()) }));
            }
        };
        let in_flight = is_in_flight(&posted);
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
