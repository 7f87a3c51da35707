// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding devices, and opening one with the driver that it needs.

use crate::context::Context;
use std::sync::Arc;
pub use uverbs_core::device::{DeviceInfo, devices};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, UverbsFd};
use uverbs_core::provider::Driver;
use uverbs_mlx5::Mlx5;
use uverbs_rxe::Rxe;

/// The code to run with an opened device; it is compiled once for each driver, so it needs no dynamic dispatch.
pub trait DriverVisitor {
    /// The result.
    type Out;
    /// Called with a context of the device's driver.
    fn visit<D: Driver>(self, context: Context<D>) -> Self::Out;
}

/// Every driver's id, in the order in which they are probed.
const DRIVER_IDS: &[u32] = &[Mlx5::DRIVER_ID, Rxe::DRIVER_ID];

/// Opens a device with its driver and calls `visitor` with the context.
pub fn open_with<V: DriverVisitor>(device: &DeviceInfo, visitor: V) -> Result<V::Out> {
    let fd: Arc<dyn Kernel> = Arc::new(UverbsFd::open(device, DRIVER_IDS)?);
    match fd.driver_id() {
        Mlx5::DRIVER_ID => Ok(visitor.visit(Context::<Mlx5>::from_kernel(fd)?)),
        Rxe::DRIVER_ID => Ok(visitor.visit(Context::<Rxe>::from_kernel(fd)?)),
        other => Err(Error::unsupported("open_device", format!("no driver for driver id {other}"))),
    }
}
