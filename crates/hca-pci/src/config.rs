// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI configuration space: identity, one BAR, MSI-X, PCI Express.

/// `PCI_VENDOR_ID_MELLANOX`
const VENDOR: u16 = 0x15b3;
/// ConnectX-6: a physical function that needs no feature of later devices (`mlx5_core_pci_table`).
const DEVICE: u16 = 0x101b;
/// Network controller, Ethernet; a ConnectX has this class on InfiniBand, too.
const CLASS: u32 = 0x02_0000;
/// Network controller, InfiniBand.
const CLASS_IB: u32 = 0x02_0700;

/// Bytes of BAR 0: the initialization segment and the pages of doorbells.
pub(crate) const BAR_BYTES: u64 = 32 << 20;
/// MSI-X vectors.
pub(crate) const VECTORS: u16 = 16;
/// Offset of the vectors' table and pending bits. QEMU emulates them, and the device does not read them.
const TABLE: u32 = 0x2000;
const PENDING: u32 = 0x3000;

/// Bytes of the configuration space of a PCI Express function.
pub(crate) const CONFIG_BYTES: u64 = 4096;

/// Capabilities, by offset.
const EXPRESS: u8 = 0x60;
const MSI_X: u8 = 0xa0;

/// Registers that software may write, as (offset, mask of the bits) by byte.
const WRITABLE: [(usize, u8); 12] = [
    // Command: memory, bus master, parity, SERR, INTx disable.
    (0x04, 0x46),
    (0x05, 0x05),
    (0x0c, 0xff),
    // BAR 0, whose low bits encode its size.
    (0x13, 0xfe),
    (0x14, 0xff),
    (0x15, 0xff),
    (0x16, 0xff),
    (0x17, 0xff),
    (0x3c, 0xff),
    // Device control of PCI Express.
    (EXPRESS as usize + 8, 0xff),
    (EXPRESS as usize + 9, 0x7f),
    // MSI-X: function mask and enable.
    (MSI_X as usize + 3, 0xc0),
];

/// The configuration space.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    bytes: Vec<u8>,
}

impl Config {
    pub(crate) fn new(ethernet: bool) -> Self {
        let mut config = Self { bytes: vec![0; CONFIG_BYTES as usize] };
        let class = if ethernet { CLASS } else { CLASS_IB };
        config.put(0x00, &VENDOR.to_le_bytes());
        config.put(0x02, &DEVICE.to_le_bytes());
        // Status: there is a list of capabilities.
        config.put(0x06, &0x0010_u16.to_le_bytes());
        config.put(0x08, &(class << 8).to_le_bytes());
        // BAR 0: memory, 64 bits, prefetchable.
        config.put(0x10, &[0x0c]);
        config.put(0x2c, &VENDOR.to_le_bytes());
        config.put(0x2e, &0x0001_u16.to_le_bytes());
        config.put(0x34, &[EXPRESS]);
        // PCI Express capability, version 2, endpoint; 8 GT/s x8; payload up to 256 bytes.
        let express = usize::from(EXPRESS);
        config.put(express, &[0x10, MSI_X, 0x02, 0x00]);
        config.put(express + 4, &0x0000_8001_u32.to_le_bytes());
        config.put(express + 12, &0x0000_0083_u32.to_le_bytes());
        config.put(express + 18, &0x0083_u16.to_le_bytes());
        // MSI-X capability: table size, table and pending bits in BAR 0.
        let msix = usize::from(MSI_X);
        config.put(msix, &[0x11, 0x00]);
        config.put(msix + 2, &(VECTORS - 1).to_le_bytes());
        config.put(msix + 4, &TABLE.to_le_bytes());
        config.put(msix + 8, &PENDING.to_le_bytes());
        config
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        uverbs_hca::bytes::put(&mut self.bytes, at, value);
    }

    /// Reads; bytes beyond the end are 0.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(start.saturating_add(i)).copied().unwrap_or(0);
        }
    }

    /// Writes the bits that may be written.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, value) in data.iter().enumerate() {
            let i = start.saturating_add(i);
            if let Some((_, mask)) = WRITABLE.iter().find(|(at, _)| *at == i) {
                self.bytes[i] = self.bytes[i] & !mask | value & mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_reports_its_size_as_pci_requires() {
        let mut config = Config::new(false);
        config.write(0x10, &[0xff; 8]);
        let mut bar = [0; 8];
        config.read(0x10, &mut bar);
        let value = u64::from_le_bytes(bar);
        assert_eq!(value & 0xf, 0xc);
        assert_eq!(!(value & !0xf) + 1, BAR_BYTES);
    }

    #[test]
    fn only_writable_registers_can_be_written() {
        let mut config = Config::new(true);
        let mut before = vec![0; CONFIG_BYTES as usize];
        config.read(0, &mut before);
        config.write(0, &[0; 4]);
        config.write(CONFIG_BYTES - 1, &[1; 8]);
        config.write(u64::MAX, &[1]);
        let mut after = vec![0; CONFIG_BYTES as usize];
        config.read(0, &mut after);
        assert_eq!(before, after);
    }
}
