// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of `devinfo`. Its lines are those of ibv_devinfo, so that scripts can read both. The capability lists of
//! `-v` are in [`caps`].

mod caps;

use super::facts::{Facts, Opened, Port};
use super::names;
use core::fmt::{self, Write};
use core::net::Ipv6Addr;
use uverbs::attr::{DeviceAttr, GidEntry, GidType, LinkLayer};
use uverbs::device::{DeviceInfo, TransportType};

/// `-l`: the names.
pub(super) fn list(devices: &[DeviceInfo]) -> String {
    let plural = if devices.len() == 1 { "" } else { "s" };
    let mut out = format!("{} HCA{plural} found:\n", devices.len());
    for device in devices {
        out.push_str(&match &device.uverbs {
            Ok(_) => format!("\t{}\n", device.name),
            Err(reason) => format!("\t{}\t({reason})\n", device.name),
        });
    }
    out.push('\n');
    out
}

/// One device.
pub(super) fn device(facts: &Facts, verbose: bool) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = Text { out: &mut out, verbose }.device(facts);
    out
}

/// Four groups of four digits.
fn guid(guid: u64) -> String {
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        guid >> 48,
        guid >> 32 & 0xffff,
        guid >> 16 & 0xffff,
        guid & 0xffff
    )
}

/// The version of the firmware: the string of the kernel driver, or the number in the format that most drivers use.
fn fw_ver(info: &DeviceInfo, attr: &DeviceAttr) -> String {
    let number = attr.fw_ver;
    let text = info.fw_ver.clone().filter(|text| !text.is_empty());
    text.unwrap_or_else(|| format!("{}.{}.{}", number >> 32 & 0xffff, number >> 16 & 0xffff, number & 0xffff))
}

struct Text<'a> {
    out: &'a mut String,
    verbose: bool,
}

/// A line with so many tabs before the name, and so many between the name and its value.
macro_rules! field {
    ($text:expr, $indent:literal, $name:literal, $tabs:literal, $($value:tt)+) => {
        writeln!($text.out, "{}{}:{}{}", "\t".repeat($indent), $name, "\t".repeat($tabs), format_args!($($value)+))
    };
}
use field;

