// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open device file: its objects by handle.

use crate::events::EventFile;
use crate::object::Object;
use std::os::fd::OwnedFd;
use uverbs_core::Errno;
use uverbs_fabric::map::Map;
use uverbs_fabric::numbers::Numbers;

/// An object, and the kernel's data about it.
#[derive(Debug)]
pub struct Entry<O> {
    /// The object.
    pub object: O,
    /// The number of objects that were created from it.
    pub users: u32,
    /// The handles of the objects that it was created from.
    pub parents: Vec<u32>,
    /// The program's number of it.
    pub user_handle: u64,
    /// The number of completion events that were written to files.
    pub completions: u32,
    /// The number of asynchronous events that were written to files.
    pub asyncs: u32,
}

/// The number of an object's events that were read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reported {
    /// Completion events.
    pub completions: u32,
    /// Asynchronous events.
    pub asyncs: u32,
}

/// An open device file.
#[derive(Debug)]
pub struct Context<O: Object> {
    /// Whether the program has its context (`GET_CONTEXT`).
    pub is_open: bool,
    /// The objects by handle.
    pub objects: Map<u32, Entry<O>>,
    handles: Numbers,
    /// The handles of objects that programs name by a number of another kind.
    by_number: Map<O::Number, u32>,
    /// Asynchronous events, with a copy of the program's end.
    pub(crate) asyncs: Option<(EventFile, OwnedFd)>,
    /// Further event files, which receive only events of the port.
    pub(crate) more_asyncs: Vec<EventFile>,
    /// What the model stores.
    pub data: O::Data,
}

impl<O: Object> Default for Context<O> {
    fn default() -> Self {
        Self {
            is_open: false,
            objects: Map::new(),
            handles: Numbers::new(0..u32::MAX),
            by_number: Map::new(),
            asyncs: None,
            more_asyncs: Vec::new(),
            data: O::Data::default(),
        }
    }
}

impl<O: Object> Context<O> {
    /// Adds an object under the lowest free handle (`xa_alloc()`).
    /// Returns the object if there is no free handle.
    pub(crate) fn add(&mut self, object: O, parents: &[u32], user_handle: u64) -> Result<u32, O> {
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
    pub(crate) fn remove(&mut self, handle: u32) -> Result<Entry<O>, Errno> {
        let entry = self.objects.remove(&handle).ok_or(Errno::ENOENT)?;
        self.handles.free(handle);
        if let Some(number) = entry.object.other_number() {
            self.by_number.remove(&number);
        }
        Ok(entry)
    }

    /// An object.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn get(&self, handle: u32) -> Result<&O, Errno> {
        self.objects.get(&handle).map(|e| &e.object).ok_or(Errno::ENOENT)
    }

    /// The object that has another number besides its handle.
    #[must_use]
    pub fn find(&self, number: O::Number) -> Option<&O> {
        let handle = self.by_number.get(&number)?;
        self.objects.get(handle).map(|entry| &entry.object)
    }

    /// The first parent of an object: its protection domain.
    #[must_use]
    pub fn first_parent(&self, handle: u32) -> Option<u32> {
        self.objects.get(&handle)?.parents.first().copied()
    }

    /// Replaces a parent by another one.
    pub fn change_parent(&mut self, handle: u32, from: u32, to: u32) {
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
    pub(crate) fn asyncs(&mut self) -> impl Iterator<Item = &mut EventFile> {
        self.asyncs.as_mut().map(|(file, _)| file).into_iter().chain(&mut self.more_asyncs)
    }

    /// Writes the asynchronous events for which the files had no room. Returns whether there are more.
    pub(crate) fn flush_asyncs(&mut self) -> bool {
        let mut is_late = false;
        for file in self.asyncs().filter(|file| file.has_backlog()) {
            file.flush();
            is_late |= file.has_backlog();
        }
        is_late
    }

    /// A new file of asynchronous events. Returns the program's end.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn open_asyncs(&mut self) -> Result<OwnedFd, Errno> {
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
    use crate::object::Kind;

    /// An object that is a number.
    #[derive(Debug, PartialEq)]
    struct Number(Option<u32>);

    impl Object for Number {
        type Number = u32;
        type Data = ();

        fn name(&self) -> &'static str {
            "number"
        }

        fn most(&self) -> usize {
            usize::MAX
        }

        fn other_number(&self) -> Option<u32> {
            self.0
        }

        fn number(&self) -> Option<(Kind, u32)> {
            None
        }

        fn channel(&self) -> Option<(usize, &OwnedFd)> {
            None
        }
    }

    #[test]
    fn the_lowest_free_handle_is_used() {
        let mut context = Context::default();
        for n in 0..16_300 {
            context.add(Number(Some(n)), &[], 0).unwrap();
        }
        assert_eq!(context.find(16_299), Some(&Number(Some(16_299))));
        assert!(context.find(16_300).is_none());
        for handle in [9, 3, 700] {
            context.remove(handle).unwrap();
        }
        assert_eq!(context.remove(3).unwrap_err(), Errno::ENOENT);
        assert!(context.find(700).is_none());
        let next = [(); 4].map(|()| context.add(Number(None), &[], 0).unwrap());
        assert_eq!(next, [3, 9, 700, 16_300]);
    }
}
