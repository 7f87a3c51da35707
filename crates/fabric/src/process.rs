// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this process, accessed by address: memory that the in-process kernel registers, and mapped memory of a VM.
// UNSAFETY: a software device reads and writes memory by address, as a NIC does.
#![expect(unsafe_code)]

use crate::memory::{Fault, Memory};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use uverbs_core::sync::copy::{copy_shared, load_bytes, load_uninit, store_bytes};

const WORD: usize = size_of::<u64>();

/// A registered range of this process's memory.
///
/// Other threads of the program access the memory at the same time, as with a NIC, and no Rust reference to it exists, except to
/// atomics. Concurrent atomic accesses of two sizes to the same bytes are undefined behaviour, so each access has the size that
/// the program uses for the same bytes: 4 bytes for a doorbell record; 8 bytes for a word of an RDMA atomic, and for the last word of
/// a completion. Data are copied by machine instructions ([`uverbs_core::sync::copy`]), which have no size in Rust's memory
/// model.
///
/// # Invariants
/// `len` bytes at `base` are readable, and writable if the device may write to them, until it is dropped.
#[derive(Debug)]
pub struct ProcessRange {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the range is memory of the process that any thread may access (invariant), by atomics only.
unsafe impl Send for ProcessRange {}
// SAFETY: the range is memory of the process that any thread may access (invariant), by atomics only; no access needs
// exclusion.
unsafe impl Sync for ProcessRange {}

impl ProcessRange {
    /// The range of `len` bytes at `addr`; `None` if it wraps around the address space or starts at 0.
    ///
    /// # Safety
    /// Until the value is dropped, the range is mapped, readable, and writable if the device may write to it. The
    /// device's accesses do not conflict with Rust references: there is no shared reference to memory that is written,
    /// and no exclusive one to memory that is accessed.
    #[must_use]
    pub unsafe fn new(addr: u64, len: u64) -> Option<Self> {
        addr.checked_add(len)?;
        let (addr, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
        let base = if len == 0 {
            NonNull::dangling()
        } else {
            NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(addr))?
        };
        Some(Self { base, len })
    }

    /// The offset of `len` bytes; checks that they are inside the range.
    fn check(&self, offset: u64, len: usize) -> Result<usize, Fault> {
        let offset = usize::try_from(offset).map_err(|_| Fault)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(offset),
            _ => Err(Fault),
        }
    }

    fn aligned(&self, offset: u64, size: usize) -> Result<usize, Fault> {
        let at = self.check(offset, size)?;
        if (self.base.as_ptr().addr() + at).is_multiple_of(size) { Ok(at) } else { Err(Fault) }
    }

    /// # Safety
    /// `at + 8 <= self.len`, and the address is a multiple of 8.
    unsafe fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside of the range (the contract of this function), so the sum does not leave the allocation.
        let ptr = unsafe { self.base.add(at) };
        // SAFETY: mapped (the invariant), aligned (the contract of this function); accessed atomically, or by code that
        // is not part of the Rust program.
        unsafe { ptr.cast::<AtomicU64>().as_ref() }
    }

    /// # Safety
    /// `at + 4 <= self.len`, and the address is a multiple of 4.
    unsafe fn half(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside of the range (the contract of this function), so the sum does not leave the allocation.
        let ptr = unsafe { self.base.add(at) };
        // SAFETY: mapped (the invariant), aligned (the contract of this function); accessed atomically, or by code that
        // is not part of the Rust program.
        unsafe { ptr.cast::<AtomicU32>().as_ref() }
    }
}

/// Mapped memory of this process, which other threads may access at the same time.
///
/// # Invariants
/// `len` bytes at `base` are mapped and readable during the lifetime, and no exclusive reference to them exists.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<'a> {
    base: NonNull<u8>,
    len: usize,
    life: PhantomData<&'a ()>,
}

#[expect(clippy::len_without_is_empty, reason = "no code checks that")]
impl Mapped<'_> {
    /// `len` bytes at `base`.
    ///
    /// # Safety
    /// During the lifetime they are mapped and readable, and no exclusive reference to them exists.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, life: PhantomData }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Copies out `to.len()` bytes at `offset`.
    ///
    /// # Errors
    /// The bytes are not all inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        if offset.checked_add(to.len()).is_none_or(|end| end > self.len) {
            return Err(Fault);
        }
        // SAFETY: inside of the range, as checked, so the sum does not leave the allocation.
        let from = unsafe { self.base.add(offset) };
        // SAFETY: `to.len()` bytes from there on are inside, mapped and readable, and no exclusive reference exists (the invariant).
        unsafe { load_bytes(from.as_ptr(), to) };
        Ok(())
    }

    /// The part of `len` bytes at `offset`; `None` if it is not inside.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        offset.checked_add(len).filter(|end| *end <= self.len)?;
        // SAFETY: inside of the range, as checked, so the sum does not leave the allocation.
        let base = unsafe { self.base.add(offset) };
        // SAFETY: a part of the range has its invariant.
        Some(unsafe { Self::new(base, len) })
    }

    /// Whether it has a byte of the `len` bytes at `to`.
    fn meets(&self, to: NonNull<u8>, len: usize) -> bool {
        let (from, to) = (self.base.as_ptr().addr(), to.as_ptr().addr());
        from.max(to) - from.min(to) < if from < to { self.len } else { len }
    }
}

