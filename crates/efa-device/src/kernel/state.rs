// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: its contexts, the delivery of events, and the destruction of objects.

use super::object::Object;
use crate::device::{Device, Notice, Port};
use crate::fabric::Config;
use crate::station::Front;
use std::collections::BTreeMap;
use uverbs_core::Errno;
use uverbs_softkernel::{Context, Reported, Tables};
use uverbs_uapi::event::{IB_EVENT_PORT_ACTIVE, IB_EVENT_PORT_ERR};

/// The kernel's state of a device.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) config: Config,
    pub(super) tables: Tables<Object>,
}

impl State {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, tables: Tables::new(0) }
    }

    /// The number of objects of each kind, in all contexts.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.tables.counts()
    }

    pub(super) fn context(&mut self, number: u32) -> Result<&mut Context<Object>, Errno> {
        self.tables.context(number)
    }

    /// Ends all contexts, with an event if the device is removed.
    pub(crate) fn end_all(&mut self, device: &mut Device, port: &mut Port<'_>, is_removed: bool) {
        self.deliver_notices(device);
        for number in self.tables.numbers() {
            let files = self.tables.take_asyncs(number);
            self.close(device, port, number);
            self.tables.end(number, files, is_removed);
        }
        self.tables.end_channels(is_removed);
        if is_removed && let Some(address) = port.address_mut() {
            address.up = false;
        }
    }

    fn deliver_notices(&mut self, device: &mut Device) {
        self.tables.flush();
        for notice in device.notices.drain(..) {
            match notice {
                Notice::Completion { cq } => self.tables.complete(cq.into()),
                Notice::Link { up } => {
                    self.tables.raise_on_port(if up { IB_EVENT_PORT_ACTIVE } else { IB_EVENT_PORT_ERR });
                }
            }
        }
    }

    /// Destroys an object, if `is` is true for it.
    pub(super) fn destroy(
        &mut self,
        device: &mut Device,
        port: &mut Port<'_>,
        context: u32,
        handle: u32,
        is: impl Fn(&Object) -> bool,
    ) -> Result<Reported, Errno> {
        let is_busy = match self.tables.unused(context, handle, is)?.object {
            Object::Cq { cq, .. } => device.uses_cq(cq),
            Object::Pd { pd } => device.uses_pd(pd),
            _ => false,
        };
        if is_busy {
            return Err(Errno::EBUSY);
        }
        self.remove(device, port, context, handle)
    }

    fn remove(
        &mut self,
        device: &mut Device,
        port: &mut Port<'_>,
        number: u32,
        handle: u32,
    ) -> Result<Reported, Errno> {
        // The device's notices about the object must be in the files before its events are removed from them.
        self.deliver_notices(device);
        let (object, reported) = self.tables.take(number, handle)?;
        self.undo(device, port, number, object);
        Ok(reported)
    }

    /// Removes an object from the device, and its mappings from its context.
    pub(super) fn undo(&mut self, device: &mut Device, port: &mut Port<'_>, number: u32, object: Object) {
        // Each of these exists in the device as long as the kernel's object, and nothing uses it any more.
        let (result, maps) = match object {
            Object::Pd { pd } => (device.dealloc_pd(pd), Vec::new()),
            Object::Mr { keys, .. } => (device.dereg_mr(keys.lkey), Vec::new()),
            Object::Cq { cq, maps, .. } => (device.destroy_cq(cq), maps),
            Object::Qp(qp) => (device.destroy_qp(port, qp.qpn), qp.maps),
            Object::Ah { pd, ah } => (device.destroy_ah(port, pd, ah), Vec::new()),
        };
        if let Err(refusal) = result {
            log::error!("the device refuses to destroy an object: {refusal:?}");
        }
        if let Ok(context) = self.context(number) {
            maps.into_iter().for_each(|offset| context.data.maps.remove(offset));
        }
    }

    /// Closes the device file: destroys all objects, each before the objects that it uses.
    pub(super) fn close(&mut self, device: &mut Device, port: &mut Port<'_>, number: u32) {
        let order = |object: &Object| match object {
            Object::Qp(_) => 0,
            Object::Cq { .. } | Object::Mr { .. } | Object::Ah { .. } => 1,
            Object::Pd { .. } => 2,
        };
        let Some(handles) = self.tables.begin_close(number, order) else { return };
        for handle in handles {
            let _ = self.remove(device, port, number, handle);
        }
        if let Some(uar) = self.tables.close(number).and_then(|data| data.uar) {
            let _ = device.dealloc_uar(uar);
        }
    }
}

impl Front for State {
    fn deliver(&mut self, device: &mut Device) {
        self.deliver_notices(device);
    }

    fn has_backlog(&self) -> bool {
        self.tables.has_backlog()
    }
}
