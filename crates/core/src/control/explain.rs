// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which value an `EINVAL` of the kernel is about.
//!
//! The kernel says no more than that, for any of a dozen fields. So after a refusal (and only then) what was asked for
//! is compared with what the device and its ports say of themselves. A question that fails explains nothing, and then
//! the error stays what the kernel answered.

use super::query;
use crate::attr::{AhAttr, DeviceAttr, LinkLayer};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Kernel, Uhw};
use std::sync::Arc;

/// A field, what was asked for, and the most that there can be.
pub(super) type Limit = (&'static str, u32, u32);

/// The first field above its limit, if the errno is one that says so.
pub(super) fn over_limit<const N: usize>(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    errno: Errno,
    limits: impl FnOnce(&DeviceAttr) -> [Limit; N],
) -> Option<Error> {
    if errno != Errno::EINVAL {
        return None;
    }
    let device = query::device(kernel, Uhw::none()).ok()?;
    let (field, asked, limit) = limits(&device).into_iter().find(|(_, asked, limit)| asked > limit)?;
    Some(Error::invalid(verb, field, format!("{asked} is above the device's {limit}")))
}

/// What is wrong with a path: its port, the lack of a global route, the index of its GID. `field` is the name under
/// which the caller passed it.
pub(super) fn path(
    verb: &'static str,
    field: &'static str,
    kernel: &Arc<dyn Kernel>,
    attr: &AhAttr,
    errno: Errno,
) -> Option<Error> {
    let wrong = |reason: String| match errno {
        Errno::EINVAL => Some(Error::invalid(verb, field, reason)),
        // An empty entry of the GID table is `ENODATA`, and stays it.
        _ => Some(Error::os(verb, format!("{field}: {reason}"), errno)),
    };
    if !matches!(errno, Errno::EINVAL | Errno::ENODATA) {
        return None;
    }
    if no_such_port(kernel, attr.port_num)? {
        return wrong(format!("port_num: the device has no port {}", attr.port_num));
    }
    let Some(grh) = attr.grh else {
        let port = query::port(kernel, attr.port_num).ok()?;
        return if port.link_layer == LinkLayer::ETHERNET {
            wrong("grh: there is no path without one on Ethernet".into())
        } else {
            None
        };
    };
    match query::gid_entry(kernel, attr.port_num, grh.sgid_index.into()) {
        Err(Error::Os { .. }) => {
            wrong(format!("sgid_index: port {} has no GID {}", attr.port_num, grh.sgid_index))
        }
        _ => None,
    }
}

/// Whether the device lacks this port; `None` if it does not tell.
pub(super) fn no_such_port(kernel: &Arc<dyn Kernel>, port_num: u8) -> Option<bool> {
    let device = query::device(kernel, Uhw::none()).ok()?;
    Some(u32::from(port_num) > device.phys_port_cnt_ex.max(device.phys_port_cnt.into()))
}
