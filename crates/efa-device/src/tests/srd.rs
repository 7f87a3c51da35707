// SPDX-License-Identifier: MIT OR Apache-2.0
//! SRD: every operation, the order of messages, repairs, and every error of a completion.

use super::rig::{DEPTH, Done, End, Memory, QKEY, Shape, pair, pattern};
use crate::{EfaDevice, Fabric, Generation};
use core::time::Duration;
use uverbs_core::attr::{AccessFlags, Gid, QpAttr, QpAttrMask as M, QpState};
use uverbs_efa_hw::io::{
    EFA_IO_COMP_STATUS_FLUSHED as FLUSHED, EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH as LOCAL_LENGTH,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH as INVALID_AH,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY as INVALID_LKEY,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE as UNREACHABLE,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE as UNRESPONSIVE,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP as UNSUPPORTED, EFA_IO_COMP_STATUS_OK as OK,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT as ABORT,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS as BAD_ADDRESS,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN as BAD_QPN,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH as REMOTE_LENGTH,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH as MISMATCH, EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR as RNR,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER as UNKNOWN_PEER, EFA_IO_RDMA_READ, EFA_IO_RDMA_WRITE,
    EFA_IO_SEND, RemoteMemAddr, TxBufDesc, TxMetaDesc, UNKNOWN_AH,
};
use zerocopy::IntoBytes;

/// Two ends, with an address handle of each other.
fn ends(seed: u64, shape: Shape) -> (Fabric, End, End, u16, u16) {
    let (fabric, a, b) = pair(seed);
    let (x, y) = (End::written(&a, shape), End::written(&b, shape));
    let (to_y, to_x) = (x.ah_to(&y), y.ah_to(&x));
    (fabric, x, y, to_y, to_x)
}

fn mistakes(ends: &[&EfaDevice]) -> usize {
    ends.iter().map(|device| device.violations().len()).sum()
}

#[test]
fn a_message_arrives_with_its_sender_and_immediate_data() {
    let (_fabric, mut x, mut y, to_y, to_x) = ends(1, Shape::default());
    let data = pattern(3000, 1);
    x.memory.put(100, &data);
    y.recv_list(5, &[(0, 1000), (5000, 1000), (9000, 1500)]);
    let meta = TxMetaDesc { length: 2, immediate_data: 0x11_2233, ..x.meta(9, EFA_IO_SEND, &y, to_y) };
    let buffers = [x.buffer(100, 1200), x.buffer(1300, 1800)].map(|b| b.as_bytes().to_vec()).concat();
    x.post(TxMetaDesc { ctrl1: meta.ctrl1 | 0x10, ..meta }, &buffers);
    let sent = x.poll().unwrap();
    assert_eq!((sent.recv, sent.req_id, sent.status, sent.op), (false, 9, OK, EFA_IO_SEND));
    let got = y.poll().unwrap();
    let wanted = Done {
        recv: true,
        req_id: 5,
        status: OK,
        op: EFA_IO_SEND,
        unsolicited: false,
        len: 3000,
        ah: to_x,
        src_qpn: x.qpn,
        imm: Some(0x11_2233),
        tail: [0; 16],
    };
    assert_eq!((got, y.poll(), x.poll()), (wanted, None, None));
    let parts = [y.memory.get(0, 1000), y.memory.get(5000, 1000), y.memory.get(9000, 1000)].concat();
    assert_eq!(parts, data);
}

