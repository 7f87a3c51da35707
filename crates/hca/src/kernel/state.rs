// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: its contexts, the receivers of events, and the destruction of objects.

use super::devx::Channels;
use super::events::EventFile;
use super::handles::{Context, Reported};
use super::object::{Kind, Object};
use crate::config::Config;
use crate::engine::Front;
use crate::engine::flow::Target;
use crate::engine::{Device, Notice, Port, event};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use uverbs_core::Errno;
use uverbs_uapi::event::{ib_uverbs_async_event_desc, ib_uverbs_comp_event_desc};
use zerocopy::{FromBytes, IntoBytes};

/// An XRC domain, with or without an inode.
#[derive(Debug)]
pub(super) struct Xrcd {
    pub(super) xrcdn: u32,
    pub(super) inode: Option<(u64, u64)>,
    pub(super) users: u32,
}

/// The kernel's state of a device.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) config: Config,
    pub(super) contexts: BTreeMap<u32, Context>,
    next: u32,
    pub(super) channels: BTreeMap<usize, EventFile>,
    next_channel: usize,
    /// Files of events, and subscriptions, of objects that commands created.
    pub(super) devx: Channels,
    pub(super) xrcds: Vec<Xrcd>,
    /// The XRC targets that several contexts have open, with their handles.
    pub(super) shared_qps: BTreeMap<u32, u32>,
    pages: BTreeSet<u32>,
    /// The contexts that own an object.
    owners: BTreeMap<(Kind, u32), Vec<(u32, u32)>>,
    /// The contexts that ended before their device files were closed, with their files of asynchronous events.
    ended: BTreeMap<u32, Vec<EventFile>>,
    /// Whether the device was removed.
    is_removed: bool,
    /// The recorded notices, for tests.
    #[cfg(test)]
    pub(crate) seen: Option<Vec<Notice>>,
}

