// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies without the lock.
//!
//! A device may leave a long copy between two regions of the process to the thread that executes it ([`leave_copy`](Net::leave_copy)). The
//! thread leaves the lock, copies, takes the lock again and tells the device ([`Model::copied`]) before anything else happens. Other
//! threads go on meanwhile, and may copy at the same time.
//!
//! # What waits
//! While a copy runs, the memory of both sides and both queues are in use:
//! - A call that may take memory away, move or destroy a queue, or change the network ([`Fabric::enter`](crate::Fabric::enter)) waits until
//!   all copies have ended. None begins while one waits, so it waits for one copy of each thread at most.
//! - A request of a queue that ends an access waits, too ([`after_copies`](Net::after_copies)).
//! - The device does nothing with the two queues before it is told of the end: they execute nothing, and fail for no reason.
//!
//! Doorbells, and calls that only create or read ([`Fabric::enter_beside`](crate::Fabric::enter_beside)), do not wait. A thread that copies
//! waits for nothing but the lock, so it always ends, and with it what waits for it.

use crate::direct::{Near, PIECE};
use crate::memory::{Fault, Memory};
use crate::model::Model;
use crate::net::Net;
use crate::port::Port;
use crate::world::World;
use crate::world_lock::{Guard, WorldLock};
use std::sync::Arc;

/// The bytes that are copied by one call: for more, the C library may pass the processor's cache.
const SLICE: usize = 128 << 10;

/// A copy between two regions.
#[derive(Clone, Debug)]
pub struct Aside {
    /// The device and the queue that want it, and those at the other end.
    pub ends: [(usize, u32); 2],
    /// The devices and the keys whose memory is read and written.
    pub keys: [(usize, u32); 2],
    /// Where the bytes are.
    pub from: (Arc<dyn Memory>, u64),
    /// Where they are written to.
    pub to: (Arc<dyn Memory>, u64),
    /// Bytes.
    pub len: usize,
}

impl Aside {
    fn execute(&self) -> Result<(), Fault> {
        let data = self.from.0.mapped(self.from.1, self.len).ok_or(Fault)?;
        let mut done = 0;
        while done < self.len {
            let slice = data.part(done, SLICE.min(self.len - done)).ok_or(Fault)?;
            self.to.0.write_mapped(self.to.1.checked_add(done as u64).ok_or(Fault)?, slice)?;
            done += slice.len();
        }
        Ok(())
    }
}

/// The copies without the lock.
#[derive(Debug, Default)]
pub(crate) struct Asides {
    /// Whether the lock must be held for a short time only, by all threads: then no copy is left.
    pub(crate) are_off: bool,
    /// The copy that was left, and has not begun.
    next: Option<Aside>,
    /// The keys of those that were left, or run.
    running: Vec<[(usize, u32); 2]>,
    /// The number of calls that wait until none runs.
    waiting: usize,
    /// The queues with a request that waits for one.
    held_back: Vec<(usize, u32)>,
}

impl<P> Net<P> {
    /// Whether a thread copies without the lock, or will next.
    #[must_use]
    #[inline]
    pub fn has_copies(&self) -> bool {
        !self.asides.running.is_empty()
    }

    /// Whether a device may leave copies to the thread that has the lock.
    #[must_use]
    pub fn may_leave_copy(&self) -> bool {
        !self.asides.are_off && self.asides.waiting == 0 && self.asides.held_back.is_empty()
    }

    /// Whether one was left already. The next one can be left when that runs.
    #[must_use]
    pub fn has_left_copy(&self) -> bool {
        self.asides.next.is_some()
    }

    /// Leaves a copy to the thread that has the lock, if it [may](Self::may_leave_copy). The device does nothing with both queues until it
    /// is told of the end.
    pub fn leave_copy(&mut self, copy: Aside) {
        self.asides.running.push(copy.keys);
        self.asides.next = Some(copy);
        // The thread looks for it where it looks for others that wait for the lock.
        self.held = PIECE;
    }

    /// Whether memory of a device's key is being copied.
    #[must_use]
    pub fn copies_key(&self, device: usize, key: u32) -> bool {
        self.asides.running.iter().flatten().any(|used| *used == (device, key))
    }

    /// A request of a queue of this device waits for a copy: the device is called again when one has ended ([`Model::go_on`]). None begins
    /// before.
    pub fn after_copies(&mut self, device: usize, queue: u32) {
        self.asides.held_back.push((device, queue));
    }
}

impl<M: Model> World<M> {
    /// A copy has ended: whether all bytes are copied.
    fn end_copy(&mut self, copy: &Aside, is_done: bool) {
        let running = &mut self.net.asides.running;
        if let Some(at) = running.iter().position(|keys| *keys == copy.keys) {
            running.swap_remove(at);
        }
        let index = copy.ends[0].0;
        self.list(index);
        if let Some((before, rest)) = self.devices.split_at_mut_checked(index)
            && let Some((Some(station), behind)) = rest.split_first_mut()
        {
            let mut port = Port { now: self.now, me: index, net: &mut self.net };
            let mut near = Near::new(before, behind, &mut self.listed);
            station.device.copied(&mut port, &mut near, copy, is_done);
        }
        for (index, queue) in core::mem::take(&mut self.net.asides.held_back) {
            if let Some((device, mut port)) = self.device(index) {
                device.go_on(&mut port, queue);
            }
        }
    }
}

/// A copy that runs. It ends when this is dropped by a panic, too.
struct Running<'a, M: Model> {
    lock: &'a WorldLock<M>,
    copy: Option<Aside>,
}

impl<'a, M: Model> Running<'a, M> {
    fn end(&mut self, is_done: bool) -> Option<Guard<'a, M>> {
        let copy = self.copy.take()?;
        let mut world = self.lock.lock();
        world.end_copy(&copy, is_done);
        if !world.net.has_copies() {
            self.lock.quiet.notify_all();
        }
        Some(world)
    }
}

impl<M: Model> Drop for Running<'_, M> {
    fn drop(&mut self) {
        if let Some(mut world) = self.end(false) {
            // The rest is left to the fabric's thread.
            self.lock.tell_thread(&mut world);
        }
    }
}

impl<M: Model> WorldLock<M> {
    /// Makes the copy that was left, if there is one, without the lock.
    pub(crate) fn copy_aside<'a>(&'a self, mut world: Guard<'a, M>) -> Guard<'a, M> {
        let Some(copy) = world.net.asides.next.take() else { return world };
        let mut running = Running { lock: self, copy: Some(copy) };
        Self::leave(world);
        let is_done = running.copy.as_ref().is_some_and(|copy| copy.execute().is_ok());
        let world = running.end(is_done).unwrap_or_else(|| self.lock());
        if world.net.asides.waiting == 0 || world.net.has_copies() {
            return world;
        }
        // The calls that wait go first.
        Self::leave(world);
        self.hand_over();
        self.lock()
    }

    /// Waits until no thread copies without the lock.
    #[cold]
    pub(crate) fn wait_for_copies<'a>(&'a self, mut world: Guard<'a, M>) -> Guard<'a, M> {
        // One that a thread has left that panicked.
        world = self.copy_aside(world);
        world.net.asides.waiting += 1;
        let mut world = self.wait_while(world, |world| world.net.has_copies());
        world.net.asides.waiting -= 1;
        world
    }
}
