// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw packets: frames between two devices, checksums, segmentation, steering, hashing.

use super::rig::{End, PD, Ram, TestCq, area, on};
use crate::bytes::put;
use crate::engine::flow::{Masked, Rule, Spec, Target};
use crate::engine::headers::Headers;
use crate::engine::qp::{QpKind, State};
use crate::engine::recv::RecvRing;
use crate::engine::recv::Wq;
use crate::engine::rss::Rss;
use crate::{Fabric, Link};
use uverbs_mlx5_hw::Be16;
use uverbs_mlx5_hw::wqe::{DataSeg, EthSeg, MLX5_OPCODE_SEND, MLX5_OPCODE_TSO};
use zerocopy::{FromZeros, IntoBytes};

fn raw_pair() -> (End, End) {
    let fabric = Fabric::deterministic(1);
    let [a, b] =
        ["a", "b"].map(|name| End::new(&fabric.device(name).link(Link::Ethernet).build(), QpKind::Raw));
    for end in [&a, &b] {
        for to in [State::Init, State::Rtr, State::Rts] {
            end.set_state(to);
        }
    }
    (a, b)
}

fn mac(end: &End) -> [u8; 6] {
    on(&end.hca, |_, cx| cx.net.ports[cx.me].mac)
}

fn rule(target: Target, specs: Vec<Spec>) -> Rule {
    Rule { priority: 0, multicast: false, sniffer: false, specs, tag: 0x1234, target, counters: None }
}

/// Ethernet, IPv4 and TCP headers without checksums.
fn tcp(dmac: [u8; 6], sport: u16, payload: usize) -> Vec<u8> {
    let mut h = vec![0; 54];
    put(&mut h, 0, &dmac);
    put(&mut h, 12, &[8, 0, 0x45, 0]);
    put(&mut h, 16, &(40 + payload as u16).to_be_bytes());
    put(&mut h, 18, &[0, 7, 0x40, 0, 64, 6]);
    put(&mut h, 26, &[10, 0, 0, 1, 10, 0, 0, 2]);
    put(&mut h, 34, &sport.to_be_bytes());
    put(&mut h, 36, &80_u16.to_be_bytes());
    put(&mut h, 38, &1000_u32.to_be_bytes());
    // Header of 20 bytes; CWR, ACK, PSH, FIN.
    put(&mut h, 46, &[0x50, 0x99]);
    h
}

fn eth(cs_flags: u8, mss: u16, header: &[u8]) -> Vec<u8> {
    let seg = EthSeg {
        cs_flags,
        mss: Be16::new(mss),
        inline_hdr_sz: Be16::new(header.len() as u16),
        ..FromZeros::new_zeroed()
    };
    let mut bytes = [&seg.as_bytes()[..14], header].concat();
    bytes.resize(bytes.len().next_multiple_of(16).max(16), 0);
    bytes
}

/// A send of one byte for each frame would make hundreds of thousands of frames at once.
#[test]
fn a_large_send_is_divided_in_rounds_on_a_device_of_a_vm() {
    let (mut a, b) = raw_pair();
    let len = 20_000;
    let header = tcp(mac(&b), 1, len);
    let data = a.fill(0, len, 1);
    let sge = a.sge(0, len as u32);
    on(&a.hca, |device, _| device.paced = true);
    let received = || on(&b.hca, |_, cx| cx.net.ports[cx.me].received);
    a.post(MLX5_OPCODE_TSO, 0, &[&eth(0xc0, 1, &header), sge.as_bytes()]);
    let first = received();
    assert!((1..=64).contains(&first), "{first} frames at once");
    assert!(a.send_cq.poll().is_none(), "it is not complete");
    a.hca.run();
    assert_eq!(received(), len as u64);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    // The frames are those of a send that is not paced.
    let frames = |a: &mut End, mss| {
        on(&b.hca, |device, cx| {
            device.steering.classifier = Some(std::sync::Arc::new(Seen::default()));
            cx.net.changes += 1;
        });
        a.post(MLX5_OPCODE_TSO, 0, &[&eth(0xc0, mss, &header), sge.as_bytes()]);
        a.hca.run();
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        on(&b.hca, |device, _| format!("{:?}", device.steering.classifier))
    };
    let paced = frames(&mut a, 100);
    on(&a.hca, |device, _| device.paced = false);
    assert_eq!(frames(&mut a, 100), paced);
    assert_eq!(paced.matches("Headers").count(), len / 100);
    drop(data);
}

