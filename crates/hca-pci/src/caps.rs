// SPDX-License-Identifier: MIT OR Apache-2.0
//! The capabilities of the device, in groups as drivers query them.

use crate::bits::Field;
use crate::layout::per_protocol_networking_offload_caps as eth;
use crate::layout::{atomic_caps, cmd_hca_cap as cap, flow_table_nic_cap, flow_table_prop_layout, roce_cap};
use crate::limits;
use uverbs_hca::bytes::put;
use uverbs_hca::prm::general;

/// Bytes of every group of capabilities.
const BYTES: usize = 4096;

/// `enum mlx5_cap_type`
mod group {
    pub(crate) const GENERAL: u16 = 0;
    pub(crate) const ETHERNET_OFFLOADS: u16 = 1;
    pub(crate) const ATOMIC: u16 = 3;
    pub(crate) const ROCE: u16 = 4;
    pub(crate) const FLOW_TABLE: u16 = 7;
}

/// The size of the tables, as powers of two.
pub(crate) const LOG_MAX_QP_SIZE: u32 = 15;
pub(crate) const LOG_MAX_CQ_SIZE: u32 = 17;
pub(crate) const LOG_MAX_SRQ_SIZE: u32 = 15;
pub(crate) const LOG_MAX_EQ_SIZE: u32 = 18;
pub(crate) const LOG_MAX_WQ_SIZE: u32 = 15;
/// Reads and atomics in flight, as a power of two.
const LOG_MAX_RD_ATOMIC: u32 = 4;
/// Addresses of a RoCE port.
pub(crate) const ROCE_ADDRESSES: u32 = 128;
/// The fields that rules may name (`struct mlx5_ifc_flow_table_fields_supported_bits`): those of the first headers, up
/// to TCP's ports.
const OUTER_HEADERS: [u8; 3] = [0xf3, 0x0f, 0xfc];
/// Ticks of the timer in a millisecond: one is a nanosecond.
const TIMER_KHZ: u32 = 1_000_000;

/// The capabilities; the driver may turn some of the general ones off.
#[derive(Clone, Debug)]
pub(crate) struct Caps {
    /// The maximum capabilities.
    general: Vec<u8>,
    /// The current capabilities.
    current: Vec<u8>,
    ethernet: bool,
}

impl Caps {
    pub(crate) fn new(ethernet: bool) -> Self {
        let general = general(ethernet);
        Self { current: general.clone(), general, ethernet }
    }

    /// Resets the values that the driver has set.
    pub(crate) fn renew(&mut self) {
        self.current = self.general.clone();
    }

    /// Registers memory by the driver's UMR queue, not by lists in commands.
    pub(crate) fn set_umr(&mut self, umr: bool) {
        for caps in [&mut self.general, &mut self.current] {
            cap::UMR_MODIFY_ENTITY_SIZE_DISABLED.set(caps, u32::from(!umr));
        }
    }

    /// Whether WQEs may be written to the doorbell registers.
    pub(crate) fn set_blue_flame(&mut self, blue_flame: bool) {
        for caps in [&mut self.general, &mut self.current] {
            cap::BF.set(caps, u32::from(blue_flame));
        }
    }

    /// The capabilities of a group: the maximum, or the current ones. `None` if there is no such group.
    pub(crate) fn group(&self, group: u16, max: bool) -> Option<Vec<u8>> {
        match group {
            group::GENERAL => Some(if max { self.general.clone() } else { self.current.clone() }),
            group::ATOMIC => Some(atomic()),
            group::ETHERNET_OFFLOADS if self.ethernet => Some(offloads()),
            group::ROCE if self.ethernet => Some(roce()),
            group::FLOW_TABLE if self.ethernet => Some(flow_table()),
            _ => None,
        }
    }

    /// Sets the capabilities of a group to those that the driver requests; `false` if a value is not permitted.
    pub(crate) fn set(&mut self, group: u16, wanted: &[u8]) -> bool {
        match group {
            group::GENERAL => {
                // Only the capabilities that drivers change; a driver can't enable one that the device does not have.
                let max = cap::LOG_MAX_QP.get(&self.general);
                let qps = cap::LOG_MAX_QP.get(wanted);
                if qps > max {
                    return false;
                }
                cap::LOG_MAX_QP.set(&mut self.current, qps);
                if self.ethernet {
                    cap::LOG_MAX_CURRENT_UC_LIST.copy(wanted, &mut self.current);
                }
                if cap::DCT.get(wanted) == 0 {
                    cap::DCT.set(&mut self.current, 0_u32);
                }
                true
            }
            group::ATOMIC => true,
            group::ROCE if self.ethernet => true,
            _ => false,
        }
    }
}

