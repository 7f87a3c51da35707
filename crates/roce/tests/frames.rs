// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames: any one is encoded and decoded without a loss, any bytes are decoded without a panic, and a changed bit is found.

use proptest::prelude::*;
use uverbs_roce::frame::{Ethernet, Frame, Grh, Infiniband, Ipv4, Link, Net};
use uverbs_roce::opcode::Opcode;
use uverbs_roce::transport::{Aeth, AtomicEth, Bth, Deth, Headers, Nak, Packet, Reth, Syndrome};
use uverbs_roce::{Error, Result};

const BITS_24: u32 = 0xff_ffff;

fn opcode() -> impl Strategy<Value = Opcode> {
    let all: Vec<Opcode> = (0..=u8::MAX).filter_map(Opcode::from_bits).collect();
    proptest::sample::select(all)
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0..32_u8).prop_map(Syndrome::Ack),
        (0..32_u8).prop_map(Syndrome::Rnr),
        proptest::sample::select(vec![Nak::Sequence, Nak::Invalid, Nak::Access, Nak::Operation])
            .prop_map(Syndrome::Nak),
    ]
}

prop_compose! {
    fn headers(opcode: Opcode)(
        (qkey, src_qpn, srqn) in (any::<u32>(), 0..=BITS_24, 0..=BITS_24),
        (addr, rkey, len) in any::<(u64, u32, u32)>(),
        (swap_add, compare, value) in any::<(u64, u64, u64)>(),
        syndrome in syndrome(),
        msn in 0..=BITS_24,
        (imm, inv) in any::<(u32, u32)>(),
    ) -> Headers {
        let has = opcode.extended();
        Headers {
            deth: has.deth.then_some(Deth { qkey, src_qpn }),
            xrc_srqn: has.xrceth.then_some(srqn),
            reth: has.reth.then_some(Reth { addr, rkey, len }),
            atomic: has.atomic.then_some(AtomicEth { addr, rkey, swap_add, compare }),
            aeth: has.aeth.then_some(Aeth { syndrome, msn }),
            atomic_ack: has.atomic_ack.then_some(value),
            imm: has.imm.then_some(imm),
            ieth: has.ieth.then_some(inv),
        }
    }
}

