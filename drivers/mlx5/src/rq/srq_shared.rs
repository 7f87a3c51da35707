// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a shared receive queue's poster and the pollers of its completions share: elements complete in any order and to
//! several CQs, so pollers set a bit per completed element.

use crate::cq::UserIndex;
use crate::memory::dbrec::DbWord;
use crate::memory::{StrideRing, Table};
use crate::qp::Published;
use std::sync::Arc;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqShared {
    /// Its number, 24 bits.
    pub srqn: u32,
    /// Of an SRQ that completions name themselves (XRC), with `cqe_version` 1.
    index: Option<UserIndex>,
    /// The WQEs. There may be more than [`slots`](Self::slots): the rest is the device's.
    pub ring: StrideRing,
    slots: u32,
    pub(crate) wr_id: Arc<Table<AtomicU64>>,
    /// A bit per element that is done and not linked again.
    free: Box<[AtomicU64]>,
    /// The doorbell record's count from which on each element is posted.
    posted_as: Table<AtomicU32>,
    /// Whether a QP that takes receives from here lets the device put short data into completions.
    data_in_completions: AtomicBool,
    published: Published,
}

/// Added to a count: as far ahead of it as can be.
const NOT_POSTED: u32 = 1 << 31;

impl SrqShared {
    /// A queue whose list has `slots` elements, a power of two up to 2^16 that the ring has.
    #[must_use]
    pub fn new(srqn: u32, ring: StrideRing, slots: u32) -> Option<Self> {
        if !slots.is_power_of_two() || slots > 1 << 16 || slots - 1 > ring.mask() {
            return None;
        }
        let free = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let posted_as = Table::new(slots);
        posted_as.iter().for_each(|count: &AtomicU32| count.store(NOT_POSTED, Ordering::Relaxed));
        Some(Self {
            srqn,
            index: None,
            ring,
            slots,
            wr_id: Arc::new(Table::new(slots)),
            free,
            posted_as,
            data_in_completions: AtomicBool::new(false),
            published: Published::default(),
        })
    }

    /// Names the word by which the device is told what was posted.
    pub fn published_by(&self, record: DbWord) {
        self.published.set(record);
    }

    /// From now on the device may put short data of receives from here into completions.
    pub(crate) fn allow_data_in_completions(&self) {
        self.data_in_completions.store(true, Ordering::Relaxed);
    }

    /// Whether it may.
    pub(crate) fn data_in_completions(&self) -> bool {
        self.data_in_completions.load(Ordering::Relaxed)
    }

    /// Notes the count by which the device will be told of an element.
    #[inline(always)]
    pub fn set_posted_as(&self, element: u32, count: u32) {
        self.posted_as.get(element).store(count, Ordering::Relaxed);
    }

    /// Whether the receive at `wqe_counter` was shown to the device and is not done. For any poller; two that are told of
    /// the same element at the same time, by two CQs, both get `true`.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let (Some(posted), at) = (self.published.count(), u32::from(wqe_counter) & (self.slots - 1)) else {
            return false;
        };
        let Some(word) = self.free.get((at / 64) as usize) else { return false };
        // Acquire: pairs with `take`. An element that is linked again is not posted.
        word.load(Ordering::Acquire) >> (at % 64) & 1 == 0
            // Others may be posted and done any number of times while this one is out.
            && posted.wrapping_sub(self.posted_as.get(at).load(Ordering::Relaxed)).cast_signed() >= 0
    }

    /// The same with a user index, which is its own from now on.
    #[must_use]
    pub fn with_index(self, index: UserIndex) -> Self {
        Self { index: Some(index), ..self }
    }

    /// What completions name it by: its user index if it has one, else its number.
    #[must_use]
    pub fn uidx(&self) -> u32 {
        self.index.as_ref().map_or(self.srqn, UserIndex::get)
    }

    /// Elements of the list; one less can be posted.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether the list has such an element.
    #[inline(always)]
    pub(crate) fn has(&self, wqe_counter: u16) -> bool {
        u32::from(wqe_counter) < self.slots
    }

    /// The receive at `wqe_counter` is done: its `wr_id`. For any poller, also several at once.
    #[inline(always)]
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        let at = u32::from(wqe_counter) & (self.slots - 1);
        let wr_id = self.wr_id.get(at).load(Ordering::Relaxed);
        if let Some(word) = self.free.get((at / 64) as usize) {
            // Release: pairs with `take`, so the poster reuses the element after this load.
            word.fetch_or(1 << (at % 64), Ordering::Release);
        }
        wr_id
    }

    /// Takes the elements that are done, in the order of their indices.
    pub(crate) fn take(&self, mut f: impl FnMut(u32)) {
        for (i, word) in (0..).zip(&self.free) {
            let mut bits = word.load(Ordering::Relaxed);
            if bits == 0 {
                continue;
            }
            let not_posted = self.published.count().unwrap_or(0).wrapping_add(NOT_POSTED);
            let mut left = bits;
            while left != 0 {
                self.set_posted_as(i * 64 + left.trailing_zeros(), not_posted);
                left &= left - 1;
            }
            // Acquire: pairs with `retire`. Release: with `is_outstanding`, which sees what is above.
            word.fetch_and(!bits, Ordering::AcqRel);
            while bits != 0 {
                f(i * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::QueueBuf;

    #[test]
    fn srq_geometry_is_checked() {
        let ring = || StrideRing::new(QueueBuf::new(64 * 32).unwrap(), 0, 64, 32).unwrap();
        assert!(SrqShared::new(1, ring(), 32).is_some() && SrqShared::new(1, ring(), 64).is_some());
        assert!(SrqShared::new(1, ring(), 128).is_none() && SrqShared::new(1, ring(), 31).is_none());
        assert!(SrqShared::new(1, ring(), 0).is_none());
    }

    #[test]
    fn srq_elements_are_taken_once() {
        let ring = StrideRing::new(QueueBuf::new(256 * 32).unwrap(), 0, 256, 32).unwrap();
        let srq = SrqShared::new(1, ring, 128).unwrap();
        [70, 3, 3, 127, 128].into_iter().for_each(|i| _ = srq.retire(i));
        let take = || {
            let mut all = Vec::new();
            srq.take(|i| all.push(i));
            all
        };
        assert_eq!(take(), [0, 3, 70, 127]);
        assert!(take().is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::memory::QueueBuf;
    use loom::sync::Arc;
    use loom::thread;

    fn stride(count: u32) -> StrideRing {
        StrideRing::new(QueueBuf::new(4096).unwrap(), 0, count, 64).unwrap()
    }

    /// Two pollers free elements of a shared queue while the poster takes them: each is taken once, after its entry
    /// was read.
    #[test]
    fn shared_elements_are_freed_by_two_and_taken_once() {
        loom::model(|| {
            let srq = Arc::new(SrqShared::new(1, stride(4), 4).unwrap());
            (0..2).for_each(|i| srq.wr_id.get(i).store(10 + u64::from(i), Ordering::Relaxed));
            let pollers: Vec<_> = (0..2_u16)
                .map(|i| {
                    let srq = Arc::clone(&srq);
                    thread::spawn(move || assert_eq!(srq.retire(i), 10 + u64::from(i)))
                })
                .collect();
            let mut taken = 0;
            let mut take = || {
                srq.take(|i| {
                    taken |= 1 << i;
                    srq.wr_id.get(i).store(99, Ordering::Relaxed);
                });
            };
            take();
            pollers.into_iter().for_each(|t| t.join().unwrap());
            take();
            assert_eq!(taken, 3);
        });
    }
}