impl State {
    /// The number of objects of each kind, in all contexts.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for entry in self.contexts.values().flat_map(|c| c.objects.values()) {
            *counts.entry(entry.object.name()).or_default() += 1;
        }
        counts
    }

    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            contexts: BTreeMap::new(),
            next: 0x30,
            channels: BTreeMap::new(),
            next_channel: 0,
            devx: Channels::default(),
            xrcds: Vec::new(),
            shared_qps: BTreeMap::new(),
            pages: BTreeSet::new(),
            owners: BTreeMap::new(),
            ended: BTreeMap::new(),
            is_removed: false,
            #[cfg(test)]
            seen: None,
        }
    }

    /// A new number for a context, a protection domain or an XRC domain.
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(crate) fn open(&mut self) -> u32 {
        let number = self.number();
        if !self.is_removed {
            self.contexts.insert(number, Context::default());
        }
        number
    }

    /// Whether this context ended before its device file was closed.
    pub(super) fn has_ended(&self, number: u32) -> bool {
        self.ended.contains_key(&number)
    }

    /// Ends all contexts, with an event if the device is removed. Their files of asynchronous events remain open in that case,
    /// and their completion channels do not (`ib_uverbs_free_hw_resources()`).
    pub(crate) fn end_all(&mut self, device: &mut Device, cx: &mut Port<'_>, is_removed: bool) {
        self.deliver_notices(&mut device.notices);
        for number in self.contexts.keys().copied().collect::<Vec<_>>() {
            let mut files = Vec::new();
            if let Some(context) = self.contexts.get_mut(&number) {
                files.extend(context.asyncs.take().map(|(file, _)| file));
                files.append(&mut context.more_asyncs);
            }
            self.close(device, cx, number);
            if is_removed {
                files.iter_mut().for_each(|file| file.push(record(0, event::DEVICE_FATAL).as_bytes()));
            } else {
                // They are closed at this end.
                files.clear();
            }
            self.ended.insert(number, files);
        }
        self.channels.clear();
        if is_removed {
            self.is_removed = true;
            if let Some(address) = cx.address_mut() {
                address.up = false;
            }
        }
    }

    pub(super) fn context(&mut self, number: u32) -> Result<&mut Context, Errno> {
        self.contexts.get_mut(&number).ok_or(Errno::EIO)
    }

    /// Adds an object, and enables the delivery of its events.
    pub(super) fn add(
        &mut self,
        context: u32,
        object: Object,
        parents: &[u32],
        user_handle: u64,
    ) -> Result<u32, Errno> {
        let number = object.number();
        let handle = self.context(context)?.add(object, parents, user_handle);
        if let Some(number) = number {
            self.owners.entry(number).or_default().push((context, handle));
        }
        Ok(handle)
    }

    /// A doorbell page.
    pub(super) fn add_page(&mut self) -> Result<u32, Errno> {
        let max = self.config.max_uars;
        let first = 0x10;
        let free = (first..first + max).find(|page| !self.pages.contains(page)).ok_or(Errno::ENOMEM)?;
        self.pages.insert(free);
        Ok(free)
    }

    pub(super) fn remove_page(&mut self, page: u32) {
        self.pages.remove(&page);
    }

    /// A new completion channel. Channels without a reader are removed.
    pub(super) fn add_channel(&mut self) -> Result<OwnedFd, Errno> {
        self.channels.retain(|_, channel| !channel.is_closed());
        let (file, rx) = EventFile::new()?;
        self.next_channel += 1;
        self.channels.insert(self.next_channel, file);
        Ok(rx)
    }

    /// Writes the device's notices to the event files.
    fn deliver_notices(&mut self, notices: &mut Vec<Notice>) {
        for channel in self.channels.values_mut().filter(|c| c.has_backlog()) {
            channel.flush();
        }
        #[cfg(test)]
        if let Some(seen) = &mut self.seen {
            seen.extend_from_slice(notices);
        }
        self.devx.flush();
        for notice in notices.drain(..) {
            self.devx.notice(&notice);
            match notice {
                Notice::Completion { cqn } => self.completion(cqn),
                Notice::CqError { cqn } => self.event(Kind::Cq, cqn, event::CQ_ERR),
                Notice::Qp { qpn, event } => self.event(Kind::Qp, qpn, event),
                Notice::Srq { srqn, event } => self.event(Kind::Srq, srqn, event),
                Notice::Wq { wqn, event } => self.event(Kind::Wq, wqn, event),
                Notice::Port { event } => {
                    let record = record(1, event);
                    for context in self.contexts.values_mut() {
                        let first = context.asyncs.as_mut().map(|(file, _)| file);
                        for file in first.into_iter().chain(&mut context.more_asyncs) {
                            file.push(record.as_bytes());
                        }
                    }
                }
            }
        }
    }

    fn completion(&mut self, cqn: u32) {
        let owners = self.owners.get(&(Kind::Cq, cqn)).map_or(&[][..], Vec::as_slice);
        for (context, handle) in owners {
            let entry = self.contexts.get_mut(context).and_then(|c| c.objects.get_mut(handle));
            let Some(entry) = entry else { continue };
            let Object::Cq { channel: Some((channel, _)), .. } = &entry.object else { continue };
            if let Some(file) = self.channels.get_mut(channel) {
                entry.completions += 1;
                file.push(ib_uverbs_comp_event_desc { cq_handle: entry.user_handle }.as_bytes());
            }
        }
    }

    fn event(&mut self, kind: Kind, number: u32, event: u32) {
        let owners = self.owners.get(&(kind, number)).map_or(&[][..], Vec::as_slice);
        for (context, handle) in owners {
            let Some(context) = self.contexts.get_mut(context) else { continue };
            let Some(entry) = context.objects.get_mut(handle) else { continue };
            if let Some((file, _)) = &mut context.asyncs {
                entry.asyncs += 1;
                file.push(record(entry.user_handle, event).as_bytes());
            }
        }
    }

    /// Destroys an object, if `is` is true for it.
    pub(super) fn destroy(
        &mut self,
        device: &mut Device,
        cx: &mut Port<'_>,
        context: u32,
        handle: u32,
        is: impl Fn(&Object) -> bool,
    ) -> Result<Reported, Errno> {
        let entry = self.context(context)?.objects.get(&handle).filter(|e| is(&e.object));
        let entry = entry.ok_or(Errno::ENOENT)?;
        if entry.users > 0 || Self::is_busy(device, cx, &entry.object) {
            return Err(Errno::EBUSY);
        }
        self.remove(device, context, handle)
    }

    fn is_busy(device: &Device, cx: &Port<'_>, object: &Object) -> bool {
        match object {
            Object::Qp(qp) => {
                cx.net.is_member(cx.me, qp.qpn)
                    || device.steering.uses(Target::Qp(qp.qpn))
                    || device.steering.uses(Target::Rss(qp.qpn))
            }
            // The device refuses to destroy a region with bound windows.
            Object::Mr { key, .. } => device.mkeys.is_bound(*key),
            // Queues that commands created are not counted as users of a verb's object.
            Object::Cq { cqn, .. } => device.uses_cq(*cqn),
            Object::Pd { pdn } => device.uses_pd(*pdn),
            Object::Devx(object) => object.is_busy(device, cx),
            Object::Umem(umem) => umem.is_busy(),
            _ => false,
        }
    }

    fn remove(&mut self, device: &mut Device, number: u32, handle: u32) -> Result<Reported, Errno> {
        // The device's notices about the object must be in the files before its events are removed from them.
        self.deliver_notices(&mut device.notices);
        let context = self.contexts.get_mut(&number).ok_or(Errno::EIO)?;
        let entry = context.remove(handle)?;
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
            reported.asyncs -=
                file.purge(rx.as_fd(), |r| is_async(r, kind, entry.user_handle)).min(entry.asyncs);
        }
        if let Object::Cq { channel: Some((channel, rx)), .. } = &entry.object
            && let Some(file) = self.channels.get_mut(channel)
        {
            let purged = file.purge(rx.as_fd(), |r| r == entry.user_handle.as_bytes());
            reported.completions -= purged.min(entry.completions);
        }
        if let Some(key) = entry.object.number()
            && let Some(owners) = self.owners.get_mut(&key)
        {
            owners.retain(|owner| *owner != (number, handle));
            if owners.is_empty() {
                self.owners.remove(&key);
            }
        }
        self.undo(device, entry.object);
        Ok(reported)
    }

    /// Removes an object from the device.
    fn undo(&mut self, device: &mut Device, object: Object) {
        match object {
            Object::Mr { key, .. } | Object::Mw { key } => {
                device.mkeys.remove(key);
            }
            Object::Cq { cqn, .. } => {
                device.cqs.remove(&cqn);
            }
            Object::Qp(qp) => {
                let last = self.shared_qps.get_mut(&qp.qpn).is_none_or(|users| {
                    *users -= 1;
                    *users == 0
                });
                if last {
                    self.shared_qps.remove(&qp.qpn);
                    device.qps.remove(&qp.qpn);
                    device.steering.rss.remove(&qp.qpn);
                }
                if let Some(xrcdn) = qp.holds_xrcd {
                    self.release_xrcd(xrcdn);
                }
            }
            Object::Srq { srqn, .. } => {
                device.srqs.remove(&srqn);
            }
            Object::Xrcd { xrcdn } => self.release_xrcd(xrcdn),
            Object::Uar { page } => self.remove_page(page),
            Object::Flow { rule } => {
                device.steering.remove(rule);
            }
            Object::Counters(counters) => {
                device.steering.counters.remove(&counters.number);
            }
            Object::Wq { wqn, .. } => {
                device.wqs.remove(&wqn);
            }
            Object::Devx(object) => {
                object.events().into_iter().for_each(|target| self.devx.forget(target));
                object.undo(device);
            }
            Object::Pd { .. }
            | Object::Matcher(_)
            | Object::Umem(_)
            | Object::Ah
            | Object::Table { .. }
            | Object::Dm { .. } => {}
        }
    }

    fn release_xrcd(&mut self, xrcdn: u32) {
        if let Some(xrcd) = self.xrcds.iter_mut().find(|x| x.xrcdn == xrcdn) {
            xrcd.users -= 1;
        }
        self.xrcds.retain(|x| x.users > 0);
    }

    /// Closes the device file: destroys all objects, each before the objects that it uses.
    pub(super) fn close(&mut self, device: &mut Device, cx: &mut Port<'_>, number: u32) {
        self.ended.remove(&number);
        let order = |object: &Object| match object {
            Object::Flow { .. } => 0,
            Object::Qp(_) => 1,
            Object::Devx(object) if object.is_qp() => 1,
            Object::Table { .. } => 2,
            Object::Wq { .. } | Object::Srq { .. } => 3,
            Object::Mw { .. } => 4,
            _ => 5,
        };
        let Some(context) = self.contexts.get(&number) else { return };
        let mut handles: Vec<(u8, u32)> =
            context.objects.iter().map(|(h, e)| (order(&e.object), *h)).collect();
        handles.sort_unstable();
        for (_, handle) in handles {
            if let Ok(Object::Qp(qp)) = self.context(number).and_then(|c| c.get(handle)) {
                let qpn = qp.qpn;
                cx.net.leave_all(cx.me, qpn);
            }
            let _ = self.remove(device, number, handle);
        }
        if let Some(context) = self.contexts.remove(&number) {
            for page in context.static_pages {
                self.remove_page(page);
            }
        }
        self.devx.close(number);
        self.channels.retain(|_, channel| !channel.is_closed());
    }
}

impl Front for State {
    fn deliver(&mut self, device: &mut Device) {
        self.deliver_notices(&mut device.notices);
    }

    fn has_backlog(&self) -> bool {
        self.devx.has_backlog()
            || self.channels.values().any(EventFile::has_backlog)
            || self.contexts.values().any(|c| c.asyncs.as_ref().is_some_and(|(f, _)| f.has_backlog()))
    }
}

fn record(element: u64, event: u32) -> ib_uverbs_async_event_desc {
    ib_uverbs_async_event_desc { element, event_type: event, ..Default::default() }
}

/// Whether a record is an event of this object; objects of different kinds may have the same user handle.
fn is_async(bytes: &[u8], kind: Kind, element: u64) -> bool {
    ib_uverbs_async_event_desc::read_from_bytes(bytes).is_ok_and(|event| {
        let of = match event.event_type {
            event::CQ_ERR => Kind::Cq,
            event::SRQ_ERR | event::SRQ_LIMIT_REACHED => Kind::Srq,
            event::WQ_FATAL => Kind::Wq,
            event::PORT_ACTIVE | event::PORT_ERR | event::LID_CHANGE | event::GID_CHANGE => return false,
            _ => Kind::Qp,
        };
        event.element == element && of == kind
    })
}
