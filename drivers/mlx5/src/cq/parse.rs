// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an entry to a completion: whose it is, and telling that queue.
//!
//! The short way, a requester's success without data, is in `poll`; everything else comes here.

use super::completion::Parsed;
use super::ring::{CqRing, CqeRef, Tail};
use super::scatter::Scattering;
use super::shared::{CqShared, INDEX_MASK, Letter};
use crate::buf::StrideRing;
use crate::cqe::{self, Kind};
use crate::lookup::Lookup;
use crate::shared::{QpShared, RqShared, SqShared, SrqShared};
use std::sync::Arc;
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
    /// By user index, or by QP number.
    queues: Lookup<Resource>,
    /// By SRQ number (version 0).
    srqs: Lookup<Arc<SrqShared>>,
    /// Key of the memory that takes data and keeps none.
    dump_fill_mkey: u32,
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
        Self { version, queues: Lookup::new(), srqs: Lookup::new(), dump_fill_mkey }
    }

    /// The send queue of an entry.
    #[inline(always)]
    pub(super) fn sender(&mut self, entry: CqeRef<'_>, tail: Tail) -> Option<&SqShared> {
        let number = match self.version {
            CqeVersion::V1 => entry.srqn_uidx(),
            CqeVersion::V0 => tail.qpn(),
        };
        match self.queues.find(number) {
            Some(Resource::Qp(qp)) => qp.sq.as_deref(),
            _ => None,
        }
    }

    /// The receiver of an entry.
    fn receiver(&mut self, entry: CqeRef<'_>, tail: Tail) -> Option<Receiver<'_>> {
        let number = entry.srqn_uidx() & 0xff_ffff;
        let resource = match self.version {
            CqeVersion::V1 => self.queues.find(number),
            CqeVersion::V0 => {
                if number != 0 && self.srqs.find(number).is_some() {
                    return self.srqs.find(number).map(|srq| Receiver::Srq(srq));
                }
                self.queues.find(tail.qpn())
            }
        };
        match resource? {
            Resource::Srq(srq) => Some(Receiver::Srq(srq)),
            Resource::Qp(qp) => match (&qp.srq, &qp.rq) {
                (Some(srq), _) => Some(Receiver::Srq(srq)),
                (None, Some(rq)) => Some(Receiver::Rq(rq, qp.csum())),
                (None, None) => None,
            },
        }
    }

    /// What the valid entry at `position` is, and tells its queue.
    pub(super) fn parse(&mut self, ring: &CqRing, shared: &CqShared, position: u32) -> Outcome {
        let entry = ring.entry(position);
        let tail = entry.tail();
        let dump_fill_mkey = self.dump_fill_mkey;
        let scatter = Scattering { ring, shared, position, dump_fill_mkey };
        let done = |wr_id, status, posted, csum| {
            Outcome::Completion(Parsed { position, tail, wr_id, status, posted, csum })
        };
        match tail.op_own().kind() {
            Kind::Requester => {
                let Some(sq) = self.sender(entry, tail) else { return unknown(shared) };
                let mut status = WcStatus::SUCCESS;
                if let Some(which) = tail.op_own().scatter() {
                    let len = cqe::requester_len(tail.send_opcode(), entry.byte_cnt());
                    match scatter.to_sender(which, sq, tail.wqe_counter(), len) {
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
                    match scatter.to_receiver(which, ring, first, tail.wqe_counter(), entry.byte_cnt()) {
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
    Rq(&'q RqShared, bool),
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

    fn retire(&self, wqe_counter: u16) -> u64 {
        match self {
            Self::Rq(rq, _) => rq.retire(wqe_counter),
            Self::Srq(srq) => srq.retire(wqe_counter),
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
            Self::Rq(_, csum) => *csum,
            Self::Srq(_) => false,
        }
    }
}
