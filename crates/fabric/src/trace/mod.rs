// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens on a fabric, in words.
//!
//! [`Fabric::trace`](crate::Fabric::trace) shows a [`Step`] for each request that a device takes from a queue, each packet that is sent,
//! arrives or is lost, the data that are placed, each completion, event and timer. [`chart()`] draws them. With the environment variable
//! `UVERBS_HCA_TRACE` each fabric of a program writes them to a file, which [`read`] reads. Without a trace, each of these costs one
//! comparison.

mod chart;
mod file;
mod step;
#[cfg(test)]
mod tests;

pub use chart::chart;
pub(crate) use file::{TraceFile, of_environment};
pub use step::{Hop, NotAStep, Step, StepKind, read};

use crate::model::Packet;
use crate::net::{Net, PortLocation};
use crate::port::Port;
use core::cell::RefCell;
use core::fmt;

/// Sees steps. It is called with the fabric locked, so it must not use the fabric.
pub trait Trace: Send {
    /// A step has happened.
    fn step(&mut self, step: &Step);
}

impl<F: FnMut(&Step) + Send> Trace for F {
    fn step(&mut self, step: &Step) {
        self(step);
    }
}

/// The place of a trace.
#[derive(Default)]
pub(crate) struct Traced(Option<Box<Tracing>>);

struct Tracing {
    /// The QPs whose steps are shown; all if there are none.
    qpns: Vec<u32>,
    /// Devices show steps where they have the network to read.
    sink: RefCell<Box<dyn Trace>>,
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Traced").field(&self.0.is_some()).finish()
    }
}

impl Traced {
    pub(crate) fn set(&mut self, qpns: &[u32], sink: Option<Box<dyn Trace>>) {
        self.0 = sink.map(|sink| Box::new(Tracing { qpns: qpns.to_vec(), sink: RefCell::new(sink) }));
    }

    fn show(&self, step: &Step) {
        let Some(tracing) = &self.0 else { return };
        let is_shown = tracing.qpns.is_empty() || tracing.qpns.iter().any(|qpn| step.concerns(*qpn));
        if is_shown && let Ok(mut sink) = tracing.sink.try_borrow_mut() {
            sink.step(step);
        }
    }
}

/// A packet that is about to be sent, in words.
pub(crate) struct Sending {
    now: u64,
    from: (u16, u32),
    hop: Hop,
    words: String,
    detail: String,
}

impl<P: Packet> Net<P> {
    /// Whether there is a trace.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn is_traced(&self) -> bool {
        self.traced.0.is_some()
    }

    /// Shows the steps of these QPs to `sink` from now on, instead of the trace before; of all QPs if there are none. To nothing with
    /// `None`.
    pub fn set_trace(&mut self, qpns: &[u32], sink: Option<Box<dyn Trace>>) {
        if let Some(order) = &mut self.order {
            // Those before the trace.
            order.untold();
        }
        self.traced.set(qpns, sink);
    }

    /// Shows a step of a device. `words` has what happened, and the addresses, which differ from run to run.
    #[cold]
    #[inline(never)]
    pub fn trace(
        &self,
        now: u64,
        me: usize,
        qpn: u32,
        kind: StepKind,
        words: impl FnOnce() -> (String, String),
    ) {
        if self.is_traced() {
            let port = self.number(me).unwrap_or(u16::MAX);
            let (words, detail) = words();
            self.traced.show(&Step { at: now, port, qpn, kind, hop: None, words, detail });
        }
    }

    /// The words for a packet, if there is a trace.
    #[inline]
    pub(crate) fn sending(&self, now: u64, to: usize, packet: &P) -> Option<Box<Sending>> {
        if self.is_traced() { self.describe(now, to, packet) } else { None }
    }

    #[cold]
    fn describe(&self, now: u64, to: usize, packet: &P) -> Option<Box<Sending>> {
        let (from, peer) = (self.number(packet.source())?, self.number(to)?);
        let (qpn, peer_qpn) = packet.qpns();
        let (words, detail) = packet.words();
        Some(Box::new(Sending { now, from: (from, qpn), hop: Hop { id: 0, peer, peer_qpn }, words, detail }))
    }

    /// A packet was sent, with this number in the network, or was lost for the reason in `fate`.
    #[inline]
    pub(crate) fn sent(&self, sending: Option<Box<Sending>>, id: Option<u64>, fate: &str) {
        if let Some(sending) = sending {
            self.show_sent(*sending, id, fate);
        }
    }

    #[cold]
    fn show_sent(&self, sending: Sending, id: Option<u64>, fate: &str) {
        let Sending { now, from: (port, qpn), hop, words, detail } = sending;
        let kind = if id.is_some() { StepKind::Sent } else { StepKind::Lost };
        let words = if fate.is_empty() { words } else { format!("{words}: {fate}") };
        let hop = Some(Hop { id: id.unwrap_or(0), ..hop });
        self.traced.show(&Step { at: now, port, qpn, kind, hop, words, detail });
    }

    /// A packet arrives at a port of this process.
    #[inline]
    pub(crate) fn tell_arrival(&self, at: u64, id: u64, to: usize, packet: &P) {
        if self.is_traced() {
            self.show_arrival(at, id, to, packet);
        }
    }

    #[cold]
    fn show_arrival(&self, at: u64, id: u64, to: usize, packet: &P) {
        let is_here = self.ports.get(to).is_some_and(|port| port.location == PortLocation::Here);
        let Some(sending) = self.describe(at, to, packet).filter(|_| is_here) else { return };
        let Sending { from: (peer, peer_qpn), hop, words, detail, .. } = *sending;
        let (port, qpn) = (hop.peer, hop.peer_qpn);
        let hop = Some(Hop { id, peer, peer_qpn });
        self.traced.show(&Step { at, port, qpn, kind: StepKind::Received, hop, words, detail });
    }
}

impl<P: Packet> Net<P> {
    /// Shows the accesses to memory that have taken place in a mode of order since the last call.
    #[inline]
    pub(crate) fn tell_accesses(&mut self) {
        if self.is_traced() {
            self.show_accesses();
        }
    }

    #[cold]
    fn show_accesses(&mut self) {
        let told = self.order.as_mut().map(|order| order.untold()).unwrap_or_default();
        for Access { at, device, qpn, kind, words, detail } in told {
            let port = self.number(device).unwrap_or(u16::MAX);
            self.traced.show(&Step { at, port, qpn, kind, hop: None, words, detail });
        }
    }
}

/// An access to memory in a mode of order.
pub(crate) struct Access {
    pub(crate) at: u64,
    pub(crate) device: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: StepKind,
    pub(crate) words: String,
    pub(crate) detail: String,
}

impl<P: Packet> Port<'_, P> {
    /// As [`Net::trace`], of this device.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn trace(&self, qpn: u32, kind: StepKind, words: impl FnOnce() -> (String, String)) {
        if self.net.is_traced() {
            self.net.trace(self.now, self.me, qpn, kind, words);
        }
    }
}
