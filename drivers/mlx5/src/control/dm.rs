// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocating device memory (MEMIC): memory in the device, mapped into this process.

use super::Mlx5;
use crate::control::calls;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::DeviceMapping;
use uverbs_core::provider::DmParts;
use uverbs_uapi::mlx5::MLX5_IB_MMAP_DEVICE_MEM;

pub(super) fn alloc(mlx5: &Mlx5, length: u64, log_align: u32) -> Result<DmParts> {
    const VERB: &str = "alloc_dm";
    let (handle, start, page) = calls::alloc_dm(&mlx5.kernel, length, log_align)?;
    let page_bytes = u64::from(calls::page_size());
    // The kernel does not return the address in the device, only the offset in its first page.
    let start = start & (page_bytes - 1);
    let mapped = usize::try_from((start + length).next_multiple_of(page_bytes))
        .map_err(|_| uverbs_core::Errno::EINVAL)
        .and_then(|bytes| {
            let offset = calls::mmap_offset(MLX5_IB_MMAP_DEVICE_MEM, page.into());
            DeviceMapping::map(&*mlx5.kernel, offset, bytes)
        });
    match mapped {
        Ok(mapping) => Ok(DmParts { handle, mapping, start: start as usize }),
        Err(errno) => {
            let _ = handle.destroy();
            Err(Error::os(VERB, format!("device memory of {}", mlx5.kernel.name()), errno))
        }
    }
}
