// SPDX-License-Identifier: MIT OR Apache-2.0
//! The capabilities that `devinfo -v` lists, a line for each.

use super::{Text, field};
use core::fmt::{self, Display, Write};
use uverbs::attr::{
    CqModerationCaps, DeviceAttr, OdpCaps, PacketPacingCaps, QpType, RawPacketCaps, RssCaps, TmCaps, TsoCaps,
};

/// `device_cap_flags`: bit, name.
const DEVICE_CAPS: &[(u32, &str)] = &[
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (29, "MANAGED_FLOW_STEERING"),
];

/// The upper half of `device_cap_flags_ex`.
const DEVICE_CAPS_EX: &[(u32, &str)] = &[(34, "RAW_SCATTER_FCS"), (36, "PCI_WRITE_END_PADDING")];

const ODP_GENERAL: &[(u32, &str)] = &[(0, "ODP_SUPPORT"), (1, "ODP_SUPPORT_IMPLICIT")];

const ODP_TRANSPORT: &[(u32, &str)] = &[
    (0, "SUPPORT_SEND"),
    (1, "SUPPORT_RECV"),
    (2, "SUPPORT_WRITE"),
    (3, "SUPPORT_READ"),
    (4, "SUPPORT_ATOMIC"),
    (5, "SUPPORT_SRQ"),
    (6, "SUPPORT_FLUSH"),
    (7, "SUPPORT_ATOMIC_WRITE"),
];

const RAW_PACKET: &[(u32, &str)] =
    &[(0, "C-VLAN stripping offload"), (1, "Scatter FCS offload"), (2, "IP csum offload"), (3, "Delay drop")];

const TAG_MATCHING: &[(u32, &str)] = &[(0, "IBV_TM_CAP_RC")];

/// QP types by the bit of `supported_qpts`, as in ibv_devinfo.
const QPTS_RAW_UD: &[(u32, &str)] =
    &[(QpType::RawPacket as u32, "SUPPORT_RAW_PACKET"), (QpType::Ud as u32, "SUPPORT_UD")];
const QPTS_RAW_UD_RC: &[(u32, &str)] = &[
    (QpType::RawPacket as u32, "SUPPORT_RAW_PACKET"),
    (QpType::Ud as u32, "SUPPORT_UD"),
    (QpType::Rc as u32, "SUPPORT_RC"),
];

