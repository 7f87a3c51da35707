// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects: their verbs, and the order between the kernel and the queues. The memory of the queues is the kernel's or the device's,
//! which keeps it as long as the object, so a mapping may be removed before.
#![expect(unsafe_code)]
// UNSAFETY: the verbs of handles have contracts.

use super::{Numbers, of_number};
use crate::shared::QpShared;
use crate::{CompletionQueue, CqShared, Events, QpPlaces, QueuePlace};
use std::sync::Arc;
use uverbs_core::attr::{QpAttr, QpAttrMask, QpState, QpType, transition};
use uverbs_core::control::{CqEvents, CqHandle, QpHandle};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{CqObject, Kept, Notify, Object, QpEnd, QpObject};
use uverbs_core::{Errno, Error, Result};

const VERB: &str = "modify_qp";

/// A completion queue.
#[derive(Debug)]
pub struct Cq(pub(super) Kept<CqHandle, (Arc<CqShared>, Arc<Events>, QueuePlace)>);

impl Cq {
    /// The state that its poller and control calls share.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.0.0
    }

    /// Where its rings are: one after the other.
    #[must_use]
    pub fn place(&self) -> &QueuePlace {
        &self.0.2
    }
}

impl Object for Cq {
    type Handle = CqHandle;
    type Reported = CqEvents;

    fn handle(&self) -> &CqHandle {
        self.0.handle()
    }

    /// No poll is in progress when the kernel destroys the queue, and its engine rings no doorbell later.
    fn destroy(self) -> Result<CqEvents, (Self, Error)> {
        let destroyed = self.0.destroy(|(shared, ..), handle| {
            shared.destroyed(handle, CqHandle::destroy, |state| state.ended = true)
        });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl CqObject for Cq {
    type Engine = CompletionQueue;

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(&self.0.1) as Arc<dyn Notify>
    }
}

/// A QP.
#[derive(Debug)]
pub struct Qp(pub(super) Kept<QpHandle, State>);

#[derive(Debug)]
pub(super) struct State {
    pub(super) shared: Arc<QpShared>,
    /// That of the context: held while a QP is created, and while one is destroyed and its completions are removed.
    pub(super) numbers: Arc<Numbers>,
    /// Where its queues are.
    pub(super) places: QpPlaces,
}

impl Qp {
    /// The state that its posters, its pollers and control calls share.
    #[must_use]
    pub(crate) fn shared(&self) -> &Arc<QpShared> {
        &self.0.shared
    }

    /// Where its queues are.
    #[must_use]
    pub fn places(&self) -> &QpPlaces {
        &self.0.places
    }
}

impl Object for Qp {
    type Handle = QpHandle;
    type Reported = QpEnd;

    fn handle(&self) -> &QpHandle {
        self.0.handle()
    }

    /// No post is in progress when the kernel destroys the QP, because the memory of its send queue may be that of another QP then.
    fn destroy(self) -> Result<QpEnd, (Self, Error)> {
        let destroyed = self.0.destroy(|State { shared, numbers, .. }, handle| {
            let before = shared.access.state().state();
            if let Err(errno) = shared.close_all() {
                return Err((handle, Error::os("destroy_qp", "waiting for posts", errno)));
            }
            // In a child of fork(2) no other thread creates a QP.
            let numbers = numbers.lock();
            // SAFETY: the queues are closed, and what is left of the QP in its CQs is removed next.
            let events_reported = unsafe { handle.destroy() }.inspect_err(|_| shared.open(before))?;
            shared.detach();
            if let Ok(mut numbers) = numbers
                && let Some(from) = of_number(&mut numbers, shared.qp_num())
            {
                *from = shared.behind();
            }
            Ok(QpEnd { events_reported, removed: Vec::new() })
        });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl Notify for QpShared {
    fn device_removed(&self) {
        self.open(StateWord::REMOVED);
    }
}

impl QpObject for Qp {
    /// States that end posts are stored before the kernel changes the QP, the others after it.
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let shared = self.shared();
        let _one = shared.access.modify()?;
        let before = shared.access.state().state();
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        let waiting = |errno| Error::os(VERB, "waiting for posts", errno);
        match target {
            Some(QpState::RESET) => shared.close_all().map_err(waiting)?,
            Some(QpState::ERR) => shared.access.close(QpState::ERR).map_err(waiting)?,
            _ => {}
        }
        // SAFETY: the QP's own handle; the state of its queues is updated here.
        let result = unsafe { self.handle().modify(Some(before), attr, mask, Uhw::none()) };
        let result =
            result.map_err(|error| explain(self.handle(), before, target.unwrap_or(before), mask, error));
        match target {
            Some(QpState::RESET | QpState::ERR) if result.is_err() => shared.open(before),
            Some(QpState::RESET) if !shared.reset() && !shared.access.state().is_forked() => {
                return Err(Error::protocol(VERB, "a CQ of the QP is lost: it has to be destroyed"));
            }
            Some(state) if result.is_ok() => shared.open(state),
            _ => {}
        }
        result
    }

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(self.shared()) as Arc<dyn Notify>
    }
}

/// The error of a transition. Core has no table for the driver's type; SRD has the transitions of UD, and the retries of a message that
/// found no receive (`srd_qp_state_table` in `efa_verbs.c`).
fn explain(handle: &QpHandle, from: QpState, to: QpState, mask: QpAttrMask, error: Error) -> Error {
    if handle.qp_type() != QpType::Driver || !matches!(error, Error::Invalid { field: "attr_mask", .. }) {
        return error;
    }
    let is_start = (from, to) == (QpState::RTR, QpState::RTS);
    let as_ud = if is_start { mask.difference(QpAttrMask::RNR_RETRY) } else { mask };
    match transition::explain(QpType::Ud, from, to, as_ud) {
        Some(reason) => Error::invalid(VERB, "attr_mask", format!("{reason}, whose rules SRD has")),
        None => Error::os(VERB, format!("SRD qp {:#x}", handle.qp_num()), Errno::EINVAL),
    }
}
