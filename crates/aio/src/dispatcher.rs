// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher of a CQ: polls it, and passes each completion to the queue pair and the task that wait for it.

mod builder;
mod event_loop;
#[cfg(test)]
mod removal;
mod route;

pub use builder::DispatcherBuilder;
pub use event_loop::SleepLimit;
pub(crate) use route::RouteId;

use crate::deferred::{Added, Deferred, Dry, Ended};
use crate::error::{Error, Result};
use crate::events::Hub;
use crate::qp::{QpBuilder, QpInner};
use crate::sleeper::{Readable, Sleeper};
use crate::srq::SrqInner;
use crate::sync::{Mutex, Short, lock};
use crate::timers::{Sleep, Timeout};
use core::fmt;
use core::future::Future;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use nix::errno::Errno;
use route::{KEY_MASK, PART, RECEIVE, ROUTE_SHIFT};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use uverbs::AnyDriver;
use uverbs::Polled;
use uverbs::{CompletionChannel, Context, Driver, PollError, ProtectionDomain};
use uverbs::{Exclusive, comp_channel::CqEvents};
use uverbs_core::wake::Wakes;

/// Completions that one poll takes from the CQ at most.
const BATCH: usize = 32;

/// The dispatcher is that of the parent.
pub(crate) const FORKED: Error = Error::Poll(PollError::Forked);

/// Where completions go.
#[derive(Debug)]
enum Route<D: Driver> {
    Free,
    Qp(Weak<QpInner<D>>),
    Srq(Weak<SrqInner<D>>),
}

/// What polls the CQ.
struct Poller<D: Driver> {
    cq: uverbs::Cq<Exclusive, D>,
    routes: Vec<Route<D>>,
    /// The routes that are free.
    free: Vec<usize>,
    /// The QPs, for events and the completions of an SRQ.
    by_number: HashMap<u32, Weak<QpInner<D>>>,
    /// Entries of the CQ that the queues may fill.
    reserved: u32,
    /// The CQ was armed, and its event was not read yet: either a completion will raise it, or the channel is readable.
    armed: bool,
    /// The CQ, for the next event.
    events: CqEvents<D>,
    passed: Passed<D>,
    deferred: Deferred<D>,
}

/// What is kept while the completions of a poll are passed on, and done after that. It is empty between two polls.
struct Passed<D: Driver> {
    /// The QP of the last completion: most completions are those of the same QP as the one before. This reference may be the last
    /// one, and the end of a QP is a control call that waits for the poll of its CQ. So it is dropped after the poll.
    last: Option<Arc<QpInner<D>>>,
    /// The others.
    qps: Vec<Arc<QpInner<D>>>,
    srqs: Vec<Arc<SrqInner<D>>>,
    /// Queues that have to be refilled. The entries of completions can be used again after the poll only.
    short: Vec<RouteId>,
}

impl<D: Driver> fmt::Debug for Poller<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("reserved", &self.reserved).finish_non_exhaustive()
    }
}

/// The shared part of a dispatcher.
pub(crate) struct Inner<D: Driver> {
    sleeper: Arc<Sleeper>,
    poller: Short<Poller<D>>,
    added: Mutex<Added<D>>,
    /// Whether the next poll has work besides the completions. It changes under the lock of `added`.
    has_deferred: AtomicBool,
    channel: CompletionChannel<D>,
    hub: Arc<Hub<D>>,
    context: Context<D>,
    cqe: u32,
    /// Why nothing is polled any more.
    failure: OnceLock<Error>,
    #[cfg(feature = "tokio")]
    stations: crate::station::Stations<D>,
}

impl<D: Driver> fmt::Debug for Inner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("cqe", &self.cqe).finish_non_exhaustive()
    }
}

/// A CQ, and the tasks that wait for its completions. Clones share it.
///
/// It has to be run, see [the crate](crate#running-a-dispatcher).
pub struct Dispatcher<D: Driver = AnyDriver> {
    pub(crate) inner: Arc<Inner<D>>,
}

impl<D: Driver> Clone for Dispatcher<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Driver> fmt::Debug for Dispatcher<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("cqe", &self.inner.cqe).finish_non_exhaustive()
    }
}

impl<D: Driver> Dispatcher<D> {
    /// A dispatcher with the default sizes. It takes over the asynchronous events of the context, see
    /// [`events`](Self::events).
    ///
    /// # Errors
    /// As [`DispatcherBuilder::build`].
    pub fn new(context: &Context<D>) -> Result<Self> {
        Self::builder(context).build()
    }

