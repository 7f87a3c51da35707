// SPDX-License-Identifier: MIT OR Apache-2.0
//! The poller of a completion queue: `ibv_poll_cq`, typed iteration, arming, and resizing.
//!
//! An entry belongs to the poller if its owner bit is that of the lap. The consumer index in the doorbell record returns it
//! to the device. Entries are parsed in order, each exactly once: parsing retires the WR, so an entry is consumed even if
//! the call ends with an error. An error after one or more completions is reported by the next call (libmlx5 loses those
//! completions).
//!
//! A call is inside the queue for its memory accesses only (see `shared`). [`poll_each`] leaves the queue before it calls
//! its closure and enters again afterwards. If a control call came in between, it continues from the state that the control
//! call left. What a [`Claimant`] keeps for the WR is taken before the queue is left, because the control call may end the WR's queue.
//!
//! # Two ways to the next completion
//! `poll_first` and `drain` look for entries of the same three kinds, and differ in the rest: the first finds one entry and
//! mostly returns, the second has a loop for each kind. One function for both, which tests the kinds one after the other, was
//! measured (callgrind, instructions for each completion):
//!
//! - in `poll_first`, one place at which a completion is passed on instead of two: 15 more for a send of an owned queue, 6 for
//!   `poll_cq`, 2 less for `poll_each`;
//! - in `drain`, one loop instead of three: 8 to 15 more for one QP, 17 with `poll_cq` and many QPs.
//!
//! The macros are not functions, because they return and break for the function that contains them.
//!
//! [`poll_each`]: CompletionQueueTrait::poll_each
#![expect(unsafe_code)]
// UNSAFETY: enters the queue as its only poller, which `&mut CompletionQueue` guarantees.

use super::clock::Clock;
use super::completion::Completion;
use super::cursor::PollCursor;
use super::entry::CqeRef;
use super::parse::{CqeVersion, Resources};
use super::ring::CqRing;
use super::session::Session;
use super::shared::{CqShared, CqWord, Entered};
use super::sink::{Call, Claiming, Fill, Sink};
use super::state::{CqState, INDEX_MASK};
use crate::doorbell::ArmRegister;
use crate::memory::dbrec::{DbRec, DbWord};
use crate::shared::mkey::MkeyTable;
use core::fmt;
use core::hint::cold_path;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::sync::Arc;
use uverbs_core::attr::WcExFlags;
use uverbs_core::errno::Errno;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PollError;
use uverbs_core::provider::completion::{Claimant, CompletionQueue as CompletionQueueTrait};
use uverbs_core::sync::barrier;
use uverbs_core::wc::WorkCompletion;
use uverbs_mlx5_hw::doorbell::{CqDoorbell, MLX5_CQ_DB_REQ_NOT, MLX5_CQ_DB_REQ_NOT_SOL};
use zerocopy::transmute;

/// The parts of a completion queue.
#[derive(Debug)]
pub struct CqConfig {
    /// Its number, 24 bits.
    pub cqn: u32,
    /// The cleared ring that was passed to the kernel.
    pub ring: CqRing,
    /// The doorbell record that was passed to the kernel.
    pub dbrec: DbRec,
    /// The queue's access word, with any value except that of a forked child.
    pub access: QueueAccess,
    /// The register that arms the CQ.
    pub arm: Arc<ArmRegister>,
    /// How completions name their resources.
    pub version: CqeVersion,
    /// Key of the memory that discards data; 0 if the device has no such key.
    pub dump_fill_mkey: u32,
    /// Fields of the extended poll.
    pub fields: WcExFlags,
    /// Converts timestamps to wall clock time; `None` if the device's clock is wall clock time.
    pub clock: Option<Clock>,
    /// The keys of the context that have signatures.
    pub mkeys: Arc<MkeyTable>,
}

/// The poller of a completion queue.
pub struct CompletionQueue {
    pub(super) shared: Arc<CqShared>,
    /// The word with which the last call entered by the fast path.
    pub(super) open_word: CqWord,
    pub(super) pending: Pending,
    /// The consumer index in the doorbell record.
    pub(super) record: DbWord,
    pub(super) fields: WcExFlags,
    pub(super) clock: Option<Clock>,
    /// The ring of the state. Only `resize` replaces it, which takes this queue by `&mut`.
    pub(super) ring: CqRing,
    /// The extended poll, whose current entry is in `ring`, too.
    pub(super) session: Session,
    /// The word with which it is armed in the doorbell record.
    arm_record: DbWord,
    arm: Arc<ArmRegister>,
}

bitflags::bitflags! {
    /// Reasons for a poll to take the slow path.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Pending: u8 {
        /// An extended poll is open.
        const SESSION = 1;
        /// There is an error that the next call reports.
        const ERROR = 2;
        /// The poll must read the clock's page.
        const CLOCK = 4;
    }
}

