// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagrams: the GRH before the data, answers to the sender, addresses that are destroyed early.

use crate::lab::PORT;
use crate::pair::GRH;
use crate::wait::{self, statuses};
use crate::{Dest, Dialect, Face, Lab, Op, Outcome, Pair, Req, Spec, To, pattern, post_recv};
use anyhow::{Context as _, ensure};
use uverbs::attr::{GidType, QpAttr, QpAttrMask, QpState};
use uverbs::{Driver, Exclusive, Rc, Uc, Ud, WcFlags, WcStatus, WorkCompletion};

type UdPair<D> = Pair<D, Ud, Exclusive>;

/// The 40 bytes are before the data, in any number of entries, and identify the sender.
fn grh_precedes_the_data<D: Driver>(lab: &Lab<D>) -> Outcome {
    let UdPair { mut a, mut b } = UdPair::new(lab)?;
    let data = pattern::bytes(9, 500);
    a.mr.write_at(0, &data)?;
    let sges = [a.sge(0..500)];
    // The GRH is in the same entry as the data, in a separate one, or divided between two.
    let layouts = [
        vec![b.sge(0..540)],
        vec![b.sge(0..40), b.sge(40..540)],
        vec![b.sge(0..13), b.sge(13..300), b.sge(300..540)],
    ];
    for layout in &layouts {
        b.clear(0..1024)?;
        post_recv(b.qp.rq()?, Face::Single, &[(1, layout)])?;
        a.post(Face::Single, &[Req::new(1, Op::Send).signaled().sges(&sges)])?;
        a.ok(1)?;
        let got = b.ok(1)?[0];
        ensure!(got.byte_len == 540 && got.wc_flags.contains(WcFlags::GRH), "{got:?}");
        ensure!((got.src_qp, got.qp_num) == (a.qp.qp_num(), b.qp.qp_num()), "{got:?}");
        b.check(GRH..540, 9)?;
        let mut grh = [0; GRH];
        b.mr.read_at(0, &mut grh)?;
        let attr = b.pd.ah_attr_from_wc(&got, &grh, PORT)?;
        let route = attr.grh.context("a route")?;
        ensure!(route.dgid == a.here.gid, "the sender is {}, not {}", a.here.gid, route.dgid);
        ensure!(attr.port_num == PORT);
        let entry = lab.b.query_gid_ex(PORT, route.sgid_index.into())?;
        let gid_type = if lab.is_ethernet() { GidType::ROCE_V2 } else { GidType::IB };
        ensure!(entry.gid == b.here.gid && entry.gid_type == gid_type, "{entry:?}");
    }
    Ok(())
}

/// B replies to the sender, using only the completion and the GRH.
fn completion_and_grh_address_a_reply<D: Driver>(lab: &Lab<D>) -> Outcome {
    let UdPair { mut a, mut b } = UdPair::new(lab)?;
    for turn in 0..3_u64 {
        let question = pattern::bytes(turn, 32);
        a.recv(Face::Single, 5, 4096..8192)?;
        b.recv(Face::Single, 6, 0..4096)?;
        a.post(Face::Single, &[Req::new(1, Op::SendImm(17)).signaled().inline(&question)])?;
        a.ok(1)?;
        let got = b.ok(1)?[0];
        let mut grh = [0; GRH];
        b.mr.read_at(0, &mut grh)?;
        let ah = b.pd.create_ah_from_wc(&got, &grh, PORT)?;
        let sges = [b.sge(GRH..GRH + 32)];
        let to = Dest::Ud(To { ah: &ah, remote_qpn: got.src_qp, remote_qkey: b.there.1 });
        crate::post(&mut b.qp, Face::Batch, &[Req::new(2, Op::Send).signaled().sges(&sges).to(to)])?;
        b.ok(1)?;
        let answer = a.ok(1)?[0];
        ensure!(answer.src_qp == b.qp.qp_num() && answer.byte_len == 72, "{answer:?}");
        a.check(4096 + GRH..4096 + GRH + 32, turn)?;
    }
    Ok(())
}

