// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects and queries of the kernel's mlx5 driver that verbs lack (mlx5dv_pp_alloc(3), mlx5dv_alloc_var(3),
//! mlx5dv_query_port(3), mlx5dv_get_data_direct_sysfs_path(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::{mlx5dv_pp, mlx5dv_var};
use crate::arg::Arg;
use crate::errno::{Errno, ensure, number, pointer};
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use uverbs_mlx5::devx;
use uverbs_mlx5::dv::{PacingEntry, VirtioPage};
use uverbs_uapi::mlx5::cmds::MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX;

/// C's part, and the entry.
#[repr(C)]
pub(crate) struct Pacing {
    public: mlx5dv_pp,
    _entry: PacingEntry,
}

/// C's part, and the page.
#[repr(C)]
pub(crate) struct Var {
    pub(super) public: mlx5dv_var,
    pub(super) page: VirtioPage,
}

/// # Safety
/// As in mlx5dv_pp_alloc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_pp_alloc(
    context: Arg<'_, ibv_context>,
    pp_context_sz: usize,
    pp_context: *const c_void,
    flags: u32,
) -> *mut mlx5dv_pp {
    pointer(|| {
        let open = super::of(context)?;
        if flags & !MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: `pp_context` is NULL or valid for reads of `pp_context_sz` bytes (contract of the man page).
        let bytes = unsafe { devx::mailbox(pp_context, pp_context_sz) }?;
        let entry = open.driver.alloc_pacing_entry(bytes, flags)?;
        let public = mlx5dv_pp { index: entry.index() };
        Ok(Box::into_raw(Box::new(Pacing { public, _entry: entry })).cast())
    })
}

/// # Safety
/// As in mlx5dv_pp_alloc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_pp_free(pp: Option<Box<Pacing>>) {
    drop(pp);
}

/// Pages for the emulation of PCIe transactions, which a flag requests, are not supported.
///
/// # Safety
/// As in mlx5dv_alloc_var(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_alloc_var(
    context: Arg<'_, ibv_context>,
    flags: u32,
) -> *mut mlx5dv_var {
    pointer(|| {
        let open = super::of(context)?;
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let page = open.driver.alloc_virtio_page()?;
        Ok(new_var(page))
    })
}

pub(super) fn new_var(page: VirtioPage) -> *mut mlx5dv_var {
    let public = mlx5dv_var {
        page_id: page.page_id(),
        length: page.length(),
        mmap_off: page.mmap_offset().cast_signed(),
        comp_mask: 0,
    };
    Box::into_raw(Box::new(Var { public, page })).cast()
}

/// # Safety
/// As in mlx5dv_alloc_var(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_free_var(var: Option<Box<Var>>) {
    drop(var);
}

/// # Safety
/// As in mlx5dv_query_port(3); `info` has room for `info_len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_query_port(
    context: Arg<'_, ibv_context>,
    port_num: u32,
    info: *mut c_void,
    info_len: usize,
) -> c_int {
    number(|| {
        let open = super::of(context)?;
        // SAFETY: `info` is NULL or valid for writes of `info_len` bytes (contract of this function). The kernel writes
        // them, and they are not read here.
        let info = unsafe { devx::mailbox_mut(info, info_len) }?;
        Ok(open.driver.query_vport(port_num, info)?)
    })
}

/// # Safety
/// As in mlx5dv_get_data_direct_sysfs_path(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_get_data_direct_sysfs_path(
    context: Arg<'_, ibv_context>,
    buf: *mut c_char,
    buf_len: usize,
) -> c_int {
    number(|| {
        let open = super::of(context)?;
        ensure(!buf.is_null())?;
        let path = open.driver.data_direct_path(buf_len)?;
        let bytes = path.as_bytes_with_nul();
        ensure(bytes.len() <= buf_len)?;
        // SAFETY: `buf` is valid for writes of `buf_len` bytes (contract of the man page), which are enough (checked).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buf, bytes.len()) };
        Ok(())
    })
}
