// SPDX-License-Identifier: MIT OR Apache-2.0
//! The responder of reliable transports: executes requests in sequence, exactly once, and answers them; and the
//! receiving side of unreliable connections (InfiniBand specification, chapters 9.7 and 9.8).

use super::aside::is_there;
use super::datagram::shown_path;
use super::device::MAX_SESSIONS;
use super::mkey::{Denied, Target, access};
use super::packet::{Atomic, Body, Direct, Nak, PSN, Packet, WrPart, psn_add, psn_diff};
use super::qp::{Qp, QpKind};
use super::responder::{Receiving, Responder, Writing};
use super::{Device, Port, event};
use crate::cqe::{Cqe, Syndrome};
use uverbs_fabric::order::{Mode, Side};
use uverbs_fabric::udp::{MAX_ANSWER, MAX_ANSWERS};
use uverbs_mlx5_hw::cqe::{
    MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM, MLX5_CQE_RESP_SEND_INV, MLX5_CQE_RESP_WR_IMM,
};

/// The reason why a request is not executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// There is no receive; the requester must retry.
    NotReady,
    /// It is invalid; the QP goes to the error state.
    Nak(Nak),
    /// As `Nak`, but there is no answer: the requester retries until its retries are exceeded.
    Silent,
}

impl Device {
    /// Handles a request to an RC or XRC QP or a DC target.
    pub(crate) fn request(&mut self, cx: &mut Port<'_>, qp: &mut Qp, packet: &Packet) {
        if qp.kind == QpKind::Dct {
            self.dc_request(cx, qp, packet);
            return;
        }
        let mut resp = core::mem::take(&mut qp.resp);
        self.reliable(cx, qp, &mut resp, packet);
        qp.resp = resp;
        self.end_if_failed(cx, qp);
    }

    /// Handles a request to a DC target. Each initiator has its own responder, which is created when its session
    /// starts.
    fn dc_request(&mut self, cx: &mut Port<'_>, qp: &mut Qp, packet: &Packet) {
        let Some(dc) = packet.dc else { return };
        let from = (packet.from, packet.src_qpn);
        if dc.key != qp.dc_key {
            reply(cx, qp, packet, (packet.psn, 0), Body::Nak(Nak::Access));
            return;
        }
        let fresh = || Responder { session: dc.session, ..Responder::new(dc.first) };
        let known = qp.sessions.remove(&from);
        if known.is_none() {
            if self.sessions >= MAX_SESSIONS {
                return;
            }
            self.sessions += 1;
        }
        let mut resp = known.unwrap_or_else(fresh);
        if resp.session != dc.session {
            // A late packet of an older session is dropped.
            if dc.session.wrapping_sub(resp.session).cast_signed() < 0 {
                qp.sessions.insert(from, resp);
                return;
            }
            // The initiator was reset in the middle of a message.
            if let Some((srqn, taken)) = resp.abort() {
                self.fail_receive(cx, qp, srqn, &taken, Syndrome::FLUSH);
            }
            resp = fresh();
        }
        self.reliable(cx, qp, &mut resp, packet);
        qp.sessions.insert(from, resp);
    }

    /// Ends the sessions of a device's initiators with the DC targets of this one.
    pub(crate) fn end_sessions(&mut self, cx: &mut Port<'_>, from: usize) {
        let has = |qp: &Qp| qp.sessions.keys().any(|(device, _)| device == from);
        let targets: Vec<u32> = self.qps.values().filter(|qp| has(qp)).map(|qp| qp.qpn).collect();
        for qpn in targets {
            self.with_qp(cx, qpn, |device, cx, qp| {
                let mut open = Vec::new();
                let before = qp.sessions.len();
                qp.sessions.retain(|(device, _), resp| {
                    let stays = device != from;
                    if !stays {
                        open.extend(resp.abort());
                    }
                    stays
                });
                device.sessions -= before - qp.sessions.len();
                for (srqn, taken) in open {
                    device.fail_receive(cx, qp, srqn, &taken, Syndrome::FLUSH);
                }
            });
        }
    }

    /// Flushes the receive of a responder if the QP went to ERR while the responder was taken out.
    fn end_if_failed(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        if !qp.state.receives()
            && let Some((srqn, taken)) = qp.resp.abort()
        {
            self.fail_receive(cx, qp, srqn, &taken, Syndrome::FLUSH);
        }
    }

