// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric of several processes, simulated by several fabrics of this process, which send the same bytes over the socket.
//! Peers that exit, join again, or send invalid messages.

use super::clock::{LIMIT, within};
use super::rig::{BASE, End, on};
use crate::cqe::Syndrome;
use crate::engine::packet::{Atomic, Body, Dc, Direct, Nak, Packet, Path, Transport, WrPart};
use crate::engine::qp::{QpKind, State};
use crate::{Fabric, Hca, Link};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use uverbs_fabric::wire::Port;
use uverbs_mlx5_hw::wqe::{Av, MLX5_EXTENDED_UD_AV, MLX5_OPCODE_SEND};
use uverbs_mlx5_hw::{Be16, Be32};
use zerocopy::IntoBytes;

type Message = uverbs_fabric::wire::Message<Packet>;

/// A path for a socket, which is removed at the end.
struct SocketPath(PathBuf);

impl SocketPath {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("uverbs-fabric-{}-{count}", std::process::id())))
    }

    fn listen(&self) -> Fabric {
        let fabric = Fabric::new(1);
        fabric.listen(&self.0).unwrap();
        fabric
    }

    fn join(&self) -> Fabric {
        let fabric = Fabric::new(2);
        fabric.join(&self.0).unwrap();
        fabric
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn hca(fabric: &Fabric) -> Hca {
    fabric.device("hca").link(Link::InfiniBand).build()
}

fn lid(hca: &Hca) -> u16 {
    on(hca, |_, cx| cx.net.ports[cx.me].lid)
}

/// Waits until a device can, or can no longer, find another one by its LID.
fn sees(hca: &Hca, lid: u16, does: bool) {
    let up = |cx: &crate::engine::Port<'_>| cx.net.by_lid(lid).is_some_and(|i| cx.net.ports[i].up);
    within(LIMIT, || (on(hca, |_, cx| up(cx)) == does).then_some(()));
}

/// A connection between two devices of two processes.
fn connect(a: &Hca, b: &Hca, kind: QpKind) -> (End, End) {
    sees(a, lid(b), true);
    sees(b, lid(a), true);
    let (x, y) = (End::new(a, kind), End::new(b, kind));
    x.connect(y.qpn, lid(b), 0);
    y.connect(x.qpn, lid(a), 0);
    (x, y)
}

fn exchange(a: &mut End, b: &mut End) {
    let data = a.fill(0, 5000, 3);
    b.recv(100, 5000);
    a.send(0, 5000);
    let received = within(LIMIT, || b.recv_cq.poll());
    assert_eq!((received.bytes, received.slid), (5000, lid(&a.hca)), "with the address of the sender");
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    assert_eq!(b.memory.get(100, 5000), data);
    let data = b.fill(20_000, 9000, 4);
    a.read(30_000, 9000, BASE + 20_000, b.key);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    assert_eq!(a.memory.get(30_000, 9000), data);
    let before = u64::from_ne_bytes(b.memory.get(8, 8).try_into().unwrap());
    a.fetch_add(0, BASE + 8, b.key, 5);
    assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
    assert_eq!(b.memory.get(8, 8), before.wrapping_add(5).to_ne_bytes());
}

#[test]
fn two_processes_share_a_fabric() {
    let path = SocketPath::new();
    let (here, there) = (path.listen(), path.join());
    let (a, b) = (hca(&here), hca(&there));
    assert_eq!((lid(&a), lid(&b)), (1, 65), "numbers are given out");
    let (mut x, mut y) = connect(&a, &b, QpKind::Rc);
    exchange(&mut x, &mut y);
    exchange(&mut y, &mut x);
    // The faults of a process affect the packets that it sends.
    here.loss(0.02);
    there.loss(0.02).reorder(0.1);
    for _ in 0..5 {
        exchange(&mut x, &mut y);
    }
    here.loss(0.0);
    there.loss(0.0).reorder(0.0);
    // A port that goes down is down for the others, too.
    b.set_link_up(false);
    sees(&a, 65, false);
    b.set_link_up(true);
    sees(&a, 65, true);
    // A third process gets other numbers, and reaches the listening process.
    let third = path.join();
    let c = hca(&third);
    assert_eq!(lid(&c), 129);
    let (mut x, mut y) = connect(&a, &c, QpKind::Rc);
    exchange(&mut x, &mut y);
    assert_eq!((a.violations(), b.violations(), c.violations()), (vec![], vec![], vec![]));
    // `join` must be called before devices are built, once, in real time, and with a path at which a process listens.
    // Only one process can listen at a path.
    assert!(third.join(&path.0).is_err() && here.join(&path.0).is_err());
    let other = path.0.with_extension("other");
    assert!(third.listen(&other).is_err() && !other.exists());
    assert_eq!(Fabric::new(1).listen(&path.0).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert!(Fabric::new(1).join(&path.0.with_extension("not")).is_err());
    assert!(Fabric::deterministic(1).join(&path.0).is_err());
    assert!(Fabric::deterministic(1).listen(&path.0).is_err());
}

/// A program has removed the folder of the socket, as that of a test.
#[test]
fn a_fabric_ends_although_its_socket_is_gone() {
    let path = SocketPath::new();
    let (here, there) = (path.listen(), path.join());
    std::fs::remove_file(&path.0).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop((here, there));
        ended.send(()).unwrap();
    });
    end.recv_timeout(LIMIT).expect("it ends");
}

