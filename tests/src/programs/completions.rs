// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polls of a program, and the comparison of each completion with the model.

use super::model::{LONGEST, Message};
use super::world::{RECV, World};
use crate::pair::{GRH, grh};
use crate::post::{Lock, Typed};
use anyhow::{Context as _, Result, bail, ensure};
use uverbs::attr::QpType;
use uverbs::provider::Completion as _;
use uverbs::{Driver, PollError, WorkCompletion};

impl<D: Driver, T: Typed<D>, L: Lock> World<'_, D, T, L> {
    /// Polls, in one of three ways. Returns the number of completions.
    pub(super) fn poll(&mut self, end: usize, cq: usize, max: usize, way: u8) -> Result<usize> {
        let queue = &self.end_objects[end].cqs[cq];
        let mut got = Vec::new();
        match way % 3 {
            0 => {
                let mut some = vec![WorkCompletion::default(); max];
                got.extend_from_slice(queue.poll(&mut some)?);
            }
            1 => {
                let n = queue.poll_each(max, |wc| got.push(wc.to_wc()))?;
                ensure!(n == got.len(), "poll_each returned {n}, and passed {}", got.len());
            }
            _ => {
                let walked = queue.poll_session(|poll| -> Result<(), PollError> {
                    loop {
                        got.extend(poll.current().map(|wc| wc.to_wc()));
                        if got.len() == max {
                            return Ok(());
                        }
                        match poll.next() {
                            Err(PollError::Empty) => return Ok(()),
                            other => other?,
                        }
                    }
                });
                match walked {
                    Ok(result) => result?,
                    Err(PollError::Empty) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        for wc in &got {
            self.completed(end, cq, wc)
                .with_context(|| format!("completion {:#x} at end {end}: {wc:?}", wc.wr_id))?;
        }
        Ok(got.len())
    }

    fn completed(&mut self, end: usize, cq: usize, wc: &WorkCompletion) -> Result<()> {
        let id = wc.wr_id & !RECV;
        let (named, generation) = ((id >> 60) as usize, id >> 48 & 0xff);
        let is_recv = wc.wr_id & RECV != 0;
        // The pair that receives from an SRQ is found by the QP's number.
        let pair = if is_recv && self.config.srq {
            let found = self.pairs.iter().position(|p| p.qps[end].qp_num() == wc.qp_num);
            found.context("a destroyed QP")?
        } else {
            ensure!(named < self.pairs.len(), "an id that was not posted");
            ensure!(generation == self.pairs[named].generation & 0xff, "of a QP that was reset or destroyed");
            ensure!((id >> 59 & 1) as usize == end, "posted at the other end");
            named
        };
        ensure!(wc.qp_num == self.pairs[pair].qps[end].qp_num(), "of another QP");
        let n = self.config.cqs;
        ensure!(cq == if is_recv { (pair + 1) % n } else { pair % n }, "on another CQ");
        if is_recv { self.received(pair, end, wc) } else { self.sent(pair, end, wc) }
    }

    /// Checks a completion of the send queue.
    fn sent(&mut self, pair: usize, end: usize, wc: &WorkCompletion) -> Result<()> {
        let model = &mut self.pairs[pair].model[end];
        let at = model
            .sent
            .iter()
            .position(|s| s.id == wc.wr_id)
            .context("not outstanding: duplicate or out of order")?;
        let failing = self.failing == Some(pair);
        for before in model.sent.drain(..at) {
            ensure!(!before.signaled, "{:#x} before it has no completion", before.id);
            ensure!(model.failed.is_empty(), "{:#x} before it was not flushed", before.id);
            before.effect.apply(&mut self.memory, end);
            model.last_ok = Some(before.id);
        }
        let Some(sent) = model.sent.pop_front() else { bail!("nothing was posted") };
        if !wc.status.is_success() {
            ensure!(failing, "an unexpected error");
            model.failed.push(sent);
            self.tally.flushed += 1;
            return Ok(());
        }
        ensure!(model.failed.is_empty(), "a success after an error");
        ensure!(sent.signaled, "it was not signaled");
        ensure!(wc.opcode == sent.opcode, "it is a {:?}", sent.opcode);
        ensure!(
            sent.byte_len.is_none_or(|len| len == wc.byte_len),
            "{:?} bytes were requested",
            sent.byte_len
        );
        sent.effect.apply(&mut self.memory, end);
        model.last_ok = Some(sent.id);
        self.tally.completed[0] += 1;
        Ok(())
    }

    /// Checks a completion of a receive queue.
    fn received(&mut self, pair: usize, end: usize, wc: &WorkCompletion) -> Result<()> {
        let failing = self.failing == Some(pair);
        let posted = if self.config.srq {
            let recvs = &mut self.end_objects[end].srq_recvs;
            let at =
                recvs.iter().position(|p| p.id == wc.wr_id).context("not posted to the SRQ, or duplicate")?;
            recvs.swap_remove(at)
        } else {
            let posted = self.pairs[pair].model[end].recvs.pop_front().context("nothing was posted")?;
            ensure!(posted.id == wc.wr_id, "{:#x} is the next", posted.id);
            posted
        };
        if !wc.status.is_success() {
            ensure!(failing, "an unexpected error");
            self.tally.flushed += 1;
            return self.settle_slot(end, posted.slot);
        }
        let header = grh::<T>();
        let messages = &mut self.pairs[pair].model[1 - end].messages;
        // Unreliable messages may be lost as a whole if there is no receive.
        let reliable = T::QP_TYPE == QpType::Rc;
        let objects = &self.end_objects[end];
        let arrived = |message: &Message| -> Result<bool> {
            let mut bytes = vec![0; message.data.len()];
            objects.mr.read_at(posted.slot + header, &mut bytes)?;
            let imm = wc.imm_data().map(|i| i.get());
            Ok(bytes == message.data
                && wc.byte_len as usize == message.byte_len + header
                && wc.opcode == message.opcode
                && imm == message.imm)
        };
        let message = loop {
            let next = messages.pop_front().context("a message that was not sent")?;
            if arrived(&next)? {
                break next;
            }
            ensure!(
                !reliable,
                "it should be {:#x}: {} bytes, immediate {:?}",
                next.id,
                next.byte_len,
                next.imm
            );
        };
        if header != 0 {
            self.settle_range(end, posted.slot..posted.slot + header)?;
        }
        let at = posted.slot + header;
        self.memory.0[end][at..at + message.data.len()].copy_from_slice(&message.data);
        self.tally.completed[1] += 1;
        Ok(())
    }

    /// Takes the current bytes of a range as the expected ones, where they are unspecified.
    pub(super) fn settle_range(&mut self, end: usize, range: core::ops::Range<usize>) -> Result<()> {
        let to = &mut self.memory.0[end][range.clone()];
        Ok(self.end_objects[end].mr.read_at(range.start, to)?)
    }

    /// A failed receive may have written any bytes to its memory.
    pub(super) fn settle_slot(&mut self, end: usize, slot: usize) -> Result<()> {
        self.settle_range(end, slot..slot + LONGEST + GRH)
    }

    /// Polls until all CQs are empty.
    pub(super) fn poll_all(&mut self) -> Result<usize> {
        let mut all = 0;
        for end in 0..2 {
            for cq in 0..self.config.cqs {
                loop {
                    match self.poll(end, cq, 16, (all % 3) as u8)? {
                        0 => break,
                        n => all += n,
                    }
                }
            }
        }
        Ok(all)
    }
}
