// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagrams of a UDP socket: they are the frames without the headers that the kernel makes.

use proptest::prelude::*;
use uverbs_roce::datagram::{decode, encode, route};
use uverbs_roce::frame::{Ethernet, Frame, Grh, Ipv4, Link, Net};
use uverbs_roce::opcode::Opcode;
use uverbs_roce::transport::{Bth, Headers, Packet};
use uverbs_roce::{Error, crc};

fn packet(payload: Vec<u8>) -> Packet {
    let bth = Bth { dest_qpn: 0x1234, psn: 77, ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY) };
    Packet { bth, headers: Headers::default(), payload }
}

prop_compose! {
    fn net()(
        (sgid, dgid, tclass, hop_limit, port) in any::<([u8; 16], [u8; 16], u8, u8, u16)>(),
        flow_label in 0..1_u32 << 20,
        v4: bool,
    ) -> Net {
        let mapped = |gid: [u8; 16]| {
            let [.., a, b, c, d] = gid;
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
        };
        let (sgid, dgid) = if v4 { (mapped(sgid), mapped(dgid)) } else { (sgid, dgid) };
        route(&Grh { sgid, dgid, tclass, flow_label, hop_limit }, port)
    }
}

/// The packet as another sender on IPv4 makes it, with this identification of the IP packet.
fn identified(ip: Ipv4, port: u16, packet: &Packet, identification: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes).unwrap();
    let len = bytes.len() as u16 + 4 + 8;
    let mut headers = vec![0x45, 0xff];
    headers.extend((len + 20).to_be_bytes());
    headers.extend(identification.to_be_bytes());
    headers.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
    headers.extend(ip.source);
    headers.extend(ip.destination);
    headers.extend(port.to_be_bytes());
    headers.extend(4791_u16.to_be_bytes());
    headers.extend(len.to_be_bytes());
    headers.extend([0xff; 2]);
    headers.extend(&bytes[..12]);
    headers[28 + 4] = 0xff;
    let icrc = crc::icrc_of_ip(&headers, &bytes[12..]);
    bytes.extend(icrc.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn a_datagram_is_the_end_of_a_frame(net in net(), payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let packet = packet(payload);
        let bytes = encode(&net, &packet).unwrap();
        let ethernet = Ethernet { source: [2; 6], destination: [4; 6], vlan: None, net };
        let frame = Frame { link: Link::Ethernet(ethernet), packet: packet.clone() }.encode().unwrap();
        prop_assert!(frame.ends_with(&bytes));
        prop_assert_eq!(decode(&net, &bytes).unwrap(), packet);
    }

    /// The identification of an IPv4 packet is not known to a program, and may be any number.
    #[test]
    fn any_identification_is_accepted(
        source: [u8; 4], destination: [u8; 4], port: u16, identification: u16,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        at: proptest::sample::Index, bit in 0..8_u8,
    ) {
        let ip = Ipv4 { source, destination, tos: 2, ttl: 63 };
        let packet = packet(payload);
        let mut bytes = identified(ip, port, &packet, identification);
        let net = Net::V4(ip, port);
        prop_assert_eq!(decode(&net, &bytes).unwrap(), packet);
        // No single bit has the effect of an identification. The byte with the congestion bits does not count.
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(at == 4 || decode(&net, &bytes).is_err(), "byte {}", at);
        // Another sender is another packet.
        bytes[at] ^= 1 << bit;
        prop_assert!(decode(&Net::V4(ip, port ^ 1), &bytes).is_err());
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(net in net(), bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = decode(&net, &bytes);
    }
}

#[test]
fn version_1_has_no_datagrams() {
    let grh = Grh { sgid: [1; 16], dgid: [2; 16], tclass: 0, flow_label: 0, hop_limit: 1 };
    assert_eq!(encode(&Net::Grh(grh), &packet(vec![])), Err(Error::Headers(0)));
    let too_long = packet(vec![0; 1 << 16]);
    assert!(matches!(
        encode(&route(&grh, 1), &too_long),
        Err(Error::TooLarge("IP length" | "UDP length", _))
    ));
}
