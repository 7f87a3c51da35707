// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multicast groups: joined, left, and their addresses resolved.

use crate::{LIMIT, event_of, hosts, none};
use core::net::SocketAddr;
use uverbs::Errno;
use uverbs::attr::Gid;
use uverbs_cm::{ConnParam, EventKind, PortSpace};

#[test]
fn groups_are_joined_and_left() {
    let hosts = hosts();
    let group: SocketAddr = "239.1.2.3:0".parse().unwrap();
    let id = hosts.at_client.create_id(PortSpace::Udp).unwrap();
    assert_eq!(id.join_multicast(group, false).unwrap_err().errno(), Errno::EINVAL, "not bound");
    id.bind_addr((hosts.client.addresses()[0], 0).into()).unwrap();
    let member = id.join_multicast(group, false).unwrap();
    let event = hosts.at_client.next_event().unwrap().unwrap();
    assert_eq!(event.token, member.token());
    let EventKind::MulticastJoin(joined) = event.kind else { panic!("{event:?}") };
    assert_eq!((joined.gid(), joined.qp_num), (Gid::from(group.ip()), 0xff_ffff));
    member.leave().unwrap();
    // Its event is discarded with it; and a membership may outlive its identifier.
    drop(id.join_multicast(group, true).unwrap());
    none(&hosts.at_client);
    let member = id.join_multicast("[ff0e::5]:0".parse().unwrap(), true).unwrap();
    drop(id);
    member.leave().unwrap();
    none(&hosts.at_client);
}

/// The kernel does not compare memberships: each has its event and its end.
#[test]
fn a_group_is_joined_twice_by_one_identifier() {
    let hosts = hosts();
    let id = hosts.at_client.create_id(PortSpace::Udp).unwrap();
    id.bind_addr((hosts.client.addresses()[0], 0).into()).unwrap();
    let [one, two] =
        [false, true].map(|send_only| id.join_multicast("239.1.2.3:0".parse().unwrap(), send_only).unwrap());
    assert_eq!(hosts.at_client.next_event().unwrap().unwrap().token, one.token());
    one.leave().unwrap();
    assert_eq!(hosts.at_client.next_event().unwrap().unwrap().token, two.token());
    two.leave().unwrap();
    none(&hosts.at_client);
}

/// rdma_join_multicast(3): `rdma_resolve_addr` with the address of the group binds to the device, too.
#[test]
fn the_address_of_a_group_is_resolved() {
    let hosts = hosts();
    for (group, own) in ["239.1.2.3:0", "[ff0e::5]:0"].into_iter().zip(hosts.client.addresses()) {
        let group: SocketAddr = group.parse().unwrap();
        for local in [None, Some((own, 0).into())] {
            let id = hosts.at_client.create_id(PortSpace::Udp).unwrap();
            id.resolve_addr(local, group, LIMIT).unwrap();
            assert!(matches!(event_of(&hosts.at_client, &id), EventKind::AddrResolved));
            assert_eq!(id.bound().unwrap().local.map(|local| local.ip()), Some(own));
            let member = id.join_multicast(group, false).unwrap();
            let event = hosts.at_client.next_event().unwrap().unwrap();
            assert_eq!(event.token, member.token());
            let EventKind::MulticastJoin(joined) = event.kind else { panic!("{event:?}") };
            assert_eq!(joined.gid(), Gid::from(group.ip()));
        }
    }
}

/// `rdma_join_multicast()` needs a device that is bound, and no step after that.
#[test]
fn groups_are_joined_before_the_route_is_resolved() {
    let hosts = hosts();
    let group: SocketAddr = "239.1.2.3:0".parse().unwrap();
    let listener = hosts.listen(PortSpace::Udp, 0);
    assert_eq!(listener.join_multicast(group, false).unwrap_err().errno(), Errno::EINVAL);
    let active = hosts.at_client.create_id(PortSpace::Udp).unwrap();
    active.resolve_addr(None, hosts.address(), LIMIT).unwrap();
    let _member = active.join_multicast(group, false).unwrap();
    active.resolve_route(LIMIT).unwrap();
    let other = "239.1.2.4:0".parse().unwrap();
    assert_eq!(active.join_multicast(other, false).unwrap_err().errno(), Errno::EINVAL);
    active.connect(&ConnParam::default()).unwrap();
    let request = hosts.request(&listener);
    request.id.accept(&ConnParam::default()).unwrap();
    for id in [&active, &request.id] {
        assert_eq!(id.join_multicast(other, false).unwrap_err().errno(), Errno::EINVAL);
    }
}
