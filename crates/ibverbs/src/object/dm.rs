// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory (ibv_alloc_dm(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and buffers.

use super::mr;
use super::whole::{Handled, Owned, create, handled};
use crate::abi::attr::ibv_alloc_dm_attr;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_dm, ibv_pd};
use crate::arg::Arg;
use crate::context::Private;
use crate::errno::{Errno, Outcome, ensure, nothing, number, pointer};
use core::ffi::{c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use core::{ptr, slice};
use uverbs_core::attr::AccessFlags;
use uverbs_core::control::{self, DmHandle};
use uverbs_core::kernel::DeviceMapping;
use uverbs_core::provider::DmParts;
use uverbs_core::wr::IbvMr;

/// Our part of memory in the device.
pub(crate) struct DmPrivate {
    handle: ManuallyDrop<DmHandle>,
    mapping: DeviceMapping,
    /// Offset of its first byte in the mapping.
    start: usize,
}

handled! { DmPrivate: handle, DmHandle; }

// SAFETY: the public part is the struct itself; only this module makes such objects.
unsafe impl Owned<()> for ibv_dm {
    type Public = Self;
    type Own = DmPrivate;
}

/// The size of the pieces that are copied through a buffer on the stack, because the destination may be uninitialised.
const CHUNK: usize = 1024;

impl DmPrivate {
    /// The address of the memory in this process, and the number of bytes.
    pub(crate) fn memory(&self) -> (*mut u8, u64) {
        (self.mapping.as_ptr().as_ptr().wrapping_add(self.start), self.handle.length())
    }

    /// The kernel's object.
    pub(crate) fn handle(&self) -> &DmHandle {
        &self.handle
    }

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
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_alloc_dm_attr>,
) -> *mut ibv_dm {
    pointer(|| alloc(context, attr))
}

/// Allocates memory, as in ibv_alloc_dm(3).
pub(crate) fn alloc(context: Arg<'_, ibv_context>, attr: Option<&ibv_alloc_dm_attr>) -> Outcome<*mut ibv_dm> {
    let here = context.open()?;
    let attr = attr.ok_or(Errno::EINVAL)?;
    ensure(attr.comp_mask == 0)?;
    let parts = here.verbs().alloc_dm(attr.length as u64, attr.log_align_req)?;
    Ok(new(here, context.pointer(), parts))
}

fn new(here: &Private, context: *mut ibv_context, parts: DmParts) -> *mut ibv_dm {
    let DmParts { handle, mapping, start } = parts;
    let public = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        // `IBV_DM_MASK_HANDLE`: the handle is there.
        comp_mask: 1,
        handle: handle.handle(),
    };
    create(here, public, DmPrivate { handle: ManuallyDrop::new(handle), mapping, start })
}

/// # Safety
/// As in ibv_import_dm(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(context: Arg<'_, ibv_context>, dm_handle: u32) -> *mut ibv_dm {
    pointer(|| {
        let here = context.open()?;
        // SAFETY: the number is that of memory that the program may use (contract of the man page).
        Ok(new(here, context.pointer(), unsafe { here.verbs().import_dm(dm_handle) }?))
    })
}

/// Frees the struct; the kernel's object remains.
///
/// # Safety
/// As in ibv_unimport_dm(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: Arg<'_, ibv_dm>) {
    nothing(|| {
        // Handles do nothing when they are dropped.
        dm.claim()?.free();
        Ok(())
    });
}

/// # Safety
/// As in ibv_alloc_dm(3).
pub(crate) unsafe extern "C" fn free_dm(dm: Arg<'_, ibv_dm>) -> c_int {
    number(|| dm.claim()?.destroy(DmHandle::destroy))
}

/// # Safety
/// As in ibv_memcpy_to_dm(3).
unsafe extern "C" fn memcpy_to_dm(
    dm: Arg<'_, ibv_dm>,
    offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    number(|| {
        let dm = dm.peek()?;
        let this = dm.own();
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
    dm: Arg<'_, ibv_dm>,
    offset: u64,
    length: usize,
) -> c_int {
    number(|| {
        let dm = dm.peek()?;
        let this = dm.own();
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
    pd: Arg<'_, ibv_pd>,
    dm: Arg<'_, ibv_dm>,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut IbvMr {
    pointer(|| {
        let pd = pd.enter()?;
        let dm = dm.enter_in(pd.context())?.ok_or(Errno::EINVAL)?;
        let (core, access) = (pd.verbs().core_support(), AccessFlags::from_bits_retain(access));
        let domain = pd.own().handle();
        let handle = control::dm::reg_mr(core, domain, dm.own().handle(), offset, length as u64, access)?;
        Ok(mr::new(&pd, ptr::null_mut(), length, handle))
    })
}
