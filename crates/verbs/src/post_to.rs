// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where an owned send goes: into an open batch, or to the device at once.
//!
//! Both put what the work request owns into the slab of the queue before the device can see the work request, because its
//! completion may be polled by another thread at any time after that. If the post fails, they take it out again.
#![expect(unsafe_code)]
// UNSAFETY: posts memory that the slab of the queue owns.

use crate::flight::{Entry, Flight};
use crate::held::Held;
use crate::list::Source;
use crate::open::AnyDriver;
use crate::qp::transport::Sends;
use crate::rejected::{Rejected, reject};
use core::marker::PhantomData;
use uverbs_core::provider::send::{SendBatch, SendQueue as Engine};
use uverbs_core::provider::{Data, Dest, Driver, Head, Op, PostError, QueueError, Wr, WrBuilder as _};
use uverbs_core::sync::in_flight::Vacant;

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
        unsafe { dropped(self.flight, self.first) };
    }
}

/// [`undo`] of a batch that was neither completed nor aborted.
///
/// # Safety
/// As [`undo`].
#[cold]
#[inline(never)]
unsafe fn dropped<D: Driver>(flight: &Flight<D>, first: u32) {
    // SAFETY: the contract of this function.
    unsafe { flight.dropped_from(first) };
    // SAFETY: the contract of this function.
    unsafe { flight.slab.retract(first) };
}

/// The end of a batch that could not be posted.
///
/// # Safety
/// As [`undo`], except after [`PostError::Doorbell`].
#[cold]
#[inline(never)]
unsafe fn failed<D: Driver>(flight: &Flight<D>, first: u32, error: PostError) -> QueueError {
    if !matches!(error, PostError::Doorbell(_)) {
        // SAFETY: the contract of this function.
        unsafe { undo(flight, first) };
    }
    if let PostError::Doorbell(_) = error {
        flight.counts.published(flight.posted_since(first).saturating_sub(flight.skipped_since(first)));
    }
    flight.error(error)
}

/// Takes back what was put into the slab from the count `first` on.
///
/// # Safety
/// This thread is the only poster, and nothing from `first` on was posted.
#[cold]
#[inline(never)]
unsafe fn undo<D: Driver>(flight: &Flight<D>, first: u32) {
    // SAFETY: the contract of this function.
    unsafe { flight.drop_from(first) };
    // SAFETY: the contract of this function.
    unsafe { flight.slab.retract(first) };
}

/// A batch of work requests. Errors latch; [`complete`](Self::complete) reports them.
///
/// If the batch is not completed, or the completion of the batch fails, its buffers go back to their pools. The first batch of a queue
/// that is dropped with work requests, without [`complete`](Self::complete) or [`abort`](Self::abort), logs a warning.
#[must_use = "a batch that is not completed posts nothing"]
pub struct Batch<'q, T, D: Driver> {
    inner: <D::SendQueue as Engine>::Batch<'q>,
    undo: Undo<'q, D>,
    _transport: PhantomData<fn() -> T>,
}

impl<D: Driver, T> core::fmt::Debug for Batch<'_, T, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Batch").field("error", &self.undo.flight.refused()).finish_non_exhaustive()
    }
}

impl<'q, D: Driver, T: Sends> Batch<'q, T, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn new(engine: &'q mut D::SendQueue, flight: &'q Flight<D>) -> Self {
        let undo = Undo { flight, first: flight.begin_batch() };
        Self { inner: engine.batch(), undo, _transport: PhantomData }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn push(&mut self) -> ToBatch<'_, 'q, D> {
        ToBatch { inner: &mut self.inner, flight: self.undo.flight }
    }

    /// Makes all of it visible to the device and rings the doorbell; or, if any work request was wrong, drops all of it and
    /// reports the first error.
    ///
    /// # Errors
    /// The first error; nothing was posted then, except after [`PostError::Doorbell`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn complete(self) -> Result<(), QueueError> {
        let Self { inner, undo, .. } = self;
        let Undo { flight, first } = undo;
        core::mem::forget(undo);
        let error = match flight.refused() {
            Some(error) => error,
            None => {
                let skipped = flight.skipped_since(first);
                match inner.complete() {
                    Ok(()) => {
                        flight.counts.posted_batch(|| flight.posted_since(first).wrapping_sub(skipped));
                        return Ok(());
                    }
                    Err(error) => error,
                }
            }
        };
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        Err(unsafe { failed(flight, first, error) })
    }

    /// Discards the batch: nothing is posted, and the buffers go back to their pools.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn abort(self) {
        let Undo { flight, first } = self.undo;
        core::mem::forget(self.undo);
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        unsafe { undo(flight, first) };
    }
}

