// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of a device by number, and how many of them use each other object.
//!
//! An object that is used can't be destroyed. A search for its users would make the destruction of each object as expensive
//! as the number of all others.

pub use uverbs_fabric::Users;

/// Objects of a page of the table.
const PAGE: usize = 256;

/// Some numbers that follow one another, and how many of them have an object.
#[derive(Debug)]
struct Page<T> {
    used: usize,
    slots: [Option<Box<T>>; PAGE],
}

/// Objects of a kind by number, of 24 bits. Only the device adds and removes them, because it counts what they use.
///
/// A number is an index, so that the cost of an access does not grow with the number of objects, and an object can be taken out for the time
/// of a call by a move of its pointer.
#[derive(Debug)]
pub struct Table<T> {
    pages: Vec<Option<Box<Page<T>>>>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), len: 0 }
    }
}

/// The page of a number, and its place there.
const fn place(number: u32) -> (usize, usize) {
    (number as usize / PAGE, number as usize % PAGE)
}

impl<T> Table<T> {
    /// The object of this number.
    #[must_use]
    #[inline]
    pub fn get(&self, number: &u32) -> Option<&T> {
        let (page, slot) = place(*number);
        self.pages.get(page)?.as_ref()?.slots[slot].as_deref()
    }

    /// As [`get`](Self::get), to change it.
    #[inline]
    pub fn get_mut(&mut self, number: &u32) -> Option<&mut T> {
        self.slot(*number)?.as_deref_mut()
    }

    /// Whether there is an object of this number.
    #[must_use]
    pub fn contains_key(&self, number: &u32) -> bool {
        self.get(number).is_some()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The objects with their numbers, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pages = self.pages.iter().enumerate().filter_map(|(i, page)| Some((i, page.as_ref()?)));
        pages.flat_map(|(i, page)| {
            let slots = page.slots.iter().enumerate();
            slots.filter_map(move |(slot, object)| Some(((i * PAGE + slot) as u32, object.as_deref()?)))
        })
    }

    /// The objects by number.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, object)| object)
    }

    /// The numbers of the objects.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.iter().map(|(number, _)| number)
    }

    #[inline]
    fn slot(&mut self, number: u32) -> Option<&mut Option<Box<T>>> {
        let (page, slot) = place(number);
        Some(&mut self.pages.get_mut(page)?.as_mut()?.slots[slot])
    }

    pub(super) fn insert(&mut self, number: u32, object: T) -> Option<T> {
        let (page, slot) = place(number);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page =
            self.pages[page].get_or_insert_with(|| Box::new(Page { used: 0, slots: [const { None }; PAGE] }));
        let old = page.slots[slot].replace(Box::new(object));
        let is_new = usize::from(old.is_none());
        page.used += is_new;
        self.len += is_new;
        old.map(|old| *old)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let removed = self.slot(number)?.take()?;
        let (page, _) = place(number);
        self.len -= 1;
        if let Some(of) = &mut self.pages[page] {
            of.used -= 1;
            if of.used == 0 {
                self.pages[page] = None;
                let used = self.pages.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                self.pages.truncate(used);
            }
        }
        Some(*removed)
    }

    /// Takes an object out. Until it is [put back](Self::put_back), the table has none of its number, and it still counts.
    #[inline]
    pub(super) fn take(&mut self, number: u32) -> Option<Box<T>> {
        self.slot(number)?.take()
    }

    /// Puts an object back that was taken out.
    #[inline]
    pub(super) fn put_back(&mut self, number: u32, object: Box<T>) {
        if let Some(slot) = self.slot(number) {
            *slot = Some(object);
        }
    }
}

impl<T> core::ops::Index<&u32> for Table<T> {
    type Output = T;

    fn index(&self, number: &u32) -> &T {
        self.get(number).expect("an object of this number")
    }
}

/// What an object uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    pub(super) pd: Option<u32>,
    pub(super) cqs: [Option<u32>; 2],
    pub(super) srq: Option<u32>,
}

/// The users of the objects of a device.
#[derive(Debug, Default)]
pub(super) struct AllUsers {
    pub(super) of_pds: Users,
    pub(super) of_cqs: Users,
    pub(super) of_srqs: Users,
}

impl AllUsers {
    pub(super) fn add(&mut self, uses: &Uses) {
        uses.pd.into_iter().for_each(|pd| self.of_pds.add(pd));
        uses.cqs.into_iter().flatten().for_each(|cqn| self.of_cqs.add(cqn));
        uses.srq.into_iter().for_each(|srqn| self.of_srqs.add(srqn));
    }

    pub(super) fn remove(&mut self, uses: &Uses) {
        uses.pd.iter().for_each(|pd| self.of_pds.remove(pd));
        uses.cqs.iter().flatten().for_each(|cqn| self.of_cqs.remove(cqn));
        uses.srq.iter().for_each(|srqn| self.of_srqs.remove(srqn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_their_numbers_in_order() {
        let mut table = Table::default();
        for number in [0x100, 0xff_ffff, 0x1ff, 3] {
            assert_eq!(table.insert(number, number), None);
        }
        assert_eq!(table.insert(3, 4), Some(3));
        assert_eq!(
            table.iter().collect::<Vec<_>>(),
            [(3, &4), (0x100, &0x100), (0x1ff, &0x1ff), (0xff_ffff, &0xff_ffff)]
        );
        assert_eq!((table.len(), table.get(&4), table.get(&u32::MAX)), (4, None, None));
        assert_eq!(table.remove(5), None);
        *table.get_mut(&0x100).unwrap() = 7;
        assert_eq!(
            (table.remove(0x100), table.remove(0x100), table.contains_key(&0x1ff)),
            (Some(7), None, true)
        );
        assert_eq!(table.values().copied().collect::<Vec<_>>(), [4, 0x1ff, 0xff_ffff]);
    }

    #[test]
    fn an_object_that_is_taken_out_still_counts() {
        let mut table = Table::default();
        table.insert(1, 'a');
        let taken = table.take(1).unwrap();
        assert!(table.take(1).is_none());
        assert_eq!((table.get(&1), table.len()), (None, 1));
        table.put_back(1, taken);
        assert_eq!((table.get(&1), table.len()), (Some(&'a'), 1));
    }

    #[test]
    fn an_empty_table_has_no_memory_of_its_objects() {
        let mut table = Table::default();
        for number in 0..1000 {
            table.insert(number << 12, ());
        }
        (0..1000).for_each(|number| assert!(table.remove(number << 12).is_some()));
        assert!(table.is_empty() && table.pages.is_empty());
    }
}
