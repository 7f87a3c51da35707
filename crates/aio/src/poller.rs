// SPDX-License-Identifier: MIT OR Apache-2.0
//! The poller of a CQ: passes each completion to the queue pair and the task that wait for it.

#[cfg(test)]
mod removal;

use crate::deferred::{Deferred, Ended};
use crate::error::{Error, Result};
use crate::events::{Hub, Subscriber};
use crate::life::{FORKED, Life};
use crate::mailbox::Mailbox;
use crate::qp::QpInner;
use crate::route::{KEY_MASK, PART, RECEIVE, ROUTE_SHIFT, RouteId};
use crate::routes::{Route, Routes};
use crate::sleeper::{Readable, Sleeper};
use crate::srq::SrqInner;
use crate::sync::{Short, lock};
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use nix::errno::Errno;
use std::sync::{Arc, Weak};
use uverbs::attr::EventType;
use uverbs::comp_channel::CqEvents;
use uverbs::{CompletionChannel, Cq, Driver, Exclusive, PollError, Polled};
use uverbs_core::wake::Wakes;

/// Completions that one poll takes from the CQ at most.
const BATCH: usize = 32;

/// What a poll uses, and only one thread at a time.
pub(crate) struct State<D: Driver> {
    cq: Cq<Exclusive, D>,
    routes: Routes<D>,
    /// Entries of the CQ that the queues may fill.
    reserved: u32,
    /// The CQ was armed, and its event was not read yet: either a completion will raise it, or the channel is readable.
    armed: bool,
    /// The CQ, for the next event.
    events: CqEvents,
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
    mailboxes: Vec<Arc<Mailbox<D>>>,
    /// Queues that have to be refilled. The entries of completions can be used again after the poll only.
    short: Vec<RouteId>,
}

impl<D: Driver> fmt::Debug for State<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("reserved", &self.reserved).finish_non_exhaustive()
    }
}

/// What polls the CQ.
pub(crate) struct Poller<D: Driver> {
    life: Arc<Life<D>>,
    sleeper: Arc<Sleeper>,
    state: Short<State<D>>,
    channel: CompletionChannel<D>,
    hub: Arc<Hub<D>>,
    cqe: u32,
    #[cfg(feature = "counters")]
    counts: crate::counters::Counts,
}

impl<D: Driver> fmt::Debug for Poller<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("cqe", &self.cqe).finish_non_exhaustive()
    }
}

impl<D: Driver> Poller<D> {
    /// Of a CQ with `cqe` entries and its channel.
    pub(crate) fn new(
        (cq, channel, cqe): (Cq<Exclusive, D>, CompletionChannel<D>, u32),
        sleeper: Arc<Sleeper>,
        hub: Arc<Hub<D>>,
    ) -> Arc<Self> {
        let state = State {
            cq,
            routes: Routes::new(),
            reserved: 0,
            armed: false,
            events: CqEvents::default(),
            passed: Passed {
                last: None,
                qps: Vec::new(),
                srqs: Vec::new(),
                mailboxes: Vec::new(),
                short: Vec::new(),
            },
            deferred: Deferred::new(cqe),
        };
        let (life, state) = (Arc::new(Life::new(sleeper.clone())), Short::new(state));
        Arc::new(Self {
            life,
            sleeper,
            state,
            channel,
            hub,
            cqe,
            #[cfg(feature = "counters")]
            counts: crate::counters::Counts::default(),
        })
    }

    pub(crate) fn life(&self) -> &Arc<Life<D>> {
        &self.life
    }

