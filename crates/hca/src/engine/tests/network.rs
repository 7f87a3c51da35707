// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reliability on a bad network, and transports that have none.

use super::rig::{BASE, End, on, pair};
use crate::engine::packet::PSN;
use crate::engine::qp::{QpKind, State};
use crate::{Fabric, Link};
use core::time::Duration;
use uverbs_mlx5_hw::cqe::MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
use uverbs_mlx5_hw::wqe::{Av, MLX5_EXTENDED_UD_AV, MLX5_OPCODE_SEND};
use uverbs_mlx5_hw::{Be16, Be32};
use zerocopy::IntoBytes;

/// All operations at once. Each message must arrive complete, exactly once and in order.
fn storm(seed: u64, loss: f64) -> (u64, Vec<u64>) {
    let fabric = Fabric::deterministic(seed);
    let (mut a, mut b) = pair(&fabric, QpKind::Rc, PSN - 50);
    fabric.loss(loss).duplicate(loss).reorder(loss);
    b.memory.set(60_000, &0_u64.to_ne_bytes());
    let mut olds = Vec::new();
    for i in 0..60_u32 {
        let len = 1 + (i * 137) % 2000;
        let data = a.fill(0, len as usize, i as u8);
        b.recv(4096, 2048);
        a.send_imm(0, len, i);
        a.fetch_add(40_000, BASE + 60_000, b.key, 1);
        a.read(30_000, len, BASE + 4096, b.key);
        fabric.run();
        for _ in 0..3 {
            let wc = a.send_cq.poll().unwrap_or_else(|| panic!("seed {seed}: message {i} never completed"));
            assert_eq!(wc.syndrome, 0, "seed {seed}, message {i}");
        }
        let wc = b.recv_cq.poll().unwrap();
        assert_eq!((wc.imm, wc.bytes), (i, len));
        assert!(b.recv_cq.poll().is_none() && a.send_cq.poll().is_none());
        assert_eq!(b.memory.get(4096, len as usize), data);
        assert_eq!(a.memory.get(30_000, len as usize), data, "seed {seed}: read {i}");
        olds.push(u64::from_ne_bytes(a.memory.get(40_000, 8).try_into().unwrap()));
    }
    assert_eq!(b.memory.get(60_000, 8), 60_u64.to_ne_bytes(), "seed {seed}: an atomic was executed twice");
    assert_eq!(olds, (0..60).collect::<Vec<_>>());
    (fabric.now().as_nanos() as u64, olds)
}

