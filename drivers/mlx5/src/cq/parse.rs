// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses an entry into a completion: finds its resource and retires its WR.
//!
//! [`Resources::parse`] accepts any entry. The two usual kinds, a requester's and a responder's success without data, are
//! parsed by [`Current`], which caches the resource of the last entry.

#![expect(unsafe_code)]
// UNSAFETY: calls `scatter`, which requires that the receive expects data; this module checks that.

use super::cached::{CachedResource, NO_KEY};
use super::completion::Parsed;
use super::cqe::{self, Kind};
use super::entry::{CqeRef, Tail};
use super::lookup::Lookup;
use super::ring::CqRing;
use super::scatter::{Scattering, to_first_entry};
use crate::shared::QpShared;
use crate::shared::mkey::{MkeyTable, RawError};
use crate::shared::{NoSends, RetireBy};
use crate::shared::{RqShared, SrqShared};
use crate::shared::{SqShared, umr_op};
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_core::sync::barrier;
use uverbs_core::wc::WcStatus;
use uverbs_mlx5_hw::cqe::MLX5_CQE_SIG_ERR;

/// A QP, WQ or XRC SRQ whose completions go to a CQ; the default has no queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    /// The send queue, if no program writes its WQEs. Completions of the others are parsed by [`Resources::parse_raw`].
    pub(super) sq: Option<Arc<SqShared>>,
    /// The resource's own receive queue, if it does not use an `srq`.
    rq: Option<Arc<RqShared>>,
    /// The shared receive queue of the resource.
    srq: Option<Arc<SrqShared>>,
    /// `None` for an SRQ.
    qp: Option<Arc<QpShared>>,
    /// Whether the QP's type allows checksums.
    may_csum: bool,
    /// Whether the QP was created with data in completions.
    takes_data: bool,
}

impl Resource {
    fn of_qp(qp: &Arc<QpShared>) -> Self {
        Self {
            sq: if qp.takes_raw_wqes() { None } else { qp.sq.clone() },
            rq: if qp.srq.is_none() { qp.rq.clone() } else { None },
            srq: qp.srq.clone(),
            qp: Some(Arc::clone(qp)),
            may_csum: qp.may_csum(),
            takes_data: qp.data_in_completions(),
        }
    }

    /// Whether the receive WQE that a counter names exists. The counter of a receive queue is masked, so every value is
    /// valid; that of an SRQ is an index.
    fn has_receive(&self, counter: u16) -> bool {
        self.srq.as_ref().map_or(self.rq.is_some(), |srq| srq.has(counter))
    }

    /// Retires the receive at `counter`, which must exist (see [`has_receive`](Self::has_receive)), and returns its
    /// `wr_id`.
    fn retire_receive(&self, counter: u16) -> Option<u64> {
        match (&self.rq, &self.srq) {
            (Some(rq), _) => Some(rq.retire(counter)),
            (_, Some(srq)) => Some(srq.retire(counter)),
            _ => None,
        }
    }

    /// The words of the scatter entries of the receive at `counter`, if it is posted, not completed, and expects data in
    /// its completion. A faulty device may put data into the completion of a QP without that feature, report a receive
    /// twice, or report one that was not published.
    pub(super) fn expecting_data(&self, counter: u16) -> Option<&[AtomicU64]> {
        match (&self.rq, &self.srq) {
            // After a RESET no receive is outstanding.
            (Some(rq), _) if self.takes_data && rq.is_outstanding(counter) => {
                Some(rq.ring.element(counter.into()))
            }
            (_, Some(srq))
                if srq.has(counter) && srq.data_in_completions() && srq.is_outstanding(counter) =>
            {
                // The first 16 bytes of an SRQ's element are the link to the next one.
                srq.ring.element(counter.into()).get(2..)
            }
            _ => None,
        }
    }