impl Memory for ProcessRange {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn address(&self, offset: u64) -> Option<u64> {
        (self.base.as_ptr().addr() as u64).checked_add(offset)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let at = self.check(offset, to.len())?;
        // SAFETY: `check` covered `to.len()` bytes at `at`, which are inside the range.
        let from = unsafe { self.base.add(at) };
        // SAFETY: mapped and readable (the invariant); no exclusive reference to the memory exists (the contract of `new`).
        unsafe { load_bytes(from.as_ptr(), to) };
        Ok(())
    }

    fn append(&self, offset: u64, len: usize, to: &mut Vec<u8>) -> Result<(), Fault> {
        let at = self.check(offset, len)?;
        // SAFETY: `check` covered `len` bytes at `at`, which are inside the range.
        let from = unsafe { self.base.add(at) };
        to.reserve(len);
        let place = &mut to.spare_capacity_mut()[..len];
        // SAFETY: mapped and readable (the invariant); no exclusive reference to the memory exists (the contract of `new`).
        unsafe { load_uninit(from.as_ptr(), place) };
        let end = to.len() + len;
        // SAFETY: room for them was reserved, and the copy initialised the bytes behind the old length.
        unsafe { to.set_len(end) };
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let at = self.check(offset, from.len())?;
        // SAFETY: `check` covered `from.len()` bytes at `at`, which are inside the range.
        let to = unsafe { self.base.add(at) };
        // SAFETY: mapped, and writable if the device may write to it (the invariant); no reference to memory that the device
        // writes exists, except to atomics (the contract of `new`).
        unsafe { store_bytes(from, to.as_ptr()) };
        Ok(())
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<Mapped<'_>> {
        let at = self.check(offset, len).ok()?;
        // SAFETY: `check` covered `len` bytes at `at`, which are inside the range.
        let base = unsafe { self.base.add(at) };
        // SAFETY: mapped and readable until this value is dropped (the invariant), which is borrowed for the lifetime; no exclusive
        // reference to the memory exists (the contract of `new`).
        Some(unsafe { Mapped::new(base, len) })
    }

    fn write_mapped(&self, offset: u64, from: Mapped<'_>) -> Result<(), Fault> {
        let at = self.check(offset, from.len)?;
        // SAFETY: `check` covered `from.len` bytes at `at`, which are inside the range.
        let to = unsafe { self.base.add(at) };
        if from.meets(to, from.len) {
            let mut bytes = vec![0; from.len];
            from.read(0, &mut bytes)?;
            return self.write(offset, &bytes);
        }
        // SAFETY: `from.len` bytes are readable at `from.base` (its invariant), and writable at `to` if the device may write there (the
        // invariant); no reference to memory that the device writes exists, except to atomics (the contract of `new`). They do not
        // overlap, as checked.
        unsafe { copy_shared(from.base.as_ptr(), to.as_ptr(), from.len) };
        Ok(())
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        let at = self.aligned(offset, WORD)?;
        // SAFETY: `aligned` checked both conditions.
        let word = unsafe { self.word(at) };
        let mut old = word.load(Ordering::Acquire);
        loop {
            match word.compare_exchange_weak(old, f(old), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(old),
                Err(now) => old = now,
            }
        }
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        let at = self.aligned(offset, 4)?;
        // SAFETY: `aligned` checked both conditions.
        let half = unsafe { self.half(at) };
        // Pairs with the driver's store of a doorbell record, which it orders after its stores to the ring.
        Ok(u32::from_be(half.load(Ordering::Acquire)))
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        let at = self.aligned(offset, WORD)?;
        // SAFETY: `aligned` checked both conditions.
        let word = unsafe { self.word(at) };
        // Pairs with the poller's acquiring load of the owner byte.
        word.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Ok(())
    }

