// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive side scaling: work queues, a table of them, and a QP that spreads packets over the table by a hash
//! (ibv_create_wq(3), ibv_create_rwq_ind_table(3), ibv_create_qp_ex(3)).

use crate::brief::brief;
use crate::context::{ContextInner, Object, nobody, same_context};
use crate::event::QpEvents;
use crate::label::Label;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::raw::cq::{Cq, CqInner};
use crate::raw::receiver::Receiver;
use std::sync::Arc;
use uverbs_core::attr::{RxHashConf, WqAttr, WqInitAttr, WqState};
use uverbs_core::control::{self, RwqIndTableHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{
    Driver, Life, Object as _, QueueError, QueueKind, RssQpCreate, WqCreate, WqObject as _, WqParts,
};
use uverbs_core::sync::{Exclusive, LockError, Locking, Shared};

pub use crate::raw::receiver::{RecvBatch, RecvGuard};

/// A WQ; tables hold it, so it outlives them.
struct WqInner<D: Driver> {
    object: Life<D::Wq>,
    event_id: u64,
    context: Arc<ContextInner<D>>,
    _cq: Arc<CqInner<D>>,
    _pd: Arc<PdInner<D>>,
}

brief!([D: Driver] WqInner<D>, |this| "Wq {:#x} of {}", this.wq_num(), this.context.name());

impl<D: Driver> WqInner<D> {
    fn wq_num(&self) -> u32 {
        self.object.object().map_or(0, |wq| wq.handle().wq_num())
    }
}

impl<D: Driver> Drop for WqInner<D> {
    fn drop(&mut self) {
        self.context.forget_object(self.event_id);
    }
}

/// A work queue: receives without a QP.
pub struct Wq<L: Locking = Exclusive, D: Driver = AnyDriver> {
    receiver: Receiver<D::RecvQueue, L>,
    inner: Arc<WqInner<D>>,
    attr: WqInitAttr,
}

brief!([L: Locking, D: Driver] Wq<L, D>, |this| "{:?}, {} receives", this.inner, this.attr.max_wr);

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_create_wq`: a work queue in state RESET, which completes to `cq`.
    ///
    /// # Errors
    /// `Unsupported` if the device has no work queues; [`Error::Invalid`] for a CQ of another context; otherwise the
    /// kernel's error.
    pub fn create_wq<L: Locking, LC: Locking>(&self, cq: &Cq<LC, D>, attr: &WqInitAttr) -> Result<Wq<L, D>> {
        let context = self.inner().context();
        let event_id = context.remember_object(Object::Wq(0, nobody()));
        let create = || {
            let create = WqCreate {
                pd: self.inner().handle()?,
                cq: cq.inner().object()?,
                attr,
                user_handle: event_id,
            };
            context.driver().create_wq(&create)
        };
        let WqParts { wq, queue, attr } = create().inspect_err(|_| context.forget_object(event_id))?;
        let wq_num = wq.handle().wq_num();
        context.update_object(event_id, Object::Wq(wq_num, Arc::downgrade(&wq.notify())));
        let label = Label::new(QueueKind::Wq, wq_num, attr.max_wr);
        let inner = WqInner {
            object: Life::new("wq", wq),
            event_id,
            context: context.clone(),
            _cq: cq.inner().clone(),
            _pd: self.inner().clone(),
        };
        Ok(Wq { receiver: Receiver::new(queue, label), inner: Arc::new(inner), attr })
    }

    /// `ibv_create_qp_ex` with `rx_hash_conf`: a raw packet QP without queues of its own, which distributes the packets
    /// of its rules over the table.
    ///
    /// # Errors
    /// `Unsupported` if the device does not hash packets; [`Error::Invalid`] for a table of another context; otherwise
    /// the kernel's error.
    pub fn create_rss_qp(&self, table: &RwqIndTable<D>, hash: RxHashConf<'_>) -> Result<RssQp<D>> {
        let context = self.inner().context();
        let event_id = context.remember_object(Object::Qp(QpEvents::new(0), nobody()));
        let create = || {
            context.driver().create_rss_qp(&RssQpCreate {
                pd: self.inner().handle()?,
                table: table.inner.handle()?,
                hash,
                user_handle: event_id,
            })
        };
        let qp = create().inspect_err(|_| context.forget_object(event_id))?;
        context.update_object(event_id, Object::Qp(QpEvents::new(qp.handle().qp_num()), nobody()));
        let inner = RssInner {
            object: Life::new("qp", qp),
            event_id,
            _table: table.inner.clone(),
            _pd: self.inner().clone(),
            context: context.clone(),
        };
        Ok(RssQp { inner: Arc::new(inner) })
    }
}

impl<D: Driver, L: Locking> Wq<L, D> {
    /// The number of the WQ.
    #[must_use]
    pub fn wq_num(&self) -> u32 {
        self.inner.wq_num()
    }

    /// The actual attributes; its sizes are at least the requested ones.
    #[must_use]
    pub fn attr(&self) -> &WqInitAttr {
        &self.attr
    }

    /// `ibv_modify_wq`: changes the attributes that `attr` has.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn modify(&self, attr: &WqAttr) -> Result<()> {
        self.inner.object.object()?.modify(attr)
    }

    /// Changes only the state; receives can be posted in RDY.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn modify_state(&self, state: WqState) -> Result<()> {
        self.modify(&WqAttr::new().wq_state(state))
    }
}

impl<D: Driver> Wq<Exclusive, D> {
    /// Opens a batch of receives.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> RecvBatch<'_, D::RecvQueue> {
        self.receiver.batch()
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`QueueError`]: the queue is full, too many entries, or a state in which the queue takes no receives.
    ///
    /// # Safety
    /// As [`RecvBatch::push`].
    #[expect(unsafe_code, reason = "the memory must stay until the receive completes")]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[D::Sge]) -> Result<(), QueueError> {
        // SAFETY: the entries' memory fulfils the contract of `RecvBatch::push`, which is also that of this function.
        unsafe { self.receiver.post(wr_id, sges) }
    }
}

impl<D: Driver> Wq<Shared, D> {
    /// Waits for the lock; an error if this thread holds it already, or in a child of fork(2).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock; [`LockError::Forked`] in a child of fork(2), if a thread of the
    /// parent held it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<RecvGuard<'_, D::RecvQueue>, LockError> {
        self.receiver.lock()
    }
}

struct TableInner<D: Driver> {
    handle: Option<RwqIndTableHandle>,
    _wqs: Vec<Arc<WqInner<D>>>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] TableInner<D>, |this| "RwqIndTable of {} queues, {}", this._wqs.len(), this.context.name());

impl<D: Driver> TableInner<D> {
    fn handle(&self) -> Result<&RwqIndTableHandle> {
        self.handle
            .as_ref()
            .ok_or_else(|| Error::invalid("rwq_ind_table", "handle", "the table is destroyed"))
    }
}

impl<D: Driver> Drop for TableInner<D> {
    fn drop(&mut self) {
        if let Some(Err((_, error))) = self.handle.take().map(RwqIndTableHandle::destroy) {
            log::error!("{error}");
        }
    }
}

/// A table of work queues. It holds references to them.
pub struct RwqIndTable<D: Driver = AnyDriver> {
    inner: Arc<TableInner<D>>,
}

brief!([D: Driver] RwqIndTable<D>, |this| "{:?}", this.inner);

impl<D: Driver> RwqIndTable<D> {
    /// `ibv_create_rwq_ind_table`. The number of entries must be a power of two; a queue may have several entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] without queues, or for queues of another context; otherwise the kernel's error.
    pub fn create<L: Locking>(wqs: &[&Wq<L, D>]) -> Result<Self> {
        const VERB: &str = "create_rwq_ind_table";
        let Some(first) = wqs.first() else {
            return Err(Error::invalid(VERB, "ind_tbl", "no work queues"));
        };
        let context = &first.inner.context;
        let wqs: Vec<_> = wqs
            .iter()
            .map(|wq| {
                same_context(context, &wq.inner.context, VERB, "ind_tbl")?;
                Ok(wq.inner.clone())
            })
            .collect::<Result<_>>()?;
        let handles: Vec<_> = wqs.iter().map(|wq| Ok(wq.object.object()?.handle())).collect::<Result<_>>()?;
        let handle = control::wq::create_rwq_ind_table(context.kernel(), &handles, Uhw::none())?;
        let context = context.clone();
        Ok(Self { inner: Arc::new(TableInner { handle: Some(handle), _wqs: wqs, context }) })
    }
}

struct RssInner<D: Driver> {
    object: Life<D::Qp>,
    event_id: u64,
    _table: Arc<TableInner<D>>,
    _pd: Arc<PdInner<D>>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] RssInner<D>, |this| "RssQp {:#x} of {}", this.object.object().map_or(0, |qp| qp.handle().qp_num()), this.context.name());

impl<D: Driver> Drop for RssInner<D> {
    fn drop(&mut self) {
        self.context.forget_object(self.event_id);
    }
}

/// A raw packet QP that distributes packets over a table. It has no states: its rules select the packets, and the
/// states of the work queues determine whether packets are received.
pub struct RssQp<D: Driver = AnyDriver> {
    inner: Arc<RssInner<D>>,
}

brief!([D: Driver] RssQp<D>, |this| "{:?}", this.inner);

impl<D: Driver> RssQp<D> {
    pub(crate) fn object(&self) -> Result<&D::Qp> {
        self.inner.object.object()
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.inner.context
    }

    /// A reference that prevents its destruction.
    pub(crate) fn keep(&self) -> Arc<impl Send + Sync + core::fmt::Debug + use<D>> {
        self.inner.clone()
    }
}
