// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where an owned send goes: into an open batch, or to the device at once.
//!
//! Both put what the work request owns into the slab of the queue before the device can see the work request, because its
//! completion may be polled by another thread at any time after that. If the post fails, they take it out again.
#![expect(unsafe_code)]
// UNSAFETY: posts memory that the slab of the queue owns.

use crate::flight::{Entry, Flight};
use crate::held::Held;
use crate::open::AnyDriver;
use crate::qp::transport::Sends;
use crate::rejected::{Rejected, reject};
use core::marker::PhantomData;
use uverbs_core::provider::op::{Address, Operation};
use uverbs_core::provider::payload::Payload;
use uverbs_core::provider::send::{SendBatch, SendQueue as Engine, Wr};
use uverbs_core::provider::{Driver, PostError};
use uverbs_core::wr::SendFlags;

/// Takes back what an open batch has put into the slab, unless it was posted.
struct Undo<'q, D: Driver> {
    flight: &'q Flight<D>,
    first: u32,
}

impl<D: Driver> Drop for Undo<'_, D> {
    /// Inlined, and the work is not: a drop that is a call with the address of the batch would keep the batch in memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster.
        unsafe { undo(self.flight, self.first) };
    }
}

/// Takes back what was put into the slab from the count `first` on.
///
/// # Safety
/// This thread is the only poster, and nothing from `first` on was posted.
#[cold]
#[inline(never)]
unsafe fn undo<D: Driver>(flight: &Flight<D>, first: u32) {
    flight.drop_from(first);
    // SAFETY: the contract of this function.
    unsafe { flight.slab.retract(first) };
}

/// A batch of work requests. Errors latch; [`complete`](Self::complete) reports them.
///
/// If the batch is not completed, or the completion of the batch fails, its buffers go back to their pools.
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
    pub fn complete(self) -> Result<(), PostError> {
        let Self { inner, undo, .. } = self;
        if let Some(error) = undo.flight.refused() {
            return Err(error);
        }
        let completed = inner.complete();
        if matches!(completed, Ok(()) | Err(PostError::Doorbell(_))) {
            core::mem::forget(undo);
        }
        completed
    }
}

/// Where an [`Wr`](super::Wr) goes: into an [open batch](ToBatch), or [to the device at once](AtOnce).
pub trait PostTo<D: Driver>: sealed::PostTo<D> {}

pub(super) mod sealed {
    use super::{Address, Driver, Operation, Payload, SendFlags};
    use crate::held::Held;
    use crate::rejected::sealed::Lend;
    use uverbs_core::provider::PostError;

    #[expect(private_interfaces, private_bounds, reason = "only this crate implements it")]
    pub trait PostTo<D: Driver>: Sized {
        /// The result of a post that owns a `B`.
        type Out<B>;
        /// The result of a post that owns nothing.
        type Plain;

        /// The protection domain of the queue.
        fn domain(&self) -> u64;

        /// `parts` are the data, what owns their memory, and the note of it. It is called once: when there is a slot, or for the refusal. `op` is called
        /// last. So the values of both are in registers as short as possible.
        ///
        /// # Safety
        /// As `SendBatch::push`, where the second of the `parts` owns the memory that the first one names.
        unsafe fn put<B: Lend<D>, A, O, P>(
            self,
            wr: (u64, SendFlags),
            domain: u64,
            to: A,
            op: impl FnOnce() -> O,
            parts: impl FnOnce() -> (P, Held<D>, B::Note),
        ) -> Self::Out<B>
        where
            A: Address<D::Ah>,
            O: Operation<Remote = D::Remote>,
            P: Payload<D::Sge>;

        /// # Safety
        /// As `SendBatch::push`; `data` names no memory, or `held` guards it.
        unsafe fn put_plain<A, O, P>(
            self,
            wr: (u64, SendFlags),
            to: A,
            op: impl FnOnce() -> O,
            data: P,
            held: Held<D>,
        ) -> Self::Plain
        where
            A: Address<D::Ah>,
            O: Operation<Remote = D::Remote>,
            P: Payload<D::Sge>;

        /// Nothing is posted.
        fn refuse<B: Lend<D>>(self, error: PostError, value: B) -> Self::Out<B>;
        /// Nothing is posted.
        fn refuse_plain(self, error: PostError) -> Self::Plain;
    }
}

/// Into an open batch: errors are reported by [`Batch::complete`].
pub struct ToBatch<'b, 'q, D: Driver = AnyDriver> {
    inner: &'b mut <D::SendQueue as Engine>::Batch<'q>,
    flight: &'q Flight<D>,
}

impl<D: Driver> core::fmt::Debug for ToBatch<'_, '_, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Push")
    }
}

