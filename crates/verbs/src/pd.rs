// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, thread domains, and parent domains, which combine both (ibv_alloc_pd(3), ibv_alloc_td(3),
//! ibv_alloc_parent_domain(3)). The calls that create objects are in the files of the objects.

use crate::brief::brief;
use crate::context::{Context, ContextInner, same_context};
use crate::open::AnyDriver;
use std::sync::Arc;
use uverbs_core::control::PdHandle;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, WireSge};

/// The part of a domain to which its objects hold references.
pub(crate) struct PdInner<D: Driver> {
    handle: Option<PdHandle>,
    context: Arc<ContextInner<D>>,
    /// It belongs to another part of the program, which deallocates it.
    is_imported: bool,
}

brief!([D: Driver] PdInner<D>, |this| "ProtectionDomain {:?} of {}", this.handle.as_ref().map(PdHandle::handle), this.context.name());

impl<D: Driver> PdInner<D> {
    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.context
    }

    pub(crate) fn handle(&self) -> Result<&PdHandle> {
        self.handle.as_ref().ok_or_else(|| Error::invalid("pd", "handle", "the protection domain is closed"))
    }
}

impl<D: Driver> Drop for PdInner<D> {
    fn drop(&mut self) {
        let own = self.handle.take().filter(|_| !self.is_imported);
        if let Some(Err((_, error))) = own.map(PdHandle::destroy) {
            log::error!("{error}");
        }
    }
}

/// A thread domain: its queues are used by one thread at a time, and get doorbell resources of their own if the device
/// has any.
pub struct ThreadDomain<D: Driver = AnyDriver> {
    inner: Arc<D::Td>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] ThreadDomain<D>, |this| "ThreadDomain of {}", this.context.name());

impl<D: Driver> Context<D> {
    /// `ibv_alloc_pd`: allocates a protection domain.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain<D>> {
        let context = self.inner();
        let handle = context.driver().alloc_pd()?;
        Ok(ProtectionDomain::new(handle, context, false))
    }

    /// `ibv_alloc_td`: doorbell resources for the queues of one thread.
    ///
    /// # Errors
    /// The error of the doorbell's mapping.
    pub fn alloc_td(&self) -> Result<ThreadDomain<D>> {
        let context = self.inner();
        Ok(ThreadDomain { inner: Arc::new(context.driver().alloc_td()?), context: context.clone() })
    }
}

/// A protection domain. Only objects of the same domain can be used together. Clones share it.
pub struct ProtectionDomain<D: Driver = AnyDriver> {
    inner: Arc<PdInner<D>>,
    td: Option<Arc<D::Td>>,
}

brief!([D: Driver] ProtectionDomain<D>, |this| "{:?}", this.inner);

impl<D: Driver> Clone for ProtectionDomain<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), td: self.td.clone() }
    }
}

impl<D: Driver> ProtectionDomain<D> {
    pub(crate) fn new(handle: PdHandle, context: &Arc<ContextInner<D>>, is_imported: bool) -> Self {
        let inner = PdInner { handle: Some(handle), context: context.clone(), is_imported };
        Self { inner: Arc::new(inner), td: None }
    }

    pub(crate) fn inner(&self) -> &Arc<PdInner<D>> {
        &self.inner
    }

    pub(crate) fn td(&self) -> Option<&D::Td> {
        self.td.as_deref()
    }

    /// `ibv_alloc_parent_domain`: this domain, whose new queues belong to the thread domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a thread domain of another context, whose doorbell registers are for queues of that
    /// context only.
    pub fn parent_domain(&self, td: &ThreadDomain<D>) -> Result<Self> {
        same_context(&self.inner.context, &td.context, "alloc_parent_domain", "td")?;
        Ok(Self { inner: self.inner.clone(), td: Some(td.inner.clone()) })
    }

    /// `ibv_alloc_null_mr`: an entry of `length` bytes. Data that are received or read into it are dropped, and sends
    /// from it send zeros. Nothing is allocated: the device has one null region, for all domains.
    ///
    /// # Errors
    /// `Unsupported` if the device has no such memory; [`Error::Invalid`] above 2^31 bytes.
    pub fn null_sge(&self, length: u32) -> Result<D::Sge> {
        let lkey = self.inner.context.driver().null_lkey()?;
        D::Sge::new(0, length, lkey)
            .map_err(|_| Error::invalid("null_sge", "length", format!("{length} bytes are too many")))
    }

    /// The kernel's number of it, for [`Context::import_pd`](crate::Context::import_pd).
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is closed.
    pub fn handle(&self) -> Result<u32> {
        Ok(self.inner.handle()?.handle())
    }

    /// Deallocates it, also if it is imported, and reports a failure, which `Drop` would only log. On failure it is
    /// returned with the error: `EBUSY` while an object of the domain exists.
    ///
    /// # Errors
    /// `EBUSY` as above; otherwise the kernel's error.
    pub fn close(self) -> Result<(), (Self, Error)> {
        let Self { inner, td } = self;
        let mut inner = match Arc::try_unwrap(inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = Error::os("dealloc_pd", "pd", uverbs_core::Errno::EBUSY);
                return Err((Self { inner, td }, error));
            }
        };
        let Some(handle) = inner.handle.take() else { return Ok(()) };
        handle.destroy().map_err(|(handle, error)| {
            inner.handle = Some(handle);
            (Self { inner: Arc::new(inner), td }, error)
        })
    }
}
