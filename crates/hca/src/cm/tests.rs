// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many identifiers: the cost of each call stays the same, and ports may run out.

use super::*;
use crate::engine::net::Address;
use nix::libc::{AF_INET, EADDRNOTAVAIL};
use nix::time::{ClockId, clock_gettime};
use uverbs_uapi::be::{Be16, Be32};
use uverbs_uapi::rdma_cm::{
    RDMA_CM_EVENT_DISCONNECTED, RDMA_PS_TCP, RDMA_USER_CM_CMD_BIND, RDMA_USER_CM_CMD_CREATE_ID,
    RDMA_USER_CM_CMD_DESTROY_ID, RDMA_USER_CM_CMD_DISCONNECT, RDMA_USER_CM_CMD_LISTEN, rdma_ucm_bind,
    rdma_ucm_create_id, rdma_ucm_destroy_id, rdma_ucm_disconnect, rdma_ucm_listen,
};
use uverbs_uapi::rxe::sockaddr_in;
use zerocopy::{Immutable, IntoBytes};

/// A host with one address, and a channel.
struct Bed {
    cm: Cm,
    net: Net,
    channel: u64,
}

impl Bed {
    fn new() -> Self {
        let mut net = Net::new(1);
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 1]);
        net.ports.push(Address { mac: [2; 6], gids: vec![(gid, true)], ..Address::new(0, true) });
        net.changes += 1;
        let mut cm = Cm::default();
        let channel = cm.open(0, Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()));
        Self { cm, net, channel }
    }

    fn run(&mut self, cmd: u32, input: &(impl IntoBytes + Immutable)) -> Result<u32, Errno> {
        let mut output = [0; 64];
        let mut call = Call { net: &mut self.net, now: 0, host: 0, channel: self.channel };
        self.cm.command(&mut call, cmd, input.as_bytes(), &mut output)?;
        Ok(u32::from_ne_bytes(output[..4].try_into().unwrap()))
    }

    fn create(&mut self) -> u32 {
        let command = rdma_ucm_create_id { uid: 1, ps: RDMA_PS_TCP, ..Default::default() };
        self.run(RDMA_USER_CM_CMD_CREATE_ID, &command).unwrap()
    }

    /// Binds to a port; 0 is any.
    fn bind(&mut self, id: u32, port: u16) -> Result<u32, Errno> {
        let address = sockaddr_in {
            sin_family: AF_INET as u16,
            sin_port: Be16::new(port),
            sin_addr: Be32::new(0x0a4d_0001),
            sin_zero: [0; 8],
        };
        let mut command = rdma_ucm_bind { id, addr_size: size_of_val(&address) as u16, ..Default::default() };
        command.addr.as_mut_bytes()[..size_of_val(&address)].copy_from_slice(address.as_bytes());
        self.run(RDMA_USER_CM_CMD_BIND, &command)
    }

    fn destroy(&mut self, id: u32) {
        let command = rdma_ucm_destroy_id { id, ..Default::default() };
        self.run(RDMA_USER_CM_CMD_DESTROY_ID, &command).unwrap();
    }

    /// Nanoseconds of this thread to create, bind, listen at and destroy an identifier.
    fn cost(&mut self) -> u64 {
        let now = || {
            let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
            (time.tv_sec() * 1_000_000_000 + time.tv_nsec()).cast_unsigned()
        };
        let run = |_| {
            let start = now();
            let ids = [(); 40].map(|()| self.create());
            for id in ids {
                self.bind(id, 0).unwrap();
                self.run(RDMA_USER_CM_CMD_LISTEN, &rdma_ucm_listen { id, ..Default::default() }).unwrap();
            }
            ids.into_iter().for_each(|id| self.destroy(id));
            (now() - start) / 40
        };
        (0..5).map(run).min().unwrap()
    }
}

#[test]
fn an_identifier_costs_the_same_among_many() {
    let mut bed = Bed::new();
    let mut fill = |count: usize| {
        while bed.cm.idents.len() < count {
            let id = bed.create();
            bed.bind(id, 0).unwrap();
        }
        bed.cost()
    };
    let (few, many) = (fill(100), fill(10_000));
    println!("{few} ns each among 100, {many} among 10,000");
    assert!(many < few * 4, "{few} ns each among 100, {many} among 10,000");
}

