// SPDX-License-Identifier: MIT OR Apache-2.0
//! The location of the command queue, as the driver writes it to the initialization segment.

/// The location of the queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandQueue {
    pub(crate) addr: u64,
    /// The state of the interface, as the driver wrote it (`MLX5_NIC_IFC_*`).
    pub(crate) state: u8,
}

impl CommandQueue {
    pub(crate) fn set_high(&mut self, word: u32) {
        self.addr = self.addr & 0xffff_ffff | u64::from(word) << 32;
    }

    /// The low word: address, and the state of the interface in bits 9:8.
    pub(crate) fn set_low(&mut self, word: u32) {
        self.addr = self.addr & !0xffff_ffff | u64::from(word & 0xffff_f000);
        self.state = (word >> 8 & 3) as u8;
    }
}