prop_compose! {
    fn packet()(opcode in opcode())(
        headers in headers(opcode),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        (solicited, migrated, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
        (pkey, dest_qpn, psn) in (any::<u16>(), 0..=BITS_24, 0..=BITS_24),
        opcode in Just(opcode),
    ) -> Packet {
        let bth = Bth { opcode, solicited, migrated, pkey, fecn, becn, dest_qpn, ack_req, psn };
        Packet { bth, headers, payload: if opcode.has_payload() { payload } else { Vec::new() } }
    }
}

prop_compose! {
    fn grh()(
        (sgid, dgid, tclass, hop_limit) in any::<([u8; 16], [u8; 16], u8, u8)>(),
        flow_label in 0..1_u32 << 20,
    ) -> Grh {
        Grh { sgid, dgid, tclass, flow_label, hop_limit }
    }
}

fn link() -> impl Strategy<Value = Link> {
    let v4 = any::<([u8; 4], [u8; 4], u8, u8, u16)>().prop_map(|(source, destination, tos, ttl, port)| {
        Net::V4(Ipv4 { source, destination, tos, ttl }, port)
    });
    let net = prop_oneof![
        v4,
        (grh(), any::<u16>()).prop_map(|(grh, port)| Net::V6(grh, port)),
        grh().prop_map(Net::Grh),
    ];
    let vlan = proptest::option::of(0..1_u16 << 12);
    let ethernet =
        (any::<[u8; 6]>(), any::<[u8; 6]>(), vlan, net).prop_map(|(source, destination, vlan, net)| {
            Link::Ethernet(Ethernet { source, destination, vlan, net })
        });
    let infiniband = (any::<(u16, u16)>(), 0..16_u8, 0..16_u8, proptest::option::of(grh()))
        .prop_map(|((slid, dlid), sl, vl, grh)| Link::Infiniband(Infiniband { slid, dlid, sl, vl, grh }));
    prop_oneof![3 => ethernet, 1 => infiniband]
}

fn decode(link: &Link, bytes: &[u8]) -> Result<Frame> {
    match link {
        Link::Ethernet(_) => Frame::decode_ethernet(bytes),
        Link::Infiniband(_) => Frame::decode_infiniband(bytes),
    }
}

/// Bits of a frame on Ethernet that switches may change, and those that the decoder ignores: addresses of Ethernet, the tag's priority,
/// IPv4's TOS, identification, flags, TTL and checksum, IPv6's traffic class, flow label and hop limit, UDP's checksum, congestion bits.
fn is_covered(link: &Link, byte: usize) -> bool {
    let Link::Ethernet(Ethernet { vlan, net, .. }) = link else { return true };
    let net_at = if vlan.is_some() { 18 } else { 14 };
    let Some(at) = byte.checked_sub(net_at) else { return false };
    let (variable, bth_at): (&[usize], usize) = match net {
        Net::V4(..) => (&[1, 6, 8, 10, 11, 26, 27], 28),
        Net::V6(..) => (&[0, 1, 2, 3, 7, 46, 47], 48),
        Net::Grh(_) => (&[0, 1, 2, 3, 7], 40),
    };
    !variable.contains(&at) && at != bth_at + 4
}

proptest! {
    #[test]
    fn a_frame_is_encoded_and_decoded(link in link(), packet in packet()) {
        let frame = Frame { link, packet };
        let bytes = frame.encode().unwrap();
        prop_assert_eq!(decode(&link, &bytes).unwrap(), frame);
    }

    /// Ethernet fills short frames.
    #[test]
    fn bytes_after_a_frame_of_ethernet_are_ignored(link in link(), packet in packet(), more in 1..64_usize) {
        let frame = Frame { link, packet };
        let mut bytes = frame.encode().unwrap();
        bytes.resize(bytes.len() + more, 0);
        match link {
            Link::Ethernet(_) => prop_assert_eq!(decode(&link, &bytes).unwrap(), frame),
            Link::Infiniband(_) => prop_assert!(decode(&link, &bytes).is_err()),
        }
    }

    #[test]
    fn a_changed_bit_is_found(link in link(), packet in packet(), at: proptest::sample::Index, bit in 0..8_u8) {
        let mut bytes = Frame { link, packet }.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(!is_covered(&link, at) || decode(&link, &bytes).is_err(), "byte {} of {:?}", at, link);
    }

    #[test]
    fn a_cut_frame_is_refused(link in link(), packet in packet(), end: proptest::sample::Index) {
        let bytes = Frame { link, packet }.encode().unwrap();
        prop_assert!(decode(&link, &bytes[..end.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // Without a panic; a frame of such bytes gives them again.
        let _ = Frame::decode_ethernet(&bytes);
        let _ = Frame::decode_infiniband(&bytes);
        if let Ok(packet) = Packet::decode(&bytes) {
            let mut again = Vec::new();
            packet.encode(&mut again).unwrap();
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert_eq!(Packet::decode(&again).unwrap(), packet);
        }
    }
}

/// Numbers that do not fit their fields.
#[test]
fn numbers_that_are_too_large_are_refused() {
    let good = Packet { bth: Bth::new(Opcode::RC_SEND_ONLY), headers: Headers::default(), payload: vec![1] };
    let encode = |packet: &Packet| packet.encode(&mut Vec::new());
    assert_eq!(encode(&good), Ok(()));
    let mut bad = good.clone();
    bad.bth.psn = BITS_24 + 1;
    assert_eq!(encode(&bad), Err(Error::TooLarge("PSN", 0x100_0000)));
    let mut bad = good.clone();
    bad.headers.imm = Some(1);
    assert_eq!(encode(&bad), Err(Error::Headers(0x04)));
    let mut bad = good.clone();
    bad.bth.opcode = Opcode::from_bits(0x11).unwrap();
    bad.headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(0), msn: 0 });
    assert_eq!(encode(&bad), Err(Error::Payload(0x11)));
    bad.payload.clear();
    bad.headers.aeth = Some(Aeth { syndrome: Syndrome::Rnr(32), msn: 0 });
    assert_eq!(encode(&bad), Err(Error::TooLarge("RNR timer", 32)));

    let link = Link::Ethernet(Ethernet::v4([0; 6], [0; 4], [0; 6], [0; 4]));
    let mut frame = Frame { link, packet: good };
    frame.packet.payload = vec![0; 1 << 16];
    assert!(matches!(frame.encode(), Err(Error::TooLarge("IP length", _))));
    frame.link = Link::Infiniband(Infiniband { slid: 1, dlid: 2, sl: 0, vl: 0, grh: None });
    frame.packet.payload = vec![0; 8192];
    assert_eq!(frame.encode(), Err(Error::TooLarge("LRH length", 2054)));
}
