// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules (ibv_create_flow(3)).

use super::counters::Bound;
use super::{CountersHandle, Object, QpHandle, Result, handle_common};
use crate::attr::{FlowAttr, FlowHeader, FlowMatch, FlowSpec};
use crate::error::Error;
use crate::kernel::{Command, Kernel, Uhw};
use crate::provider::same_context;
use std::sync::Arc;
use uverbs_uapi::be::{Be16, Be32};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_EX_CMD_CREATE_FLOW, ib_uverbs_create_flow,
    ib_uverbs_create_flow_resp, ib_uverbs_flow_attr, ib_uverbs_flow_eth_filter, ib_uverbs_flow_gre_filter,
    ib_uverbs_flow_ipv4_filter, ib_uverbs_flow_ipv6_filter, ib_uverbs_flow_mpls_filter,
    ib_uverbs_flow_spec_action_count, ib_uverbs_flow_spec_action_drop, ib_uverbs_flow_spec_action_tag,
    ib_uverbs_flow_spec_eth, ib_uverbs_flow_spec_gre, ib_uverbs_flow_spec_hdr, ib_uverbs_flow_spec_ipv4,
    ib_uverbs_flow_spec_ipv6, ib_uverbs_flow_spec_mpls, ib_uverbs_flow_spec_tcp_udp,
    ib_uverbs_flow_spec_tunnel, ib_uverbs_flow_tcp_udp_filter, ib_uverbs_flow_tunnel_filter,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_DESTROY_FLOW_HANDLE, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_FLOW_DESTROY, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_FLOW,
};
use uverbs_uapi::verbs::{
    IB_FLOW_SPEC_ACTION_COUNT, IB_FLOW_SPEC_ACTION_DROP, IB_FLOW_SPEC_ACTION_TAG, IB_FLOW_SPEC_ETH,
    IB_FLOW_SPEC_GRE, IB_FLOW_SPEC_INNER, IB_FLOW_SPEC_IPV4, IB_FLOW_SPEC_IPV6, IB_FLOW_SPEC_MPLS,
    IB_FLOW_SPEC_TCP, IB_FLOW_SPEC_UDP, IB_FLOW_SPEC_VXLAN_TUNNEL,
};
use zerocopy::{Immutable, IntoBytes};

/// A steering rule.
#[derive(Debug)]
pub struct FlowHandle {
    object: Object,
    counters: Option<Bound>,
}

handle_common!(FlowHandle, "flow");

/// Adds a rule: the QP receives the packets that match it, and `counters` count them. A driver passes counters only
/// inside [`CountersHandle::bind`].
///
/// # Errors
/// An invalid port, more specifications than the kernel accepts, or the kernel's error (`EPERM` without `CAP_NET_RAW`).
pub fn create(
    qp: &QpHandle,
    attr: &FlowAttr,
    counters: Option<&CountersHandle>,
    uhw: Uhw<'_>,
) -> Result<FlowHandle> {
    const VERB: &str = "create_flow";
    if attr.port == 0 {
        return Err(Error::invalid(VERB, "port", "0; ports count from 1"));
    }
    same_context(VERB, qp.kernel(), &[("counters", counters.map(CountersHandle::kernel))])?;
    let mut specs = specs(&attr.specs);
    if let Some(counters) = counters {
        put(&mut specs, IB_FLOW_SPEC_ACTION_COUNT, |hdr| ib_uverbs_flow_spec_action_count {
            hdr,
            handle: counters.handle(),
            reserved1: 0,
        });
    }
    let count = attr.specs.len() + usize::from(counters.is_some());
    let (Ok(size), Ok(num_of_specs)) = (u16::try_from(specs.len()), u8::try_from(count)) else {
        return Err(Error::invalid(
            VERB,
            "specs",
            format!("{} specifications are too many", attr.specs.len()),
        ));
    };
    let request = ib_uverbs_create_flow {
        comp_mask: 0,
        qp_handle: qp.handle(),
        flow_attr: ib_uverbs_flow_attr {
            r#type: attr.flow_type as u32,
            size,
            priority: attr.priority,
            num_of_specs,
            port: attr.port,
            flags: attr.flags.bits(),
            ..Default::default()
        },
    };
    let request = [request.as_bytes(), &specs].concat();
    let mut resp = ib_uverbs_create_flow_resp::default();
    let mut command = Command::<5>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    command
        .constant(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_EX_CMD_CREATE_FLOW | IB_USER_VERBS_CMD_FLAG_EXTENDED)
        .input_bytes(UVERBS_ATTR_CORE_IN, &request)
        .output(UVERBS_ATTR_CORE_OUT, &mut resp)
        .uhw(uhw)
        .run(&**qp.kernel())
        .map_err(|errno| qp.error(VERB, errno))?;
    if !command.is_answered(UVERBS_ATTR_CORE_OUT) {
        return Err(Error::protocol(VERB, "no answer"));
    }
    Ok(FlowHandle::new(Object::new(VERB, qp.kernel(), resp.flow_handle)?))
}