impl<D: Driver> PostTo<D> for ToBatch<'_, '_, D> {}
#[expect(private_interfaces, private_bounds, reason = "only this crate implements it")]
impl<D: Driver> sealed::PostTo<D> for ToBatch<'_, '_, D> {
    type Out<B> = ();
    type Plain = ();

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.flight.slab.tag()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put<B: super::rejected::sealed::Lend<D>, A, O, P>(
        self,
        (wr_id, flags): (u64, SendFlags),
        domain: u64,
        to: A,
        op: impl FnOnce() -> O,
        parts: impl FnOnce() -> (P, Held<D>, B::Note),
    ) where
        A: Address<D::Ah>,
        O: Operation<Remote = D::Remote>,
        P: Payload<D::Sge>,
    {
        const { assert!(!B::APART, "a scope posts at once, not into a batch") };
        // SAFETY: the batch borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster; a domain has
        // the bits of a tag.
        match unsafe { self.flight.slab.vacant(domain) } {
            Some(vacant) => {
                let (data, held, _) = parts();
                let wr = Wr { wr_id: vacant.fill(Entry { wr_id, held }), flags };
                // SAFETY: the slab owns what `held` is until the work request is known to be complete, or until the batch is
                // dropped without having been posted.
                unsafe { self.inner.push(wr, to, op(), data) }
            }
            // SAFETY: this is the only copy.
            None => unsafe { self.flight.refuse_slot(parts().1, domain) },
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put_plain<A, O, P>(
        self,
        wr: (u64, SendFlags),
        to: A,
        op: impl FnOnce() -> O,
        data: P,
        held: Held<D>,
    ) where
        A: Address<D::Ah>,
        O: Operation<Remote = D::Remote>,
        P: Payload<D::Sge>,
    {
        let domain = self.domain();
        // SAFETY: the contract of this function.
        unsafe { self.put::<Nothing, _, _, _>(wr, domain, to, op, || (data, held, ())) }
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
        f.write_str("Once")
    }
}

impl<D: Driver> PostTo<D> for AtOnce<'_, D> {}
#[expect(private_interfaces, private_bounds, reason = "only this crate implements it")]
impl<D: Driver> sealed::PostTo<D> for AtOnce<'_, D> {
    type Out<B> = Result<(), Rejected<B>>;
    type Plain = Result<(), PostError>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn domain(&self) -> u64 {
        self.flight.slab.tag()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put<B: super::rejected::sealed::Lend<D>, A, O, P>(
        self,
        (wr_id, flags): (u64, SendFlags),
        domain: u64,
        to: A,
        op: impl FnOnce() -> O,
        parts: impl FnOnce() -> (P, Held<D>, B::Note),
    ) -> Result<(), Rejected<B>>
    where
        A: Address<D::Ah>,
        O: Operation<Remote = D::Remote>,
        P: Payload<D::Sge>,
    {
        let Self { engine, flight } = self;
        // SAFETY: this value borrows the queue (its `&mut`, or its locked guard), so this thread is the only poster; a domain has
        // the bits of a tag.
        let Some(vacant) = (unsafe { flight.slab.vacant(domain) }) else {
            let (_, held, note) = parts();
            // SAFETY: this is the only copy.
            let returned = unsafe { B::give_back(held, || None) };
            return Err(Rejected {
                error: flight.no_slot(domain),
                returned: returned.map(|value| value.noted(note)),
            });
        };
        let (data, held, note) = parts();
        let entry = Entry { wr_id, held };
        let number = if B::APART { vacant.fill_apart(entry) } else { vacant.fill(entry) };
        let wr = Wr { wr_id: number, flags };
        // SAFETY: the slab owns what `held` is until the work request is known to be complete, or until the post fails.
        match unsafe { engine.post(wr, to, op(), data) } {
            Ok(()) => Ok(()),
            Err(error) => Err(rejected(flight, number, note, error)),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn put_plain<A, O, P>(
        self,
        wr: (u64, SendFlags),
        to: A,
        op: impl FnOnce() -> O,
        data: P,
        held: Held<D>,
    ) -> Result<(), PostError>
    where
        A: Address<D::Ah>,
        O: Operation<Remote = D::Remote>,
        P: Payload<D::Sge>,
    {
        let domain = self.flight.slab.tag();
        // SAFETY: the contract of this function.
        unsafe { self.put::<Nothing, _, _, _>(wr, domain, to, op, || (data, held, ())) }
            .map_err(|rejected| rejected.error)
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refuse<B: super::rejected::sealed::Lend<D>>(
        self,
        error: PostError,
        value: B,
    ) -> Result<(), Rejected<B>> {
        Err(Rejected { error, returned: Some(value) })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn refuse_plain(self, error: PostError) -> Result<(), PostError> {
        Err(error)
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
    const APART: bool = true;
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
