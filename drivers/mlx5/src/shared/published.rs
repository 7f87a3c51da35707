// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many WRs a queue has published, for the pollers of its completions.

use crate::memory::dbrec::DbWord;
use std::sync::OnceLock;

/// The doorbell record's word by which the poster publishes. Pollers read it before they write to the memory of a WR,
/// because a faulty device may report a WR that was not published or has completed.
#[derive(Debug, Default)]
pub(crate) struct Published(OnceLock<DbWord>);

impl Published {
    /// Sets the word. Only the first call has an effect; a queue has one poster.
    pub(crate) fn set(&self, record: DbWord) {
        let _ = self.0.set(record);
    }

    /// The published count; `None` for a queue without a poster.
    pub(crate) fn count(&self) -> Option<u32> {
        self.0.get().map(DbWord::get)
    }
}
