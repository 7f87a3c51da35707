// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was found last, for calls that only need to know what an address or a number names: those of events.
//!
//! A place is selected by the key, so a search takes the same few instructions for each key, and no lock. What is not found here is
//! searched in the full table, with its lock. A place is changed only with the lock of the table's part that has its keys.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects, and the contexts of objects that exist.

use crate::abi::context::ibv_context;
use crate::context::Private;
use crate::live::{Kind, Object, Public};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};

/// The number of places for each kind of keys: a multiple of the number of shards of the table of objects.
pub(crate) const PLACES: usize = 64;
const KINDS: usize = Kind::Dm as usize + 1;

/// Two pointers, and the key with which they were put here.
pub(crate) struct Place {
    /// Counts the changes, so that a reader notices one, also if the same key comes back.
    changes: AtomicUsize,
    /// 0 if the place is empty, and while the pointers are changed.
    key: AtomicUsize,
    pointers: [AtomicPtr<()>; 2],
}

impl Place {
    /// An empty place.
    pub(crate) const fn new() -> Self {
        Self {
            changes: AtomicUsize::new(0),
            key: AtomicUsize::new(0),
            pointers: [const { AtomicPtr::new(ptr::null_mut()) }; 2],
        }
    }

    /// The pointers of a key, if they are here.
    ///
    /// With the key of a change, the count is at least that of the change. If it was greater before, the key would be 0 or that of a later
    /// change. If a pointer is that of a later change, the count is greater afterwards.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn get(&self, key: usize) -> Option<[*mut (); 2]> {
        let changes = self.changes.load(Ordering::Acquire);
        if key == 0 || self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let found = self.pointers.each_ref().map(|pointer| pointer.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.changes.load(Ordering::Relaxed) == changes).then_some(found)
    }

    /// Replaces what is here. One thread at a time changes a place.
    pub(crate) fn put(&self, key: usize, pointers: [*mut (); 2]) {
        self.key.store(0, Ordering::Relaxed);
        let changes = self.changes.load(Ordering::Relaxed).wrapping_add(1);
        self.changes.store(changes, Ordering::Release);
        fence(Ordering::Release);
        for (place, pointer) in self.pointers.iter().zip(pointers) {
            place.store(pointer, Ordering::Relaxed);
        }
        self.key.store(key, Ordering::Release);
    }

    /// Removes the pointers of a key. One thread at a time changes a place.
    pub(crate) fn forget(&self, key: usize) {
        if self.key.load(Ordering::Relaxed) == key {
            self.key.store(0, Ordering::Relaxed);
        }
    }
}

/// Objects by address, with the pointers to their contexts: C's, and that to our part. An object is removed here when it is removed from
/// the table of objects ([`live`](crate::live)), or its context is closed.
static OBJECTS: [[Place; PLACES]; KINDS] = [const { [const { Place::new() }; PLACES] }; KINDS];

/// A number whose low bits differ for most objects. They select the shard of the table and the place.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn spread(address: usize) -> usize {
    address >> 6 ^ address >> 12
}

#[cfg_attr(not(debug_assertions), inline(always))]
fn place(kind: Kind, address: usize) -> &'static Place {
    &OBJECTS[kind as usize][spread(address) % PLACES]
}

/// The context of an object, if it was found lately and the pointer in its public part is still that to its context.
///
/// # Safety
/// As [`peek`](crate::live::peek).
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) unsafe fn find<'a, T: Object>(object: *mut T) -> Option<(&'a Private, *mut ibv_context)> {
    let [expected, here] = place(T::KIND, object.addr()).get(object.addr())?;
    // SAFETY: the object was in the table when its address was found, so it exists, and the program does not destroy it during this call
    // (contract of this function).
    let Public { context, .. } = unsafe { T::public(object) };
    // SAFETY: the context was open when the address was found (`forget_all`), and is not closed while the reference is used (contract of
    // this function). No mutable reference to this part of it exists.
    ptr::addr_eq(context, expected).then(|| (unsafe { &*here.cast::<Private>() }, context))
}

/// Notes an object that was found. The lock of its shard is held.
pub(crate) fn put(kind: Kind, address: usize, context: *mut ibv_context, here: &Private) {
    place(kind, address).put(address, [context.cast(), ptr::from_ref(here).cast_mut().cast()]);
}

/// Forgets an object that is removed. The lock of its shard is held.
pub(crate) fn forget(kind: Kind, address: usize) {
    place(kind, address).forget(address);
}

/// Forgets the objects of a context that is about to be closed in one of `shards` shards, whose lock is held.
pub(crate) fn forget_all(here: &Private, shard: usize, shards: usize) {
    const { assert!(PLACES.is_power_of_two()) };
    for place in OBJECTS.iter().flat_map(|places| places.iter().skip(shard).step_by(shards)) {
        if ptr::addr_eq(place.pointers[1].load(Ordering::Relaxed), here) {
            place.key.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers(key: usize) -> [*mut (); 2] {
        [key, key + 1].map(ptr::without_provenance_mut)
    }

    #[test]
    fn a_place_has_the_last_key_until_that_is_forgotten() {
        let place = Place::new();
        assert_eq!((place.get(0), place.get(8)), (None, None));
        place.put(8, pointers(8));
        place.forget(16);
        assert_eq!((place.get(8), place.get(16), place.get(0)), (Some(pointers(8)), None, None));
        place.put(16, pointers(16));
        assert_eq!((place.get(8), place.get(16)), (None, Some(pointers(16))));
        place.forget(16);
        assert_eq!((place.get(16), place.get(0)), (None, None));
    }

    #[test]
    fn a_key_never_has_the_pointers_of_another_one() {
        let place = Place::new();
        let keys = |n: usize| 8 + n % 2 * 8;
        place.put(keys(0), pointers(keys(0)));
        std::thread::scope(|scope| {
            // The place is empty only while it is changed, so the reader finds enough.
            let reader = scope.spawn(|| {
                let found = (0..).map(keys).filter_map(|key| Some((key, place.get(key)?)));
                found.take(100_000).for_each(|(key, found)| assert_eq!(found, pointers(key)));
            });
            for key in (1..).map(keys).take_while(|_| !reader.is_finished()) {
                place.put(key, pointers(key));
                // Or the reader seldom finds a place that is not changed during its search.
                (0..16).for_each(|_| core::hint::spin_loop());
            }
            reader.join().unwrap();
        });
    }
}
