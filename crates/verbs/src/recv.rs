// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posting receives that own their buffers, to a QP's own queue and to a shared one.
#![expect(unsafe_code)]
// UNSAFETY: posts memory that the slab of the queue owns.

use crate::brief::brief;
use crate::cq::Cq;
use crate::flight::{Entry, Flight, QueueKind};
use crate::held::Held;
use crate::list::Memory;
use crate::open::AnyDriver;
use crate::pd::ProtectionDomain;
use crate::pool::domain_of;
use crate::rejected::{Rejected, reject};
use crate::xrcd::XrcDomain;
use crate::{id::SrqId, raw};
use std::sync::Arc;
use uverbs_core::attr::{SrqAttr, SrqAttrMask, SrqInitAttr};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::recv::{RecvBatch as _, RecvQueue as Engine};
use uverbs_core::provider::{Driver, Object as _, PostError, QueueError};
use uverbs_core::sync::{Exclusive, LockError, Locking, Shared};

/// Posts a receive by the only poster of the queue.
///
/// # Safety
/// This thread is the only poster: it has borrowed the queue exclusively, or holds its lock.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn post<D: Driver, Q: Engine<Sge = D::Sge>, B: Memory<D>>(
    engine: &mut Q,
    flight: &Flight<D>,
    wr_id: u64,
    data: B,
) -> Result<(), Rejected<B>> {
    let refuse = |error, data| Err(Rejected { error, returned: Some(data) });
    let domain = data.domain();
    // SAFETY: the contract of this function; a domain has the bits of a tag.
    let Some(vacant) = (unsafe { flight.slab.vacant(domain) }) else {
        // SAFETY: the contract of this function.
        if domain == flight.slab.tag() && unsafe { flight.slab.skip() } {
            // SAFETY: the contract of this function.
            return unsafe { post_again(engine, flight, wr_id, data) };
        }
        if domain != flight.slab.tag() {
            // SAFETY: the contract of this function.
            return unsafe { post_moved(engine, flight, wr_id, data) };
        }
        return refuse(flight.error(flight.no_slot(domain)), data);
    };
    let (sges, note) = (data.whole(), data.note());
    let number = vacant.fill(Entry { wr_id, held: data.lend() });
    flight.counts.posts();
    // SAFETY: the entries name the bytes of the buffers, whose pools keep them registered and alive. The slab owns the buffers
    // until the receive is known to be complete, or until the post fails.
    match unsafe { engine.post(number, sges.as_ref()) } {
        Ok(()) => Ok(()),
        Err(error) => Err(reject(flight, number, note, error)),
    }
}

/// [`post`], after a slot was skipped.
///
/// # Safety
/// As [`post`].
// codegen: live
#[cold]
#[inline(never)]
unsafe fn post_again<D: Driver, Q: Engine<Sge = D::Sge>, B: Memory<D>>(
    engine: &mut Q,
    flight: &Flight<D>,
    wr_id: u64,
    data: B,
) -> Result<(), Rejected<B>> {
    // SAFETY: the contract of this function.
    unsafe { post(engine, flight, wr_id, data) }
}

/// [`post`] of memory of another domain: moves it to that of the queue, if it can be there.
///
/// # Safety
/// As [`post`].
#[cold]
#[inline(never)]
unsafe fn post_moved<D: Driver, Q: Engine<Sge = D::Sge>, B: Memory<D>>(
    engine: &mut Q,
    flight: &Flight<D>,
    wr_id: u64,
    data: B,
) -> Result<(), Rejected<B>> {
    let data = data.moved_to(flight.slab.tag());
    if data.domain() != flight.slab.tag() {
        return Err(Rejected { error: flight.error(PostError::InvalidArgument), returned: Some(data) });
    }
    // SAFETY: the contract of this function.
    unsafe { post(engine, flight, wr_id, data) }
}

/// Posts a receive without memory by the only poster of the queue.
///
/// # Safety
/// As [`post`].
#[inline]
unsafe fn post_empty<D: Driver, Q: Engine<Sge = D::Sge>>(
    engine: &mut Q,
    flight: &Flight<D>,
    wr_id: u64,
) -> Result<(), PostError> {
    // SAFETY: the contract of this function.
    let Some(vacant) = (unsafe { flight.slab.vacant_anywhere(flight.slab.tag()) }) else {
        flight.counts.refused(PostError::QueueFull);
        return Err(PostError::QueueFull);
    };
    let number = vacant.fill(Entry { wr_id, held: Held::NOTHING });
    // SAFETY: without entries no memory is named.
    posted(flight, number, unsafe { engine.post(number, &[]) })
}

