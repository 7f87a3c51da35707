// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding devices, and opening one with the driver that it needs.
//!
//! There are three ways, with different costs:
//! - [`Context::open`] with a driver that the program names: no selection at run time.
//! - [`open_with`]: the program's code is generic over the driver, and the driver is selected once.
//! - [`open`]: the program names [`AnyDriver`], and each post and poll has a branch.

use crate::any::DRIVER_IDS;
use crate::context::Context;
use std::sync::Arc;
pub use uverbs_core::device::{DeviceInfo, devices};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, UverbsFd};
use uverbs_core::provider::Driver;

pub use crate::any::AnyDriver;

/// The code to run with an opened device; it is compiled once for each driver, so it needs no dynamic dispatch.
pub trait DriverVisitor {
    /// The result.
    type Out;
    /// Called with a context of the device's driver.
    fn visit<D: Driver>(self, context: Context<D>) -> Self::Out;
}

/// Opens a device with the driver that it has. The types of the program have no parameter for it.
///
/// The device is given by its name, such as `"mlx5_0"`, by its [`DeviceInfo`], or by a [`Kernel`] port. With the feature `hca`, the
/// names `hca0` to `hca15`, if no device of the machine has them, are software NICs of this process, which share a fabric. With the
/// feature `efa-device`, so are `efa0` to `efa15`, software EFAs; the kernel's names of such devices are `efa_0` and so on.
///
/// # Errors
/// [`Error::Invalid`] if no device has the name: the error lists the names. [`Error::Unsupported`] if no driver of this build is for
/// the device. Otherwise the error of open(2), such as `EACCES`.
pub fn open(device: impl OpenBy) -> Result<Context> {
    device.open()
}

/// What [`open`] takes: `&str`, `&String`, `&DeviceInfo`, or `Arc<dyn Kernel>`.
pub trait OpenBy: sealed::OpenBy {}

mod sealed {
    use super::{Context, Result};

    pub trait OpenBy {
        fn open(self) -> Result<Context>;
    }
}

impl OpenBy for &DeviceInfo {}
impl sealed::OpenBy for &DeviceInfo {
    fn open(self) -> Result<Context> {
        Context::open(self)
    }
}

impl OpenBy for Arc<dyn Kernel> {}
impl sealed::OpenBy for Arc<dyn Kernel> {
    fn open(self) -> Result<Context> {
        Context::from_kernel(self)
    }
}

impl OpenBy for &String {}
impl sealed::OpenBy for &String {
    fn open(self) -> Result<Context> {
        self.as_str().open()
    }
}

impl OpenBy for &str {}
impl sealed::OpenBy for &str {
    fn open(self) -> Result<Context> {
        // A machine without RDMA has no list of devices, but it may have software NICs.
        let found = devices();
        let named = |devices: &Vec<DeviceInfo>| devices.iter().find(|device| device.name == self).cloned();
        if let Some(device) = found.as_ref().ok().and_then(named) {
            return Context::open(&device);
        }
        #[cfg(feature = "hca")]
        if let Some(hca) = software::device(self) {
            return Context::from_kernel(hca.open());
        }
        #[cfg(feature = "efa-device")]
        if let Some(efa) = software_efa::device(self) {
            return Context::from_kernel(efa.open());
        }
        let names: Vec<String> = found?.into_iter().map(|device| device.name).collect();
        let names = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
        Err(Error::invalid(
            "open_device",
            "name",
            format!("no device is named {self:?}; the devices: {names}"),
        ))
    }
}

/// Software devices that are opened by name.
#[cfg(any(feature = "hca", feature = "efa-device"))]
mod named {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    /// The most devices of a kind that a program can name.
    const MAX: usize = 16;

    /// The devices of a kind, by their numbers.
    pub(super) struct Named<T>(Mutex<BTreeMap<usize, T>>);

    impl<T: Clone> Named<T> {
        pub(super) const fn new() -> Self {
            Self(Mutex::new(BTreeMap::new()))
        }

        /// Those that were opened.
        pub(super) fn opened(&self) -> Vec<T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
        }

        /// The device with this name, which consists of the prefix and a number; `None` if it is not the name of one.
        pub(super) fn device(&self, prefix: &str, name: &str, build: impl FnOnce() -> T) -> Option<T> {
            let number: usize = name.strip_prefix(prefix)?.parse().ok()?;
            if number >= MAX || name != format!("{prefix}{number}") {
                return None;
            }
            let mut devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Some(devices.entry(number).or_insert_with(build).clone())
        }
    }
}

/// The software NICs that are opened by name.
#[cfg(feature = "hca")]
pub(crate) mod software {
    use super::named::Named;
    use std::sync::LazyLock;
    use uverbs_hca::{Fabric, Hca};

    static DEVICES: Named<Hca> = Named::new();
    static FABRIC: LazyLock<Fabric> = LazyLock::new(|| Fabric::new(u64::from(std::process::id())));

    /// Those that were opened.
    pub(crate) fn opened() -> Vec<Hca> {
        DEVICES.opened()
    }

    pub(super) fn device(name: &str) -> Option<Hca> {
        DEVICES.device("hca", name, || FABRIC.device(name).build())
    }
}

/// The software EFAs that are opened by name.
#[cfg(feature = "efa-device")]
pub(crate) mod software_efa {
    use super::named::Named;
    use std::sync::LazyLock;
    use uverbs_efa_device::{EfaDevice, Fabric};

    static DEVICES: Named<EfaDevice> = Named::new();
    static FABRIC: LazyLock<Fabric> = LazyLock::new(|| Fabric::new(u64::from(std::process::id())));

    /// Those that were opened.
    pub(crate) fn opened() -> Vec<EfaDevice> {
        DEVICES.opened()
    }

    pub(super) fn device(name: &str) -> Option<EfaDevice> {
        DEVICES.device("efa", name, || FABRIC.device(name).build())
    }
}

/// Opens a device with its driver and calls `visitor` with the context.
///
/// # Errors
/// [`Error::Unsupported`] if no driver of this build is for the device; otherwise the error of open(2), such as
/// `EACCES`.
pub fn open_with<V: DriverVisitor>(device: &DeviceInfo, visitor: V) -> Result<V::Out> {
    let fd: Arc<dyn Kernel> = Arc::new(UverbsFd::open(device, DRIVER_IDS)?);
    let _ = &visitor;
    for_id!("open_device", fd.driver_id(), D => Ok(visitor.visit(Context::<D>::from_kernel(fd)?)))
}
