// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections: the index of the GID, the exchange of endpoints, and descriptors for event loops.

use crate::{CAP, End, LIMIT, Pair, context};
use core::time::Duration;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use uverbs::attr::{GidType, QpState};
use uverbs::{ConnectAttr, Endpoint, Errno, Rc, WithDeadline};
use uverbs_hca::{Fabric, Link};

#[test]
fn the_default_gid_is_the_best_of_a_roce_port() {
    let context = context();
    let best = context.best_gid(1).unwrap();
    assert_eq!((best.gid_type, best.gid.ipv4().is_some()), (GidType::ROCE_V2, true));
    let attr = ConnectAttr::default();
    assert_eq!(attr.on(&context).unwrap().sgid_index, Some(best.gid_index as u8));
    assert_eq!(attr.sgid_index(Some(1)).on(&context).unwrap().sgid_index, Some(1));
    assert_eq!(context.best_gid(2).unwrap_err().errno(), Errno::EINVAL);

    let mut pair = Pair::new();
    // SAFETY: no memory is named.
    unsafe { pair.server.qp.rq().unwrap().post(1, &[]) }.unwrap();
    pair.send(b"");
    pair.server.poll();
}

#[test]
fn an_infiniband_connection_needs_no_gid() {
    let mut pair = Pair::on(&Fabric::new(0), Link::InfiniBand);
    assert_eq!(ConnectAttr::default().on(&pair.client.context).unwrap().sgid_index, None);
    // SAFETY: no memory is named.
    unsafe { pair.server.qp.rq().unwrap().post(1, &[]) }.unwrap();
    pair.send(b"");
    pair.server.poll();
}

#[test]
fn a_peer_without_gid_is_refused_before_the_first_transition() {
    let fabric = Fabric::new(0);
    let end = End::new(fabric.device("hca0").build());
    let attr = ConnectAttr::default();
    let here = end.qp.control.endpoint(1, &attr).unwrap();
    let there = Endpoint { gid: Default::default(), ..here };
    let error = end.qp.connect(&here, &there, &attr).unwrap_err();
    assert!(
        error.to_string().starts_with("connect: invalid remote: the peer's endpoint has no GID"),
        "{error}"
    );
    assert_eq!(end.qp.control.state().unwrap(), QpState::INIT);
    end.qp.connect(&here, &here, &attr).unwrap();
}

fn endpoint(qp_num: u32) -> Endpoint {
    Endpoint { qp_num, ..Endpoint::default() }
}

#[test]
fn the_passive_side_connects_before_it_answers() {
    let (client, server) = UnixStream::pair().unwrap();
    let client = std::thread::spawn(move || endpoint(1).exchange(WithDeadline::new(client, LIMIT)).unwrap());
    let mut connected = None;
    let got = endpoint(2).answer(WithDeadline::new(server, LIMIT), |peer| {
        connected = Some(*peer);
        Ok(())
    });
    assert_eq!((got.unwrap(), connected), (endpoint(1), Some(endpoint(1))));
    assert_eq!(client.join().unwrap(), endpoint(2));

    let (client, server) = UnixStream::pair().unwrap();
    endpoint(1).send(&client).unwrap();
    let refused = endpoint(2).answer(server, |_| Err(ErrorKind::ConnectionRefused.into()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(Endpoint::receive(client).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_silent_peer_is_an_error_in_time() {
    let short = Duration::from_millis(20);
    for nonblocking in [false, true] {
        let (here, _there) = UnixStream::pair().unwrap();
        here.set_nonblocking(nonblocking).unwrap();
        let late = endpoint(1).exchange(WithDeadline::new(here, short)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let (here, _there) = UnixStream::pair().unwrap();
        here.set_nonblocking(nonblocking).unwrap();
        let late = endpoint(1).answer(WithDeadline::new(here, short), |_| Ok(())).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
    }
}

#[test]
fn shared_halves_are_borrowed_by_a_shared_reference() {
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
    let attr = ConnectAttr::default();
    let qp = pd.raw_qp::<Rc>().shared().cq(&cq).cap(CAP).create().unwrap();
    qp.init(&attr).unwrap();
    let here = qp.control.endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
    std::thread::scope(|scope| {
        for wr_id in 0..2 {
            let qp = &qp;
            scope.spawn(move || {
                // SAFETY: no memory is named.
                unsafe { qp.rq().unwrap().lock().unwrap().post(10 + wr_id, &[]) }.unwrap();
                qp.sq().lock().unwrap().post(wr_id).signaled().send_inline(b"").unwrap();
            });
        }
    });
    let mut done: Vec<u64> = (0..4).map(|_| crate::poll(&cq).wr_id).collect();
    done.sort_unstable();
    assert_eq!(done, [0, 1, 10, 11]);
}

#[test]
fn channels_and_events_have_descriptors_for_event_loops() {
    fn same(fd: &(impl AsFd + AsRawFd)) -> bool {
        fd.as_fd().as_raw_fd() == fd.as_raw_fd()
    }
    let pair = Pair::new();
    assert!(same(&pair.client.context.create_comp_channel().unwrap()));
    let events = pair.client.context.async_events();
    assert!(same(&events) && events.as_raw_fd() == pair.client.context.async_fd().as_raw_fd());
    events.set_nonblocking(true).unwrap();
    assert_eq!(events.get_event().unwrap_err().errno(), Errno::EAGAIN);
    pair.client.hca.set_link_up(false);
    let event = events.clone().get_event().unwrap();
    assert_eq!(event.event_type, uverbs::attr::EventType::PORT_ERR);
}
