// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue of a QP, and the work requests in flight.
//!
//! The transport is a type of the handles only ([`Qp`](crate::Qp)): they offer the operations that it has. The dispatcher passes the
//! completions of all transports on in the same way.

use crate::destination::To;
use crate::error::{Error, Result};
use crate::fair_queue::{FairQueue, Ticket};
use crate::item::{Data, Item};
use crate::payload::Payload;
use crate::slots::{Left, Slots};
use core::task::Waker;
use std::sync::Arc;
use uverbs::qp::{QpControl, transport};
use uverbs::{
    Access, AddressHandle, Batch, Completed, Dci, Driver, Exclusive, Operation, PostError, QueueError, Rc,
    RecvQueue, Rejected, SendFlags, SendQueue, Srd, ToBatch, Ud, WcStatus, Wr, XrcSend,
};
use uverbs_core::wake::{Caller, Waiters};

/// The result of a send, or why it has none.
pub(crate) type Outcome<D> = Result<Completed<D>>;

/// A send queue.
pub(crate) enum Queue<D: Driver> {
    Rc(SendQueue<Rc, Exclusive, D>),
    Ud(SendQueue<Ud, Exclusive, D>),
    Srd(SendQueue<Srd, Exclusive, D>),
    Xrc(SendQueue<XrcSend, Exclusive, D>),
    Dc(SendQueue<Dci, Exclusive, D>),
}

impl<D: Driver> Queue<D> {
    /// Posts a work request. The payload is returned if that fails.
    #[inline]
    pub(crate) fn post<P: Payload<D>>(
        &mut self,
        to: &To<D>,
        (wr_id, flags): (u64, SendFlags),
        op: &Operation,
        payload: P,
    ) -> Result<(), Rejected<P>> {
        match (&mut *self, to) {
            (Self::Rc(queue), To::Peer) => payload.post(queue.post(wr_id).flags(flags), op),
            _ => self.post_to(to, (wr_id, flags), op, payload),
        }
    }

    /// [`post`](Self::post) to a destination. A call, so that the code of a connected QP is short.
    #[inline(never)]
    fn post_to<P: Payload<D>>(
        &mut self,
        to: &To<D>,
        (wr_id, flags): (u64, SendFlags),
        op: &Operation,
        payload: P,
    ) -> Result<(), Rejected<P>> {
        match (self, to) {
            (Self::Ud(queue), To::Datagram(to)) => {
                payload.post(queue.post_to(wr_id, &to.ah, to.qp_num, to.qkey).flags(flags), op)
            }
            (Self::Srd(queue), To::Datagram(to)) => {
                payload.post(queue.post_to(wr_id, &to.ah, to.qp_num, to.qkey).flags(flags), op)
            }
            (Self::Xrc(queue), To::Srq(srq_num)) => {
                payload.post(queue.post_srq(wr_id, *srq_num).flags(flags), op)
            }
            (Self::Dc(queue), To::Dc(to)) => {
                let (ah, dctn, key) = To::dc(to);
                payload.post(queue.post_dc(wr_id, ah, dctn, key).flags(flags), op)
            }
            // The handles give each transport its destinations.
            _ => Err(Rejected::new(PostError::IllegalOpcode, Some(payload))),
        }
    }

    /// Whether it completes each of its work requests: on some devices they complete in any order, and there are no others.
    pub(crate) fn signals_each(&self) -> bool {
        matches!(self, Self::Ud(_) | Self::Srd(_))
    }

    /// Posts work requests with one doorbell, each with its `wr_id` and flags.
    pub(crate) fn post_batch<A: Access>(
        &mut self,
        items: impl Iterator<Item = (u64, SendFlags, Item<A, D>)>,
    ) -> Result<(), QueueError> {
        match self {
            Self::Rc(queue) => post_items(queue.batch(), items),
            Self::Ud(queue) => post_items(queue.batch(), items),
            Self::Srd(queue) => post_items(queue.batch(), items),
            Self::Xrc(queue) => post_items(queue.batch(), items),
            Self::Dc(queue) => post_items(queue.batch(), items),
        }
    }

