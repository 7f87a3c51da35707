// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the connection manager for `tracing`, with the QP and the peer.

use super::{Hosts, PORT, event_of, hosts};
use core::net::SocketAddr;
use tracing::Level;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, Exclusive, Qp, Rc};
use uverbs_cm::{ConnParam, PortSpace, RejectReason};
use uverbs_hca::Hca;
use uverbs_testkit::recorder::{Seen, events};

/// A QP of a device, in RESET.
fn qp(hca: &Hca) -> Qp<Rc, Exclusive, Mlx5> {
    let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.cq_with(16, None).unwrap());
    pd.qp::<Rc>().cq::<Exclusive>(&cq).depth(4, 4).create().unwrap()
}

/// The events of this name.
fn named<'a>(seen: &'a [Seen], name: &str) -> Vec<&'a Seen> {
    seen.iter().filter(|event| event.field("event") == name).collect()
}

fn one<'a>(seen: &'a [Seen], name: &str) -> &'a Seen {
    let found = named(seen, name);
    assert_eq!(found.len(), 1, "{name}: {seen:?}");
    found[0]
}

fn client(hosts: &Hosts) -> String {
    hosts.client.addresses()[0].to_string()
}

#[test]
fn a_connection_from_its_request_to_its_end() {
    let hosts = hosts();
    let (here, there) = (qp(&hosts.client), qp(&hosts.server));
    let param = ConnParam::new();
    let ((), seen) = events(|| {
        let listener = hosts.listen(PortSpace::Tcp, 0);
        let active = hosts.resolve(PortSpace::Tcp, hosts.address());
        active.init_qp(here.control(), &param).unwrap();
        active.connect(&param.clone().qp_num(here.qp_num())).unwrap();
        let passive = hosts.request(&listener).id;
        passive.init_qp(there.control(), &param).unwrap();
        passive.connect_qp(there.control(), &param).unwrap();
        passive.accept(&param.clone().qp_num(there.qp_num())).unwrap();
        event_of(&hosts.at_client, &active);
        active.connect_qp(here.control(), &param).unwrap();
        active.establish().unwrap();
        event_of(&hosts.at_server, &passive);
        active.disconnect().unwrap();
        event_of(&hosts.at_server, &passive);
    });
    let server = hosts.address().to_string();
    let (here, there) = (here.qp_num().to_string(), there.qp_num().to_string());
    assert_eq!(one(&seen, "ADDR_RESOLVED").level, Level::DEBUG);
    let request = one(&seen, "CONNECT_REQUEST");
    assert!(request.field("peer").starts_with(&client(&hosts)), "{request:?}");
    assert_eq!((request.level, request.field("peer_qp_num")), (Level::INFO, &*here));
    let response = one(&seen, "CONNECT_RESPONSE");
    assert_eq!((response.field("device"), response.field("qp_num")), ("hca0", &*here));
    assert_eq!((response.field("peer"), response.field("peer_qp_num")), (&*server, &*there));
    for name in ["ESTABLISHED", "DISCONNECTED"] {
        let event = one(&seen, name);
        assert_eq!(
            (event.level, event.field("device"), event.field("qp_num")),
            (Level::INFO, "hca1", &*there)
        );
        assert!(event.field("peer").starts_with(&client(&hosts)), "{event:?}");
    }
    // The states of both QPs are reported, too.
    let states = seen.iter().filter(|event| event.field("state") == "RTS").count();
    assert_eq!(states, 2, "{seen:?}");
}

#[test]
fn a_rejection_and_the_removal_of_a_device() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, SocketAddr::new(hosts.server.addresses()[0], PORT));
    active.connect(&ConnParam::new()).unwrap();
    hosts.request(&listener).id.reject(RejectReason::CONSUMER_DEFINED, b"no").unwrap();
    let (_, seen) = events(|| event_of(&hosts.at_client, &active));
    let failure = one(&seen, "a failure");
    assert_eq!((failure.level, failure.field("device")), (Level::WARN, ""));
    assert!(failure.field("message").contains("rejected"), "{failure:?}");

    let (listener, active, passive) = {
        drop((listener, active));
        hosts.connected()
    };
    hosts.client.unplug();
    let (_, seen) = events(|| event_of(&hosts.at_client, &active));
    assert_eq!(one(&seen, "DEVICE_REMOVAL").level, Level::WARN);
    drop((listener, passive));
}

/// A subscriber that panics.
struct Panics;

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        panic!("a test of subscribers that panic");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn an_event_is_not_lost_if_the_subscriber_panics() {
    let hosts = hosts();
    let listener = hosts.listen(PortSpace::Tcp, 0);
    let active = hosts.resolve(PortSpace::Tcp, hosts.address());
    active.connect(&ConnParam::new().qp_num(5)).unwrap();
    let request = tracing::subscriber::with_default(Panics, || hosts.request(&listener));
    assert_eq!(request.peer.qp_num, 5);
}
