// SPDX-License-Identifier: MIT OR Apache-2.0
//! What drivers answer differently in functions of libibverbs, although no verb of the kernel asks for it. In rdma-core these are functions of the
//! driver's own library, such as libmlx5.

use crate::abi::qp::ibv_qp;
use crate::arg::Arg;
use crate::context::Private;
use crate::errno::{Errno, Outcome};
use core::ffi::c_int;
use uverbs_core::attr::DeviceAttr;

/// `enum ibv_query_qp_data_in_order_caps`
pub(crate) mod in_order_cap {
    use core::ffi::c_int;

    pub(crate) const WHOLE_MSG: c_int = 1 << 0;
    pub(crate) const ALIGNED_128_BYTES: c_int = 1 << 1;
}

/// The answers of a driver. The functions get objects of any driver.
pub(crate) struct DriverLibrary {
    /// The text of the firmware's version, if it is not that of sysfs.
    pub(crate) firmware_version: fn(&Private, &DeviceAttr) -> Option<String>,
    /// The data of RDMA operations that a QP writes in order: flags of [`in_order_cap`]. `EOPNOTSUPP` for a QP of another driver.
    pub(crate) in_order: fn(Arg<'_, ibv_qp>) -> Outcome<c_int>,
}

/// As [`DriverLibrary::firmware_version`], of the device's driver.
pub(crate) fn firmware_version(here: &Private, attr: &DeviceAttr) -> Option<String> {
    crate::DRIVER_LIBRARIES.iter().find_map(|library| (library.firmware_version)(here, attr))
}

/// As [`DriverLibrary::in_order`], of the QP's driver. `EOPNOTSUPP` if that says nothing.
pub(crate) fn in_order(qp: Arg<'_, ibv_qp>) -> Outcome<c_int> {
    let answers = crate::DRIVER_LIBRARIES.iter().map(|library| (library.in_order)(qp));
    answers.fold(Err(Errno::EOPNOTSUPP), Outcome::or)
}
