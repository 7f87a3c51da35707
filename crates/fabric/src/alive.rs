// SPDX-License-Identifier: MIT OR Apache-2.0
//! The owner of a fabric's threads: its users share it, and the last one ends them.

use crate::model::Model;
use crate::trunk::Trunks;
use crate::udp::Reader;
use crate::world_lock::WorldLock;
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use uverbs_core::sync::Home;

/// Owns the threads of a fabric; ends them when the last user drops it.
pub(crate) struct Alive<M: Model> {
    pub(crate) shared: Arc<WorldLock<M>>,
    pub(crate) trunks: Arc<Trunks>,
    /// The threads that read from the UDP sockets of ports.
    readers: Mutex<Vec<Reader>>,
    thread: Option<JoinHandle<()>>,
    home: Home,
    /// For kernels that do not know it.
    pid: u32,
}

impl<M: Model> fmt::Debug for Alive<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("deterministic", &self.shared.deterministic).finish_non_exhaustive()
    }
}

impl<M: Model> Drop for Alive<M> {
    fn drop(&mut self) {
        // A child of fork(2) has no such thread, and its copy of the lock may stay locked permanently.
        if !self.is_here() {
            return;
        }
        crate::script::watch(self);
        Trunks::flush(&self.shared);
        let readers = core::mem::take(&mut *self.readers.lock().unwrap_or_else(PoisonError::into_inner));
        readers.into_iter().for_each(Reader::end);
        self.trunks.stop();
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<M: Model> Alive<M> {
    pub(crate) fn new(shared: Arc<WorldLock<M>>, thread: Option<JoinHandle<()>>) -> Arc<Self> {
        let readers = Mutex::default();
        Arc::new(Self {
            shared,
            trunks: Arc::default(),
            readers,
            thread,
            home: Home::here(),
            pid: std::process::id(),
        })
    }

    /// Stores a thread that reads from a UDP socket.
    pub(crate) fn keep(&self, reader: Reader) {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
    }

    /// Whether this is the process that created the fabric, and not a child of it.
    pub(crate) fn is_here(&self) -> bool {
        self.home.is_here() && (self.home.is_known() || std::process::id() == self.pid)
    }
}
