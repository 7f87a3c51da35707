// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that tasks wait for, besides those of the dispatcher.
//!
//! A descriptor is registered once (epoll(7), `EPOLLONESHOT`), for any number of tasks. When it is readable, all waits for it end, and so
//! does its registration.

use crate::sync::{Mutex, lock};
use core::task::Waker;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use uverbs_core::wake::{Caller, Wakes, discard};

/// The tasks that wait for a descriptor, until it is readable.
#[derive(Debug)]
struct Registration {
    fd: RawFd,
    /// By the number of the wait.
    waiters: BTreeMap<u64, Waker>,
}

/// A wait for a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FdWait {
    registration: u64,
    number: u64,
}

#[derive(Debug)]
struct State {
    next: u64,
    registrations: BTreeMap<u64, Registration>,
    /// The registration of a descriptor.
    of_fd: BTreeMap<RawFd, u64>,
}

impl State {
    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Ends a registration. Returns those that waited.
    fn end(&mut self, registration: u64) -> Option<BTreeMap<u64, Waker>> {
        let Registration { fd, waiters } = self.registrations.remove(&registration)?;
        // The number may be that of another descriptor already.
        if self.of_fd.get(&fd) == Some(&registration) {
            self.of_fd.remove(&fd);
        }
        Some(waiters)
    }
}

#[derive(Debug)]
pub(crate) struct FdWaits {
    state: Mutex<State>,
}

impl FdWaits {
    /// Events of registrations have numbers from `first` on.
    pub(crate) fn new(first: u64) -> Self {
        Self {
            state: Mutex::new(State { next: first, registrations: BTreeMap::new(), of_fd: BTreeMap::new() }),
        }
    }

