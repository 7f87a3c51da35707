// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: objects, execution of WQEs, packets in and out. It is independent of ioctls, processes and threads. A
//! front (the in-process kernel) creates objects in it and takes its notices.
//!
//! Everything of one fabric is behind one lock, and every reaction to a packet is an event of the network's, so nothing
//! here calls back into the queue that it comes from.

pub(crate) mod cq;
mod data;
mod datagram;
mod ethernet;
pub(crate) mod flow;
pub(crate) mod mkey;
pub(crate) mod net;
pub(crate) mod packet;
pub(crate) mod qp;
pub(crate) mod recv;
mod requester;
mod responder;
mod send;
#[cfg(test)]
mod tests;

use crate::cqe::{Cqe, Syndrome};
use crate::violation::{Mistake, Object, Violation};
use cq::Cq;
use flow::Steering;
use mkey::{Kind, Mkeys, Translate};
use net::Net;
use packet::{Body, Packet, Transport};
use qp::{Qp, State};
use recv::{RecvRing, Srq, Taken};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The key that reads zeros and swallows writes.
pub(crate) const NULL_MKEY: u32 = 0x300;

/// The user index of a queue whose completions name it as in version 0.
const NO_UIDX: u32 = 0xff_ffff;

/// A notice of the device to its front, which corresponds to an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// An armed CQ got what it waited for.
    Completion { cqn: u32 },
    /// A CQ was overrun.
    CqError { cqn: u32 },
    /// Something happened to a QP (`IBV_EVENT_QP_*` and the like).
    Qp { qpn: u32, event: u32 },
    /// Something happened to an SRQ.
    Srq { srqn: u32, event: u32 },
    /// Something happened to a WQ.
    Wq { wqn: u32, event: u32 },
    /// The port went up or down, or its addresses changed.
    Port { event: u32 },
}

/// `enum ib_event_type`
pub(crate) mod event {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_REQ_ERR: u32 = 2;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const COMM_EST: u32 = 4;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const LID_CHANGE: u32 = 11;
    pub(crate) const SRQ_ERR: u32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(crate) const GID_CHANGE: u32 = 18;
    pub(crate) const WQ_FATAL: u32 = 19;
}

/// The surroundings of a call into a device: the clock and the network.
#[derive(Debug)]
pub(crate) struct Port<'a> {
    pub(crate) now: u64,
    /// Number of the device in the fabric.
    pub(crate) me: usize,
    pub(crate) net: &'a mut Net,
}

/// A receive work queue of RSS.
#[derive(Debug)]
pub(crate) struct Wq {
    pub(crate) rq: RecvRing,
    pub(crate) pd: u32,
    pub(crate) cqn: u32,
    pub(crate) uidx: u32,
    /// Takes frames (`IB_WQS_RDY`).
    pub(crate) ready: bool,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Ethernet below (RoCE), or InfiniBand.
    pub(crate) ethernet: bool,
    /// Entries name resources by user index (version 1), or by number (version 0).
    pub(crate) cqe_version: u8,
    pub(crate) mkeys: Mkeys,
    pub(crate) cqs: BTreeMap<u32, Cq>,
    pub(crate) srqs: BTreeMap<u32, Srq>,
    pub(crate) qps: BTreeMap<u32, Box<Qp>>,
    pub(crate) wqs: BTreeMap<u32, Wq>,
    pub(crate) steering: Steering,
    /// The QPs that are reached by the numbers 0 and 1.
    pub(crate) special: [Option<u32>; 2],
    /// Doorbells arrive some time after they were rung: the queues may be ahead of them.
    pub(crate) late_doorbells: bool,
    /// Queues without acknowledgements don't send all that they hold at a doorbell.
    pub(crate) paced: bool,
    /// Makes memory of what updates of keys list.
    pub(crate) translate: Option<Arc<dyn Translate>>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) violations: Vec<Violation>,
    /// The number of repeated requests and responses of its QPs.
    pub(crate) repairs: u64,
    /// CQs with an error, whose QPs are not in ERR yet.
    overrun: Vec<u32>,
    next_number: u32,
}

