// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue engine.
//!
//! An entry is the poller's when its owner bit is that of the lap; it is given back by the consumer index in the doorbell
//! record. Entries are parsed in order, each exactly once: parsing tells the queue that it is of, so that is done even if
//! the call ends with an error. An error that is met after some completions is kept for the next call (libmlx5 loses
//! those completions).

use super::clock::Clock;
use super::completion::{Completion, Parsed};
use super::entry::{CqeRef, Idle, Phase, Tail};
use super::parse::{CqeVersion, Outcome, Received, Resources, Sender};
use super::ring::CqRing;
use super::shared::{CqShared, INDEX_MASK, PollAccess};
use crate::doorbell::ArmRegister;
use crate::memory::dbrec::{DbRec, DbWord};
use crate::memory::{Walk, Watch};
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::WcExFlags;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::PollError;
use uverbs_core::provider::completion::CompletionQueue as CompletionQueueTrait;
use uverbs_core::sync::barrier;
use uverbs_core::wc::{WcStatus, WorkCompletion};
use uverbs_mlx5_hw::doorbell::{CqDoorbell, MLX5_CQ_DB_REQ_NOT, MLX5_CQ_DB_REQ_NOT_SOL};
use zerocopy::IntoBytes;

/// What a completion queue is made of.
#[derive(Debug)]
pub struct CqConfig {
    /// Its number, 24 bits.
    pub cqn: u32,
    /// Entries that the kernel was told of, cleared.
    pub ring: CqRing,
    /// The doorbell record that the kernel was told of.
    pub dbrec: DbRec,
    /// What the control path closes, in any state.
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

/// A completion queue.
pub struct CompletionQueue {
    ring: CqRing,
    consumer: Consumer,
    resources: Resources,
    /// What a call must see to before it polls: a few bits of this side's, and what others have left.
    rare: Rare,
    access: PollAccess,
    shared: Arc<CqShared>,
    /// Where an open extended poll stands.
    open: Option<(Parsed, u32)>,
    fields: WcExFlags,
    clock: Option<Clock>,
    arm: Arc<ArmRegister>,
}

bitflags::bitflags! {
    /// Why a poll can't just go on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Rare: u8 {
        /// An extended poll is open.
        const OPEN = 1;
        /// An error to be told by the next call.
        const DEFERRED = 2;
        /// The device writes to a ring that could not be taken over.
        const LOST = 4;
    }
}

/// The consumer's end of a ring.
#[derive(Debug)]
struct Consumer {
    /// The first entry that is not parsed. Counts on for ever.
    position: u32,
    /// The owner bit that it has once it is written.
    phase: Phase,
    /// What tells that it is not.
    idle: Idle,
    /// Where it stands.
    watch: Watch,
    record: DbWord,
}

impl Consumer {
    fn new(ring: &CqRing, position: u32, record: DbWord) -> Self {
        let watch = Watch::new(Arc::clone(ring.blocks()), position);
        Self { position, phase: ring.phase(position), idle: Idle::NEVER_WRITTEN, watch, record }
    }

    /// `ring` is the one that this is the end of.
    #[inline(always)]
    fn move_to(&mut self, ring: &CqRing, position: u32) {
        self.position = position;
        self.set_phase(ring.phase(position));
        self.watch.turn_to(position);
    }

    #[inline(always)]
    fn set_phase(&mut self, phase: Phase) {
        if phase != self.phase {
            (self.phase, self.idle) = (phase, Idle::before(phase));
        }
    }

    /// Gives the entries before the position back to the device.
    #[inline(always)]
    fn give_back(&self) {
        // The entries were read before the device may write them again.
        barrier::release_to_device();
        self.record.set(self.position & INDEX_MASK);
    }
}

impl CompletionQueue {
    /// An empty queue, and what it shares.
    #[must_use]
    pub fn new(config: CqConfig) -> (Self, Arc<CqShared>) {
        let dbrec = Arc::new(config.dbrec);
        let record = dbrec.ci_word();
        let shared = Arc::new(CqShared::new(config.cqn, config.ring.clone(), dbrec, config.access));
        let queue = Self {
            consumer: Consumer::new(&config.ring, 0, record),
            ring: config.ring,
            resources: Resources::new(config.version, config.dump_fill_mkey),
            rare: Rare::empty(),
            access: shared.access(),
            shared: Arc::clone(&shared),
            open: None,
            fields: config.fields,
            clock: config.clock,
            arm: config.arm,
        };
        (queue, shared)
    }

