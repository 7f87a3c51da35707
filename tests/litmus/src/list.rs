// SPDX-License-Identifier: MIT OR Apache-2.0
//! A short list in place, so that a state is copied at once: the oracle copies one for each step.

use core::hash::{Hash, Hasher};
use core::ops::{Deref, DerefMut};

/// A list of at most `N` items. One more is a panic: the programs are too small for that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<T, const N: usize> {
    len: u8,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self { len: 0, items: [T::default(); N] }
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }
}

impl<T: Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self[..].hash(state);
    }
}

impl<T: Copy, const N: usize> List<T, N> {
    pub(crate) fn push(&mut self, item: T) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, at: usize) -> T {
        let item = self[at];
        self.items.copy_within(at + 1..usize::from(self.len), at);
        self.len -= 1;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_like_a_vec() {
        let mut list = List::<u8, 3>::default();
        [1, 2, 3].into_iter().for_each(|n| list.push(n));
        assert_eq!(list.remove(1), 2);
        assert_eq!(list[..], [1, 3]);
        list.push(4);
        list[0] = 5;
        assert_eq!(list[..], [5, 3, 4]);
    }
}
