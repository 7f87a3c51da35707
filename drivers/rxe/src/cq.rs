// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue: a ring that the kernel writes and this side reads.
//!
//! The kernel stores `struct ib_uverbs_wc` (`rxe_cq_post()`), so a completion's fields are read where they stand, when
//! they are asked for.

use crate::doorbell::ArmBell;
use crate::queue::{Entry, Ring};
use core::fmt;
use core::mem::offset_of;
use uverbs_core::kernel::Process;
use uverbs_core::provider::{
    Completion as CompletionTrait, CompletionQueue as CompletionQueueTrait, PollError,
};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_uapi::cmd::ib_uverbs_wc;

/// A completion queue, with `B` as the way to arm it.
pub struct CompletionQueue<B> {
    ring: Ring<ib_uverbs_wc>,
    /// The first completion that is not polled.
    at: u32,
    /// The kernel's index as last seen, always inside the ring.
    producer: u32,
    /// Where an open extended poll stands; `at` is where it began.
    open: Option<u32>,
    /// Whose ring this is: a child of fork(2) shares it with its parent, and must leave it alone.
    process: Process,
    /// The ring that the kernel writes could not be mapped after a resize.
    lost: bool,
    bell: B,
}

impl<B: ArmBell> CompletionQueue<B> {
    /// A queue on a ring of completions.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] if the ring's indices make no sense.
    pub fn new(ring: Ring<ib_uverbs_wc>, bell: B) -> Result<Self, PollError> {
        let mut queue =
            Self { ring, at: 0, producer: 0, open: None, process: Process::register(), lost: false, bell };
        queue.resync()?;
        Ok(queue)
    }

    /// The way to arm.
    pub fn bell(&self) -> &B {
        &self.bell
    }

    /// Whether an extended poll is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Exchanges the ring, after the kernel moved what was not polled to a new one.
    pub(crate) fn replace_ring(&mut self, ring: Ring<ib_uverbs_wc>) -> Result<(), PollError> {
        self.ring = ring;
        let result = self.resync();
        self.lost = result.is_err();
        result
    }

    /// The kernel moved to a ring that could not be mapped: what it completes can't be seen any more.
    pub(crate) fn lose_ring(&mut self) {
        self.lost = true;
        self.producer = self.at;
    }

    fn resync(&mut self) -> Result<(), PollError> {
        let (consumer, mask) = (self.ring.consumer(), self.ring.mask());
        if consumer > mask {
            return Err(PollError::Corrupt);
        }
        (self.at, self.producer) = (consumer, consumer);
        Ok(())
    }

    /// Whether a poll may begin.
    #[inline(always)]
    fn may_poll(&self) -> Result<(), PollError> {
        if self.open.is_some() {
            return Err(PollError::SessionOpen);
        }
        if !self.process.is_current() {
            return Err(PollError::Forked);
        }
        Ok(())
    }

    /// Looks at the kernel's index.
    #[inline(always)]
    fn look(&mut self) -> Result<(), PollError> {
        let producer = self.ring.producer();
        if producer > self.ring.mask() || self.lost {
            return Err(PollError::Corrupt);
        }
        self.producer = producer;
        Ok(())
    }

    /// Whether there is something at `at`; looks at the kernel's index only if there seems to be nothing.
    #[inline(always)]
    fn available(&mut self, at: u32) -> Result<bool, PollError> {
        if at == self.producer {
            self.look()?;
        }
        Ok(at != self.producer)
    }
}

/// Gives the polled slots back, also when a callback panics.
struct Release<'q, B> {
    queue: &'q mut CompletionQueue<B>,
    at: u32,
}

impl<B> Drop for Release<'_, B> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.at != self.queue.at {
            self.queue.at = self.at;
            self.queue.ring.publish_consumer(self.at);
        }
    }
}

impl<B: ArmBell> CompletionQueueTrait for CompletionQueue<B> {
    type Completion<'c>
        = Completion<'c>
    where
        Self: 'c;

