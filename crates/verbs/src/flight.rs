// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work requests of an owned queue that are in flight, with the memory that they use.
//!
//! Each queue has a [`Flight`]: a slab with an entry for each work request. The kernel object of the queue (`QpInner`,
//! `SrqInner`) holds it, and gives the memory back when the kernel has destroyed the object; if the kernel refuses, the memory
//! is leaked. So neither a dropped nor a forgotten queue frees memory that the device may use.
//!
//! A `wr_id` is a number, not a pointer:
//!
//! | bits | |
//! |---|---|
//! | 0..32 | the count of the work request in the queue's slab ([`InFlight`]) |
//! | 32..52 | the index of the queue among those of its context |
//! | 52..63 | the generation of this index |
//! | 63 | whether the queue is one of receives |
//!
//! A number that no queue gave, or gave before, finds no entry. Generations and counts begin again, so a number is not looked up after
//! its queue may have ended: [`Known::claim`](super::known::Known::claim) takes the entry of a completion while the poll is inside the CQ,
//! for which a control call waits that ends the queue.
#![expect(unsafe_code)]
// UNSAFETY: releases what an entry holds, once.

use crate::context::ContextInner;
use crate::count::Counts;
use crate::held::Held;
use crate::label::Label;
use crate::pool::NO_DOMAIN;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use uverbs_core::Errno;
use uverbs_core::control::slab::Slab;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, PostError, QueueError, QueueKind as Name};
use uverbs_core::sync::ProcessMutex;
use uverbs_core::sync::in_flight::{InFlight, STEP};
use uverbs_core::wc::WcError;
#[cfg(feature = "tracing")]
use uverbs_core::wc::{WcStatus, WorkCompletion};

/// An entry of the slab, which owns what it holds.
pub(super) struct Entry<D: Driver> {
    /// The number of the user.
    pub(super) wr_id: u64,
    pub(super) held: Held<D>,
}

impl<D: Driver> Entry<D> {
    /// Drops what it holds.
    pub(super) fn release(self) {
        // SAFETY: the entry was taken out of the slab, so this is the only copy.
        unsafe { self.held.release() }
    }
}

/// The work requests in flight of one queue.
pub(crate) struct Flight<D: Driver> {
    /// Its key is the queue's part of a `wr_id`, its tag the protection domain, see [`domain_of`](super::pool::domain_of).
    pub(super) slab: InFlight<Entry<D>>,
    /// Whether its work requests complete in the order of the posts, so that a completion is also that of those before.
    pub(super) in_order: bool,
    /// Of sends in order: the count of the first that is not known to be complete. The poller of their CQ keeps it here while it polls
    /// other queues. A hint: any value is sound.
    pub(super) expected: AtomicU32,
    /// The first reason why a work request of the open batch was refused. Only the poster uses it.
    // codegen: live
    refused: AtomicU32,
    /// The number in the context's table.
    pub(super) id: u64,
    /// The name of the queue.
    pub(super) label: Label,
    /// The last error that a completion reported to the program.
    last_error: Mutex<Option<WcError>>,
    /// The CQ of the completions; `None` for an SRQ, whose receives complete to the CQ of any QP.
    cq: Option<u64>,
    /// What its poster and its pollers count.
    pub(super) counts: Counts,
    /// The peer of its QP, if that is connected.
    #[cfg(feature = "tracing")]
    peer: Mutex<Option<Peer>>,
}

impl<D: Driver> core::fmt::Debug for Flight<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Flight").field("slab", &self.slab).finish_non_exhaustive()
    }
}

impl<D: Driver> Drop for Flight<D> {
    fn drop(&mut self) {
        self.settle_all();
    }
}

/// The peer of a connected QP.
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) qp_num: u32,
    pub(crate) gid: uverbs_core::attr::Gid,
    pub(crate) lid: u16,
}

#[cfg(feature = "tracing")]
impl core::fmt::Display for Peer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { qp_num, gid, lid } = self;
        match *gid == uverbs_core::attr::Gid::ZERO {
            true => write!(f, "qp {qp_num:#x} at lid {lid}"),
            false => write!(f, "qp {qp_num:#x} at {gid}"),
        }
    }
}

