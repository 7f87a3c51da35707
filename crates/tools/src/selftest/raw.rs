// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of raw packet QPs, sent to the port's own address. If the device loops them back, a flow rule delivers them
//! to this process.
#![expect(unsafe_code)]
// UNSAFETY: posts scatter/gather entries and calls C's faces. All entries name regions that live longer than the QPs
// and are reached by this process as atomics only; nodes, headers and arrays live until the call returns.

use super::cases::{Opcode, Verdict, pattern};
use super::ends::Loop;
use super::post::{Face, post_recv};
use super::report::Case;
use anyhow::{Context as _, Result, bail, ensure};
use core::time::Duration;
use std::time::Instant;
use uverbs::provider::WireSge;
use uverbs::provider::op::TsoArgs;
use uverbs::provider::raw::QpEx;
use uverbs::wr::{SendWr, Sge, WrOpcode, WrTail, WrTso};
use uverbs::{
    Driver, Endpoint, Errno, Exclusive, MemoryRegion, PageBuf, PostError, ProtectionDomain, RawPacket,
    SendFlags, Shared, WorkCompletion,
    raw::{Cq, Qp},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, FlowAttr, FlowEth, FlowHeader, FlowMatch, FlowSpec, Gid, LinkLayer, QpCap, QpType},
};

const CAP: QpCap = QpCap::new(16, 16).sge(2, 1).inline(32);
/// Bytes of a receive.
const ROOM: usize = 2048;
/// Offset of the memory of receives; the memory of sends is before it.
const ARRIVAL: usize = 8 << 10;
/// Payload bytes of a segment.
const MSS: u16 = 300;
/// Segments of a message.
const SEGMENTS: usize = 3;
/// Length of the Ethernet, IPv4 and TCP headers.
const HEADER: usize = 14 + 20 + 20;
/// The IPv4 header of the first segment: version 4, don't fragment, TCP; from and to addresses for documentation (RFC
/// 5737).
const IPV4: [u8; 20] = [0x45, 0, 0x01, 0x54, 0, 1, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
/// The TCP header: ports 9 (discard), sequence number 1, a header of 20 bytes, ACK.
const TCP: [u8; 20] = [0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0];
/// `wr_id` of the send; those of the receives begin at 0.
const SENT: u64 = 99;
/// The time limit for a frame to come back.
const LOOP_LIMIT: Duration = Duration::from_secs(1);
/// `IEEE Std 802 - Local Experimental`: hosts ignore it.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];

/// The opcodes of raw packet QPs, by every face.
pub(super) fn frames<D: Driver>(l: &Loop<'_, D>, cases: &mut Vec<Case>) {
    let qp_type = QpType::RawPacket;
    for opcode in Opcode::ALL.into_iter().filter(|o| o.is_on(qp_type)) {
        for face in Face::ALL {
            let verdict = match l.link_layer {
                LinkLayer::ETHERNET => run(l, opcode, face),
                _ => Verdict::Missing("the port is not Ethernet".into()),
            };
            cases.push(Case { qp_type: qp_type.to_string(), opcode, face, verdict });
        }
    }
}

fn run<D: Driver>(l: &Loop<'_, D>, opcode: Opcode, face: Face) -> Verdict {
    match Ends::new(l, opcode, face).and_then(|mut ends| ends.message(l, opcode, face)) {
        Ok(true) => Verdict::Ok,
        Ok(false) => Verdict::Missing("sent; the device does not loop frames back".into()),
        Err(e) if e.downcast_ref::<uverbs::Error>().is_some_and(|e| e.errno() == Errno::EPERM) => {
            Verdict::Missing("raw packets need CAP_NET_RAW".into())
        }
        Err(e) => Verdict::of(Err(e)),
    }
}

/// The port's MAC address, from its link-local GID (RFC 4291, appendix A).
fn own_mac<D: Driver>(l: &Loop<'_, D>) -> Result<[u8; 6]> {
    let mac = |Gid(gid): Gid| match gid {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    };
    let port = u32::from(l.attr.port_num);
    let table = l.context.query_gid_table()?;
    let mut gids = table.iter().filter(|e| e.port_num == port).map(|e| e.gid);
    gids.find_map(mac).context("the port has no GID with its MAC address")
}

/// Two QPs of either locking. The second one receives the frames to this port.
struct Ends<D: Driver> {
    sender: Sender<D>,
    receiver: Qp<RawPacket, Exclusive, D>,
    cq: Cq<Shared, D>,
    mr: MemoryRegion<PageBuf, Exposed, D>,
    mac: [u8; 6],
}

enum Sender<D: Driver> {
    Exclusive(Qp<RawPacket, Exclusive, D>),
    Shared(Qp<RawPacket, Shared, D>),
}

/// The frame that is sent.
#[derive(Clone, Copy)]
struct Frame<'a> {
    sge: Sge,
    /// The header of every segment, with TSO.
    header: Option<&'a [u8]>,
}

