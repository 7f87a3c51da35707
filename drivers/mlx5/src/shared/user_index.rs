// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user indices of a context: the numbers by which completions name QPs, XRC SRQs and WQs (CQE version 1).
//!
//! An index is owned by the shared part of its resource ([`UserIndex`]) and is free again when that is dropped. At that
//! time the control path has removed the resource and its entries from every CQ.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::MutexGuard;
use uverbs_core::sync::{LockError, ProcessMutex};

/// Numbers have 24 bits.
const BITS: u32 = 24;

/// The user indices of a context.
#[derive(Debug, Default)]
pub struct UserIndices {
    state: ProcessMutex<Indices>,
    numbers: ProcessMutex<()>,
}

#[derive(Debug, Default)]
struct Indices {
    /// Each index below this one has been allocated at least once.
    next: u32,
    /// Indices that were returned, the lowest one first.
    free: BinaryHeap<Reverse<u32>>,
}

impl UserIndices {
    /// The lowest free index; `None` if all are in use, or in a child of fork(2) whose parent's thread had the lock.
    pub fn take(self: &Arc<Self>) -> Option<UserIndex> {
        let mut state = self.state.lock().ok()?;
        let index = match state.free.pop() {
            Some(Reverse(index)) => index,
            // Index 2^24 - 1 is not allocated: the kernel takes it for "none" (`MLX5_IB_DEFAULT_UIDX`).
            None if state.next < (1 << BITS) - 1 => {
                state.next += 1;
                state.next - 1
            }
            None => return None,
        };
        Some(UserIndex { index, of: Arc::clone(self) })
    }

    /// For objects that completions name by the device's number (CQE version 0), which the device may give to the next object as soon as
    /// the kernel has destroyed one. Held while such an object is created and attached to its CQs, and while one is destroyed and detached.
    ///
    /// # Errors
    /// [`LockError::Forked`] in a child of fork(2), if a thread of the parent had the lock.
    pub(crate) fn numbers(&self) -> Result<MutexGuard<'_, ()>, LockError> {
        self.numbers.lock()
    }
}

/// A user index. Dropping it returns it.
#[derive(Debug)]
pub struct UserIndex {
    index: u32,
    of: Arc<UserIndices>,
}

impl UserIndex {
    /// The number.
    pub fn get(&self) -> u32 {
        self.index
    }
}

impl Drop for UserIndex {
    fn drop(&mut self) {
        let Ok(mut state) = self.of.state.lock() else { return };
        state.free.push(Reverse(self.index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_index_is_free_again() {
        let indices = Arc::new(UserIndices::default());
        let mut taken: Vec<_> = (0..5).map(|_| indices.take().unwrap()).collect();
        assert_eq!(taken.iter().map(UserIndex::get).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        taken.remove(3);
        taken.remove(1);
        let again: Vec<_> = (0..3).map(|_| indices.take().unwrap()).collect();
        assert_eq!(
            again.iter().map(UserIndex::get).collect::<Vec<_>>(),
            [1, 3, 5],
            "the lowest free index is allocated first"
        );
    }
}
