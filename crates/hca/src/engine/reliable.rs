// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requester of reliable transports. It sends requests as packets in sequence and completes them in order when they
//! are answered. After a loss it repeats all packets from the first unanswered one (InfiniBand specification, chapter
//! 9.7).

use super::aside::{LEAST, Next, Place};
use super::datagram::shown_path;
use super::mkey::Denied;
use super::near::Part;
use super::packet::{Atomic, Body, Data, Dc, Direct, Nak, Packet, Source, WrPart, psn_add, psn_diff};
use super::qp::{Qp, QpKind, State};
use super::requester::{FOR_EVER, Sent, wants_answer};
use super::{Device, Port};
use crate::cqe::Syndrome;
use crate::decode::{Av, Op, Request};
use uverbs_fabric::Near;
use uverbs_fabric::order::Side;

/// Maximum of packets in flight. Without a delay they arrive within the call that sends them, so fewer are enough, whose data stay in the
/// processor's cache until they arrive.
const WINDOW: i32 = 256;
const NEAR_WINDOW: i32 = 64;
/// Maximum of requests that were taken from the ring and are not complete.
const DEPTH: usize = 128;
/// A packet in the middle of a message requests an acknowledgement if its number is a multiple of this.
pub(super) const ACK_EVERY: u32 = 32;
/// The bytes of a packet whose data are copied through a buffer.
const SHORT: usize = 512;
/// Steps of a queue in an exchange: in each it starts a request, or gives a packet to its receiver.
const TURN: u32 = 2 * NEAR_WINDOW.cast_unsigned();
/// Maximum of requests of all queues of a device in that state, which have up to a kilobyte.
pub(super) const MAX_IN_PROGRESS: usize = 1 << 17;
/// Entries of page lists that a queue's updates of keys read and copy at a time, on a paced device.
const MAX_UPDATED: u64 = 1 << 20;
/// A requester may wait up to four times its timeout (InfiniBand specification, 9.7.6.1.3): the timeout times 2 to this power.
const MAX_PATIENCE: u8 = 2;
/// The longest message of any transport.
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// The reaction to a response.
enum Verdict {
    Nothing,
    /// Send again from this PSN.
    Resend(u32),
    /// The oldest request failed.
    Fail(Syndrome),
    /// Its answer has a wrong length, so what the peer does is unknown.
    Wrong,
}

impl Device {
    /// Sends all packets that can be sent now, or executes them when no other one is due.
    pub(crate) fn transmit_reliable(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        let sends = matches!(qp.state, State::Rts | State::Sqd) && !qp.req.rnr && qp.has_more();
        if sends && qp.kind != QpKind::Keys && cx.net.is_direct() {
            self.make_ready(qp);
            self.complete_answered(cx, qp);
            self.watch(cx, qp);
            self.drained(qp);
            return;
        }
        if !qp.copying.runs {
            self.transmit_now(cx, qp, None);
        }
    }

    /// Sends packets, or gives them to their receivers among the devices that are near, of which it sends a limited number.
    pub(super) fn transmit_now(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        mut near: Option<&mut Near<'_, Self>>,
    ) {
        let (before, mut pauses) = (self.updated, false);
        let (una, mut left) = (qp.req.una, TURN);
        let is_outside = outside(cx).is_some();
        while matches!(qp.state, State::Rts | State::Sqd) && !qp.req.rnr {
            pauses = self.paced && self.updated - before > MAX_UPDATED;
            if pauses {
                break;
            }
            let window = match cx.net.delay() {
                _ if qp.req.probes => 1,
                0 => NEAR_WINDOW,
                _ if is_outside => NEAR_WINDOW,
                _ => WINDOW,
            };
            if psn_diff(qp.req.send, qp.req.una) >= window {
                break;
            }
            if let Some(near) = near.as_deref_mut() {
                // Each is a start and a packet.
                left = left.saturating_sub(2 * self.execute_usual(cx, qp, near, left.div_ceil(2)));
                if left == 0 || !qp.has_more() {
                    break;
                }
                left -= 1;
            }
            let goes_on = match qp.req.send != qp.req.next {
                true => self.send_packet(cx, qp, near.as_deref_mut()),
                false => self.start_next(cx, qp),
            };
            self.report_sent_signatures(cx, qp);
            if !goes_on {
                break;
            }
        }
        self.complete_answered(cx, qp);
        self.watch(cx, qp);
        // Nothing is on its way that would let it go on.
        if near.is_some() && (left == 0 || qp.req.una != una && qp.req.una == qp.req.send) && qp.has_more() {
            self.make_ready(qp);
        }
        if pauses {
            let now = cx.now;
            qp.timer.arm(cx, qp.qpn, now);
        }
        self.drained(qp);
    }

