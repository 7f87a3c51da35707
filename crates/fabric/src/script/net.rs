// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of a script: packets, completions, verbs.

use super::engine::{Engine, Event, Held};
use super::names::{Opcode, Point, Refusal, Status};
use super::rule::{Action, Change};
use crate::flight::Origin;
use crate::model::{Packet, PortEvent};
use crate::net::Net;
use crate::order::Waits;
use crate::tap::Fate;
use uverbs_core::Errno;

/// How long a packet waits for later ones at most, ns.
const HOLD: u64 = 1_000_000;
/// Packets that wait at a time at most.
const MAX_HELD: usize = 1 << 12;
/// How far rules may postpone a packet, ns.
const MAX_DELAY: u64 = 3_600_000_000_000;

/// What a script may select a packet by.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketFacts {
    /// The sender's QP.
    pub qp: Option<u32>,
    /// The receiver's QP.
    pub dest: Option<u32>,
    /// What it is.
    pub opcode: Option<Opcode>,
    /// The number of its WR on the sender's queue, or of the WR that it answers, from 1; 0 if it is not known.
    pub wr: u32,
    /// Its number in the message, from 1; 0 if it is not known.
    pub packet: u32,
    /// Its sequence number.
    pub psn: Option<u32>,
    /// Bytes of data.
    pub bytes: usize,
}

/// What becomes of a WR that has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// What happens instead of its completion.
    pub failure: Option<Failure>,
    /// How much later its completion is written, ns.
    pub delay: u64,
}

/// What happens instead of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The WR completes with this status.
    Status(Status),
    /// Its CQ is full.
    Full,
    /// The completion is lost.
    Lost,
}

/// What becomes of a packet.
#[derive(Debug, Default)]
struct Verdict {
    fate: Option<Fate>,
    copies: u32,
    delay: u64,
    behind: u32,
    answer: Option<Answer>,
}

/// An answer of the receiver that a script gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A NAK.
    Nak(Refusal),
    /// An RNR NAK with the code of a timer.
    Rnr(u8),
}

impl Answer {
    /// Whether the sender repeats the packet then.
    const fn is_repeated(self) -> bool {
        matches!(self, Self::Rnr(_) | Self::Nak(Refusal::Sequence))
    }
}

/// Bytes of headers in a packet, about: Ethernet, IP, UDP, BTH, checksums.
const HEADERS: usize = 62;

impl Engine {
    fn packet(&mut self, now: u64, event: &Event<'_>, bytes: usize) -> Verdict {
        let mut verdict = Verdict::default();
        self.counts.packets += 1;
        self.each(now, event, |active| {
            let start = active.free.max(now);
            let mut occupy = |time: u64| {
                active.free = start.saturating_add(time).min(now.saturating_add(MAX_DELAY));
                verdict.delay = verdict.delay.max(active.free - now);
            };
            match active.rule.action {
                Action::Drop => verdict.fate = Some(Fate::Lost),
                Action::Corrupt => verdict.fate = Some(Fate::Corrupt),
                Action::Delay(time) => verdict.delay = verdict.delay.saturating_add(time).min(MAX_DELAY),
                Action::Duplicate(copies) => verdict.copies = verdict.copies.max(copies),
                Action::Reorder(behind) => verdict.behind = verdict.behind.max(behind),
                Action::Nak(refusal) => verdict.answer = Some(Answer::Nak(refusal)),
                Action::Rnr(timer) => verdict.answer = Some(Answer::Rnr(timer)),
                Action::Bandwidth(bits) => {
                    let bits_of_packet = (bytes + HEADERS) as u128 * 8;
                    let time = bits_of_packet * 1_000_000_000 / u128::from(bits.max(1));
                    occupy(u64::try_from(time).unwrap_or(u64::MAX));
                }
                Action::Slow(time) => occupy(time),
                _ => {}
            }
        });
        verdict
    }
}

impl<P: Packet> Net<P> {
    /// Whether there is a script.
    #[must_use]
    pub const fn is_scripted(&self) -> bool {
        self.script.is_some()
    }

    /// As [`send`](Self::send), with a script.
    #[cold]
    pub(crate) fn send_by_script(&mut self, now: u64, to: usize, packet: P, waits: Waits) {
        let from = packet.source();
        let facts = packet.facts();
        let event = Event {
            to: Some(to),
            qp: facts.qp,
            dest: facts.dest,
            opcode: facts.opcode,
            wr: Some(facts.wr).filter(|n| *n > 0),
            packet: Some(facts.packet).filter(|n| *n > 0),
            psn: facts.psn,
            ..Event::new(Point::Packet, from)
        };
        let Some(engine) = self.script.as_mut() else { return };
        let is_behind = engine.is_behind_refused(now, &event);
        let verdict = engine.packet(now, &event, facts.bytes);
        self.change_ports();
        let fate = match self.fate(to, from) {
            Fate::LinkDown => Fate::LinkDown,
            _ if is_behind => Fate::Behind,
            fate => verdict.fate.unwrap_or(fate),
        };
        let refused = match verdict.answer {
            Some(answer) if matches!(fate, Fate::Sent | Fate::Twice) => packet.refused(answer),
            _ => None,
        };
        if let Some(mut answer) = refused {
            if verdict.answer.is_some_and(Answer::is_repeated)
                && let Some(engine) = self.script.as_mut()
            {
                engine.refuse(now, &event);
            }
            self.show(now, to, &packet, Fate::Refused);
            self.sent(self.sending(now, to, &packet), None, Fate::Refused.words());
            answer.set_source(to);
            if !self.is_held(&answer) {
                self.show(now, from, &answer, Fate::Sent);
            }
            self.queue(now.saturating_add(verdict.delay), from, answer, Waits::default());
            return;
        }
        let (is_held, is_sent) = (self.is_held(&packet), matches!(fate, Fate::Sent | Fate::Twice));
        if !(is_held && is_sent) {
            self.show(now, to, &packet, fate);
        }
        let copies = match fate {
            Fate::Sent => verdict.copies,
            Fate::Twice => verdict.copies + 1,
            _ => {
                return self.sent(self.sending(now, to, &packet), None, fate.words());
            }
        };
        let at = now.saturating_add(verdict.delay);
        for _ in 0..copies {
            self.queue(at, to, packet.clone(), waits.clone());
        }
        // In an order mode packets wait for their accesses to memory, in the order that it chooses.
        if verdict.behind > 0 && !is_held {
            self.hold(at, to, packet, verdict.behind);
        } else {
            self.queue(at, to, packet, waits);
        }
        self.release(at, from, to);
    }

