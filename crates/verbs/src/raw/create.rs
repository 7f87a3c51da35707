// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating a queue pair (ibv_create_qp_ex(3)).

use crate::context::{ContextInner, Object, nobody};
use crate::event::QpEvents;
use crate::pd::ProtectionDomain;
use crate::qp::control::QpControl;
use crate::qp::inner::{QpInner, QpParents, QpProperties};
use crate::qp::transport::{Sends, Transport, XrcRecv};
use crate::raw::cq::{Cq, CqInner};
use crate::raw::qp::Qp;
use crate::raw::recv::RecvQueue;
use crate::raw::send::SendQueue;
use crate::raw::srq::{Srq, SrqInner};
use crate::xrcd::{XrcDomain, XrcdInner};
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs_core::attr::{QpCap, QpCreateFlags, QpInitAttr, QpType, SendOpsFlags};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, Object as _, QpCreate, QpObject as _, QpParts};
use uverbs_core::sync::{Exclusive, Locking, Shared};

/// The parameters of a queue pair that is to be created.
#[derive(Debug)]
#[must_use]
pub struct QpBuilder<'a, T, L, D: Driver> {
    context: Arc<ContextInner<D>>,
    pd: Option<&'a ProtectionDomain<D>>,
    send_cq: Option<&'a Arc<CqInner<D>>>,
    recv_cq: Option<&'a Arc<CqInner<D>>>,
    srq: Option<&'a Arc<SrqInner<D>>>,
    xrcd: Option<&'a Arc<XrcdInner<D>>>,
    attr: QpInitAttr,
    data_in_completions: bool,
    _types: PhantomData<fn() -> (T, L)>,
}

impl<D: Driver> ProtectionDomain<D> {
    /// Begins the creation of a QP (`ibv_create_qp_ex`) that is used through `&mut`.
    pub fn raw_qp<T: Transport>(&self) -> QpBuilder<'_, T, Exclusive, D> {
        QpBuilder::in_domain(self)
    }
}

impl<D: Driver> XrcDomain<D> {
    /// Begins the creation of an XRC receive QP.
    pub fn recv_qp(&self) -> QpBuilder<'_, XrcRecv, Exclusive, D> {
        QpBuilder::new(self.inner().context().clone(), None, Some(self.inner()))
    }
}

impl<D: Driver> XrcDomain<D> {
    /// `ibv_open_qp`: opens the XRC receive QP that another process of this domain has created.
    ///
    /// # Errors
    /// `Unsupported` if the device has no XRC; otherwise the kernel's error.
    pub fn open_qp(&self, qp_num: u32) -> Result<QpControl<D>> {
        let context = self.inner().context();
        let event_id = context.remember_object(Object::Qp(QpEvents::new(qp_num), nobody()));
        let open = || context.driver().open_qp(self.inner().handle()?, qp_num, event_id);
        let qp = open().inspect_err(|_| context.forget_object(event_id))?;
        let properties =
            QpProperties { qp_type: QpType::XrcRecv, cap: QpCap::default(), has_send_ops: false, event_id };
        let parents = QpParents {
            _pd: None,
            _send_cq: None,
            _recv_cq: None,
            srq: None,
            _xrcd: Some(self.inner().clone()),
        };
        Ok(QpControl::new(Arc::new(QpInner::new(qp, properties, parents, context.clone()))))
    }
}

impl<'a, D: Driver, T: Transport, L: Locking> QpBuilder<'a, T, L, D> {
    /// A QP of a protection domain.
    pub(crate) fn in_domain(pd: &'a ProtectionDomain<D>) -> Self {
        Self::new(pd.inner().context().clone(), Some(pd), None)
    }

    fn new(
        context: Arc<ContextInner<D>>,
        pd: Option<&'a ProtectionDomain<D>>,
        xrcd: Option<&'a Arc<XrcdInner<D>>>,
    ) -> Self {
        let attr = QpInitAttr::new(T::QP_TYPE);
        Self {
            context,
            pd,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd,
            attr,
            data_in_completions: false,
            _types: PhantomData,
        }
    }

