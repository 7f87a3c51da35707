// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands about the device as a whole: features and counters.

use super::admin::{Entry, answer};
use super::{Caps, DOORBELL_BAR, Function};
use crate::device::Device;
use uverbs_efa_hw::admin::{AcqCommonDesc, EFA_ADMIN_ILLEGAL_PARAMETER, EFA_ADMIN_UNSUPPORTED_OPCODE};
use uverbs_efa_hw::cmd::{EFA_ADMIN_API_VERSION_MINOR, EFA_ADMIN_CREATE_EQ_CMD_COMPLETION_EVENTS_MASK};
use uverbs_efa_hw::feature::{
    AenqConfig, BasicStats, DeviceAttr, EFA_ADMIN_AENQ_CONFIG, EFA_ADMIN_DEVICE_ATTR,
    EFA_ADMIN_EVENT_QUEUE_ATTR, EFA_ADMIN_FATAL_ERROR, EFA_ADMIN_GET_STATS_TYPE_BASIC,
    EFA_ADMIN_GET_STATS_TYPE_MESSAGES, EFA_ADMIN_GET_STATS_TYPE_NETWORK, EFA_ADMIN_GET_STATS_TYPE_RDMA_READ,
    EFA_ADMIN_GET_STATS_TYPE_RDMA_WRITE, EFA_ADMIN_HOST_INFO, EFA_ADMIN_HW_HINTS, EFA_ADMIN_KEEP_ALIVE,
    EFA_ADMIN_NETWORK_ATTR, EFA_ADMIN_NOTIFICATION, EFA_ADMIN_QUEUE_ATTR_1, EFA_ADMIN_QUEUE_ATTR_2,
    EFA_ADMIN_WARNING, EventQueueAttr, GetFeatureCmd, GetStatsCmd, HwHints, MessagesStats, NetworkAttr,
    NetworkStats, QueueAttr1, QueueAttr2, RdmaReadStats, RdmaWriteStats, SetFeatureCmd,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The groups of asynchronous events that the device has.
const GROUPS: u32 = 1 << EFA_ADMIN_FATAL_ERROR
    | 1 << EFA_ADMIN_WARNING
    | 1 << EFA_ADMIN_NOTIFICATION
    | 1 << EFA_ADMIN_KEEP_ALIVE;
/// The features that every generation has.
const FEATURES: u64 = 1 << EFA_ADMIN_DEVICE_ATTR
    | 1 << EFA_ADMIN_AENQ_CONFIG
    | 1 << EFA_ADMIN_NETWORK_ATTR
    | 1 << EFA_ADMIN_QUEUE_ATTR_1
    | 1 << EFA_ADMIN_HW_HINTS
    | 1 << EFA_ADMIN_HOST_INFO
    | 1 << EFA_ADMIN_EVENT_QUEUE_ATTR;
/// The time in which a read of a register is answered, ms: a software device on a busy machine may need it.
const READ_MS: u16 = 1000;
/// The time without a sign of life after which a driver should reset the device, ms. Linux' driver does not look at it.
const KEEP_ALIVE_MS: u16 = 6000;

/// An answer with a struct behind its start.
fn with(value: &(impl IntoBytes + Immutable)) -> Entry {
    let mut entry = answer(&AcqCommonDesc::default());
    let bytes = value.as_bytes();
    entry[size_of::<AcqCommonDesc>()..][..bytes.len()].copy_from_slice(bytes);
    entry
}

impl Function {
    pub(super) fn get_feature(&self, device: &Device, cmd: &GetFeatureCmd) -> Result<Entry, u8> {
        let caps = device.caps;
        Ok(match cmd.feature_common.feature_id {
            EFA_ADMIN_DEVICE_ATTR => with(&DeviceAttr {
                supported_features: FEATURES | u64::from(caps.inline_wide > 0) << EFA_ADMIN_QUEUE_ATTR_2,
                page_size_cap: 0xffff_ffff_ffff_f000,
                fw_version: 1,
                admin_api_version: EFA_ADMIN_API_VERSION_MINOR,
                device_version: caps.pci_device.into(),
                db_bar: DOORBELL_BAR,
                phys_addr_width: 48,
                virt_addr_width: 57,
                device_caps: caps.device,
                max_rdma_size: caps.max_rdma,
                guid: self.guid,
                max_link_speed_gbps: 100,
                ..DeviceAttr::default()
            }),
            EFA_ADMIN_QUEUE_ATTR_1 => with(&QueueAttr1 {
                max_qp: Caps::MAX_QP.into(),
                max_sq_depth: Caps::MAX_SQ,
                inline_buf_size: caps.inline.into(),
                max_rq_depth: Caps::MAX_RQ,
                max_cq: Caps::MAX_CQ.into(),
                max_cq_depth: Caps::MAX_CQE,
                sub_cqs_per_cq: caps.sub_cqs,
                min_sq_depth: 0,
                max_wr_send_sges: Caps::SEND_BUFFERS,
                max_wr_recv_sges: Caps::RECV_BUFFERS,
                max_mr: Caps::MAX_MR,
                max_mr_pages: Caps::MAX_PAGES,
                max_pd: Caps::MAX_PD.into(),
                max_ah: Caps::MAX_AH.into(),
                max_llq_size: caps.max_llq,
                max_wr_rdma_sges: 1,
                max_tx_batch: caps.max_tx_batch,
            }),
            EFA_ADMIN_QUEUE_ATTR_2 if caps.inline_wide > 0 => {
                with(&QueueAttr2 { inline_buf_size_ex: caps.inline_wide })
            }
            EFA_ADMIN_NETWORK_ATTR => with(&NetworkAttr { addr: device.gid, mtu: caps.mtu }),
            EFA_ADMIN_AENQ_CONFIG => {
                with(&AenqConfig { supported_groups: GROUPS, enabled_groups: self.groups })
            }
            EFA_ADMIN_HW_HINTS => with(&HwHints {
                mmio_read_timeout: READ_MS,
                driver_watchdog_timeout: KEEP_ALIVE_MS,
                ..HwHints::default()
            }),
            EFA_ADMIN_EVENT_QUEUE_ATTR => with(&EventQueueAttr {
                max_eq: Caps::MAX_EQ.into(),
                max_eq_depth: Caps::MAX_EQ_DEPTH.into(),
                event_bitmask: EFA_ADMIN_CREATE_EQ_CMD_COMPLETION_EVENTS_MASK,
            }),
            _ => return Err(EFA_ADMIN_UNSUPPORTED_OPCODE),
        })
    }

    pub(super) fn set_feature(&mut self, cmd: &SetFeatureCmd) -> Result<Entry, u8> {
        match cmd.feature_common.feature_id {
            EFA_ADMIN_AENQ_CONFIG => {
                let config = AenqConfig::read_from_prefix(cmd.u.as_bytes());
                let groups = config.map(|(config, _)| config.enabled_groups).unwrap_or_default();
                if groups & !GROUPS != 0 {
                    return Err(EFA_ADMIN_ILLEGAL_PARAMETER);
                }
                self.groups = groups;
            }
            // What the driver tells about the machine is not used.
            EFA_ADMIN_HOST_INFO => {}
            _ => return Err(EFA_ADMIN_UNSUPPORTED_OPCODE),
        }
        Ok(answer(&AcqCommonDesc::default()))
    }

    pub(super) fn get_stats(device: &Device, cmd: &GetStatsCmd) -> Result<Entry, u8> {
        let s = &device.stats;
        Ok(match cmd.stats_type {
            EFA_ADMIN_GET_STATS_TYPE_BASIC => with(&BasicStats {
                tx_bytes: s.tx_bytes,
                tx_pkts: s.tx_pkts,
                rx_bytes: s.rx_bytes,
                rx_pkts: s.rx_pkts,
                rx_drops: s.rx_drops,
                qkey_viol: s.qkey_viol,
            }),
            EFA_ADMIN_GET_STATS_TYPE_MESSAGES => with(&MessagesStats {
                send_bytes: s.send_bytes,
                send_wrs: s.send_wrs,
                recv_bytes: s.recv_bytes,
                recv_wrs: s.recv_wrs,
            }),
            EFA_ADMIN_GET_STATS_TYPE_RDMA_READ => with(&RdmaReadStats {
                read_wrs: s.read_wrs,
                read_bytes: s.read_bytes,
                read_wr_err: s.read_wr_err,
                read_resp_bytes: s.read_resp_bytes,
            }),
            EFA_ADMIN_GET_STATS_TYPE_RDMA_WRITE => with(&RdmaWriteStats {
                write_wrs: s.write_wrs,
                write_bytes: s.write_bytes,
                write_wr_err: s.write_wr_err,
                write_recv_bytes: s.write_recv_bytes,
            }),
            EFA_ADMIN_GET_STATS_TYPE_NETWORK => with(&NetworkStats {
                retrans_bytes: s.retrans_bytes,
                retrans_pkts: s.retrans_pkts,
                retrans_timeout_events: s.retrans_timeout_events,
                unresponsive_remote_events: s.unresponsive_remote_events,
                impaired_remote_conn_events: 0,
            }),
            _ => return Err(EFA_ADMIN_ILLEGAL_PARAMETER),
        })
    }
}
