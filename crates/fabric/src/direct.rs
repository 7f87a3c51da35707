// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that are executed at their receiver at once, without packets in flight.
//!
//! Between two devices of this process a packet that nothing can lose, delay, reorder or see arrives before the call returns that has sent
//! it. So the sender may give it to the receiver itself. It has the same effects: the receiver handles it with the same code, and the ports
//! count it. Its answer is a packet, or is given to the sender in the same way. What this saves is the packet's memory and its way through the
//! queue of the network.
//!
//! It is done only in real time, and only if [`Net::is_direct`]: without faults, a script, a mode of order, a tap and a trace, and with no
//! packet in flight, which it would pass. Packets to other processes, to UDP sockets and between ports of which one is down are sent.
//!
//! # The lock
//! A long message is executed in parts. The copy of a part may be [left](crate::aside) to the thread without the lock; others are executed
//! with it, at most [`PIECE`] bytes between two checks whether another thread waits for the world. If one does, it gets the lock, and the
//! rest of the message goes on after it. Each part looks its memory up again: a region that is deregistered in between, and a queue that is
//! reset or destroyed, is not accessed. No call that returns memory to the program returns while it is accessed.

use crate::front::Station;
use crate::model::{Model, Packet};
use crate::net::Net;
use crate::port::Port;
use crate::world::World;
use core::cmp::Ordering;
use core::fmt;

/// The bytes that are copied while other threads wait for the world.
pub(crate) const PIECE: u64 = 1 << 20;

/// The other devices of this process, for a device that executes requests at them.
pub struct Near<'a, M: Model> {
    before: &'a mut [Option<Station<M>>],
    behind: &'a mut [Option<Station<M>>],
    listed: &'a mut Vec<usize>,
}

impl<M: Model> fmt::Debug for Near<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Near").field("me", &self.before.len()).finish_non_exhaustive()
    }
}

impl<'a, M: Model> Near<'a, M> {
    /// The devices before and behind the one that asks, and those that are to be tidied.
    pub(crate) fn new(
        before: &'a mut [Option<Station<M>>],
        behind: &'a mut [Option<Station<M>>],
        listed: &'a mut Vec<usize>,
    ) -> Self {
        Self { before, behind, listed }
    }

    /// The device of this number; `None` for the one that asks, and for ports that are not of this process.
    #[inline]
    pub fn device(&mut self, index: usize) -> Option<&mut M> {
        let me = self.before.len();
        let station = match index.cmp(&me) {
            Ordering::Less => self.before.get_mut(index)?,
            Ordering::Equal => return None,
            Ordering::Greater => self.behind.get_mut(index - me - 1)?,
        };
        let station = station.as_mut()?;
        if !station.is_listed {
            station.is_listed = true;
            self.listed.push(index);
        }
        Some(&mut station.device)
    }
}

impl<P: Packet> Net<P> {
    /// Whether a device may execute requests at their receivers at once, if there is no packet in flight.
    #[must_use]
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.in_real_time
            && self.order.is_none()
            && !self.is_scripted()
            && !self.is_tapped()
            && !self.is_traced()
            && self.faults.are_off()
    }

    /// Whether packets get from one port to another: the links of both are up, or it is the same port.
    #[must_use]
    #[inline]
    pub fn connects(&self, from: usize, to: usize) -> bool {
        let is_up = |i: usize| self.ports.get(i).is_some_and(|port| port.up);
        from == to || is_up(from) && is_up(to)
    }

    /// The packets that were executed at their receiver at once.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Counts packets that are executed at their receiver at once, with so many bytes of data.
    #[inline]
    pub fn pass(&mut self, from: usize, to: usize, packets: u32, bytes: usize) {
        if let Some(port) = self.ports.get_mut(from) {
            port.sent += u64::from(packets);
        }
        if let Some(port) = self.ports.get_mut(to) {
            port.received += u64::from(packets);
        }
        self.passed += u64::from(packets);
        self.held += bytes as u64;
    }
}

impl<M: Model> World<M> {
    /// Lets each device execute requests of a queue that waits for it. Returns whether there was one. No packet is due.
    pub(crate) fn exchange(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.listed.len() {
            let index = self.listed[i];
            let Some((before, rest)) = self.devices.split_at_mut_checked(index) else { continue };
            let Some((Some(station), behind)) = rest.split_first_mut() else { continue };
            if !station.device.has_ready() {
                continue;
            }
            let mut port = Port { now: self.now, me: index, net: &mut self.net };
            let mut near = Near::new(before, behind, &mut self.listed);
            station.device.exchange(&mut port, &mut near);
            any = true;
        }
        any
    }

    /// Whether a queue waits for [`exchange`](Self::exchange).
    pub(crate) fn has_ready(&self) -> bool {
        let is_ready = |index: &usize| {
            self.devices.get(*index).is_some_and(|d| d.as_ref().is_some_and(|s| s.device.has_ready()))
        };
        self.listed.iter().any(is_ready)
    }
}