impl Text<'_> {
    fn device(&mut self, facts: &Facts) -> fmt::Result {
        let info = &facts.info;
        let transport = info.node_type.map_or(TransportType(u8::MAX), |node| node.transport());
        field!(self, 0, "hca_id", 1, "{}", info.name)?;
        let number = names::transport_number(transport);
        field!(self, 1, "transport", 3, "{} ({number})", names::transport(transport))?;
        match &facts.opened {
            Ok(opened) => self.opened(info, opened),
            Err(error) => {
                self.known(info)?;
                field!(self, 1, "unavailable", 3, "{error:#}\n")
            }
        }
    }

    /// The attributes from sysfs of a device that can't be opened.
    fn known(&mut self, info: &DeviceInfo) -> fmt::Result {
        if let Some(fw_ver) = info.fw_ver.as_ref().filter(|text| !text.is_empty()) {
            field!(self, 1, "fw_ver", 4, "{fw_ver}")?;
        }
        if let Some(node_guid) = info.node_guid {
            field!(self, 1, "node_guid", 3, "{}", guid(node_guid))?;
        }
        if let Some(sys_image_guid) = info.sys_image_guid {
            field!(self, 1, "sys_image_guid", 3, "{}", guid(sys_image_guid))?;
        }
        self.board(info)
    }

    fn board(&mut self, info: &DeviceInfo) -> fmt::Result {
        match info.board_id.as_ref().filter(|text| !text.is_empty()) {
            Some(board_id) => field!(self, 1, "board_id", 3, "{board_id}"),
            None => Ok(()),
        }
    }

    fn opened(&mut self, info: &DeviceInfo, opened: &Opened) -> fmt::Result {
        let attr = &opened.attr;
        field!(self, 1, "fw_ver", 4, "{}", fw_ver(info, attr))?;
        field!(self, 1, "node_guid", 3, "{}", guid(attr.node_guid))?;
        field!(self, 1, "sys_image_guid", 3, "{}", guid(attr.sys_image_guid))?;
        field!(self, 1, "vendor_id", 3, "{:#06x}", attr.vendor_id)?;
        field!(self, 1, "vendor_part_id", 3, "{}", attr.vendor_part_id)?;
        field!(self, 1, "hw_ver", 4, "{:#X}", attr.hw_ver)?;
        self.board(info)?;
        field!(self, 1, "phys_port_cnt", 3, "{}", attr.phys_port_cnt)?;
        if self.verbose {
            self.limits(attr)?;
            self.caps(attr)?;
            field!(self, 1, "num_comp_vectors", 2, "{}", opened.num_comp_vectors)?;
        }
        opened.ports.iter().try_for_each(|port| self.port(port, transport_of(info)))
    }

    fn limits(&mut self, attr: &DeviceAttr) -> fmt::Result {
        field!(self, 1, "max_mr_size", 3, "{:#x}", attr.max_mr_size)?;
        field!(self, 1, "page_size_cap", 3, "{:#x}", attr.page_size_cap)?;
        field!(self, 1, "max_qp", 4, "{}", attr.max_qp)?;
        field!(self, 1, "max_qp_wr", 3, "{}", attr.max_qp_wr)?;
        // `device_cap_flags` of C has the lower half only.
        let flags = attr.device_cap_flags.bits() as u32;
        field!(self, 1, "device_cap_flags", 2, "{flags:#010x}")?;
        self.device_cap_flags(flags)?;
        field!(self, 1, "max_sge", 3, "{}", attr.max_sge)?;
        field!(self, 1, "max_sge_rd", 3, "{}", attr.max_sge_rd)?;
        field!(self, 1, "max_cq", 4, "{}", attr.max_cq)?;
        field!(self, 1, "max_cqe", 3, "{}", attr.max_cqe)?;
        field!(self, 1, "max_mr", 4, "{}", attr.max_mr)?;
        field!(self, 1, "max_pd", 4, "{}", attr.max_pd)?;
        field!(self, 1, "max_qp_rd_atom", 3, "{}", attr.max_qp_rd_atom)?;
        field!(self, 1, "max_ee_rd_atom", 3, "{}", attr.max_ee_rd_atom)?;
        field!(self, 1, "max_res_rd_atom", 2, "{}", attr.max_res_rd_atom)?;
        field!(self, 1, "max_qp_init_rd_atom", 2, "{}", attr.max_qp_init_rd_atom)?;
        field!(self, 1, "max_ee_init_rd_atom", 2, "{}", attr.max_ee_init_rd_atom)?;
        let atomic_cap = names::atomic_cap(attr.atomic_cap);
        field!(self, 1, "atomic_cap", 3, "{atomic_cap} ({})", attr.atomic_cap.0)?;
        field!(self, 1, "max_ee", 4, "{}", attr.max_ee)?;
        field!(self, 1, "max_rdd", 3, "{}", attr.max_rdd)?;
        field!(self, 1, "max_mw", 4, "{}", attr.max_mw)?;
        field!(self, 1, "max_raw_ipv6_qp", 2, "{}", attr.max_raw_ipv6_qp)?;
        field!(self, 1, "max_raw_ethy_qp", 2, "{}", attr.max_raw_ethy_qp)?;
        field!(self, 1, "max_mcast_grp", 3, "{}", attr.max_mcast_grp)?;
        field!(self, 1, "max_mcast_qp_attach", 2, "{}", attr.max_mcast_qp_attach)?;
        field!(self, 1, "max_total_mcast_qp_attach", 1, "{}", attr.max_total_mcast_qp_attach)?;
        field!(self, 1, "max_ah", 4, "{}", attr.max_ah)?;
        field!(self, 1, "max_fmr", 3, "{}", attr.max_fmr)?;
        if attr.max_fmr != 0 {
            field!(self, 1, "max_map_per_fmr", 2, "{}", attr.max_map_per_fmr)?;
        }
        field!(self, 1, "max_srq", 3, "{}", attr.max_srq)?;
        if attr.max_srq != 0 {
            field!(self, 1, "max_srq_wr", 3, "{}", attr.max_srq_wr)?;
            field!(self, 1, "max_srq_sge", 3, "{}", attr.max_srq_sge)?;
        }
        field!(self, 1, "max_pkeys", 3, "{}", attr.max_pkeys)?;
        field!(self, 1, "local_ca_ack_delay", 2, "{}", attr.local_ca_ack_delay)
    }

    fn port(&mut self, port: &Port, transport: TransportType) -> fmt::Result {
        let attr = &port.attr;
        field!(self, 2, "port", 1, "{}", port.number)?;
        field!(self, 3, "state", 3, "{} ({})", names::port_state(attr.state), attr.state.0)?;
        field!(self, 3, "max_mtu", 2, "{} ({})", names::mtu(attr.max_mtu), attr.max_mtu.0)?;
        field!(self, 3, "active_mtu", 2, "{} ({})", names::mtu(attr.active_mtu), attr.active_mtu.0)?;
        field!(self, 3, "sm_lid", 3, "{}", attr.sm_lid)?;
        field!(self, 3, "port_lid", 2, "{}", attr.lid)?;
        field!(self, 3, "port_lmc", 2, "{:#04x}", attr.lmc)?;
        field!(self, 3, "link_layer", 2, "{}", names::link_layer(attr.link_layer))?;
        if self.verbose {
            field!(self, 3, "max_msg_sz", 2, "{:#x}", attr.max_msg_sz)?;
            field!(self, 3, "port_cap_flags", 2, "{:#010x}", attr.port_cap_flags.bits())?;
            field!(self, 3, "port_cap_flags2", 1, "{:#06x}", attr.port_cap_flags2.bits())?;
            field!(self, 3, "max_vl_num", 2, "{} ({})", names::max_vl(attr.max_vl_num), attr.max_vl_num)?;
            // As C's "0x%x", also for 0.
            field!(self, 3, "bad_pkey_cntr", 2, "{:#x}", attr.bad_pkey_cntr)?;
            field!(self, 3, "qkey_viol_cntr", 2, "{:#x}", attr.qkey_viol_cntr)?;
            field!(self, 3, "sm_sl", 3, "{}", attr.sm_sl)?;
            field!(self, 3, "pkey_tbl_len", 2, "{}", attr.pkey_tbl_len)?;
            field!(self, 3, "gid_tbl_len", 2, "{}", attr.gid_tbl_len)?;
            field!(self, 3, "subnet_timeout", 2, "{}", attr.subnet_timeout)?;
            field!(self, 3, "init_type_reply", 1, "{}", attr.init_type_reply)?;
            field!(
                self,
                3,
                "active_width",
                2,
                "{}X ({})",
                names::width(attr.active_width),
                attr.active_width
            )?;
            let legacy = attr.active_speed.into();
            let speed = if attr.active_speed_ex == 0 { legacy } else { attr.active_speed_ex };
            field!(self, 3, "active_speed", 2, "{} ({speed})", names::speed(speed))?;
            if transport == TransportType::IB {
                field!(
                    self,
                    3,
                    "phys_state",
                    2,
                    "{} ({})",
                    names::phys_state(attr.phys_state),
                    attr.phys_state.0
                )?;
            }
            port.gids.iter().try_for_each(|gid| self.gid(gid, attr.link_layer))?;
        }
        writeln!(self.out)
    }

    /// As ibv_devinfo: GIDs whose lower half is 0, or whose type is unknown, are left out.
    fn gid(&mut self, entry: &GidEntry, link_layer: LinkLayer) -> fmt::Result {
        let Some(name) = names::gid_type(entry) else { return Ok(()) };
        if entry.gid.interface_id() == 0 {
            return Ok(());
        }
        let suffix = if link_layer == LinkLayer::ETHERNET { format!(", {name}") } else { String::new() };
        let index = entry.gid_index;
        write!(self.out, "\t\t\tGID[{index:3}]:\t\t")?;
        if entry.gid_type == GidType::ROCE_V2 {
            writeln!(self.out, "{}{suffix}", Ipv6Addr::from(entry.gid))
        } else {
            writeln!(self.out, "{}{suffix}", entry.gid)
        }
    }
}

fn transport_of(info: &DeviceInfo) -> TransportType {
    info.node_type.map_or(TransportType(u8::MAX), |node| node.transport())
}

#[cfg(test)]
pub(super) mod tests;