/// The listening process has no devices, and other processes join and exit.
#[test]
fn processes_that_joined_reach_each_other() {
    let path = SocketPath::new();
    let _here = path.listen();
    let fabrics = [path.join(), path.join(), path.join()];
    let hcas: Vec<Hca> = fabrics.iter().map(hca).collect();
    for (i, j) in [(0, 1), (2, 0), (1, 2)] {
        let (mut x, mut y) = connect(&hcas[i], &hcas[j], QpKind::Rc);
        exchange(&mut x, &mut y);
        exchange(&mut y, &mut x);
    }
    let group = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    on(&hcas[0], |_, cx| assert!(cx.net.join(group, cx.me, 77)));
    for other in &hcas[1..] {
        let members = || on(other, |_, cx| cx.net.members(&group));
        within(LIMIT, || (members().len() == 1 && members()[0].1 == 77).then_some(()));
    }
    let (mut x, mut y) = connect(&hcas[0], &hcas[1], QpKind::Rc);
    for _ in 0..10 {
        let late = path.join();
        let d = hca(&late);
        // The new device and the others can reach each other immediately.
        for other in &hcas {
            assert!(on(other, |_, cx| cx.net.by_lid(lid(&d)).is_some_and(|i| cx.net.ports[i].up)));
            assert!(on(&d, |_, cx| cx.net.by_lid(lid(other)).is_some_and(|i| cx.net.ports[i].up)));
        }
        let (mut v, mut w) = connect(&d, &hcas[2], QpKind::Rc);
        exchange(&mut v, &mut w);
        let gone = lid(&d);
        drop((v, d, late));
        exchange(&mut x, &mut y);
        for other in &hcas {
            sees(other, gone, false);
        }
    }
    assert!(hcas.iter().all(|hca| hca.violations().is_empty()));
}