    fn reliable(&mut self, cx: &mut Port<'_>, qp: &mut Qp, resp: &mut Responder, packet: &Packet) {
        if resp.ended {
            return;
        }
        let ahead = psn_diff(packet.psn, resp.expected);
        if ahead < 0 {
            self.duplicate(cx, qp, resp, packet);
            return;
        }
        if ahead > 0 {
            if !resp.nak_sent {
                resp.nak_sent = true;
                self.repairs += 1;
                reply(cx, qp, packet, (resp.expected, resp.msn), Body::Nak(Nak::Sequence));
            }
            return;
        }
        let mtu = u64::from(qp.attr.mtu.max(1));
        let takes = match &packet.body {
            Body::Read { len, .. } => u64::from(*len).div_ceil(mtu).max(1) as u32,
            _ => packet.count(),
        };
        match self.execute(cx, qp, resp, packet) {
            Ok(()) => {
                resp.nak_sent = false;
                resp.expected = psn_add(resp.expected, takes);
            }
            Err(Refusal::NotReady) => {
                // The following packets are dropped without an answer until this one arrives again.
                resp.nak_sent = true;
                reply(cx, qp, packet, (packet.psn, resp.msn), Body::Rnr(qp.attr.min_rnr_timer));
            }
            Err(refusal @ (Refusal::Nak(_) | Refusal::Silent)) => {
                if let Refusal::Nak(nak) = refusal {
                    reply(cx, qp, packet, (packet.psn, resp.msn), Body::Nak(nak));
                }
                if qp.kind == QpKind::Dct {
                    // A target serves other initiators, too, so only this session ends. An initiator without an answer
                    // repeats its request.
                    resp.ended = matches!(refusal, Refusal::Silent);
                    if let Some((srqn, taken)) = resp.abort() {
                        self.fail_receive(cx, qp, srqn, &taken, Syndrome::FLUSH);
                    }
                    return;
                }
                let event = match refusal {
                    Refusal::Nak(Nak::Access) => Some(event::QP_ACCESS_ERR),
                    Refusal::Nak(Nak::Invalid) => Some(event::QP_REQ_ERR),
                    _ => None,
                };
                self.fail_responder(cx, qp, event);
            }
        }
    }

    /// Handles a request that was executed before: its answer was lost, or it is a duplicate.
    fn duplicate(&mut self, cx: &mut Port<'_>, qp: &mut Qp, resp: &mut Responder, packet: &Packet) {
        self.repairs += 1;
        match &packet.body {
            Body::Read { addr, rkey, len } => {
                // The requester requests the packets that it did not get. Reads have no side effects, so they are
                // executed again.
                let again = self.read(cx, qp, packet, resp.msn, (*addr, *rkey, *len));
                if again.is_err() {
                    reply(cx, qp, packet, (packet.psn, resp.msn), Body::Nak(Nak::Access));
                }
            }
            Body::Atomic { .. } => {
                let known = resp.atomics.iter().find(|(psn, _)| *psn == packet.psn);
                if let Some((_, value)) = known {
                    let numbers = (packet.psn, resp.msn);
                    let answer = answer(cx, qp, packet, numbers, Body::AtomicResponse(*value));
                    self.give(cx, packet, answer);
                }
            }
            // A peer outside repeats whole messages, which arrive together: one acknowledgement is enough for all of them.
            Body::Send { .. } | Body::Write { .. }
                if is_outside(cx, packet) && acknowledges_together(cx, qp) =>
            {
                self.owe(qp, resp, packet);
            }
            Body::Send { .. } | Body::Write { .. } => {
                // As in `acknowledge`.
                let psn = if is_outside(cx, packet) { packet.psn } else { psn_add(resp.expected, PSN) };
                reply(cx, qp, packet, (psn, resp.msn), Body::Ack);
            }
            _ => {}
        }
    }

