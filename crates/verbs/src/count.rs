// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a queue and a CQ count, for [`counters`](crate::counters). Without the feature `counters`, all of this is nothing.
//!
//! A number of the data path is changed by one thread at a time, the poster or the poller, which reads and stores it without a locked
//! instruction: on x86, `inc` of a word of memory. Other threads read it at any time. Numbers of failures are changed by any thread, by
//! locked instructions.
//!
//! What can be derived is not counted: the work requests of a batch are a difference of the slab's index, and those that are complete are
//! those that were posted without those that the slab has.

#[cfg(feature = "counters")]
pub(crate) use on::{Counts, CqCounts, CqTotals, PoolCounts};

#[cfg(not(feature = "counters"))]
pub(crate) use off::{Counts, CqCounts, PoolCounts};

#[cfg(feature = "counters")]
mod on {
    use crate::context::ContextInner;
    use crate::counters::{CqCounters, QueueCounters};
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;
    use uverbs_core::control::slab::Slab;
    use uverbs_core::provider::{Driver, PostError};
    use uverbs_core::sync::ProcessMutex;
    use uverbs_core::wc::WcStatus;

    /// A number that any thread reads.
    #[derive(Debug, Default)]
    pub(crate) struct Count(AtomicU64);

    impl Count {
        /// By the only thread that changes it. Release, so that a thread that reads the number of posts reads the slots that were
        /// filled before.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn add(&self, n: u64) {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
        }

        #[cfg_attr(not(debug_assertions), inline(always))]
        fn set(&self, n: u64) {
            self.0.store(n, Ordering::Relaxed);
        }

        /// By any thread. Release, as [`add`](Self::add).
        pub(crate) fn add_shared(&self, n: u64) {
            self.0.fetch_add(n, Ordering::Release);
        }