fn general(ethernet: bool) -> Vec<u8> {
    let mut caps = vec![0; BYTES];
    let fields = [
        (cap::LOG_MAX_SRQ_SZ, LOG_MAX_SRQ_SIZE),
        (cap::LOG_MAX_QP_SZ, LOG_MAX_QP_SIZE),
        (cap::LOG_MAX_QP, limits::LOG_MAX_QP),
        (cap::LOG_MAX_SRQ, limits::LOG_MAX_SRQ),
        (cap::LOG_MAX_CQ_SZ, LOG_MAX_CQ_SIZE),
        (cap::LOG_MAX_CQ, limits::LOG_MAX_CQ),
        (cap::LOG_MAX_EQ_SZ, LOG_MAX_EQ_SIZE),
        (cap::LOG_MAX_MKEY, limits::LOG_MAX_MKEY),
        (cap::LOG_MAX_EQ, limits::LOG_MAX_EQ),
        // The key of the null region.
        (cap::DUMP_FILL_MKEY, 1),
        (cap::MAX_INDIRECTION, 2),
        (cap::LOG_MAX_MRW_SZ, 40),
        (cap::LOG_MAX_KLM_LIST_SIZE, 16),
        (cap::LOG_MAX_RA_REQ_QP, LOG_MAX_RD_ATOMIC),
        (cap::LOG_MAX_RA_RES_QP, LOG_MAX_RD_ATOMIC),
        (cap::LOG_MAX_RA_REQ_DC, LOG_MAX_RD_ATOMIC),
        (cap::LOG_MAX_RA_RES_DC, LOG_MAX_RD_ATOMIC),
        // Encoded: 8 and 128 entries.
        (cap::GID_TABLE_SIZE, 0),
        (cap::PKEY_TABLE_SIZE, 0),
        (cap::NUM_PORTS, 1),
        (cap::LOG_MAX_MSG, 30),
        (cap::CQE_VERSION, 1),
        (cap::UMR_MODIFY_ENTITY_SIZE_DISABLED, 1),
        // Lists of more than 64 Ki pages come through the UMR queue, too, in parts whose offset has more than 16 bits.
        (cap::UMR_EXTENDED_TRANSLATION_OFFSET, 1),
        // With both settings, the driver uses the UMR queue to change the rights of a re-registered region, including
        // the right to atomics.
        (cap::UMR_MODIFY_ATOMIC_DISABLED, 0),
        (cap::UMR_INDIRECT_MKEY_DISABLED, 1),
        (cap::SCTR_DATA_CQE, 1),
        (cap::DC_REQ_SCAT_DATA_CQE, 1),
        (cap::DCT, 1),
        (cap::ATOMIC, 1),
        (cap::CQ_OI, 1),
        (cap::CQ_RESIZE, 1),
        (cap::CQ_MODERATION, 1),
        (cap::IMAICL, 1),
        (cap::QKV, 1),
        (cap::PKV, 1),
        (cap::XRC, 1),
        (cap::UD, 1),
        (cap::UC, 1),
        (cap::RC, 1),
        (cap::LOG_PG_SZ, 12),
        (cap::BF, 1),
        (cap::LOG_BF_REG_SIZE, 9),
        (cap::MAX_WQE_SZ_SQ, 1024),
        (cap::MAX_WQE_SZ_RQ, 512),
        (cap::MAX_WQE_SZ_SQ_DC, 512),
        (cap::MAX_QP_MCG, 240),
        (cap::LOG_MAX_MCG, 14),
        (cap::LOG_MAX_PD, limits::LOG_MAX_PD),
        (cap::LOG_MAX_XRCD, limits::LOG_MAX_XRCD),
        (cap::LOG_MAX_RMP, limits::LOG_MAX_SRQ),
        (cap::LOG_MAX_WQ_SZ, LOG_MAX_WQ_SIZE),
        (cap::MAX_NUM_EQS, 48),
        (cap::DEVICE_FREQUENCY_KHZ, TIMER_KHZ),
        (cap::NUM_OF_UARS_PER_PAGE, 1),
        // Contexts of users that send commands, and memory that these name.
        (cap::LOG_MAX_UCTX, limits::LOG_MAX_UCTX),
        (cap::LOG_MAX_UMEM, limits::LOG_MAX_UMEM),
    ];
    for (field, value) in fields {
        field.set(&mut caps, value);
    }
    general::cap::GENERAL_OBJ_TYPES.set(&mut caps, general::TYPES);
    general::cap::RTS2RTS_QP_UDP_SPORT.set(&mut caps, u32::from(ethernet));
    let link: &[(Field, u32)] = if ethernet {
        &[
            (cap::PORT_TYPE, 1),
            (cap::NIC_FLOW_TABLE, 1),
            (cap::ETH_NET_OFFLOADS, 1),
            (cap::ROCE, 1),
            (cap::MAX_TC, 1),
            (cap::LOG_MAX_TRANSPORT_DOMAIN, limits::LOG_MAX_TRANSPORT_DOMAIN),
            (cap::LOG_MAX_RQ, limits::LOG_MAX_RQ),
            (cap::LOG_MAX_SQ, limits::LOG_MAX_SQ),
            (cap::LOG_MAX_TIR, limits::LOG_MAX_TIR),
            (cap::LOG_MAX_TIS, limits::LOG_MAX_TIS),
            (cap::LOG_MAX_RQT, limits::LOG_MAX_RQT),
            (cap::LOG_MAX_RQT_SIZE, limits::LOG_MAX_RQT_SIZE),
            (cap::LOG_MAX_TIS_PER_SQ, 3),
            (cap::LOG_MAX_STRIDE_SZ_RQ, 9),
            (cap::LOG_MIN_STRIDE_SZ_RQ, 4),
            (cap::LOG_MAX_STRIDE_SZ_SQ, 6),
            (cap::LOG_MIN_STRIDE_SZ_SQ, 6),
            (cap::LOG_MAX_VLAN_LIST, 9),
            (cap::LOG_MAX_CURRENT_MC_LIST, 7),
            (cap::LOG_MAX_CURRENT_UC_LIST, 7),
            (cap::LOG_MAX_L2_TABLE, 8),
            (cap::MAX_FLOW_COUNTER_15_0, limits::MAX_FLOW_COUNTERS),
        ]
    } else {
        &[(cap::PORT_TYPE, 0), (cap::IB_VIRT, 1)]
    };
    for (field, value) in link {
        field.set(&mut caps, *value);
    }
    caps
}

