// SPDX-License-Identifier: MIT OR Apache-2.0
//! The producing side of a ring: send queues, receive queues, shared receive queues.
//!
//! The producer keeps a private position ([`Progress`]) and passes it to the ring only to publish.
//!
//! WRs are written to slots that are not published, outside of any access that a control call waits for: what was written before
//! a reset is never published ([`Producer::publish`]).

use crate::format::{Format, PostRing};
use crate::shared::QpShared;
use std::sync::Arc;
use uverbs_core::kernel::{QueueAccess, state_word};
use uverbs_core::provider::PostError;
use uverbs_core::provider::batch::{Cursor, Progress};
use uverbs_core::provider::state::StateWord;

/// The differences between a send queue and a receive queue.
pub(crate) trait QueueKind<F: Format> {
    /// The ring.
    type Ring: PostRing;
    /// Whether WRs may be posted now.
    fn open(word: StateWord) -> bool;
    /// The access to this queue of a QP.
    fn access(shared: &QpShared<F>) -> &QueueAccess;
}

/// Send queues.
#[derive(Debug)]
pub(crate) enum Sends {}
impl<F: Format> QueueKind<F> for Sends {
    type Ring = F::SendRing;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn open(word: StateWord) -> bool {
        F::may_send(word)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn access(shared: &QpShared<F>) -> &QueueAccess {
        &shared.access().send
    }
}

/// Receive queues.
#[derive(Debug)]
pub(crate) enum Receives {}
impl<F: Format> QueueKind<F> for Receives {
    type Ring = F::RecvRing;
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn open(word: StateWord) -> bool {
        F::may_receive(word)
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn access(shared: &QpShared<F>) -> &QueueAccess {
        &shared.access().recv
    }
}

/// A ring and this side's view of it.
#[derive(Debug)]
pub(crate) struct Producer<F: Format, K: QueueKind<F>> {
    ring: K::Ring,
    progress: Progress,
    pub(crate) shared: Arc<QpShared<F>>,
    /// The kernel reads another ring by now.
    lost: bool,
}

impl<F: Format, K: QueueKind<F>> Producer<F, K> {
    /// Uses a ring from its current positions on.
    pub(crate) fn new(ring: K::Ring, shared: Arc<QpShared<F>>) -> Result<Self, PostError> {
        let progress = Progress::new(ring.start(0)?);
        Ok(Self { ring, progress, shared, lost: false })
    }

    /// The ring in use.
    pub(crate) fn ring(&self) -> &K::Ring {
        &self.ring
    }

    /// The number of published WRs that the kernel has not taken, and a position that changes when it takes one.
    pub(crate) fn untaken(&self) -> (u32, u32) {
        self.ring.untaken(self.progress.published)
    }

    /// Replaces the ring by the one to which the kernel moved its elements. If that ring makes no sense, nothing changes.
    pub(crate) fn replace_ring(&mut self, ring: K::Ring) -> Result<(), PostError> {
        self.progress.set_to(ring.start(0)?);
        (self.ring, self.lost) = (ring, false);
        Ok(())
    }

    /// Refuses all later posts: the kernel uses a ring that could not be mapped.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        self.progress.forget_state();
    }

    /// Begins a batch.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn begin(&mut self) -> Cursor {
        let Self { ring, progress, shared, lost, .. } = self;
        // The state of a queue that is lost does not matter, but in a child of fork.
        let may = |word: StateWord| K::open(word) || *lost && !word.is_forked();
        // A reset empties the ring, and the kernel may continue anywhere.
        let start = |published| if *lost { Err(PostError::Corrupt) } else { ring.start(published) };
        let begun = progress.begin(state_word(K::access(shared)), may, start);
        Cursor::begin(progress, begun)
    }

    /// Makes sure that there is room at the cursor. Asks the ring if the queue seems full.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn room(&mut self, cursor: &mut Cursor) -> Result<(), PostError> {
        cursor.room(&mut self.progress, |published, at| self.ring.room(published, at))
    }

    /// The slot at the cursor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot(&mut self, cursor: &mut Cursor) -> Result<<K::Ring as PostRing>::Slot<'_>, PostError> {
        self.room(cursor)?;
        Ok(self.ring.slot(cursor.at))
    }

    /// The slot at a position that is not published: one that a cursor has passed.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn slot_at(&mut self, at: u32) -> <K::Ring as PostRing>::Slot<'_> {
        self.ring.slot(at)
    }

    /// Makes everything before the cursor visible to the kernel, if there was no error, the state still allows it and no reset came since
    /// the batch began. `prepare` is called before that, with the ring and the shared part, and may refuse; `notify` after that,
    /// with the state.
    ///
    /// All of this is one access to the queue: a control call that closes the queue waits for its end, so a post that
    /// began before can't undo what the control call does to the ring.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn publish(
        &mut self,
        cursor: &Cursor,
        prepare: impl FnOnce(&mut K::Ring, &QpShared<F>) -> Result<(), PostError>,
        notify: impl FnOnce(StateWord) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        cursor.result()?;
        let Self { ring, progress, shared, .. } = self;
        let access = K::access(shared);
        let _inside = access.inside();
        let word = state_word(access);
        progress.check(word, K::open)?;
        if cursor.at == progress.published {
            return Ok(());
        }
        prepare(ring, shared)?;
        ring.publish(progress.published, cursor.at);
        progress.published = cursor.at;
        notify(word)
    }
}
