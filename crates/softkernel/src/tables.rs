// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contexts of a device, the owners of its objects, and the delivery of events to them.

use crate::channels::CompChannels;
use crate::events::EventFile;
use crate::handles::{Context, Entry, Reported};
use crate::object::{Kind, Object};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use uverbs_core::Errno;
use uverbs_fabric::map::{Map, Set};
use uverbs_uapi::event::{
    IB_EVENT_CQ_ERR, IB_EVENT_DEVICE_FATAL, IB_EVENT_GID_CHANGE, IB_EVENT_LID_CHANGE, IB_EVENT_PORT_ACTIVE,
    IB_EVENT_PORT_ERR, IB_EVENT_SRQ_ERR, IB_EVENT_SRQ_LIMIT_REACHED, IB_EVENT_WQ_FATAL,
    ib_uverbs_async_event_desc, ib_uverbs_comp_event_desc,
};
use zerocopy::{FromBytes, IntoBytes};

/// The contexts of a device.
#[derive(Debug)]
pub struct Tables<O: Object> {
    contexts: Map<u32, Context<O>>,
    next: u32,
    /// The completion channels.
    pub channels: CompChannels,
    /// The objects of each kind.
    counts: BTreeMap<&'static str, usize>,
    /// The contexts with a file of asynchronous events that was full.
    late: Set<u32>,
    /// The contexts that own an object, with its handle.
    owners: Map<(Kind, u32), Vec<(u32, u32)>>,
    /// The contexts that ended before their device files were closed, with their files of asynchronous events.
    ended: Map<u32, Vec<EventFile>>,
    /// Whether the device was removed.
    is_removed: bool,
}

impl<O: Object> Tables<O> {
    /// No contexts; they get the numbers behind this one.
    #[must_use]
    pub fn new(next: u32) -> Self {
        Self {
            contexts: Map::new(),
            next,
            channels: CompChannels::default(),
            counts: BTreeMap::new(),
            late: Set::new(),
            owners: Map::new(),
            ended: Map::new(),
            is_removed: false,
        }
    }

