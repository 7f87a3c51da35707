// SPDX-License-Identifier: MIT OR Apache-2.0
//! The poller of a completion queue: `ibv_poll_cq`, typed iteration, arming, and resizing.
//!
//! An entry is the poller's when its owner bit is that of the lap; it is given back by the consumer index in the doorbell
//! record. Entries are parsed in order, each exactly once: parsing retires the WR, so that is done even if the call ends
//! with an error. An error that is met after some completions is kept for the next call (libmlx5 loses those completions).
//!
//! Each call is inside the queue for its memory accesses only (see `shared`). Before [`poll_each`] calls its closure it
//! leaves, and enters again after; if a control call came between, it goes on from the state that this left.
//!
//! [`poll_each`]: CompletionQueueTrait::poll_each
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its one poller, which `&mut CompletionQueue` proves.

use super::clock::Clock;
use super::completion::{Completion, Parsed};
use super::entry::{CqeRef, Phase};
use super::parse::{CqeVersion, Current, Outcome, Resources};
use super::ring::CqRing;
use super::session::Session;
use super::shared::{CqShared, CqWord, Entered};
use super::state::{CqState, INDEX_MASK};
use crate::doorbell::ArmRegister;
use crate::memory::Walk;
use crate::memory::dbrec::{DbRec, DbWord};
use core::fmt;
use core::hint::cold_path;
use core::ptr::NonNull;
use std::sync::Arc;
use uverbs_core::attr::WcExFlags;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PollError;
use uverbs_core::provider::completion::CompletionQueue as CompletionQueueTrait;
use uverbs_core::sync::barrier;
use uverbs_core::wc::WorkCompletion;
use uverbs_mlx5_hw::doorbell::{CqDoorbell, MLX5_CQ_DB_REQ_NOT, MLX5_CQ_DB_REQ_NOT_SOL};
use zerocopy::IntoBytes;

/// What a completion queue is made of.
#[derive(Debug)]
pub struct CqConfig {
    /// Its number, 24 bits.
    pub cqn: u32,
    /// The ring that the kernel was given, cleared.
    pub ring: CqRing,
    /// The doorbell record that the kernel was given.
    pub dbrec: DbRec,
    /// Access, with any word but that of a forked child.
    pub access: QueueAccess,
    /// The register by which it is armed.
    pub arm: Arc<ArmRegister>,
    /// How completions name their queues.
    pub version: CqeVersion,
    /// Key of the memory that takes data and keeps none; 0 if the device has no such key.
    pub dump_fill_mkey: u32,
    /// Fields of the extended poll.
    pub fields: WcExFlags,
    /// What converts the device's time to wall clock time; `None` if the device's is wall clock time.
    pub clock: Option<Clock>,
}

/// The poller of a completion queue.
pub struct CompletionQueue {
    pub(super) shared: Arc<CqShared>,
    /// The word with which the last call entered the short way.
    pub(super) open_word: CqWord,
    pub(super) pending: Pending,
    /// The consumer index.
    pub(super) record: DbWord,
    pub(super) fields: WcExFlags,
    pub(super) clock: Option<Clock>,
    /// The ring of the state: only `resize` replaces it, which takes this queue by `&mut`.
    pub(super) ring: CqRing,
    /// Where an extended poll stands.
    pub(super) session: Session,
    arm: Arc<ArmRegister>,
}

bitflags::bitflags! {
    /// Why a call that begins a poll can't.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Pending: u8 {
        /// An extended poll is open.
        const SESSION = 1;
        /// There is an error that the next call reports.
        const ERROR = 2;
    }
}

/// Enters the queue of `shared`, by the short way if the word is `open`.
///
/// # Safety
/// The caller has the queue's only [`CompletionQueue`], and no other [`Entered`].
#[inline(always)]
pub(super) unsafe fn enter<'q>(shared: &'q CqShared, open: &mut CqWord) -> Result<Entered<'q>, PollError> {
    // SAFETY: the caller's promise.
    if let Some(entered) = unsafe { shared.enter(*open) } {
        return Ok(entered);
    }
    // SAFETY: the caller's promise.
    let (entered, word) = unsafe { shared.enter_cold() }?;
    *open = word;
    Ok(entered)
}

