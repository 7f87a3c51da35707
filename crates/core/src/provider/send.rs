// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue that a driver provides: batches of values, C's list, and the `wr_*` builder.
//!
//! All three use the driver's encoder. They differ in the location of the cursor (in the batch, or in the queue for a
//! builder session) and in the handling of errors: a batch and a session latch the first error and drop all WRs at
//! `complete`; a list stops at the bad WR and posts the WRs before it.
#![expect(unsafe_code)]
// UNSAFETY: declares the contracts of posting, which are about the memory that a WR names.

use super::error::{BadWr, PostError};
use super::inline::Inline;
use super::op::Op;
use super::wire::{WireRemote, WireSge};
use super::wr::{Head, Wr};
use crate::errno::Errno;
use crate::wr::{SendWr, Sge};

/// A driver's send queue engine. No lock; see [`Locked`](crate::sync::Locked).
pub trait SendQueue: Send + core::fmt::Debug {
    /// The driver's scatter/gather entry.
    type Sge: WireSge;
    /// The driver's remote address.
    type Remote: WireRemote;
    /// The driver's address handle data.
    type Ah: Send + Sync;
    /// An open batch.
    type Batch<'q>: SendBatch<Sge = Self::Sge, Remote = Self::Remote, Ah = Self::Ah>
    where
        Self: 'q;

    /// Opens a batch. Nothing is visible to the device before [`SendBatch::complete`]; a drop aborts the batch.
    fn batch(&mut self) -> Self::Batch<'_>;

    /// Posts one WR: a batch of one, for which a driver may have shorter code.
    ///
    /// # Errors
    /// As [`SendBatch::complete`].
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr: &Wr<'_, Self::Ah, Self::Sge, Self::Remote>) -> Result<(), PostError> {
        let mut batch = self.batch();
        // SAFETY: the WR fulfils the contract of `push`, which is that of this function.
        unsafe { batch.push(wr) };
        batch.complete()
    }

    /// `ibv_post_send`: posts a list up to the first bad WR and names that one. The WRs before it are posted.
    ///
    /// While a [builder](WrBuilder)'s session is open, nothing is posted, and the error is [`PostError::SessionOpen`].
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason.
    ///
    /// # Safety
    /// - `list` is NULL or a NULL-terminated list of valid [`SendWr`], whose `sg_list`, `ah`, `mw`, `mr` and `hdr` are
    ///   valid if the opcode and the counts use them; `ah` was created by this driver.
    /// - With `SEND_INLINE`, every entry's bytes are readable now.
    /// - Otherwise, every entry's memory stays registered and alive until its WR is known to be complete, and memory
    ///   that the device reads is not written, and memory that it writes is not accessed.
    /// - A bind fulfils the contract of [`SendBatch::push`].
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>>;

    /// The errno that the raw face reports. It depends on the driver if the C providers differ (`docs/src/reference/semantics.md`).
    #[must_use]
    fn errno(error: PostError) -> Errno {
        error.errno()
    }
}

/// WRs that are not published yet: they are written beyond the published producer index, and dropped unless completed.
pub trait SendBatch {
    /// The driver's scatter/gather entry.
    type Sge: WireSge;
    /// The driver's remote address.
    type Remote: WireRemote;
    /// The driver's address handle data.
    type Ah;

    /// Adds one WR. An error latches and is reported by [`complete`](Self::complete).
    ///
    /// # Safety
    /// If the WR names memory by scatter/gather entries: it stays registered and alive until this WR is known to be
    /// complete; until then memory that the device reads is not written, and memory that it writes is not accessed.
    /// (Inline data and operations without data, except a bind, have no requirement.)
    ///
    /// In two cases the CPU does a part of the device's work, at the entries' addresses. In these cases they must be
    /// the addresses of the memory in this process, not those of a region with another address (`ibv_reg_mr_iova`,
    /// dma-buf, device memory):
    /// - The first entries of a frame (a send of a raw packet QP), up to 18 bytes: if the device needs Ethernet headers
    ///   in the WQE, they are read during the call.
    /// - The entries of a read or an atomic of a QP that was created with
    ///   [`data_in_completions`](super::QpCreate::data_in_completions): the poll writes the data of the answer.
    ///
    /// From a bind ([`Op::BindMw`]) on, peers may access `bind.length` bytes from `bind.addr` with the rights `bind.access`,
    /// even if the region was registered without them: on hardware a window may be bound over any region of the domain. So
    /// until the WR is known to be complete, `bind.mr_lkey` is the key of a region to whose memory this process has no
    /// reference that forbids such accesses. (While a window is bound, the kernel does not deregister the region.) A bind of
    /// 0 bytes gives no access.
    unsafe fn push(&mut self, wr: &Wr<'_, Self::Ah, Self::Sge, Self::Remote>);

    /// Makes the whole batch visible and rings the doorbell, or drops it and reports the first error.
    ///
    /// # Errors
    /// The first error of a [`push`](Self::push), the ring is full, or the state of the queue does not allow posts.
    fn complete(self) -> Result<(), PostError>;

    /// Drops the batch.
    fn abort(self)
    where
        Self: Sized,
    {
    }
}

/// The `wr_*` builder API of ibv_wr_post(3), with the session's state in the queue.
///
/// Errors latch: after one, builders and setters do nothing, and [`wr_complete`](Self::wr_complete) reports the first.
pub trait WrBuilder: SendQueue {
    /// Opens a session. Inside an open one it latches [`PostError::SessionOpen`] there.
    fn wr_start(&mut self);

    /// Whether a session is open.
    fn wr_is_open(&self) -> bool;

    /// Begins a WR (`wr_send`, `wr_rdma_write`, ...); checks that the one before got all of its setters.
    ///
    /// # Safety
    /// A bind fulfils the contract of [`SendBatch::push`].
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_, Self::Remote>);

    /// `wr_set_ud_addr`
    fn wr_set_ud_addr(&mut self, ah: &Self::Ah, remote_qpn: u32, remote_qkey: u32);

    /// `wr_set_xrc_srqn`
    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32);

    /// `wr_set_sge`
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sge(&mut self, sge: Sge) {
        // SAFETY: the entry's memory fulfils the contract of `SendBatch::push`, which is also that of this function.
        unsafe { self.wr_set_sges(&[sge]) };
    }

    /// `wr_set_sge_list`
    ///
    /// # Safety
    /// As [`SendBatch::push`].
    unsafe fn wr_set_sges(&mut self, sges: &[Sge]);

    /// `wr_set_inline_data` and `wr_set_inline_data_list`.
    fn wr_set_inline(&mut self, data: Inline<'_>);

    /// Latches an error that was found above the driver (a NULL handle).
    fn wr_latch(&mut self, error: PostError);

    /// Ends the session: publishes all of its WRs and rings the doorbell, or publishes none.
    ///
    /// # Errors
    /// The first error of the session. No WR of it is posted then.
    fn wr_complete(&mut self) -> Result<(), PostError>;

    /// Ends the session and leaves the queue unchanged.
    fn wr_abort(&mut self);
}
