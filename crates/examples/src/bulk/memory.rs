// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a transfer, and the pattern by which the receiver checks it.
//!
//! A dma-buf is memory of a driver, usually of a GPU. This program has none, so it makes one of a memfd: by /dev/udmabuf
//! on a machine; a software NIC accepts the memfd itself, which must be sealed. The process reads it as a file.

use super::Plan;
use anyhow::{Context as _, Result, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use uverbs::buf::NoBuf;
use uverbs::{Driver, MemoryRegion, PageBuf, ProtectionDomain, RemoteRegion};
use uverbs::{Exposed, attr::AccessFlags};

/// Bytes at the front of each block that identify its batch and block.
pub const STAMP: usize = 8;

/// Registered memory of one NIC.
#[derive(Debug)]
pub enum Memory<D: Driver> {
    /// Of this process.
    Pages(MemoryRegion<PageBuf, Exposed, D>),
    /// A dma-buf, which this process can read as a file.
    DmaBuf {
        /// Its registration.
        region: MemoryRegion<NoBuf, Exposed, D>,
        /// Its bytes.
        file: File,
    },
}

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

/// A dma-buf of the memfd.
fn export(file: &File, size: u64) -> Result<OwnedFd> {
    const PATH: &str = "/dev/udmabuf";
    let device = File::options().read(true).write(true).open(PATH).context(PATH)?;
    let create = UdmabufCreate { memfd: file.as_raw_fd().try_into()?, flags: 0, offset: 0, size };
    #[expect(unsafe_code, reason = "ioctl(2)")]
    // SAFETY: `device` is open, and `create` has the layout of the kernel's struct. The kernel only reads it.
    let fd = unsafe { udmabuf_create(device.as_raw_fd(), &raw const create) }.context("UDMABUF_CREATE")?;
    #[expect(unsafe_code, reason = "a new file descriptor")]
    // SAFETY: UDMABUF_CREATE returns a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl<D: Driver> Memory<D> {
    /// Memory of this process.
    ///
    /// # Errors
    /// There is too little memory, or it can't be registered.
    pub fn pages(pd: &ProtectionDomain<D>, len: usize, access: AccessFlags) -> Result<Self> {
        Ok(Self::Pages(pd.reg_mr(PageBuf::new(len)?, access | AccessFlags::LOCAL_WRITE)?))
    }

    /// A dma-buf. A software NIC accepts a memfd that cannot shrink.
    ///
    /// # Errors
    /// The kernel or the device has no dma-bufs.
    pub fn dma_buf(
        pd: &ProtectionDomain<D>,
        len: usize,
        access: AccessFlags,
        is_software: bool,
    ) -> Result<Self> {
        let file = File::from(memfd_create(c"bulk", MFdFlags::MFD_ALLOW_SEALING)?);
        let len = len.next_multiple_of(4096) as u64;
        file.set_len(len)?;
        // The size of a udmabuf must not change.
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_SHRINK))?;
        let exported = if is_software { None } else { Some(export(&file, len)?) };
        let fd = exported.as_ref().map_or(file.as_fd(), AsFd::as_fd);
        let region = pd.reg_dmabuf_mr(fd, 0, len, 0, access | AccessFlags::LOCAL_WRITE)?;
        Ok(Self::DmaBuf { region, file })
    }

    /// Whether it is a dma-buf.
    #[must_use]
    pub fn is_dma_buf(&self) -> bool {
        matches!(self, Self::DmaBuf { .. })
    }

    /// A range of it as an entry of a work request.
    ///
    /// # Errors
    /// It is not inside.
    pub fn sge(&self, offset: usize, len: usize) -> uverbs::Result<D::Sge> {
        match self {
            Self::Pages(region) => region.sge(offset..offset + len),
            Self::DmaBuf { region, .. } => region.sge(offset..offset + len),
        }
    }

    /// All of it, for the peer.
    ///
    /// # Errors
    /// Never: the range is the whole region.
    pub fn remote_region(&self) -> uverbs::Result<RemoteRegion> {
        match self {
            Self::Pages(region) => region.remote_region(0..region.len()),
            Self::DmaBuf { region, .. } => region.remote_region(0..region.len()),
        }
    }

    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Pages(region) => region.read_at(offset, out)?,
            Self::DmaBuf { file, .. } => file.read_exact_at(out, offset as u64)?,
        }
        Ok(())
    }

    fn write_at(&self, offset: usize, data: &[u8]) -> Result<()> {
        match self {
            Self::Pages(region) => region.write_at(offset, data)?,
            Self::DmaBuf { file, .. } => file.write_all_at(data, offset as u64)?,
        }
        Ok(())
    }

    /// Fills all blocks of an area with their pattern, or only their stamps if they had the pattern before.
    ///
    /// # Errors
    /// The memory can't be written.
    pub fn fill(&self, plan: &Plan, batch: u32, scratch: &mut Vec<u8>) -> Result<()> {
        for block in 0..plan.blocks {
            let len = if batch < plan.window { plan.block_size as usize } else { STAMP };
            pattern(scratch, plan, batch, block, len);
            self.write_at(plan.offset(batch, block), scratch)?;
        }
        Ok(())
    }

    /// Compares the blocks of a batch with their pattern.
    ///
    /// # Errors
    /// They differ.
    pub fn check(&self, plan: &Plan, batch: u32, scratch: &mut [Vec<u8>; 2]) -> Result<()> {
        let all = !plan.stamps_only || batch + 1 == plan.batches;
        let len = if all { plan.block_size as usize } else { STAMP };
        let [expected, got] = scratch;
        got.resize(len, 0);
        for block in 0..plan.blocks {
            pattern(expected, plan, batch, block, len);
            self.read_at(plan.offset(batch, block), got)?;
            if expected != got {
                let at = expected.iter().zip(got.iter()).position(|(a, b)| a != b);
                bail!("batch {batch}, block {block}: wrong data from byte {at:?} on");
            }
        }
        Ok(())
    }
}

/// The first bytes of a block: its batch, its number, and bytes that depend on its place.
fn pattern(out: &mut Vec<u8>, plan: &Plan, batch: u32, block: u32, len: usize) {
    out.clear();
    out.extend(batch.to_be_bytes());
    out.extend(block.to_be_bytes());
    let seed = plan.offset(batch, block) as u32 ^ block.wrapping_mul(0x9e37_79b9);
    let mut number = seed | 1;
    while out.len() < len {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend(number.to_be_bytes());
    }
    out.truncate(len);
}