    /// Executes the request with the expected PSN.
    fn execute(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        resp: &mut Responder,
        packet: &Packet,
    ) -> Result<(), Refusal> {
        if qp.kind != QpKind::Dct && !has_right_length(qp, packet) {
            return Err(Refusal::Nak(Nak::Invalid));
        }
        match &packet.body {
            Body::Send { .. } => self.take_send(cx, qp, resp, packet)?,
            Body::Write { .. } => self.take_write(cx, qp, resp, packet)?,
            Body::Read { addr, rkey, len } => {
                if resp.receiving.is_some() || resp.writing.is_some() || qp.attr.max_dest_rd_atomic == 0 {
                    return Err(Refusal::Nak(Nak::Invalid));
                }
                allowed(qp, access::REMOTE_READ)?;
                let msn = psn_add(resp.msn, 1);
                self.read(cx, qp, packet, msn, (*addr, *rkey, *len))
                    .map_err(|_| Refusal::Nak(Nak::Access))?;
                resp.msn = msn;
                return Ok(());
            }
            Body::Atomic { addr, rkey, op } => return self.atomic(cx, qp, resp, packet, (*addr, *rkey, *op)),
            _ => return Ok(()),
        }
        if is_last(packet) {
            resp.msn = psn_add(resp.msn, 1);
        }
        match packet.ack {
            // Requests that arrive together have one acknowledgement. In the middle of a message the requester may wait for it.
            true if is_last(packet) && acknowledges_together(cx, qp) => self.owe(qp, resp, packet),
            true => {
                let last = psn_add(packet.psn, packet.direct.more);
                reply(cx, qp, packet, (last, resp.msn), Body::Ack);
            }
            false => {}
        }
        Ok(())
    }

    /// An acknowledgement is due, and is sent when no other packet is.
    fn owe(&mut self, qp: &Qp, resp: &mut Responder, packet: &Packet) {
        let is_first = resp.due.replace((packet.from, packet.src_qpn)).is_none();
        resp.is_known = false;
        if is_first || psn_diff(packet.psn, resp.due_psn) > 0 {
            resp.due_psn = packet.psn;
        }
        if is_first {
            self.unacknowledged.push(qp.qpn);
        }
    }

    /// Acknowledges the requests that were executed since the last call.
    pub(crate) fn acknowledge(&mut self, cx: &mut Port<'_>) {
        let mut queues = core::mem::take(&mut self.unacknowledged);
        for qpn in queues.drain(..) {
            self.with_qp(cx, qpn, |_, cx, qp| {
                let Some((to, dest_qpn)) = qp.resp.due.take() else { return };
                // It would have no effect, and nothing would see it.
                let is_known = core::mem::take(&mut qp.resp.is_known);
                if is_known && cx.net.is_direct() && cx.net.connects(cx.me, to) {
                    cx.net.pass(cx.me, to, 1, 0);
                    return;
                }
                // A read or an atomic behind the requests has an answer of its own, which may be lost. Linux' rxe takes an acknowledgement
                // with the number of such a request for its answer (`check_ack()` in rxe_comp.c), and completes it without data.
                let psn = match outside_slot(cx) == Some(to) {
                    true => qp.resp.due_psn,
                    false => psn_add(qp.resp.expected, PSN),
                };
                let packet = Packet {
                    from: cx.me,
                    transport: qp.kind.transport(),
                    src_qpn: qp.qpn,
                    dest_qpn,
                    psn,
                    ack: false,
                    solicited: false,
                    srqn: 0,
                    msn: qp.resp.msn,
                    dc: None,
                    path: shown_path(cx, qp),
                    wr: WrPart::default(),
                    direct: Direct::default(),
                    body: Body::Ack,
                };
                cx.net.send(cx.now, to, packet);
            });
        }
        // Its memory is used again.
        queues.append(&mut self.unacknowledged);
        self.unacknowledged = queues;
    }

    /// Takes the receive for a message. XRC requests name an SRQ; DC targets have one.
    fn receive_for(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        resp: &mut Responder,
        packet: &Packet,
    ) -> Result<Receiving, Refusal> {
        if let Some((srqn, taken)) = resp.kept.take() {
            return Ok(Receiving { srqn, taken, done: 0 });
        }
        let srqn = match qp.kind {
            QpKind::XrcRecv => {
                let srq = self.srqs.get(&packet.srqn).and_then(|srq| srq.xrc);
                if srq.is_none_or(|(xrcd, _)| xrcd != qp.xrcd) {
                    return Err(Refusal::Nak(Nak::Invalid));
                }
                Some(packet.srqn)
            }
            _ => qp.srqn,
        };
        match self.take_receive(cx, qp, srqn) {
            Some(taken) => Ok(Receiving { srqn, taken, done: 0 }),
            // A violation in the queue moved the QP to ERR.
            None if !qp.state.receives() => Err(Refusal::Nak(Nak::Operation)),
            None => Err(Refusal::NotReady),
        }
    }

