// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that a QP's posters, its pollers and its control path share.
//!
//! The kernels check the state only after user space has published, so the posters check it first, in the access to the queue in which
//! they publish ([`QpAccess`]). So no post publishes after the kernel has reset or destroyed the QP.

use crate::cq_state::CqShared;
use crate::format::Format;
use std::io;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::control::Removed;
use uverbs_core::errno::Errno;
use uverbs_core::kernel::QpAccess;
use uverbs_core::sync::ControlBarrier;

/// State of a QP, written by control calls, read by the posters.
#[derive(Debug)]
pub struct QpShared<F: Format> {
    access: QpAccess,
    own: F::Qp,
    /// The CQs of the QP. They contain no completion of it after it was reset or destroyed.
    cqs: Vec<Arc<CqShared<F>>>,
    qp_num: u32,
    /// Completions that were removed.
    pub(crate) removed: Removed,
}

impl<F: Format> QpShared<F> {
    /// The shared part of a QP whose completions go to `cqs`. An SRQ has one, too: it is treated as a QP without a number
    /// that always takes receives.
    ///
    /// # Errors
    /// There is no memory for the words of posters and control calls.
    pub fn create(
        state: QpState,
        barrier: ControlBarrier,
        cqs: Vec<Arc<CqShared<F>>>,
        qp_num: u32,
    ) -> io::Result<Self> {
        let access = QpAccess::new(state, barrier)?;
        Ok(Self { access, own: F::Qp::default(), cqs, qp_num, removed: Removed::default() })
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

    /// The state, and access to the queues.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn access(&self) -> &QpAccess {
        &self.access
    }

    /// What only this driver has.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn own(&self) -> &F::Qp {
        &self.own
    }

    /// The state that was stored last. The device may have entered another one by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.access.state().state()
    }

    /// Whether this is a child of fork(2), and the QP its parent's.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.access.state().is_forked()
    }

    /// Stores a new state. RESET counts as a reset, after which the posters look at the rings again.
    pub fn set_state(&self, state: QpState) {
        self.access.set_state(state);
    }

    /// Stores a state that ends posts, or that the posters must see before the kernel acts, and waits for the posts in progress. If
    /// waiting fails, the state stays.
    ///
    /// # Errors
    /// The errno of membarrier(2).
    pub fn set_state_and_wait(&self, state: QpState) -> Result<(), Errno> {
        self.set_state(state);
        self.access.wait_for_posters()
    }

    /// Tells the CQs which QP has this number.
    pub fn attach(self: &Arc<Self>) {
        for cq in &self.cqs {
            cq.stopped(|state| state.attach(self.qp_num, self));
        }
    }

    /// Removes the completions of the QP, which the kernel has reset, from its CQs.
    pub fn remove_completions(&self) {
        for cq in &self.cqs {
            cq.stopped(|state| state.remove(self.qp_num, |wr_id| self.removed.push(wr_id)));
        }
    }

    /// As [`remove_completions`](Self::remove_completions), of a QP that the kernel has destroyed. The caller ensures that its number is
    /// not yet that of another QP.
    pub fn detach(&self) {
        for cq in &self.cqs {
            cq.stopped(|state| {
                state.remove(self.qp_num, |wr_id| self.removed.push(wr_id));
                state.detach(self.qp_num);
            });
        }
    }
}
