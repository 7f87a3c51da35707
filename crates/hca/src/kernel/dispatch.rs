// SPDX-License-Identifier: MIT OR Apache-2.0
//! The methods of uverbs, and the functions that execute them.

use super::call::Call;
use super::object::Object;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::{Call as _, Key};
use uverbs_uapi::ids::{
    UVERBS_METHOD_ADVISE_MR, UVERBS_METHOD_COUNTERS_CREATE, UVERBS_METHOD_COUNTERS_DESTROY,
    UVERBS_METHOD_COUNTERS_READ, UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_DM_ALLOC, UVERBS_METHOD_DM_FREE,
    UVERBS_METHOD_DM_MR_REG, UVERBS_METHOD_FLOW_DESTROY, UVERBS_METHOD_INFO_HANDLES,
    UVERBS_METHOD_MW_DESTROY, UVERBS_METHOD_QP_CREATE, UVERBS_METHOD_QUERY_CONTEXT,
    UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_GID_TABLE, UVERBS_METHOD_QUERY_MR,
    UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_METHOD_RWQ_IND_TBL_DESTROY,
    UVERBS_METHOD_SRQ_CREATE, UVERBS_METHOD_SRQ_DESTROY, UVERBS_METHOD_WQ_CREATE, UVERBS_METHOD_WQ_DESTROY,
    UVERBS_METHOD_XRCD_DESTROY, UVERBS_OBJECT_COUNTERS, UVERBS_OBJECT_CQ, UVERBS_OBJECT_DEVICE,
    UVERBS_OBJECT_DM, UVERBS_OBJECT_FLOW, UVERBS_OBJECT_MR, UVERBS_OBJECT_MW, UVERBS_OBJECT_PD,
    UVERBS_OBJECT_QP, UVERBS_OBJECT_RWQ_IND_TBL, UVERBS_OBJECT_SRQ, UVERBS_OBJECT_WQ, UVERBS_OBJECT_XRCD,
};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_METHOD_CREATE_FLOW, MLX5_IB_METHOD_DM_QUERY, MLX5_IB_METHOD_FLOW_MATCHER_CREATE,
    MLX5_IB_METHOD_FLOW_MATCHER_DESTROY, MLX5_IB_METHOD_PD_QUERY, MLX5_IB_METHOD_UAR_OBJ_ALLOC,
    MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_OBJECT_UAR,
};

/// Whether one of these methods destroys an object.
pub(super) fn is_destroy(key: Key) -> bool {
    matches!(
        key,
        (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY)
            | (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_DESTROY)
            | (UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY)
            | (UVERBS_OBJECT_XRCD, UVERBS_METHOD_XRCD_DESTROY)
            | (UVERBS_OBJECT_FLOW, UVERBS_METHOD_FLOW_DESTROY)
            | (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_DESTROY)
            | (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE)
            | (UVERBS_OBJECT_RWQ_IND_TBL, UVERBS_METHOD_RWQ_IND_TBL_DESTROY)
            | (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY)
            | (MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_DESTROY)
    )
}

/// The names of the methods that only this driver has, for scripts.
pub(super) fn verb(key: Key) -> Option<&'static str> {
    Some(match key {
        (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC) => "mlx5_alloc_uar",
        (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY) => "mlx5_free_uar",
        (MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_CREATE) => "mlx5_create_flow_matcher",
        (MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_DESTROY) => "mlx5_destroy_flow_matcher",
        (UVERBS_OBJECT_FLOW, MLX5_IB_METHOD_CREATE_FLOW) => "mlx5_create_flow",
        (UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY) => "mlx5_query_pd",
        (UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY) => "mlx5_query_dm",
        _ => return None,
    })
}

impl Call<'_, '_> {
    /// Executes a method.
    pub(super) fn dispatch(&mut self, c: &mut RawCommand<'_, '_>, key: Key) -> Result<(), Errno> {
        match key {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT) => self.query_context(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT) => self.query_port(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE) => self.query_gid_table(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => self.query_gid_entry(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INFO_HANDLES) => self.info_handles(c),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => self.create_cq(c),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => self.create_qp(c),
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => self.create_srq(c),
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY) => {
                self.destroy_counted(c, |o| matches!(o, Object::Srq { .. }))
            }
            (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE) => self.create_wq(c),
            (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_DESTROY) => {
                self.destroy_counted(c, |o| matches!(o, Object::Wq { .. }))
            }
            (UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR) => self.query_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR) => self.reg_dmabuf_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR) => self.advise_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG) => self.reg_dm_mr(c),
            (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC) => self.alloc_dm(c),
            (UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY) => self.query_pd(c),
            (UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY) => self.query_dm(c),
            (UVERBS_OBJECT_FLOW, MLX5_IB_METHOD_CREATE_FLOW) => self.create_rule(c),
            (MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_CREATE) => self.create_matcher(c),
            (MLX5_IB_OBJECT_FLOW_MATCHER, MLX5_IB_METHOD_FLOW_MATCHER_DESTROY) => self.destroy_matcher(c),
            (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE) => self.create_counters(c),
            (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ) => self.read_counters(c),
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC) => self.alloc_uar(c),
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY) => self.destroy_uar(c),
            _ => match self.devx(c, key) {
                Some(result) => result,
                None => self.destroy_other(c, key),
            },
        }
    }

    /// The destroy methods that return no data.
    fn destroy_other(&mut self, c: &RawCommand<'_, '_>, key: Key) -> Result<(), Errno> {
        let is: fn(&Object) -> bool = match key {
            (UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY) => |o| matches!(o, Object::Mw { .. }),
            (UVERBS_OBJECT_XRCD, UVERBS_METHOD_XRCD_DESTROY) => |o| matches!(o, Object::Xrcd { .. }),
            (UVERBS_OBJECT_FLOW, UVERBS_METHOD_FLOW_DESTROY) => |o| matches!(o, Object::Flow { .. }),
            (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_DESTROY) => |o| matches!(o, Object::Counters(_)),
            (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE) => |o| matches!(o, Object::Dm { .. }),
            (UVERBS_OBJECT_RWQ_IND_TBL, UVERBS_METHOD_RWQ_IND_TBL_DESTROY) => {
                |o| matches!(o, Object::Table { .. })
            }
            _ => return Err(Errno::EPROTONOSUPPORT),
        };
        self.destroy_plain(c, is)
    }
}
