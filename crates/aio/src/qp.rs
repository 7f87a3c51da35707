// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs whose operations are futures.

mod builder;

pub use builder::QpBuilder;
pub(crate) use builder::check_pool;

use crate::deferred::{Dry, Ended, LAST_WQE_LIMIT, Linger};
use crate::dispatcher::{Dispatcher, Inner, RouteId};
use crate::error::{Error, Result};
use crate::fair_queue::{FairQueue, Ticket};
use crate::recv::{Receives, Recv};
use crate::slots::Slots;
use crate::srq::Srq;
use crate::sync::{Mutex, Short, lock};
use crate::timers::Sleep;
use core::fmt;
use core::future::Future;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use std::sync::Arc;
use uverbs::AnyDriver;
use uverbs::qp::QpControl;
use uverbs::{Completed, Polled};
use uverbs::{ConnectAttr, Driver, Endpoint, Rc, WcStatus};
use uverbs::{
    Exclusive,
    attr::{EventType, QpState},
};
use uverbs_core::wake::{Caller, Place, Waiters, Wakes, discard};

/// The result of a send, or why it has none.
pub(crate) type Outcome<D> = Result<Completed<D>>;

/// What posts sends, and the sends in flight.
pub(crate) struct Sends<D: Driver> {
    /// `None` only while the QP is dropped.
    pub(crate) queue: Option<uverbs::SendQueue<Rc, Exclusive, D>>,
    pub(crate) slots: Slots<Outcome<D>>,
    /// Work requests that can be posted.
    pub(crate) free: u32,
    pub(crate) waiters: FairQueue,
    /// Why nothing can be posted any more.
    pub(crate) closed: Option<Error>,
    /// Work requests in flight of which only the last makes a completion.
    batches: Vec<Together>,
    /// Detached work requests without a completion, since the last one that makes one.
    pub(crate) silent: u32,
    /// How often the QP was [reset](Qp::reset).
    pub(crate) resets: u64,
    /// Those that wait until no send is in flight.
    draining: Waiters,
}

/// Work requests of which only the last makes a completion: it has the slot.
struct Together {
    key: u64,
    count: u32,
    /// The first error of one that is not the last.
    fault: Option<Error>,
}

/// The shared part of a QP. Futures hold it, so the QP lives as long as they do.
pub(crate) struct QpInner<D: Driver> {
    pub(crate) sends: Short<Sends<D>>,
    pub(crate) receives: Short<Receives<D>>,
    control: QpControl<D>,
    dispatcher: Arc<Inner<D>>,
    route: RouteId,
    /// Entries of the CQ that are reserved for it.
    entries: u32,
    depth: u32,
    /// The first error of a completion: those after it are flushed only.
    fault: Mutex<Option<Error>>,
    srq: Option<Srq<D>>,
    /// With an SRQ: it takes no more receives, and those that it took were passed on.
    flushed: AtomicBool,
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
        self.receives.get_mut().drop_queue();
        if self.dispatcher.sleeper().is_forked() {
            return;
        }
        let (route, entries, qp_num) = (self.route, self.entries, Some(self.control.qp_num()));
        let lingers = self.srq.is_some() && !self.flushed.load(Ordering::Relaxed) && self.stop();
        let linger = lingers.then(|| {
            let until = self.dispatcher.sleeper().now().saturating_add(LAST_WQE_LIMIT);
            Linger { control: self.control.clone(), _queue: queue, until }
        });
        let life = Some(self.control.life());
        self.dispatcher.queue_ended(Ended { route, qp_num, entries, linger, life });
    }
}

/// A reliable connected queue pair whose operations are futures. Clones share it; it is destroyed when all clones and futures
/// are dropped.
///
/// The operations are in the order in which their futures are polled first. If more are polled than the queue has entries,
/// they wait for one in that order.
pub struct Qp<D: Driver = AnyDriver> {
    pub(crate) inner: Arc<QpInner<D>>,
}

impl<D: Driver> Clone for Qp<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Driver> fmt::Debug for Qp<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<D: Driver> Qp<D> {
    /// The QP's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    /// States and queries. After a move to INIT by it, [`post_receives`](Self::post_receives).
    ///
    /// A move to RESET by it discards what is in flight, without completions: operations wait for ever, and the receives are not
    /// posted again, until [`reset`](Self::reset).
    #[must_use]
    pub fn control(&self) -> &QpControl<D> {
        &self.inner.control
    }

