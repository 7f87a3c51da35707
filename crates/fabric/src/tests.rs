// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric with the model of [`testing`](crate::testing).

use crate::Fabric;
use crate::testing::{Frame, Station};
use core::time::Duration;

/// Sends packets 0 to `count` from one device to another one, and returns what arrives, with its time.
fn sent(seed: u64, faults: fn(&Fabric<Station>) -> &Fabric<Station>, count: u8) -> Vec<(u64, u8)> {
    let fabric: Fabric<Station> = Fabric::deterministic(seed);
    let (from, to) = (fabric.device("a"), fabric.device("b"));
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
    let fabric: Fabric<Station> = Fabric::deterministic(0);
    let device = fabric.device("a");
    let arm = |at| {
        fabric.enter(|world| {
            let (station, mut port) = world.device(device).unwrap();
            station.timer.arm(&mut port, 0, at);
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