    fn take_send(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        resp: &mut Responder,
        packet: &Packet,
    ) -> Result<(), Refusal> {
        let Body::Send { first, last, imm, invalidate, data } = &packet.body else { return Ok(()) };
        if resp.writing.is_some() || *first == resp.receiving.is_some() {
            return Err(Refusal::Nak(Nak::Invalid));
        }
        let mut receiving = match resp.receiving.take() {
            Some(receiving) => receiving,
            None => self.receive_for(cx, qp, resp, packet)?,
        };
        let (user, data) = (self.receiver(qp, receiving.srqn), packet.data(data));
        let segments = &receiving.taken.wqe.scatter;
        // A small message is written to the completion. Its length is checked against the receive nevertheless.
        let whole = *first && *last;
        let inline = whole && data.len() <= qp.scatter_resp && data.len() > 0;
        let result = if receiving.done + data.len() as u64 > receiving.taken.wqe.room() {
            if qp.kind == QpKind::Uc {
                // The message is dropped, and the next one uses the receive.
                resp.kept = Some((receiving.srqn, receiving.taken));
                return Ok(());
            }
            Err(Syndrome::LOCAL_LENGTH)
        } else if inline {
            Ok(())
        } else {
            let copied = packet.direct.copied.as_deref();
            let placed = self.scatter_copied(user, segments, receiving.done, data, copied);
            if placed.is_ok() {
                self.trace_scattered(cx, qp.qpn, segments, (receiving.done, data.len()));
            }
            placed
        };
        if let Err(syndrome) = result {
            self.fail_receive(cx, qp, receiving.srqn, &receiving.taken, syndrome);
            let nak = if syndrome == Syndrome::LOCAL_LENGTH { Nak::Invalid } else { Nak::Operation };
            return Err(Refusal::Nak(nak));
        }
        receiving.done += data.len() as u64;
        if !last {
            resp.receiving = Some(receiving);
            return Ok(());
        }
        if let Some(rkey) = invalidate
            && self.mkeys.invalidate(user, *rkey) == Err(Denied)
        {
            // A class J fault has no NAK (InfiniBand specification, chapter 9.9.6.3). The receive has the status "memory
            // management operation error" (11.6.2), which is IBV_WC_MW_BIND_ERR in ibv_wc_status_str(3).
            self.fail_receive(cx, qp, receiving.srqn, &receiving.taken, Syndrome::MW_BIND);
            return Err(Refusal::Silent);
        }
        let (cqn, cqe) = self.receive_cqe(qp, receiving.srqn, &receiving.taken);
        if let Some(syndrome) = self.receive_by_script(cx, qp, receiving.srqn, Some(&packet.body), cqn) {
            self.fail_receive(cx, qp, receiving.srqn, &receiving.taken, syndrome);
            return Err(Refusal::Nak(Nak::Operation));
        }
        let kind = match (imm, invalidate) {
            (Some(_), _) => MLX5_CQE_RESP_SEND_IMM,
            (_, Some(_)) => MLX5_CQE_RESP_SEND_INV,
            _ => MLX5_CQE_RESP_SEND,
        };
        let cqe = Cqe {
            kind,
            imm: imm.or(*invalidate).unwrap_or(0),
            byte_cnt: receiving.done as u32,
            solicited: packet.solicited,
            slid: source_lid(cx, packet.from),
            inline: inline.then(|| {
                let mut bytes = Vec::new();
                data.append_to(&mut bytes);
                bytes
            }),
            ..cqe
        };
        self.complete(cx, cqn, cqe);
        Ok(())
    }

    /// The user of a receive's memory: an SRQ may belong to another protection domain.
    pub(super) fn receiver(&self, qp: &Qp, srqn: Option<u32>) -> super::mkey::User {
        let pd = srqn.and_then(|n| self.srqs.get(&n)).map_or(qp.pd, |srq| srq.pd);
        super::mkey::User { pd, qpn: qp.qpn }
    }

