// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: sub-queues with phase bits, and their doorbell.

use super::deferred::Completion;
use super::{Caps, Device, Notice, Port, trace};
use crate::violation::{Mistake, Object};
use uverbs_efa_hw::io::{CdescCommon, RxCdesc, RxCdescEx, TxCdesc};
use uverbs_efa_hw::regs::CqDoorbell;
use uverbs_fabric::memory::{Area, Fault};
use uverbs_fabric::order::Lane;
use uverbs_fabric::ring::RingDump;
use zerocopy::IntoBytes;

/// The parameters of a CQ.
#[derive(Debug)]
pub struct CqParams {
    /// The ring, of all sub-CQs one behind the other.
    pub ring: Area,
    /// Entries of a sub-CQ.
    pub depth: u32,
    /// Bytes of an entry: 16 or 32.
    pub entry: u8,
    /// The number of sub-CQs.
    pub sub_cqs: u16,
    /// Whether it raises events.
    pub events: bool,
    /// Whether the GID of unknown senders is written.
    pub source_gid: bool,
    /// The page of doorbells.
    pub uar: u16,
}

/// A CQ.
#[derive(Debug)]
pub struct Cq {
    params: CqParams,
    /// The completions of each sub-CQ so far.
    produced: Vec<u32>,
    /// Those of all, modulo 65536.
    total: u16,
    armed: bool,
}

/// A completion of a receive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    pub(super) common: CdescCommon,
    pub(super) length: u32,
    pub(super) ah: u16,
    pub(super) src_qpn: u16,
    pub(super) imm: u32,
    /// The sender's GID, if it is unknown.
    pub(super) gid: Option<[u8; 16]>,
}

impl Cq {
    pub(super) fn new(params: CqParams) -> Option<Self> {
        let CqParams { depth, entry, sub_cqs, source_gid, .. } = params;
        let bytes = u64::from(depth) * u64::from(entry) * u64::from(sub_cqs);
        let is_valid = depth.is_power_of_two()
            && depth <= Caps::MAX_CQE
            && (entry == 32 || entry == 16 && !source_gid)
            && params.ring.size() >= bytes;
        is_valid.then(|| Self { produced: vec![0; sub_cqs.into()], total: 0, armed: false, params })
    }

    pub(super) fn uar(&self) -> u16 {
        self.params.uar
    }

    /// Whether it raises events.
    #[must_use]
    pub fn raises_events(&self) -> bool {
        self.params.events
    }

    /// Whether completions of sends have the GID of unknown senders.
    pub(super) fn has_gids(&self) -> bool {
        self.params.source_gid
    }

    /// Whether its entries are 32 bytes.
    pub(super) fn is_wide(&self) -> bool {
        self.params.entry == 32
    }

    /// Appends an entry to a sub-CQ. The bytes have no phase. The first 8 bytes, which have it, are written last.
    /// Its memory. The next entry is that of the first sub-CQ.
    pub(super) fn dump(&self, kind: &str) -> Option<RingDump> {
        let next = self.produced.first().copied().unwrap_or(0).checked_rem(self.params.depth)?;
        RingDump::read(&self.params.ring, ("efa", "cqe", kind), self.params.entry.into(), next)
    }

    fn push(&mut self, sub: u16, bytes: &mut [u8]) -> Result<(), Fault> {
        let produced = self.produced.get_mut(usize::from(sub)).ok_or(Fault)?;
        let (round, index) = (*produced / self.params.depth, *produced % self.params.depth);
        // The phase of the first round is 1. Byte 3 is `CdescCommon::flags`.
        *bytes.get_mut(3).ok_or(Fault)? |= u8::from(round.is_multiple_of(2));
        let size = u64::from(self.params.entry);
        let at = (u64::from(sub) * u64::from(self.params.depth) + u64::from(index)) * size;
        let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Fault)?;
        self.params.ring.write(at + 8, rest)?;
        self.params.ring.publish(at, *first)?;
        // Two rounds have the same phases again.
        *produced = (*produced + 1) % (2 * self.params.depth);
        self.total = self.total.wrapping_add(1);
        Ok(())
    }
}

impl Device {
    /// Writes a completion: now, or in a mode of order behind the data in its lane.
    fn complete(&mut self, port: &mut Port<'_>, lane: Lane, completion: Completion, after_reads: bool) {
        if !self.defer(port, lane, completion, after_reads) {
            self.complete_now(port, completion);
        }
    }

    /// Writes a completion, and raises an event if the CQ is armed.
    pub(super) fn complete_now(&mut self, port: &Port<'_>, completion: Completion) {
        let Completion { cq: number, sub, mut bytes } = completion;
        let Some(cq) = self.cqs.get_mut(&number) else { return };
        let size = usize::from(cq.params.entry);
        let result = bytes.get_mut(..size).ok_or(Fault).and_then(|bytes| cq.push(sub, bytes));
        if result.is_err() {
            self.blame(port.now, Object::Cq(number), 0, Mistake::MemoryGone);
            return;
        }
        trace::completion(port, number, bytes.get(..size).unwrap_or_default());
        if core::mem::take(&mut cq.armed) {
            self.notices.push(Notice::Completion { cq: number });
        }
    }

    /// Writes the completion of a send, read or write.
    pub(super) fn complete_send(
        &mut self,
        port: &mut Port<'_>,
        (cq, sub): (u16, u16),
        lane: Lane,
        common: CdescCommon,
        after_reads: bool,
    ) {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(TxCdesc { common, ..TxCdesc::default() }.as_bytes());
        self.complete(port, lane, Completion { cq, sub, bytes }, after_reads);
    }

    /// Writes the completion of a receive.
    pub(super) fn complete_receive(
        &mut self,
        port: &mut Port<'_>,
        (cq, sub): (u16, u16),
        lane: Lane,
        received: Received,
    ) {
        let Received { common, length, ah, src_qpn, imm, gid } = received;
        let base = RxCdesc { common, length: length as u16, ah, src_qp_num: src_qpn, imm };
        let mut u = [0; 16];
        match (gid, self.cqs.get(&cq)) {
            (Some(gid), Some(cq)) if cq.has_gids() => u = gid,
            (None, Some(cq)) if cq.is_wide() => {
                u[..2].copy_from_slice(&((length >> 16) as u16).to_le_bytes())
            }
            _ => {}
        }
        let mut bytes = [0; 32];
        bytes.copy_from_slice(RxCdescEx { base, u }.as_bytes());
        self.complete(port, lane, Completion { cq, sub, bytes }, false);
    }

    /// The doorbell of a CQ. An armed CQ raises an event at the next completion; if there is one that the driver has not consumed,
    /// it does so now.
    pub fn cq_doorbell(&mut self, port: &Port<'_>, number: u16, word: u32) {
        let Some(cq) = self.cqs.get_mut(&number) else {
            self.blame(port.now, Object::Cq(number), 0, Mistake::NoSuchQueue);
            return;
        };
        if !cq.params.events {
            self.blame(port.now, Object::Cq(number), 0, Mistake::NotReady);
            return;
        }
        let doorbell = CqDoorbell::unpack(word);
        if doorbell.arm {
            let has_more = doorbell.consumer_index != cq.total;
            cq.armed = !has_more;
            if has_more {
                self.notices.push(Notice::Completion { cq: number });
            }
        }
    }
}
