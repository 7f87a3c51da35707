// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbell registers: a page mapped from the device, or calls into a software device of the same process.
//!
//! A NIC's doorbells are memory-mapped; a driver writes them by volatile stores with the barriers that its hardware
//! needs. A software device gets each write as a call, immediately and in order, so it need not poll memory for
//! doorbells, and two runs with one seed are identical. The kind of a page is determined when it is mapped, so the cost
//! is one predictable branch for each doorbell and none for a WR.
#![expect(unsafe_code)]
// UNSAFETY: stores to the address of a register, which any thread may use.

use super::{Kernel, Mapping, Protection, page_size};
use crate::errno::Errno;
use crate::error::Error;
use crate::sync::barrier;
use crate::sync::burst::Copies;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

/// A software device's doorbell page. The bytes are those that a device would see on the bus, in address order.
///
/// A call runs on the thread that rings and may execute work requests before it returns. It must neither panic nor
/// call back into the queue that rings.
pub trait DoorbellPort: Send + Sync + fmt::Debug {
    /// One 8-byte register write at `offset` into the page.
    fn ring(&self, offset: u32, value: [u8; 8]);

    /// One 4-byte register write at `offset` into the page. A device without such registers gets it as 8 bytes, of which the last
    /// are 0.
    fn ring_word(&self, offset: u32, value: [u8; 4]) {
        let [a, b, c, d] = value;
        self.ring(offset, [a, b, c, d, 0, 0, 0, 0]);
    }

    /// A write-combined burst at `offset`: a WQE by BlueFlame, a multiple of 64 bytes.
    fn blueflame(&self, offset: u32, wqe: &[u8]);

    /// The page as memory, for a program that writes doorbells itself: the device takes stores of 8 bytes there as register
    /// writes, some time after they were made. Every call returns the same page. `None` if the device has no such memory.
    fn registers(&self) -> Option<Registers> {
        None
    }
}

/// A mapping that can be written, as registers are.
#[derive(Clone, Debug)]
pub struct Registers(Arc<Mapping>);

impl Registers {
    /// The registers of a mapping; `None` if it is read-only.
    #[must_use]
    pub fn new(mapping: Arc<Mapping>) -> Option<Self> {
        mapping.is_writable().then_some(Self(mapping))
    }
}

impl Deref for Registers {
    type Target = Arc<Mapping>;

    fn deref(&self) -> &Arc<Mapping> {
        &self.0
    }
}

/// A page of doorbell registers.
#[derive(Clone)]
pub enum DoorbellPage {
    /// Registers of a device, mapped write-combining or uncached. They are only written.
    Mapped(Registers),
    /// Registers of a software device.
    Port(Arc<dyn DoorbellPort>),
}

impl DoorbellPage {
    /// Maps the page as registers, as [`Kernel::doorbells`] does for a real device.
    ///
    /// # Errors
    /// The kernel's errno; `EINVAL` if it mapped less than requested, or not for writing.
    pub fn map<K: Kernel + ?Sized>(kernel: &K, offset: u64, len: usize) -> Result<Self, Errno> {
        let mapping = kernel.mmap(offset, len, Protection::ReadWrite)?;
        if mapping.len() < len {
            return Err(Errno::EINVAL);
        }
        Registers::new(Arc::new(mapping)).map(Self::Mapped).ok_or(Errno::EINVAL)
    }

    /// The page as memory, which a program may write itself; `None` if a software device has no such memory.
    #[must_use]
    pub fn registers(&self) -> Option<Registers> {
        match self {
            Self::Mapped(registers) => Some(registers.clone()),
            Self::Port(port) => port.registers(),
        }
    }
}

/// Registers of a [`DoorbellPage`], by which one object rings.
pub enum Register {
    /// Mapped from a device.
    Mapped(MappedRegister),
    /// Registers of a software device, with the offset of the first one in the page.
    Port(Arc<dyn DoorbellPort>, u32),
}

/// The address of a mapped register, and its mapping.
pub struct MappedRegister {
    address: NonNull<u8>,
    _registers: Registers,
}

// SAFETY: the address is that of a register in a mapping that this value keeps; it may be used by any thread.
unsafe impl Send for MappedRegister {}
// SAFETY: `&MappedRegister` only allows the address to be read.
unsafe impl Sync for MappedRegister {}

