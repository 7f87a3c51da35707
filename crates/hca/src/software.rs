// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs that know no model need of the device.

use crate::{DeviceBuilder, Hca, Link};
use core::net::IpAddr;
use uverbs_core::Errno;
use uverbs_core::device::NodeType;
use uverbs_softkernel::Software;
use uverbs_softkernel::software::Options;

impl Software for Hca {
    const PREFIX: &'static str = "hca";
    const VARIABLES: &'static str = "UVERBS_HCA";
    const WHAT: &'static str = "a software NIC";
    const NODE_TYPE: NodeType = NodeType::CA;
    const HAS_IP: bool = true;
    const OPTIONS: &'static [&'static str] = &["LINK", "DEVX"];

    /// `LINK` is `infiniband` for an InfiniBand port, `DEVX` is 0 for a device that refuses commands for the firmware. Bytes that hardware
    /// ignores are ignored: the drivers of other projects leave stale ones there.
    fn configure(builder: DeviceBuilder, options: Options<'_>) -> Result<DeviceBuilder, Errno> {
        let link = match options("LINK") {
            Some(link) if link == "infiniband" => Link::InfiniBand,
            _ => Link::Ethernet,
        };
        let devx = options("DEVX").is_none_or(|devx| devx != "0");
        Ok(builder.link(link).devx(devx).ignore_reserved())
    }

    fn build(builder: DeviceBuilder) -> Self {
        builder.build()
    }

    fn build_at(builder: DeviceBuilder, ip: IpAddr) -> std::io::Result<Self> {
        builder.build_udp(ip)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        Self::addresses(self)
    }
}
