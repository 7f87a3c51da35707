// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages in order over SRD: under loss and delays, with a device that is removed, and with a peer that was killed.

use core::time::Duration;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;
use uverbs::Context;
use uverbs::efa::Efa;
use uverbs::efa_device::{EfaDevice, Fabric};
use uverbs_examples::ordered::{self, Channel, Figures};

/// Two devices of a fabric, and the results of the two ends, which send `count` messages each and take a peer without any progress for
/// `limit` as lost. `during` is called with the devices while they do.
fn exchange(
    fabric: &Fabric,
    count: u64,
    limit: Duration,
    during: impl FnOnce([EfaDevice; 2]) + Send,
) -> [anyhow::Result<Figures>; 2] {
    let devices = ["efa0", "efa1"].map(|name| fabric.device(name).build());
    let contexts = devices.each_ref().map(|device| Context::<Efa>::from_kernel(device.open()).unwrap());
    let (one, two) = UnixStream::pair().unwrap();
    let end = |context: &Context<Efa>, stream: UnixStream| {
        let mut channel = Channel::connect(context, stream)?.limit(limit);
        ordered::run(&mut channel, count)
    };
    let [a, b] = &contexts;
    let results = thread::scope(|scope| {
        let (a, b) = (scope.spawn(move || end(a, one)), scope.spawn(move || end(b, two)));
        during(devices.clone());
        [a.join().unwrap(), b.join().unwrap()]
    });
    assert_eq!(devices.map(|device| device.violations()), [vec![], vec![]]);
    results
}

#[test]
fn messages_that_overtake_are_delivered_in_order() {
    let results = exchange(&Fabric::new(5), 3000, LIMIT, |_| ());
    let figures = results.map(Result::unwrap);
    // The window had something to do.
    assert!(figures.iter().all(|f| f.stats.early > 0 && f.stats.furthest > 1), "{figures:?}");
}

#[test]
fn lost_and_late_packets_change_nothing() {
    let fabric = Fabric::new(6);
    fabric.loss(0.02).reorder(0.2).duplicate(0.05);
    let results = exchange(&fabric, 1000, LIMIT, |_| ());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// The time without progress in the tests that lose a peer.
const IDLE: Duration = Duration::from_secs(1);
/// How long an end may take to report that the other one is lost: the device gives up after some seconds, the channel after `IDLE`.
const LIMIT: Duration = Duration::from_secs(45);

fn both_fail(lose: impl FnOnce([EfaDevice; 2]) + Send) {
    let begin = Instant::now();
    let results = exchange(&Fabric::new(7), u64::MAX, IDLE, |devices| {
        thread::sleep(Duration::from_millis(100));
        lose(devices);
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}

#[test]
fn a_removed_device_is_an_error_of_both_ends() {
    both_fail(|[a, _]| a.unplug());
}

#[test]
fn a_killed_peer_is_an_error() {
    both_fail(|[_, b]| b.kill());
}
