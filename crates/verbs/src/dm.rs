// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory: memory in the device, so that an access of the device to it does not cross PCI (ibv_alloc_dm(3)).

use crate::brief::brief;
use crate::context::{Context, ContextInner, same_context};
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::remote::RemoteRegion;
use core::ops::Range;
use std::sync::Arc;
use uverbs_core::attr::AccessFlags;
use uverbs_core::control::{self, MrHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{DmParts, Driver, WireRemote, WireSge};

/// The kernel object; regions hold it, so it outlives them.
struct DmInner<D: Driver> {
    parts: Option<DmParts>,
    context: Arc<ContextInner<D>>,
    /// It belongs to another part of the program, which frees it.
    is_imported: bool,
}

brief!([D: Driver] DmInner<D>, |this| "DeviceMemory {:?} of {}", this.parts.as_ref().map(|parts| parts.handle.handle()), this.context.name());

impl<D: Driver> DmInner<D> {
    fn parts(&self) -> Result<&DmParts> {
        self.parts.as_ref().ok_or_else(|| Error::invalid("dm", "handle", "the device memory is freed"))
    }

    fn destroy(&mut self) -> Result<()> {
        let Some(DmParts { handle, mapping, start }) = self.parts.take() else { return Ok(()) };
        handle.destroy().map_err(|(handle, error)| {
            self.parts = Some(DmParts { handle, mapping, start });
            error
        })
    }
}

impl<D: Driver> Drop for DmInner<D> {
    fn drop(&mut self) {
        if self.is_imported {
            return;
        }
        if let Err(error) = self.destroy() {
            log::error!("{error}");
        }
    }
}

/// Memory in the device.
pub struct DeviceMemory<D: Driver = AnyDriver> {
    inner: Arc<DmInner<D>>,
}

brief!([D: Driver] DeviceMemory<D>, |this| "{:?}", this.inner);

impl<D: Driver> Context<D> {
    /// `ibv_alloc_dm`: memory in the device, aligned to `1 << log_align`.
    ///
    /// # Errors
    /// `Unsupported` if the device has no memory for programs; otherwise the kernel's error, such as `ENOMEM`.
    pub fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DeviceMemory<D>> {
        let context = self.inner();
        let parts = context.driver().alloc_dm(length, log_align)?;
        Ok(DeviceMemory::new(parts, context, false))
    }
}

impl<D: Driver> DeviceMemory<D> {
    pub(crate) fn new(parts: DmParts, context: &Arc<ContextInner<D>>, is_imported: bool) -> Self {
        Self { inner: Arc::new(DmInner { parts: Some(parts), context: context.clone(), is_imported }) }
    }

    /// The kernel's number of it, for [`Context::import_dm`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is freed.
    pub fn handle(&self) -> Result<u32> {
        Ok(self.inner.parts()?.handle.handle())
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.parts.as_ref().map_or(0, |parts| parts.handle.length())
    }

    /// Always `false`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_memcpy_to_dm`. Offset and length must be multiples of 4, because the device requires it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside, or not of multiples of 4.
    pub fn copy_to(&self, offset: u64, data: &[u8]) -> Result<()> {
        let parts = self.inner.parts()?;
        let at = place(parts, "memcpy_to_dm", offset, data.len())?;
        if parts.mapping.copy_in(at, data) {
            Ok(())
        } else {
            Err(unaligned("memcpy_to_dm", offset, data.len()))
        }
    }

    /// `ibv_memcpy_from_dm`. Offset and length must be multiples of 4, because the device requires it.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_from(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let parts = self.inner.parts()?;
        let length = out.len();
        let at = place(parts, "memcpy_from_dm", offset, length)?;
        if parts.mapping.copy_out(at, out) {
            Ok(())
        } else {
            Err(unaligned("memcpy_from_dm", offset, length))
        }
    }

    /// Frees it, also if it is imported, and reports a failure, which `Drop` would only log. `EBUSY` while a region is registered on it.
    ///
    /// # Errors
    /// `EBUSY` as above; otherwise the kernel's error.
    pub fn close(self) -> Result<(), (Self, Error)> {
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => inner.destroy().map_err(|error| (Self { inner: Arc::new(inner) }, error)),
            Err(inner) => Err((Self { inner }, Error::os("free_dm", "dm", uverbs_core::Errno::EBUSY))),
        }
    }
}

