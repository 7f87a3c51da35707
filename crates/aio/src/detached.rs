// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations whose completion no task waits for.
//!
//! Most of them make no completion: an event, a poll and a wake for each would cost more than the post. Every n-th is signaled, where n
//! is half of the queue's depth; its completion frees the entries and the buffers of those before it.

use crate::destination::To;
use crate::error::{Error, Failed, Result};
use crate::fair_queue::Ticket;
use crate::life::FORKED;
use crate::op::{Op, State};
use crate::payload::Payload;
use crate::qp::QpInner;
use crate::sends::Sends;
use crate::slots::Left;
use crate::sync::lock;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use uverbs::{AnyDriver, Buf, Driver, Operation, PostError, Private, Rejected, SendFlags};
use uverbs_core::wake::{Caller, Wakes};

/// An operation that is ready when it is posted; see [`Op::detach`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Detached<P: Payload<D>, D: Driver = AnyDriver> {
    op: Op<P, D>,
}

impl<D: Driver, P: Payload<D>> Unpin for Detached<P, D> {}

impl<D: Driver, P: Payload<D>> fmt::Debug for Detached<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Detached").field(&self.op).finish()
    }
}

impl<D: Driver, P: Payload<D>> Op<P, D> {
    /// Posts it, and does not wait until it is complete: the future waits for an entry of the queue only, and is the cheapest way to send
    /// a message. It is ready at once if the operation was posted already, by an earlier poll.
    ///
    /// Its buffer goes back to its pool with a later completion: the queue keeps the buffers of at most half of its
    /// depth until the next operation. If it fails, the QP is in state ERR, and the next operations and receives have an error; a QP of
    /// reliable datagrams ([`Srd`](uverbs::Srd)) goes on, and nothing reports the failure.
    /// [`Qp::shutdown`](crate::Qp::shutdown) does not wait for the detached operations at the end: a program awaits its last
    /// message.
    pub fn detach(self) -> Detached<P, D> {
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
    pub(crate) fn send_now(&self, buf: Buf<Private, D>) -> Result<Option<Buf<Private, D>>> {
        match self.post_now(
            buf,
            &mut Ticket::default(),
            (&Operation::Send, &mut To::Peer),
            SendFlags::SIGNALED,
        ) {
            Now::Posted => Ok(None),
            Now::Full(buf) => Ok(Some(buf)),
            Now::Failed(error, _) => Err(error),
        }
    }

    /// Posts a work request for which no one waits, if the queue is open and has an entry that no one else waits for.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post_now<P: Payload<D>>(
        &self,
        payload: P,
        ticket: &mut Ticket,
        request: (&Operation, &mut To<D>),
        flags: SendFlags,
    ) -> Now<P> {
        if self.is_forked() {
            return Now::Failed(FORKED, Some(payload));
        }
        let mut sends = lock(&self.sends);
        let free = sends.free;
        if sends.closed.is_some() || !sends.waiters.pass_alone(ticket, 1, free) {
            return Now::Full(payload);
        }
        // No one waits for an entry that it does not use.
        match sends.detach(self, payload, request, flags) {
            Ok(()) => Now::Posted,
            Err(Rejected { error, returned, .. }) => Now::Failed(error.into(), returned),
        }
    }
}

/// The result of a post that does not wait.
enum Now<P> {
    Posted,
    /// The queue is full or closed, or others wait for its entries.
    Full(P),
    /// With what was not posted, except if the device may use it.
    Failed(Error, Option<P>),
}

