// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open device file: its objects by handle.

use super::events::EventFile;
use super::object::Object;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use uverbs_core::Errno;

/// An object, and the kernel's data about it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) object: Object,
    /// The number of objects that were created from it.
    pub(super) users: u32,
    /// The handles of the objects that it was created from.
    pub(super) parents: Vec<u32>,
    pub(super) user_handle: u64,
    /// The number of events that were written to files.
    pub(super) completions: u32,
    pub(super) asyncs: u32,
}

/// The number of an object's events that were read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    pub(super) completions: u32,
    pub(super) asyncs: u32,
}

/// An open device file.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) is_open: bool,
    pub(super) objects: BTreeMap<u32, Entry>,
    /// The free handles below those that have been used.
    free: BTreeSet<u32>,
    /// The lowest handle that has not been used.
    unused: u32,
    /// Asynchronous events, with a copy of the program's end.
    pub(super) asyncs: Option<(EventFile, OwnedFd)>,
    /// Further event files, which receive only events of the port.
    pub(super) more_asyncs: Vec<EventFile>,
    /// The doorbell pages of the context, if pages are not objects.
    pub(super) static_pages: Vec<u32>,
    /// The next of these pages; QPs use them in turn.
    pub(super) next_page: usize,
    /// Whether the context requested pages as objects.
    pub(super) dynamic_pages: bool,
    pub(super) cqe_version: u8,
    /// Whether it was opened for commands to the firmware.
    pub(super) devx: bool,
}

impl Context {
    /// Adds an object under the lowest free handle (`xa_alloc()`).
    pub(super) fn add(&mut self, object: Object, parents: &[u32], user_handle: u64) -> u32 {
        let handle = self.free.pop_first().unwrap_or_else(|| {
            self.unused += 1;
            self.unused - 1
        });
        for parent in parents {
            if let Some(entry) = self.objects.get_mut(parent) {
                entry.users += 1;
            }
        }
        let parents = parents.to_vec();
        let entry = Entry { object, users: 0, parents, user_handle, completions: 0, asyncs: 0 };
        self.objects.insert(handle, entry);
        handle
    }

    /// Removes an object; its handle is free then.
    pub(super) fn remove(&mut self, handle: u32) -> Result<Entry, Errno> {
        let entry = self.objects.remove(&handle).ok_or(Errno::ENOENT)?;
        self.free.insert(handle);
        Ok(entry)
    }

    pub(super) fn get(&self, handle: u32) -> Result<&Object, Errno> {
        self.objects.get(&handle).map(|e| &e.object).ok_or(Errno::ENOENT)
    }

    /// A doorbell page of this context by its number.
    pub(super) fn page(&self, number: u32) -> Result<u32, Errno> {
        let own = |o: &Object| matches!(o, Object::Uar { page } if *page == number);
        let has = self.static_pages.contains(&number) || self.objects.values().any(|e| own(&e.object));
        if has { Ok(number) } else { Err(Errno::EINVAL) }
    }

    /// The first parent of an object: its protection domain.
    pub(super) fn first_parent(&self, handle: u32) -> Option<u32> {
        self.objects.get(&handle)?.parents.first().copied()
    }

    /// Replaces a parent by another one.
    pub(super) fn change_parent(&mut self, handle: u32, from: u32, to: u32) {
        if let Some(entry) = self.objects.get_mut(&from) {
            entry.users -= 1;
        }
        if let Some(entry) = self.objects.get_mut(&to) {
            entry.users += 1;
        }
        if let Some(parent) =
            self.objects.get_mut(&handle).and_then(|e| e.parents.iter_mut().find(|p| **p == from))
        {
            *parent = to;
        }
    }

    pub(super) fn open_asyncs(&mut self) -> Result<OwnedFd, Errno> {
        let (file, rx) = EventFile::new()?;
        if self.asyncs.is_none() {
            self.asyncs = Some((file, rx.try_clone().map_err(|_| Errno::EMFILE)?));
        } else {
            self.more_asyncs.push(file);
        }
        Ok(rx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use std::time::Instant;

    #[test]
    fn the_lowest_free_handle_is_found_without_a_search() {
        let mut context = Context::default();
        let mut add = |count: u32| {
            let start = Instant::now();
            for pdn in 0..count {
                context.add(Object::Pd { pdn }, &[], 0);
            }
            start.elapsed()
        };
        let first = add(50).max(Duration::from_micros(10));
        add(16_000);
        let last = [(); 5].map(|()| add(50)).into_iter().min().unwrap();
        assert!(last < first * 50, "{first:?}, with other objects {last:?}");
        for handle in [9, 3, 700] {
            context.remove(handle).unwrap();
        }
        assert_eq!(context.remove(3).unwrap_err(), Errno::ENOENT);
        let next = [(); 4].map(|()| context.add(Object::Ah, &[], 0));
        assert_eq!(next, [3, 9, 700, 16_300]);
    }
}