    /// Whether an extended poll is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
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

    /// Goes on in a new ring, after the kernel has given it to the device: takes over what is in the old one, up to the
    /// entry by which the device says that nothing follows there.
    ///
    /// # Errors
    /// [`PollError::SessionOpen`] while an extended poll is open; [`PollError::Corrupt`] if there is no such entry: what
    /// the device completes can't be seen any more.
    pub fn replace_ring(&mut self, ring: CqRing) -> Result<(), PollError> {
        if self.open.is_some() {
            return Err(PollError::SessionOpen);
        }
        self.attend();
        let old = self.ring.clone();
        let first = self.consumer.position;
        let mut position = first;
        let end = position.wrapping_add(old.entries());
        loop {
            let Some(op_own) = old.valid(position).filter(|_| position != end) else {
                self.lose_ring();
                return Err(PollError::Corrupt);
            };
            barrier::from_device();
            if op_own.kind() == crate::cq::cqe::Kind::Resize {
                break;
            }
            // The last entry of the old ring takes a place in the count; so all others stand one further on in the new.
            ring.copy_from(position.wrapping_add(1), &old, position);
            position = position.wrapping_add(1);
        }
        self.shared.replace_ring(ring.clone());
        let record = self.shared.dbrec().ci_word();
        self.consumer = Consumer::new(&ring, first.wrapping_add(1), record);
        self.ring = ring;
        self.consumer.give_back();
        Ok(())
    }

    /// The device writes to a ring that could not be taken over: what it completes can't be seen any more.
    pub fn lose_ring(&mut self) {
        self.rare |= Rare::LOST;
    }

    /// Reads the mail, if there is some.
    fn attend(&mut self) {
        if !self.shared.has_mail() {
            return;
        }
        let from = self.consumer.position;
        let position = self.resources.read_mail(&self.ring, &self.shared, from);
        self.consumer.move_to(&self.ring, position);
        // The entry that an open poll stands at is not given back.
        if position != from && self.open.is_none() {
            self.consumer.give_back();
        }
    }

    /// What is rare is seen to.
    #[cold]
    #[inline(never)]
    fn begin_rare(&mut self) -> Result<(), PollError> {
        if self.access.is_forked() {
            return Err(PollError::Forked);
        }
        self.attend();
        if self.rare.intersects(Rare::LOST | Rare::DEFERRED) {
            self.rare -= Rare::DEFERRED;
            return Err(PollError::Corrupt);
        }
        Ok(())
    }

    /// What calls begin with that don't go on with an open poll.
    #[inline(always)]
    fn begin_new(&mut self) -> Result<(), PollError> {
        if self.rare.is_empty() && self.access.is_open() { Ok(()) } else { self.begin_new_rare() }
    }

    #[cold]
    #[inline(never)]
    fn begin_new_rare(&mut self) -> Result<(), PollError> {
        if self.open.is_some() {
            return Err(PollError::SessionOpen);
        }
        self.begin_rare()
    }

    /// Whether there may be an entry to poll.
    #[inline(always)]
    fn has_entry(&self) -> bool {
        !self.consumer.idle.is(CqeRef(self.consumer.watch.block()).tail())
    }

    /// `ibv_poll_cq` where there may be something.
    #[inline(never)]
    fn poll_into(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        if wc.is_empty() {
            return Ok(0);
        }
        let (max, mut slots) = (wc.len(), wc.iter_mut());
        self.drain(max, |completion| {
            if let Some(slot) = slots.next() {
                completion.fill(slot);
            }
        })
    }

