// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries of the device: its attributes, its ports (ibv_query_device_ex(3), ibv_query_port(3)), their GIDs and P_Keys
//! (ibv_query_gid_ex(3), ibv_query_pkey(3)).

use super::{Result, device_error, invoke};
use crate::attr::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceCapFlags, Gid, GidEntry, GidType, LinkLayer, Mtu, OdpCaps,
    OdpGeneralCaps, OdpTransportCaps, PhysState, PortAttr, PortCapFlags, PortCapFlags2, PortFlags, PortState,
    RawPacketCaps, RssCaps, TmCaps,
};
use crate::device::parse;
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Kernel, Uhw};
use std::sync::Arc;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_QUERY_DEVICE, IB_USER_VERBS_EX_CMD_QUERY_DEVICE,
    ib_uverbs_ex_query_device, ib_uverbs_ex_query_device_resp, ib_uverbs_query_device,
    ib_uverbs_query_device_resp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
    UVERBS_ATTR_QUERY_GID_ENTRY_PORT, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
    UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
    UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
    UVERBS_ATTR_QUERY_PORT_PORT_NUM, UVERBS_ATTR_QUERY_PORT_RESP, UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM,
    UVERBS_ATTR_QUERY_PORT_SPEED_RESP, UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_GID_TABLE,
    UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_QUERY_PORT_SPEED, UVERBS_OBJECT_DEVICE,
};
use uverbs_uapi::verbs::{ib_uverbs_gid_entry, ib_uverbs_query_port_resp_ex};
use zerocopy::{FromBytes as _, IntoBytes};

/// Entries that the longest attribute has room for.
const MAX_GIDS: usize = u16::MAX as usize / size_of::<ib_uverbs_gid_entry>();

/// Queries all attributes of the device that uverbs reports. `uhw` receives the driver's part.
///
/// # Errors
/// The kernel's error.
pub fn device(kernel: &Arc<dyn Kernel>, uhw: Uhw<'_>) -> Result<DeviceAttr> {
    const VERB: &str = "query_device";
    let request = ib_uverbs_ex_query_device::default();
    let command = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    match invoke::<_, ib_uverbs_ex_query_device_resp>(&**kernel, command, &request, uhw) {
        Ok(resp) => {
            let base = size_of::<ib_uverbs_query_device_resp>();
            // The part of the struct that this kernel fills in; the rest is zeros, which mean "none".
            if (resp.response_length as usize) < base || resp.response_length as usize > size_of_val(&resp) {
                return Err(Error::protocol(VERB, format!("response_length {}", resp.response_length)));
            }
            let mut attr = base_from_kernel(&resp.base);
            extend(&mut attr, &resp);
            Ok(attr)
        }
        // The driver has no `query_device`.
        Err(errno) if errno.is_unsupported() => {
            let request = ib_uverbs_query_device::default();
            let resp: ib_uverbs_query_device_resp =
                invoke(&**kernel, IB_USER_VERBS_CMD_QUERY_DEVICE, &request, Uhw::none())
                    .map_err(|errno| device_error(VERB, &**kernel, errno))?;
            Ok(base_from_kernel(&resp))
        }
        Err(errno) => Err(device_error(VERB, &**kernel, errno)),
    }
}

fn base_from_kernel(resp: &ib_uverbs_query_device_resp) -> DeviceAttr {
    DeviceAttr {
        fw_ver: resp.fw_ver,
        node_guid: resp.node_guid.get(),
        sys_image_guid: resp.sys_image_guid.get(),
        max_mr_size: resp.max_mr_size,
        page_size_cap: resp.page_size_cap,
        vendor_id: resp.vendor_id,
        vendor_part_id: resp.vendor_part_id,
        hw_ver: resp.hw_ver,
        max_qp: resp.max_qp,
        max_qp_wr: resp.max_qp_wr,
        device_cap_flags: DeviceCapFlags::from_bits_retain(resp.device_cap_flags.into()),
        max_sge: resp.max_sge,
        max_sge_rd: resp.max_sge_rd,
        max_cq: resp.max_cq,
        max_cqe: resp.max_cqe,
        max_mr: resp.max_mr,
        max_pd: resp.max_pd,
        max_qp_rd_atom: resp.max_qp_rd_atom,
        max_ee_rd_atom: resp.max_ee_rd_atom,
        max_res_rd_atom: resp.max_res_rd_atom,
        max_qp_init_rd_atom: resp.max_qp_init_rd_atom,
        max_ee_init_rd_atom: resp.max_ee_init_rd_atom,
        atomic_cap: AtomicCap(resp.atomic_cap),
        max_ee: resp.max_ee,
        max_rdd: resp.max_rdd,
        max_mw: resp.max_mw,
        max_raw_ipv6_qp: resp.max_raw_ipv6_qp,
        max_raw_ethy_qp: resp.max_raw_ethy_qp,
        max_mcast_grp: resp.max_mcast_grp,
        max_mcast_qp_attach: resp.max_mcast_qp_attach,
        max_total_mcast_qp_attach: resp.max_total_mcast_qp_attach,
        max_ah: resp.max_ah,
        max_fmr: resp.max_fmr,
        max_map_per_fmr: resp.max_map_per_fmr,
        max_srq: resp.max_srq,
        max_srq_wr: resp.max_srq_wr,
        max_srq_sge: resp.max_srq_sge,
        max_pkeys: resp.max_pkeys,
        local_ca_ack_delay: resp.local_ca_ack_delay,
        phys_port_cnt: resp.phys_port_cnt,
        phys_port_cnt_ex: resp.phys_port_cnt.into(),
        ..DeviceAttr::default()
    }
}