    /// Wakes the task once when the descriptor is readable, with all others that wait for it.
    pub(crate) fn register(&self, epoll: &Epoll, fd: impl AsFd, waker: &Waker) -> Result<FdWait, Errno> {
        let raw = fd.as_fd().as_raw_fd();
        let task = waker.clone();
        // Woken after the lock.
        let mut stale = Wakes::new();
        let mut state = lock(&self.state);
        let others = state.of_fd.get(&raw).copied();
        let mut registration = state.number();
        let event =
            |registration| EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, registration);
        match epoll.add(&fd, event(registration)) {
            Err(Errno::EEXIST) => {
                registration = others.unwrap_or(registration);
                // For the registration of others, too: its registration may be that of a file that had this number meanwhile.
                epoll.modify(&fd, &mut event(registration))?;
            }
            added => added?,
        }
        // They wait for a file that was closed since.
        let ended = others.filter(|others| *others != registration).and_then(|others| state.end(others));
        stale.extend(ended.into_iter().flat_map(BTreeMap::into_values));
        state.of_fd.insert(raw, registration);
        let number = state.number();
        let place = state
            .registrations
            .entry(registration)
            .or_insert_with(|| Registration { fd: raw, waiters: BTreeMap::new() });
        place.waiters.insert(number, task);
        drop(state);
        stale.wake();
        Ok(FdWait { registration, number })
    }

    /// Ends a wait.
    pub(crate) fn deregister(&self, epoll: &Epoll, fd: impl AsFd, wait: FdWait) {
        let mut state = lock(&self.state);
        let mut left = None;
        if let Some(registration) = state.registrations.get_mut(&wait.registration) {
            left = registration.waiters.remove(&wait.number);
            if registration.waiters.is_empty() {
                state.end(wait.registration);
            }
        }
        if !state.of_fd.contains_key(&fd.as_fd().as_raw_fd()) {
            // It fails if the descriptor is not watched.
            let _ = epoll.delete(fd);
        }
        drop(state);
        discard(left);
    }

    /// Another task waits. Returns whether the descriptor is not yet readable.
    pub(crate) fn update(&self, wait: FdWait, waker: &Waker) -> bool {
        let mut caller = Caller::new(waker);
        loop {
            let mut state = lock(&self.state);
            let registration = state.registrations.get_mut(&wait.registration);
            let place = registration.and_then(|registration| registration.waiters.get_mut(&wait.number));
            let waits = place.map(|place| caller.store(place)).is_some();
            drop(state);
            if !caller.supply() {
                return waits;
            }
        }
    }

    /// A descriptor is readable: the event has the number of this registration.
    #[cold]
    pub(crate) fn take(&self, registration: u64, wakes: &mut Vec<Waker>) {
        let ended = lock(&self.state).end(registration);
        wakes.extend(ended.into_iter().flat_map(BTreeMap::into_values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::{Count, Panics};
    use core::sync::atomic::Ordering;
    use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};
    use nix::unistd::{dup2, pipe, write};
    use std::sync::Arc;

    struct Bed {
        epoll: Epoll,
        fd_waits: FdWaits,
        counts: [Arc<Count>; 3],
    }

    impl Bed {
        fn new() -> Self {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
            Self { epoll, fd_waits: FdWaits::new(16), counts: Default::default() }
        }

        fn watch(&self, fd: impl AsFd, task: usize) -> FdWait {
            self.fd_waits.register(&self.epoll, fd, &self.counts[task].clone().into()).unwrap()
        }

        /// Takes what is readable, and returns how often each task was woken.
        fn woken(&self) -> [u32; 3] {
            let mut events = [EpollEvent::empty(); 8];
            let n = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap();
            let mut wakes = Vec::new();
            for event in &events[..n] {
                self.fd_waits.take(event.data(), &mut wakes);
            }
            wakes.drain(..).for_each(Waker::wake);
            [0, 1, 2].map(|i: usize| self.counts[i].0.load(Ordering::Relaxed))
        }

        fn assert_nothing_left(&self) {
            let state = lock(&self.fd_waits.state);
            assert!(state.registrations.is_empty() && state.of_fd.is_empty());
        }
    }

    /// If one ended another, two tasks that wait again and again would never sleep.
    #[test]
    fn several_tasks_wait_for_a_descriptor() {
        let bed = Bed::new();
        let (near, far) = pipe().unwrap();
        let waits = [0, 1, 2].map(|task| bed.watch(&near, task));
        assert_eq!(bed.woken(), [0; 3]);
        for (wait, count) in waits.iter().zip(&bed.counts) {
            assert!(bed.fd_waits.update(*wait, &count.clone().into()));
        }
        bed.fd_waits.deregister(&bed.epoll, &near, waits[0]);
        write(&far, b"x").unwrap();
        assert_eq!(bed.woken(), [0, 1, 1]);
        assert_eq!(bed.woken(), [0, 1, 1], "once");
        assert!(waits[1..].iter().all(|wait| !bed.fd_waits.update(*wait, Waker::noop())));
        // It is still readable.
        let again = bed.watch(&near, 0);
        waits[1..].iter().for_each(|wait| bed.fd_waits.deregister(&bed.epoll, &near, *wait));
        assert_eq!(bed.woken(), [1, 1, 1], "the end of a wait does not end a later one");
        bed.fd_waits.deregister(&bed.epoll, &near, again);
        bed.assert_nothing_left();
    }

    /// Those that wait for a file that was closed are woken by the next wait; one of them panics.
    #[test]
    fn a_waker_that_panics_keeps_no_other_wait_from_its_end() {
        let bed = Bed::new();
        let ((mut near, _far), (second, _second_far)) = (pipe().unwrap(), pipe().unwrap());
        let panics = Arc::new(Panics::default());
        bed.fd_waits.register(&bed.epoll, &near, &panics.clone().into()).unwrap();
        bed.watch(&near, 0);
        dup2(&second, &mut near).unwrap();
        let wait = bed.watch(&near, 1);
        assert_eq!((panics.0.load(Ordering::Relaxed), bed.woken()), (1, [1, 0, 0]));
        bed.fd_waits.deregister(&bed.epoll, &near, wait);
        bed.assert_nothing_left();
    }

    /// The number of a descriptor is that of another file, while a future that was forgotten waits for the first one.
    #[test]
    fn the_number_of_a_closed_descriptor_is_watched_again() {
        let bed = Bed::new();
        let (mut near, far) = pipe().unwrap();
        let (second, _second_far) = pipe().unwrap();
        bed.watch(&near, 0);
        let copy = near.try_clone().unwrap();
        dup2(&second, &mut near).unwrap();
        bed.watch(&near, 1);
        assert_eq!(bed.woken(), [1, 0, 0], "the first file has no such number any more");
        write(&far, b"x").unwrap();
        assert_eq!(bed.woken(), [1, 0, 0]);
        // The first file again, which is registered still.
        dup2(&copy, &mut near).unwrap();
        let last = bed.watch(&near, 2);
        assert_eq!(bed.woken(), [1, 1, 1]);
        bed.fd_waits.deregister(&bed.epoll, &near, last);
        bed.assert_nothing_left();
    }
}
