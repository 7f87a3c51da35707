// SPDX-License-Identifier: MIT OR Apache-2.0
//! The front of a device.
//!
//! A device executes queues; it has no system calls, commands or interrupts. Its front has them: it answers the driver's
//! control path, creates and destroys the objects of the device, and passes the device's notices on to the driver. A kernel in this
//! process is a front, a PCI function of a VM is another one.

use crate::model::Model;
use core::any::Any;
use core::fmt;

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
        self.device.watches() || self.front.has_backlog()
    }
}