    /// Its dispatcher.
    #[must_use]
    pub fn dispatcher(&self) -> Dispatcher<D> {
        Dispatcher { inner: self.inner.dispatcher.clone() }
    }

    /// Moves it from RESET to INIT, and posts the receives.
    ///
    /// # Errors
    /// As [`QpControl::init`].
    pub fn init(&self, attr: &ConnectAttr) -> Result<()> {
        self.inner.control.init(attr)?;
        self.post_receives();
        Ok(())
    }

    /// Posts the receives, after the QP was moved to INIT in another way.
    pub fn post_receives(&self) {
        if !self.inner.is_forked() && self.inner.refill() {
            self.inner.starved();
        }
    }

    /// Moves it to RESET from any state, also from RESET, so that it can be connected again. Operations in flight end with
    /// [`WcStatus::WR_FLUSH_ERR`] or [`Error::Closed`], and their buffers go back to their pools, whether or not the peer has received
    /// them; those that wait for an entry, and for messages, end with [`Error::Closed`]. Messages that have arrived can still be
    /// [received](Self::recv).
    ///
    /// Operations that are posted before the next [`init`](Self::init) and [`connect`](Self::connect) fail; a receive waits for the next connection. A
    /// [`shutdown`](Self::shutdown) or [`abort`](Self::abort) must not be in progress: it would end the next connection.
    ///
    /// # Errors
    /// The QP has an SRQ, of which it may have taken receives: `shutdown` or `abort` end that first. Or the kernel's refusal, or the device
    /// was removed.
    pub fn reset(&self) -> Result<()> {
        self.inner.reset()
    }

    /// This side's endpoint for the exchange; see [`QpControl::endpoint`].
    ///
    /// # Errors
    /// As [`QpControl::endpoint`].
    pub fn endpoint(&self, psn: u32, attr: &ConnectAttr) -> Result<Endpoint> {
        Ok(self.inner.control.endpoint(psn, attr)?)
    }

    /// Moves it from INIT to RTS, connected to `remote`. `local` is this side's endpoint.
    ///
    /// # Errors
    /// As [`QpControl::connect`].
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        Ok(self.inner.control.connect(local, remote, attr)?)
    }

    /// The next message. Messages are in the order of their arrival, and so are the tasks that wait for them.
    ///
    /// # Errors
    /// After all messages that have arrived: the error of the QP, or [`Error::Closed`].
    pub fn recv(&self) -> Recv<D> {
        Recv::new(self.inner.clone())
    }

    /// A message that has arrived already.
    #[must_use]
    pub fn try_recv(&self) -> Option<crate::Message<D>> {
        self.inner.try_recv()
    }

    /// Ends the connection: no more operations begin; waits until those in flight are complete; then moves the QP to ERR, and
    /// waits until the receives are flushed. Messages that have arrived can still be [received](Self::recv). The peer is not
    /// notified: a program does that itself, for example by a last message.
    ///
    /// If the future is dropped, for example by a time limit because the peer does not answer,
    /// [`abort`](Self::abort) ends the operations in flight.
    ///
    /// # Errors
    /// The kernel refuses the move to ERR, or the device was removed.
    pub async fn shutdown(&self) -> Result<()> {
        let inner = &self.inner;
        inner.close();
        inner.drain().await;
        inner.flush().await
    }

    /// As [`shutdown`](Self::shutdown), without waiting for operations in flight: they are flushed, and end with
    /// [`WcStatus::WR_FLUSH_ERR`].
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub async fn abort(&self) -> Result<()> {
        self.inner.close();
        self.inner.flush().await?;
        self.inner.drain().await;
        Ok(())
    }
}

