// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device: its objects by number, the arrival of packets, timers, and receives.

use super::cq::Cq;
use super::flow::{Classifier, Steering};
use super::mkey::{Kind, Mkeys, NULL_MKEY, Translate};
use super::notice::{Notice, event};
use super::packet::{Body, Packet, Transport};
use super::port::Port;
use super::qp::{Qp, State};
use super::recv::{Srq, Taken, Wq};
use crate::cqe::{Cqe, Syndrome};
use crate::decode::Reserved;
use crate::violation::{Mistake, Object, Violation};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The user index of a queue whose completions name it as in version 0.
const NO_UIDX: u32 = 0xff_ffff;

/// A device.
#[derive(Debug)]
pub struct Device {
    /// Whether the link layer is Ethernet (RoCE) instead of InfiniBand.
    pub(crate) ethernet: bool,
    /// Entries name resources by user index (version 1), or by number (version 0).
    pub(crate) cqe_version: u8,
    /// The memory keys.
    pub mkeys: Mkeys,
    /// The completion queues by number.
    pub cqs: BTreeMap<u32, Cq>,
    /// The shared receive queues by number.
    pub srqs: BTreeMap<u32, Srq>,
    /// The queue pairs by number.
    pub qps: BTreeMap<u32, Box<Qp>>,
    /// The receive work queues by number.
    pub wqs: BTreeMap<u32, Wq>,
    pub(crate) steering: Steering,
    /// The QPs that receive packets for QP numbers 0 and 1.
    pub special: [Option<u32>; 2],
    /// Doorbells may arrive late: the queues may already be ahead of them.
    pub(crate) late_doorbells: bool,
    /// The rule for reserved bytes in WQEs.
    pub(crate) reserved: Reserved,
    /// Whether the event `LAST_WQE_REACHED` is raised.
    pub(crate) raises_last_wqe: bool,
    /// Queues without acknowledgements send only a limited number of packets at a doorbell.
    pub(crate) paced: bool,
    /// Converts the page lists in updates of keys to memory.
    pub(crate) translate: Option<Arc<dyn Translate>>,
    /// Notices that the front has not yet delivered.
    pub notices: Vec<Notice>,
    pub(crate) violations: Vec<Violation>,
    /// The number of repeated requests and responses of its QPs.
    pub repairs: u64,
    /// CQs with an error, whose QPs are not in ERR yet.
    pub(super) overrun: Vec<u32>,
    /// The QPs that have a receive queue and have moved to ERR: a superset of those that are in ERR. Without it, each call
    /// would look at all QPs.
    pub(super) failed: BTreeSet<u32>,
    next_number: u32,
    /// Numbers that are reserved for programs: no object gets them.
    reserved_numbers: BTreeSet<u32>,
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
            reserved: Reserved::Zero,
            raises_last_wqe: true,
            paced: false,
            translate: None,
            notices: Vec::new(),
            violations: Vec::new(),
            repairs: 0,
            overrun: Vec::new(),
            failed: BTreeSet::new(),
            next_number: 0x100,
            reserved_numbers: BTreeSet::new(),
        }
    }

    /// Removes all objects, for a reset. The recorded violations of drivers are kept. The front's [`Classifier`] is
    /// removed.
    pub fn reset(&mut self, port: &mut Port<'_>) {
        for qpn in self.qps.keys() {
            port.net.leave_all(port.me, *qpn);
        }
        *self = Self {
            late_doorbells: self.late_doorbells,
            reserved: self.reserved,
            paced: self.paced,
            translate: self.translate.take(),
            violations: core::mem::take(&mut self.violations),
            repairs: self.repairs,
            ..Self::new(self.ethernet, self.cqe_version)
        };
    }

    /// Sets the function that converts the page lists in updates of memory keys to memory.
    pub fn translate_with(&mut self, translate: Arc<dyn Translate>) {
        self.translate = Some(translate);
    }

    /// Sets the classifier that selects the receivers of frames, instead of steering rules.
    pub fn classify_with(&mut self, classifier: Arc<dyn Classifier>) {
        self.steering.classifier = Some(classifier);
    }

    /// Whether a QP, key or SRQ belongs to this protection domain.
    #[must_use]
    pub fn uses_pd(&self, pd: u32) -> bool {
        self.qps.values().any(|qp| qp.pd == pd)
            || self.srqs.values().any(|srq| srq.pd == pd)
            || self.mkeys.uses_pd(pd)
    }

    /// Whether a queue uses this CQ.
    #[must_use]
    pub fn uses_cq(&self, cqn: u32) -> bool {
        self.qps
            .values()
            .any(|qp| qp.sq.is_some() && qp.send_cqn == cqn || qp.takes_receives() && qp.recv_cqn == cqn)
            || self.srqs.values().any(|srq| srq.xrc.is_some_and(|(_, cq)| cq == cqn))
            || self.wqs.values().any(|wq| wq.cqn == cqn)
    }

    /// Whether a QP uses this SRQ.
    #[must_use]
    pub fn uses_srq(&self, srqn: u32) -> bool {
        self.qps.values().any(|qp| qp.srqn == Some(srqn))
    }

    /// The field of a completion that names its queue: the user index, or the number of the SRQ if there is none.
    pub(crate) fn srqn_uidx(&self, srqn: Option<u32>, uidx: u32) -> u32 {
        if self.cqe_version == 0 || uidx == NO_UIDX { srqn.unwrap_or(0) } else { uidx }
    }

    /// A number that no QP, CQ, SRQ or WQ has. All of them share one number space, so that a wrong kind of object is
    /// detected.
    pub fn number(&mut self) -> u32 {
        loop {
            self.next_number = (self.next_number + 1) & 0xff_ffff;
            let n = self.next_number;
            let used = self.qps.contains_key(&n)
                || self.cqs.contains_key(&n)
                || self.srqs.contains_key(&n)
                || self.wqs.contains_key(&n)
                || self.reserved_numbers.contains(&n);
            if n > 0xff && !used {
                return n;
            }
        }
    }

    /// Reserves consecutive numbers, the first of which is returned; `None` if there are none.
    pub fn reserve_numbers(&mut self, count: u32) -> Option<u32> {
        // The number space is far larger than the number of objects: a few attempts are enough.
        for _ in 0..64 {
            let first = self.number().next_multiple_of(count.max(1));
            let mut range = first..first.checked_add(count)?;
            let is_free = |n: u32| {
                !(self.qps.contains_key(&n)
                    || self.cqs.contains_key(&n)
                    || self.srqs.contains_key(&n)
                    || self.wqs.contains_key(&n)
                    || self.reserved_numbers.contains(&n))
            };
            if range.end <= 1 << 24 && range.all(is_free) {
                self.reserved_numbers.extend(first..first + count);
                return Some(first);
            }
        }
        None
    }

    /// Releases numbers that were reserved.
    pub fn release_numbers(&mut self, first: u32, count: u32) {
        self.reserved_numbers.retain(|n| !(first..first.saturating_add(count)).contains(n));
    }

    /// Records a violation.
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

    /// Receives a packet.
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

    /// Runs the timer of a QP, if it is due. `entry` is the time of the entry in the network.
    pub(crate) fn timer(&mut self, cx: &mut Port<'_>, qpn: u32, entry: u64) {
        self.with_qp(cx, qpn, |device, cx, qp| {
            if qp.timer.queued != Some(entry) {
                // An earlier entry has replaced it. It must not become a further one.
                return;
            }
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

    /// Whether there are queues in ERR to which receives may be posted: posts of receives ring no doorbell. It may be true
    /// until the next [`sweep`](Self::sweep) after the last of them has gone.
    pub(crate) fn watches(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Flushes receives that were posted to queues in ERR.
    pub(crate) fn sweep(&mut self, cx: &mut Port<'_>) {
        let Self { failed, qps, .. } = self;
        let mut waiting = Vec::new();
        failed.retain(|qpn| {
            let qp = qps.get(qpn).filter(|qp| qp.state == State::Err);
            let Some(rq) = qp.and_then(|qp| qp.rq.as_ref()) else { return false };
            if !rq.broken && rq.posted() != Ok(0) {
                waiting.push(*qpn);
            }
            true
        });
        for qpn in waiting {
            self.with_qp(cx, qpn, |device, cx, qp| device.flush_receives(cx, qp));
        }
    }

    /// Takes a receive for a QP, from its own queue or from its SRQ; `None` if there is none.
    pub(crate) fn take_receive(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        srqn: Option<u32>,
    ) -> Option<Taken> {
        self.take_receive_of(cx, qp, srqn, 0)
    }

    /// As [`take_receive`](Self::take_receive), if the receive has room for `len` bytes; a shorter one stays in its queue.
    pub(crate) fn take_receive_of(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        srqn: Option<u32>,
        len: u64,
    ) -> Option<Taken> {
        let Some(srqn) = srqn else {
            let qpn = qp.qpn;
            let rq = qp.rq.as_mut()?;
            let index = u32::from(rq.taken);
            return match rq.take(len) {
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
        match srq.take(len) {
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

    /// The completion of a receive, with the field that names its queue.
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

    /// Completes a receive with an error.
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
