// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw packet queues: sending of frames (checksums, segmentation) and receiving (steering, hashing, checks).

use super::checksum::{fold, sum};
use super::flow::Target;
use super::headers::Headers;
use super::offload::{Part, fill_checksums, segment};
use super::packet::{Body, Data, Direct, Packet, Path, Transport, WrPart};
use super::qp::Qp;
use super::recv::Taken;
use super::{Device, Notice, Port, event};
use crate::bytes::array;
use crate::cqe::{Cqe, Syndrome};
use crate::decode::{Op, Request};
use crate::violation::Object;
use uverbs_mlx5_hw::cqe::{
    MLX5_CQE_L2_OK, MLX5_CQE_L3_HDR_TYPE_IPV4, MLX5_CQE_L3_HDR_TYPE_IPV6, MLX5_CQE_L3_OK, MLX5_CQE_L4_OK,
    MLX5_CQE_RESP_ERR, MLX5_CQE_RESP_SEND,
};

/// The longest frame without VLAN tags.
const MAX_FRAME: usize = 9216;
/// Position of the type of the IP header in `l4_hdr_type_etc` (bits 3:2).
const L3_TYPE_SHIFT: u8 = 2;

impl Device {
    /// Executes a send of a raw packet queue: sends at most `room` frames of it, beginning with frame `first`. Returns the
    /// index of the next frame if not all are sent.
    pub(crate) fn send_frame(
        &mut self,
        cx: &mut Port<'_>,
        qp: &mut Qp,
        request: &Request,
        first: u64,
        room: &mut u64,
    ) -> Result<Option<u64>, Syndrome> {
        let Op::Frame(eth) = &request.op else {
            *room -= 1;
            return if request.op == Op::Nop { Ok(None) } else { Err(Syndrome::LOCAL_QP_OP) };
        };
        let len = usize::try_from(request.len()).map_err(|_| Syndrome::LOCAL_LENGTH)?;
        if len > 1 << 18 || eth.mss.is_none() && len + eth.header.len() > MAX_FRAME {
            return Err(Syndrome::LOCAL_LENGTH);
        }
        self.check_gather(qp.user(), &request.data)?;
        let Some(mss) = eth.mss else {
            *room -= 1;
            let data = self.gather(qp.user(), &request.data, 0, len, Vec::new())?;
            let mut frame = [&eth.header[..], &data].concat();
            fill_checksums(&mut frame, eth);
            self.emit(cx, qp.qpn, WrPart::new(qp.fetched, 0), frame);
            return Ok(None);
        };
        let (mss, len) = (u64::from(mss.max(1)), len as u64);
        let count = len.div_ceil(mss).max(1);
        let end = count.min(first.saturating_add(*room));
        *room -= end - first;
        // Only the data of these frames are read.
        let start = first * mss;
        let part = len.min(end * mss).saturating_sub(start);
        let data = self.gather(qp.user(), &request.data, start, part as usize, Vec::new())?;
        let parsed = Headers::parse(&eth.header);
        for index in first..end {
            let offset = index * mss;
            let from = ((offset - start) as usize).min(data.len());
            let to = (from + mss as usize).min(data.len());
            let part = Part { index, offset, is_last: index + 1 == count };
            let mut frame = segment(&eth.header, parsed.as_ref(), &data[from..to], &part);
            fill_checksums(&mut frame, eth);
            self.emit(cx, qp.qpn, WrPart::new(qp.fetched, index as u32), frame);
        }
        Ok((end < count).then_some(end))
    }

    /// Sends a frame to every port that may accept it.
    fn emit(&self, cx: &mut Port<'_>, src_qpn: u32, wr: WrPart, frame: Vec<u8>) {
        let Some(dmac) = array::<6>(&frame, 0) else { return };
        // Like a switch, sends a frame for a known address to its port, and any other frame to all ports except the source.
        let known = cx.net.by_mac(&dmac);
        let is_known = known.is_some();
        let ports = known.map_or(0..cx.net.ports.len(), |port| port..port + 1);
        for to in ports {
            let ethernet = cx.net.ports.get(to).is_some_and(|p| p.ethernet);
            if ethernet && (is_known || to != cx.me || dmac[0] & 1 != 0) {
                let packet = Packet {
                    from: cx.me,
                    transport: Transport::Ethernet,
                    src_qpn,
                    dest_qpn: 0,
                    psn: 0,
                    ack: false,
                    solicited: false,
                    srqn: 0,
                    msn: 0,
                    dc: None,
                    path: Path::default(),
                    wr,
                    direct: Direct::default(),
                    body: Body::Frame(frame.clone()),
                };
                cx.net.send(cx.now, to, packet);
            }
        }
    }

    /// Receives a frame. Each matching rule of the best priority gets it.
    pub(crate) fn receive_frame(&mut self, cx: &mut Port<'_>, from: usize, frame: &[u8]) {
        let Some(headers) = Headers::parse(frame) else { return };
        let own = from == cx.me;
        let hits = match &self.steering.classifier {
            Some(tables) => tables.hits(&headers, frame.len(), own),
            None => self.steering.find(&headers, frame.len()),
        };
        for hit in hits {
            match self.steering.queue(hit.target, &headers) {
                Some(Target::Qp(qpn)) => {
                    self.with_qp(cx, qpn, |device, cx, qp| {
                        if qp.state.receives() {
                            device.frame_to_qp(cx, qp, frame, &headers, hit.tag);
                        }
                    });
                }
                Some(Target::Wq(wqn)) => self.frame_to_wq(cx, wqn, frame, &headers, hit.tag),
                _ => {}
            }
        }
    }