    /// Begins the creation of a dispatcher.
    pub fn builder(context: &Context<D>) -> DispatcherBuilder<'_, D> {
        DispatcherBuilder { context, hub: None, cqe: 1024, spin: Duration::from_micros(20), clock: None }
    }

    /// Begins the creation of another dispatcher of the same context, for example for another thread. They share the
    /// asynchronous events.
    pub fn another(&self) -> DispatcherBuilder<'_, D> {
        DispatcherBuilder { hub: Some(self.inner.hub.clone()), ..Self::builder(&self.inner.context) }
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context<D> {
        &self.inner.context
    }

    /// Begins the creation of a reliable connected QP, whose completions this dispatcher gets.
    pub fn qp<'a>(&'a self, pd: &'a ProtectionDomain<D>) -> QpBuilder<'a, D> {
        QpBuilder::new(self, pd)
    }

    /// The asynchronous events of the context, from now on: port down, QP fatal, device removed.
    #[must_use]
    pub fn events(&self) -> crate::events::Events<D> {
        self.inner.hub.subscribe(self.inner.sleeper.is_forked())
    }

    /// Waits for this time.
    #[must_use]
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(self.inner.sleeper.clone(), time)
    }

    /// The result of `future`, or [`Error::TimedOut`] if it takes longer than `limit`. The future stays in the value that this
    /// returns, and is dropped with it.
    pub fn timeout<F, T, E>(&self, limit: Duration, future: F) -> Timeout<F>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        Timeout::new(future, self.sleep(limit))
    }
}

impl<D: Driver> Inner<D> {
    pub(crate) fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn stations(&self) -> &crate::station::Stations<D> {
        &self.stations
    }

    /// Why nothing is complete any more: the CQ failed, or this is a child of fork(2).
    pub(crate) fn failure(&self) -> Option<Error> {
        if self.sleeper.is_forked() {
            return Some(FORKED);
        }
        self.failure.get().cloned()
    }

