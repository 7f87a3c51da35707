// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for the events of an identifier that has a channel of its own.
//!
//! The kernel reports the end of a connection or of a device by one event, but more than one call may wait for it, at the same time or
//! one after the other. So the end is remembered, and each call gets it. One thread at a time waits by poll(2): the kernel does not
//! end the poll of a thread whose event another one has read.

use crate::error::{Error, Result};
use crate::event::{Event, EventKind};
use crate::id::Id;
use core::task::Waker;
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// No event follows that a call waits for.
#[derive(Clone, Copy, Debug)]
enum End {
    Disconnected,
    DeviceRemoval,
}

#[derive(Debug, Default)]
struct State {
    end: Option<End>,
    /// Whether a thread waits by poll(2).
    is_polled: bool,
    /// Those that wait for the descriptor, with their numbers.
    tasks: Vec<(u64, Waker)>,
    /// The last number of a task.
    last: u64,
}

/// The threads that wait for events of an identifier.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    /// The thread that waited by poll(2) does so no longer.
    changed: Condvar,
}

impl Waits {
    /// Not in a child of fork(2), where another thread may have it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks it, and wakes the tasks if there was the end.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let tasks = if state.end.is_some() { core::mem::take(&mut state.tasks) } else { Vec::new() };
        drop(state);
        tasks.into_iter().for_each(|(_, task)| task.wake());
    }
}

/// The wait of a task for events of an identifier. It also waits for the descriptor of the channel.
#[doc(hidden)]
#[derive(Debug)]
pub struct OwnEvents<'a> {
    id: &'a Id,
    /// Its number among the tasks.
    number: Option<u64>,
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
        let mut state = self.id.waits().lock();
        let event = self.id.take_event(&mut state);
        let mut old = None;
        if matches!(event, Ok(None)) {
            let waker = waker.clone();
            match state.tasks.iter_mut().find(|(number, _)| self.number == Some(*number)) {
                Some((_, place)) => old = Some(core::mem::replace(place, waker)),
                None => {
                    state.last += 1;
                    self.number = Some(state.last);
                    let task = (state.last, waker);
                    state.tasks.push(task);
                }
            }
        }
        self.id.waits().leave(state);
        drop(old);
        event
    }
}

impl Drop for OwnEvents<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number
            && self.id.channel().port().is_creator_process()
        {
            let mut state = self.id.waits().lock();
            let at = state.tasks.iter().position(|(other, _)| *other == number);
            let task = at.map(|at| state.tasks.swap_remove(at));
            // Its drop may run code of the program.
            drop(state);
            drop(task);
        }
    }
}

impl Id {
    /// The wait of a task for its events.
    #[doc(hidden)]
    pub fn own_events(&self) -> OwnEvents<'_> {
        OwnEvents { id: self, number: None }
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
                log::debug!("{}: {} of another id is skipped", self.object(), event.name());
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
        loop {
            let event = self.take_event(&mut state)?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if event.is_some() || left.is_some_and(|left| left.is_zero()) {
                waits.leave(state);
                return Ok(event);
            }
            if state.is_polled {
                state = match left {
                    None => waits.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        waits.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            state.is_polled = true;
            drop(state);
            let polled = self.poll(left);
            state = waits.lock();
            state.is_polled = false;
            waits.changed.notify_all();
            polled?;
        }
    }

    /// Waits until the channel is readable.
    fn poll(&self, limit: Option<Duration>) -> Result<()> {
        // Rounded up, so that the last wait is not a busy loop.
        let timeout = limit.map_or(PollTimeout::NONE, |limit| {
            PollTimeout::try_from(limit.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut [PollFd::new(self.channel().as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::command("poll", self.object(), errno.into())),
        }
    }
}
