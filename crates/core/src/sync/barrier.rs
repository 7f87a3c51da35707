// SPDX-License-Identifier: MIT OR Apache-2.0
//! Barriers between the CPU and a device, named by what they are for.
//!
//! Each orders the accesses of two observers: this CPU, and a device that reads or writes the same memory by DMA (or a
//! kernel thread that plays the device). What an architecture needs follows the purposes that rdma-core's
//! `util/udma_barrier.h` distinguishes. No other module of the workspace names a bare fence.
#![expect(unsafe_code)]
// UNSAFETY: the write-combining barriers are architecture intrinsics or inline assembly without memory operands.

use core::sync::atomic::{Ordering, compiler_fence};

/// Orders earlier stores to memory before later stores to memory, as a device sees them: WQE contents before the
/// doorbell record that makes them visible.
///
/// x86 keeps stores to write-back memory in order, so only the compiler must be held back.
#[inline(always)]
pub fn to_device() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction: it touches no register and no memory.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Orders an earlier load of a validity word (a CQE's owner bit, a producer index) before later loads of what it
/// guards, against a device that wrote them in that order.
///
/// x86 keeps loads from write-back memory in order, so only the compiler must be held back.
#[inline(always)]
pub fn from_device() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction: it touches no register and no memory.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Orders earlier stores to memory before later stores to a write-combining mapping: the doorbell record before the
/// BlueFlame copy.
#[inline(always)]
pub fn write_combining_start() {
    flush_stores();
}

/// Pushes earlier stores to a write-combining mapping out to the device, and orders them before any later store: what
/// must happen before a doorbell's lock is released or its BlueFlame half is toggled.
#[inline(always)]
pub fn write_combining_flush() {
    flush_stores();
}

#[inline(always)]
fn flush_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `sfence` is part of SSE, which every x86-64 CPU has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction: it touches no register and no memory.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
}
