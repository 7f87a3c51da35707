// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbell records: two words in memory that the device reads, one pair per queue.
//!
//! A QP uses both words (receives posted, basic blocks posted), an SRQ only the first, a CQ its consumer index and its
//! arm value. Each record has a cache line of its own, so that queues of different threads share none.
#![expect(unsafe_code)]
// UNSAFETY: stores a word's address next to its owner, so that the data path reaches the word by one load.

use crate::memory::{Allocator, MemoryUse, PAGE, QueueBuf, dwords};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::sync::{Arc, Weak};
use uverbs_core::Errno;
use uverbs_core::sync::ProcessMutex;
use uverbs_mlx5_hw::doorbell::{CQ_ARM_DB, CQ_SET_CI, MLX5_RCV_DBR, MLX5_SND_DBR};

/// Bytes of a record.
const BYTES: usize = 8;
/// Bytes between two records.
const STRIDE: usize = 64;
/// Records per page.
const PER_PAGE: usize = PAGE / STRIDE;

/// Pages with free records. A full page is in no list: its records keep it.
type Pages = ProcessMutex<Vec<Arc<Page>>>;

/// A page of records; `free` has one bit per record.
#[derive(Debug)]
struct Page {
    buf: Arc<QueueBuf>,
    free: AtomicU64,
    /// The pages of its context; none if it is memory of the program.
    home: Weak<Pages>,
}

/// The pages of a context.
#[derive(Debug, Default)]
pub struct DbRecPages {
    pages: Arc<Pages>,
}

impl DbRecPages {
    /// Allocates a record of zeros.
    ///
    /// # Errors
    /// The error of mmap(2); `ESTALE` in a child of fork(2) whose parent's thread had the lock.
    pub fn alloc(&self) -> io::Result<DbRec> {
        let forked = |_| io::Error::from_raw_os_error(Errno::ESTALE.raw());
        let mut pages = self.pages.lock().map_err(forked)?;
        loop {
            let page = match pages.last() {
                Some(page) => Arc::clone(page),
                None => {
                    let (buf, home) = (QueueBuf::new(PAGE)?, Arc::downgrade(&self.pages));
                    let page = Arc::new(Page { buf, free: AtomicU64::new(u64::MAX), home });
                    pages.push(Arc::clone(&page));
                    page
                }
            };
            let record = DbRec::take(&page);
            if page.free.load(Ordering::Relaxed) == 0 {
                // The next record that is dropped puts it back.
                pages.pop();
            }
            if let Some(record) = record {
                return Ok(record);
            }
        }
    }

    /// As [`alloc`](Self::alloc), from the program's allocator if it has one that allocates records.
    pub(crate) fn alloc_from(&self, allocator: Allocator<'_>) -> io::Result<DbRec> {
        match QueueBuf::of_program(allocator, BYTES, BYTES, MemoryUse::DoorbellRecord)? {
            // Not part of a page of records.
            Some(buf) => {
                let page = Arc::new(Page { buf: Arc::new(buf), free: AtomicU64::new(0), home: Weak::new() });
                Ok(DbRec { page, index: 0 })
            }
            None => self.alloc(),
        }
    }
}

/// A record. Dropping it returns it to its page. It may be dropped only after the kernel has destroyed the object;
/// otherwise it must be forgotten.
pub struct DbRec {
    page: Arc<Page>,
    index: usize,
}

impl DbRec {
    fn take(page: &Arc<Page>) -> Option<Self> {
        const { assert!(PER_PAGE == u64::BITS as usize) };
        // Acquire: the record is used after the last use by the owner that returned it. The lowest bit is cleared.
        let take = |free: u64| Some(free & free.wrapping_sub(1)).filter(|_| free != 0);
        let free = page.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        let record = Self { page: Arc::clone(page), index: free.trailing_zeros() as usize };
        record.word(0).store(0, Ordering::Relaxed);
        record.word(1).store(0, Ordering::Relaxed);
        Some(record)
    }

    /// The record's address, for the kernel.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.page.buf.addr() + (self.index * STRIDE) as u64
    }

    /// One of the two words as in memory, big-endian.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn word(&self, which: usize) -> &AtomicU32 {
        &dwords(&self.page.buf)[(self.index & (PER_PAGE - 1)) * (STRIDE / 4) + (which & 1)]
    }

    /// The word of posted receives, for the data path.
    #[must_use]
    pub fn recv_word(self: &Arc<Self>) -> DbWord {
        DbWord::new(self, MLX5_RCV_DBR)
    }

    /// The word of posted basic blocks, for the data path.
    #[must_use]
    pub fn send_word(self: &Arc<Self>) -> DbWord {
        DbWord::new(self, MLX5_SND_DBR)
    }

    /// The word of a CQ's consumer index, for the data path.
    #[must_use]
    pub fn ci_word(self: &Arc<Self>) -> DbWord {
        DbWord::new(self, CQ_SET_CI)
    }

    /// The word with which a CQ is armed, for the data path.
    #[must_use]
    pub fn arm_word(self: &Arc<Self>) -> DbWord {
        DbWord::new(self, CQ_ARM_DB)
    }

    /// Stores the number of receives that were posted.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn set_recv(&self, count: u32) {
        self.word(MLX5_RCV_DBR).store(count.to_be(), Ordering::Relaxed);
    }

    /// Stores the number of basic blocks of sends that were posted.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn set_send(&self, count: u32) {
        self.word(MLX5_SND_DBR).store(count.to_be(), Ordering::Relaxed);
    }

    /// Stores a CQ's consumer index.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn set_ci(&self, ci: u32) {
        self.word(CQ_SET_CI).store(ci.to_be(), Ordering::Relaxed);
    }
}