    /// Reports the errors of signatures that were found in the data of a request. A queue may be drained by that.
    pub(super) fn report_sent_signatures(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        if self.report_signatures(cx, qp.send_cqn) && qp.drain_sigerr && qp.state == State::Rts {
            (qp.state, qp.attr.notify_drained) = (State::Sqd, true);
        }
    }

    /// Arms the timer if something is in flight.
    fn watch(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        if qp.req.rnr || !matches!(qp.state, State::Rts | State::Sqd) {
            return;
        }
        if qp.req.una == qp.req.send || qp.attr.timeout == 0 {
            qp.timer.deadline = None;
        } else if qp.timer.deadline.is_none() {
            // 4.096 us * 2^timeout
            let at = cx.now + (4096_u64 << (qp.attr.timeout.min(31) + qp.req.patience));
            qp.timer.arm(cx, qp.qpn, at);
        }
    }

    /// Starts the next request of the ring; `false` if there is none, or if it must wait.
    fn start_next(&mut self, cx: &mut Port<'_>, qp: &mut Qp) -> bool {
        if qp.kind == QpKind::Dci {
            // A request to another target waits for those before it, which may be answered and not complete yet.
            self.complete_answered(cx, qp);
            if !matches!(qp.state, State::Rts | State::Sqd) {
                return false;
            }
        }
        // No new request is started after a failed one, or while the queue is draining.
        // Beyond the limit of the device, each queue has one request in progress, so that all go on.
        let is_full = !qp.req.sent.is_empty() && self.in_progress.count() >= MAX_IN_PROGRESS;
        if is_full || qp.req.sent.len() >= DEPTH || qp.req.sent.back().is_some_and(|s| s.failed.is_some()) {
            return false;
        }
        let again = qp.req.again.pop_front();
        let repeated = again.is_some();
        let (request, number) =
            match again.or_else(|| qp.req.waiting.take().map(|request| (request, qp.fetched))) {
                Some(request) => request,
                None if qp.state == State::Sqd => return false,
                None => match self.fetch(cx, qp) {
                    Some(Ok(request)) => (request, qp.fetched),
                    _ => return false,
                },
            };
        let answer = wants_answer(&request.op);
        let pending = if answer || request.fence { qp.req.pending_answers() } else { 0 };
        let limit = usize::from(qp.attr.max_rd_atomic);
        let other_target = qp.kind == QpKind::Dci
            && request.av.is_some()
            && qp.req.session.is_some_and(|(av, _)| request.av.as_deref() != Some(&av));
        if request.fence && pending > 0
            || answer && pending >= limit && limit > 0
            || other_target && qp.req.sent.iter().any(|s| s.count > 0)
        {
            match repeated {
                true => qp.req.again.push_front((request, number)),
                false => qp.req.waiting = Some(request),
            }
            return false;
        }
        self.start(cx, qp, (request, number), answer && limit == 0)
    }

