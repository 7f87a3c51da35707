// SPDX-License-Identifier: MIT OR Apache-2.0
//! Export and import of objects that commands use, memory for commands and pages of virtio devices
//! (mlx5dv_devx_obj_export(3), mlx5dv_devx_umem_export(3), mlx5dv_var_export(3)).
//!
//! A process that exports an object writes a record to memory of the program, which the program sends to another process.
//! That process has a context with the same resources in the kernel (`ibv_import_device`), in which the object has the same
//! number. Neither call is a system call. The man pages leave the format of a record to the library, so both processes must
//! use this one; a record begins with a mark that rdma-core's lack.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and records.

use super::devx::{DevxObj, DevxUmem, new_object, new_umem, object};
use super::extra::{Var, new_var};
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::{mlx5dv_devx_umem, mlx5dv_export_sizes, mlx5dv_var};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, number, pointer};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::ptr;

/// The first word of a record: its kind.
mod mark {
    pub(super) const OBJECT: u32 = 0x7576_0001;
    pub(super) const UMEM: u32 = 0x7576_0002;
    pub(super) const VAR: u32 = 0x7576_0003;
}

/// An object: its handle, and the opcode of the command that created it.
type ObjectRecord = [u32; 3];
/// Memory: its handle and its number in commands.
type UmemRecord = [u32; 3];
/// A page: its handle, its number in commands, its length, and both halves of its offset for mmap(2).
type VarRecord = [u32; 6];

/// Writes a record.
///
/// # Safety
/// `data` is NULL or valid for writes of as many bytes.
unsafe fn export<const N: usize>(data: *mut c_void, record: [u32; N]) -> Outcome<()> {
    ensure(!data.is_null())?;
    // SAFETY: not NULL, so valid for writes (the contract of this function); any alignment is permitted.
    unsafe { data.cast::<[u32; N]>().write_unaligned(record) };
    Ok(())
}

/// Reads a record of a kind, `EINVAL` if it is another one.
///
/// # Safety
/// `data` is NULL or valid for reads of as many bytes.
unsafe fn import<const N: usize>(data: *const c_void, mark: u32) -> Outcome<[u32; N]> {
    ensure(!data.is_null())?;
    // SAFETY: not NULL, so valid for reads (the contract of this function); any alignment is permitted.
    let record = unsafe { data.cast::<[u32; N]>().read_unaligned() };
    ensure(record[0] == mark)?;
    Ok(record)
}

/// # Safety
/// As in mlx5dv_get_export_sizes(3); `sizes` has room for `len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_get_export_sizes(sizes: *mut mlx5dv_export_sizes, len: usize) {
    if sizes.is_null() {
        return;
    }
    let found = mlx5dv_export_sizes {
        var_attrs_size: size_of::<VarRecord>() as u32,
        devx_umem_attrs_size: size_of::<UmemRecord>() as u32,
        devx_obj_attrs_size: size_of::<ObjectRecord>() as u32,
    };
    // SAFETY: `sizes` is valid for writes of `len` bytes (the contract of this function).
    unsafe { sizes.cast::<u8>().write_bytes(0, len) };
    let len = len.min(size_of_val(&found));
    // SAFETY: as above, and at most the bytes of `found` are read.
    unsafe { ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), sizes.cast(), len) };
}

/// # Safety
/// As in mlx5dv_devx_obj_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_obj_export(
    obj: Option<&DevxObj>,
    data: *mut c_void,
) -> c_int {
    number(|| {
        let object = object(obj)?;
        // SAFETY: `data` has room for a record (contract of the man page).
        unsafe { export(data, [mark::OBJECT, object.handle(), object.opcode().into()]) }
    })
}

/// # Safety
/// As in mlx5dv_devx_obj_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_obj_import(
    context: Arg<'_, ibv_context>,
    data: *mut c_void,
) -> *mut DevxObj {
    pointer(|| {
        let open = super::of(context)?;
        // SAFETY: `data` has a record (contract of the man page).
        let [_, handle, opcode] = unsafe { import(data, mark::OBJECT) }?;
        let opcode = u16::try_from(opcode).map_err(|_| Errno::EINVAL)?;
        Ok(new_object(open.driver.devx_import(handle, opcode)))
    })
}

/// # Safety
/// As in mlx5dv_devx_obj_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_obj_unimport(obj: Option<Box<DevxObj>>) {
    if let Some(obj) = obj {
        // This does not destroy the object in the kernel.
        drop(ManuallyDrop::into_inner(obj.0));
    }
}

/// # Safety
/// As in mlx5dv_devx_umem_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_umem_export(
    umem: Option<&DevxUmem>,
    data: *mut c_void,
) -> c_int {
    number(|| {
        let umem = &umem.ok_or(Errno::EINVAL)?.umem;
        // SAFETY: `data` has room for a record (contract of the man page).
        unsafe { export(data, [mark::UMEM, umem.handle(), umem.id()]) }
    })
}

/// # Safety
/// As in mlx5dv_devx_umem_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_umem_import(
    context: Arg<'_, ibv_context>,
    data: *mut c_void,
) -> *mut mlx5dv_devx_umem {
    pointer(|| {
        let open = super::of(context)?;
        // SAFETY: `data` has a record (contract of the man page).
        let [_, handle, id] = unsafe { import(data, mark::UMEM) }?;
        Ok(new_umem(open.driver.devx_import_umem(handle, id)))
    })
}

/// # Safety
/// As in mlx5dv_devx_umem_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_umem_unimport(umem: Option<Box<DevxUmem>>) {
    if let Some(umem) = umem {
        // This does not deregister the memory.
        drop(ManuallyDrop::into_inner(umem.umem));
    }
}

/// # Safety
/// As in mlx5dv_var_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_var_export(var: Option<&Var>, data: *mut c_void) -> c_int {
    number(|| {
        let page = &var.ok_or(Errno::EINVAL)?.page;
        let offset = page.mmap_offset();
        let (high, low) = ((offset >> 32) as u32, offset as u32);
        let record: VarRecord = [mark::VAR, page.handle(), page.page_id(), page.length(), high, low];
        // SAFETY: `data` has room for a record (contract of the man page).
        unsafe { export(data, record) }
    })
}

/// # Safety
/// As in mlx5dv_var_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_var_import(
    context: Arg<'_, ibv_context>,
    data: *mut c_void,
) -> *mut mlx5dv_var {
    pointer(|| {
        let open = super::of(context)?;
        // SAFETY: `data` has a record (contract of the man page).
        let record: VarRecord = unsafe { import(data, mark::VAR) }?;
        let [_, handle, page_id, length, high, low] = record;
        let offset = u64::from(high) << 32 | u64::from(low);
        Ok(new_var(open.driver.import_virtio_page(handle, page_id, length, offset)))
    })
}

/// # Safety
/// As in mlx5dv_var_export(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_var_unimport(var: Option<Box<Var>>) {
    if let Some(var) = var {
        var.page.release();
    }
}
