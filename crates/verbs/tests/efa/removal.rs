// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device goes while other threads post and poll.

use crate::bed::{BUFS, End, QKEY, on_both};
use core::time::Duration;
use std::time::Instant;
use uverbs::{Driver, PostError};
use uverbs_efa_device::Fabric;

on_both! { a_removal_ends_posts_and_polls }

fn a_removal_ends_posts_and_polls<D: Driver>() {
    let fabric = Fabric::new(1);
    let [a, b] = ["efa_0", "efa_1"].map(|name| fabric.device(name).build());
    let (mut a, b) = (End::<D>::new(&a), End::<D>::new(&b));
    let to_b = a.ah(&b.here);
    let device = a.device.clone();
    std::thread::scope(|scope| {
        let begin = Instant::now();
        let remover = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            device.unplug();
        });
        // The peer has no receive, so that sends are in flight when the device goes.
        let refused = loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "posts go on");
            while let Ok(Some(done)) = a.cq.poll_one() {
                drop(done);
            }
            let Ok(buf) = a.pool.get() else { continue };
            match a.qp.sq().post_to(1, &to_b, b.here.qp_num, QKEY).send(buf) {
                Ok(()) => {}
                Err(rejected) if rejected.error.reason == PostError::QueueFull => {
                    // Reads the event, after which posts fail.
                    let _ = a.context.query_port(1);
                }
                Err(rejected) => break rejected.error.reason,
            }
        };
        assert_eq!(refused, PostError::Removed);
        remover.join().unwrap();
    });
    assert!(a.context.is_removed());
    let End { qp, cq, pool, exposed, pd, context, .. } = a;
    // Destroying succeeds, and what was in flight comes back.
    drop(to_b);
    qp.close().unwrap();
    assert_eq!(pool.available(), BUFS);
    drop((cq, pool, exposed, pd, context));
    assert!(b.device.objects().get("qp").is_some_and(|n| *n == 1));
}
