// SPDX-License-Identifier: MIT OR Apache-2.0
//! The resource of the last entry, kept from one poll to the next: most entries are of the same QP as the one before.
#![expect(unsafe_code)]
// UNSAFETY: keeps references beside the owner of what they point to.

use super::lookup::LookupIndex;
use crate::sq::SqShared;
use crate::sq::shared::{NoSends, RetireBy};
use core::fmt;
use std::sync::Arc;

/// A key that no entry has: in a key, the low half is 0.
pub(super) const NO_KEY: u64 = 1;

/// A resource at hand.
///
/// # Invariants
/// `sends` is of `_sq`, or of `_none` if there is none; both are in an `Arc` or a `Box`, and stay where they are.
pub(super) struct AtHand {
    /// The key by which entries name it.
    pub(super) key: u64,
    /// The same if it has a send queue, else [`NO_KEY`].
    pub(super) send_key: u64,
    sends: RetireBy<'static>,
    /// Where it is in the lookup table.
    pub(super) index: LookupIndex,
    _sq: Option<Arc<SqShared>>,
    _none: Box<NoSends>,
}

impl AtHand {
    /// No resource.
    pub(super) fn none() -> Self {
        let none = Box::<NoSends>::default();
        // SAFETY: the box is kept beside the reference, and its content is used by shared references only.
        let sends = unsafe { extend(none.retire_by()) };
        Self { key: NO_KEY, send_key: NO_KEY, sends, index: LookupIndex::default(), _sq: None, _none: none }
    }

    /// Turns to another resource.
    pub(super) fn set(&mut self, key: u64, index: LookupIndex, sq: Option<&Arc<SqShared>>) {
        (self.key, self.index) = (key, index);
        let by = match sq {
            Some(sq) => sq.retire_by(),
            None => self._none.retire_by(),
        };
        self.send_key = if sq.is_some() { key } else { NO_KEY };
        // SAFETY: the owner is kept beside the reference: the `Arc` below, or the box.
        self.sends = unsafe { extend(by) };
        self._sq = sq.cloned();
    }

    /// Its send queue's part for retiring.
    #[inline(always)]
    pub(super) fn sends(&self) -> RetireBy<'_> {
        self.sends
    }
}

/// # Safety
/// What `by` refers to lives as long as the result is used.
unsafe fn extend(by: RetireBy<'_>) -> RetireBy<'static> {
    // SAFETY: the types differ in the lifetime only, which the caller vouches for.
    unsafe { core::mem::transmute::<RetireBy<'_>, RetireBy<'static>>(by) }
}

impl fmt::Debug for AtHand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtHand").field("key", &self.key).field("index", &self.index).finish_non_exhaustive()
    }
}