    fn take_write(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        resp: &mut Responder,
        packet: &Packet,
    ) -> Result<(), Refusal> {
        let Body::Write { start, last, imm, data } = &packet.body else { return Ok(()) };
        if resp.receiving.is_some() || start.is_some() == resp.writing.is_some() {
            return Err(Refusal::Nak(Nak::Invalid));
        }
        let (imm, data) = (imm.filter(|_| *last), packet.data(data));
        let user = self.remote_user(qp, packet);
        let mut writing = match (*start, resp.writing) {
            (Some((addr, rkey, len)), _) => {
                allowed(qp, access::REMOTE_WRITE)?;
                Writing { addr, rkey, left: u64::from(len), done: 0 }
            }
            (None, Some(writing)) => writing,
            (None, None) => return Err(Refusal::Nak(Nak::Invalid)),
        };
        let n = data.len() as u64;
        // The first packet checks the whole range, each packet its own part.
        let range = if start.is_some() { writing.left } else { n };
        let is_wrong = n > writing.left || *last && n != writing.left;
        // The receive for immediate data is taken first: without one, nothing is written.
        let receiving = match imm {
            Some(_) => {
                if self.written(user, &writing, range).is_err() {
                    return Err(self.refuse_write(cx, qp, resp, packet, true));
                }
                if is_wrong {
                    return Err(Refusal::Nak(Nak::Invalid));
                }
                Some(self.receive_for(cx, qp, resp, packet)?)
            }
            None => None,
        };
        let Ok(target) = self.written(user, &writing, range) else {
            return Err(self.refuse_write(cx, qp, resp, packet, imm.is_some()));
        };
        if is_wrong {
            return Err(Refusal::Nak(Nak::Invalid));
        }
        if let Some((memory, offset)) = target
            && !is_there(packet.direct.copied.as_deref(), &memory, offset)
            && self.write(writing.rkey, &memory, offset, data).is_err()
        {
            resp.kept = receiving.map(|r| (r.srqn, r.taken));
            return Err(self.refuse_write(cx, qp, resp, packet, imm.is_some()));
        }
        self.trace_placed(cx, qp.qpn, writing.rkey, writing.addr, n);
        writing.addr = writing.addr.wrapping_add(n);
        writing.left -= n;
        writing.done += n;
        if !last {
            resp.writing = Some(writing);
            return Ok(());
        }
        resp.writing = None;
        if let (Some(imm), Some(receiving)) = (imm, receiving) {
            let (cqn, cqe) = self.receive_cqe(qp, receiving.srqn, &receiving.taken);
            if let Some(syndrome) = self.receive_by_script(cx, qp, receiving.srqn, Some(&packet.body), cqn) {
                self.fail_receive(cx, qp, receiving.srqn, &receiving.taken, syndrome);
                return Err(Refusal::Nak(Nak::Operation));
            }
            let cqe = Cqe {
                kind: MLX5_CQE_RESP_WR_IMM,
                imm,
                byte_cnt: writing.done as u32,
                solicited: packet.solicited,
                slid: source_lid(cx, packet.from),
                ..cqe
            };
            self.complete(cx, cqn, cqe);
        }
        Ok(())
    }

