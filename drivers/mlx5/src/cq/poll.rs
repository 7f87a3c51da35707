// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue engine.
//!
//! An entry is the poller's when its owner bit is that of the lap; it is given back by the consumer index in the doorbell
//! record. Entries are parsed in order, each exactly once: parsing tells the queue that it is of, so that is done even if
//! the call ends with an error. An error that is met after some completions is kept for the next call (libmlx5 loses
//! those completions).

use super::clock::Clock;
use super::completion::{Completion, Parsed};
use super::parse::{CqeVersion, Outcome, Resources};
use super::ring::CqRing;
use super::shared::{CqShared, INDEX_MASK};
use crate::dbrec::DbRec;
use crate::uar::ArmRegister;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::WcExFlags;
use uverbs_core::kernel::Process;
use uverbs_core::provider::PollError;
use uverbs_core::provider::completion::CompletionQueue as CompletionQueueTrait;
use uverbs_core::sync::barrier;
use uverbs_core::wc::WcStatus;
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
    ring: Arc<CqRing>,
    /// The first entry that is not parsed. Counts on for ever.
    cursor: u32,
    resources: Resources,
    shared: Arc<CqShared>,
    /// Where an open extended poll stands.
    open: Option<Parsed>,
    /// Whose queue this is: a child of fork(2) has a copy of the ring, but shares the doorbell.
    process: Process,
    /// An error to be told by the next call.
    deferred: bool,
    /// The device writes to a ring that could not be taken over.
    lost: bool,
    fields: WcExFlags,
    clock: Option<Clock>,
    arm: Arc<ArmRegister>,
}

impl CompletionQueue {
    /// An empty queue, and what it shares.
    #[must_use]
    pub fn new(config: CqConfig) -> (Self, Arc<CqShared>) {
        let ring = Arc::new(config.ring);
        let shared = Arc::new(CqShared::new(config.cqn, Arc::clone(&ring), config.dbrec));
        let queue = Self {
            ring,
            cursor: 0,
            resources: Resources::new(config.version, config.dump_fill_mkey),
            shared: Arc::clone(&shared),
            open: None,
            process: Process::register(),
            deferred: false,
            lost: false,
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
        let old = Arc::clone(&self.ring);
        let mut position = self.cursor;
        let end = position.wrapping_add(old.entries());
        loop {
            let Some(op_own) = old.valid(position).filter(|_| position != end) else {
                self.lose_ring();
                return Err(PollError::Corrupt);
            };
            barrier::from_device();
            if op_own.kind() == crate::cqe::Kind::Resize {
                break;
            }
            // The last entry of the old ring takes a place in the count; so all others stand one further on in the new.
            ring.copy_from(position.wrapping_add(1), &old, position);
            position = position.wrapping_add(1);
        }
        let ring = Arc::new(ring);
        self.shared.replace_ring(Arc::clone(&ring));
        self.ring = ring;
        self.cursor = self.cursor.wrapping_add(1);
        barrier::to_device();
        self.shared.dbrec().set_ci(self.cursor & INDEX_MASK);
        Ok(())
    }

    /// The device writes to a ring that could not be taken over: what it completes can't be seen any more.
    pub fn lose_ring(&mut self) {
        self.lost = true;
    }

    /// Reads the mail, if there is some.
    #[inline(always)]
    fn attend(&mut self) {
        if self.shared.has_mail() {
            self.read_mail();
        }
    }

    #[cold]
    #[inline(never)]
    fn read_mail(&mut self) {
        let cursor = self.resources.read_mail(&self.ring, &self.shared, self.cursor);
        // The entry that an open poll stands at is not given back.
        if cursor != self.cursor && self.open.is_none() {
            barrier::to_device();
            self.shared.dbrec().set_ci(cursor & INDEX_MASK);
        }
        self.cursor = cursor;
    }

    /// What every call begins with.
    #[inline(always)]
    fn begin(&mut self) -> Result<(), PollError> {
        if !self.process.is_current() {
            return Err(PollError::Forked);
        }
        self.attend();
        if self.lost | self.deferred {
            self.deferred = false;
            return Err(PollError::Corrupt);
        }
        Ok(())
    }

    /// The next completion, if there is one. The cursor is behind what was parsed, also on error.
    #[inline(always)]
    fn parse_next(&mut self) -> Result<Option<Parsed>, PollError> {
        let entry = self.ring.entry(self.cursor);
        let (tail, phase) = (entry.tail(), self.ring.phase(self.cursor));
        if tail.op_own().is_plain_requester(phase) {
            barrier::from_device();
            if let Some(sq) = self.resources.sender(entry, tail) {
                let retired = sq.retire(tail.wqe_counter());
                let position = self.cursor;
                self.cursor = position.wrapping_add(1);
                return Ok(Some(Parsed {
                    position,
                    tail,
                    wr_id: retired.wr_id,
                    status: WcStatus::SUCCESS,
                    posted: retired.op,
                    csum: false,
                }));
            }
        } else if !tail.op_own().is_valid(phase) {
            return Ok(None);
        }
        self.parse_other()
    }

    /// The long way, which also skips entries that are nobody's.
    #[inline(never)]
    fn parse_other(&mut self) -> Result<Option<Parsed>, PollError> {
        // A device that lies about what it wrote can't keep it here.
        for _ in 0..=self.ring.entries() {
            let position = self.cursor;
            if self.ring.valid(position).is_none() {
                return Ok(None);
            }
            barrier::from_device();
            match self.resources.parse(&self.ring, &self.shared, position) {
                Outcome::Completion(parsed) => {
                    self.cursor = position.wrapping_add(1);
                    return Ok(Some(parsed));
                }
                Outcome::Nothing => self.cursor = position.wrapping_add(1),
                Outcome::ReadMail => self.attend(),
                Outcome::Unknown => {
                    self.cursor = position.wrapping_add(1);
                    return Err(PollError::Corrupt);
                }
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn completion(&self, parsed: Parsed) -> Completion<'_> {
        let entry = self.ring.entry(parsed.position);
        Completion { cqe: entry, parsed, fields: self.fields, clock: self.clock.as_ref().map(Clock::info) }
    }
}

/// Gives the parsed entries back, also when a callback panics.
struct Release<'q> {
    queue: &'q mut CompletionQueue,
    from: u32,
}

impl Drop for Release<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.queue.cursor != self.from {
            // The entries were read before the device may write them again.
            barrier::to_device();
            self.queue.shared.dbrec().set_ci(self.queue.cursor & INDEX_MASK);
        }
    }
}