    /// Assigns sequence numbers to a request, or executes it if it is a local operation. `false`: it must wait.
    fn start(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        (request, number): (Request, u32),
        no_depth: bool,
    ) -> bool {
        let (user, first, len) = (qp.user(), qp.req.next, request.len());
        let mut failed = no_depth.then_some(Syndrome::LOCAL_QP_OP);
        let flushed = self.flushed(qp, &request);
        let count = match &request.op {
            _ if flushed.is_some() => 0,
            Op::Nop => 0,
            Op::Umr(umr) => {
                if self.update_indirect(user, umr) == Err(Denied) {
                    failed = Some(Syndrome::MW_BIND);
                }
                0
            }
            Op::SetPsv(psv) => {
                if self.mkeys.psvs.set(user.pd, psv.index, psv.signature) == Err(Denied) {
                    failed = Some(Syndrome::LOCAL_QP_OP);
                }
                0
            }
            Op::KeyUpdate(update) if cx.net.copies_key(cx.me, update.mkey >> 8) => {
                cx.net.after_copies(cx.me, qp.qpn);
                qp.req.waiting = Some(request);
                return false;
            }
            Op::KeyUpdate(update) => {
                if self.update_key(update) == Err(Denied) {
                    failed = Some(Syndrome::MW_BIND);
                }
                0
            }
            Op::CmpSwap { .. } | Op::FetchAdd { .. } => {
                if len < 8 {
                    failed = Some(Syndrome::LOCAL_LENGTH);
                }
                1
            }
            _ if len <= u64::from(qp.attr.mtu) => 1,
            _ => len.div_ceil(u64::from(qp.attr.mtu.max(1))).max(1) as u32,
        };
        if len > MAX_MESSAGE {
            failed = Some(Syndrome::LOCAL_LENGTH);
        }
        failed = flushed.or(failed);
        if failed.is_none() {
            failed = match request.op {
                // The memory for an answer is checked when the answer arrives: an error of the remote key is reported
                // before one of the local key, and the atomic is executed (docs/src/reference/semantics.md, "Faults
                // during execution").
                Op::Read { .. } | Op::CmpSwap { .. } | Op::FetchAdd { .. } => None,
                _ => self.check_gather(user, &request.data).err(),
            };
        }
        if failed.is_none() && qp.kind == QpKind::Dci && request.av.is_some() {
            open_session(qp, &request);
        }
        let count = if failed.is_some() { 0 } else { count };
        qp.req.next = psn_add(first, count);
        let inline = (qp.scatter_req > 0 && request.signaled).then(Vec::new);
        let inline = inline.filter(|_| len <= qp.scatter_req as u64);
        let sent = Sent { request, len, number, first, count, answered: 0, inline, failed, discards: false };
        qp.req.push(sent, &self.in_progress);
        self.complete_answered(cx, qp);
        true
    }