impl<D: Driver> Sends<D> {
    /// Posts a work request for which no one waits. There is a free entry, and the caller's turn has come. One of several makes a
    /// completion, which frees the entries of those before it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn detach<P: Payload<D>>(
        &mut self,
        qp: &QpInner<D>,
        payload: P,
        (op, to): (&Operation, &mut To<D>),
        flags: SendFlags,
    ) -> Result<(), Rejected<P>> {
        let full = |payload| Err(Rejected::new(PostError::QueueFull, Some(payload)));
        let Some(queue) = &mut self.queue else { return full(payload) };
        // Each datagram makes a completion, because its address handle is kept until then.
        if !to.has_address() && self.silent + 1 < qp.signal_interval() {
            let wr = (qp.route().silent(), flags - SendFlags::SIGNALED);
            let posted = queue.post(to, wr, op, payload);
            if is_in_flight(&posted) {
                self.free -= 1;
                self.silent += 1;
            }
            return posted;
        }
        // Without a completion the entries of those before it would not come back.
        let Ok(key) = self.slots.insert(Waker::noop().clone()) else { return full(payload) };
        let posted = queue.post(to, (qp.route().send(key), flags), op, payload);
        if is_in_flight(&posted) {
            // No one has waited for it: nothing is left.
            self.abandon(key, to);
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
    match posted {
        Ok(()) => true,
        Err(rejected) => matches!(rejected.error.reason, PostError::Doorbell(_)),
    }
}

impl<D: Driver, P: Payload<D>> Future for Detached<P, D> {
    type Output = Result<(), Failed<P::Back>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Op { qp, op, flags, state, to } = &mut self.get_mut().op;
        match core::mem::replace(state, State::Finished) {
            State::New { payload, mut ticket } => match qp.post_now(payload, &mut ticket, (op, to), *flags) {
                Now::Posted => Poll::Ready(Ok(())),
                Now::Full(payload) => Self::wait(qp, (payload, ticket), (op, to), *flags, (state, cx)),
                Now::Failed(error, returned) => {
                    Poll::Ready(Err(Failed { error, returned: returned.map(P::unposted) }))
                }
            },
            other => Self::polled(qp, &other, to),
        }
    }
}

impl<D: Driver, P: Payload<D>> Detached<P, D> {
    /// Waits for its turn, or posts it.
    #[inline(never)]
    fn wait(
        qp: &QpInner<D>,
        (payload, mut ticket): (P, Ticket),
        request: (&Operation, &mut To<D>),
        flags: SendFlags,
        (state, cx): (&mut State<P>, &Context<'_>),
    ) -> Poll<Result<(), Failed<P::Back>>> {
        let mut caller = Caller::new(cx.waker());
        let mut wakes = Wakes::new();
        let (mut sends, refusal) = loop {
            let mut sends = lock(&qp.sends);
            let refusal = sends.refusal(&mut ticket);
            let free = sends.free;
            if refusal.is_some() || sends.waiters.pass(&mut ticket, 1, free, &mut caller) {
                break (sends, refusal);
            }
            drop(sends);
            if !caller.supply() {
                *state = State::New { payload, ticket };
                return Poll::Pending;
            }
        };
        let (error, returned) = if let Some(error) = refusal {
            caller.leave(sends.leave(&mut ticket, &mut wakes));
            (error, Some(payload))
        } else {
            let posted = sends.detach(qp, payload, request, flags);
            let in_flight = is_in_flight(&posted);
            let Err(Rejected { error, returned, .. }) = posted else { return Poll::Ready(Ok(())) };
            if !in_flight {
                // It does not use its entry.
                let free = sends.free;
                sends.waiters.wake(free, &mut wakes);
            }
            (error.into(), returned)
        };
        drop(sends);
        wakes.wake();
        Poll::Ready(Err(Failed { error, returned: returned.map(P::unposted) }))
    }

    /// The operation was polled before it was detached. If it was posted then, there is nothing to wait for.
    #[cold]
    fn polled(qp: &QpInner<D>, state: &State<P>, to: &mut To<D>) -> Poll<Result<(), Failed<P::Back>>> {
        let State::Posted(key) = *state else { panic!("polled after it was ready") };
        if !qp.is_forked() {
            let left = lock(&qp.sends).abandon(key, to);
            left.into_iter().for_each(Left::discard);
        }
        Poll::Ready(Ok(()))
    }
}
