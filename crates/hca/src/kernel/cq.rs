// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues and completion channels.

use super::call::Call;
use super::limits::MAX_CQE;
use super::limits::VECTORS;
use super::object::{Object, page};
use crate::engine::compress::MiniFormat;
use crate::engine::cq::{Cq, CqParts};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_mlx5_hw::doorbell::DBREC_BYTES;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{core_in, core_out, uhw, uhw_out};
use uverbs_softkernel::commands::{self, CreateCq};
use uverbs_softkernel::program_memory::area_at;
use uverbs_uapi::cmd::{
    IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN, IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION, ib_uverbs_ex_modify_cq,
    ib_uverbs_resize_cq, ib_uverbs_resize_cq_resp,
};
use uverbs_uapi::ids::{UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_ATTR_CREATE_CQ_RESP_CQE};
use uverbs_uapi::mlx5::cmds::MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX;
use uverbs_uapi::mlx5::{
    MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD, MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, mlx5_ib_create_cq,
    mlx5_ib_create_cq_resp, mlx5_ib_resize_cq,
};
use uverbs_uapi::verbs::IB_CQ_MODERATE;
use zerocopy::IntoBytes;

/// Entries for at least so many completions: one more, rounded up to a power of two (`mlx5_ib_create_cq()`).
fn entries(cqe: u32) -> Result<u32, Errno> {
    if cqe == 0 || cqe > MAX_CQE {
        return Err(Errno::EINVAL);
    }
    Ok((cqe + 1).next_power_of_two())
}

fn entry_size(size: u32) -> Result<usize, Errno> {
    match size {
        64 => Ok(64),
        128 => Ok(128),
        _ => Err(Errno::EINVAL),
    }
}

impl Call<'_, '_> {
    pub(super) fn create_cq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let CreateCq { cqe, user_handle, flags } =
            CreateCq::of(c, &[MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX], VECTORS)?;
        let entries = entries(cqe)?;
        if flags & !(IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION | IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN) != 0 {
            return Err(Errno::EINVAL);
        }
        let channel = commands::channel_of_cq(c, &mut self.state.tables.channels)?;
        let private: mlx5_ib_create_cq = uhw(c, 24)?;
        let entry = entry_size(private.cqe_size)?;
        let known_flags = MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD | MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX;
        // Real-time timestamps are not supported.
        if private.flags & !known_flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // `create_cq_user()` of the kernel's driver ignores other values, and formats without compression.
        let format = match private.cqe_comp_en {
            1 => Some(MiniFormat::of_bit(private.cqe_comp_res_format).ok_or(Errno::EINVAL)?),
            _ => None,
        };
        let context = self.state.tables.context(self.context)?;
        let page = if private.flags & MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX != 0 {
            page(context, private.uar_page_index.into())?
        } else {
            // The first doorbell page of the context.
            context.data.static_pages.first().copied().ok_or(Errno::EINVAL)?
        };
        let parts = CqParts {
            ring: area_at(c, private.buf_addr, u64::from(entries) * entry as u64)?,
            entry,
            record: area_at(c, private.db_addr, DBREC_BYTES as u64)?,
            page,
            ignore_overrun: flags & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN != 0,
        };
        let cqn = self.device.number().ok_or(Errno::ENOMEM)?;
        let mut cq = Cq::new(parts).ok_or(Errno::EINVAL)?;
        format.into_iter().for_each(|format| cq.compress(format));
        self.device.add_cq(cqn, cq);
        c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &(entries - 1).to_ne_bytes());
        uhw_out(c, mlx5_ib_create_cq_resp { cqn, reserved: 0 }.as_bytes());
        self.give(c, UVERBS_ATTR_CREATE_CQ_HANDLE, Object::Cq { cqn, channel }, &[], user_handle)
    }

    pub(super) fn resize_cq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_resize_cq = core_in(c)?;
        let cqn = self.cqn(request.cq_handle)?;
        let entries = entries(request.cqe)?;
        let private: mlx5_ib_resize_cq = uhw(c, size_of::<mlx5_ib_resize_cq>())?;
        if private.reserved0 != 0 || private.reserved1 != 0 {
            return Err(Errno::EINVAL);
        }
        let entry = entry_size(private.cqe_size.into())?;
        let ring = area_at(c, private.buf_addr, u64::from(entries) * entry as u64)?;
        let cq = self.device.cqs.get_mut(&cqn).ok_or(Errno::EINVAL)?;
        if cq.is_broken() || !cq.resize(ring, entry).map_err(|_| Errno::EFAULT)? {
            return Err(Errno::EINVAL);
        }
        core_out(c, ib_uverbs_resize_cq_resp { cqe: entries - 1, ..Default::default() }.as_bytes())
    }

    pub(super) fn modify_cq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_ex_modify_cq = core_in(c)?;
        if request.attr_mask & !IB_CQ_MODERATE != 0 || request.reserved != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let cqn = self.cqn(request.cq_handle)?;
        let cq = self.device.cqs.get_mut(&cqn).ok_or(Errno::EINVAL)?;
        if request.attr_mask & IB_CQ_MODERATE != 0 {
            cq.moderation = (request.attr.cq_count, request.attr.cq_period);
        }
        Ok(())
    }
}
