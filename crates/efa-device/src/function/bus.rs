// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine as the function sees it: memory by address, and interrupts.

use core::fmt;
use std::sync::Arc;
use uverbs_fabric::memory::{Fault, Memory};

/// Memory and interrupts of the machine.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Copies out bytes at an address.
    ///
    /// # Errors
    /// There is no memory.
    fn read(&self, addr: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// Copies in bytes at an address.
    ///
    /// # Errors
    /// There is no memory.
    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Fault>;

    /// Stores 8 bytes at an address, after all earlier writes.
    ///
    /// # Errors
    /// There is no memory, or the address is no multiple of 8.
    fn publish(&self, addr: u64, bytes: [u8; 8]) -> Result<(), Fault>;

    /// Raises an interrupt of the function.
    fn interrupt(&self, vector: u8);
}

/// A part of the machine's memory: a number of pages, which need not be next to each other.
#[derive(Debug)]
pub(super) struct Pages {
    bus: Arc<dyn Bus>,
    pages: Vec<u64>,
    /// log2 of the page size.
    shift: u8,
    /// Where it begins in the first page.
    offset: u64,
    len: u64,
}

impl Pages {
    /// `len` bytes from `offset` in the first page on; `None` if the pages are not exactly as many as needed.
    pub(super) fn new(bus: &Arc<dyn Bus>, pages: Vec<u64>, shift: u8, offset: u64, len: u64) -> Option<Self> {
        let size = 1_u64.checked_shl(shift.into())?;
        let needed = offset.checked_add(len)?.div_ceil(size);
        let fits = offset < size && pages.len() as u64 == needed && pages.iter().all(|page| page % size == 0);
        fits.then(|| Self { bus: Arc::clone(bus), pages, shift, offset, len })
    }

    /// Memory next to each other.
    pub(super) fn contiguous(bus: &Arc<dyn Bus>, addr: u64, len: u64) -> Option<Self> {
        // One page that is as large as needed: the address need not be aligned.
        addr.checked_add(len)?;
        Some(Self { bus: Arc::clone(bus), pages: vec![addr], shift: 63, offset: 0, len })
    }

    /// Calls `f` with the address of each piece and the range of bytes that it has.
    fn each(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let end = offset.checked_add(len as u64).ok_or(Fault)?;
        if end > self.len {
            return Err(Fault);
        }
        let size = 1_u64 << self.shift;
        let (mut at, mut done) = (self.offset.checked_add(offset).ok_or(Fault)?, 0);
        while done < len {
            let index = usize::try_from(at >> self.shift).map_err(|_| Fault)?;
            let page = *self.pages.get(index).ok_or(Fault)?;
            let in_page = at % size;
            let n = usize::try_from(size - in_page).unwrap_or(usize::MAX).min(len - done);
            f(page.checked_add(in_page).ok_or(Fault)?, done..done + n)?;
            (at, done) = (at + n as u64, done + n);
        }
        Ok(())
    }
}

impl Memory for Pages {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.each(offset, to.len(), |addr, part| self.bus.read(addr, to.get_mut(part).ok_or(Fault)?))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.each(offset, from.len(), |addr, part| self.bus.write(addr, from.get(part).ok_or(Fault)?))
    }

    /// The device has no atomics.
    fn update(&self, _: u64, _: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        Err(Fault)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        let mut word = [0; 4];
        self.read(offset, &mut word)?;
        Ok(u32::from_be_bytes(word))
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.each(offset, 8, |addr, part| match part {
            core::ops::Range { start: 0, end: 8 } => self.bus.publish(addr, bytes),
            // An entry never crosses a page, because rings are aligned to their entries.
            _ => Err(Fault),
        })
    }
}
