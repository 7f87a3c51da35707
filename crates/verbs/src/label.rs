// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name of a queue in errors and in the log.
//!
//! The drivers' errors do not have it. A post adds it when it has failed, so a post that succeeds does nothing for it.

use crate::brief::brief;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::provider::{PostError, QueueError, QueueKind, QueueName};

/// The name of a queue, and whether its user was warned: in one word, because each queue has it.
pub(crate) struct Label {
    bits: AtomicU64,
}

/// The bit that no name has: the user was warned.
const WARNED: u64 = 1 << 63;

brief!([] Label, |this| "{:?}", this.name());

impl Label {
    pub(crate) const fn new(kind: QueueKind, number: u32, depth: u32) -> Self {
        Self { bits: AtomicU64::new(QueueName::new(kind, number, depth).bits()) }
    }

    pub(crate) fn name(&self) -> QueueName {
        QueueName::from_bits(self.bits.load(Ordering::Relaxed) & !WARNED)
    }

    /// The error with the name of the queue.
    #[cold]
    #[inline(never)]
    pub(crate) fn error(&self, reason: PostError) -> QueueError {
        QueueError::new(reason, self.name())
    }

    /// A batch with work requests was dropped: logs it, once for each queue. A thread that panics drops what it has.
    #[cold]
    #[inline(never)]
    pub(crate) fn dropped(&self) {
        if std::thread::panicking() || self.bits.fetch_or(WARNED, Ordering::Relaxed) & WARNED != 0 {
            return;
        }
        let (verb, queue) = (self.name().verb(), self.name());
        log::warn!(
            "{verb}({queue}): a batch with work requests was dropped without `complete` or `abort`: none was posted"
        );
    }
}

/// What has a label: itself, or the object of the queue. A post holds the reference and looks at it only when it has failed.
pub(crate) trait Labelled {
    fn label(&self) -> &Label;
}

/// The result of a post to the queue of `of`.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check<N: Labelled>(of: &N, result: Result<(), PostError>) -> Result<(), QueueError> {
    match result {
        Ok(()) => Ok(()),
        Err(reason) => Err(of.label().error(reason)),
    }
}

impl Labelled for Label {
    fn label(&self) -> &Label {
        self
    }
}

/// In an open batch: reports its drop.
#[derive(Debug)]
pub(crate) struct Unposted<'q, N: Labelled> {
    pub(crate) of: &'q N,
    /// Whether it has a work request.
    pub(crate) any: bool,
}

impl<'q, N: Labelled> Unposted<'q, N> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn new(of: &'q N) -> Self {
        Self { of, any: false }
    }

    /// The batch has ended by a call.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn end(self) -> &'q N {
        let of = self.of;
        core::mem::forget(self);
        of
    }
}

impl<N: Labelled> Drop for Unposted<'_, N> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        if self.any {
            self.of.label().dropped();
        }
    }
}
