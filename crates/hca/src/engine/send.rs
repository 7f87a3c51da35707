// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbells and the fetching of send WQEs from the ring.

use super::qp::{Qp, QpKind, State};
use super::{Device, Notice, Port, trace};
use crate::bytes::be32;
use crate::cqe::{Cqe, Syndrome};
use crate::decode::{Ctrl, Malformed, Request, decode};
use crate::memory::Area;
use crate::violation::{Mistake, Object};
use uverbs_mlx5_hw::cqe::MLX5_CQE_REQ_ERR;

/// Bytes of a basic block (`MLX5_SEND_WQE_BB`).
const BB: u64 = 64;
/// Offset of the send counter in a doorbell record.
const SEND_RECORD: u64 = 4;

/// The number of packets that a queue without acknowledgements sends at a time, on a paced device. Each frame of a send
/// that is divided into frames counts.
const BURST: u64 = 64;

/// Registers of a page: four send doorbells with two halves each, of which the kernel keeps the last two for itself
/// (`MLX5_FAST_PATH_BFREGS_PER_UAR`), the CQ's (PRM, UAR page format).
const CQ_ARM: u32 = 0x20;
const SEND: [u32; 8] = [0x800, 0x900, 0xa00, 0xb00, 0xc00, 0xd00, 0xe00, 0xf00];

impl Device {
    /// A register write of 8 bytes, or the first 8 bytes of a burst.
    pub fn doorbell(
        &mut self,
        cx: &mut Port<'_>,
        page: u32,
        offset: u32,
        value: [u8; 8],
        burst: Option<&[u8]>,
    ) {
        if offset == CQ_ARM && burst.is_none() {
            self.arm(cx, page, value);
        } else if SEND.contains(&offset) {
            self.ring(cx, page, value, burst);
        } else {
            self.blame(cx.now, Object::Page(page), 0, Mistake::NoSuchRegister(offset));
        }
    }

    /// Handles a doorbell for a queue that does not exist or is not ready. It is a violation, unless doorbells may be
    /// late: then the queue may have been destroyed in the meantime, for example by a kernel that lost the device.
    fn stale(&mut self, time: u64, object: Object, index: u32, mistake: Mistake) {
        if self.late_doorbells {
            log::debug!("a doorbell of {object:?}, index {index}: {mistake:?}");
        } else {
            self.blame(time, object, index, mistake);
        }
    }

    fn arm(&mut self, cx: &mut Port<'_>, page: u32, value: [u8; 8]) {
        let cqn = be32(&value, 4);
        match self.cqs.get_mut(&cqn) {
            None => self.stale(cx.now, Object::Cq(cqn), 0, Mistake::NoSuchCq),
            Some(cq) if cq.page != page => {
                self.blame(cx.now, Object::Cq(cqn), 0, Mistake::ForeignPage { page });
            }
            Some(cq) => {
                if cq.arm(be32(&value, 0)) {
                    self.notices.push(Notice::Completion { cqn });
                }
            }
        }
    }

    /// Handles the send doorbell: the first 8 bytes of the last WQE.
    fn ring(&mut self, cx: &mut Port<'_>, page: u32, value: [u8; 8], burst: Option<&[u8]>) {
        let ctrl = Ctrl::of(&value);
        let known = self.with_qp(cx, ctrl.qpn, |device, cx, qp| {
            let index = u32::from(ctrl.index);
            let object = Object::Qp(qp.qpn);
            if qp.page.is_some_and(|own| own != page) {
                device.blame(cx.now, object, index, Mistake::ForeignPage { page });
                return;
            }
            if matches!(qp.state, State::Reset | State::Init | State::Rtr) || qp.sq.is_none() {
                device.stale(cx.now, object, index, Mistake::NotReady);
                return;
            }
            if let Err(mistake) = accept_doorbell(qp, ctrl, burst, device.late_doorbells, &mut device.wqe) {
                match qp.copying.runs {
                    true => qp.copying.hold_mistake(index, mistake),
                    false => device.fatal(cx, qp, object, index, mistake),
                }
                return;
            }
            match qp.state {
                State::Err | State::Sqe => device.flush_sends(cx, qp),
                // The queue continues when its timer expires, and then also sends these WQEs.
                _ if !qp.is_reliable() && qp.timer.deadline.is_some() => {}
                _ => device.transmit(cx, qp),
            }
        });
        if known.is_none() {
            self.stale(cx.now, Object::Qp(ctrl.qpn), u32::from(ctrl.index), Mistake::NoSuchQp);
        }
    }