#[test]
fn inline_data_are_in_the_entry() {
    for (wide, len) in [(false, 32), (true, 80), (true, 0)] {
        let (_fabric, mut x, mut y, to_y, _) = ends(1, Shape { wide, ..Shape::default() });
        y.recv(1, 0, 100);
        let meta = x.meta(0, EFA_IO_SEND, &y, to_y);
        let data = pattern(len, 5);
        x.post(TxMetaDesc { ctrl1: meta.ctrl1 | 0x20, length: len as u16, ..meta }, &data);
        assert_eq!((x.status(), y.poll().unwrap().len), (OK, len as u32));
        assert_eq!(y.memory.get(0, len), data);
    }
    // A write has room for them in a long entry only.
    let (_fabric, mut x, y, to_y, _) = ends(1, Shape { wide: true, ..Shape::default() });
    let meta = x.meta(0, EFA_IO_RDMA_WRITE, &y, to_y);
    let remote = RemoteMemAddr::new(y.memory.addr() + 7, 80, y.mr.rkey());
    let data = [remote.as_bytes(), &pattern(80, 6)].concat();
    x.post(TxMetaDesc { ctrl1: meta.ctrl1 | 0x20, length: 80, ..meta }, &data);
    assert_eq!((x.status(), y.memory.get(7, 80)), (OK, pattern(80, 6)));
}

/// The order in which messages arrive that were posted in order.
fn order(seed: u64) -> Vec<u8> {
    let (_fabric, mut x, mut y, to_y, _) = ends(seed, Shape::default());
    for i in 0..40 {
        y.recv(i, usize::from(i) * 100, 100);
    }
    for i in 0..40 {
        x.memory.put(usize::from(i), &[i as u8]);
        let meta = TxMetaDesc { length: 1, ..x.meta(i, EFA_IO_SEND, &y, to_y) };
        let buffer = x.buffer(usize::from(i), 1);
        x.write_entry(meta, buffer.as_bytes());
    }
    x.ring_send(40);
    let (sent, got) = (x.all(), y.all());
    assert_eq!((sent.len(), got.len()), (40, 40));
    assert!(sent.iter().chain(&got).all(|done| done.status == OK));
    got.iter().map(|done| y.memory.get(usize::from(done.req_id) * 100, 1)[0]).collect()
}

#[test]
fn messages_arrive_in_an_order_that_the_seed_determines() {
    let first = order(1);
    assert_eq!(first, order(1));
    assert_ne!(first, order(2));
    assert!(!first.is_sorted());
    let mut all = first;
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<u8>>(), "each arrives once");
}

#[test]
fn a_long_write_is_placed_in_any_order_before_a_short_one_completes() {
    let (fabric, mut x, y, to_y, _) = ends(3, Shape::default());
    fabric.delay(Duration::from_micros(5));
    let (long, short) = (pattern(1_000_000, 3), pattern(8, 4));
    x.memory.put(0, &long);
    x.memory.put(1_000_000, &short);
    for (req_id, at, len) in [(0, 0, 1_000_000), (1, 1_000_000, 8)] {
        let remote = RemoteMemAddr::new(y.memory.addr() + at as u64, len as u32, y.mr.rkey());
        let meta = TxMetaDesc { length: 1, ..x.meta(req_id, EFA_IO_RDMA_WRITE, &y, to_y) };
        let data = [remote.as_bytes(), x.buffer(at, len).as_bytes()].concat();
        x.write_entry(meta, &data);
    }
    x.ring_send(2);
    fabric.run();
    let done: Vec<u16> = x.all().iter().map(|done| done.req_id).collect();
    assert_eq!(done.len(), 2);
    assert_eq!(y.memory.get(0, 1_000_000), long);
    assert_eq!(y.memory.get(1_000_000, 8), short);
}

