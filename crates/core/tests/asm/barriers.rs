// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each barrier between two accesses that it orders, as functions of their own. `cargo xtask ci` compiles this file for each
//! architecture and compares the instructions; it is not part of any crate.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

#[path = "../../src/sync/barrier.rs"]
mod barrier;

/// A WQE, then the doorbell record.
#[unsafe(no_mangle)]
pub fn to_device(wqe: &AtomicU64, record: &AtomicU32) {
    wqe.store(1, Relaxed);
    barrier::to_device();
    record.store(2, Relaxed);
}

/// The owner bit of a CQE, then the other fields of the CQE.
#[unsafe(no_mangle)]
pub fn from_device(owner: &AtomicU64, cqe: &AtomicU64) -> (u64, u64) {
    let owner = owner.load(Relaxed);
    barrier::from_device();
    (owner, cqe.load(Relaxed))
}

/// The fields of the CQE, then the consumer index.
#[unsafe(no_mangle)]
pub fn release_to_device(cqe: &AtomicU64, record: &AtomicU32) -> u64 {
    let cqe = cqe.load(Relaxed);
    barrier::release_to_device();
    record.store(1, Relaxed);
    cqe
}

/// The doorbell record, then the register.
#[unsafe(no_mangle)]
pub fn write_combining_start(record: &AtomicU32, register: &AtomicU64) {
    record.store(1, Relaxed);
    barrier::write_combining_start();
    register.store(2, Relaxed);
}

/// The register, then the lock.
#[unsafe(no_mangle)]
pub fn write_combining_flush(register: &AtomicU64, lock: &AtomicU32) {
    register.store(1, Relaxed);
    barrier::write_combining_flush();
    lock.store(0, Relaxed);
}
