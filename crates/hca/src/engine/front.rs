// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trait that a front implements. The module [`front`](crate::front) describes the interface.

use super::device::Device;
use core::any::Any;
use core::fmt;

/// The front of a device: its state, which is protected by the fabric's lock.
pub trait Front: Any + Send + fmt::Debug {
    /// Passes the device's notices on to the driver. It is called often, also if there are none.
    fn deliver(&mut self, device: &mut Device);

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
