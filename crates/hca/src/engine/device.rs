// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device: its objects by number, the arrival of packets, timers, and receives.

use super::cq::Cq;
use super::deferred::Deferred;
use super::flow::{Classifier, Steering};
use super::mkey::{Kind, Mkeys, NULL_MKEY, Translate};
use super::net::TimerEntry;
use super::notice::{Notice, event};
use super::packet::{Body, Packet, Transport};
use super::qp::{Qp, State};
use super::recv::{Srq, Taken, Wq};
use super::requester::InProgress;
use super::table::{AllUsers, Table, Uses};
use super::{Port, trace};
use crate::cqe::{Cqe, Syndrome};
use crate::decode::{Request, Reserved, Segment};
use crate::violation::{Mistake, Object};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_fabric::Violations;
use uverbs_fabric::map::Set;

/// The user index of a queue whose completions name it as in version 0.
const NO_UIDX: u32 = 0xff_ffff;

/// The lists of segments whose memory is kept.
const MAX_LISTS: usize = 128;
/// The numbers that general objects may reserve.
const MAX_RESERVED: usize = 1 << 16;
/// The sessions of initiators with all DC targets of a device. A request that would begin another one is dropped.
pub(super) const MAX_SESSIONS: usize = 1 << 16;
/// The numbers of 24 bits that objects have; the first ones are reserved.
const MAX_NUMBERS: usize = (1 << 24) - 0x100;

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
    pub cqs: Table<Cq>,
    /// The shared receive queues by number.
    pub srqs: Table<Srq>,
    /// The queue pairs by number.
    pub qps: Table<Qp>,
    /// The receive work queues by number.
    pub wqs: Table<Wq>,
    users: AllUsers,
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
    pub(crate) violations: Violations<Object, Mistake>,
    /// The number of repeated requests and responses of its QPs.
    pub repairs: u64,
    /// CQs with an error, whose QPs are not in ERR yet.
    pub(super) overrun: Vec<u32>,
    /// CQs that may have completions which are not written yet.
    pub(super) open_blocks: Vec<u32>,
    /// The QPs that have a receive queue and have moved to ERR: a superset of those that are in ERR. Without it, each call
    /// would look at all QPs.
    pub(super) failed: Set<u32>,
    /// The first of them that the next look begins with.
    swept: u32,
    /// The timers of QPs that were removed.
    pub(crate) cancelled: Vec<TimerEntry>,
    /// The sessions of all DC targets.
    pub(super) sessions: usize,
    pub(super) in_progress: InProgress,
    /// The entries of page lists that updates of keys have read and copied.
    pub(super) updated: u64,
    /// The QPs with requests that were executed and are not acknowledged.
    pub(super) unacknowledged: Vec<u32>,
    /// The queues that wait for an [exchange](super::near), by number.
    pub(super) ready: VecDeque<u32>,
    /// The answer to a request that is taken by the requester itself.
    pub(super) answer: Option<Box<Packet>>,
    /// Memory for the bytes of a WQE.
    pub(super) wqe: Vec<u8>,
    /// Accesses to memory that take place later.
    pub(super) deferred: Deferred,
    /// The memory of lists of segments, for later requests.
    pub(super) lists: Vec<Vec<Segment>>,
    next_number: u32,
    /// Numbers that are reserved for programs: no object gets them.
    reserved_numbers: Set<u32>,
}

impl Device {
    pub(crate) fn new(ethernet: bool, cqe_version: u8) -> Self {
        let mut mkeys = Mkeys::new();
        mkeys.add_fixed(NULL_MKEY, Kind::Null);
        Self {
            ethernet,
            cqe_version,
            mkeys,
            cqs: Table::default(),
            srqs: Table::default(),
            qps: Table::default(),
            wqs: Table::default(),
            users: AllUsers::default(),
            steering: Steering::default(),
            special: [None; 2],
            late_doorbells: false,
            reserved: Reserved::Zero,
            raises_last_wqe: true,
            paced: false,
            translate: None,
            notices: Vec::new(),
            violations: Violations::default(),
            repairs: 0,
            overrun: Vec::new(),
            open_blocks: Vec::new(),
            failed: Set::new(),
            swept: 0,
            cancelled: Vec::new(),
            sessions: 0,
            in_progress: InProgress::default(),
            updated: 0,
            unacknowledged: Vec::new(),
            ready: VecDeque::new(),
            answer: None,
            wqe: Vec::new(),
            deferred: Deferred::default(),
            lists: Vec::new(),
            next_number: 0x100,
            reserved_numbers: Set::new(),
        }
    }

