// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue: doorbells, and the decoding of entries.

use super::deferred::{lane, lane_of_queue};
use super::mr::Buffer;
use super::qp::{Qp, QpKind, State};
use super::transmit::{Key, Message};
use super::{Device, Port, trace};
use crate::violation::{Mistake, Object};
use uverbs_efa_hw::io::{
    CdescCommon, EFA_IO_COMP_STATUS_FLUSHED, EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH, EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP, EFA_IO_RDMA_READ, EFA_IO_RDMA_WRITE, EFA_IO_RECV_QUEUE,
    EFA_IO_SEND, EFA_IO_SEND_QUEUE, EFA_IO_TX_DESC_NUM_BUFS, EFA_IO_TX_DESC_NUM_RDMA_BUFS,
    EFA_IO_TX_META_DESC_FIRST_MASK, EFA_IO_TX_META_DESC_LAST_MASK, EFA_IO_TX_META_DESC_META_DESC_MASK,
    EFA_IO_TX_META_DESC_META_EXTENSION_MASK, RemoteMemAddr, TxBufDesc, TxMetaDesc, TxWqe128,
};
use uverbs_fabric::order::{Label, Lane, Side};
use zerocopy::FromBytes;

/// Bytes of the meta descriptor, behind which the data begin, and of the remote memory.
const META: usize = 32;
const REMOTE: usize = 16;

/// What an entry requests, or the status of its completion.
type Decoded = Result<Message, u8>;

fn buffer(bytes: &[u8]) -> Option<Buffer> {
    let (desc, _) = TxBufDesc::read_from_prefix(bytes).ok()?;
    Some(Buffer { addr: desc.addr(), len: desc.length, lkey: desc.lkey })
}

impl Device {
    /// The doorbell of a send queue: the number of entries posted so far.
    pub fn sq_doorbell(&mut self, port: &mut Port<'_>, qpn: u16, value: u32) {
        self.begin(port, Label::default());
        let result = self.with_qp(qpn, |device, qp| {
            let Some(sq) = &mut qp.sq else { return Some((0, Mistake::NoSuchQueue)) };
            let (index, size) = (sq.next, sq.count);
            if matches!(qp.state, State::Reset | State::Init | State::Rtr) {
                return sq.announces(value).then_some((index, Mistake::NotReady));
            }
            if !sq.post(value as u16) {
                let posted = (value as u16).wrapping_sub(sq.next);
                return Some((index, Mistake::RingOverrun { posted, size }));
            }
            device.execute(port, qp);
            None
        });
        match result {
            None => self.blame(port.now, Object::Qp(qpn), 0, Mistake::NoSuchQueue),
            Some(Some((index, mistake))) => self.blame(port.now, Object::Qp(qpn), index, mistake),
            Some(None) => {}
        }
    }

    /// Takes posted entries from the send queue. No more are begun than it has entries, whatever the driver posts.
    pub(super) fn execute(&mut self, port: &mut Port<'_>, qp: &mut Qp) {
        while let Some(sq) = &mut qp.sq
            && sq.waiting() > 0
            && matches!(qp.state, State::Rts | State::Err)
            && qp.queued.len() + qp.paused.len() + qp.out.len() < sq.count as usize
        {
            let mut bytes = [0; size_of::<TxWqe128>()];
            let (index, size) = (sq.next, sq.entry);
            let Ok(round) = sq.entry(0, &mut bytes[..size]) else {
                return self.fatal(port, qp, index, Mistake::MemoryGone);
            };
            sq.next = sq.next.wrapping_add(1);
            qp.taken = qp.taken.saturating_add(1);
            trace::request(port, qp.qpn, &bytes[..size]);
            let Ok((meta, _)) = TxMetaDesc::read_from_prefix(&bytes[..]) else { return };
            // The phase of the first round is 0.
            if meta.phase() == round.is_multiple_of(2) {
                return self.fatal(port, qp, index, Mistake::WrongPhase);
            }
            let needed = EFA_IO_TX_META_DESC_FIRST_MASK | EFA_IO_TX_META_DESC_LAST_MASK;
            let is_valid = meta.ctrl1 & EFA_IO_TX_META_DESC_META_DESC_MASK != 0
                && meta.ctrl1 & EFA_IO_TX_META_DESC_META_EXTENSION_MASK == 0
                && meta.ctrl2 & needed == needed
                && meta.reserved == 0
                && meta.reserved2 == [0; 6];
            if !is_valid {
                return self.fatal(port, qp, index, Mistake::Reserved);
            }
            if qp.state == State::Err {
                self.finish_send(port, qp, &meta, EFA_IO_COMP_STATUS_FLUSHED);
                continue;
            }
            match self.decode(qp, &meta, &bytes[META..size]) {
                Err(mistake) => return self.fatal(port, qp, index, mistake),
                Ok(Err(status)) => self.finish_send(port, qp, &meta, status),
                Ok(Ok(mut message)) => {
                    message.number = qp.taken;
                    match qp.kind {
                        QpKind::Ud => self.send_datagram(port, qp, &message),
                        QpKind::Srd => qp.queued.push_back(message),
                    }
                }
            }
        }
        self.transmit(port, qp);
    }

