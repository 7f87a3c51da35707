// SPDX-License-Identifier: MIT OR Apache-2.0
//! A front: the registers, the admin queue and the event queues of a PCI function, as the kernel's `efa` drives them. It is independent of
//! the way in which accesses of a driver arrive: its owner passes them on, and gives it the machine's memory and interrupts as a [`Bus`].
//!
//! Facts from `efa_com.c` and `efa_com_cmd.c` of the kernel's driver.
//!
//! | module | contents |
//! |---|---|
//! | [`bus`] | memory and interrupts of the machine; memory of page lists |
//! | `registers` | reads and writes of registers and doorbells, resets |
//! | `admin` | the admin queue and its completions |
//! | `commands`, `features` | the commands |
//! | `events` | asynchronous events, and the queues of completion events |

mod admin;
pub mod bus;
mod commands;
mod events;
mod features;
mod registers;
#[cfg(test)]
mod tests;

use crate::Front;
use crate::caps::Caps;
use crate::device::Device;
use admin::AdminQueue;
use bus::Bus;
use events::{EventQueue, EventRing};
use std::sync::Arc;
use uverbs_fabric::map::Map;
use uverbs_fabric::memory::Memory;
use uverbs_fabric::numbers::Numbers;

/// The BAR of doorbells.
pub const DOORBELL_BAR: u16 = 4;
/// Bytes of the BAR of doorbells: a page for each QP, and behind them one for each CQ.
pub const DOORBELL_BYTES: u64 = (Caps::MAX_QP as u64 + Caps::MAX_CQ as u64) * PAGE;
/// Bytes of the BAR of registers.
pub const REGISTER_BYTES: u64 = 8192;

const PAGE: u64 = 4096;
/// The offsets of doorbells in their page.
const SQ_BELL: u64 = 0x40;
const RQ_BELL: u64 = 0x80;
const CQ_BELL: u64 = 0xc0;
/// The entries of all page lists of a function.
const MAX_PAGES: u64 = 1 << 24;

/// Commands of the longest admin queue. All of them may be executed at a doorbell, and each may read a list of [`Caps::MAX_PAGES`] entries,
/// while other devices of the fabric wait. The kernel's driver has 64 (`EFA_ADMIN_QUEUE_DEPTH`).
const MAX_COMMANDS: u32 = 128;

/// The registers that the driver sets.
#[derive(Debug, Default)]
struct Registers {
    aq_base: [u32; 2],
    acq_base: [u32; 2],
    aenq_base: [u32; 2],
    mmio_resp: [u32; 2],
    aq_caps: u32,
    acq_caps: u32,
    aenq_caps: u32,
    intr_mask: u32,
    dev_ctl: u32,
}

/// A PCI function: the state between its driver and the device.
#[derive(Debug)]
pub struct Function {
    guid: u64,
    bus: Arc<dyn Bus>,
    /// The memory of all send rings: the BAR that the driver maps write-combined.
    llq: Arc<dyn Memory>,
    registers: Registers,
    is_resetting: bool,
    has_failed: bool,
    /// It takes no commands and gives no signs of life.
    is_stopped: bool,
    admin: AdminQueue,
    aenq: EventRing,
    /// The groups of asynchronous events that the driver takes.
    groups: u32,
    eqs: Map<u16, EventQueue>,
    eq_numbers: Numbers,
    /// The EQ of each CQ with events.
    eq_of_cqs: Map<u16, u16>,
    /// The parts of the send rings' memory that QPs have.
    slots: Numbers,
    slot_of_qps: Map<u16, u32>,
    /// The entries of page lists of each region.
    pages: Map<u32, u64>,
    /// Those of all regions.
    used_pages: u64,
}

impl Function {
    /// A function whose device can do this. `llq` has [`Function::llq_bytes`].
    #[must_use]
    pub fn new(guid: u64, bus: Arc<dyn Bus>, llq: Arc<dyn Memory>) -> Self {
        Self {
            guid,
            bus,
            llq,
            registers: Registers::default(),
            is_resetting: false,
            has_failed: false,
            is_stopped: false,
            admin: AdminQueue::default(),
            aenq: EventRing::default(),
            groups: 0,
            eqs: Map::new(),
            eq_numbers: Numbers::new(0..Caps::MAX_EQ.into()),
            eq_of_cqs: Map::new(),
            slots: Numbers::new(0..Caps::MAX_QP.into()),
            slot_of_qps: Map::new(),
            pages: Map::new(),
            used_pages: 0,
        }
    }

    /// Bytes of the memory of all send rings.
    #[must_use]
    pub fn llq_bytes(caps: &Caps) -> u64 {
        u64::from(Caps::MAX_QP) * u64::from(caps.max_llq)
    }
}

impl Front<Device> for Function {
    fn deliver(&mut self, device: &mut Device) {
        self.post_notices(device);
    }

    fn is_in_vm(&self) -> bool {
        true
    }
}
