// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that are executed at the receiver at once ([`Near`]): the packet is made as for the network, and the receiving device handles
//! it in the same call, with the code that handles packets which arrive. What differs is where the data are: a packet that does not travel
//! may name memory instead of bytes, so that they are copied once, and it may stand for several packets of its message.
//!
//! Such a packet of several ends where the receiver would acknowledge a packet, and is made only if the receiver executes all of it: it
//! expects the first packet, and all bytes have a place in mapped memory. Otherwise each packet has its own fate, as in the network.

use super::mkey::{Kind, User, access};
use super::packet::{Direct, Packet, Source};
use super::qp::{Qp, QpKind};
use super::{Device, Port};
use crate::decode::{Op, RecvWqe, Segment};
use crate::memory::Memory;
use std::sync::Arc;
use uverbs_fabric::Near;
use uverbs_fabric::process::Mapped;

/// A part of a message, for the question whether its receiver takes it at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) dest_qpn: u32,
    pub(super) psn: u32,
    pub(super) op: &'a Op,
    pub(super) is_first: bool,
    pub(super) bytes: u64,
}

impl Device {
    /// Executes requests of the queue that has waited longest, at their receivers if that has the effect of packets.
    pub(super) fn exchange_one(&mut self, cx: &mut Port<'_>, near: &mut Near<'_, Self>) {
        let Some(qpn) = self.ready.pop_front() else { return };
        let near = (cx.net.is_direct() && cx.net.in_flight() == 0).then_some(near);
        self.with_qp(cx, qpn, |device, cx, qp| {
            qp.is_ready = false;
            device.transmit_now(cx, qp, near);
        });
    }

    /// Lets a queue wait for [`exchange_one`](Self::exchange_one).
    pub(super) fn make_ready(&mut self, qp: &mut Qp) {
        if !core::mem::replace(&mut qp.is_ready, true) {
            self.ready.push_back(qp.qpn);
        }
    }

    /// The bytes of a request in mapped memory of a region, if all of them are there and `user` may read them.
    pub(super) fn source(
        &self,
        user: User,
        segments: &[Segment],
        mut offset: u64,
        len: usize,
    ) -> Option<Source> {
        for segment in segments {
            let size = segment.len();
            if offset >= size {
                offset -= size;
                continue;
            }
            let Segment::Memory { lkey, addr, .. } = segment else { return None };
            if len as u64 > size - offset {
                return None;
            }
            let (memory, offset) =
                self.mapped(user, *lkey, addr.wrapping_add(offset), len, access::LOCAL_READ)?;
            return Some(Source::new(memory, offset, len));
        }
        None
    }

    /// `len` bytes at an address of a region, if they are mapped and `user` may use them for all of `need`.
    #[inline]
    pub(super) fn mapped(
        &self,
        user: User,
        key: u32,
        addr: u64,
        len: usize,
        need: u32,
    ) -> Option<(&Arc<dyn Memory>, u64)> {
        self.mkeys.mapped(user, key, addr, len, need).map(|(memory, offset, _)| (memory, offset))
    }

