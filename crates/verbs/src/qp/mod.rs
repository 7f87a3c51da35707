// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: one file for each way in.
//!
//! [`transport`] the types of QP, [`create`] making one, [`control`] its states, [`send`] and [`wr`] posting to it,
//! [`recv`] posting receives, and `inner`, what keeps the kernel's object and its rings alive.

pub mod control;
pub mod create;
pub(crate) mod inner;
pub mod recv;
pub mod send;
pub mod transport;
pub mod wr;

pub use create::QpBuilder;
pub use send::{Batch, SendGuard, SendQueue};
pub use transport::{Dci, RawPacket, Rc, Transport, Uc, Ud, XrcRecv, XrcSend};

use core::mem::ManuallyDrop;
use inner::QpInner;
use recv::{Receiver, RecvBatch, RecvGuard};
use std::sync::Arc;
use uverbs_core::attr::{QpAttr, QpAttrMask, QpCap, QpInitAttr};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{BadWr, Driver, PostError};
use uverbs_core::sync::{Exclusive, Locked, Locking, Reentered, Shared};
use uverbs_core::wr::RecvWr;

use crate::connect::{ConnectAttr, Endpoint};

/// A queue pair of transport `T`.
///
/// Its fields are its halves. They can be moved to different owners, for example to two threads; the kernel object is
/// destroyed when the last of them is dropped.
#[derive(Debug)]
pub struct Qp<D: Driver, T: Transport, L: Locking = Exclusive> {
    /// The send queue. `None` for an XRC receive QP.
    pub send: Option<SendQueue<D, T, L>>,
    /// The receive queue. `None` if the QP has an SRQ.
    pub recv: Option<RecvQueue<D, L>>,
    /// States and queries.
    pub control: QpControl<D>,
}

impl<D: Driver, T: Transport, L: Locking> Qp<D, T, L> {
    /// The QP's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.control.qp_num()
    }

    /// Its sizes as created, which are at least those requested.
    #[must_use]
    pub fn cap(&self) -> &QpCap {
        self.control.cap()
    }

    /// The send half; [`PostError::NoQueue`] for an XRC receive QP or when it was moved out.
    #[inline(always)]
    pub fn sq(&mut self) -> Result<&mut SendQueue<D, T, L>, PostError> {
        self.send.as_mut().ok_or(PostError::NoQueue)
    }

    /// The receive half; [`PostError::NoQueue`] if an SRQ takes the receives or when it was moved out.
    #[inline(always)]
    pub fn rq(&mut self) -> Result<&mut RecvQueue<D, L>, PostError> {
        self.recv.as_mut().ok_or(PostError::NoQueue)
    }

    /// `ibv_post_recv`, as C calls it.
    ///
    /// # Safety
    /// As [`raw::post_recv`](uverbs_core::provider::raw::post_recv).
    #[expect(unsafe_code, reason = "C's contract: a list of raw pointers")]
    pub unsafe fn post_recv(&self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        match &self.recv {
            // SAFETY: `list` fulfils the contract of `raw::post_recv`, which is also that of this function.
            Some(rq) => unsafe { rq.post_recv(list) },
            None => Err(BadWr { error: PostError::NoQueue, wr: list }),
        }
    }

    /// `ibv_modify_qp`
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.control.modify(attr, mask)
    }

    /// `ibv_query_qp`
    pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        self.control.query(mask)
    }

    /// Moves the QP from RESET to INIT; receives can be posted then.
    pub fn init(&self, attr: &ConnectAttr) -> Result<()> {
        self.control.init(attr)
    }

    /// Moves the QP from INIT to RTS, connected to `remote` (which a datagram QP ignores). `local` is this side's endpoint.
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        self.control.connect(local, remote, attr)
    }

    /// Destroys it and reports a failure, which `Drop` would only log.
    pub fn close(self) -> Result<()> {
        let Self { send, recv, control } = self;
        drop((send, recv));
        control.close()
    }
}

/// The states of a QP, and queries. Cloning shares it.
#[derive(Debug)]
pub struct QpControl<D: Driver> {
    inner: Arc<QpInner<D>>,
}

impl<D: Driver> Clone for QpControl<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

/// The receive queue of a QP.
#[derive(Debug)]
pub struct RecvQueue<D: Driver, L: Locking = Exclusive> {
    receiver: ManuallyDrop<Receiver<D::RecvQueue, L>>,
    qp: Arc<QpInner<D>>,
}

impl<D: Driver, L: Locking> RecvQueue<D, L> {
    fn new(engine: D::RecvQueue, qp: Arc<QpInner<D>>) -> Self {
        Self { receiver: ManuallyDrop::new(Receiver::new(engine)), qp }
    }

    /// `ibv_post_recv`, as C calls it.
    ///
    /// # Safety
    /// As [`raw::post_recv`](uverbs_core::provider::raw::post_recv).
    #[expect(unsafe_code, reason = "C's contract: a list of raw pointers")]
    pub unsafe fn post_recv(&self, list: *const RecvWr) -> Result<(), BadWr<RecvWr>> {
        // SAFETY: `list` fulfils the contract of `raw::post_recv`, which is also that of this function.
        unsafe { self.receiver.post_list(list) }
    }

    /// The engine behind its lock, for faces that are built on this crate.
    ///
    /// # Safety
    /// The engine is not moved out of its place, nor swapped with another: its memory must outlive this QP.
    #[expect(unsafe_code, reason = "a `&mut` to an engine could be swapped with another QP's")]
    #[must_use]
    pub unsafe fn as_locked(&self) -> &Locked<D::RecvQueue, L> {
        self.receiver.locked()
    }
}

impl<D: Driver> RecvQueue<D, Exclusive> {
    /// Opens a batch of receives.
    #[inline(always)]
    pub fn batch(&mut self) -> RecvBatch<'_, D::RecvQueue> {
        self.receiver.batch()
    }

    /// Posts one receive.
    ///
    /// # Safety
    /// As [`RecvBatch::push`].
    #[expect(unsafe_code, reason = "the memory must stay until the receive completes")]
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[D::Sge]) -> Result<(), PostError> {
        // SAFETY: the entries' memory fulfils the contract of `RecvBatch::push`, which is also that of this function.
        unsafe { self.receiver.post(wr_id, sges) }
    }
}

impl<D: Driver> RecvQueue<D, Shared> {
    /// Waits for the lock; an error if this thread holds it already.
    #[inline(always)]
    pub fn lock(&self) -> Result<RecvGuard<'_, D::RecvQueue>, Reentered> {
        self.receiver.lock()
    }
}

impl<D: Driver, L: Locking> Drop for RecvQueue<D, L> {
    fn drop(&mut self) {
        // SAFETY: `receiver` is not used after this: `drop` runs once.
        #[expect(unsafe_code, reason = "ManuallyDrop")]
        let receiver = unsafe { ManuallyDrop::take(&mut self.receiver) };
        // The device may use the ring until the kernel object is destroyed, so the QP keeps it until then.
        self.qp.keep_recv(receiver.into_engine());
    }
}

impl<D: Driver> QpControl<D> {
    /// The kernel object.
    pub(crate) fn handle(&self) -> Result<&uverbs_core::control::QpHandle> {
        self.inner.handle()
    }

    fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(mut inner) => inner.destroy(),
            None => Err(Error::Os {
                verb: "destroy_qp",
                object: "qp: its halves or controls are still in use".into(),
                errno: uverbs_core::Errno::EBUSY,
            }),
        }
    }
}
