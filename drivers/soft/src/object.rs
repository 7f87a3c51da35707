// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of a [`Device`]: their verbs, the order between the kernel and the queues, and what is removed at their end. The memory of
//! a ring is the kernel's, which keeps it as long as its object (`rxe_create_mmap_info()`, `siw_create_cq()`), so a mapping may be removed
//! before.
#![expect(unsafe_code)]
// UNSAFETY: destroys the kernel's objects, whose queues are not used meanwhile.

use crate::cq_state::{CompletionQueue, CqShared, CqState};
use crate::device::{Device, corrupt};
use crate::driver::{Common, at_least};
use crate::recv::RecvQueue;
use crate::shared::QpShared;
use std::sync::Arc;
use uverbs_core::attr::{QpAttr, QpAttrMask, QpInitAttr, QpState, SrqAttr, SrqAttrMask};
use uverbs_core::control::{CqEvents, CqHandle, QpHandle, SrqHandle};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{
    CompletionQueue as _, CqObject, Kept, Notify, Object, QpEnd, QpObject, SrqObject,
};
use uverbs_core::{Errno, Error, Result};

/// The stored state while the kernel destroys the QP: it permits no posts.
const BETWEEN: QpState = QpState::UNKNOWN;

/// What an object has in common with its context, and what it shares with its engines.
type State<D, S> = (Arc<Common<D>>, Arc<S>);

/// A completion queue.
#[derive(Debug)]
pub struct Cq<D: Device>(pub(crate) Kept<CqHandle, State<D, CqShared<D>>>);

impl<D: Device> Cq<D> {
    /// The state that its poller and control calls share.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared<D>> {
        &self.0.1
    }
}

impl<D: Device> Object for Cq<D> {
    type Handle = CqHandle;
    type Reported = CqEvents;

    fn handle(&self) -> &CqHandle {
        self.0.handle()
    }

