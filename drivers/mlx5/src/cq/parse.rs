// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an entry to a completion: whose it is, and telling that queue.
//!
//! The short way, a requester's success without data, is in `poll`; everything else comes here.

use super::completion::Parsed;
use super::entry::{CqeRef, Tail};
use super::ring::CqRing;
use super::scatter::Scattering;
use super::shared::{CqShared, INDEX_MASK, Letter};
use crate::cq::cqe::{self, Kind};
use crate::cq::lookup::{Lookup, Slot};
use crate::memory::StrideRing;
use crate::qp::QpShared;
use crate::rq::{RqShared, SrqShared};
use crate::sq::SqShared;
use crate::sq::shared::{NoSends, RetireBy};
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::wc::WcStatus;

/// What completes to a queue.
#[derive(Debug)]
pub(super) enum Resource {
    Qp(Arc<QpShared>),
    /// An SRQ that completions name themselves.
    Srq(Arc<SrqShared>),
}

/// How completions name what they are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeVersion {
    /// By QP number or SRQ number: two name spaces.
    V0,
    /// By user index.
    V1,
}

/// What completes to this queue, by its number in completions.
#[derive(Debug)]
pub(super) struct Resources {
    version: CqeVersion,
    /// The word of an entry whose first half, as it stands in memory, is known of its sender: it has the number, and in
    /// the eighth byte nothing or the opcode.
    pub(super) naming_word: usize,
    /// By user index, or by QP number.
    queues: Lookup<Resource>,
    /// By SRQ number (version 0).
    srqs: Lookup<Arc<SrqShared>>,
    /// Key of the memory that takes data and keeps none.
    dump_fill_mkey: u32,
    /// The sender that was looked up last: what its entries are known by, and where it stands.
    last: (u64, Slot),
    /// Stands for the sender where there is none.
    none: Box<NoSends>,
}

/// What became of a receive's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Nothing: see [`Resources::parse`].
    Not,
    Plain,
    WithCsum,
}

/// A sender at hand, so that completions of one queue in a row cost a compare.
#[derive(Clone, Copy)]
pub(super) struct Sender<'q> {
    key: u64,
    pub(super) sends: RetireBy<'q>,
}

impl Sender<'_> {
    /// What no entry has: of a key, the low half is 0.
    const NO_KEY: u64 = 1;

    /// Whether an entry is of this sender, by the word that names it.
    #[inline(always)]
    pub(super) fn has(&self, word: u64) -> bool {
        key_of(word) == self.key
    }
}

/// What a sender is known by: the first four bytes of a word in memory.
#[inline(always)]
fn key_of(word: u64) -> u64 {
    u64::from_le(word) << 32
}

/// What an entry turned out to be.
pub(super) enum Outcome {
    /// A completion.
    Completion(Parsed),
    /// Nothing that concerns the user.
    Nothing,
    /// There are letters that must be read first.
    ReadMail,
    /// Of a queue that is not known here, or of none.
    Unknown,
}

impl Resources {
    pub(super) fn new(version: CqeVersion, dump_fill_mkey: u32) -> Self {
        let naming_word = match version {
            CqeVersion::V1 => 4,
            CqeVersion::V0 => 7,
        };
        Self {
            version,
            naming_word,
            queues: Lookup::new(),
            srqs: Lookup::new(),
            dump_fill_mkey,
            last: (Sender::NO_KEY, Slot::default()),
            none: Box::default(),
        }
    }

