// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QP as its posters, the pollers of its completions and the control path see it.

use crate::cq::UserIndex;
use crate::memory::dbrec::DbWord;
use crate::rq::{RqShared, SrqShared};
use crate::sq::SqShared;
use std::io;
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::QpState;
use uverbs_core::errno::Errno;
use uverbs_core::kernel::QueueAccess;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::ControlBarrier;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// Access to a QP's two work queues, each with the QP's [`StateWord`] as its word and a limit: how many WRs may have been
/// posted since the last RESET. Two, because the posters of the two queues may be different threads, and each writes its
/// busy flag for every post.
#[derive(Debug)]
pub struct QpAccess {
    pub(crate) send: QueueAccess,
    pub(crate) recv: QueueAccess,
}

impl QpAccess {
    /// Of a new QP, in RESET. `barrier` is that of the context.
    ///
    /// # Errors
    /// That of [`QueueAccess::new`].
    pub fn new(barrier: ControlBarrier) -> io::Result<Self> {
        let access = || QueueAccess::new(StateWord::new(QpState::RESET).bits(), barrier);
        Ok(Self { send: access()?, recv: access()? })
    }

    fn both(&self) -> [&QueueAccess; 2] {
        [&self.send, &self.recv]
    }
}

/// A QP, as all sides see it.
#[derive(Debug)]
pub struct QpShared {
    /// Its number, 24 bits.
    pub qp_num: u32,
    /// What its completions carry: the user index, or with `cqe_version` 0 its number.
    pub uidx: u32,
    /// Keeps the user index taken, until the last poller that knows this QP forgets it.
    _index: Option<UserIndex>,
    /// Its send queue.
    pub sq: Option<Arc<SqShared>>,
    /// Its receive queue.
    pub rq: Option<Arc<RqShared>>,
    /// The shared receive queue that it takes receives from.
    pub srq: Option<Arc<SrqShared>>,
    access: QpAccess,
    may_csum: bool,
    csum: AtomicBool,
    data_in_completions: bool,
}

impl QpShared {
    /// Of a new QP, in RESET.
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
        }
    }

    /// The same with a user index, which is its own from now on.
    #[must_use]
    pub fn with_index(self, index: UserIndex) -> Self {
        Self { uidx: index.get(), _index: Some(index), ..self }
    }

    /// The same of a QP that was created so that the device may put short data into completions. Then it may do so with the
    /// receives of its SRQ, too.
    #[must_use]
    pub fn with_data_in_completions(self) -> Self {
        if let Some(srq) = &self.srq {
            srq.allow_data_in_completions();
        }
        Self { data_in_completions: true, ..self }
    }

    /// Whether the device may put short data into completions. What a device puts there unasked is never copied.
    pub(crate) fn data_in_completions(&self) -> bool {
        self.data_in_completions
    }

    /// The state, as `modify_qp` left it. The device may have gone to ERR by itself.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.word().state()
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> StateWord {
        StateWord::from_bits(self.access.send.word().load(Ordering::Acquire))
    }

    /// Notes a new state. RESET empties both queues: call it after the QP's completions were taken out of its CQs.
    pub fn set_state(&self, state: QpState) {
        if state == QpState::RESET {
            if let Some(sq) = &self.sq {
                sq.reset();
            }
            if let Some(rq) = &self.rq {
                rq.reset();
            }
        }
        for access in self.access.both() {
            // Control calls on one QP may race; each leaves a word that some call wrote. Release: a poster that loads the
            // word also sees the empty queues.
            let _ = access.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let word = StateWord::from_bits(word);
                (!word.is_forked()).then(|| word.next(state).bits())
            });
        }
        // Where the barrier fails, a poster may go on under a limit of the state before. A caller that must exclude that
        // calls `stop_posters` itself.
        let _ = self.stop_posters();
    }

    /// Takes the limits of both queues away and waits until no post is under way. The next post finds the state that was
    /// set before this call.
    ///
    /// # Errors
    /// That of membarrier(2); then a post may still be under way.
    pub fn stop_posters(&self) -> Result<(), Errno> {
        for access in self.access.both() {
            access.limit().store(0, Ordering::Relaxed);
            access.wait_idle()?;
            // A poster that was inside may have raised it under the state before.
            access.limit().store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Access to its work queues, for their posters.
    pub(crate) fn access(&self) -> &QpAccess {
        &self.access
    }

    /// The same of a QP whose port may compute checksums: a raw packet QP.
    #[must_use]
    pub fn with_checksums(self) -> Self {
        Self { may_csum: true, ..self }
    }

    /// Whether its port may compute checksums.
    pub(crate) fn may_csum(&self) -> bool {
        self.may_csum
    }

    /// Whether the QP's port computes checksums, which is learnt when `modify_qp` names the port.
    #[must_use]
    pub fn csum(&self) -> bool {
        self.csum.load(Ordering::Relaxed)
    }

    /// Notes it; before the state that comes with the port.
    pub fn set_csum(&self, csum: bool) {
        self.csum.store(csum, Ordering::Relaxed);
    }
}

/// The doorbell record word by which the poster publishes what it posted. Pollers read it before they write to memory that
/// a WR names, because a device may report a WR that was never published, or one that is complete.
#[derive(Debug, Default)]
pub(crate) struct Published(OnceLock<DbWord>);

impl Published {
    /// Names the word. The first call counts; a queue has one poster.
    pub(crate) fn set(&self, record: DbWord) {
        let _ = self.0.set(record);
    }

    /// The count that was published last; `None` for a queue without a poster.
    pub(crate) fn count(&self) -> Option<u32> {
        self.0.get().map(DbWord::get)
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
    fn a_reset_changes_the_word_even_if_the_state_is_the_same_again() {
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
