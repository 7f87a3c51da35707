// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a QP that its halves and [`QpControl`](super::QpControl) share: the kernel object and its parents.
//!
//! The halves may be dropped in any order. A ring must outlive its kernel object. So a half that is dropped moves its
//! engine here, and the last owner destroys the kernel object before it frees the engines.

use crate::Holds;
use crate::brief::brief;
use crate::context::{ContextInner, Object};
use crate::event::QpEvents;
use crate::label::{Label, Labelled};
use crate::pd::PdInner;
use crate::raw::cq::CqInner;
use crate::raw::srq::SrqInner;
use crate::xrcd::XrcdInner;
use std::sync::Arc;
use uverbs_core::attr::{QpAttr, QpAttrMask, QpCap, QpState, QpType};
use uverbs_core::control::QpHandle;
use uverbs_core::error::Error;
use uverbs_core::provider::{Driver, QueueKind};
use uverbs_core::sync::ProcessMutex;

/// The objects that a QP was created from, which must outlive the QP.
#[derive(Debug)]
pub(crate) struct QpParents<D: Driver> {
    pub(crate) _pd: Option<Arc<PdInner<D>>>,
    pub(crate) _send_cq: Option<Arc<CqInner<D>>>,
    pub(crate) _recv_cq: Option<Arc<CqInner<D>>>,
    pub(crate) srq: Option<Arc<SrqInner<D>>>,
    pub(crate) _xrcd: Option<Arc<XrcdInner<D>>>,
}

/// The kernel object of a QP.
pub(crate) struct QpInner<D: Driver> {
    /// `None` once it is destroyed.
    handle: Option<QpHandle>,
    shared: Arc<D::QpShared>,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    /// The name of its send queue.
    label: Label,
    has_send_ops: bool,
    event_id: u64,
    /// Held by a change of the state of a QP with a shared queue, until the events of its last life are forgotten.
    changes: ProcessMutex<()>,
    /// Engines whose halves were dropped.
    engines: ProcessMutex<Engines<D>>,
    parents: QpParents<D>,
    /// What its work requests own, if they do.
    holds: Holds<D>,
    context: Arc<ContextInner<D>>,
    /// Dropped after the kernel object was destroyed; leaked if it was not. See [`QpLife`](super::QpLife).
    life: Arc<()>,
    /// How often it was moved to RTR.
    #[cfg(feature = "tracing")]
    connects: core::sync::atomic::AtomicU32,
}

brief!([D: Driver] QpInner<D>, |this| "Qp {:#x} ({:?}) of {}, send {}, recv {}", this.qp_num, this.qp_type, this.context.name(), this.cap.max_send_wr, this.cap.max_recv_wr);

#[derive(Debug)]
struct Engines<D: Driver> {
    send: Option<D::SendQueue>,
    recv: Option<D::RecvQueue>,
}

impl<D: Driver> Labelled for Arc<QpInner<D>> {
    fn label(&self) -> &Label {
        &self.label
    }
}

/// The arguments of [`QpInner::new`] besides the parents.
pub(crate) struct QpProperties {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) has_send_ops: bool,
    pub(crate) event_id: u64,
}

impl<D: Driver> QpInner<D> {
    pub(crate) fn new(
        handle: QpHandle,
        shared: Arc<D::QpShared>,
        properties: QpProperties,
        parents: QpParents<D>,
        context: Arc<ContextInner<D>>,
    ) -> Self {
        let QpProperties { qp_type, cap, has_send_ops, event_id } = properties;
        if let Some(srq) = &parents.srq {
            srq.has_user(&shared);
        }
        Self {
            label: Label::new(QueueKind::Send, handle.qp_num(), cap.max_send_wr),
            qp_num: handle.qp_num(),
            handle: Some(handle),
            shared,
            qp_type,
            cap,
            has_send_ops,
            event_id,
            changes: ProcessMutex::default(),
            engines: ProcessMutex::new(Engines { send: None, recv: None }),
            parents,
            holds: Holds::default(),
            context,
            life: Arc::new(()),
            #[cfg(feature = "tracing")]
            connects: core::sync::atomic::AtomicU32::new(0),
        }
    }