/// What a work request names, until the slab of the queue has it.
pub(super) trait Load<D: Driver> {
    type Data: AsData<D::Sge>;
    /// See [`Lend::Note`](super::rejected::sealed::Lend::Note).
    type Note;
    /// The protection domain of the memory.
    fn domain(&self) -> u64;
    /// Moved to this domain, if it can be there.
    fn moved_to(self, domain: u64) -> Self;
    /// The data, what owns their memory, and the note of it.
    fn split(self) -> (Self::Data, Held<D>, Self::Note);
}

/// Memory that can be in several domains.
pub(super) struct Movable<B>(pub(super) B);

impl<D: Driver, B: Source<D>> Load<D> for Movable<B> {
    type Data = Entries<B::Sges>;
    type Note = B::Note;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.0.domain()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn moved_to(self, domain: u64) -> Self {
        Self(self.0.moved_to(domain))
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn split(self) -> (Entries<B::Sges>, Held<D>, B::Note) {
        let (sges, note) = (self.0.used(), self.0.note());
        (Entries(sges), self.0.lend(), note)
    }
}

/// What names the data of a work request: [`Data`], or [`Entries`].
pub(super) trait AsData<S> {
    fn data(&self) -> Data<'_, S>;
}

impl<S> AsData<S> for Data<'_, S> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn data(&self) -> Data<'_, S> {
        *self
    }
}

/// The entries of a buffer or of a list, by value.
#[derive(Clone, Copy)]
pub(super) struct Entries<E>(E);

impl<S, E: AsRef<[S]>> AsData<S> for Entries<E> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn data(&self) -> Data<'_, S> {
        Data::Sges(self.0.as_ref())
    }
}

/// Data of one domain, or without memory.
pub(super) struct Fixed<D: Driver, P> {
    pub(super) domain: u64,
    pub(super) data: P,
    pub(super) held: Held<D>,
}

impl<D: Driver, P: AsData<D::Sge>> Load<D> for Fixed<D, P> {
    type Data = P;
    type Note = ();
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.domain
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn moved_to(self, _: u64) -> Self {
        self
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn split(self) -> (P, Held<D>, ()) {
        (self.data, self.held, ())
    }
}

/// Where an [`Wr`](super::Wr) goes: into an [open batch](ToBatch), or [to the device at once](AtOnce).
pub trait PostTo<D: Driver>: sealed::PostTo<D> {}

pub(super) mod sealed {
    use super::{Data, Dest, Driver, Head, Load, Op};
    use crate::rejected::sealed::Lend;
    use uverbs_core::provider::PostError;

    #[expect(private_bounds, reason = "only this crate implements it")]
    pub trait PostTo<D: Driver>: Sized {
        /// The result of a post that owns a `B`.
        type Out<B>;
        /// The result of a post that owns nothing.
        type Plain;

        /// The protection domain of the queue.
        fn domain(&self) -> u64;

        /// `load` is split once: when there is a slot, or for the refusal. `op` is called last.
        ///
        /// # Safety
        /// As `SendBatch::push`, where what the load lends owns the memory that its data name.
        // codegen: live
        unsafe fn put<'o, B: Lend<D>, P: Load<D, Note = B::Note>>(
            self,
            head: Head,
            load: P,
            to: &Dest<'_, D::Ah>,
            op: impl FnOnce() -> Op<'o, D::Remote>,
        ) -> Self::Out<B>;

        /// # Safety
        /// As `SendBatch::push`; `data` names no memory, or `held` guards it.
        unsafe fn put_plain<'o>(
            self,
            head: Head,
            to: &Dest<'_, D::Ah>,
            op: impl FnOnce() -> Op<'o, D::Remote>,
            data: Data<'_, D::Sge>,
        ) -> Self::Plain;

        /// Nothing is posted.
        fn refuse<B: Lend<D>>(self, error: PostError, value: B) -> Self::Out<B>;
        /// Nothing is posted.
        fn refuse_plain(self, error: PostError) -> Self::Plain;
    }
}

