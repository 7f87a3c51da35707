// SPDX-License-Identifier: MIT OR Apache-2.0
//! The PCI function, its registers, and the doorbells.
//!
//! The driver reads a register by a request to [`EFA_REGS_MMIO_REG_READ_OFF`], whose answer the device writes to memory. The doorbell of a
//! send or receive queue is a word of 32 bits: the number of entries posted since the queue was created, modulo 65536. Facts from
//! `efa_regs_defs.h` of the kernel's driver, `efa_io_regs_defs.h` of rdma-core's provider, and those named.

use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// PCI vendor: Amazon. `linux/pci_ids.h`.
    #[c = ""]
    pub const PCI_VENDOR_ID_AMAZON: u16 = 0x1d0f;
    /// PCI device: the first generation, without RDMA write. `efa_main.c`.
    #[c = ""]
    pub const PCI_DEV_ID_EFA0_VF: u16 = 0xefa0;
    /// PCI device: the second generation. `efa_main.c`.
    #[c = ""]
    pub const PCI_DEV_ID_EFA1_VF: u16 = 0xefa1;
    /// PCI device: the third generation. `efa_main.c`.
    #[c = ""]
    pub const PCI_DEV_ID_EFA2_VF: u16 = 0xefa2;
    /// PCI device: the fourth generation. `efa_main.c`.
    #[c = ""]
    pub const PCI_DEV_ID_EFA3_VF: u16 = 0xefa3;
    /// PCI device: the fifth generation. `efa.c` of rdma-core's provider.
    #[c = ""]
    pub const PCI_DEV_ID_EFA4_VF: u16 = 0xefa4;
    /// BAR of the registers. `efa_main.c`.
    #[c = ""]
    pub const EFA_REG_BAR: u8 = 0;
    /// BAR of the send rings. `efa_main.c`.
    #[c = ""]
    pub const EFA_MEM_BAR: u8 = 2;

    /// The device was reset by its driver's start or end.
    pub const EFA_REGS_RESET_NORMAL: u32 = 0;
    /// No keep-alive event came.
    pub const EFA_REGS_RESET_KEEP_ALIVE_TO: u32 = 1;
    /// A command was not answered.
    pub const EFA_REGS_RESET_ADMIN_TO: u32 = 2;
    /// The driver could not start.
    pub const EFA_REGS_RESET_INIT_ERR: u32 = 3;
    /// The driver is in an invalid state.
    pub const EFA_REGS_RESET_DRIVER_INVALID_STATE: u32 = 4;
    /// The operating system requested it.
    pub const EFA_REGS_RESET_OS_TRIGGER: u32 = 5;
    /// The machine stops.
    pub const EFA_REGS_RESET_SHUTDOWN: u32 = 6;
    /// A user requested it.
    pub const EFA_REGS_RESET_USER_TRIGGER: u32 = 7;
    /// Other reasons.
    pub const EFA_REGS_RESET_GENERIC: u32 = 8;

    /// Version of the interface.
    pub const EFA_REGS_VERSION_OFF: u32 = 0x0;
    /// Version of the controller.
    pub const EFA_REGS_CONTROLLER_VERSION_OFF: u32 = 0x4;
    /// Capabilities.
    pub const EFA_REGS_CAPS_OFF: u32 = 0x8;
    /// Admin queue: address, low half.
    pub const EFA_REGS_AQ_BASE_LO_OFF: u32 = 0x10;
    /// Admin queue: address, high half.
    pub const EFA_REGS_AQ_BASE_HI_OFF: u32 = 0x14;
    /// Admin queue: size.
    pub const EFA_REGS_AQ_CAPS_OFF: u32 = 0x18;
    /// Admin completion queue: address, low half.
    pub const EFA_REGS_ACQ_BASE_LO_OFF: u32 = 0x20;
    /// Admin completion queue: address, high half.
    pub const EFA_REGS_ACQ_BASE_HI_OFF: u32 = 0x24;
    /// Admin completion queue: size and interrupt.
    pub const EFA_REGS_ACQ_CAPS_OFF: u32 = 0x28;
    /// Admin queue: doorbell.
    pub const EFA_REGS_AQ_PROD_DB_OFF: u32 = 0x2c;
    /// Queue of asynchronous events: size and interrupt.
    pub const EFA_REGS_AENQ_CAPS_OFF: u32 = 0x34;
    /// Queue of asynchronous events: address, low half.
    pub const EFA_REGS_AENQ_BASE_LO_OFF: u32 = 0x38;
    /// Queue of asynchronous events: address, high half.
    pub const EFA_REGS_AENQ_BASE_HI_OFF: u32 = 0x3c;
    /// Queue of asynchronous events: doorbell.
    pub const EFA_REGS_AENQ_CONS_DB_OFF: u32 = 0x40;
    /// Interrupts: mask.
    pub const EFA_REGS_INTR_MASK_OFF: u32 = 0x4c;
    /// Control of the device.
    pub const EFA_REGS_DEV_CTL_OFF: u32 = 0x54;
    /// State of the device.
    pub const EFA_REGS_DEV_STS_OFF: u32 = 0x58;
    /// Request to read a register.
    pub const EFA_REGS_MMIO_REG_READ_OFF: u32 = 0x5c;
    /// Address of the answers to these requests, low half.
    pub const EFA_REGS_MMIO_RESP_LO_OFF: u32 = 0x60;
    /// Address of the answers to these requests, high half.
    pub const EFA_REGS_MMIO_RESP_HI_OFF: u32 = 0x64;
    /// Event queues: doorbell.
    pub const EFA_REGS_EQ_DB_OFF: u32 = 0x68;

    /// Version: minor.
    pub const EFA_REGS_VERSION_MINOR_VERSION_MASK: u32 = 0xff;
    /// Version: major.
    pub const EFA_REGS_VERSION_MAJOR_VERSION_MASK: u32 = 0xff00;
    /// Controller's version: subminor.
    pub const EFA_REGS_CONTROLLER_VERSION_SUBMINOR_VERSION_MASK: u32 = 0xff;
    /// Controller's version: minor.
    pub const EFA_REGS_CONTROLLER_VERSION_MINOR_VERSION_MASK: u32 = 0xff00;
    /// Controller's version: major.
    pub const EFA_REGS_CONTROLLER_VERSION_MAJOR_VERSION_MASK: u32 = 0xff_0000;
    /// Controller's version: implementation.
    pub const EFA_REGS_CONTROLLER_VERSION_IMPL_ID_MASK: u32 = 0xff00_0000;
    /// Capabilities: queues must be contiguous.
    pub const EFA_REGS_CAPS_CONTIGUOUS_QUEUE_REQUIRED_MASK: u32 = 0x1;
    /// Capabilities: time of a reset, in units of 100 ms.
    pub const EFA_REGS_CAPS_RESET_TIMEOUT_MASK: u32 = 0x3e;
    /// Capabilities: bits of a DMA address.
    pub const EFA_REGS_CAPS_DMA_ADDR_WIDTH_MASK: u32 = 0xff00;
    /// Capabilities: time of a command, in units of 100 ms.
    pub const EFA_REGS_CAPS_ADMIN_CMD_TO_MASK: u32 = 0xf_0000;
    /// Admin queue: entries.
    pub const EFA_REGS_AQ_CAPS_AQ_DEPTH_MASK: u32 = 0xffff;
    /// Admin queue: bytes of an entry.
    pub const EFA_REGS_AQ_CAPS_AQ_ENTRY_SIZE_MASK: u32 = 0xffff_0000;
    /// Admin completion queue: entries.
    pub const EFA_REGS_ACQ_CAPS_ACQ_DEPTH_MASK: u32 = 0xffff;
    /// Admin completion queue: bytes of an entry.
    pub const EFA_REGS_ACQ_CAPS_ACQ_ENTRY_SIZE_MASK: u32 = 0xff_0000;
    /// Admin completion queue: interrupt vector.
    pub const EFA_REGS_ACQ_CAPS_ACQ_MSIX_VECTOR_MASK: u32 = 0xff00_0000;
    /// Queue of asynchronous events: entries.
    pub const EFA_REGS_AENQ_CAPS_AENQ_DEPTH_MASK: u32 = 0xffff;
    /// Queue of asynchronous events: bytes of an entry.
    pub const EFA_REGS_AENQ_CAPS_AENQ_ENTRY_SIZE_MASK: u32 = 0xff_0000;
    /// Queue of asynchronous events: interrupt vector.
    pub const EFA_REGS_AENQ_CAPS_AENQ_MSIX_VECTOR_MASK: u32 = 0xff00_0000;
    /// Interrupts: enabled.
    pub const EFA_REGS_INTR_MASK_EN_MASK: u32 = 0x1;
    /// Control: reset the device.
    pub const EFA_REGS_DEV_CTL_DEV_RESET_MASK: u32 = 0x1;
    /// Control: restart the admin queue.
    pub const EFA_REGS_DEV_CTL_AQ_RESTART_MASK: u32 = 0x2;
    /// Control: reason of the reset, `EFA_REGS_RESET_*`.
    pub const EFA_REGS_DEV_CTL_RESET_REASON_MASK: u32 = 0xf000_0000;
    /// State: ready.
    pub const EFA_REGS_DEV_STS_READY_MASK: u32 = 0x1;
    /// State: the admin queue is being restarted.
    pub const EFA_REGS_DEV_STS_AQ_RESTART_IN_PROGRESS_MASK: u32 = 0x2;
    /// State: the admin queue is restarted.
    pub const EFA_REGS_DEV_STS_AQ_RESTART_FINISHED_MASK: u32 = 0x4;
    /// State: a reset has begun.
    pub const EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK: u32 = 0x8;
    /// State: a reset has ended.
    pub const EFA_REGS_DEV_STS_RESET_FINISHED_MASK: u32 = 0x10;
    /// State: the device has failed.
    pub const EFA_REGS_DEV_STS_FATAL_ERROR_MASK: u32 = 0x20;
    /// Request to read a register: its number.
    pub const EFA_REGS_MMIO_REG_READ_REQ_ID_MASK: u32 = 0xffff;
    /// Request to read a register: the register's offset.
    pub const EFA_REGS_MMIO_REG_READ_REG_OFF_MASK: u32 = 0xffff_0000;
    /// Doorbell of an EQ: the EQ.
    pub const EFA_REGS_EQ_DB_EQN_MASK: u32 = 0xffff;
    /// Doorbell of an EQ: interrupt at the next event.
    pub const EFA_REGS_EQ_DB_ARM_MASK: u32 = 0x8000_0000;

    /// Doorbell of a CQ: completions consumed.
    pub const EFA_IO_REGS_CQ_DB_CONSUMER_INDEX_MASK: u32 = 0xffff;
    /// Doorbell of a CQ: number of the events that the driver has taken, modulo 4.
    pub const EFA_IO_REGS_CQ_DB_CMD_SN_MASK: u32 = 0x6000_0000;
    /// Doorbell of a CQ: event at the next completion.
    pub const EFA_IO_REGS_CQ_DB_ARM_MASK: u32 = 0x8000_0000;
}

