// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC domains, to which the XRC receive QPs and XRC SRQs of several processes can belong (ibv_open_xrcd(3)).

use crate::brief::brief;
use crate::context::{Context, ContextInner};
use crate::open::AnyDriver;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uverbs_core::control::{self, XrcdHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;

/// The part of a domain to which its SRQs and QPs hold references.
pub(crate) struct XrcdInner<D: Driver> {
    handle: Option<XrcdHandle>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] XrcdInner<D>, |this| "XrcDomain {:?} of {}", this.handle.as_ref().map(XrcdHandle::handle), this.context.name());

impl<D: Driver> XrcdInner<D> {
    pub(crate) fn handle(&self) -> Result<&XrcdHandle> {
        self.handle.as_ref().ok_or_else(|| Error::invalid("xrcd", "handle", "the XRC domain is closed"))
    }
}

impl<D: Driver> XrcdInner<D> {
    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.context
    }
}

impl<D: Driver> Drop for XrcdInner<D> {
    fn drop(&mut self) {
        if let Some(Err((_, error))) = self.handle.take().map(XrcdHandle::destroy) {
            log::error!("xrcd of {}: {error}", self.context.kernel().name());
        }
    }
}

/// An XRC domain.
pub struct XrcDomain<D: Driver = AnyDriver> {
    inner: Arc<XrcdInner<D>>,
}

brief!([D: Driver] XrcDomain<D>, |this| "{:?}", this.inner);

impl<D: Driver> Context<D> {
    /// `ibv_open_xrcd`: the domain of a file's inode; without a file, a new domain that is not shared.
    ///
    /// # Errors
    /// `Unsupported` if the device has no XRC; otherwise the kernel's error.
    pub fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcDomain<D>> {
        let context = self.inner();
        let handle = control::xrcd::open(context.kernel(), file, create, exclusive)?;
        Ok(XrcDomain { inner: Arc::new(XrcdInner { handle: Some(handle), context: context.clone() }) })
    }
}

impl<D: Driver> XrcDomain<D> {
    pub(crate) fn inner(&self) -> &Arc<XrcdInner<D>> {
        &self.inner
    }
}