/// Keeps the headers and lengths of frames.
#[derive(Debug, Default)]
struct Seen(std::sync::Mutex<Vec<(Headers, usize)>>);

impl crate::engine::flow::Classifier for Seen {
    fn hits(&self, headers: &Headers, len: usize, _: bool) -> Vec<crate::engine::flow::Hit> {
        self.0.lock().unwrap().push((headers.clone(), len));
        Vec::new()
    }
}

#[test]
fn a_frame_goes_to_the_target_of_its_rule() {
    let (mut a, mut b) = raw_pair();
    let frame = [tcp(mac(&b), 1, 6), b"hello!".to_vec()].concat();
    a.memory.set(0, &frame);
    let sge = a.sge(0, frame.len() as u32);
    let post = |a: &mut End| a.post(MLX5_OPCODE_SEND, 0, &[&eth(0, 0, &[]), sge.as_bytes()]);
    b.recv(0, 2000);
    post(&mut a);
    assert!(b.recv_cq.poll().is_none(), "without a rule");
    let masked = Spec::Eth {
        dmac: Masked { value: mac(&b), mask: [0xff; 6] },
        smac: Masked::default(),
        ethertype: Masked { value: 0x0800, mask: 0xffff },
        vlan: Masked::default(),
    };
    on(&b.hca, |device, _| device.steering.add(rule(Target::Qp(b.qpn), vec![masked])));
    post(&mut a);
    let wc = b.recv_cq.poll().unwrap();
    assert_eq!((wc.bytes as usize, wc.qpn, wc.uidx), (frame.len(), 0x1234, 0x77));
    assert_eq!(b.memory.get(0, frame.len()), frame);
    assert_eq!([(); 2].map(|()| a.send_cq.poll().unwrap().syndrome), [0; 2]);
}

#[test]
fn checksums_are_computed_and_verified() {
    let (mut a, mut b) = raw_pair();
    on(&b.hca, |device, _| device.steering.add(rule(Target::Qp(b.qpn), vec![])));
    let frame = [tcp(mac(&b), 1, 5), b"odd!!".to_vec()].concat();
    for (flags, l3, l4) in [(0, false, false), (0x40, true, false), (0xc0, true, true)] {
        a.memory.set(0, &frame);
        b.recv(0, 2000);
        let sge = a.sge(18, frame.len() as u32 - 18);
        a.post(MLX5_OPCODE_SEND, 0, &[&eth(flags, 0, &frame[..18]), sge.as_bytes()]);
        let got = b.memory.get(0, b.recv_cq.poll().unwrap().bytes as usize);
        let headers = Headers::parse(&got).unwrap();
        assert_eq!((headers.l3_ok, headers.l4_ok), (l3, l4), "{flags:#x}");
    }
}

#[test]
fn a_large_send_is_segmented_as_tcp_requires() {
    let (mut a, mut b) = raw_pair();
    on(&b.hca, |device, _| device.steering.add(rule(Target::Qp(b.qpn), vec![])));
    let data = a.fill(0, 2500, 4);
    for i in 0..3 {
        b.recv(i * 2000, 2000);
    }
    let sge = a.sge(0, 2500);
    let header = tcp(mac(&b), 1, 0);
    a.post(MLX5_OPCODE_TSO, 0, &[&eth(0xc0, 1000, &header), sge.as_bytes()]);
    let mut whole = Vec::new();
    for (i, (len, flags)) in [(1000, 0x90), (1000, 0x10), (500, 0x19)].into_iter().enumerate() {
        let bytes = b.recv_cq.poll().unwrap().bytes as usize;
        let frame = b.memory.get(i * 2000, bytes);
        assert_eq!(bytes, 54 + len);
        let headers = Headers::parse(&frame).unwrap();
        assert!(headers.l3_ok && headers.l4_ok);
        assert_eq!(u16::from_be_bytes([frame[18], frame[19]]), 7 + i as u16);
        assert_eq!(u32::from_be_bytes(frame[38..42].try_into().unwrap()), 1000 + i as u32 * 1000);
        assert_eq!(frame[47], flags);
        whole.extend_from_slice(&frame[54..]);
    }
    assert_eq!(whole, data);
    assert!(b.recv_cq.poll().is_none());
}