/// The owned queues of a context.
#[derive(Debug)]
pub(crate) struct Flights<D: Driver> {
    pub(super) queues: ProcessMutex<Slab<Weak<Flight<D>>>>,
    /// What those that have ended have counted. Locked after `queues`.
    #[cfg(feature = "counters")]
    pub(super) gone: ProcessMutex<crate::counters::Gone>,
}

impl<D: Driver> Default for Flights<D> {
    fn default() -> Self {
        Self {
            queues: ProcessMutex::new(Slab::new()),
            #[cfg(feature = "counters")]
            gone: ProcessMutex::default(),
        }
    }
}

/// The bits of a queue's index.
const INDEX_BITS: u32 = 20;
pub(super) const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// The index that no queue has: that of [`Flight::none`].
const NO_INDEX: u32 = INDEX_MASK;
/// In a key: the queue is one of receives.
const RECEIVES: u32 = 1 << 31;

/// Why the work requests of a batch are refused. 0 is none.
const REFUSALS: [PostError; 4] =
    [PostError::QueueFull, PostError::InvalidArgument, PostError::InvalidLength, PostError::IllegalOpcode];

/// Drops what a work request of a batch would have owned, and notes the first error. With the ABI of C, no panic can leave
/// it.
///
/// # Safety
/// The word is not used again.
// codegen: call
#[cold]
#[inline(never)]
unsafe extern "C" fn refuse<D: Driver>(flight: &Flight<D>, held: Held<D>, reason: u32) {
    if flight.refused.load(Ordering::Relaxed) == 0 {
        flight.refused.store(reason, Ordering::Relaxed);
    }
    // SAFETY: the contract of this function.
    unsafe { held.release() };
}

/// The queue's part of a `wr_id`, of its number in the table.
const fn key_of(id: u64, receives: bool) -> u32 {
    // The lower half is the index, the upper the generation.
    let key = (((id >> 32) as u32) << INDEX_BITS) | (id as u32 & INDEX_MASK);
    if receives { key | RECEIVES } else { key & !RECEIVES }
}

/// Whether a `wr_id` is that of a receive.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) const fn is_receive(wr_id: u64) -> bool {
    wr_id & (RECEIVES as u64) << 32 != 0
}

/// The kinds of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueKind {
    Send { cq: u64 },
    Recv { cq: u64 },
    Srq,
}

impl QueueKind {
    const fn name(self) -> Name {
        match self {
            Self::Send { .. } => Name::Send,
            Self::Recv { .. } => Name::Recv,
            Self::Srq => Name::Srq,
        }
    }
}

impl<D: Driver> Flight<D> {
    /// A slab for a queue of `depth` work requests.
    pub(super) fn new(
        context: &ContextInner<D>,
        kind: QueueKind,
        domain: u64,
        number: u32,
        depth: u32,
    ) -> Result<Arc<Self>> {
        let in_order = matches!(kind, QueueKind::Send { .. }) && context.driver().completes_in_order();
        // What completes in any order has twice the slots, so that few posts have to skip one.
        let twice = depth.saturating_mul(2);
        let (receives, cq, slots) = match kind {
            QueueKind::Send { cq } => (false, Some(cq), if in_order { depth } else { twice }),
            QueueKind::Recv { cq } => (true, Some(cq), depth),
            QueueKind::Srq => (true, None, twice),
        };
        let forked = |_| Error::os("create", "owned queue in a child of fork", Errno::ESTALE);
        let mut queues = context.flights().queues.lock().map_err(forked)?;
        let id = queues.insert(Weak::new());
        if id as u32 >= NO_INDEX {
            queues.remove(id);
            return Err(Error::invalid(
                "create",
                "queue",
                format!("a context has at most {NO_INDEX} owned queues"),
            ));
        }
        let slab = InFlight::new(slots, key_of(id, receives), domain);
        let (expected, refused) = (AtomicU32::new(0), AtomicU32::new(0));
        let label = Label::new(kind.name(), number, depth);
        let (last_error, counts) = (Mutex::default(), Counts::default());
        let flight = Arc::new(Self {
            slab,
            in_order,
            expected,
            refused,
            id,
            label,
            last_error,
            cq,
            counts,
            #[cfg(feature = "tracing")]
            peer: Mutex::default(),
        });
        if let Some(queue) = queues.get_mut(id) {
            *queue = Arc::downgrade(&flight);
        }
        Ok(flight)
    }

