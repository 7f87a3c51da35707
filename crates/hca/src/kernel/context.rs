// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context, and its event files.

use super::call::Call;
use super::limits::{MAX_WQES, VECTORS};
use super::object::Object;
use crate::config::InlineMode;
use crate::engine::mkey::NULL_MKEY;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_mlx5_hw::doorbell::UAR_BYTES;
use uverbs_softkernel::attr::{known, number, uhw, uhw_out};
use uverbs_softkernel::{Call as _, commands};
use uverbs_uapi::ids::{
    UVERBS_ATTR_INFO_HANDLES_LIST, UVERBS_ATTR_INFO_OBJECT_ID, UVERBS_ATTR_INFO_TOTAL_HANDLES,
    UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, UVERBS_OBJECT_AH,
    UVERBS_OBJECT_CQ, UVERBS_OBJECT_MR, UVERBS_OBJECT_MW, UVERBS_OBJECT_PD, UVERBS_OBJECT_QP,
    UVERBS_OBJECT_SRQ, UVERBS_OBJECT_XRCD,
};
use uverbs_uapi::mlx5::cmds::MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX;
use uverbs_uapi::mlx5::{
    MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY, MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE,
    MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS, MLX5_IB_ALLOC_UCTX_DEVX, MLX5_LIB_CAP_4K_UAR,
    MLX5_LIB_CAP_DYN_UAR, MLX5_USER_CMDS_SUPP_UHW_CREATE_AH, MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE,
    MLX5_USER_INLINE_MODE_L2, MLX5_USER_INLINE_MODE_NA, MLX5_USER_INLINE_MODE_NONE,
    mlx5_ib_alloc_ucontext_req_v2, mlx5_ib_alloc_ucontext_resp,
};
use uverbs_uapi::verbs::IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
use zerocopy::IntoBytes;

/// Version of the clock page (`MLX5_IB_CLOCK_INFO_V1`).
const MLX5_IB_CLOCK_INFO_V1: u8 = 0;
/// Bytes of a doorbell register with its BlueFlame buffers (both halves).
const BF_REG: u32 = 0x200;
/// Doorbell registers of a page that user space gets (`MLX5_NON_FP_BFREGS_PER_UAR`).
const REGISTERS_PER_PAGE: u32 = 2;
/// Smallest and largest number of registers that a context may request (`MLX5_MAX_BFREGS`).
const MAX_REGISTERS: u32 = 512;

impl Call<'_, '_> {
    pub(super) fn open_context(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.new_context(c)?;
        // The first version of the request has only the first two fields.
        let request: mlx5_ib_alloc_ucontext_req_v2 = uhw(c, 8)?;
        if request.comp_mask != 0 || request.reserved0 != 0 || request.reserved1 != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if request.total_num_bfregs == 0
            || request.total_num_bfregs > MAX_REGISTERS
            || request.num_low_latency_bfregs >= request.total_num_bfregs
        {
            return Err(Errno::EINVAL);
        }
        // A library that does not support units of 4 KiB gets sizes in pages of the host.
        if request.lib_caps & MLX5_LIB_CAP_4K_UAR == 0 && request.lib_caps != 0 {
            return Err(Errno::EINVAL);
        }
        if request.flags & MLX5_IB_ALLOC_UCTX_DEVX != 0 && !self.state.config.devx {
            return Err(Errno::EINVAL);
        }
        let dynamic = self.state.config.dynamic_uars && request.lib_caps & MLX5_LIB_CAP_DYN_UAR != 0;
        let registers = request.total_num_bfregs.next_multiple_of(REGISTERS_PER_PAGE);
        let mut pages = Vec::new();
        if !dynamic {
            for _ in 0..registers / REGISTERS_PER_PAGE {
                match self.state.add_page() {
                    Ok(page) => pages.push(page),
                    Err(errno) => {
                        for page in pages {
                            self.state.remove_page(page);
                        }
                        return Err(errno);
                    }
                }
            }
        }
        let config = &self.state.config;
        let cqe_version = config.cqe_version.min(request.max_cqe_version);
        if cqe_version != config.cqe_version {
            // The device writes entries of the same version for all contexts.
            log::warn!("a context requests completion entries of version {}", request.max_cqe_version);
        }
        let resp = self.ucontext(dynamic, registers);
        let context = self.state.tables.context(self.context)?;
        context.is_open = true;
        context.data.static_pages = pages;
        context.data.dynamic_pages = dynamic;
        context.data.cqe_version = cqe_version;
        context.data.devx = request.flags & MLX5_IB_ALLOC_UCTX_DEVX != 0;
        commands::answer_context(c, VECTORS);
        uhw_out(c, resp.as_bytes());
        Ok(())
    }

