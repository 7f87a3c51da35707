// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a driver or another process sends, the device continues to work for others.

use super::rig::{End, Shape, pair, pattern};
use crate::packet::{Body, Packet, Place, Remote};
use crate::{EfaDevice, Fabric};
use proptest::prelude::*;
use uverbs_core::attr::QpType;
use uverbs_fabric::wire::Message;
use zerocopy::FromBytes;

/// Two ends of the devices exchange data.
fn exchange(fabric: &Fabric, a: &EfaDevice, b: &EfaDevice) {
    let (mut x, mut y) = (End::written(a, Shape::default()), End::written(b, Shape::default()));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    x.memory.put(0, &pattern(50_000, 9));
    y.recv(1, 100_000, 500);
    x.write(0, 0, 50_000, &y, to_y, None);
    x.send(1, 0, 500, &y, to_y);
    fabric.run();
    assert_eq!((x.all().len(), y.status()), (2, 0));
    assert_eq!(y.memory.get(0, 50_000), pattern(50_000, 9));
}

/// A field of a request that is mostly valid.
fn mostly(valid: u32) -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(valid), 1 => any::<u32>(), 1 => 0..100_u32]
}

fn remote() -> impl Strategy<Value = Remote> {
    let lengths = || prop_oneof![0..70_000_u32, any::<u32>()];
    (any::<u64>(), any::<u32>(), lengths(), lengths()).prop_map(|(addr, rkey, total, offset)| Remote {
        addr,
        rkey,
        total,
        offset,
    })
}

