// SPDX-License-Identifier: MIT OR Apache-2.0
//! What others can make the device store: packets in flight, timers, sessions, memberships, violations, numbers, page lists.

use super::rig::{BASE, End, on, pair};
use crate::decode::KeyUpdate;
use crate::engine::mkey::{Kind, Translate};
use crate::engine::net::{MAX_FLIGHT_OF_LINK, MAX_IN_GROUP, MAX_MEMBERSHIPS, PortLocation};
use crate::engine::packet::{Body, Dc, Direct, Packet, Path, Transport, WrPart};
use crate::engine::qp::{QpKind, State};
use crate::memory::Memory;
use crate::{Fabric, Hca, Link};
use core::time::Duration;
use std::sync::Arc;

pub(super) fn packet(from: usize, body: Body, transport: Transport) -> Packet {
    Packet {
        from,
        transport,
        src_qpn: 9,
        dest_qpn: 0,
        psn: 0,
        ack: false,
        solicited: false,
        srqn: 0,
        msn: 0,
        dc: None,
        path: Path::default(),
        wr: WrPart::default(),
        direct: Direct::default(),
        body,
    }
}

/// Without a limit, the packets to a port that is slow, or behind a long delay, would take all memory.
#[test]
fn packets_in_flight_are_limited_for_each_sender() {
    let fabric = Fabric::deterministic(1);
    let (a, b) = pair(&fabric, QpKind::Rc, 0);
    let bytes = on(&a.hca, |_, cx| {
        // The first port is another process's.
        cx.net.ports[0].location = PortLocation::Away { link: 3 };
        cx.net.changes += 1;
        for _ in 0..40 {
            cx.net.inject(cx.now, 1, packet(0, Body::Frame(vec![0; 4 << 20]), Transport::Ethernet));
        }
        let bytes = cx.net.flight_of(3);
        // Another sender has its own limit.
        let before = cx.net.in_flight();
        cx.net.send(cx.now, 1, packet(1, Body::Ack, Transport::Rc));
        assert_eq!(cx.net.in_flight(), before + 1);
        while cx.net.pop_packet(u64::MAX).is_some() {}
        assert_eq!(cx.net.flight_of(3), 0);
        bytes
    });
    assert!((MAX_FLIGHT_OF_LINK..MAX_FLIGHT_OF_LINK + (5 << 20)).contains(&bytes), "{bytes}");
    drop((a, b));
}

#[test]
fn destroyed_and_repeated_timers_leave_nothing_in_the_network() {
    let fabric = Fabric::deterministic(1);
    let (a, _b) = pair(&fabric, QpKind::Rc, 0);
    let hca = &a.hca;
    for i in 0..200 {
        let mut end = End::new(hca, QpKind::Rc);
        end.connect(7, 999, 0);
        // No port has this LID. The timer is due in more than two hours.
        end.attr(|attr| attr.timeout = 31);
        end.send(0, 10);
        if i % 2 == 0 {
            end.set_state(State::Err);
        }
        on(hca, |device, _| device.remove_qp(end.qpn));
    }
    assert!(on(hca, |_, cx| cx.net.timers()) < 5);
    // A timer that is set for an earlier time replaces the later one.
    let end = End::new(hca, QpKind::Rc);
    end.connect(7, 999, 0);
    for _ in 0..200 {
        end.qp(|_, cx, qp| {
            let now = cx.now;
            qp.timer.arm(cx, qp.qpn, now + (1 << 43));
            qp.timer.arm(cx, qp.qpn, now + 1000);
        });
        fabric.run_for(Duration::from_micros(2));
    }
    let timers = on(hca, |_, cx| cx.net.timers());
    assert!(timers < 5, "{timers}");
}

#[test]
fn sessions_of_initiators_are_limited() {
    let fabric = Fabric::deterministic(1);
    let hca = fabric.device("hca").link(Link::InfiniBand).build();
    let target = End::new(&hca, QpKind::Dct);
    target.connect(9, 1, 0);
    let most = super::super::device::MAX_SESSIONS as u32;
    let begin = |first: u32, count: u32| {
        on(&hca, |device, cx| {
            for src_qpn in first..first + count {
                let dc = Some(Dc { key: 0, session: 1, first: 0 });
                let body = Body::Read { addr: BASE, rkey: 1, len: 1 };
                let new = Packet { src_qpn, dest_qpn: target.qpn, dc, ..packet(0, body, Transport::Dc) };
                device.arrive(cx, Box::new(new));
            }
            while cx.net.pop_packet(u64::MAX).is_some() {}
            device.qps[&target.qpn].sessions.len() as u32
        })
    };
    assert_eq!(begin(0, 10), 10);
    assert_eq!(begin(0, most), most);
    assert_eq!(begin(most, 100), most, "further initiators get no answer");
    assert_eq!(begin(3, 1), most, "the others do");
    target.set_state(State::Reset);
    target.connect(9, 1, 0);
    assert_eq!(begin(most, 100), 100);
    on(&hca, |device, _| device.remove_qp(target.qpn));
}