impl CompletionQueueTrait for CompletionQueue {
    type Completion<'c>
        = Completion<'c>
    where
        Self: 'c;

    #[inline]
    fn poll_each(&mut self, max: usize, mut f: impl FnMut(&Completion<'_>)) -> Result<usize, PollError> {
        if self.open.is_some() {
            return Err(PollError::SessionOpen);
        }
        let from = self.cursor;
        let release = Release { queue: self, from };
        let queue = &mut *release.queue;
        queue.begin()?;
        if let Some(clock) = &mut queue.clock {
            clock.refresh();
        }
        // What fits in the ring; a device that never stops writing can't keep it here.
        let max = max.min(queue.ring.entries() as usize);
        let mut n = 0;
        while n < max {
            match queue.parse_next() {
                Ok(Some(parsed)) => {
                    n += 1;
                    f(&queue.completion(parsed));
                }
                Ok(None) => break,
                Err(error) if n == 0 => return Err(error),
                Err(_) => {
                    queue.deferred = true;
                    break;
                }
            }
        }
        Ok(n)
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        if self.open.is_some() {
            return Err(PollError::SessionOpen);
        }
        self.begin()?;
        let Some(parsed) = self.parse_next()? else { return Err(PollError::Empty) };
        if let Some(clock) = &mut self.clock {
            clock.refresh();
        }
        self.open = Some(parsed);
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        if self.open.is_none() {
            return Err(PollError::NoSession);
        }
        self.begin()?;
        let Some(parsed) = self.parse_next()? else { return Err(PollError::Empty) };
        self.open = Some(parsed);
        Ok(())
    }

    #[inline]
    fn end_poll(&mut self) {
        if self.open.take().is_some() {
            barrier::to_device();
            self.shared.dbrec().set_ci(self.cursor & INDEX_MASK);
        }
    }

    #[inline]
    fn current(&self) -> Option<Completion<'_>> {
        self.open.map(|parsed| self.completion(parsed))
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        if !self.process.is_current() {
            return Err(PollError::Forked);
        }
        let command = if solicited_only { MLX5_CQ_DB_REQ_NOT_SOL } else { MLX5_CQ_DB_REQ_NOT };
        let shared = &self.shared;
        let doorbell = CqDoorbell::new(shared.arm_sn(), command, self.cursor & INDEX_MASK, shared.cqn());
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
            .field("cursor", &self.cursor)
            .field("resources", &self.resources)
            .field("open", &self.open)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}