    /// Copies the data of a completion to the first scatter entry of its receive, and retires the receive. `None` if that
    /// is not possible.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn take_data(&self, entry: CqeRef<'_>, tail: Tail, dump_fill_mkey: u32) -> Option<u64> {
        let counter = tail.wqe_counter();
        let Some(rq) = &self.rq else { return self.take_data_of_srq(entry, tail, dump_fill_mkey) };
        if !self.takes_data || !rq.is_next_outstanding(counter) {
            return None;
        }
        // SAFETY: the receive expects data: `takes_data` is set and `is_next_outstanding` found the receive outstanding,
        // which implies the conditions of `expecting_data`.
        let taken = unsafe { to_first_entry(entry, rq.ring.unit(counter.into(), 0), dump_fill_mkey) };
        if taken { rq.retire_next(counter) } else { None }
    }

    /// As [`take_data`](Self::take_data), for a shared receive queue.
    #[inline(never)]
    fn take_data_of_srq(&self, entry: CqeRef<'_>, tail: Tail, dump_fill_mkey: u32) -> Option<u64> {
        let counter = tail.wqe_counter();
        let first = self.expecting_data(counter)?.first_chunk()?;
        // SAFETY: the receive expects data: `expecting_data` returned its entries.
        let taken = unsafe { to_first_entry(entry, first, dump_fill_mkey) };
        if taken { self.retire_receive(counter) } else { None }
    }

    /// Whether the QP's port computes checksums.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn csum(&self) -> bool {
        self.may_csum && self.qp.as_ref().is_some_and(|qp| qp.csum())
    }
}

/// How an entry names its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeVersion {
    /// By QP number or SRQ number: two number spaces.
    V0,
    /// By user index.
    V1,
}

/// The resources of a CQ, by the numbers in completions.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) version: CqeVersion,
    /// By user index, or by QP number.
    queues: Lookup<Resource>,
    /// By SRQ number (version 0).
    srqs: Lookup<Resource>,
    /// Key of the memory that discards data.
    pub(super) dump_fill_mkey: u32,
    /// Used as the send queue of a resource that has none.
    no_sends: Box<NoSends>,
    /// The keys of the context that have signatures.
    mkeys: Arc<MkeyTable>,
}

/// The current resource: the fields that an entry of the same resource as the entry before needs, so that one compare finds
/// it. Only used with CQE version 1, because version 0 has two number spaces.
///
/// Functions with a `tail` argument require that the caller found it valid; they load other fields of the entry after it.
#[derive(Clone, Copy)]
pub(super) struct Current<'q> {
    key: u64,
    /// `key` if the resource has a send queue, else [`NO_KEY`].
    send_key: u64,
    resource: &'q Resource,
    sends: RetireBy<'q>,
}

/// The word of an entry with the user index in its first four bytes.
const NAMING_WORD: usize = 4;

/// The key of a naming word: its first four bytes in memory.
#[cfg_attr(not(debug_assertions), inline(always))]
fn key_of(word: u64) -> u64 {
    u64::from_le(word) << 32
}

/// The number in a key, with its upper byte.
#[cfg_attr(not(debug_assertions), inline(always))]
fn number_of_key(key: u64) -> u32 {
    ((key >> 32) as u32).swap_bytes()
}

impl<'q> Current<'q> {
    /// The completion of a requester's success without data, if the entry names this resource.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn requester(&self, entry: CqeRef<'_>, tail: Tail) -> Option<Parsed> {
        barrier::from_device();
        if key_of(entry.raw_word(NAMING_WORD)) != self.send_key {
            return None;
        }
        let retired = self.sends.retire(tail.block());
        Some(Parsed::requester(tail, retired.wr_id, WcStatus::SUCCESS, retired.op, true))
    }

    /// The completion of a responder's success without data, if the entry names this resource and the WQE is the next one
    /// of its receive queue.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn responder(&self, entry: CqeRef<'_>, tail: Tail) -> Option<Parsed> {
        barrier::from_device();
        if key_of(entry.raw_word(NAMING_WORD)) != self.key {
            return None;
        }
        let counter = tail.wqe_counter();
        let wr_id = if let Some(rq) = &self.resource.rq {
            rq.retire_next(counter)?
        } else {
            self.resource.srq.as_ref().filter(|srq| srq.has(counter))?.retire(counter)
        };
        Some(Parsed::responder(tail, wr_id, WcStatus::SUCCESS, self.resource.csum()))
    }

    /// As [`responder`](Self::responder), for an entry with data, if they fit into the first scatter entry of the receive.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn responder_with_data(
        &self,
        of: &Resources,
        entry: CqeRef<'_>,
        tail: Tail,
    ) -> Option<Parsed> {
        barrier::from_device();
        if key_of(entry.raw_word(NAMING_WORD)) != self.key {
            return None;
        }
        let wr_id = self.resource.take_data(entry, tail, of.dump_fill_mkey)?;
        Some(Parsed::responder(tail, wr_id, WcStatus::SUCCESS, self.resource.csum()))
    }

    /// Changes to the resource that an entry names. Returns whether it is another one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn change_to(&mut self, of: &'q Resources, entry: CqeRef<'_>) -> bool {
        barrier::from_device();
        let key = key_of(entry.raw_word(NAMING_WORD));
        let is_other = key != self.key && of.version == CqeVersion::V1;
        if is_other {
            *self = of.current_of(key, of.queues.get(number_of_key(key)));
        }
        is_other
    }

    /// The resource's key.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn key(&self) -> u64 {
        self.key
    }
}

