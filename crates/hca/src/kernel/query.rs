// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of the device and its port.

use super::call::Call;
use super::limits::{
    MAX_CQ, MAX_CQE, MAX_MR, MAX_PD, MAX_QP, MAX_RD_ATOMIC, MAX_SGE, MAX_SRQ, MAX_SRQ_SGE, MAX_TABLES,
    MAX_WQ, MAX_WQES,
};
use crate::config::Link;
use crate::engine::compress::{FORMATS, MAX_NUM};
use crate::engine::streams::{MAX_LOG_CONCURRENT, MAX_LOG_ERRORED};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{core_in, core_out, uhw_out};
use uverbs_softkernel::commands;
use uverbs_uapi::be::Be64;
use uverbs_uapi::cmd::{
    IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING, IB_UVERBS_DEVICE_MEM_WINDOW, IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B,
    IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT, IB_UVERBS_DEVICE_RAW_IP_CSUM, IB_UVERBS_DEVICE_RC_RNR_NAK_GEN,
    IB_UVERBS_DEVICE_SYS_IMAGE_GUID, IB_UVERBS_DEVICE_XRC, IB_UVERBS_ODP_SUPPORT,
    IB_UVERBS_ODP_SUPPORT_ATOMIC, IB_UVERBS_ODP_SUPPORT_IMPLICIT, IB_UVERBS_ODP_SUPPORT_READ,
    IB_UVERBS_ODP_SUPPORT_RECV, IB_UVERBS_ODP_SUPPORT_SEND, IB_UVERBS_ODP_SUPPORT_SRQ_RECV,
    IB_UVERBS_ODP_SUPPORT_WRITE, IB_UVERBS_RAW_PACKET_CAP_IP_CSUM, ib_uverbs_cq_moderation_caps,
    ib_uverbs_ex_query_device_resp, ib_uverbs_odp_caps, ib_uverbs_odp_caps_per_transport_caps,
    ib_uverbs_query_device, ib_uverbs_query_device_resp, ib_uverbs_query_port_resp, ib_uverbs_rss_caps,
};
use uverbs_uapi::ids::UVERBS_ATTR_UHW_OUT;
use uverbs_uapi::mlx5::{
    MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP, MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD,
    MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP, MLX5_RX_HASH_FUNC_TOEPLITZ, mlx5_ib_cqe_comp_caps,
    mlx5_ib_dci_streams_caps, mlx5_ib_query_device_resp, mlx5_ib_rss_caps, mlx5_ib_tso_caps,
};
use uverbs_uapi::verbs::{
    IB_ATOMIC_HCA, IB_ATOMIC_NONE, IB_LINK_LAYER_ETHERNET, IB_LINK_LAYER_INFINIBAND, ib_uverbs_gid_entry,
};
use zerocopy::{FromZeros, IntoBytes};

/// Entries of the GID table.
const GIDS: u32 = 256;
const PKEYS: u16 = 128;
const IB_QPT_RAW_PACKET: u32 = 8;
/// Operations on memory with on-demand paging.
const ODP_WITHOUT_READS: u32 =
    IB_UVERBS_ODP_SUPPORT_SEND | IB_UVERBS_ODP_SUPPORT_RECV | IB_UVERBS_ODP_SUPPORT_WRITE;
const ODP_RELIABLE: u32 = ODP_WITHOUT_READS
    | IB_UVERBS_ODP_SUPPORT_READ
    | IB_UVERBS_ODP_SUPPORT_ATOMIC
    | IB_UVERBS_ODP_SUPPORT_SRQ_RECV;
/// `MLX5_RX_HASH_*`: addresses and ports of both versions and transports.
const HASH_FIELDS: u64 = 0xff;
/// The largest payload of a send with TSO.
const MAX_TSO: u32 = 1 << 18;

