// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory (MEMIC): memory in the device, mapped into this process. It is allocated here, or imported.
#![expect(unsafe_code)]
// UNSAFETY: importing names device memory of another owner by its handle.

use super::Mlx5;
use crate::control::calls;
use std::os::fd::OwnedFd;
use uverbs_core::Errno;
use uverbs_core::control::{self, DmHandle, dmabuf};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::DeviceMapping;
use uverbs_core::provider::DmParts;
use uverbs_uapi::mlx5::MLX5_IB_MMAP_DEVICE_MEM;

pub(super) fn alloc(mlx5: &Mlx5, length: u64, log_align: u32) -> Result<DmParts> {
    let (handle, start, page) = calls::alloc_dm(&mlx5.kernel, length, log_align)?;
    match map(mlx5, start, page, length) {
        Ok((mapping, start)) => Ok(DmParts { handle, mapping, start }),
        Err(errno) => {
            let _ = handle.destroy();
            Err(error(mlx5, "alloc_dm", errno))
        }
    }
}

/// Imports device memory by its kernel handle.
///
/// # Safety
/// As [`control::dm::import`].
pub(super) unsafe fn import(mlx5: &Mlx5, handle: u32) -> Result<DmParts> {
    const VERB: &str = "import_dm";
    let (start, page, length) = calls::query_dm(&mlx5.kernel, handle)?;
    // SAFETY: the caller meets the contract of `control::dm::import` (contract of this function).
    let handle = unsafe { control::dm::import(&mlx5.kernel, handle, length) }?;
    let (mapping, start) = map(mlx5, start, page, length).map_err(|errno| error(mlx5, VERB, errno))?;
    Ok(DmParts { handle, mapping, start })
}

/// The memory as a dma-buf.
pub(super) fn export(mlx5: &Mlx5, dm: &DmHandle) -> Result<OwnedFd> {
    let (_, page, _) = calls::query_dm(&mlx5.kernel, dm.handle())?;
    dmabuf::export(&mlx5.kernel, calls::mmap_offset(MLX5_IB_MMAP_DEVICE_MEM, page.into()))
}

fn error(mlx5: &Mlx5, verb: &'static str, errno: Errno) -> Error {
    Error::os(verb, format!("device memory of {}", mlx5.kernel.name()), errno)
}

/// Maps the `length` bytes at offset `start` of a page. Returns the mapping, and the offset of the first byte in it.
pub(super) fn map(mlx5: &Mlx5, start: u64, page: u16, length: u64) -> Result<(DeviceMapping, usize), Errno> {
    let page_bytes = u64::from(uverbs_core::kernel::page_size());
    // The kernel does not return the address in the device, only the offset in its first page.
    let start = start & (page_bytes - 1);
    let bytes = length
        .checked_add(start)
        .and_then(|end| end.checked_next_multiple_of(page_bytes))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or(Errno::EINVAL)?;
    let offset = calls::mmap_offset(MLX5_IB_MMAP_DEVICE_MEM, page.into());
    Ok((DeviceMapping::map(&*mlx5.kernel, offset, bytes)?, start as usize))
}