/// The result of parsing an entry.
pub(super) enum Outcome {
    /// A completion.
    Completion(Parsed),
    /// No completion: the mark of a resize, or an error of a signature.
    Nothing,
    /// An entry of an unknown resource, or of a kind that this driver does not request.
    Unknown,
}

impl Resources {
    pub(super) fn new(version: CqeVersion, dump_fill_mkey: u32, mkeys: Arc<MkeyTable>) -> Self {
        let no_sends = Box::default();
        Self { version, queues: Lookup::new(), srqs: Lookup::new(), dump_fill_mkey, no_sends, mkeys }
    }

    /// The number by which completions name a QP.
    pub(super) fn number_of(&self, qp: &QpShared) -> u32 {
        match self.version {
            CqeVersion::V1 => qp.uidx,
            CqeVersion::V0 => qp.qp_num,
        }
    }

    /// The number by which completions name an SRQ.
    pub(super) fn number_of_srq(&self, srq: &SrqShared) -> u32 {
        match self.version {
            CqeVersion::V1 => srq.uidx(),
            CqeVersion::V0 => srq.srqn,
        }
    }

    pub(super) fn attach_qp(&mut self, qp: &Arc<QpShared>) {
        self.queues.insert(self.number_of(qp), Resource::of_qp(qp));
    }

    pub(super) fn detach_qp(&mut self, qp: &Arc<QpShared>) {
        let is = |r: &Resource| r.qp.as_ref().is_some_and(|q| Arc::ptr_eq(q, qp));
        self.queues.remove(self.number_of(qp), is);
    }

    pub(super) fn attach_srq(&mut self, srq: &Arc<SrqShared>) {
        let number = self.number_of_srq(srq);
        let resource = Resource { srq: Some(Arc::clone(srq)), ..Resource::default() };
        match self.version {
            CqeVersion::V1 => self.queues.insert(number, resource),
            CqeVersion::V0 => self.srqs.insert(number, resource),
        }
    }

    pub(super) fn detach_srq(&mut self, srq: &Arc<SrqShared>) {
        let is = |r: &Resource| r.qp.is_none() && r.srq.as_ref().is_some_and(|s| Arc::ptr_eq(s, srq));
        let number = self.number_of_srq(srq);
        match self.version {
            CqeVersion::V1 => self.queues.remove(number, is),
            CqeVersion::V0 => self.srqs.remove(number, is),
        };
    }

