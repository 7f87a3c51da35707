// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, thread domains, and the parent domains that join the two (ibv_alloc_pd(3), ibv_alloc_td(3),
//! ibv_alloc_parent_domain(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::destroy_handle;
use super::queue_memory::{self, Allocators};
use super::whole::{Owned, Whole, create};
use crate::abi::attr::{ibv_parent_domain_init_attr, ibv_td_init_attr};
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_pd, ibv_td};
use crate::arg::Arg;
use crate::context::Private;
use crate::errno::{Errno, ensure, nothing, number, pointer};
use crate::live::Live;
use crate::verbs::AnyTd;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use uverbs_core::control::PdHandle;
use uverbs_mlx5::QueueAllocator;

/// Our part of a protection domain, or of a parent domain.
pub(crate) struct PdPrivate {
    kind: Kind,
    /// The number of parent domains that were created from it.
    users: AtomicU32,
}

enum Kind {
    Domain(ManuallyDrop<PdHandle>),
    Parent { pd: Parent<ibv_pd>, td: Option<Parent<ibv_td>>, allocators: Option<Arc<Allocators>> },
}

/// Our part of a thread domain.
pub(crate) struct TdPrivate {
    td: AnyTd,
    /// The number of parent domains that were created from it.
    users: AtomicU32,
}

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for ibv_pd {
    type Public = Self;
    type Own = PdPrivate;
}

// SAFETY: as for a protection domain.
unsafe impl Owned<()> for ibv_td {
    type Public = Self;
    type Own = TdPrivate;
}

/// A domain from which a parent domain was created. It counts the parent domain, so it is not freed before this value is dropped.
struct Parent<T: Owned<(), Own: Counted>>(*mut T);

impl<T: Owned<(), Own: Counted>> Parent<T> {
    fn new(domain: &Live<'_, T>) -> Self {
        domain.own().users().fetch_add(1, Ordering::Relaxed);
        Self(domain.pointer())
    }

    fn own(&self) -> &T::Own {
        // SAFETY: an object of this type (`Owned`), which is not freed as long as this value counts; no mutable reference to its own part
        // exists.
        unsafe { &(*self.0.cast::<Whole<T::Public, T::Own>>()).own }
    }
}

impl<T: Owned<(), Own: Counted>> Drop for Parent<T> {
    fn drop(&mut self) {
        self.own().users().fetch_sub(1, Ordering::Release);
    }
}

/// What a parent domain counts itself in.
trait Counted {
    fn users(&self) -> &AtomicU32;
}

impl Counted for PdPrivate {
    fn users(&self) -> &AtomicU32 {
        &self.users
    }
}

impl Counted for TdPrivate {
    fn users(&self) -> &AtomicU32 {
        &self.users
    }
}

impl PdPrivate {
    /// The kernel's domain behind one of C's.
    pub(crate) fn handle(&self) -> &PdHandle {
        match &self.kind {
            Kind::Domain(handle) => handle,
            Kind::Parent { pd, .. } => pd.own().handle(),
        }
    }

    /// Its thread domain, if it is a parent domain with one.
    pub(crate) fn td(&self) -> Option<&AnyTd> {
        match &self.kind {
            Kind::Parent { td: Some(td), .. } => Some(&td.own().td),
            _ => None,
        }
    }

    /// The allocator of queue memory of a parent domain, if it has one.
    pub(crate) fn allocator(&self) -> Option<Arc<dyn QueueAllocator>> {
        match &self.kind {
            Kind::Parent { allocators: Some(allocators), .. } => Some(Arc::clone(allocators) as _),
            _ => None,
        }
    }
}

fn new(here: &Private, context: *mut ibv_context, handle: u32, kind: Kind) -> *mut ibv_pd {
    create(here, ibv_pd { context, handle }, PdPrivate { kind, users: AtomicU32::new(0) })
}