impl CompletionQueue {
    /// An empty queue, and what it shares.
    #[must_use]
    pub fn new(config: CqConfig) -> (Self, Arc<CqShared>) {
        let dbrec = Arc::new(config.dbrec);
        let record = dbrec.ci_word();
        let state = CqState::new(config.ring.clone(), config.version, config.dump_fill_mkey);
        let shared = Arc::new(CqShared::new(config.cqn, state, dbrec, config.access));
        let queue = Self {
            shared: Arc::clone(&shared),
            open_word: CqWord::NONE,
            pending: Pending::empty(),
            record,
            fields: config.fields,
            clock: config.clock,
            session: Session::new(&config.ring),
            ring: config.ring,
            arm: config.arm,
        };
        (queue, shared)
    }

    /// Whether an extended poll is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.pending.contains(Pending::SESSION)
    }

    /// Bytes of an entry.
    #[must_use]
    pub fn cqe_size(&self) -> u32 {
        self.ring.cqe_size() as u32
    }

    /// What the control path shares with it.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Resizes the queue to `ring`, which `give` has the kernel give to the device; completions of both rings are kept.
    ///
    /// # Errors
    /// The error of `give`, and `corrupt` made of [`PollError::SessionOpen`] while an extended poll is open, or of
    /// [`PollError::Corrupt`] if the old ring does not end as it should: then the queue reports no more completions.
    pub fn resize<E>(
        &mut self,
        ring: CqRing,
        give: impl FnOnce() -> Result<(), (E, RingOwner)>,
        corrupt: impl FnOnce(PollError) -> E,
    ) -> Result<(), E> {
        if self.is_open() {
            return Err(corrupt(PollError::SessionOpen));
        }
        if !self.shared.begin_resize(ring.clone()) {
            return Err(corrupt(PollError::Corrupt));
        }
        if let Err((error, owner)) = give() {
            match owner {
                RingOwner::Old => self.shared.cancel_resize(),
                RingOwner::Unknown => self.shared.lose_ring(),
            }
            return Err(error);
        }
        self.finish_resize(ring).map_err(corrupt)
    }

    /// Goes on in the ring that the kernel has given to the device.
    pub(super) fn finish_resize(&mut self, ring: CqRing) -> Result<(), PollError> {
        self.shared.end_resize()?;
        self.session = Session::new(&ring);
        self.ring = ring;
        Ok(())
    }

    /// The same for a ring that the device has already, as a test that plays the device gives it.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    #[cfg(any(test, feature = "test-utils"))]
    pub fn replace_ring(&mut self, ring: CqRing) -> Result<(), PollError> {
        self.resize(ring, || Ok(()), |error| error)
    }

    /// What a call that begins a poll must report first.
    #[cold]
    #[inline(never)]
    fn begin_pending(&mut self) -> Result<(), PollError> {
        if self.is_open() {
            return Err(PollError::SessionOpen);
        }
        if self.pending.contains(Pending::ERROR) {
            self.pending -= Pending::ERROR;
            return Err(PollError::Corrupt);
        }
        Ok(())
    }

    /// Whether a call may begin a poll.
    #[inline(always)]
    pub(super) fn check_pending(&mut self) -> Result<(), PollError> {
        if self.pending.is_empty() { Ok(()) } else { self.begin_pending() }
    }

    /// Enters for a call that begins a poll.
    #[inline(always)]
    fn begin(&mut self) -> Result<Entered<'_>, PollError> {
        self.check_pending()?;
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives: each borrows the poller.
        unsafe { enter(&self.shared, &mut self.open_word) }
    }
}

/// Who has the ring of a resize that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOwner {
    /// The device goes on with the old one.
    Old,
    /// It is not known which ring the device writes.
    Unknown,
}

/// Gives the entries before `position` back to the device.
#[inline(always)]
pub(super) fn give_back(record: &DbWord, position: u32) {
    // The entries were read before the device may write them again.
    barrier::release_to_device();
    record.set(position & INDEX_MASK);
}

/// Takes the completions of a poll.
trait Sink {
    /// Whether [`take`](Self::take) runs code of the user, which must not be inside the queue.
    const IS_USER_CODE: bool;
    /// Takes one.
    fn take(&mut self, completion: &Completion<'_>);
}

/// Fills C's structs.
struct Fill<'w>(core::slice::IterMut<'w, WorkCompletion>);

impl Sink for Fill<'_> {
    const IS_USER_CODE: bool = false;
    #[inline(always)]
    fn take(&mut self, completion: &Completion<'_>) {
        if let Some(wc) = self.0.next() {
            completion.fill(wc);
        }
    }
}

