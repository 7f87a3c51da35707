// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive work queues, indirection tables, and the QPs that hash over them.

use super::call::Call;
use super::limits::MAX_WQES;
use super::object::Object;
use super::object::QpObject;
use crate::engine::qp::QpKind;
use crate::engine::recv::RecvRing;
use crate::engine::recv::Wq;
use crate::engine::rss::Rss;
use uverbs_core::Errno;
use uverbs_core::attr::QpType;
use uverbs_core::kernel::RawCommand;
use uverbs_mlx5_hw::doorbell::DBREC_BYTES;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{
    core_in, core_out, extensible, flags, handle, known, number, number32, uhw, uhw_out,
};
use uverbs_softkernel::commands::CreateQp;
use uverbs_softkernel::program_memory::area_at;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE, ib_uverbs_ex_create_rwq_ind_table,
    ib_uverbs_ex_create_rwq_ind_table_resp, ib_uverbs_ex_create_wq, ib_uverbs_ex_create_wq_resp,
    ib_uverbs_ex_destroy_rwq_ind_table, ib_uverbs_ex_destroy_wq, ib_uverbs_ex_destroy_wq_resp,
    ib_uverbs_ex_modify_wq,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE,
    UVERBS_ATTR_CREATE_QP_PD_HANDLE, UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, UVERBS_ATTR_CREATE_WQ_EVENT_FD,
    UVERBS_ATTR_CREATE_WQ_FLAGS, UVERBS_ATTR_CREATE_WQ_HANDLE, UVERBS_ATTR_CREATE_WQ_MAX_SGE,
    UVERBS_ATTR_CREATE_WQ_MAX_WR, UVERBS_ATTR_CREATE_WQ_PD_HANDLE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE,
    UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, UVERBS_ATTR_CREATE_WQ_TYPE,
    UVERBS_ATTR_CREATE_WQ_USER_HANDLE, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
};
use uverbs_uapi::mlx5::{
    MLX5_RX_HASH_FUNC_TOEPLITZ, mlx5_ib_create_qp_resp, mlx5_ib_create_qp_rss,
    mlx5_ib_create_rwq_ind_tbl_resp, mlx5_ib_create_wq, mlx5_ib_create_wq_resp,
};
use uverbs_uapi::verbs::{
    IB_UVERBS_WQT_RQ, IB_WQ_CUR_STATE, IB_WQ_STATE, IB_WQS_ERR, IB_WQS_RDY, IB_WQS_RESET,
};
use zerocopy::{FromBytes, IntoBytes};

/// The fields that can be hashed.
const HASH_FIELDS: u64 = 0xff;
/// Bytes of a Toeplitz key.
const KEY: usize = 40;

/// The parameters of a new work queue, for all commands that create one.
struct NewWq {
    pd_handle: u32,
    cq_handle: u32,
    user_handle: u64,
    max_wr: u32,
}

impl Call<'_, '_> {
    fn new_wq(&mut self, c: &RawCommand<'_, '_>, new: &NewWq) -> Result<(u32, Object), Errno> {
        if !self.device.ethernet {
            return Err(Errno::EOPNOTSUPP);
        }
        let pd = self.pdn(new.pd_handle)?;
        let cqn = self.cqn(new.cq_handle)?;
        let private: mlx5_ib_create_wq = uhw(c, 36)?;
        let (count, shift) = (private.rq_wqe_count, private.rq_wqe_shift);
        // Signatures and striding queues are not supported.
        if private.flags != 0 || private.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if !count.is_power_of_two() || count > MAX_WQES || !(4..=9).contains(&shift) || new.max_wr > count {
            return Err(Errno::EINVAL);
        }
        let stride = 1_u64 << shift;
        let ring = area_at(c, private.buf_addr, u64::from(count) * stride)?;
        let record = area_at(c, private.db_addr, DBREC_BYTES as u64)?;
        let wqn = self.device.number().ok_or(Errno::ENOMEM)?;
        let rq = RecvRing { ring, stride, count, record, taken: 0, broken: false, padded: false };
        let uidx = private.user_index & 0xff_ffff;
        self.device.add_wq(wqn, Wq { rq, pd, cqn, uidx, ready: false });
        Ok((wqn, Object::Wq { wqn, state: IB_WQS_RESET, max_wr: count }))
    }