/// Enters the queue of `shared`; by the fast path if the word is `open`, and else updates `open`.
///
/// # Safety
/// The caller has the queue's only [`CompletionQueue`], and no other [`Entered`] of it.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) unsafe fn enter<'q>(shared: &'q CqShared, open: &mut CqWord) -> Result<Entered<'q>, PollError> {
    // SAFETY: the caller is the only poller and has no other `Entered` (the contract of this function).
    if let Some(entered) = unsafe { shared.enter(*open) } {
        return Ok(entered);
    }
    // SAFETY: the caller is the only poller and has no other `Entered`; `shared.enter` returned none.
    let (entered, word) = unsafe { shared.enter_cold() }?;
    *open = word;
    Ok(entered)
}

impl CompletionQueue {
    /// Creates an empty queue and the part that it shares with the control path.
    #[must_use]
    pub fn new(config: CqConfig) -> (Self, Arc<CqShared>) {
        let dbrec = Arc::new(config.dbrec);
        let (record, arm_record) = (dbrec.ci_word(), dbrec.arm_word());
        let state = CqState::new(config.ring.clone(), config.version, config.dump_fill_mkey, config.mkeys);
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
            arm_record,
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

    /// The part that it shares with the control path.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// The ring, until the next resize.
    pub(crate) fn ring(&self) -> &CqRing {
        &self.ring
    }

    /// Resizes the queue to `ring`, which `give` passes to the kernel; completions of both rings are kept.
    ///
    /// # Errors
    /// The error of `give`; `corrupt(`[`PollError::SessionOpen`]`)` while an extended poll is open;
    /// `corrupt(`[`PollError::Corrupt`]`)` if the old ring does not end with the mark of a resize: then the queue reports
    /// no more completions.
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

    /// Continues in the ring that the kernel has given to the device.
    pub(super) fn finish_resize(&mut self, ring: CqRing) -> Result<(), PollError> {
        self.shared.end_resize()?;
        self.session = Session::new(&ring);
        self.ring = ring;
        Ok(())
    }

    /// As [`resize`](Self::resize), for a ring that the device uses already: for tests that simulate the device.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    #[cfg(any(test, feature = "test-utils"))]
    pub fn replace_ring(&mut self, ring: CqRing) -> Result<(), PollError> {
        self.resize(ring, || Ok(()), |error| error)
    }

    /// Reports an error that is pending, or an open extended poll, before a poll begins.
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

/// Which ring the device uses after a failed resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOwner {
    /// The device continues with the old one.
    Old,
    /// Unknown.
    Unknown,
}

/// Returns the entries before `position` to the device.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn give_back(record: &DbWord, position: u32) {
    // The reads of the entries come before the device's next writes to them.
    barrier::release_to_device();
    record.set(position & INDEX_MASK);
}