/// Calls a closure of the user.
struct Call<F>(F);

impl<F: FnMut(&Completion<'_>)> Sink for Call<F> {
    const IS_USER_CODE: bool = true;
    #[inline(always)]
    fn take(&mut self, completion: &Completion<'_>) {
        (self.0)(completion);
    }
}

/// Where a poll stands: the consumer's end of the ring and the resource at hand, for registers.
///
/// # Invariants
/// Made inside the queue. Its references are used only inside, and not after the state may have changed.
pub(super) struct Cursor<'q> {
    state: NonNull<CqState>,
    ring: &'q CqRing,
    resources: &'q Resources,
    walk: Walk<'q>,
    position: u32,
    phase: Phase,
    current: Current<'q>,
}

impl<'q> Cursor<'q> {
    /// At the consumer's position.
    ///
    /// # Safety
    /// The caller is inside the queue, and drops the cursor, or does not use it any more, before the control path can change
    /// the state: when the caller leaves, unless it finds the word unchanged when it enters again.
    #[inline(always)]
    pub(super) unsafe fn new(entered: &mut Entered<'q>) -> Self {
        let state = NonNull::from(entered.state());
        // SAFETY: inside the queue, so the state is this thread's; the lifetime is bounded by the caller's promise.
        let CqState { consumer, ring, resources, .. } = unsafe { state.as_ref() };
        Self {
            state,
            ring,
            resources,
            walk: consumer.watch.walk(),
            position: consumer.position,
            phase: consumer.phase,
            current: resources.current_at(consumer.last),
        }
    }

    /// The entry that it stands at.
    #[inline(always)]
    pub(super) fn walk(&self) -> &Walk<'q> {
        &self.walk
    }

    /// Moves behind the entry.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        self.position = self.position.wrapping_add(1);
        self.phase = self.phase.after(self.walk.step());
    }

    /// Notes the position, for the control path and for a panic. The rest of the consumer's end follows from it.
    #[inline(always)]
    fn note_position(&self) {
        // SAFETY: inside the queue (invariant); the place is used through no other reference.
        unsafe { (*self.state.as_ptr()).consumer.position = self.position };
    }

    /// Leaves the consumer's end where the cursor stands.
    #[inline(always)]
    pub(super) fn save(&self) {
        // SAFETY: inside the queue (invariant); `consumer` is used through no other reference.
        let consumer = unsafe { &mut (*self.state.as_ptr()).consumer };
        consumer.move_with(&self.walk, self.position, self.phase);
        if self.current.key() != consumer.last.0 {
            consumer.last = self.current.kept(self.resources);
        }
    }

    /// The long way to the next completion: any entry, also those that are not completions. The cursor is behind the
    /// completion's entry only after [`step`](Self::step).
    #[inline(never)]
    fn parse_other(&mut self) -> Result<Option<Parsed>, PollError> {
        // A device that never stops writing can't keep the call here.
        for _ in 0..=self.ring.entries() {
            if self.ring.valid(self.position).is_none() {
                return Ok(None);
            }
            barrier::from_device();
            match self.resources.parse(self.ring, self.position) {
                Outcome::Completion(parsed) => return Ok(Some(parsed)),
                Outcome::Nothing => self.step(),
                Outcome::Unknown => {
                    self.step();
                    return Err(PollError::Corrupt);
                }
            }
        }
        Ok(None)
    }

    /// The next completion, which the cursor stands at.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Option<Parsed>, PollError> {
        let entry = CqeRef(self.walk.block());
        let tail = entry.tail();
        if tail.is_plain_requester(self.phase) {
            barrier::from_device();
            if let Some(parsed) = self.current.requester(self.resources, entry, tail) {
                return Ok(Some(parsed));
            }
        } else if tail.is_plain_responder(self.phase) {
            barrier::from_device();
            if let Some(parsed) = self.current.responder(self.resources, entry, tail) {
                return Ok(Some(parsed));
            }
        } else if !tail.is_valid(self.phase) {
            return Ok(None);
        }
        self.parse_other()
    }
}

