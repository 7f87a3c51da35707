// SPDX-License-Identifier: MIT OR Apache-2.0
//! Barriers between the CPU and a device, named after their purpose.
//!
//! Each orders the accesses of two observers: this CPU, and a device that reads or writes the same memory by DMA (or a
//! kernel thread that implements the device). The barriers have the purposes that rdma-core's `util/udma_barrier.h`
//! distinguishes. No other module of the workspace uses a fence directly.
//!
//! All instructions of an architecture are in one `arch` module below. There is no general fallback: a fence of the
//! language orders memory accesses between CPUs, but not those of a device or of a write-combining mapping.
#![expect(unsafe_code)]
// UNSAFETY: the write-combining barriers are architecture intrinsics or inline assembly without memory operands.

/// Orders earlier stores to memory before later stores to memory for a device: the contents of a WQE before the
/// doorbell record that publishes it.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn to_device() {
    arch::stores_before_stores();
}

/// Orders an earlier load of a validity word (a CQE's owner bit, a producer index) before later loads of what it
/// guards, against a device that wrote them in that order.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn from_device() {
    arch::loads_before_loads();
}

/// Orders earlier loads of memory that the device wrote before the later store that lets the device write it again: the
/// CQEs before the consumer index.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn release_to_device() {
    arch::loads_before_stores();
}

/// Orders earlier stores to memory before later stores to a write-combining mapping: the doorbell record before the
/// BlueFlame copy.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn write_combining_start() {
    arch::flush_stores();
}

/// Pushes earlier stores to a write-combining mapping out to the device, and orders them before any later store: what
/// must happen before a doorbell's lock is released or its BlueFlame half is toggled.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn write_combining_flush() {
    arch::flush_stores();
}

/// x86-64 keeps stores to write-back memory in order, loads in order, and loads before later stores, so for those only
/// the compiler must be held back. Write-combining stores are in no order.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
mod arch {
    use core::sync::atomic::{Ordering, compiler_fence};

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn stores_before_stores() {
        compiler_fence(Ordering::Release);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn loads_before_loads() {
        compiler_fence(Ordering::Acquire);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn loads_before_stores() {
        compiler_fence(Ordering::Release);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn flush_stores() {
        // SAFETY: `sfence` is part of SSE, which every x86-64 CPU has.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }
}

/// The memory of a device is in the outer shareable domain (`osh`). `ld` orders loads before later loads and stores,
/// `st` stores before later stores. `dsb` waits until the stores have left the CPU's write buffers.
#[cfg(all(target_arch = "aarch64", target_pointer_width = "64"))]
mod arch {
    use core::arch::asm;

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn stores_before_stores() {
        // SAFETY: a barrier instruction: it touches no register and no memory.
        unsafe {
            asm!("dmb oshst", options(nostack, preserves_flags));
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn loads_before_loads() {
        // SAFETY: a barrier instruction: it touches no register and no memory.
        unsafe {
            asm!("dmb oshld", options(nostack, preserves_flags));
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn loads_before_stores() {
        // SAFETY: a barrier instruction: it touches no register and no memory.
        unsafe {
            asm!("dmb oshld", options(nostack, preserves_flags));
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn flush_stores() {
        // SAFETY: a barrier instruction: it touches no register and no memory.
        unsafe {
            asm!("dsb st", options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "uverbs-core needs 64-bit pointers: a doorbell register, and an entry that the device writes, are accessed by \
     single 64-bit loads and stores"
);

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "uverbs-core has no barriers between CPU and device for this architecture: add them to src/sync/barrier.rs"
);