/// The number of seeds that a test uses; the environment variable `HCA_SEEDS` changes it.
fn seeds(usual: u64) -> core::ops::Range<u64> {
    0..std::env::var("HCA_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn messages_arrive_once_and_in_order_on_a_bad_network() {
    for seed in seeds(20) {
        storm(seed, 0.03);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(storm(5, 0.05), storm(5, 0.05));
    assert_ne!(storm(5, 0.05).0, storm(6, 0.05).0);
}

#[test]
fn many_outstanding_requests_complete_on_a_bad_network() {
    for seed in seeds(10) {
        let fabric = Fabric::deterministic(seed);
        let (mut a, mut b) = pair(&fabric, QpKind::Rc, 0);
        fabric.loss(0.02).duplicate(0.02).reorder(0.05).delay(Duration::from_micros(3));
        for i in 0..16 {
            b.recv(i * 1000, 1000);
        }
        for i in 0..16_u64 {
            a.fill(i as usize * 1000, 1000, i as u8);
            a.send(i * 1000, 1000);
            a.write(i * 1000, 1000, BASE + 20_000 + i * 1000, b.key);
            a.read(40_000 + i * 1000, 1000, BASE + 20_000 + i * 1000, b.key);
            while a.send_cq.poll().is_some_and(|wc| {
                assert_eq!(wc.syndrome, 0);
                true
            }) {}
        }
        fabric.run();
        while a.send_cq.poll().is_some_and(|wc| {
            assert_eq!(wc.syndrome, 0, "seed {seed}");
            true
        }) {}
        for i in 0..16 {
            assert_eq!(b.recv_cq.poll().unwrap().counter, i, "seed {seed}");
        }
        let sent = a.memory.get(0, 16_000);
        assert_eq!(b.memory.get(0, 16_000), sent, "seed {seed}: sends");
        assert_eq!(b.memory.get(20_000, 16_000), sent, "seed {seed}: writes");
        assert_eq!(a.memory.get(40_000, 16_000), sent, "seed {seed}: reads");
        assert!(a.qp(|_, _, qp| qp.req.is_idle()), "seed {seed}");
    }
}

#[test]
fn an_unreliable_connection_loses_whole_messages_only() {
    let fabric = Fabric::deterministic(3);
    let (mut a, mut b) = pair(&fabric, QpKind::Uc, PSN - 100);
    fabric.loss(0.05);
    let mut came = 0;
    for i in 0..200_u32 {
        let data = a.fill(0, 900, i as u8);
        if came == i || b.recv_cq.poll().is_none() {
            b.memory.set(0, &[0; 1000]);
        }
        let posted = b.qp(|_, _, qp| qp.rq.as_ref().unwrap().posted().unwrap());
        if posted == 0 {
            b.recv(0, 1000);
        }
        a.send_imm(0, 900, i);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        if let Some(wc) = b.recv_cq.poll() {
            assert_eq!((wc.imm, wc.bytes), (i, 900));
            assert_eq!(b.memory.get(0, 900), data);
            came += 1;
        }
    }
    assert!((50..200).contains(&came), "{came} of 200 arrived");
    assert_eq!((a.state(), b.state()), (State::Rts, State::Rts));
}

pub(super) fn av(qpn: u32, lid: u16, qkey: u32) -> Av {
    Av {
        qkey: Be32::new(qkey),
        dqp_dct: Be32::new(qpn | MLX5_EXTENDED_UD_AV),
        rlid: Be16::new(lid),
        ..zerocopy::FromZeros::new_zeroed()
    }
}

#[test]
fn datagrams_arrive_after_forty_bytes_if_the_key_matches() {
    let fabric = Fabric::deterministic(1);
    let (mut a, mut b) = pair(&fabric, QpKind::Ud, 0);
    let data = a.fill(0, 200, 1);
    for (qkey, came) in [(0x1234, true), (0x1235, false), (0x8000_0000, true)] {
        b.memory.set(0, &[0xaa; 300]);
        b.recv(0, 300);
        let sge = a.sge(0, 200);
        a.post(MLX5_OPCODE_SEND, 0, &[av(b.qpn, 2, qkey).as_bytes(), sge.as_bytes()]);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        let wc = b.recv_cq.poll();
        assert_eq!(wc.map(|wc| wc.bytes), came.then_some(240), "{qkey:#x}");
        if came {
            // Without a GRH, the first 40 bytes are not written.
            assert_eq!(b.memory.get(0, 40), [0xaa; 40]);
            assert_eq!(b.memory.get(40, 200), data);
        }
    }
    // A datagram that is longer than a packet.
    a.attr(|attr| attr.mtu = 100);
    let sge = a.sge(0, 200);
    a.post(MLX5_OPCODE_SEND, 0, &[av(b.qpn, 2, 0x1234).as_bytes(), sge.as_bytes()]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 1);
    assert_eq!(a.state(), State::Sqe);
}

#[test]
fn each_member_of_a_group_gets_a_copy() {
    let fabric = Fabric::deterministic(1);
    let (mut a, b) = pair(&fabric, QpKind::Ud, 0);
    let mut c = End::new(&b.hca, QpKind::Ud);
    let mut b = b;
    c.connect(0, 0, 0);
    let group = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    for end in [&b, &c] {
        on(&end.hca, |_, cx| assert!(cx.net.join(group, cx.me, end.qpn)));
    }
    let address = Av { rgid: group, grh_gid_fl: Be32::new(1 << 30), ..av(0xff_ffff, 0xc001, 0x1234) };
    for _ in 0..2 {
        b.recv(0, 100);
        c.recv(0, 100);
        let sge = a.sge(0, 20);
        a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
    }
    assert_eq!([(); 2].map(|()| b.recv_cq.poll().unwrap().bytes), [60; 2]);
    assert_eq!([(); 2].map(|()| c.recv_cq.poll().unwrap().bytes), [60; 2]);
    on(&b.hca, |_, cx| assert!(cx.net.leave(group, cx.me, b.qpn)));
    b.recv(0, 100);
    c.recv(0, 100);
    let sge = a.sge(0, 20);
    a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
    assert!(b.recv_cq.poll().is_none() && c.recv_cq.poll().is_some());
}

#[test]
fn roce_routes_by_mac_and_gid_and_gives_the_ip_header() {
    let fabric = Fabric::deterministic(1);
    let hcas = ["x", "y"].map(|name| fabric.device(name).link(Link::Ethernet).build());
    let (mut a, mut b) = (End::new(&hcas[0], QpKind::Ud), End::new(&hcas[1], QpKind::Ud));
    a.connect(0, 0, 0);
    b.connect(0, 0, 0);
    let (mac, gid) = on(&b.hca, |_, cx| (cx.net.ports[1].mac, cx.net.ports[1].gids[3].0));
    let mut address =
        Av { rgid: gid, rmac: mac, hop_limit: 17, grh_gid_fl: Be32::new(3 << 20), ..av(b.qpn, 0, 0x1234) };
    b.recv(0, 100);
    let sge = a.sge(0, 20);
    a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
    assert_eq!(b.recv_cq.poll().unwrap().bytes, 60);
    let ip = b.memory.get(20, 20);
    assert_eq!(
        (ip[0], ip[8], ip[9], &ip[12..16], &ip[16..]),
        (0x45, 17, 17, &[10, 77, 0, 1][..], &[10, 77, 0, 2][..])
    );
    // A packet with a wrong MAC address is not delivered.
    address.rmac[5] ^= 1;
    b.recv(0, 100);
    a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
    assert!(b.recv_cq.poll().is_none());
}

#[test]
fn dc_reaches_several_targets_only_with_their_key() {
    let fabric = Fabric::deterministic(1);
    fabric.loss(0.02);
    let (mut a, b) = pair(&fabric, QpKind::Dci, 0);
    let c = End::new(&b.hca, QpKind::Dci);
    c.connect(0, 0, 0);
    let mut targets = [b, c];
    for (i, end) in targets.iter().enumerate() {
        end.qp(|_, _, qp| (qp.kind, qp.dc_key, qp.sq) = (QpKind::Dct, 0x1_0000_0000 + i as u64, None));
    }
    for round in 0..30 {
        for (i, end) in targets.iter_mut().enumerate() {
            let data = a.fill(0, 700, round * 2 + i as u8);
            let mut address = av(end.qpn, 2, 0);
            address.set_dc_key(0x1_0000_0000 + i as u64);
            end.recv(0, 1000);
            let sge = a.sge(0, 700);
            a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
            fabric.run();
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
            assert_eq!(end.recv_cq.poll().unwrap().bytes, 700);
            assert_eq!(end.memory.get(0, 700), data);
        }
    }
    let mut address = av(targets[0].qpn, 2, 0);
    address.set_dc_key(7);
    let sge = a.sge(0, 10);
    a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
    fabric.run();
    assert_eq!(a.send_cq.poll().unwrap().kind, 13);
    assert_eq!((a.state(), targets[0].state()), (State::Err, State::Rts));
}

/// A target of the device of `b` and an initiator, with the address vector of the target.
pub(super) fn dc(fabric: &Fabric) -> (End, End, Av) {
    let (a, b) = pair(fabric, QpKind::Dci, 0);
    b.qp(|_, _, qp| (qp.kind, qp.dc_key, qp.sq) = (QpKind::Dct, 9, None));
    let mut address = av(b.qpn, 2, 0);
    address.set_dc_key(9);
    (a, b, address)
}

#[test]
fn a_dc_initiator_begins_a_new_session_after_a_reset() {
    let fabric = Fabric::deterministic(1);
    let (mut a, mut b, address) = dc(&fabric);
    // The number of messages before the reset: the PSN begins again, and is one that the target has executed or expects.
    for before in [1, 3, 0, 2] {
        for i in 0..=before {
            if i == before {
                a.set_state(State::Reset);
                a.posted = 0;
                a.connect(0, 2, 0);
            }
            let data = a.fill(0, 700, before * 4 + i);
            b.recv(0, 1000);
            let sge = a.sge(0, 700);
            a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
            fabric.run();
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0, "message {i}, {before} before the reset");
            assert_eq!(b.recv_cq.poll().unwrap().bytes, 700);
            assert_eq!(b.memory.get(0, 700), data);
        }
    }
}

#[test]
fn a_new_dc_session_ends_the_message_of_the_one_before() {
    // Of the first message, only a part arrives.
    let is_half = |b: &End| b.qp(|_, _, qp| qp.sessions.values().any(|resp| resp.receiving.is_some()));
    let halves = (0..1000).filter_map(|seed| {
        let fabric = Fabric::deterministic(seed);
        fabric.loss(0.5);
        let (mut a, mut b, address) = dc(&fabric);
        b.recv(0, 1000);
        b.recv(2000, 1000);
        let sge = a.sge(0, 700);
        a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
        fabric.run_for(Duration::from_millis(1));
        fabric.loss(0.0);
        is_half(&b).then_some((fabric, a, b, address))
    });
    for (fabric, mut a, mut b, address) in halves.take(3) {
        a.set_state(State::Reset);
        a.posted = 0;
        a.connect(0, 2, 0);
        let data = a.fill(0, 700, 5);
        let sge = a.sge(0, 700);
        a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
        fabric.run();
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        // The receive that the first message had taken is flushed, the second is that of the second message.
        let wcs = [b.recv_cq.poll().unwrap(), b.recv_cq.poll().unwrap()];
        assert_eq!(wcs.each_ref().map(|wc| wc.syndrome), [MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0]);
        assert_eq!((wcs[1].bytes, b.memory.get(2000, 700)), (700, data));
        assert!(!is_half(&b) && b.state() == State::Rts);
    }
}