    /// Whether a QP of this device executes all packets of a part of a message, one after the other.
    fn takes(&self, part: &Part<'_>) -> bool {
        let qp = self.qps.get(&part.dest_qpn).filter(|qp| qp.kind == QpKind::Rc && qp.state.receives());
        let Some(qp) = qp.filter(|qp| qp.resp.expected == part.psn && qp.resp.kept.is_none()) else {
            return false;
        };
        match part.op {
            Op::Write { addr, rkey, .. } => {
                let begun = qp.resp.writing.map(|writing| (writing.addr, writing.rkey));
                let place = if part.is_first { Some((*addr, *rkey)) } else { begun };
                let need = access::REMOTE_WRITE;
                place.is_some_and(|(addr, rkey)| {
                    self.mapped(qp.user(), rkey, addr, part.bytes as usize, need).is_some()
                })
            }
            Op::Send { .. } => match &qp.resp.receiving {
                Some(begun) if !part.is_first => {
                    self.has_place(qp, begun.srqn, &begun.taken.wqe, (begun.done, part.bytes))
                }
                None if part.is_first => {
                    let next = match qp.srqn {
                        Some(srqn) => self.srqs.get(&srqn).and_then(|srq| srq.peek()),
                        None => qp.rq.as_ref().and_then(|rq| rq.peek()),
                    };
                    next.is_some_and(|wqe| self.has_place(qp, qp.srqn, &wqe, (0, part.bytes)))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether a receive has mapped memory for `len` bytes of a message.
    fn has_place(
        &self,
        qp: &Qp,
        srqn: Option<u32>,
        wqe: &RecvWqe,
        (mut offset, mut len): (u64, u64),
    ) -> bool {
        let user = self.receiver(qp, srqn);
        for segment in &wqe.scatter {
            let size = segment.len();
            if offset >= size {
                offset -= size;
                continue;
            }
            let (n, Segment::Memory { lkey, addr, .. }) = ((size - offset).min(len), segment) else {
                return false;
            };
            if self.mapped(user, *lkey, addr.wrapping_add(offset), n as usize, access::LOCAL_WRITE).is_none()
            {
                return false;
            }
            (offset, len) = (0, len - n);
            if len == 0 {
                return true;
            }
        }
        false
    }

    /// As [`takes`](Self::takes), of the device of this number.
    pub(super) fn receiver_takes(
        &self,
        cx: &Port<'_>,
        near: &mut Near<'_, Self>,
        to: usize,
        part: &Part<'_>,
    ) -> bool {
        match to == cx.me {
            true => self.takes(part),
            false => near.device(to).is_some_and(|device| device.takes(part)),
        }
    }

    /// Whether a packet of a QP to another one can be given to it, and stands for as many packets there.
    pub(super) fn reaches(
        &self,
        cx: &Port<'_>,
        near: &mut Near<'_, Self>,
        to: usize,
        (qp, dest_qpn): (&Qp, u32),
    ) -> bool {
        let has_same_mtu =
            |device: &Self| device.qps.get(&dest_qpn).is_none_or(|peer| peer.attr.mtu == qp.attr.mtu);
        match to == cx.me {
            // A queue that is connected to itself is in use.
            true => qp.qpn != dest_qpn && has_same_mtu(self) && !self.is_held(cx, dest_qpn),
            false => {
                cx.net.connects(cx.me, to)
                    && near
                        .device(to)
                        .is_some_and(|device| has_same_mtu(device) && !device.is_held(cx, dest_qpn))
            }
        }
    }

    /// Whether a queue takes no packet now.
    #[inline]
    pub(super) fn is_held(&self, cx: &Port<'_>, qpn: u32) -> bool {
        cx.net.has_copies() && self.qps.get(&qpn).is_some_and(|qp| qp.copying.runs)
    }

    /// Gives a packet to its receiver, which it [reaches](Self::reaches), and takes the answer, if the receiver gives one itself.
    pub(super) fn hand_to(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        near: &mut Near<'_, Self>,
        (to, packet): (usize, Packet),
    ) {
        // Data that were copied without the lock held nobody up.
        let bytes = if packet.direct.copied.is_some() { 0 } else { packet.len() };
        cx.net.pass(cx.me, to, packet.count(), bytes);
        // Before the receiver, which may be a queue of this device, looks for errors of its own.
        self.report_sent_signatures(cx, qp);
        let answer = if to == cx.me {
            self.take_packet(cx, &packet);
            self.answer.take()
        } else {
            let Some(device) = near.device(to) else { return };
            device.take_packet(&mut Port { now: cx.now, me: to, net: &mut *cx.net }, &packet);
            device.answer.take()
        };
        packet.body.into_data().into_iter().for_each(|data| cx.net.reuse(data));
        if let Some(answer) = answer {
            cx.net.pass(to, cx.me, answer.count(), answer.len());
            self.respond(cx, qp, &answer);
        }
    }

    /// Answers a request: by a packet, or to the requester itself.
    pub(super) fn give(&mut self, cx: &mut Port<'_>, request: &Packet, answer: Packet) {
        match request.direct.takes_answer {
            true => self.answer = Some(Box::new(answer)),
            false => cx.net.send(cx.now, request.from, answer),
        }
    }

    /// As [`give`](Self::give), the data of a read that are in mapped memory of a region. `false`: they are to be sent.
    pub(super) fn give_read(
        &mut self,
        request: &Packet,
        user: User,
        (addr, rkey, len): (u64, u32, u64),
        answer: impl FnOnce() -> Packet,
        count: u64,
    ) -> bool {
        if !request.direct.takes_answer || len == 0 {
            return false;
        }
        let Some((memory, offset)) = self.mapped(user, rkey, addr, len as usize, access::REMOTE_READ) else {
            return false;
        };
        let source = Some(Source::new(memory, offset, len as usize));
        let direct = Direct { more: count as u32 - 1, source, ..Direct::default() };
        self.answer = Some(Box::new(Packet { direct, ..answer() }));
        true
    }
}

impl super::mkey::Mkeys {
    /// The memory of `len` bytes at `addr` of a region, if they are mapped and `user` may use them for all of `need`. `None` for other keys,
    /// too.
    #[inline]
    pub(super) fn mapped(
        &self,
        user: User,
        key: u32,
        addr: u64,
        len: usize,
        need: u32,
    ) -> Option<(&Arc<dyn Memory>, u64, Mapped<'_>)> {
        let mkey = self.get(key).filter(|mkey| mkey.pd == user.pd && mkey.access & need == need)?;
        let Kind::Region { memory, iova } = &mkey.kind else { return None };
        let offset = addr.checked_sub(*iova)?;
        // Bytes that are mapped are inside.
        Some((memory, offset, memory.mapped(offset, len)?))
    }
}
