// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric with the model of [`testing`](crate::testing).

use crate::Fabric;
use crate::Model as _;
use crate::model::PortEvent;
use crate::testing::{Device, Frame, Mistake};
use core::time::Duration;

/// Sends packets 0 to `count` from one device to another one, and returns what arrives, with its time.
fn sent(seed: u64, faults: fn(&Fabric<Device>) -> &Fabric<Device>, count: u8) -> Vec<(u64, u8)> {
    let fabric: Fabric<Device> = Fabric::deterministic(seed);
    let (from, to) = (fabric.device("a").index(), fabric.device("b").index());
    faults(&fabric);
    fabric.enter(|world| {
        for i in 0..count {
            let frame = Frame { source: from, queue: 0, data: vec![i] };
            world.net.send(world.now, to, frame);
        }
    });
    fabric.read(|world| {
        let arrived = &world.read(to).unwrap().arrived;
        arrived.iter().map(|(at, frame)| (*at, frame.data[0])).collect()
    })
}

#[test]
fn without_faults_packets_arrive_in_order() {
    assert_eq!(sent(1, |fabric| fabric, 100), (0..100).map(|i| (0, i)).collect::<Vec<_>>());
    let delayed = sent(1, |fabric| fabric.delay(Duration::from_nanos(70)), 3);
    assert_eq!(delayed, [(70, 0), (70, 1), (70, 2)]);
}

#[test]
fn a_seed_selects_the_faults() {
    let sent = |seed| sent(seed, |fabric| fabric.loss(0.1).duplicate(0.1).reorder(0.3), 200);
    let run = sent(7);
    assert_eq!(run, sent(7));
    assert_ne!(run, sent(8));
    let of = |i| run.iter().filter(|(_, n)| *n == i).count();
    assert!((0..200).any(|i| of(i) == 0) && (0..200).any(|i| of(i) == 2));
    assert!(run.windows(2).any(|w| w[0].1 > w[1].1) && run.is_sorted_by_key(|(at, _)| *at));
}

#[test]
fn timers_expire_at_their_time_and_only_the_last_setting_counts() {
    let fabric: Fabric<Device> = Fabric::deterministic(0);
    let device = fabric.device("a").index();
    let arm = |at| {
        fabric.enter(|world| {
            let (device, mut port) = world.device(device).unwrap();
            device.timer.arm(&mut port, 0, at);
        });
    };
    arm(5000);
    arm(9000);
    arm(3000);
    fabric.run_for(Duration::from_nanos(2999));
    let expired = || fabric.read(|world| world.read(device).unwrap().expired.clone());
    assert_eq!(expired(), []);
    fabric.run_for(Duration::from_nanos(10_000));
    assert_eq!((expired(), fabric.now()), (vec![3000], Duration::from_nanos(12_999)));
    arm(20_000);
    fabric.run();
    assert_eq!(expired(), [3000, 20_000]);
    // An entry of a queue that does not exist any more has no effect.
    fabric.enter(|world| world.net.wake(30_000, device, 1));
    fabric.run();
    assert_eq!(expired(), [3000, 20_000]);
}

#[test]
fn the_handle_of_a_device_has_its_port_and_its_violations() {
    let fabric: Fabric<Device> = Fabric::deterministic(0);
    let (a, b) = (fabric.device("a"), fabric.device("b"));
    let delivered = || a.read_front(|kernel| kernel.delivered.clone()).unwrap();
    let send = |to: usize| {
        fabric.enter(|world| {
            world.net.send(world.now, to, Frame { source: b.index(), queue: 0, data: Vec::new() });
        });
    };
    a.set_link_up(true);
    assert_eq!(delivered(), [], "nothing has changed");
    send(a.index());
    a.set_link_up(false);
    send(a.index());
    assert_eq!(delivered(), [PortEvent::Error]);
    assert_eq!((a.packets(), b.packets().0), ((0, 1), 2), "a port whose link is down receives nothing");
    assert_eq!(a.stat().to_string(), "down 0 1 0 0,Only,Rts,0,0,0");
    a.set_link_up(true);
    assert!(a.set_lid(7) && a.set_lid(7) && !a.set_lid(2) && !a.set_lid(0) && !a.set_lid(0xc000));
    assert_eq!(a.add_gid([1; 16]), 0);
    assert_eq!(
        delivered(),
        [PortEvent::Error, PortEvent::Active, PortEvent::LidChange, PortEvent::GidChange]
    );
    assert_eq!(fabric.read(|world| (world.net.by_lid(7), world.net.by_lid(1))), (Some(a.index()), None));

    for number in 0..5000 {
        let mistake = if number % 2 == 0 { Mistake::Even } else { Mistake::Odd };
        a.enter_device(|device, port| device.violations_mut().record(port.now, number, 0, mistake));
    }
    assert_eq!((a.violations().len(), b.violations().len()), (4096, 0), "there is a limit");
    assert_eq!(a.take_violations_if(|v| v.mistake == Mistake::Odd).len(), 2048);
    assert_eq!(a.violations()[1].to_string(), "Even of 2, index 0 (0 ns)");
}

#[test]
fn a_call_looks_only_at_the_devices_that_it_uses() {
    for is_virtual in [false, true] {
        let fabric: Fabric<Device> = if is_virtual { Fabric::deterministic(0) } else { Fabric::new(0) };
        let devices: Vec<_> = (0..256).map(|i| fabric.device(&format!("d{i}")).index()).collect();
        let tidied = || {
            let each = |i: &usize| fabric.read(|world| world.read(*i).unwrap().tidied);
            devices.iter().map(each).collect::<Vec<_>>()
        };
        let before = tidied();
        assert!(before.iter().all(|n| *n == 1), "each call makes one device: {before:?}");
        for _ in 0..10 {
            fabric.enter(|world| {
                world.device(7);
                world.net.send(world.now, 200, Frame { source: 7, queue: 0, data: Vec::new() });
            });
        }
        let calls: Vec<_> = tidied().iter().zip(before).map(|(after, before)| after - before).collect();
        let wanted = (0..256).map(|i| if i == 7 || i == 200 { 10 } else { 0 });
        assert_eq!(calls, wanted.collect::<Vec<_>>());
    }
}