    fn frame_to_qp(&mut self, cx: &mut Port<'_>, qp: &mut Qp, frame: &[u8], headers: &Headers, tag: u32) {
        let srqn = qp.srqn;
        let Some(taken) = self.take_receive(cx, qp, srqn) else { return };
        let (cqn, cqe) = self.receive_cqe(qp, srqn, &taken);
        if let Some(syndrome) = self.receive_by_script(cx, qp, srqn, None, cqn) {
            self.fail_receive(cx, qp, srqn, &taken, syndrome);
            return self.fail_responder(cx, qp, None);
        }
        if self.put_frame(cx, qp.user(), &taken, frame, headers, (cqn, cqe), tag).is_err() {
            self.fail_responder(cx, qp, None);
        }
    }

    fn frame_to_wq(&mut self, cx: &mut Port<'_>, wqn: u32, frame: &[u8], headers: &Headers, tag: u32) {
        let Some(wq) = self.wqs.get_mut(&wqn).filter(|wq| wq.ready) else { return };
        let index = u32::from(wq.rq.taken);
        let (pd, cqn, uidx) = (wq.pd, wq.cqn, wq.uidx);
        let taken = match wq.rq.take(0) {
            Ok(None) => return,
            Ok(Some(taken)) => taken,
            Err(mistake) => {
                (wq.ready, wq.rq.broken) = (false, true);
                self.blame(cx.now, Object::Wq(wqn), index, mistake);
                self.notices.push(Notice::Wq { wqn, event: event::WQ_FATAL });
                return;
            }
        };
        let user = super::mkey::User { pd, qpn: wqn };
        let srqn_uidx = self.srqn_uidx(None, uidx);
        let cqe = Cqe { srqn_uidx, qpn: wqn, wqe_counter: taken.index, ..Cqe::default() };
        if self.put_frame(cx, user, &taken, frame, headers, (cqn, cqe), tag).is_err()
            && let Some(wq) = self.wqs.get_mut(&wqn)
        {
            wq.ready = false;
            self.notices.push(Notice::Wq { wqn, event: event::WQ_FATAL });
        }
    }

    /// Flushes all receives of a work queue.
    pub fn flush_wq(&mut self, cx: &mut Port<'_>, wqn: u32) {
        while let Some(wq) = self.wqs.get_mut(&wqn) {
            let (cqn, uidx) = (wq.cqn, wq.uidx);
            let Ok(Some(taken)) = wq.rq.take(0) else { break };
            let cqe = Cqe {
                kind: MLX5_CQE_RESP_ERR,
                syndrome: Some(Syndrome::FLUSH),
                srqn_uidx: self.srqn_uidx(None, uidx),
                qpn: wqn,
                wqe_counter: taken.index,
                ..Cqe::default()
            };
            self.complete(cx, cqn, cqe);
        }
    }

    /// Writes a frame to a receive, and completes the receive.
    #[expect(clippy::too_many_arguments, reason = "two callers, both above")]
    fn put_frame(
        &mut self,
        cx: &mut Port<'_>,
        user: super::mkey::User,
        taken: &Taken,
        frame: &[u8],
        headers: &Headers,
        (cqn, cqe): (u32, Cqe),
        tag: u32,
    ) -> Result<(), Syndrome> {
        let segments = &taken.wqe.scatter;
        let result = if frame.len() as u64 > taken.wqe.room() {
            Err(Syndrome::LOCAL_LENGTH)
        } else {
            self.scatter(user, segments, 0, Data::Bytes(frame))
        };
        let cqe = match result {
            Err(syndrome) => Cqe { kind: MLX5_CQE_RESP_ERR, syndrome: Some(syndrome), ..cqe },
            Ok(()) => {
                self.trace_scattered(cx, user.qpn, segments, (0, frame.len()));
                let ok = |good, bit| if good { bit } else { 0 };
                let l3 = match headers.ip_version {
                    4 => MLX5_CQE_L3_HDR_TYPE_IPV4,
                    6 => MLX5_CQE_L3_HDR_TYPE_IPV6,
                    _ => 0,
                };
                Cqe {
                    kind: MLX5_CQE_RESP_SEND,
                    byte_cnt: frame.len() as u32,
                    // The completion of a raw packet has the flow tag in the field that has the QP in other
                    // completions.
                    qpn: tag,
                    check_sum: fold(sum(frame.get(14..).unwrap_or_default())),
                    checks: (
                        MLX5_CQE_L2_OK
                            | ok(headers.l3_ok, MLX5_CQE_L3_OK)
                            | ok(headers.l4_ok, MLX5_CQE_L4_OK),
                        l3 << L3_TYPE_SHIFT,
                    ),
                    ..cqe
                }
            }
        };
        self.complete(cx, cqn, cqe);
        result
    }
}
