// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dma-buf without a GPU: a memfd, which /dev/udmabuf exports on a machine. A software NIC accepts the memfd itself.

use anyhow::{Context as _, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// `struct udmabuf_create` of <linux/udmabuf.h>.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

nix::ioctl_write_ptr!(
    /// `UDMABUF_CREATE`
    ///
    /// # Safety
    /// `data` points to a struct that can be read.
    udmabuf_create,
    b'u',
    0x42,
    UdmabufCreate
);

/// A memfd with at least this size, a multiple of 4096, which does not change.
///
/// # Errors
/// There is too little memory.
pub fn memfd(len: u64) -> Result<File> {
    let file = File::from(memfd_create(c"dmabuf", MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(len.next_multiple_of(4096))?;
    // The size of a udmabuf must not change.
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_SHRINK))?;
    Ok(file)
}

/// A dma-buf of the memfd.
///
/// # Errors
/// The kernel has no /dev/udmabuf, or the process may not open it.
pub fn export(file: &File) -> Result<OwnedFd> {
    const PATH: &str = "/dev/udmabuf";
    let device = File::options().read(true).write(true).open(PATH).context(PATH)?;
    let size = file.metadata()?.len();
    let create = UdmabufCreate { memfd: file.as_raw_fd().try_into()?, flags: 0, offset: 0, size };
    #[expect(unsafe_code, reason = "ioctl(2)")]
    // SAFETY: `device` is open, and `create` has the layout of the kernel's struct. The kernel only reads it.
    let fd = unsafe { udmabuf_create(device.as_raw_fd(), &raw const create) }.context("UDMABUF_CREATE")?;
    #[expect(unsafe_code, reason = "a new file descriptor")]
    // SAFETY: UDMABUF_CREATE returns a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
