// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues (ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3)).

use crate::Holds;
use crate::brief::brief;
use crate::context::{ContextInner, Object, nobody};
pub use crate::id::SrqId;
use crate::label::Label;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::raw::cq::{Cq, CqInner};
use crate::raw::receiver::{Receiver, RecvBatch, RecvGuard};
use crate::xrcd::{XrcDomain, XrcdInner};
use std::sync::Arc;
use uverbs_core::attr::{SrqAttr, SrqAttrMask, SrqInitAttr};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{
    BadWr, Driver, Life, Object as _, QpObject as _, QueueError, QueueKind, SrqCreate, SrqObject as _,
    SrqParts,
};
use uverbs_core::sync::{Exclusive, LockError, Locked, Locking, Shared};
use uverbs_core::wr::RecvWr;

/// The objects that an XRC SRQ is created from, besides its protection domain.
#[derive(Debug)]
pub(crate) struct Xrc<D: Driver> {
    xrcd: Arc<XrcdInner<D>>,
    cq: Arc<CqInner<D>>,
}

/// An SRQ; QPs hold it, so it outlives them.
pub(crate) struct SrqInner<D: Driver> {
    object: Life<D::Srq>,
    event_id: u64,
    /// What its receives own, if they do.
    holds: Holds<D>,
    context: Arc<ContextInner<D>>,
    _pd: Arc<PdInner<D>>,
    _xrc: Option<Xrc<D>>,
}

brief!([D: Driver] SrqInner<D>, |this| "Srq {:?} of {}", this.object.object().ok().map(|srq| srq.handle().handle()), this.context.name());

impl<D: Driver> SrqInner<D> {
    pub(crate) fn holds(&self) -> &Holds<D> {
        &self.holds
    }

    /// For a new QP or DC target of this queue.
    pub(crate) fn has_user(&self, user: &D::Qp) {
        if self.holds.any() {
            user.keep_removed();
        }
    }

    /// Whether its receives own their buffers.
    pub(crate) fn is_owned(&self) -> bool {
        self.holds.any()
    }

    /// The receives that a QP or DC target had taken, and whose completions its reset or its destruction has removed, give their
    /// buffers back.
    pub(crate) fn take_back(&self, removed: &[u64]) {
        if self.holds.any() {
            self.holds.drop_entries(removed);
        }
    }

    /// For its verbs, and for the creation of QPs.
    pub(crate) fn object(&self) -> Result<&D::Srq> {
        self.object.object()
    }

    /// Destroys the object. If the kernel refuses, it stays.
    fn destroy(&mut self) -> Result<()> {
        if self.object.destroy()?.is_some() {
            self.holds.release(&self.context);
        }
        Ok(())
    }
}

impl<D: Driver> Drop for SrqInner<D> {
    fn drop(&mut self) {
        self.context.forget_object(self.event_id);
        match self.object.end() {
            Ok(Some(_events)) => self.holds.release(&self.context),
            Ok(None) => {}
            Err(error) => {
                log::error!("{error}; its memory is leaked");
                self.holds.leak();
            }
        }
    }
}

