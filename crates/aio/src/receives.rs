// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives: posted from a pool, and kept until a task takes the message.
//!
//! The queue is refilled when messages are taken. At most as many buffers as the queue's depth are posted or wait for a task, so a task
//! that does not receive stops its peer (receiver not ready), and not others that share its pool.

use crate::error::Error;
use crate::fair_queue::FairQueue;
use crate::route::RouteId;
use crate::tasks::Tasks;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::task::Waker;
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs::provider::recv::RecvQueue as Engine;
use uverbs::wr::ImmData;
use uverbs::{
    AnyDriver, Buf, Driver, Exclusive, Polled, Pool, Private, QueueError, RecvBatch, RecvQueue, Srq,
    WcStatus, WorkCompletion,
};
use uverbs_core::wake::{Caller, Place, Waiters};

/// A message that was received. It is the slice of its bytes; its buffer goes back to the pool when it is dropped.
pub struct Message<D: Driver = AnyDriver> {
    buf: Buf<Private, D>,
    wc: WorkCompletion,
}

impl<D: Driver> fmt::Debug for Message<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.buf.len()).field("imm", &self.imm()).finish()
    }
}

impl<D: Driver> Message<D> {
    /// The immediate data, if the sender gave some.
    #[must_use]
    pub fn imm(&self) -> Option<ImmData> {
        self.wc.imm_data()
    }

    /// The fields of the completion. Those of a write with immediate have the number of bytes that it wrote; the message
    /// itself is empty. The fields that only datagrams have (`src_qp`, `pkey_index`, `slid`, `sl`, `dlid_path_bits`) are zero.
    #[must_use]
    pub fn completion(&self) -> &WorkCompletion {
        &self.wc
    }

    /// The buffer, for example to send it on.
    #[must_use]
    pub fn into_buf(self) -> Buf<Private, D> {
        self.buf
    }
}

impl<D: Driver> Deref for Message<D> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl<D: Driver> DerefMut for Message<D> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }
}

/// A receive queue whose messages are those of one receiver.
pub(crate) enum OwnQueue<D: Driver> {
    /// That of a QP.
    Qp(RecvQueue<Exclusive, D>),
    /// A shared queue of XRC.
    Xrc(Srq<Exclusive, D>),
}

/// Posts at most `missing` receives with buffers of the pool. `None` if it has none.
fn fill<D: Driver, Q: Engine<Sge = D::Sge>>(
    mut batch: RecvBatch<'_, Q, D>,
    pool: &Pool<Private, D>,
    missing: u32,
    wr_id: u64,
) -> Option<Result<u32, QueueError>> {
    let mut pushed = 0;
    while pushed < missing
        && let Some(buf) = pool.try_get()
    {
        batch.push(wr_id, buf);
        pushed += 1;
    }
    if pushed == 0 {
        return None;
    }
    Some(batch.complete().map(|()| pushed))
}

/// The receive queue of a QP, and the messages that have arrived.
pub(crate) struct Receives<D: Driver> {
    /// `None` if the receives are those of an SRQ.
    queue: Option<OwnQueue<D>>,
    pool: Option<Pool<Private, D>>,
    depth: u32,
    /// Its messages are datagrams.
    is_datagram: bool,
    /// The queue is refilled when it has no more than these.
    low: usize,
    pub(crate) posted: u32,
    route: RouteId,
    pub(crate) messages: VecDeque<Message<D>>,
    pub(crate) waiters: FairQueue,
    /// Those of a stream, which takes all messages.
    inbox: Option<Arc<Tasks>>,
    /// The QP was reset since the inbox was set: the stream of the inbox has lost messages.
    inbox_ended: bool,
    /// Why no more messages arrive.
    ended: Option<Error>,
    closed: bool,
    flushing: Waiters,
}

impl<D: Driver> Receives<D> {
    pub(crate) fn new(
        queue: Option<OwnQueue<D>>,
        pool: Option<Pool<Private, D>>,
        (depth, is_datagram): (u32, bool),
        route: RouteId,
    ) -> Self {
        Self {
            queue,
            pool,
            depth,
            is_datagram,
            low: depth.saturating_sub((depth / 4).max(1)) as usize,
            posted: 0,
            route,
            messages: VecDeque::new(),
            waiters: FairQueue::default(),
            inbox: None,
            inbox_ended: false,
            ended: None,
            closed: false,
            flushing: Waiters::default(),
        }
    }

