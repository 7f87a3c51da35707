// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of a context's device: the answer to the context's creation, the device's capabilities, the ports'
//! link layers.

use crate::control::calls;
use crate::control::options::{Devx, Options};
use crate::control::size::Limits;
use crate::control::uars::UarFacts;
use crate::cq::CqeCompression;
use std::sync::Arc;
use uverbs_core::attr::{AtomicCap, DeviceAttr, DeviceCapFlags, LinkLayer, PortFlags, QpType};
use uverbs_core::control::{ContextInfo, context, query};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, Uhw};
use uverbs_mlx5_hw::wqe::{ETH_L2_INLINE_HEADER_SIZE, MLX5_INVALID_LKEY};
use uverbs_uapi::mlx5::cmds::MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX;
use uverbs_uapi::mlx5::{
    MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET, MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY,
    MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE, MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS,
    MLX5_IB_ALLOC_UCTX_DEVX, MLX5_IB_PP_SUPPORT_BURST, MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP,
    MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP, MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT, MLX5_LIB_CAP_4K_UAR,
    MLX5_LIB_CAP_DYN_UAR, MLX5_USER_CMDS_SUPP_UHW_CREATE_AH, MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE,
    MLX5_USER_INLINE_MODE_NONE, mlx5_ib_alloc_ucontext_req_v2, mlx5_ib_alloc_ucontext_resp,
    mlx5_ib_query_device_resp,
};
use zerocopy::IntoBytes;

/// Newest supported CQE version.
const CQE_VERSION: u8 = 1;
/// Bit of the clock page's version (`1 << MLX5_IB_CLOCK_INFO_V1`).
const CLOCK_INFO_V1: u8 = 1;

/// The attributes of a port that address vectors depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// The link layer is Ethernet (RoCE).
    pub(crate) is_ethernet: bool,
    /// Every packet has a global route.
    pub(crate) grh_required: bool,
}

/// Compression of CQEs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompressionFacts {
    /// `MLX5DV_CQE_RES_FORMAT_*`; 0 if the device compresses no entries.
    formats: u32,
    /// Entries of 128 bytes are compressed, too.
    wide: bool,
}

impl CompressionFacts {
    fn of(private: &mlx5_ib_query_device_resp) -> Self {
        let caps = private.cqe_comp_caps;
        Self {
            formats: if caps.max_num == 0 { 0 } else { caps.supported_format },
            wide: private.flags & MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP != 0,
        }
    }

    /// The format in which entries of this size are compressed: the one that is asked for, or any.
    pub(crate) fn format(self, cqe_size: u32, asked: Option<CqeCompression>) -> Option<CqeCompression> {
        let has = |format: &CqeCompression| {
            self.formats & u32::from(format.bit()) != 0 && (cqe_size == 64 || self.wide)
        };
        asked.map_or(CqeCompression::ALL, |format| [format; 3]).into_iter().find(has)
    }
}

/// The attributes of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) limits: Limits,
    pub(crate) uars: UarFacts,
    /// Completions carry user indices (1) or QP numbers (0).
    pub(crate) cqe_version: u8,
    /// Bytes of headers that a raw packet's WQE must carry.
    pub(crate) min_inline: u32,
    /// The answer to a query of the device has a driver-private part.
    pub(crate) has_private_query: bool,
    /// The kernel resolves RoCE addresses.
    pub(crate) kernel_resolves_ah: bool,
    /// Key of the null region.
    pub(crate) dump_fill_mkey: u32,
    /// The kernel supports ECE, and needs a flag for it at creation.
    pub(crate) ece: bool,
    /// Completion timestamps can be wall-clock time.
    pub(crate) real_time_ts: bool,
    /// The device has atomics.
    pub(crate) atomics: bool,
    /// Raw packet QPs compute checksums.
    pub(crate) raw_csum: bool,
    /// Bytes of the longest segmented send on raw packet QPs; 0 if unsupported.
    pub(crate) max_tso: u32,
    /// Whether short data of DC targets may be in the CQE.
    pub(crate) scatter_to_cqe_dct: bool,
    /// Compression of CQEs.
    pub(crate) cqe_compression: CompressionFacts,
    /// The device and the kernel have QPs whose receives are consumed out of order.
    pub(crate) out_of_order: bool,
    /// The kernel has a page with the parameters of the device's clock.
    pub(crate) clock_info: bool,
    /// Where the device's clock is in its page.
    pub(crate) core_clock: Option<u64>,
    /// A rate limit can include a burst size and a packet size.
    pub(crate) paces_bursts: bool,
    /// The context was opened with commands for the firmware. An imported context is assumed to be.
    pub(crate) may_command: bool,
    /// Bytes of the longest message that all ports support.
    pub(crate) max_msg_sz: u64,
    /// Indexed by port number minus 1.
    pub(crate) ports: Vec<Port>,
}

