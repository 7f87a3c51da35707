// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of a dispatcher (feature `counters`); those of its queues are [`uverbs::counters`].

use crate::sleeper::Readable;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs::CqCounters;

/// Of a dispatcher, since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherCounters {
    /// Polls of its CQ.
    pub polls: u64,
    /// Completions that they found.
    pub completions: u64,
    /// Those with an error.
    pub errors: u64,
    /// Sleeps of a thread or a task that ran it, until a descriptor was readable or a time was over.
    pub sleeps: u64,
    /// Sleeps that an event of the CQ has ended.
    pub cq_events: u64,
    /// Sleeps that another thread of the program has ended, which had work for the dispatcher.
    pub wakeups: u64,
}

/// What one that runs the dispatcher counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Changed with the lock of the CQ.
    polls: AtomicU64,
    sleeps: AtomicU64,
    cq_events: AtomicU64,
    wakeups: AtomicU64,
}

impl Counts {
    /// With the lock of the CQ.
    #[inline]
    pub(crate) fn polled(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// One begins.
    pub(crate) fn sleeps(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }

    /// One has ended.
    pub(crate) fn slept(&self, readable: Readable) {
        self.cq_events.fetch_add(readable.channel.into(), Ordering::Relaxed);
        self.wakeups.fetch_add(readable.wakeup.into(), Ordering::Relaxed);
    }

    pub(crate) fn read(&self, cq: &CqCounters) -> DispatcherCounters {
        let Self { polls, sleeps, cq_events, wakeups } = self;
        let [polls, sleeps, cq_events, wakeups] =
            [polls, sleeps, cq_events, wakeups].map(|count| count.load(Ordering::Relaxed));
        DispatcherCounters {
            polls,
            completions: cq.completions,
            errors: cq.errors,
            sleeps,
            cq_events,
            wakeups,
        }
    }
}