#[test]
fn lost_repeated_and_late_packets_are_repaired() {
    let (fabric, a, b) = pair(11);
    let shape = Shape { rnr_retry: 7, ..Shape::default() };
    let (mut x, mut y) = (End::written(&a, shape), End::written(&b, shape));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    fabric.loss(0.15).duplicate(0.15).reorder(0.3);
    for round in 0..20_u16 {
        let data = pattern(200_000, round.into());
        x.memory.put(0, &data);
        y.memory.put(300_000, &pattern(100_000, usize::from(round) + 1));
        y.recv(round, 900_000, 8000);
        x.write(0, 0, 200_000, &y, to_y, None);
        x.read(1, 300_000, 100_000, &y, to_y);
        x.send(2, 0, 8000, &y, to_y);
        fabric.run();
        let mut done = x.all();
        done.sort_by_key(|done| done.req_id);
        assert_eq!(
            done.iter().map(|d| (d.req_id, d.status)).collect::<Vec<_>>(),
            [(0, OK), (1, OK), (2, OK)]
        );
        assert_eq!(y.memory.get(0, 200_000), data);
        assert_eq!(x.memory.get(300_000, 100_000), pattern(100_000, usize::from(round) + 1));
        let got = y.all();
        assert_eq!((got.len(), got[0].req_id, got[0].len), (1, round, 8000), "at most once");
        assert_eq!(y.memory.get(900_000, 8000), data[..8000]);
    }
    let stats = a.stats();
    assert!(stats.retrans_pkts > 20, "{stats:?}");
    assert_eq!((stats.write_wrs, stats.read_wrs, stats.send_wrs), (20, 20, 20));
    assert_eq!((stats.write_bytes, b.stats().recv_wrs, mistakes(&[&a, &b])), (4_000_000, 20, 0));
    // What the receiver remembers of messages is removed with later ones.
    assert!(b.remembered() < 70, "{}", b.remembered());
}

#[test]
fn immediate_data_of_a_write_consume_a_receive_unless_both_sides_say_otherwise() {
    let (_fabric, mut x, mut y, to_y, to_x) = ends(1, Shape::default());
    y.recv(3, 0, 0);
    x.memory.put(0, &pattern(70_000, 1));
    x.write(0, 0, 70_000, &y, to_y, Some(77));
    assert_eq!(x.status(), OK);
    let got = y.poll().unwrap();
    assert_eq!((got.req_id, got.op, got.imm, got.unsolicited), (3, EFA_IO_RDMA_WRITE, Some(77), false));
    assert_eq!((got.len, u16::from_le_bytes([got.tail[0], got.tail[1]]), got.ah), (70_000 & 0xffff, 1, to_x));
    assert_eq!(y.memory.get(0, 70_000), pattern(70_000, 1));
    // There is no receive.
    x.write(1, 0, 8, &y, to_y, Some(1));
    assert_eq!(x.status(), RNR);
    let unsolicited = Shape { unsolicited: true, ..Shape::default() };
    let (_fabric, a, b) = pair(1);
    let (mut x, mut y) = (End::written(&a, unsolicited), End::written(&b, unsolicited));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    x.write(0, 0, 10, &y, to_y, Some(78));
    assert_eq!(x.status(), OK);
    let got = y.poll().unwrap();
    assert_eq!((got.imm, got.unsolicited, got.len, got.status), (Some(78), true, 10, OK));
    let mut z = End::written(&a, Shape::default());
    let to_y = z.ah_to(&y);
    z.write(0, 0, 10, &y, to_y, Some(78));
    assert_eq!(z.status(), MISMATCH);
    z.write(0, 0, 10, &y, to_y, None);
    assert_eq!((z.status(), y.poll()), (OK, None));
}

#[test]
fn a_message_without_a_receive_is_retried_as_often_as_the_qp_says() {
    let (_fabric, mut x, y, to_y, _) = ends(1, Shape::default());
    x.send(0, 0, 10, &y, to_y);
    assert_eq!(x.status(), RNR);
    drop((x, y));
    let (fabric, mut x, mut y, to_y, _) = ends(1, Shape { rnr_retry: 3, ..Shape::default() });
    let start = fabric.now();
    x.send(0, 0, 10, &y, to_y);
    fabric.run();
    assert_eq!(x.status(), RNR);
    assert!(fabric.now() - start > Duration::from_micros(300));
    // A receive that is posted later gets only later messages.
    y.recv(0, 0, 100);
    fabric.run();
    assert_eq!(y.poll(), None);
    let (fabric, mut x, mut y, to_y, _) = ends(1, Shape { rnr_retry: 7, ..Shape::default() });
    x.send(0, 0, 10, &y, to_y);
    for _ in 0..20 {
        fabric.run();
    }
    assert_eq!(x.poll(), None);
    y.recv(4, 0, 100);
    fabric.run();
    assert_eq!((x.status(), y.poll().unwrap().req_id, y.poll()), (OK, 4, None));
}

