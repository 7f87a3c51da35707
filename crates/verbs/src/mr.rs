// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions: registered memory, its keys, and safe access to memory that a peer may write at the same time
//! (ibv_reg_mr(3), ibv_rereg_mr(3), ibv_advise_mr(3)).
//!
//! A region owns its buffer. Its type determines which access it gives to the buffer: a [`Private`] region (no remote
//! write, no remote atomics, no windows) lends `&[u8]`. An [`Exposed`] region does not, because a peer may write at any
//! time. It copies data in and out ([`uverbs_core::sync::copy`]), and lends words of 8 bytes as atomics, the size of
//! remote atomics. It lends no atomics of another size, because concurrent atomic accesses of two sizes to the same
//! bytes are undefined behaviour.
//!
//! This file has the registration and the keys, `memory` the access of this process to the bytes.
//!
//! ```compile_fail,E0599
//! use uverbs::{Driver, MemoryRegion, PageBuf};
//! fn lend<D: Driver>(exposed: &MemoryRegion<PageBuf, Exposed, D>) -> &[u8] {
//!     exposed.as_slice()
//! }
//! ```
//! ```compile_fail,E0599
//! use uverbs::{Driver, MemoryRegion, PageBuf};
//! fn bytes<D: Driver>(exposed: &MemoryRegion<PageBuf, Exposed, D>) {
//!     exposed.atomics(0..8);
//! }
//! ```
#![expect(unsafe_code)]
// UNSAFETY: registers memory, and promises that a region can be sent to and shared by threads.

mod memory;

pub use memory::WritableShared;

use crate::buf::{NoBuf, StableBuf};
use crate::context::same_context;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::remote::RemoteRegion;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, AdviseFlags, MrAdvice};
use uverbs_core::control::mr::{MrRange, Rereg};
use uverbs_core::control::{self, MrHandle};
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{Driver, WireRemote, WireSge};
use uverbs_core::wr::{IbvMr, Sge};

/// Only this process writes the region, and the device for work requests that this process posts.
#[derive(Clone, Copy, Debug)]
pub struct Private;
/// Peers may write the region at any moment.
#[derive(Clone, Copy, Debug)]
pub struct Exposed;

/// The rights by which a peer can write.
const EXPOSING: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC).union(AccessFlags::MW_BIND);

/// A registration that failed, with the buffer.
///
/// It converts to [`Error`], so a function that returns `Result<_, Error>` uses `?` on a registration.
#[non_exhaustive]
pub struct RegError<B> {
    /// The buffer. `None` if the kernel's answer was invalid (`EPROTO`): the kernel may have registered the memory,
    /// which is leaked then.
    pub buf: Option<B>,
    /// The reason.
    pub error: Error,
}

impl<B> fmt::Debug for RegError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for RegError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<B> core::error::Error for RegError<B> {}

impl<B> From<RegError<B>> for Error {
    fn from(failed: RegError<B>) -> Self {
        failed.error
    }
}

impl<B> From<RegError<B>> for std::io::Error {
    fn from(failed: RegError<B>) -> Self {
        failed.error.into()
    }
}

/// A registered buffer.
///
/// The region owns the buffer. Memory that peers may access is copied in and out; memory of a
/// [private](ProtectionDomain::reg_private) region is lent as a slice.
/// ```
/// use uverbs::attr::AccessFlags;
/// use uverbs::{Context, PageBuf, mlx5::Mlx5};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let pd = context.alloc_pd()?;
/// let shared = pd.reg_mr(PageBuf::new(8192)?, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
/// shared.write_at(4096, b"for the peer")?;
/// // The peer gets this description, and reads by it.
/// let region = shared.remote_region(4096..8192)?;
/// assert_eq!((region.len(), region.rkey()), (4096, shared.rkey()));
///
/// let mut private = pd.reg_private(PageBuf::new(4096)?, AccessFlags::LOCAL_WRITE)?;
/// private.as_mut_slice()[..5].copy_from_slice(b"hello");
/// assert_eq!(private.slice(0..5)?, b"hello");
/// // An entry of a work request names a range of the region.
/// let entry = private.sge(0..5)?;
/// # let _ = entry;
/// # Ok(())
/// # }
/// ```
pub struct MemoryRegion<B: StableBuf, A = Exposed, D: Driver = AnyDriver> {
    handle: Option<MrHandle>,
    /// `None` only while it is being taken out.
    buf: Option<B>,
    /// Bytes of the buffer, which is at `raw.addr`; 0 for a dma-buf.
    mapped: usize,
    /// The address that sges and peers use for the first byte.
    iova: u64,
    raw: Box<IbvMr>,
    pd: Arc<PdInner<D>>,
    _access: PhantomData<A>,
}