    /// The number of objects of each kind, in all contexts.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.counts.clone()
    }

    /// Changes the number of objects of a kind, as if there were more of them, for tests of limits. Returns the previous one.
    pub fn pretend(&mut self, name: &'static str, count: usize) -> usize {
        self.counts.insert(name, count).unwrap_or_default()
    }

    /// Counts an object that was added or removed.
    fn count(&mut self, name: &'static str, is_new: bool) {
        let count = self.counts.entry(name).or_default();
        if is_new {
            *count += 1;
        } else {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(name);
            }
        }
    }

    /// A new number for a context, and for objects without a limit of their numbers.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A new context. If the device was removed, its commands fail.
    pub fn open(&mut self) -> u32 {
        let number = self.number();
        if !self.is_removed {
            self.contexts.insert(number, Context::default());
        }
        number
    }

    /// The numbers of all contexts.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        self.contexts.keys().collect()
    }

    /// A context.
    ///
    /// # Errors
    /// `EIO` if there is none, because it has ended.
    pub fn context(&mut self, number: u32) -> Result<&mut Context<O>, Errno> {
        self.contexts.get_mut(&number).ok_or(Errno::EIO)
    }

    /// An object of a context.
    ///
    /// # Errors
    /// There is no such context (`EIO`) or object (`ENOENT`).
    pub fn get(&self, context: u32, handle: u32) -> Result<&O, Errno> {
        self.contexts.get(&context).ok_or(Errno::EIO)?.get(handle)
    }

    /// Whether this context ended before its device file was closed.
    #[must_use]
    pub fn has_ended(&self, number: u32) -> bool {
        self.ended.contains_key(&number)
    }

    /// Adds an object to a context, and enables the delivery of its events. Its parents can't be destroyed before it.
    ///
    /// # Errors
    /// The context has ended (`EIO`), or there are too many objects of the kind (`ENOMEM`); with the object.
    pub fn add(
        &mut self,
        context: u32,
        object: O,
        parents: &[u32],
        user_handle: u64,
    ) -> Result<u32, (Errno, O)> {
        let (name, number) = (object.name(), object.number());
        if self.counts.get(name).is_some_and(|count| *count >= object.most()) {
            return Err((Errno::ENOMEM, object));
        }
        let Some(found) = self.contexts.get_mut(&context) else { return Err((Errno::EIO, object)) };
        let handle = match found.add(object, parents, user_handle) {
            Ok(handle) => handle,
            Err(object) => return Err((Errno::ENOMEM, object)),
        };
        self.count(name, true);
        if let Some(number) = number {
            self.owners.get_or_default(number).push((context, handle));
        }
        Ok(handle)
    }

    /// An object that is to be destroyed, if `is` is true for it.
    ///
    /// # Errors
    /// There is no such object (`ENOENT`); other objects use it (`EBUSY`).
    pub fn unused(
        &mut self,
        context: u32,
        handle: u32,
        is: impl Fn(&O) -> bool,
    ) -> Result<&mut Entry<O>, Errno> {
        let entry = self.context(context)?.objects.get_mut(&handle).filter(|e| is(&e.object));
        let entry = entry.ok_or(Errno::ENOENT)?;
        if entry.users > 0 { Err(Errno::EBUSY) } else { Ok(entry) }
    }

    /// Removes an object from its context, and its events from their files. The device's notices about it must be in the
    /// files before.
    ///
    /// # Errors
    /// There is no such context (`EIO`) or object (`ENOENT`).
    pub fn take(&mut self, number: u32, handle: u32) -> Result<(O, Reported), Errno> {
        let context = self.contexts.get_mut(&number).ok_or(Errno::EIO)?;
        let entry = context.remove(handle)?;
        let name = entry.object.name();
        for parent in &entry.parents {
            if let Some(parent) = context.objects.get_mut(parent) {
                parent.users -= 1;
            }
        }
        let mut reported = Reported { completions: entry.completions, asyncs: entry.asyncs };
        if entry.asyncs > 0
            && let Some((kind, _)) = entry.object.number()
            && let Some((file, rx)) = &mut context.asyncs
        {
            reported.asyncs -= file
                .purge(rx.as_fd(), entry.user_handle, |r| is_async(r, kind, entry.user_handle))
                .min(entry.asyncs);
            if file.has_backlog() {
                self.late.insert(number);
            }
        }
        // An object without events has none in its file, whose records are not read then.
        if entry.completions > 0
            && let Some((channel, rx)) = entry.object.channel()
        {
            let purged = self.channels.purge(channel, rx, entry.user_handle);
            reported.completions -= purged.min(entry.completions);
        }
        self.count(name, false);
        if let Some(key) = entry.object.number()
            && let Some(owners) = self.owners.get_mut(&key)
        {
            owners.retain(|owner| *owner != (number, handle));
            if owners.is_empty() {
                self.owners.remove(&key);
            }
        }
        Ok((entry.object, reported))
    }

    /// Writes the completion event of a CQ to its channel.
    pub fn complete(&mut self, cqn: u32) {
        let owners = self.owners.get(&(Kind::Cq, cqn)).map_or(&[][..], Vec::as_slice);
        for (context, handle) in owners {
            let entry = self.contexts.get_mut(context).and_then(|c| c.objects.get_mut(handle));
            let Some(entry) = entry else { continue };
            let Some((channel, _)) = entry.object.channel() else { continue };
            let record = ib_uverbs_comp_event_desc { cq_handle: entry.user_handle };
            if self.channels.push(channel, record.as_bytes()) {
                entry.completions += 1;
            }
        }
    }

    /// Writes an asynchronous event of an object to the files of its owners.
    pub fn raise(&mut self, kind: Kind, number: u32, event: u32) {
        let owners = self.owners.get(&(kind, number)).map_or(&[][..], Vec::as_slice);
        for (number, handle) in owners {
            let Some(context) = self.contexts.get_mut(number) else { continue };
            let Some(entry) = context.objects.get_mut(handle) else { continue };
            if let Some((file, _)) = &mut context.asyncs {
                // The destruction waits for the acknowledgement of each that is counted.
                entry.asyncs += u32::from(file.push(record(entry.user_handle, event).as_bytes()));
                if file.has_backlog() {
                    self.late.insert(*number);
                }
            }
        }
    }

    /// Writes an event of the port (number 1) to the files of all contexts.
    pub fn raise_on_port(&mut self, event: u32) {
        let record = record(1, event);
        let late = &mut self.late;
        self.contexts.each_mut(|number, context| {
            for file in context.asyncs() {
                let _ = file.push(record.as_bytes());
            }
            if context.flush_asyncs() {
                late.insert(number);
            }
        });
    }

    /// Writes the events for which the files had no room.
    pub fn flush(&mut self) {
        self.channels.flush();
        let contexts = &mut self.contexts;
        self.late.retain(|number| contexts.get_mut(&number).is_some_and(Context::flush_asyncs));
    }

    /// Whether a file had no room for an event.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.channels.has_backlog() || !self.late.is_empty()
    }

    /// A context is about to be closed: the handles of its objects, in the order in which they must be taken; `None` if
    /// there is no such context any more.
    pub fn begin_close(&mut self, number: u32, order: impl Fn(&O) -> u8) -> Option<Vec<u32>> {
        self.ended.remove(&number);
        let context = self.contexts.get(&number)?;
        let mut handles: Vec<(u8, u32)> =
            context.objects.iter().map(|(handle, entry)| (order(&entry.object), handle)).collect();
        handles.sort_unstable();
        Some(handles.into_iter().map(|(_, handle)| handle).collect())
    }

    /// Removes a context, whose objects were taken, and returns the model's data of it.
    pub fn close(&mut self, number: u32) -> Option<O::Data> {
        let context = self.contexts.remove(&number)?;
        self.late.remove(&number);
        self.channels.close(number);
        Some(context.data)
    }

    /// Takes the files of asynchronous events of a context that is about to end.
    pub fn take_asyncs(&mut self, number: u32) -> Vec<EventFile> {
        let mut files = Vec::new();
        if let Some(context) = self.contexts.get_mut(&number) {
            files.extend(context.asyncs.take().map(|(file, _)| file));
            files.append(&mut context.more_asyncs);
        }
        files
    }

    /// A context, which was closed, has ended before its device file. If the device is removed, its files of asynchronous
    /// events get an event and remain open (`ib_uverbs_free_hw_resources()`); otherwise they are closed at this end.
    pub fn end(&mut self, number: u32, mut files: Vec<EventFile>, is_removed: bool) {
        if is_removed {
            for file in &mut files {
                let _ = file.push(record(0, IB_EVENT_DEVICE_FATAL).as_bytes());
            }
        } else {
            files.clear();
        }
        self.ended.insert(number, files);
    }

    /// All contexts have ended: the completion channels end, too. A removed device can't be opened again.
    pub fn end_channels(&mut self, is_removed: bool) {
        self.channels.clear();
        self.is_removed |= is_removed;
    }
}

fn record(element: u64, event: u32) -> ib_uverbs_async_event_desc {
    ib_uverbs_async_event_desc { element, event_type: event, ..Default::default() }
}

/// Whether a record is an event of this object; objects of different kinds may have the same user handle.
fn is_async(bytes: &[u8], kind: Kind, element: u64) -> bool {
    ib_uverbs_async_event_desc::read_from_bytes(bytes).is_ok_and(|event| {
        let of = match event.event_type {
            IB_EVENT_CQ_ERR => Kind::Cq,
            IB_EVENT_SRQ_ERR | IB_EVENT_SRQ_LIMIT_REACHED => Kind::Srq,
            IB_EVENT_WQ_FATAL => Kind::Wq,
            IB_EVENT_PORT_ACTIVE | IB_EVENT_PORT_ERR | IB_EVENT_LID_CHANGE | IB_EVENT_GID_CHANGE => {
                return false;
            }
            _ => Kind::Qp,
        };
        event.element == element && of == kind
    })
}
