// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a shared receive queue that its poster and the pollers of its completions share. Elements complete in any
//! order and to several CQs.
//!
//! Neither side uses a locked instruction. An element is completed by one poller, which stores a flag in the element's
//! record; only the poster links elements. A poller also marks the element's group, so that the poster need not read every
//! record. A mark is only a hint: the memory model allows the mark of one poller to hide the element of another one, so
//! each time the poster also checks one unmarked group, in turn.

use crate::memory::{StrideRing, Table};
use crate::shared::UserIndex;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The driver's record of an element.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct SrqRecord {
    /// The WR's `wr_id`.
    pub(crate) wr_id: AtomicU64,
    /// The number of receives with which the element is published. It is known when the element is linked, because elements
    /// are posted in the order of the list. Only the poster writes it.
    pub(crate) posted_as: AtomicU64,
    /// The element that the link names, as in the ring. Only the poster accesses it.
    pub(crate) next: AtomicU32,
    /// Not 0 from the element's completion until it is linked again.
    done: AtomicU32,
}

impl SrqRecord {
    /// Whether the element has completed and was not linked since, for a poster that has published `head` receives. An
    /// element in the list is never free, whatever the device reports.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_free(&self, head: u64) -> bool {
        // Acquire: pairs with `SrqShared::retire`.
        self.done.load(Ordering::Acquire) != 0 && self.posted_as.load(Ordering::Relaxed) <= head
    }

    /// To be called when the poster links the element, which will be published with `count` receives.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn set_linked(&self, count: u64) {
        self.posted_as.store(count, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }
}

/// Elements of a group.
const GROUP: u32 = 64;

/// The shared part of a shared receive queue.
#[derive(Debug)]
pub struct SrqShared {
    /// Its number, 24 bits.
    pub srqn: u32,
    /// The user index of an SRQ that completions name (XRC), with `cqe_version` 1.
    index: Option<UserIndex>,
    /// The WQEs. There may be more than [`slots`](Self::slots); the others are not used.
    pub ring: StrideRing,
    slots: u32,
    pub(crate) records: Table<SrqRecord>,
    /// Not 0 for a group of elements that may contain a completed one.
    marks: Table<AtomicU8>,
    /// Whether the device may put short data into completions of receives from this queue.
    data_in_completions: AtomicBool,
    published: PosterLine,
}

/// The number of published receives: the poster's own count. The doorbell record has 16 bits of it, and the device could
/// change them. In a cache line that no poller writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PosterLine(AtomicU64);

impl SrqShared {
    /// A queue with a list of `slots` elements: a power of two, at most 2^16, and not more than the ring has.
    #[must_use]
    pub fn new(srqn: u32, ring: StrideRing, slots: u32) -> Option<Self> {
        if !slots.is_power_of_two() || slots > 1 << 16 || slots - 1 > ring.mask() {
            return None;
        }
        let records = Table::<SrqRecord>::new(slots);
        // The initial list is in the order of the indices.
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

    /// Adds the user index, which the queue owns from now on.
    #[must_use]
    pub fn with_index(self, index: UserIndex) -> Self {
        Self { index: Some(index), ..self }
    }

    /// The number by which completions name it: its user index if it has one, otherwise its number.
    #[must_use]
    pub fn uidx(&self) -> u32 {
        self.index.as_ref().map_or(self.srqn, UserIndex::get)
    }

    /// The number of elements in the list; one less can be posted.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether `wqe_counter` is the index of an element of the list.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn has(&self, wqe_counter: u16) -> bool {
        u32::from(wqe_counter) < self.slots
    }

    /// To be called before the device may put short data into completions of receives from this queue.
    pub(crate) fn allow_data_in_completions(&self) {
        self.data_in_completions.store(true, Ordering::Relaxed);
    }

    /// Whether the device may put short data into completions of receives from this queue.
    pub(crate) fn data_in_completions(&self) -> bool {
        self.data_in_completions.load(Ordering::Relaxed)
    }

    /// To be called before the doorbell record is written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn set_published(&self, head: u64) {
        self.published.0.store(head, Ordering::Relaxed);
    }

    /// Whether the receive at `wqe_counter` is published and has not completed. For any poller. If a faulty device reports
    /// the same element to two CQs at the same time, both pollers get `true`.
    pub(crate) fn is_outstanding(&self, wqe_counter: u16) -> bool {
        let record = self.records.get(wqe_counter.into());
        // Relaxed: the poller has read an entry of the device before, and the poster stored these before it published.
        record.posted_as.load(Ordering::Relaxed) <= self.published.0.load(Ordering::Relaxed)
            && record.done.load(Ordering::Relaxed) == 0
    }

    /// Retires the receive at `wqe_counter` and returns its `wr_id`. For any poller, also several at once, and for the
    /// control path.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        let at = u32::from(wqe_counter);
        let record = self.records.get(at);
        let wr_id = record.wr_id.load(Ordering::Relaxed);
        // Release: pairs with `is_free`, so the poster reuses the element after this load.
        record.done.store(1, Ordering::Release);
        self.marks.get(at / GROUP).store(1, Ordering::Release);
        wr_id
    }

    /// Whether an element has completed and was not linked since.
    #[cfg(test)]
    pub(crate) fn is_done(&self, element: u32) -> bool {
        self.records.get(element).done.load(Ordering::Acquire) != 0
    }

    /// The number of groups.
    pub(crate) fn groups(&self) -> u32 {
        self.slots.div_ceil(GROUP)
    }

    /// Calls `f` with the elements of all marked groups and of the group `one_more`, and clears the marks. For the poster.
    pub(crate) fn candidates(&self, one_more: u32, mut f: impl FnMut(u32)) {
        for (group, mark) in (0..).zip(self.marks.iter()) {
            // Acquire: pairs with `retire`. A mark that is set later is found by the next call.
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
    fn invalid_sizes_are_rejected() {
        let ring = || StrideRing::new(QueueBuf::new(64 * 32).unwrap(), 0, 64, 32).unwrap();
        assert!(SrqShared::new(1, ring(), 32).is_some() && SrqShared::new(1, ring(), 64).is_some());
        assert!(SrqShared::new(1, ring(), 128).is_none() && SrqShared::new(1, ring(), 31).is_none());
        assert!(SrqShared::new(1, ring(), 0).is_none());
    }

    #[test]
    fn completed_elements_are_in_marked_groups() {
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
    fn published_elements_are_outstanding_until_they_complete() {
        let ring = StrideRing::new(QueueBuf::new(8 * 32).unwrap(), 0, 8, 32).unwrap();
        let srq = SrqShared::new(1, ring, 8).unwrap();
        assert!(!srq.is_outstanding(0));
        srq.set_published(2);
        assert!(srq.is_outstanding(0) && srq.is_outstanding(1) && !srq.is_outstanding(2));
        srq.retire(1);
        assert!(srq.is_outstanding(0) && !srq.is_outstanding(1));
    }
}
