// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, thread domains, and the parent domains that join the two (ibv_alloc_pd(3), ibv_alloc_td(3),
//! ibv_alloc_parent_domain(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::destroy_handle;
use super::queue_memory::{self, Allocators};
use crate::abi::attr::{ibv_parent_domain_init_attr, ibv_td_init_attr};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_pd, ibv_td};
use crate::context;
use crate::errno::{Errno, ensure, nothing, number, pointer};
use crate::live;
use crate::verbs::AnyTd;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use uverbs_core::control::PdHandle;
use uverbs_mlx5::QueueAllocator;

/// A protection domain, or a parent domain.
#[repr(C)]
struct Pd {
    public: ibv_pd,
    private: PdPrivate,
}

struct PdPrivate {
    kind: Kind,
    /// The number of parent domains that were created from it.
    users: AtomicU32,
}

enum Kind {
    Domain(ManuallyDrop<PdHandle>),
    Parent { pd: *mut ibv_pd, td: *mut ibv_td, allocators: Option<Arc<Allocators>> },
}

/// A thread domain.
#[repr(C)]
struct Td {
    public: ibv_td,
    private: TdPrivate,
}

struct TdPrivate {
    td: AnyTd,
    /// The number of parent domains that were created from it.
    users: AtomicU32,
}

/// # Safety
/// `pd` is a live domain of this library.
unsafe fn private<'a>(pd: *mut ibv_pd) -> &'a PdPrivate {
    // SAFETY: `pd` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*pd.cast::<Pd>()).private }
}

/// # Safety
/// `td` is a live thread domain of this library.
unsafe fn td_private<'a>(td: *mut ibv_td) -> &'a TdPrivate {
    // SAFETY: `td` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*td.cast::<Td>()).private }
}

/// The kernel's domain behind one of C's.
///
/// # Safety
/// `pd` is a live domain of this library.
pub(crate) unsafe fn handle<'a>(pd: *mut ibv_pd) -> &'a PdHandle {
    // SAFETY: `pd` is a live object of this driver (contract of this function).
    match unsafe { &private(pd).kind } {
        Kind::Domain(handle) => handle,
        // SAFETY: the domain of a parent domain can't be freed before the parent domain, and is not a parent domain
        // itself (`alloc_parent_domain`).
        Kind::Parent { pd, .. } => unsafe { handle(*pd) },
    }
}

/// Its thread domain, if it is a parent domain with one.
///
/// # Safety
/// `pd` is a live domain of this library.
pub(crate) unsafe fn td<'a>(pd: *mut ibv_pd) -> Option<&'a AnyTd> {
    // SAFETY: `pd` is a live object of this driver (contract of this function).
    match unsafe { &private(pd).kind } {
        // SAFETY: the thread domain of a parent domain can't be freed before the parent domain.
        Kind::Parent { td, .. } if !td.is_null() => Some(unsafe { &td_private(*td).td }),
        _ => None,
    }
}

/// The allocator of queue memory of a parent domain, if it has one.
///
/// # Safety
/// `pd` is NULL, or a live domain of this library.
pub(crate) unsafe fn allocator(pd: *mut ibv_pd) -> Option<Arc<dyn QueueAllocator>> {
    if pd.is_null() {
        return None;
    }
    // SAFETY: `pd` is a live object of this driver (contract of this function).
    match unsafe { &private(pd).kind } {
        Kind::Parent { allocators: Some(allocators), .. } => Some(Arc::clone(allocators) as _),
        _ => None,
    }
}

fn new(context: *mut ibv_context, handle: u32, kind: Kind) -> *mut ibv_pd {
    let private = PdPrivate { kind, users: AtomicU32::new(0) };
    let pd = Box::into_raw(Box::new(Pd { public: ibv_pd { context, handle }, private }));
    // SAFETY: a new object, whose context is not closed during this call: its verb is in progress.
    unsafe { live::add(pd.cast()) }
}

/// # Safety
/// As in ibv_alloc_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let handle = unsafe { context::of(context) }?.verbs().alloc_pd()?;
        Ok(new(context, handle.handle(), Kind::Domain(ManuallyDrop::new(handle))))
    })
}

