// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address vectors: where a datagram or a connected QP sends to (ibv_create_ah(3), ibv_modify_qp(3)).

use super::Gid;
use crate::error::{Error, Result};

/// `struct ibv_global_route`: the fields of the global routing header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GlobalRoute {
    /// Destination GID: for RoCE the IPv6 (or IPv4-mapped) address of the peer or of the multicast group.
    pub dgid: Gid,
    /// Flow label, 20 bits; on RoCE v2 some drivers derive the UDP source port from it.
    pub flow_label: u32,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// Hop limit (TTL on RoCE v2 over IPv4). The kernel sets it itself when it resolves a RoCE unicast address.
    pub hop_limit: u8,
    /// Traffic class (DSCP and ECN on RoCE v2).
    pub traffic_class: u8,
}

impl GlobalRoute {
    /// To this GID, from the first GID of the port, with a hop limit of 0.
    #[must_use]
    pub const fn new(dgid: Gid) -> Self {
        Self { dgid, flow_label: 0, sgid_index: 0, hop_limit: 0, traffic_class: 0 }
    }

    setters! {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
}

/// `struct ibv_ah_attr`: one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AhAttr {
    /// The global route. `None` is `is_global = 0`: local to an InfiniBand subnet; RoCE always needs one.
    pub grh: Option<GlobalRoute>,
    /// Destination LID; InfiniBand only.
    pub dlid: u16,
    /// Service level, 4 bits (3 on RoCE, where it is the priority).
    pub sl: u8,
    /// Path bits that are added to the port's base LID; InfiniBand only, 7 bits.
    pub src_path_bits: u8,
    /// `enum ibv_rate`: inter-packet delay; 0 is the port's full rate.
    pub static_rate: u8,
    /// The local port through which packets leave, from 1.
    pub port_num: u8,
}

impl AhAttr {
    /// Through this port, to LID 0 without a global route.
    #[must_use]
    pub const fn new(port_num: u8) -> Self {
        Self { grh: None, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, port_num }
    }

    setters! {
        grh: Option<GlobalRoute>,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        port_num: u8,
    }

    /// A RoCE or globally routed destination.
    #[must_use]
    pub fn global(port_num: u8, sgid_index: u8, dgid: Gid) -> Self {
        let grh = GlobalRoute { dgid, sgid_index, hop_limit: 64, ..GlobalRoute::default() };
        Self { grh: Some(grh), port_num, ..Self::default() }
    }

    /// Refuses values that are invalid for every device. `field` is the name of the attributes in the caller's
    /// arguments.
    pub(crate) fn check(&self, verb: &'static str, field: &'static str) -> Result<()> {
        let wrong = |reason: String| Err(Error::invalid(verb, field, reason));
        if self.port_num == 0 {
            return wrong("port_num is 0; ports count from 1".into());
        }
        if self.sl > 15 {
            return wrong(format!("sl {} does not fit in 4 bits", self.sl));
        }
        if self.src_path_bits > 0x7f {
            return wrong(format!("src_path_bits {:#x} does not fit in 7 bits", self.src_path_bits));
        }
        match self.grh {
            Some(grh) if grh.flow_label > 0xf_ffff => {
                wrong(format!("flow_label {:#x} does not fit in 20 bits", grh.flow_label))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_does_not_fit_is_named_in_the_error() {
        let good = AhAttr::global(1, 0, Gid::default());
        good.check("create_ah", "attr").unwrap();
        let no_port = AhAttr { port_num: 0, ..good };
        assert!(no_port.check("create_ah", "attr").unwrap_err().to_string().contains("port_num"));
        let sl = AhAttr { sl: 16, ..good };
        assert!(sl.check("create_ah", "attr").unwrap_err().to_string().contains("sl 16"));
        let mut flow = good;
        flow.grh.as_mut().unwrap().flow_label = 1 << 20;
        assert!(flow.check("create_ah", "attr").unwrap_err().to_string().contains("flow_label"));
    }
}