    /// Sends the next packet, or gives it to its receiver; `false` if that failed.
    pub(super) fn send_packet(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        mut near: Option<&mut Near<'_, Self>>,
    ) -> bool {
        let psn = qp.req.send;
        let (to, dest_qpn) = match &qp.req.session {
            Some((av, _)) => (self.route(cx, av), av.dest),
            None => (peer(cx, qp), qp.attr.dest_qpn),
        };
        if let Some(devices) = near.as_deref_mut()
            && !to.is_some_and(|to| self.reaches(cx, devices, to, (&*qp, dest_qpn)))
        {
            near = None;
        }
        let (user, probes) = (qp.user(), qp.req.probes);
        let room = NEAR_WINDOW.saturating_sub(psn_diff(psn, qp.req.una)).max(1).cast_unsigned();
        let Some(mut sent) = qp.req.sent_at(psn) else {
            qp.req.send = qp.req.next;
            return true;
        };
        let mut made = None;
        if sent.len >= LEAST
            && let (Some(near), Some(to), false) = (&mut near, to, probes)
        {
            match self.copy_next(cx, qp, near, to) {
                Next::Wait => return false,
                Next::Made(part) => made = Some(part),
                Next::Usual => {}
            }
            let Some(again) = qp.req.sent_at(psn) else { return true };
            sent = again;
        }
        let (at, count) = (psn_diff(psn, sent.first).cast_unsigned(), sent.count);
        let wr = WrPart::new(sent.number, at);
        let mtu = u64::from(qp.attr.mtu.max(1));
        let offset = u64::from(at) * mtu;
        let len = sent.len;
        let is_first = at == 0;
        let (mut packets, mut here) = (1, (len - offset.min(len)).min(mtu) as usize);
        // An answer does not pass another one that travels. During a copy the receiver has sent none.
        let takes_answer = near.is_some() && (cx.net.in_flight() == 0 || made.is_some());
        let mut direct = Direct { takes_answer, ..Direct::default() };
        if let (Some(near), Some(to), Op::Send { .. } | Op::Write { .. }) = (&mut near, to, &sent.request.op)
        {
            // Up to the next packet that requests an acknowledgement.
            let most = (count - at).min(1 + (ACK_EVERY - psn % ACK_EVERY) % ACK_EVERY).min(room);
            // The packet with immediate data needs a receive, those before it do not.
            let has_imm = matches!(sent.request.op, Op::Write { imm: Some(_), .. });
            let most = most - u32::from(has_imm && at + most == count && most > 1);
            if most > 1 && !probes && made.is_none() {
                let bytes = (len - offset).min(u64::from(most) * mtu);
                let part = Part { dest_qpn, psn, op: &sent.request.op, is_first, bytes };
                if self.receiver_takes(cx, near, to, &part) {
                    direct.source = self.source(user, &sent.request.data, offset, bytes as usize);
                }
                if direct.source.is_some() {
                    (packets, here, direct.more) = (most, bytes as usize, most - 1);
                }
            }
            // A short copy through a buffer costs less than the reference to memory.
            if let Some(part) = &made {
                (packets, here, direct.more) = (part.packets, part.len, part.packets - 1);
                (direct.source, direct.copied) =
                    (Some(Source::of(&part.from, part.len)), Some(Box::new(part.to.clone())));
            } else if packets == 1 && here > SHORT {
                direct.source = self.source(user, &sent.request.data, offset, here);
            }
        }
        let is_last = at + packets == count;
        let (solicited, srqn) = (sent.request.solicited && is_last, sent.request.srqn.unwrap_or(0));
        let mut after = psn_add(psn, packets);
        let mut payload = || match direct.source {
            Some(_) => Ok(Vec::new()),
            None => self.gather(user, &sent.request.data, offset, here, cx.net.buffer()),
        };
        let body = match sent.request.op {
            Op::Send { imm, invalidate } => payload().map(|data| Body::Send {
                first: is_first,
                last: is_last,
                imm: imm.filter(|_| is_last),
                invalidate: invalidate.filter(|_| is_last),
                data,
            }),
            Op::Write { addr, rkey, imm } => payload().map(|data| Body::Write {
                start: is_first.then_some((addr, rkey, len as u32)),
                last: is_last,
                imm: imm.filter(|_| is_last),
                data,
            }),
            Op::Read { addr, rkey } => {
                // A long read is requested in parts, each of at most the number of packets that may be in flight.
                let packets = part_of_read(cx, at, count - at);
                after = psn_add(psn, packets);
                let len = (len - offset).min(u64::from(packets) * mtu);
                Ok(Body::Read { addr: addr.wrapping_add(offset), rkey, len: len as u32 })
            }
            Op::CmpSwap { addr, rkey, compare, swap } => {
                Ok(Body::Atomic { addr, rkey, op: Atomic::CmpSwap { compare, swap } })
            }
            Op::FetchAdd { addr, rkey, add } => Ok(Body::Atomic { addr, rkey, op: Atomic::FetchAdd(add) }),
            Op::Nop | Op::Umr(_) | Op::SetPsv(_) | Op::KeyUpdate(_) | Op::Frame(_) => {
                Err(Syndrome::LOCAL_QP_OP)
            }
        };
        let body = match body {
            Ok(body) => body,
            Err(syndrome) => {
                // The memory became invalid after the check. The error is reported when all requests before it are
                // complete.
                sent.failed = Some(syndrome);
                qp.req.next = psn;
                return false;
            }
        };
        let fence = sent.request.fence;
        let packet = Packet {
            from: cx.me,
            transport: qp.kind.transport(),
            src_qpn: qp.qpn,
            dest_qpn,
            psn,
            ack: is_last || probes || psn_add(psn, packets - 1).is_multiple_of(ACK_EVERY),
            solicited,
            srqn,
            msn: 0,
            dc: qp.req.session.map(|(_, dc)| dc),
            path: shown_path(cx, qp),
            wr,
            direct,
            body,
        };
        qp.req.send = after;
        if fence {
            // The reads before it are answered. It begins when the answers are visible, and later requests begin after it.
            qp.req.fenced = self.visible(cx, qp.qpn, Side::Requester);
        }
        let Some(to) = to else {
            let _ = self.waits(cx, user, Side::Requester, qp.req.fenced);
            return true;
        };
        match near {
            Some(near) => {
                if made.is_some() {
                    qp.copying.made = made;
                }
                self.hand_to(cx, qp, near, (to, packet));
            }
            None => {
                let waits = self.waits(cx, user, Side::Requester, qp.req.fenced);
                cx.net.send_when(cx.now, to, packet, waits);
            }
        }
        true
    }