impl MappedRegister {
    /// The address. It has as many bytes as [`Register::new`] was called with, with its alignment, as long as this value exists.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Register {
    /// The registers from `offset` on; `None` if `len` bytes are not inside the page, or not aligned.
    #[must_use]
    pub fn new(page: &DoorbellPage, offset: u32, len: u32, align: u32) -> Option<Self> {
        if !offset.is_multiple_of(align) {
            return None;
        }
        Some(match page {
            DoorbellPage::Mapped(registers) => {
                let address = registers.part(offset as usize, len as usize, 1, align as usize).ok()?;
                Self::Mapped(MappedRegister { address, _registers: registers.clone() })
            }
            DoorbellPage::Port(port) => Self::Port(Arc::clone(port), offset),
        })
    }

    /// The address, if they are mapped.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn address(&self) -> Option<NonNull<u8>> {
        match self {
            Self::Mapped(register) => Some(register.address),
            Self::Port(..) => None,
        }
    }
}

/// What a [`WordRegister`] takes: 4 or 8 bytes.
pub trait RegisterWord: Copy {
    /// Rings a software device with the bytes as they are on the bus.
    fn ring(self, port: &dyn DoorbellPort, offset: u32);
}

impl RegisterWord for u32 {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring(self, port: &dyn DoorbellPort, offset: u32) {
        port.ring_word(offset, self.to_ne_bytes());
    }
}

impl RegisterWord for u64 {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn ring(self, port: &dyn DoorbellPort, offset: u32) {
        port.ring(offset, self.to_ne_bytes());
    }
}

/// A register that takes stores of a word.
///
/// # Invariant
/// The register has as many bytes as the word, with their alignment.
#[derive(Debug)]
pub struct WordRegister<W>(Register, PhantomData<W>);

impl<W: RegisterWord> WordRegister<W> {
    /// The register at `offset`; `None` if it is not inside the page, or not aligned.
    #[must_use]
    pub fn new(page: &DoorbellPage, offset: u32) -> Option<Self> {
        let size = size_of::<W>() as u32;
        Register::new(page, offset, size, size).map(|register| Self(register, PhantomData))
    }

    /// Maps the page at `key`, in which the register is at `offset`.
    ///
    /// # Errors
    /// The errno of the kernel; [`Error::Protocol`] if the register is not inside the page, or not aligned.
    pub fn map(kernel: &dyn Kernel, verb: &'static str, key: u64, offset: u32) -> Result<Self, Error> {
        let refused = |errno| Error::os(verb, format!("doorbell of {}", kernel.name()), errno);
        let page = kernel.doorbells(key, page_size() as usize).map_err(refused)?;
        let wrong = || Error::protocol(verb, format!("a doorbell at offset {offset:#x} of its page"));
        Self::new(&page, offset).ok_or_else(wrong)
    }

    /// The address of the register; `None` for that of a software device.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn address(&self) -> Option<NonNull<W>> {
        self.0.address().map(NonNull::cast)
    }

    /// Whether it is a register, not a software device's.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.0.address().is_some()
    }

    /// Stores a word, in no order with other stores.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn store(&self, word: W) {
        match &self.0 {
            // SAFETY: a register that is mapped, and aligned (invariant).
            Register::Mapped(register) => unsafe { register.address().cast().write_volatile(word) },
            Register::Port(port, offset) => word.ring(&**port, *offset),
        }
    }

    /// Stores after copies to write-combining memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn ring_after_copies(&self, _: Copies, word: W) {
        barrier::write_combining_flush();
        self.store(word);
    }

    /// As [`ring_after_copies`](Self::ring_after_copies), if it [is a register](Self::is_mapped). It calls no function.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn ring_register(&self, copies: Copies, word: W) {
        if self.is_mapped() {
            self.ring_after_copies(copies, word);
        }
    }

    /// As [`ring_after_copies`](Self::ring_after_copies), and begins the next copies.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn ring_between_copies(&self, copies: &mut Copies, word: W) {
        self.ring_after_copies(copies.last(), word);
        *copies = Copies::start();
    }

    /// Stores after stores to memory.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn ring_after_stores(&self, word: W) {
        barrier::to_device();
        self.store(word);
    }

    /// Stores after loads of completions, whose places the device may write again.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn ring_after_loads(&self, word: W) {
        barrier::release_to_device();
        self.store(word);
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(register) => f.debug_tuple("Mapped").field(&register.address).finish(),
            Self::Port(port, offset) => f.debug_tuple("Port").field(port).field(offset).finish(),
        }
    }
}

impl fmt::Debug for DoorbellPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(mapping) => f.debug_tuple("Mapped").field(mapping).finish(),
            Self::Port(port) => f.debug_tuple("Port").field(port).finish(),
        }
    }
}