// SAFETY: the pointers in `raw` are NULL, except the address of the buffer, which is `Send` and is moved with this
// value.
unsafe impl<D: Driver, B: StableBuf, A> Send for MemoryRegion<B, A, D> {}
// SAFETY: through `&` the memory is reached by its address: a private region lends `&[u8]`; an exposed one lends
// atomics of one size, and copies by primitives that are not accesses of the Rust program. The owner `B`, which need
// not be `Sync`, is not accessed through `&`, not even by `Debug`.
unsafe impl<D: Driver, B: StableBuf, A> Sync for MemoryRegion<B, A, D> {}

impl<D: Driver, B: StableBuf, A> fmt::Debug for MemoryRegion<B, A, D> {
    /// Prints keys and bounds, but not the bytes, because peers may write them at the same time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("handle", &self.raw.handle)
            .field("lkey", &self.raw.lkey)
            .field("rkey", &self.raw.rkey)
            .field("addr", &self.raw.addr)
            .field("length", &self.raw.length)
            .field("iova", &self.iova)
            .finish_non_exhaustive()
    }
}

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_reg_mr`: registers a buffer that peers may access with the rights `access`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a combination of rights that is not allowed; otherwise the kernel's error, such as
    /// `ENOMEM` above the limit of locked memory. The [`RegError`] has the buffer.
    pub fn reg_mr<B: StableBuf>(
        &self,
        buf: B,
        access: AccessFlags,
    ) -> Result<MemoryRegion<B, Exposed, D>, RegError<B>> {
        let iova = buf.ptr().as_ptr().expose_provenance() as u64;
        self.reg_mr_iova(buf, iova, access)
    }

    /// `ibv_reg_mr_iova`: the region's first byte has the address `iova` for scatter/gather entries and peers.
    ///
    /// In some cases the driver itself accesses memory at the address of an entry. In such a region this is not the
    /// address of the memory: see [`SendBatch::push`](crate::provider::SendBatch::push).
    ///
    /// # Errors
    /// [`Error::Invalid`] if `iova` and the buffer's address have different offsets in their pages; otherwise as
    /// [`reg_mr`](Self::reg_mr).
    pub fn reg_mr_iova<B: StableBuf>(
        &self,
        buf: B,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion<B, Exposed, D>, RegError<B>> {
        MemoryRegion::register(self.inner(), buf, iova, access)
    }

    /// `ibv_reg_mr`: registers a buffer that no peer can write; the region lends `&[u8]`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for rights by which a peer can write; otherwise as [`reg_mr`](Self::reg_mr).
    pub fn reg_private<B: StableBuf>(
        &self,
        buf: B,
        access: AccessFlags,
    ) -> Result<MemoryRegion<B, Private, D>, RegError<B>> {
        if let Err(error) = MemoryRegion::<B, Private, D>::check_access(access) {
            return Err(RegError { buf: Some(buf), error });
        }
        let iova = buf.ptr().as_ptr().expose_provenance() as u64;
        MemoryRegion::register(self.inner(), buf, iova, access)
    }

    /// `ibv_reg_dmabuf_mr`: memory of another device, which this process need not map. The restriction on entries of
    /// [`reg_mr_iova`](Self::reg_mr_iova) applies.
    ///
    /// # Errors
    /// `Unsupported` if the kernel's driver has no dma-buf regions; otherwise the kernel's error: `EINVAL` for a file that is no
    /// dma-buf. (The software NIC also takes a memfd with the seal `F_SEAL_SHRINK`.)
    pub fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion<NoBuf, Exposed, D>> {
        MemoryRegion::register_dmabuf(self.inner(), fd, offset, length, iova, access)
    }
}

impl<D: Driver, B: StableBuf, A> MemoryRegion<B, A, D> {
    fn from_handle(handle: MrHandle, buf: B, length: usize, iova: u64, pd: &Arc<PdInner<D>>) -> Self {
        let raw = IbvMr {
            context: ptr::null_mut(),
            pd: ptr::null_mut(),
            addr: buf.ptr().as_ptr().cast(),
            length,
            handle: handle.handle(),
            lkey: handle.lkey(),
            rkey: handle.rkey(),
        };
        Self {
            handle: Some(handle),
            mapped: buf.len(),
            buf: Some(buf),
            iova,
            raw: Box::new(raw),
            pd: pd.clone(),
            _access: PhantomData,
        }
    }

    fn register(pd: &Arc<PdInner<D>>, buf: B, iova: u64, access: AccessFlags) -> Result<Self, RegError<B>> {
        let range =
            MrRange { addr: buf.ptr().as_ptr().expose_provenance() as u64, length: buf.len() as u64, iova };
        let handle = pd.handle().and_then(|handle| {
            // SAFETY: `StableBuf` guarantees that the range is valid until `buf` is dropped, and the region drops `buf`
            // after it has deregistered the memory. Memory that peers may write is never lent as a reference
            // (`Private`, `Exposed`); memory that the device writes for a posted work request is subject to the
            // contract of the post.
            unsafe { pd.context().driver().reg_mr(pd.context().core_support(), handle, range, access) }
        });
        match handle {
            Ok(handle) => {
                let length = buf.len();
                Ok(Self::from_handle(handle, buf, length, iova, pd))
            }
            Err(error) => Err(RegError { buf: unless_unsure(buf, &error), error }),
        }
    }

    /// `ibv_advise_mr`: prefetches a range of an on-demand region.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region; `Unsupported` without on-demand paging; otherwise the
    /// kernel's error.
    pub fn advise(&self, advice: MrAdvice, flags: AdviseFlags, range: Range<usize>) -> Result<()> {
        self.check("advise_mr", &range)?;
        let length = u32::try_from(range.len()).map_err(|_| {
            Error::invalid("advise_mr", "length", format!("{} bytes are too many", range.len()))
        })?;
        let sge = Sge { addr: self.iova.wrapping_add(range.start as u64), length, lkey: self.lkey() };
        control::mr::advise(self.pd.handle()?, advice, flags, &[sge])
    }

    /// `ibv_rereg_mr`: changes the access rights and the domain, if they are given. The keys may change.
    ///
    /// On failure the region may be unusable, and must still be closed (ibv_rereg_mr(3)).
    ///
    /// # Errors
    /// `Unsupported` where the kernel's driver can't change regions; [`Error::Invalid`] for a domain of another
    /// context; otherwise the kernel's error.
    pub fn rereg(&mut self, pd: Option<&ProtectionDomain<D>>, access: Option<AccessFlags>) -> Result<()>
    where
        A: WritableShared,
    {
        if let Some(pd) = pd {
            same_context(self.pd.context(), pd.inner().context(), "rereg_mr", "pd")?;
        }
        let parent = pd.map(|pd| pd.inner().handle()).transpose()?;
        self.rereg_with(&Rereg { range: None, pd: parent, access })?;
        if let Some(pd) = pd {
            self.pd = pd.inner().clone();
        }
        Ok(())
    }

    /// `ibv_rereg_mr`: registers `buf` instead of the present buffer, and returns the present buffer.
    ///
    /// # Errors
    /// `Unsupported` if the kernel's driver can't change regions; otherwise the kernel's error. The [`RegError`] has
    /// `buf`. The region may be unusable then, and must still be closed.
    pub fn rereg_buf(&mut self, buf: B) -> Result<B, RegError<B>> {
        let Some(old) = self.buf.take() else {
            let error = Error::invalid("rereg_mr", "mr", "the region is deregistered");
            return Err(RegError { buf: Some(buf), error });
        };
        let addr = buf.ptr().as_ptr().expose_provenance() as u64;
        let range = MrRange { addr, length: buf.len() as u64, iova: addr };
        if let Err(error) = self.rereg_with(&Rereg { range: Some(range), pd: None, access: None }) {
            self.buf = Some(old);
            return Err(RegError { buf: unless_unsure(buf, &error), error });
        }
        self.iova = addr;
        self.mapped = buf.len();
        (self.raw.addr, self.raw.length) = (buf.ptr().as_ptr().cast(), self.mapped);
        self.buf = Some(buf);
        Ok(old)
    }

    fn rereg_with(&mut self, change: &Rereg<'_>) -> Result<()> {
        let support = self.pd.context().core_support();
        let handle = self
            .handle
            .as_mut()
            .ok_or_else(|| Error::invalid("rereg_mr", "mr", "the region is deregistered"))?;
        // SAFETY: the callers keep the buffers of both ranges until the kernel has answered, and after that the region
        // keeps the buffer that is registered. The rights of an exposed region may be extended, because it never lends
        // references to its bytes.
        unsafe { handle.rereg(support, change, Uhw::none()) }?;
        self.raw.lkey = handle.lkey();
        self.raw.rkey = handle.rkey();
        Ok(())
    }

    /// The kernel's number of it, for [`ProtectionDomain::import_mr`].
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.raw.handle
    }

    /// Local key, for scatter/gather entries.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.raw.lkey
    }

    /// Remote key, for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.raw.rkey
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address that scatter/gather entries and peers use for the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// The pointer for C's lists and builders; valid as long as this region lives.
    #[must_use]
    pub fn as_raw(&self) -> *const IbvMr {
        &raw const *self.raw
    }

    /// A scatter/gather entry of these bytes, in the driver's own form.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region, or longer than 2^31 bytes.
    pub fn sge(&self, range: Range<usize>) -> Result<D::Sge> {
        self.check("sge", &range)?;
        let wrong = |_| Error::invalid("sge", "length", format!("{} bytes are too many", range.len()));
        let length = u32::try_from(range.len()).map_err(|_| wrong(()))?;
        D::Sge::new(self.iova.wrapping_add(range.start as u64), length, self.lkey()).map_err(|_| wrong(()))
    }

    /// The address and key by which a peer accesses the bytes from `offset` on, in the driver's format.
    ///
    /// For a peer in another process, send [`remote_region`](Self::remote_region).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no byte at `offset`. (Offset 0 of an empty region is valid.)
    pub fn remote(&self, offset: usize) -> Result<D::Remote> {
        if offset >= self.len() && offset > 0 {
            let reason = format!("{offset} is outside the region's {} bytes", self.len());
            return Err(Error::invalid("remote", "offset", reason));
        }
        Ok(D::Remote::new(self.iova.wrapping_add(offset as u64), self.rkey()))
    }

    /// The description of these bytes for a peer, which can be sent over the network.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is not inside the region.
    pub fn remote_region(&self, range: Range<usize>) -> Result<RemoteRegion> {
        self.check("remote_region", &range)?;
        RemoteRegion::new(self.iova.wrapping_add(range.start as u64), range.len() as u64, self.rkey())
    }

    /// Deregisters the region and returns the buffer. On failure (`EBUSY`: a window is bound to it), returns the
    /// region.
    ///
    /// # Errors
    /// `EBUSY` as above; otherwise the kernel's error.
    pub fn close(mut self) -> Result<B, (Self, Error)> {
        let Some(handle) = self.handle.take() else {
            return Err((self, Error::invalid("dereg_mr", "mr", "the region is already deregistered")));
        };
        match (handle.destroy(), self.buf.take()) {
            (Ok(()), Some(buf)) => Ok(buf),
            (Err((handle, error)), buf) => {
                self.handle = Some(handle);
                self.buf = buf;
                Err((self, error))
            }
            (Ok(()), None) => Err((self, Error::invalid("dereg_mr", "mr", "the buffer was leaked"))),
        }
    }

    fn check(&self, verb: &'static str, range: &Range<usize>) -> Result<()> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::invalid(
                verb,
                "range",
                format!("{range:?} is outside the region's {} bytes", self.len()),
            ));
        }
        Ok(())
    }
}

/// The buffer, unless the kernel's answer was invalid: then the memory may be registered, so the buffer is leaked.
fn unless_unsure<B: StableBuf>(buf: B, error: &Error) -> Option<B> {
    if error.errno() == Errno::EPROTO {
        log::error!("{error}; {} bytes that the device may use are leaked", buf.len());
        core::mem::forget(buf);
        return None;
    }
    Some(buf)
}

impl<D: Driver> MemoryRegion<NoBuf, Exposed, D> {
    fn register_dmabuf(
        pd: &Arc<PdInner<D>>,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        let bytes = usize::try_from(length)
            .map_err(|_| Error::invalid("reg_dmabuf_mr", "length", format!("{length} bytes are too many")))?;
        let support = pd.context().core_support();
        let handle = control::mr::reg_dmabuf(support, pd.handle()?, fd, offset, length, iova, access)?;
        Ok(Self::from_handle(handle, NoBuf, bytes, iova, pd))
    }
}

impl<D: Driver, B: StableBuf> MemoryRegion<B, Private, D> {
    /// Refuses rights by which a peer can write.
    fn check_access(access: AccessFlags) -> Result<()> {
        if access.intersects(EXPOSING) {
            return Err(Error::invalid(
                "reg_mr",
                "access",
                format!("{:?} lets peers write; a private region can't have it", access & EXPOSING),
            ));
        }
        Ok(())
    }
}

impl<D: Driver, B: StableBuf, A> Drop for MemoryRegion<B, A, D> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        if let Err((handle, error)) = handle.destroy() {
            log::error!("mr with lkey {:#x}: {error}; its memory is leaked", self.raw.lkey);
            // The device may still access the buffer.
            core::mem::forget((handle, self.buf.take()));
        }
    }
}
