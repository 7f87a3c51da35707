// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies without the lock.
//!
//! A device may leave a long copy between two regions of the process to the thread whose doorbell it executes
//! ([`copy_aside`](crate::net::Net::copy_aside)). The thread leaves the lock, copies, takes the lock again and tells the device
//! ([`Model::copied`]), which then executes the request as any other one, without the copy. Other threads ring doorbells meanwhile, and
//! may copy at the same time.
//!
//! Whatever could take memory away from a copy waits for it: only doorbells, and the fabric's own threads, have the lock while there is one.
//! Each other call ([`Fabric::enter`](crate::Fabric::enter)), for example one that deregisters a region, resets or destroys a queue, or
//! removes a device, waits until all copies have ended, and none begins while a call waits. So no region is accessed after the call that
//! deregisters it.

use crate::memory::{Fault, Memory};
use crate::model::Model;
use crate::net::Net;
use crate::world_lock::WorldLock;
use std::sync::Arc;

/// A copy between regions.
#[derive(Clone, Debug)]
pub struct Aside {
    /// The number of the device that wants it.
    pub device: usize,
    /// Its queue.
    pub queue: u32,
    /// Where the bytes are.
    pub from: (Arc<dyn Memory>, u64),
    /// Where they are written to.
    pub to: (Arc<dyn Memory>, u64),
    /// Bytes.
    pub len: usize,
}

impl Aside {
    pub(crate) fn execute(&self) -> Result<(), Fault> {
        let data = self.from.0.mapped(self.from.1, self.len).ok_or(Fault)?;
        let mut done = 0;
        while let Some(slice) = data.part(done, SLICE.min(self.len - done)).filter(|slice| slice.len() > 0) {
            self.to.0.write_mapped(self.to.1.checked_add(done as u64).ok_or(Fault)?, slice)?;
            done += slice.len();
        }
        Ok(())
    }
}

/// The bytes that are copied by one call: for more, the C library may pass the processor's cache.
const SLICE: usize = 128 << 10;

impl<P> Net<P> {
    /// Whether a device may leave a copy to the thread that has the lock.
    #[must_use]
    pub fn may_copy_aside(&self) -> bool {
        self.asides && self.aside.is_none()
    }

    /// Leaves a copy to the thread that has the lock, if it [may](Self::may_copy_aside). The device executes nothing of the queue until it is
    /// told of the end.
    pub fn copy_aside(&mut self, copy: Aside) {
        self.aside = Some(copy);
    }
}

/// A copy without the lock. When it is dropped, also by a panic, the copy has ended.
pub(crate) struct Running<'a, M: Model> {
    pub(crate) lock: &'a WorldLock<M>,
    pub(crate) copy: Aside,
    pub(crate) is_done: bool,
}

impl<M: Model> Drop for Running<'_, M> {
    fn drop(&mut self) {
        self.lock.end_copy(&self.copy, self.is_done);
    }
}
