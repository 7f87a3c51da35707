// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices with a UDP socket, and what other hosts send to it.

use super::clock::{LIMIT, within};
use super::rig::{BASE, End, on};
use crate::cqe::Syndrome;
use crate::engine::packet::{Atomic, Body, Direct, Grh, Nak, Packet, Path, Transport, WrPart};
use crate::engine::qp::{QpKind, State};
use crate::roce::into_datagram;
use crate::{Fabric, Hca};
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use proptest::prelude::*;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Instant;
use uverbs_fabric::net::PortLocation;
use uverbs_roce::datagram;

/// An address of this host that no other test uses.
fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a, b, NEXT.fetch_add(1, Ordering::Relaxed))
}

fn gid(address: Ipv4Addr) -> [u8; 16] {
    address.to_ipv6_mapped().octets()
}

fn hca(address: Ipv4Addr) -> Hca {
    Fabric::new(1).device("hca").build_udp(address.into()).unwrap()
}

/// Connects a QP to one at an address.
fn connect(end: &End, qpn: u32, to: Ipv4Addr) {
    end.connect(qpn, 0, 0);
    end.attr(|attr| {
        attr.dgid = Some(gid(to));
        attr.route.sgid_index = 1;
    });
}

/// A SEND, a READ and an atomic.
fn exchange(a: &mut End, b: &mut End) {
    let data = a.fill(0, 5000, 3);
    b.recv(100, 5000);
    a.send(0, 5000);
    assert_eq!(within(LIMIT, || b.recv_cq.poll()).bytes, 5000);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    assert_eq!(b.memory.get(100, 5000), data);
    let data = b.fill(20_000, 9000, 4);
    a.read(30_000, 9000, BASE + 20_000, b.key);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    assert_eq!(a.memory.get(30_000, 9000), data);
    a.fetch_add(0, BASE + 8, b.key, 5);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
}

/// The bytes of a packet between two addresses, from this port.
fn bytes(from: Ipv4Addr, to: Ipv4Addr, port: u16, qpn: u32, psn: u32, body: Body) -> Vec<u8> {
    let grh = Grh { sgid: gid(from), dgid: gid(to), hop_limit: 64, ip: true, ..Grh::default() };
    let packet = Packet {
        from: 0,
        transport: Transport::Rc,
        src_qpn: 0,
        dest_qpn: qpn,
        psn,
        ack: true,
        solicited: false,
        srqn: 0,
        msn: 0,
        dc: None,
        wr: WrPart::default(),
        direct: Direct::default(),
        path: Path { grh: Some(Box::new(grh)), ..Path::default() },
        body,
    };
    let (route, packet) = into_datagram(packet).unwrap();
    datagram::encode(&datagram::route(&route, port), &packet).unwrap()
}

fn send(data: Vec<u8>) -> Body {
    Body::Send { first: true, last: true, imm: None, invalidate: None, data }
}

#[test]
fn two_fabrics_exchange_datagrams() {
    let (here, there) = (address(), address());
    let (one, other) = (hca(here), hca(there));
    let (mut a, mut b) = (End::new(&one, QpKind::Rc), End::new(&other, QpKind::Rc));
    connect(&a, b.qpn, there);
    connect(&b, a.qpn, here);
    exchange(&mut a, &mut b);
    let (sent, received) = (one.udp_stat().unwrap(), other.udp_stat().unwrap());
    assert!(sent.sent >= 20 && received.received >= 20, "{sent:?}, {received:?}");
    assert_eq!((received.refused, received.damaged, received.malformed), (0, 0, 0), "{received:?}");
    // A slot for all devices outside, however many QPs there are.
    assert_eq!(
        on(&one, |_, cx| cx.net.ports.iter().filter(|p| p.location == PortLocation::Outside).count()),
        1
    );
}

#[test]
fn an_address_has_one_device() {
    let here = address();
    let _one = hca(here);
    let build =
        |fabric: &Fabric, ip: Ipv4Addr| fabric.device("hca").build_udp(ip.into()).map_err(|e| e.kind());
    assert_eq!(build(&Fabric::new(1), here).unwrap_err(), ErrorKind::AddrInUse);
    assert_eq!(build(&Fabric::new(1), Ipv4Addr::new(192, 0, 2, 1)).unwrap_err(), ErrorKind::AddrNotAvailable);
    assert_eq!(build(&Fabric::deterministic(1), address()).unwrap_err(), ErrorKind::Unsupported);
}

/// A fabric ends, and its port can be used again.
#[test]
fn the_socket_ends_with_the_fabric() {
    let here = address();
    for _ in 0..20 {
        drop(hca(here));
    }
}