#[test]
fn flows_are_spread_and_each_stays_on_its_queue() {
    let (mut a, b) = raw_pair();
    let mut queues: Vec<(TestCq, u32)> = (0..4)
        .map(|i| {
            let (ring, record) = (Ram::new(16 * 32), Ram::new(8));
            for slot in 0..16 {
                let sge = DataSeg::new(100, b.key, super::rig::BASE + i * 1000);
                ring.set(slot * 32, sge.as_bytes());
                ring.set(slot * 32 + 16, DataSeg::new(0, 0x100, 0).as_bytes());
            }
            record.set(0, &16_u32.to_be_bytes());
            on(&b.hca, |device, _| {
                let cq = TestCq::new(device);
                let wqn = device.number().unwrap();
                let rq = RecvRing {
                    ring: area(&ring),
                    stride: 32,
                    count: 16,
                    record: area(&record),
                    taken: 0,
                    broken: false,
                    padded: false,
                };
                device.add_wq(wqn, Wq { rq, pd: PD, cqn: cq.cqn, uidx: 0x50 + i as u32, ready: true });
                (cq, wqn)
            })
        })
        .collect();
    let table = queues.iter().map(|(_, wqn)| *wqn).collect();
    on(&b.hca, |device, _| {
        device.steering.rss.insert(9, Rss { fields: 0b11 | 0b11 << 4, key: (1..=40).collect(), table });
        device.steering.add(rule(Target::Rss(9), vec![]));
    });
    let mut homes = std::collections::BTreeMap::new();
    for round in 0..2 {
        for sport in 0..16 {
            let frame = tcp(mac(&b), 5000 + sport, 0);
            a.memory.set(0, &frame);
            let sge = a.sge(0, frame.len() as u32);
            a.post(MLX5_OPCODE_SEND, 0, &[&eth(0, 0, &[]), sge.as_bytes()]);
            let got: Vec<_> = queues
                .iter_mut()
                .enumerate()
                .filter_map(|(i, (cq, _))| cq.poll().map(|wc| (i, wc.uidx)))
                .collect();
            assert_eq!(got.len(), 1, "round {round}, port {sport}");
            let (home, uidx) = got[0];
            assert_eq!(uidx, 0x50 + home as u32);
            assert_eq!(*homes.entry(sport).or_insert(home), home, "a flow changed its queue");
        }
    }
    let used: std::collections::BTreeSet<_> = homes.values().collect();
    assert!(used.len() >= 3, "16 flows on {used:?}");
}

#[test]
fn rules_apply_by_priority_default_and_sniffer() {
    let (mut a, mut b) = raw_pair();
    let mut c = End::new(&b.hca, QpKind::Raw);
    for to in [State::Init, State::Rtr, State::Rts] {
        c.set_state(to);
    }
    let port =
        |dst| Spec::Ports { proto: 6, src: Masked::default(), dst: Masked { value: dst, mask: 0xffff } };
    let send = |a: &mut End, dmac: [u8; 6]| {
        let frame = tcp(dmac, 1, 0);
        a.memory.set(0, &frame);
        let sge = a.sge(0, frame.len() as u32);
        a.post(MLX5_OPCODE_SEND, 0, &[&eth(0, 0, &[]), sge.as_bytes()]);
    };
    let came = |b: &mut End, c: &mut End| (b.recv_cq.poll().is_some(), c.recv_cq.poll().is_some());
    for _ in 0..4 {
        b.recv(0, 100);
        c.recv(0, 100);
    }
    let to = mac(&b);
    let hca = b.hca.clone();
    let add = |r: Rule| on(&hca, |device, _| device.steering.add(r));
    add(Rule { priority: 16, ..rule(Target::Qp(c.qpn), vec![]) });
    send(&mut a, to);
    assert_eq!(came(&mut b, &mut c), (false, true));
    let first = add(Rule { priority: 3, ..rule(Target::Qp(b.qpn), vec![port(80)]) });
    add(Rule { priority: 2, ..rule(Target::Drop, vec![port(81)]) });
    send(&mut a, to);
    assert_eq!(came(&mut b, &mut c), (true, false));
    add(Rule { sniffer: true, ..rule(Target::Qp(c.qpn), vec![]) });
    send(&mut a, to);
    assert_eq!(came(&mut b, &mut c), (true, true));
    on(&b.hca, |device, _| assert!(device.steering.remove(first)));
    // Frames for unknown addresses are sent to all ports; the rules of each port select the receiver.
    send(&mut a, [0x02, 9, 9, 9, 9, 9]);
    assert!(!came(&mut b, &mut c).0);
}
