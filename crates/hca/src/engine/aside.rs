// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long messages whose data are copied without the fabric's lock ([`Aside`]).
//!
//! When the next packets of a message would be executed at their receiver with one copy ([`near`](super::near)), and are long, the requester
//! leaves the copy to the thread. Requester and receiver have checked all that the packets' execution checks. Until the copy has ended, the
//! device does nothing with both queues: they execute no request, take no packet, and do not fail. What happens to them meanwhile takes
//! effect afterwards: doorbells and their mistakes, packets, timers, a broken CQ. When the thread has the lock again, the requester gives the
//! receiver one packet that stands for all of the part, whose data are in their place, before anything else happens.
//!
//! So a completion with an error, which gives memory back to the program, is not written for a queue while its data are copied. Nor is a key
//! changed whose memory is: the kernel's updates of keys wait, and commands wait for all copies. A window or an indirect key is never part of
//! such a copy, so that binding or invalidating one ends no access of it.

use super::mkey::{User, access};
use super::packet::{Packet, Source, psn_add, psn_diff};
use super::qp::{Qp, QpKind, State};
use super::reliable::ACK_EVERY;
use super::{Device, Port};
use crate::decode::{Op, Segment};
use crate::memory::Memory;
use crate::violation::{Mistake, Object};
use std::sync::Arc;
use uverbs_fabric::{Aside, Near};

/// The bytes of a copy: at least, so that it costs more than leaving the lock, and at most, so that a call that waits for it does not wait
/// long.
pub(super) const LEAST: u64 = 128 << 10;
const MOST: u64 = 1 << 20;
/// The packets that a queue keeps during a copy of its data. More are lost, as in a port without buffers.
const MAX_HELD: usize = 1024;

/// A place in memory.
pub(super) type Place = (Arc<dyn Memory>, u64);

fn is_at(place: &Place, (memory, offset): (&Arc<dyn Memory>, u64)) -> bool {
    Arc::ptr_eq(&place.0, memory) && place.1 == offset
}

/// A part of a message whose data are copied.
#[derive(Clone, Debug)]
pub(super) struct Made {
    /// The number of its first packet.
    psn: u32,
    /// Its packets.
    pub(super) packets: u32,
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) len: usize,
}

impl Made {
    /// Where the data are, which are from this source.
    pub(super) fn target(&self, source: &Source) -> Option<&Place> {
        source.is(&self.from, self.len).then_some(&self.to)
    }
}

/// Whether all `len` bytes of data that were to be written to a place are there.
pub(super) fn is_there(made: Option<&Place>, memory: &Arc<dyn Memory>, offset: u64) -> bool {
    made.is_some_and(|made| is_at(made, (memory, offset)))
}

/// What happens to a queue during a copy.
#[derive(Debug, Default)]
struct Held {
    /// The first invalid doorbell: its index.
    mistake: Option<(u32, Mistake)>,
    /// Whether its timer has expired.
    expired: bool,
    #[expect(clippy::vec_box, reason = "the network uses their memory again")]
    packets: Vec<Box<Packet>>,
}

/// The copy of data that a queue sends, requests or receives.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Whether there is one: then the queue is held.
    pub(super) runs: bool,
    /// The packets of the part, of a request of this queue.
    begun: Option<(u32, u32)>,
    /// The part while its packets are executed.
    pub(super) made: Option<Box<Made>>,
    /// The number of the packet from which on a copy was not possible after all.
    refused: Option<u32>,
    held: Option<Box<Held>>,
}

impl Copying {
    fn held(&mut self) -> &mut Held {
        self.held.get_or_insert_default()
    }

    /// A doorbell is invalid, which takes effect after the copy.
    pub(super) fn hold_mistake(&mut self, index: u32, mistake: Mistake) {
        self.held().mistake.get_or_insert((index, mistake));
    }

    /// The timer of the queue has expired. Whether that takes effect after the copy.
    pub(super) fn holds_timer(&mut self) -> bool {
        if self.runs {
            self.held().expired = true;
        }
        self.runs
    }

    /// Keeps a packet until the end of the copy, if there is one; returns it otherwise.
    pub(super) fn hold(&mut self, packet: Box<Packet>) -> Option<Box<Packet>> {
        if !self.runs {
            return Some(packet);
        }
        let held = self.held();
        if held.packets.len() < MAX_HELD {
            held.packets.push(packet);
        }
        None
    }
}

impl Qp {
    /// It does nothing until the end of the copy. Whether it was in the list of queues that wait for an exchange.
    fn begin_copy(&mut self) -> bool {
        self.copying.runs = true;
        core::mem::replace(&mut self.is_ready, true)
    }

    fn end_copy(&mut self) -> Option<Box<Held>> {
        if core::mem::take(&mut self.copying.runs) {
            self.is_ready = false;
        }
        self.copying.held.take()
    }
}

/// What becomes of the next packets of a long message.
#[derive(Debug)]
pub(super) enum Next {
    /// They are executed with their copies.
    Usual,
    /// They wait: the copy is left to the thread, or another one is.
    Wait,
    /// They are executed, and their data are in their place.
    Made(Box<Made>),
}

