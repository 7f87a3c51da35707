// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a shared receive queue's poster and the pollers of its completions share: elements complete in any order and to
//! several CQs.
//!
//! There is no locked instruction on either side. An element is completed by one poller at a time, which stores
//! that in its record; the poster, who alone links elements, finds it there. A poller also marks the element's group,
//! which spares the poster a look at every record. A mark is a hint: the memory model allows that one of two pollers'
//! marks hides the other's element, so the poster looks at one more group each time, in turns.

use crate::cq::UserIndex;
use crate::memory::{StrideRing, Table};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What is noted of an element.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct SrqRecord {
    /// The WR's.
    pub(crate) wr_id: AtomicU64,
    /// The count of receives with which the element is published. Known when the element is linked, because elements are
    /// posted in the order of the list. Only the poster writes it.
    pub(crate) posted_as: AtomicU64,
    /// The element that its link names, as written to the ring. For the poster alone.
    pub(crate) next: AtomicU32,
    /// Not 0 once the element is done, until it is linked again.
    done: AtomicU32,
}

impl SrqRecord {
    /// Whether the element is done and was not linked since, by a poster that has published `head` receives. An element
    /// that is in the list is not free, whatever a device says.
    #[inline(always)]
    pub(crate) fn is_free(&self, head: u64) -> bool {
        // Acquire: pairs with `SrqShared::retire`.
        self.done.load(Ordering::Acquire) != 0 && self.posted_as.load(Ordering::Relaxed) <= head
    }

    /// The poster has linked the element, which will be published with `count` receives.
    #[inline(always)]
    pub(crate) fn set_linked(&self, count: u64) {
        self.posted_as.store(count, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }
}

/// Elements of a group.
const GROUP: u32 = 64;

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
    pub(crate) records: Table<SrqRecord>,
    /// Not 0 for a group of elements of which one may be done.
    marks: Table<AtomicU8>,
    /// Whether a QP that takes receives from here lets the device put short data into completions.
    data_in_completions: AtomicBool,
    published: PosterLine,
}

/// How many receives the device was told of: the poster's own count. The doorbell record has 16 bits of it, and the device can
/// write there. In a cache line that no poller writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PosterLine(AtomicU64);

impl SrqShared {
    /// A queue whose list has `slots` elements, a power of two up to 2^16 that the ring has.
    #[must_use]
    pub fn new(srqn: u32, ring: StrideRing, slots: u32) -> Option<Self> {
        if !slots.is_power_of_two() || slots > 1 << 16 || slots - 1 > ring.mask() {
            return None;
        }
        let records = Table::<SrqRecord>::new(slots);
        // A list in the order of the indices.
        for (i, record) in (0..).zip(records.iter()) {
            record.next.store((i + 1) & (slots - 1), Ordering::Relaxed);
            record.set_linked(u64::from(i) + 1);
        }
        Some(Self {
            srqn,
            index: None,
            ring,
            slots,
            records,
            marks: Table::new(slots.div_ceil(GROUP)),
            data_in_completions: AtomicBool::new(false),
            published: PosterLine::default(),
        })
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

    /// From now on the device may put short data of receives from here into completions.
    pub(crate) fn allow_data_in_completions(&self) {
        self.data_in_completions.store(true, Ordering::Relaxed);
    }

    /// Whether it may.
    pub(crate) fn data_in_completions(&self) -> bool {
        self.data_in_completions.load(Ordering::Relaxed)
    }

    /// Notes what the device is about to be told.
    #[inline(always)]
    pub(crate) fn set_published(&self, head: u64) {
        self.published.0.store(head, Ordering::Relaxed);
    }

    /// Whether the receive at `wqe_counter` was shown to the device and is not done. For any poller; two that are told of
    /// the same element at the same time, by two CQs, both get `true`.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let record = self.records.get(wqe_counter.into());
        // Relaxed: an entry of the device is read before, and the device was told after these were stored.
        record.posted_as.load(Ordering::Relaxed) <= self.published.0.load(Ordering::Relaxed)
            && record.done.load(Ordering::Relaxed) == 0
    }

    /// The receive at `wqe_counter` is done: its `wr_id`. For any poller, also several at once, and for the control path.
    #[inline(always)]
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        let at = u32::from(wqe_counter);
        let record = self.records.get(at);
        let wr_id = record.wr_id.load(Ordering::Relaxed);
        // Release: pairs with `is_free`, so the poster reuses the element after this load.
        record.done.store(1, Ordering::Release);
        self.marks.get(at / GROUP).store(1, Ordering::Release);
        wr_id
    }

    /// Whether an element is done and not linked since.
    #[cfg(test)]
    pub(crate) fn is_done(&self, element: u32) -> bool {
        self.records.get(element).done.load(Ordering::Acquire) != 0
    }

    /// Groups of elements.
    pub(crate) fn groups(&self) -> u32 {
        self.slots.div_ceil(GROUP)
    }

    /// Gives the elements of the groups that are marked, and of one more, and takes the marks away; for the poster.
    pub(crate) fn candidates(&self, one_more: u32, mut f: impl FnMut(u32)) {
        for (group, mark) in (0..).zip(self.marks.iter()) {
            // Acquire: pairs with `retire`. A mark that comes after this is found the next time.
            if mark.load(Ordering::Relaxed) != 0 && mark.swap(0, Ordering::Acquire) != 0 || group == one_more
            {
                let first = group * GROUP;
                (first..(first + GROUP).min(self.slots)).for_each(&mut f);
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
    fn done_elements_are_in_marked_groups() {
        let ring = StrideRing::new(QueueBuf::new(256 * 32).unwrap(), 0, 256, 32).unwrap();
        let srq = SrqShared::new(1, ring, 256).unwrap();
        [70, 3, 3, 127].into_iter().for_each(|i| _ = srq.retire(i));
        let done = |one_more| {
            let (mut done, mut of) = (Vec::new(), 0);
            srq.candidates(one_more, |i| {
                of += 1;
                done.extend(srq.is_done(i).then_some(i));
            });
            (done, of)
        };
        assert_eq!(done(u32::MAX), (vec![3, 70, 127], 128));
        assert_eq!(done(u32::MAX), (vec![], 0));
        assert_eq!(done(1), (vec![70, 127], 64));
    }

    #[test]
    fn outstanding_is_what_was_published_and_is_not_done() {
        let ring = StrideRing::new(QueueBuf::new(8 * 32).unwrap(), 0, 8, 32).unwrap();
        let srq = SrqShared::new(1, ring, 8).unwrap();
        assert!(!srq.is_outstanding(0));
        srq.set_published(2);
        assert!(srq.is_outstanding(0) && srq.is_outstanding(1) && !srq.is_outstanding(2));
        srq.retire(1);
        assert!(srq.is_outstanding(0) && !srq.is_outstanding(1));
    }
}