    /// Hands out what there is, up to `max` completions, of which there is one at least. Apart, so that a poll which finds
    /// nothing has little code around it.
    #[inline(never)]
    fn drain(&mut self, max: usize, mut f: impl FnMut(&Completion<'_>)) -> Result<usize, PollError> {
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        let Self { ring, consumer, resources, shared, rare, fields, clock, .. } = self;
        let (fields, clock) = (*fields, clock.as_ref().map(Clock::info));
        let naming_word = resources.naming_word;
        let mut sender = resources.last_sender();
        let (mut position, mut phase) = (consumer.position, consumer.phase);
        let mut walk = ring.blocks().walk(position);
        let batch = Batch { ring, consumer };
        // What fits in the ring; a device that never stops writing can't keep it here.
        let max = max.min(ring.entries() as usize) as u32;
        // Moved on by entries that are no completion.
        let mut end = position.wrapping_add(max);
        let mut result = Ok(());
        'poll: loop {
            let mut cqe = CqeRef(walk.block());
            let mut tail = cqe.tail();
            while let Some(parsed) = short(cqe, tail, phase, sender, naming_word) {
                position = position.wrapping_add(1);
                batch.consumer.position = position;
                f(&Completion { cqe, parsed, fields, clock });
                phase = phase.after(walk.step());
                if position == end {
                    break 'poll;
                }
                cqe = CqeRef(walk.block());
                tail = cqe.tail();
            }
            if let Some(parsed) = receive(cqe, tail, phase, resources) {
                position = position.wrapping_add(1);
                batch.consumer.position = position;
                hand_out(&mut f, Completion { cqe, parsed, fields, clock });
            } else if tail.is_valid(phase) {
                let (next, parsed) = parse_other(ring, resources, shared, position);
                sender = resources.last_sender();
                batch.consumer.position = next;
                let is_completion = matches!(parsed, Ok(Some(_)));
                let skipped = next.wrapping_sub(position) - u32::from(is_completion);
                if skipped != 0 {
                    end = end.wrapping_add(skipped);
                    let at = position.wrapping_add(skipped);
                    (walk, phase) = (ring.blocks().walk(at), ring.phase(at));
                }
                position = next;
                match parsed {
                    Ok(Some(parsed)) => {
                        hand_out(&mut f, Completion { cqe: CqeRef(walk.block()), parsed, fields, clock });
                    }
                    other => {
                        result = other.map(drop);
                        break;
                    }
                }
            } else {
                break;
            }
            phase = phase.after(walk.step());
            if position == end {
                break;
            }
        }
        let done = max - end.wrapping_sub(position);
        batch.finish(&walk, phase);
        match result {
            Err(error) if done == 0 => return Err(error),
            Err(_) => *rare |= Rare::DEFERRED,
            Ok(()) => {}
        }
        Ok(done as usize)
    }

    /// The next completion, if there is one. The position is behind what was parsed, also on error.
    #[inline(always)]
    fn parse_next(&mut self) -> Result<Option<Parsed>, PollError> {
        let (entry, position) = (CqeRef(self.consumer.watch.block()), self.consumer.position);
        let tail = entry.tail();
        if self.consumer.idle.is(tail) {
            return Ok(None);
        }
        let (sender, naming_word) = (self.resources.last_sender(), self.resources.naming_word);
        let phase = self.consumer.phase;
        let quick = short(entry, tail, phase, sender, naming_word)
            .or_else(|| receive(entry, tail, phase, &self.resources));
        let (next, result) = match quick {
            Some(parsed) => (position.wrapping_add(1), Ok(Some(parsed))),
            None => parse_other(&self.ring, &mut self.resources, &self.shared, position),
        };
        self.consumer.move_to(&self.ring, next);
        result
    }
}

/// The completion of a receive that brought its data to memory.
#[inline(always)]
fn receive(entry: CqeRef<'_>, tail: Tail, phase: Phase, resources: &Resources) -> Option<Parsed> {
    if !tail.is_plain_responder(phase) {
        return None;
    }
    barrier::from_device();
    let (wr_id, received) = resources.receive(entry, tail);
    let (status, csum) = (WcStatus::SUCCESS, received == Received::WithCsum);
    let parsed = Parsed { tail, wr_id, status, posted: 0, csum, is_short: false };
    (received != Received::Not).then_some(parsed)
}