/// Each initiator has the number that the one before had, in a process that has ended.
#[test]
fn a_dc_target_serves_a_process_after_another_one() {
    let path = SocketPath::new();
    let here = path.listen();
    let server = hca(&here);
    let mut target = End::new(&server, QpKind::Dci);
    target.connect(0, 0, 0);
    target.qp(|_, _, qp| (qp.kind, qp.dc_key, qp.sq) = (QpKind::Dct, 9, None));
    let mut numbers = Vec::new();
    for round in 0..4 {
        let there = path.join();
        let client = hca(&there);
        let (own, peer) = (lid(&client), lid(&server));
        sees(&server, own, true);
        sees(&client, peer, true);
        let mut a = End::new(&client, QpKind::Dci);
        a.connect(0, peer, 0);
        numbers.push(a.qpn);
        let mut address = Av {
            dqp_dct: Be32::new(target.qpn | MLX5_EXTENDED_UD_AV),
            rlid: Be16::new(peer),
            ..Av::default()
        };
        address.set_dc_key(9);
        for message in 0..3 {
            let data = a.fill(0, 700, round * 3 + message);
            target.recv(0, 1000);
            let sge = a.sge(0, 700);
            a.post(MLX5_OPCODE_SEND, 0, &[address.as_bytes(), sge.as_bytes()]);
            assert_eq!(within(LIMIT, || a.send_cq.poll()).syndrome, 0);
            assert_eq!(within(LIMIT, || target.recv_cq.poll()).bytes, 700);
            assert_eq!(target.memory.get(0, 700), data);
        }
        drop((a, client, there));
        sees(&server, own, false);
    }
    assert!(numbers.iter().all(|qpn| *qpn == numbers[0]));
}

