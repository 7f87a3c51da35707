// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completions that the reset or the destruction of a QP has removed from its CQs.
//!
//! They are the only ones that name the receives of a shared queue which the QP had taken. An owner of the buffers of that queue
//! asks for their `wr_id`s; for other programs nothing is kept.

use crate::sync::ProcessMutex;

/// The `wr_id`s of removed completions, for the driver's part of a QP.
#[derive(Debug, Default)]
pub struct Removed {
    /// `None` until [`keep`](Self::keep) is called.
    wr_ids: ProcessMutex<Option<Vec<u64>>>,
}

impl Removed {
    /// Keeps them from now on.
    pub fn keep(&self) {
        if let Ok(mut wr_ids) = self.wr_ids.lock() {
            wr_ids.get_or_insert_default();
        }
    }

    /// Adds one, if they are kept. For the control path.
    pub fn push(&self, wr_id: u64) {
        if let Ok(mut wr_ids) = self.wr_ids.lock()
            && let Some(wr_ids) = &mut *wr_ids
        {
            wr_ids.push(wr_id);
        }
    }

    /// Takes those that were added since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<u64> {
        // In a child of fork(2) the QP is the parent's.
        self.wr_ids
            .lock()
            .ok()
            .and_then(|mut wr_ids| wr_ids.as_mut().map(core::mem::take))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_kept_on_request() {
        let removed = Removed::default();
        removed.push(1);
        removed.keep();
        assert_eq!(removed.take(), []);
        removed.push(2);
        removed.push(3);
        assert_eq!((removed.take(), removed.take()), (vec![2, 3], vec![]));
    }
}