impl<D: Driver> Ends<D> {
    fn new(l: &Loop<'_, D>, opcode: Opcode, face: Face) -> Result<Self> {
        let mac = own_mac(l)?;
        let pd: ProtectionDomain<D> = l.context.alloc_pd()?;
        let cq = l.context.create_cq(64, None)?;
        let mr = pd.reg_mr(PageBuf::new(32 << 10)?, AccessFlags::LOCAL_WRITE).map_err(|e| e.error)?;
        let header = if opcode == Opcode::Tso { HEADER as u16 } else { 0 };
        let builder =
            || pd.raw_qp::<RawPacket>().cq(&cq).cap(CAP).send_ops(opcode.ops()).max_tso_header(header);
        let sender = match face {
            Face::Locked => Sender::Shared(builder().shared().create()?),
            _ => Sender::Exclusive(builder().create()?),
        };
        let receiver = pd.raw_qp::<RawPacket>().cq(&cq).cap(CAP).create()?;
        let controls = match &sender {
            Sender::Exclusive(qp) => [&qp.control, &receiver.control],
            Sender::Shared(qp) => [&qp.control, &receiver.control],
        };
        for control in controls {
            control.init(&l.attr)?;
            control.connect(&Endpoint::default(), &Endpoint::default(), &l.attr)?;
        }
        Ok(Self { sender, receiver, cq, mr, mac })
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr() + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Sends a packet that is received as one frame or as several; returns whether it was received.
    fn message(&mut self, l: &Loop<'_, D>, opcode: Opcode, face: Face) -> Result<bool> {
        let eth = FlowMatch {
            val: FlowEth { dst_mac: self.mac, ..FlowEth::default() },
            mask: FlowEth { dst_mac: [0xff; 6], ..FlowEth::default() },
        };
        let rule = FlowAttr::new(l.attr.port_num).specs(vec![FlowSpec::Header(FlowHeader::Eth(eth))]);
        let _rule = self.receiver.control.create_flow(&rule)?;
        for n in 0..SEGMENTS {
            let sges = [self.sge(ARRIVAL + n * ROOM, ROOM)];
            post_recv(self.receiver.rq()?.batch(), n as u64, &sges)?;
        }
        let payload = pattern(1, SEGMENTS * usize::from(MSS));
        let ethernet = [&self.mac[..], &[2, 0, 0, 0, 0, 1]].concat();
        let header = [&ethernet[..], &[8, 0], &IPV4, &TCP].concat();
        let (data, header) = match opcode {
            Opcode::Tso => (payload.clone(), Some(&header[..])),
            _ => ([&ethernet[..], &ETHER_TYPE, &payload].concat(), None),
        };
        self.mr.write_at(0, &data)?;
        self.post(face, Frame { sge: self.sge(0, data.len()), header })?;

        let frames = if header.is_some() { SEGMENTS } else { 1 };
        let (mut sent, mut arrived, mut until) = (false, 0, Instant::now() + l.limit);
        let mut wc = [WorkCompletion::default()];
        while !sent || arrived < frames {
            let [wc] = match self.cq.poll(&mut wc)? {
                [] if Instant::now() < until => {
                    std::thread::yield_now();
                    continue;
                }
                [] if sent && arrived == 0 => return Ok(false),
                [] => bail!("sent: {sent}, {arrived} of {frames} frames came back within {:?}", l.limit),
                some => [some[0]],
            };
            ensure!(
                wc.status.is_success(),
                "completion with {:?}, vendor_err {:#x}",
                wc.status,
                wc.vendor_err
            );
            if wc.wr_id == SENT {
                sent = true;
                // A frame that does not return soon is lost.
                until = until.min(Instant::now() + LOOP_LIMIT);
                continue;
            }
            ensure!(wc.wr_id == arrived as u64, "receive {} after {arrived} frames", wc.wr_id);
            let got = self.bytes(ARRIVAL + arrived * ROOM, wc.byte_len as usize)?;
            match header {
                None => ensure!(got == data, "the frame differs"),
                Some(header) => {
                    let part = payload.chunks(MSS.into()).nth(arrived).unwrap_or_default();
                    ensure!(got.len() == header.len() + part.len(), "segment of {} bytes", got.len());
                    ensure!(
                        got.starts_with(&header[..14]) && got.ends_with(part),
                        "segment {arrived} differs"
                    );
                }
            }
            arrived += 1;
        }
        Ok(true)
    }

    /// Posts it by a face.
    fn post(&mut self, face: Face, frame: Frame<'_>) -> Result<(), PostError> {
        let Frame { sge, header } = frame;
        let sges = [<D::Sge as WireSge>::new(sge.addr, sge.length, sge.lkey)?];
        let tso = header.map(|header| TsoArgs { header, mss: MSS });
        // A macro, because batches and single posts differ only in their type.
        macro_rules! send {
            ($wr:expr) => {{
                let wr = $wr.signaled();
                match tso {
                    // SAFETY: the entry's region lives longer than the QP.
                    Some(args) => unsafe { wr.send_tso(args, &sges) },
                    // SAFETY: the entry's region lives longer than the QP.
                    None => unsafe { wr.send(&sges) },
                }
            }};
        }
        match (&mut self.sender, face) {
            (Sender::Shared(qp), _) => {
                let mut guard = qp.sq().lock()?;
                let mut batch = guard.batch();
                send!(batch.frame(SENT));
                Ok(batch.complete()?)
            }
            (Sender::Exclusive(qp), Face::List) => {
                let mut wr = SendWr::new(SENT, WrOpcode::SEND);
                wr.send_flags = SendFlags::SIGNALED.bits();
                wr.sg_list = &raw const sge;
                wr.num_sge = 1;
                if let Some(header) = header {
                    wr.opcode = WrOpcode::TSO;
                    wr.tail =
                        WrTail { tso: WrTso { hdr: header.as_ptr(), hdr_sz: header.len() as u16, mss: MSS } };
                }
                // SAFETY: a list of one node, which lives until the call returns, as does its entry; the region of the
                // entry lives longer than the QP.
                unsafe { qp.sq().post_send(&raw const wr) }.map_err(|bad| bad.error)
            }
            (Sender::Exclusive(qp), Face::Builder) => {
                build(qp.sq().qp_ex().ok_or(PostError::IllegalOpcode)?, frame)
            }
            (Sender::Exclusive(qp), Face::Post) => Ok(send!(qp.sq().post_frame(SENT))?),
            (Sender::Exclusive(qp), _) => {
                let mut batch = qp.sq().batch();
                send!(batch.frame(SENT));
                Ok(batch.complete()?)
            }
        }
    }
}

/// One session of the builder.
fn build(mut qp: QpEx<'_>, Frame { sge, header }: Frame<'_>) -> Result<(), PostError> {
    qp.wr_id = SENT;
    qp.wr_flags = SendFlags::SIGNALED.bits();
    // SAFETY: this thread alone uses the queue.
    unsafe { qp.wr_start() };
    match header {
        // SAFETY: inside the session; the header outlives the call.
        Some(header) => unsafe { qp.wr_send_tso(header.as_ptr(), header.len() as u16, MSS) },
        // SAFETY: inside the session.
        None => unsafe { qp.wr_send() },
    }
    // SAFETY: inside the session; the entry's region lives longer than the QP.
    unsafe { qp.wr_set_sge(sge.lkey, sge.addr, sge.length) };
    // SAFETY: this thread opened the session.
    unsafe { qp.wr_complete() }
}