    #[inline]
    pub(crate) fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }

    pub(crate) fn hub(&self) -> &Arc<Hub<D>> {
        &self.hub
    }

    /// What was counted.
    #[cfg(feature = "counters")]
    pub(crate) fn counters(&self) -> crate::counters::DispatcherCounters {
        let cq = lock(&self.state).cq.counters();
        self.counts.read(&cq)
    }

    /// Entries of the CQ.
    pub(crate) fn cqe(&self) -> u32 {
        self.cqe
    }

    /// Reserves entries of the CQ for a queue, and calls `create` with it. So the CQ can't overrun.
    pub(crate) fn add_queue<R>(
        &self,
        create: impl FnOnce(&Cq<Exclusive, D>) -> Result<R>,
        entries: impl FnOnce(&R) -> u32,
    ) -> Result<(R, u32, RouteId)> {
        self.life.check()?;
        let mut wakes = Wakes::new();
        let mut state = lock(&self.state);
        let added = create(&state.cq).and_then(|created| {
            let entries = entries(&created);
            self.reserve(&mut state, entries, &mut wakes).map(|route| (created, entries, route))
        });
        drop(state);
        wakes.wake();
        added
    }

    /// Reserves entries of the CQ, and a number.
    fn reserve(&self, state: &mut State<D>, entries: u32, wakes: &mut Vec<Waker>) -> Result<RouteId> {
        let lacks = |state: &State<D>| state.reserved.saturating_add(entries) > self.cqe;
        // Queues that ended give their entries back when the CQ was polled empty; QPs of which the program has the control, after it
        // has dropped that.
        while lacks(state) && (self.life.has_deferred() || state.deferred.any_held()) {
            if self.poll_with_deferred(state, wakes)? == 0 {
                break;
            }
        }
        if lacks(state) {
            let reason = format!(
                "the dispatcher's CQ has {} entries, of which {} are reserved; the queue needs {entries}",
                self.cqe, state.reserved
            );
            return Err(uverbs::Error::invalid("create_qp", "cqe", reason).into());
        }
        let route = state.routes.take()?;
        state.reserved += entries;
        Ok(route)
    }

    /// Calls `f` while no thread polls, unless the dispatcher has failed.
    pub(crate) fn between_polls<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.sleeper.is_forked() {
            return Err(FORKED);
        }
        let state = lock(&self.state);
        // Either this finds the failure, or `fail` waits for the lock, and then ends all operations.
        let result = self.life.check().and_then(|()| f());
        drop(state);
        result
    }

    pub(crate) fn set_qp(&self, route: RouteId, qp: &Arc<QpInner<D>>) {
        lock(&self.state).routes.set_qp(route, qp);
        // Either `fail` finds the route, or this finds the failure.
        if let Some(error) = self.life.failure() {
            qp.fail(&error, &mut Wakes::new());
        }
    }

    pub(crate) fn set_mailbox(&self, mailbox: &Arc<Mailbox<D>>) {
        lock(&self.state).routes.set_mailbox(mailbox);
        // Either `fail` finds the route, or this finds the failure.
        if let Some(error) = self.life.failure() {
            mailbox.fail(&error, &mut Wakes::new());
        }
    }

    /// Starts a target while no thread polls, so that its first message finds it.
    pub(crate) fn start_target(
        &self,
        mailbox: &Arc<Mailbox<D>>,
        start: impl FnOnce(&uverbs::DcTarget<D>) -> uverbs::Result<u32>,
    ) -> Result<u32> {
        self.life.check()?;
        let mut state = lock(&self.state);
        let number = mailbox.start(start)?;
        state.routes.set_target(number, mailbox);
        Ok(number)
    }

    pub(crate) fn set_srq(&self, route: RouteId, srq: &Arc<SrqInner<D>>) {
        lock(&self.state).routes.set_srq(route, srq);
    }

    /// Frees the numbers of queues that have no more completions.
    fn forget(&self, state: &mut State<D>, ended: Vec<Ended<D>>) {
        for mut ended in ended {
            // The QP is destroyed here, if it lingered.
            drop(ended.linger.take());
            if ended.is_held() {
                state.deferred.hold(ended);
                continue;
            }
            let Ended { route, qp_num, entries, srq, .. } = ended;
            state.reserved -= entries;
            state.routes.free(route, qp_num);
            if let Some(srq) = srq
                && !self.life.has_failed()
            {
                srq.recount();
            }
        }
    }

    /// Polls once; the caller wakes the tasks. Reads an event of the channel before that, if there is one (`event`). If the CQ is
    /// armed before, a completion that this poll does not find raises an event.
    // codegen: words
    #[inline]
    pub(crate) fn poll(&self, event: bool, arm: bool, wakes: &mut Vec<Waker>) -> Result<usize, PollError> {
        if self.sleeper.is_forked() {
            return Err(PollError::Forked);
        }
        self.sleeper.timers().fire(|| self.sleeper.now(), wakes);
        if self.life.is_broken() {
            return Ok(0);
        }
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if event && let Err(error) = state.read_event(&self.channel) {
            drop(guard);
            self.channel_ended(&error, wakes);
            return Ok(0);
        }
        let armed = if arm && !state.armed { state.arm() } else { Ok(()) };
        let polled = match armed {
            Ok(()) if self.life.has_deferred() => self.poll_with_deferred(state, wakes),
            Ok(()) if arm && state.cq.is_surely_empty() => Ok(0),
            Ok(()) => self.pass_completions(state, wakes),
            Err(error) => Err(error),
        };
        drop(guard);
        match polled {
            Err(PollError::Removed) => {
                self.without_channel(wakes);
                return Ok(0);
            }
            Err(error) => self.fail_poll(error, wakes),
            Ok(_) => {}
        }
        polled
    }

    #[cold]
    fn fail_poll(&self, error: PollError, wakes: &mut Vec<Waker>) {
        self.fail(&error.into(), wakes);
    }

    /// Passes the completions of the CQ on.
    #[inline]
    fn pass_completions(&self, state: &mut State<D>, wakes: &mut Vec<Waker>) -> Result<usize, PollError> {
        let State { cq, routes, passed, .. } = state;
        #[cfg(feature = "counters")]
        self.counts.polled();
        let polled = cq.poll_each(BATCH, |done| passed.take(routes, done, wakes));
        if !matches!(polled, Ok(0)) {
            passed.last = None;
            if !passed.is_empty() {
                self.end_pass(routes, passed);
            }
        }
        polled
    }

    #[inline(never)]
    fn end_pass(&self, routes: &Routes<D>, passed: &mut Passed<D>) {
        passed.qps.clear();
        passed.srqs.clear();
        passed.mailboxes.clear();
        for id in passed.short.drain(..) {
            if routes.refill(id) {
                let _ = self.life.defer(id, |added, id| added.starved.push(id));
            }
        }
    }

    #[cold]
    fn poll_with_deferred(&self, state: &mut State<D>, wakes: &mut Vec<Waker>) -> Result<usize, PollError> {
        state.deferred.begin(&mut self.life.added(), || self.sleeper.now());
        let n = self.pass_completions(state, wakes)?;
        self.run_deferred(state, n, wakes);
        Ok(n)
    }

    fn run_deferred(&self, state: &mut State<D>, n: usize, wakes: &mut Vec<Waker>) {
        let ended = state.deferred.finish(n, n < BATCH, wakes);
        self.forget(state, ended);
        let State { routes, deferred, .. } = &mut *state;
        deferred.starved.retain(|id| routes.refill(*id));
        let added = self.life.added();
        let has_more = !state.deferred.is_done(&added);
        self.life.set_deferred(&added, has_more);
    }

    /// Sleeps until a descriptor is readable, at most for this time. If the channel is, the next poll reads its event. Not for a child
    /// of fork(2).
    // codegen: words
    #[inline]
    pub(crate) fn sleep(&self, limit: Option<Duration>, wakes: &mut Vec<Waker>) -> Result<Readable, Errno> {
        #[cfg(feature = "counters")]
        self.counts.sleeps();
        let readable = self.read_descriptors(limit, wakes)?;
        #[cfg(feature = "counters")]
        self.counts.slept(readable);
        Ok(readable)
    }

    /// As [`sleep`](Self::sleep), without sleeping.
    pub(crate) fn check(&self, wakes: &mut Vec<Waker>) -> Result<Readable, Errno> {
        self.read_descriptors(Some(Duration::ZERO), wakes)
    }

    // codegen: words
    #[inline]
    fn read_descriptors(&self, limit: Option<Duration>, wakes: &mut Vec<Waker>) -> Result<Readable, Errno> {
        let readable = self.sleeper.wait(limit, wakes)?;
        if readable.async_events {
            Hub::read(&self.hub, wakes);
        }
        Ok(readable)
    }

    /// Reads the event of the channel without a poll.
    pub(crate) fn read_channel(&self, wakes: &mut Vec<Waker>) {
        let read = lock(&self.state).read_event(&self.channel);
        if let Err(error) = read {
            self.channel_ended(&error, wakes);
        }
    }

    /// The kernel closes the file when the device is removed. The asynchronous events are watched still: the kernel raises
    /// DEVICE_FATAL, which ends their streams, after it has closed this file.
    #[cold]
    fn channel_ended(&self, error: &uverbs::Error, wakes: &mut Vec<Waker>) {
        uverbs::report!(debug, {}, "completion channel: {error}");
        self.without_channel(wakes);
    }

    #[cold]
    fn without_channel(&self, wakes: &mut Vec<Waker>) {
        self.sleeper.unwatch(&self.channel);
        self.fail(&Error::DeviceRemoved, wakes);
    }

    /// Ends all operations.
    fn fail(&self, error: &Error, wakes: &mut Vec<Waker>) {
        self.life.set_failure(error.clone());
        let state = lock(&self.state);
        let (qps, mailboxes) = (state.routes.qps(), state.routes.mailboxes());
        drop(state);
        for qp in qps {
            qp.fail(error, wakes);
        }
        for mailbox in mailboxes {
            mailbox.fail(error, wakes);
        }
        let mut state = lock(&self.state);
        state.deferred.begin(&mut self.life.added(), || Duration::ZERO);
        let ended = state.deferred.give_up(wakes);
        self.forget(&mut state, ended);
        self.sleeper.set_restless(false);
    }
}

