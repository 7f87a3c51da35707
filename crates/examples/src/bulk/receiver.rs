// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver: a task for each lane, which opens areas to it, and takes the batches that arrive there.

use super::Plan;
use super::area::{Area, Failure, Kind, WrongData};
use super::control::{Control, LIMIT, Notice};
use super::lanes::{self, Lane, Way};
use super::proto::{Finished, Grant};
use crate::nic::Nic;
use anyhow::{Context as _, Error, Result, bail, ensure};
use core::convert::Infallible;
use core::pin::pin;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use uverbs::attr::QpState;

#[derive(Debug)]
struct State {
    /// Which batches were taken, and how many.
    taken: Vec<bool>,
    count: u32,
    /// Areas of lanes that have failed.
    spare: Vec<Area>,
}

#[derive(Debug)]
struct Receiver {
    plan: Plan,
    state: Mutex<State>,
    /// There is a spare area.
    spare: Notify,
    /// A batch was taken.
    progress: Notify,
}

impl Receiver {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch has arrived, and its data were right.
    fn taken(&self, batch: u32) {
        let state = &mut *self.state();
        // One whose first grant was lost arrives twice.
        if !core::mem::replace(&mut state.taken[batch as usize], true) {
            state.count += 1;
            self.progress.notify_one();
        }
    }

    /// Opens an area to a lane.
    async fn grant(
        &self,
        lane: &Lane,
        area: Area,
        taken: Option<u32>,
        open: &mut HashMap<u32, Area>,
    ) -> Result<(), Failure> {
        let (area, region) = area.open(lane).await?;
        let grant = Grant { area: area.number(), taken, region };
        open.insert(area.number(), area);
        let told = lane.qp.tell(&grant.encode()).await;
        told.map_err(|error| Failure { error: error.into(), area: None })
    }

    /// Takes the batch of an area.
    async fn take(&self, lane: &Lane, message: &[u8], open: &mut HashMap<u32, Area>) -> Result<(), Failure> {
        let wrong = |error| Failure { error, area: None };
        let finished = Finished::decode(message).filter(|finished| finished.batch < self.plan.batches);
        let Some(Finished { area, batch }) = finished else {
            return Err(wrong(anyhow::anyhow!("the sender sent an invalid message")));
        };
        let area = open.remove(&area).context("the sender used an area that is not open").map_err(wrong)?;
        // From here on the sender can't change it.
        let area = area.revoke(lane).await?;
        if let Err(error) = area.check(&self.plan, batch) {
            return Err(Failure { error: error.context(format!("on {}", lane.nic)), area: Some(area) });
        }
        self.taken(batch);
        self.grant(lane, area, Some(batch), open).await
    }

    /// Serves a lane until it fails. Areas that are not open are in `idle`.
    async fn work(
        &self,
        lane: &Lane,
        idle: &mut Vec<Area>,
        open: &mut HashMap<u32, Area>,
    ) -> Result<Infallible, Failure> {
        let failed = |error: uverbs_aio::Error| Failure { error: error.into(), area: None };
        // On iWARP, the side that has connected sends the first message.
        lane.qp.recv().await.map_err(failed)?;
        loop {
            while let Some(area) = idle.pop() {
                self.grant(lane, area, None, open).await?;
            }
            tokio::select! {
                message = lane.qp.recv() => self.take(lane, &message.map_err(failed)?, open).await?,
                () = self.spare.notified() => idle.append(&mut self.state().spare),
            }
        }
    }

    /// Serves a lane until it fails, and gives its areas to the others.
    async fn serve(
        self: Arc<Self>,
        lane: Arc<Lane>,
        mut idle: Vec<Area>,
        stop: Arc<Notify>,
    ) -> (u32, String, Error) {
        let mut open = HashMap::new();
        let Err(Failure { mut error, area }) = {
            let mut work = pin!(self.work(&lane, &mut idle, &mut open));
            tokio::select! {
                failure = &mut work => failure,
                () = stop.notified() => {
                    // It ends with an error, and does not wait until the device gives up: what is in flight is flushed.
                    _ = lane.qp.control().modify_state(QpState::ERR);
                    work.await.map_err(|failure| failure.of_peer())
                }
            }
        };
        // First the lane's access ends, then others get the areas.
        _ = lane.qp.control().modify_state(QpState::ERR);
        let mut spare = Vec::new();
        for area in idle.into_iter().chain(open.into_values()).chain(area).filter(Area::is_portable) {
            match area.close() {
                Ok(area) => spare.push(area),
                Err(lost) => error = error.context(format!("an area is lost: {lost:#}")),
            }
        }
        self.state().spare.append(&mut spare);
        self.spare.notify_one();
        (lane.number, lane.nic.clone(), error)
    }
}

/// Receives all batches from the sender behind `stream`, and checks the data. Returns the lanes that have failed.
///
/// # Errors
/// A device can't be used, all lanes have failed, the sender ends early, or data are wrong.
pub fn receive(nics: &[Nic], plan: &Plan, kind: Kind, stream: TcpStream, way: &Way) -> Result<Vec<String>> {
    plan.bytes()?;
    let mut ports = lanes::ports(nics, plan)?;
    ports.iter_mut().for_each(|port| port.has_windows &= kind == Kind::Windows);
    let areas = Area::all(&ports, plan, kind)?;
    let lanes = lanes::accept(&ports, &stream, plan, way)?;
    let state = State { taken: vec![false; plan.batches as usize], count: 0, spare: Vec::new() };
    let receiver = Arc::new(Receiver {
        plan: *plan,
        state: Mutex::new(state),
        spare: Notify::new(),
        progress: Notify::new(),
    });
    super::runtime(nics.len())?.block_on(run(&receiver, lanes, areas, stream))
}

async fn run(
    receiver: &Arc<Receiver>,
    lanes: Vec<Arc<Lane>>,
    areas: Vec<Vec<Area>>,
    stream: TcpStream,
) -> Result<Vec<String>> {
    let mut control = Control::new(stream)?;
    let stops: Vec<_> = lanes.iter().map(|_| Arc::new(Notify::new())).collect();
    let (mut tasks, mut failed) = (JoinSet::new(), Vec::new());
    let mut areas = areas.into_iter().flatten();
    for (lane, stop) in lanes.into_iter().zip(&stops) {
        let own = areas.by_ref().take(receiver.plan.window as usize).collect();
        tasks.spawn(receiver.clone().serve(lane, own, stop.clone()));
    }
    let mut limit = Instant::now() + LIMIT;
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next() => {
                let (lane, nic, error) = ended?;
                if error.is::<WrongData>() {
                    return Err(error);
                }
                control.failed(lane).await;
                failed.push(format!("lane {lane} of {nic}: {error:#}"));
                ensure!(!tasks.is_empty(), "all lanes have failed: {}", failed.join("; "));
            }
            notice = control.next() => match notice? {
                Notice::Failed(lane) => stops.get(lane as usize).context("a lane that does not exist")?.notify_one(),
                Notice::Complete => {
                    ensure!(receiver.state().count == receiver.plan.batches, "the sender ends early");
                    break;
                }
            },
            () = receiver.progress.notified() => limit = Instant::now() + LIMIT,
            () = tokio::time::sleep_until(limit.into()) => bail!("no batch has arrived for {LIMIT:?}"),
        }
    }
    control.complete(true).await?;
    Ok(failed)
}
