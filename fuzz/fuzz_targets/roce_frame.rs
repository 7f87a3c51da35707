// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of RoCE and InfiniBand from any bytes.
//!
//! Checked: no bytes make the decoder panic; a transport packet or a frame that is decoded has bytes, which are decoded to the same. Because
//! random bytes have no right CRC, a decoded transport packet is sent on a link that the input selects, too.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use uverbs_roce::frame::{Ethernet, Frame, Grh, Infiniband, Ipv4, Link, Net};
use uverbs_roce::transport::Packet;

#[derive(Arbitrary, Debug)]
struct Route {
    sgid: [u8; 16],
    dgid: [u8; 16],
    tclass: u8,
    flow_label: u32,
    hop_limit: u8,
}

#[derive(Arbitrary, Debug)]
enum On {
    V4([u8; 4], [u8; 4], u8, u8, u16),
    V6(Route, u16),
    V1(Route),
    Infiniband { slid: u16, dlid: u16, sl: u8, vl: u8, route: Option<Route> },
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    vlan: Option<u16>,
    on: On,
    bytes: &'a [u8],
}

fn grh(route: &Route) -> Grh {
    let Route { sgid, dgid, tclass, flow_label, hop_limit } = *route;
    Grh { sgid, dgid, tclass, flow_label, hop_limit }
}

fn link(input: &Input<'_>) -> Link {
    let net = match &input.on {
        On::V4(source, destination, tos, ttl, port) => {
            Net::V4(Ipv4 { source: *source, destination: *destination, tos: *tos, ttl: *ttl }, *port)
        }
        On::V6(route, port) => Net::V6(grh(route), *port),
        On::V1(route) => Net::Grh(grh(route)),
        On::Infiniband { slid, dlid, sl, vl, route } => {
            let grh = route.as_ref().map(grh);
            return Link::Infiniband(Infiniband { slid: *slid, dlid: *dlid, sl: *sl, vl: *vl, grh });
        }
    };
    Link::Ethernet(Ethernet { source: [2; 6], destination: [4; 6], vlan: input.vlan, net })
}

fn again(frame: &Frame) {
    // What was decoded has bytes; only the input's own numbers may be too large.
    let Ok(bytes) = frame.encode() else { return };
    let decoded = match frame.link {
        Link::Ethernet(_) => Frame::decode_ethernet(&bytes),
        Link::Infiniband(_) => Frame::decode_infiniband(&bytes),
    };
    assert_eq!(decoded.as_ref(), Ok(frame));
}

fuzz_target!(|input: Input<'_>| {
    for frame in
        [Frame::decode_ethernet(input.bytes), Frame::decode_infiniband(input.bytes)].into_iter().flatten()
    {
        assert!(frame.encode().is_ok());
        again(&frame);
    }
    if let Ok(packet) = Packet::decode(input.bytes) {
        let mut bytes = Vec::new();
        packet.encode(&mut bytes).expect("a decoded packet is encoded");
        assert_eq!(Packet::decode(&bytes).as_ref(), Ok(&packet));
        again(&Frame { link: link(&input), packet });
    }
});
