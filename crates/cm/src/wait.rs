// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for the events of an identifier that has a channel of its own.
//!
//! The kernel reports the end of a connection or of a device by one event, but more than one call may wait for it, at the same time or
//! one after the other. So the end is remembered, and each call gets it.
//!
//! | who waits | what ends the wait |
//! |---|---|
//! | one thread, by poll(2) | the channel is readable; its [bell](Bell), if another call has read the end: then the channel may not be readable |
//! | other threads | their turn to wait by poll(2); the end |
//! | tasks, each for the descriptor | the channel is readable; their wakers, if another call has read the end |

use crate::bell::Bell;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind};
use crate::id::Id;
use core::task::Waker;
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use uverbs_core::wake::{Caller, Place, Waiters, Wakes, discard};

/// No event follows that a call waits for.
#[derive(Clone, Copy, Debug)]
enum End {
    Disconnected,
    DeviceRemoval,
}

#[derive(Debug, Default)]
struct State {
    end: Option<End>,
    /// The bell of the thread that waits by poll(2).
    poller: Option<Bell>,
    /// Those that wait for the descriptor.
    tasks: Waiters,
}

/// The threads and tasks that wait for events of an identifier.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    /// No thread waits by poll(2) any more, or there is the end.
    changed: Condvar,
}

impl Waits {
    /// Not in a child of fork(2), where another thread may have it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks it, at the end of a call: if there is the end, all that wait get it; otherwise another thread waits by poll(2).
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let ended = state.end.is_some();
        let poller = state.poller.clone();
        let mut wakes = Wakes::new();
        if ended {
            state.tasks.wake_all(&mut wakes);
        }
        drop(state);
        match poller {
            Some(bell) if ended => bell.ring(),
            _ => {}
        }
        if ended {
            self.changed.notify_all();
        } else {
            // If a thread waits by poll(2) this one waits again.
            self.changed.notify_one();
        }
        wakes.wake();
    }
}

/// The wait of a task for events of an identifier. It also waits for the descriptor of the channel.
#[doc(hidden)]
#[derive(Debug)]
pub struct OwnEvents<'a> {
    id: &'a Id,
    place: Place,
}

impl OwnEvents<'_> {
    /// Takes the next event; `None` if there is none. The waker is woken if another call reads the end: then the descriptor may not
    /// be readable any more.
    ///
    /// # Errors
    /// As [`EventChannel::next_event`](crate::EventChannel::next_event).
    pub fn poll_next(&mut self, waker: &Waker) -> Result<Option<Event>> {
        if !self.id.channel().port().is_creator_process() {
            return self.id.channel().next_event();
        }
        let mut caller = Caller::new(waker);
        loop {
            let mut state = self.id.waits().lock();
            let event = self.id.take_event(&mut state);
            if matches!(event, Ok(None)) {
                state.tasks.wait(&mut self.place, &mut caller);
            }
            self.id.waits().leave(state);
            if !caller.supply() {
                return event;
            }
        }
    }
}

impl Drop for OwnEvents<'_> {
    fn drop(&mut self) {
        if self.place.is_taken() && self.id.channel().port().is_creator_process() {
            let task = self.id.waits().lock().tasks.leave(&mut self.place);
            // Its drop may run code of the program.
            discard(task);
        }
    }
}

impl Id {
    /// The wait of a task for its events.
    #[doc(hidden)]
    pub fn own_events(&self) -> OwnEvents<'_> {
        OwnEvents { id: self, place: Place::default() }
    }

    /// An event that this verb waited for, or the error that it is: it names the verb, which may be another one than that of the kernel's
    /// event, and the identifier. The end of the connection is an error.
    #[doc(hidden)]
    pub fn check(&self, event: Event, verb: &'static str) -> Result<EventKind> {
        match event.kind {
            EventKind::Disconnected => Err(Error::Disconnected { verb, object: self.object() }),
            EventKind::DeviceRemoval => Err(Error::DeviceGone { verb, object: self.object() }),
            EventKind::Failed(error) => Err(error.of(verb)),
            kind => Ok(kind),
        }
    }

    /// Takes the next event, as a call that does not wait.
    pub(crate) fn next_own(&self) -> Result<Option<Event>> {
        self.wait_own(Some(Instant::now()))
    }

    /// Takes the next event, and skips those of others. After the end each event is the end.
    fn take_event(&self, state: &mut State) -> Result<Option<Event>> {
        let token = self.token();
        if let Some(end) = state.end {
            let kind = match end {
                End::Disconnected => EventKind::Disconnected,
                End::DeviceRemoval => EventKind::DeviceRemoval,
            };
            return Ok(Some(Event { token, kind }));
        }
        while let Some(event) = self.channel().next_event()? {
            if event.token != token {
                uverbs::report!(
                    debug,
                    { id = self.number(), event = event.name() },
                    "{}: {} of another id is skipped",
                    self.object(),
                    event.name()
                );
                continue;
            }
            state.end = match event.kind {
                EventKind::Disconnected | EventKind::TimewaitExit => Some(End::Disconnected),
                EventKind::DeviceRemoval => Some(End::DeviceRemoval),
                _ => None,
            };
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// Waits for the next event until this time, and skips those of others. After the end each event is the end.
    pub(crate) fn wait_own(&self, until: Option<Instant>) -> Result<Option<Event>> {
        if !self.channel().port().is_creator_process() {
            return self.channel().next_event();
        }
        let waits = self.waits();
        let mut state = waits.lock();
        let result = loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match self.take_event(&mut state) {
                Ok(None) if left.is_none_or(|left| !left.is_zero()) => {}
                result => break result,
            }
            if state.poller.is_some() {
                state = match left {
                    None => waits.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        waits.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            let bell = match Bell::of_this_thread() {
                Ok(bell) => bell,
                Err(errno) => break Err(Error::command("eventfd", self.object(), errno.into())),
            };
            state.poller = Some(bell.clone());
            drop(state);
            let polled = self.poll(&bell, left);
            state = waits.lock();
            state.poller = None;
            if let Err(error) = polled {
                break Err(error);
            }
        };
        waits.leave(state);
        result
    }

    /// Waits until the channel is readable, or another call has read the end.
    fn poll(&self, bell: &Bell, limit: Option<Duration>) -> Result<()> {
        // Rounded up, so that the last wait is not a busy loop.
        let timeout = limit.map_or(PollTimeout::NONE, |limit| {
            PollTimeout::try_from(limit.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [self.channel().as_fd(), bell.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::command("poll", self.object(), errno.into())),
        }
    }
}
