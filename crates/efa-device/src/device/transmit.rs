// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requester's side of SRD: messages in packets, which take any path; answers, repetitions, retries.

use super::deferred::lane;
use super::mr::Buffer;
use super::qp::Qp;
use super::window::Window;
use super::{Device, Port, trace};
use crate::packet::{Body, Packet, Place, Remote};
use uverbs_efa_hw::io::{
    EFA_IO_COMP_STATUS_FLUSHED, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY, EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE, EFA_IO_COMP_STATUS_OK, EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR,
    EFA_IO_RDMA_READ, EFA_IO_RDMA_WRITE, EFA_IO_SEND, TxMetaDesc,
};
use uverbs_fabric::order::Side;

/// A message by the device that it goes to, and its number there.
pub(super) type Key = (usize, u64);

/// The device of a GID that no port has.
const NOWHERE: usize = usize::MAX;
/// Packets of a QP without an answer, and messages of which packets were sent, at a time.
const IN_FLIGHT: usize = 64;
const BEGUN: usize = 64;
/// The longest latency of a path, ns.
const LATENCY: u64 = 10_000;
/// The time for an answer, ns, which doubles with each repetition up to a limit; and how often a packet is repeated.
const TIMEOUT: u64 = 1_000_000;
const DOUBLED: u32 = 6;
const REPEATS: u32 = 10;
/// The pause before a message that found no receive is sent again, and before one is tried again for which too many to its peer were
/// outstanding, ns.
const PAUSE: u64 = 100_000;
/// [`Qp::rnr_retry`] without a limit.
const FOR_EVER: u8 = 7;

/// A request that is being executed.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) meta: TxMetaDesc,
    gid: [u8; 16],
    inline: Vec<u8>,
    buffers: Vec<Buffer>,
    total: u32,
    remote: Option<(u64, u32)>,
    /// Bytes of data in a packet.
    mtu: u32,
    /// Packets, at least one.
    count: u32,
    /// The next packet that was not sent yet.
    next: u32,
    /// The packets that were answered.
    answered: Window,
    /// How often it found no receive.
    retries: u8,
    /// Its number on the send queue, from 1.
    pub(super) number: u32,
}

/// A packet without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    deadline: u64,
    repeats: u32,
}

impl Message {
    pub(super) fn new(
        meta: &TxMetaDesc,
        gid: [u8; 16],
        inline: Vec<u8>,
        buffers: Vec<Buffer>,
        total: u32,
        remote: Option<(u64, u32)>,
        mtu: u32,
    ) -> Self {
        Self {
            meta: *meta,
            gid,
            inline,
            buffers,
            total,
            remote,
            mtu,
            count: total.div_ceil(mtu).max(1),
            next: 0,
            answered: Window::default(),
            retries: 0,
            number: 0,
        }
    }

    fn imm(&self) -> Option<u32> {
        self.meta.has_imm().then_some(self.meta.immediate_data)
    }

    /// The bytes of a packet: offset and length.
    fn part(&self, index: u32) -> (u32, u32) {
        let offset = index.saturating_mul(self.mtu).min(self.total);
        (offset, (self.total - offset).min(self.mtu))
    }
}

impl Device {
    /// The time at which a packet arrives that is sent now: each takes a path of its own, so packets arrive in any order. In real
    /// time a packet has no latency, but overtakes others that were sent with it.
    pub(super) fn path(&self, port: &mut Port<'_>) -> u64 {
        let latency = port.net.random() % LATENCY;
        if self.in_real_time { port.now.saturating_sub(latency) } else { port.now.saturating_add(latency) }
    }

    /// The data of a packet.
    fn data_of(&self, port: &Port<'_>, qp: &Qp, message: &Message, index: u32) -> Option<Vec<u8>> {
        self.begin_fetch(port);
        let (offset, len) = message.part(index);
        if message.buffers.is_empty() {
            return message.inline.get(offset as usize..(offset + len) as usize).map(<[u8]>::to_vec);
        }
        self.gather(qp.pd, &message.buffers, offset.into(), len as usize).ok()
    }

    /// Sends a datagram, which is complete then.
    pub(super) fn send_datagram(&mut self, port: &mut Port<'_>, qp: &mut Qp, message: &Message) {
        let Some(data) = self.data_of(port, qp, message, 0) else {
            return self.finish_send(port, qp, &message.meta, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY);
        };
        let body = Body::Datagram { qkey: message.meta.qkey, imm: message.imm(), data };
        if let Some(to) = port.net.by_gid(&message.gid) {
            self.emit(port, to, qp.qpn, message.meta.dest_qp_num, Place::default(), body);
        }
        self.count_sent(message);
        self.succeed(port, qp, message, None);
    }

