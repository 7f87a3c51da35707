// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the program `kv` does with its clients: it checks the server against a model, or measures rates and latencies.

use super::client::{Ask, Client, Outcome};
use anyhow::{Context as _, Result, anyhow, ensure};
use core::fmt::Write as _;
use core::time::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Instant;
use uverbs::Driver;

/// Keys of each client.
pub const KEYS: u32 = 8;

/// A sequence of numbers that depends on the seed only (xorshift64*).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// A sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number, below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32;
        high % end.max(1)
    }
}

pub(super) fn key(client: u32, n: u32) -> [u8; 16] {
    let mut key = *b"client..........";
    key[8..12].copy_from_slice(&client.to_be_bytes());
    key[12..].copy_from_slice(&n.to_be_bytes());
    key
}

/// A value that is different for each seed.
pub(super) fn value(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed as usize).wrapping_mul(31).wrapping_add(i) as u8).collect()
}

/// Makes `count` random requests with the keys of this client, and compares each result with that of a `HashMap`. It
/// removes its keys before and after.
///
/// # Errors
/// The connection fails, or a result differs.
pub fn check<D: Driver>(client: &mut Client<D>, number: u32, count: u32) -> Result<()> {
    let mut model: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut random = Numbers::new(u64::from(number) + 1);
    // An earlier client that was killed has left its keys.
    for n in 0..KEYS {
        client.delete(&key(number, n))?;
    }
    for step in 0..count {
        let n = random.below(KEYS);
        let at = || format!("client {number}, request {step}, key {n}");
        match random.below(4) {
            0 | 1 => {
                // Small and large values equally often.
                let most = if random.below(2) == 0 { 600 } else { client.max_value() as u32 + 1 };
                let value = value(number + step, random.below(most) as usize);
                client.put(&key(number, n), &value).with_context(at)?;
                model.insert(n, value);
            }
            2 => {
                let got = client.get(&key(number, n)).with_context(at)?;
                ensure!(got.as_deref() == model.get(&n).map(Vec::as_slice), "{}: another value", at());
            }
            _ => {
                let was_there = client.delete(&key(number, n)).with_context(at)?;
                ensure!(was_there == model.remove(&n).is_some(), "{}: removed or not", at());
            }
        }
    }
    for n in 0..KEYS {
        let got = client.get(&key(number, n))?;
        ensure!(
            got.as_deref() == model.get(&n).map(Vec::as_slice),
            "client {number}, key {n}: another value"
        );
        client.delete(&key(number, n))?;
    }
    Ok(())
}

/// The requests of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Gets.
    Get,
    /// Puts.
    Put,
}

/// The result of one measurement. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The requests.
    pub kind: Kind,
    /// Bytes of a value.
    pub bytes: usize,
    /// Requests per second, of all clients.
    pub rate: f64,
    /// Bytes of values per second, in millions.
    pub megabytes: f64,
    /// The median of the latency.
    pub p50: f64,
    /// 90 % of the requests are not slower.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The slowest request.
    pub max: f64,
}

/// A measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The device of the clients.
    pub device: String,
    /// Clients, each with its own thread and QP.
    pub clients: usize,
    /// Requests that each client has outstanding.
    pub depth: usize,
    /// Requests of each client for each row.
    pub requests: u32,
    /// Whether puts of large values have immediate data.
    pub immediate: bool,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Puts and gets values of these sizes, `requests` of each client, of which up to `depth` are outstanding.
///
/// # Errors
/// A connection fails, or the server refuses a request.
pub fn measure<D: Driver>(
    device: &str,
    clients: &mut [Client<D>],
    sizes: &[usize],
    depth: usize,
    requests: u32,
) -> Result<Figures> {
    ensure!(depth > 0 && requests > 0 && !clients.is_empty(), "nothing to measure");
    check_sizes(sizes, clients.iter().map(Client::max_value))?;
    let immediate = clients.iter().all(Client::has_immediate);
    let mut rows = Vec::new();
    for &bytes in sizes {
        for kind in [Kind::Put, Kind::Get] {
            rows.push(row(clients, kind, bytes, depth, requests)?);
        }
    }
    for (number, client) in (0..).zip(clients.iter_mut()) {
        for n in 0..KEYS {
            client.delete(&key(number, n))?;
        }
    }
    Ok(Figures { device: device.to_owned(), clients: clients.len(), depth, requests, immediate, rows })
}

