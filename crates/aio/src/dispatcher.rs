// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher of a CQ: polls it, and passes each completion to the queue pair and the task that wait for it.

use crate::error::{Error, Result};
use crate::events::Hub;
use crate::qp::{QpBuilder, QpInner};
use crate::sleeper::Sleeper;
use crate::srq::SrqInner;
use crate::sync::{Mutex, lock};
use crate::timers::{Clock, Monotonic, Sleep, Timeout};
use core::fmt;
use core::future::Future;
use core::task::Waker;
use core::time::Duration;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};
use uverbs::owned::{Completed, OwnedCq};
use uverbs::{CompletionChannel, Context, Driver, Errno, ProtectionDomain};

/// Completions that one poll takes from the CQ at most.
const BATCH: usize = 32;

/// The part of a `wr_id` that is the key of a slot.
const KEY_MASK: u64 = (1 << crate::slots::KEY_BITS) - 1;
/// The bits above it: a receive; a work request of a batch that is not its last.
const RECEIVE: u64 = 1 << crate::slots::KEY_BITS;
const PART: u64 = 1 << (crate::slots::KEY_BITS + 1);
const ROUTE_SHIFT: u32 = crate::slots::KEY_BITS + 2;

/// The number of a queue among those of its dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(u32);

impl RouteId {
    /// The `wr_id` of a send in this slot.
    #[inline]
    pub(crate) fn send(self, key: u64) -> u64 {
        u64::from(self.0) << ROUTE_SHIFT | key
    }

    /// The `wr_id` of a send of a batch that is not its last one, which has this slot.
    #[inline]
    pub(crate) fn part(self, key: u64) -> u64 {
        self.send(key) | PART
    }

    /// The `wr_id` of a receive.
    #[inline]
    pub(crate) fn receive(self) -> u64 {
        u64::from(self.0) << ROUTE_SHIFT | RECEIVE
    }
}

/// Where completions go.
#[derive(Debug)]
enum Route<D: Driver> {
    Free,
    Qp(Weak<QpInner<D>>),
    Srq(Weak<SrqInner<D>>),
}

/// A queue that ended: its number, and the entries of the CQ that were reserved for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) route: RouteId,
    pub(crate) qp_num: Option<u32>,
    pub(crate) entries: u32,
}

/// What polls the CQ.
struct Poller<D: Driver> {
    cq: OwnedCq<D>,
    routes: Vec<Route<D>>,
    /// The QPs whose receives are those of an SRQ.
    by_number: HashMap<u32, Weak<QpInner<D>>>,
    /// Entries of the CQ that the queues may fill.
    reserved: u32,
    completed: Vec<Completed<D>>,
    /// Receive queues that are empty because their pools are.
    unfilled: Vec<RouteId>,
}

impl<D: Driver> fmt::Debug for Poller<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("reserved", &self.reserved).finish_non_exhaustive()
    }
}

/// The shared part of a dispatcher.
#[derive(Debug)]
pub(crate) struct Inner<D: Driver> {
    sleeper: Arc<Sleeper>,
    poller: Mutex<Poller<D>>,
    ended: Mutex<Vec<Ended>>,
    channel: CompletionChannel<D>,
    hub: Arc<Hub<D>>,
    context: Context<D>,
    cqe: u32,
    /// Why nothing is polled any more.
    failure: OnceLock<Error>,
}

/// A dispatcher in the making.
#[derive(Debug)]
#[must_use]
pub struct DispatcherBuilder<'a, D: Driver> {
    context: &'a Context<D>,
    hub: Option<Arc<Hub<D>>>,
    cqe: u32,
    spin: Duration,
    clock: Option<Arc<dyn Clock>>,
}

impl<D: Driver> DispatcherBuilder<'_, D> {
    /// Entries of the CQ: at least the depths of all queues that complete to it. 1024 by default.
    pub fn cqe(self, cqe: u32) -> Self {
        Self { cqe, ..self }
    }

    /// How long the CQ is polled without a completion before the dispatcher sleeps: the latency of a system call is saved for a
    /// completion that arrives in this time. 20 us by default; 0 for a program that shares its processors. The time is halved
    /// whenever it was spent for nothing, down to a sixteenth, and restored by a completion.
    pub fn spin(self, time: Duration) -> Self {
        Self { spin: time, ..self }
    }

    /// The clock of the time limits.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Creates the CQ and its channel.
    ///
    /// # Errors
    /// The kernel's refusal, or too many open files.
    pub fn build(self) -> Result<Dispatcher<D>> {
        let Self { context, hub, cqe, spin, clock } = self;
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking(true)?;
        let cq = context.owned_cq(cqe, Some(&channel))?;
        let sleeper = Sleeper::new(clock.unwrap_or_else(|| Arc::new(Monotonic::new())), spin)?;
        sleeper.watch_channel(&channel)?;
        let hub = match hub {
            Some(hub) => hub,
            None => Hub::new(context)?,
        };
        sleeper.watch_async_events(hub.as_fd())?;
        let poller = Poller {
            cq,
            routes: Vec::new(),
            by_number: HashMap::new(),
            reserved: 0,
            completed: Vec::with_capacity(BATCH),
            unfilled: Vec::new(),
        };
        let inner = Arc::new(Inner {
            sleeper: Arc::new(sleeper),
            poller: Mutex::new(poller),
            ended: Mutex::new(Vec::new()),
            channel,
            hub,
            context: context.clone(),
            cqe,
            failure: OnceLock::new(),
        });
        inner.hub.add(&inner);
        Ok(Dispatcher { inner })
    }
}

