// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device of any model.

use crate::fabric::Fabric;
use crate::{Model, Stat};
use core::fmt;
use core::net::IpAddr;
use std::sync::Arc;
use uverbs_core::device::NodeType;
use uverbs_core::kernel::{CmPort, Kernel};
use uverbs_core::{Errno, Result};
use uverbs_softkernel::software::Software;

/// A software device. Clones refer to the same device.
#[derive(Clone)]
pub struct Device(Arc<dyn AnyDevice>);

trait AnyDevice: Send + Sync {
    fn model(&self) -> Model;
    fn fabric(&self) -> Fabric;
    fn name(&self) -> &str;
    fn open(&self) -> Arc<dyn Kernel>;
    fn is_scripted(&self) -> bool;
    fn script_post(&self, verb: &str, queue: u32) -> Option<Errno>;
    fn stat(&self) -> Stat;
    fn connection_manager(&self) -> Result<Arc<dyn CmPort>>;
    fn addresses(&self) -> Vec<IpAddr>;
}

impl<S: Software> AnyDevice for S {
    fn model(&self) -> Model {
        Model::of::<S>()
    }

    fn fabric(&self) -> Fabric {
        Fabric::of::<S>(S::fabric(self).clone())
    }

    fn name(&self) -> &str {
        S::name(self)
    }

    fn open(&self) -> Arc<dyn Kernel> {
        S::open(self)
    }

    fn is_scripted(&self) -> bool {
        S::is_scripted(self)
    }

    fn script_post(&self, verb: &str, queue: u32) -> Option<Errno> {
        S::script_post(self, verb, queue)
    }

    fn stat(&self) -> Stat {
        S::stat(self).by_ib_type()
    }

    fn connection_manager(&self) -> Result<Arc<dyn CmPort>> {
        S::connection_manager(self)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        S::addresses(self)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl<S: Software> From<&S> for Device {
    fn from(device: &S) -> Self {
        Self::of(device.clone())
    }
}

impl From<&Self> for Device {
    fn from(device: &Self) -> Self {
        device.clone()
    }
}

impl Device {
    pub(crate) fn of<S: Software>(device: S) -> Self {
        Self(Arc::new(device))
    }

    /// Its model.
    #[must_use]
    pub fn model(&self) -> Model {
        self.0.model()
    }

    /// Its fabric.
    #[must_use]
    pub fn fabric(&self) -> Fabric {
        self.0.fabric()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// `node_type` of sysfs.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        self.model().node_type
    }

    /// The id of the kernel's driver, `RDMA_DRIVER_*`.
    #[must_use]
    pub fn driver_id(&self) -> u32 {
        self.model().driver_id
    }

    /// Opens a new context and returns its kernel port, as an open device file: when it is dropped, all objects of the context are
    /// destroyed.
    #[must_use]
    pub fn open(&self) -> Arc<dyn Kernel> {
        self.0.open()
    }

    /// Whether the fabric has a script of faults.
    #[must_use]
    pub fn is_scripted(&self) -> bool {
        self.0.is_scripted()
    }

    /// Notes a work request of this device for its script, before it is posted: no command carries it. Returns the error that it has
    /// instead. `verb` is `post_send`, `post_recv`, `post_srq_recv` or `wr_complete`, `queue` the number of the queue.
    #[must_use]
    pub fn script_post(&self, verb: &str, queue: u32) -> Option<Errno> {
        self.0.script_post(verb, queue)
    }

    /// The port and the QPs of the device, for an operator.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.0.stat()
    }

    /// Whether its host has a connection manager and addresses.
    #[must_use]
    pub fn has_ip(&self) -> bool {
        self.model().has_ip
    }

    /// Opens an event channel of the connection manager of the device's host, as an open `/dev/infiniband/rdma_cm`.
    ///
    /// # Errors
    /// The process has too many open files, or the host has no connection manager (`ENOENT`).
    pub fn connection_manager(&self) -> Result<Arc<dyn CmPort>> {
        self.0.connection_manager()
    }

    /// The IP addresses of the device's host.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.0.addresses()
    }
}

#[cfg(test)]
mod tests {
    use crate::MODELS;

    #[test]
    fn a_device_of_each_model_opens_and_shows_its_port() {
        for model in MODELS {
            let fabric = model.fabric(1);
            let (one, two) = (fabric.device(&model.name(0)), fabric.device(&model.name(1)));
            assert_eq!((one.name(), one.model()), (model.name(0).as_str(), *model));
            assert_eq!((one.open().driver_id(), two.open().name()), (one.driver_id(), two.name()));
            let stat = one.stat();
            assert!(stat.up && stat.qps.is_empty());
            assert!(!one.is_scripted());
            assert_eq!(one.script_post("post_send", 1), None);
            assert_eq!(one.connection_manager().is_ok(), one.has_ip());
            assert_eq!(one.addresses().is_empty(), !one.has_ip());
            // A device that is made of another one is on its fabric.
            let three = two.fabric().device("other");
            assert_eq!((three.model(), three.name()), (*model, "other"));
            assert!(one.has_ip() || fabric.device_at("x", [127, 0, 0, 1].into()).is_err());
        }
    }
}
