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
use super::completion::Completion;
use super::cursor::Cursor;
use super::entry::CqeRef;
use super::parse::{CqeVersion, Resources};
use super::ring::CqRing;
use super::session::Session;
use super::shared::{CqShared, CqWord, Entered};
use super::sink::{Call, Fill, Sink};
use super::state::{CqState, INDEX_MASK};
use crate::doorbell::ArmRegister;
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
    /// Where an extended poll stands: in that ring, too.
    pub(super) session: Session,
    arm: Arc<ArmRegister>,
}

bitflags::bitflags! {
    /// Why a call that begins a poll can't go the short way.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Pending: u8 {
        /// An extended poll is open.
        const SESSION = 1;
        /// There is an error that the next call reports.
        const ERROR = 2;
        /// The clock's page is read by each poll.
        const CLOCK = 4;
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
            pending: if config.clock.is_some() { Pending::CLOCK } else { Pending::empty() },
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
    pub(super) fn check_pending(&mut self) -> Result<(), PollError> {
        if self.is_open() {
            return Err(PollError::SessionOpen);
        }
        if self.pending.contains(Pending::ERROR) {
            self.pending -= Pending::ERROR;
            return Err(PollError::Corrupt);
        }
        Ok(())
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

impl CompletionQueue {
    /// Hands out up to `max` completions.
    #[inline(always)]
    fn poll<S: Sink>(&mut self, max: usize, sink: S) -> Result<usize, PollError> {
        // Counts have 32 bits inside, so that a result is in registers.
        let max = max.min(u32::MAX as usize) as u32;
        if !self.pending.is_empty() {
            return self.poll_by_long_way(max, sink).map(|n| n as usize);
        }
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives.
        let Some(mut entered) = (unsafe { self.shared.enter(self.open_word) }) else {
            return self.poll_by_long_way(max, sink).map(|n| n as usize);
        };
        if !entered.state().consumer.has_entry() || max == 0 {
            return Ok(0);
        }
        entered.stay();
        let result =
            if S::IS_USER_CODE { self.poll_first(max, sink) } else { self.poll_first_apart(max, sink) };
        result.map(|n| n as usize)
    }

    /// Where the short way is closed: hands out up to `max` completions.
    #[cold]
    #[inline(never)]
    fn poll_by_long_way<S: Sink>(&mut self, max: u32, sink: S) -> Result<u32, PollError> {
        self.check_pending()?;
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it lives.
        let mut entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        if !entered.state().consumer.has_entry() || max == 0 {
            return Ok(0);
        }
        entered.stay();
        self.drain(0, max, sink)
    }

    /// [`poll_first`](Self::poll_first), apart: a poll that finds nothing has little code around it.
    #[inline(never)]
    fn poll_first_apart<S: Sink>(&mut self, max: u32, sink: S) -> Result<u32, PollError> {
        self.poll_first(max, sink)
    }

    /// Hands out the first of up to `max` completions, since many polls find no more than one, and the rest by
    /// [`drain`](Self::drain). The caller has entered the short way, and this leaves.
    #[inline(always)]
    fn poll_first<S: Sink>(&mut self, max: u32, mut sink: S) -> Result<u32, PollError> {
        let shared = &*self.shared;
        // SAFETY: the caller is inside, by `&mut self` as the only poller, and gave its `Entered` up.
        let mut entered = unsafe { Entered::assume(shared) };
        let state = NonNull::from(entered.state());
        // SAFETY: inside. The reference ends with this statement, but for the entry, which stays in its place: it is not given
        // back, and only a resize, which takes `&mut self`, replaces the ring.
        let entry = CqeRef(unsafe { &(*state.as_ptr()).consumer.watch }.walk().block());
        // SAFETY: inside, and not used after this call has left.
        let CqState { consumer, resources, last, .. } = unsafe { &mut *state.as_ptr() };
        let tail = entry.tail(consumer.phase);
        // Hands out the completion, and returns unless there are more.
        macro_rules! hand_out {
            ($take:path, $parsed:expr) => {
                consumer.step();
                let completion = Completion { cqe: entry, parsed: $parsed, fields: self.fields, clock: None };
                if S::IS_USER_CODE {
                    drop(entered);
                    let unwinding = FinishOnUnwind { shared, record: &self.record, open: self.open_word };
                    $take(&mut sink, &completion);
                    core::mem::forget(unwinding);
                    // SAFETY: as above; this call is outside now.
                    let Ok(again) = (unsafe { enter(shared, &mut self.open_word) }) else { return Ok(1) };
                    entered = again;
                } else {
                    $take(&mut sink, &completion);
                }
                let consumer = &entered.state().consumer;
                if max == 1 || !consumer.has_entry() {
                    give_back(&self.record, consumer.position());
                    return Ok(1);
                }
                entered.stay();
                return self.drain(1, max, sink);
            };
        }
        if tail.is_plain_requester() {
            if let Some(parsed) = Resources::current(last).requester(entry, tail) {
                hand_out!(S::take, parsed);
            }
        } else {
            let current = Resources::current(last);
            let parsed = if tail.is_plain_responder() {
                current.responder(entry, tail)
            } else if tail.is_responder_with_data() {
                current.responder_with_data(resources, entry, tail)
            } else {
                None
            };
            if let Some(parsed) = parsed {
                hand_out!(S::take_responder, parsed);
            }
        }
        entered.stay();
        self.drain(0, max, sink)
    }

    /// Hands out what there is, up to `max` completions with the `taken`. Apart, so that a poll that finds nothing has little
    /// code around it. The caller has entered, and this leaves.
    #[inline(never)]
    fn drain<S: Sink>(&mut self, taken: u32, max: u32, mut sink: S) -> Result<u32, PollError> {
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        let Self { shared, open_word, record, fields, clock, pending, .. } = self;
        let (fields, clock) = (*fields, clock.as_ref().map(Clock::info));
        let shared = &**shared;
        // SAFETY: the caller is inside, by `&mut self` as the only poller, and gave its `Entered` up.
        let mut entered = unsafe { Entered::assume(shared) };
        let (before, access, open) = (shared.generation(), shared.access(), open_word.bits());
        // SAFETY: inside. Not used any more once the state may have changed.
        let mut cursor = unsafe { Cursor::new(&mut entered) };
        entered.stay();
        // What fits in the ring; a device that never stops writing can't keep the call here.
        let max = max.min(cursor.ring.entries()) - taken;
        // Moved on by entries that are no completion.
        let mut end = cursor.position().wrapping_add(max);
        // A panic of the sink unwinds while this call is outside.
        let unwinding = FinishOnUnwind { shared, record, open: *open_word };
        let mut result = Ok(());
        // Hands out the completion that the cursor stands at, and moves on by `$step`.
        macro_rules! hand_out {
            ($take:path, $parsed:expr, $step:path) => {
                let completion = Completion { cqe: cursor.entry(), parsed: $parsed, fields, clock };
                $step(&mut cursor);
                if S::IS_USER_CODE {
                    access.leave();
                    $take(&mut sink, &completion);
                    if !access.enter_if(open) {
                        cold_path();
                        let done = taken + (max - end.wrapping_sub(cursor.position()));
                        // SAFETY: as above; this call is outside now.
                        match unsafe { shared.enter_again(before) } {
                            Ok((again, true)) => again.stay(),
                            Ok((again, false)) => {
                                core::mem::forget(unwinding);
                                return Self::finish_after_change(again, record, done);
                            }
                            // A child of fork, or a queue that is lost: there is nothing to give back to.
                            Err(_) => {
                                core::mem::forget(unwinding);
                                return Ok(done);
                            }
                        }
                    }
                } else {
                    $take(&mut sink, &completion);
                }
            };
        }
        // Hands out completions of one kind, and leaves `$at_stop` where the walk stops. The inner loop is for those of one QP:
        // all that it needs is in registers.
        macro_rules! run {
            ($at_stop:lifetime, $is_of_kind:ident, $take:path, |$entry:ident, $tail:ident| $parse:expr) => {
                loop {
                    while let Some(block) = cursor.walk.block_before_stop()
                        && let ($entry, $tail) = (CqeRef(block), CqeRef(block).tail(cursor.phase))
                        && $tail.$is_of_kind()
                        && let Some(parsed) = $parse
                    {
                        hand_out!($take, parsed, Cursor::step_to_stop);
                    }
                    if cursor.walk.block_before_stop().is_none() {
                        break $at_stop;
                    }
                    let is_of_kind = cursor.tail().$is_of_kind();
                    if !is_of_kind || !cursor.current.turn_to(cursor.resources, cursor.entry()) {
                        break;
                    }
                }
            };
        }
        loop {
            let start = cursor.position();
            cursor.walk.set_stop(end.wrapping_sub(start));
            'stretch: {
                run!('stretch, is_plain_requester, S::take, |entry, tail| {
                    cursor.current.requester(entry, tail)
                });
                run!('stretch, is_plain_responder, S::take_responder, |entry, tail| {
                    cursor.current.responder(entry, tail)
                });
                run!('stretch, is_responder_with_data, S::take_responder, |entry, tail| {
                    cursor.current.responder_with_data(cursor.resources, entry, tail)
                });
            }
            let at = cursor.position();
            if at == end || !cursor.tail().is_valid() {
                break;
            }
            if at != start && cursor.walk.block_before_stop().is_some() {
                continue;
            }
            // Of another kind, or at the ring's end.
            let next = cursor.next();
            end = end.wrapping_add(cursor.position().wrapping_sub(at));
            match next {
                Ok(Some(parsed)) => {
                    hand_out!(S::take_other, parsed, Cursor::step);
                }
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let position = cursor.position();
        let done = taken + (max - end.wrapping_sub(position));
        core::mem::forget(unwinding);
        cursor.keep_resource();
        give_back(record, position);
        access.leave();
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
    fn finish_after_change(mut entered: Entered<'_>, record: &DbWord, done: u32) -> Result<u32, PollError> {
        give_back(record, entered.state().consumer.position());
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
        self.poll(max, Call(f))
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.poll(wc.len(), Fill(wc))
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
        let position = entered.state().consumer.position();
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
