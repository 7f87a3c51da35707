// SPDX-License-Identifier: MIT OR Apache-2.0
//! mlx5 devices: detection, capabilities and clock (mlx5dv_query_device(3), mlx5dv_is_supported(3),
//! mlx5dv_open_device(3), mlx5dv_get_clock_info(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::context::{ibv_context, ibv_device};
use crate::abi::mlx5dv::{
    mlx5dv_clock_info, mlx5dv_context, mlx5dv_context_attr, mlx5dv_cqe_comp_caps, mlx5dv_dci_streams_caps,
    mlx5dv_ooo_recv_wrs_caps, mlx5dv_reg, mlx5dv_sig_caps, mlx5dv_striding_rq_caps, mlx5dv_sw_parsing_caps,
};
use crate::arg::Arg;
use crate::devices;
use crate::errno::{Errno, ensure, number, pointer};
use core::ffi::c_int;
use uverbs_mlx5::Devx;
use uverbs_mlx5::dv::{DeviceInfo, SignatureCaps};
use uverbs_uapi::mlx5::{
    MLX5_IB_ALLOW_MPW, MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP, MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD,
    MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE, MLX5_IB_SUPPORT_EMPW,
};

/// `enum mlx5dv_context_comp_mask`: the fields that a caller requests, and those that are returned. Bits that are not
/// in this list (crypto, LAG, ...) are never returned.
mod mask {
    pub(super) const CQE_COMPRESION: u64 = 1 << 0;
    pub(super) const SWP: u64 = 1 << 1;
    pub(super) const STRIDING_RQ: u64 = 1 << 2;
    pub(super) const TUNNEL_OFFLOADS: u64 = 1 << 3;
    pub(super) const DYN_BFREGS: u64 = 1 << 4;
    pub(super) const CLOCK_INFO_UPDATE: u64 = 1 << 5;
    pub(super) const SIGNATURE_OFFLOAD: u64 = 1 << 10;
    pub(super) const DCI_STREAMS: u64 = 1 << 11;
    pub(super) const MAX_DC_RD_ATOM: u64 = 1 << 14;
    pub(super) const REG_C0: u64 = 1 << 15;
    pub(super) const OOO_RECV_WRS: u64 = 1 << 16;
}

/// `enum mlx5dv_context_flags`
mod flag {
    pub(super) const CQE_V1: u64 = 1 << 0;
    pub(super) const MPW_ALLOWED: u64 = 1 << 2;
    pub(super) const ENHANCED_MPW: u64 = 1 << 3;
    pub(super) const CQE_128B_COMP: u64 = 1 << 4;
    pub(super) const CQE_128B_PAD: u64 = 1 << 5;
    pub(super) const PACKET_BASED_CREDIT_MODE: u64 = 1 << 6;
    pub(super) const REAL_TIME_TS: u64 = 1 << 7;
    pub(super) const BLUEFLAME: u64 = 1 << 8;
}

fn flags(info: &DeviceInfo) -> u64 {
    let private = &info.private;
    let has = |bit| private.flags & bit != 0;
    let multi = |bit| private.mlx5_ib_support_multi_pkt_send_wqes & bit != 0;
    [
        (info.cqe_version == 1, flag::CQE_V1),
        (multi(MLX5_IB_ALLOW_MPW), flag::MPW_ALLOWED),
        (multi(MLX5_IB_SUPPORT_EMPW), flag::ENHANCED_MPW),
        (has(MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP), flag::CQE_128B_COMP),
        (has(MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD), flag::CQE_128B_PAD),
        (has(MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE), flag::PACKET_BASED_CREDIT_MODE),
        (info.real_time_ts, flag::REAL_TIME_TS),
        (info.blueflame, flag::BLUEFLAME),
    ]
    .into_iter()
    .filter_map(|(is_set, bit)| is_set.then_some(bit))
    .fold(0, |all, bit| all | bit)
}

/// `enum mlx5dv_sig_prot_caps`, `enum mlx5dv_sig_t10dif_bg_caps`, `enum mlx5dv_sig_crc_type_caps`, `enum
/// mlx5dv_block_size_caps`
fn signatures(caps: Option<SignatureCaps>) -> mlx5dv_sig_caps {
    const NONE: mlx5dv_sig_caps = mlx5dv_sig_caps { block_size: 0, block_prot: 0, t10dif_bg: 0, crc_type: 0 };
    let Some(caps) = caps else { return NONE };
    let bit = |is_set: bool, bit: u32| if is_set { 1_u64 << bit } else { 0 };
    mlx5dv_sig_caps {
        block_size: 0b11011 | bit(caps.block_4048, 2),
        block_prot: 0b11,
        t10dif_bg: 0b11,
        crc_type: (1 | bit(caps.crc32c, 1) | bit(caps.crc64_xp10, 2)) as u16,
    }
}