fn extend(attr: &mut DeviceAttr, resp: &ib_uverbs_ex_query_device_resp) {
    attr.extended = true;
    // The extended flags include the legacy ones, if the kernel supports them.
    if resp.device_cap_flags_ex != 0 {
        attr.device_cap_flags = DeviceCapFlags::from_bits_retain(resp.device_cap_flags_ex);
    }
    let transport = &resp.odp_caps.per_transport_caps;
    attr.odp_caps = OdpCaps {
        general_caps: OdpGeneralCaps::from_bits_retain(resp.odp_caps.general_caps),
        rc_odp_caps: OdpTransportCaps::from_bits_retain(transport.rc_odp_caps),
        uc_odp_caps: OdpTransportCaps::from_bits_retain(transport.uc_odp_caps),
        ud_odp_caps: OdpTransportCaps::from_bits_retain(transport.ud_odp_caps),
        xrc_odp_caps: OdpTransportCaps::from_bits_retain(resp.xrc_odp_caps),
    };
    attr.completion_timestamp_mask = resp.timestamp_mask;
    attr.hca_core_clock = resp.hca_core_clock;
    attr.rss_caps = RssCaps {
        supported_qpts: resp.rss_caps.supported_qpts,
        max_rwq_indirection_tables: resp.rss_caps.max_rwq_indirection_tables,
        max_rwq_indirection_table_size: resp.rss_caps.max_rwq_indirection_table_size,
        ..RssCaps::default()
    };
    attr.max_wq_type_rq = resp.max_wq_type_rq;
    attr.raw_packet_caps = RawPacketCaps::from_bits_retain(resp.raw_packet_caps);
    attr.tm_caps = TmCaps {
        max_rndv_hdr_size: resp.tm_caps.max_rndv_hdr_size,
        max_num_tags: resp.tm_caps.max_num_tags,
        flags: resp.tm_caps.flags,
        max_ops: resp.tm_caps.max_ops,
        max_sge: resp.tm_caps.max_sge,
    };
    attr.cq_mod_caps = CqModerationCaps {
        max_cq_count: resp.cq_moderation_caps.max_cq_moderation_count,
        max_cq_period: resp.cq_moderation_caps.max_cq_moderation_period,
    };
    attr.max_dm_size = resp.max_dm_size;
}

/// Queries the attributes of a port.
///
/// # Errors
/// Port 0, or the kernel's error (`EINVAL` for a port that the device does not have).
pub fn port(kernel: &Arc<dyn Kernel>, port_num: impl Into<u32>) -> Result<PortAttr> {
    const VERB: &str = "query_port";
    let port_num = check_port(VERB, port_num)?;
    let mut resp = ib_uverbs_query_port_resp_ex::default();
    Command::<2>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT)
        .constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM, port_num)
        .output(UVERBS_ATTR_QUERY_PORT_RESP, &mut resp)
        .run(&**kernel)
        .map_err(|errno| port_error(VERB, &**kernel, port_num, errno))?;
    let legacy = &resp.legacy_resp;
    Ok(PortAttr {
        state: PortState(legacy.state),
        max_mtu: Mtu(legacy.max_mtu),
        active_mtu: Mtu(legacy.active_mtu),
        gid_tbl_len: legacy.gid_tbl_len,
        port_cap_flags: PortCapFlags::from_bits_retain(legacy.port_cap_flags),
        max_msg_sz: legacy.max_msg_sz,
        bad_pkey_cntr: legacy.bad_pkey_cntr,
        qkey_viol_cntr: legacy.qkey_viol_cntr,
        pkey_tbl_len: legacy.pkey_tbl_len,
        lid: legacy.lid,
        sm_lid: legacy.sm_lid,
        lmc: legacy.lmc,
        max_vl_num: legacy.max_vl_num,
        sm_sl: legacy.sm_sl,
        subnet_timeout: legacy.subnet_timeout,
        init_type_reply: legacy.init_type_reply,
        active_width: legacy.active_width,
        active_speed: legacy.active_speed,
        active_speed_ex: resp.active_speed_ex,
        phys_state: PhysState(legacy.phys_state),
        link_layer: LinkLayer(legacy.link_layer),
        flags: PortFlags::from_bits_retain(legacy.flags),
        port_cap_flags2: PortCapFlags2::from_bits_retain(resp.port_cap_flags2),
    })
}

