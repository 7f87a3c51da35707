// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a completion queue's poller shares with the control path: a mailbox and its flag, the doorbell record.
//!
//! The poller owns everything that a poll touches, so polling takes no lock. When a resource is made, reset or destroyed,
//! the control path leaves word in the mailbox and raises a flag; the poller reads it before its next completion. What
//! of a reset or destroyed queue is still in the ring is swept out then, and not handed out: it is a tombstone until
//! that moment, kept alive by the poller's own reference.
//!
//! How far to sweep is noted when the letter is written: entries that the device writes later are of the queue's next life.

use super::ring::CqRing;
use crate::memory::dbrec::DbRec;
use crate::qp::QpShared;
use crate::rq::SrqShared;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs_core::kernel::QueueAccess;
use uverbs_core::sync::barrier;
use uverbs_mlx5_hw::doorbell::CQ_SET_CI;

/// A consumer index has 24 bits.
pub(super) const INDEX_MASK: u32 = 0xff_ffff;

/// A letter to the poller.
#[derive(Debug)]
pub(super) enum Letter {
    /// A QP will complete here.
    AttachQp(Arc<QpShared>),
    /// An SRQ that is named by completions itself will complete here.
    AttachSrq(Arc<SrqShared>),
    /// A QP was reset, or is `gone`: what it completed before `upto` (24 bits) is nobody's.
    SweepQp { qp: Arc<QpShared>, upto: u32, gone: bool },
    /// An SRQ is gone.
    SweepSrq { srq: Arc<SrqShared>, upto: u32 },
}

/// The word of [`CqShared::mail`] while there are no letters.
const NO_MAIL: u32 = 1;
/// While there are.
const MAIL: u32 = 2;

/// One compare for all that a poll must see to first.
#[derive(Debug)]
pub(super) struct PollAccess(QueueAccess);

impl PollAccess {
    /// Whether there is nothing.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.0.word().load(Ordering::Acquire) == NO_MAIL
    }

    /// Whether this is a child of fork(2).
    pub(super) fn is_forked(&self) -> bool {
        self.0.word().load(Ordering::Acquire) == QueueAccess::FORKED
    }
}

/// What the poller and the control path share.
#[derive(Debug)]
pub struct CqShared {
    cqn: u32,
    /// Whether there are letters, or this is a child of fork(2): a copy of its parent's queue.
    mail: QueueAccess,
    letters: Mutex<Vec<Letter>>,
    /// SendQueueRef while data of a completion are copied to the memory that a WQE names: whoever held it after having left a
    /// letter knows that none is copied for that queue any more.
    copying: Mutex<()>,
    /// The ring that the device writes. Locked by the control path, and by the poller when it is replaced.
    ring: Mutex<CqRing>,
    dbrec: Arc<DbRec>,
    /// Counts the events that were read: what the device compares to know whether an arming is a new one.
    arm_sn: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CqShared {
    pub(super) fn new(cqn: u32, ring: CqRing, dbrec: Arc<DbRec>, mail: QueueAccess) -> Self {
        mail.word().store(NO_MAIL, Ordering::Release);
        Self {
            cqn,
            mail,
            letters: Mutex::default(),
            copying: Mutex::default(),
            ring: Mutex::new(ring),
            dbrec,
            arm_sn: AtomicU32::new(0),
        }
    }

    /// The queue's number, 24 bits.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Its doorbell record.
    #[inline(always)]
    #[must_use]
    pub fn dbrec(&self) -> &Arc<DbRec> {
        &self.dbrec
    }

    /// Notes that an event of this queue was read (`ibv_get_cq_event`): the next arming is a new one.
    pub fn event(&self) {
        self.arm_sn.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn arm_sn(&self) -> u32 {
        self.arm_sn.load(Ordering::Relaxed)
    }

    /// A QP was created that completes here; before it can post.
    pub fn attach_qp(&self, qp: &Arc<QpShared>) {
        self.post(Letter::AttachQp(Arc::clone(qp)));
    }

    /// An SRQ was created whose completions name it, not a QP (XRC); before it can receive.
    pub fn attach_srq(&self, srq: &Arc<SrqShared>) {
        self.post(Letter::AttachSrq(Arc::clone(srq)));
    }

    /// The kernel has reset the QP; before its queues start anew. When this returns, no memory of its WQEs is written.
    pub fn reset_qp(&self, qp: &Arc<QpShared>) {
        self.sweep(|upto| Letter::SweepQp { qp: Arc::clone(qp), upto, gone: false });
    }

    /// The kernel has destroyed the QP. When this returns, no memory of its WQEs is written.
    pub fn detach_qp(&self, qp: &Arc<QpShared>) {
        self.sweep(|upto| Letter::SweepQp { qp: Arc::clone(qp), upto, gone: true });
    }

    /// The kernel has destroyed the SRQ. When this returns, no memory of its WQEs is written.
    pub fn detach_srq(&self, srq: &Arc<SrqShared>) {
        self.sweep(|upto| Letter::SweepSrq { srq: Arc::clone(srq), upto });
    }

    fn sweep(&self, letter: impl FnOnce(u32) -> Letter) {
        self.post(letter(self.produced()));
        drop(lock(&self.copying));
    }

    fn post(&self, letter: Letter) {
        let mut letters = lock(&self.letters);
        letters.push(letter);
        self.tell(NO_MAIL, MAIL);
    }

    /// Changes the word. In a child of fork it stays what it is.
    fn tell(&self, from: u32, to: u32) {
        let _ = self.mail.word().compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// What tells that there is something to see to before polling; the poller keeps it at hand.
    pub(super) fn access(&self) -> PollAccess {
        PollAccess(self.mail.clone())
    }

    /// Whether there are letters.
    pub(super) fn has_mail(&self) -> bool {
        self.mail.word().load(Ordering::Acquire) == MAIL
    }

    /// Takes the letters.
    pub(super) fn take_letters(&self) -> Vec<Letter> {
        let mut letters = lock(&self.letters);
        self.tell(MAIL, NO_MAIL);
        core::mem::take(&mut letters)
    }

    /// Holds the control path up for as long as data are copied.
    pub(super) fn copying(&self) -> MutexGuard<'_, ()> {
        lock(&self.copying)
    }

    /// The poller goes on in another ring.
    pub(super) fn replace_ring(&self, ring: CqRing) {
        *lock(&self.ring) = ring;
    }

    /// Where the device will write next, 24 bits: the first entry from the consumer's on that it has not written.
    fn produced(&self) -> u32 {
        let ring = lock(&self.ring);
        let consumed = || u32::from_be(self.dbrec.word(CQ_SET_CI).load(Ordering::Acquire)) & INDEX_MASK;
        let mut from = consumed();
        loop {
            let written = (0..ring.entries()).take_while(|n| ring.valid(from.wrapping_add(*n)).is_some());
            let upto = from.wrapping_add(written.count() as u32) & INDEX_MASK;
            barrier::from_device();
            let now = consumed();
            // The poller moved on meanwhile, and the device may have written over what it freed: look again.
            if now == from {
                return upto;
            }
            from = now;
        }
    }
}
