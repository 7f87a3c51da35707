// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw packet QPs, if the device has them: frames between two devices, steering rules, segmentation, checksums, and
//! RSS.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs whose memory each test keeps until their completions are polled.

use crate::pair::region;
use crate::{Lab, Outcome, pattern, wait};
use anyhow::{Context as _, Result, ensure};
use uverbs::provider::op::TsoArgs;
use uverbs::wc::WcFlags;
use uverbs::wr::SendFlags;
use uverbs::{
    Context, Driver, Endpoint, Errno, Exclusive, MemoryRegion, PageBuf, ProtectionDomain, RawPacket, Shared,
    WorkCompletion,
    raw::{Cq, Qp, RwqIndTable, Wq},
};
use uverbs::{
    Exposed,
    attr::{
        CounterAttachAttr, CounterDescription, FlowAttr, FlowEth, FlowHeader, FlowIpv4, FlowMatch, FlowSpec,
        LinkLayer, QpCap, RxHashConf, RxHashFields, SendOpsFlags, WqInitAttr, WqState,
    },
};

/// The destination MAC address of the frames, which no port has.
const MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];
/// Bytes of the headers: Ethernet, IPv4, TCP.
const HEADERS: usize = 14 + 20 + 20;
/// Offset of A's frames, and length of a receive.
const ROOM: usize = 2048;

/// One end. The fields are dropped from the first to the last.
struct Station<D: Driver> {
    qp: Qp<RawPacket, Exclusive, D>,
    cq: Cq<Shared, D>,
    mr: MemoryRegion<PageBuf, Exposed, D>,
    pd: ProtectionDomain<D>,
}

/// Both ends; none if the device has no such QPs.
fn stations<D: Driver>(lab: &Lab<D>) -> Result<Option<[Station<D>; 2]>> {
    let has = lab.device.max_raw_ethy_qp != 0 || !lab.device.raw_packet_caps.is_empty();
    if !has || lab.port.link_layer != LinkLayer::ETHERNET {
        lab.note("the device has no raw packets");
        return Ok(None);
    }
    Ok(Some([station(lab, &lab.a)?, station(lab, &lab.b)?]))
}

fn station<D: Driver>(lab: &Lab<D>, context: &Context<D>) -> Result<Station<D>> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(256, None)?;
    let mr = region(&pd, 16 * ROOM, lab.full_access())?;
    let cap = QpCap::new(16, 16).sge(4, 2).inline(64);
    let mut builder = pd.raw_qp::<RawPacket>().cq(&cq).cap(cap);
    if lab.device.tso_caps.max_tso != 0 {
        builder = builder.max_tso_header(HEADERS as u16).send_ops(SendOpsFlags::SEND | SendOpsFlags::TSO);
    }
    let qp = builder.create()?;
    let attr = lab.connect_attr();
    qp.init(&attr)?;
    qp.control.ready_to_receive(&Endpoint::default(), &attr)?;
    qp.control.ready_to_send(&Endpoint::default(), &attr)?;
    Ok(Station { qp, cq, mr, pd })
}