    /// The cached resource.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn current(cached: &CachedResource) -> Current<'_> {
        Current {
            key: cached.key,
            send_key: cached.send_key,
            resource: cached.resource(),
            sends: cached.sends(),
        }
    }

    /// Caches the resource of a key.
    #[cold]
    pub(super) fn keep(&self, key: u64, cached: &mut CachedResource) {
        cached.set(key, self.queues.get(number_of_key(key)));
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn current_of<'q>(&'q self, key: u64, resource: &'q Resource) -> Current<'q> {
        let (send_key, sends) = match &resource.sq {
            Some(sq) => (key, sq.retire_by()),
            None => (NO_KEY, self.no_sends.retire_by()),
        };
        Current { key, send_key, resource, sends }
    }

    /// The resource of the WQE that a requester's entry completes.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sending(&self, entry: CqeRef<'_>, tail: Tail) -> &Resource {
        self.queues.get(match self.version {
            CqeVersion::V1 => entry.srqn_uidx(),
            CqeVersion::V0 => tail.qpn(),
        })
    }

    /// The QP and send queue of the WQE that an entry completes.
    fn sender(&self, entry: CqeRef<'_>, tail: Tail) -> Option<(&QpShared, &SqShared)> {
        let resource = self.sending(entry, tail);
        Some((resource.qp.as_deref()?, resource.sq.as_deref()?))
    }

    /// Parses a requester's entry of a queue whose WQEs a program may have written, and retires its WR.
    #[cold]
    fn parse_raw(&self, ring: &CqRing, position: u32) -> Outcome {
        let (entry, tail) = (ring.entry(position), ring.tail(position));
        let qp = self.sending(entry, tail).qp.as_deref();
        let Some((qp, sq)) = qp.and_then(|qp| Some((qp, qp.sq.as_deref()?))) else { return Outcome::Unknown };
        let status = match (tail.op_own().kind(), tail.op_own().scatter()) {
            (Kind::RequesterError, _) => cqe::status(entry.syndromes().0),
            (_, None) => WcStatus::SUCCESS,
            (_, Some(which)) => {
                let len = cqe::requester_len(tail.send_opcode(), entry.byte_cnt());
                let scatter = Scattering { ring, position, dump_fill_mkey: self.dump_fill_mkey };
                scatter.to_sender(which, qp, sq, tail.wqe_counter(), len)
            }
        };
        let retired = sq.retire(tail.wqe_counter());
        let tail = if retired.op == umr_op::RAW { tail.of_unknown_opcode() } else { tail };
        Outcome::Completion(Parsed::requester(tail, retired.wr_id, status, retired.op, false))
    }

    /// Stores an error of a signature with its key (`struct mlx5_sigerr_cqe` of libmlx5).
    #[cold]
    fn signature_error(&self, entry: CqeRef<'_>) -> Outcome {
        let word = |index| u64::from_be(entry.raw_word(index));
        // Halves of both values: the expected and the actual one.
        let (high, low, what) = (word(2), word(3), word(4));
        let error = RawError {
            syndrome: (what >> 48) as u16,
            sig_type: (what >> 40) as u8 & 7,
            domain: (what >> 32) as u8 & 7,
            expected: high & !0xffff_ffff | low >> 32,
            actual: high << 32 | low & 0xffff_ffff,
            offset: word(5),
        };
        self.mkeys.report(what as u32, error);
        Outcome::Nothing
    }

    /// The resource of the receive that an entry completes, if it has the WQE that the entry names.
    fn receiver(&self, entry: CqeRef<'_>, tail: Tail) -> Option<&Resource> {
        let number = entry.srqn_uidx() & 0xff_ffff;
        let resource = match self.version {
            CqeVersion::V1 => self.queues.get(number),
            CqeVersion::V0 => match self.srqs.get(number) {
                by_srq if number != 0 && by_srq.srq.is_some() => by_srq,
                _ => self.queues.get(tail.qpn()),
            },
        };
        resource.has_receive(tail.wqe_counter()).then_some(resource)
    }

    /// Parses the valid entry at `position` and retires its WR.
    pub(super) fn parse(&self, ring: &CqRing, position: u32) -> Outcome {
        let entry = ring.entry(position);
        let tail = ring.tail(position);
        match tail.op_own().kind() {
            Kind::Requester => {
                let Some((qp, sq)) = self.sender(entry, tail) else { return self.parse_raw(ring, position) };
                let mut status = WcStatus::SUCCESS;
                if let Some(which) = tail.op_own().scatter() {
                    let len = cqe::requester_len(tail.send_opcode(), entry.byte_cnt());
                    let scatter = Scattering { ring, position, dump_fill_mkey: self.dump_fill_mkey };
                    status = scatter.to_sender(which, qp, sq, tail.wqe_counter(), len);
                }
                let retired = sq.retire(tail.wqe_counter());
                Outcome::Completion(Parsed::requester(tail, retired.wr_id, status, retired.op, false))
            }
            Kind::RequesterError => {
                let Some((_, sq)) = self.sender(entry, tail) else { return self.parse_raw(ring, position) };
                let retired = sq.retire(tail.wqe_counter());
                let status = cqe::status(entry.syndromes().0);
                Outcome::Completion(Parsed::requester(tail, retired.wr_id, status, retired.op, false))
            }
            kind @ (Kind::Responder | Kind::ResponderError) => {
                let Some(resource) = self.receiver(entry, tail) else { return Outcome::Unknown };
                let status = if kind == Kind::ResponderError {
                    cqe::status(entry.syndromes().0)
                } else if let Some(which) = tail.op_own().scatter() {
                    let scatter = Scattering { ring, position, dump_fill_mkey: self.dump_fill_mkey };
                    scatter.to_receiver(which, resource, tail, entry.byte_cnt())
                } else {
                    WcStatus::SUCCESS
                };
                let Some(wr_id) = resource.retire_receive(tail.wqe_counter()) else {
                    return Outcome::Unknown;
                };
                let csum = kind == Kind::Responder && resource.csum();
                Outcome::Completion(Parsed::responder(tail, wr_id, status, csum))
            }
            // The last entry in a ring that was replaced.
            Kind::Resize => Outcome::Nothing,
            Kind::Foreign if tail.op_own().opcode() == MLX5_CQE_SIG_ERR => self.signature_error(entry),
            Kind::Foreign => Outcome::Unknown,
        }
    }
}
