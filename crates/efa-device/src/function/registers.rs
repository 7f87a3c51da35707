// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers and doorbells, and the reset.

use super::admin::{AdminQueue, ENTRY};
use super::events::EventRing;
use super::{CQ_BELL, Caps, Function, MAX_COMMANDS, PAGE, RQ_BELL, Registers, SQ_BELL};
use crate::device::{Device, Port};
use uverbs_efa_hw::regs::{
    EFA_REGS_ACQ_BASE_HI_OFF, EFA_REGS_ACQ_BASE_LO_OFF, EFA_REGS_ACQ_CAPS_OFF, EFA_REGS_AENQ_BASE_HI_OFF,
    EFA_REGS_AENQ_BASE_LO_OFF, EFA_REGS_AENQ_CAPS_OFF, EFA_REGS_AENQ_CONS_DB_OFF, EFA_REGS_AQ_BASE_HI_OFF,
    EFA_REGS_AQ_BASE_LO_OFF, EFA_REGS_AQ_CAPS_OFF, EFA_REGS_AQ_PROD_DB_OFF, EFA_REGS_CAPS_OFF,
    EFA_REGS_CONTROLLER_VERSION_OFF, EFA_REGS_DEV_CTL_DEV_RESET_MASK, EFA_REGS_DEV_CTL_OFF,
    EFA_REGS_DEV_STS_FATAL_ERROR_MASK, EFA_REGS_DEV_STS_OFF, EFA_REGS_DEV_STS_READY_MASK,
    EFA_REGS_DEV_STS_RESET_FINISHED_MASK, EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK, EFA_REGS_EQ_DB_ARM_MASK,
    EFA_REGS_EQ_DB_OFF, EFA_REGS_INTR_MASK_OFF, EFA_REGS_MMIO_REG_READ_OFF, EFA_REGS_MMIO_RESP_HI_OFF,
    EFA_REGS_MMIO_RESP_LO_OFF, EFA_REGS_VERSION_OFF, MmioReqReadLessResp,
};
use uverbs_fabric::map::Map;
use uverbs_fabric::numbers::Numbers;
use zerocopy::IntoBytes;

/// Version 0.1 of the interface, 0.0.1 of the controller: the least that the driver accepts (`efa_com_validate_version()`).
const VERSION: u32 = 1;
const CONTROLLER_VERSION: u32 = 1;
/// Capabilities: resets and commands take up to 3 s (units of 100 ms), addresses have 48 bits.
const CAPS: u32 = 30 << 1 | 48 << 8 | 15 << 16;

