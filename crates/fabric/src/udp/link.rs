// SPDX-License-Identifier: MIT OR Apache-2.0
//! A port's socket with the packets that wait for it.
//!
//! A device's packets are appended while the world is locked. The thread that had locked the world sends them after it has unlocked it, before
//! its call returns. If the kernel has no room, the thread that reads from the socket sends the rest.

use super::gid;
use super::socket::{self, Fields};
use crate::model::Packet;
use core::net::{Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs_roce::Error;
use uverbs_roce::datagram;
use uverbs_roce::frame::{Grh, UDP_PORT};

/// Bytes of packets that wait for the socket; beyond that packets are lost, as at a switch without free buffers.
const BACKLOG: usize = 64 << 20;
/// Bytes of the longest datagram with the largest payload; longer ones are cut, and have no valid ICRC then.
const LONGEST: usize = 4096 + 128;
/// Hops of a packet of which the kernel does not tell them.
const HOPS: u8 = 64;

/// What a port exchanged with devices outside of its fabric: numbers of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpStat {
    /// That were sent.
    pub sent: u64,
    /// That were received, also those that were not accepted.
    pub received: u64,
    /// Of these, with a wrong ICRC.
    pub damaged: u64,
    /// Of these, with headers that are not valid, or that this device does not know.
    pub malformed: u64,
    /// Of these, refused by the device: no such QP, or one that is connected to another address.
    pub refused: u64,
    /// That were not sent, because too many waited.
    pub lost: u64,
    /// That were not sent, because the kernel refused them (no route, longer than the MTU), or because they have no such form.
    pub unsendable: u64,
}

/// The counters.
#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    damaged: AtomicU64,
    malformed: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    unsendable: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A datagram, ready to be sent.
#[derive(Debug)]
struct Ready {
    to: SocketAddr,
    fields: Fields,
    bytes: Vec<u8>,
}

/// The packets that wait, and their bytes.
#[derive(Debug)]
struct Queue<P> {
    packets: VecDeque<P>,
    bytes: usize,
}

/// A socket.
#[derive(Debug)]
pub(crate) struct Link<P> {
    pub(super) socket: UdpSocket,
    /// Wakes the thread.
    pub(super) wake: EventFd,
    /// The number of the device, and of the slot for the devices outside.
    pub(super) device: usize,
    pub(super) slot: usize,
    gid: [u8; 16],
    queue: Mutex<Queue<P>>,
    /// Locked by the thread that sends, with the datagram for which the kernel had no room.
    sending: Mutex<Option<Ready>>,
    blocked: AtomicBool,
    /// The thread has read datagrams that have not arrived in the world yet.
    reading: AtomicBool,
    stopped: AtomicBool,
    warned: AtomicBool,
    counters: Counters,
}

