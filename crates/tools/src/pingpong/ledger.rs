// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a ping-pong: its counts, and the reaction to each completion.
//!
//! Both ends must count in the same way, so these are the rules of the C programs. Each QP sends its next message when
//! its last send is complete and the peer's answer was received, until `iters` sends of all QPs are complete. The run
//! ends when `iters` sends and `iters` receives are complete. Receives are replenished when no more are left than there
//! are QPs.

use anyhow::{Result, bail};

/// `wr_id` of a receive; a bit of [`Ledger::pending`].
pub(crate) const RECV_WRID: u64 = 1;
/// `wr_id` of a send; a bit of [`Ledger::pending`].
pub(crate) const SEND_WRID: u64 = 2;

/// The counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    iters: u32,
    rx_depth: u32,
    /// The completions that each QP waits for.
    pending: Vec<u64>,
    /// Receives that are posted.
    posted: u32,
    sent: u32,
    received: u32,
}

/// The posts after a completion; receives first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// The number of receives to post.
    pub(crate) recvs: u32,
    /// Whether to send on the QP that completed.
    pub(crate) send: bool,
}

impl Ledger {
    /// The state when `rx_depth` receives are posted and, at the client, a send on each QP.
    pub(crate) fn new(num_qp: usize, rx_depth: u32, iters: u32, is_client: bool) -> Self {
        let pending = if is_client { RECV_WRID | SEND_WRID } else { RECV_WRID };
        Self { iters, rx_depth, pending: vec![pending; num_qp], posted: rx_depth, sent: 0, received: 0 }
    }

    /// Whether all is done.
    pub(crate) fn is_done(&self) -> bool {
        self.sent >= self.iters && self.received >= self.iters
    }

    /// Counts a successful completion on QP number `index`.
    pub(crate) fn completed(&mut self, index: usize, wr_id: u64) -> Result<Next> {
        let num_qp = self.pending.len() as u32;
        let Some(pending) = self.pending.get_mut(index) else {
            bail!("completion on QP {index} of {num_qp}");
        };
        let mut next = Next::default();
        match wr_id {
            SEND_WRID => self.sent += 1,
            RECV_WRID => {
                self.posted = self.posted.saturating_sub(1);
                if self.posted <= num_qp {
                    next.recvs = self.rx_depth - self.posted;
                    self.posted = self.rx_depth;
                }
                self.received += 1;
            }
            _ => bail!("completion for unknown wr_id {wr_id}"),
        }
        *pending &= !wr_id;
        if self.sent < self.iters && *pending == 0 {
            *pending = RECV_WRID | SEND_WRID;
            next.send = true;
        }
        Ok(next)
    }

    /// The progress, for messages.
    pub(crate) fn progress(&self) -> String {
        format!("{} of {} sent, {} received", self.sent, self.iters, self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Runs a client against a server, with the completions in the order in which they are generated.
    fn play(num_qp: usize, rx_depth: u32, iters: u32) -> (u32, u32) {
        let mut ends = [true, false].map(|is_client| Ledger::new(num_qp, rx_depth, iters, is_client));
        let mut available = [rx_depth; 2];
        let mut events: VecDeque<(usize, usize, u64)> = VecDeque::new();
        let send = |events: &mut VecDeque<_>, end: usize, qp: usize| {
            events.push_back((end, qp, SEND_WRID));
            events.push_back((1 - end, qp, RECV_WRID));
        };
        (0..num_qp).for_each(|qp| send(&mut events, 0, qp));
        while let Some((end, qp, wr_id)) = events.pop_front() {
            if wr_id == RECV_WRID {
                assert!(available[end] > 0, "no receive posted");
                available[end] -= 1;
            }
            let next = ends[end].completed(qp, wr_id).unwrap();
            available[end] += next.recvs;
            assert!(available[end] <= rx_depth);
            if next.send {
                send(&mut events, end, qp);
            }
        }
        assert!(ends.iter().all(Ledger::is_done), "{ends:?}");
        (ends[0].sent, ends[1].sent)
    }

    #[test]
    fn one_qp_exchanges_exactly_the_requested_number() {
        for iters in [1, 2, 7, 1000] {
            for rx_depth in [1, 2, 3, 500] {
                assert_eq!(play(1, rx_depth, iters), (iters, iters));
            }
        }
    }

    #[test]
    fn several_qps_end_together() {
        for (num_qp, rx_depth, iters) in
            [(16, 500, 1000), (16, 16, 100), (3, 4, 10), (255, 255, 300), (16, 500, 1)]
        {
            let (client, server) = play(num_qp, rx_depth, iters);
            assert!(client >= iters && server >= iters);
        }
    }

    #[test]
    fn foreign_completions_are_errors() {
        let mut ledger = Ledger::new(1, 1, 1, false);
        assert!(ledger.completed(0, 3).is_err());
        assert!(ledger.completed(1, RECV_WRID).is_err());
    }
}
