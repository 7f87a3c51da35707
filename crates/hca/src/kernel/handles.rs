// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open device file: its objects by handle.

use super::events::EventFile;
use super::object::{Numbered, Object};
use crate::numbers::Numbers;
use std::collections::BTreeMap;
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
#[derive(Debug)]
pub(super) struct Context {
    pub(super) is_open: bool,
    pub(super) objects: BTreeMap<u32, Entry>,
    handles: Numbers,
    /// The handles of objects that programs name by a number of another kind.
    by_number: BTreeMap<(Numbered, u32), u32>,
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

impl Default for Context {
    fn default() -> Self {
        Self {
            is_open: false,
            objects: BTreeMap::new(),
            handles: Numbers::new(0..u32::MAX),
            by_number: BTreeMap::new(),
            asyncs: None,
            more_asyncs: Vec::new(),
            static_pages: Vec::new(),
            next_page: 0,
            dynamic_pages: false,
            cqe_version: 0,
            devx: false,
        }
    }
}

impl Context {
    /// Adds an object under the lowest free handle (`xa_alloc()`).
    /// Returns the object if there is no free handle.
    pub(super) fn add(&mut self, object: Object, parents: &[u32], user_handle: u64) -> Result<u32, Object> {
        let Some(handle) = self.handles.alloc() else { return Err(object) };
        if let Some(number) = object.other_number() {
            self.by_number.insert(number, handle);
        }
        for parent in parents {
            if let Some(entry) = self.objects.get_mut(parent) {
                entry.users += 1;
            }
        }
        let parents = parents.to_vec();
        let entry = Entry { object, users: 0, parents, user_handle, completions: 0, asyncs: 0 };
        self.objects.insert(handle, entry);
        Ok(handle)
    }

    /// Removes an object; its handle is free then.
    pub(super) fn remove(&mut self, handle: u32) -> Result<Entry, Errno> {
        let entry = self.objects.remove(&handle).ok_or(Errno::ENOENT)?;
        self.handles.free(handle);
        if let Some(number) = entry.object.other_number() {
            self.by_number.remove(&number);
        }
        Ok(entry)
    }

    pub(super) fn get(&self, handle: u32) -> Result<&Object, Errno> {
        self.objects.get(&handle).map(|e| &e.object).ok_or(Errno::ENOENT)
    }

    /// A doorbell page of this context by its number.
    pub(super) fn page(&self, number: u32) -> Result<u32, Errno> {
        // A context has at most 256 pages that are no objects.
        let has = self.find(Numbered::Page, number).is_some() || self.static_pages.contains(&number);
        if has { Ok(number) } else { Err(Errno::EINVAL) }
    }

    /// The object that has another number besides its handle.
    pub(super) fn find(&self, kind: Numbered, number: u32) -> Option<&Object> {
        let handle = self.by_number.get(&(kind, number))?;
        self.objects.get(handle).map(|entry| &entry.object)
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

    /// The files of asynchronous events.
    pub(super) fn asyncs(&mut self) -> impl Iterator<Item = &mut EventFile> {
        self.asyncs.as_mut().map(|(file, _)| file).into_iter().chain(&mut self.more_asyncs)
    }

    /// Writes the asynchronous events for which the files had no room. Returns whether there are more.
    pub(super) fn flush_asyncs(&mut self) -> bool {
        let mut is_late = false;
        for file in self.asyncs().filter(|file| file.has_backlog()) {
            file.flush();
            is_late |= file.has_backlog();
        }
        is_late
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

    #[test]
    fn the_lowest_free_handle_is_used() {
        let mut context = Context::default();
        for pdn in 0..16_300 {
            context.add(Object::Pd { pdn }, &[], 0).unwrap();
        }
        assert!(matches!(context.find(Numbered::Pd, 16_299), Some(Object::Pd { pdn: 16_299 })));
        assert!(context.find(Numbered::Page, 3).is_none());
        for handle in [9, 3, 700] {
            context.remove(handle).unwrap();
        }
        assert_eq!(context.remove(3).unwrap_err(), Errno::ENOENT);
        assert!(context.find(Numbered::Pd, 700).is_none());
        let next = [(); 4].map(|()| context.add(Object::Ah, &[], 0).unwrap());
        assert_eq!(next, [3, 9, 700, 16_300]);
    }
}