    /// Whether there is a [`failure`](Self::failure).
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.sleeper.is_forked() || self.failure.get().is_some()
    }

    /// Whether the CQ failed, in the process of the dispatcher.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Fails as [`failure`](Self::failure) says.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Reserves entries of the CQ for a queue, and calls `create` with it. So the CQ can't overrun.
    pub(crate) fn add_queue<R>(
        &self,
        create: impl FnOnce(&uverbs::Cq<Exclusive, D>) -> Result<R>,
        entries: impl FnOnce(&R) -> u32,
    ) -> Result<(R, u32, RouteId)> {
        self.check()?;
        let mut wakes = Wakes::new();
        let mut poller = lock(&self.poller);
        let added = create(&poller.cq).and_then(|created| {
            let entries = entries(&created);
            self.reserve(&mut poller, entries, &mut wakes).map(|route| (created, entries, route))
        });
        drop(poller);
        wakes.wake();
        added
    }

    /// Reserves entries of the CQ, and a number.
    fn reserve(&self, poller: &mut Poller<D>, entries: u32, wakes: &mut Vec<Waker>) -> Result<RouteId> {
        let lacks = |poller: &Poller<D>| poller.reserved.saturating_add(entries) > self.cqe;
        // Queues that ended give their entries back when the CQ was polled empty; QPs of which the program has the control, after it
        // has dropped that.
        while lacks(poller) && (self.has_deferred.load(Ordering::Relaxed) || poller.deferred.any_held()) {
            if self.poll_with_deferred(poller, wakes)? == 0 {
                break;
            }
        }
        if lacks(poller) {
            let reason = format!(
                "the dispatcher's CQ has {} entries, of which {} are reserved; the queue needs {entries}",
                self.cqe, poller.reserved
            );
            return Err(uverbs::Error::invalid("create_qp", "cqe", reason).into());
        }
        let free = poller.free.pop();
        let index = free.unwrap_or(poller.routes.len());
        let Some(id) = u32::try_from(index).ok().filter(|id| id >> (u64::BITS - ROUTE_SHIFT) == 0) else {
            return Err(
                uverbs::Error::invalid("create_qp", "queue", "a dispatcher has at most 2^23 queues").into()
            );
        };
        if free.is_none() {
            poller.routes.push(Route::Free);
        }
        poller.reserved += entries;
        // Taken until the queue is set.
        if let Some(route) = poller.routes.get_mut(index) {
            *route = Route::Qp(Weak::new());
        }
        Ok(RouteId(id))
    }

    /// Calls `f` while no thread polls, unless the dispatcher has failed.
    pub(crate) fn between_polls<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.sleeper.is_forked() {
            return Err(FORKED);
        }
        let poller = lock(&self.poller);
        // Either this finds the failure, or `fail` waits for the lock, and then ends all operations.
        let result = self.check().and_then(|()| f());
        drop(poller);
        result
    }

    pub(crate) fn set_qp(&self, route: RouteId, qp: &Arc<QpInner<D>>) {
        let mut poller = lock(&self.poller);
        poller.by_number.insert(qp.qp_num(), Arc::downgrade(qp));
        if let Some(entry) = poller.routes.get_mut(route.0 as usize) {
            *entry = Route::Qp(Arc::downgrade(qp));
        }
        drop(poller);
        // Either `fail` finds the route, or this finds the failure.
        if let Some(error) = self.failure() {
            qp.fail(&error, &mut Wakes::new());
        }
    }

    pub(crate) fn set_srq(&self, route: RouteId, srq: &Arc<SrqInner<D>>) {
        if let Some(entry) = lock(&self.poller).routes.get_mut(route.0 as usize) {
            *entry = Route::Srq(Arc::downgrade(srq));
        }
    }

    /// Adds work for the next poll. A sleep ends soon then, although there is no event. After a failure nothing is polled: returns the
    /// work then. Either `fail` finds it, or this finds the failure.
    fn defer<T>(&self, work: T, add: impl FnOnce(&mut Added<D>, T)) -> core::result::Result<(), T> {
        let mut added = lock(&self.added);
        if self.failure.get().is_some() {
            return Err(work);
        }
        add(&mut added, work);
        self.has_deferred.store(true, Ordering::Relaxed);
        self.sleeper.set_restless(true);
        Ok(())
    }

    /// A queue ended. It may end during a poll, so the next poll removes it.
    pub(crate) fn queue_ended(&self, ended: Ended<D>) {
        if self.has_failed() {
            return;
        }
        let lingers = ended.linger.is_some();
        let added = self.defer(ended, |added, ended| added.ended.push(ended));
        if added.is_ok() && lingers {
            self.sleeper.wake_up();
        }
    }

    /// A receive queue is empty because its pool is: it is refilled later.
    pub(crate) fn starved(&self, route: RouteId) {
        if !self.has_failed() && self.defer(route, |added, route| added.starved.push(route)).is_ok() {
            self.sleeper.wake_up();
        }
    }

    /// Waits until the completions that are in the CQ now were passed on. `begun` is the state of the wait.
    pub(crate) fn poll_dry(&self, begun: &mut Option<Arc<Dry>>, waker: &Waker) -> Poll<()> {
        if self.has_failed() {
            return Poll::Ready(());
        }
        let begins = begun.is_none();
        let dry = begun.get_or_insert_default();
        if dry.poll(waker) {
            return Poll::Ready(());
        }
        if begins {
            if self.defer(dry.clone(), Added::add_dry).is_err() {
                return Poll::Ready(());
            }
            self.sleeper.wake_up();
        }
        Poll::Pending
    }

    /// Frees the numbers of queues that have no more completions.
    fn forget(&self, poller: &mut Poller<D>, ended: Vec<Ended<D>>) {
        for mut ended in ended {
            // The QP is destroyed here, if it lingered.
            drop(ended.linger.take());
            if ended.is_held() {
                poller.deferred.hold(ended);
                continue;
            }
            let Ended { route, qp_num, entries, .. } = ended;
            poller.reserved -= entries;
            if let Some(entry) = poller.routes.get_mut(route.0 as usize) {
                *entry = Route::Free;
                poller.free.push(route.0 as usize);
            }
            // The number may be that of a new QP already.
            if let Some(qp_num) = qp_num
                && poller.by_number.get(&qp_num).is_some_and(|qp| qp.strong_count() == 0)
            {
                poller.by_number.remove(&qp_num);
            }
        }
    }

    /// Polls once; the caller wakes the tasks. Reads an event of the channel before that, if there is one (`event`). If the CQ is
    /// armed before, a completion that this poll does not find raises an event.
    ///
    /// The small error keeps the result in registers.
    #[inline]
    pub(crate) fn poll(&self, event: bool, arm: bool, wakes: &mut Vec<Waker>) -> Result<usize, PollError> {
        if self.sleeper.is_forked() {
            return Err(PollError::Forked);
        }
        self.sleeper.timers().fire(|| self.sleeper.now(), wakes);
        if self.failure.get().is_some() {
            return Ok(0);
        }
        let mut guard = lock(&self.poller);
        let poller = &mut *guard;
        if event && let Err(error) = poller.read_event(&self.channel) {
            drop(guard);
            self.channel_ended(&error, wakes);
            return Ok(0);
        }
        let armed = if arm && !poller.armed { poller.arm() } else { Ok(()) };
        let polled = match armed {
            Ok(()) if self.has_deferred.load(Ordering::Relaxed) => self.poll_with_deferred(poller, wakes),
            Ok(()) if arm && poller.cq.is_surely_empty() => Ok(0),
            Ok(()) => self.pass_completions(poller, wakes),
            Err(error) => Err(error),
        };
        drop(guard);
        if let Err(error) = polled {
            self.fail_poll(error, wakes);
        }
        polled
    }

    #[cold]
    fn fail_poll(&self, error: PollError, wakes: &mut Vec<Waker>) {
        self.fail(&error.into(), wakes);
    }

    /// Passes the completions of the CQ on.
    #[inline]
    fn pass_completions(&self, poller: &mut Poller<D>, wakes: &mut Vec<Waker>) -> Result<usize, PollError> {
        let Poller { cq, routes, by_number, passed, .. } = poller;
        let polled = cq.poll_each(BATCH, |done| passed.take(routes, by_number, done, wakes));
        if !matches!(polled, Ok(0)) {
            passed.last = None;
            if !passed.is_empty() {
                self.end_pass(routes, passed);
            }
        }
        polled
    }

    #[inline(never)]
    fn end_pass(&self, routes: &[Route<D>], passed: &mut Passed<D>) {
        passed.qps.clear();
        passed.srqs.clear();
        for id in passed.short.drain(..) {
            if refill(routes, id) {
                let _ = self.defer(id, |added, id| added.starved.push(id));
            }
        }
    }

    #[cold]
    fn poll_with_deferred(&self, poller: &mut Poller<D>, wakes: &mut Vec<Waker>) -> Result<usize, PollError> {
        poller.deferred.begin(&mut lock(&self.added), || self.sleeper.now());
        let n = self.pass_completions(poller, wakes)?;
        self.run_deferred(poller, n, wakes);
        Ok(n)
    }

    fn run_deferred(&self, poller: &mut Poller<D>, n: usize, wakes: &mut Vec<Waker>) {
        let ended = poller.deferred.finish(n, n < BATCH, wakes);
        self.forget(poller, ended);
        let Poller { routes, deferred, .. } = &mut *poller;
        deferred.starved.retain(|id| refill(routes, *id));
        let added = lock(&self.added);
        let has_more = !poller.deferred.is_done(&added);
        self.has_deferred.store(has_more, Ordering::Relaxed);
        self.sleeper.set_restless(has_more);
    }

    /// Sleeps until a descriptor is readable, at most for this time. If the channel is, the next poll reads its event. Not for a child
    /// of fork(2).
    ///
    /// The small error keeps the result in registers.
    #[inline]
    pub(crate) fn sleep(&self, limit: Option<Duration>, wakes: &mut Vec<Waker>) -> Result<Readable, Errno> {
        let readable = self.sleeper.wait(limit, wakes)?;
        if readable.async_events {
            Hub::read(&self.hub, wakes);
        }
        Ok(readable)
    }

    /// Reads the event of the channel without a poll.
    fn read_channel(&self, wakes: &mut Vec<Waker>) {
        let read = lock(&self.poller).read_event(&self.channel);
        if let Err(error) = read {
            self.channel_ended(&error, wakes);
        }
    }

    /// The kernel closes the file when the device is removed. The asynchronous events are watched still: the kernel raises
    /// DEVICE_FATAL, which ends their streams, after it has closed this file.
    #[cold]
    fn channel_ended(&self, error: &uverbs::Error, wakes: &mut Vec<Waker>) {
        log::debug!("completion channel: {error}");
        self.sleeper.unwatch(&self.channel);
        self.fail(&Error::DeviceRemoved, wakes);
    }

    /// The device was removed: there are no more completions.
    pub(crate) fn removed(&self, wakes: &mut Vec<Waker>) {
        self.sleeper.unwatch(&self.channel);
        self.sleeper.unwatch(self.hub.as_fd());
        self.fail(&Error::DeviceRemoved, wakes);
    }

    /// Ends all operations.
    fn fail(&self, error: &Error, wakes: &mut Vec<Waker>) {
        let _ = self.failure.set(error.clone());
        for qp in self.qps() {
            qp.fail(error, wakes);
        }
        let mut poller = lock(&self.poller);
        poller.deferred.begin(&mut lock(&self.added), || Duration::ZERO);
        let ended = poller.deferred.give_up(wakes);
        self.forget(&mut poller, ended);
        self.sleeper.set_restless(false);
    }

    /// The QP with this number.
    pub(crate) fn qp_by_number(&self, qp_num: u32) -> Option<Arc<QpInner<D>>> {
        lock(&self.poller).by_number.get(&qp_num).and_then(Weak::upgrade)
    }

    fn qps(&self) -> Vec<Arc<QpInner<D>>> {
        let poller = lock(&self.poller);
        let qp = |route: &Route<D>| match route {
            Route::Qp(qp) => qp.upgrade(),
            _ => None,
        };
        poller.routes.iter().filter_map(qp).collect()
    }
}