/// The rule that a driver has created by a method of its own.
///
/// # Errors
/// An invalid handle.
pub fn of_driver(kernel: &Arc<dyn Kernel>, handle: u32) -> Result<FlowHandle> {
    Ok(FlowHandle::new(Object::new("create_flow", kernel, handle)?))
}

impl FlowHandle {
    pub(super) fn new(object: Object) -> Self {
        Self { object, counters: None }
    }

    /// Adds the reference to a set of counters, which is released when the rule is destroyed.
    pub(super) fn with_counters(self, counters: Bound) -> Self {
        Self { counters: Some(counters), ..self }
    }

    /// Removes the rule.
    ///
    /// # Errors
    /// The kernel's error; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(
            UVERBS_OBJECT_FLOW,
            UVERBS_METHOD_FLOW_DESTROY,
            UVERBS_ATTR_DESTROY_FLOW_HANDLE,
        ) {
            Ok(()) => {
                self.counters.into_iter().for_each(Bound::release);
                Ok(())
            }
            Err(errno) => {
                let error = self.error("destroy_flow", errno);
                Err((self, error))
            }
        }
    }
}

/// The concatenated specifications.
fn specs(specs: &[FlowSpec]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for spec in specs {
        match spec {
            FlowSpec::Header(header) => put_header(&mut bytes, header, 0),
            FlowSpec::Inner(header) => put_header(&mut bytes, header, IB_FLOW_SPEC_INNER),
            FlowSpec::ActionTag(tag_id) => put(&mut bytes, IB_FLOW_SPEC_ACTION_TAG, |hdr| {
                ib_uverbs_flow_spec_action_tag { hdr, tag_id: *tag_id, reserved1: 0 }
            }),
            FlowSpec::ActionDrop => {
                put(&mut bytes, IB_FLOW_SPEC_ACTION_DROP, |hdr| ib_uverbs_flow_spec_action_drop { hdr });
            }
        }
    }
    bytes
}

