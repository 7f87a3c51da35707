// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a QP that receives from a shared queue.

use crate::{CAP, End, LIMIT, Pair, poll};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll as poll_fds};
use std::os::fd::{AsFd, BorrowedFd};
use uverbs::mlx5::Mlx5;
use uverbs::{
    ConnectAttr, Errno, EventSource, Exclusive, Rc, WorkCompletion,
    raw::{Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, CqInitAttr, EventType, QpState, SrqAttr, SrqInitAttr},
};
use uverbs_hca::Fabric;

const BUFFERS: u64 = 8;

/// A server with a shared queue of [`BUFFERS`] receives, and a client that is connected to a QP of it.
struct Service {
    pair: Pair,
    srq: Srq<Exclusive, Mlx5>,
    qp: Qp<Rc, Exclusive, Mlx5>,
    _memory: uverbs::MemoryRegion<Vec<u8>, Exposed, Mlx5>,
}

impl Service {
    fn new() -> Self {
        let fabric = Fabric::new(0);
        let [client, server] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
        let attr = SrqAttr::new(BUFFERS as u32);
        let mut srq = server.pd.create_srq(&SrqInitAttr::new(attr)).unwrap();
        let memory = server.pd.reg_mr(vec![0; 1024], AccessFlags::LOCAL_WRITE).unwrap();
        for wr_id in 0..BUFFERS {
            let at = wr_id as usize * 64;
            let sge = memory.sge(at..at + 64).unwrap();
            // SAFETY: the region lives as long as the service, and is not accessed.
            unsafe { srq.post(wr_id, &[sge]) }.unwrap();
        }
        let qp = Self::qp(&server, &srq);
        let pair = Pair { client, server };
        let service = Self { pair, srq, qp, _memory: memory };
        service.connect(&service.pair.client);
        service
    }

    fn qp(server: &End, srq: &Srq<Exclusive, Mlx5>) -> Qp<Rc, Exclusive, Mlx5> {
        let qp = server.pd.raw_qp::<Rc>().cq(&server.cq).srq(srq).cap(CAP).create().unwrap();
        qp.init(&ConnectAttr::default()).unwrap();
        qp
    }

    /// Connects the present QP to a client.
    fn connect(&self, client: &End) {
        let attr = ConnectAttr::default();
        let [here, there] = [&self.qp, &client.qp].map(|qp| qp.control.endpoint(3, &attr).unwrap());
        self.qp.connect(&here, &there, &attr).unwrap();
        client.qp.connect(&there, &here, &attr).unwrap();
    }
}

#[test]
fn every_buffer_of_a_shared_queue_comes_back() {
    let mut service = Service::new();
    for _ in 0..3 {
        service.pair.send(b"not polled");
    }
    let (qp, server) = (service.qp, &service.pair.server);
    let mut ids = Vec::new();
    qp.drain(&server.cq, LIMIT, |wc| ids.push(wc.wr_id)).map_err(|(_, e)| e).unwrap();
    assert_eq!(ids, [0, 1, 2]);
    // The event for which `drain` waited is still returned to the program.
    let event = server.context.get_async_event().unwrap();
    assert!(matches!(event.event_type, EventType::COMM_EST | EventType::QP_LAST_WQE_REACHED), "{event:?}");

    // The other receives are still in the queue: messages of a second client consume exactly these.
    service.qp = Service::qp(&service.pair.server, &service.srq);
    service.pair.client = End::new(service.pair.client.hca.fabric().device("hca2").build());
    let service = service;
    service.connect(&service.pair.client);
    let Service { mut pair, srq, qp, .. } = service;
    for wr_id in 3..BUFFERS {
        pair.send(b"polled");
        assert_eq!(poll(&pair.server.cq).wr_id, wr_id);
    }
    qp.drain(&pair.server.cq, LIMIT, |wc| panic!("{wc:?}")).map_err(|(_, e)| e).unwrap();
    srq.close().map_err(|(_, e)| e).unwrap();
}