fn atomic() -> Vec<u8> {
    let mut caps = vec![0; BYTES];
    // The driver may request responses in the host's byte order, which are supported.
    atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE.set(&mut caps, 1_u32);
    atomic_caps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1.set(&mut caps, 1_u32);
    // Compare and swap, fetch and add, of 8 bytes.
    atomic_caps::ATOMIC_OPERATIONS.set(&mut caps, 3_u32);
    atomic_caps::ATOMIC_SIZE_QP.set(&mut caps, 8_u32);
    atomic_caps::ATOMIC_SIZE_DC.set(&mut caps, 8_u32);
    caps
}

fn roce() -> Vec<u8> {
    let mut caps = vec![0; BYTES];
    // IPv4 and IPv6.
    roce_cap::L3_TYPE.set(&mut caps, 0b110_u32);
    // Versions 1 and 2.
    roce_cap::ROCE_VERSION.set(&mut caps, 0b101_u32);
    roce_cap::R_ROCE_DEST_UDP_PORT.set(&mut caps, 4791_u32);
    roce_cap::R_ROCE_MAX_SRC_UDP_PORT.set(&mut caps, 0xffff_u32);
    roce_cap::R_ROCE_MIN_SRC_UDP_PORT.set(&mut caps, 0xc000_u32);
    roce_cap::ROCE_ADDRESS_TABLE_SIZE.set(&mut caps, ROCE_ADDRESSES);
    caps
}

fn offloads() -> Vec<u8> {
    let mut caps = vec![0; BYTES];
    eth::CSUM_CAP.set(&mut caps, 1_u32);
    eth::VLAN_CAP.set(&mut caps, 1_u32);
    eth::SELF_LB_EN_MODIFIABLE.set(&mut caps, 1_u32);
    eth::MAX_LSO_CAP.set(&mut caps, 18_u32);
    // No header must be inline (`MLX5_CAP_INLINE_MODE_NOT_REQUIRED`).
    eth::WQE_INLINE_MODE.set(&mut caps, 2_u32);
    eth::RSS_IND_TBL_CAP.set(&mut caps, limits::LOG_MAX_RQT_SIZE);
    caps
}

fn flow_table() -> Vec<u8> {
    let mut caps = vec![0; BYTES];
    let receive = flow_table_nic_cap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE.bytes_mut(&mut caps);
    let fields = [
        (flow_table_prop_layout::FT_SUPPORT, 1_u32),
        (flow_table_prop_layout::FLOW_COUNTER, 1),
        (flow_table_prop_layout::FLOW_MODIFY_EN, 1),
        (flow_table_prop_layout::MODIFY_ROOT, 1),
        (flow_table_prop_layout::IDENTIFIED_MISS_TABLE_MODE, 1),
        (flow_table_prop_layout::FLOW_TABLE_MODIFY, 1),
        (flow_table_prop_layout::LOG_MAX_FT_SIZE, 16),
        (flow_table_prop_layout::MAX_FT_LEVEL, 64),
        (flow_table_prop_layout::LOG_MAX_FT_NUM, limits::LOG_MAX_FLOW_TABLES),
        (flow_table_prop_layout::LOG_MAX_DESTINATION, 8),
        (flow_table_prop_layout::LOG_MAX_FLOW, limits::LOG_MAX_FLOW),
    ];
    for (field, value) in fields {
        field.set(receive, value);
    }
    // The headers' fields that rules may name: those of Ethernet, IP, TCP and UDP.
    for field in [flow_table_prop_layout::FT_FIELD_SUPPORT, flow_table_prop_layout::FT_FIELD_BITMASK_SUPPORT]
    {
        put(field.bytes_mut(receive), 0, &OUTER_HEADERS);
    }
    caps
}
