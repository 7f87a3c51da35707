// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory (ibv_alloc_dm(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and buffers.

use super::{destroy_handle, mr, pd};
use crate::abi::attr::ibv_alloc_dm_attr;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_dm, ibv_pd};
use crate::context;
use crate::errno::{Errno, Outcome, ensure, nothing, number, pointer};
use crate::live;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use core::{ptr, slice};
use uverbs_core::attr::AccessFlags;
use uverbs_core::control::{self, DmHandle};
use uverbs_core::kernel::DeviceMapping;
use uverbs_core::provider::DmParts;
use uverbs_core::wr::IbvMr;

/// Memory in the device: C's part and ours.
#[repr(C)]
struct Dm {
    public: ibv_dm,
    private: DmPrivate,
}

struct DmPrivate {
    handle: ManuallyDrop<DmHandle>,
    mapping: DeviceMapping,
    /// Offset of its first byte in the mapping.
    start: usize,
}

/// The size of the pieces that are copied through a buffer on the stack, because the destination may be uninitialised.
const CHUNK: usize = 1024;

/// # Safety
/// `dm` is live memory of this library.
unsafe fn private<'a>(dm: *mut ibv_dm) -> &'a DmPrivate {
    // SAFETY: `dm` is a live object of this type (contract of this function); no mutable reference to its private part
    // exists.
    unsafe { &(*dm.cast::<Dm>()).private }
}

/// The address of the memory in this process, and the number of bytes.
///
/// # Safety
/// `dm` is live memory of this library.
pub(crate) unsafe fn memory(dm: *mut ibv_dm) -> (*mut u8, u64) {
    // SAFETY: `dm` is a live object of this type (contract of this function).
    let this = unsafe { private(dm) };
    (this.mapping.as_ptr().as_ptr().wrapping_add(this.start), this.handle.length())
}

/// The kernel's object.
///
/// # Safety
/// As for [`memory`].
pub(crate) unsafe fn handle<'a>(dm: *mut ibv_dm) -> &'a DmHandle {
    // SAFETY: `dm` is a live object of this type (contract of this function).
    unsafe { &private(dm).handle }
}

impl DmPrivate {
    /// The offset of an access in the mapping. Fails if the access is not inside the memory.
    fn place(&self, offset: u64, length: usize) -> Outcome<usize> {
        let end = offset.checked_add(length as u64).ok_or(Errno::EINVAL)?;
        ensure(end <= self.handle.length())?;
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        self.start.checked_add(offset).ok_or(Errno::EINVAL)
    }
}

/// # Safety
/// As in ibv_alloc_dm(3).
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the contract of this function is that of `alloc`.
    pointer(|| unsafe { alloc(context, attr) })
}

/// # Safety
/// As in ibv_alloc_dm(3).
pub(crate) unsafe fn alloc(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> Outcome<*mut ibv_dm> {
    // SAFETY: `context` is not closed during this call (contract of the man page).
    let here = unsafe { context::of(context) }?;
    // SAFETY: `attr` is NULL or valid, and no other thread changes it during this call (contract of the man page).
    let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
    ensure(attr.comp_mask == 0)?;
    let parts = here.verbs().alloc_dm(attr.length as u64, attr.log_align_req)?;
    Ok(new(context, parts))
}

fn new(context: *mut ibv_context, parts: DmParts) -> *mut ibv_dm {
    let DmParts { handle, mapping, start } = parts;
    let public = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        // `IBV_DM_MASK_HANDLE`: the handle is there.
        comp_mask: 1,
        handle: handle.handle(),
    };
    let private = DmPrivate { handle: ManuallyDrop::new(handle), mapping, start };
    // SAFETY: a new object, whose context is not closed during this call: its verb is in progress.
    unsafe { live::add(Box::into_raw(Box::new(Dm { public, private })).cast()) }
}

/// # Safety
/// As in ibv_import_dm(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let here = unsafe { context::of(context) }?;
        // SAFETY: the number is that of memory that the program may use (contract of the man page).
        Ok(new(context, unsafe { here.verbs().import_dm(dm_handle) }?))
    })
}

/// Frees the struct; the kernel's object remains.
///
/// # Safety
/// As in ibv_unimport_dm(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    nothing(|| {
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(dm) }?;
        live::remove(&here, dm);
        // SAFETY: `new` allocated it as a `Box` of this type; the program does not use it after this call (contract of
        // the man page). Handles do nothing when they are dropped.
        drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
        Ok(())
    });
}

/// # Safety
/// As in ibv_alloc_dm(3).
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    number(|| {
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { live::claim(dm) }?;
        // SAFETY: `dm` is a live object of this library: its context was found above.
        let this = unsafe { private(dm) };
        // SAFETY: if this succeeds, the object is freed below, and the program does not use it any more (contract of
        // the man page).
        unsafe { destroy_handle(&this.handle, DmHandle::destroy) }?;
        live::remove(&here, dm);
        // SAFETY: `alloc_dm` allocated it as a `Box` of this type; the program does not use it after this call
        // (contract of the man page).
        drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
        Ok(())
    })
}

/// # Safety
/// As in ibv_memcpy_to_dm(3).
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    number(|| {
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        unsafe { live::peek(dm) }?;
        // SAFETY: `dm` is a live object of this library: its context was found above.
        let this = unsafe { private(dm) };
        let at = this.place(offset, length)?;
        ensure(!host_addr.is_null())?;
        // SAFETY: `host_addr` is valid for reads of `length` bytes (contract of the man page).
        let data = unsafe { slice::from_raw_parts(host_addr.cast::<u8>(), length) };
        ensure(this.mapping.copy_in(at, data))
    })
}

/// # Safety
/// As in ibv_memcpy_from_dm(3).
unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    number(|| {
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        unsafe { live::peek(dm) }?;
        // SAFETY: `dm` is a live object of this library: its context was found above.
        let this = unsafe { private(dm) };
        let at = this.place(offset, length)?;
        ensure(!host_addr.is_null())?;
        let mut chunk = [0; CHUNK];
        for done in (0..length).step_by(CHUNK) {
            let part = chunk.get_mut(..CHUNK.min(length - done)).ok_or(Errno::EINVAL)?;
            ensure(this.mapping.copy_out(at + done, part))?;
            let to = host_addr.cast::<u8>().wrapping_add(done);
            // SAFETY: `host_addr` is valid for writes of `length` bytes (contract of the man page), of which `done +
            // part.len()` are at most all. `chunk` is a local array, so the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
        }
        Ok(())
    })
}

/// # Safety
/// As in ibv_reg_dm_mr(3).
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut IbvMr {
    pointer(|| {
        // SAFETY: `pd` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let here = unsafe { context::of_object(pd) }?;
        ensure(!dm.is_null())?;
        let context = here.context();
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let _used = unsafe { context::is_of(context, dm) }?;
        // SAFETY: `pd` is a live object of this library: its context was found above.
        let domain = unsafe { pd::handle(pd) };
        // SAFETY: `dm` is a live object of this library: its context was found above.
        let memory = unsafe { &private(dm).handle };
        let (core, access) = (here.verbs().core_support(), AccessFlags::from_bits_retain(access));
        let handle = control::dm::reg_mr(core, domain, memory, offset, length as u64, access)?;
        Ok(mr::new(pd, ptr::null_mut(), length, handle))
    })
}
