// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs need of a software device, whichever hardware it models.
//!
//! [`Software`] is a trait of types, so its users are generic. `uverbs-software` makes one type of the devices of all models from it.

use core::fmt;
use core::net::IpAddr;
use std::ffi::OsString;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::device::NodeType;
use uverbs_core::kernel::{CmPort, Kernel};
use uverbs_fabric::{Fabric, Model, Stat};

/// A device with the in-process kernel as its front. [`device_methods!`](crate::device_methods) implements it.
pub trait Handle: Clone + fmt::Debug + Send + Sync + 'static {
    /// The model.
    type Model: Model;
    /// The id of the kernel's driver, `RDMA_DRIVER_*`.
    const DRIVER_ID: u32;

    /// Its name.
    fn name(&self) -> &str;

    /// Its fabric.
    fn fabric(&self) -> &Fabric<Self::Model>;

    /// A new context of the device.
    fn open(&self) -> Arc<dyn Kernel>;

    /// Whether the fabric has a script of faults.
    fn is_scripted(&self) -> bool;

    /// Notes a work request for the script, and returns the error that it has instead.
    fn script_post(&self, verb: &str, queue: u32) -> Option<Errno>;

    /// The port and the QPs.
    fn stat(&self) -> Stat<<Self::Model as Model>::QpKind>;

    /// Opens an event channel of the connection manager of the device's host.
    ///
    /// # Errors
    /// The process has too many open files, or the device has no connection manager (`ENOENT`).
    fn connection_manager(&self) -> uverbs_core::Result<Arc<dyn CmPort>>;
}

/// What [`Fabric::device`] returns for a device.
pub type BuilderOf<S> = <<S as Handle>::Model as Model>::Builder;

/// The value of an option that a program's user sets, by its name: `LINK` is that of `UVERBS_HCA_LINK`.
pub type Options<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What a model says about its devices. Each model implements it for its device.
pub trait Software: Handle {
    /// The beginning of the names of its devices, which a number follows.
    const PREFIX: &'static str;
    /// The beginning of the names of environment variables about them. The variable of this name is the number of devices.
    const VARIABLES: &'static str;
    /// What a device is, in words.
    const WHAT: &'static str;
    /// `node_type` of sysfs.
    const NODE_TYPE: NodeType;
    /// Whether devices have IP addresses: then a host has a connection manager, and a device can have an address of this host.
    const HAS_IP: bool = false;

    /// The names of its [options](Options); no others are read.
    const OPTIONS: &'static [&'static str] = &[];

    /// Sets what the options select.
    ///
    /// # Errors
    /// The value of an option is invalid.
    fn configure(builder: BuilderOf<Self>, options: Options<'_>) -> Result<BuilderOf<Self>, Errno> {
        let _ = options;
        Ok(builder)
    }

    /// Builds the device, and plugs it in.
    fn build(builder: BuilderOf<Self>) -> Self;

    /// As [`build`](Self::build), with an address of this host: the device exchanges packets with all devices that can be reached from there.
    ///
    /// # Errors
    /// The address can't be used, or the model has no such devices.
    fn build_at(builder: BuilderOf<Self>, ip: IpAddr) -> std::io::Result<Self> {
        let _ = (builder, ip);
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// The IP addresses of the device's host.
    fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
}