impl Call<'_, '_> {
    fn base(&self) -> ib_uverbs_query_device_resp {
        let guid = Be64::new(self.state.config.guid);
        let raw = if self.state.config.link == Link::Ethernet {
            IB_UVERBS_DEVICE_RAW_IP_CSUM | IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING
        } else {
            0
        };
        let flags = IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT
            | IB_UVERBS_DEVICE_SYS_IMAGE_GUID
            | IB_UVERBS_DEVICE_RC_RNR_NAK_GEN
            | IB_UVERBS_DEVICE_MEM_WINDOW
            | IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B
            | IB_UVERBS_DEVICE_XRC
            | raw;
        ib_uverbs_query_device_resp {
            fw_ver: 22 << 32 | 36 << 16 | 1010,
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_ffff_ffff_f000,
            vendor_id: 0x2c9,
            vendor_part_id: 0x101d,
            max_qp: MAX_QP,
            max_qp_wr: MAX_WQES,
            device_cap_flags: flags as u32,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_cq: MAX_CQ,
            max_cqe: MAX_CQE,
            max_mr: MAX_MR,
            max_pd: MAX_PD,
            max_qp_rd_atom: MAX_RD_ATOMIC.into(),
            max_res_rd_atom: u32::from(MAX_RD_ATOMIC) * MAX_QP,
            max_qp_init_rd_atom: MAX_RD_ATOMIC.into(),
            atomic_cap: if self.state.config.atomics { IB_ATOMIC_HCA } else { IB_ATOMIC_NONE },
            max_mw: MAX_MR,
            max_mcast_grp: 1 << 21,
            max_mcast_qp_attach: 240,
            max_total_mcast_qp_attach: 240 << 21,
            max_ah: i32::MAX as u32,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_WQES - 1,
            max_srq_sge: MAX_SRQ_SGE,
            max_pkeys: PKEYS,
            local_ca_ack_delay: 16,
            phys_port_cnt: 1,
            ..Default::default()
        }
    }

    pub(super) fn query_device(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let _: ib_uverbs_query_device = core_in(c)?;
        core_out(c, self.base().as_bytes())
    }

    pub(super) fn query_device_ex(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        commands::query_device_ex(c)?;
        let ethernet = self.state.config.link == Link::Ethernet;
        let raw = |n: u32| if ethernet { n } else { 0 };
        let base = self.base();
        let resp = ib_uverbs_ex_query_device_resp {
            base,
            response_length: size_of::<ib_uverbs_ex_query_device_resp>() as u32,
            timestamp_mask: i64::MAX as u64,
            // The frequency in kHz of a clock that counts nanoseconds.
            hca_core_clock: 1_000_000,
            device_cap_flags_ex: base.device_cap_flags.into(),
            rss_caps: ib_uverbs_rss_caps {
                supported_qpts: raw(1 << IB_QPT_RAW_PACKET),
                max_rwq_indirection_tables: raw(MAX_TABLES),
                max_rwq_indirection_table_size: raw(1 << 11),
                reserved: 0,
            },
            max_wq_type_rq: raw(MAX_WQ),
            raw_packet_caps: raw(IB_UVERBS_RAW_PACKET_CAP_IP_CSUM),
            cq_moderation_caps: ib_uverbs_cq_moderation_caps {
                max_cq_moderation_count: u16::MAX,
                max_cq_moderation_period: 0xfff,
                reserved: 0,
            },
            max_dm_size: super::device_memory::all_bytes(),
            odp_caps: ib_uverbs_odp_caps {
                general_caps: IB_UVERBS_ODP_SUPPORT | IB_UVERBS_ODP_SUPPORT_IMPLICIT,
                per_transport_caps: ib_uverbs_odp_caps_per_transport_caps {
                    rc_odp_caps: ODP_RELIABLE,
                    uc_odp_caps: ODP_WITHOUT_READS,
                    ud_odp_caps: IB_UVERBS_ODP_SUPPORT_SEND | IB_UVERBS_ODP_SUPPORT_RECV,
                },
                reserved: 0,
            },
            xrc_odp_caps: ODP_RELIABLE,
            ..Default::default()
        };
        core_out(c, resp.as_bytes())?;
        let len = c.output(UVERBS_ATTR_UHW_OUT).map_or(0, |b| b.len());
        let known = size_of::<mlx5_ib_query_device_resp>().min(len) as u32;
        let private = mlx5_ib_query_device_resp {
            response_length: known,
            tso_caps: mlx5_ib_tso_caps { max_tso: raw(MAX_TSO), supported_qpts: raw(1 << IB_QPT_RAW_PACKET) },
            rss_caps: mlx5_ib_rss_caps {
                rx_hash_fields_mask: if ethernet { HASH_FIELDS } else { 0 },
                rx_hash_function: if ethernet { MLX5_RX_HASH_FUNC_TOEPLITZ } else { 0 },
                reserved: [0; 7],
            },
            cqe_comp_caps: mlx5_ib_cqe_comp_caps { max_num: MAX_NUM, supported_format: FORMATS },
            flags: MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP
                | MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD
                | MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP,
            dci_streams_caps: mlx5_ib_dci_streams_caps {
                max_log_num_concurent: MAX_LOG_CONCURRENT,
                max_log_num_errored: MAX_LOG_ERRORED,
            },
            ..FromZeros::new_zeroed()
        };
        uhw_out(c, private.as_bytes());
        Ok(())
    }