#[test]
fn no_more_requests_are_begun_than_the_queue_has_entries() {
    let (fabric, a, b) = pair(1);
    let shape = Shape { rnr_retry: 7, ..Shape::default() };
    let (mut x, mut y) = (End::written(&a, shape), End::written(&b, shape));
    let to_y = x.ah_to(&y);
    let meta = TxMetaDesc { length: 1, ..x.meta(0, EFA_IO_SEND, &y, to_y) };
    let buffer = x.buffer(0, 8);
    // Without completions, a driver may not post more than the queue has. This one does: the device takes no more, but what is in
    // the ring stays there.
    for i in 0..2 * DEPTH as u16 {
        x.write_entry(TxMetaDesc { req_id: i, ..meta }, buffer.as_bytes());
        x.ring_send(x.posted.into());
    }
    fabric.run();
    assert_eq!(x.poll(), None);
    x.ring_send(2 * DEPTH + 1);
    for i in 0..2 * DEPTH as u16 {
        y.recv(i, 0, 8);
        fabric.run();
    }
    let (sent, got) = (x.all(), y.all());
    assert_eq!((sent.len(), got.len()), (2 * DEPTH as usize, 2 * DEPTH as usize));
    assert!(sent.iter().all(|done| done.status == OK));
    assert_eq!(a.violations().len(), 1, "the doorbell behind the ring");
}

/// Too many messages to a device are outstanding, of other QPs.
#[test]
fn a_message_that_waits_for_other_qps_is_sent_after_them() {
    const BEGUN: usize = 4096 / DEPTH as usize;
    let (fabric, a, b) = pair(3);
    let y = End::new(&b, Shape::default());
    let mut ends: Vec<(End, u16)> = (0..=BEGUN)
        .map(|_| {
            let x = End::new(&a, Shape::default());
            let to_y = x.ah_to(&y);
            (x, to_y)
        })
        .collect();
    b.set_link_up(false);
    for (x, to_y) in &mut ends {
        for i in 0..DEPTH as u16 {
            let meta = TxMetaDesc { length: 1, ..x.meta(i, EFA_IO_SEND, &y, *to_y) };
            let buffer = x.buffer(0, 1);
            x.write_entry(meta, buffer.as_bytes());
        }
        x.ring_send(DEPTH);
    }
    b.set_link_up(true);
    for _ in 0..8 {
        fabric.run();
    }
    for (x, _) in &mut ends {
        let statuses: Vec<u8> = x.all().iter().map(|done| done.status).collect();
        assert_eq!(statuses, vec![RNR; DEPTH as usize], "of qp {:#x}", x.qpn);
    }
}

