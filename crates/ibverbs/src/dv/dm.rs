// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory with mlx5's own options and operations (mlx5dv_alloc_dm(3), mlx5dv_dm_map_op_addr(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::attr::ibv_alloc_dm_attr;
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::mlx5dv_alloc_dm_attr;
use crate::abi::object::ibv_dm;
use crate::arg::Arg;
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
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_alloc_dm_attr>,
    mlx5_attr: Option<&mlx5dv_alloc_dm_attr>,
) -> *mut ibv_dm {
    pointer(|| {
        super::of(context)?;
        let mlx5_attr = mlx5_attr.ok_or(Errno::EINVAL)?;
        ensure(mlx5_attr.comp_mask == 0)?;
        if mlx5_attr.r#type != MEMIC {
            return Err(Errno::EOPNOTSUPP);
        }
        dm::alloc(context, attr)
    })
}

/// # Safety
/// As in ibv_dm_export_dmabuf_fd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: Arg<'_, ibv_dm>) -> c_int {
    minus_one(|| {
        let dm = super::of_object(dm)?;
        let file = dm.driver.export_dm(dm.object.own().handle())?;
        Ok(file.into_raw_fd())
    })
}

/// Maps a page of operations. As with rdma-core the mapping belongs to the program: it exists until the program ends it
/// by munmap(2).
///
/// # Safety
/// As in mlx5dv_dm_map_op_addr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dm_map_op_addr(dm: Arg<'_, ibv_dm>, op: u8) -> *mut c_void {
    pointer(|| {
        let dm = super::of_object(dm)?;
        let (mapping, start) = dm.driver.map_dm_operation(dm.object.own().handle(), op)?;
        let address = mapping.as_ptr().as_ptr().wrapping_add(start);
        core::mem::forget(mapping);
        Ok(address.cast())
    })
}
