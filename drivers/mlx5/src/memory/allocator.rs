// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a program allocates itself for queues and doorbell records (the allocators of
//! ibv_alloc_parent_domain(3)).
// UNSAFETY: a trait whose implementations guarantee valid memory.

use core::fmt::Debug;
use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

/// The purpose of memory. The numbers are those of `MLX5DV_RES_TYPE_*` without the part for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum MemoryUse {
    /// The queues of a QP.
    Qp = 1,
    /// A work queue.
    Wq = 2,
    /// A doorbell record.
    DoorbellRecord = 3,
    /// A shared receive queue.
    Srq = 4,
    /// A completion queue.
    Cq = 5,
}

/// An allocator of memory that the device reads and writes.
///
/// # Safety
/// Memory from [`alloc`](Self::alloc) has the requested length and alignment, is readable and writable, and is not used
/// for anything else until it is freed.
pub unsafe trait QueueAllocator: Debug + Send + Sync {
    /// Allocates `len` bytes; `None` if the driver must allocate them itself.
    ///
    /// # Errors
    /// If there is no memory.
    fn alloc(&self, len: usize, alignment: usize, what: MemoryUse) -> io::Result<Option<NonNull<u8>>>;

    /// Frees memory.
    ///
    /// # Safety
    /// The memory is from [`alloc`](Self::alloc), for the same use, and is freed once.
    unsafe fn free(&self, memory: NonNull<u8>, what: MemoryUse);
}

/// The allocator of a program, if it has one.
pub type Allocator<'a> = Option<&'a Arc<dyn QueueAllocator>>;

/// The allocator of a piece of memory, which is freed with it.
#[derive(Debug)]
pub(super) struct Owned {
    allocator: Arc<dyn QueueAllocator>,
    memory: NonNull<u8>,
    what: MemoryUse,
}

impl Owned {
    /// Allocates zeroed memory; `None` if the driver must allocate it itself.
    pub(super) fn new(
        allocator: &Arc<dyn QueueAllocator>,
        len: usize,
        alignment: usize,
        what: MemoryUse,
    ) -> io::Result<Option<Self>> {
        let Some(memory) = allocator.alloc(len, alignment, what)? else { return Ok(None) };
        let this = Self { allocator: Arc::clone(allocator), memory, what };
        if !memory.addr().get().is_multiple_of(alignment) {
            return Err(io::Error::from_raw_os_error(uverbs_core::Errno::EINVAL.raw()));
        }
        // SAFETY: the memory has `len` bytes, is writable, and is not used for anything else (the contract of the
        // trait).
        unsafe { memory.write_bytes(0, len) };
        Ok(Some(this))
    }

    /// The address of the memory.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.memory
    }

    /// The allocator of the memory.
    pub(super) fn allocator(&self) -> &Arc<dyn QueueAllocator> {
        &self.allocator
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it for this use; a value is dropped once.
        unsafe { self.allocator.free(self.memory, self.what) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PAGE, QueueBuf};
    use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Allocates a page, or an address inside of it, or fails.
    #[derive(Debug, Default)]
    struct Lender {
        page: Option<Arc<QueueBuf>>,
        offset: usize,
        out: AtomicUsize,
    }

    // SAFETY: tests write to the page by these allocations only, and one of them is alive at a time.
    unsafe impl QueueAllocator for Lender {
        fn alloc(&self, len: usize, _: usize, _: MemoryUse) -> io::Result<Option<NonNull<u8>>> {
            let Some(page) = &self.page else { return Ok(None) };
            assert!(len + self.offset <= page.len());
            self.out.fetch_add(1, Ordering::Relaxed);
            let words: &[AtomicU64] = page.words();
            Ok(Some(NonNull::from(words).cast::<u8>().map_addr(|a| a.saturating_add(self.offset))))
        }

        unsafe fn free(&self, _: NonNull<u8>, _: MemoryUse) {
            self.out.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn memory_is_zeroed_and_freed_with_its_last_user() {
        let page = QueueBuf::new(PAGE).unwrap();
        page.words()[3].store(7, Ordering::Relaxed);
        let lender = Arc::new(Lender { page: Some(Arc::clone(&page)), ..Lender::default() });
        let allocator: Arc<dyn QueueAllocator> = Arc::clone(&lender) as _;
        let buf = QueueBuf::allocated(Some(&allocator), 1024, Default::default(), MemoryUse::Cq).unwrap();
        assert_eq!((buf.addr(), buf.len()), (page.addr(), 1024));
        assert_eq!(page.words()[3].load(Ordering::Relaxed), 0);
        buf.words()[5].store(9, Ordering::Relaxed);
        assert_eq!(page.words()[5].load(Ordering::Relaxed), 9);
        assert!(buf.allocator().is_some() && page.allocator().is_none());
        let other = Arc::clone(&buf);
        drop(buf);
        assert_eq!(lender.out.load(Ordering::Relaxed), 1);
        drop(other);
        assert_eq!(lender.out.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_that_is_not_aligned_is_refused_and_returned() {
        let lender = Arc::new(Lender { page: QueueBuf::new(PAGE).ok(), offset: 64, ..Lender::default() });
        let allocator: Arc<dyn QueueAllocator> = Arc::clone(&lender) as _;
        let refused = QueueBuf::allocated(Some(&allocator), 1024, Default::default(), MemoryUse::Qp);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(lender.out.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_program_may_leave_it_to_the_driver() {
        let allocator: Arc<dyn QueueAllocator> = Arc::new(Lender::default());
        let buf = QueueBuf::allocated(Some(&allocator), 1024, Default::default(), MemoryUse::Qp).unwrap();
        assert_eq!((buf.len(), buf.allocator().is_some()), (PAGE, false));
    }
}