    #[inline]
    fn poll_each(&mut self, max: usize, mut f: impl FnMut(&Completion<'_>)) -> Result<usize, PollError> {
        self.may_poll()?;
        let (mask, at) = (self.ring.mask(), self.at);
        let known = self.producer.wrapping_sub(at) & mask;
        if (known as usize) < max
            && let Err(e) = self.look()
            && known == 0
        {
            return Err(e);
        }
        // What was there when the call began; a kernel that never stops writing can't keep it here.
        let end = self.producer;
        let mut release = Release { queue: self, at };
        let mut n = 0;
        while n < max && release.at != end {
            let at = release.at;
            // Before the call: if `f` panics, this one counts as polled.
            release.at = (at + 1) & mask;
            n += 1;
            f(&Completion { entry: release.queue.ring.entry(at) });
        }
        Ok(n)
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        self.may_poll()?;
        if !self.available(self.at)? {
            return Err(PollError::Empty);
        }
        self.open = Some(self.at);
        Ok(())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        let Some(at) = self.open else { return Err(PollError::NoSession) };
        let next = (at + 1) & self.ring.mask();
        // The slots that this poll visited are not given back yet, so a producer that seems to have lapped them lies.
        if next == self.at || !self.available(next)? {
            return Err(PollError::Empty);
        }
        self.open = Some(next);
        Ok(())
    }

    #[inline]
    fn end_poll(&mut self) {
        if let Some(at) = self.open.take()
            && self.process.is_current()
        {
            self.at = (at + 1) & self.ring.mask();
            self.ring.publish_consumer(self.at);
        }
    }

    #[inline]
    fn current(&self) -> Option<Completion<'_>> {
        self.open.map(|at| Completion { entry: self.ring.entry(at) })
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        self.bell.arm(solicited_only).map_err(PollError::Arm)
    }

    fn cqe(&self) -> u32 {
        self.ring.capacity()
    }
}

impl<B: fmt::Debug> fmt::Debug for CompletionQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("ring", &self.ring)
            .field("open", &self.open)
            .field("lost", &self.lost)
            .field("bell", &self.bell)
            .finish_non_exhaustive()
    }
}

/// One completion, in the ring.
#[derive(Clone, Copy)]
pub struct Completion<'c> {
    entry: Entry<'c, ib_uverbs_wc>,
}

macro_rules! field {
    ($self:ident . $field:ident : $ty:ty) => {
        $self.entry.field::<{ offset_of!(ib_uverbs_wc, $field) }, $ty>()
    };
}

/// The kernel stores its own flags, not those of the verbs (`do_complete()` in rxe_resp.c): `IB_WC_GRH` and
/// `IB_WC_WITH_IMM` are the same, but `IB_WC_WITH_INVALIDATE` is bit 2, which in `enum ibv_wc_flags` says that
/// checksums are right, and bit 3 is the other way round. rxe checks none, so either bit can only be an invalidation.
/// (librxe hands the kernel's bits on.)
#[inline(always)]
const fn wc_flags(kernel: u32) -> WcFlags {
    const INVALIDATED: u32 = 1 << 2 | 1 << 3;
    let same = WcFlags::GRH.union(WcFlags::WITH_IMM).bits() & kernel;
    let inv = if kernel & INVALIDATED != 0 { WcFlags::WITH_INV.bits() } else { 0 };
    WcFlags::from_bits_retain(same | inv)
}

impl CompletionTrait for Completion<'_> {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        field!(self.wr_id: u64)
    }
    #[inline(always)]
    fn status(&self) -> WcStatus {
        WcStatus(field!(self.status: u32))
    }
    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        WcOpcode(field!(self.opcode: u32))
    }
    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        field!(self.vendor_err: u32)
    }
    #[inline(always)]
    fn byte_len(&self) -> u32 {
        field!(self.byte_len: u32)
    }
    #[inline(always)]
    fn qp_num(&self) -> u32 {
        field!(self.qp_num: u32)
    }
    #[inline(always)]
    fn src_qp(&self) -> u32 {
        field!(self.src_qp: u32)
    }
    #[inline(always)]
    fn wc_flags(&self) -> WcFlags {
        wc_flags(field!(self.wc_flags: u32))
    }
    #[inline(always)]
    fn imm_data_or_invalidated_rkey(&self) -> u32 {
        field!(self.imm_data: u32)
    }
    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        field!(self.pkey_index: u16)
    }
    #[inline(always)]
    fn slid(&self) -> u32 {
        field!(self.slid: u16).into()
    }
    #[inline(always)]
    fn sl(&self) -> u8 {
        field!(self.sl: u8)
    }
    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        field!(self.dlid_path_bits: u8)
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_wc().fmt(f)
    }
}
