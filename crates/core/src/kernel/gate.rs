// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words that a child of fork(2) finds zero.
//!
//! The data path must leave a queue alone that belongs to the parent, and it looks at some word of the control path's on
//! every call anyway: a limit of what may be posted, a QP's state, a CQ's mail. Such words stand in memory that the kernel
//! wipes in the child (`MADV_WIPEONFORK`, madvise(2)), so one compare tells both, and also a child of a bare clone(2).
// UNSAFETY: gives out the words of a page that it mapped, and asks madvise(2) for it.
#![cfg_attr(not(loom), expect(unsafe_code))]

use core::fmt;
use std::io;
use std::sync::Arc;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64};

/// What stands in the page.
#[derive(Debug)]
#[repr(C)]
struct Words {
    limit: AtomicU64,
    word: AtomicU32,
}

/// A word, and a limit; its clones are the same ones.
#[derive(Clone)]
pub struct Gate {
    /// A line of `place`'s page.
    #[cfg(not(loom))]
    words: core::ptr::NonNull<Words>,
    #[cfg(not(loom))]
    _place: Arc<pages::Place>,
    #[cfg(loom)]
    words: Arc<Words>,
}

// SAFETY: the address of an atomic, and what keeps its memory.
#[cfg(not(loom))]
unsafe impl Send for Gate {}
// SAFETY: likewise.
#[cfg(not(loom))]
unsafe impl Sync for Gate {}

impl Gate {
    /// What a child of fork finds, so what no one else should store.
    pub const FORKED: u32 = 0;

    /// A word of `value`, which is not [`FORKED`](Self::FORKED), and a limit of 0.
    ///
    /// # Errors
    /// That of mmap(2), or of madvise(2) on a kernel before 4.14.
    pub fn new(value: u32) -> io::Result<Self> {
        #[cfg(not(loom))]
        {
            let place = Arc::new(pages::take()?);
            let gate = Self { words: core::ptr::NonNull::from(place.words()), _place: place };
            gate.limit().store(0, core::sync::atomic::Ordering::Relaxed);
            gate.word().store(value, core::sync::atomic::Ordering::Release);
            Ok(gate)
        }
        #[cfg(loom)]
        Ok(Self { words: Arc::new(Words { limit: AtomicU64::new(0), word: AtomicU32::new(value) }) })
    }

    #[inline(always)]
    fn words(&self) -> &Words {
        #[cfg(loom)]
        return &self.words;
        // SAFETY: a line of the page that the place keeps mapped; used by atomics only.
        #[cfg(not(loom))]
        unsafe {
            self.words.as_ref()
        }
    }

    /// The word.
    #[inline(always)]
    #[must_use]
    pub fn word(&self) -> &AtomicU32 {
        &self.words().word
    }

    /// The count from which on nothing may be posted. One side raises it, and whoever closes the gate stores 0, which is
    /// what a child of fork finds, too.
    #[inline(always)]
    #[must_use]
    pub fn limit(&self) -> &AtomicU64 {
        &self.words().limit
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words().fmt(f)
    }
}

#[cfg(not(loom))]
mod pages {
    //! The pages that the words stand in, a cache line for each gate.

    use super::Words;
    use memmap2::{MmapMut, MmapRaw};
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    const PAGE: usize = 4096;
    const LINE: usize = 64;

    struct Page {
        map: MmapRaw,
        /// A bit per line.
        free: Mutex<u64>,
    }

    /// A line of a page, given back when dropped.
    pub(super) struct Place {
        page: Arc<Page>,
        line: usize,
    }

    static PAGES: Mutex<Vec<Arc<Page>>> = Mutex::new(Vec::new());

    /// A line that is free.
    pub(super) fn take() -> io::Result<Place> {
        const { assert!(PAGE / LINE == u64::BITS as usize) };
        let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = pages.iter().find_map(take_of) {
            return Ok(place);
        }
        let map = MmapRaw::from(MmapMut::map_anon(PAGE)?);
        // SAFETY: the page was just mapped, private and anonymous, and nobody else knows it.
        let result = unsafe { libc::madvise(map.as_mut_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let page = Arc::new(Page { map, free: Mutex::new(u64::MAX) });
        pages.push(Arc::clone(&page));
        take_of(&page).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn take_of(page: &Arc<Page>) -> Option<Place> {
        let mut free = page.free.lock().unwrap_or_else(PoisonError::into_inner);
        let line = free.trailing_zeros() as usize;
        if line == u64::BITS as usize {
            return None;
        }
        *free &= !(1 << line);
        Some(Place { page: Arc::clone(page), line })
    }

    impl Place {
        pub(super) fn words(&self) -> &Words {
            const { assert!(size_of::<Words>() <= LINE && align_of::<Words>() <= LINE) };
            // SAFETY: there are as many lines in the page as bits in `free`, of which `line` is one.
            let words = unsafe { self.page.map.as_mut_ptr().add(self.line * LINE) };
            // SAFETY: aligned to a line, inside the page, which lives as long as `self`; any bytes are valid atomics, and
            // nobody uses them by anything else.
            unsafe { &*words.cast::<Words>() }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            *self.page.free.lock().unwrap_or_else(PoisonError::into_inner) |= 1 << self.line;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Gate;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_child_finds_zero_and_the_parent_what_was() {
        let gates: Vec<_> = (1..=100).map(|value| Gate::new(value).unwrap()).collect();
        gates[7].limit().store(7, Relaxed);
        let sum = |gates: &[Gate]| {
            gates
                .iter()
                .map(|gate| gate.word().load(Relaxed) + gate.limit().load(Relaxed) as u32)
                .sum::<u32>()
        };
        assert_eq!(sum(&gates), 5057);
        // SAFETY: the child calls nothing but atomic loads and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let zero = sum(&gates) == Gate::FORKED;
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
        assert_eq!(sum(&gates), 5057);
    }

    #[test]
    fn clones_are_one_word_and_a_word_comes_back_with_the_last() {
        let gate = Gate::new(7).unwrap();
        let (clone, address) = (gate.clone(), core::ptr::from_ref(gate.word()));
        gate.word().store(8, Relaxed);
        drop(gate);
        assert_eq!(clone.word().load(Relaxed), 8);
        let other = Gate::new(1).unwrap();
        assert_ne!(core::ptr::from_ref(other.word()), address);
        drop(clone);
    }
}