/// No one polls any more: futures that are alive still end, and QPs that linger are destroyed.
impl<D: Driver> Drop for Poller<D> {
    fn drop(&mut self) {
        if !self.sleeper.is_forked() {
            let mut wakes = Wakes::new();
            self.fail(&Error::Closed, &mut wakes);
            wakes.wake();
        }
    }
}

impl<D: Driver> Subscriber for Poller<D> {
    fn qp_event(&self, qp_num: u32, event_type: EventType, wakes: &mut Vec<Waker>) {
        let state = lock(&self.state);
        let (qp, target) = (state.routes.qp_by_number(qp_num), state.routes.target_by_number(qp_num));
        drop(state);
        if let Some(qp) = qp {
            qp.event(event_type, wakes);
        } else if let Some(target) = target {
            target.event(event_type, wakes);
        }
    }

    fn removed(&self, wakes: &mut Vec<Waker>) {
        self.sleeper.unwatch(&self.channel);
        self.sleeper.unwatch(self.hub.as_fd());
        self.fail(&Error::DeviceRemoved, wakes);
    }
}

impl<D: Driver> State<D> {
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
        self.qps.is_empty() && self.srqs.is_empty() && self.mailboxes.is_empty() && self.short.is_empty()
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
    fn take(&mut self, routes: &Routes<D>, done: Polled<'_, '_, D>, wakes: &mut Vec<Waker>) {
        let wr_id = done.wr_id();
        let id = RouteId((wr_id >> ROUTE_SHIFT) as u32);
        match routes.get(id) {
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
                if let Some(qp) = routes.qp_by_number(done.qp_num()) {
                    qp.received(done, wakes);
                    self.qps.push(qp);
                } else if let Some(target) = routes.target_by_number(done.qp_num()) {
                    target.received(done, wakes);
                    self.mailboxes.push(target);
                }
                if let Some(srq) = srq.upgrade() {
                    if srq.taken() {
                        self.short.push(id);
                    }
                    self.srqs.push(srq);
                }
            }
            Some(Route::Mailbox(mailbox)) => {
                let Some(mailbox) = mailbox.upgrade() else { return };
                if mailbox.received(done, wakes) {
                    self.short.push(id);
                }
                self.mailboxes.push(mailbox);
            }
            Some(Route::Free) | None => {}
        }
    }
}
