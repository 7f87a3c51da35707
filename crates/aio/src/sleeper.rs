// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a dispatcher that does not depend on the driver: the choice of the leading thread, the sleep, the deadlines.

use crate::error::Result;
use crate::fd_waits::{FdWait, FdWaits};
use crate::leader::{FollowerId, LeaderGuard, LeaderLock};
use crate::sync::{AtomicBool, Ordering};
use crate::timers::{Clock, Timers};
use crate::wakeup::{Event, Wakeup, Who};
use core::task::Waker;
use core::time::Duration;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use uverbs_core::kernel::Process;
#[cfg(feature = "tokio")]
use {crate::alarm::Alarm, core::sync::atomic::AtomicUsize, std::sync::OnceLock};

/// What the descriptors of the dispatcher's epoll instance are for.
const WAKEUP: u64 = 0;
const CHANNEL: u64 = 1;
const ASYNC_EVENTS: u64 = 2;
#[cfg(feature = "tokio")]
const ALARM: u64 = 3;
/// Descriptors that tasks wait for have the numbers from here on.
const FIRST_TASK: u64 = 16;

/// Descriptors that one call reports at most.
const READ_AT_ONCE: usize = 4;

/// How long a sleep lasts at most while something is awaited that raises no event: the return of a buffer to a pool, or the end of
/// a QP.
const RESTLESS_INTERVAL: Duration = Duration::from_millis(1);

impl Event for EventFd {
    fn raise(&self) {
        // It fails only if the counter would overflow: then the event is raised already.
        let _ = self.write(1);
    }
}

/// Which descriptors are readable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readable {
    pub(crate) channel: bool,
    pub(crate) async_events: bool,
    /// There was a wakeup.
    pub(crate) wakeup: bool,
}

#[derive(Debug)]
pub(crate) struct Sleeper {
    wakeup: Wakeup<EventFd>,
    leader_lock: LeaderLock,
    timers: Timers,
    clock: Arc<dyn Clock>,
    spin: Duration,
    epoll: Epoll,
    fd_waits: FdWaits,
    restless: AtomicBool,
    home: Process,
    /// Tasks of tokio sleep until then.
    #[cfg(feature = "tokio")]
    alarm: OnceLock<Alarm>,
    /// Runtimes of tokio with tasks that wait.
    #[cfg(feature = "tokio")]
    stations: AtomicUsize,
    /// See [`TaskWaker`](crate::task_waker::TaskWaker).
    #[cfg(feature = "tokio")]
    woke: Arc<AtomicBool>,
}

