// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys without memory. [`MkeyRegion`](crate::MkeyRegion) gives them memory, and guarantees that it lives as long as the key
//! names it.

use crate::brief::brief;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, MkeyObject};

/// A key of the driver.
pub(crate) type Object<D> = Box<dyn MkeyObject<<D as Driver>::SendQueue>>;

/// An indirect key without memory (`mlx5dv_create_mkey`).
pub struct Mkey<D: Driver = AnyDriver> {
    /// `None` after its end. A post has a clone while it writes the work request.
    object: Option<Arc<Object<D>>>,
    /// The key with the low 8 bits of the last configuration.
    key: u32,
    pd: Arc<PdInner<D>>,
}

brief!([D: Driver] Mkey<D>, |this| "Mkey {:#x} of {}", this.key, this.pd.context().name());

/// The low 8 bits that the next key begins with, as in `assign_mkey_variant()` of the kernel. Each creation and each configuration counts,
/// so a new key rarely has a value of a former key with the same number. It can have one: the configurations of a key add 1 to its own bits.
static NEXT_TAG: AtomicU8 = AtomicU8::new(0);

impl<D: Driver> ProtectionDomain<D> {
    /// `mlx5dv_create_mkey`: creates an indirect key without memory, with room for a list of `max_entries`. An interleaved layout needs one
    /// entry more than it has parts.
    ///
    /// # Errors
    /// `Unsupported` if the device has no indirect keys, or if the context was opened without commands for the firmware (on mlx5, by
    /// [`Context::open_with`](crate::Context::open_with)); otherwise the kernel's error.
    pub fn create_mkey(&self, max_entries: u16) -> Result<Mkey<D>> {
        let pd = self.inner();
        let object = pd.context().driver().create_mkey(pd.handle()?, max_entries)?;
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        let key = object.key() & !0xff | u32::from(tag);
        Ok(Mkey { object: Some(Arc::new(object)), key, pd: pd.clone() })
    }
}

impl<D: Driver> Mkey<D> {
    /// The entries of the list that it has room for.
    #[must_use]
    pub fn max_entries(&self) -> u32 {
        self.object.as_ref().map_or(0, |object| object.max_entries())
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner<D>> {
        &self.pd
    }

    /// The object, and the key with the low 8 bits of the next configuration.
    pub(crate) fn next(&mut self) -> Option<(Arc<Object<D>>, u32)> {
        let object = self.object.clone()?;
        // As with windows, a key of a former configuration is not that of the next one.
        NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        self.key = crate::mw::inc_rkey(self.key);
        Some((object, self.key))
    }

    /// Destroys it and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<()> {
        let Some(object) = self.object.take() else { return Ok(()) };
        // A post has given its clone back before the work request could complete.
        let object = Arc::into_inner(object)
            .ok_or_else(|| Error::os("destroy_mkey", "a post has the key", uverbs_core::Errno::EBUSY))?;
        object.destroy().map_err(|(_, error)| error)
    }
}

impl<D: Driver> Drop for Mkey<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("{error}");
        }
    }
}