#[test]
fn what_is_not_for_a_connection_is_counted_and_dropped() {
    let (here, there, stranger) = (address(), address(), address());
    let one = hca(here);
    let mut a = End::new(&one, QpKind::Rc);
    connect(&a, 5, there);
    a.recv(0, 1000);
    let open = |ip: Ipv4Addr| {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.connect((here, 4791)).unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    };
    let ((peer, peer_port), (other, other_port)) = (open(there), open(stranger));
    let good = |psn, data| bytes(there, here, peer_port, a.qpn, psn, send(data));
    let counts = || {
        let stat = one.udp_stat().unwrap();
        (stat.received, stat.damaged, stat.malformed, stat.refused)
    };
    let arrives = |socket: &UdpSocket, bytes: &[u8]| {
        let before = counts().0;
        socket.send(bytes).unwrap();
        within(LIMIT, || (counts().0 > before).then_some(()));
    };
    // Another host, also one that claims the peer's address in its ICRC.
    arrives(&other, &bytes(stranger, here, other_port, a.qpn, 0, send(vec![1; 8])));
    within(LIMIT, || (counts() == (1, 0, 0, 1)).then_some(()));
    arrives(&other, &good(0, vec![2; 8]));
    arrives(&peer, &good(0, vec![2; 8])[1..]);
    arrives(&peer, b"short");
    arrives(&peer, &[]);
    // No such QP, and more than the path MTU.
    arrives(&peer, &bytes(there, here, peer_port, a.qpn + 1, 0, send(vec![1; 8])));
    arrives(&peer, &good(0, vec![3; 257]));
    // The length of the socket's buffer.
    arrives(&peer, &vec![0x5a; 9000]);
    within(LIMIT, || (counts() == (8, 3, 2, 3)).then_some(()));
    assert!(a.recv_cq.poll().is_none(), "none of them was executed");
    arrives(&peer, &good(0, vec![4; 8]));
    assert_eq!(within(LIMIT, || a.recv_cq.poll()).bytes, 8);
    assert_eq!((a.memory.get(0, 8), a.state()), (vec![4; 8], State::Rts));
}

/// The thread that unlocks the world sends the packets, so that none waits in it.
#[test]
fn an_answer_of_many_packets_is_sent_at_once() {
    let (here, there) = (address(), address());
    let one = hca(here);
    let a = End::new(&one, QpKind::Rc);
    connect(&a, 5, there);
    let peer = UdpSocket::bind((there, 4791)).unwrap();
    let request = Body::Read { addr: BASE, rkey: a.key, len: 40_000 };
    peer.send_to(&bytes(there, here, 4791, a.qpn, 0, request), (here, 4791)).unwrap();
    // 256 bytes in a packet.
    within(LIMIT, || (one.udp_stat().unwrap().sent >= 157).then_some(()));
    let busy = u64::from(a.qp(|_, cx, _| cx.in_flight() > 0));
    assert_eq!(busy, 0, "all packets are with the kernel");
}

/// Limits the repetitions after a missing answer.
fn retries(end: &End, timeout: u8, count: u8) {
    end.qp(|_, _, qp| (qp.attr.timeout, qp.attr.retry_cnt, qp.req.retries) = (timeout, count, count));
}

/// The thread that reads from the socket was not scheduled before the timeout. The answer is in the socket, so nothing is repeated.
#[test]
fn a_timer_waits_for_the_datagrams_in_the_socket() {
    let (here, there) = (address(), address());
    let one = hca(here);
    let peer = UdpSocket::bind((there, 4791)).unwrap();
    let mut a = End::new(&one, QpKind::Rc);
    connect(&a, 5, there);
    retries(&a, 0, 0);
    for psn in 0..10 {
        a.send(0, 8);
        let answer = bytes(there, here, 4791, a.qpn, psn, Body::Ack);
        a.qp(|_, cx, qp| {
            peer.send_to(&answer, (here, 4791)).unwrap();
            let at = cx.now + 1_000_000;
            qp.timer.arm(cx, qp.qpn, at);
            std::thread::sleep(Duration::from_millis(3));
        });
        // The next call that locks the world finds the timer due.
        on(&one, |_, _| ());
        assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0, "{psn}");
    }
}

/// The specification permits four times the timeout, which gives a peer time that is not scheduled.
#[test]
fn a_silent_peer_has_more_time_with_each_repetition() {
    let (here, there) = (address(), address());
    let one = hca(here);
    let peer = UdpSocket::bind((there, 4791)).unwrap();
    let mut a = End::new(&one, QpKind::Rc);
    connect(&a, 5, there);
    // 4.096 us * 2^10
    let timeout = Duration::from_nanos(4096 << 10);
    retries(&a, 10, 3);
    let start = Instant::now();
    a.send(0, 8);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, Syndrome::RETRY.0);
    // One, two, four and four times.
    assert!(start.elapsed() >= 11 * timeout, "{:?}", start.elapsed());
    let sent = core::iter::from_fn(|| peer.recv(&mut [0; 100]).ok()).take(4).count();
    assert_eq!((sent, one.udp_stat().unwrap().sent), (4, 4));
}

