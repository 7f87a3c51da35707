// SPDX-License-Identifier: MIT OR Apache-2.0
//! The resource of the last entry, cached from one poll to the next, because consecutive entries are usually of the same
//! QP.
#![expect(unsafe_code)]
// UNSAFETY: stores references next to the owner of the referenced memory (a self-referential struct).

use super::parse::Resource;
use crate::shared::{NoSends, RetireBy};
use core::fmt;

/// A key that no entry has: the low half of an entry's key is 0.
pub(super) const NO_KEY: u64 = 1;

/// The cached resource.
///
/// # Invariants
/// `sends` refers to the send queue of `resource`, or to `none` if it has no send queue. The one is in an `Arc`, the other
/// in a `Box`, so both keep their addresses when this struct is moved.
pub(super) struct CachedResource {
    /// The key in the entries of the resource.
    pub(super) key: u64,
    /// `key` if the resource has a send queue, else [`NO_KEY`].
    pub(super) send_key: u64,
    sends: RetireBy<'static>,
    resource: Resource,
    none: Box<NoSends>,
}

impl CachedResource {
    /// Without a resource.
    pub(super) fn none() -> Self {
        let none = Box::<NoSends>::default();
        // SAFETY: `none` is stored in the same struct as the reference, keeps its address (a `Box`), and is accessed
        // through shared references only.
        let sends = unsafe { extend(none.retire_by()) };
        Self { key: NO_KEY, send_key: NO_KEY, sends, resource: Resource::default(), none }
    }

    /// Replaces the resource.
    pub(super) fn set(&mut self, key: u64, resource: &Resource) {
        (self.key, self.resource) = (key, resource.clone());
        let (send_key, by) = match &self.resource.sq {
            Some(sq) => (key, sq.retire_by()),
            None => (NO_KEY, self.none.retire_by()),
        };
        self.send_key = send_key;
        // SAFETY: the referenced memory is owned by `resource` or `none` of this struct, which keep its address (an `Arc`
        // and a `Box`).
        self.sends = unsafe { extend(by) };
    }

    /// The resource.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The part of its send queue that retires WRs.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn sends(&self) -> RetireBy<'_> {
        self.sends
    }
}

/// # Safety
/// The memory that `by` refers to must stay valid as long as the result is used.
unsafe fn extend(by: RetireBy<'_>) -> RetireBy<'static> {
    // SAFETY: the types differ only in their lifetime; the caller guarantees that the memory outlives the result.
    unsafe { core::mem::transmute::<RetireBy<'_>, RetireBy<'static>>(by) }
}

impl fmt::Debug for CachedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedResource")
            .field("key", &self.key)
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::CqeVersion;
    use crate::cq::parse::Resources;
    use crate::memory::{BlockIndex, CompletedCount};
    use crate::testing::{BLUE_FLAME, Sends, send_config};
    use core::sync::atomic::Ordering;
    use uverbs_core::attr::QpType;

    #[test]
    fn sends_are_those_of_the_resource() {
        let qp = Sends::new(&send_config(QpType::Rc), 16, BLUE_FLAME).qp;
        let sq = qp.sq.as_ref().unwrap();
        sq.ring.view().record(BlockIndex::of(3)).wr_id.store(77, Ordering::Relaxed);
        sq.ring.view().record(BlockIndex::of(3)).set_done(CompletedCount::new(4, 0));
        let mut resources = Resources::new(CqeVersion::V1, 0, Default::default());
        resources.attach_qp(&qp);
        let (key, unknown) = (0, 9 << 56);
        let mut cached = CachedResource::none();
        assert_eq!((cached.key, cached.send_key), (NO_KEY, NO_KEY));
        resources.keep(unknown, &mut cached);
        assert_eq!((cached.key, cached.send_key), (unknown, NO_KEY));
        cached.sends().retire(BlockIndex::of(3));
        assert_eq!(sq.tail(), 0, "a resource without a send queue retires nothing");
        resources.keep(key, &mut cached);
        assert_eq!((cached.key, cached.send_key), (key, key));
        assert_eq!(cached.sends().retire(BlockIndex::of(3)).wr_id, 77);
        assert_eq!(sq.tail(), 4);
    }
}
