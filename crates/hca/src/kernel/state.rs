// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: its contexts, the receivers of events, and the destruction of objects.

use super::device_memory::DmPages;
use super::devx::Channels;
use super::object::Object;
use crate::config::Config;
use crate::engine::Front;
use crate::engine::flow::Target;
use crate::engine::{Device, Notice, Port, event};
use crate::numbers::Numbers;
use std::collections::BTreeMap;
use uverbs_core::Errno;
use uverbs_softkernel::{Context, Kind, Reported, Tables};

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
    pub(super) tables: Tables<Object>,
    /// Files of events, and subscriptions, of objects that commands created.
    pub(super) devx: Channels,
    xrcds: BTreeMap<u32, Xrcd>,
    xrcds_of_inodes: BTreeMap<(u64, u64), u32>,
    xrcdns: Numbers,
    /// The numbers of protection domains.
    pub(super) pdns: Numbers,
    pub(super) dm: DmPages,
    /// The XRC targets that several contexts have open, with their handles.
    pub(super) shared_qps: BTreeMap<u32, u32>,
    pages: Numbers,
    /// The recorded notices, for tests.
    #[cfg(test)]
    pub(crate) seen: Option<Vec<Notice>>,
}

impl State {
    /// The number of objects of each kind, in all contexts.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.tables.counts()
    }

    /// Changes the number of objects of a kind, as if there were more of them. Returns the previous one.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, name: &'static str, count: usize) -> usize {
        self.tables.pretend(name, count)
    }

    pub(crate) fn new(config: Config) -> Self {
        let pages = FIRST_PAGE..FIRST_PAGE.saturating_add(config.max_uars);
        Self {
            config,
            tables: Tables::new(0x30),
            devx: Channels::default(),
            xrcds: BTreeMap::new(),
            xrcds_of_inodes: BTreeMap::new(),
            xrcdns: Numbers::new(DOMAINS),
            pdns: Numbers::new(DOMAINS),
            dm: DmPages::default(),
            shared_qps: BTreeMap::new(),
            pages: Numbers::new(pages),
            #[cfg(test)]
            seen: None,
        }
    }

    /// A new number, for objects without a limit of their numbers.
    pub(super) fn number(&mut self) -> u32 {
        self.tables.number()
    }

    pub(crate) fn open(&mut self) -> u32 {
        self.tables.open()
    }

    /// Whether this context ended before its device file was closed.
    pub(super) fn has_ended(&self, number: u32) -> bool {
        self.tables.has_ended(number)
    }

    /// Ends all contexts, with an event if the device is removed.
    pub(crate) fn end_all(&mut self, device: &mut Device, cx: &mut Port<'_>, is_removed: bool) {
        self.deliver_notices(&mut device.notices);
        for number in self.tables.numbers() {
            let files = self.tables.take_asyncs(number);
            self.close(device, cx, number);
            self.tables.end(number, files, is_removed);
        }
        self.tables.end_channels(is_removed);
        if is_removed && let Some(address) = cx.address_mut() {
            address.up = false;
        }
    }

    pub(super) fn context(&mut self, number: u32) -> Result<&mut Context<Object>, Errno> {
        self.tables.context(number)
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
        self.tables.flush();
        #[cfg(test)]
        if let Some(seen) = &mut self.seen {
            seen.extend_from_slice(notices);
        }
        self.devx.flush();
        for notice in notices.drain(..) {
            self.devx.notice(&notice);
            match notice {
                Notice::Completion { cqn } => self.tables.complete(cqn),
                Notice::CqError { cqn } => self.tables.raise(Kind::Cq, cqn, event::CQ_ERR),
                Notice::Qp { qpn, event } => self.tables.raise(Kind::Qp, qpn, event),
                Notice::Srq { srqn, event } => self.tables.raise(Kind::Srq, srqn, event),
                Notice::Wq { wqn, event } => self.tables.raise(Kind::Wq, wqn, event),
                Notice::Port { event } => self.tables.raise_on_port(event),
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
        if Self::is_busy(device, cx, &self.tables.unused(context, handle, is)?.object) {
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
        let (object, reported) = self.tables.take(number, handle)?;
        self.undo(device, object);
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
        let order = |object: &Object| match object {
            Object::Flow { .. } => 0,
            Object::Qp(_) => 1,
            Object::Devx(object) if object.is_qp() => 1,
            Object::Table { .. } => 2,
            Object::Wq { .. } | Object::Srq { .. } => 3,
            Object::Mw { .. } => 4,
            _ => 5,
        };
        let Some(handles) = self.tables.begin_close(number, order) else { return };
        for handle in handles {
            if let Ok(Object::Qp(qp)) = self.context(number).and_then(|c| c.get(handle)) {
                let qpn = qp.qpn;
                cx.net.leave_all(cx.me, qpn);
            }
            let _ = self.remove(device, number, handle);
        }
        self.devx.close(number);
        for page in self.tables.close(number).unwrap_or_default().static_pages {
            self.remove_page(page);
        }
    }
}

impl Front for State {
    fn deliver(&mut self, device: &mut Device) {
        self.deliver_notices(&mut device.notices);
    }

    fn has_backlog(&self) -> bool {
        self.devx.has_backlog() || self.tables.has_backlog()
    }
}