    /// The next WQE of the ring; `None` if all WQEs that doorbells published were fetched. An invalid one is recorded
    /// as a violation, completes with an error and puts the QP into ERR.
    pub(crate) fn fetch(&mut self, cx: &mut Port<'_>, qp: &mut Qp) -> Option<Result<Request, ()>> {
        let (kind, reserved) = (qp.kind.queue()?, self.reserved);
        let sq = qp.sq.as_mut()?;
        let (index, left) = (sq.next, sq.posted.wrapping_sub(sq.next));
        if left == 0 {
            return None;
        }
        let at = u64::from(u32::from(index) & (sq.count - 1)) * BB;
        let (mut block, ring) = ([0; BB as usize], &sq.ring);
        let (wqe, lists) = (&mut self.wqe, &mut self.lists);
        let fetched = ring.read(at, &mut block).map_err(|_| Mistake::MemoryGone).and_then(|()| {
            let ctrl = Ctrl::of(&block);
            if ctrl.index != index {
                return Err(Mistake::WrongIndex { found: ctrl.index });
            }
            if ctrl.qpn != qp.qpn {
                return Err(Mistake::WrongQp { found: ctrl.qpn });
            }
            if ctrl.ds == 0 || u16::from(ctrl.ds).div_ceil(4) > left {
                return Err(Mistake::WrongSize { ds: ctrl.ds });
            }
            let len = usize::from(ctrl.ds) * 16;
            let bytes = match block.get(..len) {
                Some(bytes) => bytes,
                None => read_wqe(ring, at, len, wqe)?,
            };
            trace::request(cx, qp.qpn, kind, bytes);
            decode(kind, bytes, reserved, lists.pop().unwrap_or_default()).map_err(Mistake::Malformed)
        });
        match fetched {
            Ok(request) => {
                sq.next = index.wrapping_add(request.blocks());
                qp.fetched = qp.fetched.wrapping_add(1);
                Some(Ok(request))
            }
            Err(mistake) => {
                // The WQEs behind it can't be located.
                sq.next = sq.posted;
                let opcode = match mistake {
                    Mistake::Malformed(Malformed::Opcode(opcode)) => opcode,
                    _ => 0,
                };
                let srqn_uidx = self.srqn_uidx(None, qp.uidx);
                let cqe = Cqe {
                    kind: MLX5_CQE_REQ_ERR,
                    srqn_uidx,
                    opcode,
                    qpn: qp.qpn,
                    wqe_counter: index,
                    syndrome: Some(Syndrome::LOCAL_QP_OP),
                    ..Cqe::default()
                };
                // Earlier requests are completed first, because the completions of a queue are in order.
                for request in qp.req.drain() {
                    self.complete_send(cx, qp, &request, Err(Syndrome::FLUSH));
                }
                qp.send_failed = true;
                self.complete(cx, qp.send_cqn, cqe);
                self.fatal(cx, qp, Object::Qp(qp.qpn), u32::from(index), mistake);
                Some(Err(()))
            }
        }
    }

    /// Executes the WQEs of the send queue, as far as possible.
    pub(crate) fn transmit(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        match qp.kind {
            QpKind::Rc | QpKind::XrcSend | QpKind::Dci | QpKind::Keys => self.transmit_reliable(cx, qp),
            QpKind::Uc | QpKind::Ud | QpKind::Raw => self.transmit_unreliable(cx, qp),
            QpKind::XrcRecv | QpKind::Dct => {}
        }
    }