    /// Removes all objects, for a reset. The recorded violations of drivers are kept. The front's [`Classifier`] is
    /// removed.
    pub fn reset(&mut self, port: &mut Port<'_>) {
        for (qpn, qp) in self.qps.iter() {
            port.net.leave_all(port.me, qpn);
            qp.timer.queued.into_iter().for_each(|entry| port.net.cancel(entry));
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
        self.users.of_pds.has(&pd) || self.mkeys.uses_pd(pd)
    }

    /// Whether a queue uses this CQ.
    #[must_use]
    pub fn uses_cq(&self, cqn: u32) -> bool {
        self.users.of_cqs.has(&cqn)
    }

    /// Whether a QP uses this SRQ.
    #[must_use]
    pub fn uses_srq(&self, srqn: u32) -> bool {
        self.users.of_srqs.has(&srqn)
    }

    /// Adds a QP under its number. What it uses can't be destroyed before it.
    pub fn add_qp(&mut self, mut qp: Qp) {
        qp.uses = Uses {
            pd: Some(qp.pd),
            cqs: [qp.sq.as_ref().map(|_| qp.send_cqn), qp.takes_receives().then_some(qp.recv_cqn)],
            srq: qp.srqn,
        };
        self.users.add(&qp.uses);
        if let Some(old) = self.qps.insert(qp.qpn, qp) {
            self.users.remove(&old.uses);
        }
    }

    /// Removes a QP.
    pub fn remove_qp(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.remove(qpn) {
            self.users.remove(&qp.uses);
            self.failed.remove(&qpn);
            self.sessions -= qp.sessions.len();
            self.cancelled.extend(qp.timer.queued);
        }
    }

    /// Adds a CQ under a number.
    pub fn add_cq(&mut self, cqn: u32, cq: Cq) {
        self.cqs.insert(cqn, cq);
    }

    /// Removes a CQ.
    pub fn remove_cq(&mut self, cqn: u32) {
        self.cqs.remove(cqn);
    }

    /// Adds an SRQ under a number.
    pub fn add_srq(&mut self, srqn: u32, srq: Srq) {
        self.users.add(&srq.uses());
        if let Some(old) = self.srqs.insert(srqn, srq) {
            self.users.remove(&old.uses());
        }
    }

    /// Removes an SRQ.
    pub fn remove_srq(&mut self, srqn: u32) {
        if let Some(srq) = self.srqs.remove(srqn) {
            self.users.remove(&srq.uses());
        }
    }

    /// Adds a work queue under a number.
    pub fn add_wq(&mut self, wqn: u32, wq: Wq) {
        self.users.add(&wq.uses());
        if let Some(old) = self.wqs.insert(wqn, wq) {
            self.users.remove(&old.uses());
        }
    }

    /// Removes a work queue.
    pub fn remove_wq(&mut self, wqn: u32) {
        if let Some(wq) = self.wqs.remove(wqn) {
            self.users.remove(&wq.uses());
        }
    }

    /// The field of a completion that names its queue: the user index, or the number of the SRQ if there is none.
    pub(crate) fn srqn_uidx(&self, srqn: Option<u32>, uidx: u32) -> u32 {
        if self.cqe_version == 0 || uidx == NO_UIDX { srqn.unwrap_or(0) } else { uidx }
    }

    /// A number that no QP, CQ, SRQ or WQ has. All of them share one number space, so that a wrong kind of object is
    /// detected. `None` if there is no free number.
    pub fn number(&mut self) -> Option<u32> {
        let objects = self.qps.len() + self.cqs.len() + self.srqs.len() + self.wqs.len();
        if objects + self.reserved_numbers.len() >= MAX_NUMBERS {
            return None;
        }
        loop {
            self.next_number = (self.next_number + 1) & 0xff_ffff;
            let n = self.next_number;
            let used = self.qps.contains_key(&n)
                || self.cqs.contains_key(&n)
                || self.srqs.contains_key(&n)
                || self.wqs.contains_key(&n)
                || self.reserved_numbers.contains(&n);
            if n > 0xff && !used {
                return Some(n);
            }
        }
    }

    /// Reserves consecutive numbers, the first of which is returned; `None` if there are none.
    pub fn reserve_numbers(&mut self, count: u32) -> Option<u32> {
        if self.reserved_numbers.len() + count as usize > MAX_RESERVED {
            return None;
        }
        let count = count.max(1);
        let is_free = |n: u32| {
            !(self.qps.contains_key(&n)
                || self.cqs.contains_key(&n)
                || self.srqs.contains_key(&n)
                || self.wqs.contains_key(&n)
                || self.reserved_numbers.contains(&n))
        };
        // The number space is far larger than the number of objects: few attempts are enough, usually one.
        let mut first = self.next_number + 1;
        for _ in 0..MAX_NUMBERS / MAX_RESERVED * 4 {
            first = first.next_multiple_of(count);
            if first.saturating_add(count) > 1 << 24 {
                first = 0x100_u32.next_multiple_of(count);
            }
            match (first..first + count).rev().find(|n| !is_free(*n)) {
                None => {
                    self.reserved_numbers.extend(first..first + count);
                    // The next number is behind them.
                    self.next_number = first + count - 1;
                    return Some(first);
                }
                Some(used) => first = used + 1,
            }
        }
        None
    }

    /// Releases numbers that were reserved.
    pub fn release_numbers(&mut self, first: u32, count: u32) {
        for n in first..first.saturating_add(count) {
            self.reserved_numbers.remove(&n);
        }
    }

    /// Records a violation, up to a limit.
    pub(crate) fn blame(&mut self, time: u64, object: Object, index: u32, mistake: Mistake) {
        self.violations.record(time, object, index, mistake);
    }

    /// Calls `f` with a QP taken out of the table.
    pub(crate) fn with_qp<R>(
        &mut self,
        cx: &mut Port<'_>,
        qpn: u32,
        f: impl FnOnce(&mut Self, &mut Port<'_>, &mut Qp) -> R,
    ) -> Option<R> {
        let mut qp = self.qps.take(qpn)?;
        self.begin(cx, &qp);
        let result = f(self, cx, &mut qp);
        self.place_collected(cx);
        self.qps.put_back(qpn, qp);
        Some(result)
    }

    /// Keeps the memory of a request for later ones, up to a limit.
    pub(super) fn keep(&mut self, request: Request) {
        let mut list = request.data;
        if self.lists.len() < MAX_LISTS && list.capacity() > 0 {
            list.clear();
            self.lists.push(list);
        }
    }

    /// Receives a packet.
    pub(crate) fn arrive(&mut self, cx: &mut Port<'_>, mut packet: Box<Packet>) {
        if packet.transport == Transport::Ethernet {
            self.begin_at_once();
            if let Body::Frame(frame) = &packet.body {
                self.receive_frame(cx, packet.from, frame);
            }
            return;
        }
        if cx.net.has_copies()
            && let Some(qp) = self.qps.get_mut(&packet.dest_qpn)
        {
            match qp.copying.hold(packet) {
                Some(free) => packet = free,
                None => return,
            }
        }
        self.take_packet(cx, &packet);
        let body = core::mem::replace(&mut packet.body, Body::Ack);
        body.into_data().into_iter().for_each(|data| cx.net.reuse(data));
        cx.net.recycle(packet);
    }

    /// Handles a packet to a QP.
    pub(super) fn take_packet(&mut self, cx: &mut Port<'_>, packet: &Packet) {
        let special = self.special.get(packet.dest_qpn as usize);
        let qpn = special.copied().flatten().unwrap_or(packet.dest_qpn);
        self.with_qp(cx, qpn, |device, cx, qp| {
            if qp.kind.transport() != packet.transport || !qp.state.receives() {
                return;
            }
            device.begin_packet(packet);
            if packet.body.is_response() {
                device.response(cx, qp, packet);
                device.report_signatures(cx, qp.send_cqn);
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
            device.report_signatures(cx, qp.recv_cqn);
        });
    }

    /// Whether there are queues in ERR to which receives may be posted: posts of receives ring no doorbell. It may be true
    /// until the next [`sweep`](Self::sweep) after the last of them has gone.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Flushes receives that were posted to queues in ERR. Looks at `most` queues, from where the last call has ended on.
    pub(crate) fn sweep(&mut self, cx: &mut Port<'_>, most: usize) {
        let behind = self.failed.range(self.swept..);
        let looked: Vec<u32> = behind.chain(self.failed.range(..self.swept)).take(most).collect();
        self.swept = looked.last().map_or(0, |qpn| qpn + 1);
        for qpn in looked {
            let qp = self.qps.get(&qpn).filter(|qp| qp.state == State::Err);
            let Some(rq) = qp.and_then(|qp| qp.rq.as_ref()) else {
                self.failed.remove(&qpn);
                continue;
            };
            if !rq.broken && rq.posted() != Ok(0) {
                self.with_qp(cx, qpn, |device, cx, qp| device.flush_receives(cx, qp));
            }
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
                Ok(taken) => taken.inspect(|taken| trace::receive(cx, qpn, None, taken)),
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
                taken.inspect(|taken| trace::receive(cx, qp.qpn, Some(srqn), taken))
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