impl Sleeper {
    pub(crate) fn new(clock: Arc<dyn Clock>, spin: Duration) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, WAKEUP))?;
        Ok(Self {
            wakeup: Wakeup::new(event),
            leader_lock: LeaderLock::new(),
            timers: Timers::new(),
            clock,
            spin,
            epoll,
            fd_waits: FdWaits::new(FIRST_TASK),
            restless: AtomicBool::new(false),
            home: Process::register(),
            #[cfg(feature = "tokio")]
            alarm: OnceLock::new(),
            #[cfg(feature = "tokio")]
            stations: AtomicUsize::new(0),
            #[cfg(feature = "tokio")]
            woke: Arc::default(),
        })
    }

    /// See [`FdWaits::register`].
    pub(crate) fn begin_fd_wait(&self, fd: impl AsFd, waker: &Waker) -> Result<FdWait> {
        Ok(self.fd_waits.register(&self.epoll, fd, waker)?)
    }

    /// See [`FdWaits::deregister`].
    pub(crate) fn end_fd_wait(&self, fd: impl AsFd, wait: FdWait) {
        if !self.is_forked() {
            self.fd_waits.deregister(&self.epoll, fd, wait);
        }
    }

    /// See [`FdWaits::update`].
    pub(crate) fn update_fd_wait(&self, wait: FdWait, waker: &Waker) -> bool {
        self.fd_waits.update(wait, waker)
    }

    pub(crate) fn watch_channel(&self, fd: impl AsFd) -> Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, CHANNEL))?)
    }

    pub(crate) fn watch_async_events(&self, fd: impl AsFd) -> Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, ASYNC_EVENTS))?)
    }

    /// Stops watching a descriptor, which reports an error for ever.
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        // It fails if the descriptor is not watched.
        let _ = self.epoll.delete(fd);
    }

    #[inline]
    pub(crate) fn leader_lock(&self) -> &LeaderLock {
        &self.leader_lock
    }

    #[inline]
    pub(crate) fn timers(&self) -> &Timers {
        &self.timers
    }

    /// As [`LeaderLock::try_lead`].
    #[inline]
    pub(crate) fn try_lead(
        &self,
        number: &mut FollowerId,
        waker: impl FnOnce() -> Waker,
    ) -> Option<RunGuard<'_>> {
        self.leader_lock.try_lead(number, waker).map(|lead| RunGuard { lead: Some(lead), sleeper: self })
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn spin(&self) -> Duration {
        self.spin
    }

    /// Ends the sleep of the leader, if it sleeps.
    #[inline]
    pub(crate) fn wake_up(&self) {
        if !self.is_forked() {
            self.wakeup.wake_up();
        }
    }

    /// This one will sleep, unless its next check finds something.
    #[inline]
    pub(crate) fn announce(&self, who: Who) {
        self.wakeup.announce(who);
    }

    /// It does not sleep.
    #[inline]
    pub(crate) fn cancel(&self, who: Who) {
        self.wakeup.cancel(who);
    }

    /// An event loop has read a wakeup or an event of the CQ: a thread that leads and sleeps may wait for it, or tasks.
    pub(crate) fn pass_wakeup(&self) {
        if self.leader_lock.is_led() {
            self.wakeup.event().raise();
        } else if self.has_stations() {
            self.wakeup.pass();
        }
    }

    /// The one that ran the dispatcher does so no longer. An event loop that sleeps, or tasks of tokio, now run it alone. They do not know
    /// the timers and the work that were added meanwhile, and that one may have read the wakeup for them.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.wakeup.is_loop_asleep() || self.has_stations() {
            self.wake_loop();
        }
    }

    /// Whether tasks of tokio wait, which are not woken if others read the events.
    #[inline]
    fn has_stations(&self) -> bool {
        #[cfg(feature = "tokio")]
        let has = self.stations.load(Ordering::SeqCst) > 0;
        #[cfg(not(feature = "tokio"))]
        let has = false;
        has
    }

    /// Ends the sleep of an event loop or a runtime.
    #[cold]
    fn wake_loop(&self) {
        if !self.is_forked() {
            self.wakeup.event().raise();
        }
    }

    /// Whether the dispatcher waits for something that raises no event.
    pub(crate) fn set_restless(&self, restless: bool) {
        self.restless.store(restless, Ordering::Relaxed);
    }

    /// Whether this is a child of fork(2), where the descriptors are those of the parent. Its locks may be held by threads that the
    /// child does not have.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.home.is_current()
    }

    /// How long a sleep may last.
    #[inline]
    pub(crate) fn time_to_sleep(&self) -> Option<Duration> {
        let until_timer = self.timers.next().map(|at| at.saturating_sub(self.now()));
        match (until_timer, self.restless.load(Ordering::Relaxed)) {
            (until_timer, false) => until_timer,
            (until_timer, true) => {
                Some(until_timer.map_or(RESTLESS_INTERVAL, |time| time.min(RESTLESS_INTERVAL)))
            }
        }
    }

    /// Waits for a descriptor, and wakes the tasks whose descriptors are readable.
    #[inline]
    pub(crate) fn wait(&self, limit: Option<Duration>, wakes: &mut Vec<Waker>) -> Result<Readable, Errno> {
        let mut timeout = match limit {
            None => EpollTimeout::NONE,
            Some(Duration::ZERO) => EpollTimeout::ZERO,
            Some(limit) => timeout_of(limit),
        };
        let mut readable = Readable::default();
        loop {
            let mut events = [EpollEvent::empty(); READ_AT_ONCE];
            let n = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno),
            };
            if n == 1 && events[0].data() == CHANNEL {
                readable.channel = true;
                return Ok(readable);
            }
            self.take_events(events.get(..n).unwrap_or_default(), &mut readable, wakes);
            // More may be readable. Only the channel and the asynchronous events are reported again, so this ends.
            if n < READ_AT_ONCE {
                return Ok(readable);
            }
            timeout = EpollTimeout::ZERO;
        }
    }

    #[inline(never)]
    fn take_events(&self, events: &[EpollEvent], readable: &mut Readable, wakes: &mut Vec<Waker>) {
        for event in events {
            match event.data() {
                // Nothing to read if another thread was faster.
                WAKEUP => readable.wakeup |= self.wakeup.event().read().is_ok(),
                CHANNEL => readable.channel = true,
                ASYNC_EVENTS => readable.async_events = true,
                #[cfg(feature = "tokio")]
                ALARM => readable.wakeup |= self.alarm.get().is_some_and(Alarm::has_rung),
                registration => self.fd_waits.take(registration, wakes),
            }
        }
    }
}

