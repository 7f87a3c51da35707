// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the device as a dma-buf (ibv_dm_export_dmabuf_fd(3)).

use super::{Result, device_error};
use crate::error::Error;
use crate::kernel::{Command, Kernel};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs_uapi::ids::{
    UVERBS_ATTR_ALLOC_DMABUF_HANDLE, UVERBS_ATTR_ALLOC_DMABUF_PGOFF, UVERBS_METHOD_DMABUF_ALLOC,
    UVERBS_OBJECT_DMABUF,
};

/// Exports the memory that the device file maps at an offset. The dma-buf stays valid until it is closed and no region uses
/// it, or until the memory is freed.
///
/// # Errors
/// The kernel's error; [`Error::Unsupported`] from kernels before 2026.
pub fn export(kernel: &Arc<dyn Kernel>, mmap_offset: u64) -> Result<OwnedFd> {
    const VERB: &str = "export_dmabuf_fd";
    let mut command = Command::<2>::new(UVERBS_OBJECT_DMABUF, UVERBS_METHOD_DMABUF_ALLOC);
    command
        .fd_new_inner(UVERBS_ATTR_ALLOC_DMABUF_HANDLE)
        .u64(UVERBS_ATTR_ALLOC_DMABUF_PGOFF, mmap_offset)
        .run(&**kernel)
        .map_err(|errno| device_error(VERB, &**kernel, errno))?;
    let fd = command.take_fd(UVERBS_ATTR_ALLOC_DMABUF_HANDLE);
    fd.ok_or_else(|| Error::protocol(VERB, "no file descriptor"))
}