    /// Gives its queues locks, so that any thread may post.
    pub fn shared(self) -> QpBuilder<'a, T, Shared, D> {
        let Self { context, pd, send_cq, recv_cq, srq, xrcd, attr, data_in_completions, _types } = self;
        QpBuilder { context, pd, send_cq, recv_cq, srq, xrcd, attr, data_in_completions, _types: PhantomData }
    }

    /// The CQ of its sends and receives.
    pub fn cq<LC: Locking>(mut self, cq: &'a Cq<LC, D>) -> Self {
        self.send_cq = Some(cq.inner());
        self.recv_cq = Some(cq.inner());
        self
    }

    /// The CQ of its sends.
    pub fn send_cq<LC: Locking>(mut self, cq: &'a Cq<LC, D>) -> Self {
        self.send_cq = Some(cq.inner());
        self
    }

    /// The CQ of its receives.
    pub fn recv_cq<LC: Locking>(mut self, cq: &'a Cq<LC, D>) -> Self {
        self.recv_cq = Some(cq.inner());
        self
    }

    /// Takes its receives from a shared queue.
    pub fn srq<LS: Locking>(mut self, srq: &'a Srq<LS, D>) -> Self {
        self.srq = Some(srq.inner());
        self
    }

    pub(crate) fn cap_by(mut self, f: impl FnOnce(QpCap) -> QpCap) -> Self {
        self.attr.cap = f(self.attr.cap);
        self
    }

    /// The sizes of its queues.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.attr.cap = cap;
        self
    }

    /// Sets whether every send makes a completion.
    pub fn sq_sig_all(mut self, all: bool) -> Self {
        self.attr.sq_sig_all = all;
        self
    }

    /// The `wr_*` builders that the QP must support. If the device lacks one, the creation fails.
    pub fn send_ops(mut self, ops: SendOpsFlags) -> Self {
        self.attr.send_ops_flags = ops;
        self
    }

    /// The longest list of an indirect key that a work request may write.
    pub(crate) fn mkeys(mut self, max_entries: u32) -> Self {
        self.attr.max_mkey_entries = max_entries;
        self
    }

    /// Creation flags.
    pub fn create_flags(mut self, flags: QpCreateFlags) -> Self {
        self.attr.create_flags = flags;
        self
    }

    /// Bytes of the longest header of a segmented send.
    pub fn max_tso_header(mut self, bytes: u16) -> Self {
        self.attr.max_tso_header = bytes;
        self
    }

    /// The device may put up to 32 or 64 bytes of a receive, or of the answer to a read or an atomic, into the
    /// completion instead of the memory. The poll then copies them to the memory. This saves a write of the device.
    /// Devices without this feature ignore the request. (mlx5: "scatter to CQE"; `MLX5_SCATTER_TO_CQE=0` disables it.
    /// libmlx5 enables it by default.)
    ///
    /// # Safety
    /// The poll uses the address of an entry as a pointer and writes there. So every entry of a receive, read or atomic
    /// of this QP, and of every receive of its SRQ (also one that another QP consumes), names a region whose
    /// [`addr`](crate::MemoryRegion::addr) is the address of its memory in this process. This excludes regions of
    /// [`reg_mr_iova`](ProtectionDomain::reg_mr_iova) with another address, of a dma-buf, and of device memory.
    /// (Entries of [`null_sge`](ProtectionDomain::null_sge) are allowed, because the poll recognises their key.)
    #[expect(unsafe_code, reason = "addresses of entries become pointers")]
    pub unsafe fn data_in_completions(mut self) -> Self {
        self.data_in_completions = true;
        self
    }

    /// Creates it, in state RESET. Its send queue has room for at least one work request, also if `max_send_wr` is 0.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes above the device's limits, or parts of another context;
    /// `Unsupported` for a type, an operation or a flag that the device does not have; otherwise the kernel's error,
    /// such as `ENOMEM`.
    pub fn create(mut self) -> Result<Qp<T, L, D>>
    where
        T: Sends,
    {
        let sends = &mut self.attr.cap.max_send_wr;
        *sends = (*sends).max(1);
        let (inner, send, recv) = self.create_inner()?;
        let send = send.ok_or_else(|| Error::unsupported("create_qp", "the driver made no send queue"))?;
        Ok(Qp {
            send: SendQueue::new(send, inner.clone()),
            recv: recv.map(|engine| RecvQueue::new(engine, inner.clone())),
            control: QpControl::new(inner),
        })
    }

    #[expect(clippy::type_complexity, reason = "the parts of one object")]
    fn create_inner(self) -> Result<(Arc<QpInner<D>>, Option<D::SendQueue>, Option<D::RecvQueue>)> {
        let context = self.context;
        if let Some(kind) = T::DRIVER_QP
            && context.driver().driver_qp() != Some(kind)
        {
            let what = format!("{} has no {kind} QPs", context.driver().name());
            return Err(Error::unsupported("create_qp", what));
        }
        let event_id = context.remember_object(Object::Qp(QpEvents::new(0), nobody()));
        let create = || -> Result<QpParts<D>> {
            let cq = |cq: Option<&'a Arc<CqInner<D>>>| cq.map(|cq| cq.object()).transpose();
            let create = QpCreate {
                pd: self.pd.map(|pd| pd.inner().handle()).transpose()?,
                send_cq: cq(self.send_cq)?,
                recv_cq: cq(self.recv_cq)?,
                srq: self.srq.map(|srq| srq.object()).transpose()?,
                xrcd: self.xrcd.map(|x| x.handle()).transpose()?,
                attr: &self.attr,
                td: self.pd.and_then(|pd| pd.td()),
                exclusive: !L::SHARED,
                data_in_completions: self.data_in_completions,
                user_handle: event_id,
            };
            #[expect(unsafe_code, reason = "data in completions")]
            // SAFETY: data in completions are requested only under the contract of `data_in_completions`.
            let parts = unsafe { context.driver().create_qp(&create) };
            parts
        };
        let QpParts { qp, send, recv, cap } = create().inspect_err(|_| context.forget_object(event_id))?;
        let events = QpEvents::new(qp.handle().qp_num());
        context.update_object(event_id, Object::Qp(events, Arc::downgrade(&qp.notify())));
        let properties = QpProperties {
            qp_type: T::QP_TYPE,
            cap,
            has_send_ops: !self.attr.send_ops_flags.is_empty(),
            event_id,
        };
        let parents = QpParents {
            _pd: self.pd.map(|pd| pd.inner().clone()),
            _send_cq: self.send_cq.cloned(),
            _recv_cq: self.recv_cq.cloned(),
            srq: self.srq.cloned(),
            _xrcd: self.xrcd.cloned(),
        };
        Ok((Arc::new(QpInner::new(qp, properties, parents, context.clone())), send, recv))
    }
}

impl<D: Driver> QpBuilder<'_, XrcRecv, Exclusive, D> {
    /// Creates it, in state RESET. It has no queues to which one could post.
    ///
    /// # Errors
    /// As [`create`](QpBuilder::create).
    pub fn create_recv(self) -> Result<QpControl<D>> {
        Ok(QpControl::new(self.create_inner()?.0))
    }
}
