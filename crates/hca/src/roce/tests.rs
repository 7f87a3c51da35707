// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets to bytes and back.

use super::*;
use proptest::prelude::*;
use uverbs_roce::datagram;

const BITS_24: u32 = 0xff_ffff;

fn data() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..64)
}

/// What a service's packets may have as contents, in the form that the engine makes: immediate data and keys in the last packet only, and
/// one of the two.
fn contents(transport: Transport) -> BoxedStrategy<Body> {
    let send = (any::<(bool, bool, bool, u32)>(), data()).prop_map(|((first, last, has_imm, imm), data)| {
        Body::Send { first, last, imm: (has_imm && last).then_some(imm), invalidate: None, data }
    });
    let invalidating = (any::<(bool, u32)>(), data()).prop_map(|((first, key), data)| Body::Send {
        first,
        last: true,
        imm: None,
        invalidate: Some(key),
        data,
    });
    let write = (any::<(bool, bool, bool, u32)>(), any::<(u64, u32, u32)>(), data()).prop_map(
        |((first, last, has_imm, imm), start, data)| Body::Write {
            start: first.then_some(start),
            last,
            imm: (has_imm && last).then_some(imm),
            data,
        },
    );
    if transport == Transport::Ud {
        let datagram = (any::<(u32, Option<u32>)>(), data());
        return datagram.prop_map(|((qkey, imm), data)| Body::Datagram { qkey, imm, data }).boxed();
    }
    if transport == Transport::Uc {
        return prop_oneof![send, write].boxed();
    }
    let read = any::<(u64, u32, u32)>().prop_map(|(addr, rkey, len)| Body::Read { addr, rkey, len });
    let atomic = any::<(u64, u32, bool, u64, u64)>().prop_map(|(addr, rkey, swaps, compare, value)| {
        let op = if swaps { Atomic::CmpSwap { compare, swap: value } } else { Atomic::FetchAdd(value) };
        Body::Atomic { addr, rkey, op }
    });
    let response = (any::<(bool, bool)>(), data()).prop_map(|((first, last), data)| Body::ReadResponse {
        first,
        last,
        data,
    });
    let nak = proptest::sample::select(vec![Nak::Sequence, Nak::Invalid, Nak::Access, Nak::Operation]);
    prop_oneof![
        3 => send,
        1 => invalidating,
        3 => write,
        1 => read,
        1 => atomic,
        2 => response,
        1 => any::<u64>().prop_map(Body::AtomicResponse),
        1 => Just(Body::Ack),
        1 => nak.prop_map(Body::Nak),
        1 => (0..32_u8).prop_map(Body::Rnr),
    ]
    .boxed()
}

fn route() -> impl Strategy<Value = Grh> {
    let numbers = (0..1_u32 << 20, any::<u8>(), any::<u8>());
    (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<bool>(), numbers).prop_map(
        |(sgid, dgid, v4, (flow_label, tclass, hop_limit))| {
            let of = |gid: [u8; 16]| match gid {
                [.., a, b, c, d] if v4 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d],
                _ => gid,
            };
            Grh { sgid: of(sgid), dgid: of(dgid), flow_label, tclass, hop_limit, ip: true }
        },
    )
}

prop_compose! {
    fn packet()(transport in proptest::sample::select(vec![
        Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc,
    ]))(
        body in contents(transport),
        transport in Just(transport),
        grh in route(),
        (src_qpn, dest_qpn, psn, srqn, msn) in (0..=BITS_24, 0..=BITS_24, 0..=BITS_24, 0..=BITS_24, 0..=BITS_24),
        (ack, solicited) in any::<(bool, bool)>(),
    ) -> Packet {
        // What only some packets have on the wire.
        let has_msn = match body {
            Body::ReadResponse { first, last, .. } => first || last,
            _ => body.is_response(),
        };
        Packet {
            from: 7,
            transport,
            src_qpn: if transport == Transport::Ud { src_qpn } else { 0 },
            dest_qpn,
            psn,
            ack,
            solicited,
            srqn: if transport == Transport::Xrc && !body.is_response() { srqn } else { 0 },
            msn: if has_msn { msn } else { 0 },
            dc: None,
        wr: WrPart::default(),
        direct: Direct::default(),
            path: Path { grh: Some(Box::new(grh)), ..Path::default() },
            body,
        }
    }
}

proptest! {
    #[test]
    fn a_packet_becomes_bytes_and_the_same_packet_again(packet in packet(), port: u16) {
        let (grh, transport) = into_datagram(packet.clone()).unwrap();
        let net = datagram::route(&grh, port);
        let bytes = datagram::encode(&net, &transport).unwrap();
        let again = of_datagram(7, grh, datagram::decode(&net, &bytes).unwrap()).unwrap();
        prop_assert_eq!(format!("{again:?}"), format!("{packet:?}"));
    }
}

/// The packets that have no datagram, and the datagrams that are no packet.
#[test]
fn what_has_no_form_is_refused() {
    let grh = Grh { ip: true, ..Grh::default() };
    let good = Packet {
        from: 1,
        transport: Transport::Rc,
        src_qpn: 0,
        dest_qpn: 2,
        psn: 3,
        ack: true,
        solicited: false,
        srqn: 0,
        msn: 0,
        dc: None,
        wr: WrPart::default(),
        direct: Direct::default(),
        path: Path { grh: Some(Box::new(grh.clone())), ..Path::default() },
        body: Body::Ack,
    };
    let with = |transport, grh: Option<Grh>, body| {
        let path = Path { grh: grh.map(Box::new), ..Path::default() };
        into_datagram(Packet { transport, path, body, ..good.clone() }).is_some()
    };
    let version_1 = Grh { ip: false, ..grh.clone() };
    assert!(with(Transport::Rc, Some(grh.clone()), Body::Ack));
    assert!(!with(Transport::Dc, Some(grh.clone()), Body::Ack));
    assert!(!with(Transport::Ethernet, Some(grh), Body::Frame(vec![0; 64])));
    assert!(!with(Transport::Rc, Some(version_1), Body::Ack));
    assert!(!with(Transport::Rc, None, Body::Ack));

    let (route, transport) = into_datagram(good).unwrap();
    let taken = |change: &dyn Fn(&mut wire::Packet)| {
        let mut packet = transport.clone();
        change(&mut packet);
        of_datagram(1, route, packet).is_some()
    };
    assert!(taken(&|_| {}));
    // A limited member of the default partition, and another partition.
    assert!(taken(&|p| p.bth.pkey = 0x7fff));
    assert!(!taken(&|p| p.bth.pkey = 0xffee));
    // Data with a NAK.
    let nak = wire::Aeth { syndrome: wire::Syndrome::Nak(wire::Nak::Invalid), msn: 0 };
    for operation in [Operation::ReadOnly, Operation::AtomicAck] {
        assert!(!taken(&|p| {
            p.bth.opcode = Opcode::new(Service::Rc, operation).unwrap();
            p.headers = wire::Headers { aeth: Some(nak), atomic_ack: Some(1), ..wire::Headers::default() };
        }));
    }
}
