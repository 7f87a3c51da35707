// SPDX-License-Identifier: MIT OR Apache-2.0
//! Races of memory: accesses of the program that conflict with accesses of a device that have not taken place.
//!
//! A program may use memory that a device writes when a completion says that it was written, and may change memory that a device reads when
//! a completion says that it was read. The modes of order keep the accesses that no completion has followed yet, so an access of the
//! program to the same bytes is a race. The accesses of the program are those that the library makes for it: `read_at` and `write_at` of a
//! region. Atomic words (`atomic_u64`), on which programs poll, are not checked.

use super::step::{Label, Lane};
use super::{Effect, Order};
use crate::fabric::Fabric;
use crate::memory::Memory;
use crate::model::{Model, Packet};
use crate::world_lock::WorldLock;
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use uverbs_core::kernel::watch_accesses;

/// The number of races that are kept.
const KEPT: usize = 1000;

/// An access of the program that conflicts with one of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// Address and bytes of the program's access.
    pub program: (u64, usize),
    /// Whether the program writes.
    pub program_writes: bool,
    /// Address and bytes of the device's access.
    pub device: (u64, usize),
    /// Whether the device writes.
    pub device_writes: bool,
    /// The number of the device in the fabric, and of the queue pair.
    pub queue: (usize, u32),
    /// The request of the device's access.
    pub label: Label,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, program_writes, device, device_writes, queue, label } = self;
        let verb = |writes| if writes { "writes" } else { "reads" };
        let (theirs, ours) = (verb(*program_writes), verb(*device_writes));
        write!(
            f,
            "the program {theirs} {} bytes at {:#x} while device {}, QP {:#x}, {ours} {} bytes at {:#x} ({label}): no completion orders them",
            program.1, program.0, queue.0, queue.1, device.1, device.0
        )
    }
}

impl<P: Packet> Order<P> {
    /// Records the accesses of devices that conflict with this one of the program.
    pub(crate) fn check(&mut self, addr: u64, len: usize, writes: bool) {
        let meets = |memory: &Arc<dyn Memory>, offset: u64, bytes: usize| {
            let at = memory.address(offset)?;
            (at < addr.saturating_add(len as u64) && addr < at.saturating_add(bytes as u64)).then_some(at)
        };
        let race = |device: (u64, usize), device_writes, queue, label| Race {
            program: (addr, len),
            program_writes: writes,
            device,
            device_writes,
            queue,
            label,
        };
        let mut found = Vec::new();
        for (Lane { device, queue, .. }, placed) in &self.lanes {
            for one in placed {
                if let Effect::Store { memory, offset, bytes, .. } = &one.effect
                    && let Some(at) = meets(memory, *offset, bytes.len())
                {
                    found.push(race((at, bytes.len()), true, (*device, *queue), one.label));
                }
            }
        }
        if writes {
            for (way, held) in &self.ways {
                for one in held {
                    for super::Fetch { fill, .. } in &one.fills {
                        if let Some(at) = meets(&fill.memory, fill.offset, fill.len) {
                            let queue = (way.from, way.route.src);
                            found.push(race((at, fill.len), false, queue, one.packet.label()));
                        }
                    }
                }
            }
        }
        let room = KEPT.saturating_sub(self.races.len());
        self.races.extend(found.into_iter().take(room));
    }
}

/// A fabric that checks the accesses of the program.
trait Checks: Send + Sync {
    fn check(&self, addr: u64, len: usize, writes: bool);
}

impl<M: Model> Checks for WorldLock<M> {
    fn check(&self, addr: u64, len: usize, writes: bool) {
        self.change(|world| {
            if let Some(order) = &mut world.net.order {
                order.check(addr, len, writes);
            }
        });
    }
}

/// The fabrics that check.
static FABRICS: Mutex<Vec<Weak<dyn Checks>>> = Mutex::new(Vec::new());

fn accessed(addr: u64, len: usize, writes: bool) {
    let fabrics: Vec<_> = {
        let mut all = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|fabric| fabric.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    };
    fabrics.iter().for_each(|fabric| fabric.check(addr, len, writes));
}

impl<M: Model> Fabric<M> {
    /// Checks the accesses of this process to registered memory from now on, in a mode of [order](Self::order) that permits more than one.
    /// `false` if another library watches them.
    pub fn check_races(&self) -> bool {
        let shared: Arc<dyn Checks> = Arc::clone(self.shared()) as Arc<dyn Checks>;
        let mut all = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|other| Weak::ptr_eq(other, &Arc::downgrade(&shared))) {
            all.push(Arc::downgrade(&shared));
        }
        drop(all);
        watch_accesses(accessed)
    }

    /// Removes and returns the races that were found, at most 1000.
    #[must_use]
    pub fn take_races(&self) -> Vec<Race> {
        self.enter(|world| {
            world.net.order.as_mut().map(|order| core::mem::take(&mut order.races)).unwrap_or_default()
        })
    }
}