/// Memory at one end of a part.
#[derive(Clone, Copy, Debug)]
struct Range {
    user: User,
    key: u32,
    addr: u64,
    /// The bytes that have one entry of a list.
    room: u64,
    need: u32,
}

impl Range {
    /// The memory behind the first `offset` bytes of a list.
    fn of(user: User, segments: &[Segment], mut offset: u64, need: u32) -> Option<Self> {
        for segment in segments {
            let size = segment.len();
            if offset < size {
                let Segment::Memory { lkey, addr, .. } = segment else { return None };
                let addr = addr.wrapping_add(offset);
                return Some(Self { user, key: *lkey, addr, room: size - offset, need });
            }
            offset -= size;
        }
        None
    }

    /// The memory of this many bytes, if it is that of a region.
    fn place(&self, device: &Device, len: u64) -> Option<Place> {
        let Self { user, key, addr, need, .. } = *self;
        let (memory, offset) = device.mapped(user, key, addr, usize::try_from(len).ok()?, need)?;
        Some((Arc::clone(memory), offset))
    }
}

/// The rest of a message of a queue.
#[derive(Clone, Copy, Debug)]
struct Rest<'a> {
    op: &'a Op,
    psn: u32,
    /// The packets and bytes before it, and those that are left.
    before: (u32, u64),
    left: (u32, u64),
    mtu: u64,
}

impl Rest<'_> {
    /// The packets and bytes of the next part, which has at most `room` bytes.
    fn part(&self, room: u64) -> Option<(u32, u64)> {
        let (packets, left) = self.left;
        let room = room.min(MOST);
        let has_imm = matches!(self.op, Op::Write { imm: Some(_), .. });
        // The packet with immediate data needs a receive.
        if left <= room && !has_imm {
            return (left >= LEAST).then_some((packets, left));
        }
        // It ends with a packet that requests an acknowledgement, so that the queue goes on.
        let most = (room / self.mtu).min(u64::from(packets) - 1) as u32;
        let most = most.checked_sub(psn_add(self.psn, most).wrapping_sub(1) % ACK_EVERY)?;
        let bytes = u64::from(most) * self.mtu;
        (bytes >= LEAST).then_some((most, bytes))
    }
}

impl Device {
    /// What becomes of the next packets of a queue's message, of which [`LEAST`] bytes are not sent.
    #[cold]
    pub(super) fn copy_next(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        near: &mut Near<'_, Self>,
        to: usize,
    ) -> Next {
        if let Some(made) = qp.copying.made.take() {
            return if made.psn == qp.req.send { Next::Made(made) } else { Next::Usual };
        }
        if !cx.net.may_leave_copy() || qp.kind != QpKind::Rc || qp.copying.refused == Some(qp.req.send) {
            return Next::Usual;
        }
        let Some((packets, copy)) = self.plan(cx, qp, near, to) else { return Next::Usual };
        if cx.net.has_left_copy() {
            self.make_ready(qp);
            return Next::Wait;
        }
        let peer = copy.ends[1].1;
        let device = if to == cx.me { &mut *self } else { near.device(to).unwrap_or(self) };
        let Some(receiver) = device.qps.get_mut(&peer) else { return Next::Usual };
        if receiver.begin_copy() {
            device.ready.retain(|qpn| *qpn != peer);
        }
        qp.begin_copy();
        qp.copying.begun = Some((qp.req.send, packets));
        cx.net.leave_copy(copy);
        Next::Wait
    }

    /// The copy of the next part of a message, if the receiver executes all of its packets. Returns their number, too.
    fn plan(&self, cx: &Port<'_>, qp: &mut Qp, near: &mut Near<'_, Self>, to: usize) -> Option<(u32, Aside)> {
        let (user, psn, peer) = (qp.user(), qp.req.send, qp.attr.dest_qpn);
        let mtu = u64::from(qp.attr.mtu.max(1));
        let sent = qp.req.sent_at(psn)?;
        let at = psn_diff(psn, sent.first).cast_unsigned();
        let offset = u64::from(at) * mtu;
        let left = (sent.count - at, sent.len.checked_sub(offset)?);
        let rest = Rest { op: &sent.request.op, psn, before: (at, offset), left, mtu };
        let device = if to == cx.me { self } else { &*near.device(to)? };
        let far = device.range(peer, &rest, sent.len)?;
        let reads = matches!(sent.request.op, Op::Read { .. });
        if reads && (sent.answered != at || sent.inline.is_some()) {
            return None;
        }
        let need = if reads { access::LOCAL_WRITE } else { access::LOCAL_READ };
        let own = Range::of(user, &sent.request.data, offset, need)?;
        let (packets, bytes) = if reads {
            let packets = super::reliable::part_of_read(cx, at, left.0);
            let bytes = left.1.min(u64::from(packets) * mtu);
            (own.room >= bytes && bytes >= LEAST).then_some((packets, bytes))?
        } else {
            rest.part(own.room.min(far.room))?
        };
        let ((own, own_place), (far, far_place)) =
            ((own, own.place(self, bytes)?), (far, far.place(device, bytes)?));
        let mut keys = [(cx.me, own.key >> 8), (to, far.key >> 8)];
        let (mut from, mut into) = (own_place, far_place);
        if reads {
            keys.swap(0, 1);
            core::mem::swap(&mut from, &mut into);
        }
        let ends = [(cx.me, user.qpn), (to, peer)];
        let len = usize::try_from(bytes).ok()?;
        Some((packets, Aside { ends, keys, from, to: into, len }))
    }

