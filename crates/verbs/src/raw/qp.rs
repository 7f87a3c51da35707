// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue pair: its two halves and its states.

use crate::brief::brief;
use crate::connect::{ConnectAttr, Endpoint};
use crate::open::AnyDriver;
use crate::qp::control::QpControl;
use crate::qp::drain::DrainCq;
use crate::qp::halves::halves;
use crate::qp::transport::{Sends, Transport};
use crate::raw::recv::RecvQueue;
use crate::raw::send::SendQueue;
use core::time::Duration;
use uverbs_core::attr::{QpAttr, QpAttrMask, QpCap, QpInitAttr};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{BadWr, Driver, PostError, QueueError};
use uverbs_core::sync::{Exclusive, Locking, Shared};
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::RecvWr;

/// A queue pair of transport `T`.
///
/// Its fields are its halves. They can be moved to different owners, for example to two threads; the kernel object is
/// destroyed when the last of them is dropped.
///
/// ```
/// use uverbs::attr::{AccessFlags, QpCap, QpState};
/// use uverbs::{ConnectAttr, Context, PageBuf, Rc, WorkCompletion, mlx5::Mlx5};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
/// let cap = QpCap::new(8, 8).inline(64);
/// let mut qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).create()?;
///
/// // Two QPs exchange their endpoints; this one is connected to itself.
/// let attr = ConnectAttr::new().access(AccessFlags::REMOTE_WRITE);
/// qp.init(&attr)?;
/// let end = qp.control.endpoint(1, &attr)?;
/// qp.connect(&end, &end, &attr)?;
/// assert_eq!(qp.control.state()?, QpState::RTS);
///
/// let region = pd.reg_mr(PageBuf::new(4096)?, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
/// region.write_at(0, b"hello")?;
/// // A batch is posted with one doorbell. Only the last WRITE has a completion.
/// let mut batch = qp.sq().batch();
/// for n in 1..4 {
///     let wr = batch.wr(n);
///     let wr = if n == 3 { wr.signaled() } else { wr };
///     let to = region.remote(n as usize * 5)?;
///     // SAFETY: the region is dropped after the completion.
///     unsafe { wr.write(&[region.sge(0..5)?], to) };
/// }
/// batch.complete()?;
///
/// let mut wc = [WorkCompletion::default(); 1];
/// while cq.poll(&mut wc)?.is_empty() {}
/// assert_eq!((wc[0].wr_id, wc[0].status.ok()), (3, Ok(())));
/// let mut out = [0; 20];
/// region.read_at(0, &mut out)?;
/// assert_eq!(&out, b"hellohellohellohello");
/// # Ok(())
/// # }
/// ```
pub struct Qp<T: Transport, L: Locking = Exclusive, D: Driver = AnyDriver> {
    /// The send queue.
    pub send: SendQueue<T, L, D>,
    /// The receive queue. `None` if the QP has an SRQ, or its type has none.
    pub recv: Option<RecvQueue<L, D>>,
    /// States and queries.
    pub control: QpControl<D>,
}

brief!([T: Transport, L: Locking, D: Driver] Qp<T, L, D>, |this| "{:?}", this.control);

impl<D: Driver, T: Transport, L: Locking> Qp<T, L, D> {
    /// The QP's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.control.qp_num()
    }

    /// The actual sizes, which are at least the requested ones.
    #[must_use]
    pub fn cap(&self) -> &QpCap {
        self.control.cap()
    }

    /// `ibv_post_recv`, as C calls it.
    ///
    /// # Errors
    /// The first WR that was not posted, with the reason; those before it were.
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

    /// `ibv_modify_qp`: changes the attributes in `mask`.
    ///
    /// # Errors
    /// As [`QpControl::modify`].
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.control.modify(attr, mask)
    }

    /// `ibv_query_qp`: the attributes in `mask`, and those with which the QP was created.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        self.control.query(mask)
    }

    /// Moves the QP from RESET to INIT; receives can be posted then.
    ///
    /// # Errors
    /// As [`QpControl::modify`].
    pub fn init(&self, attr: &ConnectAttr) -> Result<()> {
        self.control.init(attr)
    }

    /// Moves the QP from INIT to RTS, connected to `remote` (which a datagram QP ignores). `local` is this side's
    /// endpoint.
    ///
    /// # Errors
    /// As [`QpControl::connect`].
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        self.control.connect(local, remote, attr)
    }

    /// Ends all of its work requests, calls `completed` with every completion, and destroys it. This closes a QP of a
    /// [`Srq`](crate::raw::Srq) without losing buffers.
    ///
    /// [`QpControl::drain`], which is called first, describes `cqs`, `timeout` and the reason.
    ///
    /// # Errors
    /// Those of [`QpControl::drain`], with this QP, so that the call can be repeated; those of [`close`](Self::close),
    /// without the QP.
    pub fn drain<C: DrainCq>(
        self,
        cqs: C,
        timeout: Duration,
        completed: impl FnMut(&WorkCompletion),
    ) -> Result<(), (Option<Self>, Error)> {
        match self.control.drain(cqs, timeout, completed) {
            Ok(()) => self.close().map_err(|error| (None, error)),
            Err(error) => Err((Some(self), error)),
        }
    }

    /// Destroys it and reports a failure, which `Drop` would only log.
    ///
    /// Work requests that have not completed end without a completion. Their memory is free then, except that of
    /// receives of a shared receive queue, which the program can't determine: see [`drain`](Self::drain).
    ///
    /// # Errors
    /// `EBUSY` if a half or another [`QpControl`] is in use; otherwise the kernel's error. The memory of its queues is
    /// leaked then.
    pub fn close(self) -> Result<()> {
        let Self { send, recv, control } = self;
        drop((send, recv));
        control.close()
    }
}

halves!();