/// Checks the sizes before values are made of them.
pub(super) fn check_sizes(sizes: &[usize], limits: impl Iterator<Item = usize>) -> Result<()> {
    let limit = limits.min().unwrap_or(0);
    match sizes.iter().find(|bytes| **bytes > limit) {
        Some(bytes) => Err(anyhow!("a value of {bytes} bytes is longer than {limit}")),
        None => Ok(()),
    }
}

fn row<D: Driver>(
    clients: &mut [Client<D>],
    kind: Kind,
    bytes: usize,
    depth: usize,
    requests: u32,
) -> Result<Row> {
    let start = Barrier::new(clients.len() + 1);
    let count = clients.len();
    let (latencies, seconds) = std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = (0..)
            .zip(clients.iter_mut())
            .map(|(number, client)| {
                scope.spawn(move || {
                    start.wait();
                    run(client, number, kind, bytes, depth, requests)
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        let mut all = histogram()?;
        for thread in threads {
            all.add(thread.join().map_err(|_| anyhow!("a client panicked"))??)?;
        }
        Ok::<_, anyhow::Error>((all, begin.elapsed()))
    })?;
    Ok(Row::new(kind, bytes, requests as usize * count, seconds, &latencies))
}

impl Row {
    /// From the time of `count` requests, and their latencies in nanoseconds.
    pub(super) fn new(
        kind: Kind,
        bytes: usize,
        count: usize,
        time: Duration,
        latencies: &Histogram<u64>,
    ) -> Self {
        let rate = count as f64 / time.as_secs_f64();
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let quantile = |q| micros(latencies.value_at_quantile(q));
        Self {
            kind,
            bytes,
            rate,
            megabytes: rate * bytes as f64 / 1e6,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: micros(latencies.max()),
        }
    }
}

/// Latencies from 1 ns to 100 s, with 3 digits.
pub(super) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 100_000_000_000, 3)?)
}

/// The latencies of one client's requests, in nanoseconds.
fn run<D: Driver>(
    client: &mut Client<D>,
    number: u32,
    kind: Kind,
    bytes: usize,
    depth: usize,
    requests: u32,
) -> Result<Histogram<u64>> {
    let mut latencies = histogram()?;
    let mut begun: HashMap<u32, Instant> = HashMap::new();
    let value = value(number, bytes);
    let (mut started, mut finished) = (0, 0);
    while finished < requests {
        while started < requests && begun.len() < depth {
            let key = key(number, started % KEYS);
            let ask = match kind {
                Kind::Get => Ask::Get(&key),
                Kind::Put => Ask::Put(&key, &value),
            };
            let now = Instant::now();
            let Some(id) = client.start(&ask)? else { break };
            begun.insert(id, now);
            started += 1;
        }
        let (id, outcome) = client.next_result()?.context("no request is outstanding")?;
        let since = begun.remove(&id).context("a result of no request")?;
        latencies.saturating_record(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
        match (kind, outcome) {
            (Kind::Get, Outcome::Value(got)) => ensure!(*got == *value, "another value"),
            (Kind::Get, Outcome::Done) => ensure!(bytes == 0, "another value"),
            (Kind::Put, Outcome::Done) => {}
            (_, other) => return Err(anyhow!("{kind:?}: {other:?}")),
        }
        finished += 1;
    }
    Ok(latencies)
}

impl Figures {
    /// A table.
    #[must_use]
    pub fn table(&self) -> String {
        let Self { device, clients, depth, requests, immediate, rows } = self;
        let way = if *immediate { "WRITE_WITH_IMM" } else { "WRITE and SEND" };
        let mut text = format!(
            "{clients} clients on {device}, each with {requests} requests, {depth} outstanding; large puts by {way}\n"
        );
        text += "request    bytes   requests/s       MB/s   p50 us   p90 us   p99 us  p99.9 us    max us\n";
        for Row { kind, bytes, rate, megabytes, p50, p90, p99, p999, max } in rows {
            let kind = if *kind == Kind::Get { "get" } else { "put" };
            let _ = writeln!(
                text,
                "{kind:<7} {bytes:>8} {rate:>12.0} {megabytes:>10.1} {p50:>8.1} {p90:>8.1} {p99:>8.1} {p999:>9.1} {max:>9.1}"
            );
        }
        text
    }
}
