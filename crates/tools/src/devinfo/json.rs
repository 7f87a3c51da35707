// SPDX-License-Identifier: MIT OR Apache-2.0
//! The JSON of `devinfo`: the same facts under the verbs' field names, with flags by name.

use super::facts::{Facts, Opened, Port};
use super::names;
use bitflags::Flags;
use core::net::Ipv6Addr;
use serde_json::{Map, Value, json};
use uverbs::attr::{DeviceAttr, GidEntry, GidType, OdpCaps, PortAttr};
use uverbs::device::{DeviceInfo, Modalias};

/// `-l`: the names.
pub(super) fn list(devices: &[DeviceInfo]) -> Value {
    devices.iter().map(info).collect()
}

/// All devices and attributes that were requested.
pub(super) fn devices(facts: &[Facts]) -> Value {
    facts.iter().map(device).collect()
}

/// The attributes from sysfs.
fn info(info: &DeviceInfo) -> Value {
    json!({
        "name": info.name,
        "transport": info.node_type.map(|node| names::transport(node.transport())),
        "node_type": info.node_type.and_then(|node| node.name()),
        "fw_ver": info.fw_ver,
        "hca_type": info.hca_type,
        "board_id": info.board_id,
        "node_desc": info.node_desc,
        "pci_id": match &info.modalias {
            Some(Modalias::Pci(id)) => json!({ "vendor": id.vendor, "device": id.device }),
            _ => Value::Null,
        },
        "uverbs": info.uverbs.as_ref().ok().map(|node| &node.name),
        "unavailable": info.uverbs.as_ref().err().map(ToString::to_string),
    })
}

fn device(facts: &Facts) -> Value {
    let mut value = info(&facts.info);
    match &facts.opened {
        Ok(opened) => merge(&mut value, self::opened(opened)),
        Err(error) => value["unavailable"] = format!("{error:#}").into(),
    }
    value
}

fn merge(value: &mut Value, more: Value) {
    if let (Value::Object(map), Value::Object(more)) = (value, more) {
        map.extend(more);
    }
}

fn opened(opened: &Opened) -> Value {
    json!({
        "driver": opened.driver,
        "num_comp_vectors": opened.num_comp_vectors,
        "attr": attr(&opened.attr),
        "ports": opened.ports.iter().map(port).collect::<Vec<_>>(),
        "failures": opened.failures.iter().map(|e| format!("{e:#}")).collect::<Vec<_>>(),
    })
}

/// The names of the set bits, and a number for bits without a name.
fn flags<F: Flags + Copy>(flags: F) -> Value
where
    F::Bits: Into<u64>,
{
    let mut names: Vec<Value> = flags.iter_names().map(|(name, _)| name.into()).collect();
    let unknown: u64 = flags.difference(F::all()).bits().into();
    if unknown != 0 {
        names.push(unknown.into());
    }
    names.into()
}

fn guid(guid: u64) -> Value {
    format!("{guid:016x}").into()
}

fn attr(a: &DeviceAttr) -> Value {
    let mut value = json!({
        "fw_ver": a.fw_ver,
        "node_guid": guid(a.node_guid),
        "sys_image_guid": guid(a.sys_image_guid),
        "vendor_id": a.vendor_id,
        "vendor_part_id": a.vendor_part_id,
        "hw_ver": a.hw_ver,
        "phys_port_cnt": a.phys_port_cnt_ex,
        "max_mr_size": a.max_mr_size,
        "page_size_cap": a.page_size_cap,
        "device_cap_flags": flags(a.device_cap_flags),
        "atomic_cap": names::atomic_cap(a.atomic_cap),
        "extended": a.extended,
    });
    merge(&mut value, limits(a));
    if a.extended {
        merge(&mut value, extended(a));
    }
    value
}

fn limits(a: &DeviceAttr) -> Value {
    let mut map = Map::new();
    for (name, limit) in [
        ("max_qp", a.max_qp),
        ("max_qp_wr", a.max_qp_wr),
        ("max_sge", a.max_sge),
        ("max_sge_rd", a.max_sge_rd),
        ("max_cq", a.max_cq),
        ("max_cqe", a.max_cqe),
        ("max_mr", a.max_mr),
        ("max_pd", a.max_pd),
        ("max_qp_rd_atom", a.max_qp_rd_atom),
        ("max_ee_rd_atom", a.max_ee_rd_atom),
        ("max_res_rd_atom", a.max_res_rd_atom),
        ("max_qp_init_rd_atom", a.max_qp_init_rd_atom),
        ("max_ee_init_rd_atom", a.max_ee_init_rd_atom),
        ("max_ee", a.max_ee),
        ("max_rdd", a.max_rdd),
        ("max_mw", a.max_mw),
        ("max_raw_ipv6_qp", a.max_raw_ipv6_qp),
        ("max_raw_ethy_qp", a.max_raw_ethy_qp),
        ("max_mcast_grp", a.max_mcast_grp),
        ("max_mcast_qp_attach", a.max_mcast_qp_attach),
        ("max_total_mcast_qp_attach", a.max_total_mcast_qp_attach),
        ("max_ah", a.max_ah),
        ("max_fmr", a.max_fmr),
        ("max_map_per_fmr", a.max_map_per_fmr),
        ("max_srq", a.max_srq),
        ("max_srq_wr", a.max_srq_wr),
        ("max_srq_sge", a.max_srq_sge),
        ("max_pkeys", a.max_pkeys.into()),
        ("local_ca_ack_delay", a.local_ca_ack_delay.into()),
    ] {
        map.insert(name.into(), limit.into());
    }
    map.into()
}

