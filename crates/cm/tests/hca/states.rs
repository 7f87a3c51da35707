// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifiers that are dropped, or moved to another channel, in each state of a connection, with and without events that were not
//! read.

use crate::{Hosts, LIMIT, event_of, failure, hosts, none};
use uverbs::attr::QpType;
use uverbs_cm::{ConnParam, Error, EventChannel, EventKind, Id, PortSpace, RejectReason};

const STEPS: usize = 8;

/// The identifiers of a connection that is not established yet, and the channels that have their events.
struct Ends {
    listener: Option<Id>,
    active: Option<Id>,
    passive: Option<Id>,
    at_client: EventChannel,
    at_server: EventChannel,
}

/// Takes the requests of the events.
fn read(channel: &EventChannel, passive: &mut Option<Id>) -> usize {
    let mut n = 0;
    while let Some(event) = channel.next_event().unwrap() {
        n += 1;
        if let EventKind::ConnectRequest(request) = event.kind {
            *passive = Some(request.id);
        }
    }
    n
}

impl Ends {
    fn new(hosts: &Hosts, port_space: PortSpace) -> Self {
        let listener = Some(hosts.listen(port_space, 0));
        let active = Some(hosts.at_client.create_id(port_space).unwrap());
        let (at_client, at_server) = (hosts.at_client.clone(), hosts.at_server.clone());
        Self { listener, active, passive: None, at_client, at_server }
    }

    fn step(&mut self, hosts: &Hosts, port_space: PortSpace, step: usize) {
        let param = ConnParam::new().qp_num(5);
        match step {
            0 => self.active.as_ref().unwrap().resolve_addr(None, hosts.address(), LIMIT).unwrap(),
            1 => self.active.as_ref().unwrap().resolve_route(LIMIT).unwrap(),
            2 => self.active.as_ref().unwrap().connect(&param).unwrap(),
            3 => assert!(self.passive.is_some()),
            4 => self.passive.as_ref().unwrap().accept(&param).unwrap(),
            5 if port_space != PortSpace::Udp => self.active.as_ref().unwrap().establish().unwrap(),
            6 if port_space != PortSpace::Udp => self.active.as_ref().unwrap().disconnect().unwrap(),
            7 if port_space != PortSpace::Udp => self.passive.as_ref().unwrap().disconnect().unwrap(),
            _ => {}
        }
    }
}

#[test]
fn identifiers_are_dropped_in_each_state() {
    for port_space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib(QpType::Rc)] {
        for last in 0..STEPS {
            for (who, reads) in (0..3).flat_map(|who| [true, false].map(|reads| (who, reads))) {
                let hosts = hosts();
                let mut ends = Ends::new(&hosts, port_space);
                for step in 0..=last {
                    ends.step(&hosts, port_space, step);
                    if reads || step < last {
                        read(&ends.at_client, &mut None);
                        read(&ends.at_server, &mut ends.passive);
                    }
                }
                match who {
                    0 => drop(ends.active.take()),
                    1 => drop(ends.passive.take()),
                    _ => drop(ends.listener.take()),
                }
                // What the others are told can be read, and they end, too.
                hosts.fabric.run_for(LIMIT);
                read(&ends.at_client, &mut None);
                read(&ends.at_server, &mut ends.passive);
                drop((ends.listener, ends.passive, ends.active));
                hosts.fabric.run_for(LIMIT);
                assert_eq!((read(&ends.at_client, &mut None), read(&ends.at_server, &mut None)), (0, 0));
                // The port is free, and another connection is possible.
                drop(hosts.connected());
            }
        }
    }
}

#[test]
fn identifiers_take_their_pending_events_along_in_each_state() {
    for port_space in [PortSpace::Tcp, PortSpace::Udp] {
        for last in 0..STEPS {
            let hosts = hosts();
            let mut ends = Ends::new(&hosts, port_space);
            for step in 0..=last {
                ends.step(&hosts, port_space, step);
                // Nobody has read the events of this step.
                let [client, server] =
                    [&ends.at_client, &ends.at_server].map(|at| at.open_another().unwrap());
                for (id, to) in
                    [(&mut ends.active, &client), (&mut ends.passive, &server), (&mut ends.listener, &server)]
                {
                    if let Some(id) = id {
                        id.migrate(to).unwrap();
                    }
                }
                let (old_client, old_server) = (ends.at_client, ends.at_server);
                assert_eq!(
                    (read(&old_client, &mut None), read(&old_server, &mut None)),
                    (0, 0),
                    "step {step}"
                );
                (ends.at_client, ends.at_server) = (client, server);
                let n = read(&ends.at_client, &mut None) + read(&ends.at_server, &mut ends.passive);
                assert_eq!(
                    n > 0,
                    matches!(step, 0..=2 | 4) || port_space == PortSpace::Tcp && step != 3,
                    "step {step}: {n}"
                );
            }
        }
    }
}

/// The kernel lets only the channel of the identifier end a membership.
#[test]
fn memberships_end_with_events_pending() {
    for order in 0..4 {
        let hosts = hosts();
        let mut id = hosts.at_client.create_id(PortSpace::Udp).unwrap();
        id.bind_addr((hosts.client.addresses()[0], 0).into()).unwrap();
        let [one, two] = ["239.1.2.3:0", "239.1.2.4:0"]
            .map(|group| id.join_multicast(group.parse().unwrap(), false).unwrap());
        let other = hosts.at_client.open_another().unwrap();
        match order {
            0 => {
                id.migrate(&other).unwrap();
                assert_eq!((read(&hosts.at_client, &mut None), read(&other, &mut None)), (0, 2));
                one.leave().unwrap();
            }
            1 => {
                one.leave().unwrap();
                id.migrate(&other).unwrap();
                assert_eq!((read(&hosts.at_client, &mut None), read(&other, &mut None)), (0, 1));
            }
            2 => {
                drop(id);
                drop(one);
                assert_eq!(read(&hosts.at_client, &mut None), 0);
            }
            _ => {
                drop(hosts.at_client);
                drop(one);
                drop(id);
            }
        }
        drop(two);
        assert_eq!(read(&other, &mut None), 0);
    }
}

/// A rejection before there is an answer does not reach the server, whose acceptance is then not answered (`cm_acquire_rejected_id()`,
/// `cm_rep_handler()`). One of the server after its acceptance reaches the client. (The kernel repeats the pointless messages, and
/// destroys an identifier only when it has given up, so this is not a test of the VM.)
#[test]
fn rejections_without_an_answer() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::default()).unwrap();
    let passive = hosts.request(&listener).id;
    active.reject(RejectReason::CONSUMER_DEFINED, b"").unwrap();
    none(&hosts.at_server);
    passive.accept(&ConnParam::default()).unwrap();
    none(&hosts.at_client);
    hosts.fabric.run();
    assert!(matches!(failure(&hosts.at_server, &passive), Error::TimedOut { .. }));
    drop((active, passive));

    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::default()).unwrap();
    let passive = hosts.request(&listener).id;
    passive.accept(&ConnParam::default()).unwrap();
    assert!(matches!(event_of(&hosts.at_client, &active), EventKind::ConnectResponse(_)));
    passive.reject(RejectReason::CONSUMER_DEFINED, b"").unwrap();
    let error = failure(&hosts.at_client, &active);
    assert!(matches!(error, Error::Rejected { reason: RejectReason::CONSUMER_DEFINED, .. }), "{error}");
}