    /// The memory for `range` bytes of a write.
    fn written(&self, user: super::mkey::User, writing: &Writing, range: u64) -> Result<Target<'_>, Denied> {
        match range {
            0 => Ok(None),
            _ => self.mkeys.resolve(user, writing.rkey, writing.addr, range, access::REMOTE_WRITE),
        }
    }

    /// Refuses a write to memory that its key does not permit. The receive of a packet with immediate data has the status
    /// "local access error" (InfiniBand specification, chapter 11.6.2). An unreliable connection drops the message.
    fn refuse_write(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        resp: &mut Responder,
        packet: &Packet,
        takes_receive: bool,
    ) -> Refusal {
        if takes_receive
            && qp.kind != QpKind::Uc
            && let Ok(receiving) = self.receive_for(cx, qp, resp, packet)
        {
            self.fail_receive(cx, qp, receiving.srqn, &receiving.taken, Syndrome::LOCAL_ACCESS);
        }
        Refusal::Nak(Nak::Access)
    }

    /// The user of memory keys for a peer's access. An XRC target has no protection domain, so that of its SRQ is used.
    pub(super) fn remote_user(&self, qp: &Qp, packet: &Packet) -> super::mkey::User {
        let srqn = (qp.kind == QpKind::XrcRecv).then_some(packet.srqn);
        self.receiver(qp, srqn)
    }

    /// Answers a read with as many packets as needed.
    fn read(
        &mut self,
        cx: &mut Port<'_>,
        qp: &Qp,
        packet: &Packet,
        msn: u32,
        (addr, rkey, len): (u64, u32, u32),
    ) -> Result<(), Denied> {
        let len = u64::from(len);
        let user = self.remote_user(qp, packet);
        let mtu = u64::from(qp.attr.mtu.max(1));
        let mut at = 0;
        let count = len.div_ceil(mtu).max(1);
        let whole = || {
            let body = Body::ReadResponse { first: true, last: true, data: Vec::new() };
            answer(cx, qp, packet, (packet.psn, msn), body)
        };
        if packet.direct.takes_answer && self.give_read(packet, user, (addr, rkey, len), whole, count) {
            return Ok(());
        }
        let target = match len {
            0 => None,
            _ => self.mkeys.resolve(user, rkey, addr, len, access::REMOTE_READ)?,
        };
        // What is beyond the limit is lost, so that a device outside of the fabric requests it again.
        let most = match is_outside(cx, packet) {
            false => count,
            true if cx.in_flight() > MAX_ANSWERS => 0,
            true => MAX_ANSWER.div_ceil(mtu),
        };
        for i in 0..count.min(most) {
            let n = (len - at).min(mtu);
            let mut data = cx.net.buffer();
            match &target {
                Some((memory, offset)) if self.deferred.fills(memory, offset + at, 0, n as usize) => {
                    data.resize(n as usize, 0);
                }
                Some((memory, offset)) => {
                    memory.append(offset + at, n as usize, &mut data).map_err(|_| Denied)?;
                }
                None => data.resize(n as usize, 0),
            }
            let waits = self.waits(cx, user, Side::Responder, None);
            let body = Body::ReadResponse { first: i == 0, last: i + 1 == count, data };
            let answer = answer(cx, qp, packet, (psn_add(packet.psn, i as u32), msn), body);
            cx.net.send_when(cx.now, packet.from, answer, waits);
            at += n;
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        cx: &mut Port<'_>,
        qp: &Qp,
        resp: &mut Responder,
        packet: &Packet,
        (addr, rkey, op): (u64, u32, Atomic),
    ) -> Result<(), Refusal> {
        if resp.receiving.is_some() || resp.writing.is_some() || qp.attr.max_dest_rd_atomic == 0 {
            return Err(Refusal::Nak(Nak::Invalid));
        }
        allowed(qp, access::REMOTE_ATOMIC)?;
        if !addr.is_multiple_of(8) {
            return Err(Refusal::Nak(Nak::Invalid));
        }
        let user = self.remote_user(qp, packet);
        let found = self.mkeys.resolve(user, rkey, addr, 8, access::REMOTE_ATOMIC);
        let target = found.map_err(|Denied| Refusal::Nak(Nak::Access))?;
        let new = |old: u64| match op {
            Atomic::FetchAdd(add) => old.wrapping_add(add),
            Atomic::CmpSwap { compare, swap } if old == compare => swap,
            Atomic::CmpSwap { .. } => old,
        };
        let old = match target {
            Some((memory, offset)) => {
                self.execute_atomic(&memory, offset, &new).map_err(|_| Refusal::Nak(Nak::Operation))?
            }
            None => 0,
        };
        self.trace_placed(cx, qp.qpn, rkey, addr, 8);
        resp.atomics.push_back((packet.psn, old));
        while resp.atomics.len() > usize::from(qp.attr.max_dest_rd_atomic) {
            resp.atomics.pop_front();
        }
        resp.msn = psn_add(resp.msn, 1);
        let answer = answer(cx, qp, packet, (packet.psn, resp.msn), Body::AtomicResponse(old));
        self.give(cx, packet, answer);
        Ok(())
    }

    /// Handles a packet of an unreliable connection. A gap in the sequence drops the rest of the message without an
    /// error.
    pub(crate) fn unreliable(&mut self, cx: &mut Port<'_>, qp: &mut Qp, packet: &Packet) {
        let begins = match &packet.body {
            Body::Send { first, .. } => *first,
            Body::Write { start, .. } => start.is_some(),
            _ => return,
        };
        let mut resp = core::mem::take(&mut qp.resp);
        let in_sequence = packet.psn == resp.expected;
        resp.expected = psn_add(packet.psn, 1);
        let is_valid = has_right_length(qp, packet);
        if begins || !in_sequence || !is_valid {
            resp.break_off();
        }
        let going = resp.writing.is_some() || resp.receiving.is_some();
        if is_valid && (begins || in_sequence && going) {
            let result = match &packet.body {
                Body::Send { .. } => self.take_send(cx, qp, &mut resp, packet),
                _ => self.take_write(cx, qp, &mut resp, packet),
            };
            if let Err(refusal) = result {
                resp.writing = None;
                // A receive with an error moves the QP to ERR; other invalid packets are dropped.
                if matches!((&packet.body, refusal), (Body::Send { .. }, Refusal::Nak(_) | Refusal::Silent)) {
                    self.fail_responder(cx, qp, None);
                }
            }
        }
        qp.resp = resp;
        self.end_if_failed(cx, qp);
    }
}

