// SPDX-License-Identifier: MIT OR Apache-2.0
//! A follower: it keeps the log, and opens it to one leader at a time. Entries arrive without it.

use super::entry::{self, Entry, LOG, MESSAGE, Message};
use super::{ACCESS, LIMIT, connect_attr};
use anyhow::{Context as _, Result};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::time::Instant;
use uverbs::attr::{AccessFlags, MwType};
use uverbs::{Buf, Completed, Context, Cq, Done, Exposed, Pool, ProtectionDomain, Qp, Rc, Window};

/// `wr_id`s of the work requests for the window; messages have 0.
const CLOSE: u64 = 1;
const OPEN: u64 = 2;
/// Receives of a leader's QP.
const RECEIVES: u32 = 4;

/// A follower.
#[derive(Debug)]
pub struct Follower {
    /// The leaders and candidates.
    leaders: Vec<Qp<Rc>>,
    /// The leader to which the log is open.
    open: Option<usize>,
    /// The log. `None` only after an error.
    log: Option<Window>,
    /// The word that candidates swap.
    term: Buf<Exposed>,
    cq: Cq,
    /// Completions that came while another one was waited for.
    kept: VecDeque<Completed>,
    messages: Pool,
    pd: ProtectionDomain,
}

impl Follower {
    /// A follower with an empty log.
    ///
    /// # Errors
    /// The device refuses an object.
    pub fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let term = pd.pool_with(1, 8).exposed(ACCESS).build()?.get()?;
        let log = pd.pool_with(1, LOG as u32).exposed(ACCESS | AccessFlags::MW_BIND).build()?.get()?;
        Ok(Self {
            leaders: Vec::new(),
            open: None,
            log: Some(Window::new(pd.alloc_mw(MwType::Type2)?, log)),
            term,
            cq: context.cq(256)?,
            kept: VecDeque::new(),
            messages: pd.pool(64, MESSAGE as u32)?,
            pd,
        })
    }

    /// Connects to a leader or a candidate, by a stream. [`Leader::join`](super::Leader::join) is the other end.
    ///
    /// # Errors
    /// The stream fails, or the device refuses the QP.
    pub fn join(&mut self, mut stream: impl Read + Write) -> Result<()> {
        let qp = self.pd.qp::<Rc>().cq(&self.cq).depth(16, 2 * RECEIVES).inline(MESSAGE as u32);
        let mut qp = qp.connect_with(&mut stream, &connect_attr())?;
        for _ in 0..RECEIVES {
            qp.recv(self.messages.get()?)?;
        }
        self.term.remote_region().send(stream)?;
        self.leaders.push(qp);
        Ok(())
    }

    /// Waits for one message, at most for `limit`, and answers it.
    ///
    /// # Errors
    /// The device was removed, or refuses to open the log. A leader that is gone is no error.
    pub fn serve(&mut self, limit: Duration) -> Result<()> {
        let completed = match self.kept.pop_front() {
            Some(completed) => completed,
            None => match self.cq.wait_timeout(limit)? {
                Some(completed) => completed,
                None => return Ok(()),
            },
        };
        let number = completed.wc.qp_num;
        let Some(leader) = self.leaders.iter().position(|qp| qp.qp_num() == number) else { return Ok(()) };
        // A work request fails if the leader is gone. Its buffer goes back to the pool.
        let Ok(Done::Received(message)) = completed.ok() else { return Ok(()) };
        if let Some(Message::Open(term)) = Message::decode(&message) {
            let answer = self.open(leader, term)?;
            _ = self.leaders[leader].send_inline(&answer.encode());
        }
        _ = self.leaders[leader].recv(message);
        Ok(())
    }

    /// Opens the log to a candidate, and closes it to all others.
    fn open(&mut self, leader: usize, term: u64) -> Result<Message> {
        // A candidate with a higher term may have come since this one has swapped its own in.
        if self.term.atomic_u64(0)?.load(Ordering::Acquire) != term {
            return Ok(Message::Refused(term));
        }
        let window = self.close()?;
        match self.leaders[leader].sq().post(OPEN).signaled().bind(window, ACCESS) {
            Ok(()) => self.log = self.completion(leader, OPEN)?.take(),
            Err(rejected) => self.log = rejected.returned,
        }
        let region = self.log.as_ref().context("the window of the log is lost")?.remote_region();
        self.open = region.map(|_| leader);
        Ok(region.map_or(Message::Refused(term), |region| Message::Opened(term, region)))
    }

    /// The window of the log, closed.
    fn close(&mut self) -> Result<Window> {
        let mut window = self.log.take().context("the window of the log is lost")?;
        if let Some(leader) = self.open.take() {
            window = match self.leaders[leader].sq().post(CLOSE).signaled().local_inv(window) {
                Ok(()) => self.completion(leader, CLOSE)?.take().context("the window comes back")?,
                Err(rejected) => rejected.returned.context("the window comes back")?,
            };
        }
        let (mw, log) = match window.into_parts() {
            Ok(parts) => parts,
            // The work request was flushed, because the QP of the old leader has failed: the kernel ends the window.
            Err(open) => (self.pd.alloc_mw(MwType::Type2)?, open.close()?),
        };
        Ok(Window::new(mw, log))
    }

    /// Waits for the completion of a work request of this QP.
    fn completion(&mut self, leader: usize, wr_id: u64) -> Result<Completed> {
        let (number, end) = (self.leaders[leader].qp_num(), Instant::now() + LIMIT);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let completed =
                self.cq.wait_timeout(left)?.context("the device does not complete a work request")?;
            if (completed.wc.qp_num, completed.wc.wr_id) == (number, wr_id) {
                return Ok(completed);
            }
            self.kept.push_back(completed);
        }
    }

    /// The entries that the leader has called durable. A leader may write meanwhile.
    ///
    /// # Errors
    /// The log is lost by an earlier error.
    pub fn durable(&self) -> Result<Vec<Entry>> {
        let mut log = vec![0; LOG];
        self.log.as_ref().context("the window of the log is lost")?.read_at(0, &mut log)?;
        let durable = entry::durable(&log);
        Ok(entry::entries(&log).take_while(|entry| entry.number <= durable).collect())
    }
}
