// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop of a ping-pong, for any transport, from the first send to the last completion.

use super::completions::Completions;
use super::ledger::{Ledger, RECV_WRID};
use super::timestamps::Timestamps;
use crate::patience::Patience;
use anyhow::{Context as _, Result, bail};
use core::time::Duration;
use std::time::Instant;
use uverbs::{Driver, Endpoint, WorkCompletion};

/// The queues of a transport.
pub(crate) trait Queues {
    /// The QPs' numbers, in the order of their endpoints.
    fn qp_nums(&self) -> Vec<u32>;
    /// The number of endpoints that are exchanged; those beyond the number of QPs are zeros.
    fn num_endpoints(&self) -> usize;
    /// Brings all QPs from INIT to RTS, connected to the remote ones.
    fn connect(&mut self, local: &[Endpoint], remote: &[Endpoint]) -> Result<()>;
    /// Posts receives.
    fn post_recv(&mut self, count: u32) -> Result<()>;
    /// Sends the message on one of the QPs.
    fn post_send(&mut self, index: usize) -> Result<()>;
    /// Destroys them.
    fn close(self) -> Result<()>;
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) iters: u32,
    pub(crate) rx_depth: u32,
    pub(crate) is_client: bool,
    /// The value at which the device's clock wraps around, if timestamps are requested.
    pub(crate) timestamp_mask: Option<u64>,
}

/// The results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) elapsed: Duration,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) events: u64,
}

/// Exchanges messages until the requested number was sent and received. `rx_depth` receives are already posted, and the
/// queue is armed.
pub(crate) fn play<D: Driver, Q: Queues>(
    plan: &Plan,
    completions: &mut Completions<D>,
    queues: &mut Q,
    patience: &mut Patience,
) -> Result<Outcome> {
    let qp_nums = queues.qp_nums();
    let mut ledger = Ledger::new(qp_nums.len(), plan.rx_depth, plan.iters, plan.is_client);
    let mut timestamps = plan.timestamp_mask.map(Timestamps::new);
    let mut batch = Vec::new();
    if plan.is_client {
        (0..qp_nums.len()).try_for_each(|index| queues.post_send(index))?;
    }
    let start = Instant::now();
    while !ledger.is_done() {
        completions.wait(patience, &mut batch).with_context(|| ledger.progress())?;
        count(&batch, &qp_nums, &mut ledger, &mut timestamps, queues)?;
        patience.renew();
    }
    Ok(Outcome { elapsed: start.elapsed(), timestamps, events: completions.events })
}

/// Counts completions, up to the last one of the run, and posts what follows from them.
fn count(
    batch: &[(WorkCompletion, Option<u64>)],
    qp_nums: &[u32],
    ledger: &mut Ledger,
    timestamps: &mut Option<Timestamps>,
    queues: &mut impl Queues,
) -> Result<()> {
    for (wc, ticks) in batch {
        // The peer ends a connection of rdma_cm when its run is done, which flushes the receives that are left.
        if ledger.is_done() {
            break;
        }
        check(wc).with_context(|| ledger.progress())?;
        let Some(index) = qp_nums.iter().position(|n| *n == wc.qp_num) else {
            bail!("completion of the unknown QP {:#08x}", wc.qp_num);
        };
        if let (RECV_WRID, Some(stats), Some(ticks)) = (wc.wr_id, timestamps.as_mut(), ticks) {
            stats.received(*ticks);
        }
        let next = ledger.completed(index, wc.wr_id)?;
        if next.recvs != 0 {
            queues.post_recv(next.recvs)?;
        }
        if next.send {
            queues.post_send(index)?;
        }
    }
    Ok(())
}

/// A completion with an error ends the run.
fn check(wc: &WorkCompletion) -> Result<()> {
    if wc.status.is_success() {
        return Ok(());
    }
    bail!(
        "completion with error {:?}: {}, wr_id {}, qp {:#08x}, vendor_err {:#x}",
        wc.status,
        wc.status,
        wc.wr_id,
        wc.qp_num,
        wc.vendor_err
    );
}

#[cfg(test)]
mod tests {
    use super::super::ledger::SEND_WRID;
    use super::*;
    use uverbs::WcStatus;

    /// Queues that take every post.
    struct Open;

    impl Queues for Open {
        fn qp_nums(&self) -> Vec<u32> {
            vec![7]
        }
        fn num_endpoints(&self) -> usize {
            1
        }
        fn connect(&mut self, _: &[Endpoint], _: &[Endpoint]) -> Result<()> {
            Ok(())
        }
        fn post_recv(&mut self, _: u32) -> Result<()> {
            Ok(())
        }
        fn post_send(&mut self, _: usize) -> Result<()> {
            Ok(())
        }
        fn close(self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn receives_that_are_flushed_after_the_run_are_no_error() {
        let completed =
            |wr_id, status| (WorkCompletion { wr_id, status, qp_num: 7, ..WorkCompletion::default() }, None);
        let (sent, received) =
            (completed(SEND_WRID, WcStatus::SUCCESS), completed(RECV_WRID, WcStatus::SUCCESS));
        let flushed = completed(RECV_WRID, WcStatus::WR_FLUSH_ERR);
        let run = |batch: &[_]| {
            let mut ledger = Ledger::new(1, 3, 1, true);
            count(batch, &Open.qp_nums(), &mut ledger, &mut None, &mut Open).map(|()| ledger.is_done())
        };
        assert!(run(&[sent, received, flushed, flushed]).unwrap());
        let error = run(&[sent, flushed]).unwrap_err();
        assert_eq!(error.to_string(), "1 of 1 sent, 0 received");
    }

    #[test]
    fn an_error_names_status_id_and_qp() {
        let wc = WorkCompletion {
            wr_id: 2,
            status: WcStatus::RETRY_EXC_ERR,
            qp_num: 0x11,
            vendor_err: 0x81,
            ..WorkCompletion::default()
        };
        assert_eq!(
            check(&wc).unwrap_err().to_string(),
            "completion with error RETRY_EXC_ERR: transport retry counter exceeded (12), wr_id 2, qp 0x000011, \
             vendor_err 0x81"
        );
    }
}
