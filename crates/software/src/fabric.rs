// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric of devices of any model.

use crate::device::Device;
use crate::model::Model;
use core::fmt;
use core::net::IpAddr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_fabric::Fabric as FabricOf;
use uverbs_softkernel::software::{Options, Software};

/// A network of devices of one model, which can reach each other. Clones refer to the same fabric.
#[derive(Clone)]
pub struct Fabric(Arc<dyn AnyFabric>);

/// A fabric of devices of a type.
struct Typed<S: Software>(FabricOf<S::Model>);

trait AnyFabric: Send + Sync {
    fn model(&self) -> Model;
    fn device(&self, name: &str) -> Device;
    fn device_at(&self, name: &str, ip: IpAddr) -> io::Result<Device>;
    fn configured(&self, name: &str, options: Options<'_>, ip: Option<IpAddr>) -> Result<Device, Errno>;
    fn listen(&self, path: &Path) -> io::Result<()>;
    fn join(&self, path: &Path) -> io::Result<()>;
    fn meet(&self, path: &Path) -> io::Result<()>;
    fn flush(&self);
    fn capture(&self, path: &Path) -> io::Result<()>;
    fn loss(&self, p: f64);
}

impl<S: Software> AnyFabric for Typed<S> {
    fn model(&self) -> Model {
        Model::of::<S>()
    }

    fn device(&self, name: &str) -> Device {
        Device::of(S::build(self.0.device(name)))
    }

    fn device_at(&self, name: &str, ip: IpAddr) -> io::Result<Device> {
        S::build_at(self.0.device(name), ip).map(Device::of)
    }

    fn configured(&self, name: &str, options: Options<'_>, ip: Option<IpAddr>) -> Result<Device, Errno> {
        let builder = S::configure(self.0.device(name), options)?;
        match ip {
            Some(ip) => S::build_at(builder, ip).map(Device::of).map_err(|error| errno(&error)),
            None => Ok(Device::of(S::build(builder))),
        }
    }

    fn listen(&self, path: &Path) -> io::Result<()> {
        self.0.listen(path)
    }

    fn join(&self, path: &Path) -> io::Result<()> {
        self.0.join(path)
    }

    fn meet(&self, path: &Path) -> io::Result<()> {
        self.0.meet(path)
    }

    fn flush(&self) {
        self.0.flush();
    }

    fn capture(&self, path: &Path) -> io::Result<()> {
        self.0.capture(path)
    }

    fn loss(&self, p: f64) {
        self.0.loss(p);
    }
}

/// The number of an error of the host.
pub(crate) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("model", &self.model()).finish_non_exhaustive()
    }
}

impl Fabric {
    /// A fabric of devices of a type, as one of devices of any model.
    #[must_use]
    pub fn of<S: Software>(fabric: FabricOf<S::Model>) -> Self {
        Self(Arc::new(Typed::<S>(fabric)))
    }

    /// The model of its devices.
    #[must_use]
    pub fn model(&self) -> Model {
        self.0.model()
    }

    /// A new device of this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Device {
        self.0.device(name)
    }

    /// A new device with an address of this host, which exchanges packets with all devices that can be reached from there.
    ///
    /// # Errors
    /// The address can't be used; the devices of this model have no addresses (`Unsupported`).
    pub fn device_at(&self, name: &str, ip: IpAddr) -> io::Result<Device> {
        self.0.device_at(name, ip)
    }

    /// A new device with these options of its model, and perhaps with an address of this host.
    ///
    /// # Errors
    /// An option is invalid (`EINVAL`), or as of [`device_at`](Self::device_at).
    pub(crate) fn configured(
        &self,
        name: &str,
        options: Options<'_>,
        ip: Option<IpAddr>,
    ) -> Result<Device, Errno> {
        self.0.configured(name, options, ip)
    }

    /// Lets other processes join the fabric through a Unix socket, whose file is created.
    ///
    /// # Errors
    /// Those of [`uverbs_fabric::Fabric::listen`].
    pub fn listen(&self, path: &Path) -> io::Result<()> {
        self.0.listen(path)
    }

    /// Joins the fabric of a process that listens.
    ///
    /// # Errors
    /// Those of [`uverbs_fabric::Fabric::join`].
    pub fn join(&self, path: &Path) -> io::Result<()> {
        self.0.join(path)
    }

    /// Joins the fabric of the process that listens on the socket; if there is none, listens there.
    ///
    /// # Errors
    /// Those of [`uverbs_fabric::Fabric::meet`].
    pub fn meet(&self, path: &Path) -> io::Result<()> {
        self.0.meet(path)
    }

    /// Sends the packets for other processes that still wait, as [`uverbs_fabric::Fabric::flush`].
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Writes the packets from now on to a capture file, as [`uverbs_fabric::Fabric::capture`].
    ///
    /// # Errors
    /// The file can't be created or written; the packets of the model have no public format.
    pub fn capture(&self, path: &Path) -> io::Result<()> {
        self.0.capture(path)
    }

    /// Loses packets with this probability.
    pub fn loss(&self, p: f64) {
        self.0.loss(p);
    }
}
