// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shortest way of the usual request: a SEND, RDMA WRITE or RDMA READ of one packet and one entry, between regions of two devices, on a
//! reliable connection with nothing else in progress. It takes effect without a request, a packet and an answer in memory: the device reads
//! the WQE, checks what it would check, copies the data, counts the packets, and writes the completions.
//!
//! A request is executed here only if nothing about it can fail and no state is kept for later; whatever is unusual is left to the
//! code for all requests, before anything has changed. Only the acknowledgement is the usual packet, one for all requests that were
//! executed together; it comes for requests that are complete, and has no effect.

use super::mkey::access;
use super::packet::psn_add;
use super::qp::{Qp, QpKind, State};
use super::{Device, Port};
use crate::bytes::{be32, be64, zero};
use crate::cqe::Cqe;
use crate::decode::{Ctrl, RECEIVE_TERMINATOR};
use uverbs_fabric::Near;
use uverbs_mlx5_hw::cqe::{MLX5_CQE_REQ, MLX5_CQE_RESP_SEND};
use uverbs_mlx5_hw::wqe::{MLX5_INLINE_SEG, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_SEND};

/// Bytes of a basic block and of a segment.
const BB: usize = 64;
const SEG: usize = 16;

/// What a WQE of one block asks for.
#[derive(Clone, Copy, Debug)]
struct Short {
    opcode: u8,
    signaled: bool,
    solicited: bool,
    /// Address and key at the peer; 0 of a SEND.
    remote: (u64, u32),
    len: u32,
    lkey: u32,
    addr: u64,
}

impl Short {
    /// Decodes a WQE of the usual form.
    fn of(block: &[u8; BB], ctrl: Ctrl) -> Option<Self> {
        let (opcode, mode) = (block[3], block[11]);
        // No fence, and a completion always or only after an error.
        if block[0] != 0 || block[9] != 0 || block[10] != 0 || mode & !0b1010 != 0 {
            return None;
        }
        let (at, remote) = match (opcode, ctrl.ds) {
            (MLX5_OPCODE_SEND, 2) => (SEG, (0, 0)),
            (MLX5_OPCODE_RDMA_WRITE | MLX5_OPCODE_RDMA_READ, 3) if zero(block, SEG + 12..2 * SEG) => {
                (2 * SEG, (be64(block, SEG), be32(block, SEG + 8)))
            }
            _ => return None,
        };
        let len = be32(block, at);
        let (signaled, solicited) = (mode & 0b1000 != 0, mode & 0b10 != 0);
        // A length of 0 means 2^31 bytes.
        (len != 0 && len & MLX5_INLINE_SEG == 0).then_some(Self {
            opcode,
            signaled,
            solicited,
            remote,
            len,
            lkey: be32(block, at + 4),
            addr: be64(block, at + 8),
        })
    }
}

/// The memory of a receive with one entry.
#[derive(Clone, Copy, Debug)]
struct Place {
    index: u16,
    room: u32,
    lkey: u32,
    addr: u64,
}

impl super::recv::RecvRing {
    /// The next receive, if it has one entry.
    fn next_place(&self) -> Option<Place> {
        if self.broken || self.padded || self.stride < SEG as u64 || self.posted().ok()? == 0 {
            return None;
        }
        let mut bytes = [0; 2 * SEG];
        let used = bytes.get_mut(..(2 * SEG).min(self.stride as usize))?;
        let slot = u32::from(self.taken) & (self.count - 1);
        self.ring.read(u64::from(slot) * self.stride, used).ok()?;
        let is_one = used.len() == SEG || be32(used, SEG) == 0 && be32(used, SEG + 4) == RECEIVE_TERMINATOR;
        let (room, lkey) = (be32(used, 0), be32(used, 4));
        let is_usual = room != 0 && room & MLX5_INLINE_SEG == 0;
        (is_one && is_usual).then(|| Place { index: self.taken, room, lkey, addr: be64(used, 8) })
    }
}

