// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interrupts of the function: the event files that the VM has set for its MSI-X vectors.

use crate::config::VECTORS;
use std::fs::File;
use std::io::Write;

/// The interrupts that the VM has set up.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    files: Vec<Option<File>>,
}

impl Vectors {
    /// Sets the vectors from `start` on; an empty list frees `count` of them.
    pub(crate) fn set(&mut self, start: u32, count: u32, files: Vec<File>) {
        let max = usize::from(VECTORS);
        self.files.resize_with(max, || None);
        let (start, count) = (start as usize, count as usize);
        let mut files = files.into_iter();
        for vector in self.files.iter_mut().skip(start).take(count) {
            *vector = files.next();
        }
    }

    /// Frees all.
    pub(crate) fn clear(&mut self) {
        self.files.clear();
    }

    /// Raises an interrupt.
    pub(crate) fn raise(&self, vector: u16) {
        if let Some(Some(file)) = self.files.get(usize::from(vector)) {
            // If the write fails because the event file is full, the interrupt is already pending.
            let _ = (&*file).write(&1_u64.to_ne_bytes());
        }
    }
}
