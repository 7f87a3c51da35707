// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this process that is not mapped at all times: regions with on-demand paging.
//!
//! The kernel accesses the memory for the device, by process_vm_readv(2) and process_vm_writev(2) on this process, so an access
//! to pages that are not mapped is an error of the work request, and not a signal.
// UNSAFETY: a software device reads and writes memory by address, as a NIC does.
#![expect(unsafe_code)]

use crate::memory::{Fault, Memory};

/// A range of the address space, at most all of it.
///
/// # Invariants
/// The device may access what is mapped in the range until the value is dropped.
#[derive(Debug)]
pub struct OnDemand {
    base: u64,
    len: u64,
}

/// The two system calls.
type Transfer = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

impl OnDemand {
    /// The range of `len` bytes at `base`.
    ///
    /// # Safety
    /// Until the value is dropped, the device's accesses to memory that is mapped in the range do not conflict with Rust
    /// references: there is no shared reference to memory that is written, and no exclusive one to memory that is accessed.
    #[must_use]
    pub unsafe fn new(base: u64, len: u64) -> Self {
        Self { base, len }
    }

    /// The address of `len` bytes at `offset`.
    fn at(&self, offset: u64, len: usize) -> Result<usize, Fault> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.len).ok_or(Fault)?;
        self.base.checked_add(end).ok_or(Fault)?;
        usize::try_from(self.base + offset).map_err(|_| Fault)
    }

    /// Transfers `len` bytes between `local` and the range.
    ///
    /// # Safety
    /// `local` is valid for `len` bytes: for writes if `transfer` reads the range, for reads if it writes it.
    unsafe fn transfer(
        &self,
        offset: u64,
        local: *mut libc::c_void,
        len: usize,
        transfer: Transfer,
    ) -> Result<(), Fault> {
        let at = self.at(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let near = libc::iovec { iov_base: local, iov_len: len };
        let far = libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(at), iov_len: len };
        let pid = std::process::id().cast_signed();
        // SAFETY: `near` is valid (the contract of this function), and the kernel checks `far`, to whose memory the device has
        // access (invariant).
        let done = unsafe { transfer(pid, &raw const near, 1, &raw const far, 1, 0) };
        if done == len.cast_signed() { Ok(()) } else { Err(Fault) }
    }
}

impl Memory for OnDemand {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the slice is valid for writes of its length.
        unsafe { self.transfer(offset, to.as_mut_ptr().cast(), to.len(), libc::process_vm_readv) }
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let local = from.as_ptr().cast_mut().cast();
        // SAFETY: the slice is valid for reads of its length; the call only reads it.
        unsafe { self.transfer(offset, local, from.len(), libc::process_vm_writev) }
    }

    /// Atomic among the accesses of devices (`IBV_ATOMIC_HCA`), because one lock protects all of them.
    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        if !self.at(offset, 8)?.is_multiple_of(8) {
            return Err(Fault);
        }
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        let old = u64::from_ne_bytes(word);
        self.write(offset, &f(old).to_ne_bytes())?;
        Ok(old)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        let mut word = [0; 4];
        self.read(offset, &mut word)?;
        Ok(u32::from_be_bytes(word))
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.write(offset, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn mapped_memory_is_accessed_and_other_addresses_are_faults() {
        let memory = [const { AtomicU64::new(0) }; 4];
        let addr = memory.as_ptr().expose_provenance() as u64;
        // SAFETY: the array consists of atomics; tests access no other memory.
        let all = unsafe { OnDemand::new(0, u64::MAX) };
        all.write(addr + 8, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(memory[1].load(Ordering::Relaxed).to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        let mut bytes = [0; 3];
        all.read(addr + 9, &mut bytes).unwrap();
        assert_eq!(bytes, [2, 3, 4]);
        memory[2].store(5, Ordering::Relaxed);
        assert_eq!(all.update(addr + 16, &|v| v + 2), Ok(5));
        assert_eq!(memory[2].load(Ordering::Relaxed), 7);
        assert_eq!(all.update(addr + 17, &|v| v), Err(Fault));
        // Nothing is mapped there.
        assert_eq!(all.read(64, &mut bytes), Err(Fault));
        assert_eq!(all.write(64, &bytes), Err(Fault));
        assert_eq!(all.read(u64::MAX, &mut bytes), Err(Fault));
        assert_eq!(all.read(64, &mut []), Ok(()));
    }

    #[test]
    fn a_range_has_an_end() {
        let memory = [const { AtomicU64::new(u64::MAX) }; 4];
        // SAFETY: the array consists of atomics.
        let range = unsafe { OnDemand::new(memory.as_ptr().expose_provenance() as u64, 16) };
        assert_eq!((range.len(), range.write(8, &[0; 8])), (16, Ok(())));
        assert_eq!(range.write(9, &[0; 8]), Err(Fault));
        assert_eq!(range.update(16, &|v| v), Err(Fault));
        assert_eq!(memory.map(|w| w.into_inner()), [u64::MAX, 0, u64::MAX, u64::MAX]);
    }
}
