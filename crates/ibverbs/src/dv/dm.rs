// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory with mlx5's own options and operations (mlx5dv_alloc_dm(3), mlx5dv_dm_map_op_addr(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::attr::ibv_alloc_dm_attr;
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::mlx5dv_alloc_dm_attr;
use crate::abi::object::ibv_dm;
use crate::errno::{Errno, ensure, minus_one, pointer};
use crate::object::dm;
use core::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd as _;

/// `MLX5_IB_UAPI_DM_TYPE_MEMIC`: memory that regions can be registered on. The other types are for packet steering.
const MEMIC: u32 = 0;

/// # Safety
/// As in mlx5dv_alloc_dm(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
    mlx5_attr: *mut mlx5dv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        unsafe { super::of(context) }?;
        // SAFETY: `mlx5_attr` is NULL or valid for reads (contract of the man page).
        let mlx5_attr = unsafe { mlx5_attr.as_ref() }.ok_or(Errno::EINVAL)?;
        ensure(mlx5_attr.comp_mask == 0)?;
        if mlx5_attr.r#type != MEMIC {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: `context` and `attr` are those of ibv_alloc_dm(3) (contract of the man page).
        unsafe { dm::alloc(context, attr) }
    })
}

/// # Safety
/// As in ibv_dm_export_dmabuf_fd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    minus_one(|| {
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let open = unsafe { super::of_object(dm) }?;
        // SAFETY: `dm` is live memory of this library: its context was found above.
        let file = open.driver.export_dm(unsafe { dm::handle(dm) })?;
        Ok(file.into_raw_fd())
    })
}

/// Maps a page of operations. As with rdma-core the mapping belongs to the program: it exists until the program ends it
/// by munmap(2).
///
/// # Safety
/// As in mlx5dv_dm_map_op_addr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dm_map_op_addr(dm: *mut ibv_dm, op: u8) -> *mut c_void {
    pointer(|| {
        // SAFETY: `dm` is NULL or a live object, which begins with the pointer to its context (contract of the man
        // page).
        let open = unsafe { super::of_object(dm) }?;
        // SAFETY: `dm` is live memory of this library: its context was found above.
        let (mapping, start) = open.driver.map_dm_operation(unsafe { dm::handle(dm) }, op)?;
        let address = mapping.as_ptr().as_ptr().wrapping_add(start);
        core::mem::forget(mapping);
        Ok(address.cast())
    })
}
