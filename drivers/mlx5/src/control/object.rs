// SPDX-License-Identifier: MIT OR Apache-2.0
//! QPs and work queues as objects: their verbs.
#![expect(unsafe_code)]
// UNSAFETY: destroys the kernel's objects, whose queues are not used meanwhile.

use super::Mlx5;
use super::context::Facts;
use super::qp::QpControl;
use crate::control::{calls, dct, flow, wq};
use crate::shared::{QpShared, UserIndices};
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::{
    Ece, FlowAttr, QpAttr, QpAttrMask, QpInitAttr, QpRateLimitAttr, QpState, QpType, WqAttr,
};
use uverbs_core::control::{CountersHandle, FlowHandle, QpHandle, WqHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{Kept, Notify, Object, QpEnd, QpObject, WqObject};

/// The PCI vendor ID of mlx5's ECE options.
const VENDOR: u32 = 0x15b3;

/// A QP.
#[derive(Debug)]
pub struct Qp(Kept<QpHandle, State>);

/// What the device may use until the kernel has destroyed the QP.
#[derive(Debug)]
struct State {
    kind: Kind,
    facts: Arc<Facts>,
    /// Its context's.
    indices: Arc<UserIndices>,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// With queues of its own, or the one of an SRQ.
    Queues(QpControl),
    /// A DC target, and its number when it has one.
    Target(QpControl, OnceLock<u32>),
    /// Over a table of work queues.
    Table,
}

impl Qp {
    pub(super) fn new(mlx5: &Mlx5, handle: QpHandle, kind: Kind) -> Self {
        let state = State { kind, facts: Arc::clone(&mlx5.facts), indices: Arc::clone(&mlx5.indices) };
        Self(Kept::new(handle, state))
    }

    /// The QP's part of the control path.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a QP over a table of work queues, which has neither queues nor a state.
    pub fn control(&self) -> Result<&QpControl> {
        match &self.0.kind {
            Kind::Queues(control) | Kind::Target(control, _) => Ok(control),
            Kind::Table => Err(Error::unsupported("qp", "a QP over a table of work queues has no queues")),
        }
    }

    /// Whether it is a DC target.
    #[must_use]
    pub fn is_dct(&self) -> bool {
        matches!(self.0.kind, Kind::Target(..))
    }

    fn shared(&self) -> Option<&Arc<QpShared>> {
        self.control().ok().map(QpControl::shared)
    }
}

impl Object for Qp {
    type Handle = QpHandle;
    type Reported = QpEnd;

    fn handle(&self) -> &QpHandle {
        self.0.handle()
    }

    fn destroy(self) -> Result<QpEnd, (Self, Error)> {
        // SAFETY: no post is in progress (`QpControl::destroy_with`), and the QP's entries in the CQs are removed next.
        let kernels = |handle: QpHandle| unsafe { handle.destroy() };
        let destroyed = self.0.destroy(|state, handle| match &state.kind {
            Kind::Queues(control) | Kind::Target(control, _) => {
                // In a child of fork(2) no other thread creates an object.
                let _one = (state.facts.cqe_version == 0).then(|| state.indices.numbers());
                let events_reported = control.destroy_with("destroy_qp", handle, kernels)?;
                Ok(QpEnd { events_reported, removed: control.shared().removed.take() })
            }
            Kind::Table => Ok(QpEnd { events_reported: kernels(handle)?, removed: Vec::new() }),
        });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl Notify for QpShared {
    fn device_removed(&self) {
        self.set_state(StateWord::REMOVED);
    }
}

impl QpObject for Qp {
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let (handle, control, facts) = (self.handle(), self.control()?, &self.0.facts);
        if let Kind::Target(_, number) = &self.0.kind {
            if let Some(dctn) = dct::modify(handle, control, attr, mask)? {
                // The kernel moves it to RTR only once.
                let _ = number.set(dctn);
            }
            return Ok(());
        }
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        control.modify_with(target, || {
            let modified = control.modify_kernels(handle, attr, mask);
            if let Err(error) = modified {
                // The device may have moved the QP to ERR after an error on the wire, of which the library is not informed.
                if let Ok((now, _)) = handle.query(QpAttrMask::STATE)
                    && now.qp_state == QpState::ERR
                {
                    control.shared().set_state(QpState::ERR);
                }
                return Err(error);
            }
            if mask.contains(QpAttrMask::PORT) && control.qp_type == QpType::RawPacket {
                let ethernet = facts.port("modify_qp", attr.port_num).is_ok_and(|port| port.is_ethernet);
                control.shared().set_csum(ethernet && facts.raw_csum);
            }
            Ok(())
        })
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        self.control()?;
        self.handle().query(mask)
    }

    fn dct_number(&self) -> Option<u32> {
        match &self.0.kind {
            Kind::Target(_, number) => number.get().copied(),
            Kind::Queues(_) | Kind::Table => None,
        }
    }

    fn keep_removed(&self) {
        if let Some(shared) = self.shared() {
            shared.removed.keep();
        }
    }

    fn take_removed(&self) -> Vec<u64> {
        self.shared().map(|shared| shared.removed.take()).unwrap_or_default()
    }

    fn query_ece(&self) -> Result<Ece> {
        Ok(Ece { vendor_id: VENDOR, options: self.control()?.ece()? })
    }

    fn set_ece(&self, ece: Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        let control = self.control()?;
        if ece.vendor_id != VENDOR {
            return Err(Error::invalid(VERB, "vendor_id", format!("{:#x} is not mlx5's", ece.vendor_id)));
        }
        if !self.0.facts.ece {
            return Err(Error::unsupported(VERB, "the kernel's driver has no ECE"));
        }
        control.set_ece(ece.options)
    }

    fn modify_rate_limit(&self, attr: &QpRateLimitAttr) -> Result<()> {
        let bursts = attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0;
        if bursts && (attr.rate_limit == 0 || !self.0.facts.paces_bursts) {
            let reason = "a burst or packet size needs a rate limit, and a device that supports it";
            return Err(Error::invalid("modify_qp_rate_limit", "max_burst_sz", reason));
        }
        calls::modify_qp_rate_limit(self.handle(), attr)
    }

    fn create_flow(&self, attr: &FlowAttr, counters: Option<&CountersHandle>) -> Result<FlowHandle> {
        flow::create(self.handle(), attr, counters)
    }

    fn notify(&self) -> Arc<dyn Notify> {
        match self.shared() {
            Some(shared) => Arc::clone(shared) as Arc<dyn Notify>,
            None => Arc::new(()),
        }
    }
}

/// A work queue.
#[derive(Debug)]
pub struct Wq(Kept<WqHandle, QpControl>);

impl Wq {
    pub(super) fn new(handle: WqHandle, control: QpControl) -> Self {
        Self(Kept::new(handle, control))
    }

    /// The queue's part of the control path.
    #[must_use]
    pub fn control(&self) -> &QpControl {
        &self.0
    }
}

impl Object for Wq {
    type Handle = WqHandle;
    type Reported = u32;

    fn handle(&self) -> &WqHandle {
        self.0.handle()
    }

    fn destroy(self) -> Result<u32, (Self, Error)> {
        let destroyed = self.0.destroy(|control, handle| {
            control.destroy_with("destroy_wq", handle, |handle| {
                // SAFETY: no post is in progress (`QpControl::destroy_with`), and the queue's entries in the CQ are removed next.
                unsafe { handle.destroy() }
            })
        });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl WqObject for Wq {
    fn modify(&self, attr: &WqAttr) -> Result<()> {
        wq::modify(self.handle(), self.control(), attr)
    }

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(self.control().shared()) as Arc<dyn Notify>
    }
}
