// SPDX-License-Identifier: MIT OR Apache-2.0
//! Targets of dynamic connections. Initiators are QPs with queues: see `qp`.

use super::object::{Kind, Qp};
use super::qp::QpControl;
use super::{Mlx5, NO_UIDX};
use crate::control::calls;
use crate::shared::QpShared;
use std::sync::{Arc, OnceLock};
use uverbs_core::attr::{QpAttr, QpAttrMask, QpInitAttr, QpState, QpType};
use uverbs_core::control::{QpHandle, QpParents};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{DctCreate, Object as _};
use uverbs_uapi::mlx5::{MLX5_QP_FLAG_SCATTER_CQE, MLX5_QP_FLAG_TYPE_DCT, mlx5_ib_create_qp};

pub(super) fn create(mlx5: &Mlx5, create: &DctCreate<'_, Mlx5>, out_of_order: bool) -> Result<Qp> {
    const VERB: &str = "create_qp";
    create.check(&mlx5.kernel)?;
    mlx5.owns(VERB, "cq", Some(create.cq.context()))?;
    mlx5.owns(VERB, "srq", Some(create.srq.context()))?;
    if out_of_order {
        mlx5.need_out_of_order(VERB, QpType::Driver)?;
    }
    if mlx5.facts.cqe_version == 0 {
        // Its completions would contain its number instead of a user index, and it has no number before RTR.
        return Err(Error::unsupported(VERB, "DC targets on a device with CQE version 0"));
    }
    let (index, access) = (mlx5.user_index(VERB)?, mlx5.qp_access(VERB)?);
    let scatter = create.data_in_completions && mlx5.options.scatter_to_cqe && mlx5.facts.scatter_to_cqe_dct;
    debug_assert_ne!(index.get(), NO_UIDX);
    let request = mlx5_ib_create_qp {
        flags: MLX5_QP_FLAG_TYPE_DCT | if scatter { MLX5_QP_FLAG_SCATTER_CQE } else { 0 },
        uidx: index.get(),
        // The kernel reads the access key from this field, because a target has no send queue.
        sq_buf_addr: create.dc_key,
        ece_options: mlx5.ece(),
        ..Default::default()
    };
    let (cq, cq_shared) = (create.cq.handle(), create.cq.shared());
    let (srq, srq_shared) = (create.srq.handle(), create.srq.shared());
    let parents =
        QpParents { pd: Some(create.pd), send_cq: Some(cq), recv_cq: Some(cq), srq: Some(srq), xrcd: None };
    let attr = QpInitAttr::new(QpType::Driver);
    let handle = calls::create_dct(parents, &attr, create.user_handle, request)?;
    let shared = QpShared::new(access, handle.qp_num(), 0, None, None, Some(Arc::clone(srq_shared)));
    let shared = if scatter { shared.with_data_in_completions() } else { shared };
    let shared = Arc::new(shared.with_index(index));
    cq_shared.attach_qp(&shared);
    let control = QpControl::of_dct(shared, Arc::clone(cq_shared), out_of_order);
    Ok(Qp::new(mlx5, handle, Kind::Target(control, OnceLock::new())))
}

pub(super) fn modify(
    handle: &QpHandle,
    control: &QpControl,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<Option<u32>> {
    let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
    let mut dctn = None;
    control.modify_with(target, || {
        dctn = calls::modify_dct(handle, attr, mask, control.order_of(attr, mask))?;
        Ok(())
    })?;
    match (target, dctn) {
        (Some(QpState::RTR), Some(dctn)) if dctn <= 0xff_ffff => Ok(Some(dctn)),
        (Some(QpState::RTR), other) => {
            Err(Error::protocol("modify_qp", format!("{other:?} is not the number of a DC target")))
        }
        _ => Ok(None),
    }
}
