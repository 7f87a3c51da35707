// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's state of a device: its contexts, the delivery of events, and the destruction of objects.

use super::bells::BellPage;
use super::call::Call;
use super::object::{ContextData, Object};
use crate::device::{Device, Notice, Port};
use crate::fabric::Config;
use crate::{Front, Plugged};
use std::collections::BTreeMap;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPort, Mapping, Protection, RawCommand};
use uverbs_fabric::script::Event;
use uverbs_softkernel::{Call as _, Driver, Entered, Tables};
use uverbs_uapi::event::{IB_EVENT_PORT_ACTIVE, IB_EVENT_PORT_ERR};
use uverbs_uapi::verbs::RDMA_DRIVER_EFA;

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
}

impl Driver for State {
    type Model = Device;
    type Object = Object;
    const ID: u32 = RDMA_DRIVER_EFA;
    const HAS_CLOCK: bool = false;

    fn tables(&self) -> &Tables<Object> {
        &self.tables
    }

    fn tables_mut(&mut self) -> &mut Tables<Object> {
        &mut self.tables
    }

    fn is_busy(&self, device: &Device, _: &Port<'_>, object: &Object) -> bool {
        match object {
            Object::Cq { cq, .. } => device.uses_cq(*cq),
            Object::Pd { pd } => device.uses_pd(*pd),
            _ => false,
        }
    }

    /// Removes the mappings of the object from its context, too.
    fn undo(&mut self, device: &mut Device, port: &mut Port<'_>, context: u32, object: Object) {
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
        if let Ok(context) = self.tables.context(context) {
            maps.into_iter().for_each(|offset| context.data.maps.remove(offset));
        }
    }

    fn order(object: &Object) -> u8 {
        match object {
            Object::Qp(_) => 0,
            Object::Cq { .. } | Object::Mr { .. } | Object::Ah { .. } => 1,
            Object::Pd { .. } => 2,
        }
    }

    fn closed(&mut self, device: &mut Device, _: u32, data: ContextData) {
        if let Some(uar) = data.uar {
            let _ = device.dealloc_uar(uar);
        }
    }

    fn run(entered: Entered<'_, '_, Self>, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        Call::new(entered).run(command)
    }

    fn map(
        entered: Entered<'_, '_, Self>,
        offset: u64,
        len: usize,
        protection: Protection,
    ) -> Result<Mapping, Errno> {
        entered.state.tables.context(entered.context)?.data.maps.ring(offset, len, protection)
    }

    fn doorbells(
        entered: Entered<'_, '_, Self>,
        plugged: &Plugged<Self>,
        offset: u64,
        len: usize,
    ) -> Result<Arc<dyn DoorbellPort>, Errno> {
        let Entered { state, context, .. } = entered;
        let bells = state.tables.context(context)?.data.maps.bells(offset, len)?;
        Ok(Arc::new(BellPage { plugged: plugged.clone(), context, bells }))
    }

    fn attribute(entered: Entered<'_, '_, Self>, path: &str) -> Result<Vec<u8>, Errno> {
        Call::new(entered).sysfs(path)
    }
}

impl Front<Device> for State {
    fn deliver(&mut self, device: &mut Device) {
        self.deliver_notices(device);
    }

    fn has_backlog(&self) -> bool {
        self.tables.has_backlog()
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