impl Text<'_> {
    fn flag(&mut self, name: impl Display) -> fmt::Result {
        writeln!(self.out, "\t\t\t\t\t{name}")
    }

    /// A line for each bit that is set; those without a name in one line.
    fn flags(&mut self, bits: u64, names: &[(u32, &str)]) -> fmt::Result {
        let mut unknown = bits;
        for (bit, name) in names {
            if bits >> bit & 1 != 0 {
                self.flag(name)?;
            }
            unknown &= !(1 << bit);
        }
        if unknown != 0 { self.flag(format_args!("Unknown flags: {unknown:#X}")) } else { Ok(()) }
    }

    pub(super) fn device_cap_flags(&mut self, flags: u32) -> fmt::Result {
        self.flags(flags.into(), DEVICE_CAPS)
    }

    /// The attributes of the extended query.
    pub(super) fn caps(&mut self, attr: &DeviceAttr) -> fmt::Result {
        self.odp(&attr.odp_caps)?;
        match attr.completion_timestamp_mask {
            0 => writeln!(self.out, "\tcompletion_timestamp_mask not supported")?,
            mask => field!(self, 1, "completion timestamp_mask", 3, "{mask:#018x}")?,
        }
        match attr.hca_core_clock {
            0 => writeln!(self.out, "\tcore clock not supported")?,
            khz => field!(self, 1, "hca_core_clock", 3, "{khz}kHZ")?,
        }
        self.raw_packet(attr.raw_packet_caps)?;
        let flags = attr.device_cap_flags.bits();
        field!(self, 1, "device_cap_flags_ex", 2, "{flags:#X}")?;
        self.flags(flags & !u64::from(u32::MAX), DEVICE_CAPS_EX)?;
        self.tso(&attr.tso_caps)?;
        self.rss(&attr.rss_caps)?;
        field!(self, 1, "max_wq_type_rq", 3, "{}", attr.max_wq_type_rq)?;
        self.packet_pacing(&attr.packet_pacing_caps)?;
        self.tag_matching(&attr.tm_caps)?;
        self.cq_moderation(&attr.cq_mod_caps)?;
        if attr.max_dm_size != 0 {
            field!(self, 1, "maximum available device memory", 1, "{}Bytes\n", attr.max_dm_size)?;
        }
        Ok(())
    }

    fn odp(&mut self, caps: &OdpCaps) -> fmt::Result {
        writeln!(self.out, "\tgeneral_odp_caps:")?;
        self.flags(caps.general_caps.bits(), ODP_GENERAL)?;
        for (name, caps) in [
            ("rc", caps.rc_odp_caps),
            ("uc", caps.uc_odp_caps),
            ("ud", caps.ud_odp_caps),
            ("xrc", caps.xrc_odp_caps),
        ] {
            writeln!(self.out, "\t{name}_odp_caps:")?;
            if caps.is_empty() {
                self.flag("NO SUPPORT")?;
            }
            self.flags(caps.bits().into(), ODP_TRANSPORT)?;
        }
        Ok(())
    }

    fn raw_packet(&mut self, caps: RawPacketCaps) -> fmt::Result {
        if caps.is_empty() {
            return Ok(());
        }
        writeln!(self.out, "\traw packet caps:")?;
        // ibv_devinfo does not print the others.
        let known = RAW_PACKET.iter().fold(0, |mask, (bit, _)| mask | 1 << bit);
        self.flags(u64::from(caps.bits()) & known, RAW_PACKET)
    }

    fn supported_qp(&mut self, qpts: u32, names: &[(u32, &str)]) -> fmt::Result {
        writeln!(self.out, "\t\tsupported_qp:")?;
        self.flags(qpts.into(), names)
    }

    fn tso(&mut self, caps: &TsoCaps) -> fmt::Result {
        writeln!(self.out, "\ttso_caps:")?;
        field!(self, 2, "max_tso", 3, "{}", caps.max_tso)?;
        if caps.max_tso == 0 { Ok(()) } else { self.supported_qp(caps.supported_qpts, QPTS_RAW_UD) }
    }

    fn rss(&mut self, caps: &RssCaps) -> fmt::Result {
        writeln!(self.out, "\trss_caps:")?;
        field!(self, 2, "max_rwq_indirection_tables", 3, "{}", caps.max_rwq_indirection_tables)?;
        field!(self, 2, "max_rwq_indirection_table_size", 3, "{}", caps.max_rwq_indirection_table_size)?;
        field!(self, 2, "rx_hash_function", 4, "{:#x}", caps.rx_hash_function)?;
        field!(self, 2, "rx_hash_fields_mask", 4, "{:#X}", caps.rx_hash_fields_mask)?;
        if caps.supported_qpts == 0 { Ok(()) } else { self.supported_qp(caps.supported_qpts, QPTS_RAW_UD) }
    }

    fn packet_pacing(&mut self, caps: &PacketPacingCaps) -> fmt::Result {
        writeln!(self.out, "\tpacket_pacing_caps:")?;
        field!(self, 2, "qp_rate_limit_min", 1, "{}kbps", caps.qp_rate_limit_min)?;
        field!(self, 2, "qp_rate_limit_max", 1, "{}kbps", caps.qp_rate_limit_max)?;
        if caps.qp_rate_limit_max == 0 {
            Ok(())
        } else {
            self.supported_qp(caps.supported_qpts, QPTS_RAW_UD_RC)
        }
    }

    fn tag_matching(&mut self, caps: &TmCaps) -> fmt::Result {
        if caps.max_num_tags == 0 {
            return writeln!(self.out, "\ttag matching not supported");
        }
        field!(self, 1, "max_rndv_hdr_size", 2, "{}", caps.max_rndv_hdr_size)?;
        field!(self, 1, "max_num_tags", 3, "{}", caps.max_num_tags)?;
        field!(self, 1, "max_ops", 3, "{}", caps.max_ops)?;
        field!(self, 1, "max_sge", 3, "{}", caps.max_sge)?;
        writeln!(self.out, "\tflags:")?;
        self.flags((caps.flags & 1).into(), TAG_MATCHING)
    }

    fn cq_moderation(&mut self, caps: &CqModerationCaps) -> fmt::Result {
        if caps.max_cq_count == 0 || caps.max_cq_period == 0 {
            return Ok(());
        }
        writeln!(self.out, "\n\tcq moderation caps:")?;
        field!(self, 2, "max_cq_count", 1, "{}", caps.max_cq_count)?;
        field!(self, 2, "max_cq_period", 1, "{} us\n", caps.max_cq_period)
    }
}