/// An acknowledgement of a repeated SEND is not one of the atomic behind it, whose answer may have been lost.
#[test]
fn no_acknowledgement_has_the_number_of_an_atomic() {
    let (here, there) = (address(), address());
    let one = hca(here);
    let mut a = End::new(&one, QpKind::Rc);
    connect(&a, 5, there);
    a.recv(0, 100);
    let peer = UdpSocket::bind((there, 4791)).unwrap();
    let add = Body::Atomic { addr: BASE + 8, rkey: a.key, op: Atomic::FetchAdd(1) };
    let all = [(0, send(vec![1; 8])), (1, add), (0, send(vec![1; 8]))];
    let all = all.map(|(psn, body)| bytes(there, here, 4791, a.qpn, psn, body));
    // They arrive together: no other thread has the lock meanwhile.
    on(&one, |_, _| {
        all.iter().for_each(|bytes| assert!(peer.send_to(bytes, (here, 4791)).is_ok()));
        std::thread::sleep(Duration::from_millis(3));
    });
    within(LIMIT, || (one.udp_stat().unwrap().received == 3).then_some(()));
    peer.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut answers = Vec::new();
    let mut buffer = [0; 100];
    while let Ok(len) = peer.recv(&mut buffer) {
        // Opcode and sequence number of the base transport header.
        answers.push((buffer[0], buffer[11]));
        assert!(len > 12);
    }
    // Acknowledge is 17, ATOMIC Acknowledge 18.
    assert!(answers.contains(&(0x12, 1)), "{answers:x?}");
    assert!(answers.contains(&(0x11, 0)) && !answers.contains(&(0x11, 1)), "{answers:x?}");
}

fn any_body() -> impl Strategy<Value = Body> {
    let data = || prop_oneof![Just(256), Just(0), 0..300_usize].prop_map(|n| vec![7; n]);
    prop_oneof![
        (any::<(bool, bool)>(), data()).prop_map(|((first, last), data)| Body::Send {
            first,
            last,
            imm: last.then_some(1),
            invalidate: None,
            data
        }),
        (any::<(bool, bool, u64, u32)>(), data()).prop_map(|((first, last, addr, len), data)| Body::Write {
            start: first.then_some((BASE + addr % 70_000, 0, len % 3000)),
            last,
            imm: None,
            data
        }),
        (0..70_000_u64, any::<u32>()).prop_map(|(at, len)| Body::Read { addr: BASE + at, rkey: 0, len }),
        (0..70_000_u64, any::<u64>()).prop_map(|(at, add)| Body::Atomic {
            addr: BASE + at,
            rkey: 0,
            op: Atomic::FetchAdd(add)
        }),
        (any::<(bool, bool)>(), data()).prop_map(|((first, last), data)| Body::ReadResponse {
            first,
            last,
            data
        }),
        any::<u64>().prop_map(Body::AtomicResponse),
        Just(Body::Ack),
        proptest::sample::select(vec![Nak::Sequence, Nak::Invalid, Nak::Access, Nak::Operation])
            .prop_map(Body::Nak),
        (0..32_u8).prop_map(Body::Rnr),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The peer of a connection may send any packets; other connections of the device continue to work.
    #[test]
    fn any_datagrams_of_a_peer_leave_the_device_working(
        packets in proptest::collection::vec((any_body(), 0..8_u32), 1..40),
    ) {
        let (here, there) = (Ipv4Addr::new(127, 250, 0, 1), Ipv4Addr::new(127, 250, 0, 2));
        let one = hca(here);
        let mut a = End::new(&one, QpKind::Rc);
        connect(&a, 5, there);
        a.recv(0, 1000);
        a.send(0, 2000);
        a.read(4000, 2000, BASE, 1);
        let peer = UdpSocket::bind((there, 4791)).unwrap();
        for (mut body, psn) in packets {
            if let Body::Write { start: Some((_, rkey, _)), .. } | Body::Read { rkey, .. } | Body::Atomic { rkey, .. } =
                &mut body
            {
                *rkey = a.key;
            }
            peer.send_to(&bytes(there, here, 4791, a.qpn, psn, body), (here, 4791)).unwrap();
        }
        let (mut x, mut y) = (End::new(&one, QpKind::Rc), End::new(&one, QpKind::Rc));
        connect(&x, y.qpn, here);
        connect(&y, x.qpn, here);
        exchange(&mut x, &mut y);
    }
}