#[test]
fn memberships_violations_and_reserved_numbers_are_limited() {
    let fabric = Fabric::deterministic(1);
    let hca: Hca = fabric.device("hca").link(Link::InfiniBand).build();
    on(&hca, |_, cx| {
        let group = |i: u32| {
            let mut group = [0xff; 16];
            group[12..].copy_from_slice(&i.to_be_bytes());
            group
        };
        for qpn in 0..MAX_IN_GROUP {
            assert!(cx.has_room(&group(0)) && cx.join(group(0), qpn));
        }
        assert!(!cx.has_room(&group(0)) && cx.has_room(&group(1)));
        for i in MAX_IN_GROUP..MAX_MEMBERSHIPS {
            assert!(cx.has_room(&group(i)) && cx.join(group(i), 7));
        }
        assert!(!cx.has_room(&group(u32::MAX)));
        cx.net.leave_all(cx.me, 7);
        assert!(cx.has_room(&group(u32::MAX)) && !cx.is_member(7) && cx.is_member(8));
    });
    on(&hca, |device, cx| (0..10_000).for_each(|_| device.doorbell(cx, 1, 0x7, [0; 8], None)));
    assert_eq!(hca.take_violations().len(), 4096);
    on(&hca, |device, cx| device.doorbell(cx, 1, 0x7, [0; 8], None));
    assert_eq!(hca.take_violations().len(), 1, "there is room again");
    on(&hca, |device, _| {
        let first: Vec<u32> = (0..64).map(|_| device.reserve_numbers(1024).unwrap()).collect();
        assert_eq!(device.reserve_numbers(1), None);
        device.release_numbers(first[5], 1024);
        assert!(device.reserve_numbers(1).is_some());
    });
}

#[test]
fn requests_in_progress_are_limited() {
    use crate::engine::reliable::MAX_IN_PROGRESS;
    use crate::engine::requester::Counted;
    let fabric = Fabric::deterministic(1);
    let hca = fabric.device("hca").link(Link::InfiniBand).build();
    let mut end = End::new(&hca, QpKind::Rc);
    // No port has this LID.
    end.connect(7, 999, 0);
    let mut others = Counted::default();
    on(&hca, |device, _| (0..MAX_IN_PROGRESS).for_each(|_| others.add(&device.in_progress)));
    for _ in 0..3 {
        end.send(0, 10);
    }
    let taken = |end: &End| on(&hca, |device, _| device.qps[&end.qpn].req.sent.len());
    assert_eq!(taken(&end), 1, "each queue goes on");
    drop(others);
    end.send(0, 10);
    assert_eq!(taken(&end), 4);
    end.set_state(State::Err);
    assert_eq!(on(&hca, |device, _| device.in_progress.count()), 0);
    // Of a queue that is destroyed with its requests.
    let mut end = End::new(&hca, QpKind::Rc);
    end.connect(7, 999, 0);
    end.send(0, 10);
    on(&hca, |device, _| device.remove_qp(end.qpn));
    assert_eq!(on(&hca, |device, _| device.in_progress.count()), 0);
}

/// Accepts every list.
#[derive(Debug)]
struct Any;

impl Translate for Any {
    fn pages(&self, _: Vec<u64>, _: u32, _: u64, _: u64) -> Option<Arc<dyn Memory>> {
        None
    }
}

/// One entry far behind the end of a list makes the list as long.
#[test]
fn page_lists_of_updated_keys_are_limited_together() {
    let fabric = Fabric::deterministic(1);
    let hca = fabric.device("hca").link(Link::InfiniBand).build();
    on(&hca, |device, _| {
        device.translate_with(Arc::new(Any));
        let keys: Vec<u32> = (0..4).map(|_| device.mkeys.add(0, 1, 0, Kind::Free).unwrap()).collect();
        let update = |device: &mut crate::engine::Device, key: u32, at: u64| {
            device.update_key(&KeyUpdate {
                mkey: key,
                must_be_free: false,
                must_be_used: false,
                mask: 0,
                fields: vec![1 << 6; 64],
                at,
                entries: 1,
                list: None,
            })
        };
        // The key stays free, so the list is only stored; the update itself may fail.
        let _ = update(device, keys[0], (1 << 23) - 1);
        let _ = update(device, keys[1], (1 << 22) - 1);
        assert_eq!(device.mkeys.listed(), (1 << 23) + (1 << 22));
        assert!(update(device, keys[2], 1 << 23).is_err());
        assert!(update(device, keys[2], u64::MAX).is_err());
        assert_eq!(device.mkeys.listed(), (1 << 23) + (1 << 22));
        device.mkeys.remove(keys[0]);
        let _ = update(device, keys[2], 1 << 23);
        assert_eq!(device.mkeys.listed(), (1 << 23) + 1 + (1 << 22));
    });
}