impl Drop for DbRec {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `take`.
        let free = self.page.free.fetch_or(1 << self.index, Ordering::Release);
        // In a child of fork(2) whose parent's thread had the lock, the page is not used again.
        if free == 0
            && let Some(home) = self.page.home.upgrade()
            && let Ok(mut pages) = home.lock()
        {
            pages.push(Arc::clone(&self.page));
        }
    }
}

impl fmt::Debug for DbRec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |which| u32::from_be(self.word(which).load(Ordering::Relaxed));
        f.debug_struct("DbRec").field("addr", &self.addr()).field("words", &[word(0), word(1)]).finish()
    }
}

/// One word of a record, by its address.
///
/// # Invariants
/// `ptr` is the address of a word of `record`.
pub struct DbWord {
    ptr: NonNull<AtomicU32>,
    record: Arc<DbRec>,
}

// SAFETY: `ptr` is the address of an atomic in memory that `record` owns.
unsafe impl Send for DbWord {}
// SAFETY: `&DbWord` only allows accesses to the atomic at `ptr`, in memory that `record` owns.
unsafe impl Sync for DbWord {}

impl DbWord {
    fn new(record: &Arc<DbRec>, which: usize) -> Self {
        Self { ptr: NonNull::from(record.word(which)), record: Arc::clone(record) }
    }

    /// Stores a count for the device.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn set(&self, count: u32) {
        // SAFETY: `ptr` is a word of the record's page (invariant), which `record` keeps; it is used by atomics only.
        unsafe { self.ptr.as_ref() }.store(count.to_be(), Ordering::Relaxed);
    }

    /// The count that was last stored for the device.
    #[must_use]
    pub fn get(&self) -> u32 {
        // SAFETY: `ptr` is a word of the record's page (invariant), which `record` keeps; it is used by atomics only.
        u32::from_be(unsafe { self.ptr.as_ref() }.load(Ordering::Relaxed))
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> &Arc<DbRec> {
        &self.record
    }
}

impl Clone for DbWord {
    fn clone(&self) -> Self {
        Self { ptr: self.ptr, record: Arc::clone(&self.record) }
    }
}

impl fmt::Debug for DbWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_do_not_overlap_and_are_reused() {
        let pages = DbRecPages::default();
        let mut all: Vec<_> = (0..130).map(|_| pages.alloc().unwrap()).collect();
        let mut addrs: Vec<_> = all.iter().map(DbRec::addr).collect();
        addrs.sort_unstable();
        assert!(addrs.windows(2).all(|w| w[1] - w[0] >= 64));
        let gone = all.swap_remove(7);
        let addr = gone.addr();
        gone.set_recv(7);
        drop(gone);
        let again = pages.alloc().unwrap();
        assert_eq!((again.addr(), again.word(0).load(Ordering::Relaxed)), (addr, 0));
    }

    #[test]
    fn a_record_is_found_without_a_look_at_full_pages() {
        let pages = DbRecPages::default();
        let mut all: Vec<_> = (0..64 * 100).map(|_| pages.alloc().unwrap()).collect();
        let open = |pages: &DbRecPages| pages.pages.lock().unwrap().len();
        assert_eq!(open(&pages), 0, "all pages are full");
        for i in [5, 777, 5, 6000] {
            let addr = all[i].addr();
            drop(all.swap_remove(i));
            assert_eq!(open(&pages), 1);
            let again = pages.alloc().unwrap();
            assert_eq!((again.addr(), open(&pages)), (addr, 0));
            all.push(again);
        }
        all.truncate(32);
        let free = open(&pages);
        assert!(free <= 100, "{free}");
        all.extend((0..64).map(|_| pages.alloc().unwrap()));
        let mut addrs: Vec<_> = all.iter().map(DbRec::addr).collect();
        addrs.sort_unstable();
        addrs.dedup();
        assert_eq!(addrs.len(), 96);
        // A page outlives its context while it has records.
        drop(pages);
        all[0].set_recv(1);
    }

    #[test]
    fn words_are_big_endian() {
        let record = DbRecPages::default().alloc().unwrap();
        record.set_recv(0x0102_0304);
        record.set_send(5);
        assert_eq!(record.word(0).load(Ordering::Relaxed).to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(record.word(1).load(Ordering::Relaxed).to_ne_bytes(), [0, 0, 0, 5]);
    }
}
