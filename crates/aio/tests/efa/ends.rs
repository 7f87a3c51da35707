// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that are dropped or leaked, resets, and a device that is removed.

use crate::bed::{BUFS, Bed, attr, poll_once};
use uverbs_aio::Error;

/// The buffer of a dropped future goes back with its own completion, and so does the address handle; other futures are not affected.
#[test]
fn a_dropped_future_keeps_its_buffer_until_the_completion() {
    for (seed, detached) in [(1, false), (2, true), (3, false), (4, true)] {
        let bed = Bed::new(seed);
        let (a, b) = (&bed.a, &bed.b);
        let to_b = a.to(&b.here);
        let mut dropped = a.qp.send_to(a.filled(&[1; 4000]), &to_b);
        let mut kept = a.qp.send_to(a.filled(&[2; 10]), &to_b);
        match detached {
            false => {
                assert!(poll_once(&mut dropped).is_pending());
                drop(dropped);
            }
            true => assert!(poll_once(&mut dropped.detach()).is_ready()),
        }
        assert!(poll_once(&mut kept).is_pending());
        drop(to_b);
        assert_eq!((a.handles(), a.pool.available() as u32), (1, BUFS - 2));
        assert_eq!(*bed.run(kept).unwrap(), [2; 10]);
        bed.step();
        assert_eq!((a.handles(), a.pool.available() as u32), (0, BUFS));
        let mut lens = [bed.run(b.qp.recv_from()).unwrap().len(), bed.run(b.qp.recv_from()).unwrap().len()];
        lens.sort_unstable();
        assert_eq!(lens, [10, 4000]);
        // Before the first poll nothing is posted.
        drop(a.qp.send_to(a.filled(b"never"), &a.to(&b.here)));
        bed.step();
        assert!(b.qp.try_recv_from().is_none());
    }
}

#[test]
fn a_leaked_future_loses_its_buffer_only() {
    let bed = Bed::new(5);
    let (a, b) = (&bed.a, &bed.b);
    let to_b = a.to(&b.here);
    let mut leaked = a.qp.send_to(a.filled(b"leaked"), &to_b);
    assert!(poll_once(&mut leaked).is_pending());
    core::mem::forget(leaked);
    for i in 0..20_u8 {
        bed.run(a.qp.send_to(a.filled(&[i; 100]), &to_b)).unwrap();
        bed.run(b.qp.recv_from()).unwrap();
    }
    assert_eq!(a.pool.available() as u32, BUFS - 1);
}

#[test]
fn a_reset_ends_what_is_in_flight_and_the_qp_starts_again() {
    let bed = Bed::new(6);
    let (a, b) = (&bed.a, &bed.b);
    let to_b = a.to(&b.here);
    let mut kept = a.qp.send_to(a.filled(&[1; 4000]), &to_b);
    let mut dropped = a.qp.send_to(a.filled(&[2; 4000]), &to_b);
    assert!(poll_once(&mut kept).is_pending() && poll_once(&mut dropped).is_pending());
    drop(dropped);
    a.qp.reset().unwrap();
    assert!(bed.run(kept).is_err());
    assert_eq!(a.pool.available() as u32, BUFS);
    let here = a.qp.start(&attr()).unwrap();
    bed.run(b.qp.send_inline_to(b"again", &b.to(&here))).unwrap();
    assert_eq!(&*bed.run(a.qp.recv_from()).unwrap(), b"again");
    bed.run(a.qp.send_to(a.filled(b"too"), &to_b)).unwrap();
    assert_eq!(a.device.violations(), []);
}

#[test]
fn a_removed_device_ends_all() {
    let bed = Bed::new(7);
    let (a, b) = (&bed.a, &bed.b);
    let to_b = a.to(&b.here);
    let mut send = a.qp.send_to(a.filled(&[1; 4000]), &to_b);
    assert!(poll_once(&mut send).is_pending());
    let mut dropped = a.qp.send_to(a.filled(&[2; 4000]), &to_b);
    assert!(poll_once(&mut dropped).is_pending());
    drop(dropped);
    let recv = a.qp.recv_from();
    a.device.unplug();
    let sent = bed.run(send).map_err(|failed| failed.error);
    assert!(matches!(sent, Ok(_) | Err(Error::DeviceRemoved)), "{sent:?}");
    let received = bed.run(recv).map(|message| message.len());
    assert!(matches!(received, Err(Error::DeviceRemoved)), "{received:?}");
    let failed = bed.run(a.qp.send_inline_to(b"late", &to_b)).unwrap_err();
    assert!(matches!(failed.error, Error::DeviceRemoved), "{failed}");
    // The peer goes on.
    assert!(b.qp.try_recv_from().is_none_or(|message| message.len() == 4000));
    let Bed { a, .. } = bed;
    let (pool, device) = (a.pool.clone(), a.device.clone());
    drop((to_b, a, sent));
    assert_eq!((pool.available() as u32, device.violations()), (BUFS, vec![]));
}
