// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows: work requests grant and revoke access of peers to a part of a region (ibv_alloc_mw(3), ibv_bind_mw(3)).
//!
//! A window can be bound to an [`Exposed`] region only. The device accepts any region of the domain: on hardware
//! `MW_BIND` is not a property of a key, so a window over a region that lends `&[u8]` would let a peer write to
//! borrowed memory.
//!
//! ```compile_fail,E0308
//! use uverbs::{Driver, MemoryRegion, MemoryWindow, PageBuf, Private, attr::AccessFlags};
//! fn open<D: Driver>(mw: &MemoryWindow<D>, mr: &MemoryRegion<PageBuf, Private, D>) {
//!     mw.bind(mr, mr.addr(), 4096, AccessFlags::REMOTE_WRITE);
//! }
//! ```
//! Posting a bind is `unsafe`, because the key of a region that was deregistered may belong to another region:
//!
//! ```compile_fail,E0133
//! use uverbs::{Exclusive, Mlx5, PostError, Rc, provider::op::MwBind, raw::SendQueue};
//! fn post(sq: &mut SendQueue<Rc, Exclusive, Mlx5>, bind: MwBind) -> Result<(), PostError> {
//!     sq.post(1).bind_mw(bind)
//! }
//! ```

use crate::brief::brief;
use crate::buf::StableBuf;
use crate::mr::{Exposed, MemoryRegion};
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use core::ptr;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, MwType};
use uverbs_core::control::{self, MwHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::Driver;
use uverbs_core::provider::op::MwBind;
use uverbs_core::wr::IbvMw;

/// A memory window.
pub struct MemoryWindow<D: Driver = AnyDriver> {
    handle: Option<MwHandle>,
    raw: Box<IbvMw>,
    mw_type: MwType,
    pd: Arc<PdInner<D>>,
}

brief!([D: Driver] MemoryWindow<D>, |this| "MemoryWindow {:?} of {}", this.handle.as_ref().map(MwHandle::handle), this.pd.context().name());

// SAFETY: the raw pointers in the C struct are NULL and never dereferenced.
#[expect(unsafe_code, reason = "NULL pointers of a C struct")]
unsafe impl<D: Driver> Send for MemoryWindow<D> {}
// SAFETY: the raw pointers in the C struct are NULL and never dereferenced; no method changes it through `&`.
#[expect(unsafe_code, reason = "NULL pointers of a C struct")]
unsafe impl<D: Driver> Sync for MemoryWindow<D> {}

/// The next key of a window or region: the index, which the device has assigned, is unchanged; the low 8 bits, which
/// the owner selects, are incremented (`ibv_inc_rkey`).
#[must_use]
pub const fn inc_rkey(rkey: u32) -> u32 {
    (rkey & 0xffff_ff00) | (rkey.wrapping_add(1) & 0xff)
}

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_alloc_mw`: allocates a window, which is bound to nothing.
    ///
    /// # Errors
    /// `Unsupported` if the device has no windows of this type; otherwise the kernel's error.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow<D>> {
        let pd = self.inner();
        let handle = control::mw::alloc(pd.handle()?, mw_type, Uhw::none())?;
        let raw = IbvMw {
            context: ptr::null_mut(),
            pd: ptr::null_mut(),
            rkey: handle.rkey(),
            handle: handle.handle(),
            mw_type: mw_type as u32,
        };
        Ok(MemoryWindow { handle: Some(handle), raw: Box::new(raw), mw_type, pd: pd.clone() })
    }
}

impl<D: Driver> MemoryWindow<D> {
    /// The key that peers use after a bind has completed.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.raw.rkey
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner<D>> {
        &self.pd
    }

    /// The type: 1 or 2.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The pointer for C's lists and builders; valid as long as this window lives.
    #[must_use]
    pub fn as_raw(&self) -> *const IbvMw {
        &raw const *self.raw
    }

    /// The arguments of a bind to `length` bytes of `mr` from `addr`, to be posted by `bind_mw`.
    ///
    /// The window's new key is the next one (`ibv_inc_rkey`). For a type 1 window this is required, as with
    /// `ibv_bind_mw`; for type 2 the owner may choose other low 8 bits of [`MwBind::rkey`]. After posting the bind,
    /// call [`bound`](Self::bound).
    #[must_use]
    pub fn bind<B: StableBuf>(
        &self,
        mr: &MemoryRegion<B, Exposed, D>,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> MwBind {
        MwBind {
            mw_rkey: self.raw.rkey,
            mw_type: self.mw_type as u32,
            rkey: inc_rkey(self.raw.rkey),
            mr_lkey: mr.lkey(),
            addr,
            length,
            access: access.bits(),
        }
    }

    /// Stores the key that a posted bind gives to the window.
    pub fn bound(&mut self, bind: &MwBind) {
        self.raw.rkey = bind.rkey;
    }

    /// Deallocates it and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), Error> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        handle.destroy().map_err(|(_, error)| error)
    }
}

impl<D: Driver> Drop for MemoryWindow<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::inc_rkey;

    #[test]
    fn inc_rkey_changes_only_the_low_byte() {
        assert_eq!(inc_rkey(0x1234_56fe), 0x1234_56ff);
        assert_eq!(inc_rkey(0x1234_56ff), 0x1234_5600);
        assert_eq!(inc_rkey(u32::MAX), 0xffff_ff00);
    }
}