impl Device {
    /// Executes the next request of a queue, if it is of the usual form. `false`: nothing has changed.
    pub(super) fn execute_quickly(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        near: &mut Near<'_, Self>,
    ) -> bool {
        let (from, to) = (cx.me, super::reliable::peer(cx, qp));
        let req = &qp.req;
        if qp.kind != QpKind::Rc || qp.state != State::Rts || !req.is_clear() {
            return false;
        }
        let (psn, dest_qpn) = (req.next, qp.attr.dest_qpn);
        let Some(sq) = qp.sq.as_mut().filter(|sq| sq.next != sq.posted) else { return false };
        let mut block = [0; BB];
        let at = u64::from(u32::from(sq.next) & (sq.count - 1)) * BB as u64;
        if sq.ring.read(at, &mut block).is_err() {
            return false;
        }
        let ctrl = Ctrl::of(&block);
        let Some(wr) = Short::of(&block, ctrl).filter(|wr| wr.len <= qp.attr.mtu) else { return false };
        if ctrl.index != sq.next || ctrl.qpn != qp.qpn {
            return false;
        }
        let reads = wr.opcode == MLX5_OPCODE_RDMA_READ;
        let is_refused = reads && (qp.attr.max_rd_atomic == 0 || wr.len as usize <= qp.scatter_req);
        let Some(to) = to.filter(|to| *to != from && cx.net.connects(from, *to) && !is_refused) else {
            return false;
        };
        let user = super::mkey::User { pd: qp.pd, qpn: qp.qpn };
        let need = if reads { access::LOCAL_WRITE } else { access::LOCAL_READ };
        let len = wr.len as usize;
        let Some((memory, offset)) = self.mapped(user, wr.lkey, wr.addr, len, need) else { return false };
        let Some(device) = near.device(to) else { return false };
        let is_done = match reads {
            true => device.answer_quickly(dest_qpn, psn, wr, &**memory, offset),
            false => {
                let Some(data) = memory.mapped(offset, len) else { return false };
                let mut port = Port { now: cx.now, me: to, net: &mut *cx.net };
                device.take_quickly(&mut port, (from, qp.qpn), (dest_qpn, psn), wr, data)
            }
        };
        if !is_done {
            return false;
        }
        sq.next = ctrl.index.wrapping_add(1);
        qp.fetched = qp.fetched.wrapping_add(1);
        qp.req.pass(&qp.attr);
        cx.net.pass(from, to, 1, len);
        if reads {
            cx.net.pass(to, from, 1, 0);
        }
        if wr.signaled {
            let cqe = Cqe {
                kind: MLX5_CQE_REQ,
                srqn_uidx: self.srqn_uidx(None, qp.uidx),
                opcode: wr.opcode,
                byte_cnt: wr.len,
                qpn: qp.qpn,
                wqe_counter: ctrl.index,
                ..Cqe::default()
            };
            self.complete_now(cx, qp.send_cqn, cqe);
        }
        true
    }

    /// The QP of this number, if it expects this packet and nothing else has begun.
    fn expecting(&mut self, qpn: u32, psn: u32, rights: u32) -> Option<&mut Qp> {
        let qp = self.qps.get_mut(&qpn)?;
        let is_usual = qp.kind == QpKind::Rc
            && qpn > 1
            && (qp.state == State::Rts || qp.established && qp.state.receives())
            && qp.attr.access & rights == rights
            && qp.resp.expects(psn);
        is_usual.then_some(qp)
    }

    /// Executes the last packet of a SEND or an RDMA WRITE. `false`: nothing has changed.
    fn take_quickly(
        &mut self,
        cx: &mut Port<'_>,
        from: (usize, u32),
        (qpn, psn): (u32, u32),
        wr: Short,
        data: uverbs_fabric::process::Mapped<'_>,
    ) -> bool {
        let is_send = wr.opcode == MLX5_OPCODE_SEND;
        let rights = if is_send { 0 } else { access::REMOTE_WRITE };
        let Some(qp) = self.expecting(qpn, psn, rights) else { return false };
        let (user, place) = (qp.user(), qp.rq.as_ref().filter(|_| is_send && qp.srqn.is_none()));
        let place = place.and_then(|rq| rq.next_place()).filter(|place| place.room >= wr.len);
        if is_send && (place.is_none() || data.len() <= qp.scatter_resp) {
            return false;
        }
        let ((addr, key), need) = match place {
            Some(place) => ((place.addr, place.lkey), access::LOCAL_WRITE),
            None => (wr.remote, access::REMOTE_WRITE),
        };
        let Some((memory, offset)) = self.mapped(user, key, addr, data.len(), need) else { return false };
        if memory.write_mapped(offset, data).is_err() {
            return false;
        }
        let Some(qp) = self.qps.get_mut(&qpn) else { return false };
        if qp.resp.pass(from) {
            self.unacknowledged.push(qpn);
        }
        if let (Some(place), Some(rq)) = (place, qp.rq.as_mut()) {
            rq.taken = place.index.wrapping_add(1);
            let (cqn, uidx, slid) = (qp.recv_cqn, qp.uidx, super::execute::source_lid(cx, from.0));
            let cqe = Cqe {
                kind: MLX5_CQE_RESP_SEND,
                srqn_uidx: self.srqn_uidx(None, uidx),
                byte_cnt: wr.len,
                qpn,
                wqe_counter: place.index,
                solicited: wr.solicited,
                slid,
                ..Cqe::default()
            };
            self.complete_now(cx, cqn, cqe);
        }
        true
    }

    /// Executes an RDMA READ to this memory of the requester. `false`: nothing has changed.
    fn answer_quickly(
        &mut self,
        qpn: u32,
        psn: u32,
        wr: Short,
        to: &dyn crate::memory::Memory,
        offset: u64,
    ) -> bool {
        let Some(qp) = self.expecting(qpn, psn, access::REMOTE_READ) else { return false };
        let (user, len) = (qp.user(), wr.len as usize);
        if qp.attr.max_dest_rd_atomic == 0 {
            return false;
        }
        let (addr, rkey) = wr.remote;
        let Some((memory, from)) = self.mapped(user, rkey, addr, len, access::REMOTE_READ) else {
            return false;
        };
        let Some(data) = memory.mapped(from, len) else { return false };
        if to.write_mapped(offset, data).is_err() {
            return false;
        }
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.resp.expected = psn_add(psn, 1);
            qp.resp.msn = psn_add(qp.resp.msn, 1);
        }
        true
    }
}