    /// Completes the requests at the front that are done.
    fn complete_answered(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        while let Some(front) = qp.req.sent.front() {
            // A failed answer is complete, if other requests are behind it: the target has executed it.
            let is_due = if front.discards { front.end() } else { front.first };
            if let Some(syndrome) = front.failed
                && psn_diff(qp.req.una, is_due) >= 0
            {
                if self.fail_oldest(cx, qp, syndrome) {
                    continue;
                }
                return;
            }
            if !front.is_answered() || psn_diff(qp.req.una, front.end()) < 0 {
                return;
            }
            if let Some(done) = qp.req.pop_front() {
                let flushed = self.flushed(qp, &done.request);
                if let Some(syndrome) =
                    flushed.or_else(|| self.send_by_script(cx, qp, &done.request, done.number))
                {
                    match self.fail_request(cx, qp, &done.request, syndrome) {
                        true => continue,
                        false => return,
                    }
                }
                self.complete_send(cx, qp, &done.request, Ok(done.inline.filter(|d| !d.is_empty())));
                self.keep(done.request);
            }
        }
    }

    /// Handles an answer, and sends what can be sent then.
    pub(crate) fn response(&mut self, cx: &mut Port<'_>, qp: &mut Qp, packet: &Packet) {
        if self.respond(cx, qp, packet) {
            self.transmit_reliable(cx, qp);
        }
    }

    /// Handles an answer. Returns whether the queue may go on.
    pub(super) fn respond(&mut self, cx: &mut Port<'_>, qp: &mut Qp, packet: &Packet) -> bool {
        if !qp.is_reliable() || !matches!(qp.state, State::Rts | State::Sqd) {
            return false;
        }
        if let (Some(dc), Some((_, own))) = (packet.dc, qp.req.session)
            && dc.session != own.session
        {
            return false;
        }
        let psn = packet.psn;
        // An answer to packets that are not outstanding is late, and is ignored.
        let (ahead, behind) = (psn_diff(psn, qp.req.next), psn_diff(psn, qp.req.una));
        let sequence = matches!(packet.body, Body::Nak(Nak::Sequence));
        if ahead > 0 || ahead == 0 && !sequence || behind < 0 {
            return false;
        }
        let before = qp.req.una;
        let verdict = match &packet.body {
            Body::Ack => {
                qp.req.acknowledge(psn_add(psn, 1), &qp.attr);
                self.gap(qp, psn)
            }
            Body::ReadResponse { data, .. } => {
                let copied = packet.direct.source.as_ref().and_then(|source| {
                    qp.copying.made.as_ref().and_then(|made| made.target(source)).cloned()
                });
                self.answer(cx, qp, psn, packet.count(), (packet.data(data), copied.as_ref()))
            }
            Body::AtomicResponse(value) => {
                self.answer(cx, qp, psn, 1, (Data::Bytes(&value.to_ne_bytes()), None))
            }
            Body::Nak(nak) => {
                qp.req.acknowledge(psn, &qp.attr);
                match nak {
                    Nak::Sequence => Verdict::Resend(psn),
                    Nak::Invalid => Verdict::Fail(Syndrome::REMOTE_INVALID),
                    Nak::Access => Verdict::Fail(Syndrome::REMOTE_ACCESS),
                    Nak::Operation => Verdict::Fail(Syndrome::REMOTE_OP),
                }
            }
            Body::Rnr(timer) => {
                qp.req.acknowledge(psn, &qp.attr);
                self.complete_answered(cx, qp);
                return self.not_ready(cx, qp, psn, *timer);
            }
            _ => return false,
        };
        if qp.req.una != before {
            // An answer arrived, so the timer is restarted.
            qp.timer.deadline = None;
        }
        match verdict {
            Verdict::Nothing => {}
            Verdict::Resend(from) => {
                if qp.req.resent != Some(from) {
                    qp.req.resent = Some(from);
                    if psn_diff(from, qp.req.send) < 0 {
                        qp.req.send = if psn_diff(from, qp.req.una) > 0 { from } else { qp.req.una };
                    }
                }
            }
            Verdict::Fail(syndrome) => {
                // All requests before the refused one are complete, except those whose data were lost; these are
                // requested again before the error is reported.
                self.complete_answered(cx, qp);
                if qp.req.sent.front().is_some_and(|s| psn_diff(psn, s.end()) < 0) {
                    return self.fail_oldest(cx, qp, syndrome);
                }
                qp.req.send = qp.req.una;
            }
            Verdict::Wrong => {
                self.complete_answered(cx, qp);
                return self.fail_sent(cx, qp, Syndrome::BAD_RESP);
            }
        }
        true
    }

