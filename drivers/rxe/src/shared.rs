// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that a QP's posters and its control path share: the state, and the queue key.
//!
//! The kernel checks the state only after user space has published (`rxe_post_send()`), so the posters check it first, in the
//! access to the queue in which they publish ([`QpAccess`]). So no post publishes after the kernel has reset the QP.

use crate::cq_shared::CqShared;
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::control::Removed;
use uverbs_core::kernel::QpAccess;
use uverbs_core::sync::ControlBarrier;

/// State and queue key of a QP, written by `modify_qp`, read by the posters.
#[derive(Debug)]
pub struct QpShared {
    /// The state, and access to the queues.
    pub(crate) access: QpAccess,
    qkey: AtomicU32,
    /// The CQs of the QP. They contain no completion of it after it was reset or destroyed.
    cqs: Vec<Arc<CqShared>>,
    qp_num: u32,
    /// Completions that were removed.
    pub(crate) removed: Removed,
}

impl QpShared {
    /// The shared part of a QP whose completions go to `cqs`. An SRQ has one, too: it is treated as a QP without a number
    /// that always takes receives.
    ///
    /// # Errors
    /// As [`QueueAccess::new`].
    pub(crate) fn create(
        state: QpState,
        barrier: ControlBarrier,
        cqs: Vec<Arc<CqShared>>,
        qp_num: u32,
    ) -> io::Result<Self> {
        Ok(Self {
            access: QpAccess::new(state, barrier)?,
            qkey: AtomicU32::new(0),
            cqs,
            qp_num,
            removed: Removed::default(),
        })
    }

    /// The shared part of a QP in `state` without CQs.
    ///
    /// # Panics
    /// If memory can't be allocated.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn new(state: QpState) -> Self {
        Self::create(state, ControlBarrier::register(), Vec::new(), 0).expect("a page of memory")
    }

    /// The state that `modify_qp` stored. The device may have entered ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.access.state().state()
    }

    /// Stores a new state. RESET counts as a reset, after which the posters read the rings' indices again.
    pub fn set_state(&self, state: QpState) {
        self.access.set_state(state);
    }

    /// Removes the completions of the QP, which the kernel has reset or destroyed, from its CQs. The kernel assigns numbers in a cycle
    /// (`__rxe_add_to_pool()`), so this number is not yet that of another QP.
    pub(crate) fn remove_completions(&self) {
        for cq in &self.cqs {
            cq.stopped(|state| state.remove(self.qp_num, |wr_id| self.removed.push(wr_id)));
        }
    }

    /// The QP's own queue key.
    #[inline]
    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Stores a new queue key.
    pub fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }
}
