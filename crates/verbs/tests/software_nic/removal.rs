// SPDX-License-Identifier: MIT OR Apache-2.0
//! The removal of a device, and the end of a peer's process.

use crate::{End, Pair};
use uverbs::attr::EventType;
use uverbs::{Context, Errno, EventSource, WcStatus, mlx5::Mlx5};

/// Checks that every verb of this end fails as on a removed device, and that its objects can be closed.
fn is_gone(end: End) {
    let errno = |error: uverbs::Error| error.errno();
    assert_eq!(end.context.query_port(1).map_err(errno), Err(Errno::EIO));
    assert_eq!(end.context.alloc_pd().map_err(errno).unwrap_err(), Errno::EIO);
    assert_eq!(end.pd.reg_mr(vec![0; 9], Default::default()).unwrap_err().error.errno(), Errno::EIO);
    assert_eq!(end.qp.control.state().map_err(errno), Err(Errno::EIO));
    let End { hca, pd, cq, mut qp, .. } = end;
    // A doorbell without a device has no effect.
    let _ = qp.sq().post(9).send_inline(b"not received");
    qp.close().unwrap();
    cq.close().map_err(|(_, e)| e).unwrap();
    pd.close().map_err(|(_, e)| e).unwrap();
    assert!(hca.objects().is_empty(), "{:?}", hca.objects());
    assert!(hca.violations().is_empty(), "{:?}", hca.violations());
}

/// Checks the peer of a device that does not answer any more.
fn notices(peer: &mut End) {
    peer.qp.sq().post(1).signaled().send_inline(b"hello?").unwrap();
    assert_eq!(peer.completion().status, WcStatus::RETRY_EXC_ERR);
}

#[test]
fn an_unplugged_device_raises_an_event_and_every_verb_fails() {
    let Pair { mut client, server } = Pair::new();
    server.hca.unplug();
    let event = server.context.get_async_event().unwrap();
    assert_eq!((event.event_type, event.source), (EventType::DEVICE_FATAL, EventSource::Device));
    assert!(Context::<Mlx5>::from_kernel(server.hca.open()).is_err(), "opened again");
    notices(&mut client);
    is_gone(server);
}

#[test]
fn the_contexts_of_a_killed_process_end_without_a_word() {
    let Pair { mut client, server } = Pair::new();
    let hca = server.hca.clone();
    hca.kill();
    assert_eq!(server.context.get_async_event().unwrap_err().errno(), Errno::EIO);
    notices(&mut client);
    is_gone(server);
    // The device still exists, for the next process.
    let again = End::new(hca);
    assert_eq!(again.hca.objects().get("qp"), Some(&1));
    again.context.query_port(1).unwrap();
}
