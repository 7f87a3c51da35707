// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: its contexts, the receivers of events, and the destruction of objects.

use super::call::Call;
use super::device_memory::DmPages;
use super::devx::Channels;
use super::object::{ContextData, Object};
use super::uar::Page;
use crate::cm::HcaCm;
use crate::config::Config;
use crate::engine::flow::Target;
use crate::engine::{Device, Notice, Port, event};
use crate::front::{Front, Plugged};
use crate::numbers::Numbers;
use std::collections::BTreeMap;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{CmPort, DoorbellPort, Mapping, Protection, RawCommand};
use uverbs_fabric::map::Map;
use uverbs_fabric::script::Event;
use uverbs_softkernel::{Call as _, Driver, Entered, Kind, Tables};
use uverbs_uapi::verbs::RDMA_DRIVER_MLX5;

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
    xrcds: Map<u32, Xrcd>,
    xrcds_of_inodes: Map<(u64, u64), u32>,
    xrcdns: Numbers,
    /// The numbers of protection domains.
    pub(super) pdns: Numbers,
    pub(super) dm: DmPages,
    /// The XRC targets that several contexts have open, with their handles.
    pub(super) shared_qps: Map<u32, u32>,
    pages: Numbers,
    /// The recorded notices, for tests.
    #[cfg(test)]
    pub(crate) seen: Option<Vec<Notice>>,
}

impl State {
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
            xrcds: Map::new(),
            xrcds_of_inodes: Map::new(),
            xrcdns: Numbers::new(DOMAINS),
            pdns: Numbers::new(DOMAINS),
            dm: DmPages::default(),
            shared_qps: Map::new(),
            pages: Numbers::new(pages),
            #[cfg(test)]
            seen: None,
        }
    }

    /// A new number, for objects without a limit of their numbers.
    pub(super) fn number(&mut self) -> u32 {
        self.tables.number()
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
        let is_late = self.devx.has_backlog() || self.tables.has_backlog();
        if is_late {
            self.tables.flush();
            self.devx.flush();
        }
        #[cfg(test)]
        if let Some(seen) = &mut self.seen {
            seen.extend_from_slice(notices);
        }
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
}

impl Driver for State {
    type Model = Device;
    type Object = Object;
    const ID: u32 = RDMA_DRIVER_MLX5;
    const HAS_CLOCK: bool = true;

    fn tables(&self) -> &Tables<Object> {
        &self.tables
    }

    fn tables_mut(&mut self) -> &mut Tables<Object> {
        &mut self.tables
    }

    fn is_busy(&self, device: &Device, port: &Port<'_>, object: &Object) -> bool {
        match object {
            Object::Qp(qp) => {
                port.is_member(qp.qpn)
                    || device.steering.uses(Target::Qp(qp.qpn))
                    || device.steering.uses(Target::Rss(qp.qpn))
            }
            // The device refuses to destroy a region with bound windows.
            Object::Mr { key, .. } => device.mkeys.is_bound(*key),
            // Queues that commands created are not counted as users of a verb's object.
            Object::Cq { cqn, .. } => device.uses_cq(*cqn),
            Object::Pd { pdn } => device.uses_pd(*pdn),
            Object::Devx(object) => object.is_busy(device, port),
            Object::Umem(umem) => umem.is_busy(),
            _ => false,
        }
    }

    fn undo(&mut self, device: &mut Device, port: &mut Port<'_>, _: u32, object: Object) {
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
                    // A QP in a group is destroyed with its context only.
                    port.net.leave_all(port.me, qp.qpn);
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

    fn order(object: &Object) -> u8 {
        match object {
            Object::Flow { .. } => 0,
            Object::Qp(_) => 1,
            Object::Devx(object) if object.is_qp() => 1,
            Object::Table { .. } => 2,
            Object::Wq { .. } | Object::Srq { .. } => 3,
            Object::Mw { .. } => 4,
            _ => 5,
        }
    }

    fn closed(&mut self, _: &mut Device, context: u32, data: ContextData) {
        self.devx.close(context);
        data.static_pages.into_iter().for_each(|page| self.remove_page(page));
    }

    fn run(entered: Entered<'_, '_, Self>, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        Call::new(entered).run(command)
    }

    fn map(entered: Entered<'_, '_, Self>, offset: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
        Call::new(entered).map(offset, len)
    }

    fn doorbells(
        entered: Entered<'_, '_, Self>,
        plugged: &Plugged<Self>,
        offset: u64,
        len: usize,
    ) -> Result<Arc<dyn DoorbellPort>, Errno> {
        let mut call = Call::new(entered);
        let page = call.map_page(offset, len)?;
        Ok(Arc::new(Page::new(plugged.clone(), call.context, page)))
    }

    fn attribute(entered: Entered<'_, '_, Self>, path: &str) -> Result<Vec<u8>, Errno> {
        Call::new(entered).sysfs(path)
    }

    fn connection_manager(plugged: &Plugged<Self>) -> uverbs_core::Result<Arc<dyn CmPort>> {
        Ok(Arc::new(HcaCm::open(plugged.fabric(), plugged.index())?))
    }
}

impl Front<Device> for State {
    fn deliver(&mut self, device: &mut Device) {
        self.deliver_notices(&mut device.notices);
    }

    fn has_backlog(&self) -> bool {
        self.devx.has_backlog() || self.tables.has_backlog()
    }

    fn end(&mut self, device: &mut Device, port: &mut Port<'_>, is_removed: bool) -> bool {
        self.end_all(device, port, is_removed);
        true
    }

    fn raise(&mut self, _: &mut Device, event: Event, qp: Option<u32>) -> bool {
        uverbs_softkernel::script::raise(&mut self.tables, event, qp)
    }

    fn objects(&self) -> BTreeMap<&'static str, usize> {
        self.tables.counts()
    }
}
