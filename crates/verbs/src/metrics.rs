// SPDX-License-Identifier: MIT OR Apache-2.0
//! The [counters](crate::counters) for a recorder of the facade [`metrics`](https://docs.rs/metrics) (feature `metrics`).
//!
//! Posts and polls call no recorder. A program publishes the present values when it wants them to be seen, for example before it answers
//! a scraper, or in a thread every few seconds:
//!
//! ```
//! # use uverbs::{Context, mlx5::Mlx5};
//! # use uverbs_hca::Hca;
//! # fn main() -> uverbs::Result<()> {
//! # let ctx = Context::<Mlx5>::from_kernel(Hca::new().open())?;
//! # let pool = ctx.alloc_pd()?.pool(4, 4096)?;
//! uverbs::metrics::describe();
//! uverbs::metrics::publish(&ctx)?;
//! uverbs::metrics::publish_pool("messages", &pool);
//! # Ok(())
//! # }
//! ```
//!
//! | name | kind | labels | |
//! |---|---|---|---|
//! | `uverbs_{posts,doorbells,completed,full,refused,errors,flushed,rnr}_total` | counter | `device`, `queue` | sums of [`Context::counters`]; `queue` is `send` or `recv` |
//! | `uverbs_cq_{completions,errors}_total` | counter | `device` | of all CQs |
//! | `uverbs_qp_{posts,doorbells,..}` | gauge | `device`, `qp_num`, `queue` | of each QP that exists |
//! | `uverbs_srq_{posts,..}` | gauge | `device`, `srq` | of each SRQ that exists, by the kernel's handle |
//! | `uverbs_pool_{buffers,available}` | gauge | `pool` | of [`Pool::counters`] |
//! | `uverbs_pool_{empty,waits,timeouts}_total` | counter | `pool` | |
//!
//! Those of a QP are gauges, because a later QP may have its number and begins at 0. A recorder keeps a series for each number: a program
//! with many QPs that come and go publishes the [sums](publish_sums) only.

use crate::access::Access;
use crate::context::Context;
use crate::counters::{CqCounters, PoolCounters, QueueCounters};
use crate::pool::Pool;
use ::metrics::{counter, describe_counter, describe_gauge, gauge};
use std::collections::BTreeMap;
use uverbs_core::error::Result;
use uverbs_core::provider::{Driver, QueueKind};

/// Describes all of them to the recorder. Call it after the recorder is installed.
pub fn describe() {
    for (name, what, _) in QueueCounters::default().iter() {
        describe_counter!(format!("uverbs_{name}_total"), what);
        describe_gauge!(format!("uverbs_qp_{name}"), what);
        describe_gauge!(format!("uverbs_srq_{name}"), what);
    }
    for (name, what, _) in CqCounters::default().iter() {
        describe_counter!(format!("uverbs_cq_{name}_total"), what);
    }
    describe_gauge!("uverbs_pool_buffers", "The buffers of the pool.");
    describe_gauge!("uverbs_pool_available", "Those that are not lent.");
    describe_counter!("uverbs_pool_empty_total", "Calls that have found no buffer.");
    describe_counter!("uverbs_pool_waits_total", "Calls and futures that have waited for a buffer.");
    describe_counter!("uverbs_pool_timeouts_total", "Calls that got no buffer in time.");
}

/// Publishes the sums of a context, and the counters of its QPs and SRQs.
///
/// If a program has several contexts of a device, it passes all of them to [`publish_sums`], because their labels are the same.
///
/// # Errors
/// As [`Context::counters`].
pub fn publish<D: Driver>(context: &Context<D>) -> Result<()> {
    publish_sums([context])?;
    publish_queues(context)
}

/// Publishes the sums of contexts, by device.
///
/// # Errors
/// As [`Context::counters`].
pub fn publish_sums<'a, D: Driver>(contexts: impl IntoIterator<Item = &'a Context<D>>) -> Result<()> {
    let mut devices = BTreeMap::<_, crate::ContextCounters>::new();
    for context in contexts {
        let (sums, more) = (devices.entry(context.name()).or_default(), context.counters()?);
        sums.send.add(&more.send);
        sums.recv.add(&more.recv);
        sums.cq.add(&more.cq);
    }
    for (device, sums) in devices {
        for (queue, counters) in [("send", sums.send), ("recv", sums.recv)] {
            for (name, _, value) in counters.iter() {
                let device = device.to_owned();
                counter!(format!("uverbs_{name}_total"), "device" => device, "queue" => queue)
                    .absolute(value);
            }
        }
        for (name, _, value) in sums.cq.iter() {
            counter!(format!("uverbs_cq_{name}_total"), "device" => device.to_owned()).absolute(value);
        }
    }
    Ok(())
}

/// Publishes the counters of each QP and SRQ of a context.
///
/// # Errors
/// As [`Context::counters`].
pub fn publish_queues<D: Driver>(context: &Context<D>) -> Result<()> {
    for (queue, counters) in context.queue_counters()? {
        for (name, _, value) in counters.iter() {
            let device = context.name().to_owned();
            match queue.kind() {
                QueueKind::Send | QueueKind::Recv => {
                    let label = if queue.kind() == QueueKind::Send { "send" } else { "recv" };
                    let qp_num = format!("{:#x}", queue.number());
                    gauge!(format!("uverbs_qp_{name}"), "device" => device, "qp_num" => qp_num, "queue" => label)
                        .set(value as f64);
                }
                _ => gauge!(format!("uverbs_srq_{name}"), "device" => device, "srq" => queue.number().to_string())
                    .set(value as f64),
            }
        }
    }
    Ok(())
}

/// Publishes the counters of a pool, with this name as label.
pub fn publish_pool<A: Access, D: Driver>(name: &str, pool: &Pool<A, D>) {
    let PoolCounters { buffers, available, empty, waits, timeouts } = pool.counters();
    let pool = || name.to_owned();
    gauge!("uverbs_pool_buffers", "pool" => pool()).set(buffers as f64);
    gauge!("uverbs_pool_available", "pool" => pool()).set(available as f64);
    counter!("uverbs_pool_empty_total", "pool" => pool()).absolute(empty);
    counter!("uverbs_pool_waits_total", "pool" => pool()).absolute(waits);
    counter!("uverbs_pool_timeouts_total", "pool" => pool()).absolute(timeouts);
}