    /// The queue of no work requests.
    pub(super) fn none() -> Arc<Self> {
        let slab = InFlight::new(1, NO_INDEX, NO_DOMAIN);
        let (expected, refused) = (AtomicU32::new(0), AtomicU32::new(0));
        let label = Label::new(Name::Unnamed, 0, 0);
        Arc::new(Self {
            slab,
            in_order: false,
            expected,
            refused,
            id: u64::MAX,
            label,
            last_error: Mutex::default(),
            cq: None,
            counts: Counts::default(),
            #[cfg(feature = "tracing")]
            peer: Mutex::default(),
        })
    }

    /// The beginning of a batch: its first count.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn begin_batch(&self) -> u32 {
        self.refused.store(0, Ordering::Relaxed);
        self.slab.next_count()
    }

    /// The work requests that were put into the slab of a send queue since the count was `first`, and the slots that were skipped.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn posted_since(&self, first: u32) -> u32 {
        self.slab.next_count().wrapping_sub(first) / STEP
    }

    /// The slots that an open batch has skipped, which began at the count `first`. Only the counters use it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn skipped_since(&self, first: u32) -> u32 {
        if cfg!(not(feature = "counters")) || self.in_order { 0 } else { self.slab.skipped_since(first) }
    }

    /// Whether the poster, which has found no vacant slot for memory of this domain, finds none for it in the domain of the queue either. A
    /// queue that completes in any order skips slots that are not free.
    ///
    /// # Safety
    /// As [`InFlight::vacant`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe extern "C" fn has_no_other(&self, domain: u64) -> bool {
        // SAFETY: the contract of this function.
        let skips = || !self.in_order && unsafe { self.slab.skip() };
        if domain == self.slab.tag() {
            return !skips();
        }
        // SAFETY: as above; the tag is that of the slab.
        if unsafe { self.slab.vacant(self.slab.tag()) }.is_none() {
            skips();
        }
        false
    }

    /// Refuses a work request of the open batch, which would have owned `held`.
    ///
    /// # Safety
    /// The word is not used again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) unsafe fn refuse(&self, held: Held<D>, error: PostError) {
        // The position is a constant where the error is one. There are no other errors.
        let at = REFUSALS.iter().position(|refusal| *refusal == error).unwrap_or(0);
        // SAFETY: the contract of this function.
        unsafe { refuse(self, held, at as u32 + 1) }
    }

    /// Why there was no vacant slot for memory of this domain.
    #[cold]
    pub(super) fn no_slot(&self, domain: u64) -> PostError {
        if domain == self.slab.tag() { PostError::QueueFull } else { PostError::InvalidArgument }
    }

    /// [`refuse`](Self::refuse) with the error of [`no_slot`](Self::no_slot).
    ///
    /// # Safety
    /// The word is not used again.
    #[cold]
    #[inline(never)]
    pub(super) unsafe extern "C" fn refuse_slot(&self, held: Held<D>, domain: u64) {
        // SAFETY: the contract of this function.
        unsafe { self.refuse(held, self.no_slot(domain)) }
    }

    /// The first error of the open batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn refused(&self) -> Option<PostError> {
        match self.refused.load(Ordering::Relaxed) {
            0 => None,
            reason => REFUSALS.get(reason as usize - 1).copied(),
        }
    }

    /// Drops what was inserted from this count on, of which nothing was posted.
    ///
    /// # Safety
    /// This thread is the only poster.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn drop_from(&self, count: u32) {
        // SAFETY: the contract of this function.
        unsafe { self.slab.take_from(count, Entry::release) }
    }

    /// As [`drop_from`](Self::drop_from), of a batch that was neither completed nor aborted.
    ///
    /// # Safety
    /// As [`drop_from`](Self::drop_from).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn dropped_from(&self, count: u32) {
        if count != self.slab.next_count() || self.refused().is_some() {
            self.label.dropped();
        }
        // SAFETY: the contract of this function.
        unsafe { self.drop_from(count) }
    }

    /// Drops an entry, if it is there.
    pub(super) fn drop_entry(&self, number: u64) {
        if let Some(entry) = self.slab.take_any(number) {
            entry.release();
        }
    }

    /// Notes the error of a completion.
    pub(super) fn note(&self, error: &WcError) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
    }

    /// Reports the error of a completion.
    #[cfg(feature = "tracing")]
    pub(super) fn report(&self, error: &WcError, wc: &WorkCompletion) {
        let peer = self.peer();
        let (device, wr_id, qp_num) = (error.device().unwrap_or_default(), error.wr_id(), wc.qp_num);
        let (status, vendor_err) = (wc.status.0, wc.vendor_err);
        let peer = peer.map(tracing::field::display);
        // An error is followed by those of all work requests of the queue, which are flushed.
        match wc.status {
            WcStatus::WR_FLUSH_ERR => {
                tracing::debug!({ device, qp_num, peer, wr_id, status, vendor_err }, "{error}");
            }
            _ => tracing::warn!({ device, qp_num, peer, wr_id, status, vendor_err }, "{error}"),
        }
    }

    #[cfg(feature = "tracing")]
    pub(super) fn peer(&self) -> Option<Peer> {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The QP has this peer now.
    #[cfg(feature = "tracing")]
    pub(super) fn set_peer(&self, peer: Option<Peer>) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = peer;
    }

    pub(super) fn last_error(&self) -> Option<WcError> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn cq(&self) -> Option<u64> {
        self.cq
    }

    /// Gives all memory back: the device uses none of it any more.
    pub(super) fn settle_all(&self) {
        self.end(|entries| self.slab.take_all(|entry| entries.push(entry)));
    }

    /// Drops entries of which no completion is reported, which `take` takes. A drop may run code of the program, so it comes last.
    fn end(&self, take: impl FnOnce(&mut Vec<Entry<D>>)) {
        let entries = self.counts.end(|| {
            let mut entries = Vec::new();
            take(&mut entries);
            let n = entries.len() as u64;
            (entries, n)
        });
        entries.into_iter().for_each(Entry::release);
    }

    /// The error of a post or of a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn error(&self, reason: PostError) -> QueueError {
        self.counts.refused(reason);
        self.label.error(reason)
    }

    /// The end of the queue, after the kernel has destroyed it.
    pub(super) fn close(&self, context: &ContextInner<D>) {
        self.settle_all();
        let flights = context.flights();
        if let Ok(mut queues) = flights.queues.lock() {
            let _ended = queues.remove(self.id);
            #[cfg(feature = "counters")]
            if let (Some(_), Ok(mut gone)) = (_ended, flights.gone.lock()) {
                gone.add(self);
            }
        }
    }
}

