// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of another part of the program, or of another process that shares the device file, by their kernel numbers
//! (ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3)).
//!
//! The exporter sends a duplicate of the device file, from which [`Context::import`] makes a context, and the numbers of
//! its objects (`handle`). Dropping an import changes nothing in the kernel (`ibv_unimport_pd`). `close` destroys the
//! object, for all that share it. The kernel does not tell the others; their later calls with its number fail with `ENOENT`,
//! or refer to a newer object with the same number. So the importer and the exporter must agree who destroys it, and
//! imports are `unsafe`.
#![expect(unsafe_code)]
// UNSAFETY: the owner of an imported object can destroy it at any time.

use crate::brief::brief;
use crate::context::Context;
use crate::dm::DeviceMemory;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::remote::RemoteRegion;
use core::ops::Range;
use std::sync::Arc;
use uverbs_core::control::{self, MrHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, WireRemote, WireSge};

impl<D: Driver> Context<D> {
    /// `ibv_import_pd`: the protection domain with this number. The kernel does not check the number until an object is
    /// created in the domain.
    ///
    /// # Safety
    /// The number is that of a domain of the same device file, whose owner permits this part of the program to use it, and
    /// which nothing destroys while posted work requests of its objects are executed.
    ///
    /// # Errors
    /// `Unsupported` for a driver whose kernel half does not report contexts; `ENOENT` if there is no such domain.
    pub unsafe fn import_pd(&self, handle: u32) -> Result<ProtectionDomain<D>> {
        let context = self.inner();
        // SAFETY: the owner of the domain permits its use (contract of this function).
        let handle = unsafe { context.driver().import_pd(handle) }?;
        Ok(ProtectionDomain::new(handle, context, true))
    }

    /// `ibv_import_dm`: the device memory with this number, mapped once more.
    ///
    /// # Safety
    /// The number is that of memory of the same device file, whose owner permits this part of the program to use it, and
    /// which nothing frees while posted work requests with regions on it are executed.
    ///
    /// # Errors
    /// `Unsupported` if the device has no memory for programs; `ENOENT` if there is no such memory.
    pub unsafe fn import_dm(&self, handle: u32) -> Result<DeviceMemory<D>> {
        let context = self.inner();
        // SAFETY: the owner of the memory permits its use (contract of this function).
        let parts = unsafe { context.driver().import_dm(handle) }?;
        Ok(DeviceMemory::new(parts, context, true))
    }
}

/// A region that another part of the program registered. It has no buffer: the memory is that of the exporter, at the
/// addresses that the exporter chose.
pub struct ImportedRegion<D: Driver = AnyDriver> {
    handle: MrHandle,
    length: u64,
    addr: u64,
    pd: Arc<PdInner<D>>,
}

brief!([D: Driver] ImportedRegion<D>, |this| "ImportedRegion {} of {} bytes, {}", this.handle.handle(), this.length, this.pd.context().name());

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_import_mr`: the region with this number.
    ///
    /// # Safety
    /// The number is that of a region of the same device file, whose owner permits this part of the program to use it, and
    /// which nothing deregisters while posted work requests name it.
    ///
    /// # Errors
    /// The kernel's error, `ENOENT` if there is no such region; `Unsupported` if it does not report the address.
    pub unsafe fn import_mr(&self, handle: u32) -> Result<ImportedRegion<D>> {
        let pd = self.inner();
        // SAFETY: the owner of the region permits its use (contract of this function).
        let (handle, info) = unsafe { control::mr::import(pd.context().kernel(), handle) }?;
        let addr = info.iova.ok_or_else(|| Error::unsupported("import_mr", "a kernel without addresses"))?;
        Ok(ImportedRegion { handle, length: info.length, addr, pd: pd.clone() })
    }
}

impl<D: Driver> ImportedRegion<D> {
    /// Local key, for scatter/gather entries.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.handle.lkey()
    }

    /// Remote key, for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.handle.rkey()
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address that scatter/gather entries and peers use for the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// A scatter/gather entry of these bytes, in the driver's own form. The restriction on entries of
    /// [`reg_mr_iova`](ProtectionDomain::reg_mr_iova) applies, because the memory need not be mapped in this process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region.
    pub fn sge(&self, range: Range<u64>) -> Result<D::Sge> {
        let wrong = || Error::invalid("sge", "range", format!("{range:?} of {} bytes", self.length));
        let length =
            range.end.checked_sub(range.start).filter(|_| range.end <= self.length).ok_or_else(wrong)?;
        let length = u32::try_from(length).map_err(|_| wrong())?;
        D::Sge::new(self.addr.wrapping_add(range.start), length, self.lkey()).map_err(|_| wrong())
    }

    /// The address and key by which a peer accesses the bytes from `offset` on, in the driver's format.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no byte at `offset`.
    pub fn remote(&self, offset: u64) -> Result<D::Remote> {
        if offset >= self.length {
            let reason = format!("{offset} is outside the region's {} bytes", self.length);
            return Err(Error::invalid("remote", "offset", reason));
        }
        Ok(D::Remote::new(self.addr.wrapping_add(offset), self.rkey()))
    }

    /// The description of these bytes for a peer, which can be sent over the network.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region.
    pub fn remote_region(&self, range: Range<u64>) -> Result<RemoteRegion> {
        RemoteRegion::new(self.addr, self.length, self.rkey())?.slice(range)
    }

    /// Deregisters the region, also for its exporter.
    ///
    /// # Errors
    /// The kernel's error: `EBUSY` while a window is bound to it, `ENOENT` if the exporter has deregistered it.
    pub fn close(self) -> Result<(), (Self, Error)> {
        let Self { handle, length, addr, pd } = self;
        handle.destroy().map_err(|(handle, error)| (Self { handle, length, addr, pd }, error))
    }
}