/// The device's attributes, and the driver's part if the kernel returns it.
fn query_both(
    kernel: &Arc<dyn Kernel>,
    has_private_query: bool,
) -> Result<(DeviceAttr, mlx5_ib_query_device_resp)> {
    let mut private = mlx5_ib_query_device_resp::default();
    let uhw = if has_private_query { private.as_mut_bytes() } else { &mut [] };
    let device = query::device(kernel, Uhw::answer(uhw))?;
    Ok((device, private))
}

/// The kernel driver's part of the device's attributes; zeros if the kernel does not return it.
pub(crate) fn query_private(kernel: &Arc<dyn Kernel>, facts: &Facts) -> Result<mlx5_ib_query_device_resp> {
    Ok(query_both(kernel, facts.has_private_query)?.1)
}

/// The device's attributes, including those that only the driver-private part has.
pub(crate) fn query_device(kernel: &Arc<dyn Kernel>, facts: &Facts) -> Result<DeviceAttr> {
    let (mut attr, private) = query_both(kernel, facts.has_private_query)?;
    attr.tso_caps.max_tso = private.tso_caps.max_tso;
    attr.tso_caps.supported_qpts = private.tso_caps.supported_qpts;
    attr.rss_caps.rx_hash_fields_mask = private.rss_caps.rx_hash_fields_mask;
    attr.rss_caps.rx_hash_function = private.rss_caps.rx_hash_function;
    let pacing = private.packet_pacing_caps;
    attr.packet_pacing_caps.qp_rate_limit_min = pacing.qp_rate_limit_min;
    attr.packet_pacing_caps.qp_rate_limit_max = pacing.qp_rate_limit_max;
    attr.packet_pacing_caps.supported_qpts = pacing.supported_qpts;
    Ok(attr)
}

/// Creates the context of an open device file.
pub(crate) fn open(kernel: &Arc<dyn Kernel>, options: &Options) -> Result<(Facts, ContextInfo)> {
    let mut resp = mlx5_ib_alloc_ucontext_resp::default();
    let mut alloc = |flags| {
        let request = mlx5_ib_alloc_ucontext_req_v2 {
            total_num_bfregs: options.total_uuars,
            num_low_latency_bfregs: options.num_low_lat_uuars,
            flags,
            max_cqe_version: CQE_VERSION,
            lib_caps: MLX5_LIB_CAP_4K_UAR | MLX5_LIB_CAP_DYN_UAR,
            ..Default::default()
        };
        context::open(kernel, calls::context(&request, &mut resp))
    };
    let (info, may_command) = match options.devx {
        Devx::Off => (alloc(0)?, false),
        Devx::Required => (alloc(MLX5_IB_ALLOC_UCTX_DEVX)?, true),
        Devx::IfPermitted => match alloc(MLX5_IB_ALLOC_UCTX_DEVX) {
            Ok(info) => (info, true),
            // The errno does not determine the reason, so any refusal is followed by an attempt without commands.
            Err(_) => (alloc(0)?, false),
        },
    };
    Ok((facts(kernel, &resp, may_command)?, info))
}

/// Imports the context that an open device file already has.
pub(crate) fn import(kernel: &Arc<dyn Kernel>) -> Result<(Facts, ContextInfo)> {
    let mut resp = mlx5_ib_alloc_ucontext_resp::default();
    let info = context::import(kernel, (MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, resp.as_mut_bytes()))?;
    if resp.tot_bfregs != 0 {
        // Without UAR objects, the context has fixed doorbell registers, which its creator uses.
        return Err(Error::invalid("import_device", "cmd_fd", "the context has no UAR objects"));
    }
    Ok((facts(kernel, &resp, true)?, info))
}