/// For tasks of tokio.
#[cfg(feature = "tokio")]
impl Sleeper {
    /// A runtime begins to wait. The order of this and of [`LeaderLock::is_led`] is that of all threads: so a leader that leaves finds it,
    /// or it finds no leader.
    pub(crate) fn add_station(&self) -> Result<()> {
        if self.alarm.get().is_none() {
            let alarm = Alarm::new()?;
            self.epoll.add(&alarm, EpollEvent::new(EpollFlags::EPOLLIN, ALARM))?;
            // The caller has a lock, so there is none yet.
            let _ = self.alarm.set(alarm);
        }
        self.stations.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn has_several_stations(&self) -> bool {
        self.stations.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn remove_station(&self) {
        self.stations.fetch_sub(1, Ordering::SeqCst);
    }

    /// The descriptor is readable after this time, or earlier.
    pub(crate) fn set_alarm(&self, limit: Duration) {
        if let Some(alarm) = self.alarm.get() {
            alarm.set(limit);
        }
    }

    /// The descriptor is readable.
    pub(crate) fn raise(&self) {
        self.wakeup.event().raise();
    }

    pub(crate) fn woke(&self) -> &Arc<AtomicBool> {
        &self.woke
    }
}

/// The right to run the dispatcher, until it is dropped.
#[derive(Debug)]
pub(crate) struct RunGuard<'a> {
    lead: Option<LeaderGuard<'a>>,
    sleeper: &'a Sleeper,
}

impl Drop for RunGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lead = None;
        self.sleeper.leave();
    }
}

/// Rounded up, so that the last wait is not a busy loop.
#[inline(never)]
fn timeout_of(limit: Duration) -> EpollTimeout {
    let millis = u64::try_from(limit.as_nanos().div_ceil(1_000_000));
    millis.ok().and_then(|millis| EpollTimeout::try_from(millis).ok()).unwrap_or(EpollTimeout::MAX)
}

/// Readable while there is something to do for the dispatcher that sleeps.
impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers::Monotonic;

    fn sleeper() -> Sleeper {
        Sleeper::new(Arc::new(Monotonic::new()), Duration::ZERO).unwrap()
    }

    fn raised() -> EventFd {
        EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK).unwrap()
    }

    /// An executor that watches the dispatcher's descriptor by edges is not notified again of what a wait leaves.
    #[test]
    fn one_wait_takes_all_that_are_readable() {
        let sleeper = sleeper();
        let (channel, events) = (raised(), raised());
        sleeper.watch_channel(&channel).unwrap();
        sleeper.watch_async_events(&events).unwrap();
        let fds: Vec<_> = (0..40).map(|_| raised()).collect();
        for fd in &fds {
            sleeper.begin_fd_wait(fd, Waker::noop()).unwrap();
        }
        let mut wakes = Vec::new();
        let readable = sleeper.wait(Some(Duration::ZERO), &mut wakes).unwrap();
        assert_eq!((wakes.len(), readable.channel, readable.async_events), (40, true, true));
    }
}
