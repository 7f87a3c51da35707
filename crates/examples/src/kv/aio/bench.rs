// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the program `kv` does with asynchronous clients: it checks the server against a model, or measures rates and
//! latencies.

use super::Client;
use crate::kv::bench::{Figures, KEYS, Kind, Numbers, Row, check_sizes, histogram, key, value};
use crate::kv::client::{Ask, Outcome};
use anyhow::{Result, bail, ensure};
use std::collections::HashMap;
use std::time::Instant;
use tokio::task::JoinSet;
use uverbs::Driver;

/// As [`check`](crate::kv::bench::check), with futures.
///
/// # Errors
/// The connection fails, or a result differs.
pub async fn check<D: Driver>(client: &mut Client<D>, number: u32, count: u32) -> Result<()> {
    let mut model: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut random = Numbers::new(u64::from(number) + 1);
    for n in 0..KEYS {
        client.ask(&Ask::Delete(&key(number, n))).await?;
    }
    for step in 0..count {
        let n = random.below(KEYS);
        let key = key(number, n);
        let is_right = match random.below(4) {
            0 | 1 => {
                let most = if random.below(2) == 0 { 600 } else { client.max_value() as u32 + 1 };
                let value = value(number + step, random.below(most) as usize);
                let outcome = client.ask(&Ask::Put(&key, &value)).await?;
                model.insert(n, value);
                matches!(outcome, Outcome::Done)
            }
            2 => match client.ask(&Ask::Get(&key)).await? {
                Outcome::Value(got) => model.get(&n).is_some_and(|value| **value == *got),
                Outcome::Done => model.get(&n).is_some_and(Vec::is_empty),
                Outcome::NotFound => !model.contains_key(&n),
                Outcome::Refused(status) => bail!("get: {status:?}"),
            },
            _ => match client.ask(&Ask::Delete(&key)).await? {
                Outcome::Done => model.remove(&n).is_some(),
                Outcome::NotFound => !model.contains_key(&n),
                other => bail!("delete: {other:?}"),
            },
        };
        ensure!(is_right, "client {number}, request {step}, key {n}: another result");
    }
    for n in 0..KEYS {
        client.ask(&Ask::Delete(&key(number, n))).await?;
    }
    Ok(())
}

/// As [`measure`](crate::kv::bench::measure), with a task for each client, which has one request outstanding.
///
/// # Errors
/// A connection fails, or the server refuses a request.
pub async fn measure<D: Driver>(
    device: &str,
    mut clients: Vec<Client<D>>,
    sizes: &[usize],
    requests: u32,
) -> Result<Figures> {
    ensure!(requests > 0 && !clients.is_empty(), "nothing to measure");
    check_sizes(sizes, clients.iter().map(Client::max_value))?;
    let (count, immediate) = (clients.len(), clients.iter().all(|client| client.immediate()));
    let mut rows = Vec::new();
    for &bytes in sizes {
        for kind in [Kind::Put, Kind::Get] {
            let begin = Instant::now();
            let mut tasks = JoinSet::new();
            for (number, client) in (0..).zip(clients.drain(..)) {
                tasks.spawn(run(client, number, kind, bytes, requests));
            }
            let mut all = histogram()?;
            while let Some(task) = tasks.join_next().await {
                let (client, latencies) = task??;
                all.add(latencies)?;
                clients.push(client);
            }
            rows.push(Row::new(kind, bytes, requests as usize * count, begin.elapsed(), &all));
        }
    }
    Ok(Figures { device: device.to_owned(), clients: count, depth: 1, requests, immediate, rows })
}

async fn run<D: Driver>(
    mut client: Client<D>,
    number: u32,
    kind: Kind,
    bytes: usize,
    requests: u32,
) -> Result<(Client<D>, hdrhistogram::Histogram<u64>)> {
    let (mut latencies, value) = (histogram()?, value(bytes as u32, bytes));
    for n in 0..requests {
        let key = key(number, n % KEYS);
        let begin = Instant::now();
        let outcome = match kind {
            Kind::Get => client.ask(&Ask::Get(&key)).await?,
            Kind::Put => client.ask(&Ask::Put(&key, &value)).await?,
        };
        latencies.saturating_record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        match (kind, outcome) {
            (Kind::Get, Outcome::Value(got)) => ensure!(*got == *value, "another value"),
            (Kind::Get, Outcome::Done) => ensure!(bytes == 0, "another value"),
            (Kind::Put, Outcome::Done) => {}
            (_, other) => bail!("{kind:?}: {other:?}"),
        }
    }
    Ok((client, latencies))
}