/// The attributes of the device, of which the kernel reports some with the context.
fn facts(kernel: &Arc<dyn Kernel>, resp: &mlx5_ib_alloc_ucontext_resp, may_command: bool) -> Result<Facts> {
    const VERB: &str = "open_device";
    if resp.cqe_version > CQE_VERSION {
        return Err(Error::protocol(VERB, format!("CQE version {}", resp.cqe_version)));
    }
    if resp.num_ports == 0 || resp.num_ports > u8::MAX.into() {
        return Err(Error::protocol(VERB, format!("{} ports", resp.num_ports)));
    }

    let has_private_query = resp.cmds_supp_uhw & MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE != 0;
    let (device, private) = query_both(kernel, has_private_query)?;
    let tso_on_raw = private.tso_caps.supported_qpts & 1 << QpType::RawPacket as u32 != 0;
    let mut ports = Vec::new();
    let mut max_msg_sz = u64::MAX;
    for port_num in 1..=resp.num_ports as u8 {
        let port = query::port(kernel, port_num)?;
        max_msg_sz = max_msg_sz.min(port.max_msg_sz.into());
        ports.push(Port {
            is_ethernet: port.link_layer == LinkLayer::ETHERNET,
            grh_required: port.flags.contains(PortFlags::GRH_REQUIRED),
        });
    }
    let has = |bit| resp.comp_mask & bit != 0;
    let facts = Facts {
        limits: Limits {
            max_sq_desc_sz: resp.max_sq_desc_sz.into(),
            max_rq_desc_sz: resp.max_rq_desc_sz.into(),
            max_send_wqebb: resp.max_send_wqebb,
            max_recv_wr: resp.max_recv_wr,
            max_srq_recv_wr: resp.max_srq_recv_wr,
        },
        uars: UarFacts {
            bf_reg_size: resp.bf_reg_size,
            // Old kernels return 0: a page has one UAR.
            uars_per_page: resp.num_uars_per_page.max(1),
            tot_bfregs: resp.tot_bfregs,
            num_dyn_bfregs: resp.num_dyn_bfregs,
        },
        cqe_version: resp.cqe_version,
        min_inline: match resp.eth_min_inline {
            MLX5_USER_INLINE_MODE_NONE => 0,
            _ => ETH_L2_INLINE_HEADER_SIZE as u32,
        },
        has_private_query,
        kernel_resolves_ah: resp.cmds_supp_uhw & MLX5_USER_CMDS_SUPP_UHW_CREATE_AH != 0,
        dump_fill_mkey: if has(MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY) {
            resp.dump_fill_mkey
        } else {
            MLX5_INVALID_LKEY
        },
        ece: has(MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE),
        real_time_ts: has(MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS),
        atomics: device.atomic_cap != AtomicCap::NONE,
        raw_csum: device.device_cap_flags.contains(DeviceCapFlags::RAW_IP_CSUM),
        max_tso: if tso_on_raw { private.tso_caps.max_tso } else { 0 },
        cqe_compression: CompressionFacts::of(&private),
        out_of_order: private.flags & MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP != 0,
        scatter_to_cqe_dct: private.flags & MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT != 0,
        clock_info: resp.clock_info_versions & CLOCK_INFO_V1 != 0,
        core_clock: has(MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET)
            .then_some(resp.hca_core_clock_offset),
        paces_bursts: private.packet_pacing_caps.cap_flags & MLX5_IB_PP_SUPPORT_BURST != 0,
        may_command,
        max_msg_sz,
        ports,
    };
    Ok(facts)
}

impl Facts {
    /// The port of that number, which counts from 1.
    pub(crate) fn port(&self, verb: &'static str, port_num: u8) -> Result<Port> {
        let port = usize::from(port_num).checked_sub(1).and_then(|i| self.ports.get(i));
        port.copied()
            .ok_or_else(|| Error::invalid(verb, "port_num", format!("{port_num} of {}", self.ports.len())))
    }
}
