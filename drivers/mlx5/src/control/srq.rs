// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating and modifying shared receive queues.

use super::{Mlx5, NO_UIDX};
use crate::SharedRecvQueue;
use crate::control::{calls, size};
use crate::cq::CqShared;
use crate::memory::dbrec::DbRec;
use crate::memory::{Allocator, MemoryUse, QueueBuf, StrideRing};
use crate::rq::close_srq;
use crate::shared::SrqShared;
use std::sync::Arc;
use uverbs_core::attr::{SrqAttr, SrqAttrMask, SrqType};
use uverbs_core::control::{SrqHandle, SrqParents};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{QueueAccess, Uhw};
use uverbs_core::provider::{SrqCreate, SrqParts};

/// An SRQ on the control path: the state that its queue shares, and the CQ in which it has its own number (XRC).
#[derive(Debug)]
pub struct SrqControl {
    shared: Arc<SrqShared>,
    cq: Option<Arc<CqShared>>,
    dbrec: Arc<DbRec>,
    /// That of its poster.
    access: QueueAccess,
}

impl SrqControl {
    /// The state that its queue shares.
    #[must_use]
    pub fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    /// Its doorbell record.
    #[must_use]
    pub fn dbrec(&self) -> &Arc<DbRec> {
        &self.dbrec
    }

    /// The device was removed: later posts fail.
    pub(super) fn close(&self) {
        close_srq(&self.access);
    }

    /// Removes it from its CQ after the kernel has destroyed it.
    pub(super) fn detach(&self) {
        if let Some(cq) = &self.cq {
            cq.detach_srq(&self.shared);
        }
    }
}

pub(super) fn create(
    mlx5: &Mlx5,
    create: &SrqCreate<'_, Mlx5>,
    allocator: Allocator<'_>,
) -> Result<SrqParts<Mlx5>> {
    const VERB: &str = "create_srq";
    let attr = create.attr;
    if attr.srq_type == SrqType::Tm {
        return Err(Error::unsupported(VERB, "tag matching"));
    }
    let size = size::shared_queue(VERB, &mlx5.facts.limits, attr.attr.max_wr, attr.attr.max_sge)?;
    let buf = QueueBuf::allocated(allocator, size.ring.bytes(), mlx5.options.srq_pages, MemoryUse::Srq)
        .map_err(|e| mlx5.no_memory(VERB, &e))?;
    let access = mlx5.queue_access(VERB)?;
    let dbrec = Arc::new(mlx5.dbrecs.alloc_from(allocator).map_err(|e| mlx5.no_memory(VERB, &e))?);
    let ring = StrideRing::new(Arc::clone(&buf), 0, size.ring.wqe_cnt, size.ring.stride())
        .ok_or_else(|| Error::invalid(VERB, "max_wr", "too many"))?;
    // Completions of a basic SRQ name the QP; of an XRC one, the SRQ itself.
    let index = match attr.srq_type {
        SrqType::Xrc if mlx5.facts.cqe_version != 0 => Some(mlx5.user_index(VERB)?),
        _ => None,
    };
    let uidx = match (&index, attr.srq_type) {
        (Some(index), _) => index.get(),
        (None, SrqType::Xrc) => NO_UIDX,
        (None, _) => 0,
    };

    let parents = SrqParents {
        pd: create.pd,
        xrcd: create.xrc.map(|(xrcd, ..)| xrcd),
        cq: create.xrc.map(|(_, cq, _)| cq),
    };
    // The kernel's size counts all elements except one, including those that the user can't post.
    let requested = attr.attr.max_wr(size.ring.wqe_cnt - 1).max_sge(size.ring.max_sge);
    if attr.attr.max_wr == 0 || attr.attr.srq_limit > attr.attr.max_wr {
        let reason = format!("srq_limit {} of max_wr {}", attr.attr.srq_limit, attr.attr.max_wr);
        return Err(Error::invalid(VERB, "max_wr", reason));
    }
    let init = attr.attr(requested);
    let (handle, srqn) = calls::create_srq(parents, &init, create.user_handle, uidx, &buf, &dbrec)?;
    let number = handle.srq_num().unwrap_or(srqn);
    let made = (number <= 0xff_ffff).then(|| SrqShared::new(number, ring, size.slots)).flatten();
    let Some(shared) = made else {
        // SAFETY: the object has no other user yet.
        let _ = unsafe { handle.destroy() }.map_err(|_| core::mem::forget((buf, dbrec)));
        return Err(Error::protocol(VERB, format!("SRQ number {number:#x}")));
    };
    let shared = Arc::new(match index {
        Some(index) => shared.with_index(index),
        None => shared,
    });
    let cq = create.xrc.map(|(.., cq)| Arc::clone(cq));
    if let Some(cq) = &cq {
        cq.attach_srq(&shared);
    }
    let control = Arc::new(SrqControl { shared, cq, dbrec: Arc::clone(&dbrec), access: access.clone() });
    let queue = SharedRecvQueue::new(
        Arc::clone(&control.shared),
        access,
        size.ring.max_sge,
        mlx5.facts.max_msg_sz,
        dbrec.recv_word(),
    );
    let attr = attr.attr.max_wr(size.slots - 1).max_sge(size.ring.max_sge);
    Ok(SrqParts { handle, shared: control, queue, attr })
}

pub(super) fn modify(
    handle: &SrqHandle,
    queue: &SharedRecvQueue,
    attr: &SrqAttr,
    mask: SrqAttrMask,
) -> Result<()> {
    const VERB: &str = "modify_srq";
    if mask.contains(SrqAttrMask::MAX_WR) {
        return Err(Error::unsupported(VERB, "mlx5 cannot resize an SRQ"));
    }
    // The kernel compares the limit with the whole ring, more than half of which is reserved.
    if mask.contains(SrqAttrMask::LIMIT) && attr.srq_limit > queue.max_wr() {
        let reason = format!("{} of max_wr {}", attr.srq_limit, queue.max_wr());
        return Err(Error::invalid(VERB, "srq_limit", reason));
    }
    handle.modify(attr, mask, Uhw::none())
}