/// The offset of an access in the mapping. Fails if the access is not inside the memory.
fn place(parts: &DmParts, verb: &'static str, offset: u64, length: usize) -> Result<usize> {
    let inside = offset.checked_add(length as u64).is_some_and(|end| end <= parts.handle.length());
    let at =
        usize::try_from(offset).ok().filter(|_| inside).and_then(|offset| parts.start.checked_add(offset));
    at.ok_or_else(|| Error::invalid(verb, "length", format!("{length} bytes at {offset} are not inside")))
}

fn unaligned(verb: &'static str, offset: u64, length: usize) -> Error {
    Error::invalid(verb, "offset", format!("{length} bytes at {offset}: not a multiple of 4"))
}

/// A region on device memory. Entries and peers address its bytes by their offset from its start.
pub struct DmRegion<D: Driver = AnyDriver> {
    handle: Option<MrHandle>,
    length: u64,
    // Dropped after the region, which `Drop` deregisters.
    _dm: Arc<DmInner<D>>,
    _pd: Arc<PdInner<D>>,
}

brief!([D: Driver] DmRegion<D>, |this| "DmRegion {:?} of {} bytes in {:?}", this.handle.as_ref().map(MrHandle::handle), this.length, this._dm);

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_reg_dm_mr`: registers `range` of device memory. The restriction on entries of
    /// [`reg_mr_iova`](Self::reg_mr_iova) applies.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not inside, or memory of another context; otherwise the kernel's error.
    pub fn reg_dm_mr(
        &self,
        dm: &DeviceMemory<D>,
        range: Range<u64>,
        access: AccessFlags,
    ) -> Result<DmRegion<D>> {
        const VERB: &str = "reg_dm_mr";
        let context = self.inner().context();
        same_context(context, &dm.inner.context, VERB, "dm")?;
        let length = range.end.checked_sub(range.start);
        let length = length
            .ok_or_else(|| Error::invalid(VERB, "length", format!("{range:?} ends before its start")))?;
        let (pd, parts) = (self.inner().handle()?, dm.inner.parts()?);
        let handle =
            control::dm::reg_mr(context.core_support(), pd, &parts.handle, range.start, length, access)?;
        Ok(DmRegion { handle: Some(handle), length, _dm: dm.inner.clone(), _pd: self.inner().clone() })
    }
}

impl<D: Driver> DmRegion<D> {
    /// Local key, for scatter/gather entries.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.handle.as_ref().map_or(0, MrHandle::lkey)
    }

    /// Remote key, for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.handle.as_ref().map_or(0, MrHandle::rkey)
    }

    /// A scatter/gather entry of these bytes, in the driver's own form.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region.
    pub fn sge(&self, range: Range<u64>) -> Result<D::Sge> {
        let wrong = || Error::invalid("sge", "range", format!("{range:?} of {} bytes", self.length));
        let length =
            range.end.checked_sub(range.start).filter(|_| range.end <= self.length).ok_or_else(wrong)?;
        let length = u32::try_from(length).map_err(|_| wrong())?;
        D::Sge::new(range.start, length, self.lkey()).map_err(|_| wrong())
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
        Ok(D::Remote::new(offset, self.rkey()))
    }

    /// The description of these bytes for a peer, which can be sent over the network.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region.
    pub fn remote_region(&self, range: Range<u64>) -> Result<RemoteRegion> {
        RemoteRegion::new(0, self.length, self.rkey())?.slice(range)
    }

    /// Deregisters it and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// `EBUSY` as above; otherwise the kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<()> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        handle.destroy().map_err(|(_, error)| error)
    }
}

impl<D: Driver> Drop for DmRegion<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("{error}");
        }
    }
}