    /// Moves the QP to RESET.
    pub(crate) fn reset(
        &mut self,
        recv: Option<&mut RecvQueue<Exclusive, D>>,
        control: &QpControl<D>,
    ) -> uverbs::Result<()> {
        match self {
            Self::Rc(queue) => queue.reset(recv, control),
            Self::Ud(queue) => queue.reset(recv, control),
            Self::Srd(queue) => queue.reset(recv, control),
            Self::Xrc(queue) => queue.reset(recv, control),
            Self::Dc(queue) => queue.reset(recv, control),
        }
    }
}

/// [`Queue::post_batch`] to the queue of a transport.
fn post_items<T: Begin, A: Access, D: Driver>(
    mut batch: Batch<'_, T, D>,
    items: impl Iterator<Item = (u64, SendFlags, Item<A, D>)>,
) -> Result<(), QueueError> {
    for (wr_id, flags, Item { to, op, data }) in items {
        let Some(wr) = T::begin(&mut batch, wr_id, &to) else {
            // The handles give each transport its destinations.
            batch.abort();
            return Err(PostError::IllegalOpcode.into());
        };
        let wr = wr.flags(flags);
        match data {
            Data::Buf(buf) => wr.op_with(&op, buf),
            Data::Part(part) => wr.op_with(&op, part),
            Data::Shared(shared) => wr.op(&op, shared),
        }
    }
    batch.complete()
}

/// The work requests of a transport in a batch.
trait Begin: transport::Sends + Sized {
    /// One to this destination; `None` if the transport has no such destinations.
    fn begin<'b, 'q, D: Driver>(
        batch: &'b mut Batch<'q, Self, D>,
        wr_id: u64,
        to: &'b To<D>,
    ) -> Option<Wr<'b, ToBatch<'b, 'q, D>, Self, D>>;
}

macro_rules! begin {
    ($($transport:ident: $to:pat, |$batch:ident, $wr_id:ident| $wr:expr;)*) => {$(
        impl Begin for $transport {
            fn begin<'b, 'q, D: Driver>(
                $batch: &'b mut Batch<'q, Self, D>,
                $wr_id: u64,
                to: &'b To<D>,
            ) -> Option<Wr<'b, ToBatch<'b, 'q, D>, Self, D>> {
                match to {
                    $to => Some($wr),
                    _ => None,
                }
            }
        }
    )*};
}

begin! {
    Rc: To::Peer, |batch, wr_id| batch.wr(wr_id);
    Ud: To::Datagram(to), |batch, wr_id| batch.wr_to(wr_id, &to.ah, to.qp_num, to.qkey);
    Srd: To::Datagram(to), |batch, wr_id| batch.wr_to(wr_id, &to.ah, to.qp_num, to.qkey);
    XrcSend: To::Srq(srq_num), |batch, wr_id| batch.wr_srq(wr_id, *srq_num);
    Dci: To::Dc(to), |batch, wr_id| {
        let (ah, dctn, key) = To::dc(to);
        batch.wr_dc(wr_id, ah, dctn, key)
    };
}

/// What posts sends, and the sends in flight.
pub(crate) struct Sends<D: Driver> {
    /// `None` only while the QP is dropped.
    pub(crate) queue: Option<Queue<D>>,
    pub(crate) slots: Slots<Outcome<D>>,
    /// Work requests that can be posted.
    pub(crate) free: u32,
    pub(crate) waiters: FairQueue,
    /// Why nothing can be posted any more.
    pub(crate) closed: Option<Error>,
    /// Work requests in flight of which only the last makes a completion.
    pub(crate) batches: Vec<Together>,
    /// Detached work requests without a completion, since the last one that makes one.
    pub(crate) silent: u32,
    /// How often the QP was [reset](crate::Qp::reset).
    pub(crate) resets: u64,
    /// Those that wait until no send is in flight.
    pub(crate) draining: Waiters,
    /// The address handles of work requests in flight for which no future waits any more, by the keys of their slots.
    addresses: Vec<(u64, Arc<AddressHandle<D>>)>,
}

/// Work requests of which only the last makes a completion: it has the slot.
pub(crate) struct Together {
    pub(crate) key: u64,
    pub(crate) count: u32,
    /// The first error of one that is not the last.
    pub(crate) fault: Option<Error>,
}