/// # Safety
/// As in ibv_alloc_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(pd) }?;
        // SAFETY: `pd` is a live object of this library: its context was found above.
        let this = unsafe { private(pd) };
        if this.users.load(Ordering::Acquire) != 0 {
            return Err(Errno::EBUSY);
        }
        match &this.kind {
            // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract
            // of the man page).
            Kind::Domain(handle) => unsafe { destroy_handle(handle, PdHandle::destroy) }?,
            Kind::Parent { pd, td, allocators } => {
                // The function that frees the memory of its queues gets a pointer to the domain.
                if allocators.as_ref().is_some_and(|allocators| allocators.is_used()) {
                    return Err(Errno::EBUSY);
                }
                // SAFETY: the domain of a parent domain can't be freed before the parent domain.
                unsafe { private(*pd) }.users.fetch_sub(1, Ordering::Release);
                if !td.is_null() {
                    // SAFETY: `*td` is a live object of this library: its context was found above.
                    unsafe { td_private(*td) }.users.fetch_sub(1, Ordering::Release);
                }
            }
        }
        live::remove(&here, pd);
        // SAFETY: `new` allocated it as a `Box` of this type; the program does not use it after this call (contract of
        // the man page).
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })
}

/// # Safety
/// As in ibv_import_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: the number is that of a domain that the program may use (contract of the man page).
        let handle = unsafe { here.verbs().import_pd(pd_handle) }?;
        Ok(new(context, pd_handle, Kind::Domain(ManuallyDrop::new(handle))))
    })
}

/// Frees the struct; the kernel's object remains.
///
/// # Safety
/// As in ibv_unimport_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    nothing(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(pd) }?;
        // SAFETY: `pd` is a live object of this library: its context was found above.
        let this = unsafe { private(pd) };
        ensure(matches!(this.kind, Kind::Domain(_)) && this.users.load(Ordering::Acquire) == 0)?;
        live::remove(&here, pd);
        // SAFETY: `new` allocated it as a `Box` of this type; the program does not use it after this call (contract of
        // the man page). Handles do nothing when they are dropped.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    });
}

/// # Safety
/// As in ibv_alloc_td(3).
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let private = TdPrivate { td: here.verbs().alloc_td()?, users: AtomicU32::new(0) };
        let td = Box::into_raw(Box::new(Td { public: ibv_td { context }, private }));
        // SAFETY: a new object; the context is not closed during this call (contract of the man page).
        Ok(unsafe { live::add(td.cast()) })
    })
}

/// # Safety
/// As in ibv_alloc_td(3).
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    number(|| {
        // SAFETY: `td` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(td) }?;
        // SAFETY: `td` is a live object of this library: its context was found above.
        if unsafe { td_private(td) }.users.load(Ordering::Acquire) != 0 {
            return Err(Errno::EBUSY);
        }
        live::remove(&here, td);
        // SAFETY: `alloc_td` allocated it as a `Box` of this type; the program does not use it after this call
        // (contract of the man page).
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })
}

/// `IBV_PARENT_DOMAIN_INIT_ATTR_*`
mod parent_mask {
    pub(super) const ALLOCATORS: u32 = 1 << 0;
    pub(super) const PD_CONTEXT: u32 = 1 << 1;
    /// In a confidential guest, memory may be shared with the host, which devices that bounce their DMA need. It is a
    /// permission that none of our devices uses.
    pub(super) const ALLOW_CC_UNPROTECTED: u32 = 1 << 2;
    pub(super) const ALL: u32 = ALLOCATORS | PD_CONTEXT | ALLOW_CC_UNPROTECTED;
}

/// # Safety
/// As in ibv_alloc_parent_domain(3).
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: `attr` is NULL or valid, and not changed by others during this call (contract of the man page).
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        ensure(!attr.pd.is_null() && attr.comp_mask & !parent_mask::ALL == 0)?;
        // SAFETY: `attr.pd` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let _used = unsafe { context::is_of(context, attr.pd) }?;
        // SAFETY: `attr.td` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let _used = unsafe { context::is_of(context, attr.td) }?;
        // SAFETY: `attr.pd` is a live object of this library: its context was found above.
        let domain = unsafe { private(attr.pd) };
        let Kind::Domain(handle) = &domain.kind else { return Err(Errno::EINVAL) };
        let allocators = match attr.comp_mask & parent_mask::ALLOCATORS {
            0 => None,
            _ => {
                let has_context = attr.comp_mask & parent_mask::PD_CONTEXT != 0;
                Some(queue_memory::allocators(here, attr, has_context)?)
            }
        };
        domain.users.fetch_add(1, Ordering::Relaxed);
        if !attr.td.is_null() {
            // SAFETY: `attr.td` is a live object of this library: its context was found above.
            unsafe { td_private(attr.td) }.users.fetch_add(1, Ordering::Relaxed);
        }
        let kind = Kind::Parent { pd: attr.pd, td: attr.td, allocators: allocators.clone() };
        let parent = new(context, handle.handle(), kind);
        if let Some(allocators) = allocators {
            allocators.set_domain(parent);
        }
        Ok(parent)
    })
}
