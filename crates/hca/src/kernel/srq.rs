// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues.

use super::call::Call;
use super::limits::MAX_SRQ_SGE;
use super::limits::MAX_WQES;
use super::object::Object;
use crate::engine::recv::Srq;
use crate::engine::{Notice, event};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_mlx5_hw::doorbell::DBREC_BYTES;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{
    core_in, core_out, handle, known, number, number32, optional_handle, uhw, uhw_out,
};
use uverbs_softkernel::program_memory::area_at;
use uverbs_uapi::cmd::{ib_uverbs_modify_srq, ib_uverbs_query_srq, ib_uverbs_query_srq_resp};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_EVENT_FD, UVERBS_ATTR_CREATE_SRQ_HANDLE,
    UVERBS_ATTR_CREATE_SRQ_LIMIT, UVERBS_ATTR_CREATE_SRQ_MAX_SGE, UVERBS_ATTR_CREATE_SRQ_MAX_WR,
    UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, UVERBS_ATTR_CREATE_SRQ_TYPE,
    UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, UVERBS_ATTR_UHW_IN,
    UVERBS_ATTR_UHW_OUT,
};
use uverbs_uapi::mlx5::{mlx5_ib_create_srq, mlx5_ib_create_srq_resp};
use uverbs_uapi::verbs::{IB_SRQ_LIMIT, IB_SRQ_MAX_WR, IB_UVERBS_SRQT_BASIC, IB_UVERBS_SRQT_XRC};
use zerocopy::IntoBytes;

impl Call<'_, '_> {
    pub(super) fn create_srq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_CREATE_SRQ_HANDLE,
                UVERBS_ATTR_CREATE_SRQ_PD_HANDLE,
                UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE,
                UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE,
                UVERBS_ATTR_CREATE_SRQ_USER_HANDLE,
                UVERBS_ATTR_CREATE_SRQ_MAX_WR,
                UVERBS_ATTR_CREATE_SRQ_MAX_SGE,
                UVERBS_ATTR_CREATE_SRQ_LIMIT,
                UVERBS_ATTR_CREATE_SRQ_TYPE,
                UVERBS_ATTR_CREATE_SRQ_EVENT_FD,
                UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR,
                UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
                UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM,
                UVERBS_ATTR_UHW_IN,
                UVERBS_ATTR_UHW_OUT,
            ],
        )?;
        let pd_handle = handle(c, UVERBS_ATTR_CREATE_SRQ_PD_HANDLE)?;
        let pd = self.pdn(pd_handle)?;
        let xrcd = optional_handle(c, UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE)?;
        let cq = optional_handle(c, UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE)?;
        let xrc = match (number32(c, UVERBS_ATTR_CREATE_SRQ_TYPE)?, xrcd, cq) {
            (IB_UVERBS_SRQT_BASIC, None, None) => None,
            (IB_UVERBS_SRQT_XRC, Some(xrcd), Some(cq)) => {
                let Object::Xrcd { xrcdn } = *self.object(xrcd)? else { return Err(Errno::ENOENT) };
                Some((xrcdn, self.cqn(cq)?))
            }
            (IB_UVERBS_SRQT_BASIC | IB_UVERBS_SRQT_XRC, ..) => return Err(Errno::EINVAL),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let user_handle = number(c, UVERBS_ATTR_CREATE_SRQ_USER_HANDLE).ok_or(Errno::EINVAL)?;
        let max_wr = number32(c, UVERBS_ATTR_CREATE_SRQ_MAX_WR)?;
        let max_sge = number32(c, UVERBS_ATTR_CREATE_SRQ_MAX_SGE)?;
        let limit = number32(c, UVERBS_ATTR_CREATE_SRQ_LIMIT)?;
        if max_wr == 0 || max_wr >= MAX_WQES || max_sge > MAX_SRQ_SGE || limit > max_wr {
            return Err(Errno::EINVAL);
        }
        let private: mlx5_ib_create_srq = uhw(c, size_of::<mlx5_ib_create_srq>() - 8)?;
        if private.flags != 0 || private.reserved0 != 0 || private.reserved1 != 0 {
            return Err(Errno::EINVAL);
        }
        // Sizes as `mlx5_ib_create_srq()` makes them: a header and the entries, a power of two.
        let count = (max_wr + 1).next_power_of_two();
        let stride = u64::from((16 + 16 * max_sge).next_power_of_two().max(32));
        let ring = area_at(c, private.buf_addr, u64::from(count) * stride)?;
        let record = area_at(c, private.db_addr, DBREC_BYTES as u64)?;
        let srqn = self.device.number().ok_or(Errno::ENOMEM)?;
        let srq = Srq {
            ring,
            stride,
            count,
            record,
            head: 0,
            taken: 0,
            limit,
            pd,
            xrc,
            uidx: private.uidx & 0xff_ffff,
            broken: false,
        };
        self.device.add_srq(srqn, srq);
        c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &(count - 1).to_ne_bytes());
        c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &max_sge.to_ne_bytes());
        c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, &srqn.to_ne_bytes());
        uhw_out(c, mlx5_ib_create_srq_resp { srqn, reserved: 0 }.as_bytes());
        let parents: Vec<u32> = [Some(pd_handle), xrcd, cq].into_iter().flatten().collect();
        let object = Object::Srq { srqn, max_wr: count - 1, max_sge };
        self.give(c, UVERBS_ATTR_CREATE_SRQ_HANDLE, object, &parents, user_handle)
    }

    pub(super) fn modify_srq(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_modify_srq = core_in(c)?;
        let Object::Srq { srqn, max_wr, .. } = *self.object(request.srq_handle)? else {
            return Err(Errno::ENOENT);
        };
        if request.attr_mask & (IB_SRQ_MAX_WR | !IB_SRQ_LIMIT) != 0 {
            // Resizing is not supported (`mlx5_ib_modify_srq()`).
            return Err(Errno::EINVAL);
        }
        if request.attr_mask & IB_SRQ_LIMIT != 0 {
            if request.srq_limit >= max_wr {
                return Err(Errno::EINVAL);
            }
            let srq = self.device.srqs.get_mut(&srqn).ok_or(Errno::EINVAL)?;
            srq.limit = request.srq_limit;
            // If the count is already below the limit, the event is due immediately.
            if srq.below_limit() {
                self.device.notices.push(Notice::Srq { srqn, event: event::SRQ_LIMIT_REACHED });
            }
        }
        Ok(())
    }

    pub(super) fn query_srq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_query_srq = core_in(c)?;
        let Object::Srq { srqn, max_wr, max_sge } = *self.object(request.srq_handle)? else {
            return Err(Errno::ENOENT);
        };
        let srq_limit = self.device.srqs.get(&srqn).map_or(0, |srq| srq.limit);
        core_out(c, ib_uverbs_query_srq_resp { max_wr, max_sge, srq_limit, reserved: 0 }.as_bytes())
    }
}