    fn ucontext(&self, dynamic: bool, registers: u32) -> mlx5_ib_alloc_ucontext_resp {
        let config = &self.state.config;
        mlx5_ib_alloc_ucontext_resp {
            qp_tab_size: 1 << 18,
            bf_reg_size: if config.blue_flame { BF_REG } else { 0 },
            tot_bfregs: if dynamic { 0 } else { registers },
            cache_line_size: 64,
            max_sq_desc_sz: 1024,
            max_rq_desc_sz: 512,
            max_send_wqebb: MAX_WQES,
            max_recv_wr: MAX_WQES,
            max_srq_recv_wr: MAX_WQES,
            num_ports: 1,
            comp_mask: MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY
                | MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS
                | MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE,
            response_length: size_of::<mlx5_ib_alloc_ucontext_resp>() as u32,
            cqe_version: config.cqe_version,
            cmds_supp_uhw: MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
            eth_min_inline: match (self.device.ethernet, config.inline_mode) {
                (false, _) => MLX5_USER_INLINE_MODE_NA,
                (true, InlineMode::None) => MLX5_USER_INLINE_MODE_NONE,
                (true, InlineMode::L2) => MLX5_USER_INLINE_MODE_L2,
            },
            clock_info_versions: 1 << MLX5_IB_CLOCK_INFO_V1,
            log_uar_size: UAR_BYTES.trailing_zeros(),
            num_uars_per_page: 1,
            dump_fill_mkey: NULL_MKEY,
            ..Default::default()
        }
    }

    pub(super) fn query_context(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS,
                UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT,
                MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX,
            ],
        )?;
        c.answer(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &VECTORS.to_ne_bytes());
        let support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
        c.answer(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &support.to_ne_bytes());
        let context = self.state.tables.context(self.context)?;
        let (dynamic, pages) = (context.data.dynamic_pages, context.data.static_pages.len() as u32);
        let resp = self.ucontext(dynamic, pages * REGISTERS_PER_PAGE);
        c.answer(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, resp.as_bytes());
        Ok(())
    }

    pub(super) fn info_handles(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[UVERBS_ATTR_INFO_OBJECT_ID, UVERBS_ATTR_INFO_TOTAL_HANDLES, UVERBS_ATTR_INFO_HANDLES_LIST],
        )?;
        let wanted = number(c, UVERBS_ATTR_INFO_OBJECT_ID).and_then(|n| u16::try_from(n).ok());
        let is: fn(&Object) -> bool = match wanted {
            Some(UVERBS_OBJECT_PD) => |o| matches!(o, Object::Pd { .. }),
            Some(UVERBS_OBJECT_MR) => |o| matches!(o, Object::Mr { .. }),
            Some(UVERBS_OBJECT_MW) => |o| matches!(o, Object::Mw { .. }),
            Some(UVERBS_OBJECT_CQ) => |o| matches!(o, Object::Cq { .. }),
            Some(UVERBS_OBJECT_QP) => |o| matches!(o, Object::Qp(_)),
            Some(UVERBS_OBJECT_SRQ) => |o| matches!(o, Object::Srq { .. }),
            Some(UVERBS_OBJECT_AH) => |o| matches!(o, Object::Ah),
            Some(UVERBS_OBJECT_XRCD) => |o| matches!(o, Object::Xrcd { .. }),
            _ => return Err(Errno::EINVAL),
        };
        let room = c.output(UVERBS_ATTR_INFO_HANDLES_LIST).map_or(0, |b| b.len() / 4);
        let objects = &self.state.tables.context(self.context)?.objects;
        let handles: Vec<u32> =
            objects.iter().filter(|(_, e)| is(&e.object)).map(|(h, _)| h).take(room).collect();
        c.answer(UVERBS_ATTR_INFO_TOTAL_HANDLES, &(handles.len() as u32).to_ne_bytes());
        c.answer(UVERBS_ATTR_INFO_HANDLES_LIST, handles.as_bytes());
        Ok(())
    }
}