/// The slabs of a kernel object's queues; empty if the queues are not owned.
#[derive(Debug)]
pub(crate) struct Holds<D: Driver> {
    flights: OnceLock<Vec<Arc<Flight<D>>>>,
}

impl<D: Driver> Default for Holds<D> {
    fn default() -> Self {
        Self { flights: OnceLock::new() }
    }
}

impl<D: Driver> Holds<D> {
    /// Before the first post.
    pub(super) fn set(&self, flights: Vec<Arc<Flight<D>>>) {
        let set = self.flights.set(flights);
        debug_assert!(set.is_ok(), "the slabs of a queue are set once");
    }

    /// Whether these are all.
    pub(super) fn are(&self, flights: &[&Arc<Flight<D>>]) -> bool {
        let own = self.flights.get().map_or(&[][..], Vec::as_slice);
        own.len() == flights.len() && own.iter().zip(flights).all(|(own, flight)| Arc::ptr_eq(own, flight))
    }

    /// Whether they own something.
    pub(crate) fn any(&self) -> bool {
        self.flights.get().is_some()
    }

    /// Drops what work requests own of which no completion will be reported. Those of other queues are left out.
    pub(crate) fn drop_entries(&self, wr_ids: &[u64]) {
        for flight in self.flights.get().into_iter().flatten() {
            let taken = wr_ids.iter().filter_map(|wr_id| flight.slab.take_any(*wr_id));
            flight.end(|entries| entries.extend(taken));
        }
    }

    /// Those of a QP.
    #[cfg(any(feature = "counters", feature = "tracing"))]
    pub(crate) fn all(&self) -> &[Arc<Flight<D>>] {
        self.flights.get().map_or(&[], Vec::as_slice)
    }

    /// After the kernel has destroyed the object.
    pub(crate) fn release(&mut self, context: &ContextInner<D>) {
        for flight in self.flights.take().into_iter().flatten() {
            flight.close(context);
        }
    }

    /// After the kernel has refused to destroy it: the device may use the memory for ever.
    pub(crate) fn leak(&mut self) {
        core::mem::forget(self.flights.take());
    }
}
