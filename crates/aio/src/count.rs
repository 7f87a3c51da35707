// SPDX-License-Identifier: MIT OR Apache-2.0
//! A waker for tests, which counts its wakes.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::task::Wake;

#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// As [`Count`], and panics.
#[derive(Default)]
pub(crate) struct Panics(pub(crate) AtomicU32);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a test of wakers that panic");
    }
}
