// SPDX-License-Identifier: MIT OR Apache-2.0
//! The front of a device.
//!
//! A device executes queues; it has no system calls, commands or interrupts. Its front has them: it answers the driver's
//! control path, creates and destroys the objects of the device, and passes the device's notices on to the driver. A kernel in this
//! process is a front, a PCI function of a VM is another one.

use crate::model::Model;
use crate::port::Port;
use crate::script::Event;
use core::any::Any;
use core::fmt;
use std::collections::BTreeMap;

/// The front of a device of a [`Model`]: its state, which is protected by the fabric's lock.
pub trait Front<M: Model>: Any + Send + fmt::Debug {
    /// Passes the device's notices on to the driver. It is called often, also if there are none.
    fn deliver(&mut self, device: &mut M);

    /// Whether the driver has not yet taken notices that were passed on. Then `deliver` is called again soon.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Whether the driver runs in a VM. Then doorbells may arrive late; and because a VM is stopped while its device does
    /// not answer, a call processes due work for a short time only, and the fabric's thread processes the rest.
    fn is_in_vm(&self) -> bool {
        false
    }

    /// Ends all contexts of programs: because the device is removed, or as if their processes had died. `false` if it can't.
    fn end(&mut self, device: &mut M, port: &mut Port<'_, M::Packet>, is_removed: bool) -> bool {
        let _ = (device, port, is_removed);
        false
    }

    /// Gives programs an asynchronous event, of a QP or of the device. `false` if it can't.
    fn raise(&mut self, device: &mut M, event: Event, qp: Option<u32>) -> bool {
        let _ = (device, event, qp);
        false
    }

    /// The number of objects of each kind in contexts of programs.
    fn objects(&self) -> BTreeMap<&'static str, usize> {
        BTreeMap::new()
    }
}

/// A device and its front.
#[derive(Debug)]
pub(crate) struct Station<M: Model> {
    pub(crate) device: M,
    pub(crate) front: Box<dyn Front<M>>,
    /// Whether the world has it in its list of devices with work.
    pub(crate) is_listed: bool,
}

impl<M: Model> Station<M> {
    pub(crate) fn deliver(&mut self) {
        self.front.deliver(&mut self.device);
    }

    /// Whether [`tidy`](Model::tidy) and [`deliver`](Self::deliver) must be called again soon.
    pub(crate) fn has_work(&self) -> bool {
        self.device.watches() || self.device.has_ready() || self.front.has_backlog()
    }
}
