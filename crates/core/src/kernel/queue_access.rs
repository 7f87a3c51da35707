// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access to one queue: the check that the data path makes before it uses the queue's memory, and the wait of the
//! control path.
//!
//! A queue has a state word, a post limit and a busy flag, in memory that the kernel wipes in a child of fork(2)
//! (`MADV_WIPEONFORK`, madvise(2)). So the data path's compare for the state also detects a forked child, which must
//! not use the rings that it shares with its parent, and a child of a direct clone(2).
//!
//! # Handshake
//! The data path sets busy, then checks word or limit, accesses the queue, and clears busy. The control path closes the
//! queue (it stores a word that forbids the access, or a limit of 0), then calls [`QueueAccess::wait_idle`]. After that
//! no thread is inside the queue and none can enter, until the control path opens it again. The barrier between the two
//! accesses of each side is [`ControlBarrier`]. Busy covers the memory accesses of one call and no code of the user, so
//! the wait is short, and a control call does not wait for its own thread.
// UNSAFETY: returns references to the words of a page that it mapped, and calls madvise(2) for the page.
#![cfg_attr(not(loom), expect(unsafe_code))]

use crate::errno::Errno;
use crate::sync::ControlBarrier;
use crate::sync::control_barrier::fence;
use core::fmt;
use std::io;
use std::sync::Arc;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The contents of a line of the page.
#[derive(Debug)]
#[repr(C)]
struct Words {
    limit: AtomicU64,
    word: AtomicU32,
    busy: AtomicU32,
}

/// The words of one queue; clones are the same words.
#[derive(Clone)]
pub struct QueueAccess {
    /// A line of `line`'s page.
    #[cfg(not(loom))]
    words: core::ptr::NonNull<Words>,
    #[cfg(not(loom))]
    _line: Arc<pages::Line>,
    #[cfg(loom)]
    words: Arc<Words>,
    barrier: ControlBarrier,
}

// SAFETY: `words` is the address of atomics, in memory that `_line` owns.
#[cfg(not(loom))]
unsafe impl Send for QueueAccess {}
// SAFETY: `&QueueAccess` only allows accesses to the atomics at `words`, in memory that `_line` owns.
#[cfg(not(loom))]
unsafe impl Sync for QueueAccess {}

impl QueueAccess {
    /// The value of the word in a child of fork(2); it must not be stored.
    pub const FORKED: u32 = 0;

    /// A word of `value`, which is not [`FORKED`](Self::FORKED), a limit of 0, not busy. `barrier` is that of the context.
    ///
    /// # Errors
    /// The error of mmap(2), or of madvise(2) on a kernel before 4.14.
    pub fn new(value: u32, barrier: ControlBarrier) -> io::Result<Self> {
        #[cfg(not(loom))]
        {
            let line = Arc::new(pages::take()?);
            let this = Self { words: core::ptr::NonNull::from(line.words()), _line: line, barrier };
            this.limit().store(0, Ordering::Relaxed);
            this.words().busy.store(0, Ordering::Relaxed);
            this.word().store(value, Ordering::Release);
            Ok(this)
        }
        #[cfg(loom)]
        Ok(Self {
            words: Arc::new(Words {
                limit: AtomicU64::new(0),
                word: AtomicU32::new(value),
                busy: AtomicU32::new(0),
            }),
            barrier,
        })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn words(&self) -> &Words {
        #[cfg(loom)]
        return &self.words;
        // SAFETY: a line of the page that `_line` keeps mapped; used by atomics only.
        #[cfg(not(loom))]
        unsafe {
            self.words.as_ref()
        }
    }

    /// The state word.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn word(&self) -> &AtomicU32 {
        &self.words().word
    }

    /// The number of WRs that may be posted in total. The poster raises it; the control path closes the queue by
    /// storing 0, which is also what a child of fork finds. A CQ may have its state here, if it needs more bits than the word has.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn limit(&self) -> &AtomicU64 {
        &self.words().limit
    }

    /// Whether the data path must enter by [`enter_fenced`](Self::enter_fenced). Then the fast path, which enters by
    /// [`enter`](Self::enter), must never find the queue open.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn needs_fence(&self) -> bool {
        self.barrier == ControlBarrier::Fence
    }

    /// Marks the queue busy until [`leave`](Self::leave). Then check that the queue is open, before any access. For the
    /// queue's one poster or poller.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn enter(&self) {
        self.words().busy.store(1, Ordering::Relaxed);
        ControlBarrier::light();
    }

    /// The words' address, for a loop that enters and leaves.
    // codegen: reload
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn by_ref(&self) -> AccessRef<'_> {
        AccessRef(self.words())
    }

    /// [`enter`](Self::enter) with a full fence, for any [`ControlBarrier`].
    #[inline]
    pub fn enter_fenced(&self) {
        self.words().busy.store(1, Ordering::Relaxed);
        fence();
    }

    /// Ends [`enter`](Self::enter). Release: what the control path does after its wait comes after these accesses.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn leave(&self) {
        self.words().busy.store(0, Ordering::Release);
    }

    /// [`enter_fenced`](Self::enter_fenced) until the value is dropped, also by a panic.
    #[inline]
    pub fn busy(&self) -> Busy<'_> {
        self.enter_fenced();
        Busy(self)
    }

    /// Enters the queue as its only poster or poller, until the value is dropped. The caller checks word or limit after that.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn inside(&self) -> Busy<'_> {
        if self.needs_fence() {
            self.enter_fenced();
        } else {
            self.enter();
        }
        Busy(self)
    }

    /// Waits until no thread is inside the queue, which the caller has closed; none enters until the caller opens it.
    /// In a child of fork(2) no thread is inside, even if one of the parent's threads was.
    ///
    /// # Errors
    /// The error of membarrier(2). Then the queue must stay closed: a thread may still be inside.
    pub fn wait_idle(&self) -> Result<(), Errno> {
        self.barrier.control_side()?;
        #[cfg(not(loom))]
        let backoff = crossbeam_utils::Backoff::new();
        // Acquire: pairs with `leave`.
        while self.words().busy.load(Ordering::Acquire) != 0 {
            // The thread may be off its CPU: after some spins this gives up the time slice.
            #[cfg(not(loom))]
            backoff.snooze();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        Ok(())
    }
}

