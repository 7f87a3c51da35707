// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for the device: one [`Memory`] per registration (a region, a queue, a doorbell record), addressed by offset
//! from its start.
//!
//! The engine has no other access to memory, so the same engine works with a process (here) or with a guest's page
//! lists.

use crate::process::Mapped;
use core::fmt;
use std::sync::Arc;

/// Bytes that are copied at a time through a buffer.
const BUFFER: usize = 4096;

/// An access outside of the registered range, or a misaligned one where alignment is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an access outside of the registered memory")
    }
}

impl core::error::Error for Fault {}

/// One registered range. The program and other devices read and write it at any time.
#[expect(clippy::len_without_is_empty, reason = "a range may be empty, but no code checks that")]
pub trait Memory: Send + Sync + fmt::Debug {
    /// Bytes in the range.
    fn len(&self) -> u64;

    /// The address of the byte at `offset` for programs of this process, if it has one.
    fn address(&self, offset: u64) -> Option<u64> {
        let _ = offset;
        None
    }

    /// Whether accesses have an effect on later ones: then each takes place at once, in every mode of order.
    fn is_at_once(&self) -> bool {
        false
    }

    /// Copies out `to.len()` bytes at `offset`.
    ///
    /// # Errors
    /// The bytes are not all inside.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// Copies out `len` bytes at `offset`, behind those that `to` has.
    ///
    /// # Errors
    /// The bytes are not all inside. Then `to` may have more bytes than before.
    fn append(&self, offset: u64, len: usize, to: &mut Vec<u8>) -> Result<(), Fault> {
        let at = to.len();
        to.resize(at + len, 0);
        self.read(offset, &mut to[at..])
    }

    /// Copies in `from` at `offset`.
    ///
    /// # Errors
    /// The bytes are not all inside.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault>;

    /// `len` bytes at `offset`, if they are memory that is mapped in this process as long as this value lives, so that no access to them
    /// fails.
    fn mapped(&self, offset: u64, len: usize) -> Option<Mapped<'_>> {
        let _ = (offset, len);
        None
    }

    /// Copies in mapped memory at `offset`.
    ///
    /// # Errors
    /// The bytes are not all inside. Then some may have been copied.
    fn write_mapped(&self, offset: u64, from: Mapped<'_>) -> Result<(), Fault> {
        let (mut buffer, mut done) = ([0; BUFFER], 0);
        while done < from.len() {
            let part = &mut buffer[..(from.len() - done).min(BUFFER)];
            from.read(done, part)?;
            self.write(offset.checked_add(done as u64).ok_or(Fault)?, part)?;
            done += part.len();
        }
        Ok(())
    }

    /// Atomically replaces the 8-byte word (host order) at `offset` with the result of `f`, and returns the old value.
    /// `f` may be called more than once.
    ///
    /// # Errors
    /// The word is not inside or not aligned.
    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault>;

    /// Loads the big-endian 4-byte word at `offset`, with acquire ordering: stores that its writer made before are
    /// visible afterwards.
    ///
    /// # Errors
    /// The word is not inside or not aligned.
    fn load_be32(&self, offset: u64) -> Result<u32, Fault>;

    /// Stores 8 bytes at `offset`, with release ordering: a reader that loads them also sees all earlier writes.
    ///
    /// # Errors
    /// The bytes are not inside or not aligned.
    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault>;

    /// Copies in an entry at `offset`, and its last 8 bytes at once, after the others, as [`publish`](Self::publish) does.
    ///
    /// # Errors
    /// The bytes are not inside, or the last 8 are not aligned. Then some may have been copied.
    fn write_entry(&self, offset: u64, entry: &[u8]) -> Result<(), Fault> {
        let (first, last) = entry.split_last_chunk().ok_or(Fault)?;
        self.write(offset, first)?;
        self.publish(offset.checked_add(first.len() as u64).ok_or(Fault)?, *last)
    }
}

/// A part of a registration: a ring, or the doorbell record of a queue.
#[derive(Clone, Debug)]
pub struct Area {
    memory: Arc<dyn Memory>,
    base: u64,
    len: u64,
}

impl Area {
    /// `len` bytes at `base` of `memory`; `None` if they are not all inside.
    #[must_use]
    pub fn new(memory: Arc<dyn Memory>, base: u64, len: u64) -> Option<Self> {
        (base.checked_add(len)? <= memory.len()).then_some(Self { memory, base, len })
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u64 {
        self.len
    }

    #[inline]
    fn at(&self, offset: u64, len: u64) -> Result<u64, Fault> {
        let end = offset.checked_add(len).ok_or(Fault)?;
        if end <= self.len { Ok(self.base + offset) } else { Err(Fault) }
    }

    /// As [`Memory::read`].
    ///
    /// # Errors
    /// The bytes are not all inside.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.memory.read(self.at(offset, to.len() as u64)?, to)
    }

    /// As [`Memory::write`].
    ///
    /// # Errors
    /// The bytes are not all inside.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.memory.write(self.at(offset, from.len() as u64)?, from)
    }

    /// As [`Memory::update`].
    ///
    /// # Errors
    /// The word is not inside or not aligned.
    pub fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.memory.update(self.at(offset, 8)?, f)
    }

    /// As [`Memory::load_be32`].
    ///
    /// # Errors
    /// The word is not inside or not aligned.
    #[inline]
    pub fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.memory.load_be32(self.at(offset, 4)?)
    }

    /// As [`Memory::publish`].
    ///
    /// # Errors
    /// The bytes are not inside or not aligned.
    pub fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.memory.publish(self.at(offset, 8)?, bytes)
    }

    /// As [`Memory::write_entry`].
    ///
    /// # Errors
    /// The bytes are not inside, or the last 8 are not aligned.
    #[inline]
    pub fn write_entry(&self, offset: u64, entry: &[u8]) -> Result<(), Fault> {
        self.memory.write_entry(self.at(offset, entry.len() as u64)?, entry)
    }

    /// Reads `to.len()` bytes of a ring from `offset` on, and continues at its beginning after its end.
    ///
    /// # Errors
    /// There are more than the ring has.
    pub fn read_wrapped(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        if self.len == 0 || to.len() as u64 > self.len {
            return Err(Fault);
        }
        let offset = offset % self.len;
        let first = usize::try_from(self.len - offset).unwrap_or(usize::MAX).min(to.len());
        let (head, tail) = to.split_at_mut(first);
        self.read(offset, head)?;
        self.read(0, tail)
    }
}
