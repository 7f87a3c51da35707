// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events for `tracing`: each kind, with its fields.

use crate::bed::{End, connect_self, pair};
use tracing::Level;
use uverbs::RemoteRegion;
use uverbs::attr::QpState;
use uverbs_hca::Hca;
use uverbs_testkit::recorder::events;

#[test]
fn state_changes_and_reconnects() {
    let ((a, b), seen) = events(pair);
    let of_a: Vec<_> = seen
        .iter()
        .filter(|event| event.field("device") == "hca0" && event.field("qp_num") == a.qp.qp_num().to_string())
        .collect();
    let states: Vec<_> = of_a.iter().map(|event| event.field("state")).collect();
    assert_eq!(states, ["INIT", "RTR", "RTS"], "{seen:?}");
    let peer = format!("qp {:#x} at ", b.qp.qp_num());
    assert!(of_a[1].field("peer").starts_with(&peer) && of_a[2].field("peer").starts_with(&peer), "{of_a:?}");
    assert_eq!((of_a[0].field("peer"), of_a[0].field("connects"), of_a[2].field("connects")), ("", "0", "1"));
    assert_eq!(of_a[2].level, Level::DEBUG);
    assert!(of_a[2].field("message").contains("of hca0: RTS"), "{of_a:?}");

    // Another life, with the same peer.
    let (mut a, _b) = (a, b);
    let ((), seen) = events(|| a.qp.reset().unwrap());
    assert_eq!((seen.len(), seen[0].field("state"), seen[0].field("peer")), (1, "RESET", ""), "{seen:?}");
    let ((), seen) = events(|| connect_self(&a.qp));
    assert_eq!((seen[2].field("state"), seen[2].field("connects")), ("RTS", "2"));

    // A change that is refused.
    let (refused, seen) = events(|| a.qp.control().modify_state(QpState::RTR));
    assert!(refused.is_err());
    assert!(seen[0].field("message").contains("not RTR: "), "{seen:?}");
}

#[test]
fn error_completions_that_nobody_looks_at() {
    let (mut a, b) = pair();
    let wrong = RemoteRegion::new(0x1000, 64, 0x1234).unwrap();
    let buf = a.filled(b"12345678");
    a.qp.sq().post(7).signaled().write(buf, &wrong).unwrap();
    a.qp.sq().post(8).signaled().send_inline(b"x").unwrap();
    let (polled, seen) = events(|| {
        a.hca.run();
        (0..10).map(|_| a.cq.poll_each(8, |_done| ()).unwrap()).sum::<usize>()
    });
    assert_eq!((polled, seen.len()), (2, 2), "{seen:?}");
    let peer = format!("qp {:#x} at ", b.qp.qp_num());
    for (event, wr_id, level, status) in
        [(&seen[0], "7", Level::WARN, "10"), (&seen[1], "8", Level::DEBUG, "5")]
    {
        assert_eq!((event.level, event.field("wr_id"), event.field("status")), (level, wr_id, status));
        assert_eq!((event.field("device"), event.field("qp_num")), ("hca0", &*a.qp.qp_num().to_string()));
        assert!(event.field("peer").starts_with(&peer), "{event:?}");
    }
    assert!(seen[0].field("message").contains("remote access error"), "{seen:?}");
}

#[test]
fn removal() {
    let end = End::new(Hca::new());
    let (_, seen) = events(|| {
        end.hca.unplug();
        end.context.query_device().unwrap_err()
    });
    let removed: Vec<_> = seen.iter().filter(|event| event.level == Level::WARN).collect();
    assert_eq!((removed.len(), removed[0].field("device")), (1, "hca0"), "{seen:?}");
    assert!(removed[0].field("message").contains("the device was removed"));
}

#[test]
fn nothing_that_succeeds() {
    let (mut a, mut b) = pair();
    let ((), seen) = events(|| {
        for _ in 0..20 {
            b.receives(1);
            a.qp.send_inline(b"x").unwrap();
            drop((a.next(), b.next()));
        }
    });
    assert!(seen.is_empty(), "{seen:?}");
}