    /// The memory of the rest of a message of `len` bytes at its receiver, a queue of this device, if it may be accessed now.
    fn range(&self, qpn: u32, rest: &Rest<'_>, len: u64) -> Option<Range> {
        let qp = self.qps.get(&qpn).filter(|qp| qp.kind == QpKind::Rc && qp.state.receives())?;
        let (resp, is_first) = (&qp.resp, rest.before.0 == 0);
        if qp.copying.runs || resp.expected != rest.psn || resp.kept.is_some() {
            return None;
        }
        let user = qp.user();
        let permits = |need: u32| qp.attr.access & need == need;
        let is_free = resp.receiving.is_none() && resp.writing.is_none();
        match *rest.op {
            Op::Write { addr, rkey, .. } => {
                let need = access::REMOTE_WRITE;
                let (rkey, addr) = match &resp.writing {
                    None if is_first && is_free => {
                        // The first packet checks all of it.
                        self.mapped(user, rkey, addr, usize::try_from(len).ok()?, need)?;
                        (rkey, addr)
                    }
                    Some(writing) if !is_first && writing.left == rest.left.1 => (writing.rkey, writing.addr),
                    _ => return None,
                };
                permits(need).then_some(Range { user, key: rkey, addr, room: rest.left.1, need })
            }
            Op::Read { addr, rkey } => {
                let need = access::REMOTE_READ;
                let takes = permits(need) && is_free && qp.attr.max_dest_rd_atomic > 0;
                let addr = addr.wrapping_add(rest.before.1);
                takes.then_some(Range { user, key: rkey, addr, room: rest.left.1, need })
            }
            Op::Send { .. } => {
                let need = access::LOCAL_WRITE;
                match &resp.receiving {
                    Some(begun) if !is_first => {
                        Range::of(self.receiver(qp, begun.srqn), &begun.taken.wqe.scatter, begun.done, need)
                    }
                    // Another queue may take the next receive of an SRQ during the copy.
                    None if is_first && is_free && qp.srqn.is_none() => {
                        Range::of(user, &qp.rq.as_ref()?.peek()?.scatter, 0, need)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A copy of a queue's data has ended: its packets are executed, and then what has happened to both queues meanwhile.
    pub(super) fn end_copy(
        &mut self,
        cx: &mut Port<'_>,
        near: &mut Near<'_, Self>,
        copy: &Aside,
        is_done: bool,
    ) {
        let [(_, own), (to, peer)] = copy.ends;
        let device = if to == cx.me { Some(&mut *self) } else { near.device(to) };
        let of_peer = device.and_then(|device| device.qps.get_mut(&peer)?.end_copy());
        let of_own = self.with_qp(cx, own, |device, cx, qp| {
            let held = qp.end_copy();
            if let Some((psn, packets)) = qp.copying.begun.take() {
                device.execute_copied(cx, qp, near, (psn, packets, copy, is_done));
            }
            held
        });
        let mut there = Port { now: cx.now, me: to, net: &mut *cx.net };
        match near.device(to) {
            Some(device) => device.release(&mut there, peer, of_peer),
            None => self.release(&mut there, peer, of_peer),
        }
        self.release(cx, own, of_own.flatten());
    }

    /// Executes the packets of a part that was copied. One whose copy has failed goes on with the copies of its packets, which report the
    /// error.
    fn execute_copied(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        near: &mut Near<'_, Self>,
        (psn, packets, copy, is_done): (u32, u32, &Aside, bool),
    ) {
        if !is_done {
            qp.copying.refused = Some(psn);
            return;
        }
        if !matches!(qp.state, State::Rts | State::Sqd) || qp.req.send != psn {
            return;
        }
        let (from, to) = (copy.from.clone(), copy.to.clone());
        qp.copying.made = Some(Box::new(Made { psn, packets, from, to, len: copy.len }));
        self.send_packet(cx, qp, Some(near));
        qp.copying.made = None;
    }

    /// A queue goes on after a copy.
    fn release(&mut self, cx: &mut Port<'_>, qpn: u32, held: Option<Box<Held>>) {
        let Held { mistake, expired, packets } = held.map_or_else(Held::default, |held| *held);
        self.with_qp(cx, qpn, |device, cx, qp| {
            if let Some((index, mistake)) = mistake {
                device.fatal(cx, qp, Object::Qp(qpn), index, mistake);
            }
            device.transmit_reliable(cx, qp);
            if expired && qp.timer.deadline.is_none() && (qp.req.rnr || qp.req.una != qp.req.send) {
                let now = cx.now;
                qp.timer.arm(cx, qpn, now);
            }
        });
        for packet in packets {
            self.arrive(cx, packet);
        }
        self.end_users_of_broken_cqs(cx);
    }
}