impl<D: Driver> QpInner<D> {
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
        self.dispatcher.failure()
    }

    /// Whether there is a [`failure`](Self::failure), in the process of the QP.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.dispatcher.is_broken()
    }

    /// A send is complete, with all unsignaled ones before it.
    #[inline]
    pub(crate) fn sent(&self, key: u64, done: Polled<'_, '_, D>, wakes: &mut Vec<Waker>) {
        if !done.status().is_success() {
            self.note_error(done.status(), done.vendor_err(), wakes);
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
    }

    /// A work request of a batch that is not its last has failed: only then it has a completion. The others are flushed after it.
    pub(crate) fn part_failed(&self, key: u64, done: &Polled<'_, '_, D>, wakes: &mut Vec<Waker>) {
        let (status, vendor_err) = (done.status(), done.vendor_err());
        if status.is_success() {
            return;
        }
        self.note_error(status, vendor_err, wakes);
        if let Some(batch) = lock(&self.sends).batches.iter_mut().find(|batch| batch.key == key) {
            batch.fault.get_or_insert(Error::Completion { status, vendor_err });
        }
    }

    #[cold]
    fn note_error(&self, status: WcStatus, vendor_err: u32, wakes: &mut Vec<Waker>) {
        let error = Error::Completion { status, vendor_err };
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
        let (status, vendor_err) = (done.status(), done.vendor_err());
        let error = Error::Completion { status, vendor_err };
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
        self.dispatcher.starved(self.route);
    }

    fn try_recv(&self) -> Option<crate::Message<D>> {
        if self.is_forked() {
            return None;
        }
        let (message, starved) = lock(&self.receives).take_first();
        if starved {
            self.starved();
        }
        message
    }

    /// Whether this is a child of fork(2), and the QP its parent's.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.dispatcher.sleeper().is_forked()
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
    fn close(&self) {
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

    fn reset(&self) -> Result<()> {
        let mut wakes = Wakes::new();
        // The poll passes completions on with the locks of the queues, and the move to RESET waits for it.
        let reset = self.dispatcher.between_polls(|| {
            if self.srq.is_some() && !self.flushed.load(Ordering::Relaxed) {
                let reason = "it may have receives of its SRQ: shut it down first";
                return Err(uverbs::Error::invalid("reset", "srq", reason).into());
            }
            let (mut sends, mut receives) = (lock(&self.sends), lock(&self.receives));
            if let Some(queue) = &mut sends.queue {
                queue.reset(receives.queue(), &self.control)?;
            }
            sends.reset(self.depth, &mut wakes);
            receives.reset(&mut wakes);
            *lock(&self.fault) = None;
            self.flushed.store(false, Ordering::Relaxed);
            Ok(())
        });
        wakes.wake();
        reset
    }

    /// Waits until no send is in flight.
    async fn drain(&self) {
        let mut wait = EndWait::new(self, End::Drained);
        core::future::poll_fn(|cx| wait.poll(cx.waker())).await;
    }

    /// Moves a QP with an SRQ to ERR. Returns whether it may have taken receives.
    fn stop(&self) -> bool {
        let took = |state| state != QpState::RESET && state != QpState::INIT;
        self.control.state().is_ok_and(took) && self.control.modify_state(QpState::ERR).is_ok()
    }

    /// Whether there is nothing that the device would flush.
    fn is_idle(&self) -> bool {
        let all_free = lock(&self.sends).free == self.depth;
        all_free && !lock(&self.receives).any_posted()
    }

    /// Moves the QP to ERR, and waits until its receives are flushed.
    async fn flush(&self) -> Result<()> {
        self.dispatcher.check()?;
        if self.srq.is_some() {
            self.leave_srq().await?;
        } else if self.control.state()? == QpState::RESET && self.is_idle() {
            return Ok(());
        } else {
            self.control.modify_state(QpState::ERR)?;
        }
        let mut wait = EndWait::new(self, End::Flushed);
        core::future::poll_fn(|cx| wait.poll(cx.waker())).await;
        self.dispatcher.check()
    }

    /// Moves the QP to ERR, and waits until the receives that it took from its SRQ were passed on.
    async fn leave_srq(&self) -> Result<()> {
        let state = self.control.state()?;
        if state != QpState::RESET && state != QpState::INIT {
            self.control.modify_state(QpState::ERR)?;
            let mut limit = core::pin::pin!(Sleep::new(self.dispatcher.sleeper().clone(), LAST_WQE_LIMIT));
            let mut wait = EndWait::new(self, End::LastWqe);
            core::future::poll_fn(|cx| {
                // The event wakes this task. It is not raised by rxe in old kernels.
                let quiet = self.failure().is_some() || self.control.has_last_wqe();
                if quiet || limit.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                wait.poll(cx.waker())
            })
            .await;
            let mut dry = DryWait(self, None);
            core::future::poll_fn(|cx| self.dispatcher.poll_dry(&mut dry.1, cx.waker())).await;
        }
        self.flushed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// What a [`shutdown`](Qp::shutdown) waits for.
#[derive(Clone, Copy)]
enum End {
    /// No send is in flight.
    Drained,
    /// No receive of the QP is in flight.
    Flushed,
    /// The device has reported that the QP takes no more receives of its SRQ.
    LastWqe,
}

/// A wait for an end, until it is dropped.
struct EndWait<'a, D: Driver> {
    qp: &'a QpInner<D>,
    end: End,
    place: Place,
}

impl<'a, D: Driver> EndWait<'a, D> {
    fn new(qp: &'a QpInner<D>, end: End) -> Self {
        Self { qp, end, place: Place::default() }
    }

    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let Self { qp, end, place } = self;
        if qp.is_forked() {
            return Poll::Ready(());
        }
        let mut wakes = Wakes::new();
        let mut caller = Caller::new(waker);
        loop {
            let is_over = match end {
                End::Drained => {
                    let mut sends = lock(&qp.sends);
                    let is_over = sends.free + sends.silent == qp.depth || qp.is_broken();
                    if !is_over {
                        sends.draining.wait(place, &mut caller);
                    }
                    is_over
                }
                End::Flushed => lock(&qp.receives).poll_flushed(place, &mut caller, &mut wakes),
                End::LastWqe => {
                    lock(&qp.receives).wait_flushed(place, &mut caller);
                    // It may have happened meanwhile, and so may the removal of the device.
                    qp.control.has_last_wqe() || qp.failure().is_some()
                }
            };
            if is_over {
                return Poll::Ready(());
            }
            if !caller.supply() {
                return Poll::Pending;
            }
        }
    }
}

impl<D: Driver> Drop for EndWait<'_, D> {
    fn drop(&mut self) {
        if self.place.is_taken() && !self.qp.is_forked() {
            let left = match self.end {
                End::Drained => lock(&self.qp.sends).draining.leave(&mut self.place),
                End::Flushed | End::LastWqe => lock(&self.qp.receives).leave_flushed(&mut self.place),
            };
            discard(left);
        }
    }
}

