// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steering rules: parses the command that creates one.

use super::call::Call;
use super::object::Object;
use crate::engine::flow::{Masked, Rule, Spec, Target};
use crate::engine::qp::QpKind;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{core_out, extensible};
use uverbs_uapi::cmd::{
    ib_uverbs_create_flow, ib_uverbs_create_flow_resp, ib_uverbs_destroy_flow,
    ib_uverbs_flow_spec_action_count, ib_uverbs_flow_spec_action_tag, ib_uverbs_flow_spec_eth,
    ib_uverbs_flow_spec_hdr, ib_uverbs_flow_spec_ipv4, ib_uverbs_flow_spec_ipv6, ib_uverbs_flow_spec_tcp_udp,
};
use uverbs_uapi::ids::UVERBS_ATTR_CORE_IN;
use uverbs_uapi::verbs::{
    IB_FLOW_ATTR_ALL_DEFAULT, IB_FLOW_ATTR_MC_DEFAULT, IB_FLOW_ATTR_NORMAL, IB_FLOW_ATTR_SNIFFER,
    IB_FLOW_SPEC_ACTION_COUNT, IB_FLOW_SPEC_ACTION_DROP, IB_FLOW_SPEC_ACTION_TAG, IB_FLOW_SPEC_ETH,
    IB_FLOW_SPEC_IPV4, IB_FLOW_SPEC_IPV6, IB_FLOW_SPEC_TCP, IB_FLOW_SPEC_UDP,
};
use zerocopy::{FromBytes, IntoBytes};

/// Lowest priority of a rule (`MLX5_IB_FLOW_LAST_PRIO`).
const LAST_PRIORITY: u16 = 15;
/// Priorities of default rules, after all others.
const DEFAULT_PRIORITY: u16 = LAST_PRIORITY + 1;
/// The tag of a frame that no rule tags (`MLX5_FS_DEFAULT_FLOW_TAG`).
const NO_TAG: u32 = 0;
const TCP: u8 = 6;
const UDP: u8 = 17;

impl Call<'_, '_> {
    pub(super) fn create_flow(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let bytes = c.input(UVERBS_ATTR_CORE_IN).unwrap_or_default();
        let (request, specs) = ib_uverbs_create_flow::read_from_prefix(bytes).map_err(|_| Errno::ENOSPC)?;
        let attr = request.flow_attr;
        if request.comp_mask != 0 || attr.reserved != [0; 2] || usize::from(attr.size) != specs.len() {
            return Err(Errno::EINVAL);
        }
        // Only rules for receiving are supported.
        if attr.flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.device.ethernet || attr.port != 1 || attr.priority > LAST_PRIORITY {
            return Err(Errno::EINVAL);
        }
        let target = match self.object(request.qp_handle)? {
            Object::Qp(qp) if qp.is_rss => Target::Rss(qp.qpn),
            Object::Qp(qp) if qp.kind == QpKind::Raw => Target::Qp(qp.qpn),
            Object::Qp(_) => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOENT),
        };
        let mut rule = Rule {
            priority: attr.priority,
            multicast: attr.r#type == IB_FLOW_ATTR_MC_DEFAULT,
            sniffer: attr.r#type == IB_FLOW_ATTR_SNIFFER,
            specs: Vec::new(),
            tag: NO_TAG,
            target,
            counters: None,
        };
        let mut set = None;
        match attr.r#type {
            IB_FLOW_ATTR_NORMAL => set = parse(specs, attr.num_of_specs, &mut rule)?,
            IB_FLOW_ATTR_ALL_DEFAULT | IB_FLOW_ATTR_MC_DEFAULT | IB_FLOW_ATTR_SNIFFER
                if attr.num_of_specs == 0 =>
            {
                rule.priority = DEFAULT_PRIORITY;
            }
            _ => return Err(Errno::EINVAL),
        }
        if let Some(set) = set {
            rule.counters = Some(self.bind_counters(c, set)?);
        }
        let rule = self.device.steering.add(rule);
        // The rules of a QP are counted with the QP, which is busy while it has any.
        let parents: Vec<u32> = set.into_iter().collect();
        let flow_handle = self.add(Object::Flow { rule }, &parents, 0)?;
        core_out(c, ib_uverbs_create_flow_resp { comp_mask: 0, flow_handle }.as_bytes())
    }

    pub(super) fn destroy_flow(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_destroy_flow =
            extensible(c.input(UVERBS_ATTR_CORE_IN), size_of::<ib_uverbs_destroy_flow>())?;
        let is = |o: &Object| matches!(o, Object::Flow { .. });
        self.destroy_handle(request.flow_handle, is)?;
        Ok(())
    }
}