impl CompletionQueue {
    /// Passes up to `max` completions to `sink`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn poll<S: Sink>(&mut self, max: usize, sink: S) -> Result<usize, PollError> {
        // codegen: words
        let max = max.min(u32::MAX as usize) as u32;
        if !self.pending.is_empty() {
            return self.poll_slow(max, sink).map(|n| n as usize);
        }
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let Some(mut entered) = (unsafe { self.shared.enter(self.open_word) }) else {
            return self.poll_slow(max, sink).map(|n| n as usize);
        };
        if !entered.state().consumer.has_entry() || max == 0 {
            return Ok(0);
        }
        entered.stay();
        let result =
            if S::IS_USER_CODE { self.poll_first(max, sink) } else { self.poll_first_outlined(max, sink) };
        result.map(|n| n as usize)
    }

    /// Passes up to `max` completions to `sink` if the fast path is closed.
    #[cold]
    #[inline(never)]
    fn poll_slow<S: Sink>(&mut self, max: u32, sink: S) -> Result<u32, PollError> {
        self.check_pending()?;
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let mut entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        if !entered.state().consumer.has_entry() || max == 0 {
            return Ok(0);
        }
        entered.stay();
        self.drain(0, max, sink)
    }

    /// [`poll_first`](Self::poll_first), not inlined.
    // codegen: call
    #[inline(never)]
    fn poll_first_outlined<S: Sink>(&mut self, max: u32, sink: S) -> Result<u32, PollError> {
        self.poll_first(max, sink)
    }

    /// Passes the first of up to `max` completions to `sink`, because many polls find only one, and the rest by
    /// [`drain`](Self::drain). The caller has entered the queue; this function leaves it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn poll_first<S: Sink>(&mut self, max: u32, mut sink: S) -> Result<u32, PollError> {
        let shared = &*self.shared;
        // SAFETY: the caller is the only poller (`&mut self`), is inside, and gave up its `Entered` by `stay`.
        let mut entered = unsafe { Entered::assume(shared) };
        let state = NonNull::from(entered.state());
        // SAFETY: this thread is inside the queue. The reference to `next` ends with this statement; the one to the entry
        // stays valid, because the entry is not returned to the device and only a resize, which takes `&mut self`, replaces
        // the ring.
        let entry = CqeRef(unsafe { &(*state.as_ptr()).consumer.next }.cursor().block());
        // SAFETY: this thread is inside the queue, and the references are not used after it left.
        let CqState { consumer, resources, last, .. } = unsafe { &mut *state.as_ptr() };
        let tail = entry.tail(consumer.phase);
        // Passes the completion to the sink, polls the rest, and returns.
        macro_rules! pass_and_return {
            ($take:path, $parsed:expr) => {
                consumer.step();
                let completion = Completion { cqe: entry, parsed: $parsed, fields: self.fields, clock: None };
                if S::IS_USER_CODE {
                    let unwinding = FinishOnUnwind { shared, record: &self.record, open: self.open_word };
                    $take(&mut sink, &completion, || drop(entered));
                    core::mem::forget(unwinding);
                    // SAFETY: this is the only poller (`&mut self`), and its `Entered` was dropped by the sink.
                    let Ok(again) = (unsafe { enter(shared, &mut self.open_word) }) else { return Ok(1) };
                    entered = again;
                } else {
                    $take(&mut sink, &completion, || ());
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
                pass_and_return!(S::take, parsed);
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
                pass_and_return!(S::take_responder, parsed);
            }
        }
        entered.stay();
        self.drain(0, max, sink)
    }

    /// Passes the available completions to `sink`, up to `max` including the `taken` ones that were passed before.
    /// The caller has entered the queue; this function leaves it.
    // codegen: call
    #[inline(never)]
    fn drain<S: Sink>(&mut self, taken: u32, max: u32, mut sink: S) -> Result<u32, PollError> {
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        let Self { shared, open_word, record, fields, clock, pending, .. } = self;
        let (fields, clock) = (*fields, clock.as_ref().map(Clock::info));
        let shared = &**shared;
        // SAFETY: the caller is the only poller (`&mut self`), is inside, and gave up its `Entered` by `stay`.
        let mut entered = unsafe { Entered::assume(shared) };
        let (before, access, open) = (shared.generation(), shared.access(), open_word.bits());
        // SAFETY: this thread is inside the queue, and the cursor is not used after the state may have changed: the
        // function returns if the word changed.
        let mut cursor = unsafe { PollCursor::new(&mut entered) };
        entered.stay();
        // At most one ring of entries, so the call returns even if the device keeps writing.
        let max = max.min(cursor.ring.entries()) - taken;
        // Increased by the number of entries that are not completions.
        let mut end = cursor.position().wrapping_add(max);
        // If the user's code panics, this thread is outside the queue.
        let unwinding = FinishOnUnwind { shared, record, open: *open_word };
        let mut result = Ok(());
        // Passes the completion at the cursor to the sink, and moves the cursor by `$step`.
        macro_rules! pass_and_step {
            ($take:path, $parsed:expr, $step:path) => {
                let completion = Completion { cqe: cursor.entry(), parsed: $parsed, fields, clock };
                $step(&mut cursor);
                if S::IS_USER_CODE {
                    $take(&mut sink, &completion, || access.leave());
                    if !access.enter_if_wide(open) {
                        cold_path();
                        let done = taken + (max - end.wrapping_sub(cursor.position()));
                        // SAFETY: this is the only poller (`&mut self`), and the sink has left the queue.
                        match unsafe { shared.enter_again(before) } {
                            Ok((again, true)) => again.stay(),
                            Ok((again, false)) => {
                                core::mem::forget(unwinding);
                                return Self::finish_after_change(again, record, done);
                            }
                            // A child of fork, or a lost queue: entries can't be returned to the device.
                            Err(_) => {
                                core::mem::forget(unwinding);
                                return Ok(done);
                            }
                        }
                    }
                } else {
                    $take(&mut sink, &completion, || ());
                }
            };
        }
        // Passes completions of one kind to the sink; breaks to `$at_stop` at the stop of `blocks`. The inner loop handles the
        // completions of one QP.
        // codegen: live
        macro_rules! run {
            ($at_stop:lifetime, $is_of_kind:ident, $take:path, |$entry:ident, $tail:ident| $parse:expr) => {
                'run: loop {
                    let ($entry, $tail) = loop {
                        let Some(block) = cursor.blocks.block_before_stop() else { break $at_stop };
                        let ($entry, $tail) = (CqeRef(block), CqeRef(block).tail(cursor.phase));
                        if !$tail.$is_of_kind() {
                            break 'run;
                        }
                        let Some(parsed) = ($parse) else { break ($entry, $tail) };
                        pass_and_step!($take, parsed, PollCursor::step_to_stop);
                    };
                    if !cursor.current.change_to(cursor.resources, $entry) {
                        break;
                    }
                    // The first completion of another QP is passed here, and not by another turn of the loop.
                    // codegen: layout
                    if !S::IS_USER_CODE {
                        let Some(parsed) = ($parse) else { break };
                        pass_and_step!($take, parsed, PollCursor::step_to_stop);
                    }
                }
            };
        }
        loop {
            let start = cursor.position();
            cursor.blocks.set_stop(end.wrapping_sub(start));
            'stretch: {
                run!('stretch, is_plain_requester, S::take, |entry, tail| cursor
                    .current
                    .requester(entry, tail));
                run!('stretch, is_plain_responder, S::take_responder, |entry, tail| cursor
                    .current
                    .responder(entry, tail));
                run!('stretch, is_responder_with_data, S::take_responder, |entry, tail| cursor
                    .current
                    .responder_with_data(cursor.resources, entry, tail));
            }
            let at = cursor.position();
            if at == end || !cursor.tail().is_valid() {
                break;
            }
            if at != start && cursor.blocks.block_before_stop().is_some() {
                continue;
            }
            // An entry of another kind, or the end of the ring.
            let next = cursor.next();
            end = end.wrapping_add(cursor.position().wrapping_sub(at));
            match next {
                Ok(Some(parsed)) => {
                    pass_and_step!(S::take_other, parsed, PollCursor::step);
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

    /// Requests an event, whose doorbell `ring` writes; the caller is inside the queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn arm_inside(&self, entered: &mut Entered<'_>, solicited_only: bool, ring: impl FnOnce([u8; 8])) {
        let command = if solicited_only { MLX5_CQ_DB_REQ_NOT_SOL } else { MLX5_CQ_DB_REQ_NOT };
        let position = entered.state().consumer.position();
        let shared = &*self.shared;
        let doorbell = CqDoorbell::new(shared.arm_sn(), command, position & INDEX_MASK, shared.cqn());
        self.arm_record.set(doorbell.arm.get());
        ring(transmute!(doorbell));
    }

    /// Requests an event of a software device, or if the fast path is closed.
    #[cold]
    #[inline(never)]
    fn req_notify_slow(&mut self, solicited_only: bool) -> Result<(), PollError> {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let mut entered = unsafe { enter(&self.shared, &mut self.open_word) }?;
        if entered.state().has_ended() {
            return Err(PollError::Arm(Errno::EINVAL));
        }
        self.arm_inside(&mut entered, solicited_only, |bytes| self.arm.arm(bytes));
        Ok(())
    }

    /// Ends a poll during whose callback the control path changed the state: returns the consumed entries to the device.
    #[cold]
    #[inline(never)]
    fn finish_after_change(mut entered: Entered<'_>, record: &DbWord, done: u32) -> Result<u32, PollError> {
        give_back(record, entered.state().consumer.position());
        Ok(done)
    }
}