    /// Sends a packet on its path.
    pub(super) fn emit(
        &mut self,
        port: &mut Port<'_>,
        to: usize,
        src_qpn: u16,
        dest_qpn: u16,
        place: Place,
        body: Body,
    ) {
        let at = self.path(port);
        let packet = Packet { from: port.me, src_qpn, dest_qpn, place, body };
        self.stats.tx_pkts += 1;
        self.stats.tx_bytes += packet.body.data().len() as u64;
        port.net.send_when(at, to, packet, self.waits());
    }

    fn count_sent(&mut self, message: &Message) {
        let bytes = u64::from(message.total);
        match message.meta.op_type() {
            EFA_IO_SEND => {
                (self.stats.send_wrs, self.stats.send_bytes) =
                    (self.stats.send_wrs + 1, self.stats.send_bytes + bytes)
            }
            EFA_IO_RDMA_READ => {
                (self.stats.read_wrs, self.stats.read_bytes) =
                    (self.stats.read_wrs + 1, self.stats.read_bytes + bytes)
            }
            _ => {
                (self.stats.write_wrs, self.stats.write_bytes) =
                    (self.stats.write_wrs + 1, self.stats.write_bytes + bytes)
            }
        }
    }

    /// Begins messages, and sends packets, as far as the limits allow; sets the timer.
    pub(super) fn transmit(&mut self, port: &mut Port<'_>, qp: &mut Qp) {
        while qp.out.len() < BEGUN && qp.flights.len() < IN_FLIGHT {
            let Some(message) = qp.queued.front() else { break };
            let to = port.net.by_gid(&message.gid).unwrap_or(NOWHERE);
            let Some(number) = self.peers.get_or_default(to).begin(qp.qpn) else { break };
            let Some(message) = qp.queued.pop_front() else { break };
            qp.out.insert((to, number), message);
            self.send_more(port, qp, (to, number));
        }
        if qp.flights.len() < IN_FLIGHT {
            for key in qp.out.keys().collect::<Vec<_>>() {
                self.send_more(port, qp, key);
            }
        }
        self.set_timer(port, qp);
    }

    /// Sends packets of a message that were not sent yet.
    fn send_more(&mut self, port: &mut Port<'_>, qp: &mut Qp, key: Key) {
        while qp.flights.len() < IN_FLIGHT
            && let Some(message) = qp.out.get_mut(&key)
            && message.next < message.count
            && message.answered.has_room(message.next)
        {
            let index = message.next;
            message.next += 1;
            if !self.send_part(port, qp, key, index, 0) {
                return;
            }
        }
    }

    /// Sends a packet of a message; `false` if the message has failed.
    fn send_part(&mut self, port: &mut Port<'_>, qp: &mut Qp, key: Key, index: u32, repeats: u32) -> bool {
        let Some(message) = qp.out.get(&key) else { return false };
        let meta = message.meta;
        if self.gid_of(qp.pd, meta.ah) != Some(message.gid) {
            self.settle(port, qp, key, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH);
            return false;
        }
        let (offset, len) = message.part(index);
        let remote = message.remote.map(|(addr, rkey)| Remote { addr, rkey, total: message.total, offset });
        let (count, imm, qkey) = (message.count, message.imm(), meta.qkey);
        let body = match (remote, meta.op_type()) {
            (Some(remote), EFA_IO_RDMA_READ) => Some(Body::Read { qkey, remote, len }),
            (Some(remote), _) => self.data_of(port, qp, message, index).map(|data| Body::Write {
                qkey,
                remote,
                count,
                imm,
                unsolicited: qp.unsolicited,
                data,
            }),
            (None, _) => self.data_of(port, qp, message, index).map(|data| Body::Send { qkey, imm, data }),
        };
        let Some(body) = body else {
            self.settle(port, qp, key, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY);
            return false;
        };
        let (to, number) = key;
        let floor = self.peers.get(&to).map_or(0, super::peer::Peer::floor);
        let place = Place { epoch: self.epoch, floor, message: number, index };
        if to != NOWHERE {
            self.emit(port, to, qp.qpn, meta.dest_qp_num, place, body);
        }
        if repeats > 0 {
            self.stats.retrans_pkts += 1;
            self.stats.retrans_bytes += u64::from(len);
        }
        let timeout = (TIMEOUT << repeats.min(DOUBLED)).saturating_add(port.net.delay().saturating_mul(2));
        qp.flights.insert((key, index), Flight { deadline: port.now.saturating_add(timeout), repeats });
        true
    }