/// Reads the specifications that follow a rule. Returns the handle of its counters, if it has any.
fn parse(mut bytes: &[u8], count: u8, rule: &mut Rule) -> Result<Option<u32>, Errno> {
    let mut counters = None;
    for _ in 0..count {
        let (header, _) = ib_uverbs_flow_spec_hdr::read_from_prefix(bytes).map_err(|_| Errno::EINVAL)?;
        let size = usize::from(header.size);
        let spec = bytes.get(..size).filter(|_| size >= size_of_val(&header)).ok_or(Errno::EINVAL)?;
        bytes = &bytes[size..];
        match header.r#type {
            IB_FLOW_SPEC_ACTION_DROP => rule.target = Target::Drop,
            IB_FLOW_SPEC_ACTION_TAG => {
                let tag = read::<ib_uverbs_flow_spec_action_tag>(spec)?;
                if tag.tag_id > 0xff_ffff {
                    return Err(Errno::EINVAL);
                }
                rule.tag = tag.tag_id;
            }
            IB_FLOW_SPEC_ACTION_COUNT => {
                let count = read::<ib_uverbs_flow_spec_action_count>(spec)?;
                // A rule has at most one set of counters (`parse_flow_attr()`).
                if counters.replace(count.handle).is_some() {
                    return Err(Errno::EINVAL);
                }
            }
            kind => rule.specs.push(condition(kind, spec)?),
        }
    }
    if bytes.is_empty() { Ok(counters) } else { Err(Errno::EINVAL) }
}

fn condition(kind: u32, spec: &[u8]) -> Result<Spec, Errno> {
    Ok(match kind {
        IB_FLOW_SPEC_ETH => {
            let s = read::<ib_uverbs_flow_spec_eth>(spec)?;
            Spec::Eth {
                dmac: Masked { value: s.val.dst_mac, mask: s.mask.dst_mac },
                smac: Masked { value: s.val.src_mac, mask: s.mask.src_mac },
                ethertype: Masked { value: s.val.ether_type.get(), mask: s.mask.ether_type.get() },
                vlan: Masked { value: s.val.vlan_tag.get(), mask: s.mask.vlan_tag.get() },
            }
        }
        IB_FLOW_SPEC_IPV4 => {
            let s = read::<ib_uverbs_flow_spec_ipv4>(spec)?;
            let addr = |a: uverbs_uapi::be::Be32| a.get().to_be_bytes();
            Spec::Ip4 {
                src: Masked { value: addr(s.val.src_ip), mask: addr(s.mask.src_ip) },
                dst: Masked { value: addr(s.val.dst_ip), mask: addr(s.mask.dst_ip) },
                proto: Masked { value: s.val.proto, mask: s.mask.proto },
                tos: Masked { value: s.val.tos, mask: s.mask.tos },
                ttl: Masked { value: s.val.ttl, mask: s.mask.ttl },
            }
        }
        IB_FLOW_SPEC_IPV6 => {
            let s = read::<ib_uverbs_flow_spec_ipv6>(spec)?;
            Spec::Ip6 {
                src: Masked { value: s.val.src_ip, mask: s.mask.src_ip },
                dst: Masked { value: s.val.dst_ip, mask: s.mask.dst_ip },
                next: Masked { value: s.val.next_hdr, mask: s.mask.next_hdr },
                tclass: Masked { value: s.val.traffic_class, mask: s.mask.traffic_class },
                hops: Masked { value: s.val.hop_limit, mask: s.mask.hop_limit },
            }
        }
        IB_FLOW_SPEC_TCP | IB_FLOW_SPEC_UDP => {
            let s = read::<ib_uverbs_flow_spec_tcp_udp>(spec)?;
            Spec::Ports {
                proto: if kind == IB_FLOW_SPEC_TCP { TCP } else { UDP },
                src: Masked { value: s.val.src_port.get(), mask: s.mask.src_port.get() },
                dst: Masked { value: s.val.dst_port.get(), mask: s.mask.dst_port.get() },
            }
        }
        _ => return Err(Errno::EOPNOTSUPP),
    })
}

fn read<T: FromBytes>(spec: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(spec).map_err(|_| Errno::EINVAL)
}