    /// Executes the WQEs in order. Each is complete when it is sent. On a paced device, the rest is sent when the timer
    /// expires.
    fn transmit_unreliable(&mut self, cx: &mut Port<'_>, qp: &mut Qp) {
        let mut room = if self.paced { BURST } else { u64::MAX };
        while qp.state == State::Rts || qp.state == State::Sqd && qp.req.is_broken_off() {
            if room == 0 {
                let now = cx.now;
                qp.timer.arm(cx, qp.qpn, now);
                break;
            }
            let (request, first) = match qp.req.broken_off() {
                Some(part) => part,
                None => match self.fetch(cx, qp) {
                    Some(Ok(request)) => (request, 0),
                    _ => break,
                },
            };
            let result = match qp.kind {
                QpKind::Uc => self.send_unreliable(cx, qp, &request, first, &mut room),
                QpKind::Ud => {
                    room -= 1;
                    self.send_datagram(cx, qp, &request).map(|()| None)
                }
                _ => self.send_frame(cx, qp, &request, first, &mut room),
            };
            self.report_signatures(cx, qp.send_cqn);
            match result {
                Ok(Some(next)) => qp.req.break_off(request, next),
                Ok(None) => match self.send_by_script(cx, qp, &request, qp.fetched) {
                    None => self.complete_send(cx, qp, &request, Ok(None)),
                    Some(syndrome) => {
                        self.complete_send(cx, qp, &request, Err(syndrome));
                        self.fail(cx, qp);
                    }
                },
                Err(syndrome) => {
                    self.complete_send(cx, qp, &request, Err(syndrome));
                    self.fail(cx, qp);
                }
            }
        }
        self.drained(qp);
    }
}

/// Checks a doorbell, its record and its burst, and stores the new end of the queue. A late doorbell may name a WQE
/// that was already executed, and whose slot has another WQE now.
fn accept_doorbell(
    qp: &mut Qp,
    ctrl: Ctrl,
    burst: Option<&[u8]>,
    late: bool,
    wqe: &mut Vec<u8>,
) -> Result<(), Mistake> {
    let Some(sq) = &mut qp.sq else { return Ok(()) };
    let record = sq.record.load_be32(SEND_RECORD).map_err(|_| Mistake::MemoryGone)? as u16;
    let (posted, new) = (u32::from(record.wrapping_sub(sq.next)), record.wrapping_sub(sq.posted));
    if new.cast_signed() < 0 {
        return Err(Mistake::RingBackwards);
    }
    if posted > sq.count {
        return Err(Mistake::RingOverrun { posted, size: sq.count });
    }
    let blocks = u16::from(ctrl.ds).div_ceil(4);
    // A doorbell without new WQEs repeats the last one.
    if record.wrapping_sub(blocks) != ctrl.index && !late {
        return Err(Mistake::DoorbellMismatch { doorbell: ctrl.index, record: record.wrapping_sub(blocks) });
    }
    if let Some(burst) = burst.filter(|_| !late) {
        let len = usize::from(ctrl.ds) * 16;
        if len > burst.len() || burst.len() != len.next_multiple_of(BB as usize) {
            return Err(Mistake::BlueFlameSize(burst.len()));
        }
        let at = u64::from(u32::from(ctrl.index) & (sq.count - 1)) * BB;
        if *read_wqe(&sq.ring, at, len, wqe)? != burst[..len] {
            return Err(Mistake::BlueFlameDiffers);
        }
    }
    sq.posted = record;
    Ok(())
}

/// Reads a WQE of `len` bytes into the memory of `wqe`.
fn read_wqe<'a>(ring: &Area, at: u64, len: usize, wqe: &'a mut Vec<u8>) -> Result<&'a [u8], Mistake> {
    wqe.resize(len, 0);
    ring.read_wrapped(at, wqe).map_err(|_| Mistake::MemoryGone)?;
    Ok(wqe)
}
