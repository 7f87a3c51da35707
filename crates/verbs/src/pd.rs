// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, and thread domains behind a parent domain. The files of the objects that are created from a domain
//! have the calls that create them.

use crate::context::{Context, ContextInner, same_context};
use std::sync::Arc;
use uverbs_core::control::PdHandle;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, WireSge};

/// The domain that its objects hold.
#[derive(Debug)]
pub(crate) struct PdInner<D: Driver> {
    handle: Option<PdHandle>,
    context: Arc<ContextInner<D>>,
}

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
        if let Some(Err((_, error))) = self.handle.take().map(PdHandle::destroy) {
            log::error!("{error}");
        }
    }
}

/// A thread domain: its queues are used by one thread at a time, and get doorbell resources of their own where the
/// device has such.
#[derive(Debug)]
pub struct ThreadDomain<D: Driver> {
    inner: Arc<D::Td>,
    context: Arc<ContextInner<D>>,
}

impl<D: Driver> Context<D> {
    /// `ibv_alloc_pd`
    pub fn alloc_pd(&self) -> Result<ProtectionDomain<D>> {
        let context = self.inner();
        let handle = context.driver().alloc_pd()?;
        let inner = PdInner { handle: Some(handle), context: context.clone() };
        Ok(ProtectionDomain { inner: Arc::new(inner), td: None })
    }

    /// `ibv_alloc_td`: doorbell resources for the queues of one thread.
    pub fn alloc_td(&self) -> Result<ThreadDomain<D>> {
        let context = self.inner();
        Ok(ThreadDomain { inner: Arc::new(context.driver().alloc_td()?), context: context.clone() })
    }
}

/// A protection domain: only what belongs to the same one works together. Cloning shares it.
#[derive(Debug)]
pub struct ProtectionDomain<D: Driver> {
    inner: Arc<PdInner<D>>,
    td: Option<Arc<D::Td>>,
}

impl<D: Driver> Clone for ProtectionDomain<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), td: self.td.clone() }
    }
}

impl<D: Driver> ProtectionDomain<D> {
    pub(crate) fn inner(&self) -> &Arc<PdInner<D>> {
        &self.inner
    }

    pub(crate) fn td(&self) -> Option<&D::Td> {
        self.td.as_deref()
    }

    /// `ibv_alloc_parent_domain`: this domain, whose new queues belong to the thread domain.
    ///
    /// # Errors
    /// A thread domain of another context: its doorbell registers are good for that one's queues only.
    pub fn parent_domain(&self, td: &ThreadDomain<D>) -> Result<Self> {
        same_context(&self.inner.context, &td.context, "alloc_parent_domain", "td")?;
        Ok(Self { inner: self.inner.clone(), td: Some(td.inner.clone()) })
    }

    /// `ibv_alloc_null_mr`: an entry of `length` bytes. Data that are received or read into it are dropped, and sends
    /// from it have zeros. Nothing is allocated: the device has one such memory, for every domain.
    pub fn null_sge(&self, length: u32) -> Result<D::Sge> {
        let lkey = self.inner.context.driver().null_lkey()?;
        D::Sge::new(0, length, lkey)
            .map_err(|_| Error::invalid("null_sge", "length", format!("{length} bytes are too many")))
    }

    /// Deallocates it and reports a failure, which `Drop` would only log. `EBUSY` while anything made from it lives;
    /// then it comes back.
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