/// If several processes try to listen at the same time, one of them succeeds.
#[test]
fn one_of_several_processes_listens() {
    let path = SocketPath::new();
    let listening: Vec<Option<Fabric>> = std::thread::scope(|scope| {
        let try_one = || {
            let fabric = Fabric::new(1);
            fabric.listen(&path.0).is_ok().then_some(fabric)
        };
        let all: Vec<_> = (0..8).map(|_| scope.spawn(try_one)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(listening.iter().flatten().count(), 1);
    assert_eq!(lid(&hca(&path.join())), 65);
    drop(listening);
    // A socket that a killed process left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path.0).unwrap());
    assert!(path.0.exists());
    assert_eq!(lid(&hca(&path.listen())), 1);
}

/// A process passes the address of a new device to a peer by other means: the peer can reach the device immediately,
/// and vice versa.
#[test]
fn a_new_device_is_known_to_other_processes() {
    let up = |hca: &Hca, lid: u16| on(hca, |_, cx| cx.net.by_lid(lid).is_some_and(|i| cx.net.ports[i].up));
    for _ in 0..20 {
        let path = SocketPath::new();
        let here = path.listen();
        let a = hca(&here);
        let there = path.join();
        let b = hca(&there);
        assert!(up(&a, lid(&b)), "the listening process knows the joined one");
        assert!(up(&b, lid(&a)), "the joined process knows the listening one");
        let c = here.device("another").link(Link::InfiniBand).build();
        assert!(up(&b, lid(&c)), "and what it built later");
    }
}

#[test]
fn packets_in_flight_arrive_although_their_process_ends() {
    const SENDS: usize = 8;
    for delay in [Duration::ZERO, Duration::from_millis(20)] {
        let path = SocketPath::new();
        let (here, there) = (path.listen(), path.join());
        let (a, b) = (hca(&here), hca(&there));
        let (mut x, mut y) = connect(&b, &a, QpKind::Uc);
        there.delay(delay);
        (0..SENDS).for_each(|_| y.recv(0, 20_000));
        for _ in 0..SENDS {
            x.send(0, 20_000);
        }
        drop((x, b, there));
        for _ in 0..SENDS {
            assert_eq!(within(LIMIT, || y.recv_cq.poll()).bytes, 20_000);
        }
    }
}

#[test]
fn datagrams_of_a_group_reach_other_processes() {
    let path = SocketPath::new();
    let (here, there) = (path.listen(), path.join());
    let (a, b) = (hca(&here), hca(&there));
    sees(&b, 1, true);
    let group = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    on(&a, |_, cx| assert!(cx.net.join(group, cx.me, 77)));
    let members = || on(&b, |_, cx| cx.net.members(&group));
    let found = within(LIMIT, || Some(members()).filter(|m| !m.is_empty()));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, 77);
    assert_eq!(on(&b, |_, cx| cx.net.by_lid(1)), Some(found[0].0));
    on(&a, |_, cx| assert!(cx.net.leave(group, cx.me, 77)));
    within(LIMIT, || members().is_empty().then_some(()));
}

#[test]
fn links_are_down_after_a_process_exits() {
    let path = SocketPath::new();
    let (here, there) = (path.listen(), path.join());
    let (a, b) = (hca(&here), hca(&there));
    let (mut x, mut y) = connect(&a, &b, QpKind::Rc);
    exchange(&mut x, &mut y);
    drop((y, b, there));
    sees(&a, 65, false);
    x.attr(|attr| (attr.timeout, attr.retry_cnt) = (8, 2));
    x.write(0, 100, BASE, 1);
    assert_eq!(within(LIMIT, || x.send_cq.poll()).syndrome, Syndrome::RETRY.0);
    assert_eq!(x.state(), State::Err);
    // The next process has another number, so that late packets do not reach it.
    let b = hca(&path.join());
    assert_eq!(lid(&b), 129);
    let (mut x, mut y) = connect(&a, &b, QpKind::Rc);
    exchange(&mut x, &mut y);
}

#[test]
fn a_process_may_join_again() {
    let path = SocketPath::new();
    let (here, there) = (path.listen(), path.join());
    let b = hca(&there);
    let a = hca(&here);
    sees(&b, 1, true);
    drop((a, here));
    sees(&b, 1, false);
    assert!(!path.0.exists());
    let a = hca(&path.listen());
    assert_eq!(lid(&b), 65);
    let (mut x, mut y) = connect(&b, &a, QpKind::Rc);
    exchange(&mut x, &mut y);
}

/// A peer that is no fabric, or sends invalid messages, is disconnected; the others continue.
#[test]
fn peers_with_invalid_messages_are_disconnected() {
    let path = SocketPath::new();
    let (here, there) = (path.listen(), path.join());
    let (a, b) = (hca(&here), hca(&there));
    let (mut x, mut y) = connect(&a, &b, QpKind::Rc);
    let hello = Message::Hello { base: None }.bytes();
    let port = |number| Port { number, ethernet: false, up: true, lid: 500, mac: [0; 6], gids: vec![] };
    let ports = |number| Message::Ports(vec![port(number)]).bytes();
    let (own, foreign) = (ports(1024), ports(64));
    let wrong: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 0],
        &own,
        &Message::Hello { base: Some(64) }.bytes(),
        &Message::Hello { base: Some(7) }.bytes(),
        &[&hello[..], &foreign].concat(),
        &[&Message::Hello { base: Some(1024) }.bytes()[..], &own, &[0, 0, 0, 2, 6, 0]].concat(),
    ];
    for bytes in wrong {
        let mut peer = UnixStream::connect(&path.0).unwrap();
        peer.write_all(bytes).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        // The connection ends, after the introduction at most; a reset also ends it.
        let mut answer = Vec::new();
        let end = peer.read_to_end(&mut answer);
        assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        exchange(&mut x, &mut y);
    }
    sees(&a, 500, false);
    // A peer that introduces itself and closes the connection in the middle of a message.
    let hello = Message::Hello { base: Some(1024) }.bytes();
    let mut peer = UnixStream::connect(&path.0).unwrap();
    peer.write_all(&[&hello[..], &own, &[0, 0, 1, 0, 6]].concat()).unwrap();
    sees(&a, 500, true);
    drop(peer);
    sees(&a, 500, false);
    // The end of the fabric does not wait for a peer that sends nothing, or for one that reads nothing.
    let silent = UnixStream::connect(&path.0).unwrap();
    let mut deaf = UnixStream::connect(&path.0).unwrap();
    deaf.write_all(&[&hello[..], &own].concat()).unwrap();
    sees(&a, 500, true);
    let (mut one, other) = (End::new(&a, QpKind::Uc), End::new(&a, QpKind::Uc));
    one.connect(other.qpn, 500, 0);
    for _ in 0..200 {
        one.write(0, 60_000, BASE, 1);
        assert_eq!(within(LIMIT, || one.send_cq.poll()).syndrome, 0);
    }
    exchange(&mut x, &mut y);
    drop((one, other, x, a, here));
    drop((silent, deaf));
}