/// An Ethernet frame with IPv4 and TCP headers, whose checksums are 0.
fn frame(src_ip: [u8; 4], dst_ip: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut frame = [&MAC[..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    frame.extend([0x45, 0]);
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 7, 0, 0, 64, 6, 0, 0]);
    frame.extend(src_ip);
    frame.extend(dst_ip);
    // Ports, sequence number, acknowledgement, length of the header and PSH, window, checksum, urgent.
    frame.extend([0x12, 0x34, 0x56, 0x78]);
    frame.extend(1000_u32.to_be_bytes());
    frame.extend([0, 0, 0, 0, 5 << 4, 8, 0x10, 0, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

/// The one's complement sum, which is 0xffff if the Internet checksum is correct (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum = words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether both checksums of a frame are correct.
fn sums_are_right(frame: &[u8]) -> bool {
    let tcp = &frame[34..];
    let pseudo = [&frame[26..34], &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
    sum(&frame[14..34]) == 0xffff && sum(&[pseudo, tcp.to_vec()].concat()) == 0xffff
}

/// A rule for the frames of this file.
fn to_mac(specs: Vec<FlowSpec>) -> FlowAttr {
    let eth = FlowMatch {
        val: FlowEth { dst_mac: MAC, ..FlowEth::default() },
        mask: FlowEth { dst_mac: [0xff; 6], ..FlowEth::default() },
    };
    let specs = [vec![FlowSpec::Header(FlowHeader::Eth(eth))], specs].concat();
    FlowAttr::new(crate::lab::PORT).specs(specs)
}

fn to_ip(dst_ip: [u8; 4]) -> FlowSpec {
    FlowSpec::Header(FlowHeader::Ipv4(FlowMatch {
        val: FlowIpv4 { dst_ip, ..FlowIpv4::default() },
        mask: FlowIpv4 { dst_ip: [0xff; 4], ..FlowIpv4::default() },
    }))
}

impl<D: Driver> Station<D> {
    /// Receives a frame at this place of the region.
    fn recv(&mut self, wr_id: u64) -> Result<()> {
        let at = wr_id as usize * ROOM;
        let sge = self.mr.sge(at..at + ROOM)?;
        // SAFETY: the region lives as long as the QP.
        unsafe { self.qp.rq()?.post(wr_id, &[sge]) }?;
        Ok(())
    }

    /// Sends a frame of two entries.
    fn send(&mut self, bytes: &[u8], flags: SendFlags) -> Result<()> {
        self.mr.write_at(0, bytes)?;
        let sges = [self.mr.sge(0..20)?, self.mr.sge(20..bytes.len())?];
        // SAFETY: the region lives until the completion is polled.
        unsafe { self.qp.sq().post_frame(9).signaled().flags(flags).send(&sges) }?;
        ensure!(wait::successes(&self.cq, 1)?[0].wr_id == 9);
        Ok(())
    }

    /// The frames that have arrived in `n` completions.
    fn frames(&self, n: usize) -> Result<Vec<(WorkCompletion, Vec<u8>)>> {
        let all = wait::successes(&self.cq, n)?;
        let bytes = |wc: &WorkCompletion| -> Result<_> {
            let mut bytes = vec![0; wc.byte_len as usize];
            self.mr.read_at(wc.wr_id as usize * ROOM, &mut bytes)?;
            Ok((*wc, bytes))
        };
        all.iter().map(bytes).collect()
    }
}

/// Without a rule there are no frames. A rule selects only matching frames, until it is destroyed.
fn rules_select_frames<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some([mut a, mut b]) = stations(lab)? else { return Ok(()) };
    let bytes = frame([10, 0, 0, 1], [10, 0, 0, 2], &pattern::bytes(1, 100));
    b.recv(1)?;
    a.send(&bytes, SendFlags::empty())?;
    wait::none(&b.cq).context("without a rule")?;

    let flow = b.qp.control.create_flow(&to_mac(vec![]))?;
    a.send(&bytes, SendFlags::empty())?;
    let got = b.frames(1)?.remove(0);
    ensure!(got.0.wr_id == 1 && got.1 == bytes, "{:?}", got.0);
    flow.close()?;

    b.recv(2)?;
    a.send(&bytes, SendFlags::empty())?;
    wait::none(&b.cq).context("after the rule")?;
    let _other = b.qp.control.create_flow(&to_mac(vec![to_ip([10, 0, 0, 3])]))?;
    a.send(&bytes, SendFlags::empty())?;
    wait::none(&b.cq).context("another's rule")?;
    let _mine = b.qp.control.create_flow(&to_mac(vec![to_ip([10, 0, 0, 2])]))?;
    a.send(&bytes, SendFlags::empty())?;
    ensure!(b.frames(1)?[0].0.wr_id == 2);
    Ok(())
}

/// Frames by reference and inline, on each typed face, arrive unchanged.
fn frames_arrive_unchanged<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some([mut a, mut b]) = stations(lab)? else { return Ok(()) };
    let _flow = b.qp.control.create_flow(&to_mac(vec![]))?;
    let bytes = frame([10, 0, 0, 1], [10, 0, 0, 2], b"0123456789");
    (0..4).try_for_each(|i| b.recv(i))?;
    a.mr.write_at(0, &bytes)?;
    let [one, head, tail] = [a.mr.sge(0..bytes.len())?, a.mr.sge(0..7)?, a.mr.sge(7..bytes.len())?];
    let sq = a.qp.sq();
    sq.post_frame(0).signaled().send_inline(&bytes)?;
    // SAFETY: the region lives until the completions are polled.
    unsafe { sq.post_frame(1).signaled().send(&[one]) }?;
    let mut batch = sq.batch();
    // SAFETY: the region lives until the completions are polled, and its addresses are those of its memory.
    unsafe { batch.frame(2).signaled().send(&[head, tail]) };
    batch.frame(3).signaled().send_inline_list(&[&bytes[..30], &bytes[30..]]);
    batch.complete()?;
    wait::successes(&a.cq, 4)?;
    for (wc, got) in b.frames(4)? {
        ensure!(got == bytes, "frame {}: {got:02x?}", wc.wr_id);
    }
    Ok(())
}

/// The device fills in the requested checksums, and reports whether received ones are correct.
fn checksums_are_filled_in_and_checked<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some([mut a, mut b]) = stations(lab)? else { return Ok(()) };
    let _flow = b.qp.control.create_flow(&to_mac(vec![]))?;
    let bytes = frame([10, 0, 0, 1], [10, 0, 0, 2], &pattern::bytes(3, 333));
    ensure!(!sums_are_right(&bytes));
    b.recv(0)?;
    b.recv(1)?;
    a.send(&bytes, SendFlags::empty())?;
    let (wc, got) = b.frames(1)?.remove(0);
    ensure!(got == bytes && !wc.wc_flags.contains(WcFlags::IP_CSUM_OK), "{wc:?}");
    match a.send(&bytes, SendFlags::IP_CSUM) {
        Ok(()) => {}
        Err(e) if !lab.has(uverbs::attr::DeviceCapFlags::RAW_IP_CSUM) => {
            lab.note(format_args!("no checksums: {e:#}"));
            return Ok(());
        }
        Err(e) => return Err(e),
    }
    let (wc, got) = b.frames(1)?.remove(0);
    ensure!(sums_are_right(&got), "{:02x?}", &got[..HEADERS]);
    ensure!(wc.wc_flags.contains(WcFlags::IP_CSUM_OK), "{wc:?}");
    // Except for the checksums it is unchanged.
    let mut same = got;
    same[24..26].fill(0);
    same[50..52].fill(0);
    ensure!(same == bytes);
    Ok(())
}

/// A long send is divided into segments. Each has the header, with updated lengths and sequence numbers.
fn long_sends_are_segmented<D: Driver>(lab: &Lab<D>) -> Outcome {
    const MSS: usize = 500;
    const LEN: usize = 3 * MSS + 123;
    let Some([mut a, mut b]) = stations(lab)? else { return Ok(()) };
    if lab.device.tso_caps.max_tso == 0 {
        lab.note("no segmentation");
        return Ok(());
    }
    let _flow = b.qp.control.create_flow(&to_mac(vec![]))?;
    (0..4).try_for_each(|i| b.recv(i))?;
    let header = frame([10, 0, 0, 1], [10, 0, 0, 2], &[]);
    ensure!(header.len() == HEADERS);
    let data = pattern::bytes(5, LEN);
    a.mr.write_at(64, &data)?;
    let sges = [a.mr.sge(64..64 + 700)?, a.mr.sge(64 + 700..64 + LEN)?];
    let args = TsoArgs { header: &header, mss: MSS as u16 };
    // SAFETY: the region lives until the completion is polled.
    unsafe { a.qp.sq().post_frame(7).signaled().flags(SendFlags::IP_CSUM).send_tso(args, &sges) }?;
    wait::successes(&a.cq, 1)?;
    for (i, (wc, got)) in b.frames(4)?.into_iter().enumerate() {
        let part = &data[i * MSS..LEN.min((i + 1) * MSS)];
        ensure!(got.len() == HEADERS + part.len() && got[HEADERS..] == *part, "segment {i}: {wc:?}");
        ensure!(sums_are_right(&got), "segment {i}: {:02x?}", &got[..HEADERS]);
        let total = u16::from_be_bytes([got[16], got[17]]);
        let sequence = u32::from_be_bytes([got[38], got[39], got[40], got[41]]);
        ensure!((total as usize, sequence as usize) == (40 + part.len(), 1000 + i * MSS), "segment {i}");
        let push = got[47] & 8 != 0;
        ensure!(push == (i == 3), "segment {i}: only the last one may have PSH");
    }
    Ok(())
}

/// A hash spreads frames over work queues, and each flow always goes to the same one.
fn flows_are_spread_over_queues<D: Driver>(lab: &Lab<D>) -> Outcome {
    const QUEUES: usize = 4;
    let Some([mut a, b]) = stations(lab)? else { return Ok(()) };
    if lab.device.rss_caps.supported_qpts == 0 {
        lab.note("no work queues");
        return Ok(());
    }
    let attr = WqInitAttr::new(32);
    let mut wqs: Vec<Wq<Exclusive, D>> =
        (0..QUEUES).map(|_| b.pd.create_wq(&b.cq, &attr)).collect::<Result<_, _>>()?;
    for (i, wq) in wqs.iter_mut().enumerate() {
        wq.modify_state(WqState::RDY)?;
        for n in 0..32 {
            let sge = b.mr.sge(i * ROOM..(i + 1) * ROOM)?;
            // SAFETY: the region lives as long as the queue.
            unsafe { wq.post((i * 100 + n) as u64, &[sge]) }?;
        }
    }
    let table = RwqIndTable::create(&wqs.iter().collect::<Vec<_>>())?;
    let key: Vec<u8> = (0..40_u32).map(|i| (i * 37 + 11) as u8).collect();
    let hash = RxHashConf::new(&key, RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4);
    let qp = b.pd.create_rss_qp(&table, hash)?;
    let _flow = qp.create_flow(&to_mac(vec![]))?;
    let mut queue_of = |src: u8| -> Result<u64> {
        a.send(&frame([10, 0, 0, src], [10, 0, 0, 2], b"hash"), SendFlags::empty())?;
        Ok(wait::successes(&b.cq, 1)?[0].wr_id / 100)
    };
    let first: Vec<_> = (1..17).map(&mut queue_of).collect::<Result<_>>()?;
    let again: Vec<_> = (1..17).map(&mut queue_of).collect::<Result<_>>()?;
    ensure!(first == again, "the same packets, other queues: {first:?}, {again:?}");
    let mut hit = first.clone();
    hit.sort_unstable();
    hit.dedup();
    ensure!(hit.len() == QUEUES, "{first:?}");
    Ok(())
}

/// Counters count the packets and bytes that their rules match, and nothing else.
fn counters_count_matching_frames<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some([mut a, b]) = stations(lab)? else { return Ok(()) };
    let set = lab.b.create_counters()?;
    let attach = |counter_desc, index| set.attach(CounterAttachAttr::new(counter_desc, index));
    let rule = |last| to_mac(vec![to_ip([10, 0, 0, last])]);
    let unbound = b.qp.control.create_flow_counted(&rule(2), &set);
    ensure!(unbound.is_err_and(|e| e.to_string().contains("no counter")));
    attach(CounterDescription::PACKETS, 2)?;
    attach(CounterDescription::BYTES, 0)?;
    let (first, second) = (
        b.qp.control.create_flow_counted(&rule(2), &set)?,
        b.qp.control.create_flow_counted(&rule(3), &set)?,
    );
    ensure!(attach(CounterDescription::BYTES, 1).is_err_and(|e| e.errno() == Errno::EBUSY));
    let frame = |last| frame([10, 0, 0, 1], [10, 0, 0, last], &pattern::bytes(4, 90));
    for last in [2, 4, 3, 2] {
        a.send(&frame(last), SendFlags::empty())?;
    }
    let mut values = [0; 4];
    ensure!(set.read(&mut values[..2], false).is_err(), "no room for index 2");
    wait::until("three packets", wait::LIMIT, || {
        set.read(&mut values, false)?;
        Ok(values[2] == 3)
    })?;
    // A device may count the four bytes of the FCS.
    let bytes = 3 * frame(2).len() as u64;
    ensure!((bytes..=bytes + 12).contains(&values[0]) && values[1] == 0 && values[3] == 0, "{values:?}");
    first.close()?;
    second.close()?;
    Ok(())
}

crate::tests!(
    rules_select_frames,
    counters_count_matching_frames,
    frames_arrive_unchanged,
    checksums_are_filled_in_and_checked,
    long_sends_are_segmented,
    flows_are_spread_over_queues,
);