/// Counts a post; what one that has failed has put into the slab is dropped.
#[cfg_attr(not(debug_assertions), inline(always))]
fn posted<D: Driver>(
    flight: &Flight<D>,
    number: u64,
    posted: Result<(), PostError>,
) -> Result<(), PostError> {
    match posted {
        Ok(()) => flight.counts.posts(),
        Err(error) => {
            flight.counts.refused(error);
            match error {
                PostError::Doorbell(_) => flight.counts.published(1),
                _ => flight.drop_entry(number),
            }
        }
    }
    posted
}

/// Takes back what an open batch has put into the slab, unless it was posted.
struct Undo<'q, D: Driver> {
    flight: &'q Flight<D>,
    first: u32,
}

impl<D: Driver> Drop for Undo<'_, D> {
    // codegen: drop
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        unsafe { self.flight.dropped_from(self.first) };
    }
}

impl<D: Driver> Undo<'_, D> {
    /// The batch could not be posted.
    #[cold]
    #[inline(never)]
    fn failed(self, error: PostError) -> QueueError {
        let flight = self.flight;
        match error {
            PostError::Doorbell(_) => {
                flight.counts.published_pushed();
                core::mem::forget(self);
            }
            _ => self.abort(),
        }
        flight.error(error)
    }

    /// Takes them back without a warning.
    #[cold]
    #[inline(never)]
    fn abort(self) {
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        unsafe { self.flight.drop_from(self.first) };
        core::mem::forget(self);
    }
}

/// A batch of receives. Errors latch; [`complete`](Self::complete) reports them.
///
/// If the batch is not completed, or the completion of the batch fails, its buffers go back to their pools. The first batch of a queue
/// that is dropped with receives, without [`complete`](Self::complete) or [`abort`](Self::abort), logs a warning.
#[must_use = "a batch that is not completed posts nothing"]
pub struct RecvBatch<'q, Q: Engine + 'q, D: Driver> {
    inner: Q::Batch<'q>,
    undo: Undo<'q, D>,
}

impl<D: Driver, Q: Engine> core::fmt::Debug for RecvBatch<'_, Q, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecvBatch").field("error", &self.undo.flight.refused()).finish_non_exhaustive()
    }
}

impl<'q, D: Driver, Q: Engine<Sge = D::Sge>> RecvBatch<'q, Q, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn new(engine: &'q mut Q, flight: &'q Flight<D>) -> Self {
        flight.counts.begin();
        Self { inner: engine.batch(), undo: Undo { flight, first: flight.begin_batch() } }
    }

    /// Adds one receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn push<B: Memory<D>>(&mut self, wr_id: u64, data: B) {
        let flight = self.undo.flight;
        let domain = data.domain();
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster; a domain has
        // the bits of a tag.
        let mut vacant = unsafe { flight.slab.vacant_anywhere(domain) };
        let mut data = data;
        if vacant.is_none() && domain != flight.slab.tag() {
            // Memory of another domain, unless its pool is in that of the queue, too.
            data = data.moved_to(flight.slab.tag());
            // SAFETY: as above.
            vacant = unsafe { flight.slab.vacant_anywhere(data.domain()) };
        }
        let Some(vacant) = vacant else {
            let domain = data.domain();
            // SAFETY: this is the only copy.
            return unsafe { flight.refuse_slot(data.lend(), domain) };
        };
        let sges = data.whole();
        let number = vacant.fill(Entry { wr_id, held: data.lend() });
        flight.counts.pushed();
        // SAFETY: the entries name the bytes of the buffers, whose pools keep them registered and alive. The slab owns the
        // buffers until the receive is known to be complete, or until the batch is dropped unposted.
        unsafe { self.inner.push(number, sges.as_ref()) }
    }

    /// Adds one receive without memory, as [`RecvQueue::post_empty`].
    #[inline]
    pub fn push_empty(&mut self, wr_id: u64) {
        let flight = self.undo.flight;
        let domain = flight.slab.tag();
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        let Some(vacant) = (unsafe { flight.slab.vacant_anywhere(domain) }) else {
            // SAFETY: nothing is held.
            return unsafe { flight.refuse_slot(Held::NOTHING, domain) };
        };
        let number = vacant.fill(Entry { wr_id, held: Held::NOTHING });
        flight.counts.pushed();
        // SAFETY: without entries no memory is named.
        unsafe { self.inner.push(number, &[]) }
    }

    /// Makes all of it visible to the device; or, if any receive was wrong, drops all and reports the first error.
    ///
    /// # Errors
    /// The first error; nothing was posted then, except after [`PostError::Doorbell`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn complete(self) -> Result<(), QueueError> {
        let Self { inner, undo } = self;
        let flight = undo.flight;
        if let Some(error) = flight.refused() {
            return Err(undo.failed(error));
        }
        match inner.complete() {
            Ok(()) => {
                core::mem::forget(undo);
                flight.counts.posted_pushed();
                Ok(())
            }
            Err(error) => Err(undo.failed(error)),
        }
    }

    /// Discards the batch: nothing is posted, and the buffers go back to their pools.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn abort(self) {
        self.undo.abort();
    }
}