    /// The sender that was looked up last, or one that has no entry.
    #[inline(always)]
    pub(super) fn last_sender(&self) -> Sender<'_> {
        let (key, slot) = self.last;
        match self.queues.at(slot) {
            Some(Resource::Qp(qp)) if let Some(sq) = &qp.sq => Sender { key, sends: sq.retire_by() },
            _ => Sender { key: Sender::NO_KEY, sends: self.none.retire_by() },
        }
    }

    /// The send queue of an entry.
    fn sender(&mut self, entry: CqeRef<'_>, tail: Tail) -> Option<&SqShared> {
        self.sending_qp(entry, tail)?.sq.as_deref()
    }

    /// The QP of an entry, which has a send queue.
    fn sending_qp(&mut self, entry: CqeRef<'_>, tail: Tail) -> Option<&QpShared> {
        let number = match self.version {
            CqeVersion::V1 => entry.srqn_uidx(),
            CqeVersion::V0 => tail.qpn(),
        };
        let slot = self.queues.find(number);
        match self.queues.at(slot) {
            Some(Resource::Qp(qp)) if qp.sq.is_some() => {
                self.last = (key_of(entry.raw_word(self.naming_word)), slot);
                Some(qp)
            }
            _ => None,
        }
    }

    /// Tells the receiver of an entry without data: the `wr_id`, and whether its port computes checksums.
    #[inline(never)]
    pub(super) fn receive(&self, entry: CqeRef<'_>, tail: Tail) -> (u64, Received) {
        match self.receiver(entry, tail) {
            Some(receiver) if receiver.has(tail.wqe_counter()) => {
                let known = if receiver.csum() { Received::WithCsum } else { Received::Plain };
                (receiver.retire(tail.wqe_counter()), known)
            }
            _ => (0, Received::Not),
        }
    }

    /// The receiver of an entry.
    #[inline(always)]
    fn receiver(&self, entry: CqeRef<'_>, tail: Tail) -> Option<Receiver<'_>> {
        let number = entry.srqn_uidx() & 0xff_ffff;
        let resource = match self.version {
            CqeVersion::V1 => self.queues.get(number),
            CqeVersion::V0 => {
                if number != 0
                    && let Some(srq) = self.srqs.get(number)
                {
                    return Some(Receiver::Srq(srq));
                }
                self.queues.get(tail.qpn())
            }
        };
        match resource? {
            Resource::Srq(srq) => Some(Receiver::Srq(srq)),
            Resource::Qp(qp) => match (&qp.srq, &qp.rq) {
                (Some(srq), _) => Some(Receiver::Srq(srq)),
                (None, Some(rq)) => Some(Receiver::Rq(rq, qp)),
                (None, None) => None,
            },
        }
    }

    /// What the valid entry at `position` is, and tells its queue.
    #[inline(never)]
    pub(super) fn parse(&mut self, ring: &CqRing, shared: &CqShared, position: u32) -> Outcome {
        let entry = ring.entry(position);
        let tail = entry.tail();
        let dump_fill_mkey = self.dump_fill_mkey;
        let scatter = Scattering { ring, shared, position, dump_fill_mkey };
        let done = |wr_id, status, posted, csum| {
            Outcome::Completion(Parsed { tail, wr_id, status, posted, csum, is_short: false })
        };
        match tail.op_own().kind() {
            Kind::Requester => {
                let Some(qp) = self.sending_qp(entry, tail) else { return unknown(shared) };
                let Some(sq) = qp.sq.as_deref() else { return unknown(shared) };
                let mut status = WcStatus::SUCCESS;
                if let Some(which) = tail.op_own().scatter() {
                    let len = cqe::requester_len(tail.send_opcode(), entry.byte_cnt());
                    match scatter.to_sender(which, qp, sq, tail.wqe_counter(), len) {
                        Some(result) => status = result,
                        None => return Outcome::ReadMail,
                    }
                }
                let retired = sq.retire(tail.wqe_counter());
                done(retired.wr_id, status, retired.op, false)
            }
            Kind::Responder => {
                let Some(receiver) = self.receiver(entry, tail) else { return unknown(shared) };
                if !receiver.has(tail.wqe_counter()) {
                    return Outcome::Unknown;
                }
                let mut status = WcStatus::SUCCESS;
                if let Some(which) = tail.op_own().scatter() {
                    let (ring, first) = receiver.entries();
                    let (counter, len) = (tail.wqe_counter(), entry.byte_cnt());
                    let is_outstanding =
                        || receiver.data_in_completions() && receiver.is_outstanding(counter);
                    match scatter.to_receiver(which, ring, first, counter, len, is_outstanding) {
                        Some(result) => status = result,
                        None => return Outcome::ReadMail,
                    }
                }
                done(receiver.retire(tail.wqe_counter()), status, 0, receiver.csum())
            }
            Kind::RequesterError => {
                let Some(sq) = self.sender(entry, tail) else { return unknown(shared) };
                let retired = sq.retire(tail.wqe_counter());
                done(retired.wr_id, cqe::status(entry.syndromes().0), retired.op, false)
            }
            Kind::ResponderError => {
                let Some(receiver) = self.receiver(entry, tail) else { return unknown(shared) };
                if !receiver.has(tail.wqe_counter()) {
                    return Outcome::Unknown;
                }
                done(receiver.retire(tail.wqe_counter()), cqe::status(entry.syndromes().0), 0, false)
            }
            // The last entry of a buffer that was replaced; nothing follows it there.
            Kind::Resize => Outcome::Nothing,
            Kind::Foreign => Outcome::Unknown,
        }
    }

    /// Reads the letters. Entries of queues that ended are taken out from `cursor` on; returns the new one.
    #[cold]
    #[inline(never)]
    pub(super) fn read_mail(&mut self, ring: &CqRing, shared: &CqShared, mut cursor: u32) -> u32 {
        // Slots are given out anew.
        self.last = (Sender::NO_KEY, Slot::default());
        for letter in shared.take_letters() {
            match letter {
                Letter::AttachQp(qp) => {
                    let number = self.number(&qp);
                    self.queues.insert(number, Resource::Qp(qp));
                }
                Letter::AttachSrq(srq) => match self.version {
                    CqeVersion::V1 => self.queues.insert(srq.uidx(), Resource::Srq(srq)),
                    CqeVersion::V0 => self.srqs.insert(srq.srqn, srq),
                },
                Letter::SweepQp { qp, upto, gone } => {
                    let number = self.number(&qp);
                    let srq = qp.srq.as_deref();
                    cursor = sweep(ring, cursor, upto, |entry| {
                        let of = match self.version {
                            CqeVersion::V1 => entry.srqn_uidx() & 0xff_ffff,
                            CqeVersion::V0 => entry.tail().qpn(),
                        };
                        of == number && {
                            free(srq, entry);
                            true
                        }
                    });
                    if gone {
                        self.queues.remove(number, |r| matches!(r, Resource::Qp(q) if Arc::ptr_eq(q, &qp)));
                    }
                }
                Letter::SweepSrq { srq, upto } => {
                    let number = match self.version {
                        CqeVersion::V1 => srq.uidx(),
                        CqeVersion::V0 => srq.srqn,
                    };
                    cursor = sweep(ring, cursor, upto, |entry| {
                        is_receive(entry) && entry.srqn_uidx() & 0xff_ffff == number
                    });
                    match self.version {
                        CqeVersion::V1 => {
                            _ = self
                                .queues
                                .remove(number, |r| matches!(r, Resource::Srq(s) if Arc::ptr_eq(s, &srq)))
                        }
                        CqeVersion::V0 => _ = self.srqs.remove(number, |s| Arc::ptr_eq(s, &srq)),
                    }
                }
            }
        }
        cursor
    }

    /// What a QP's completions carry.
    fn number(&self, qp: &QpShared) -> u32 {
        match self.version {
            CqeVersion::V1 => qp.uidx,
            CqeVersion::V0 => qp.qp_num,
        }
    }
}