    /// An acknowledgement beyond a missing answer means that the answer was lost.
    fn gap(&self, qp: &Qp, psn: u32) -> Verdict {
        let una = qp.req.una;
        if psn_diff(psn, una) >= 0 { Verdict::Resend(una) } else { Verdict::Nothing }
    }

    /// Handles the data of a read or an atomic, of so many packets.
    fn answer(
        &mut self,
        cx: &Port<'_>,
        qp: &mut Qp,
        psn: u32,
        packets: u32,
        (data, copied): (Data<'_>, Option<&Place>),
    ) -> Verdict {
        // An answer also acknowledges all requests before it.
        let first = qp.req.sent.iter().find(|s| {
            let at = psn_diff(psn, s.first);
            s.wants_answer() && at >= 0 && at.cast_unsigned() < s.count
        });
        let Some(first) = first.map(|s| s.first) else { return Verdict::Nothing };
        qp.req.acknowledge(first, &qp.attr);
        let una = qp.req.una;
        if psn_diff(psn, una) > 0 {
            return Verdict::Resend(una);
        }
        let user = qp.user();
        let mtu = u64::from(qp.attr.mtu.max(1));
        let goes_on = qp.streams.is_some() && qp.req.sent.back().is_some_and(|last| last.first != first);
        let Some(sent) = qp.req.sent.iter_mut().find(|s| s.first == first && s.count > 0) else {
            return Verdict::Nothing;
        };
        if psn_add(sent.first, sent.answered) != psn || sent.failed.is_some() && !sent.discards {
            return Verdict::Nothing;
        }
        let offset = u64::from(sent.answered) * mtu;
        let atomic = !matches!(sent.request.op, Op::Read { .. });
        let wanted = if atomic { 8 } else { (sent.len - offset).min(u64::from(packets) * mtu) };
        if data.len() as u64 != wanted {
            return Verdict::Wrong;
        }
        // The memory may have been deregistered since the request was sent.
        let placed = match &mut sent.inline {
            _ if sent.discards => Ok(()),
            // The poller copies data of a completion to this memory without a key.
            Some(inline) => {
                let checked = self.check_scatter(user, &sent.request.data, offset, data.len());
                checked.map(|()| data.append_to(inline))
            }
            None => self.scatter_copied(user, &sent.request.data, offset, data, copied),
        };
        match placed {
            Err(syndrome) if goes_on => (sent.failed, sent.discards) = (Some(syndrome), true),
            Err(syndrome) => return Verdict::Fail(syndrome),
            Ok(()) => {}
        }
        if sent.inline.is_none() && !sent.discards {
            self.trace_scattered(cx, qp.qpn, &sent.request.data, (offset, data.len()));
        }
        sent.answered += packets;
        qp.req.acknowledge(psn_add(psn, packets), &qp.attr);
        Verdict::Nothing
    }

    /// Handles an RNR NAK. Whether the queue goes on, after the error of a stream.
    fn not_ready(&mut self, cx: &mut Port<'_>, qp: &mut Qp, psn: u32, timer: u8) -> bool {
        if psn_diff(psn, qp.req.una) > 0 || qp.req.rnr || !matches!(qp.state, State::Rts | State::Sqd) {
            // A packet before it is missing, or this packet is a duplicate.
            return false;
        }
        if qp.attr.rnr_retry != FOR_EVER {
            if qp.req.rnr_retries == 0 {
                return self.fail_oldest(cx, qp, Syndrome::RNR);
            }
            qp.req.rnr_retries -= 1;
        }
        qp.req.rnr = true;
        qp.req.send = qp.req.una;
        let at = cx.now + rnr_delay(timer);
        qp.timer.arm(cx, qp.qpn, at);
        false
    }

    /// The timer has expired: the receiver may be ready now, an answer was lost, or the queue continues with packets
    /// that it could not send at once.
    pub(crate) fn expire(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        if !qp.is_reliable() {
            self.transmit(cx, qp);
            return;
        }
        if !matches!(qp.state, State::Rts | State::Sqd) {
            return;
        }
        if qp.req.rnr {
            (qp.req.rnr, qp.req.probes) = (false, true);
        } else {
            if qp.req.una == qp.req.next {
                // Such a queue has no packets; it has paused.
                if qp.kind == QpKind::Keys {
                    self.transmit_reliable(cx, qp);
                }
                return;
            }
            if qp.req.retries == 0 {
                if self.fail_sent(cx, qp, Syndrome::RETRY) {
                    self.transmit_reliable(cx, qp);
                }
                return;
            }
            self.repairs += 1;
            qp.req.retries -= 1;
            if outside(cx).is_some() {
                qp.req.patience = (qp.req.patience + 1).min(MAX_PATIENCE);
            }
            qp.req.resent = None;
            qp.req.send = qp.req.una;
        }
        self.transmit_reliable(cx, qp);
    }

    /// The device with the address of an address vector.
    pub(crate) fn route(&self, cx: &Port<'_>, av: &Av) -> Option<usize> {
        if self.ethernet {
            // The switch forwards by the MAC address; the receiving port checks the GID.
            let Some(to) = cx.net.by_mac(&av.rmac) else { return outside(cx) };
            return cx.net.ports.get(to)?.has_gid(&av.rgid).then_some(to);
        }
        cx.net.in_subnet(av.rlid, av.grh.then_some(&av.rgid))
    }
}

/// The packets of the part of a long read that begins with packet `at` of the message, of which so many are left. A repetition ends where the
/// first request of the part ended: the responder expects the next part there.
pub(super) fn part_of_read(cx: &Port<'_>, at: u32, left: u32) -> u32 {
    let part = if outside(cx).is_some() { NEAR_WINDOW } else { WINDOW }.cast_unsigned();
    left.min(part - at % part)
}

/// The device at the other end of a connection. It is looked up again after a change of the network or of the connection.
pub(super) fn peer(cx: &Port<'_>, qp: &mut Qp) -> Option<usize> {
    let key = (cx.net.changes, qp.attr.dlid, qp.attr.dgid);
    match &qp.peer {
        Some((known, to)) if *known == key => *to,
        _ => {
            let to = find_peer(cx, qp);
            qp.peer = Some((key, to));
            to
        }
    }
}

fn find_peer(cx: &Port<'_>, qp: &Qp) -> Option<usize> {
    match &qp.attr.dgid {
        Some(dgid) if cx.net.ports.get(cx.me)?.ethernet => cx.net.by_gid(dgid).or_else(|| outside(cx)),
        dgid => cx.net.in_subnet(qp.attr.dlid, dgid.as_ref()),
    }
}

/// The slot of the devices outside of the fabric, if the port reaches them.
fn outside(cx: &Port<'_>) -> Option<usize> {
    Some(cx.address()?.outside?.slot)
}

/// Starts a session with the target of the request if it is not the current one. All requests to the previous target
/// are complete.
fn open_session(qp: &mut Qp, request: &Request) {
    let Some(av) = request.av.as_deref().copied() else { return };
    if qp.req.session.is_none_or(|(old, _)| old != av) {
        qp.req.sessions = qp.req.sessions.wrapping_add(1);
        let dc = Dc { key: av.key, session: qp.req.sessions, first: qp.req.next };
        qp.req.session = Some((av, dc));
    }
}

/// Nanoseconds of an RNR timer's code (InfiniBand specification, table 45), in units of 10 us.
pub(super) fn rnr_delay(code: u8) -> u64 {
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    u64::from(UNITS[usize::from(code & 31)]) * 10_000
}
