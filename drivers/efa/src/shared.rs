// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a QP that its posters, its pollers and control calls share.
//!
//! A post checks the state and writes to the device in one access to its queue ([`QpAccess`]). So when a control call has closed the
//! queues, no post writes to memory of the device that may be that of another QP soon.

use crate::cq_state::{CqShared, CqState};
use std::io;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::errno::Errno;
use uverbs_core::kernel::QpAccess;
use uverbs_core::provider::requests::Requests;
use uverbs_core::provider::state::StateWord;
use uverbs_core::sync::ControlBarrier;

/// Whether sends may be posted. As libefa: the device does not flush what is posted in ERR.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn may_send(word: StateWord) -> bool {
    matches!(word.state(), QpState::RTS | QpState::SQD)
}

/// Whether receives may be posted.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn may_receive(word: StateWord) -> bool {
    word.can_receive() && word.state() != QpState::ERR
}

/// The requests of a queue, as its CQ knows them.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) qp_num: u16,
    /// Whether the QP has completions that belong to no request.
    pub(crate) unsolicited: bool,
    pub(crate) requests: Arc<Requests>,
}

/// The shared state.
#[derive(Debug)]
pub struct QpShared {
    pub(crate) access: QpAccess,
    pub(crate) send: Table,
    pub(crate) recv: Table,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
}

impl QpShared {
    /// The state of a QP in `state`, with tables for this many requests, whose numbers are `from` these on; `unsolicited` is whether it has
    /// completions of writes that consume no receive. Its CQs do not know it yet.
    ///
    /// # Errors
    /// There is no memory for the words of posters and control calls.
    pub fn create(
        state: QpState,
        barrier: ControlBarrier,
        (qp_num, from): (u16, [u16; 2]),
        (sends, receives): (u32, u32),
        (send_cq, recv_cq): (&Arc<CqShared>, &Arc<CqShared>),
        unsolicited: bool,
    ) -> io::Result<Self> {
        let table = |capacity, from, unsolicited| {
            let requests = Arc::new(Requests::new(capacity, from));
            Table { qp_num, unsolicited, requests }
        };
        Ok(Self {
            access: QpAccess::new(state, barrier)?,
            send: table(sends, from[0], false),
            recv: table(receives, from[1], unsolicited),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
        })
    }

    pub(crate) fn qp_num(&self) -> u16 {
        self.send.qp_num
    }

    /// The numbers of requests from which on a later QP with this QP number may use them.
    pub(crate) fn behind(&self) -> [u16; 2] {
        [self.send.requests.behind(), self.recv.requests.behind()]
    }

    /// Stores a state that allows more than the one before, after the kernel has changed it.
    pub fn open(&self, state: QpState) {
        self.access.set_state(state);
    }

    /// As [`QpAccess::close_all`].
    ///
    /// # Errors
    /// As [`QpAccess::close_all`].
    pub fn close_all(&self) -> Result<(), Errno> {
        self.access.close_all()
    }

    /// Tells the CQs of the QP. `false` in a child of fork(2), or if a CQ is lost.
    #[must_use]
    pub fn attach(&self) -> bool {
        self.send_cq.stopped(|cq| cq.attach(&self.send, true)).is_some()
            && self.recv_cq.stopped(|cq| cq.attach(&self.recv, false)).is_some()
    }

    /// Removes the completions of the QP, which the device has reset, and empties its tables. The queues are closed. `false` in a child of
    /// fork(2), or if a CQ is lost: the queues must stay closed.
    #[must_use]
    pub fn reset(&self) -> bool {
        self.each_cq(|cq| cq.remove(self.qp_num()));
        let send = self.send_cq.stopped(|cq| cq.reset(&self.send));
        send.is_some() && self.recv_cq.stopped(|cq| cq.reset(&self.recv)).is_some()
    }

    /// Removes the completions of the QP, which the device has destroyed. The caller ensures that its number is not yet that of another QP.
    pub fn detach(&self) {
        self.each_cq(|cq| {
            cq.remove(self.qp_num());
            cq.detach(self.qp_num());
        });
    }

    fn each_cq(&self, f: impl Fn(&mut CqState)) {
        self.send_cq.stopped(&f);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.stopped(&f);
        }
    }
}