/// Whether poll(2) finds an event.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut files = [PollFd::new(fd, PollFlags::POLLIN)];
    poll_fds(&mut files, PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn events_that_a_drain_has_read_make_the_descriptor_readable() {
    for early in [true, false] {
        let service = Service::new();
        let context = &service.pair.server.context;
        let events = context.async_events();
        events.set_nonblocking(true).unwrap();
        if early {
            // The descriptor is made before the events are read.
            while events.get_event().is_ok() {}
            assert!(!is_readable(events.as_fd()));
        }
        service.qp.drain(&service.pair.server.cq, LIMIT, |_| ()).map_err(|(_, e)| e).unwrap();
        let mut types = Vec::new();
        while is_readable(events.as_fd()) {
            types.push(events.get_event().unwrap().event_type);
        }
        assert!(types.contains(&EventType::QP_LAST_WQE_REACHED), "{types:?}");
        assert_eq!(events.get_event().unwrap_err().errno(), Errno::EAGAIN);
        // An event of the device comes by the same descriptor.
        service.pair.server.hca.set_link_up(false);
        assert!(is_readable(context.async_fd()));
    }
}

#[test]
fn a_qp_that_failed_before_is_drained_too() {
    let mut service = Service::new();
    service.pair.send(b"not polled");
    service.qp.control.modify_state(QpState::ERR).unwrap();
    // Another part of the program reads the event.
    let own = service.qp.qp_num();
    loop {
        let event = service.pair.server.context.get_async_event().unwrap();
        if event.event_type == EventType::QP_LAST_WQE_REACHED {
            assert_eq!(event.source, EventSource::Qp(own));
            break;
        }
    }
    let mut ids = Vec::new();
    let cq = &service.pair.server.cq;
    service.qp.drain(cq, LIMIT, |wc: &WorkCompletion| ids.push(wc.wr_id)).map_err(|(_, e)| e).unwrap();
    assert_eq!(ids, [0]);
}

/// Otherwise a drain of the QP's next connection would not wait for the event of that one.
#[test]
fn an_event_of_a_qp_that_was_reset_is_not_taken_for_a_later_one() {
    let service = Service::new();
    let (control, context) = (&service.qp.control, &service.pair.server.context);
    control.modify_state(QpState::ERR).unwrap();
    control.modify_state(QpState::RESET).unwrap();
    control.init(&ConnectAttr::default()).unwrap();
    assert!(!control.has_last_wqe());
    // The program still gets it.
    let events = context.async_events();
    events.set_nonblocking(true).unwrap();
    let types: Vec<_> =
        core::iter::from_fn(|| events.get_event().ok()).map(|event| event.event_type).collect();
    assert_eq!(types.iter().filter(|&&event| event == EventType::QP_LAST_WQE_REACHED).count(), 1);
    assert!(!control.has_last_wqe(), "it is that of the time before");
}

#[test]
fn a_qp_that_never_connected_has_nothing_to_wait_for() {
    let service = Service::new();
    let server = &service.pair.server;
    let idle = Service::qp(server, &service.srq);
    idle.drain(&server.cq, core::time::Duration::ZERO, |wc| panic!("{wc:?}")).map_err(|(_, e)| e).unwrap();
}

#[test]
fn sends_are_flushed_and_queues_without_lock_are_drained() {
    let pair = Pair::new();
    let (client, attr) = (&pair.client, ConnectAttr::default());
    let sizes = CqInitAttr::new(16);
    let mut sends = client.context.create_cq_ex::<Exclusive>(&sizes, None).unwrap();
    let mut receives = client.context.create_cq_ex::<Exclusive>(&sizes, None).unwrap();
    let mut qp = client.pd.raw_qp::<Rc>().send_cq(&sends).recv_cq(&receives).cap(CAP).create().unwrap();
    qp.init(&attr).unwrap();
    let here = qp.control.endpoint(1, &attr).unwrap();
    // The peer has no connection to this QP, so the send does not complete before the flush.
    qp.connect(&here, &pair.server.qp.control.endpoint(1, &attr).unwrap(), &attr).unwrap();
    // SAFETY: no memory is named.
    unsafe { qp.rq().unwrap().post(5, &[]) }.unwrap();
    qp.sq().post(4).signaled().send_inline(b"").unwrap();
    let mut done = Vec::new();
    qp.drain((&mut sends, &mut receives), LIMIT, |wc| done.push((wc.wr_id, wc.status.is_success())))
        .map_err(|(_, e)| e)
        .unwrap();
    done.sort_unstable();
    assert_eq!(done, [(4, false), (5, false)]);
}
