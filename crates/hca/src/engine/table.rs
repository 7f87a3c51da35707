// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of a device by number, and how many of them use each other object.
//!
//! An object that is used can't be destroyed. A search for its users would make the destruction of each object as expensive
//! as the number of all others.

use core::ops::Deref;
use std::collections::BTreeMap;
pub use uverbs_fabric::Users;

/// Objects of a kind by number. Only the device adds and removes them, because it counts what they use.
#[derive(Debug)]
pub struct Table<T>(BTreeMap<u32, T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Deref for Table<T> {
    type Target = BTreeMap<u32, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> Table<T> {
    /// The object of this number.
    pub fn get_mut(&mut self, number: &u32) -> Option<&mut T> {
        self.0.get_mut(number)
    }

    pub(super) fn insert(&mut self, number: u32, object: T) -> Option<T> {
        self.0.insert(number, object)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.0.remove(&number)
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