/// Whether requests that arrive together have one acknowledgement. The modes of order have a step for each, and rules of a script name
/// the WR of each. The sessions of a DC target have one each.
fn acknowledges_together(cx: &Port<'_>, qp: &Qp) -> bool {
    qp.kind != QpKind::Dct && cx.net.mode() == Mode::Ordered && !cx.net.is_scripted()
}

/// Whether a packet comes from a device outside of the fabric.
fn is_outside(cx: &Port<'_>, packet: &Packet) -> bool {
    outside_slot(cx) == Some(packet.from)
}

/// The slot of the devices outside of the fabric.
fn outside_slot(cx: &Port<'_>) -> Option<usize> {
    Some(cx.address()?.outside?.slot)
}

/// The LID that a packet on InfiniBand comes from. UCX sends its answers on DC to it.
pub(super) fn source_lid(cx: &Port<'_>, from: usize) -> u16 {
    cx.net.ports.get(from).map_or(0, |port| port.lid)
}

/// Whether the access flags of the QP permit this operation.
fn allowed(qp: &Qp, need: u32) -> Result<(), Refusal> {
    if qp.attr.access & need == need { Ok(()) } else { Err(Refusal::Nak(Nak::Invalid)) }
}

/// Whether the data of a send or a write have the length that its place in the message requires: those of the path MTU, except in the last
/// packet, which may be shorter (InfiniBand specification, chapter 9.7.4.1.6). It is another one if the ends have different path MTUs.
fn has_right_length(qp: &Qp, packet: &Packet) -> bool {
    let (len, most) = (packet.len() as u64, u64::from(packet.count()) * u64::from(qp.attr.mtu));
    match &packet.body {
        Body::Send { last: true, .. } | Body::Write { last: true, .. } => len <= most,
        Body::Send { .. } | Body::Write { .. } => len == most,
        _ => true,
    }
}

/// Whether a packet of a send or a write is the last one of its message.
fn is_last(packet: &Packet) -> bool {
    matches!(packet.body, Body::Send { last: true, .. } | Body::Write { last: true, .. })
}

/// Sends an answer with these sequence numbers, of the packet and of messages, to the requester.
fn reply(cx: &mut Port<'_>, qp: &Qp, packet: &Packet, numbers: (u32, u32), body: Body) {
    let answer = answer(cx, qp, packet, numbers, body);
    cx.net.send(cx.now, packet.from, answer);
}

/// An answer with these sequence numbers, of the packet and of messages.
fn answer(cx: &Port<'_>, qp: &Qp, packet: &Packet, (psn, msn): (u32, u32), body: Body) -> Packet {
    Packet {
        from: cx.me,
        transport: packet.transport,
        src_qpn: qp.qpn,
        dest_qpn: packet.src_qpn,
        psn,
        ack: false,
        solicited: false,
        srqn: 0,
        msn,
        dc: packet.dc,
        path: shown_path(cx, qp),
        wr: packet.wr,
        direct: Direct::default(),
        body,
    }
}