    /// No poll is in progress when the kernel destroys the queue, and its engine arms nothing later.
    fn destroy(self) -> Result<CqEvents, (Self, Error)> {
        let destroyed =
            self.0.destroy(|(_, shared), handle| shared.destroyed(handle, CqHandle::destroy, CqState::end));
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl<D: Device> CqObject for Cq<D> {
    type Engine = CompletionQueue<D, D::ArmBell>;

    fn resize(&self, queue: &mut Self::Engine, cqe: u32) -> Result<u32> {
        const VERB: &str = "resize_cq";
        let (common, shared) = &*self.0;
        if !Arc::ptr_eq(shared, queue.shared()) {
            return Err(Error::invalid(VERB, "cq", "the engine of another CQ"));
        }
        if queue.is_open() {
            // The kernel also moves entries that were not returned, which would be polled twice.
            return Err(Error::invalid(VERB, "cq", "an extended poll is open on it"));
        }
        let resize = |state: &mut CqState<D>| {
            let handle = self.handle();
            let ring = common.device.resize_cq(handle.kernel(), handle, cqe).inspect_err(|error| {
                if error.errno() == Errno::EPROTO {
                    // The kernel resized it, but its answer is invalid, so the location of the ring is unknown.
                    state.lose_ring();
                }
            })?;
            // From here on the kernel completes to the new ring.
            let ring = ring.inspect_err(|_| state.lose_ring())?;
            state.replace_ring(ring).map_err(|e| corrupt(VERB, e))
        };
        // Control calls on QPs wait during the resize: between the kernel's move and this one, they would remove
        // completions from the old ring.
        match queue.replace(resize) {
            Some(result) => result?,
            None if queue.shared().is_forked() => {
                return Err(Error::os(VERB, "cq of the parent process", Errno::ESTALE));
            }
            None => return Err(Error::protocol(VERB, "the queue is lost")),
        }
        at_least(VERB, queue.cqe(), cqe)
    }
}

/// A shared receive queue. Its state is that of a QP which always takes receives; the kernel consumes in order, so its consumers have none.
#[derive(Debug)]
pub struct Srq<D: Device>(pub(crate) Kept<SrqHandle, State<D, QpShared<D>>>);

impl<D: Device> Object for Srq<D> {
    type Handle = SrqHandle;
    type Reported = u32;

    fn handle(&self) -> &SrqHandle {
        self.0.handle()
    }

    fn destroy(self) -> Result<u32, (Self, Error)> {
        // SAFETY: posts to the queue only write its ring, whose mapping the engine keeps.
        let destroyed = self.0.destroy(|_, handle| unsafe { handle.destroy() });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl<D: Device> SrqObject for Srq<D> {
    type Engine = RecvQueue<D, D::FlushBell>;

    fn modify(&self, queue: &mut Self::Engine, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        const VERB: &str = "modify_srq";
        let (common, shared) = &*self.0;
        if !Arc::ptr_eq(shared, queue.shared()) {
            return Err(Error::invalid(VERB, "srq", "the engine of another SRQ"));
        }
        let handle = self.handle();
        let modified = common.device.modify_srq(handle.kernel(), handle, attr, mask, queue.max_sge())?;
        let Some(ring) = modified else { return Ok(()) };
        // From here on the kernel receives from the new ring.
        let new = ring.and_then(|ring| queue.replace_ring(ring).map_err(|e| corrupt(VERB, e)));
        new.inspect_err(|_| queue.lose_ring())?;
        at_least(VERB, queue.capacity(), attr.max_wr).map(drop)
    }

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(&self.0.1) as Arc<dyn Notify>
    }
}

/// A QP.
#[derive(Debug)]
pub struct Qp<D: Device>(pub(crate) Kept<QpHandle, State<D, QpShared<D>>>);

impl<D: Device> Qp<D> {
    /// The state that its posters, its pollers and control calls share.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared<D>> {
        &self.0.1
    }

    fn device(&self) -> &D {
        &self.0.0.device
    }
}

impl<D: Device> Object for Qp<D> {
    type Handle = QpHandle;
    type Reported = QpEnd;

    fn handle(&self) -> &QpHandle {
        self.0.handle()
    }

    /// No post is in progress when the kernel destroys the QP, and none begins: the handle, by which a post rings and flushes, may be that
    /// of another QP then.
    fn destroy(self) -> Result<QpEnd, (Self, Error)> {
        let destroyed = self.0.destroy(|(common, shared), handle| {
            let before = shared.state();
            if let Err(errno) = shared.set_state_and_wait(BETWEEN) {
                D::store_state(shared, before);
                return Err((handle, Error::os("destroy_qp", "waiting for posts", errno)));
            }
            // In a child of fork(2) no other thread creates a QP.
            let _one = D::REUSES_QP_NUMBERS.then(|| common.numbers.lock());
            // SAFETY: the queues are closed, and the QP's completions are removed next.
            let events_reported =
                unsafe { handle.destroy() }.inspect_err(|_| D::store_state(shared, before))?;
            shared.set_state(QpState::RESET);
            shared.detach();
            Ok(QpEnd { events_reported, removed: shared.removed.take() })
        });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl<D: Device> Notify for QpShared<D> {
    fn device_removed(&self) {
        self.set_state(StateWord::REMOVED);
    }
}

impl<D: Device> QpObject for Qp<D> {
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let _one = self.shared().access().modify()?;
        self.device().modify_qp(self, attr, mask)
    }

    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        let (mut attr, init) = self.handle().query(mask)?;
        if !self.shared().is_forked() {
            self.device().correct(self, &mut attr);
        }
        Ok((attr, init))
    }

    fn is_flushed(&self) -> bool {
        D::is_flushed(self.shared())
    }

    fn keep_removed(&self) {
        self.shared().removed.keep();
    }

    fn take_removed(&self) -> Vec<u64> {
        self.shared().removed.take()
    }

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(self.shared()) as Arc<dyn Notify>
    }
}

/// Stores a state before the kernel acts on it, and waits for the posts in progress. If waiting fails, the queues stay as the state says.
///
/// # Errors
/// The errno of membarrier(2).
pub fn close<D: Device>(shared: &QpShared<D>, state: QpState) -> Result<()> {
    shared.set_state_and_wait(state).map_err(|errno| Error::os("modify_qp", "waiting for posts", errno))
}
