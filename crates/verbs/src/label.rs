// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name of a queue in errors and in the log.
//!
//! The drivers' errors do not have it. A post adds it when it has failed, so a post that succeeds does nothing for it.

use core::sync::atomic::{AtomicBool, Ordering};
use uverbs_core::provider::{PostError, QueueError, QueueKind, QueueName};

/// The name of a queue, and whether its user was warned.
#[derive(Debug)]
pub(crate) struct Label {
    name: QueueName,
    warned: AtomicBool,
}

impl Label {
    pub(crate) const fn new(kind: QueueKind, number: u32, depth: u32) -> Self {
        Self { name: QueueName::new(kind, number, depth), warned: AtomicBool::new(false) }
    }

    pub(crate) const fn name(&self) -> QueueName {
        self.name
    }

    /// The error with the name of the queue.
    #[cold]
    #[inline(never)]
    pub(crate) fn error(&self, reason: PostError) -> QueueError {
        QueueError::new(reason, self.name)
    }

    /// The error of a result.
    #[inline(always)]
    pub(crate) fn check(&self, result: Result<(), PostError>) -> Result<(), QueueError> {
        match result {
            Ok(()) => Ok(()),
            Err(reason) => Err(self.error(reason)),
        }
    }

    /// A batch with work requests was dropped: logs it, once for each queue. A thread that panics drops what it has.
    #[cold]
    #[inline(never)]
    pub(crate) fn dropped(&self) {
        if std::thread::panicking() || self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let (verb, queue) = (self.name.verb(), self.name);
        log::warn!(
            "{verb}({queue}): a batch with work requests was dropped without `complete` or `abort`: none was posted"
        );
    }
}

/// In an open batch: reports its drop.
#[derive(Debug)]
pub(crate) struct Unposted<'q> {
    pub(crate) label: &'q Label,
    /// Whether it has a work request.
    pub(crate) any: bool,
}

impl<'q> Unposted<'q> {
    #[inline(always)]
    pub(crate) fn new(label: &'q Label) -> Self {
        Self { label, any: false }
    }

    /// The batch has ended by a call.
    #[inline(always)]
    pub(crate) fn end(self) -> &'q Label {
        let label = self.label;
        core::mem::forget(self);
        label
    }
}

impl Drop for Unposted<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.any {
            self.label.dropped();
        }
    }
}
