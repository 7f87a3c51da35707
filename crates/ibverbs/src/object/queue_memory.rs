// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of a parent domain that allocate the memory of its queues (ibv_alloc_parent_domain(3)).
//!
//! Only the mlx5 driver calls them, as in rdma-core: for the queues of QPs, work queues, SRQs and CQs, and for their
//! doorbell records.
#![expect(unsafe_code)]
// UNSAFETY: C's functions and the memory that they return.

use crate::abi::attr::ibv_parent_domain_init_attr;
use crate::abi::object::ibv_pd;
use crate::context::Private;
use crate::errno::{Errno, Outcome};
use crate::verbs::Open;
use core::any::Any;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::io;
use std::sync::Arc;
use uverbs_core::provider::Driver;
use uverbs_mlx5::{MemoryUse, Mlx5, QueueAllocator};

/// `IBV_ALLOCATOR_USE_DEFAULT`: the library allocates the memory itself.
const USE_DEFAULT: usize = usize::MAX;

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// A parent domain's functions.
#[derive(Debug)]
pub(crate) struct Allocators {
    /// The domain that is passed to the functions. It is freed after the memory.
    domain: AtomicPtr<ibv_pd>,
    alloc: Alloc,
    free: Free,
    pd_context: AtomicPtr<c_void>,
    /// Pieces of memory that are not freed yet.
    used: AtomicUsize,
}

/// The functions in the attributes of a domain. `EOPNOTSUPP` if the device's driver does not call them.
pub(crate) fn allocators(
    here: &Private,
    attr: &ibv_parent_domain_init_attr,
    has_context: bool,
) -> Outcome<Arc<Allocators>> {
    if !here.verbs().as_any().is::<Open<Mlx5>>() {
        return Err(Errno::EOPNOTSUPP);
    }
    let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else { return Err(Errno::EINVAL) };
    let pd_context = if has_context { attr.pd_context } else { ptr::null_mut() };
    Ok(Arc::new(Allocators {
        domain: AtomicPtr::default(),
        alloc,
        free,
        pd_context: AtomicPtr::new(pd_context),
        used: AtomicUsize::new(0),
    }))
}

/// The mlx5 driver, if it is that of `open`. Other drivers do not support queues in a program's memory.
pub(crate) fn mlx5<D: Driver>(open: &Open<D>) -> Outcome<&Open<Mlx5>> {
    let open: &dyn Any = open;
    open.downcast_ref().ok_or(Errno::EOPNOTSUPP)
}

impl Allocators {
    /// Sets the domain, before the program gets it.
    pub(crate) fn set_domain(&self, domain: *mut ibv_pd) {
        self.domain.store(domain, Ordering::Relaxed);
    }

    /// Whether memory from the functions is in use.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire) != 0
    }

    fn arguments(&self) -> (*mut ibv_pd, *mut c_void) {
        (self.domain.load(Ordering::Relaxed), self.pd_context.load(Ordering::Relaxed))
    }
}

/// `MLX5DV_RES_TYPE_*`
fn resource_type(what: MemoryUse) -> u64 {
    u64::from(Mlx5::DRIVER_ID) << 32 | what as u64
}

// SAFETY: the program's function returns memory as described in its man page: of the requested length and alignment,
// and for this use only.
unsafe impl QueueAllocator for Allocators {
    fn alloc(&self, len: usize, alignment: usize, what: MemoryUse) -> io::Result<Option<NonNull<u8>>> {
        let (domain, pd_context) = self.arguments();
        // SAFETY: a function of the program, called as the man page specifies: with the domain, which exists, and its
        // context.
        let memory = unsafe { (self.alloc)(domain, pd_context, len, alignment, resource_type(what)) };
        if memory.addr() == USE_DEFAULT {
            return Ok(None);
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        self.used.fetch_add(1, Ordering::Relaxed);
        Ok(Some(memory))
    }

    unsafe fn free(&self, memory: NonNull<u8>, what: MemoryUse) {
        let (domain, pd_context) = self.arguments();
        // SAFETY: a function of the program, called with memory that its other function returned for this use (the
        // contract of this function). The domain exists, because it is not freed while it is used.
        unsafe { (self.free)(domain, pd_context, memory.as_ptr().cast(), resource_type(what)) };
        // Release: the domain is freed after this.
        self.used.fetch_sub(1, Ordering::Release);
    }
}
