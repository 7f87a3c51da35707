// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating and modifying shared receive queues.
#![expect(unsafe_code)]
// UNSAFETY: destroys the kernel's object.

use super::{Mlx5, NO_UIDX, ThreadDomain};
use crate::SharedRecvQueue;
use crate::control::{calls, size};
use crate::cq::CqShared;
use crate::memory::dbrec::DbRec;
use crate::memory::{Allocator, MemoryUse, QueueBuf, StrideRing};
use crate::rq::close_srq;
use crate::shared::{SrqShared, UserIndices};
use std::sync::Arc;
use uverbs_core::attr::{SrqAttr, SrqAttrMask, SrqType};
use uverbs_core::control::{SrqHandle, SrqParents};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{QueueAccess, Uhw};
use uverbs_core::provider::{Kept, Notify, Object, SrqCreate, SrqObject, SrqParts};

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq(Kept<SrqHandle, State>);

/// What the device may use until the kernel has destroyed the queue: the state that its engine shares, and the CQ in which it has its own
/// number (XRC).
#[derive(Debug)]
struct State {
    shared: Arc<SrqShared>,
    cq: Option<Arc<CqShared>>,
    dbrec: Arc<DbRec>,
    poster: Arc<Poster>,
    /// Completions name it by the device's number.
    named_by_number: bool,
    context: Arc<UserIndices>,
}

impl Srq {
    /// The state that its queue shares.
    #[must_use]
    pub fn shared(&self) -> &Arc<SrqShared> {
        &self.0.shared
    }

    /// Its doorbell record.
    #[must_use]
    pub fn dbrec(&self) -> &Arc<DbRec> {
        &self.0.dbrec
    }

    /// By which its context is known.
    pub(super) fn context(&self) -> &Arc<UserIndices> {
        &self.0.context
    }
}

impl Object for Srq {
    type Handle = SrqHandle;
    type Reported = u32;

    fn handle(&self) -> &SrqHandle {
        self.0.handle()
    }

    fn destroy(self) -> Result<u32, (Self, Error)> {
        let destroyed = self.0.destroy(|state, handle| {
            // In a child of fork(2) no other thread creates an object.
            let _one = state.named_by_number.then(|| state.context.numbers());
            // SAFETY: posts to the queue only write its memory, which the engine keeps; its entries in the CQ are removed next.
            let reported = unsafe { handle.destroy() }?;
            if let Some(cq) = &state.cq {
                cq.detach_srq(&state.shared);
            }
            Ok(reported)
        });
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl SrqObject for Srq {
    type Engine = SharedRecvQueue;

    fn number(&self) -> Option<u32> {
        Some(self.shared().srqn)
    }

    fn modify(&self, queue: &mut SharedRecvQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        const VERB: &str = "modify_srq";
        if !Arc::ptr_eq(self.shared(), queue.shared()) {
            return Err(Error::invalid(VERB, "srq", "the engine of another SRQ"));
        }
        if mask.contains(SrqAttrMask::MAX_WR) {
            return Err(Error::unsupported(VERB, "mlx5 cannot resize an SRQ"));
        }
        // The kernel compares the limit with the whole ring, more than half of which is reserved.
        if mask.contains(SrqAttrMask::LIMIT) && attr.srq_limit > queue.max_wr() {
            let reason = format!("{} of max_wr {}", attr.srq_limit, queue.max_wr());
            return Err(Error::invalid(VERB, "srq_limit", reason));
        }
        self.handle().modify(attr, mask, Uhw::none())
    }

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(&self.0.poster) as Arc<dyn Notify>
    }
}

/// The access of its poster.
#[derive(Debug)]
struct Poster(QueueAccess);

impl Notify for Poster {
    fn device_removed(&self) {
        close_srq(&self.0);
    }
}

pub(super) fn create(
    mlx5: &Mlx5,
    create: &SrqCreate<'_, Mlx5>,
    allocator: Allocator<'_>,
) -> Result<SrqParts<Mlx5>> {
    const VERB: &str = "create_srq";
    create.check(&mlx5.kernel)?;
    mlx5.owns(VERB, "cq", create.xrc.map(|(_, cq)| cq.context()))?;
    mlx5.owns(VERB, "td", create.td.map(ThreadDomain::context))?;
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
        xrcd: create.xrc.map(|(xrcd, _)| xrcd),
        cq: create.xrc.map(|(_, cq)| cq.handle()),
    };
    // The kernel's size counts all elements except one, including those that the user can't post.
    let requested = attr.attr.max_wr(size.ring.wqe_cnt - 1).max_sge(size.ring.max_sge);
    if attr.attr.max_wr == 0 || attr.attr.srq_limit > attr.attr.max_wr {
        let reason = format!("srq_limit {} of max_wr {}", attr.attr.srq_limit, attr.attr.max_wr);
        return Err(Error::invalid(VERB, "max_wr", reason));
    }
    let init = attr.attr(requested);
    let named_by_number = attr.srq_type == SrqType::Xrc && index.is_none();
    let _one = if named_by_number { mlx5.number(VERB)? } else { None };
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
    let cq = create.xrc.map(|(_, cq)| Arc::clone(cq.shared()));
    if let Some(cq) = &cq {
        cq.attach_srq(&shared);
    }
    let poster = Arc::new(Poster(access.clone()));
    let queue = SharedRecvQueue::new(
        Arc::clone(&shared),
        access,
        size.ring.max_sge,
        mlx5.facts.max_msg_sz,
        dbrec.recv_word(),
    );
    let attr = attr.attr.max_wr(size.slots - 1).max_sge(size.ring.max_sge);
    let state = State { shared, cq, dbrec, poster, named_by_number, context: Arc::clone(&mlx5.indices) };
    Ok(SrqParts { srq: Srq(Kept::new(handle, state)), queue, attr })
}