/// A receive that is too short for the datagram, for the GRH, or for any byte: the sender is not affected; the datagram is
/// dropped without a completion (on rxe, the receive may have an error), and nothing is written beyond the receive.
fn short_receives_are_not_overrun<D: Driver>(lab: &Lab<D>) -> Outcome {
    for room in [0, 10, GRH, GRH + 99] {
        let UdPair { mut a, mut b } = UdPair::new(lab)?;
        b.recv(Face::Single, 1, 0..room)?;
        let long = [a.sge(0..100)];
        let message = Req::new(1, Op::Send).signaled();
        a.post(Face::Single, &[message.sges(&long)])?;
        a.ok(1)?;
        wait::rest(wait::QUIET);
        let mut wc = [WorkCompletion::default()];
        let got = b.cq.poll(&mut wc)?.first().copied();
        match got {
            Some(wc) => {
                let allowed = [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::LOC_PROT_ERR];
                ensure!(allowed.contains(&wc.status), "{room} bytes: {wc:?}");
            }
            None => lab.note(format_args!("a datagram of 100 bytes into {room} is dropped")),
        }
        if Dialect::of::<D>().drops_long_datagrams {
            ensure!(got.is_none() && b.state()? == QpState::RTS, "{room} bytes: {got:?}, {:?}", b.state()?);
        }
        ensure!(b.bytes(room..room + 200)? == vec![0; 200], "written beyond {room} bytes");
        // A datagram that fits arrives after that, if the QP is in RTS: in the next receive, or in this one if it was
        // kept.
        if b.state()? != QpState::RTS || (got.is_none() && room < GRH) {
            continue;
        }
        let data = &pattern::bytes(3, 64)[..if got.is_none() { room - GRH } else { 64 }.min(64)];
        b.recv(Face::Single, 2, 1000..2000)?;
        a.post(Face::Single, &[message.inline(data)])?;
        a.ok(1)?;
        let wc = b.ok(1)?[0];
        ensure!(wc.byte_len as usize == GRH + data.len(), "{wc:?}");
        let at = if wc.wr_id == 2 { 1000 } else { 0 };
        b.check(at + GRH..at + GRH + data.len(), 3)?;
    }
    Ok(())
}

/// A datagram as long as the path MTU, and one byte more: the second is posted, but not sent.
fn datagram_longer_than_the_mtu_is_not_sent<D: Driver>(lab: &Lab<D>) -> Outcome {
    let UdPair { mut a, mut b } = UdPair::new(lab)?;
    let mtu = lab.port.active_mtu.bytes().context("an MTU")? as usize;
    a.fill(0..mtu + 1, 4)?;
    let (fits, too_long) = ([a.sge(0..mtu)], [a.sge(0..mtu + 1)]);
    b.recv(Face::Single, 1, 0..16 << 10)?;
    a.post(Face::Batch, &[Req::new(1, Op::Send).signaled().sges(&fits)])?;
    a.ok(1)?;
    ensure!(b.ok(1)?[0].byte_len as usize == mtu + GRH);
    b.check(GRH..GRH + mtu, 4)?;
    b.recv(Face::Single, 2, 0..16 << 10)?;
    for face in Face::ALL {
        // The device sends nothing, and completes it in its own way (docs/src/reference/semantics.md).
        a.post(face, &[Req::new(2, Op::Send).signaled().sges(&too_long)])?;
        let status = a.wait(1)?[0].status;
        ensure!(status == Dialect::of::<D>().datagram_too_long, "{status:?}");
        if !status.is_success() {
            a.set_state(QpState::RESET)?;
            a.connect(&b.here, &lab.connect_attr())?;
        }
    }
    b.idle()
}

/// An address handle may be destroyed while datagrams that use it are outstanding.
fn ah_may_be_destroyed_after_the_post<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !lab.has_sqd()? {
        return Ok(());
    }
    let UdPair { mut a, mut b } = UdPair::new(lab)?;
    for face in Face::ALL {
        for _ in 0..4 {
            b.recv(Face::Single, 1, 0..100)?;
        }
        a.drain()?;
        let ah = a.pd.create_ah(&lab.connect_attr().ah_attr(&b.here))?;
        let (qpn, qkey) = a.there;
        let to = Dest::Ud(To { ah: &ah, remote_qpn: qpn, remote_qkey: qkey });
        let reqs: Vec<_> = (0..4).map(|i| Req::new(i, Op::Send).signaled().inline(&[7; 20]).to(to)).collect();
        crate::post(&mut a.qp, face, &reqs)?;
        ah.close().context("destroy while posted")?;
        a.set_state(QpState::RTS)?;
        let sent = statuses(&a.wait(4)?);
        // The kernel may find the handle destroyed; then it reports an error.
        let all_sent = sent.iter().all(|(_, s)| s.is_success());
        if all_sent {
            let mut arrived = 0;
            let mut deadline = crate::Deadline::after(wait::QUIET * 4);
            while arrived < 4 && !deadline.passed() {
                arrived += b.cq.poll(&mut [WorkCompletion::default(); 4])?.len();
                deadline.pause();
            }
            lab.note(format_args!("{face:?}: {arrived} of 4 arrived after their address was destroyed"));
        } else {
            lab.note(format_args!("{face:?}: {sent:?}"));
        }
        // Datagrams with a new address handle arrive.
        a.set_state(QpState::RESET)?;
        b.set_state(QpState::RESET)?;
        while !b.cq.poll(&mut [WorkCompletion::default(); 4])?.is_empty() {}
        let (here, there) = (a.here, b.here);
        a.connect(&there, &lab.connect_attr())?;
        b.connect(&here, &lab.connect_attr())?;
        b.recv(Face::Single, 9, 0..100)?;
        a.post(face, &[Req::new(9, Op::Send).signaled().inline(&[8; 20])])?;
        a.ok(1)?;
        ensure!(b.ok(1)?[0].wr_id == 9);
        ensure!(b.bytes(GRH..GRH + 20)? == [8; 20]);
    }
    Ok(())
}

