// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multicast: an attached QP receives it, a detached QP does not.

use crate::env::End;
use crate::pair::{GRH, ah_attr};
use crate::{Dest, Face, Lab, Op, Outcome, Pair, Req, To};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::Gid;
use uverbs::{Driver, Exclusive, Rc, Ud};

type UdPair<D> = Pair<D, Ud, Exclusive>;

/// The group, and on InfiniBand its LID, which a subnet manager would assign.
struct Group {
    text: &'static str,
    gid: Gid,
    lid: u16,
}

fn group<D: Driver>(lab: &Lab<D>) -> Result<Group> {
    let (text, lid) = if lab.is_ethernet() { ("239.7.7.7", 0) } else { ("ff12:401b:ffff::7:707", 0xc007) };
    Ok(Group { text, gid: text.parse()?, lid })
}

const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// Sends to the group from A.
fn send<D: Driver>(lab: &Lab<D>, pair: &mut UdPair<D>, group: &Group, face: Face, data: &[u8]) -> Result<()> {
    let ah = pair.a.pd.create_ah(&ah_attr(lab, group.gid, group.lid)).context("create_ah of a group")?;
    let to = Dest::Ud(To { ah: &ah, remote_qpn: MULTICAST_QPN, remote_qkey: pair.a.there.1 });
    let req = Req::new(1, Op::Send).signaled().inline(data).to(to);
    crate::post(&mut pair.a.qp, face, &[req])?;
    pair.a.ok(1)?;
    Ok(())
}

/// A sends to the group; B is attached, and then detached. B's host joins the group, as with rdma_cm.
fn only_attached_qps_receive<D: Driver>(lab: &Lab<D>) -> Outcome {
    let group = group(lab)?;
    ensure!(group.gid.is_multicast());
    let _membership = lab.bed.join_group(End::B, group.text)?;
    let mut pair = UdPair::new(lab)?;
    pair.b.qp.control.attach_mcast(group.gid, group.lid)?;
    for (turn, face) in Face::ALL.into_iter().enumerate() {
        pair.b.recv(Face::Single, turn as u64, 0..256)?;
        let data = [turn as u8 + 1; 50];
        send(lab, &mut pair, &group, face, &data)?;
        let got = pair.b.ok(1)?[0];
        ensure!(got.byte_len == 90 && got.src_qp == pair.a.qp.qp_num(), "{got:?}");
        ensure!(pair.b.bytes(GRH..90)? == data);
    }
    pair.b.qp.control.detach_mcast(group.gid, group.lid)?;
    pair.b.recv(Face::Single, 9, 0..256)?;
    send(lab, &mut pair, &group, Face::Batch, &[1; 50])?;
    pair.b.idle().context("after the detach")
}

/// Every QP that is attached gets its own copy.
fn each_member_gets_a_copy<D: Driver>(lab: &Lab<D>) -> Outcome {
    let group = group(lab)?;
    let _membership = lab.bed.join_group(End::B, group.text)?;
    let mut first = UdPair::new(lab)?;
    let mut second = UdPair::new(lab)?;
    for pair in [&mut first, &mut second] {
        pair.b.qp.control.attach_mcast(group.gid, group.lid)?;
        pair.b.recv(Face::Single, 1, 0..256)?;
    }
    send(lab, &mut first, &group, Face::Single, b"to all")?;
    for pair in [&first, &second] {
        pair.b.ok(1)?;
        ensure!(pair.b.bytes(GRH..GRH + 6)? == b"to all");
    }
    for pair in [&first, &second] {
        pair.b.qp.control.detach_mcast(group.gid, group.lid)?;
    }
    Ok(())
}

/// Addresses that are not groups, and QPs that can't be attached.
fn invalid_groups_and_qps_are_refused<D: Driver>(lab: &Lab<D>) -> Outcome {
    let group = group(lab)?;
    let pair = UdPair::new(lab)?;
    let e = pair.b.qp.control.attach_mcast(pair.a.here.gid, 0).err().context("a unicast address")?;
    ensure!(e.verb() == "attach_mcast", "{e}");
    let e = pair.b.qp.control.detach_mcast(group.gid, group.lid).err().context("not attached")?;
    ensure!(e.verb() == "detach_mcast", "{e}");
    let rc = Pair::<D, Rc, Exclusive>::new(lab)?;
    let e = rc.b.qp.control.attach_mcast(group.gid, group.lid).err().context("an RC QP")?;
    ensure!(e.verb() == "attach_mcast", "{e}");
    Ok(())
}

/// A QP in a group is not destroyed until it is detached.
fn attached_qp_is_busy<D: Driver>(lab: &Lab<D>) -> Outcome {
    let group = group(lab)?;
    let UdPair { b, .. } = UdPair::new(lab)?;
    b.qp.control.attach_mcast(group.gid, group.lid)?;
    b.qp.control.detach_mcast(group.gid, group.lid)?;
    b.qp.close().context("after the detach")?;
    Ok(())
}

crate::tests!(
    only_attached_qps_receive,
    each_member_gets_a_copy,
    invalid_groups_and_qps_are_refused,
    attached_qp_is_busy
);
