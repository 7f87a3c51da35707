// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding devices, and opening one with the driver that it needs.
//!
//! There are three ways, with different costs:
//! - [`Context::open`] with a driver that the program names: no selection at run time.
//! - [`open_with`]: the program's code is generic over the driver, and the driver is selected once.
//! - [`open`]: the program names [`AnyDriver`], and each post and poll has a branch.

use crate::context::Context;
use std::sync::Arc;
pub use uverbs_core::device::{DeviceInfo, devices};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, UverbsFd};
use uverbs_core::provider::Driver;
#[cfg(feature = "mlx5")]
use uverbs_mlx5::Mlx5;
#[cfg(feature = "rxe")]
use uverbs_rxe::Rxe;
#[cfg(feature = "siw")]
use uverbs_siw::Siw;

/// The driver of a device that is known only at run time: the only one that this build has.
#[cfg(all(feature = "mlx5", not(any(feature = "rxe", feature = "siw"))))]
pub type AnyDriver = Mlx5;
/// The driver of a device that is known only at run time: the only one that this build has.
#[cfg(all(feature = "rxe", not(any(feature = "mlx5", feature = "siw"))))]
pub type AnyDriver = Rxe;
/// The driver of a device that is known only at run time: the only one that this build has.
#[cfg(all(feature = "siw", not(any(feature = "mlx5", feature = "rxe"))))]
pub type AnyDriver = Siw;
/// The driver of a build without drivers: it opens no device.
#[cfg(not(any(feature = "mlx5", feature = "rxe", feature = "siw")))]
pub use crate::absent::Absent as AnyDriver;
#[cfg(any(
    all(feature = "mlx5", feature = "rxe"),
    all(feature = "mlx5", feature = "siw"),
    all(feature = "rxe", feature = "siw"),
))]
pub use crate::any::AnyDriver;

/// The code to run with an opened device; it is compiled once for each driver, so it needs no dynamic dispatch.
pub trait DriverVisitor {
    /// The result.
    type Out;
    /// Called with a context of the device's driver.
    fn visit<D: Driver>(self, context: Context<D>) -> Self::Out;
}

/// Every driver's id, in the order in which they are probed.
pub(crate) const DRIVER_IDS: &[u32] = &[
    #[cfg(feature = "mlx5")]
    Mlx5::DRIVER_ID,
    #[cfg(feature = "rxe")]
    Rxe::DRIVER_ID,
    #[cfg(feature = "siw")]
    Siw::DRIVER_ID,
];

/// Opens a device with the driver that it has. The types of the program have no parameter for it.
///
/// # Errors
/// [`Error::Unsupported`] if no driver of this build is for the device; otherwise the error of open(2), such as
/// `EACCES`.
#[cfg(any(feature = "mlx5", feature = "rxe", feature = "siw"))]
pub fn open(device: &DeviceInfo) -> Result<Context> {
    Context::open(device)
}

/// Opens a device with its driver and calls `visitor` with the context.
///
/// # Errors
/// [`Error::Unsupported`] if no driver of this build is for the device; otherwise the error of open(2), such as
/// `EACCES`.
pub fn open_with<V: DriverVisitor>(device: &DeviceInfo, visitor: V) -> Result<V::Out> {
    let fd: Arc<dyn Kernel> = Arc::new(UverbsFd::open(device, DRIVER_IDS)?);
    match fd.driver_id() {
        #[cfg(feature = "mlx5")]
        Mlx5::DRIVER_ID => Ok(visitor.visit(Context::<Mlx5>::from_kernel(fd)?)),
        #[cfg(feature = "rxe")]
        Rxe::DRIVER_ID => Ok(visitor.visit(Context::<Rxe>::from_kernel(fd)?)),
        #[cfg(feature = "siw")]
        Siw::DRIVER_ID => Ok(visitor.visit(Context::<Siw>::from_kernel(fd)?)),
        other => {
            let _ = &visitor;
            Err(Error::unsupported("open_device", format!("no driver for driver id {other}")))
        }
    }
}