/// A CQ, and the tasks that wait for its completions. Clones share it.
///
/// It has to be run, see [the crate](crate#running-a-dispatcher).
pub struct Dispatcher<D: Driver> {
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
        self.inner.hub.subscribe()
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

    /// Polls the CQ and the timers once, and wakes the tasks whose operations are complete. Returns the number of
    /// completions.
    ///
    /// # Errors
    /// The CQ failed. All operations end with the same error.
    pub fn poll_once(&self) -> Result<usize> {
        let mut wakes = Vec::new();
        let polled = self.inner.poll(&mut wakes);
        wake(&mut wakes);
        polled
    }

    /// For an event loop of the program: arms the CQ. If there is nothing to do, returns `Ready` with the time limit of the
    /// sleep; the dispatcher's descriptor is readable then when there is. Otherwise the program should call
    /// [`poll_once`](Self::poll_once) again.
    ///
    /// # Errors
    /// As [`poll_once`](Self::poll_once).
    pub fn prepare_sleep(&self) -> Result<Option<SleepLimit>> {
        let mut wakes = Vec::new();
        self.inner.sleeper.announce();
        let idle = self.inner.arm(&mut wakes);
        if !matches!(idle, Ok(true)) || !wakes.is_empty() {
            self.inner.sleeper.cancel();
        }
        let idle = idle? && wakes.is_empty();
        wake(&mut wakes);
        Ok(idle.then(|| SleepLimit(self.inner.sleeper.time_to_sleep())))
    }

    /// For an event loop of the program: reads the descriptors that became readable, after the sleep. It does not wait.
    ///
    /// # Errors
    /// As [`poll_once`](Self::poll_once).
    pub fn after_sleep(&self) -> Result<()> {
        let mut wakes = Vec::new();
        let read = self.inner.read_descriptors(Some(Duration::ZERO), &mut wakes);
        self.inner.sleeper.cancel();
        wake(&mut wakes);
        read
    }
}

/// How long an event loop may wait for the dispatcher's descriptor; `None` without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepLimit(pub Option<Duration>);

/// Readable when there is something to do, after [`Dispatcher::prepare_sleep`].
impl<D: Driver> AsFd for Dispatcher<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.sleeper.as_fd()
    }
}

impl<D: Driver> AsRawFd for Dispatcher<D> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Wakes tasks, after all locks were released: a waker may do anything.
pub(crate) fn wake(wakes: &mut Vec<Waker>) {
    wakes.drain(..).for_each(Waker::wake);
}