impl<D: Driver> Sends<D> {
    /// Of a queue with `depth` entries.
    pub(crate) fn new(queue: Queue<D>, depth: u32) -> Self {
        Self {
            queue: Some(queue),
            slots: Slots::new(),
            free: depth,
            waiters: FairQueue::default(),
            closed: None,
            batches: Vec::new(),
            silent: 0,
            resets: 0,
            draining: Waiters::default(),
            addresses: Vec::new(),
        }
    }

    /// A slot for a work request that is about to be posted, with the clone of the caller's waker. `None` if there are too many.
    #[inline]
    pub(crate) fn insert_slot(&mut self, caller: &mut Caller<'_>) -> Option<u64> {
        match self.slots.insert(caller.take()?) {
            Ok(key) => Some(key),
            Err(waker) => {
                caller.leave(Some(waker));
                None
            }
        }
    }

    /// `count` work requests were posted, of which only the last one makes a completion: with this key.
    #[inline]
    pub(crate) fn posted(&mut self, key: u64, count: u32) {
        self.free -= count;
        let count = count + core::mem::take(&mut self.silent);
        if count > 1 {
            self.batches.push(Together { key, count, fault: None });
        }
    }

    /// The future of a work request in flight, of a datagram to `to`, ends before it. What is left in the slot is dropped without the
    /// lock, and so is `to`, unless its address handle is kept until the completion.
    pub(crate) fn abandon(&mut self, key: u64, to: &mut To<D>) -> Option<Left<Outcome<D>>> {
        let left = self.slots.abandon(key);
        if !matches!(left, Some(Left::Result(_)))
            && let Some(ah) = to.take_address()
        {
            self.addresses.push((key, ah));
        }
        left
    }

    /// [`abandon`](Self::abandon) for work requests of a batch with one completion. Address handles that are not kept until the
    /// completion are left to the caller, who drops them without the lock.
    pub(crate) fn abandon_part(
        &mut self,
        key: u64,
        addresses: &mut Vec<Arc<AddressHandle<D>>>,
    ) -> Option<Left<Outcome<D>>> {
        let left = self.slots.abandon(key);
        if !matches!(left, Some(Left::Result(_))) {
            self.addresses.extend(addresses.drain(..).map(|ah| (key, ah)));
        }
        left
    }

    /// The work requests with this key are complete, and so are those before it. Returns their address handles, which the caller drops
    /// without its lock: that may be a control call.
    #[inline]
    pub(crate) fn take_addresses(&mut self, key: u64) -> Vec<Arc<AddressHandle<D>>> {
        if self.addresses.is_empty() {
            return Vec::new();
        }
        self.addresses.extract_if(.., |(of, _)| *of == key).map(|(_, ah)| ah).collect()
    }

    /// Why a task with this ticket can post nothing.
    #[inline]
    pub(crate) fn refusal(&self, ticket: &mut Ticket) -> Option<Error> {
        match &self.closed {
            Some(error) => Some(error.clone()),
            None => self.waiters.dismisses(ticket).then_some(Error::Closed),
        }
    }

    /// The QP was moved to RESET: what was posted has no completions.
    pub(crate) fn reset(&mut self, depth: u32, qp_num: u32, wakes: &mut Vec<Waker>) {
        (self.free, self.silent, self.closed) = (depth, 0, None);
        self.resets += 1;
        self.batches.clear();
        self.addresses.clear();
        let (status, vendor_err) = (WcStatus::WR_FLUSH_ERR, 0);
        self.slots.discard_all(|| Err(Error::Completion { status, vendor_err, qp_num }), wakes);
        self.waiters.dismiss_all(wakes);
        self.draining.wake_all(wakes);
    }

    /// Wakes those that wait for an entry.
    #[inline]
    pub(crate) fn released(&mut self, depth: u32, wakes: &mut Vec<Waker>) {
        if !self.waiters.is_empty() {
            self.waiters.wake(self.free, wakes);
        }
        if self.free + self.silent == depth {
            self.draining.wake_all(wakes);
        }
    }

    /// Gives up a place among those that wait for entries, as [`FairQueue::leave`].
    pub(crate) fn leave(&mut self, ticket: &mut Ticket, wakes: &mut Vec<Waker>) -> Option<Waker> {
        self.waiters.leave(ticket, self.free, wakes)
    }
}
