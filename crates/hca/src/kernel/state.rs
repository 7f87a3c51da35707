// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: its contexts, the receivers of events, and the destruction of objects.

use super::channels::CompChannels;
use super::device_memory::DmPages;
use super::devx::Channels;
use super::events::EventFile;
use super::handles::{Context, Reported};
use super::limits::most;
use super::object::{Kind, Object};
use crate::config::Config;
use crate::engine::Front;
use crate::engine::flow::Target;
use crate::engine::{Device, Notice, Port, event};
use crate::numbers::Numbers;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use uverbs_core::Errno;
use uverbs_uapi::event::{ib_uverbs_async_event_desc, ib_uverbs_comp_event_desc};
use zerocopy::{FromBytes, IntoBytes};

/// An XRC domain, with or without an inode.
#[derive(Debug)]
struct Xrcd {
    inode: Option<(u64, u64)>,
    users: u32,
}

/// The number of the first doorbell page.
const FIRST_PAGE: u32 = 0x10;
/// The numbers of domains, which have 24 bits.
const DOMAINS: core::ops::Range<u32> = 0x31..1 << 24;

/// The kernel's state of a device.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) config: Config,
    pub(super) contexts: BTreeMap<u32, Context>,
    next: u32,
    pub(super) channels: CompChannels,
    /// Files of events, and subscriptions, of objects that commands created.
    pub(super) devx: Channels,
    xrcds: BTreeMap<u32, Xrcd>,
    xrcds_of_inodes: BTreeMap<(u64, u64), u32>,
    xrcdns: Numbers,
    /// The numbers of protection domains.
    pub(super) pdns: Numbers,
    pub(super) dm: DmPages,
    /// The objects of each kind.
    counts: BTreeMap<&'static str, usize>,
    /// The contexts with a file of asynchronous events that was full.
    late: BTreeSet<u32>,
    /// The XRC targets that several contexts have open, with their handles.
    pub(super) shared_qps: BTreeMap<u32, u32>,
    pages: Numbers,
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
        self.counts.clone()
    }

    /// Changes the number of objects of a kind, as if there were more of them. Returns the previous one.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, name: &'static str, count: usize) -> usize {
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

    pub(crate) fn new(config: Config) -> Self {
        let pages = FIRST_PAGE..FIRST_PAGE.saturating_add(config.max_uars);
        Self {
            config,
            contexts: BTreeMap::new(),
            next: 0x30,
            channels: CompChannels::default(),
            devx: Channels::default(),
            xrcds: BTreeMap::new(),
            xrcds_of_inodes: BTreeMap::new(),
            xrcdns: Numbers::new(DOMAINS),
            pdns: Numbers::new(DOMAINS),
            dm: DmPages::default(),
            counts: BTreeMap::new(),
            late: BTreeSet::new(),
            shared_qps: BTreeMap::new(),
            pages: Numbers::new(pages),
            owners: BTreeMap::new(),
            ended: BTreeMap::new(),
            is_removed: false,
            #[cfg(test)]
            seen: None,
        }
    }

    /// A new number for a context, and for objects without a limit of their numbers.
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
    ) -> Result<u32, (Errno, Object)> {
        let (name, number) = (object.name(), object.number());
        if self.counts.get(name).is_some_and(|count| *count >= most(&object)) {
            return Err((Errno::ENOMEM, object));
        }
        let Some(found) = self.contexts.get_mut(&context) else { return Err((Errno::EIO, object)) };
        let handle = match found.add(object, parents, user_handle) {
            Ok(handle) => handle,
            Err(object) => return Err((Errno::ENOMEM, object)),
        };
        self.count(name, true);
        if let Some(number) = number {
            self.owners.entry(number).or_default().push((context, handle));
        }
        Ok(handle)
    }

    /// A doorbell page.
    pub(super) fn add_page(&mut self) -> Result<u32, Errno> {
        self.pages.alloc().ok_or(Errno::ENOMEM)
    }

    pub(super) fn remove_page(&mut self, page: u32) {
        self.pages.free(page);
    }

    /// The XRC domain of a file.
    pub(super) fn xrcd_of(&self, inode: (u64, u64)) -> Option<u32> {
        self.xrcds_of_inodes.get(&inode).copied()
    }

    /// A new XRC domain with one user.
    pub(super) fn new_xrcd(&mut self, inode: Option<(u64, u64)>) -> Result<u32, Errno> {
        let xrcdn = self.xrcdns.alloc().ok_or(Errno::ENOMEM)?;
        if let Some(inode) = inode {
            self.xrcds_of_inodes.insert(inode, xrcdn);
        }
        self.xrcds.insert(xrcdn, Xrcd { inode, users: 1 });
        Ok(xrcdn)
    }

    /// Adds a user to an XRC domain.
    pub(super) fn hold_xrcd(&mut self, xrcdn: u32) {
        if let Some(xrcd) = self.xrcds.get_mut(&xrcdn) {
            xrcd.users += 1;
        }
    }

    /// Writes the device's notices to the event files.
    fn deliver_notices(&mut self, notices: &mut Vec<Notice>) {
        self.channels.flush();
        let contexts = &mut self.contexts;
        self.late.retain(|number| contexts.get_mut(number).is_some_and(Context::flush_asyncs));
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
                    for (number, context) in &mut self.contexts {
                        context.asyncs().for_each(|file| file.push(record.as_bytes()));
                        if context.flush_asyncs() {
                            self.late.insert(*number);
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
            let record = ib_uverbs_comp_event_desc { cq_handle: entry.user_handle };
            if self.channels.push(*channel, record.as_bytes()) {
                entry.completions += 1;
            }
        }
    }

    fn event(&mut self, kind: Kind, number: u32, event: u32) {
        let owners = self.owners.get(&(kind, number)).map_or(&[][..], Vec::as_slice);
        for (number, handle) in owners {
            let Some(context) = self.contexts.get_mut(number) else { continue };
            let Some(entry) = context.objects.get_mut(handle) else { continue };
            if let Some((file, _)) = &mut context.asyncs {
                entry.asyncs += 1;
                file.push(record(entry.user_handle, event).as_bytes());
                if file.has_backlog() {
                    self.late.insert(*number);
                }
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
            reported.asyncs -=
                file.purge(rx.as_fd(), |r| is_async(r, kind, entry.user_handle)).min(entry.asyncs);
            if file.has_backlog() {
                self.late.insert(number);
            }
        }
        // An object without events has none in its file, whose records are not read then.
        if entry.completions > 0
            && let Object::Cq { channel: Some((channel, rx)), .. } = &entry.object
        {
            let purged = self.channels.purge(*channel, rx, |r| r == entry.user_handle.as_bytes());
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
        self.undo(device, entry.object);
        Ok(reported)
    }

    /// Removes an object from the device.
    pub(super) fn undo(&mut self, device: &mut Device, object: Object) {
        match object {
            Object::Mr { key, .. } | Object::Mw { key } => {
                device.mkeys.remove(key);
            }
            Object::Cq { cqn, .. } => {
                device.remove_cq(cqn);
            }
            Object::Qp(qp) => {
                let last = self.shared_qps.get_mut(&qp.qpn).is_none_or(|users| {
                    *users -= 1;
                    *users == 0
                });
                if last {
                    self.shared_qps.remove(&qp.qpn);
                    device.remove_qp(qp.qpn);
                    device.steering.rss.remove(&qp.qpn);
                }
                if let Some(xrcdn) = qp.holds_xrcd {
                    self.release_xrcd(xrcdn);
                }
            }
            Object::Srq { srqn, .. } => {
                device.remove_srq(srqn);
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
                device.remove_wq(wqn);
            }
            Object::Devx(object) => {
                object.events().into_iter().for_each(|target| self.devx.forget(target));
                if let Some(pdn) = object.pd() {
                    self.pdns.free(pdn);
                }
                object.undo(device);
            }
            Object::Pd { pdn } => {
                self.pdns.free(pdn);
            }
            Object::Dm { memory } => self.dm.free(&memory),
            Object::Matcher(_) | Object::Umem(_) | Object::Ah | Object::Table { .. } => {}
        }
    }

    fn release_xrcd(&mut self, xrcdn: u32) {
        let Some(xrcd) = self.xrcds.get_mut(&xrcdn) else { return };
        xrcd.users -= 1;
        if xrcd.users == 0 {
            if let Some(inode) = xrcd.inode {
                self.xrcds_of_inodes.remove(&inode);
            }
            self.xrcds.remove(&xrcdn);
            self.xrcdns.free(xrcdn);
        }
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
        self.late.remove(&number);
        self.devx.close(number);
        self.channels.close(number);
    }
}

impl Front for State {
    fn deliver(&mut self, device: &mut Device) {
        self.deliver_notices(&mut device.notices);
    }

    fn has_backlog(&self) -> bool {
        self.devx.has_backlog() || self.channels.has_backlog() || !self.late.is_empty()
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
