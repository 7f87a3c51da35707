// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receive queue that a driver provides: that of a QP, or a shared one.
#![expect(unsafe_code)]
// UNSAFETY: declares the contracts of posting, which are about the memory that a receive names.

use super::error::{BadWr, PostError};
use super::wire::WireSge;
use crate::errno::Errno;
use crate::wr::RecvWr;

/// A driver's receive queue engine, of a QP or shared. No lock; see [`Locked`](crate::sync::Locked).
pub trait RecvQueue: Send + core::fmt::Debug {
    /// The driver's scatter/gather entry.
    type Sge: WireSge;
    /// An open batch.
    type Batch<'q>: RecvBatch<Sge = Self::Sge>
    where
        Self: 'q;

    /// Opens a batch. Nothing is visible to the device before [`RecvBatch::complete`]; a drop aborts the batch.
    fn batch(&mut self) -> Self::Batch<'_>;

    /// Posts one receive: a batch of one.
    ///
    /// # Errors
    /// As [`RecvBatch::complete`].
    ///
    /// # Safety
    /// As [`RecvBatch::push`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Self::Sge]) -> Result<(), PostError> {
        let mut batch = self.batch();
        // SAFETY: the entries fulfil the contract of `push`, which is that of this function.
        unsafe { batch.push(wr_id, sges) };
        batch.complete()
    }

    /// `ibv_post_recv` and `ibv_post_srq_recv`: posts a list up to the first bad WR and names that one.
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason.
    ///
    /// # Safety
    /// - `list` is NULL or a NULL-terminated list of valid [`RecvWr`] with valid `sg_list`s.
    /// - Every entry's memory stays registered and alive, and is not accessed, until its WR is known to be complete.
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>>;

    /// Of a shared queue: the number of published receives that the device has not taken, and a position that changes when it
    /// takes one. `None` if the device does not show it.
    fn untaken(&self) -> Option<(u32, u32)> {
        None
    }

    /// The errno that the raw face reports. It depends on the driver if the C providers differ (`docs/src/reference/semantics.md`).
    #[must_use]
    fn errno(error: PostError) -> Errno {
        error.errno()
    }
}

/// Receives that are not published yet.
pub trait RecvBatch {
    /// The driver's scatter/gather entry.
    type Sge: WireSge;

    /// Adds one receive. An error latches and is reported by [`complete`](Self::complete).
    ///
    /// # Safety
    /// The memory that `sges` name stays registered and alive, and is not accessed, until this WR is known to be
    /// complete.
    ///
    /// If the QP that takes the receive was created with [`data_in_completions`](super::QpCreate::data_in_completions),
    /// the poll writes short messages to the entries' addresses. In this case they must be the addresses of the memory
    /// in this process, not those of a region with another address (`ibv_reg_mr_iova`, dma-buf, device memory).
    unsafe fn push(&mut self, wr_id: u64, sges: &[Self::Sge]);

    /// Makes the whole batch visible, or drops it and reports the first error.
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
