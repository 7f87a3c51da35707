// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shared part of a queue pair, to which the dispatcher passes its completions.

use crate::deferred::{Ended, LAST_WQE_LIMIT, Linger};
use crate::error::{Error, Result};
use crate::life::Life;
use crate::receives::Receives;
use crate::route::RouteId;
use crate::sends::{Queue, Sends, Together};
use crate::srq::Srq;
use crate::sync::{Mutex, Short, lock};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use std::sync::Arc;
use uverbs::attr::{EventType, QpState};
use uverbs::qp::QpControl;
use uverbs::{Driver, Polled, WcStatus};
use uverbs_core::wake::Wakes;

/// The shared part of a QP. Futures hold it, so the QP lives as long as they do.
pub(crate) struct QpInner<D: Driver> {
    pub(crate) sends: Short<Sends<D>>,
    pub(crate) receives: Short<Receives<D>>,
    control: QpControl<D>,
    life: Arc<Life<D>>,
    route: RouteId,
    /// Entries of the CQ that are reserved for it.
    entries: u32,
    depth: u32,
    /// The first error of a completion: those after it are flushed only.
    fault: Mutex<Option<Error>>,
    /// Whether a send that fails moves it to ERR.
    fails: bool,
    srq: Option<Srq<D>>,
    /// With an SRQ: it takes no more receives, and those that it took were passed on.
    flushed: AtomicBool,
    /// Whether the log has a warning about a batch that was dropped.
    warned: AtomicBool,
}

impl<D: Driver> fmt::Debug for QpInner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qp_num", &self.qp_num()).finish_non_exhaustive()
    }
}

impl<D: Driver> Drop for QpInner<D> {
    fn drop(&mut self) {
        // The parts of the kernel object first, so that its entry is free only when it has no more completions.
        let queue = self.sends.get_mut().queue.take();
        drop(self.receives.get_mut().take_queue());
        if self.life.sleeper().is_forked() {
            return;
        }
        let (route, entries, qp_num) = (self.route, self.entries, Some(self.control.qp_num()));
        let lingers = self.srq.is_some() && !self.flushed.load(Ordering::Relaxed) && self.stop();
        let linger = lingers.then(|| {
            let until = self.life.sleeper().now().saturating_add(LAST_WQE_LIMIT);
            Linger { control: self.control.clone(), _queue: queue, until }
        });
        let life = Some(self.control.life());
        self.life.queue_ended(Ended { route, qp_num, entries, linger, life, srq: None });
    }
}

impl<D: Driver> QpInner<D> {
    /// Of queues that complete by `route`.
    pub(crate) fn new(
        (sends, receives, control): (Queue<D>, Receives<D>, QpControl<D>),
        life: &Arc<Life<D>>,
        (route, entries, depth): (RouteId, u32, u32),
        (srq, fails): (Option<Srq<D>>, bool),
    ) -> Self {
        Self {
            sends: Short::new(Sends::new(sends, depth)),
            receives: Short::new(receives),
            control,
            life: life.clone(),
            route,
            entries,
            depth,
            fault: Mutex::new(None),
            fails,
            srq,
            flushed: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn control(&self) -> &QpControl<D> {
        &self.control
    }

    pub(crate) fn life(&self) -> &Arc<Life<D>> {
        &self.life
    }

    pub(crate) fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// It takes no more receives of its SRQ, and those that it took were passed on.
    pub(crate) fn set_flushed(&self) {
        self.flushed.store(true, Ordering::Relaxed);
    }

    /// A batch was dropped and never polled.
    pub(crate) fn warn_forgotten(&self) {
        if !std::thread::panicking() && !self.warned.swap(true, Ordering::Relaxed) {
            uverbs::report!(
                warn,
                { device = self.control.device(), qp_num = self.qp_num() },
            "qp {:#x}: a batch with work requests was dropped and not awaited: none was posted",
                self.qp_num()
            );
        }
    }

    pub(crate) fn qp_num(&self) -> u32 {
        self.control.qp_num()
    }

    /// Sends that may be in flight.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn route(&self) -> RouteId {
        self.route
    }

    /// The first error of a completion.
    pub(crate) fn fault(&self) -> Option<Error> {
        lock(&self.fault).clone()
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.life.failure()
    }

    /// Whether there is a [`failure`](Self::failure), in the process of the QP.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.life.is_broken()
    }

    /// A send is complete, with all unsignaled ones before it.
    #[inline]
    pub(crate) fn sent(&self, key: u64, done: Polled<'_, '_, D>, wakes: &mut Vec<Waker>) {
        if !done.status().is_success() {
            self.note_error(done.status(), done.vendor_err(), done.qp_num(), wakes);
        }
        let mut sends = lock(&self.sends);
        let (mut freed, mut fault) = (1, None);
        if let Some(at) = sends.batches.iter().position(|batch| batch.key == key) {
            Together { count: freed, fault, .. } = sends.batches.swap_remove(at);
        }
        sends.free += freed;
        // If the future was dropped, the buffer goes back to its pool.
        sends.slots.complete(key, || fault.map_or_else(|| Ok(done.complete()), Err), wakes);
        sends.released(self.depth, wakes);
        let addresses = sends.take_addresses(key);
        drop(sends);
        drop(addresses);
    }