    pub(super) fn set_timer(&self, port: &mut Port<'_>, qp: &mut Qp) {
        let answers = qp.flights.values().map(|flight| flight.deadline);
        // A message may wait for those of other QPs, if too many to its peer are outstanding: no answer tells this QP of their end.
        let is_blocked = qp.flights.is_empty() && !qp.queued.is_empty();
        let looks = is_blocked.then(|| port.now.saturating_add(PAUSE));
        let late = qp.late.iter().map(|(at, ..)| *at);
        match answers.chain(qp.paused.iter().map(|(at, _)| *at)).chain(looks).chain(late).min() {
            Some(at) => qp.timer.arm(port, qp.index().into(), at),
            None => qp.timer.deadline = None,
        }
    }

    /// The timer has expired: repeats packets without an answer, and messages that found no receive.
    pub(super) fn expire(&mut self, port: &mut Port<'_>, qp: &mut Qp) {
        let now = port.now;
        self.write_late(port, qp);
        for (_, message) in qp.paused.extract_if(.., |(at, _)| *at <= now) {
            qp.queued.push_back(message);
        }
        let late = qp.flights.iter().filter(|(_, flight)| flight.deadline <= now);
        for ((key, index), flight) in late.map(|(at, flight)| (*at, *flight)).collect::<Vec<_>>() {
            // A packet before it may have ended the message.
            if !qp.flights.contains_key(&(key, index)) {
                continue;
            }
            self.stats.retrans_timeout_events += 1;
            if flight.repeats < REPEATS {
                self.send_part(port, qp, key, index, flight.repeats + 1);
                continue;
            }
            self.stats.unresponsive_remote_events += 1;
            let status = match self.peers.get(&key.0).is_some_and(|peer| peer.has_answered) {
                true => EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE,
                false => EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE,
            };
            self.settle(port, qp, key, status);
        }
        self.execute(port, qp);
        // That does nothing in some states.
        self.set_timer(port, qp);
    }

    /// Whether all that a QP waits for are receives, and without a limit of retries.
    pub(crate) fn waits_for_receives(qp: &Qp) -> Option<bool> {
        let is_waiting =
            qp.flights.is_empty() && qp.queued.is_empty() && qp.late.is_empty() && !qp.paused.is_empty();
        is_waiting.then_some(qp.rnr_retry == FOR_EVER)
    }

    /// Removes a message that was begun, with its packets.
    fn end(&mut self, qp: &mut Qp, key: Key) -> Option<Message> {
        let message = qp.out.remove(&key)?;
        let of = qp.flights.range((key, 0)..=(key, u32::MAX));
        for at in of.map(|(at, _)| *at).collect::<Vec<_>>() {
            qp.flights.remove(&at);
        }
        if let Some(peer) = self.peers.get_mut(&key.0) {
            peer.settle(key.1);
        }
        Some(message)
    }

    /// Completes a message that was begun.
    fn settle(&mut self, port: &mut Port<'_>, qp: &mut Qp, key: Key, status: u8) {
        let Some(message) = self.end(qp, key) else { return };
        match (status, message.meta.op_type()) {
            (EFA_IO_COMP_STATUS_OK, _) => self.count_sent(&message),
            (_, EFA_IO_RDMA_READ) => self.stats.read_wr_err += 1,
            (_, EFA_IO_RDMA_WRITE) => self.stats.write_wr_err += 1,
            _ => {}
        }
        match status {
            EFA_IO_COMP_STATUS_OK => self.succeed(port, qp, &message, Some(key)),
            status => self.finish_message(port, qp, &message.meta, status, Some(key)),
        }
    }