/// Queries the effective speed of a port, in units of 100 Mb/s.
///
/// # Errors
/// Port 0, or the kernel's error; [`Error::Unsupported`] on kernels without this query.
pub fn port_speed(kernel: &Arc<dyn Kernel>, port_num: u32) -> Result<u64> {
    const VERB: &str = "query_port_speed";
    let port_num = check_port(VERB, port_num)?;
    let mut speed = 0_u64;
    Command::<2>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT_SPEED)
        .constant(UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, port_num)
        .output(UVERBS_ATTR_QUERY_PORT_SPEED_RESP, &mut speed)
        .run(&**kernel)
        .map_err(|errno| port_error(VERB, &**kernel, port_num, errno))?;
    Ok(speed)
}

/// Queries the GIDs in use, of all ports: up to 2047, for which one attribute has room.
///
/// # Errors
/// The kernel's error (`EINVAL` if there are more).
pub fn gid_table(kernel: &Arc<dyn Kernel>) -> Result<Vec<GidEntry>> {
    const VERB: &str = "query_gid_table";
    // Words, because memory of zeros costs nothing to make.
    let mut entries = vec![0_u64; MAX_GIDS * size_of::<ib_uverbs_gid_entry>() / size_of::<u64>()];
    let mut count = 0_u64;
    Command::<4>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE)
        .constant(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, size_of::<ib_uverbs_gid_entry>() as u64)
        .flags(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0_u32)
        .output_bytes(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, entries.as_mut_bytes())
        .output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &mut count)
        .run(&**kernel)
        .map_err(|errno| device_error(VERB, &**kernel, errno))?;
    let entries = <[ib_uverbs_gid_entry]>::ref_from_bytes(entries.as_bytes()).unwrap_or_default();
    let valid = usize::try_from(count).ok().and_then(|count| entries.get(..count));
    let valid =
        valid.ok_or_else(|| Error::protocol(VERB, format!("{count} entries in room for {MAX_GIDS}")))?;
    Ok(valid.iter().map(gid_from_kernel).collect())
}

/// Queries one entry of a port's GID table.
///
/// # Errors
/// Port 0, or the kernel's error (`ENODATA` for an empty entry, `EINVAL` beyond the table).
pub fn gid_entry(kernel: &Arc<dyn Kernel>, port_num: impl Into<u32>, gid_index: u32) -> Result<GidEntry> {
    const VERB: &str = "query_gid";
    let port_num = check_port(VERB, port_num)?;
    let mut entry = ib_uverbs_gid_entry::default();
    Command::<4>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY)
        .constant(UVERBS_ATTR_QUERY_GID_ENTRY_PORT, port_num)
        .constant(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, gid_index)
        .flags(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0_u32)
        .output(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &mut entry)
        .run(&**kernel)
        .map_err(|errno| entry_error(VERB, &**kernel, port_num, format!("gid_index {gid_index}"), errno))?;
    Ok(gid_from_kernel(&entry))
}

/// An entry of a port's P_Key table, in host byte order, read from sysfs, because uverbs does not report it.
///
/// # Errors
/// Port 0, or the error of reading the attribute (`ENOENT`: no such port or entry).
pub fn pkey(kernel: &Arc<dyn Kernel>, port_num: impl Into<u32>, index: u16) -> Result<u16> {
    const VERB: &str = "query_pkey";
    let port_num = check_port(VERB, port_num)?;
    let text = kernel
        .attribute(&format!("ports/{port_num}/pkeys/{index}"))
        .map_err(|errno| entry_error(VERB, &**kernel, port_num, format!("index {index}"), errno))?;
    parse::pkey(&text)
        .ok_or_else(|| Error::protocol(VERB, format!("entry {index} of port {port_num} is not a P_Key")))
}

fn gid_from_kernel(entry: &ib_uverbs_gid_entry) -> GidEntry {
    let mut gid = Gid::ZERO;
    // Two words that are 16 bytes in network order already.
    gid.0.copy_from_slice(entry.gid.as_bytes());
    GidEntry {
        gid,
        gid_index: entry.gid_index,
        port_num: entry.port_num,
        gid_type: GidType(entry.gid_type),
        ndev_ifindex: entry.netdev_ifindex,
    }
}

fn check_port(verb: &'static str, port_num: impl Into<u32>) -> Result<u32> {
    match port_num.into() {
        0 => Err(Error::invalid(verb, "port_num", "ports count from 1")),
        port_num => Ok(port_num),
    }
}

fn entry_error(verb: &'static str, kernel: &dyn Kernel, port_num: u32, what: String, errno: Errno) -> Error {
    Error::os(verb, format!("{what} of port {port_num} of device {}", kernel.name()), errno)
}

fn port_error(verb: &'static str, kernel: &dyn Kernel, port_num: u32, errno: Errno) -> Error {
    Error::os(verb, format!("port {port_num} of device {}", kernel.name()), errno)
}