/// A peer that joins and reads only the first answer, which says whether it is welcome.
fn silent(path: &SocketPath) -> Option<(UnixStream, u16)> {
    let mut peer = UnixStream::connect(&path.0).unwrap();
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    peer.write_all(&Message::Hello { base: None }.bytes()).unwrap();
    let mut len = [0; 4];
    peer.read_exact(&mut len).unwrap();
    let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
    peer.read_exact(&mut bytes).unwrap();
    match Message::parse(&bytes).unwrap() {
        Message::Welcome { base } => Some((peer, base)),
        Message::Refused => None,
        other => panic!("{other:?}"),
    }
}

/// Writes messages until the connection ends.
fn is_disconnected_by(peer: &mut UnixStream, message: &Message, most: usize) -> bool {
    let bytes = message.bytes();
    peer.set_write_timeout(Some(LIMIT)).unwrap();
    let written = (0..most).all(|_| peer.write_all(&bytes).is_ok());
    let end = peer.read_to_end(&mut Vec::new());
    !written || end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
}

#[test]
fn the_demands_of_peers_have_limits() {
    let path = SocketPath::new();
    let here = path.listen();
    let a = hca(&here);
    let port = |number, gids| Port {
        number,
        ethernet: false,
        up: true,
        lid: number,
        mac: [0; 6],
        gids: (0..gids).map(|i| ([i as u8 + 1; 16], true)).collect(),
    };
    let ports = |base: u16, count: u16, gids: usize| {
        Message::Ports((base..base + count).map(|n| port(n, gids)).collect())
    };
    // Too many addresses.
    let (mut peer, base) = silent(&path).unwrap();
    peer.write_all(&ports(base, 4, 255).bytes()).unwrap();
    sees(&a, base, true);
    assert!(is_disconnected_by(&mut peer, &ports(base, 9, 255), 1));
    sees(&a, base, false);
    // Too many requests for an answer, while another peer is silent.
    let (other, _) = silent(&path).unwrap();
    let (mut peer, _) = silent(&path).unwrap();
    assert!(is_disconnected_by(&mut peer, &Message::Sync(1), 1000));
    drop((peer, other));
    // Too many peers: the others stay.
    let peers: Vec<_> = (0..100).map_while(|_| silent(&path)).collect();
    assert_eq!(peers.len(), uverbs_fabric::MAX_PEERS, "the previous ones have gone");
    // Lists for peers that do not read take no more memory than the last one.
    let (mut first, base) = (&peers[0].0, peers[0].1);
    for i in 0..300 {
        first.write_all(&ports(base, 1 + i % 60, 16).bytes()).unwrap();
    }
    sees(&a, base, true);
    let waits = a.fabric().waiting_for_peers();
    assert!(waits < 100 * (60 * 16 * 17 + 2000), "{waits} bytes wait for {} peers", peers.len());
    drop(peers);
    within(LIMIT, || silent(&path));
}

