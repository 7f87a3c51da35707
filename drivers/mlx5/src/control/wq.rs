// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queues, and the QPs that spread packets over them.

use super::Mlx5;
use super::dv::QpFlags;
use super::object::{Kind, Qp, Wq};
use super::qp::QpControl;
use crate::control::calls::{self, QpMemory};
use crate::control::size;
use crate::memory::{Allocator, MemoryUse, QueueBuf, StrideRing};
use crate::shared::QpShared;
use crate::shared::RqShared;
use crate::{RecvConfig, RecvQueue};
use std::sync::Arc;
use uverbs_core::attr::{QpState, QpType, WqAttr, WqState};
use uverbs_core::control::WqHandle;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Object as _, RssQpCreate, WqCreate, WqParts};
use uverbs_uapi::mlx5::{
    MLX5_RX_HASH_FUNC_TOEPLITZ, mlx5_ib_create_qp_rss, mlx5_ib_create_wq, mlx5_ib_modify_wq,
};
use zerocopy::IntoBytes;

pub(super) fn create(
    mlx5: &Mlx5,
    create: &WqCreate<'_, Mlx5>,
    allocator: Allocator<'_>,
) -> Result<WqParts<Mlx5>> {
    const VERB: &str = "create_wq";
    create.check(&mlx5.kernel)?;
    mlx5.owns(VERB, "cq", Some(create.cq.context()))?;
    if mlx5.facts.cqe_version == 0 {
        // The completions of a work queue identify it by its user index, or not at all.
        return Err(Error::unsupported(VERB, "work queues on a device with CQE version 0"));
    }
    let attr = create.attr;
    if attr.max_wr == 0 {
        return Err(Error::invalid(VERB, "max_wr", "0 work requests"));
    }
    let size = size::recv_queue(VERB, &mlx5.facts.limits, attr.max_wr, attr.max_sge)?;
    let buf = QueueBuf::allocated(allocator, size.bytes(), mlx5.options.wq_pages, MemoryUse::Wq)
        .map_err(|e| mlx5.no_memory(VERB, &e))?;
    let dbrec = Arc::new(mlx5.dbrecs.alloc_from(allocator).map_err(|e| mlx5.no_memory(VERB, &e))?);
    let ring = StrideRing::new(Arc::clone(&buf), 0, size.wqe_cnt, size.stride())
        .ok_or_else(|| Error::invalid(VERB, "max_wr", "too many"))?;
    let (index, access) = (mlx5.user_index(VERB)?, mlx5.qp_access(VERB)?);
    let request = mlx5_ib_create_wq {
        rq_wqe_count: size.wqe_cnt,
        rq_wqe_shift: size.wqe_shift,
        user_index: index.get(),
        ..Default::default()
    };
    let cq = create.cq.shared();
    let (handle, _) =
        calls::create_wq(create.pd, create.cq.handle(), attr, create.user_handle, request, &buf, &dbrec)?;
    let rq = Arc::new(RqShared::new(ring));
    let shared = Arc::new(QpShared::new(access, handle.wq_num(), 0, None, Some(rq), None).with_index(index));
    cq.attach_qp(&shared);
    let memory = QpMemory { buf: Some(buf), sq_buf: None, dbrec: Some(Arc::clone(&dbrec)) };
    let control = QpControl::of_wq(Arc::clone(&shared), Arc::clone(cq), memory);
    let attr = attr.max_wr(size.wqe_cnt).max_sge(size.max_sge);
    let config = RecvConfig {
        // The device reads the doorbell record at once, unlike that of a raw packet QP.
        qp_type: QpType::Ud,
        max_recv_wr: attr.max_wr,
        max_recv_sge: attr.max_sge,
        max_msg_sz: mlx5.facts.max_msg_sz,
    };
    let wq = Wq::new(handle, control);
    let Some(queue) = RecvQueue::new(&config, shared, dbrec.recv_word()) else {
        // It leaves the CQ, too; if the kernel refuses, it is leaked.
        let _ = wq.destroy();
        return Err(Error::invalid(VERB, "cap", "invalid sizes"));
    };
    // The kernel creates it in state RESET, in which receives may not be posted.
    Ok(WqParts { wq, queue, attr })
}

/// The state of a QP that corresponds to a WQ's state, for its queue.
fn state_of(state: WqState) -> QpState {
    match state {
        WqState::RDY => QpState::RTR,
        WqState::ERR => QpState::ERR,
        _ => QpState::RESET,
    }
}

pub(super) fn modify(handle: &WqHandle, control: &QpControl, attr: &WqAttr) -> Result<()> {
    let request = mlx5_ib_modify_wq::default();
    control.modify_with(attr.wq_state.map(state_of), || {
        // SAFETY: the queue's own handle (`Wq::modify`), whose engine learns the new state from `modify_with`.
        unsafe { handle.modify(attr, calls::modify_wq(&request)) }
    })
}

pub(super) fn create_rss(mlx5: &Mlx5, create: &RssQpCreate<'_>, flags: QpFlags) -> Result<Qp> {
    const VERB: &str = "create_qp";
    create.check(&mlx5.kernel)?;
    let hash = create.hash;
    let mut request = mlx5_ib_create_qp_rss {
        rx_hash_fields_mask: hash.fields.bits(),
        rx_hash_function: MLX5_RX_HASH_FUNC_TOEPLITZ,
        flags: flags.bits(),
        ..Default::default()
    };
    let (Some(key), Ok(length)) =
        (request.rx_hash_key.as_mut_bytes().get_mut(..hash.key.len()), u8::try_from(hash.key.len()))
    else {
        return Err(Error::invalid(VERB, "rx_hash_key", format!("{} bytes are above 128", hash.key.len())));
    };
    key.copy_from_slice(hash.key);
    request.rx_key_len = length;
    let handle = calls::create_rss_qp(create.pd, create.table, create.user_handle, &request)?;
    Ok(Qp::new(mlx5, handle, Kind::Table))
}