    pub(crate) fn qp_num(&self) -> u32 {
        self.qp_num
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(crate) fn cap(&self) -> &QpCap {
        &self.cap
    }

    pub(crate) fn has_send_ops(&self) -> bool {
        self.has_send_ops
    }

    pub(crate) fn shared(&self) -> &D::QpShared {
        &self.shared
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.context
    }

    /// The kernel object; it is present until `Drop`.
    pub(crate) fn handle(&self) -> Result<&QpHandle, Error> {
        self.handle.as_ref().ok_or_else(|| Error::invalid("qp", "handle", "the QP is destroyed"))
    }

    pub(crate) fn has_srq(&self) -> bool {
        self.parents.srq.is_some()
    }

    /// Before a reset or the destruction. If the SRQ owns its receives, moves the QP to ERR, so that the device flushes the receive of
    /// a message that is not complete: only the completion names it.
    pub(crate) fn flush_receives(&self) {
        let (Some(handle), Some(srq)) = (&self.handle, &self.parents.srq) else { return };
        if !srq.is_owned() {
            return;
        }
        let attr = QpAttr::new().qp_state(QpState::ERR);
        #[expect(unsafe_code, reason = "the contract of the driver's verbs")]
        // SAFETY: the QP's own parts.
        let moved =
            unsafe { self.context.driver().modify_qp(handle, &self.shared, &attr, QpAttrMask::STATE) };
        if let Err(error) = moved {
            crate::report!(
                debug,
                { device = %self.context.name(), qp_num = self.qp_num },
                "qp {:#x}: {error}; a receive that it has taken may stay with its SRQ",
                self.qp_num
            );
        }
    }

    /// After a reset or the destruction.
    pub(crate) fn take_back_receives(&self) {
        if let Some(srq) = &self.parents.srq {
            srq.take_back(&self.shared);
        }
    }

    pub(crate) fn changes(&self) -> &ProcessMutex<()> {
        &self.changes
    }

    /// Its events that were read.
    pub(crate) fn events(&self) -> Option<QpEvents> {
        match self.context.object(self.event_id)? {
            Object::Qp(events, _) => Some(events),
            _ => None,
        }
    }

    /// How often it was connected, with this change of its state: more than once after a reconnect.
    #[cfg(feature = "tracing")]
    pub(crate) fn connects(&self, state: QpState, is_modified: bool) -> u32 {
        use core::sync::atomic::Ordering;
        match state == QpState::RTR && is_modified {
            true => self.connects.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            false => self.connects.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn life(&self) -> &Arc<()> {
        &self.life
    }

    pub(crate) fn holds(&self) -> &Holds<D> {
        &self.holds
    }

    pub(crate) fn keep_send(&self, engine: D::SendQueue) {
        match self.engines.lock() {
            Ok(mut engines) => engines.send = Some(engine),
            // A child of fork(2): the queue is the parent's.
            Err(_) => core::mem::forget(engine),
        }
    }

    pub(crate) fn keep_recv(&self, engine: D::RecvQueue) {
        match self.engines.lock() {
            Ok(mut engines) => engines.recv = Some(engine),
            // A child of fork(2): the queue is the parent's.
            Err(_) => core::mem::forget(engine),
        }
    }

    /// Destroys the kernel object. On failure everything is leaked, because hardware may still write to the rings.
    pub(crate) fn destroy(&mut self) -> Result<(), Error> {
        self.flush_receives();
        let Some(handle) = self.handle.take() else { return Ok(()) };
        self.context.forget_object(self.event_id);
        #[expect(unsafe_code, reason = "the contract of the driver's verbs")]
        // SAFETY: the QP's own parts; the engines are dropped after this, or leaked.
        let destroyed = unsafe { self.context.driver().destroy_qp(handle, &self.shared) };
        if destroyed.is_ok() {
            self.holds.release(&self.context);
            self.take_back_receives();
        }
        destroyed.map(drop).map_err(|(handle, error)| {
            self.holds.leak();
            core::mem::forget(handle);
            let engines = self.engines.get_mut();
            let parts = (engines.send.take(), engines.recv.take(), self.shared.clone(), self.life.clone());
            core::mem::forget(parts);
            error
        })
    }
}

impl<D: Driver> Drop for QpInner<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            crate::report!(
                error,
                { device = %self.context.name(), qp_num = self.qp_num },
                "qp {:#x}: {error}; its memory is leaked",
                self.qp_num
            );
        }
    }
}