/// # Safety
/// As in ibv_alloc_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: Arg<'_, ibv_context>) -> *mut ibv_pd {
    pointer(|| {
        let here = context.open()?;
        let handle = here.verbs().alloc_pd()?;
        Ok(new(here, context.pointer(), handle.handle(), Kind::Domain(ManuallyDrop::new(handle))))
    })
}

/// # Safety
/// As in ibv_alloc_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: Arg<'_, ibv_pd>) -> c_int {
    number(|| {
        let pd = pd.claim()?;
        let own = pd.own();
        if own.users.load(Ordering::Acquire) != 0 {
            return Err(Errno::EBUSY);
        }
        match &own.kind {
            // SAFETY: if this succeeds, the object with the handle is freed below.
            Kind::Domain(handle) => unsafe { destroy_handle(handle, PdHandle::destroy) }?,
            // The function that frees the memory of its queues gets a pointer to the domain.
            Kind::Parent { allocators: Some(allocators), .. } if allocators.is_used() => {
                return Err(Errno::EBUSY);
            }
            Kind::Parent { .. } => {}
        }
        pd.free();
        Ok(())
    })
}

/// # Safety
/// As in ibv_import_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_pd(context: Arg<'_, ibv_context>, pd_handle: u32) -> *mut ibv_pd {
    pointer(|| {
        let here = context.open()?;
        // SAFETY: the number is that of a domain that the program may use (contract of the man page).
        let handle = unsafe { here.verbs().import_pd(pd_handle) }?;
        Ok(new(here, context.pointer(), pd_handle, Kind::Domain(ManuallyDrop::new(handle))))
    })
}

/// Frees the struct; the kernel's object remains.
///
/// # Safety
/// As in ibv_unimport_pd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: Arg<'_, ibv_pd>) {
    nothing(|| {
        let pd = pd.claim()?;
        let own = pd.own();
        ensure(matches!(own.kind, Kind::Domain(_)) && own.users.load(Ordering::Acquire) == 0)?;
        // Handles do nothing when they are dropped.
        pd.free();
        Ok(())
    });
}

/// # Safety
/// As in ibv_alloc_td(3).
pub(crate) unsafe extern "C" fn alloc_td(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_td_init_attr>,
) -> *mut ibv_td {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        if attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let own = TdPrivate { td: here.verbs().alloc_td()?, users: AtomicU32::new(0) };
        Ok(create(here, ibv_td { context: context.pointer() }, own))
    })
}

/// # Safety
/// As in ibv_alloc_td(3).
pub(crate) unsafe extern "C" fn dealloc_td(td: Arg<'_, ibv_td>) -> c_int {
    number(|| {
        let td = td.claim()?;
        if td.own().users.load(Ordering::Acquire) != 0 {
            return Err(Errno::EBUSY);
        }
        td.free();
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
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_parent_domain_init_attr>,
) -> *mut ibv_pd {
    pointer(|| {
        let here = context.open()?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        ensure(attr.comp_mask & !parent_mask::ALL == 0)?;
        // SAFETY: `attr.pd` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let pd = unsafe { Arg::new(attr.pd) }.enter_in(context.pointer())?.ok_or(Errno::EINVAL)?;
        // SAFETY: `attr.td` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let td = unsafe { Arg::new(attr.td) }.enter_in(context.pointer())?;
        let Kind::Domain(handle) = &pd.own().kind else { return Err(Errno::EINVAL) };
        let allocators = match attr.comp_mask & parent_mask::ALLOCATORS {
            0 => None,
            _ => {
                let has_context = attr.comp_mask & parent_mask::PD_CONTEXT != 0;
                Some(queue_memory::allocators(here, attr, has_context)?)
            }
        };
        let kind = Kind::Parent {
            pd: Parent::new(&pd),
            td: td.map(|td| Parent::new(&td)),
            allocators: allocators.clone(),
        };
        let parent = new(here, context.pointer(), handle.handle(), kind);
        if let Some(allocators) = allocators {
            allocators.set_domain(parent);
        }
        Ok(parent)
    })
}