impl<D: Driver> Poller<D> {
    /// Reads the event for which the CQ was armed. There is no other one, because the CQ is armed again only after that. There is
    /// none if another thread has read it.
    #[inline]
    fn read_event(&mut self, channel: &CompletionChannel<D>) -> core::result::Result<(), uverbs::Error> {
        if channel.next_event_of(&mut self.events)?.is_some() {
            self.armed = false;
        }
        Ok(())
    }

    #[inline]
    fn arm(&mut self) -> Result<(), PollError> {
        self.cq.req_notify(false)?;
        self.armed = true;
        Ok(())
    }
}

impl<D: Driver> Passed<D> {
    #[inline]
    fn is_empty(&self) -> bool {
        self.qps.is_empty() && self.srqs.is_empty() && self.short.is_empty()
    }

    /// The QP of a route. `None` if it has ended.
    #[inline]
    fn qp(&mut self, id: RouteId, qp: &Weak<QpInner<D>>) -> Option<&Arc<QpInner<D>>> {
        if self.last.as_ref().is_none_or(|last| last.route() != id) {
            let qp = qp.upgrade()?;
            if let Some(other) = self.last.replace(qp) {
                self.qps.push(other);
            }
        }
        self.last.as_ref()
    }

    /// Passes a completion to its queue.
    #[inline]
    fn take(
        &mut self,
        routes: &[Route<D>],
        by_number: &HashMap<u32, Weak<QpInner<D>>>,
        done: Polled<'_, '_, D>,
        wakes: &mut Vec<Waker>,
    ) {
        let wr_id = done.wr_id();
        let id = RouteId((wr_id >> ROUTE_SHIFT) as u32);
        match routes.get(id.0 as usize) {
            Some(Route::Qp(qp)) => {
                let Some(qp) = self.qp(id, qp) else { return };
                // A QP with this number may have ended, and still be alive in the kernel because its control is in use: then the
                // entry is that of another QP.
                if qp.qp_num() != done.qp_num() {
                    return;
                }
                if wr_id & PART != 0 {
                    qp.part_failed(wr_id & KEY_MASK, &done, wakes);
                } else if wr_id & RECEIVE == 0 {
                    qp.sent(wr_id & KEY_MASK, done, wakes);
                } else if qp.received(done, wakes) {
                    self.short.push(id);
                }
            }
            Some(Route::Srq(srq)) => {
                if let Some(qp) = by_number.get(&done.qp_num()).and_then(Weak::upgrade) {
                    qp.received(done, wakes);
                    self.qps.push(qp);
                }
                if let Some(srq) = srq.upgrade() {
                    if srq.taken() {
                        self.short.push(id);
                    }
                    self.srqs.push(srq);
                }
            }
            Some(Route::Free) | None => {}
        }
    }
}

/// Refills a receive queue. Returns whether it is empty because its pool is.
fn refill<D: Driver>(routes: &[Route<D>], id: RouteId) -> bool {
    match routes.get(id.0 as usize) {
        Some(Route::Qp(qp)) => qp.upgrade().is_some_and(|qp| qp.refill()),
        Some(Route::Srq(srq)) => srq.upgrade().is_some_and(|srq| srq.refill()),
        Some(Route::Free) | None => false,
    }
}