    /// A work request of a batch that is not its last has failed: only then it has a completion. The others are flushed after it.
    pub(crate) fn part_failed(&self, key: u64, done: &Polled<'_, '_, D>, wakes: &mut Vec<Waker>) {
        let (status, vendor_err, qp_num) = (done.status(), done.vendor_err(), done.qp_num());
        if status.is_success() {
            return;
        }
        self.note_error(status, vendor_err, qp_num, wakes);
        if let Some(batch) = lock(&self.sends).batches.iter_mut().find(|batch| batch.key == key) {
            batch.fault.get_or_insert(Error::Completion { status, vendor_err, qp_num });
        }
    }

    #[cold]
    fn note_error(&self, status: WcStatus, vendor_err: u32, qp_num: u32, wakes: &mut Vec<Waker>) {
        if !self.fails {
            return;
        }
        let error = Error::Completion { status, vendor_err, qp_num };
        if status != WcStatus::WR_FLUSH_ERR {
            lock(&self.fault).get_or_insert_with(|| error.clone());
        }
        if self.srq.is_some() {
            // Its receives are not flushed, because they are not its own.
            lock(&self.receives).end(self.fault().unwrap_or(error), wakes);
        }
    }

    /// A receive is complete. Returns whether the queue should be refilled.
    #[inline]
    pub(crate) fn received(&self, done: Polled<'_, '_, D>, wakes: &mut Vec<Waker>) -> bool {
        if !done.status().is_success() {
            return self.receive_failed(&done, wakes);
        }
        lock(&self.receives).arrived(done, self.srq.is_none(), wakes)
    }

    #[cold]
    fn receive_failed(&self, done: &Polled<'_, '_, D>, wakes: &mut Vec<Waker>) -> bool {
        let (status, vendor_err, qp_num) = (done.status(), done.vendor_err(), done.qp_num());
        let error = Error::Completion { status, vendor_err, qp_num };
        if status != WcStatus::WR_FLUSH_ERR {
            lock(&self.fault).get_or_insert_with(|| error.clone());
        }
        let error = self.fault().unwrap_or(error);
        lock(&self.receives).failed(error, self.srq.is_none(), wakes)
    }

    /// As [`Receives::refill`].
    pub(crate) fn refill(&self) -> bool {
        lock(&self.receives).refill()
    }

    /// The receive queue is empty because its pool is.
    #[cold]
    pub(crate) fn starved(&self) {
        self.life.starved(self.route);
    }

    /// Whether this is a child of fork(2), and the QP its parent's.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.life.sleeper().is_forked()
    }

    /// The QP had an asynchronous event.
    pub(crate) fn event(&self, event_type: EventType, wakes: &mut Vec<Waker>) {
        let fatal = [EventType::QP_FATAL, EventType::QP_REQ_ERR, EventType::QP_ACCESS_ERR];
        if self.srq.is_some() && fatal.contains(&event_type) {
            lock(&self.receives).end(Error::QpEvent(event_type), wakes);
        }
        if event_type == EventType::QP_LAST_WQE_REACHED {
            lock(&self.receives).wake_flushing(wakes);
        }
    }

    /// Ends all operations: there are no more completions.
    pub(crate) fn fail(&self, error: &Error, wakes: &mut Vec<Waker>) {
        let mut sends = lock(&self.sends);
        sends.closed = Some(error.clone());
        sends.slots.fail_all(|| Err(error.clone()), wakes);
        sends.waiters.wake_all(wakes);
        sends.draining.wake_all(wakes);
        drop(sends);
        lock(&self.receives).fail(error.clone(), wakes);
    }

    /// No more operations begin.
    pub(crate) fn close(&self) {
        if self.is_forked() {
            return;
        }
        let mut wakes = Wakes::new();
        let mut sends = lock(&self.sends);
        sends.closed.get_or_insert(Error::Closed);
        sends.waiters.wake_all(&mut wakes);
        drop(sends);
        lock(&self.receives).close();
        wakes.wake();
    }

    /// Moves it to RESET. The caller keeps the dispatcher from polling: a poll passes completions on with the locks of the queues, and
    /// the move to RESET waits for it.
    pub(crate) fn reset(&self, wakes: &mut Vec<Waker>) -> Result<()> {
        if self.srq.is_some() && !self.flushed.load(Ordering::Relaxed) {
            let reason = "it may have receives of its SRQ: shut it down first";
            return Err(uverbs::Error::invalid("reset", "srq", reason).into());
        }
        let (mut sends, mut receives) = (lock(&self.sends), lock(&self.receives));
        if let Some(queue) = &mut sends.queue {
            queue.reset(receives.queue(), &self.control)?;
        }
        sends.reset(self.depth, self.qp_num(), wakes);
        receives.reset(wakes);
        *lock(&self.fault) = None;
        self.flushed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Moves a QP with an SRQ to ERR. Returns whether it may have taken receives.
    fn stop(&self) -> bool {
        let took = |state| state != QpState::RESET && state != QpState::INIT;
        self.control.state().is_ok_and(took) && self.control.modify_state(QpState::ERR).is_ok()
    }
}