/// The long way to the next completion, which also skips entries that are nobody's; and the position behind it all.
#[inline(never)]
fn parse_other(
    ring: &CqRing,
    resources: &mut Resources,
    shared: &CqShared,
    mut position: u32,
) -> (u32, Result<Option<Parsed>, PollError>) {
    // A device that lies about what it wrote can't keep it here.
    for _ in 0..=ring.entries() {
        if ring.valid(position).is_none() {
            break;
        }
        barrier::from_device();
        let outcome = resources.parse(ring, shared, position);
        if let Outcome::ReadMail = outcome {
            position = resources.read_mail(ring, shared, position);
            continue;
        }
        position = position.wrapping_add(1);
        match outcome {
            Outcome::Completion(parsed) => return (position, Ok(Some(parsed))),
            Outcome::Unknown => return (position, Err(PollError::Corrupt)),
            Outcome::Nothing | Outcome::ReadMail => {}
        }
    }
    (position, Ok(None))
}

/// The completion of an entry that says as little as most do, of the sender that the last one was of.
#[inline(always)]
fn short(
    entry: CqeRef<'_>,
    tail: Tail,
    phase: Phase,
    sender: Sender<'_>,
    naming_word: usize,
) -> Option<Parsed> {
    if !tail.is_plain_requester(phase) {
        return None;
    }
    barrier::from_device();
    if !sender.has(entry.raw_word(naming_word)) {
        return None;
    }
    let retired = sender.sends.retire(tail.block());
    let status = WcStatus::SUCCESS;
    Some(Parsed { tail, wr_id: retired.wr_id, status, posted: retired.op, csum: false, is_short: true })
}

/// Hands out a completion of the long way. Apart, so that the code around the short way is of short ones alone.
#[inline(never)]
fn hand_out(f: &mut impl FnMut(&Completion<'_>), completion: Completion<'_>) {
    f(&completion);
}

/// A poll on its way: what is before the consumer's position is given back when it ends, also by a callback's panic.
struct Batch<'q> {
    ring: &'q CqRing,
    consumer: &'q mut Consumer,
}

impl Batch<'_> {
    /// Ends it where the walk stands.
    #[inline(always)]
    fn finish(self, walk: &Walk<'_>, phase: Phase) {
        self.consumer.watch.follow(walk);
        self.consumer.set_phase(phase);
        self.consumer.give_back();
        core::mem::forget(self);
    }
}

impl Drop for Batch<'_> {
    #[cold]
    fn drop(&mut self) {
        self.consumer.move_to(self.ring, self.consumer.position);
        self.consumer.give_back();
    }
}

impl CompletionQueueTrait for CompletionQueue {
    type Completion<'c>
        = Completion<'c>
    where
        Self: 'c;

    #[inline]
    fn poll_each(&mut self, max: usize, f: impl FnMut(&Completion<'_>)) -> Result<usize, PollError> {
        self.begin_new()?;
        // Most polls find nothing.
        if !self.has_entry() || max == 0 {
            return Ok(0);
        }
        self.drain(max, f)
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.begin_new()?;
        if self.has_entry() { self.poll_into(wc) } else { Ok(0) }
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        self.begin_new()?;
        let Some(parsed) = self.parse_next()? else { return Err(PollError::Empty) };
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        self.open = Some((parsed, self.consumer.position.wrapping_sub(1)));
        self.rare |= Rare::OPEN;
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if self.open.is_none() {
            return Err(PollError::NoSession);
        }
        if self.rare != Rare::OPEN || !self.access.is_open() {
            self.begin_rare()?;
        }
        let Some(parsed) = self.parse_next()? else { return Err(PollError::Empty) };
        self.open = Some((parsed, self.consumer.position.wrapping_sub(1)));
        Ok(())
    }

    #[inline]
    fn end_poll(&mut self) {
        if self.open.take().is_some() {
            self.rare -= Rare::OPEN;
            self.consumer.give_back();
        }
    }

    #[inline]
    fn current(&self) -> Option<Completion<'_>> {
        let (parsed, at) = self.open?;
        let clock = self.clock.as_ref().map(Clock::info);
        Some(Completion { cqe: self.ring.entry(at), parsed, fields: self.fields, clock })
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        if self.access.is_forked() {
            return Err(PollError::Forked);
        }
        let command = if solicited_only { MLX5_CQ_DB_REQ_NOT_SOL } else { MLX5_CQ_DB_REQ_NOT };
        let shared = &self.shared;
        let doorbell =
            CqDoorbell::new(shared.arm_sn(), command, self.consumer.position & INDEX_MASK, shared.cqn());
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
            .field("ring", &self.ring)
            .field("consumer", &self.consumer)
            .field("resources", &self.resources)
            .field("rare", &self.rare)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}
