// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the value that caused an `EINVAL` of the kernel. The kernel returns the same errno for a dozen fields. So
//! after an error (and only then) the request is compared with the attributes of the device and its ports. If a query
//! of these fails, the error remains the kernel's errno.

use super::query;
use crate::attr::{AhAttr, DeviceAttr, LinkLayer};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Kernel, Uhw};
use std::sync::Arc;

/// A field, the requested value, and the maximum.
pub(super) type Limit = (&'static str, u32, u32);

/// The first field above its limit, if the errno is one for such errors.
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

/// Finds the invalid part of a path: its port, a missing global route, or the index of its GID. `field` is the caller's
/// name for the path.
pub(super) fn path(
    verb: &'static str,
    field: &'static str,
    kernel: &Arc<dyn Kernel>,
    attr: &AhAttr,
    errno: Errno,
) -> Option<Error> {
    let wrong = |reason: String| match errno {
        Errno::EINVAL => Some(Error::invalid(verb, field, reason)),
        // An empty entry of the GID table is `ENODATA`, which is kept.
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
            wrong("grh: required on Ethernet".into())
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

/// Whether the device lacks this port; `None` if that is unknown.
pub(super) fn no_such_port(kernel: &Arc<dyn Kernel>, port_num: u8) -> Option<bool> {
    let device = query::device(kernel, Uhw::none()).ok()?;
    Some(u32::from(port_num) > device.phys_port_cnt_ex.max(device.phys_port_cnt.into()))
}