abi_structs! {
    /// Where the device writes the value of a register that the driver requested by [`EFA_REGS_MMIO_REG_READ_OFF`].
    #[c = "struct efa_admin_mmio_req_read_less_resp"]
    pub struct MmioReqReadLessResp: 8 {
        /// Number of the request.
        pub req_id: u16 = 0,
        /// Offset of the register.
        pub reg_off: u16 = 2,
        /// Its value.
        pub reg_val: u32 = 4,
    }
}

/// The word of a CQ's doorbell, as the driver writes it and the device reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqDoorbell {
    /// Completions consumed, of all sub-CQs, modulo 65536.
    pub consumer_index: u16,
    /// Events that the driver has taken, modulo 4.
    pub cmd_sn: u8,
    /// Request an event.
    pub arm: bool,
}

impl CqDoorbell {
    /// The word; the sequence number is cut to 2 bits.
    #[inline]
    pub const fn pack(self) -> u32 {
        self.consumer_index as u32 | (self.cmd_sn as u32 & 3) << 29 | (self.arm as u32) << 31
    }

    /// The parts of a word.
    #[inline]
    pub const fn unpack(word: u32) -> Self {
        Self { consumer_index: word as u16, cmd_sn: (word >> 29 & 3) as u8, arm: word >> 31 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doorbell_of_a_completion_queue_has_these_bits() {
        let doorbell = CqDoorbell { consumer_index: 0x1234, cmd_sn: 6, arm: true };
        assert_eq!(doorbell.pack(), 0xc000_1234);
        assert_eq!(CqDoorbell::unpack(0xc000_1234), CqDoorbell { cmd_sn: 2, ..doorbell });
        assert_eq!(
            CqDoorbell { consumer_index: 0, cmd_sn: 1, arm: false }.pack(),
            EFA_IO_REGS_CQ_DB_CMD_SN_MASK & 0x2000_0000
        );
    }
}