fn odp(caps: &OdpCaps) -> Value {
    json!({
        "general_caps": flags(caps.general_caps),
        "rc_odp_caps": flags(caps.rc_odp_caps),
        "uc_odp_caps": flags(caps.uc_odp_caps),
        "ud_odp_caps": flags(caps.ud_odp_caps),
        "xrc_odp_caps": flags(caps.xrc_odp_caps),
    })
}

fn extended(a: &DeviceAttr) -> Value {
    json!({
        "odp_caps": odp(&a.odp_caps),
        "completion_timestamp_mask": a.completion_timestamp_mask,
        "hca_core_clock": a.hca_core_clock,
        "tso_caps": { "max_tso": a.tso_caps.max_tso, "supported_qpts": a.tso_caps.supported_qpts },
        "rss_caps": {
            "supported_qpts": a.rss_caps.supported_qpts,
            "max_rwq_indirection_tables": a.rss_caps.max_rwq_indirection_tables,
            "max_rwq_indirection_table_size": a.rss_caps.max_rwq_indirection_table_size,
            "rx_hash_fields_mask": a.rss_caps.rx_hash_fields_mask,
            "rx_hash_function": a.rss_caps.rx_hash_function,
        },
        "max_wq_type_rq": a.max_wq_type_rq,
        "packet_pacing_caps": {
            "qp_rate_limit_min": a.packet_pacing_caps.qp_rate_limit_min,
            "qp_rate_limit_max": a.packet_pacing_caps.qp_rate_limit_max,
            "supported_qpts": a.packet_pacing_caps.supported_qpts,
        },
        "raw_packet_caps": flags(a.raw_packet_caps),
        "tm_caps": {
            "max_rndv_hdr_size": a.tm_caps.max_rndv_hdr_size,
            "max_num_tags": a.tm_caps.max_num_tags,
            "flags": a.tm_caps.flags,
            "max_ops": a.tm_caps.max_ops,
            "max_sge": a.tm_caps.max_sge,
        },
        "cq_mod_caps": {
            "max_cq_count": a.cq_mod_caps.max_cq_count,
            "max_cq_period": a.cq_mod_caps.max_cq_period,
        },
        "max_dm_size": a.max_dm_size,
        "pci_atomic_caps": {
            "fetch_add": a.pci_atomic_caps.fetch_add,
            "swap": a.pci_atomic_caps.swap,
            "compare_swap": a.pci_atomic_caps.compare_swap,
        },
    })
}

fn port(port: &Port) -> Value {
    let mut value = json!({ "port": port.number });
    merge(&mut value, port_attr(&port.attr));
    value["gids"] = port.gids.iter().map(gid).collect();
    value
}

fn port_attr(a: &PortAttr) -> Value {
    json!({
        "state": names::port_state(a.state),
        "phys_state": names::phys_state(a.phys_state),
        "link_layer": names::link_layer(a.link_layer),
        "max_mtu": a.max_mtu.bytes(),
        "active_mtu": a.active_mtu.bytes(),
        "lid": a.lid,
        "lmc": a.lmc,
        "sm_lid": a.sm_lid,
        "sm_sl": a.sm_sl,
        "max_msg_sz": a.max_msg_sz,
        "port_cap_flags": flags(a.port_cap_flags),
        "port_cap_flags2": flags(a.port_cap_flags2),
        "flags": flags(a.flags),
        "max_vl_num": a.max_vl_num,
        "bad_pkey_cntr": a.bad_pkey_cntr,
        "qkey_viol_cntr": a.qkey_viol_cntr,
        "pkey_tbl_len": a.pkey_tbl_len,
        "gid_tbl_len": a.gid_tbl_len,
        "subnet_timeout": a.subnet_timeout,
        "init_type_reply": a.init_type_reply,
        "active_width": a.active_width,
        "active_speed": if a.active_speed_ex == 0 { a.active_speed.into() } else { a.active_speed_ex },
        "rate_100mbps": a.rate_100mbps(),
    })
}

fn gid(entry: &GidEntry) -> Value {
    let gid_type = match entry.gid_type {
        GidType::IB => "IB",
        GidType::ROCE_V1 => "RoCE v1",
        GidType::ROCE_V2 => "RoCE v2",
        _ => "unknown",
    };
    json!({
        "index": entry.gid_index,
        "gid": Ipv6Addr::from(entry.gid).to_string(),
        "type": gid_type,
        "ifindex": entry.ndev_ifindex,
    })
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::{made_up, unavailable};
    use super::*;

    #[test]
    fn json_facts_have_their_names() {
        let value = devices(&[made_up(), unavailable()]);
        assert_eq!(value[0]["name"], "rxe0");
        assert_eq!(value[0]["driver"], "rxe");
        assert_eq!(value[0]["unavailable"], Value::Null);
        assert_eq!(value[0]["attr"]["max_qp"], 1_048_560);
        assert_eq!(value[0]["attr"]["odp_caps"]["rc_odp_caps"], json!(["SEND", "RECV"]));
        assert_eq!(value[0]["ports"][0]["active_mtu"], 1024);
        assert_eq!(value[0]["ports"][0]["gids"][1]["gid"], "::ffff:10.0.0.1");
        assert_eq!(value[1]["driver"], Value::Null);
        assert!(value[1]["unavailable"].as_str().unwrap().contains("no uverbs device"));
    }
}