    /// The queue, which the caller drops.
    #[must_use]
    pub(crate) fn take_queue(&mut self) -> Option<OwnQueue<D>> {
        self.queue.take()
    }

    /// The shared queue of XRC.
    pub(crate) fn xrc_queue(&self) -> Option<&Srq<Exclusive, D>> {
        match &self.queue {
            Some(OwnQueue::Xrc(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Whether so many receives are missing that the queue is refilled. Messages that no task has taken count as posted, except `taken`
    /// of them. A batch saves doorbells: it is a quarter of the queue, or the whole if that is empty.
    #[inline]
    fn is_short(&self, taken: usize) -> bool {
        let held = (self.posted as usize + self.messages.len()).wrapping_sub(taken);
        held < self.depth as usize && (held <= self.low || self.posted == 0)
    }

    /// Posts receives until the queue is full, or the pool is empty. Returns whether the queue is empty because the pool is.
    #[inline]
    pub(crate) fn refill(&mut self) -> bool {
        self.refill_for(0)
    }

    /// As [`refill`](Self::refill), before so many messages are taken: a message that is taken last is moved only once.
    #[inline]
    pub(crate) fn refill_for(&mut self, taken: u32) -> bool {
        self.is_short(taken as usize) && self.post(taken)
    }

    #[inline(never)]
    fn post(&mut self, taken: u32) -> bool {
        let held = self.posted.saturating_add(self.available()).saturating_sub(taken);
        let missing = self.depth.saturating_sub(held);
        let (Some(queue), Some(pool)) = (&mut self.queue, &self.pool) else { return false };
        if self.ended.is_some() || self.closed {
            return false;
        }
        let wr_id = self.route.receive();
        let filled = match queue {
            OwnQueue::Qp(queue) => fill(queue.batch(), pool, missing, wr_id),
            OwnQueue::Xrc(queue) => fill(queue.batch(), pool, missing, wr_id),
        };
        match filled {
            None => return self.posted == 0,
            Some(Ok(pushed)) => self.posted += pushed,
            // In RESET; the receives are posted in INIT. In ERR completions will say so.
            Some(Err(error)) => uverbs::report!(debug, {}, "receives: {error}"),
        }
        false
    }

    /// A receive has a message: one of the QP's own queue, or of an SRQ. Returns whether the queue should be refilled.
    #[inline]
    pub(crate) fn arrived(&mut self, done: Polled<'_, '_, D>, own: bool, wakes: &mut Vec<Waker>) -> bool {
        // The others are those of datagrams.
        let wc = if self.is_datagram {
            done.wc()
        } else {
            WorkCompletion {
                wr_id: done.wr_id(),
                status: WcStatus::SUCCESS,
                opcode: done.opcode(),
                byte_len: done.byte_len(),
                imm_data_or_invalidated_rkey: done.imm_data_or_invalidated_rkey(),
                qp_num: done.qp_num(),
                wc_flags: done.wc_flags(),
                ..WorkCompletion::default()
            }
        };
        if let Some(buf) = done.buf() {
            self.messages.push_back(Message { buf, wc });
            self.waiters.wake(self.available(), wakes);
            if let Some(inbox) = &self.inbox {
                inbox.note(wakes);
            }
        }
        self.completed(own, wakes)
    }

    /// A receive has failed. As [`arrived`](Self::arrived).
    pub(crate) fn failed(&mut self, error: Error, own: bool, wakes: &mut Vec<Waker>) -> bool {
        self.end(error, wakes);
        self.completed(own, wakes)
    }

    /// A receive is complete.
    #[inline]
    pub(crate) fn completed(&mut self, own: bool, wakes: &mut Vec<Waker>) -> bool {
        if own {
            self.posted = self.posted.saturating_sub(1);
        }
        if self.posted == 0 && !self.flushing.is_empty() {
            self.flushing.wake_all(wakes);
        }
        self.is_short(0)
    }

    #[inline]
    pub(crate) fn available(&self) -> u32 {
        // As many as receives at most.
        self.messages.len() as u32
    }

    /// The first message, and whether the queue is empty because its pool is.
    pub(crate) fn take_first(&mut self) -> (Option<Message<D>>, bool) {
        // Those that wait come first.
        if !self.waiters.is_empty() {
            return (None, false);
        }
        let taken = u32::from(!self.messages.is_empty());
        let starved = self.refill_for(taken);
        (self.messages.pop_front(), starved)
    }

    /// Takes all messages into a queue that is empty, also those for which a task waits: it waits for the next one. Returns whether the
    /// receive queue is empty because its pool is.
    #[inline]
    pub(crate) fn take_all(&mut self, messages: &mut VecDeque<Message<D>>) -> bool {
        core::mem::swap(&mut self.messages, messages);
        self.refill()
    }

    /// Sets the tasks of the stream that takes all messages. Returns the previous ones.
    pub(crate) fn set_inbox(&mut self, tasks: Option<Arc<Tasks>>) -> Option<Arc<Tasks>> {
        self.inbox_ended = false;
        core::mem::replace(&mut self.inbox, tasks)
    }

    /// Whether the QP was reset since the inbox was set.
    #[inline]
    pub(crate) fn has_inbox_ended(&self) -> bool {
        self.inbox_ended
    }

    /// Why no more messages arrive.
    #[inline]
    pub(crate) fn ended(&self) -> Option<&Error> {
        self.ended.as_ref()
    }

    /// Wakes all that wait for messages.
    fn wake_all(&mut self, wakes: &mut Vec<Waker>) {
        self.waiters.wake_all(wakes);
        if let Some(inbox) = &self.inbox {
            inbox.note(wakes);
        }
    }

    /// No more messages arrive. The first reason counts.
    pub(crate) fn end(&mut self, error: Error, wakes: &mut Vec<Waker>) {
        if self.ended.is_none() {
            self.ended = Some(if self.closed { Error::Closed } else { error });
        }
        self.wake_all(wakes);
    }

    /// As [`end`](Self::end), and the receives that are posted are not flushed either.
    pub(crate) fn fail(&mut self, error: Error, wakes: &mut Vec<Waker>) {
        self.posted = 0;
        self.ended = Some(error);
        self.wake_all(wakes);
        self.flushing.wake_all(wakes);
    }

    /// The queue, to be reset.
    pub(crate) fn queue(&mut self) -> Option<&mut RecvQueue<Exclusive, D>> {
        match &mut self.queue {
            Some(OwnQueue::Qp(queue)) => Some(queue),
            _ => None,
        }
    }

    /// The QP was moved to RESET: the receives that were posted have no completions.
    pub(crate) fn reset(&mut self, wakes: &mut Vec<Waker>) {
        (self.posted, self.ended, self.closed) = (0, None, false);
        self.inbox_ended = self.inbox.is_some();
        self.waiters.dismiss_all(wakes);
        self.wake_all(wakes);
        self.flushing.wake_all(wakes);
    }

    /// The QP will be moved to ERR.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// The event `QP_LAST_WQE_REACHED`.
    pub(crate) fn wake_flushing(&mut self, wakes: &mut Vec<Waker>) {
        self.flushing.wake_all(wakes);
    }

    /// The task is woken by that event, or when the receives are flushed.
    pub(crate) fn wait_flushed(&mut self, place: &mut Place, caller: &mut Caller<'_>) {
        self.flushing.wait(place, caller);
    }

    /// The task does not wait for that any more. Returns its waker.
    pub(crate) fn leave_flushed(&mut self, place: &mut Place) -> Option<Waker> {
        self.flushing.leave(place)
    }

    /// Whether receives of the QP's own queue are in flight.
    pub(crate) fn any_posted(&self) -> bool {
        self.posted > 0
    }

    /// After the move to ERR: waits until no receive of the QP is in flight. Those of an SRQ are not counted here. Returns whether none is.
    pub(crate) fn poll_flushed(
        &mut self,
        place: &mut Place,
        caller: &mut Caller<'_>,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        if self.posted == 0 {
            // Otherwise it was reset meanwhile.
            if self.closed {
                self.end(Error::Closed, wakes);
            }
            return true;
        }
        self.wait_flushed(place, caller);
        false
    }
}
