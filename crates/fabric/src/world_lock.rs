// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of a fabric's world, and the thread that processes due packets and timers.

use crate::model::Model;
use crate::world::World;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// How long a call processes due work, on a fabric that must answer soon; the thread processes the rest. A VM is
/// stopped while its device does not answer, and disconnects after some seconds (QEMU's vfio-user: five).
const BRIEF: Duration = Duration::from_micros(250);

/// How long the thread holds the lock at a time.
pub(crate) const ROUND: Duration = Duration::from_millis(1);

/// The pauses in which the thread leaves the lock to others: number and duration.
const COURTESY: (u32, Duration) = (50, Duration::from_micros(20));

/// How often a thread in the middle of a long operation looks whether another one has the lock that it has left.
const HANDING: u32 = 1000;

/// The world of who has the lock.
pub(crate) type Guard<'a, M> = MutexGuard<'a, World<M>>;

/// The lock of the world, and the condition that the thread waits for.
pub(crate) struct WorldLock<M: Model> {
    world: Mutex<World<M>>,
    /// The number of threads that wait for the lock. Without it, the fabric's thread would take the lock again before
    /// they wake up.
    waiting: Arc<AtomicUsize>,
    wake: Condvar,
    /// No thread copies without the lock any more.
    pub(crate) quiet: Condvar,
    start: Instant,
    pub(crate) deterministic: bool,
}

impl<M: Model> WorldLock<M> {
    pub(crate) fn new(seed: u64, deterministic: bool) -> Self {
        let mut world = World::new(seed);
        world.net.in_real_time = !deterministic;
        let waiting = Arc::clone(&world.waiting);
        let (wake, quiet) = (Condvar::new(), Condvar::new());
        Self { world: Mutex::new(world), waiting, wake, quiet, start: Instant::now(), deterministic }
    }

    /// The state is consistent between any two steps, so a panic of another thread (in a test's assertion, for example)
    /// does not affect it.
    pub(crate) fn lock(&self) -> Guard<'_, M> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.read_clock(&mut world);
        world
    }

    fn read_clock(&self, world: &mut World<M>) {
        if !self.deterministic {
            world.now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
    }

    /// Leaves the lock while this is true, and the world is not [quiet](Self::quiet). Others see a thread that waits for the lock.
    pub(crate) fn wait_while<'a>(
        &'a self,
        world: Guard<'a, M>,
        is_so: impl Fn(&World<M>) -> bool,
    ) -> Guard<'a, M> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let world = self.quiet.wait_while(world, |world| is_so(world));
        let mut world = world.unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.read_clock(&mut world);
        world
    }

    /// Unlocks the world, and sends what it has for devices outside of the fabric.
    pub(crate) fn leave(world: Guard<'_, M>) {
        if !world.outside.is_empty() {
            let outside = world.outside.clone();
            drop(world);
            outside.flush();
        }
    }

    /// Makes the copy that a device has left, or leaves the lock to others.
    fn pause<'a>(&'a self, world: Guard<'a, M>) -> Guard<'a, M> {
        if world.net.has_left_copy() {
            return self.copy_aside(world);
        }
        Self::leave(world);
        self.hand_over();
        self.lock()
    }

    /// The world, unless another thread has the lock.
    pub(crate) fn try_world(&self) -> Option<Guard<'_, M>> {
        match self.world.try_lock() {
            Ok(world) => Some(world),
            Err(TryLockError::Poisoned(world)) => Some(world.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Calls `f` with the world, and then processes due packets and timers.
    pub(crate) fn enter<R>(&self, f: impl FnOnce(&mut World<M>) -> R) -> R {
        self.enter_if(true, f)
    }

    /// As [`enter`](Self::enter). `waits`: not while threads copy without the lock.
    pub(crate) fn enter_if<R>(&self, waits: bool, f: impl FnOnce(&mut World<M>) -> R) -> R {
        let mut world = self.lock();
        if waits && world.net.has_copies() {
            world = self.wait_for_copies(world);
        }
        let result = f(&mut world);
        let limit = world.brief.then_some(BRIEF);
        while world.settle(self.deterministic, false, limit) && !self.deterministic {
            world = self.pause(world);
        }
        self.tell_thread(&mut world);
        Self::leave(world);
        result
    }

    /// As [`enter`](Self::enter), for a short time only: the thread processes the rest.
    pub(crate) fn enter_briefly<R>(&self, f: impl FnOnce(&mut World<M>) -> R) -> R {
        let mut world = self.lock();
        let result = f(&mut world);
        world.settle(self.deterministic, false, Some(BRIEF));
        world = self.copy_aside(world);
        self.tell_thread(&mut world);
        Self::leave(world);
        result
    }

    /// Calls `f` with the world. No packets or timers are processed.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut World<M>) -> R) -> R {
        f(&mut self.lock())
    }

    /// Calls `f` with the world, which it must not change. No packets or timers are processed.
    pub(crate) fn read<R>(&self, f: impl FnOnce(&World<M>) -> R) -> R {
        f(&self.lock())
    }

    pub(crate) fn tell_thread(&self, world: &mut World<M>) {
        let next = world.next();
        if !self.deterministic && next.is_some_and(|at| world.wakes.is_none_or(|wakes| at < wakes)) {
            world.wakes = next;
            self.wake.notify_one();
        }
    }

    pub(crate) fn run(&self) {
        let mut world = self.lock();
        let limit = world.round();
        while world.settle(self.deterministic, true, limit) {
            if !self.deterministic {
                world = self.pause(world);
            }
        }
        Self::leave(world);
    }

    pub(crate) fn run_for(&self, time: u64) {
        let mut world = self.lock();
        if self.deterministic {
            let until = world.now.saturating_add(time);
            world.pass(until);
        } else {
            let limit = world.round();
            while world.settle(false, true, limit) {
                world = self.pause(world);
            }
        }
        Self::leave(world);
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.wake.notify_one();
    }

    /// Leaves the lock, which is free, to a thread that waits for it.
    pub(crate) fn hand_over(&self) {
        let before = self.waiting.load(Ordering::Relaxed);
        for _ in 0..HANDING {
            if self.waiting.load(Ordering::Relaxed) < before.max(1) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Leaves the lock to waiting threads.
    fn stand_back(&self) {
        let (tries, pause) = COURTESY;
        for _ in 0..tries {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::sleep(pause);
        }
    }

    /// The thread: sleeps until a packet or timer is due.
    pub(crate) fn run_timers(&self) {
        let mut world = self.lock();
        while !world.stop {
            // Other threads wait for the lock, so it is not held for longer than this.
            world.settle(false, true, Some(ROUND));
            world = self.copy_aside(world);
            if !world.outside.is_empty() {
                Self::leave(world);
                world = self.lock();
                // It may have been set, and the condition notified, in between.
                if world.stop {
                    break;
                }
            }
            let next = world.next();
            world.wakes = next;
            world = match next {
                None => self.wake.wait(world).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at <= world.now => {
                    drop(world);
                    self.stand_back();
                    self.world.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Some(at) => {
                    let wait = Duration::from_nanos(at.saturating_sub(world.now));
                    self.wake.wait_timeout(world, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            world.now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
    }
}
