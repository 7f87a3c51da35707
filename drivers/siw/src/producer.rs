// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a ring: send queues, receive queues, shared receive queues.
//!
//! The kernel takes elements in order and clears the flags of each one that it has taken. An element that it may see has
//! flags, so work requests are written without them; their flags are kept beside the ring until the batch is published. The
//! flags are then stored from the last element to the first: the kernel stops at the first one, so it finds the whole batch
//! or nothing of it.

use crate::queue::{Ring, Slot, Work};
use crate::shared::{QpShared, is_open};
use std::sync::Arc;
use uverbs_core::kernel::{QueueAccess, state_word};
use uverbs_core::provider::PostError;
use uverbs_core::provider::state::StateWord;

/// The position at which a batch writes: beyond the published position, so the kernel does not see the work requests
/// before they are published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The next element, counted without end.
    pub(crate) at: u32,
    /// The first error.
    error: Option<PostError>,
}

impl Cursor {
    /// The cursor of a batch that failed before it began.
    pub(crate) const fn failed(error: PostError) -> Self {
        Self { at: 0, error: Some(error) }
    }

    /// Records the first error, after which there is no room.
    #[cold]
    pub(crate) fn latch(&mut self, error: PostError) {
        if self.error.is_none() {
            self.error = Some(error);
        }
    }

    /// The latched error.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }
}

/// The differences between a send queue and a receive queue.
pub(crate) trait QueueKind {
    /// The access to this queue of a QP.
    fn access(shared: &QpShared) -> &QueueAccess;
}

/// Send queues.
#[derive(Debug)]
pub(crate) enum Sends {}
impl QueueKind for Sends {
    fn access(shared: &QpShared) -> &QueueAccess {
        &shared.access.send
    }
}

/// Receive queues.
#[derive(Debug)]
pub(crate) enum Receives {}
impl QueueKind for Receives {
    fn access(shared: &QpShared) -> &QueueAccess {
        &shared.access.recv
    }
}

/// The error if work requests may not be posted.
#[cold]
fn closed(word: StateWord) -> PostError {
    if word.is_forked() { PostError::Forked } else { PostError::BadState }
}

/// A ring and this side's view of it.
#[derive(Debug)]
pub(crate) struct Producer<E, S> {
    ring: Ring<E>,
    /// The flags of elements that are not published.
    flags: Box<[u16]>,
    /// The number of elements that were published.
    published: u32,
    pub(crate) shared: Arc<QpShared>,
    _kind: core::marker::PhantomData<fn(S)>,
}

impl<E: Work, S: QueueKind> Producer<E, S> {
    /// Uses a new ring.
    pub(crate) fn new(ring: Ring<E>, shared: Arc<QpShared>) -> Self {
        let flags = vec![0; ring.slots() as usize].into_boxed_slice();
        Self { ring, flags, published: 0, shared, _kind: core::marker::PhantomData }
    }

    /// The number of published elements that the kernel has not taken, and the position of the first one. The kernel takes
    /// elements in order, so they are the last ones.
    pub(crate) fn untaken(&self) -> (u32, u32) {
        let is_waiting = |n: &u32| !self.ring.is_free(self.published.wrapping_sub(n + 1));
        let count = (0..self.ring.slots()).take_while(is_waiting).count() as u32;
        (count, self.published.wrapping_sub(count))
    }

    /// The ring in use.
    pub(crate) fn ring(&self) -> &Ring<E> {
        &self.ring
    }

    /// Begins a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        let word = state_word(S::access(&self.shared));
        if !is_open(word) {
            return Cursor::failed(closed(word));
        }
        Cursor { at: self.published, error: None }
    }

    /// The element at the cursor, if the kernel has returned it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot(&mut self, cursor: &Cursor) -> Result<Slot<'_, E>, PostError> {
        if let Some(error) = cursor.error {
            return Err(error);
        }
        if cursor.at.wrapping_sub(self.published) >= self.ring.slots() || !self.ring.is_free(cursor.at) {
            return Err(PostError::QueueFull);
        }
        Ok(self.ring.slot(cursor.at))
    }

    /// An element that is not published: one that a cursor has passed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot_at(&mut self, index: u32) -> Slot<'_, E> {
        self.ring.slot(index)
    }

    /// Sets the flags of an element that is not published.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn set_flags(&mut self, index: u32, flags: u16) {
        let place = self.ring.place(index);
        self.flags[place] = flags;
    }

    /// Passes everything before the cursor to the kernel, if the state still allows it. `prepare` is called before that, and
    /// `notify` after that.
    ///
    /// All of this is one access to the queue: a control call that closes the queue waits for its end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(
        &mut self,
        cursor: &Cursor,
        prepare: impl FnOnce(&QpShared) -> Result<(), PostError>,
        notify: impl FnOnce() -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let Self { ring, flags, published, shared, .. } = self;
        let access = S::access(shared);
        let _inside = access.inside();
        let word = state_word(access);
        if !is_open(word) {
            return Err(closed(word));
        }
        if cursor.at == *published {
            return Ok(());
        }
        prepare(shared)?;
        let mut at = cursor.at;
        while at != *published {
            at = at.wrapping_sub(1);
            ring.publish(at, flags[ring.place(at)]);
        }
        *published = cursor.at;
        notify()
    }
}