/// # Safety
/// As in mlx5dv_query_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_query_device(
    context: Arg<'_, ibv_context>,
    attrs: *mut mlx5dv_context,
) -> c_int {
    number(|| {
        let driver = &super::of(context)?.driver;
        let info = driver.device_info()?;
        ensure(!attrs.is_null())?;
        // A program's struct may be that of an older version, which ends before fields that its mask does not request.
        // So each field is written separately, and no reference to the whole struct is created.
        macro_rules! put {
            ($field:ident, $value:expr) => {{
                // SAFETY: `attrs` is valid for writes of the fields that the mask requests (contract of the man page).
                unsafe { (*attrs).$field = $value };
            }};
        }
        // SAFETY: `attrs` is valid for reads of its mask (contract of the man page).
        let asked = unsafe { (*attrs).comp_mask };
        let wants = |bit| asked & bit != 0;
        let mut answered = 0;
        let private = &info.private;
        put!(version, 0);
        put!(flags, flags(&info));
        if wants(mask::CQE_COMPRESION) {
            let caps = private.cqe_comp_caps;
            put!(
                cqe_comp_caps,
                mlx5dv_cqe_comp_caps { max_num: caps.max_num, supported_format: caps.supported_format }
            );
            answered |= mask::CQE_COMPRESION;
        }
        if wants(mask::SWP) {
            let caps = private.sw_parsing_caps;
            put!(
                sw_parsing_caps,
                mlx5dv_sw_parsing_caps {
                    sw_parsing_offloads: caps.sw_parsing_offloads,
                    supported_qpts: caps.supported_qpts,
                }
            );
            answered |= mask::SWP;
        }
        if wants(mask::STRIDING_RQ) {
            let caps = private.striding_rq_caps;
            put!(
                striding_rq_caps,
                mlx5dv_striding_rq_caps {
                    min_single_stride_log_num_of_bytes: caps.min_single_stride_log_num_of_bytes,
                    max_single_stride_log_num_of_bytes: caps.max_single_stride_log_num_of_bytes,
                    min_single_wqe_log_num_of_strides: caps.min_single_wqe_log_num_of_strides,
                    max_single_wqe_log_num_of_strides: caps.max_single_wqe_log_num_of_strides,
                    supported_qpts: caps.supported_qpts,
                }
            );
            answered |= mask::STRIDING_RQ;
        }
        if wants(mask::TUNNEL_OFFLOADS) {
            put!(tunnel_offloads_caps, private.tunnel_offloads_caps);
            answered |= mask::TUNNEL_OFFLOADS;
        }
        if wants(mask::DYN_BFREGS) {
            put!(max_dynamic_bfregs, info.max_dynamic_bfregs);
            answered |= mask::DYN_BFREGS;
        }
        if wants(mask::CLOCK_INFO_UPDATE)
            && let Some(nsec) = info.max_clock_info_update_nsec
        {
            put!(max_clock_info_update_nsec, nsec);
            answered |= mask::CLOCK_INFO_UPDATE;
        }
        // As in libmlx5, all fields are 0 on a device without signatures.
        if wants(mask::SIGNATURE_OFFLOAD) {
            put!(sig_caps, signatures(driver.signature_caps().ok().flatten()));
            answered |= mask::SIGNATURE_OFFLOAD;
        }
        if wants(mask::DCI_STREAMS) {
            let caps = private.dci_streams_caps;
            put!(
                dci_streams_caps,
                mlx5dv_dci_streams_caps {
                    max_log_num_concurent: caps.max_log_num_concurent,
                    max_log_num_errored: caps.max_log_num_errored,
                }
            );
            answered |= mask::DCI_STREAMS;
        }
        // Only a context with commands for the firmware knows them.
        if wants(mask::MAX_DC_RD_ATOM)
            && let Ok((requests, responses)) = driver.dc_limits()
        {
            put!(max_dc_rd_atom, requests);
            put!(max_dc_init_rd_atom, responses);
            answered |= mask::MAX_DC_RD_ATOM;
        }
        if wants(mask::REG_C0) && private.reg_c0.mask != 0 {
            put!(reg_c0, mlx5dv_reg { value: private.reg_c0.value, mask: private.reg_c0.mask });
            answered |= mask::REG_C0;
        }
        if wants(mask::OOO_RECV_WRS)
            && let Ok(caps) = driver.out_of_order_caps()
        {
            put!(
                ooo_recv_wrs_caps,
                mlx5dv_ooo_recv_wrs_caps {
                    max_rc: caps.max_rc,
                    max_xrc: caps.max_xrc,
                    max_dct: caps.max_dct,
                    max_ud: caps.max_ud,
                    max_uc: caps.max_uc,
                }
            );
            answered |= mask::OOO_RECV_WRS;
        }
        put!(comp_mask, answered);
        Ok(())
    })
}

/// # Safety
/// As in mlx5dv_is_supported(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    devices::is_mlx5_device(device)
}

/// `MLX5DV_CONTEXT_FLAGS_DEVX`
const DEVX: u32 = 1;

/// # Safety
/// As in mlx5dv_open_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    pointer(|| {
        ensure(!attr.is_null())?;
        // SAFETY: `attr` is valid for reads of the fields that every version has (contract of the man page).
        let flags = unsafe { (*attr).flags };
        // SAFETY: as for the field before.
        let comp_mask = unsafe { (*attr).comp_mask };
        if flags & !DEVX != 0 || comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // As in libmlx5, a context without the flag has commands for the firmware, too, if the kernel permits that.
        let devx = if flags & DEVX != 0 { Devx::Required } else { Devx::IfPermitted };
        devices::open_mlx5(device, devx)
    })
}

/// # Safety
/// As in mlx5dv_get_clock_info(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_get_clock_info(
    context: Arg<'_, ibv_context>,
    clock_info: *mut mlx5dv_clock_info,
) -> c_int {
    number(|| {
        let info = super::of(context)?.driver.clock_info()?;
        ensure(!clock_info.is_null())?;
        let info = mlx5dv_clock_info {
            nsec: info.nsec,
            last_cycles: info.cycles,
            frac: info.frac,
            mult: info.mult,
            shift: info.shift,
            mask: info.mask,
        };
        // SAFETY: `clock_info` is valid for writes (contract of the man page).
        unsafe { clock_info.write(info) };
        Ok(())
    })
}