impl<D: Driver> Inner<D> {
    pub(crate) fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// Reserves entries of the CQ for a queue, and calls `create` with it. So the CQ can't overrun.
    pub(crate) fn add_queue<R>(
        &self,
        create: impl FnOnce(&OwnedCq<D>) -> Result<R>,
        entries: impl FnOnce(&R) -> u32,
    ) -> Result<(R, u32, RouteId)> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let mut poller = lock(&self.poller);
        self.forget_ended(&mut poller);
        let created = create(&poller.cq)?;
        let entries = entries(&created);
        if poller.reserved.saturating_add(entries) > self.cqe {
            let reason = format!(
                "the dispatcher's CQ has {} entries, of which {} are reserved; the queue needs {entries}",
                self.cqe, poller.reserved
            );
            return Err(uverbs::Error::invalid("create_qp", "cqe", reason).into());
        }
        let free = poller.routes.iter().position(|route| matches!(route, Route::Free));
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
        Ok((created, entries, RouteId(id)))
    }

    pub(crate) fn set_qp(&self, route: RouteId, qp: &Arc<QpInner<D>>, has_srq: bool) {
        let mut poller = lock(&self.poller);
        if has_srq {
            poller.by_number.insert(qp.qp_num(), Arc::downgrade(qp));
        }
        if let Some(entry) = poller.routes.get_mut(route.0 as usize) {
            *entry = Route::Qp(Arc::downgrade(qp));
        }
    }

    pub(crate) fn set_srq(&self, route: RouteId, srq: &Arc<SrqInner<D>>) {
        if let Some(entry) = lock(&self.poller).routes.get_mut(route.0 as usize) {
            *entry = Route::Srq(Arc::downgrade(srq));
        }
    }

    /// A queue ended. It may end during a poll, so the next poll removes it.
    pub(crate) fn queue_ended(&self, ended: Ended) {
        lock(&self.ended).push(ended);
    }

    fn forget_ended(&self, poller: &mut Poller<D>) {
        for Ended { route, qp_num, entries } in lock(&self.ended).drain(..) {
            poller.reserved -= entries;
            if let Some(entry) = poller.routes.get_mut(route.0 as usize) {
                *entry = Route::Free;
            }
            // The number may be that of a new QP already.
            if let Some(qp_num) = qp_num
                && poller.by_number.get(&qp_num).is_some_and(|qp| qp.strong_count() == 0)
            {
                poller.by_number.remove(&qp_num);
            }
        }
    }

    /// Polls once. The caller wakes the tasks.
    pub(crate) fn poll(&self, wakes: &mut Vec<Waker>) -> Result<usize> {
        self.sleeper.timers().fire(|| self.sleeper.now(), wakes);
        if self.failure.get().is_some() {
            return Ok(0);
        }
        let mut poller = lock(&self.poller);
        let polled = self.poll_locked(&mut poller, wakes);
        drop(poller);
        polled.inspect_err(|error| self.fail(error, wakes))
    }

    fn poll_locked(&self, poller: &mut Poller<D>, wakes: &mut Vec<Waker>) -> Result<usize> {
        self.forget_ended(poller);
        let Poller { cq, routes, by_number, completed, unfilled, .. } = poller;
        // The values are passed on after the poll: what happens to them may post, or destroy a queue.
        let n = cq.poll_each(BATCH, |done| completed.push(done.complete()))?;
        for completed in completed.drain(..) {
            dispatch(routes, by_number, completed, wakes, unfilled);
        }
        if !unfilled.is_empty() {
            unfilled.retain(|id| match routes.get(id.0 as usize) {
                Some(Route::Qp(qp)) => qp.upgrade().is_some_and(|qp| qp.refill()),
                Some(Route::Srq(srq)) => srq.upgrade().is_some_and(|srq| srq.refill()),
                _ => false,
            });
            unfilled.dedup();
            self.sleeper.set_unfilled(!unfilled.is_empty());
        }
        Ok(n)
    }

    /// Arms the CQ and polls it once more. Returns whether there was nothing, so that the dispatcher may sleep.
    pub(crate) fn arm(&self, wakes: &mut Vec<Waker>) -> Result<bool> {
        if self.failure.get().is_none() {
            let mut poller = lock(&self.poller);
            let armed = poller.cq.req_notify(false);
            drop(poller);
            if let Err(error) = armed {
                let error = error.into();
                self.fail(&error, wakes);
                return Err(error);
            }
        }
        // Completions that arrived before raise no event.
        Ok(self.poll(wakes)? == 0)
    }

    /// Sleeps until a descriptor is readable, at most for this time, and reads them.
    pub(crate) fn read_descriptors(&self, limit: Option<Duration>, wakes: &mut Vec<Waker>) -> Result<()> {
        let readable = self.sleeper.wait(limit, wakes)?;
        if readable.channel {
            self.read_channel(wakes);
        }
        if readable.async_events {
            Hub::read(&self.hub, wakes);
        }
        Ok(())
    }

    fn read_channel(&self, wakes: &mut Vec<Waker>) {
        loop {
            match self.channel.get_event() {
                Ok(_) => {}
                Err(error) if error.errno() == Errno::EAGAIN => return,
                // The kernel closes the file when the device is removed.
                Err(error) => {
                    log::debug!("completion channel: {error}");
                    self.removed(wakes);
                    return;
                }
            }
        }
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
    }

    pub(crate) fn qps(&self) -> Vec<Arc<QpInner<D>>> {
        let poller = lock(&self.poller);
        let qp = |route: &Route<D>| match route {
            Route::Qp(qp) => qp.upgrade(),
            _ => None,
        };
        poller.routes.iter().filter_map(qp).collect()
    }
}

/// Passes a completion to its queue.
#[inline]
fn dispatch<D: Driver>(
    routes: &[Route<D>],
    by_number: &HashMap<u32, Weak<QpInner<D>>>,
    completed: Completed<D>,
    wakes: &mut Vec<Waker>,
    unfilled: &mut Vec<RouteId>,
) {
    let (wr_id, qp_num) = (completed.wc.wr_id, completed.wc.qp_num);
    let index = wr_id >> ROUTE_SHIFT;
    let id = RouteId(index as u32);
    match routes.get(index as usize) {
        Some(Route::Qp(qp)) => {
            // A QP with this number may have ended, and still be alive in the kernel because its control is in use: then the
            // entry is that of another QP.
            let Some(qp) = qp.upgrade().filter(|qp| qp.qp_num() == qp_num) else { return };
            if wr_id & PART != 0 {
                qp.part_failed(wr_id & KEY_MASK, &completed.wc, wakes);
            } else if wr_id & RECEIVE == 0 {
                qp.sent(wr_id & KEY_MASK, completed, wakes);
            } else if qp.received(completed, wakes) {
                unfilled.push(id);
            }
        }
        Some(Route::Srq(srq)) => {
            if let Some(qp) = by_number.get(&qp_num).and_then(Weak::upgrade) {
                qp.received(completed, wakes);
            }
            if let Some(srq) = srq.upgrade()
                && srq.taken()
            {
                unfilled.push(id);
            }
        }
        Some(Route::Free) | None => {}
    }
}