        pub(crate) fn get(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }
    }

    /// Completions with an error.
    #[derive(Debug, Default)]
    struct Failures {
        errors: Count,
        flushed: Count,
        rnr: Count,
    }

    impl Failures {
        fn add(&self, status: WcStatus) {
            match status {
                WcStatus::WR_FLUSH_ERR => self.flushed.add_shared(1),
                WcStatus::RNR_RETRY_EXC_ERR => self.rnr.add_shared(1),
                _ => {}
            }
            if status != WcStatus::WR_FLUSH_ERR {
                self.errors.add_shared(1);
            }
        }
    }

    /// Of a queue.
    #[derive(Debug, Default)]
    pub(crate) struct Counts {
        /// Posts of one work request that have succeeded.
        single: Count,
        /// Batches with work requests that have succeeded.
        batches: Count,
        /// Their work requests.
        batched: Count,
        /// Receives of the open batch. Only the poster uses it.
        pending: Count,
        full: Count,
        refused: Count,
        failures: Failures,
        /// Work requests that were taken back with the end of the queue, or of its life, and the greatest number of complete ones that was
        /// reported.
        ended: ProcessMutex<(u64, u64)>,
    }

    impl Counts {
        /// A post of one work request, by the only poster. It is counted before the driver has it, because there the queue is in a
        /// register.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn posts(&self) {
            self.single.add(1);
        }

        /// The driver has refused it: before it is [`refused`](Self::refused), and that before its slot is free.
        pub(crate) fn posts_not(&self) {
            self.single.add(1_u64.wrapping_neg());
        }

        /// A batch of `n` work requests, by the only poster.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn posted_batch(&self, n: impl FnOnce() -> u32) {
            let n = n();
            self.batched.add(n.into());
            self.batches.add((n != 0).into());
        }

        /// Begins a batch of [`pushed`](Self::pushed) work requests, by the only poster.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn begin(&self) {
            self.pending.set(0);
        }

        /// A work request of the open batch, by the only poster.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn pushed(&self) {
            self.pending.add(1);
        }

        /// The open batch of [`pushed`](Self::pushed) work requests, by the only poster.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn posted_pushed(&self) {
            let n = self.pending.get();
            self.batched.add(n);
            self.batches.add((n != 0).into());
        }

        /// Work requests that may run although the doorbell has failed, by the only poster.
        pub(crate) fn published(&self, n: u32) {
            self.batched.add(n.into());
        }

        /// As [`published`](Self::published), of the open batch of [`pushed`](Self::pushed) work requests.
        pub(crate) fn published_pushed(&self) {
            self.batched.add(self.pending.get());
        }

        /// A post, or a batch, that has failed.
        #[cold]
        #[inline(never)]
        pub(crate) fn refused(&self, reason: PostError) {
            match reason {
                PostError::QueueFull => self.full.add_shared(1),
                _ => self.refused.add_shared(1),
            }
        }

        /// A completion with an error.
        pub(crate) fn failed(&self, status: WcStatus) {
            self.failures.add(status);
        }

        /// Ends work requests, whose number `end` returns, without completions.
        pub(crate) fn end<R>(&self, end: impl FnOnce() -> (R, u64)) -> R {
            // A child of fork(2) may not have the lock. Its queues are the parent's.
            let ended = self.ended.lock();
            let (result, n) = end();
            if let Ok(mut ended) = ended {
                ended.0 += n;
            }
            result
        }

        /// The present values. `in_flight` counts what the slab has.
        pub(crate) fn read(&self, in_flight: impl FnOnce() -> u64) -> QueueCounters {
            let Self { single, batches, batched, full, refused, failures, ended, pending: _ } = self;
            let refusals = || full.get().wrapping_add(refused.get());
            let completed = |posts: u64, before: u64| {
                let mut ended = ended.lock().ok()?;
                // At most the true number: the slab may also have work requests that were posted since, or that are not posted. So the
                // greatest one is nearest, and the number never decreases. Except if a post that is in `posts` was refused since: then
                // its slot is free. It is a refusal before that.
                let now = posts.saturating_sub(in_flight()).saturating_sub(ended.0);
                if refusals() == before {
                    ended.1 = ended.1.max(now);
                }
                Some(ended.1)
            };
            let before = refusals();
            let (single, batched) = (single.get(), batched.get());
            let posts = single.wrapping_add(batched);
            QueueCounters {
                posts,
                doorbells: single.wrapping_add(batches.get()),
                completed: completed(posts, before).unwrap_or(0),
                full: full.get(),
                refused: refused.get(),
                errors: failures.errors.get(),
                flushed: failures.flushed.get(),
                rnr: failures.rnr.get(),
            }
        }
    }

    /// Of a CQ.
    #[derive(Debug, Default)]
    struct OfCq {
        completions: Count,
        errors: Count,
    }

    impl OfCq {
        fn read(&self) -> CqCounters {
            CqCounters { completions: self.completions.get(), errors: self.errors.get() }
        }
    }

    /// The CQs of a context.
    #[derive(Debug, Default)]
    struct List {
        /// Each with its number.
        cqs: Slab<(u64, Arc<OfCq>)>,
        /// The sums of those that were dropped.
        gone: CqCounters,
    }

    /// The CQs of a context, and those that were dropped.
    #[derive(Debug, Default)]
    pub(crate) struct CqTotals {
        list: ProcessMutex<List>,
    }

    impl CqTotals {
        /// Each CQ with its number, and the sums of those that were dropped; `None` in a child of fork(2) that does not have the lock.
        pub(crate) fn read(&self) -> Option<(Vec<(u64, CqCounters)>, CqCounters)> {
            let list = self.list.lock().ok()?;
            Some((list.cqs.iter().map(|(cq, counts)| (*cq, counts.read())).collect(), list.gone))
        }
    }

    /// The counts of a CQ, of its poller.
    #[derive(Clone, Debug)]
    pub(crate) struct CqCounts {
        counts: Arc<OfCq>,
        id: u64,
    }

    impl CqCounts {
        pub(crate) fn new<D: Driver>(context: &ContextInner<D>, cq: u64) -> Self {
            let counts = Arc::<OfCq>::default();
            let id =
                context.cq_totals().list.lock().map_or(0, |mut list| list.cqs.insert((cq, counts.clone())));
            Self { counts, id }
        }

        /// A completion of a work request, by the only poller.
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn completed(&self) {
            self.counts.completions.add(1);
        }

        /// One of them has an error.
        pub(crate) fn failed(&self) {
            self.counts.errors.add_shared(1);
        }

        pub(crate) fn read(&self) -> CqCounters {
            self.counts.read()
        }

        /// The end of the CQ: its counts stay in the sums of the context.
        pub(crate) fn close<D: Driver>(&self, context: &ContextInner<D>) {
            if let Ok(mut list) = context.cq_totals().list.lock()
                && list.cqs.remove(self.id).is_some()
            {
                list.gone.add(&self.counts.read());
            }
        }
    }

    /// Of a pool.
    #[derive(Debug, Default)]
    pub(crate) struct PoolCounts {
        empty: Count,
        waits: Count,
        timeouts: Count,
    }

    impl PoolCounts {
        /// No buffer for a call that does not wait.
        #[cold]
        pub(crate) fn empty(&self) {
            self.empty.add_shared(1);
        }

        /// One that waits.
        pub(crate) fn waits(&self) {
            self.waits.add_shared(1);
        }

        /// None in time.
        pub(crate) fn timeout(&self) {
            self.timeouts.add_shared(1);
        }

        /// Those of `empty`, `waits` and `timeout`.
        pub(crate) fn read(&self) -> [u64; 3] {
            [&self.empty, &self.waits, &self.timeouts].map(Count::get)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn counts_wrap_and_complete_ones_never_decrease() {
            let count = Count::default();
            count.add(u64::MAX);
            count.add(3);
            assert_eq!(count.get(), 2);

            let counts = Counts::default();
            counts.posts();
            counts.posted_batch(|| 3);
            counts.posted_batch(|| 0);
            let read = |in_flight| counts.read(|| in_flight);
            let now = read(1);
            assert_eq!((now.posts, now.doorbells, now.completed), (4, 2, 3));
            // An open batch has filled slots, too.
            assert_eq!(read(4).completed, 3);
            assert_eq!(counts.end(|| ("reset", 1)), "reset");
            assert_eq!(read(0).completed, 3);
        }

        #[test]
        fn a_post_that_is_refused_meanwhile_is_not_complete() {
            let counts = Counts::default();
            counts.posts();
            let refuse = || {
                counts.posts_not();
                counts.refused(PostError::BadState);
                0
            };
            assert_eq!(counts.read(refuse).completed, 0);
            let now = counts.read(|| 0);
            assert_eq!((now.posts, now.completed, now.refused), (0, 0, 1));
            counts.posts();
            assert_eq!(counts.read(|| 0).completed, 1);
        }

        #[test]
        fn only_what_was_posted_counts() {
            let counts = Counts::default();
            for n in [2, 0, 1] {
                counts.begin();
                (0..n).for_each(|_| counts.pushed());
                if n == 2 {
                    counts.refused(PostError::QueueFull);
                } else {
                    counts.posted_pushed();
                }
            }
            counts.refused(PostError::BadState);
            let now = counts.read(|| 0);
            assert_eq!((now.posts, now.doorbells, now.full, now.refused), (1, 1, 1, 1));
        }
    }
}

