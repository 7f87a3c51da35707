// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbell pages that a program writes itself (mlx5dv_devx_alloc_uar(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::mlx5dv_devx_uar;
use crate::arg::Arg;
use crate::errno::{Errno, minus_one, pointer};
use core::ffi::c_int;
use std::os::fd::IntoRawFd as _;
use uverbs_mlx5::dv::Uar;
use uverbs_uapi::mlx5::{MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC};

/// Of mlx5_api.h: an uncached page of its own. The kernel does not know it.
const MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED: u64 = 1 << 31;

/// C's part, and the page.
#[repr(C)]
pub(crate) struct DevxUar {
    public: mlx5dv_devx_uar,
    page: Uar,
}

/// # Safety
/// As in mlx5dv_devx_alloc_uar(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_alloc_uar(
    context: Arg<'_, ibv_context>,
    flags: u32,
) -> *mut mlx5dv_devx_uar {
    pointer(|| {
        let open = super::of(context)?;
        let blueflame = match flags.into() {
            MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF => true,
            // Each uncached page is a page of its own.
            MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC | MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED => false,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let page = open.driver.alloc_uar(blueflame)?;
        let public = mlx5dv_devx_uar {
            reg_addr: page.reg_addr(),
            base_addr: page.base_addr(),
            page_id: page.page_id(),
            mmap_off: page.mmap_offset().cast_signed(),
            comp_mask: 0,
        };
        Ok(Box::into_raw(Box::new(DevxUar { public, page })).cast())
    })
}

/// # Safety
/// As in mlx5dv_devx_uar_export_dmabuf_fd(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_uar_export_dmabuf_fd(uar: Option<&DevxUar>) -> c_int {
    minus_one(|| Ok(uar.ok_or(Errno::EINVAL)?.page.export_dmabuf()?.into_raw_fd()))
}

/// # Safety
/// As in mlx5dv_devx_free_uar(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_free_uar(uar: Option<Box<DevxUar>>) {
    drop(uar);
}
