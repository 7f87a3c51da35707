// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shortest way of the usual request: a SEND, RDMA WRITE or RDMA READ of one packet, with inline data or one entry, between regions of
//! this process, on a reliable connection with nothing else in progress. It takes effect without a request, a packet and an answer in
//! memory: the device reads the WQE, checks what it would check, copies the data, counts the packets, and writes the completions.
//!
//! A request is executed here only if nothing about it can fail and no state is kept for later; whatever is unusual is left to the
//! code for all requests, before anything has changed. It is complete at once, so that the acknowledgement of all requests that were
//! executed together, which would have no effect, is only counted.

use super::mkey::{User, access};
use super::qp::{Qp, QpKind, State};
use super::short::{Act, Local, Place, Short, Wqe};
use super::{Device, Notice, Port, event};
use crate::cqe::Cqe;
use crate::memory::{Fault, Memory};
use std::sync::Arc;
use uverbs_fabric::Near;
use uverbs_fabric::process::Mapped;
use uverbs_mlx5_hw::cqe::{MLX5_CQE_REQ, MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM, MLX5_CQE_RESP_WR_IMM};

/// What a request does at its receiver.
#[derive(Debug)]
struct Effect<'a> {
    /// The memory that it accesses; none without data.
    memory: Option<(&'a Arc<dyn Memory>, u64, Mapped<'a>)>,
    /// The receive that it takes.
    receive: Option<Place>,
}

impl Qp {
    /// Whether it expects this packet of a path with this MTU, which these rights permit, and nothing else has begun.
    #[inline]
    fn expects(&self, (psn, mtu): (u32, u32), rights: u32) -> bool {
        self.kind == QpKind::Rc
            && self.attr.mtu == mtu
            && self.qpn > 1
            && (self.state == State::Rts || self.established && self.state.receives())
            && self.attr.access & rights == rights
            && self.resp.expects(psn)
    }
}

impl Device {
    /// Executes requests of a queue, as long as they are of the usual form: at most so many. Returns how many.
    pub(super) fn execute_usual(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        near: &mut Near<'_, Self>,
        most: u32,
    ) -> u32 {
        if qp.kind != QpKind::Rc || qp.state != State::Rts || !qp.req.is_clear() {
            return 0;
        }
        let Some(to) = super::reliable::peer(cx, qp).filter(|to| cx.net.connects(cx.me, *to)) else {
            return 0;
        };
        let mut other = near.device(to);
        if other.is_none() && to != cx.me {
            return 0;
        }
        if other.as_deref().unwrap_or(self).is_held(cx, qp.attr.dest_qpn) {
            return 0;
        }
        let mut buffer = core::mem::take(&mut self.wqe);
        let mut wqe = Wqe::new(&mut buffer);
        let (mut done, mut answers, mut bytes) = (0, 0, 0);
        // Nothing of the above changes in between.
        while done < most
            && let Some((len, reads)) = self.execute_next(cx, qp, (to, other.as_deref_mut()), &mut wqe)
        {
            done += 1;
            answers += u32::from(reads);
            bytes += len;
        }
        self.wqe = buffer;
        cx.net.pass(cx.me, to, done, bytes);
        cx.net.pass(to, cx.me, answers, 0);
        done
    }

    /// Executes the next request of a queue at the device of this number, if it is of the usual form. Returns its bytes, and
    /// whether it reads them. `None`: nothing has changed.
    #[inline]
    fn execute_next(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        (to, other): (usize, Option<&mut Self>),
        wqe: &mut Wqe<'_>,
    ) -> Option<(usize, bool)> {
        let wr = Short::next(qp.sq.as_ref()?, qp.qpn, wqe)?;
        let (reads, len) = (wr.act == Act::Read, wr.len as usize);
        // An answer that is written to the completion is unusual.
        if wr.len > qp.attr.mtu || reads && (qp.attr.max_rd_atomic == 0 || len <= qp.scatter_req) {
            return None;
        }
        let (me, qpn, dest_qpn) = (cx.me, qp.qpn, qp.attr.dest_qpn);
        let need = if reads { access::LOCAL_WRITE } else { access::LOCAL_READ };
        let local = match wr.local {
            Local::Memory { lkey, addr } => Some(self.mkeys.mapped(qp.user(), lkey, addr, len, need)?),
            Local::Inline(_) => None,
        };
        let receiver = other.as_deref().unwrap_or(self);
        // The queue is taken out of the table: one that is connected to itself is not found there.
        let is_own = dest_qpn == qpn && to == me;
        let receiving = if is_own { &*qp } else { receiver.qps.get(&dest_qpn)? };
        let Effect { memory, receive } = receiver.effect(receiving, (qp.req.next, qp.attr.mtu), &wr)?;
        let copied = match (memory, local, wr.local) {
            (None, _, _) => Ok(()),
            (Some((_, _, data)), Some((to, offset, _)), _) if reads => to.write_mapped(offset, data),
            (Some((to, offset, _)), Some((_, _, data)), _) => to.write_mapped(offset, data),
            (Some((to, offset, _)), None, Local::Inline(at)) => {
                to.write(offset, wqe.bytes().get(at..)?.get(..len)?)
            }
            (Some(_), None, Local::Memory { .. }) => Err(Fault),
        };
        copied.ok()?;
        let mut port = Port { now: cx.now, me: to, net: &mut *cx.net };
        match other {
            Some(other) => other.take_effect(&mut port, (me, qpn), (None, dest_qpn), &wr, receive),
            None => {
                self.take_effect(&mut port, (me, qpn), (is_own.then_some(&mut *qp), dest_qpn), &wr, receive);
            }
        }
        if let Some(sq) = qp.sq.as_mut() {
            sq.next = wr.index.wrapping_add(wr.blocks);
        }
        qp.fetched = qp.fetched.wrapping_add(1);
        qp.req.pass(&qp.attr);
        if wr.signaled {
            let mut cqe = Cqe {
                kind: MLX5_CQE_REQ,
                srqn_uidx: self.srqn_uidx(None, qp.uidx),
                opcode: wr.opcode,
                byte_cnt: wr.len,
                qpn,
                wqe_counter: wr.index,
                ..Cqe::default()
            };
            self.write_completion(cx, qp.send_cqn, &mut cqe);
        }
        Some((len, reads))
    }