/// The address of a [`QueueAccess`]'s words.
#[derive(Clone, Copy, Debug)]
pub struct AccessRef<'a>(&'a Words);

impl AccessRef<'_> {
    /// [`QueueAccess::enter`], and whether the word is `open` then; if not, leave. Acquire: what the control path did before it
    /// stored that word comes before.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn enter_if(self, open: u32) -> bool {
        self.0.busy.store(1, Ordering::Relaxed);
        ControlBarrier::light();
        self.0.word.load(Ordering::Acquire) == open
    }

    /// As [`enter_if`](Self::enter_if), for a queue whose state is in the limit's place: its word has 64 bits.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn enter_if_wide(self, open: u64) -> bool {
        self.0.busy.store(1, Ordering::Relaxed);
        ControlBarrier::light();
        self.0.limit.load(Ordering::Acquire) == open
    }

    /// [`QueueAccess::enter`]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn enter(self) {
        self.0.busy.store(1, Ordering::Relaxed);
        ControlBarrier::light();
    }

    /// [`QueueAccess::limit`]
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn limit(&self) -> &AtomicU64 {
        &self.0.limit
    }

    /// [`QueueAccess::leave`]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn leave(self) {
        self.0.busy.store(0, Ordering::Release);
    }
}

/// A queue that is marked busy.
#[derive(Debug)]
#[must_use]
pub struct Busy<'a>(&'a QueueAccess);

impl Drop for Busy<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl fmt::Debug for QueueAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words().fmt(f)
    }
}

#[cfg(not(loom))]
mod pages {
    //! The pages of the words, with a cache line for each queue.

    use super::Words;
    use crate::sync::StaticMutex;
    use core::sync::atomic::{AtomicU64, Ordering};
    use memmap2::{MmapMut, MmapRaw};
    use std::io;
    use std::sync::Arc;

    const PAGE: usize = 4096;
    const LINE: usize = 64;

    struct Page {
        map: MmapRaw,
        /// A bit per line.
        free: AtomicU64,
    }

    /// A line of a page, which is returned when this is dropped.
    pub(super) struct Line {
        page: Arc<Page>,
        line: usize,
    }

    /// The pages with free lines. A full page is in no list: its lines keep it.
    static PAGES: StaticMutex<Vec<Arc<Page>>> = StaticMutex::new();

    /// A line that is free.
    pub(super) fn take() -> io::Result<Line> {
        const { assert!(PAGE / LINE == u64::BITS as usize) };
        let mut pages = PAGES.lock();
        loop {
            let page = match pages.last() {
                Some(page) => Arc::clone(page),
                None => {
                    let page = new_page()?;
                    pages.push(Arc::clone(&page));
                    page
                }
            };
            let line = take_of(&page);
            if page.free.load(Ordering::Relaxed) == 0 {
                // The next line that is returned puts it back.
                pages.pop();
            }
            if let Some(line) = line {
                return Ok(line);
            }
        }
    }