    pub(super) fn query_port(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let port = self.port.address().ok_or(Errno::EIO)?;
        let attr = ib_uverbs_query_port_resp {
            // The port's capabilities on InfiniBand: automatic migration, trap, system image GUID, extended speeds
            // and others.
            port_cap_flags: if port.ethernet { 0x0401_0000 } else { 0x2651_e848 },
            max_msg_sz: 1 << 30,
            // `IB_MTU_256` is 1, and each next one is twice as large; 0 is that of a software device.
            active_mtu: port.outside.map_or(0, |outside| outside.mtu.ilog2().saturating_sub(7) as u8),
            gid_tbl_len: if port.ethernet { GIDS } else { 8 },
            pkey_tbl_len: if port.ethernet { 1 } else { PKEYS },
            lid: port.lid,
            sm_lid: u16::from(!port.ethernet),
            max_vl_num: if port.ethernet { 0 } else { 4 },
            link_layer: if port.ethernet { IB_LINK_LAYER_ETHERNET } else { IB_LINK_LAYER_INFINIBAND },
            // RoCE needs a GRH (`IB_UVERBS_QPF_GRH_REQUIRED`).
            flags: u8::from(port.ethernet),
            ..Default::default()
        };
        commands::query_port(c, port.up, attr)
    }

    fn gid(&self, index: usize) -> Option<ib_uverbs_gid_entry> {
        let port = self.port.net.ports.get(self.port.me)?;
        let (gid, version_2) = *port.gids.get(index)?;
        let kind = match (port.ethernet, version_2) {
            // `IBV_GID_TYPE_IB`, `_ROCE_V1`, `_ROCE_V2`
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        Some(ib_uverbs_gid_entry {
            gid: zerocopy::transmute!(gid),
            gid_index: index as u32,
            port_num: 1,
            gid_type: kind,
            netdev_ifindex: u32::from(port.ethernet),
        })
    }

    pub(super) fn query_gid_table(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let entries: Vec<_> = (0..).map_while(|i| self.gid(i)).collect();
        commands::query_gid_table(c, &entries)
    }

    pub(super) fn query_gid_entry(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let entries = if self.device.ethernet { GIDS } else { 8 };
        commands::query_gid_entry(c, entries, |index| self.gid(index))
    }

    /// The files of sysfs below the device's directory.
    pub(super) fn sysfs(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let text = match path {
            "fw_ver" => "22.36.1010".into(),
            "board_id" => "MT_0000000359".into(),
            "hw_rev" => "0".into(),
            "hca_type" => "MT4125".into(),
            "node_type" => "1: CA".into(),
            "node_desc" => self.state.config.name.clone(),
            "node_guid" | "sys_image_guid" => commands::guid_text(self.state.config.guid),
            _ => match path.strip_prefix("ports/1/pkeys/").map(str::parse::<u16>) {
                Some(Ok(0)) => "0xffff".into(),
                Some(Ok(1..PKEYS)) if !self.device.ethernet => "0x0000".into(),
                _ => return Err(Errno::ENOENT),
            },
        };
        Ok(format!("{text}\n").into_bytes())
    }
}