/// Exists during a callback: if the callback panics, returns the consumed entries to the device.
struct FinishOnUnwind<'q> {
    shared: &'q CqShared,
    record: &'q DbWord,
    open: CqWord,
}

impl Drop for FinishOnUnwind<'_> {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: created by the only poller, which is outside the queue while the panic unwinds.
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
    fn poll_claiming(&mut self, max: usize, claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        self.poll(max, Claiming(claimant))
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.poll(wc.len(), Fill::new(wc))
    }

    #[inline]
    fn poll_cq_uninit(&mut self, wc: &mut [MaybeUninit<WorkCompletion>]) -> Result<usize, PollError> {
        self.poll(wc.len(), Fill::uninit(wc))
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        self.start_session()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_start_poll(&mut self) -> Option<bool> {
        // Its only error is that the queue is empty.
        self.try_start_session().map(|result| result.is_ok())
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

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn last(&self) -> Option<Completion<'_>> {
        Some(self.last_of_session())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_surely_empty(&mut self) -> bool {
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let entered = unsafe { self.shared.enter(self.open_word) };
        self.pending.is_empty() && entered.is_some_and(|mut entered| !entered.state().consumer.has_entry())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_req_notify(&mut self, solicited_only: bool) -> bool {
        let Some(register) = self.arm.mapped() else { return false };
        // SAFETY: `&mut self` is the queue's only poller, and no `Entered` of it exists.
        let Some(mut entered) = (unsafe { self.shared.enter(self.open_word) }) else { return false };
        self.arm_inside(&mut entered, solicited_only, |bytes| register.arm(bytes));
        true
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        if self.try_req_notify(solicited_only) { Ok(()) } else { self.req_notify_slow(solicited_only) }
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