#[test]
fn two_processes_share_a_fabric() {
    let path = std::env::temp_dir().join(format!("uverbs-efa-{}", std::process::id()));
    let (here, there) = (Fabric::new(1), Fabric::new(2));
    here.listen(&path).unwrap();
    there.join(&path).unwrap();
    let (a, b) = (here.device("efa_0").build(), there.device("efa_0").build());
    let (mut x, mut y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let (to_y, to_x) = (x.ah_to(&y), y.ah_to(&x));
    y.recv(4, 0, 8000);
    let data = pattern(100_000, 3);
    x.memory.put(0, &data);
    x.write(0, 0, 100_000, &y, to_y, None);
    x.send(1, 0, 8000, &y, to_y);
    let start = std::time::Instant::now();
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    while sent.len() + got.len() < 3 && start.elapsed() < Duration::from_secs(20) {
        sent.extend(x.all());
        got.extend(y.all());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(sent.len() == 2 && sent.iter().all(|done| done.status == OK), "{sent:?}");
    assert_eq!((got[0].req_id, got[0].ah), (4, to_x));
    assert_eq!(y.memory.get(8000, 92_000), data[8000..]);
    // A port that goes down is down for the others, too; and a process that ends takes its device with it.
    let sees = |device: &EfaDevice, gid: Gid, up: bool| {
        let is_up =
            || device.fabric().read(|world| world.net.by_gid(&gid.0).is_some_and(|i| world.net.ports[i].up));
        while is_up() != up && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(is_up(), up);
    };
    let gid = y.ctx.gid();
    b.set_link_up(false);
    sees(&a, gid, false);
    b.set_link_up(true);
    sees(&a, gid, true);
    drop((y, b, there));
    sees(&a, gid, false);
    // Another process gets other numbers, and sends through the same listening process.
    let third = Fabric::new(3);
    third.join(&path).unwrap();
    let c = third.device("efa_0").build();
    let mut z = End::written(&c, Shape::default());
    assert_ne!(z.ctx.gid(), gid);
    let to_z = x.ah_to(&z);
    z.ah_to(&x);
    x.write(2, 0, 20_000, &z, to_z, None);
    let done = loop {
        match x.poll() {
            None if start.elapsed() < Duration::from_secs(20) => std::thread::sleep(Duration::from_millis(1)),
            done => break done,
        }
    };
    assert_eq!(done.map(|done| (done.req_id, done.status)), Some((2, OK)));
    assert_eq!(z.memory.get(0, 20_000), data[..20_000]);
    assert_eq!((z.poll(), mistakes(&[&a, &c])), (None, 0));
}

#[test]
fn errors_of_the_peer_have_a_status_and_leave_the_queue_working() {
    let (fabric, mut x, mut y, to_y, _) = ends(1, Shape::default());
    y.recv(0, 0, 100);
    let send = |x: &mut End, y: &End, change: fn(&mut TxMetaDesc)| {
        let mut meta = TxMetaDesc { length: 1, ..x.meta(0, EFA_IO_SEND, y, to_y) };
        change(&mut meta);
        let buffer = x.buffer(0, 100);
        x.post(meta, buffer.as_bytes());
        x.status()
    };
    assert_eq!(send(&mut x, &y, |meta| meta.dest_qp_num ^= 0x100), BAD_QPN, "an earlier life of the QP");
    assert_eq!(send(&mut x, &y, |meta| meta.dest_qp_num ^= 1), BAD_QPN);
    assert_eq!(send(&mut x, &y, |meta| meta.qkey = QKEY + 1), BAD_QPN);
    assert_eq!(y.poll(), None);
    // The receive is too short: both sides get an error.
    x.send(0, 0, 101, &y, to_y);
    assert_eq!((x.status(), y.status()), (REMOTE_LENGTH, LOCAL_LENGTH));
    y.write_recv(uverbs_efa_hw::io::RxDesc::new(8, y.memory.addr(), 100, 0x7f_ffff, true, true));
    y.ring_recv(y.received.into());
    x.send(0, 0, 10, &y, to_y);
    assert_eq!((x.status(), y.status()), (ABORT, INVALID_LKEY));
    let remote = |x: &mut End, y: &End, op: u8, change: fn(&mut RemoteMemAddr)| {
        let mut remote = RemoteMemAddr::new(y.memory.addr(), 64, y.mr.rkey());
        change(&mut remote);
        let meta = TxMetaDesc { length: 1, ..x.meta(0, op, y, to_y) };
        let data = [remote.as_bytes(), x.buffer(0, 64).as_bytes()].concat();
        x.post(meta, &data);
        x.status()
    };
    for op in [EFA_IO_RDMA_READ, EFA_IO_RDMA_WRITE] {
        assert_eq!(remote(&mut x, &y, op, |_| ()), OK);
        assert_eq!(remote(&mut x, &y, op, |r| r.rkey ^= 1), BAD_ADDRESS);
        assert_eq!(remote(&mut x, &y, op, |r| r.rkey &= 0x7f_ffff), BAD_ADDRESS, "the local key");
        assert_eq!(remote(&mut x, &y, op, |r| r.buf_addr_lo = r.buf_addr_lo.wrapping_sub(1)), BAD_ADDRESS);
        assert_eq!(remote(&mut x, &y, op, |r| r.buf_addr_hi = u32::MAX), BAD_ADDRESS);
    }
    // A QP in the error state.
    y.to(QpState::ERR);
    assert_eq!(send(&mut x, &y, |_| ()), BAD_QPN);
    fabric.run();
    assert_eq!(x.poll(), None);
}

#[test]
fn reads_and_writes_need_an_address_handle_of_the_initiator() {
    let (_fabric, a, b) = pair(1);
    let shape = Shape { source_gid: true, ..Shape::default() };
    let (mut x, mut y) = (End::written(&a, shape), End::written(&b, shape));
    let to_y = x.ah_to(&y);
    x.read(0, 0, 8, &y, to_y);
    assert_eq!(x.status(), UNKNOWN_PEER);
    x.write(0, 0, 8, &y, to_y, None);
    assert_eq!(x.status(), UNKNOWN_PEER);
    // A send does not; its completion has the GID.
    y.recv(0, 0, 8);
    x.send(0, 0, 8, &y, to_y);
    let got = y.poll().unwrap();
    assert_eq!((x.status(), got.status, got.ah, Gid(got.tail)), (OK, OK, UNKNOWN_AH, x.ctx.gid()));
    y.ah_to(&x);
    x.read(0, 0, 8, &y, to_y);
    assert_eq!(x.status(), OK);
}

#[test]
fn errors_of_this_side_are_found_before_anything_is_sent() {
    let (_fabric, mut x, y, to_y, _) = ends(1, Shape::default());
    let before = x.ctx.gid();
    let mut post = |change: fn(&mut TxMetaDesc, &mut TxBufDesc)| {
        let (mut meta, mut buffer) =
            (TxMetaDesc { length: 1, ..x.meta(3, EFA_IO_SEND, &y, to_y) }, x.buffer(0, 100));
        change(&mut meta, &mut buffer);
        x.post(meta, buffer.as_bytes());
        x.status()
    };
    assert_eq!(post(|meta, _| meta.ah = 999), INVALID_AH);
    assert_eq!(post(|_, buffer| buffer.lkey ^= 0x10), INVALID_LKEY);
    assert_eq!(post(|_, buffer| buffer.lkey |= 1 << 23), INVALID_LKEY, "the remote key");
    assert_eq!(post(|_, buffer| buffer.buf_addr_hi = 7), INVALID_LKEY);
    assert_eq!(post(|_, buffer| buffer.length = 8929), LOCAL_LENGTH);
    assert_eq!(post(|meta, _| meta.ctrl1 |= 7), UNSUPPORTED);
    assert_eq!(post(|meta, _| meta.ctrl2 &= !0x10), RNR, "an error has a completion, requested or not");
    assert_eq!(before, x.ctx.gid());
}

#[test]
fn peers_that_do_not_answer_are_unreachable_or_unresponsive() {
    let (fabric, a, b) = pair(1);
    let (mut x, mut y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    let mut nowhere = x.ctx.gid();
    nowhere.0[15] = 99;
    let (_ah, number) = x.ctx.ah(&x.pd, nowhere);
    x.send(0, 0, 8, &y, number);
    fabric.run();
    assert_eq!(x.status(), UNREACHABLE);
    b.set_link_up(false);
    x.send(0, 0, 8, &y, to_y);
    fabric.run();
    assert_eq!(x.status(), UNREACHABLE, "it has never answered");
    b.set_link_up(true);
    y.recv(0, 0, 8);
    x.send(0, 0, 8, &y, to_y);
    fabric.run();
    assert_eq!(x.status(), OK);
    b.set_link_up(false);
    x.send(0, 0, 8, &y, to_y);
    fabric.run();
    assert_eq!(x.status(), UNRESPONSIVE);
    assert!(a.stats().unresponsive_remote_events >= 3);
}

#[test]
fn the_error_state_flushes_both_queues() {
    let (fabric, mut x, y, to_y, _) = ends(1, Shape { rnr_retry: 7, ..Shape::default() });
    for i in 0..3 {
        x.recv(10 + i, 0, 100);
        x.send(i, 0, 8, &y, to_y);
    }
    x.to(QpState::ERR);
    x.send(3, 0, 8, &y, to_y);
    x.recv(13, 0, 100);
    let mut done: Vec<_> = x.all().iter().map(|done| (done.recv, done.req_id, done.status)).collect();
    done.sort_unstable();
    let wanted = (0..8).map(|i| (i > 3, if i > 3 { 6 + i } else { i }, FLUSHED)).collect::<Vec<_>>();
    assert_eq!(done, wanted);
    // Its receive is not flushed with a reset, which removes it.
    x.modify(&QpAttr::new().qp_state(QpState::RESET), M::STATE).unwrap();
    (x.posted, x.received) = (0, 0);
    x.to_rts();
    fabric.run();
    assert_eq!(x.poll(), None);
    let mut z = y;
    z.recv(0, 0, 8);
    x.send(9, 0, 8, &z, to_y);
    fabric.run();
    assert_eq!((x.status(), z.status()), (OK, OK));
}

#[test]
fn requests_of_a_destroyed_address_handle_are_flushed() {
    let (fabric, mut x, y, to_y, _) = ends(1, Shape { rnr_retry: 7, ..Shape::default() });
    let (ah, number) = x.ctx.ah(&x.pd, y.ctx.gid());
    assert_eq!(number, to_y, "a second command for an address gets the same number");
    x.send(0, 0, 8, &y, to_y);
    ah.destroy().unwrap();
    fabric.run();
    assert_eq!(x.poll(), None);
    let (fabric, a, b) = pair(1);
    let shape = Shape { rnr_retry: 7, ..Shape::default() };
    let (mut x, y) = (End::written(&a, shape), End::written(&b, shape));
    let (ah, number) = x.ctx.ah(&x.pd, y.ctx.gid());
    x.send(0, 0, 8, &y, number);
    ah.destroy().unwrap();
    assert_eq!(x.status(), FLUSHED);
    x.send(1, 0, 8, &y, number);
    fabric.run();
    assert_eq!(x.status(), INVALID_AH);
}

#[test]
fn a_destroyed_qp_gets_no_completions_and_another_number() {
    let (fabric, a, b) = pair(1);
    let shape = Shape { rnr_retry: 7, ..Shape::default() };
    let (mut x, mut y) = (End::written(&a, shape), End::written(&b, Shape::default()));
    let to_y = x.ah_to(&y);
    x.send(0, 0, 8, &y, to_y);
    let End { qp, cq_handle, ctx, pd, .. } = x;
    let first = qp.qp_num();
    // SAFETY: its queues are the kernel's.
    unsafe { qp.destroy() }.unwrap();
    y.recv(0, 0, 8);
    fabric.run();
    assert_eq!(y.poll(), None);
    let (again, _) = super::rig::create_qp(&pd, &cq_handle, Shape::default(), DEPTH, DEPTH).unwrap();
    assert_eq!((again.qp_num() & 0xff, again.qp_num() >> 8), (first & 0xff, (first >> 8) + 1));
    drop((ctx, pd, cq_handle, again));
    assert_eq!(mistakes(&[&a, &b]), 0);
}

#[test]
fn a_device_sends_to_itself() {
    let fabric = Fabric::deterministic(1);
    let a = fabric.device("efa_0").build();
    let (mut x, mut y) = (End::written(&a, Shape::default()), End::written(&a, Shape::default()));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    y.recv(0, 0, 100);
    x.send(0, 0, 100, &y, to_y);
    x.read(1, 0, 50_000, &y, to_y);
    assert_eq!((x.all().len(), y.status()), (2, OK));
}

#[test]
fn rings_wrap_with_their_phases() {
    let (_fabric, mut x, mut y, to_y, _) = ends(5, Shape { cq_entry: 16, ..Shape::default() });
    for i in 0..700_u16 {
        let data = pattern(40, i.into());
        x.memory.put(0, &data);
        y.recv_list(i, &[(0, 20), (100, 20)]);
        x.send(i, 0, 40, &y, to_y);
        let (sent, got) = (x.poll().unwrap(), y.poll().unwrap());
        assert_eq!((sent.req_id, sent.status, got.req_id, got.status), (i, OK, i, OK));
        assert_eq!([y.memory.get(0, 20), y.memory.get(100, 20)].concat(), data);
    }
}

#[test]
fn generations_differ_in_what_they_can_do() {
    for generation in [Generation::First, Generation::Second, Generation::Third, Generation::Fourth] {
        let fabric = Fabric::deterministic(1);
        let a = fabric.device("efa_0").generation(generation).build();
        let (mut x, mut y) = (End::new(&a, Shape::default()), End::new(&a, Shape::default()));
        let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
        x.read(0, 0, 8, &y, to_y);
        assert_eq!(x.status(), OK);
        x.write(1, 0, 8, &y, to_y, None);
        let status = if generation < Generation::Third { UNSUPPORTED } else { BAD_ADDRESS };
        assert_eq!(x.status(), status, "{generation:?}");
        let retry = QpAttr::new().qp_state(QpState::RTS).rnr_retry(3);
        let (qp, _) = super::rig::create_qp(&x.pd, &x.cq_handle, Shape::default(), DEPTH, DEPTH).unwrap();
        let init = QpAttr::new().qp_state(QpState::INIT).port_num(1).qkey(1);
        let modify = |attr: &QpAttr, mask| {
            // SAFETY: its queues are the kernel's.
            unsafe { qp.modify(None, attr, mask, uverbs_core::kernel::Uhw::none()) }
        };
        modify(&init, M::STATE | M::PORT | M::PKEY_INDEX | M::QKEY).unwrap();
        modify(&QpAttr::new().qp_state(QpState::RTR), M::STATE).unwrap();
        let retries = modify(&retry, M::STATE | M::SQ_PSN | M::RNR_RETRY);
        assert_eq!(retries.is_ok(), generation >= Generation::Second, "{generation:?}");
        for shape in
            [Shape { wide: true, ..Shape::default() }, Shape { unsolicited: true, ..Shape::default() }]
        {
            let made = super::rig::create_qp(&x.pd, &x.cq_handle, shape, DEPTH, DEPTH);
            assert_eq!(made.is_ok(), generation >= Generation::Fourth, "{generation:?}");
        }
        y.recv(0, 0, 8);
        x.send(0, 0, 8, &y, to_y);
        assert_eq!((x.status(), y.status()), (OK, OK));
        let written =
            x.ctx.reg(&x.pd, Memory::new(4096), AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
        assert_eq!(written.is_ok(), generation >= Generation::Third, "{generation:?}");
    }
}

#[test]
fn real_time_messages_need_no_run() {
    let fabric = Fabric::new(3);
    let (a, b) = (fabric.device("efa_0").build(), fabric.device("efa_1").build());
    let (mut x, mut y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    for i in 0..100 {
        y.recv(i, 0, 8000);
        x.send(i, 0, 8000, &y, to_y);
        x.write(i, 0, 500_000, &y, to_y, None);
        let start = std::time::Instant::now();
        let mut done = 0;
        while done < 3 && start.elapsed() < Duration::from_secs(20) {
            done += x.all().len() + y.all().len();
        }
        assert_eq!(done, 3);
    }
}