/// Appends a specification whose header has its type and size.
fn put<T: IntoBytes + Immutable>(
    bytes: &mut Vec<u8>,
    r#type: u32,
    spec: impl FnOnce(ib_uverbs_flow_spec_hdr) -> T,
) {
    let hdr = ib_uverbs_flow_spec_hdr { r#type, size: size_of::<T>() as u16, ..Default::default() };
    bytes.extend_from_slice(spec(hdr).as_bytes());
}

/// Both halves of a match, in the kernel's format.
fn both<T, U>(m: &FlowMatch<T>, f: impl Fn(&T) -> U) -> (U, U) {
    (f(&m.val), f(&m.mask))
}

fn put_header(bytes: &mut Vec<u8>, header: &FlowHeader, inner: u32) {
    match header {
        FlowHeader::Eth(m) => {
            let (val, mask) = both(m, |f| ib_uverbs_flow_eth_filter {
                dst_mac: f.dst_mac,
                src_mac: f.src_mac,
                ether_type: Be16::new(f.ether_type),
                vlan_tag: Be16::new(f.vlan_tag),
            });
            put(bytes, IB_FLOW_SPEC_ETH | inner, |hdr| ib_uverbs_flow_spec_eth { hdr, val, mask });
        }
        FlowHeader::Ipv4(m) => {
            let (val, mask) = both(m, |f| ib_uverbs_flow_ipv4_filter {
                src_ip: Be32::new(u32::from_be_bytes(f.src_ip)),
                dst_ip: Be32::new(u32::from_be_bytes(f.dst_ip)),
                proto: f.proto,
                tos: f.tos,
                ttl: f.ttl,
                flags: f.flags,
            });
            put(bytes, IB_FLOW_SPEC_IPV4 | inner, |hdr| ib_uverbs_flow_spec_ipv4 { hdr, val, mask });
        }
        FlowHeader::Ipv6(m) => {
            let (val, mask) = both(m, |f| ib_uverbs_flow_ipv6_filter {
                src_ip: f.src_ip,
                dst_ip: f.dst_ip,
                flow_label: Be32::new(f.flow_label),
                next_hdr: f.next_hdr,
                traffic_class: f.traffic_class,
                hop_limit: f.hop_limit,
                reserved: 0,
            });
            put(bytes, IB_FLOW_SPEC_IPV6 | inner, |hdr| ib_uverbs_flow_spec_ipv6 { hdr, val, mask });
        }
        FlowHeader::Tcp(m) | FlowHeader::Udp(m) => {
            let r#type = match header {
                FlowHeader::Tcp(_) => IB_FLOW_SPEC_TCP,
                _ => IB_FLOW_SPEC_UDP,
            };
            let (val, mask) = both(m, |f| ib_uverbs_flow_tcp_udp_filter {
                dst_port: Be16::new(f.dst_port),
                src_port: Be16::new(f.src_port),
            });
            put(bytes, r#type | inner, |hdr| ib_uverbs_flow_spec_tcp_udp { hdr, val, mask });
        }
        FlowHeader::Vxlan(m) => {
            let (val, mask) = both(m, |id| ib_uverbs_flow_tunnel_filter { tunnel_id: Be32::new(*id) });
            put(bytes, IB_FLOW_SPEC_VXLAN_TUNNEL | inner, |hdr| ib_uverbs_flow_spec_tunnel {
                hdr,
                val,
                mask,
            });
        }
        FlowHeader::Gre(m) => {
            let (val, mask) = both(m, |f| ib_uverbs_flow_gre_filter {
                c_ks_res0_ver: Be16::new(f.c_ks_res0_ver),
                protocol: Be16::new(f.protocol),
                key: Be32::new(f.key),
            });
            put(bytes, IB_FLOW_SPEC_GRE | inner, |hdr| ib_uverbs_flow_spec_gre { hdr, val, mask });
        }
        FlowHeader::Mpls(m) => {
            let (val, mask) = both(m, |label| ib_uverbs_flow_mpls_filter { label: Be32::new(*label) });
            put(bytes, IB_FLOW_SPEC_MPLS | inner, |hdr| ib_uverbs_flow_spec_mpls { hdr, val, mask });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{FlowEth, FlowIpv4, FlowPorts};

    #[test]
    fn specifications_have_the_kernels_layout() {
        let eth = FlowMatch {
            val: FlowEth { dst_mac: [1, 2, 3, 4, 5, 6], ether_type: 0x0800, ..FlowEth::default() },
            mask: FlowEth { dst_mac: [0xff; 6], ether_type: 0xffff, ..FlowEth::default() },
        };
        let bytes = specs(&[FlowSpec::Header(FlowHeader::Eth(eth))]);
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..8], [0x20, 0, 0, 0, 40, 0, 0, 0], "type and size, host order");
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(bytes[24..30], [0xff; 6]);

        let ipv4 = FlowMatch {
            val: FlowIpv4 { dst_ip: [10, 0, 0, 1], ..FlowIpv4::default() },
            ..FlowMatch::default()
        };
        let udp = FlowMatch { val: FlowPorts { dst_port: 4791, src_port: 1 }, ..FlowMatch::default() };
        let bytes = specs(&[
            FlowSpec::Inner(FlowHeader::Ipv4(ipv4)),
            FlowSpec::Header(FlowHeader::Udp(udp)),
            FlowSpec::ActionTag(7),
            FlowSpec::ActionDrop,
        ]);
        assert_eq!(bytes.len(), 32 + 16 + 16 + 8);
        assert_eq!(bytes[..8], [0x30, 1, 0, 0, 32, 0, 0, 0]);
        assert_eq!(bytes[12..16], [10, 0, 0, 1]);
        assert_eq!(bytes[32..44], [0x41, 0, 0, 0, 16, 0, 0, 0, 0x12, 0xb7, 0, 1]);
        assert_eq!(bytes[48..60], [0, 0x10, 0, 0, 16, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[64..], [1, 0x10, 0, 0, 8, 0, 0, 0]);
    }
}