fn body() -> impl Strategy<Value = Body> {
    let data = || proptest::collection::vec(any::<u8>(), 0..300);
    let imm = || proptest::option::of(any::<u32>());
    let qkey = || prop_oneof![Just(super::rig::QKEY), any::<u32>()];
    prop_oneof![
        (qkey(), imm(), data()).prop_map(|(qkey, imm, data)| Body::Datagram { qkey, imm, data }),
        (qkey(), imm(), data()).prop_map(|(qkey, imm, data)| Body::Send { qkey, imm, data }),
        (qkey(), remote(), 0..5_u32, imm(), any::<bool>(), data()).prop_map(
            |(qkey, remote, count, imm, unsolicited, data)| Body::Write {
                qkey,
                remote,
                count,
                imm,
                unsolicited,
                data
            }
        ),
        (qkey(), remote(), 0..16_384_u32).prop_map(|(qkey, remote, len)| Body::Read { qkey, remote, len }),
        any::<u8>().prop_map(|status| Body::Ack { status }),
        data().prop_map(|data| Body::ReadData { data }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_entries_and_doorbells_leave_the_device_working(
        ops in proptest::collection::vec((0..6_u8, proptest::collection::vec(any::<u8>(), 64), mostly(1), any::<[u8; 4]>()), 1..40),
        wide in any::<bool>(),
        ud in any::<bool>(),
    ) {
        let (fabric, a, b) = pair(1);
        let qp_type = if ud { QpType::Ud } else { QpType::Driver };
        let (mut x, y) = (End::written(&a, Shape { wide, qp_type, ..Shape::default() }), End::written(&b, Shape::default()));
        let to_y = x.ah_to(&y);
        for (op, bytes, number, [p, q, r, s]) in ops {
            match op {
                0 | 1 => {
                    // Fields of an entry, some of them valid.
                    let (mut meta, _) = uverbs_efa_hw::io::TxMetaDesc::read_from_prefix(&bytes[..]).unwrap();
                    let valid = x.meta(1, r % 3, &y, to_y);
                    if p & 1 == 0 { meta.ctrl1 = valid.ctrl1 | s & 0x30; }
                    if p & 2 == 0 { meta.ctrl2 = valid.ctrl2; }
                    if p & 4 == 0 { (meta.reserved, meta.reserved2) = (0, [0; 6]); }
                    if p & 8 == 0 { meta.length = u16::from(q % 3); }
                    if p & 16 == 0 { (meta.ah, meta.dest_qp_num, meta.qkey) = (to_y, y.qpn, super::rig::QKEY); }
                    x.write_entry(meta, &bytes[32..]);
                    x.ring_send(x.posted.into());
                }
                2 => x.ring_send(number),
                3 => x.ring_recv(number),
                4 => {
                    x.write_recv(uverbs_efa_hw::io::RxDesc::read_from_bytes(&bytes[..16]).unwrap());
                    x.ring_recv(x.received.into());
                }
                _ => x.ring_at(number),
            }
        }
        fabric.run();
        x.all();
        exchange(&fabric, &a, &b);
        exchange(&fabric, &b, &a);
    }

    /// A peer may send any packets to queues with work in flight.
    #[test]
    fn any_packets_leave_the_device_working(
        packets in proptest::collection::vec((body(), 0..2_usize, (mostly(1), 0..5000_u64, 0..5000_u64, 0..600_u32)), 1..60),
    ) {
        let (fabric, a, b) = pair(1);
        let mut ends = [Shape::default(), Shape { qp_type: QpType::Ud, ..Shape::default() }].map(|shape| End::written(&a, shape));
        let y = End::written(&b, Shape::default());
        let to_y = ends[0].ah_to(&y);
        b.set_link_up(false);
        for end in &mut ends {
            end.recv(0, 0, 100);
        }
        ends[0].send(0, 0, 100, &y, to_y);
        ends[0].read(1, 0, 50_000, &y, to_y);
        b.set_link_up(true);
        for (body, which, (epoch, floor, message, index)) in packets {
            let place = Place { epoch, floor, message, index };
            let packet = Packet { from: 1, src_qpn: 3, dest_qpn: ends[which].qpn, place, body };
            // The message as it is read from the socket.
            let bytes = Message::Packet { to: 0, packet }.bytes();
            let Ok(Message::<Packet>::Packet { to, packet }) = Message::parse(&bytes[4..]) else {
                panic!("the decoded message equals the encoded one");
            };
            fabric.enter(|world| {
                let now = world.now;
                world.net.inject(now, to, packet);
            });
        }
        fabric.run();
        assert!(a.remembered() <= 4096);
        // The peer may have spoilt what it says itself; a third device is not affected.
        let c = fabric.device("efa_2").build();
        exchange(&fabric, &a, &c);
        exchange(&fabric, &c, &a);
    }

    #[test]
    fn any_bytes_decode_to_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..10_u8) {
        let bytes = [&[kind][..], &bytes].concat();
        if let Ok(message) = Message::<Packet>::parse(&bytes) {
            prop_assert_eq!(&message.bytes()[4..], &bytes[..], "each message has one encoding");
        }
    }
}

#[test]
fn a_packet_is_encoded_and_decoded() {
    let remote = Remote { addr: 1, rkey: 2, total: 3, offset: 4 };
    for body in [
        Body::Datagram { qkey: 1, imm: None, data: vec![1, 2] },
        Body::Send { qkey: 1, imm: Some(2), data: vec![] },
        Body::Write { qkey: 9, remote, count: 7, imm: Some(1), unsolicited: true, data: vec![5; 100] },
        Body::Read { qkey: 9, remote, len: 77 },
        Body::Ack { status: 3 },
        Body::ReadData { data: vec![9; 9] },
    ] {
        let place = Place { epoch: 1, floor: 2, message: 3, index: 4 };
        let packet = Packet { from: 6, src_qpn: 7, dest_qpn: 8, place, body: body.clone() };
        let bytes = Message::Packet { to: 5, packet }.bytes();
        let Ok(Message::<Packet>::Packet { to: 5, packet }) = Message::parse(&bytes[4..]) else { panic!() };
        assert_eq!((packet.from, packet.src_qpn, packet.dest_qpn, packet.place), (6, 7, 8, place));
        assert_eq!(packet.body, body);
        assert!(Message::<Packet>::parse(&bytes[4..bytes.len() - 1]).is_err());
    }
}