    /// Calls `f` with the QP and key of the message that an answer belongs to, and then sends more.
    fn with_answered(
        &mut self,
        port: &mut Port<'_>,
        packet: &Packet,
        f: impl FnOnce(&mut Self, &mut Port<'_>, &mut Qp, Key),
    ) {
        let key = (packet.from, packet.place.message);
        if packet.place.epoch != self.epoch {
            return;
        }
        let Some(peer) = self.peers.get_mut(&packet.from) else { return };
        let Some(qpn) = peer.qpn(packet.place.message) else { return };
        peer.has_answered = true;
        self.with_qp(qpn, |device, qp| {
            if qp.flights.remove(&(key, packet.place.index)).is_some() {
                f(device, port, qp, key);
                device.execute(port, qp);
            }
        });
    }

    /// A packet of a message was answered.
    fn part_done(&mut self, port: &mut Port<'_>, qp: &mut Qp, key: Key, index: u32) {
        let Some(message) = qp.out.get_mut(&key) else { return };
        message.answered.add(index);
        if message.answered.low() >= message.count {
            self.settle(port, qp, key, EFA_IO_COMP_STATUS_OK);
        }
    }

    /// The answer to a packet of a send or write, or a refusal.
    pub(super) fn answered(&mut self, port: &mut Port<'_>, packet: &Packet, status: u8) {
        let index = packet.place.index;
        self.with_answered(port, packet, |device, port, qp, key| match status {
            // A read is answered by data.
            EFA_IO_COMP_STATUS_OK
                if qp.out.get(&key).is_some_and(|m| m.meta.op_type() == EFA_IO_RDMA_READ) => {}
            EFA_IO_COMP_STATUS_OK => device.part_done(port, qp, key, index),
            EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR
                if qp.rnr_retry == FOR_EVER || qp.out.get(&key).is_some_and(|m| m.retries < qp.rnr_retry) =>
            {
                // The next attempt is another message to the receiver, which remembers the outcome of this one.
                if let Some(mut message) = device.end(qp, key) {
                    message.retries = message.retries.saturating_add(1);
                    (message.next, message.answered) = (0, Window::default());
                    qp.paused.push((port.now.saturating_add(PAUSE), message));
                }
            }
            status => device.settle(port, qp, key, status),
        });
    }

    /// The answer to a packet of a read.
    pub(super) fn read_answered(&mut self, port: &mut Port<'_>, packet: &Packet, data: &[u8]) {
        let index = packet.place.index;
        self.with_answered(port, packet, |device, port, qp, key| {
            let Some(message) = qp.out.get(&key).filter(|m| m.meta.op_type() == EFA_IO_RDMA_READ) else {
                return;
            };
            let (offset, len) = message.part(index);
            let is_valid = data.len() == len as usize;
            if is_valid && device.scatter(qp.pd, &message.buffers, offset.into(), data).is_ok() {
                if device.stores_at_once() {
                    trace::placed(port, qp.qpn, &message.buffers, (offset.into(), data.len()));
                }
                device.place_collected(port, lane(qp.qpn, Side::Requester, key));
                device.part_done(port, qp, key, index);
            } else {
                device.settle(port, qp, key, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY);
            }
        });
    }

    /// Removes all messages of a QP, in the order in which they were posted as far as that is known.
    pub(super) fn take_messages(&mut self, qp: &mut Qp) -> Vec<Message> {
        let keys: Vec<Key> = qp.out.keys().collect();
        let mut all: Vec<Message> = keys.into_iter().filter_map(|key| self.end(qp, key)).collect();
        all.extend(qp.paused.drain(..).map(|(_, message)| message));
        all.extend(qp.queued.drain(..));
        all
    }

    /// Removes all messages of a QP without completions.
    pub(super) fn abandon(&mut self, _: &mut Port<'_>, qp: &mut Qp) {
        self.take_messages(qp);
        qp.late.clear();
        qp.timer.deadline = None;
    }

    /// Completes the messages of all QPs that use an address handle, which was destroyed.
    pub(super) fn forget_ah(&mut self, port: &mut Port<'_>, ah: u16) {
        for index in self.qps.keys().collect::<Vec<_>>() {
            let Some(qpn) = self.qps.get(&index).filter(|qp| qp.is_busy()).map(|qp| qp.qpn) else { continue };
            self.with_qp(qpn, |device, qp| {
                let used = qp.out.iter().filter(|(_, message)| message.meta.ah == ah);
                for key in used.map(|(key, _)| key).collect::<Vec<_>>() {
                    device.settle(port, qp, key, EFA_IO_COMP_STATUS_FLUSHED);
                }
                let paused = qp.paused.extract_if(.., |(_, message)| message.meta.ah == ah);
                let mut ended: Vec<Message> = paused.map(|(_, message)| message).collect();
                let (used, left) = qp.queued.drain(..).partition(|message| message.meta.ah == ah);
                let used: std::collections::VecDeque<Message> = used;
                (qp.queued, ended) = (left, ended.drain(..).chain(used).collect());
                for message in ended {
                    device.finish_send(port, qp, &message.meta, EFA_IO_COMP_STATUS_FLUSHED);
                }
                device.execute(port, qp);
            });
        }
    }

    /// The port of another process in this slot is a new one.
    pub(crate) fn forget_slot(&mut self, slot: usize) {
        if let Some(peer) = self.peers.get_mut(&slot) {
            peer.forget();
        }
    }
}
