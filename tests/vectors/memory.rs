// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory at the addresses that the vectors name, and the device's view of the driver's queues.
//!
//! In the reference run, data were at `0x2000_0000_0000` (byte `i` is `i * 7 + 3`), and completions scattered to
//! `0x2100_0000_0000`. The same addresses are mapped here until the process exits. Queues and doorbell records are
//! accessed by the addresses that the driver passed to the kernel, as by a device.
#![expect(unsafe_code)]
// UNSAFETY: maps fixed addresses, and reads and writes memory by address, as a device does.

use anyhow::{Result, bail};
use core::num::NonZeroUsize;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

/// Memory with data.
pub(crate) const DATA: u64 = 0x2000_0000_0000;
/// Memory that completions scatter to.
pub(crate) const SCATTER: u64 = 0x2100_0000_0000;
/// Bytes of each.
pub(crate) const LEN: usize = 0x1_0000;
/// The initial byte of memory for scattered data.
pub(crate) const FILL: u8 = 0xee;

/// The byte at an offset of [`DATA`].
fn pattern(i: usize) -> u8 {
    (i * 7 + 3) as u8
}

/// Maps both, once.
pub(crate) fn map() -> Result<()> {
    for addr in [DATA, SCATTER] {
        let (Some(addr), Some(len)) = (NonZeroUsize::new(addr as usize), NonZeroUsize::new(LEN)) else {
            bail!("no address");
        };
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let got =
            unsafe { mmap_anonymous(Some(addr), len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }?;
        if got.as_ptr().addr() != addr.get() {
            bail!("{:#x} is taken", addr.get());
        }
        // From here on it is accessed by address only.
        got.as_ptr().expose_provenance();
    }
    refill();
    Ok(())
}

/// Restores the initial contents of both.
pub(crate) fn refill() {
    let data: Vec<u8> = (0..LEN).map(pattern).collect();
    write(DATA, &data);
    refill_scatter();
}

/// Restores the memory that completions scatter to. It is done before each case.
pub(crate) fn refill_scatter() {
    let memory = ptr::with_exposed_provenance_mut::<u8>(SCATTER as usize);
    // SAFETY: memory of `map`, to which only the drivers of the cases that this thread runs have pointers; none of them is at work.
    unsafe { memory.write_bytes(FILL, LEN) };
}

fn byte(addr: u64) -> *const AtomicU8 {
    ptr::with_exposed_provenance(addr as usize)
}

/// Reads memory as a device does. `addr` is in a queue or a record that a driver passed to the kernel, or in one of the
/// two ranges above.
pub(crate) fn read(addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    // A loop, because many bytes are read without optimisation.
    while bytes.len() < len {
        // SAFETY: memory that the driver gave to the device, all of it atomics or accessed by raw pointers, or memory
        // of `map`.
        let byte = unsafe { &*byte(addr + bytes.len() as u64) };
        bytes.push(byte.load(Ordering::Relaxed));
    }
    bytes
}

/// Writes memory as a device does.
pub(crate) fn write(addr: u64, bytes: &[u8]) {
    for (i, value) in bytes.iter().enumerate() {
        // SAFETY: `addr` is memory that the driver gave to the device, all of it atomics or accessed by raw pointers, or
        // memory of `map`.
        let byte = unsafe { &*byte(addr + i as u64) };
        byte.store(*value, Ordering::Relaxed);
    }
}
