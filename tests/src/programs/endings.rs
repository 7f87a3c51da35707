// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps that end a pair or its requests, after which the state is known and checked; and the end of a program.

use super::model::{self, SLOTS, Sent};
use super::world::World;
use crate::post::{Face, Lock, Typed};
use crate::wait::{Deadline, QUIET, rest};
use anyhow::{Context as _, Result, ensure};
use uverbs::Driver;
use uverbs::attr::{QpState, QpType};

impl<D: Driver, T: Typed<D>, L: Lock> World<'_, D, T, L> {
    /// Posts receives until every message of a reliable pair has one. `false` if there is not enough room now.
    fn feed(&mut self, pair: usize, end: usize) -> Result<bool> {
        // Several pairs may receive from an SRQ.
        let pairs = if self.config.srq { 0..self.pairs.len() } else { pair..pair + 1 };
        let wanted: usize = pairs.map(|p| self.pairs[p].model[1 - end].messages.len()).sum();
        let posted = if self.config.srq {
            self.end_objects[end].srq_recvs.len()
        } else {
            self.pairs[pair].model[end].recvs.len()
        };
        let missing = wanted.saturating_sub(posted);
        Ok(missing == 0 || self.recv(pair, end, Face::Batch, missing, 100)? == missing)
    }

    /// Changes an end to SQD. The posted requests complete before, so they must not wait for receives.
    pub(super) fn drain(&mut self, pair: usize, end: usize) -> Result<()> {
        let rc = T::QP_TYPE == QpType::Rc;
        if self.pairs[pair].model[end].drained || (rc && !self.feed(pair, 1 - end)?) {
            return Ok(());
        }
        self.set_state(pair, end, QpState::SQD)?;
        let mut deadline = Deadline::usual();
        loop {
            let (attr, _) = self.pairs[pair].qps[end].query(uverbs::attr::QpAttrMask::STATE)?;
            if !attr.sq_draining {
                break;
            }
            ensure!(!deadline.passed(), "the send queue does not drain");
            deadline.pause();
        }
        self.pairs[pair].model[end].drained = true;
        Ok(())
    }

    /// Back to RTS.
    pub(super) fn resume(&mut self, pair: usize, end: usize) -> Result<()> {
        if core::mem::take(&mut self.pairs[pair].model[end].drained) {
            self.set_state(pair, end, QpState::RTS)?;
        }
        Ok(())
    }

    /// Moves both ends to ERR, beginning with `end`, waits until all posted WRs have completed, and connects them
    /// again.
    pub(super) fn fail(&mut self, pair: usize, end: usize) -> Result<()> {
        self.tally.endings += 1;
        self.failing = Some(pair);
        for end in [end, 1 - end] {
            self.set_state(pair, end, QpState::ERR)?;
        }
        let markers = [self.post_marker(pair, 0)?, self.post_marker(pair, 1)?];
        let mut deadline = Deadline::usual();
        loop {
            let polled = self.poll_all()?;
            let model = &self.pairs[pair].model;
            let silent = |i: usize| markers[i].is_none() || model[i].sent.is_empty();
            if silent(0) && silent(1) && model.iter().all(|m| m.recvs.is_empty()) {
                break;
            }
            if polled == 0 {
                ensure!(
                    !deadline.passed(),
                    "not flushed: {:?} sends, {:?} receives",
                    model.each_ref().map(|m| m.sent.iter().map(|s| s.id).collect::<Vec<_>>()),
                    model.each_ref().map(|m| m.recvs.len())
                );
                deadline.pause();
            }
        }
        for (end, marker) in markers.into_iter().enumerate() {
            let model = &mut self.pairs[pair].model[end];
            let Some(marker) = marker else {
                // None of them was signaled and none failed, so they were executed.
                ensure!(model.failed.is_empty(), "flushed in part");
                for sent in model.sent.drain(..) {
                    sent.effect.apply(&mut self.memory, end);
                    model.last_ok = Some(sent.id);
                }
                continue;
            };
            ensure!(model.failed.last().is_some_and(|s| s.id == marker), "posted in ERR, and not flushed");
        }
        self.check_mail(pair)?;
        let failed = self.pairs[pair].model.each_mut().map(|m| core::mem::take(&mut m.failed));
        self.failing = None;
        self.check_uncertain(pair, &failed).context("after a failure")?;
        for end in 0..2 {
            self.set_state(pair, end, QpState::RESET)?;
        }
        self.begin_anew(pair)
    }

    /// Resets both ends, with outstanding requests.
    pub(super) fn reset(&mut self, pair: usize) -> Result<()> {
        if self.config.srq {
            // The test could not know which receives of the SRQ were taken.
            return self.fail(pair, 0);
        }
        self.tally.endings += 1;
        for end in 0..2 {
            self.set_state(pair, end, QpState::RESET)?;
        }
        self.forget(pair).context("after a reset")?;
        self.begin_anew(pair)
    }

    /// Destroys both QPs, with outstanding requests, and creates others.
    pub(super) fn destroy(&mut self, pair: usize) -> Result<()> {
        if self.config.srq {
            self.fail(pair, 1)?;
        }
        self.tally.endings += 1;
        let generation = self.pairs[pair].generation + 1;
        let new = self.make_pair(pair, generation)?;
        let old = core::mem::replace(&mut self.pairs[pair], new);
        let new_model = core::mem::replace(&mut self.pairs[pair].model, old.model);
        let [a, b] = old.qps;
        a.close()?;
        b.close()?;
        self.forget(pair).context("after QPs were destroyed")?;
        self.pairs[pair].model = new_model;
        Ok(())
    }

    /// Outstanding requests are discarded: they have no completions, and it is unknown how far they were executed.
    fn forget(&mut self, pair: usize) -> Result<()> {
        let lost = self.pairs[pair].model.each_mut().map(|m| m.sent.drain(..).collect::<Vec<_>>());
        let slots = self.pairs[pair].model.each_mut().map(|m| m.recvs.drain(..).collect::<Vec<_>>());
        for (end, slots) in slots.iter().enumerate() {
            for posted in slots {
                self.settle_slot(end, posted.slot)?;
            }
        }
        self.check_uncertain(pair, &lost)
    }

    fn begin_anew(&mut self, pair: usize) -> Result<()> {
        let this = &mut self.pairs[pair];
        this.generation += 1;
        this.model = Default::default();
        // The pair is taken out of the world, because connecting it borrows the rest of the world.
        let mut taken = self.pairs.swap_remove(pair);
        let result = self.connect(&mut taken);
        self.pairs.push(taken);
        let last = self.pairs.len() - 1;
        self.pairs.swap(pair, last);
        result.context("up again")
    }

    /// Checks that the messages that a reliable sender's completions acknowledge were received.
    fn check_mail(&mut self, pair: usize) -> Result<()> {
        for end in 0..2 {
            let model = &self.pairs[pair].model[end];
            let missing = model.messages.iter().find(|m| model.last_ok.is_some_and(|ok| m.id <= ok));
            if let (QpType::Rc, Some(missing)) = (T::QP_TYPE, missing) {
                anyhow::bail!("{:#x} succeeded, but was not received", missing.id);
            }
        }
        Ok(())
    }

    /// Checks the memory of a pair. In each direction, any number of the requests with an unknown result may have been
    /// executed.
    fn check_uncertain(&mut self, pair: usize, maybe: &[Vec<Sent>; 2]) -> Result<()> {
        let actual = [self.end_objects[0].bytes()?, self.end_objects[1].bytes()?];
        for (initiator, maybe) in maybe.iter().enumerate() {
            if maybe.is_empty() {
                continue;
            }
            let histories = model::histories(&self.memory, maybe, initiator);
            for (end, window) in model::windows(pair, initiator) {
                for at in window {
                    let now = actual[end][at];
                    ensure!(
                        histories.iter().any(|m| m.0[end][at] == now),
                        "byte {at} at end {end} is {now:#04x}, which no number of requests explains"
                    );
                    self.memory.0[end][at] = now;
                }
            }
        }
        Ok(())
    }

    /// The end of a program: checks that all posted WRs complete, and that all memory is as expected.
    pub fn finish(&mut self) -> Result<()> {
        let rc = T::QP_TYPE == QpType::Rc;
        for pair in 0..self.pairs.len() {
            for end in 0..2 {
                self.resume(pair, end)?;
                if self.pairs[pair].model[end].sent.back().is_some_and(|s| !s.signaled) {
                    if rc {
                        self.feed(pair, 1 - end)?;
                    }
                    self.finish_feeding(pair, end)?;
                }
            }
        }
        let mut deadline = Deadline::usual();
        loop {
            let mut done = true;
            let polled = self.poll_all()?;
            for pair in 0..self.pairs.len() {
                for end in 0..2 {
                    let model = &self.pairs[pair].model[end];
                    done &= model.sent.is_empty() && (!rc || model.messages.is_empty());
                    if rc && !model.messages.is_empty() {
                        self.feed(pair, 1 - end)?;
                    }
                }
            }
            if done {
                break;
            }
            if polled == 0 {
                ensure!(!deadline.passed(), "not everything completed: {}", self.waiting());
                deadline.pause();
            }
        }
        if !rc {
            // Outstanding packets arrive, or are lost.
            rest(QUIET);
            self.poll_all()?;
        }
        ensure!(self.poll_all()? == 0, "completions after all was complete");
        for (end, objects) in self.end_objects.iter().enumerate() {
            let bytes = objects.bytes()?;
            let wrong = bytes.iter().zip(&self.memory.0[end]).position(|(a, b)| a != b);
            if let Some(at) = wrong {
                let all = bytes.iter().zip(&self.memory.0[end]).filter(|(a, b)| a != b).count();
                anyhow::bail!(
                    "byte {at} at end {end} is {:#04x}, should be {:#04x}; {all} bytes differ",
                    bytes[at],
                    self.memory.0[end][at]
                );
            }
            ensure!(objects.guards()?.iter().all(|b| *b == 0), "memory outside of the region was written");
        }
        self.receives_are_whole()
    }

    /// Posts a signaled request to a queue whose last request is not signaled; posts receives first, if it has to wait
    /// for room.
    fn finish_feeding(&mut self, pair: usize, end: usize) -> Result<()> {
        let mut deadline = Deadline::usual();
        let cap = self.pairs[pair].qps[end].cap().max_send_wr as usize;
        while self.pairs[pair].model[end].sent.len() >= cap {
            if T::QP_TYPE == QpType::Rc {
                self.feed(pair, 1 - end)?;
            }
            if self.poll_all()? == 0 {
                // No request of the full queue is signaled, so it can never be used again.
                if self.pairs[pair].model[end].sent.iter().all(|s| !s.signaled) {
                    return self.fail(pair, end);
                }
                ensure!(!deadline.passed(), "the send queue stays full: {}", self.waiting());
                deadline.pause();
            }
        }
        self.post_marker(pair, end).map(drop)
    }

    /// Checks that no receive was lost: as many as there is memory for can be posted.
    fn receives_are_whole(&mut self) -> Result<()> {
        for pair in 0..self.pairs.len() {
            for end in 0..2 {
                self.recv(pair, end, Face::List, SLOTS, 0).context("all receives at the end")?;
                let posted = if self.config.srq {
                    self.end_objects[end].srq_recvs.len()
                } else {
                    self.pairs[pair].model[end].recvs.len()
                };
                ensure!(posted == SLOTS, "{posted} receives, of {SLOTS}");
            }
        }
        Ok(())
    }

    fn waiting(&self) -> String {
        let one = |(i, pair): (usize, &super::world::Pair<D, T, L>)| {
            let ends = pair.model.each_ref().map(|m| {
                format!("{} sends, {} messages, {} receives", m.sent.len(), m.messages.len(), m.recvs.len())
            });
            format!("pair {i}: {} | {}", ends[0], ends[1])
        };
        self.pairs.iter().enumerate().map(one).collect::<Vec<_>>().join("; ")
    }
}