#[test]
fn ports_that_run_out_are_an_error() {
    let mut bed = Bed::new();
    let count = 60999 - 32768 + 1;
    let ids: Vec<u32> = (0..count).map(|_| bed.create()).collect();
    for id in &ids {
        bed.bind(*id, 0).unwrap();
    }
    let more = bed.create();
    assert_eq!(bed.bind(more, 0), Err(Errno::from_raw(EADDRNOTAVAIL)));
    bed.destroy(ids[7]);
    bed.bind(more, 0).unwrap();
    // All indices end with the channel.
    let mut call = Call { net: &mut bed.net, now: 0, host: 0, channel: bed.channel };
    bed.cm.close(&mut call);
    let cm = &bed.cm;
    assert!(cm.idents.is_empty() && cm.of_channels.is_empty() && cm.of_ports.is_empty());
    assert!(cm.of_peers.is_empty() && cm.of_fds.is_empty() && cm.of_idents.is_empty());
}

/// A connection on one host.
fn connected(bed: &mut Bed) -> (u32, u32) {
    let (a, b) = (bed.create(), bed.create());
    for (id, peer) in [(a, b), (b, a)] {
        bed.bind(id, 0).unwrap();
        let ident = bed.cm.idents.get_mut(&id).unwrap();
        (ident.state, ident.has_device) = (State::Connected, true);
        ident.remote = Some("10.77.0.1:7".parse().unwrap());
        bed.cm.set_peer(id, peer);
    }
    (a, b)
}

/// Lets all messages of the next `time` ns arrive.
fn pass(bed: &mut Bed, time: u64) {
    while bed.cm.messages.first_key_value().is_some_and(|(place, _)| place.0 <= time) {
        let ((now, _), message) = bed.cm.messages.pop_first().unwrap();
        let mut call = Call { net: &mut bed.net, now, host: 0, channel: bed.channel };
        bed.cm.receive(&mut call, message);
    }
}

/// The statuses of the events of an identifier that say that it is disconnected.
fn disconnected(bed: &Bed, id: u32) -> Vec<i32> {
    let events = &bed.cm.channels[&bed.channel].events;
    let of = events.iter().filter(|e| e.owner == id && e.event.event == RDMA_CM_EVENT_DISCONNECTED);
    of.map(|e| e.event.status.cast_signed()).collect()
}

/// A sweep has found that a program which disconnects waited for ever for a peer that does not.
#[test]
fn a_disconnection_without_an_answer_ends_with_its_repetitions() {
    const MINUTES: u64 = 120_000_000_000;
    let mut bed = Bed::new();
    bed.net.in_real_time = true;
    let disconnect =
        |bed: &mut Bed, id| bed.run(RDMA_USER_CM_CMD_DISCONNECT, &rdma_ucm_disconnect { id }).unwrap();
    let (a, b) = connected(&mut bed);
    disconnect(&mut bed, a);
    pass(&mut bed, 1_000_000_000);
    assert_eq!((disconnected(&bed, a), disconnected(&bed, b)), (vec![], vec![0]));
    pass(&mut bed, MINUTES);
    assert_eq!(disconnected(&bed, a), [-Errno::ETIMEDOUT.raw()]);
    assert!(bed.cm.idents[&a].state == State::Closed && bed.cm.messages.is_empty());

    // With an answer, or after the end of the identifier, nothing is left of the wait.
    let (a, b) = connected(&mut bed);
    disconnect(&mut bed, a);
    pass(&mut bed, 1_000_000_000);
    disconnect(&mut bed, b);
    pass(&mut bed, 1_000_000_000);
    assert_eq!((disconnected(&bed, a), disconnected(&bed, b)), (vec![0], vec![0]));
    assert!(bed.cm.messages.is_empty());
    let (a, _) = connected(&mut bed);
    disconnect(&mut bed, a);
    bed.destroy(a);
    pass(&mut bed, 1_000_000_000);
    assert!(bed.cm.messages.is_empty());
}
