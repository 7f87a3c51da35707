// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory with mlx5's own options (mlx5dv_alloc_dm(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::attr::ibv_alloc_dm_attr;
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::mlx5dv_alloc_dm_attr;
use crate::abi::object::ibv_dm;
use crate::errno::{Errno, ensure, pointer};
use crate::object::dm;

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