    pub(super) fn create_wq_ex(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_ex_create_wq = extensible(c.input(UVERBS_ATTR_CORE_IN), 36)?;
        if request.comp_mask != 0 || request.create_flags != 0 || request.wq_type != IB_UVERBS_WQT_RQ {
            return Err(Errno::EOPNOTSUPP);
        }
        let new = NewWq {
            pd_handle: request.pd_handle,
            cq_handle: request.cq_handle,
            user_handle: request.user_handle,
            max_wr: request.max_wr,
        };
        let (wqn, object) = self.new_wq(c, &new)?;
        let parents = [new.pd_handle, new.cq_handle];
        let wq_handle = self.add(object, &parents, new.user_handle)?;
        uhw_out(c, private_resp().as_bytes());
        let resp = ib_uverbs_ex_create_wq_resp {
            comp_mask: 0,
            response_length: size_of::<ib_uverbs_ex_create_wq_resp>() as u32,
            wq_handle,
            max_wr: request.max_wr,
            max_sge: request.max_sge,
            wqn,
        };
        core_out(c, resp.as_bytes())
    }

    pub(super) fn create_wq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_CREATE_WQ_HANDLE,
                UVERBS_ATTR_CREATE_WQ_PD_HANDLE,
                UVERBS_ATTR_CREATE_WQ_CQ_HANDLE,
                UVERBS_ATTR_CREATE_WQ_USER_HANDLE,
                UVERBS_ATTR_CREATE_WQ_TYPE,
                UVERBS_ATTR_CREATE_WQ_EVENT_FD,
                UVERBS_ATTR_CREATE_WQ_MAX_WR,
                UVERBS_ATTR_CREATE_WQ_MAX_SGE,
                UVERBS_ATTR_CREATE_WQ_FLAGS,
                UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR,
                UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE,
                UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM,
                UVERBS_ATTR_UHW_IN,
                UVERBS_ATTR_UHW_OUT,
            ],
        )?;
        if flags(c, UVERBS_ATTR_CREATE_WQ_FLAGS)? != 0
            || number32(c, UVERBS_ATTR_CREATE_WQ_TYPE)? != IB_UVERBS_WQT_RQ
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let new = NewWq {
            pd_handle: handle(c, UVERBS_ATTR_CREATE_WQ_PD_HANDLE)?,
            cq_handle: handle(c, UVERBS_ATTR_CREATE_WQ_CQ_HANDLE)?,
            user_handle: number(c, UVERBS_ATTR_CREATE_WQ_USER_HANDLE).ok_or(Errno::EINVAL)?,
            max_wr: number32(c, UVERBS_ATTR_CREATE_WQ_MAX_WR)?,
        };
        let max_sge = number32(c, UVERBS_ATTR_CREATE_WQ_MAX_SGE)?;
        let (wqn, object) = self.new_wq(c, &new)?;
        c.answer(UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, &new.max_wr.to_ne_bytes());
        c.answer(UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, &max_sge.to_ne_bytes());
        c.answer(UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, &wqn.to_ne_bytes());
        uhw_out(c, private_resp().as_bytes());
        let parents = [new.pd_handle, new.cq_handle];
        self.give(c, UVERBS_ATTR_CREATE_WQ_HANDLE, object, &parents, new.user_handle)
    }

    pub(super) fn modify_wq(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_ex_modify_wq = extensible(c.input(UVERBS_ATTR_CORE_IN), 16)?;
        if request.attr_mask == 0 {
            return Err(Errno::EINVAL);
        }
        if request.attr_mask & !(IB_WQ_STATE | IB_WQ_CUR_STATE) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let Object::Wq { wqn, state, max_wr } = *self.object(request.wq_handle)? else {
            return Err(Errno::ENOENT);
        };
        let from = if request.attr_mask & IB_WQ_CUR_STATE != 0 { request.curr_wq_state } else { state };
        let to = if request.attr_mask & IB_WQ_STATE != 0 { request.wq_state } else { from };
        let legal = matches!(
            (from, to),
            (IB_WQS_RESET, IB_WQS_RESET | IB_WQS_RDY)
                | (IB_WQS_RDY, IB_WQS_RDY | IB_WQS_ERR | IB_WQS_RESET)
                | (IB_WQS_ERR, IB_WQS_ERR | IB_WQS_RESET)
        );
        if from != state || !legal {
            return Err(Errno::EINVAL);
        }
        let wq = self.device.wqs.get_mut(&wqn).ok_or(Errno::EINVAL)?;
        wq.ready = to == IB_WQS_RDY;
        if to == IB_WQS_RESET {
            (wq.rq.taken, wq.rq.broken) = (0, false);
        }
        if let Some(entry) = self.state.tables.context(self.context)?.objects.get_mut(&request.wq_handle) {
            entry.object = Object::Wq { wqn, state: to, max_wr };
        }
        Ok(())
    }

    pub(super) fn destroy_wq_ex(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_ex_destroy_wq = core_in(c)?;
        if request.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let is = |o: &Object| matches!(o, Object::Wq { .. });
        let reported = self.destroy_handle(request.wq_handle, is)?;
        let resp = ib_uverbs_ex_destroy_wq_resp {
            response_length: size_of::<ib_uverbs_ex_destroy_wq_resp>() as u32,
            events_reported: reported.asyncs,
            ..Default::default()
        };
        core_out(c, resp.as_bytes())
    }

    pub(super) fn create_table(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let bytes = c.input(UVERBS_ATTR_CORE_IN).unwrap_or_default();
        let (request, rest) =
            ib_uverbs_ex_create_rwq_ind_table::read_from_prefix(bytes).map_err(|_| Errno::ENOSPC)?;
        if request.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if request.log_ind_tbl_size > IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE {
            return Err(Errno::EINVAL);
        }
        let count = 1_usize << request.log_ind_tbl_size;
        let handles = rest.get(..count * 4).ok_or(Errno::ENOSPC)?;
        let handles: Vec<u32> =
            handles.chunks_exact(4).filter_map(|b| u32::read_from_bytes(b).ok()).collect();
        let mut wqns = Vec::with_capacity(count);
        for handle in &handles {
            let Object::Wq { wqn, .. } = *self.object(*handle)? else { return Err(Errno::ENOENT) };
            wqns.push(wqn);
        }
        let number = self.state.number();
        let ind_tbl_handle = self.add(Object::Table { wqns }, &handles, 0)?;
        let private = mlx5_ib_create_rwq_ind_tbl_resp {
            response_length: size_of::<mlx5_ib_create_rwq_ind_tbl_resp>() as u32,
            reserved: 0,
        };
        uhw_out(c, private.as_bytes());
        let resp = ib_uverbs_ex_create_rwq_ind_table_resp {
            response_length: size_of::<ib_uverbs_ex_create_rwq_ind_table_resp>() as u32,
            ind_tbl_handle,
            ind_tbl_num: number,
            ..Default::default()
        };
        core_out(c, resp.as_bytes())
    }

    pub(super) fn destroy_table(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_ex_destroy_rwq_ind_table = core_in(c)?;
        if request.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let is = |o: &Object| matches!(o, Object::Table { .. });
        self.destroy_handle(request.ind_tbl_handle, is)?;
        Ok(())
    }

    /// Creates a QP without queues. The frames of its rules are spread over the queues of the table.
    pub(super) fn create_rss_qp(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        request: &CreateQp,
    ) -> Result<(), Errno> {
        let pd_handle = handle(c, UVERBS_ATTR_CREATE_QP_PD_HANDLE)?;
        let table_handle = handle(c, UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE)?;
        self.pdn(pd_handle)?;
        let Object::Table { wqns } = self.object(table_handle)? else { return Err(Errno::ENOENT) };
        let table = wqns.clone();
        if request.qp_type != QpType::RawPacket as u32 {
            return Err(Errno::EOPNOTSUPP);
        }
        let private: mlx5_ib_create_qp_rss = uhw(c, 16 + 128)?;
        let key = private.rx_hash_key.as_bytes();
        let len = usize::from(private.rx_key_len);
        if private.rx_hash_function != MLX5_RX_HASH_FUNC_TOEPLITZ
            || private.rx_hash_fields_mask & !HASH_FIELDS != 0
            || private.comp_mask != 0
            || private.flags != 0
        {
            return Err(Errno::EOPNOTSUPP);
        }
        if len != KEY {
            return Err(Errno::EINVAL);
        }
        let fields = private.rx_hash_fields_mask;
        // One version of addresses, one transport (`create_rss_raw_qp_tir()`).
        let both = |a: u64, b: u64| fields & a != 0 && fields & b != 0;
        if both(0b11, 0b1100) || both(0b11 << 4, 0b11 << 6) {
            return Err(Errno::EINVAL);
        }
        let qpn = self.device.number().ok_or(Errno::ENOMEM)?;
        self.device.steering.rss.insert(qpn, Rss { fields, key: key[..len].to_vec(), table });
        // A QP without queues reserves the number.
        let stand_in = crate::engine::qp::Qp::new(qpn, QpKind::Raw);
        self.device.add_qp(stand_in);
        let object = QpObject { is_rss: true, ..QpObject::new(qpn, QpType::RawPacket, QpKind::Raw) };
        CreateQp::answer(c, &request.cap, qpn);
        uhw_out(c, mlx5_ib_create_qp_resp::default().as_bytes());
        self.give(
            c,
            UVERBS_ATTR_CREATE_QP_HANDLE,
            Object::Qp(Box::new(object)),
            &[pd_handle, table_handle],
            request.user_handle,
        )
    }
}

fn private_resp() -> mlx5_ib_create_wq_resp {
    mlx5_ib_create_wq_resp { response_length: size_of::<mlx5_ib_create_wq_resp>() as u32, reserved: 0 }
}
