// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets and maps by the address of an object.
//!
//! Each call that takes an object looks its address up, also the calls of events, so the hash is one multiplication. Addresses come from
//! this process's allocator, so a peer can't choose addresses whose hashes collide.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet};

/// A map by address.
pub(crate) type AddressMap<T> = HashMap<usize, T, BuildHasherDefault<AddressHasher>>;

/// A set of addresses.
pub(crate) type AddressSet = HashSet<usize, BuildHasherDefault<AddressHasher>>;

/// 2^64 divided by the golden ratio: the product's upper bits depend on all bits of the address.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(byte.into());
        }
    }

    fn write_usize(&mut self, address: usize) {
        // The maps use the lower bits first.
        self.0 = (self.0 ^ address as u64).wrapping_mul(FACTOR).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(address: usize) -> u64 {
        let mut hasher = AddressHasher::default();
        hasher.write_usize(address);
        hasher.finish()
    }

    /// A map of 2^n places uses n lower bits. Objects of one size are at equal distances, which must not make them meet.
    #[test]
    fn objects_at_equal_distances_have_different_places() {
        for distance in [16, 64, 96, 4096, 1 << 20] {
            let places: HashSet<u64> =
                (0..1024).map(|i| hash(0x7f00_0000_1000 + i * distance) & 0xfff).collect();
            assert!(places.len() > 700, "{distance}: {} of 1024", places.len());
        }
    }

    #[test]
    fn a_map_finds_what_it_has() {
        let mut map = AddressMap::default();
        (0..10_000).for_each(|i| assert!(map.insert(0x5555_0000 + i * 64, i).is_none()));
        assert!((0..10_000).all(|i| map.remove(&(0x5555_0000 + i * 64)) == Some(i)));
        assert!(map.is_empty());
    }
}
