// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a dispatcher that does not depend on the driver: the choice of the leading thread, the sleep, the deadlines.

use crate::error::Result;
use crate::kick::{Event, Kick};
use crate::lead::Leadership;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::timers::{Clock, Timers};
use core::task::Waker;
use core::time::Duration;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What the descriptors of the dispatcher's epoll instance are for.
const KICK: u64 = 0;
const CHANNEL: u64 = 1;
const ASYNC_EVENTS: u64 = 2;
/// Descriptors that tasks wait for have the numbers from here on.
const FIRST_TASK: u64 = 16;

/// How long a sleep lasts at most while a receive queue waits for a buffer of its pool, whose return is not reported.
const REFILL_INTERVAL: Duration = Duration::from_millis(1);

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
}

#[derive(Debug, Default)]
struct Tasks {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

#[derive(Debug)]
pub(crate) struct Sleeper {
    kick: Kick<EventFd>,
    leadership: Leadership,
    timers: Timers,
    clock: Arc<dyn Clock>,
    spin: Duration,
    epoll: Epoll,
    tasks: Mutex<Tasks>,
    unfilled: AtomicBool,
}

impl Sleeper {
    pub(crate) fn new(clock: Arc<dyn Clock>, spin: Duration) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, KICK))?;
        Ok(Self {
            kick: Kick::new(event),
            leadership: Leadership::new(),
            timers: Timers::new(),
            clock,
            spin,
            epoll,
            tasks: Mutex::new(Tasks { next: FIRST_TASK, wakers: BTreeMap::new() }),
            unfilled: AtomicBool::new(false),
        })
    }

    /// Wakes the task once when the descriptor is readable. Returns the number of the wait.
    pub(crate) fn watch_for_task(&self, fd: impl AsFd, waker: &Waker) -> Result<u64> {
        let mut tasks = lock(&self.tasks);
        let number = tasks.next;
        tasks.next += 1;
        tasks.wakers.insert(number, waker.clone());
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, number);
        if let Err(errno) = self.epoll.add(fd, event) {
            tasks.wakers.remove(&number);
            return Err(errno.into());
        }
        Ok(number)
    }

    /// Ends a wait.
    pub(crate) fn unwatch_for_task(&self, fd: impl AsFd, number: u64) {
        self.unwatch(fd);
        lock(&self.tasks).wakers.remove(&number);
    }

    /// Another task waits. Returns whether the descriptor is not yet readable.
    pub(crate) fn update_task(&self, number: u64, waker: &Waker) -> bool {
        match lock(&self.tasks).wakers.get_mut(&number) {
            Some(old) => {
                old.clone_from(waker);
                true
            }
            None => false,
        }
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

    pub(crate) fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.timers
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn spin(&self) -> Duration {
        self.spin
    }

    /// Ends the sleep of the leader, if it sleeps.
    #[inline]
    pub(crate) fn kick(&self) {
        self.kick.kick();
    }

    /// The leader will sleep, unless its next check finds something.
    pub(crate) fn announce(&self) {
        self.kick.announce();
    }

    pub(crate) fn cancel(&self) {
        self.kick.cancel();
    }

    /// Whether a receive queue waits for a buffer.
    pub(crate) fn set_unfilled(&self, unfilled: bool) {
        self.unfilled.store(unfilled, Ordering::Relaxed);
    }

    /// How long a sleep may last.
    pub(crate) fn time_to_sleep(&self) -> Option<Duration> {
        let until_timer = self.timers.next().map(|at| at.saturating_sub(self.now()));
        let until_buffer = self.unfilled.load(Ordering::Relaxed).then_some(REFILL_INTERVAL);
        [until_timer, until_buffer].into_iter().flatten().min()
    }

    /// Waits for a descriptor, and wakes the tasks whose descriptors are readable.
    pub(crate) fn wait(&self, limit: Option<Duration>, wakes: &mut Vec<Waker>) -> Result<Readable> {
        let mut timeout = match limit {
            None => EpollTimeout::NONE,
            // Rounded up, so that the last wait is not a busy loop.
            Some(limit) => {
                EpollTimeout::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(EpollTimeout::MAX)
            }
        };
        let mut events = [EpollEvent::empty(); 16];
        let mut readable = Readable::default();
        loop {
            let n = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(errno) => return Err(errno.into()),
            };
            for event in events.get(..n).unwrap_or_default() {
                match event.data() {
                    // Nothing to read if another thread was faster.
                    KICK => _ = self.kick.event().read(),
                    CHANNEL => readable.channel = true,
                    ASYNC_EVENTS => readable.async_events = true,
                    task => wakes.extend(lock(&self.tasks).wakers.remove(&task)),
                }
            }
            // More may be readable; those that were reported are reported again until they are read, except for tasks.
            if n < events.len() || readable.channel {
                break;
            }
            timeout = EpollTimeout::ZERO;
        }
        Ok(readable)
    }
}

/// Readable while there is something to do for the dispatcher that sleeps.
impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
