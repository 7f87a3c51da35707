// SPDX-License-Identifier: MIT OR Apache-2.0
//! PCI configuration space: identity, BARs, MSI-X, PCI Express.

/// A range of addresses of a function: memory, 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its number: 0, 2 or 4, because each takes the register of the next one, too.
    pub index: u8,
    /// Its size, a power of two from 4096 on.
    pub bytes: u64,
    /// Whether reads have no effect.
    pub prefetchable: bool,
}

/// What a VM sees of a function before it uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Vendor and device.
    pub id: (u16, u16),
    /// Vendor and device of the subsystem.
    pub subsystem: (u16, u16),
    /// Class, subclass and programming interface.
    pub class: u32,
    /// The BARs.
    pub bars: Vec<Bar>,
    /// MSI-X vectors.
    pub vectors: u16,
    /// The BAR of the vectors' table and pending bits, with the offset of each. QEMU emulates them, and the device does not read them.
    pub table: (u8, u32, u32),
}

/// Bytes of the configuration space of a PCI Express function.
pub(crate) const CONFIG_BYTES: u64 = 4096;

/// Capabilities, by offset.
const EXPRESS: u8 = 0x60;
const MSI_X: u8 = 0xa0;

/// Registers that software may write, as (offset, mask of the bits) by byte.
const WRITABLE: [(usize, u8); 7] = [
    // Command: memory, bus master, parity, SERR, INTx disable.
    (0x04, 0x46),
    (0x05, 0x05),
    (0x0c, 0xff),
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
    /// The bits that may be written.
    masks: Vec<u8>,
}

impl Config {
    pub(crate) fn new(layout: &Layout) -> Self {
        let zeros = vec![0; CONFIG_BYTES as usize];
        let mut config = Self { bytes: zeros.clone(), masks: zeros };
        config.put(0x00, &layout.id.0.to_le_bytes());
        config.put(0x02, &layout.id.1.to_le_bytes());
        // Status: there is a list of capabilities.
        config.put(0x06, &0x0010_u16.to_le_bytes());
        config.put(0x08, &(layout.class << 8).to_le_bytes());
        config.put(0x2c, &layout.subsystem.0.to_le_bytes());
        config.put(0x2e, &layout.subsystem.1.to_le_bytes());
        config.put(0x34, &[EXPRESS]);
        for (at, mask) in WRITABLE {
            config.masks[at] = mask;
        }
        for bar in &layout.bars {
            let at = 0x10 + 4 * usize::from(bar.index);
            // Memory, 64 bits. The bits below its size are fixed, which tells the size.
            config.put(at, &[if bar.prefetchable { 0x0c } else { 0x04 }]);
            let mask = !(bar.bytes - 1);
            config.masks[at..at + 8].copy_from_slice(&mask.to_le_bytes());
        }
        // PCI Express capability, version 2, endpoint; 8 GT/s x8; payload up to 256 bytes.
        let express = usize::from(EXPRESS);
        config.put(express, &[0x10, MSI_X, 0x02, 0x00]);
        config.put(express + 4, &0x0000_8001_u32.to_le_bytes());
        config.put(express + 12, &0x0000_0083_u32.to_le_bytes());
        config.put(express + 18, &0x0083_u16.to_le_bytes());
        // MSI-X capability: table size, table and pending bits with the number of their BAR.
        let msix = usize::from(MSI_X);
        let (bar, table, pending) = layout.table;
        config.put(msix, &[0x11, 0x00]);
        config.put(msix + 2, &(layout.vectors - 1).to_le_bytes());
        config.put(msix + 4, &(table | u32::from(bar)).to_le_bytes());
        config.put(msix + 8, &(pending | u32::from(bar)).to_le_bytes());
        config
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
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
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(i), self.masks.get(i)) {
                *byte = *byte & !mask | value & mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            id: (0x1d0f, 0xefa2),
            subsystem: (0x1d0f, 1),
            class: 0x02_0000,
            bars: [(0, 1 << 13, false), (2, 1 << 27, true), (4, 1 << 40, false)]
                .map(|(index, bytes, prefetchable)| Bar { index, bytes, prefetchable })
                .to_vec(),
            vectors: 33,
            table: (0, 0x1000, 0x1800),
        }
    }

    #[test]
    fn bars_report_their_sizes_as_pci_requires() {
        let mut config = Config::new(&layout());
        config.write(0x10, &[0xff; 24]);
        for bar in layout().bars {
            let mut bytes = [0; 8];
            config.read(0x10 + 4 * u64::from(bar.index), &mut bytes);
            let value = u64::from_le_bytes(bytes);
            assert_eq!(value & 0xf, if bar.prefetchable { 0xc } else { 0x4 });
            assert_eq!(!(value & !0xf) + 1, bar.bytes);
        }
    }

    #[test]
    fn only_writable_registers_can_be_written() {
        let mut config = Config::new(&layout());
        let mut before = vec![0; CONFIG_BYTES as usize];
        config.read(0, &mut before);
        config.write(0, &[0; 4]);
        config.write(CONFIG_BYTES - 1, &[1; 8]);
        config.write(u64::MAX, &[1]);
        let mut after = vec![0; CONFIG_BYTES as usize];
        config.read(0, &mut after);
        assert_eq!(before, after);
        assert_eq!((after[0xa2], after[0xa4], after[0xa5], after[0xa9]), (32, 0, 0x10, 0x18));
    }
}