/// The next slot, for memory in the domain of the queue. Memory of another domain is moved to it, if its pool is there, too; this
/// ends where the usual path goes on, so that it needs none of the values of the post.
///
/// # Safety
/// This thread is the only poster.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn place<D: Driver, P: Load<D>>(flight: &Flight<D>, load: P) -> (Option<Vacant<'_, Entry<D>>>, P) {
    // SAFETY: the contract of this function; a domain has the bits of a tag.
    let vacant = unsafe { flight.slab.vacant(load.domain()) };
    let tag = flight.slab.tag();
    // SAFETY: as above.
    if vacant.is_some() || unsafe { flight.has_no_other(load.domain()) } {
        return (vacant, load);
    }
    let load = load.moved_to(tag);
    // SAFETY: as above.
    (unsafe { flight.slab.vacant(load.domain()) }, load)
}

/// Into an open batch: errors are reported by [`Batch::complete`].
pub struct ToBatch<'b, 'q, D: Driver = AnyDriver> {
    inner: &'b mut <D::SendQueue as Engine>::Batch<'q>,
    flight: &'q Flight<D>,
}

impl<D: Driver> core::fmt::Debug for ToBatch<'_, '_, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ToBatch")
    }
}

impl<D: Driver> PostTo<D> for ToBatch<'_, '_, D> {}
#[expect(private_bounds, reason = "only this crate implements it")]
impl<D: Driver> sealed::PostTo<D> for ToBatch<'_, '_, D> {
    type Out<B> = ();
    type Plain = ();

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.flight.slab.tag()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put<'o, B: super::rejected::sealed::Lend<D>, P: Load<D, Note = B::Note>>(
        self,
        Head { wr_id, flags }: Head,
        load: P,
        to: &Dest<'_, D::Ah>,
        op: impl FnOnce() -> Op<'o, D::Remote>,
    ) {
        const { assert!(!B::SCOPED, "a scope posts at once, not into a batch") };
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        let (vacant, load) = unsafe { place(self.flight, load) };
        let domain = load.domain();
        let (data, held, _) = load.split();
        let Some(vacant) = vacant else {
            // SAFETY: this is the only copy.
            return unsafe { self.flight.refuse_slot(held, domain) };
        };
        let number = vacant.fill(Entry { wr_id, held });
        let wr = Wr { wr_id: number, flags, to: *to, op: op(), data: data.data() };
        // SAFETY: the slab owns what `held` is until the work request is known to be complete, or until the batch is
        // dropped without having been posted.
        unsafe { self.inner.push(&wr) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put_plain<'o>(
        self,
        head: Head,
        to: &Dest<'_, D::Ah>,
        op: impl FnOnce() -> Op<'o, D::Remote>,
        data: Data<'_, D::Sge>,
    ) {
        let domain = self.domain();
        // SAFETY: the contract of this function.
        unsafe { self.put::<Nothing, _>(head, Fixed { domain, data, held: Held::NOTHING }, to, op) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refuse<B: super::rejected::sealed::Lend<D>>(self, error: PostError, value: B) {
        // SAFETY: this is the only copy.
        unsafe { self.flight.refuse(value.lend(), error) }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refuse_plain(self, error: PostError) {
        // SAFETY: this is the only copy.
        unsafe { self.flight.refuse(Held::NOTHING, error) }
    }
}

/// Posted at once.
pub struct AtOnce<'q, D: Driver = AnyDriver> {
    engine: &'q mut D::SendQueue,
    flight: &'q Flight<D>,
}

impl<'q, D: Driver> AtOnce<'q, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn new(engine: &'q mut D::SendQueue, flight: &'q Flight<D>) -> Self {
        Self { engine, flight }
    }
}

impl<D: Driver> core::fmt::Debug for AtOnce<'_, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("AtOnce")
    }
}