impl CompletionQueue {
    /// Hands out what there is, up to `max` completions. Apart from the callers, so that a poll that finds nothing has
    /// little code around it. The caller has entered, and this leaves.
    #[inline(never)]
    fn drain<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<usize, PollError> {
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        let Self { shared, open_word, record, fields, clock, pending, .. } = self;
        let (fields, clock) = (*fields, clock.as_ref().map(Clock::info));
        let shared = &**shared;
        // SAFETY: the caller is inside, by `&mut self` as the only poller, and gave its `Entered` up.
        let mut entered = unsafe { Entered::assume(shared) };
        let before = shared.generation();
        // SAFETY: inside; it is made anew below if the state may have changed.
        let mut cursor = unsafe { Cursor::new(&mut entered) };
        // What fits in the ring; a device that never stops writing can't keep the call here.
        let max = max.min(cursor.ring.entries() as usize);
        let mut done = 0;
        let result = loop {
            let parsed = match cursor.next() {
                Ok(Some(parsed)) => parsed,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let completion = Completion { cqe: CqeRef(cursor.walk.block()), parsed, fields, clock };
            cursor.step();
            done += 1;
            if S::IS_USER_CODE {
                cursor.note_position();
                drop(entered);
                let unwinding = FinishOnUnwind { shared, record, open: *open_word };
                sink.take(&completion);
                core::mem::forget(unwinding);
                // SAFETY: as above; this call is outside now.
                let Ok((again, is_same)) = (unsafe { shared.enter_again(*open_word, before) }) else {
                    // A child of fork, or a queue that is lost: there is nothing to give back to.
                    return Ok(done);
                };
                entered = again;
                if !is_same {
                    cold_path();
                    return Self::finish_after_change(entered, record, done);
                }
            } else {
                sink.take(&completion);
            }
            if done == max {
                break Ok(());
            }
        };
        cursor.save();
        give_back(record, cursor.position);
        match result {
            Err(error) if done == 0 => return Err(error),
            Err(_) => *pending |= Pending::ERROR,
            Ok(()) => {}
        }
        Ok(done)
    }

    /// Ends a poll in whose callback the control path changed the state: what was handed out is given back.
    #[cold]
    #[inline(never)]
    fn finish_after_change(
        mut entered: Entered<'_>,
        record: &DbWord,
        done: usize,
    ) -> Result<usize, PollError> {
        let state = entered.state();
        state.consumer.move_to(&state.ring, state.consumer.position);
        give_back(record, state.consumer.position);
        Ok(done)
    }
}

/// A callback on its way: if it panics, the entries that were handed out are given back.
struct FinishOnUnwind<'q> {
    shared: &'q CqShared,
    record: &'q DbWord,
    open: CqWord,
}

impl Drop for FinishOnUnwind<'_> {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: made by the only poller, which is outside and unwinds.
        if let Ok(entered) = unsafe { enter(self.shared, &mut self.open) } {
            let _ = CompletionQueue::finish_after_change(entered, self.record, 0);
        }
    }
}

impl CompletionQueueTrait for CompletionQueue {
    type Completion<'c>
        = Completion<'c>
    where
        Self: 'c;

    #[inline]
    fn poll_each(&mut self, max: usize, f: impl FnMut(&Completion<'_>)) -> Result<usize, PollError> {
        let mut entered = self.begin()?;
        // Most polls find nothing.
        if !entered.state().consumer.has_entry() || max == 0 {
            return Ok(0);
        }
        entered.stay();
        self.drain(max, &mut Call(f))
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut entered = self.begin()?;
        if !entered.state().consumer.has_entry() || wc.is_empty() {
            return Ok(0);
        }
        entered.stay();
        self.drain(wc.len(), &mut Fill(wc.iter_mut()))
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        self.start_session()
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        self.next_of_session()
    }

    #[inline]
    fn end_poll(&mut self) {
        self.end_session();
    }

    #[inline]
    fn current(&self) -> Option<Completion<'_>> {
        self.current_of_session()
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        let command = if solicited_only { MLX5_CQ_DB_REQ_NOT_SOL } else { MLX5_CQ_DB_REQ_NOT };
        let shared = &self.shared;
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives.
        let mut entered = unsafe { enter(shared, &mut self.open_word) }?;
        let position = entered.state().consumer.position;
        let doorbell = CqDoorbell::new(shared.arm_sn(), command, position & INDEX_MASK, shared.cqn());
        shared.dbrec().set_arm(doorbell.arm.get());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(doorbell.as_bytes());
        self.arm.arm(bytes);
        Ok(())
    }

    fn cqe(&self) -> u32 {
        self.ring.entries() - 1
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("shared", &self.shared)
            .field("ring", &self.ring)
            .field("pending", &self.pending)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