/// The receive queue of a QP, whose receives own their buffers.
pub struct RecvQueue<L: Locking = Exclusive, D: Driver = AnyDriver> {
    queue: raw::RecvQueue<L, D>,
    flight: Arc<Flight<D>>,
}

brief!([L: Locking, D: Driver] RecvQueue<L, D>, |this| "{:?}, {} in flight", this.queue, this.flight.slab.len());

/// A shared receive queue whose receives own their buffers.
///
/// A receive that the device took for a QP or DC target which was then destroyed or reset before its completion was polled has no
/// completion. Its buffer goes back to its pool, and the message is lost. A QP is moved to ERR before, so that this is also true of a
/// message that was not complete, if the device flushes at once. If it does so later, or for a DC target, nothing names the receive: the
/// SRQ keeps its buffer until the SRQ itself is destroyed. [`drain`](Self::drain) ends a QP without either.
pub struct Srq<L: Locking = Exclusive, D: Driver = AnyDriver> {
    queue: raw::Srq<L, D>,
    flight: Arc<Flight<D>>,
}

brief!([L: Locking, D: Driver] Srq<L, D>, |this| "{:?}, {} in flight", this.queue, this.flight.slab.len());

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_create_srq`, for receives that own their buffers.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq).
    pub fn srq<L: Locking>(&self, attr: &SrqInitAttr) -> Result<Srq<L, D>> {
        Srq::own(self, self.create_srq::<L>(attr)?)
    }

    /// An XRC SRQ for receives that own their buffers, which complete to `cq`. As
    /// [`raw::Srq::create_xrc`].
    ///
    /// # Errors
    /// As `create_xrc`.
    pub fn xrc_srq<L: Locking, LC: Locking>(
        &self,
        attr: &SrqInitAttr,
        xrcd: &XrcDomain<D>,
        cq: &Cq<LC, D>,
    ) -> Result<Srq<L, D>> {
        Srq::own(self, raw::Srq::create_xrc(self, attr, xrcd, cq.queue())?)
    }
}

/// Whether the device has taken none of the receives: the slab has the buffers of those in the ring and no more. `false` if
/// the device does not show it.
///
/// The count of the ring comes first. If the device has taken nothing until the slab is counted, the buffers of the receives
/// in the ring are in the slab during that time. So if their number is that of the slab, each receive that was taken before is
/// completed. Posts at the same time can only make the number of the slab greater.
fn is_none_taken<D: Driver>(flight: &Flight<D>, untaken: impl Fn() -> Option<(u32, u32)>) -> bool {
    let Some((count, position)) = untaken() else { return false };
    flight.slab.len() == count as usize && untaken().is_some_and(|(_, then)| then == position)
}

impl<D: Driver, L: Locking> Srq<L, D> {
    fn own(pd: &ProtectionDomain<D>, queue: raw::Srq<L, D>) -> Result<Self> {
        // Twice the slots, see `Flight::new`; also of XRC, whose receives complete in any order, too.
        let (pd, depth) = (pd.inner(), queue.attr().max_wr);
        let flight = Flight::new(
            pd.context(),
            QueueKind::Srq,
            domain_of(pd),
            queue.inner().object()?.handle().handle(),
            depth,
        )?;
        queue.inner().holds().set(vec![flight.clone()]);
        Ok(Self { queue, flight })
    }

    /// Destroys it: all its buffers go back to their pools. On failure, which a drop would only log, returns it with the error.
    ///
    /// # Errors
    /// `EBUSY` while QPs use it; otherwise the kernel's error.
    pub fn close(self) -> Result<(), (Self, Error)> {
        let Self { queue, flight } = self;
        queue.close().map_err(|(queue, error)| (Self { queue, flight }, error))
    }

    /// `ibv_get_srq_num`: the number by which XRC senders address it.
    ///
    /// # Errors
    /// `Unsupported` for other SRQs.
    pub fn srq_num(&self) -> Result<u32> {
        self.queue.srq_num()
    }
}

impl<D: Driver, L: Locking> RecvQueue<L, D> {
    pub(super) fn new(queue: raw::RecvQueue<L, D>, flight: Arc<Flight<D>>) -> Self {
        Self { queue, flight }
    }

    pub(super) fn flight(&self) -> &Arc<Flight<D>> {
        &self.flight
    }
}

impl<D: Driver, L: Locking> Srq<L, D> {
    #[cfg(feature = "counters")]
    pub(super) fn flight(&self) -> &Flight<D> {
        &self.flight
    }

    pub(super) fn queue(&self) -> &raw::Srq<L, D> {
        &self.queue
    }

    /// The receives that it holds: those that are posted and not known to be complete.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flight.slab.len()
    }

    /// Identifies this SRQ in asynchronous events.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.queue.id()
    }

    /// Its sizes as created, which are at least those requested.
    #[must_use]
    pub fn attr(&self) -> &SrqAttr {
        self.queue.attr()
    }
}

impl<D: Driver> Srq<Exclusive, D> {
    /// `ibv_modify_srq`: arms the limit event, or resizes where the device can.
    ///
    /// # Errors
    /// `Unsupported` if the device can't resize the queue; otherwise the kernel's error.
    pub fn modify(&mut self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        self.queue.modify(attr, mask)
    }
}

impl<D: Driver> Srq<Shared, D> {
    /// `ibv_modify_srq`: arms the limit event, or resizes where the device can.
    ///
    /// # Errors
    /// `Unsupported` if the device can't resize the queue; otherwise the kernel's error.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        self.queue.modify(attr, mask)
    }
}

/// A locked, shared receive queue.
pub struct RecvGuard<'q, Q, D: Driver> {
    guard: raw::RecvGuard<'q, Q>,
    flight: &'q Flight<D>,
}

brief!([Q, D: Driver] RecvGuard<'_, Q, D>, |this| "{:?}", this.guard);

macro_rules! posting {
    ($([$($generics:tt)*] $this:ty, $engine:ty, $mutable:ident;)*) => {$(
        impl<$($generics)*> $this {
            /// Posts one receive; the device may write the whole capacity of the buffer, or of each buffer of a list.
            ///
            /// # Errors
            /// [`PostError::QueueFull`], [`PostError::InvalidArgument`] for a buffer of another domain, or an error of the queue.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn post<B: Memory<D>>(&mut self, wr_id: u64, data: B) -> Result<(), Rejected<B>> {
                let engine = self.$mutable();
                // SAFETY: `self`, which is the queue or its locked guard, is borrowed exclusively.
                unsafe { post(engine.0, engine.1, wr_id, data) }
            }

            /// Posts one receive without memory: for a message without bytes, such as the immediate of a `RDMA_WRITE_WITH_IMM`. A
            /// message with bytes completes it with `LOC_LEN_ERR`, which ends the connection.
            ///
            /// # Errors
            /// [`PostError::QueueFull`], or an error of the queue.
            #[inline]
            pub fn post_empty(&mut self, wr_id: u64) -> Result<(), PostError> {
                let engine = self.$mutable();
                // SAFETY: `self`, which is the queue or its locked guard, is borrowed exclusively.
                unsafe { post_empty(engine.0, engine.1, wr_id) }
            }

            /// Opens a batch of receives: nothing is visible to the device before [`RecvBatch::complete`]; a drop aborts
            /// the batch.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn batch(&mut self) -> RecvBatch<'_, $engine, D> {
                let engine = self.$mutable();
                RecvBatch::new(engine.0, engine.1)
            }
        }
    )*};
}

posting! {
    [D: Driver] RecvQueue<Exclusive, D>, D::RecvQueue, parts;
    [D: Driver] Srq<Exclusive, D>, D::SharedRecvQueue, parts;
    [D: Driver, Q: Engine<Sge = D::Sge>] RecvGuard<'_, Q, D>, Q, parts;
}

impl<D: Driver> RecvQueue<Exclusive, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn parts(&mut self) -> (&mut D::RecvQueue, &Flight<D>) {
        (self.queue.engine_mut(), &self.flight)
    }

    /// Posts memory that a scope borrows.
    ///
    /// # Safety
    /// As [`RecvBatch::push`](crate::raw::receiver::RecvBatch::push), until the ticket is dropped.
    pub(super) unsafe fn post_scoped(
        &mut self,
        sges: &[D::Sge],
        ticket: super::scope::Ticket,
    ) -> Result<(), QueueError> {
        let (engine, flight) = self.parts();
        // SAFETY: the queue is borrowed exclusively, so this thread is the only poster.
        let Some(vacant) = (unsafe { flight.slab.vacant_anywhere(flight.slab.tag()) }) else {
            return Err(flight.error(PostError::QueueFull));
        };
        let number = vacant.fill_scoped(Entry { wr_id: 0, held: Held::scoped(ticket) });
        // SAFETY: the contract of this function.
        let result = unsafe { engine.post(number, sges) };
        posted(flight, number, result).map_err(|error| flight.label.error(error))
    }
}

impl<D: Driver> Srq<Exclusive, D> {
    /// See [`is_none_taken`].
    pub(super) fn untaken_is_all(&mut self) -> bool {
        let Self { queue, flight } = self;
        let engine = queue.engine_mut();
        is_none_taken(flight, || engine.untaken())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn parts(&mut self) -> (&mut D::SharedRecvQueue, &Flight<D>) {
        (self.queue.engine_mut(), &self.flight)
    }
}

impl<D: Driver, Q: Engine> RecvGuard<'_, Q, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn parts(&mut self) -> (&mut Q, &Flight<D>) {
        (self.guard.engine_mut(), self.flight)
    }
}

impl<D: Driver> RecvQueue<Shared, D> {
    /// Waits for the lock; an error if this thread holds it already.
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock already; [`LockError::Forked`] in a child of fork(2).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<RecvGuard<'_, D::RecvQueue, D>, LockError> {
        Ok(RecvGuard { guard: self.queue.lock()?, flight: &self.flight })
    }
}

impl<D: Driver> Srq<Shared, D> {
    /// See [`is_none_taken`]. The lock is taken twice and not held in between.
    pub(super) fn untaken_is_all(&self) -> bool {
        is_none_taken(&self.flight, || self.queue.lock().ok()?.engine_mut().untaken())
    }

    /// Waits for the lock; an error if this thread holds it already.
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock already; [`LockError::Forked`] in a child of fork(2).
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<RecvGuard<'_, D::SharedRecvQueue, D>, LockError> {
        Ok(RecvGuard { guard: self.queue.lock()?, flight: &self.flight })
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use super::*;
    use crate::Context;
    use crate::pool::NO_DOMAIN;
    use core::cell::Cell;
    use uverbs_hca::Hca;
    use uverbs_mlx5::Mlx5;

    #[test]
    fn none_is_taken_if_the_slab_has_what_the_ring_has() {
        let context = Context::<Mlx5>::from_kernel(Hca::new().open()).unwrap();
        let flight = Flight::new(context.inner(), QueueKind::Srq, NO_DOMAIN, 1, 4).unwrap();
        let insert = |wr_id| {
            // SAFETY: one thread.
            let vacant = unsafe { flight.slab.vacant(NO_DOMAIN) }.unwrap();
            vacant.fill(Entry { wr_id, held: Held::<Mlx5>::NOTHING })
        };
        let numbers = [1, 2, 3].map(insert);
        assert!(!is_none_taken(&flight, || None), "a device that does not show it");
        assert!(is_none_taken(&flight, || Some((3, 5))));
        assert!(!is_none_taken(&flight, || Some((2, 6))), "one is taken");
        // The device takes another while the slab is counted: its completion may be polled before its slot is counted.
        let position = Cell::new(6);
        let moving = || Some((3, position.replace(position.get() + 1)));
        assert!(!is_none_taken(&flight, moving));
        flight.drop_entry(numbers[0]);
        assert!(is_none_taken(&flight, || Some((2, 6))), "its completion was polled");
        // A post that is in the slab and not yet in the ring.
        insert(4);
        assert!(!is_none_taken(&flight, || Some((2, 6))));
    }
}