    /// Queues a packet that waits for later ones, at most for a time.
    fn hold(&mut self, now: u64, to: usize, packet: P, behind: u32) {
        let from = packet.source();
        let at = now.saturating_add(HOLD);
        let sending = self.sending(now, to, &packet);
        let id = self.put(at, to, Origin::Port(from), packet);
        self.sent(sending, id, if id.is_none() { "lost: too much is in flight" } else { "" });
        let place = self.last_place(at);
        if let (Some(engine), Some(place)) = (self.script.as_mut(), place)
            && engine.held.len() < MAX_HELD
        {
            // This packet itself counts, too, in `release`.
            engine.held.push(Held { place, from, to, left: behind.saturating_add(1) });
        }
    }

    /// Counts a packet for those that wait for it, and lets those go that have waited for enough.
    fn release(&mut self, now: u64, from: usize, to: usize) {
        let Some(engine) = self.script.as_mut().filter(|engine| !engine.held.is_empty()) else { return };
        let mut free = Vec::new();
        engine.held.retain_mut(|held| {
            if (held.from, held.to) == (from, to) {
                held.left -= 1;
            }
            if held.left == 0 {
                free.push(held.place);
            }
            held.left > 0 && held.place.0 > now
        });
        free.into_iter().for_each(|place| self.move_packet(place, now));
    }

    /// Changes ports as rules say, at once; the notices follow in [`World`](crate::World).
    pub(super) fn change_ports(&mut self) {
        let Some(engine) = self.script.as_mut().filter(|engine| !engine.pending.is_empty()) else { return };
        let mut events = Vec::new();
        for pending in &engine.pending {
            let Some(port) = self.ports.get_mut(pending.device) else { continue };
            match pending.change {
                Change::Port { up } if port.up != up => {
                    port.up = up;
                    events.push((pending.device, if up { PortEvent::Active } else { PortEvent::Error }));
                }
                Change::AddGid(gid) if port.gids.len() < MAX_GIDS => {
                    port.gids.push((gid.octets(), port.ethernet));
                    events.push((pending.device, PortEvent::GidChange));
                }
                Change::RemoveGid(index) => {
                    if let Some(gid) = port.gids.get_mut(usize::from(index)) {
                        *gid = ([0; 16], gid.1);
                        events.push((pending.device, PortEvent::GidChange));
                    }
                }
                Change::Lid(lid) if !port.ethernet && port.lid != lid => {
                    port.lid = lid;
                    events.push((pending.device, PortEvent::LidChange));
                }
                _ => {}
            }
        }
        let is_of_port = |change: &Change| {
            matches!(change, Change::Port { .. } | Change::AddGid(_) | Change::RemoveGid(_) | Change::Lid(_))
        };
        engine.pending.retain(|pending| !is_of_port(&pending.change));
        self.changes += u64::from(!events.is_empty());
        self.port_events.extend(events);
    }

    /// Notes that a WR has completed without an error. Returns what becomes of it.
    pub fn script_completion(&mut self, now: u64, event: Event<'_>) -> Completed {
        let mut completed = Completed::default();
        let Some(engine) = self.script.as_mut() else { return completed };
        engine.counts.complete(event.queue);
        engine.counts.write(false);
        engine.each(now, &event, |active| match active.rule.action {
            Action::Status(status) => completed.failure = Some(Failure::Status(status)),
            Action::Full => completed.failure = Some(Failure::Full),
            Action::Drop => completed.failure = Some(Failure::Lost),
            Action::Delay(time) => completed.delay = completed.delay.saturating_add(time).min(MAX_DELAY),
            _ => {}
        });
        self.change_ports();
        completed
    }

    /// The number of the next WR that completes on a queue, from 1. `None` if there is no script, or there are too many queues.
    pub fn script_number(&mut self, device: usize, queue: u32) -> Option<u32> {
        self.script.as_mut()?.number(device, queue, false)
    }

    /// Notes the call of a verb of a device. Returns the error that it has instead of its result.
    pub fn script_call(&mut self, now: u64, device: usize, verb: &str, qp: Option<u32>) -> Option<Errno> {
        let engine = self.script.as_mut()?;
        let is_post = qp.is_some();
        let wr = qp.and_then(|qp| engine.number(device, qp << 2 | post_kind(verb), is_post));
        engine.counts.call(verb);
        engine.counts.write(!is_post);
        let event = Event { verb: Some(verb), qp, wr, ..Event::new(Point::Call, device) };
        let mut errno = None;
        engine.each(now, &event, |active| {
            if let Action::Errno(e) = active.rule.action {
                errno = Some(e);
            }
        });
        self.change_ports();
        errno
    }
}

/// Entries of a table of GIDs at most.
const MAX_GIDS: usize = 256;

/// A number for each verb that posts: their WRs are counted separately.
fn post_kind(verb: &str) -> u32 {
    match verb {
        "post_send" => 0,
        "post_recv" => 1,
        _ => 2,
    }
}
