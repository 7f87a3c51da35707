// SPDX-License-Identifier: MIT OR Apache-2.0
//! The owner of a fabric's threads: its users share it, and the last one ends them.

use crate::trunk::Trunks;
use crate::world_lock::WorldLock;
use core::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Owns the threads of a fabric; ends them when the last user drops it.
pub(crate) struct Alive {
    pub(crate) shared: Arc<WorldLock>,
    pub(crate) trunks: Arc<Trunks>,
    thread: Option<JoinHandle<()>>,
    pid: u32,
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("deterministic", &self.shared.deterministic).finish_non_exhaustive()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // A child of fork(2) has no such thread, and its copy of the lock may stay locked permanently.
        if !self.is_here() {
            return;
        }
        Trunks::flush(&self.shared);
        self.trunks.stop();
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Alive {
    pub(crate) fn new(shared: Arc<WorldLock>, thread: Option<JoinHandle<()>>) -> Arc<Self> {
        Arc::new(Self { shared, trunks: Arc::default(), thread, pid: std::process::id() })
    }

    /// Whether this is the process that created the fabric, and not a child of it.
    pub(crate) fn is_here(&self) -> bool {
        std::process::id() == self.pid
    }
}