    /// Decodes an entry. `data` is what follows the meta descriptor.
    fn decode(&self, qp: &Qp, meta: &TxMetaDesc, data: &[u8]) -> Result<Decoded, Mistake> {
        let op = meta.op_type();
        let is_send = op == EFA_IO_SEND;
        let has = match op {
            EFA_IO_SEND => true,
            EFA_IO_RDMA_READ => qp.kind == QpKind::Srd && self.caps.reads() && !meta.has_imm(),
            EFA_IO_RDMA_WRITE => qp.kind == QpKind::Srd && self.caps.writes(),
            _ => false,
        };
        if !has {
            return Ok(Err(EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP));
        }
        let too_long = Mistake::TooLong { length: meta.length };
        let (remote, local) =
            if is_send { (None, data) } else { (Some(data), data.get(REMOTE..).unwrap_or(&[])) };
        let is_wide = data.len() > size_of::<TxWqe128>() / 2;
        let length = usize::from(meta.length);
        let (mut inline, mut buffers) = (Vec::new(), Vec::new());
        if meta.inline_msg() {
            let most = if is_wide { self.caps.inline_wide } else { self.caps.inline };
            // A read has nowhere to put inline data, and the short entry of a write has no room for them.
            if op == EFA_IO_RDMA_READ || op == EFA_IO_RDMA_WRITE && !is_wide || meta.length > most {
                return Err(too_long);
            }
            inline.extend_from_slice(local.get(..length).ok_or(too_long)?);
        } else {
            let most = if is_send { EFA_IO_TX_DESC_NUM_BUFS } else { EFA_IO_TX_DESC_NUM_RDMA_BUFS };
            if length > most {
                return Err(too_long);
            }
            let parts = (0..length).map(|i| local.get(i * size_of::<TxBufDesc>()..).and_then(buffer));
            buffers = parts.collect::<Option<Vec<_>>>().ok_or(too_long)?;
        }
        let bytes = inline.len() as u64 + buffers.iter().map(|b| u64::from(b.len)).sum::<u64>();
        let most = if is_send { self.caps.mtu } else { self.caps.max_rdma };
        let remote = remote.and_then(|bytes| RemoteMemAddr::read_from_prefix(bytes).ok()).map(|(r, _)| r);
        if bytes > u64::from(most) || remote.is_some_and(|remote| u64::from(remote.length) != bytes) {
            return Ok(Err(EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH));
        }
        let Some(gid) = self.gid_of(qp.pd, meta.ah) else {
            return Ok(Err(EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH));
        };
        if self.check_local(qp.pd, &buffers, op == EFA_IO_RDMA_READ).is_err() {
            return Ok(Err(EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY));
        }
        let remote = remote.map(|remote| (remote.addr(), remote.rkey));
        Ok(Ok(Message::new(meta, gid, inline, buffers, bytes as u32, remote, self.caps.mtu)))
    }

    /// Writes the completion of a request, unless it succeeded and none was requested.
    pub(super) fn finish_send(&mut self, port: &mut Port<'_>, qp: &Qp, meta: &TxMetaDesc, status: u8) {
        self.finish_message(port, qp, meta, status, None);
    }

    /// [`finish_send`](Self::finish_send) of a message that was begun.
    pub(super) fn finish_message(
        &mut self,
        port: &mut Port<'_>,
        qp: &Qp,
        meta: &TxMetaDesc,
        status: u8,
        key: Option<Key>,
    ) {
        if let Some(common) = Self::sent(qp, meta, status) {
            let (lane, after_reads) = Self::lane_of_send(qp, status, key);
            self.complete_send(port, qp.send_queue(), lane, common, after_reads);
        }
    }

    /// The completion of a request; `None` if it succeeded and none was requested.
    pub(super) fn sent(qp: &Qp, meta: &TxMetaDesc, status: u8) -> Option<CdescCommon> {
        let flags = CdescCommon::pack(false, EFA_IO_SEND_QUEUE, false, meta.op_type(), false);
        let common = CdescCommon { req_id: meta.req_id, status, flags, qp_num: qp.qpn };
        (status != 0 || meta.comp_req()).then_some(common)
    }

    /// The lane of a completion, and whether it has to wait until the data of its message were read.
    pub(super) fn lane_of_send(qp: &Qp, status: u8, key: Option<Key>) -> (Lane, bool) {
        let lane = match key {
            Some(key) => lane(qp.qpn, Side::Requester, key),
            None => lane_of_queue(qp.qpn, Side::Requester),
        };
        // The answers to a message tell that its data were read.
        (lane, key.is_none() || status != 0)
    }

    /// A mistake after which the QP can't continue.
    pub(super) fn fatal(&mut self, port: &mut Port<'_>, qp: &mut Qp, index: u16, mistake: Mistake) {
        self.blame(port.now, Object::Qp(qp.qpn), index, mistake);
        qp.state = State::Err;
        // What is in the rings can't be trusted.
        for ring in [&mut qp.sq, &mut qp.rq].into_iter().flatten() {
            ring.next = ring.posted;
        }
        self.flush(port, qp);
    }

    /// Completes all requests and receives of a QP that is in the error state.
    pub(super) fn flush(&mut self, port: &mut Port<'_>, qp: &mut Qp) {
        for message in self.take_messages(qp) {
            self.finish_send(port, qp, &message.meta, EFA_IO_COMP_STATUS_FLUSHED);
        }
        self.set_timer(port, qp);
        if qp.sq.as_ref().is_some_and(|sq| sq.waiting() > 0) {
            self.execute(port, qp);
        }
        self.flush_receives(port, qp);
    }

    /// Completes the receives that are posted to a QP in the error state.
    pub(super) fn flush_receives(&mut self, port: &mut Port<'_>, qp: &mut Qp) {
        while let Ok(Some(receive)) = Self::take_receive(qp) {
            let flags = CdescCommon::pack(false, EFA_IO_RECV_QUEUE, false, EFA_IO_SEND, false);
            let common = CdescCommon {
                req_id: receive.req_id,
                status: EFA_IO_COMP_STATUS_FLUSHED,
                flags,
                qp_num: qp.qpn,
            };
            let received = super::cq::Received { common, ..super::cq::Received::default() };
            let lane = lane_of_queue(qp.qpn, Side::Responder);
            self.complete_receive(port, qp.recv_queue(), lane, received);
        }
    }
}
