// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a QP that its posters, the pollers of its completions and the control path share.

use super::{RqShared, SqShared, SrqShared, UserIndex};
use crate::control::dv::MkeyOps;
use std::io;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::control::Removed;
use uverbs_core::errno::Errno;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::ControlBarrier;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// Access to the two work queues of a QP. Each has the QP's [`StateWord`] as its word; its limit is the number of WRs that
/// may have been posted since the last RESET. There are two, because different threads may post to the two queues, and each
/// writes its busy flag in every post.
#[derive(Debug)]
pub struct QpAccess {
    pub(crate) send: QueueAccess,
    pub(crate) recv: QueueAccess,
}

impl QpAccess {
    /// Access to a new QP, in RESET. `barrier` is that of the context.
    ///
    /// # Errors
    /// The error of [`QueueAccess::new`].
    pub fn new(barrier: ControlBarrier) -> io::Result<Self> {
        let access = || QueueAccess::new(StateWord::new(QpState::RESET).bits(), barrier);
        Ok(Self { send: access()?, recv: access()? })
    }

    fn both(&self) -> [&QueueAccess; 2] {
        [&self.send, &self.recv]
    }
}

/// The shared part of a QP.
#[derive(Debug)]
pub struct QpShared {
    /// Its number, 24 bits.
    pub qp_num: u32,
    /// The number in its completions: the user index, or with `cqe_version` 0 its number.
    pub uidx: u32,
    /// Keeps the user index allocated until the last CQ has dropped this QP.
    _index: Option<UserIndex>,
    /// Its send queue.
    pub sq: Option<Arc<SqShared>>,
    /// Its receive queue.
    pub rq: Option<Arc<RqShared>>,
    /// The shared receive queue of the QP.
    pub srq: Option<Arc<SrqShared>>,
    access: QpAccess,
    may_csum: bool,
    csum: AtomicBool,
    data_in_completions: bool,
    raw_wqes: bool,
    mkeys: MkeyOps,
    /// Receives of the SRQ whose completions were removed.
    pub(crate) removed: Removed,
}

impl QpShared {
    /// A new QP, in RESET.
    #[must_use]
    pub fn new(
        access: QpAccess,
        qp_num: u32,
        uidx: u32,
        sq: Option<Arc<SqShared>>,
        rq: Option<Arc<RqShared>>,
        srq: Option<Arc<SrqShared>>,
    ) -> Self {
        Self {
            qp_num,
            uidx,
            _index: None,
            sq,
            rq,
            srq,
            access,
            may_csum: false,
            csum: AtomicBool::new(false),
            data_in_completions: false,
            raw_wqes: false,
            mkeys: MkeyOps::empty(),
            removed: Removed::default(),
        }
    }

    /// Adds the user index, which the QP owns from now on.
    #[must_use]
    pub fn with_index(self, index: UserIndex) -> Self {
        Self { uidx: index.get(), _index: Some(index), ..self }
    }

    /// For a QP that was created with data in completions: the device may put short data into its completions, and into
    /// those of receives from its SRQ.
    #[must_use]
    pub fn with_data_in_completions(self) -> Self {
        if let Some(srq) = &self.srq {
            srq.allow_data_in_completions();
        }
        Self { data_in_completions: true, ..self }
    }

    /// For a QP to which the program may post WQEs that it has written itself.
    #[must_use]
    pub fn with_raw_wqes(self) -> Self {
        Self { raw_wqes: true, ..self }
    }

    /// Whether the program may post WQEs that it has written itself.
    pub(crate) fn takes_raw_wqes(&self) -> bool {
        self.raw_wqes
    }

    /// For a QP whose work requests configure indirect keys.
    #[must_use]
    pub fn with_mkeys(self, mkeys: MkeyOps) -> Self {
        Self { mkeys, ..self }
    }

    /// Its work requests about indirect keys.
    #[must_use]
    pub fn mkey_ops(&self) -> MkeyOps {
        self.mkeys
    }

    /// Whether the device may put short data into completions. If not, such data are never copied.
    pub(crate) fn data_in_completions(&self) -> bool {
        self.data_in_completions
    }

    /// The state that `modify_qp` set last. The device may have changed it to ERR.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.word().state()
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn word(&self) -> StateWord {
        StateWord::from_bits(self.access.send.word().load(Ordering::Acquire))
    }

    /// Sets the state. RESET empties both queues; the QP's completions must have been removed from its CQs before.
    pub(crate) fn set_state(&self, state: QpState) {
        if state == QpState::RESET {
            if let Some(sq) = &self.sq {
                sq.reset();
            }
            if let Some(rq) = &self.rq {
                rq.reset();
            }
        }
        for access in self.access.both() {
            // Control calls on one QP may race; the word is then that of one of them. Release: a poster that loads the word
            // also finds the queues empty.
            let _ = access.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let word = StateWord::from_bits(word);
                (!word.is_forked()).then(|| word.next(state).bits())
            });
        }
        // If the barrier fails, a poster may continue with a limit from the old state. A caller that must exclude this
        // calls `stop_posters` first.
        let _ = self.stop_posters();
    }

    /// Sets the limits of both queues to 0 and waits until no post is in progress. The next post finds the state that was
    /// set before this call.
    ///
    /// # Errors
    /// The error of membarrier(2). Then a post may still be in progress.
    pub(crate) fn stop_posters(&self) -> Result<(), Errno> {
        for access in self.access.both() {
            access.limit().store(0, Ordering::Relaxed);
            access.wait_idle()?;
            // A poster that was inside may have raised the limit under the old state.
            access.limit().store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The access of the posters to the work queues.
    pub(crate) fn access(&self) -> &QpAccess {
        &self.access
    }

    /// For a QP whose port may compute checksums: a raw packet QP.
    #[must_use]
    pub fn with_checksums(self) -> Self {
        Self { may_csum: true, ..self }
    }

    /// Whether the QP's port may compute checksums.
    pub(crate) fn may_csum(&self) -> bool {
        self.may_csum
    }

    /// Whether the QP's port computes checksums; known when `modify_qp` sets the port.
    #[must_use]
    pub fn csum(&self) -> bool {
        self.csum.load(Ordering::Relaxed)
    }

    /// Sets whether the port computes checksums. To be called before the state that comes with the port is set.
    pub fn set_csum(&self, csum: bool) {
        self.csum.store(csum, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
fn access() -> QpAccess {
    QpAccess::new(ControlBarrier::register()).expect("memory")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reset_changes_the_word_even_if_the_state_is_restored() {
        let shared = QpShared::new(access(), 1, 1, None, None, None);
        shared.set_state(QpState::RTS);
        let before = shared.word();
        shared.set_state(QpState::RESET);
        shared.set_state(QpState::RTS);
        let after = shared.word();
        assert_eq!(after.state(), QpState::RTS);
        assert_ne!(before, after);
        assert!(before.resets_differ(after));
        shared.set_state(QpState::ERR);
        assert!(!after.resets_differ(shared.word()));
    }
}
