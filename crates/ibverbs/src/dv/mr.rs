// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions of a dma-buf with mlx5's own flags (mlx5dv_reg_dmabuf_mr(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::object::ibv_pd;
use crate::arg::Arg;
use crate::errno::{Errno, pointer};
use crate::object::mr;
use core::ffi::c_int;
use uverbs_core::control::MrRange;
use uverbs_core::wr::IbvMr;
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT,
};

/// # Safety
/// As in mlx5dv_reg_dmabuf_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_reg_dmabuf_mr(
    pd: Arg<'_, ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut IbvMr {
    pointer(|| {
        let _used = super::of_object(pd)?;
        let flags = mlx5_access.cast_unsigned();
        if flags & !MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // Kernels before 2024 do not know the attribute, which a region without flags does not need.
        let driver_flags = (flags != 0).then_some((MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, flags));
        let range = MrRange { addr: offset, length: length as u64, iova };
        // SAFETY: `pd` is live, and `fd` is not closed during this call (contract of the man page).
        unsafe { mr::register_dmabuf(pd, fd, range, access.cast_unsigned(), driver_flags) }
    })
}