fn body() -> impl Strategy<Value = Body> {
    let data = || {
        prop_oneof![Just(256), Just(0), 0..600_usize]
            .prop_flat_map(|n| proptest::collection::vec(any::<u8>(), n))
    };
    let addr = || prop_oneof![3 => BASE..BASE + 70_000, 1 => any::<u64>()];
    let key = || prop_oneof![3 => Just(0_u32), 1 => any::<u32>()];
    let imm = || proptest::option::of(any::<u32>());
    let naks = proptest::sample::select(vec![Nak::Sequence, Nak::Invalid, Nak::Access, Nak::Operation]);
    let atomic = (any::<bool>(), any::<u64>()).prop_map(|(add, n)| {
        if add { Atomic::FetchAdd(n) } else { Atomic::CmpSwap { compare: n, swap: !n } }
    });
    let start = proptest::option::of((addr(), key(), 0..70_000_u32));
    prop_oneof![
        (any::<bool>(), any::<bool>(), imm(), imm(), data()).prop_map(
            |(first, last, imm, invalidate, data)| Body::Send { first, last, imm, invalidate, data }
        ),
        (start, any::<bool>(), imm(), data()).prop_map(|(start, last, imm, data)| Body::Write {
            start,
            last,
            imm,
            data
        }),
        (addr(), key(), 0..1_u32 << 20).prop_map(|(addr, rkey, len)| Body::Read { addr, rkey, len }),
        (addr(), key(), atomic).prop_map(|(addr, rkey, op)| Body::Atomic { addr, rkey, op }),
        (any::<bool>(), any::<bool>(), data()).prop_map(|(first, last, data)| Body::ReadResponse {
            first,
            last,
            data
        }),
        any::<u64>().prop_map(Body::AtomicResponse),
        Just(Body::Ack),
        naks.prop_map(Body::Nak),
        any::<u8>().prop_map(Body::Rnr),
        (any::<u32>(), imm(), data()).prop_map(|(qkey, imm, data)| Body::Datagram { qkey, imm, data }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A peer may send any packets to queues with work in flight. The device continues to work for other peers.
    #[test]
    fn any_packets_of_a_peer_leave_the_device_working(
        packets in proptest::collection::vec(
            (body(), 0..4_usize, prop_oneof![4 => 0..12_u32, 1 => 0..1_u32 << 24], any::<u8>()),
            1..40,
        ),
    ) {
        let fabric = Fabric::deterministic(1);
        let a = hca(&fabric);
        let kinds = [QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::Dct];
        let transports = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Dc];
        let mut ends: Vec<End> = kinds.into_iter().map(|kind| End::new(&a, kind)).collect();
        for end in &mut ends {
            // No port has this LID, so all requests stay outstanding.
            end.connect(9, 999, 0);
            end.recv(0, 1000);
        }
        ends[0].send(0, 2000);
        ends[0].read(4000, 2000, BASE, 1);
        ends[0].fetch_add(0, BASE, 1, 1);
        let keys: Vec<u32> = ends.iter().map(|e| e.key).collect();
        for (mut body, which, psn, more) in packets {
            if let Body::Write { start: Some((_, rkey, _)), .. }
            | Body::Read { rkey, .. }
            | Body::Atomic { rkey, .. } = &mut body
                && *rkey == 0
            {
                *rkey = keys[which];
            }
            let dc = (which == 3).then_some(Dc { key: 0, session: more.into(), first: psn });
            let packet = Packet {
                from: 0,
                transport: transports[which],
                src_qpn: 9,
                dest_qpn: ends[which].qpn,
                psn,
                ack: more & 1 != 0,
                solicited: more & 2 != 0,
                srqn: 0,
                msn: 0,
                dc,
                path: Path::default(),
                wr: WrPart::default(),
                direct: Direct::default(),
                body,
            };
            // The message as it is read from the socket.
            let bytes = Message::Packet { to: 0, packet }.bytes();
            let Ok(Message::Packet { to, packet }) = Message::parse(&bytes[4..]) else {
                panic!("the decoded message equals the encoded one");
            };
            on(&a, |_, cx| {
                let now = cx.now;
                cx.net.inject(now, to, packet);
            });
        }
        fabric.run();
        let (mut x, mut y) = (End::new(&a, QpKind::Rc), End::new(&a, QpKind::Rc));
        x.connect(y.qpn, lid(&a), 0);
        y.connect(x.qpn, lid(&a), 0);
        exchange(&mut x, &mut y);
    }

    #[test]
    fn any_bytes_decode_to_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..8_u8) {
        let bytes = [&[kind][..], &bytes].concat();
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(&message.bytes()[4..], &bytes[..], "each message has one encoding");
        }
    }
}