impl Device {
    pub(crate) fn new(ethernet: bool, cqe_version: u8) -> Self {
        let mut mkeys = Mkeys::new();
        mkeys.add_fixed(NULL_MKEY, Kind::Null);
        Self {
            ethernet,
            cqe_version,
            mkeys,
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            wqs: BTreeMap::new(),
            steering: Steering::default(),
            special: [None; 2],
            late_doorbells: false,
            paced: false,
            translate: None,
            notices: Vec::new(),
            violations: Vec::new(),
            repairs: 0,
            overrun: Vec::new(),
            next_number: 0x100,
        }
    }

    /// A device of the same kind without any object; what was recorded of drivers is kept.
    #[cfg(feature = "pci")]
    pub(crate) fn renewed(&mut self) -> Self {
        Self {
            late_doorbells: self.late_doorbells,
            paced: self.paced,
            translate: self.translate.take(),
            violations: core::mem::take(&mut self.violations),
            repairs: self.repairs,
            ..Self::new(self.ethernet, self.cqe_version)
        }
    }

    /// Whether a QP, key or SRQ is of this domain.
    #[cfg(feature = "pci")]
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.qps.values().any(|qp| qp.pd == pd)
            || self.srqs.values().any(|srq| srq.pd == pd)
            || self.mkeys.uses_pd(pd)
    }

    /// Whether a queue completes there.
    #[cfg(feature = "pci")]
    pub(crate) fn uses_cq(&self, cqn: u32) -> bool {
        self.qps
            .values()
            .any(|qp| qp.sq.is_some() && qp.send_cqn == cqn || qp.takes_receives() && qp.recv_cqn == cqn)
            || self.srqs.values().any(|srq| srq.xrc.is_some_and(|(_, cq)| cq == cqn))
            || self.wqs.values().any(|wq| wq.cqn == cqn)
    }

    /// Whether a QP takes its receives there.
    #[cfg(feature = "pci")]
    pub(crate) fn uses_srq(&self, srqn: u32) -> bool {
        self.qps.values().any(|qp| qp.srqn == Some(srqn))
    }

    /// The field of a completion that names its queue: the user index, or the number of the SRQ if there is none.
    pub(crate) fn srqn_uidx(&self, srqn: Option<u32>, uidx: u32) -> u32 {
        if self.cqe_version == 0 || uidx == NO_UIDX { srqn.unwrap_or(0) } else { uidx }
    }

    /// A number that no QP, CQ, SRQ or WQ has; they share one space, so that one is never taken for another.
    pub(crate) fn number(&mut self) -> u32 {
        loop {
            self.next_number = (self.next_number + 1) & 0xff_ffff;
            let n = self.next_number;
            let used = self.qps.contains_key(&n)
                || self.cqs.contains_key(&n)
                || self.srqs.contains_key(&n)
                || self.wqs.contains_key(&n);
            if n > 0xff && !used {
                return n;
            }
        }
    }

    /// Records a mistake.
    pub(crate) fn blame(&mut self, time: u64, object: Object, index: u32, mistake: Mistake) {
        let violation = Violation { time, object, index, mistake };
        log::warn!("{violation}");
        self.violations.push(violation);
    }

    /// Calls `f` with a QP taken out of the table.
    pub(crate) fn with_qp<R>(
        &mut self,
        cx: &mut Port<'_>,
        qpn: u32,
        f: impl FnOnce(&mut Self, &mut Port<'_>, &mut Qp) -> R,
    ) -> Option<R> {
        let mut qp = self.qps.remove(&qpn)?;
        let result = f(self, cx, &mut qp);
        self.qps.insert(qpn, qp);
        Some(result)
    }

    /// A packet arrives.
    pub(crate) fn receive(&mut self, cx: &mut Port<'_>, packet: Packet) {
        if packet.transport == Transport::Ethernet {
            if let Body::Frame(frame) = packet.body {
                self.receive_frame(cx, packet.from, &frame);
            }
            return;
        }
        let special = self.special.get(packet.dest_qpn as usize);
        let qpn = special.copied().flatten().unwrap_or(packet.dest_qpn);
        self.with_qp(cx, qpn, |device, cx, qp| {
            if qp.kind.transport() != packet.transport || !qp.state.receives() {
                return;
            }
            if packet.body.is_response() {
                device.response(cx, qp, packet);
                return;
            }
            if qp.state == State::Rtr && !qp.established {
                qp.established = true;
                device.notices.push(Notice::Qp { qpn, event: event::COMM_EST });
            }
            match packet.transport {
                Transport::Ud => device.datagram(cx, qp, packet),
                Transport::Uc => device.unreliable(cx, qp, packet),
                _ => device.request(cx, qp, packet),
            }
        });
    }

    /// The timer of a QP may be due.
    pub(crate) fn timer(&mut self, cx: &mut Port<'_>, qpn: u32) {
        self.with_qp(cx, qpn, |device, cx, qp| {
            qp.timer.queued = None;
            match qp.timer.deadline {
                Some(at) if at <= cx.now => {
                    qp.timer.deadline = None;
                    device.timeout(cx, qp);
                }
                Some(at) => qp.timer.arm(cx, qp.qpn, at),
                None => {}
            }
        });
    }

    /// Whether receives may be posted to a queue in ERR, for which the device gets no doorbell.
    pub(crate) fn watches(&self) -> bool {
        self.qps.values().any(|qp| qp.state == State::Err && qp.rq.is_some())
    }

    /// Looks for receives that were posted to queues in error.
    pub(crate) fn sweep(&mut self, cx: &mut Port<'_>) {
        let waiting: Vec<u32> = self
            .qps
            .values()
            .filter(|qp| qp.state == State::Err)
            .filter(|qp| qp.rq.as_ref().is_some_and(|rq| !rq.broken && rq.posted() != Ok(0)))
            .map(|qp| qp.qpn)
            .collect();
        for qpn in waiting {
            self.with_qp(cx, qpn, |device, cx, qp| device.flush_receives(cx, qp));
        }
    }

    /// Takes a receive of a queue or an SRQ for a QP; `None` if there is none.
    pub(crate) fn take_receive(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        srqn: Option<u32>,
    ) -> Option<Taken> {
        let Some(srqn) = srqn else {
            let qpn = qp.qpn;
            let rq = qp.rq.as_mut()?;
            let index = u32::from(rq.taken);
            return match rq.take() {
                Ok(taken) => taken,
                Err(mistake) => {
                    rq.broken = true;
                    self.fatal(cx, qp, Object::Qp(qpn), index, mistake);
                    None
                }
            };
        };
        let srq = self.srqs.get_mut(&srqn)?;
        let index = u32::from(srq.head);
        match srq.take() {
            Ok(taken) => {
                if srq.below_limit() {
                    self.notices.push(Notice::Srq { srqn, event: event::SRQ_LIMIT_REACHED });
                }
                taken
            }
            Err(mistake) => {
                srq.broken = true;
                self.blame(cx.now, Object::Srq(srqn), index, mistake);
                self.notices.push(Notice::Srq { srqn, event: event::SRQ_ERR });
                None
            }
        }
    }

    /// The entry of a receive that ended, with what names its queue.
    pub(crate) fn receive_cqe(&self, qp: &Qp, srqn: Option<u32>, taken: &Taken) -> (u32, Cqe) {
        let srq = srqn.and_then(|n| self.srqs.get(&n));
        let (mut cqn, mut uidx) = (qp.recv_cqn, qp.uidx);
        if let Some((_, srq_cqn)) = srq.and_then(|srq| srq.xrc) {
            cqn = srq_cqn;
            uidx = srq.map_or(0, |srq| srq.uidx);
        }
        let srqn_uidx = self.srqn_uidx(srqn, uidx);
        (cqn, Cqe { srqn_uidx, qpn: qp.qpn, wqe_counter: taken.index, ..Cqe::default() })
    }

    /// Ends a receive by an error.
    pub(crate) fn fail_receive(
        &mut self,
        cx: &mut Port<'_>,
        qp: &Qp,
        srqn: Option<u32>,
        taken: &Taken,
        syndrome: Syndrome,
    ) {
        let (cqn, cqe) = self.receive_cqe(qp, srqn, taken);
        let cqe = Cqe { kind: uverbs_mlx5_hw::cqe::MLX5_CQE_RESP_ERR, syndrome: Some(syndrome), ..cqe };
        self.complete(cx, cqn, cqe);
    }
}
