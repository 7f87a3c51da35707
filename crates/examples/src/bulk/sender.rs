// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sender: a thread for each NIC, which keeps the queues of its QPs filled.

use super::ends::{self, End, Wait, Way};
use super::{Figures, Plan};
use crate::nic::Nic;
use anyhow::{Context as _, Result, anyhow, ensure};
use core::time::Duration;
use std::net::TcpStream;
use std::time::Instant;
use uverbs::attr::AccessFlags;
use uverbs::{Driver, ImmData, RemoteRegion, WorkCompletion};

/// The time limit for the next completion.
const LIMIT: Duration = Duration::from_secs(60);
/// Completions of one poll.
const POLL: usize = 64;

/// What one NIC did.
#[derive(Debug, Default)]
struct Done {
    times: Vec<Duration>,
    full: u64,
    held: u64,
}

/// A QP's share of the batch that is being posted.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Work requests posted and not known to be complete.
    busy: u32,
    /// The next block; blocks of a QP are `qps` apart.
    next: u32,
    /// Whether the message that ends the batch is posted.
    ended: bool,
}

/// Sends all batches to the receiver behind `stream`.
///
/// # Errors
/// A device can't be used, or the receiver ends early.
pub fn send<D: Driver>(nics: &[Nic], plan: &Plan, stream: &TcpStream, way: &Way) -> Result<Figures> {
    let access = AccessFlags::empty();
    let mut all =
        nics.iter().map(|nic| End::<D>::new(nic, plan, access, false)).collect::<Result<Vec<_>>>()?;
    let (regions, immediate) = ends::connect_sender(&mut all, stream, plan, way)?;
    let begin = Instant::now();
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter_mut()
            .zip(&regions)
            .map(|(end, region)| {
                scope.spawn(move || Sender::new(end, plan, *region, immediate, stream)?.run())
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a sender panicked"))?)
            .collect::<Result<Vec<Done>>>()
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    ends::part(stream)?;
    let mut times: Vec<_> = done.iter().flat_map(|done| &done.times).copied().collect();
    times.sort_unstable();
    let quantile = |q: f64| times[((times.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e6;
    let writes = f64::from(plan.blocks) * f64::from(plan.batches) * nics.len() as f64 / seconds;
    Ok(Figures {
        devices: all.iter().map(|end| end.nic.name().to_owned()).collect(),
        plan: *plan,
        immediate,
        dmabuf: false,
        seconds,
        writes,
        megabytes: writes * f64::from(plan.block_size) / 1e6,
        p50: quantile(0.5),
        p99: quantile(0.99),
        full: done.iter().map(|done| done.full).sum(),
        held: done.iter().map(|done| done.held).sum(),
    })
}

/// One NIC of the sender.
struct Sender<'a, D: Driver> {
    end: &'a mut End<D>,
    plan: &'a Plan,
    region: RemoteRegion,
    immediate: bool,
    stream: &'a TcpStream,
    lanes: Vec<Lane>,
    /// Batches that the receiver has taken.
    taken: u32,
    begun: Vec<Instant>,
    done: Done,
}

impl<'a, D: Driver> Sender<'a, D> {
    fn new(
        end: &'a mut End<D>,
        plan: &'a Plan,
        region: RemoteRegion,
        immediate: bool,
        stream: &'a TcpStream,
    ) -> Result<Self> {
        ensure!(region.len() >= plan.bytes()? as u64, "the receiver's memory is too small");
        let lane = Lane { busy: 0, next: 0, ended: true };
        let lanes = vec![lane; plan.qps as usize];
        let (begun, done) = (Vec::new(), Done::default());
        Ok(Self { end, plan, region, immediate, stream, lanes, taken: 0, begun, done })
    }

    fn run(mut self) -> Result<Done> {
        let mut scratch = Vec::new();
        for batch in 0..self.plan.batches {
            // The area is free when the receiver has taken the batch that was in it.
            if batch - self.taken >= self.plan.window {
                self.done.held += 1;
                self.until("the receiver", |this| batch - this.taken < this.plan.window)?;
            }
            self.end.memory.fill(self.plan, batch, &mut scratch)?;
            self.begun.push(Instant::now());
            for (first, lane) in (0..).zip(&mut self.lanes) {
                (lane.next, lane.ended) = (first, false);
            }
            while self.lanes.iter().any(|lane| !lane.ended) {
                let mut posted = false;
                for qp in 0..self.lanes.len() {
                    posted |= self.post(qp, batch)?;
                }
                if !posted {
                    self.done.full += 1;
                    let busy: u32 = self.lanes.iter().map(|lane| lane.busy).sum();
                    self.until("room in a queue", |this| {
                        this.lanes.iter().map(|lane| lane.busy).sum::<u32>() < busy
                    })?;
                }
            }
        }
        let all = self.plan.batches;
        self.until("the receiver", |this| this.taken == all)?;
        self.until("the last completions", |this| this.lanes.iter().all(|lane| lane.busy == 0))?;
        Ok(self.done)
    }

    /// Posts what has room in a queue, with one doorbell. Returns whether anything was posted.
    fn post(&mut self, qp: usize, batch: u32) -> Result<bool> {
        let Self { end, plan, region, immediate, lanes, .. } = self;
        let Plan { blocks, qps, depth, block_size, .. } = **plan;
        let lane = &mut lanes[qp];
        let left = blocks.saturating_sub(lane.next).div_ceil(qps);
        // Half of the queue for each doorbell, so that the device works while the other half is filled.
        let count = left.min(depth / 2);
        let ends = !lane.ended && count == left;
        let total = count + u32::from(ends);
        if total == 0 || lane.busy + total > depth {
            return Ok(false);
        }
        let End { qps: queues, memory, .. } = &mut **end;
        let mut list = queues[qp].sq()?.batch();
        for n in 0..count {
            let offset = plan.offset(batch, lane.next);
            let sge = memory.sge(offset, block_size as usize)?;
            let to = region.remote(offset as u64..offset as u64 + u64::from(block_size))?;
            // The last one has a completion, whose `wr_id` is the number of work requests that it completes.
            let is_last = n + 1 == count && !ends;
            let wr = list.wr(completes(qp, total));
            let wr = if is_last { wr.signaled() } else { wr };
            #[expect(unsafe_code, reason = "the device reads the entry later")]
            // SAFETY: the entry is in `memory`, which `End` drops after its QPs. The process writes to the area again only when
            // the receiver has taken the batch, which is after the WRITE.
            unsafe {
                wr.write(&[sge], to);
            }
            lane.next += qps;
        }
        if ends {
            let wr = list.wr(completes(qp, total)).signaled();
            if *immediate {
                wr.write_imm_inline(&[], region.remote(0..0)?, ImmData::new(batch));
            } else {
                wr.send_inline(&batch.to_be_bytes());
            }
            lane.ended = true;
        }
        list.complete()?;
        lane.busy += total;
        Ok(true)
    }

    /// Polls until the condition is true.
    fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<()> {
        let mut wait = Wait::new(self.stream, LIMIT);
        while !condition(self) {
            let mut wc = [WorkCompletion::default(); POLL];
            let polled = self.end.cq.poll(&mut wc)?.len();
            for wc in &wc[..polled] {
                self.completed(wc)?;
            }
            wait.polled(polled, what)?;
        }
        Ok(())
    }

    fn completed(&mut self, wc: &WorkCompletion) -> Result<()> {
        wc.status.ok().with_context(|| format!("a work request of {} failed", self.end.nic.name()))?;
        if ends::is_receive(wc) {
            let batch = self.end.received(wc)?;
            ensure!(batch == self.taken, "the receiver took batch {batch} instead of {}", self.taken);
            self.taken += 1;
            self.done.times.push(self.begun[batch as usize].elapsed());
        } else {
            let (qp, count) = ((wc.wr_id >> 32) as usize, wc.wr_id as u32);
            self.lanes[qp].busy -= count;
        }
        Ok(())
    }
}

/// The `wr_id` of a work request with a completion: the QP, and the work requests up to it.
fn completes(qp: usize, count: u32) -> u64 {
    (qp as u64) << 32 | u64::from(count)
}
