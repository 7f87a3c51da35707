// SPDX-License-Identifier: MIT OR Apache-2.0
//! The faces of a receive queue of either kind: one receive, a batch, and C's list.
#![expect(unsafe_code)]
// UNSAFETY: implements the posting traits of the core, whose `unsafe fn` carry a promise about the memory that WRs name, and
// walks C's lists.

use crate::wqe::{Sge, WireEntry};
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::provider::raw::slice_from_c;
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue};
use uverbs_core::wr::{RecvWr, Sge as RawSge};

/// The producing side of a receive queue.
pub trait Produce: fmt::Debug + Send {
    /// Where a batch writes.
    type Cursor: Copy + fmt::Debug;

    /// Entries of a receive.
    fn max_sge(&self) -> u32;

    /// Begins a batch. Whether posting is allowed at all, [`reserve`](Self::reserve) and [`complete`](Self::complete) say.
    fn begin(&self) -> Self::Cursor;

    /// Whether the batch has written something.
    fn is_begun(&self, cursor: Self::Cursor) -> bool;

    /// Makes sure that there is room for one more receive.
    fn reserve(&mut self, cursor: &mut Self::Cursor) -> Result<(), PostError>;

    /// The element where the batch writes next.
    fn element(cursor: Self::Cursor) -> u32;

    /// Writes a receive of one entry at the cursor and moves the cursor on. `false` if it is an entry that needs a closer
    /// look; then nothing is done.
    fn put_one<S: WireEntry>(&self, cursor: &mut Self::Cursor, wr_id: u64, sge: S) -> bool;

    /// Writes a receive of any entries to an element.
    fn put_any<S: WireEntry>(&self, element: u32, wr_id: u64, sges: &[S]) -> Result<(), PostError>;

    /// Moves the cursor on, over a receive that was written.
    fn advance(&self, cursor: &mut Self::Cursor);

    /// Notes the first error of a batch, after which there is no room for anything.
    fn latch(&mut self, cursor: &mut Self::Cursor, error: PostError);

    /// Ends a batch and publishes it, unless there was an error.
    fn complete(&mut self, cursor: Self::Cursor) -> Result<(), PostError>;

    /// Posts a receive of one entry: a batch of one, with one check of the limit. `false` if that needs a closer look; then
    /// nothing is done.
    fn post_one<S: WireEntry>(&mut self, wr_id: u64, sge: S) -> bool;

    /// Posts one receive.
    #[inline(always)]
    fn post<S: WireEntry>(&mut self, wr_id: u64, sges: &[S]) -> Result<(), PostError> {
        if let [sge] = sges {
            if self.post_one(wr_id, *sge) {
                return Ok(());
            }
            cold_path();
            // An entry whose address is lent out would be kept out of the registers; so a copy's is.
            return self.post_any(wr_id, &[*sge]);
        }
        self.post_any(wr_id, sges)
    }

    /// The same of any receive.
    #[inline(never)]
    fn post_any<S: WireEntry>(&mut self, wr_id: u64, sges: &[S]) -> Result<(), PostError> {
        let mut cursor = self.begin();
        self.push(&mut cursor, wr_id, sges)?;
        self.complete(cursor)
    }

    /// Adds a receive to a batch.
    #[inline(always)]
    fn push<S: WireEntry>(
        &mut self,
        cursor: &mut Self::Cursor,
        wr_id: u64,
        sges: &[S],
    ) -> Result<(), PostError> {
        self.reserve(cursor)?;
        let element = Self::element(*cursor);
        match sges {
            [one] if self.put_one(cursor, wr_id, *one) => return Ok(()),
            // An entry whose address is lent out would be kept out of the registers; so a copy's is.
            [one] => self.put_any(element, wr_id, &[*one])?,
            many => self.put_any(element, wr_id, many)?,
        }
        self.advance(cursor);
        Ok(())
    }

    /// Posts a list of receives to the first that can't be posted.
    ///
    /// # Safety
    /// As [`uverbs_core::provider::RecvQueue::post_recv`].
    #[inline(always)]
    unsafe fn post_list(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        if list.is_null() {
            return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
        }
        let mut cursor = self.begin();
        let mut next = list;
        let mut result = Ok(());
        // SAFETY: each node is NULL or valid, by the caller's promise.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: the caller's promise.
            if let Err(error) = unsafe { self.push_wr(&mut cursor, wr) } {
                result = Err(BadWr { error, wr: next });
                break;
            }
            next = wr.next;
        }
        if self.is_begun(cursor) {
            // The queue was reset meanwhile, or this is the child of a fork: then none of the list is posted.
            self.complete(cursor).map_err(|error| BadWr { error, wr: list })?;
        }
        result
    }

    /// Adds a receive of a list.
    ///
    /// # Safety
    /// `sg_list` is NULL or has as many valid entries as `num_sge` says.
    #[inline(always)]
    unsafe fn push_wr(&mut self, cursor: &mut Self::Cursor, wr: &RecvWr) -> Result<(), PostError> {
        self.reserve(cursor)?;
        if wr.num_sge == 1
            // SAFETY: the caller's promise.
            && let Some(sge) = unsafe { wr.sg_list.as_ref() }
            && self.put_one(cursor, wr.wr_id, *sge)
        {
            return Ok(());
        }
        cold_path();
        // SAFETY: the caller's promise.
        let sges = unsafe { entries(wr, self.max_sge()) }?;
        self.put_any(Self::element(*cursor), wr.wr_id, sges)?;
        self.advance(cursor);
        Ok(())
    }
}

/// The entries of a receive of a list.
///
/// # Safety
/// `sg_list` is NULL or has as many valid entries as `num_sge` says.
#[inline(never)]
unsafe fn entries(wr: &RecvWr, max_sge: u32) -> Result<&[RawSge], PostError> {
    match usize::try_from(wr.num_sge) {
        Ok(num) if num <= max_sge as usize => {
            // SAFETY: the caller's promise.
            unsafe { slice_from_c(wr.sg_list, num) }.ok_or(PostError::InvalidArgument)
        }
        _ => Err(PostError::TooManySge),
    }
}

/// Receives on their way.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, P: Produce> {
    cursor: P::Cursor,
    producer: &'q mut P,
}

/// A receive queue: its producing side, and what it shares with the pollers of its completions.
pub struct Queue<P, S> {
    pub(super) producer: P,
    pub(super) shared: Arc<S>,
}

impl<P, S> Queue<P, S> {
    /// What it shares with the pollers of its completions.
    #[must_use]
    pub fn shared(&self) -> &Arc<S> {
        &self.shared
    }
}

impl<P: Produce, S: Send + Sync> RecvQueue for Queue<P, S>
where
    Self: fmt::Debug,
{
    type Sge = Sge;
    type Batch<'q>
        = Batch<'q, P>
    where
        Self: 'q;

    #[inline(always)]
    fn batch(&mut self) -> Batch<'_, P> {
        Batch { cursor: self.producer.begin(), producer: &mut self.producer }
    }

    #[inline(always)]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.producer.post(wr_id, sges)
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: the caller's promise.
        unsafe { self.producer.post_list(list) }
    }
}

impl<P: Produce> RecvBatch for Batch<'_, P> {
    type Sge = Sge;

    #[inline(always)]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        let Self { cursor, producer } = self;
        if let Err(error) = producer.push(cursor, wr_id, sges) {
            producer.latch(cursor, error);
        }
    }

    #[inline(always)]
    fn complete(self) -> Result<(), PostError> {
        self.producer.complete(self.cursor)
    }
}
