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
    Context::from_kernel(device.kernel()?)
}

/// What [`open`] takes: `&str`, `&String`, `&DeviceInfo`, or `Arc<dyn Kernel>`.
pub trait OpenBy: sealed::OpenBy {}

mod sealed {
    use super::{Kernel, Result};
    use std::sync::Arc;

    pub trait OpenBy {
        /// The port to the device's kernel.
        fn kernel(self) -> Result<Arc<dyn Kernel>>;
    }
}

impl OpenBy for &DeviceInfo {}
impl sealed::OpenBy for &DeviceInfo {
    fn kernel(self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(UverbsFd::open(self, DRIVER_IDS)?))
    }
}

impl OpenBy for Arc<dyn Kernel> {}
impl sealed::OpenBy for Arc<dyn Kernel> {
    fn kernel(self) -> Result<Arc<dyn Kernel>> {
        Ok(self)
    }
}

impl OpenBy for &String {}
impl sealed::OpenBy for &String {
    fn kernel(self) -> Result<Arc<dyn Kernel>> {
        self.as_str().kernel()
    }
}

impl OpenBy for &str {}
impl sealed::OpenBy for &str {
    fn kernel(self) -> Result<Arc<dyn Kernel>> {
        // A machine without RDMA has no list of devices, but it may have software NICs.
        let found = devices();
        let named = |devices: &Vec<DeviceInfo>| devices.iter().find(|device| device.name == self).cloned();
        if let Some(device) = found.as_ref().ok().and_then(named) {
            return sealed::OpenBy::kernel(&device);
        }
        #[cfg(feature = "software")]
        if let Some(device) = uverbs_software::named(self) {
            return Ok(device.open());
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

/// Opens a device, given as for [`open`], with its driver and calls `visitor` with the context.
///
/// # Errors
/// [`Error::Unsupported`] if no driver of this build is for the device; otherwise those of [`open`].
pub fn open_with<V: DriverVisitor>(device: impl OpenBy, visitor: V) -> Result<V::Out> {
    let kernel = device.kernel()?;
    let _ = &visitor;
    for_id!("open_device", kernel.driver_id(), D => Ok(visitor.visit(Context::<D>::from_kernel(kernel)?)))
}

#[cfg(all(test, feature = "hca"))]
mod tests {
    use super::*;

    struct Name;
    impl DriverVisitor for Name {
        type Out = (&'static str, String);
        fn visit<D: Driver>(self, context: Context<D>) -> Self::Out {
            (D::NAME, context.name().to_owned())
        }
    }

    #[test]
    fn a_visitor_gets_the_driver_of_whatever_names_the_device() {
        assert_eq!(open_with("hca6", Name).unwrap(), ("mlx5", "hca6".to_owned()));
        let kernel = uverbs_hca::Hca::new().open();
        assert_eq!(open_with(kernel, Name).unwrap(), ("mlx5", "hca0".to_owned()));
        #[cfg(feature = "efa-device")]
        assert_eq!(open_with(&"efa6".to_owned(), Name).unwrap(), ("efa", "efa6".to_owned()));
        for nobody in ["hca16", "hca06", "hca", "nobody"] {
            let error = open_with(nobody, Name).unwrap_err();
            assert!(!error.is_unsupported() && error.to_string().contains(nobody), "{error}");
        }
    }
}