/// A shared receive queue.
///
/// Its QPs take receives from it when messages arrive. Which receives a QP has taken is known only from their
/// completions, and the completions of a destroyed QP are removed from the CQ. So if a QP is destroyed before its
/// completions were polled, the program can't determine which buffers they would have named: these stay registered, and
/// the queue has fewer receives. [`Qp::drain`](crate::raw::Qp::drain) prevents this.
///
/// ```
/// use std::time::Duration;
/// use uverbs::{Exclusive, attr::{AccessFlags, QpCap, SrqAttr, SrqInitAttr}};
/// use uverbs::{ConnectAttr, Context, PageBuf, Rc, mlx5::Mlx5, raw::Srq};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(32, None)?);
/// let attr = SrqAttr::new(16);
/// let mut srq: Srq<Exclusive, Mlx5> =
///     pd.create_srq(&SrqInitAttr::new(attr))?;
/// let region = pd.reg_private(PageBuf::new(4096)?, AccessFlags::LOCAL_WRITE)?;
/// for n in 0..16 {
///     let at = n as usize * 64;
///     // SAFETY: each entry has 64 bytes of its own, which are borrowed only after the receive has completed.
///     unsafe { srq.post(n, &[region.sge(at..at + 64)?])? };
/// }
/// let cap = QpCap::new(4, 0).sge(1, 0).inline(64);
/// // Any number of QPs may share it; this one is connected to itself.
/// let mut qp = pd.raw_qp::<Rc>().cq(&cq).srq(&srq).cap(cap).create()?;
/// let connect = ConnectAttr::default();
/// qp.init(&connect)?;
/// let end = qp.control.endpoint(1, &connect)?;
/// qp.connect(&end, &end, &connect)?;
/// qp.sq().post(100).send_inline(b"hello")?;
///
/// // The receive that the message took is reported before the QP is destroyed.
/// let mut taken = Vec::new();
/// qp.drain(&cq, Duration::from_secs(60), |wc| taken.push((wc.wr_id, wc.byte_len)))
///     .map_err(|(_, error)| error)?;
/// assert!(taken.contains(&(0, 5)));
/// assert_eq!(region.slice(0..5)?, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Srq<L: Locking = Exclusive, D: Driver = AnyDriver> {
    receiver: Receiver<D::SharedRecvQueue, L>,
    inner: Arc<SrqInner<D>>,
    attr: SrqAttr,
}

