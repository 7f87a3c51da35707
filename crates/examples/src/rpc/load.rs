// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program for the server, and clients that compare each answer with the one that is right.

use super::wire::MAX_BODY;
use super::{CallError, Client};
use anyhow::{Result, anyhow};
use core::fmt;
use core::time::Duration;
use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::task::JoinSet;

/// Bytes at the beginning of a request: how long it is executed, the number of the client and of the call.
const HEAD: usize = 12;

/// The program of the server: waits as long as the request says, and answers with the complement of its bytes.
pub async fn execute(mut body: Vec<u8>) -> Vec<u8> {
    if let Some(millis) =
        body.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).filter(|millis| *millis > 0)
    {
        tokio::time::sleep(Duration::from_millis(millis.into())).await;
    }
    complement(&mut body);
    body
}

/// Eight bytes at a time: without optimisation, byte by byte takes more time than the calls.
fn complement(bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut();
    for word in words {
        *word = (!u64::from_ne_bytes(*word)).to_ne_bytes();
    }
    rest.iter_mut().for_each(|byte| *byte = !*byte);
}

/// A request that is executed for this time. No two of them are equal.
#[must_use]
pub fn request(time: Duration, client: u32, call: u32) -> Vec<u8> {
    let len = HEAD + (call as usize * 97 + client as usize) % (MAX_BODY - HEAD + 1);
    let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let fill: [u8; 256] = core::array::from_fn(|n| ((n as u32).wrapping_mul(client + 3) ^ call) as u8);
    let mut request = [millis, client, call].map(u32::to_le_bytes).concat();
    while request.len() < len {
        let more = fill.len().min(len - request.len());
        request.extend_from_slice(&fill[..more]);
    }
    request
}

/// Whether an answer is that of the request.
#[must_use]
pub fn is_right(request: &[u8], answer: &[u8]) -> bool {
    let mut right = request.to_vec();
    complement(&mut right);
    right == answer
}

/// The outcomes of calls.
#[derive(Clone)]
pub struct Figures {
    /// Calls with the right answer.
    pub right: u64,
    /// Calls with another one.
    pub wrong: u64,
    /// Calls that were not answered in time.
    pub late: u64,
    /// Calls whose connection ended.
    pub lost: u64,
    /// Calls whose client has ended.
    pub ended: u64,
    /// The microseconds of the calls with the right answer.
    pub micros: Histogram<u64>,
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { right, wrong, late, lost, ended, micros } = self;
        let most = micros.max();
        write!(f, "{right} right, {wrong} wrong, {late} late, {lost} lost, {ended} ended, at most {most} us")
    }
}

impl Figures {
    fn new() -> Result<Self> {
        Ok(Self { right: 0, wrong: 0, late: 0, lost: 0, ended: 0, micros: Histogram::new(3)? })
    }

    /// All calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.right + self.wrong + self.late + self.lost + self.ended
    }
}

/// Makes calls from all clients at the same time, with this number outstanding for each, and compares the answers.
///
/// # Errors
/// A task has panicked.
pub async fn run(
    clients: &[Arc<Client>],
    calls: u32,
    outstanding: u32,
    limit: Duration,
    time: fn(u32) -> Duration,
) -> Result<Figures> {
    let mut tasks = JoinSet::new();
    // One for all tasks: to add up their histograms would take more time than to record the calls.
    let all = Arc::new(Mutex::new(Figures::new()?));
    for (number, client) in (0..).zip(clients) {
        for part in 0..outstanding {
            let (client, all) = (client.clone(), Arc::clone(&all));
            tasks.spawn(async move {
                for call in (part..calls).step_by(outstanding as usize) {
                    let request = request(time(call), number, call);
                    let begin = Instant::now();
                    let outcome = client.call(&request, limit).await;
                    let time = begin.elapsed();
                    let is_right = outcome.as_ref().is_ok_and(|answer| is_right(&request, answer));
                    let mut figures = all.lock().map_err(|_| anyhow!("a task has panicked"))?;
                    match outcome {
                        Ok(_) if is_right => {
                            figures.right += 1;
                            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                            figures.micros.record(micros)?;
                        }
                        Ok(_) => figures.wrong += 1,
                        Err(CallError::Deadline) => figures.late += 1,
                        Err(CallError::Ended(_)) => figures.ended += 1,
                        Err(_) => figures.lost += 1,
                    }
                }
                anyhow::Ok(())
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let figures = all.lock().map_err(|_| anyhow!("a task has panicked"))?;
    Ok(figures.clone())
}
