// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses, the device and the path to which an identifier is bound (rdma_get_local_addr(3) and similar
//! functions).

use crate::address;
use crate::error::{Error, Result};
use crate::id::Id;
use core::net::SocketAddr;
use uverbs::attr::{Gid, Mtu};
use uverbs::device::DeviceInfo;
use uverbs_core::Errno;
use uverbs_uapi::rdma_cm::{
    RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_CMD_QUERY_ROUTE, RDMA_USER_CM_QUERY_ADDR, rdma_ucm_query,
    rdma_ucm_query_addr_resp, rdma_ucm_query_route_resp,
};
use zerocopy::IntoBytes;

/// The addresses of an identifier, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bound {
    /// The address of this side.
    pub local: Option<SocketAddr>,
    /// The address of the peer.
    pub remote: Option<SocketAddr>,
    /// GUID of the device, host order; `None` as long as there is no device.
    pub node_guid: Option<u64>,
    /// The port of the device, from 1.
    pub port_num: u8,
    /// Partition key.
    pub pkey: u16,
    /// The kernel's index of the device.
    pub ibdev_index: u32,
}

impl Bound {
    /// The device, among those of this machine; for [`Context::open`](uverbs::Context::open) or
    /// [`open_with`](uverbs::open_with).
    ///
    /// # Errors
    /// `ENODEV` if the identifier has no device, or none of this machine has its GUID.
    pub fn device(&self) -> Result<DeviceInfo> {
        const VERB: &str = "device";
        let none = |object| Error::from(uverbs_core::Error::os(VERB, object, Errno::ENODEV));
        let guid = self.node_guid.ok_or_else(|| none("the id is not bound to a device".to_owned()))?;
        let mut found = uverbs::devices()?;
        found.retain(|device| device.node_guid == Some(guid));
        // Virtual functions of some devices have the same GUID.
        let exact = found.iter().position(|device| device.index() == Some(self.ibdev_index));
        let device = found.into_iter().nth(exact.unwrap_or(0));
        device.ok_or_else(|| none(format!("node_guid {guid:#x}")))
    }
}

/// The path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// GID of this side.
    pub sgid: Gid,
    /// GID of the peer.
    pub dgid: Gid,
    /// LID of this side, of InfiniBand.
    pub slid: u16,
    /// LID of the peer, of InfiniBand.
    pub dlid: u16,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// Service level.
    pub sl: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hops that packets may take.
    pub hop_limit: u8,
}

impl Id {
    /// The addresses and the device that it is bound to.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn bound(&self) -> Result<Bound> {
        let command = rdma_ucm_query { response: 0, id: self.number(), option: RDMA_USER_CM_QUERY_ADDR };
        let mut answer = rdma_ucm_query_addr_resp::default();
        self.command("query_addr", RDMA_USER_CM_CMD_QUERY, &command, answer.as_mut_bytes())?;
        let guid = u64::from_be(answer.node_guid);
        Ok(Bound {
            local: address::decode(&answer.src_addr),
            remote: address::decode(&answer.dst_addr),
            node_guid: (guid != 0).then_some(guid),
            port_num: answer.port_num,
            // As a network field: the kernel copies it without conversion.
            pkey: u16::from_be(answer.pkey),
            ibdev_index: answer.ibdev_index,
        })
    }

    /// The path to the peer; `None` before the route is resolved.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn route(&self) -> Result<Option<Route>> {
        let command = rdma_ucm_query { response: 0, id: self.number(), option: 0 };
        let mut answer = rdma_ucm_query_route_resp::default();
        self.command("query_route", RDMA_USER_CM_CMD_QUERY_ROUTE, &command, answer.as_mut_bytes())?;
        let path = answer.ib_route[0];
        Ok((answer.num_paths != 0).then(|| Route {
            sgid: Gid(path.sgid),
            dgid: Gid(path.dgid),
            slid: path.slid.get(),
            dlid: path.dlid.get(),
            pkey: path.pkey.get(),
            mtu: u8::try_from(path.mtu & 0x3f).map(Mtu).unwrap_or_default(),
            sl: path.sl,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label.get(),
            hop_limit: path.hop_limit,
        }))
    }
}