impl<P: Packet> Link<P> {
    pub(super) fn new(socket: UdpSocket, device: usize, slot: usize, gid: [u8; 16]) -> io::Result<Self> {
        Ok(Self {
            socket,
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            device,
            slot,
            gid,
            queue: Mutex::new(Queue { packets: VecDeque::new(), bytes: 0 }),
            sending: Mutex::default(),
            blocked: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<P>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a packet.
    pub(super) fn push(&self, packet: P) {
        let mut queue = self.queue();
        if queue.bytes > BACKLOG {
            count(&self.counters.lost);
            return;
        }
        queue.bytes += packet.cost();
        queue.packets.push_back(packet);
    }

    fn pop(&self) -> Option<P> {
        let mut queue = self.queue();
        let packet = queue.packets.pop_front()?;
        queue.bytes -= packet.cost();
        Some(packet)
    }

    /// Sends all packets, in order, as far as the kernel has room for them.
    pub(super) fn flush(&self) {
        let mut kept = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let ready = match kept.take() {
                Some(ready) => ready,
                None => match self.pop() {
                    Some(packet) => match self.ready(packet) {
                        Some(ready) => ready,
                        None => {
                            count(&self.counters.unsendable);
                            continue;
                        }
                    },
                    None => break,
                },
            };
            match self.send(&ready) {
                Ok(()) => count(&self.counters.sent),
                Err(Errno::EAGAIN) => {
                    *kept = Some(ready);
                    self.blocked.store(true, Ordering::Release);
                    self.wake();
                    return;
                }
                Err(error) => {
                    count(&self.counters.unsendable);
                    if !self.warned.swap(true, Ordering::Relaxed) {
                        log::warn!(
                            "a packet of {} bytes to {} is lost: {error}",
                            ready.bytes.len(),
                            ready.to
                        );
                    }
                }
            }
        }
        self.blocked.store(false, Ordering::Release);
    }

    /// The datagram of a packet. `None` if it has no such form, or another source than the socket.
    fn ready(&self, packet: P) -> Option<Ready> {
        let (grh, packet) = packet.into_datagram()?;
        let ip = Ipv6Addr::from(grh.dgid).to_canonical();
        if grh.sgid != self.gid || ip.is_ipv4() != Ipv6Addr::from(grh.sgid).to_canonical().is_ipv4() {
            return None;
        }
        let bytes = datagram::encode(&datagram::route(&grh, UDP_PORT), &packet).ok()?;
        // The kernel refuses 0.
        let fields = Fields { class: grh.tclass, hops: Some(grh.hop_limit).filter(|hops| *hops > 0) };
        Some(Ready { to: SocketAddr::new(ip, UDP_PORT), fields, bytes })
    }

    fn send(&self, Ready { to, fields, bytes }: &Ready) -> Result<(), Errno> {
        match socket::send(&self.socket, *to, *fields, bytes) {
            // The answer of a host to an earlier datagram: nobody listens there. This one was not sent.
            Err(Errno::ECONNREFUSED | Errno::EINTR) => socket::send(&self.socket, *to, *fields, bytes),
            sent => sent,
        }
    }

    /// Receives a datagram; `None` if there is none. One that is not a packet is counted.
    pub(super) fn receive(&self) -> Option<Option<P>> {
        let mut bytes = [0; LONGEST];
        let (from, fields, len) = match socket::receive(&self.socket, &mut bytes) {
            Ok(received) => received,
            // The answer of a host to an earlier datagram: nobody listens there.
            Err(Errno::EINTR | Errno::ECONNREFUSED) => return Some(None),
            Err(_) => return None,
        };
        count(&self.counters.received);
        let grh = Grh {
            sgid: gid(from.ip()),
            dgid: self.gid,
            tclass: fields.class,
            flow_label: 0,
            hop_limit: fields.hops.unwrap_or(HOPS),
        };
        let decoded = datagram::decode(&datagram::route(&grh, from.port()), &bytes[..len]);
        match decoded.map(|packet| P::of_datagram(self.slot, grh, packet)) {
            Ok(Some(packet)) => return Some(Some(packet)),
            Err(Error::Crc { .. }) => count(&self.counters.damaged),
            Ok(None) | Err(_) => count(&self.counters.malformed),
        }
        Some(None)
    }

    /// Counts a packet that the device has refused.
    pub(super) fn refuse(&self) {
        count(&self.counters.refused);
    }

    pub(crate) fn stat(&self) -> UdpStat {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { sent, received, damaged, malformed, refused, lost, unsendable } = &self.counters;
        UdpStat {
            sent: of(sent),
            received: of(received),
            damaged: of(damaged),
            malformed: of(malformed),
            refused: of(refused),
            lost: of(lost),
            unsendable: of(unsendable),
        }
    }

    /// The thread begins to read, or what it has read has arrived.
    pub(super) fn set_reading(&self, reading: bool) {
        self.reading.store(reading, Ordering::Release);
    }

    /// Whether datagrams were received that have not arrived in the world yet: the thread that reads them was not scheduled.
    pub(crate) fn is_behind(&self) -> bool {
        self.reading.load(Ordering::Acquire) || socket::has_input(&self.socket)
    }

    /// Whether the kernel had no room for a datagram.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // It fails only if it is set already.
        let _ = self.wake.write(1);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }
}
