// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interfaces of both kinds of receive queue: single receives, batches, and C lists.
#![expect(unsafe_code)]
// UNSAFETY: implements the posting traits of the core, whose `unsafe fn` have a contract about the memory that WRs name,
// and dereferences the pointers of C lists.

use crate::wqe::{Sge, WireEntry};
use core::fmt;
use core::hint::cold_path;
use std::sync::Arc;
use uverbs_core::provider::raw::{Room, entry_from_c};
use uverbs_core::provider::{BadWr, PostError, RecvBatch, RecvQueue, list};
use uverbs_core::wr::{RecvWr, Sge as RawSge};

/// The producing side of a receive queue.
pub trait Produce: fmt::Debug + Send {
    /// The position of a batch.
    type Cursor: Copy + fmt::Debug;

    /// The maximum number of entries of a receive.
    fn max_sge(&self) -> u32;

    /// Begins a batch. [`reserve`](Self::reserve) and [`complete`](Self::complete) check whether posting is allowed.
    fn begin(&self) -> Self::Cursor;

    /// Whether the batch contains a receive.
    fn is_begun(&self, cursor: Self::Cursor) -> bool;

    /// Ensures that there is room for one more receive.
    fn reserve(&mut self, cursor: &mut Self::Cursor) -> Result<(), PostError>;

    /// The element of the batch's next receive.
    fn element(cursor: Self::Cursor) -> u32;

    /// Writes a receive of one entry at the cursor and moves the cursor. If the entry is not an ordinary one (see
    /// [`WireEntry::ordinary`]), returns `false` and changes nothing.
    fn put_one<S: WireEntry>(&self, cursor: &mut Self::Cursor, wr_id: u64, sge: S) -> bool;

    /// Writes a receive with any entries to an element.
    fn put_any<S: WireEntry>(&self, element: u32, wr_id: u64, sges: &[S]) -> Result<(), PostError>;

    /// Moves the cursor past a receive that was written by [`put_any`](Self::put_any).
    fn advance(&self, cursor: &mut Self::Cursor);

    /// Stores the first error of a batch. After that the batch has no room.
    fn latch(&mut self, cursor: &mut Self::Cursor, error: PostError);

    /// Ends a batch. Publishes it if it has no error.
    fn complete(&mut self, cursor: Self::Cursor) -> Result<(), PostError>;

    /// Posts a receive of one entry, with one check of the limit. If there is no room below the limit, or the entry is not
    /// an ordinary one, returns `false` and changes nothing.
    fn post_one<S: WireEntry>(&mut self, wr_id: u64, sge: S) -> bool;