    /// The effect of a request with this number and path MTU at its receiver, a queue of this device. `None`: it is to be executed otherwise.
    #[inline]
    fn effect(&self, qp: &Qp, packet: (u32, u32), wr: &Short) -> Option<Effect<'_>> {
        let rights = match wr.act {
            Act::Send => 0,
            Act::Write => access::REMOTE_WRITE,
            Act::Read => access::REMOTE_READ,
        };
        if !qp.expects(packet, rights) || wr.act == Act::Read && qp.attr.max_dest_rd_atomic == 0 {
            return None;
        }
        let (mut user, mut receive) = (qp.user(), None);
        if wr.act == Act::Send || wr.imm.is_some() {
            let place = match qp.srqn {
                None => qp.rq.as_ref()?.next_place()?,
                Some(srqn) => {
                    let srq = self.srqs.get(&srqn).filter(|srq| srq.xrc.is_none())?;
                    if wr.act == Act::Send {
                        user = User { pd: srq.pd, ..user };
                    }
                    srq.next_place()?
                }
            };
            receive = Some(place);
        }
        let (addr, key) = match receive {
            Some(place) if wr.act == Act::Send => {
                let is_in_completion = wr.len > 0 && wr.len as usize <= qp.scatter_resp;
                if place.room < wr.len || is_in_completion {
                    return None;
                }
                (place.addr, place.lkey)
            }
            _ => wr.remote,
        };
        let need = if wr.act == Act::Send { access::LOCAL_WRITE } else { rights };
        let memory = match wr.len {
            0 => None,
            len => Some(self.mkeys.mapped(user, key, addr, len as usize, need)?),
        };
        Some(Effect { memory, receive })
    }

    /// Changes what a request changes at its receiver besides memory. The queue is in the table, or is the requester's.
    #[inline]
    fn take_effect(
        &mut self,
        cx: &mut Port<'_>,
        from: (usize, u32),
        (own, qpn): (Option<&mut Qp>, u32),
        wr: &Short,
        receive: Option<Place>,
    ) {
        let Some(qp) = own.or_else(|| self.qps.get_mut(&qpn)) else { return };
        if wr.act == Act::Read {
            qp.resp.pass();
            return;
        }
        if qp.resp.pass_acknowledged(from) {
            self.unacknowledged.push(qpn);
        }
        let Some(place) = receive else { return };
        let (cqn, uidx, srqn) = (qp.recv_cqn, qp.uidx, qp.srqn);
        match srqn {
            None => qp.rq.iter_mut().for_each(|rq| rq.taken = place.index.wrapping_add(1)),
            Some(srqn) => {
                if self.srqs.get_mut(&srqn).is_some_and(|srq| srq.pass(place.next)) {
                    self.notices.push(Notice::Srq { srqn, event: event::SRQ_LIMIT_REACHED });
                }
            }
        }
        let mut cqe = Cqe {
            kind: match (wr.act, wr.imm) {
                (Act::Write, _) => MLX5_CQE_RESP_WR_IMM,
                (_, Some(_)) => MLX5_CQE_RESP_SEND_IMM,
                (_, None) => MLX5_CQE_RESP_SEND,
            },
            srqn_uidx: self.srqn_uidx(srqn, uidx),
            imm: wr.imm.unwrap_or(0),
            byte_cnt: wr.len,
            qpn,
            wqe_counter: place.index,
            solicited: wr.solicited,
            slid: super::execute::source_lid(cx, from.0),
            ..Cqe::default()
        };
        self.write_completion(cx, cqn, &mut cqe);
    }
}