/// If the top bit of the queue key is set, the sending QP's own key is used.
fn top_bit_selects_the_own_queue_key<D: Driver>(lab: &Lab<D>) -> Outcome {
    let UdPair { mut a, mut b } = UdPair::new(lab)?;
    let (qpn, _) = a.there;
    for face in Face::ALL {
        a.there = (qpn, 0x8000_0000);
        b.recv(Face::Single, 1, 0..100)?;
        a.post(face, &[Req::new(1, Op::Send).inline(&[1])])?;
        b.ok(1).with_context(|| format!("{face:?}"))?;
    }
    // The key of a QP in RTS can be changed.
    let key = 0x2222_2222;
    let attr = QpAttr::new().qp_state(QpState::RTS).qkey(key);
    for side in [&a, &b] {
        side.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::QKEY)?;
        ensure!(side.qp.query(QpAttrMask::QKEY)?.0.qkey == key);
    }
    b.recv(Face::Single, 1, 0..100)?;
    a.post(Face::Batch, &[Req::new(1, Op::Send).inline(&[1])])?;
    b.ok(1)?;
    Ok(())
}

/// Datagrams to many QPs with one address handle, in any order, arrive at the correct QP.
fn datagrams_reach_their_receivers<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.len = 4096;
    let UdPair { mut a, b } = UdPair::with(lab, &spec)?;
    let ah = a.ah.take().context("an address")?;
    let mut receivers = vec![b];
    for _ in 0..5 {
        receivers.push(UdPair::with(lab, &spec)?.b);
    }
    for turn in 0..30_u64 {
        let to = (turn as usize * 5 + turn as usize / 7) % receivers.len();
        let b = &mut receivers[to];
        b.recv(Face::Single, turn, 0..100)?;
        let data = turn.to_le_bytes();
        let to = Dest::Ud(To { ah: &ah, remote_qpn: b.qp.qp_num(), remote_qkey: spec.attr.qkey });
        let req = Req::new(turn, Op::Send).inline(&data).to(to);
        crate::post(&mut a.qp, Face::ALL[turn as usize % 4], &[req])?;
        ensure!(b.ok(1)?[0].wr_id == turn);
        ensure!(b.bytes(GRH..GRH + 8)? == data);
    }
    Ok(())
}

/// InfiniBand needs no global route: packets are routed by LID, and the completion shows that there was no GRH.
fn lid_routing_needs_no_grh<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.attr.sgid_index = None;
    let UdPair { a, b } = UdPair::unconnected(lab, &spec)?;
    if lab.is_ethernet() {
        // RoCE has no other address.
        let e = a.pd.create_ah(&spec.attr.ah_attr(&b.here)).err().context("an address by LID on Ethernet")?;
        ensure!(e.verb() == "create_ah", "{e}");
        return Ok(());
    }
    let mut pair = UdPair { a, b };
    pair.connect(&spec.attr)?;
    for face in Face::ALL {
        let UdPair { a, b } = &mut pair;
        b.recv(Face::Single, 1, 0..1024)?;
        a.post(face, &[Req::new(1, Op::Send).signaled().inline(&[6; 24])])?;
        a.ok(1)?;
        let got = b.ok(1)?[0];
        // The space for a GRH is reserved nevertheless.
        ensure!(got.byte_len == 64 && !got.wc_flags.contains(WcFlags::GRH), "{got:?}");
        ensure!(got.slid == a.here.lid && got.src_qp == a.qp.qp_num(), "{got:?}");
        ensure!(b.bytes(GRH..64)? == [6; 24]);
        let back = b.pd.ah_attr_from_wc(&got, &[0; GRH], PORT)?;
        ensure!(back.grh.is_none() && back.dlid == a.here.lid, "{back:?}");
    }
    Pair::<D, Rc, Exclusive>::with(lab, &spec)?.message(Face::Batch, 5000, 1).context("RC")?;
    Pair::<D, Uc, Exclusive>::with(lab, &spec)?.message(Face::Batch, 5000, 2).context("UC")
}

crate::tests!(
    lid_routing_needs_no_grh,
    grh_precedes_the_data,
    completion_and_grh_address_a_reply,
    short_receives_are_not_overrun,
    datagram_longer_than_the_mtu_is_not_sent,
    ah_may_be_destroyed_after_the_post,
    top_bit_selects_the_own_queue_key,
    datagrams_reach_their_receivers,
);
