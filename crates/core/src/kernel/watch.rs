// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets a device in this process see the accesses of the program to registered memory, to find those that conflict with its own.
//!
//! Only copies by the library are seen: `read_at` and `write_at` of a region. While nothing watches, an access costs one load.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// What sees an access: address, bytes, whether they are written.
pub type Watcher = fn(u64, usize, bool);

static ON: AtomicBool = AtomicBool::new(false);
static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Calls `watcher` before each access from now on. A process has one watcher: `false` if it has another one.
pub fn watch_accesses(watcher: Watcher) -> bool {
    let is_first = WATCHER.set(watcher).is_ok();
    ON.store(true, Ordering::Release);
    is_first || WATCHER.get().is_some_and(|other| core::ptr::fn_addr_eq(*other, watcher))
}

/// The program accesses registered memory.
#[inline]
pub fn accessed(addr: u64, len: usize, writes: bool) {
    if ON.load(Ordering::Relaxed) {
        tell(addr, len, writes);
    }
}

#[cold]
fn tell(addr: u64, len: usize, writes: bool) {
    if let Some(watcher) = WATCHER.get() {
        watcher(addr, len, writes);
    }
}
