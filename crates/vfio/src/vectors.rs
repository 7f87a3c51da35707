// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interrupts of a function: the event files that the VM has set for its MSI-X vectors.

use std::fs::File;
use std::io::Write;
use std::sync::{PoisonError, RwLock};

/// The interrupts that a VM has set up.
#[derive(Debug, Default)]
pub struct Vectors {
    files: RwLock<Vec<Option<File>>>,
}

impl Vectors {
    /// Sets the vectors from `start` on, of `max`; an empty list frees `count` of them.
    pub fn set(&self, max: u16, start: u32, count: u32, files: Vec<File>) {
        let mut all = self.files.write().unwrap_or_else(PoisonError::into_inner);
        all.resize_with(max.into(), || None);
        let mut files = files.into_iter();
        for vector in all.iter_mut().skip(start as usize).take(count as usize) {
            *vector = files.next();
        }
    }

    /// Frees all.
    pub fn clear(&self) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Raises an interrupt.
    pub fn raise(&self, vector: u16) {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(file)) = files.get(usize::from(vector)) {
            // If the write fails because the event file is full, the interrupt is already pending.
            let _ = (&*file).write(&1_u64.to_ne_bytes());
        }
    }
}
