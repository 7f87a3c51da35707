// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open device file: its objects by handle.

use super::events::EventFile;
use super::object::Object;
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
#[derive(Debug, Default)]
pub(super) struct Context {
    pub(super) is_open: bool,
    pub(super) objects: BTreeMap<u32, Entry>,
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
        let handle = (0..).find(|h| !self.objects.contains_key(h)).unwrap_or(u32::MAX);
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