#[cfg(not(feature = "counters"))]
mod off {
    use crate::context::ContextInner;
    use uverbs_core::provider::{Driver, PostError};

    /// Declares functions that do nothing.
    macro_rules! nothing {
        ($type:ident { $($name:ident($($arg:ident: $ty:ty),*);)* }) => {
            #[derive(Clone, Debug, Default)]
            pub(crate) struct $type(());

            impl $type {
                $(
                    #[cfg_attr(not(debug_assertions), inline(always))]
                    pub(crate) fn $name(&self, $($arg: $ty),*) {
                        $(let _ = $arg;)*
                    }
                )*
            }
        };
    }

    nothing!(Counts {
        posts();
        posts_not();
        begin();
        pushed();
        posted_pushed();
        published(n: u32);
        published_pushed();
        refused(reason: PostError);
    });

    impl Counts {
        #[cfg_attr(not(debug_assertions), inline(always))]
        pub(crate) fn posted_batch(&self, _: impl FnOnce() -> u32) {}

        pub(crate) fn end<R>(&self, end: impl FnOnce() -> (R, u64)) -> R {
            end().0
        }
    }

    nothing!(CqCounts { completed(); });

    impl CqCounts {
        pub(crate) fn new<D: Driver>(_: &ContextInner<D>, _: u64) -> Self {
            Self(())
        }
    }

    nothing!(PoolCounts { empty(); waits(); timeout(); });
}