    fn new_page() -> io::Result<Arc<Page>> {
        let map = MmapRaw::from(MmapMut::map_anon(PAGE)?);
        // SAFETY: the page was just mapped, private and anonymous, and no other code has its address.
        let result = unsafe { libc::madvise(map.as_mut_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(Page { map, free: AtomicU64::new(u64::MAX) }))
    }

    /// The number of pages with free lines, and whether this line's is one of them.
    #[cfg(test)]
    pub(super) fn open(line: &Line) -> (usize, bool) {
        let pages = PAGES.lock();
        (pages.len(), pages.iter().any(|page| Arc::ptr_eq(page, &line.page)))
    }

    fn take_of(page: &Arc<Page>) -> Option<Line> {
        // Acquire: the words are used after the last use by the owner that returned the line. The lowest bit is cleared.
        let take = |free: u64| Some(free & free.wrapping_sub(1)).filter(|_| free != 0);
        let free = page.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        Some(Line { page: Arc::clone(page), line: free.trailing_zeros() as usize })
    }

    impl Line {
        pub(super) fn words(&self) -> &Words {
            const { assert!(size_of::<Words>() <= LINE && align_of::<Words>() <= LINE) };
            // SAFETY: there are as many lines in the page as bits in `free`, of which `line` is one.
            let words = unsafe { self.page.map.as_mut_ptr().add(self.line * LINE) };
            // SAFETY: aligned to a line, inside the page, which lives as long as `self`; any bytes are valid atomics,
            // and all accesses are atomic.
            unsafe { &*words.cast::<Words>() }
        }
    }

    impl Drop for Line {
        fn drop(&mut self) {
            // Release: pairs with the Acquire in `take_of`.
            let free = self.page.free.fetch_or(1 << self.line, Ordering::Release);
            if free == 0 {
                PAGES.lock().push(Arc::clone(&self.page));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::QueueAccess;
    use crate::sync::ControlBarrier;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_line_is_found_without_a_look_at_full_pages() {
        let lines: Vec<_> = (0..64 * 50).map(|_| super::pages::take().unwrap()).collect();
        // Other tests have queues, too.
        let full = lines.iter().filter(|line| !super::pages::open(line).1).count();
        assert!(full > 64 * 40, "{full} of {} lines are in full pages", lines.len());
        let mut lines = lines;
        let one = lines.swap_remove(100);
        drop(one);
        drop(lines);
        let again: Vec<_> = (0..64 * 50).map(|_| super::pages::take().unwrap()).collect();
        assert!(again.iter().filter(|line| !super::pages::open(line).1).count() > 64 * 40);
    }

    #[test]
    fn the_words_are_zero_in_a_child_and_unchanged_in_the_parent() {
        let queues: Vec<_> =
            (1..=100).map(|value| QueueAccess::new(value, ControlBarrier::Fence).unwrap()).collect();
        queues[7].limit().store(7, Relaxed);
        let sum = |queues: &[QueueAccess]| {
            queues
                .iter()
                .map(|access| access.word().load(Relaxed) + access.limit().load(Relaxed) as u32)
                .sum::<u32>()
        };
        assert_eq!(sum(&queues), 5057);
        // SAFETY: the child calls nothing but atomic loads and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let zero = sum(&queues) == QueueAccess::FORKED;
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(i32::from(!zero)) }
            }
            -1 => panic!("fork failed"),
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child and writes its status to a local.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "the child found its parent's words");
            }
        }
        assert_eq!(sum(&queues), 5057);
    }

    #[test]
    fn a_wait_ends_when_the_last_access_does() {
        for barrier in [ControlBarrier::register(), ControlBarrier::Fence] {
            let access = QueueAccess::new(1, barrier).unwrap();
            let inside = core::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|s| {
                access.enter();
                inside.store(true, Relaxed);
                let control = s.spawn(|| {
                    access.word().store(2, Relaxed);
                    access.wait_idle().unwrap();
                    assert!(!inside.load(Relaxed), "waited too short");
                });
                std::thread::sleep(core::time::Duration::from_millis(20));
                inside.store(false, Relaxed);
                access.leave();
                control.join().unwrap();
            });
            let panicked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                let _busy = access.busy();
                panic!("inside");
            }));
            assert!(panicked.is_err());
            access.wait_idle().unwrap();
        }
    }

    #[test]
    fn clones_share_a_line_that_is_kept_until_the_last() {
        let access = QueueAccess::new(7, ControlBarrier::Fence).unwrap();
        let (clone, address) = (access.clone(), core::ptr::from_ref(access.word()));
        access.word().store(8, Relaxed);
        drop(access);
        assert_eq!(clone.word().load(Relaxed), 8);
        let other = QueueAccess::new(1, ControlBarrier::Fence).unwrap();
        assert_ne!(core::ptr::from_ref(other.word()), address);
        drop(clone);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::QueueAccess;
    use crate::sync::ControlBarrier;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering;

    struct Queue(QueueAccess, UnsafeCell<u32>);

    // SAFETY: only this test accesses the cell, and loom checks that the accesses do not overlap.
    #[expect(unsafe_code, reason = "loom's cell is not Sync")]
    unsafe impl Sync for Queue {}

    /// Only the handshake keeps the control path and a poller apart.
    #[test]
    fn control_and_data_path_exclude_each_other() {
        loom::model(|| {
            let queue =
                Arc::new(Queue(QueueAccess::new(1, ControlBarrier::Fence).unwrap(), UnsafeCell::new(0)));
            let poller = Arc::clone(&queue);
            let thread = loom::thread::spawn(move || {
                for _ in 0..2 {
                    poller.0.enter();
                    if poller.0.word().load(Ordering::Acquire) == 1 {
                        poller.1.with_mut(|_| ());
                    }
                    poller.0.leave();
                }
            });
            queue.0.word().store(2, Ordering::Relaxed);
            queue.0.wait_idle().unwrap();
            queue.1.with_mut(|_| ());
            queue.0.word().store(1, Ordering::Release);
            thread.join().unwrap();
        });
    }
}