    /// Posts one receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn post<S: WireEntry>(&mut self, wr_id: u64, sges: &[S]) -> Result<(), PostError> {
        if let [sge] = sges {
            if self.post_one(wr_id, *sge) {
                return Ok(());
            }
            cold_path();
            // codegen: address
            return self.post_any(wr_id, &[*sge]);
        }
        self.post_any(wr_id, sges)
    }

    /// Posts a receive with any entries.
    #[inline(never)]
    fn post_any<S: WireEntry>(&mut self, wr_id: u64, sges: &[S]) -> Result<(), PostError> {
        let mut cursor = self.begin();
        self.push(&mut cursor, wr_id, sges)?;
        self.complete(cursor)
    }

    /// Adds a receive to a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
            // codegen: address
            [one] => self.put_any(element, wr_id, &[*one])?,
            many => self.put_any(element, wr_id, many)?,
        }
        self.advance(cursor);
        Ok(())
    }

    /// Posts the receives of a list, up to the first one that can't be posted.
    ///
    /// # Safety
    /// `list` fulfils the contract of [`uverbs_core::provider::RecvQueue::post_recv`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post_list(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: the list is NULL or its first node is valid (the contract of `post_recv`).
        let Some(first) = (unsafe { list.as_ref() }) else {
            cold_path();
            return Err(BadWr { error: PostError::NullList, wr: core::ptr::null() });
        };
        if first.next.is_null()
            && first.num_sge == 1
            // SAFETY: `sg_list` is NULL or points to one valid entry (the contract of `post_recv`; `num_sge` is 1).
            && let Some(sge) = unsafe { entry_from_c(first.sg_list) }
            && self.post_one(first.wr_id, sge)
        {
            return Ok(());
        }
        // SAFETY: `list` fulfils the contract of `post_recv` (the contract of this function), and is not NULL.
        unsafe { self.post_any_list(list) }
    }

    /// [`post_list`](Self::post_list) for any list that is not NULL.
    ///
    /// # Safety
    /// `list` fulfils the contract of [`uverbs_core::provider::RecvQueue::post_recv`].
    #[inline(never)]
    unsafe fn post_any_list(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        let mut cursor = self.begin();
        let mut next = list;
        let mut result = Ok(());
        // SAFETY: each node is NULL or valid (the contract of `post_recv`).
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: the node is valid, so its `sg_list` is NULL or has `num_sge` valid entries (the contract of
            // `post_recv`).
            if let Err(error) = unsafe { self.push_wr(&mut cursor, wr) } {
                result = Err(BadWr { error, wr: next });
                break;
            }
            next = wr.next;
        }
        if self.is_begun(cursor) {
            // `complete` fails if the queue was reset in the meantime, or in a child of fork: none of the list is posted.
            self.complete(cursor).map_err(|error| BadWr { error, wr: list })?;
        }
        result
    }

    /// Adds a receive of a list to a batch.
    ///
    /// # Safety
    /// `wr.sg_list` is NULL or points to `wr.num_sge` valid entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push_wr(&mut self, cursor: &mut Self::Cursor, wr: &RecvWr) -> Result<(), PostError> {
        self.reserve(cursor)?;
        if wr.num_sge == 1
            // SAFETY: `sg_list` is NULL or points to one valid entry (the contract of this function; `num_sge` is 1).
            && let Some(sge) = unsafe { entry_from_c(wr.sg_list) }
            && self.put_one(cursor, wr.wr_id, sge)
        {
            return Ok(());
        }
        cold_path();
        let mut room = Room::new();
        // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
        let sges = unsafe { entries(wr, self.max_sge(), &mut room) }?;
        self.put_any(Self::element(*cursor), wr.wr_id, sges)?;
        self.advance(cursor);
        Ok(())
    }
}

/// The entries of a receive of a list.
///
/// # Safety
/// `wr.sg_list` is NULL or points to `wr.num_sge` valid entries.
#[inline(never)]
unsafe fn entries<'a>(wr: &RecvWr, max_sge: u32, room: &'a mut Room) -> Result<&'a [RawSge], PostError> {
    // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
    unsafe { list::entries(wr.sg_list, wr.num_sge, max_sge, room) }
}

/// A batch of receives.
#[derive(Debug)]
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, P: Produce> {
    cursor: P::Cursor,
    producer: &'q mut P,
}

/// A receive queue: its producing side, and the part that it shares with the pollers of its completions.
pub struct Queue<P, S> {
    pub(super) producer: P,
    pub(super) shared: Arc<S>,
}

impl<P, S> Queue<P, S> {
    /// The part that it shares with the pollers of its completions.
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

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> Batch<'_, P> {
        Batch { cursor: self.producer.begin(), producer: &mut self.producer }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.producer.post(wr_id, sges)
    }

    #[inline]
    unsafe fn post_recv(&mut self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv`, which this function implements.
        unsafe { self.producer.post_list(list) }
    }
}

impl<P: Produce> RecvBatch for Batch<'_, P> {
    type Sge = Sge;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        let Self { cursor, producer } = self;
        if let Err(error) = producer.push(cursor, wr_id, sges) {
            producer.latch(cursor, error);
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        self.producer.complete(self.cursor)
    }
}