impl<D: Driver> PostTo<D> for AtOnce<'_, D> {}
#[expect(private_bounds, reason = "only this crate implements it")]
impl<D: Driver> sealed::PostTo<D> for AtOnce<'_, D> {
    type Out<B> = Result<(), Rejected<B>>;
    type Plain = Result<(), QueueError>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.flight.slab.tag()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put<'o, B: super::rejected::sealed::Lend<D>, P: Load<D, Note = B::Note>>(
        self,
        Head { wr_id, flags }: Head,
        load: P,
        to: &Dest<'_, D::Ah>,
        op: impl FnOnce() -> Op<'o, D::Remote>,
    ) -> Result<(), Rejected<B>> {
        let Self { engine, flight } = self;
        // SAFETY: this value borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        let (vacant, load) = unsafe { place(flight, load) };
        let domain = load.domain();
        let (data, held, note) = load.split();
        let Some(vacant) = vacant else {
            // SAFETY: this is the only copy.
            let returned = unsafe { B::give_back(held, || None) };
            let returned = returned.map(|value| value.noted(note));
            return Err(Rejected { error: flight.error(flight.no_slot(domain)), returned });
        };
        let entry = Entry { wr_id, held };
        let number = if B::SCOPED { vacant.fill_scoped(entry) } else { vacant.fill(entry) };
        flight.counts.posts();
        let wr = Wr { wr_id: number, flags, to: *to, op: op(), data: data.data() };
        // SAFETY: the slab owns what `held` is until the work request is known to be complete, or until the post fails.
        match unsafe { engine.post(&wr) } {
            Ok(()) => Ok(()),
            Err(error) => Err(rejected(flight, number, note, error)),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put_plain<'o>(
        self,
        head: Head,
        to: &Dest<'_, D::Ah>,
        op: impl FnOnce() -> Op<'o, D::Remote>,
        data: Data<'_, D::Sge>,
    ) -> Result<(), QueueError> {
        let domain = self.flight.slab.tag();
        // SAFETY: the contract of this function.
        unsafe { self.put::<Nothing, _>(head, Fixed { domain, data, held: Held::NOTHING }, to, op) }
            .map_err(|rejected| rejected.error)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refuse<B: super::rejected::sealed::Lend<D>>(
        self,
        error: PostError,
        value: B,
    ) -> Result<(), Rejected<B>> {
        Err(Rejected { error: self.flight.error(error), returned: Some(value) })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refuse_plain(self, error: PostError) -> Result<(), QueueError> {
        Err(self.flight.error(error))
    }
}

impl<D: Driver> AtOnce<'_, D> {
    /// The protection domain of the queue.
    pub(super) fn queue_domain(&self) -> u64 {
        self.flight.slab.tag()
    }

    /// Posts what `write` adds to a session of the queue: one work request, without entries. `value` is of the domain of the queue.
    ///
    /// # Safety
    /// As `SendBatch::push`, where `value` owns what the work request names.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn put_written<B: super::rejected::sealed::Lend<D>>(
        self,
        Head { wr_id, flags }: Head,
        value: B,
        write: impl FnOnce(&mut D::SendQueue, Head),
    ) -> Result<(), Rejected<B>> {
        let Self { engine, flight } = self;
        let note = value.note();
        let refuse =
            |value: B, error| Rejected { error: flight.error(error), returned: Some(value.noted(note)) };
        if engine.wr_is_open() {
            return Err(refuse(value, PostError::SessionOpen));
        }
        let domain = flight.slab.tag();
        // SAFETY: this value borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster; the tag is that of
        // the slab.
        let Some(vacant) = (unsafe { flight.slab.vacant(domain) }) else {
            return Err(refuse(value, flight.no_slot(domain)));
        };
        let number = vacant.fill(Entry { wr_id, held: value.lend() });
        flight.counts.posts();
        engine.wr_start();
        write(engine, Head { wr_id: number, flags });
        // What `write` has borrowed is free again: from now on another thread may take the entry out.
        engine.wr_complete().map_err(|error| rejected(flight, number, note, error))
    }
}

/// What inline data own.
struct Nothing;

impl<D: Driver> super::rejected::sealed::Lend<D> for Nothing {
    type Note = ();
    fn note(&self) {}
    fn lend(self) -> Held<D> {
        Held::NOTHING
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn give_back(held: Held<D>, _: impl FnOnce() -> Option<u32>) -> Option<Self> {
        // SAFETY: the contract of this function.
        unsafe { held.release() };
        Some(Self)
    }
}

/// What the posts of a scope own: their ticket. The completion is the scope's.
pub(super) struct Borrowed;

impl<D: Driver> super::rejected::sealed::Lend<D> for Borrowed {
    const SCOPED: bool = true;
    type Note = ();
    fn note(&self) {}
    fn lend(self) -> Held<D> {
        Held::NOTHING
    }
    unsafe fn give_back(held: Held<D>, _: impl FnOnce() -> Option<u32>) -> Option<Self> {
        // SAFETY: the contract of this function.
        unsafe { held.release() };
        Some(Self)
    }
}

/// The end of a post that failed: the slab gives back what it got.
#[cold]
#[inline(never)]
fn rejected<D: Driver, B: super::rejected::sealed::Lend<D>>(
    flight: &Flight<D>,
    number: u64,
    note: B::Note,
    error: PostError,
) -> Rejected<B> {
    let rejected = reject(flight, number, note, error);
    if !matches!(error, PostError::Doorbell(_)) {
        // SAFETY: called by the only poster, which inserted this number last.
        unsafe { flight.slab.retract(number as u32) };
    }
    rejected
}