/// An entry whose number says nothing: perhaps a letter does.
#[cold]
fn unknown(shared: &CqShared) -> Outcome {
    if shared.has_mail() { Outcome::ReadMail } else { Outcome::Unknown }
}

fn is_receive(entry: CqeRef<'_>) -> bool {
    matches!(entry.tail().op_own().kind(), Kind::Responder | Kind::ResponderError)
}

/// Gives the WQE of an entry that is taken out back to its SRQ.
fn free(srq: Option<&SrqShared>, entry: CqeRef<'_>) {
    if let Some(srq) = srq
        && is_receive(entry)
        && srq_has(srq, entry.tail().wqe_counter())
    {
        srq.retire(entry.tail().wqe_counter());
    }
}

/// Takes entries out: from `cursor` to `upto` (24 bits), those that `is_gone`. What stands before them moves up, in
/// order, so that the room is at the consumer's end; each keeps the owner bit of its place. Returns the new cursor.
fn sweep(ring: &CqRing, cursor: u32, upto: u32, mut is_gone: impl FnMut(CqeRef<'_>) -> bool) -> u32 {
    let ahead = upto.wrapping_sub(cursor) & INDEX_MASK;
    // More than half way round is behind: the poller is past it already.
    if ahead > INDEX_MASK / 2 {
        return cursor;
    }
    let there = (0..ahead.min(ring.entries()))
        .take_while(|n| ring.valid(cursor.wrapping_add(*n)).is_some())
        .count() as u32;
    let mut freed = 0;
    for n in (0..there).rev() {
        let position = cursor.wrapping_add(n);
        if is_gone(ring.entry(position)) {
            freed += 1;
        } else if freed != 0 {
            ring.copy_from(position.wrapping_add(freed), ring, position);
        }
    }
    cursor.wrapping_add(freed)
}

fn srq_has(srq: &SrqShared, wqe_counter: u16) -> bool {
    u32::from(wqe_counter) < srq.slots()
}

/// Who took a receive.
enum Receiver<'q> {
    Rq(&'q RqShared, &'q QpShared),
    Srq(&'q SrqShared),
}

impl Receiver<'_> {
    /// Whether there is such a WQE. A receive queue's counter goes on; an SRQ's is an index.
    fn has(&self, wqe_counter: u16) -> bool {
        match self {
            Self::Rq(..) => true,
            Self::Srq(srq) => srq_has(srq, wqe_counter),
        }
    }

    /// Whether it was posted and is not done.
    fn is_outstanding(&self, wqe_counter: u16) -> bool {
        match self {
            Self::Rq(rq, qp) => qp.state() != QpState::RESET && rq.is_outstanding(wqe_counter),
            Self::Srq(srq) => srq.is_outstanding(wqe_counter),
        }
    }

    fn retire(&self, wqe_counter: u16) -> u64 {
        match self {
            Self::Rq(rq, _) => rq.retire(wqe_counter),
            Self::Srq(srq) => srq.retire(wqe_counter),
        }
    }

    fn data_in_completions(&self) -> bool {
        match self {
            Self::Rq(_, qp) => qp.data_in_completions(),
            Self::Srq(srq) => srq.data_in_completions(),
        }
    }

    /// The ring, and where in an element the scatter entries begin: in an SRQ's, after the link to the next.
    fn entries(&self) -> (&StrideRing, u32) {
        match self {
            Self::Rq(rq, _) => (&rq.ring, 0),
            Self::Srq(srq) => (&srq.ring, 1),
        }
    }

    fn csum(&self) -> bool {
        match self {
            Self::Rq(_, qp) => qp.csum(),
            Self::Srq(_) => false,
        }
    }
}
