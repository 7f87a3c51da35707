// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, and thread domains behind a parent domain: what queues and memory are made from.

use crate::ah::AddressHandle;
use crate::buf::StableBuf;
use crate::context::{ContextInner, same_context};
use crate::mr::{Exposed, MemoryRegion, Private};
use crate::mw::MemoryWindow;
use crate::qp::{Qp, QpBuilder, Transport};
use crate::srq::SharedReceiveQueue;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, AhAttr, MwType, SrqInitAttr};
use uverbs_core::control::{self, PdHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, WireSge};
use uverbs_core::sync::{Exclusive, Locking};
use uverbs_core::wc::WorkCompletion;

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

impl<D: Driver> ThreadDomain<D> {
    pub(crate) fn alloc(context: &Arc<ContextInner<D>>) -> Result<Self> {
        Ok(Self { inner: Arc::new(context.driver().alloc_td()?), context: context.clone() })
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
    pub(crate) fn alloc(context: &Arc<ContextInner<D>>) -> Result<Self> {
        let handle = context.driver().alloc_pd()?;
        Ok(Self { inner: Arc::new(PdInner { handle: Some(handle), context: context.clone() }), td: None })
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
    /// A thread domain of another context: its doorbell registers are good for that one's queues only.
    pub fn parent_domain(&self, td: &ThreadDomain<D>) -> Result<Self> {
        same_context(&self.inner.context, &td.context, "alloc_parent_domain", "td")?;
        Ok(Self { inner: self.inner.clone(), td: Some(td.inner.clone()) })
    }

    /// `ibv_reg_mr` of a buffer that peers may access with the rights `access`.
    ///
    /// # Errors
    /// The buffer comes back with the error; `None` if the kernel's answer made no sense (`EPROTO`): it may have registered the
    /// memory, which is leaked then.
    pub fn reg_mr<B: StableBuf>(
        &self,
        buf: B,
        access: AccessFlags,
    ) -> Result<MemoryRegion<D, B>, (Option<B>, Error)> {
        let iova = buf.ptr().as_ptr().expose_provenance() as u64;
        self.reg_mr_iova(buf, iova, access)
    }

    /// `ibv_reg_mr_iova`: the region's first byte has the address `iova` for scatter/gather entries and peers.
    ///
    /// In some cases the driver accesses memory by the CPU, at the address of an entry, which is not the address of the
    /// memory in such a region: see [`SendBatch::push`](crate::provider::SendBatch::push).
    pub fn reg_mr_iova<B: StableBuf>(
        &self,
        buf: B,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion<D, B>, (Option<B>, Error)> {
        MemoryRegion::register(&self.inner, buf, iova, access)
    }

    /// `ibv_reg_mr` of a buffer that no peer can write: it lends `&[u8]`.
    pub fn reg_private<B: StableBuf>(
        &self,
        buf: B,
        access: AccessFlags,
    ) -> Result<MemoryRegion<D, B, Private>, (Option<B>, Error)> {
        if let Err(error) = MemoryRegion::<D, B, Private>::check_access(access) {
            return Err((Some(buf), error));
        }
        let iova = buf.ptr().as_ptr().expose_provenance() as u64;
        MemoryRegion::register(&self.inner, buf, iova, access)
    }

    /// `ibv_reg_dmabuf_mr`: memory of another device, which this process need not map. For entries of it, the same care
    /// as with [`reg_mr_iova`](Self::reg_mr_iova).
    pub fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion<D, crate::buf::NoBuf, Exposed>> {
        MemoryRegion::register_dmabuf(&self.inner, fd, offset, length, iova, access)
    }

    /// `ibv_alloc_null_mr`: an entry of `length` bytes that swallows what is received or read into it, and sends zeros.
    /// Nothing is allocated: the device has one such memory, for every domain.
    pub fn null_sge(&self, length: u32) -> Result<D::Sge> {
        let lkey = self.inner.context.driver().null_lkey()?;
        D::Sge::new(0, length, lkey)
            .map_err(|_| Error::invalid("null_sge", "length", format!("{length} bytes are too many")))
    }

    /// `ibv_alloc_mw`
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow<D>> {
        MemoryWindow::alloc(&self.inner, mw_type)
    }

    /// `ibv_create_ah`
    pub fn create_ah(&self, attr: &AhAttr) -> Result<AddressHandle<D>> {
        AddressHandle::create(&self.inner, attr)
    }

    /// `ibv_create_ah_from_wc`: the way back to the sender of a datagram. `grh` is the first 40 bytes of its receive
    /// buffer.
    pub fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<AddressHandle<D>> {
        self.create_ah(&self.ah_attr_from_wc(wc, grh, port_num)?)
    }

    /// `ibv_init_ah_from_wc`
    pub fn ah_attr_from_wc(&self, wc: &WorkCompletion, grh: &[u8; 40], port_num: u8) -> Result<AhAttr> {
        control::reply::ah_attr(self.inner.context.kernel(), wc, grh, port_num)
    }

    /// `ibv_create_srq`
    pub fn create_srq<L: Locking>(&self, attr: &SrqInitAttr) -> Result<SharedReceiveQueue<D, L>> {
        SharedReceiveQueue::create(self, attr, None)
    }

    /// Begins the creation of a QP (`ibv_create_qp_ex`), posted to through `&mut`.
    pub fn qp<T: Transport>(&self) -> QpBuilder<'_, D, T, Exclusive> {
        Qp::builder(self)
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