fn address([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl Function {
    /// The value of a register; 0 for those that are only written, and where there is none.
    #[must_use]
    pub fn read_register(&self, offset: u32) -> u32 {
        match offset {
            EFA_REGS_VERSION_OFF => VERSION,
            EFA_REGS_CONTROLLER_VERSION_OFF => CONTROLLER_VERSION,
            EFA_REGS_CAPS_OFF => CAPS,
            EFA_REGS_DEV_CTL_OFF => self.registers.dev_ctl,
            EFA_REGS_INTR_MASK_OFF => self.registers.intr_mask,
            EFA_REGS_DEV_STS_OFF => {
                let fatal = if self.has_failed { EFA_REGS_DEV_STS_FATAL_ERROR_MASK } else { 0 };
                let reset = match self.is_resetting {
                    true => EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK,
                    false => EFA_REGS_DEV_STS_RESET_FINISHED_MASK,
                };
                EFA_REGS_DEV_STS_READY_MASK | reset | fatal
            }
            _ => 0,
        }
    }

    /// The driver writes a register.
    pub fn write_register(&mut self, device: &mut Device, port: &mut Port<'_>, offset: u32, value: u32) {
        let registers = &mut self.registers;
        match offset {
            EFA_REGS_AQ_BASE_LO_OFF => registers.aq_base[0] = value,
            EFA_REGS_AQ_BASE_HI_OFF => registers.aq_base[1] = value,
            EFA_REGS_ACQ_BASE_LO_OFF => registers.acq_base[0] = value,
            EFA_REGS_ACQ_BASE_HI_OFF => registers.acq_base[1] = value,
            EFA_REGS_AENQ_BASE_LO_OFF => registers.aenq_base[0] = value,
            EFA_REGS_AENQ_BASE_HI_OFF => registers.aenq_base[1] = value,
            EFA_REGS_MMIO_RESP_LO_OFF => registers.mmio_resp[0] = value,
            EFA_REGS_MMIO_RESP_HI_OFF => registers.mmio_resp[1] = value,
            EFA_REGS_INTR_MASK_OFF => registers.intr_mask = value,
            EFA_REGS_AQ_CAPS_OFF => {
                registers.aq_caps = value;
                self.set_admin_queue();
            }
            EFA_REGS_ACQ_CAPS_OFF => {
                registers.acq_caps = value;
                self.set_admin_queue();
            }
            EFA_REGS_AENQ_CAPS_OFF => {
                registers.aenq_caps = value;
                let (base, depth) = (address(registers.aenq_base), ring(value, 16));
                self.aenq = EventRing { base, depth, ..EventRing::default() };
            }
            EFA_REGS_AENQ_CONS_DB_OFF => self.aenq.consumed = value,
            EFA_REGS_AQ_PROD_DB_OFF => self.take_commands(device, port, value as u16),
            EFA_REGS_EQ_DB_OFF if value & EFA_REGS_EQ_DB_ARM_MASK != 0 => self.arm_eq(value as u16),
            EFA_REGS_MMIO_REG_READ_OFF => {
                let (req_id, reg_off) = (value as u16, (value >> 16) as u16);
                let reg_val = self.read_register(reg_off.into());
                let resp = MmioReqReadLessResp { req_id, reg_off, reg_val };
                if let Ok(bytes) = <[u8; 8]>::try_from(resp.as_bytes()) {
                    // A driver that has set no address gets no answer.
                    let _ = self.bus.publish(address(self.registers.mmio_resp), bytes);
                }
            }
            EFA_REGS_DEV_CTL_OFF => {
                if value & EFA_REGS_DEV_CTL_DEV_RESET_MASK != 0 {
                    port.drain(device);
                    self.reset(device);
                } else {
                    self.is_resetting = false;
                }
                self.registers.dev_ctl = value;
            }
            _ => {}
        }
    }

    /// The admin queue has its size after both registers with sizes are written.
    fn set_admin_queue(&mut self) {
        let registers = &self.registers;
        // The entry's size has 16 bits in one register, and 8 bits in the other one.
        let (depth, completions) = (ring(registers.aq_caps, 16), ring(registers.acq_caps & 0xff_ffff, 16));
        if depth > MAX_COMMANDS {
            self.has_failed = true;
        } else if depth != 0 && completions != 0 {
            let ring =
                EventRing { base: address(registers.acq_base), depth: completions, ..EventRing::default() };
            self.admin = AdminQueue {
                base: address(registers.aq_base),
                depth: depth as u16,
                completions: ring,
                ..AdminQueue::default()
            };
        }
    }

    /// The state after a reset of the whole function, or after power was applied.
    pub fn power_up(&mut self, device: &mut Device, port: &mut Port<'_>) {
        port.drain(device);
        self.reset(device);
        (self.is_resetting, self.is_stopped) = (false, false);
    }

    /// A reset destroys all objects, and forgets what the driver has set.
    fn reset(&mut self, device: &mut Device) {
        device.reset();
        self.registers = Registers::default();
        (self.is_resetting, self.has_failed, self.groups) = (true, false, 0);
        (self.admin, self.aenq) = (AdminQueue::default(), EventRing::default());
        (self.eqs, self.eq_of_cqs, self.slot_of_qps, self.pages) =
            (Map::new(), Map::new(), Map::new(), Map::new());
        self.used_pages = 0;
        self.eq_numbers = Numbers::new(0..Caps::MAX_EQ.into());
        self.slots = Numbers::new(0..Caps::MAX_QP.into());
    }

    /// The driver writes a doorbell.
    pub fn write_doorbell(&mut self, device: &mut Device, port: &mut Port<'_>, offset: u64, value: u32) {
        let (page, at) = (offset / PAGE, offset % PAGE);
        let queues = u64::from(Caps::MAX_QP);
        if page < queues {
            let Some(qpn) = device.qpn_of_index(page as u16) else { return };
            match at {
                SQ_BELL => device.sq_doorbell(port, qpn, value),
                RQ_BELL => device.rq_doorbell(port, qpn, value),
                _ => {}
            }
        } else if at == CQ_BELL
            && let Ok(cq) = u16::try_from(page - queues)
        {
            device.cq_doorbell(port, cq, value);
        }
    }
}

/// The entries of a ring from a register with its size: the low half; 0 if the size of an entry in the high half is wrong.
fn ring(caps: u32, shift: u32) -> u32 {
    if (caps >> shift & 0xff) as usize == ENTRY { caps & 0xffff } else { 0 }
}
