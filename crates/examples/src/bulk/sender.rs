// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sender: a task for each lane, and one for each batch that is on its way.

use super::control::{Control, LIMIT, Notice};
use super::lanes::{self, Lane, Way};
use super::proto::{Finished, Grant, pattern};
use super::{Figures, Plan};
use crate::nic::Nic;
use anyhow::{Context as _, Error, Result, bail, ensure};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use uverbs::{Pool, SharedBuf};

/// A batch that was begun, and not taken by the receiver.
#[derive(Debug)]
struct Batch {
    /// Its data, from its first transfer on.
    data: Option<SharedBuf>,
    /// The lane on which it is.
    lane: u32,
    begun: Instant,
}

#[derive(Debug)]
struct State {
    /// The next batch that was never sent.
    next: u32,
    /// Those of lanes that have failed.
    again: VecDeque<u32>,
    begun: HashMap<u32, Batch>,
    /// The times of those that the receiver has taken.
    times: Vec<Duration>,
    resent: u32,
}

#[derive(Debug)]
struct Sender {
    plan: Plan,
    pool: Pool,
    state: Mutex<State>,
    /// A batch can be sent again, or all were taken.
    changed: Notify,
    /// A batch was taken.
    progress: Notify,
}

impl Sender {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch for a lane, with its data if it was sent before. `None` if all were taken.
    async fn next(&self, lane: u32) -> Option<(u32, Option<SharedBuf>)> {
        loop {
            // It is there before the state is read, so no change is missed.
            let changed = self.changed.notified();
            {
                let state = &mut *self.state();
                while let Some(batch) = state.again.pop_front() {
                    // It may have been taken meanwhile: only the grant was late.
                    if let Some(begun) = state.begun.get_mut(&batch) {
                        begun.lane = lane;
                        state.resent += 1;
                        return Some((batch, begun.data.clone()));
                    }
                }
                if state.next < self.plan.batches {
                    let batch = state.next;
                    state.next += 1;
                    state.begun.insert(batch, Batch { data: None, lane, begun: Instant::now() });
                    return Some((batch, None));
                }
                if state.begun.is_empty() {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// The receiver has taken a batch.
    fn taken(&self, batch: u32) {
        let state = &mut *self.state();
        // It is told twice if the batch was sent twice.
        if let Some(Batch { begun, .. }) = state.begun.remove(&batch) {
            state.times.push(begun.elapsed());
            self.progress.notify_one();
            if self.is_complete(state) {
                self.changed.notify_waiters();
            }
        }
    }

    fn is_complete(&self, state: &State) -> bool {
        state.next == self.plan.batches && state.begun.is_empty()
    }

    /// A lane has failed: its batches are sent again.
    fn failed(&self, lane: u32) {
        let State { begun, again, .. } = &mut *self.state();
        let mut lost: Vec<u32> =
            begun.iter().filter(|(_, b)| b.lane == lane).map(|(batch, _)| *batch).collect();
        lost.sort_unstable();
        again.extend(lost.into_iter().filter(|batch| !again.contains(batch)).collect::<Vec<_>>());
        self.changed.notify_waiters();
    }

    /// A buffer with the data of a batch.
    async fn filled(&self, batch: u32) -> Result<SharedBuf> {
        let mut buf = self.pool.acquire_async().await?;
        let (size, len) = (self.plan.block_size as usize, self.plan.checked(batch));
        for (number, block) in (0..self.plan.blocks).zip(buf.chunks_exact_mut(size)) {
            pattern(&mut block[..len], batch, number);
        }
        let data = buf.share();
        if let Some(begun) = self.state().begun.get_mut(&batch) {
            begun.data = Some(data.clone());
        }
        Ok(data)
    }

    /// Writes the next batch to an area.
    async fn transfer(&self, lane: &Lane, grant: Grant) -> Result<()> {
        let Some((batch, data)) = self.next(lane.number).await else { return Ok(()) };
        let data = match data {
            Some(data) => data,
            None => self.filled(batch).await?,
        };
        let size = u64::from(self.plan.block_size);
        let mut parts = Vec::with_capacity(self.plan.blocks as usize);
        for block in 0..u64::from(self.plan.blocks) {
            let range = block * size..(block + 1) * size;
            let part = data.slice(range.start as usize..range.end as usize)?;
            parts.push((part, grant.region.slice(range)?));
        }
        let mut message = lane.messages.acquire_async().await?;
        message.fill(&Finished { area: grant.area, batch }.encode())?;
        lane.qp.write_and_tell(parts, message).await
    }

    /// Serves a lane until it fails.
    async fn serve(self: Arc<Self>, lane: Arc<Lane>, stop: Arc<Notify>) -> (u32, String, Error) {
        let mut transfers: JoinSet<Result<()>> = JoinSet::new();
        let error = loop {
            let step = async {
                tokio::select! {
                    message = lane.qp.recv() => {
                        let grant = Grant::decode(&message?).context("the receiver sent an invalid grant")?;
                        let is_long = grant.region.len() >= u64::from(self.plan.bytes()?);
                        ensure!(is_long, "the receiver granted too little memory");
                        Ok(Some(grant))
                    }
                    Some(ended) = transfers.join_next() => ended?.map(|()| None),
                    () = stop.notified() => bail!("the other side has lost it"),
                }
            };
            match step.await {
                Ok(Some(grant)) => {
                    if let Some(batch) = grant.taken {
                        self.taken(batch);
                    }
                    let (this, lane) = (self.clone(), lane.clone());
                    transfers.spawn(async move { this.transfer(&lane, grant).await });
                }
                Ok(None) => {}
                Err(error) => break error,
            }
        };
        // Their futures are dropped. What the device of this side has in flight ends with the QP; what is late at the other side finds
        // a window that was closed.
        transfers.shutdown().await;
        self.failed(lane.number);
        (lane.number, lane.nic.clone(), error)
    }
}

/// Sends all batches to the receiver behind `stream`.
///
/// # Errors
/// A device can't be used, all lanes have failed, or the receiver ends early.
pub fn send(nics: &[Nic], plan: &Plan, stream: TcpStream, way: &Way) -> Result<Figures> {
    let size = plan.bytes()?;
    let ports = lanes::ports(nics, plan)?;
    let lanes = lanes::connect(&ports, &stream, plan, way)?;
    let (first, others) = ports.split_first().context("no NIC")?;
    // A buffer for each area, and those of a NIC that was lost, until its QPs have ended.
    let mut pool = first.pd.pool_with(plan.areas() * (nics.len() as u32 + 1), size);
    for port in others {
        pool = pool.also_in(&port.pd);
    }
    let state =
        State { next: 0, again: VecDeque::new(), begun: HashMap::new(), times: Vec::new(), resent: 0 };
    let sender = Arc::new(Sender {
        plan: *plan,
        pool: pool.build()?,
        state: Mutex::new(state),
        changed: Notify::new(),
        progress: Notify::new(),
    });
    let begin = Instant::now();
    let failed = super::runtime(nics.len())?.block_on(run(&sender, lanes, stream))?;
    let seconds = begin.elapsed().as_secs_f64();
    let State { times, resent, .. } = &mut *sender.state();
    times.sort_unstable();
    let quantile = |q: f64| times[((times.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e6;
    let writes = f64::from(plan.blocks) * f64::from(plan.batches) / seconds;
    Ok(Figures {
        devices: nics.iter().map(|nic| nic.name().to_owned()).collect(),
        plan: *plan,
        seconds,
        writes,
        megabytes: writes * f64::from(plan.block_size) / 1e6,
        p50: quantile(0.5),
        p99: quantile(0.99),
        failed,
        again: *resent,
    })
}

/// Sends all batches. Returns the lanes that have failed.
async fn run(sender: &Arc<Sender>, lanes: Vec<Arc<Lane>>, stream: TcpStream) -> Result<Vec<String>> {
    let mut control = Control::new(stream)?;
    let stops: Vec<_> = lanes.iter().map(|_| Arc::new(Notify::new())).collect();
    let (mut tasks, mut failed) = (JoinSet::new(), Vec::new());
    for (lane, stop) in lanes.into_iter().zip(&stops) {
        // On iWARP, the side that has connected sends the first message.
        lane.qp.tell(b"").await?;
        tasks.spawn(sender.clone().serve(lane, stop.clone()));
    }
    let mut limit = Instant::now() + LIMIT;
    while !sender.is_complete(&sender.state()) {
        tokio::select! {
            Some(ended) = tasks.join_next() => {
                let (lane, nic, error) = ended?;
                control.failed(lane).await;
                failed.push(format!("lane {lane} of {nic}: {error:#}"));
                ensure!(!tasks.is_empty(), "all lanes have failed: {}", failed.join("; "));
            }
            notice = control.next() => match notice? {
                Notice::Failed(lane) => stops.get(lane as usize).context("a lane that does not exist")?.notify_one(),
                Notice::Complete => bail!("the receiver ends early"),
            },
            () = sender.progress.notified() => limit = Instant::now() + LIMIT,
            () = tokio::time::sleep_until(limit.into()) => bail!("no batch was taken for {LIMIT:?}"),
        }
    }
    control.complete(false).await?;
    Ok(failed)
}