/// A wait until the CQ was polled empty, until it is dropped.
struct DryWait<'a, D: Driver>(&'a QpInner<D>, Option<Arc<Dry>>);

impl<D: Driver> Drop for DryWait<'_, D> {
    fn drop(&mut self) {
        if let Some(dry) = &self.1
            && !self.0.is_forked()
        {
            dry.leave();
        }
    }
}

impl<D: Driver> Sends<D> {
    /// A slot for a work request that is about to be posted, with the clone of the caller's waker. `None` if there are too many.
    #[inline]
    pub(crate) fn insert_slot(&mut self, caller: &mut Caller<'_>) -> Option<u64> {
        match self.slots.insert(caller.take()?) {
            Ok(key) => Some(key),
            Err(waker) => {
                caller.leave(Some(waker));
                None
            }
        }
    }

    /// `count` work requests were posted, of which only the last one makes a completion: with this key.
    #[inline]
    pub(crate) fn posted(&mut self, key: u64, count: u32) {
        self.free -= count;
        let count = count + core::mem::take(&mut self.silent);
        if count > 1 {
            self.batches.push(Together { key, count, fault: None });
        }
    }

    /// Why a task with this ticket can post nothing.
    #[inline]
    pub(crate) fn refusal(&self, ticket: &mut Ticket) -> Option<Error> {
        match &self.closed {
            Some(error) => Some(error.clone()),
            None => self.waiters.dismisses(ticket).then_some(Error::Closed),
        }
    }

    /// The QP was moved to RESET: what was posted has no completions.
    fn reset(&mut self, depth: u32, wakes: &mut Vec<Waker>) {
        (self.free, self.silent, self.closed) = (depth, 0, None);
        self.resets += 1;
        self.batches.clear();
        let (status, vendor_err) = (WcStatus::WR_FLUSH_ERR, 0);
        self.slots.discard_all(|| Err(Error::Completion { status, vendor_err }), wakes);
        self.waiters.dismiss_all(wakes);
        self.draining.wake_all(wakes);
    }

    /// Wakes those that wait for an entry.
    #[inline]
    pub(crate) fn released(&mut self, depth: u32, wakes: &mut Vec<Waker>) {
        if !self.waiters.is_empty() {
            self.waiters.wake(self.free, wakes);
        }
        if self.free + self.silent == depth {
            self.draining.wake_all(wakes);
        }
    }

    /// Gives up a place among those that wait for entries, as [`FairQueue::leave`].
    pub(crate) fn leave(&mut self, ticket: &mut Ticket, wakes: &mut Vec<Waker>) -> Option<Waker> {
        self.waiters.leave(ticket, self.free, wakes)
    }
}
