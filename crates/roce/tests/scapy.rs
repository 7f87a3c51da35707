// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames that another implementation has encoded (`record.py`, by scapy) are decoded, and encoded again, byte by byte.

use uverbs_roce::frame::{Frame, Link, Net};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn frames_of_scapy() {
    let text = include_str!("scapy.txt");
    assert_eq!(text.lines().count(), 60);
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [opcode, dest_qpn, psn, ack_req, congestion, pkey, migrated, body, frame] = fields[..] else {
            panic!("a line has {} fields", fields.len());
        };
        let number = |field: &str| -> u32 { field.parse().unwrap() };
        let expected = bytes(frame);
        let frame = Frame::decode_ethernet(&expected).unwrap();
        let Frame { link: Link::Ethernet(ethernet), packet } = &frame else { panic!("not on Ethernet") };
        assert!(matches!(ethernet.net, Net::V4(..)));
        let bth = packet.bth;
        assert_eq!(u32::from(bth.opcode.bits()), number(opcode));
        assert_eq!([bth.dest_qpn, bth.psn, bth.pkey.into()], [dest_qpn, psn, pkey].map(number));
        assert_eq!([bth.ack_req, bth.migrated], [ack_req, migrated].map(|field| field == "1"));
        assert_eq!(u32::from(bth.fecn) * 2 + u32::from(bth.becn), number(congestion));
        let mut again = Vec::new();
        packet.encode(&mut again).unwrap();
        assert_eq!(again[12..], if body == "-" { Vec::new() } else { bytes(body) });
        assert_eq!(frame.encode().unwrap(), expected);
    }
}
