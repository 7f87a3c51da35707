// SPDX-License-Identifier: MIT OR Apache-2.0
//! The resource of the last entry, kept from one poll to the next: most entries are of the same QP as the one before.
#![expect(unsafe_code)]
// UNSAFETY: keeps references beside the owner of what they point to.

use super::parse::Resource;
use crate::sq::shared::{NoSends, RetireBy};
use core::fmt;

/// A key that no entry has: in a key, the low half is 0.
pub(super) const NO_KEY: u64 = 1;

/// A resource at hand.
///
/// # Invariants
/// `sends` is of the send queue of `resource`, or of `none` if there is none; one is in an `Arc`, the other in a `Box`, so
/// both stay where they are.
pub(super) struct AtHand {
    /// The key by which entries name it.
    pub(super) key: u64,
    /// The same if it has a send queue, else [`NO_KEY`].
    pub(super) send_key: u64,
    sends: RetireBy<'static>,
    resource: Resource,
    none: Box<NoSends>,
}

impl AtHand {
    /// No resource.
    pub(super) fn none() -> Self {
        let none = Box::<NoSends>::default();
        // SAFETY: the box is kept beside the reference, and its content is used by shared references only.
        let sends = unsafe { extend(none.retire_by()) };
        Self { key: NO_KEY, send_key: NO_KEY, sends, resource: Resource::default(), none }
    }

    /// Turns to another resource.
    pub(super) fn set(&mut self, key: u64, resource: &Resource) {
        (self.key, self.resource) = (key, resource.clone());
        let (send_key, by) = match &self.resource.sq {
            Some(sq) => (key, sq.retire_by()),
            None => (NO_KEY, self.none.retire_by()),
        };
        self.send_key = send_key;
        // SAFETY: the owner is kept beside the reference, in `resource` or in `none`.
        self.sends = unsafe { extend(by) };
    }

    /// The resource.
    #[inline(always)]
    pub(super) fn resource(&self) -> &Resource {
        &self.resource
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
        f.debug_struct("AtHand")
            .field("key", &self.key)
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}
