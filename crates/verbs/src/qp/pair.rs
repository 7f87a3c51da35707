// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue pair: its two halves and its states.

use super::control::QpControl;
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::transport::Transport;
use crate::connect::{ConnectAttr, Endpoint};
use uverbs_core::attr::{QpAttr, QpAttrMask, QpCap, QpInitAttr};
use uverbs_core::error::Result;
use uverbs_core::provider::{BadWr, Driver, PostError};
use uverbs_core::sync::{Exclusive, Locking};
use uverbs_core::wr::RecvWr;

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