    fn write_entry(&self, offset: u64, entry: &[u8]) -> Result<(), Fault> {
        let (first, last) = entry.split_last_chunk::<WORD>().ok_or(Fault)?;
        let at = self.check(offset, entry.len())?;
        let end = at + first.len();
        if !(self.base.as_ptr().addr() + end).is_multiple_of(WORD) {
            return Err(Fault);
        }
        // SAFETY: `check` covered `entry.len()` bytes at `at`, which are inside the range.
        let to = unsafe { self.base.add(at) };
        // SAFETY: as for `write`.
        unsafe { store_bytes(first, to.as_ptr()) };
        // SAFETY: the last 8 of these bytes begin at `end`, whose address is a multiple of 8, as checked.
        let word = unsafe { self.word(end) };
        // Pairs with the poller's acquiring load of the owner byte.
        word.store(u64::from_ne_bytes(*last), Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(memory: &[AtomicU64], skip: usize, len: usize) -> ProcessRange {
        let addr = memory.as_ptr().expose_provenance() + skip;
        // SAFETY: the array outlives the range in every test, and consists of atomics.
        unsafe { ProcessRange::new(addr as u64, len as u64) }.unwrap()
    }

    #[test]
    fn any_alignment_and_length_is_copied_exactly() {
        for skip in 0..9 {
            for len in 0..20 {
                let memory = [const { AtomicU64::new(u64::MAX) }; 4];
                let range = range(&memory, skip, len);
                let data: Vec<u8> = (0..len as u8).collect();
                range.write(0, &data).unwrap();
                let mut back = vec![0xaa; len];
                range.read(0, &mut back).unwrap();
                assert_eq!(back, data);
                let mut behind = vec![0xbb];
                range.append(0, len, &mut behind).unwrap();
                assert_eq!((behind[0], &behind[1..]), (0xbb, &*data));
                assert_eq!(range.append(1, len, &mut behind), Err(Fault));
                let all: Vec<u8> =
                    memory.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
                assert!(all[..skip].iter().chain(&all[skip + len..]).all(|b| *b == 0xff));
                assert_eq!(range.write(1, &data), Err(Fault));
                assert_eq!(range.read(u64::MAX, &mut back), Err(Fault));
            }
        }
    }

    #[test]
    fn mapped_memory_is_copied_at_once() {
        let memory: Vec<AtomicU64> =
            (0..64).map(|i: u64| AtomicU64::new(i * 0x0101_0101_0101_0101)).collect();
        let bytes =
            || memory.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect::<Vec<u8>>();
        let all = range(&memory, 0, 512);
        for (from, to, len) in
            [(0, 256, 200), (1, 300, 77), (3, 403, 1), (5, 13, 100), (200, 190, 60), (9, 9, 9)]
        {
            let mut wanted = bytes();
            wanted.copy_within(from..from + len, to);
            all.write_mapped(to as u64, all.mapped(from as u64, len).unwrap()).unwrap();
            assert_eq!(bytes(), wanted, "{from} {to} {len}");
        }
        assert!(all.mapped(500, 13).is_none() && all.mapped(u64::MAX, 1).is_none());
        let part = all.mapped(100, 20).unwrap();
        assert_eq!(all.write_mapped(493, part), Err(Fault));
        assert_eq!((part.part(4, 16).unwrap().len(), part.part(5, 16).is_none()), (16, true));
        assert_eq!(part.read(15, &mut [0; 6]), Err(Fault));
    }

    #[test]
    fn words_are_atomic_and_aligned() {
        let memory = [AtomicU64::new(5), AtomicU64::new(0x0102_0304_u64.to_be())];
        let range = range(&memory, 0, 16);
        assert_eq!(range.update(0, &|v| v + 3), Ok(5));
        assert_eq!(memory[0].load(Ordering::Relaxed), 8);
        assert_eq!(range.update(4, &|v| v), Err(Fault));
        assert_eq!(range.update(16, &|v| v), Err(Fault));
        assert_eq!(range.load_be32(12), Ok(0x0102_0304));
        assert_eq!(range.load_be32(14), Err(Fault));
        range.publish(8, [9; 8]).unwrap();
        assert_eq!(memory[1].load(Ordering::Relaxed), u64::from_ne_bytes([9; 8]));
        assert_eq!(range.publish(12, [9; 8]), Err(Fault));
        let entry: Vec<u8> = (0..16).collect();
        range.write_entry(0, &entry).unwrap();
        let words = memory.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        assert_eq!(words.as_flattened(), entry);
        for (offset, len) in [(8, 16), (0, 12), (0, 7), (u64::MAX, 8)] {
            assert_eq!(range.write_entry(offset, &entry[..len]), Err(Fault), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn an_impossible_range_is_none() {
        // SAFETY: nothing is accessed.
        let made = [(u64::MAX, 2), (0, 1)].map(|(addr, len)| unsafe { ProcessRange::new(addr, len) });
        assert!(made.iter().all(Option::is_none));
    }
}
