// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a QP that its halves and [`QpControl`](super::QpControl) share: the object and its parents. They may be dropped in any
//! order; the last one destroys the object.

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
use uverbs_core::error::Error;
use uverbs_core::provider::{Driver, Life, Object as _, QpObject as _, QueueKind};
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

/// A QP.
pub(crate) struct QpInner<D: Driver> {
    object: Life<D::Qp>,
    qp_num: u32,
    qp_type: QpType,
    cap: QpCap,
    /// The name of its send queue.
    label: Label,
    has_send_ops: bool,
    event_id: u64,
    /// Held by a change of the state of a QP with a shared queue, until the events of its last life are forgotten.
    changes: ProcessMutex<()>,
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
        qp: D::Qp,
        properties: QpProperties,
        parents: QpParents<D>,
        context: Arc<ContextInner<D>>,
    ) -> Self {
        let QpProperties { qp_type, cap, has_send_ops, event_id } = properties;
        if let Some(srq) = &parents.srq {
            srq.has_user(&qp);
        }
        Self {
            label: Label::new(QueueKind::Send, qp.handle().qp_num(), cap.max_send_wr),
            qp_num: qp.handle().qp_num(),
            object: Life::new("qp", qp),
            qp_type,
            cap,
            has_send_ops,
            event_id,
            changes: ProcessMutex::default(),
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

    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.context
    }

    /// The object; it is present until `Drop`.
    pub(crate) fn object(&self) -> Result<&D::Qp, Error> {
        self.object.object()
    }

    pub(crate) fn has_srq(&self) -> bool {
        self.parents.srq.is_some()
    }

    /// Before a reset or the destruction. If the SRQ owns its receives, moves the QP to ERR, so that the device flushes the receive of
    /// a message that is not complete: only the completion names it.
    pub(crate) fn flush_receives(&self) {
        let (Ok(qp), Some(srq)) = (self.object(), &self.parents.srq) else { return };
        if !srq.is_owned() {
            return;
        }
        let attr = QpAttr::new().qp_state(QpState::ERR);
        if let Err(error) = qp.modify(&attr, QpAttrMask::STATE) {
            crate::report!(
                debug,
                { device = %self.context.name(), qp_num = self.qp_num },
                "qp {:#x}: {error}; a receive that it has taken may stay with its SRQ",
                self.qp_num
            );
        }
    }

    /// After a reset.
    pub(crate) fn take_back_receives(&self) {
        if let (Ok(qp), Some(srq)) = (self.object(), &self.parents.srq) {
            srq.take_back(&qp.take_removed());
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

    /// Destroys the object. On failure everything is leaked, because the device may still use it.
    pub(crate) fn destroy(&mut self) -> Result<(), Error> {
        self.flush_receives();
        self.context.forget_object(self.event_id);
        match self.object.end() {
            Ok(Some(end)) => {
                self.holds.release(&self.context);
                if let Some(srq) = &self.parents.srq {
                    srq.take_back(&end.removed);
                }
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => {
                self.holds.leak();
                core::mem::forget(self.life.clone());
                Err(error)
            }
        }
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