brief!([L: Locking, D: Driver] Srq<L, D>, |this| "{:?}, {} receives", this.inner, this.attr.max_wr);

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_create_srq`: creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes above the device's limits; otherwise the kernel's error, such as `ENOMEM`.
    pub fn create_srq<L: Locking>(&self, attr: &SrqInitAttr) -> Result<Srq<L, D>> {
        Srq::create(self, attr, None)
    }
}

impl<D: Driver, L: Locking> Srq<L, D> {
    fn create(pd: &ProtectionDomain<D>, attr: &SrqInitAttr, xrc: Option<Xrc<D>>) -> Result<Self> {
        let context = pd.inner().context();
        let event_id = context.remember_object(Object::Srq(nobody()));
        let create = || {
            let xrc = match &xrc {
                Some(Xrc { xrcd, cq }) => Some((xrcd.handle()?, cq.object()?)),
                None => None,
            };
            let pd_handle = pd.inner().handle()?;
            let create = SrqCreate { pd: pd_handle, attr, xrc, td: pd.td(), user_handle: event_id };
            context.driver().create_srq(&create)
        };
        let SrqParts { srq, queue, attr } = create().inspect_err(|_| context.forget_object(event_id))?;
        context.update_object(event_id, Object::Srq(Arc::downgrade(&srq.notify())));
        let label = Label::new(QueueKind::Srq, srq.handle().handle(), attr.max_wr);
        let inner = SrqInner {
            object: Life::new("srq", srq),
            event_id,
            holds: Holds::default(),
            context: context.clone(),
            _pd: pd.inner().clone(),
            _xrc: xrc,
        };
        Ok(Self { receiver: Receiver::new(queue, label), inner: Arc::new(inner), attr })
    }

    /// Destroys it. On failure, which `Drop` would only log, returns it with the error. `EBUSY` while QPs use it.
    ///
    /// # Errors
    /// `EBUSY` as above; otherwise the kernel's error.
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        let destroyed = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.destroy(),
            None => Err(Error::os("destroy_srq", "srq: QPs still use it", uverbs_core::Errno::EBUSY)),
        };
        destroyed.map_err(|error| (self, error))
    }

    /// `ibv_create_srq_ex`: creates an XRC SRQ, whose receives complete to `cq`.
    ///
    /// # Errors
    /// `Unsupported` if the device has no XRC; [`Error::Invalid`] for parts of another context; otherwise the kernel's
    /// error.
    pub fn create_xrc<LC: Locking>(
        pd: &ProtectionDomain<D>,
        attr: &SrqInitAttr,
        xrcd: &XrcDomain<D>,
        cq: &Cq<LC, D>,
    ) -> Result<Self> {
        Self::create(pd, attr, Some(Xrc { xrcd: xrcd.inner().clone(), cq: cq.inner().clone() }))
    }

    pub(crate) fn inner(&self) -> &Arc<SrqInner<D>> {
        &self.inner
    }

    /// Identifies this SRQ in asynchronous events.
    #[must_use]
    pub fn id(&self) -> SrqId {
        SrqId(self.inner.event_id)
    }

    /// The actual sizes, which are at least the requested ones.
    #[must_use]
    pub fn attr(&self) -> &SrqAttr {
        &self.attr
    }

    /// `ibv_get_srq_num`: the number by which XRC senders address it.
    ///
    /// # Errors
    /// `Unsupported` for other SRQs.
    pub fn srq_num(&self) -> Result<u32> {
        let number = self.inner.object()?.handle().srq_num();
        number.ok_or_else(|| Error::unsupported("get_srq_num", "only XRC SRQs have a number"))
    }

    /// `ibv_query_srq`: the sizes, and the limit that is armed (0 if none is).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query(&self) -> Result<SrqAttr> {
        self.inner.object()?.handle().query()
    }

    /// `ibv_post_srq_recv`, as C calls it.
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason; those before it were.
    ///
    /// # Safety
    /// As [`raw::post_recv`](uverbs_core::provider::raw::post_recv).
    #[expect(unsafe_code, reason = "C's contract: a list of raw pointers")]
    pub unsafe fn post_srq_recv(&self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `raw::post_recv`, which is also that of this function.
        unsafe { self.receiver.post_list(list) }
    }

    /// The engine behind its lock, for faces that are built on this crate. A program that swaps it with that of another SRQ posts to the
    /// other queue.
    #[must_use]
    pub fn as_locked(&self) -> &Locked<D::SharedRecvQueue, L> {
        self.receiver.locked()
    }
}

impl<D: Driver> Srq<Exclusive, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn engine_mut(&mut self) -> &mut D::SharedRecvQueue {
        self.receiver.engine_mut()
    }

    /// `ibv_modify_srq`: arms the limit event, or resizes the SRQ if the device can.
    ///
    /// # Errors
    /// `Unsupported` for a size on a device that can't resize; otherwise the kernel's error. A shared queue: `EBUSY` if
    /// this thread holds the lock.
    pub fn modify(&mut self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        self.inner.object()?.modify(self.receiver.engine_mut(), attr, mask)
    }

    /// Opens a batch of receives.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn batch(&mut self) -> RecvBatch<'_, D::SharedRecvQueue> {
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

impl<D: Driver> Srq<Shared, D> {
    /// `ibv_modify_srq`: arms the limit event, or resizes the SRQ if the device can.
    ///
    /// # Errors
    /// `Unsupported` for a size on a device that can't resize; otherwise the kernel's error. A shared queue: `EBUSY` if
    /// this thread holds the lock.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        let busy = |_| Error::os("modify_srq", "srq: locked by this thread", uverbs_core::Errno::EBUSY);
        self.inner.object()?.modify(self.receiver.lock().map_err(busy)?.engine_mut(), attr, mask)
    }

    /// Waits for the lock; an error if this thread holds it already, or in a child of fork(2).
    ///
    /// # Errors
    /// [`LockError::Reentered`] if this thread holds the lock; [`LockError::Forked`] in a child of fork(2), if a thread of the
    /// parent held it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn lock(&self) -> Result<RecvGuard<'_, D::SharedRecvQueue>, LockError> {
        self.receiver.lock()
    }
}
