// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which packets of a message have arrived, or were answered: a window of fixed size, in which they have any order.

/// The packets after the lowest missing one that may have arrived.
pub(crate) const WINDOW: u32 = 256;

const WORDS: usize = WINDOW as usize / 64;

/// A window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// The lowest packet that is missing.
    low: u32,
    /// Bit `n` is packet `low + n`.
    bits: [u64; WORDS],
}

impl Window {
    /// The lowest packet that is missing.
    pub(crate) fn low(&self) -> u32 {
        self.low
    }

    /// Whether a packet may be added: it is not behind the window.
    pub(crate) fn has_room(&self, index: u32) -> bool {
        index - self.low.min(index) < WINDOW
    }

    /// Whether a packet was added.
    pub(crate) fn has(&self, index: u32) -> bool {
        match index.checked_sub(self.low) {
            None => true,
            Some(n) if n < WINDOW => self.bits[n as usize / 64] & 1 << (n % 64) != 0,
            Some(_) => false,
        }
    }

    /// Adds a packet; `false` if it was added already, or is behind the window.
    pub(crate) fn add(&mut self, index: u32) -> bool {
        if self.has(index) || !self.has_room(index) {
            return false;
        }
        let n = index - self.low;
        self.bits[n as usize / 64] |= 1 << (n % 64);
        while self.bits[0] & 1 != 0 {
            for i in 0..WORDS {
                let next = self.bits.get(i + 1).map_or(0, |word| word << 63);
                self.bits[i] = self.bits[i] >> 1 | next;
            }
            self.low += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_window_has_what_was_added(indices in proptest::collection::vec(0..700_u32, 0..600)) {
            let (mut window, mut all) = (Window::default(), BTreeSet::new());
            for index in indices {
                let low = (0..).find(|i| !all.contains(i)).unwrap();
                prop_assert_eq!(window.low(), low);
                let fits = index < low + WINDOW;
                prop_assert_eq!(window.has_room(index), fits);
                prop_assert_eq!(window.add(index), fits && all.insert(index));
                prop_assert!(!fits || window.has(index));
            }
        }
    }

    #[test]
    fn a_window_moves_by_many_packets() {
        let mut window = Window::default();
        for index in (0..WINDOW).rev() {
            assert!(window.add(index) && !window.add(index));
        }
        assert_eq!((window.low(), window.bits), (WINDOW, [0; WORDS]));
    }
}
