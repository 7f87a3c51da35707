// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client as the server has it: its queue, its session, and the answers that wait for room.

use super::session::{Broken, Executor, Reply, Session};
use crate::link::Link;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use uverbs::{Buf, Exposed, Pool, Qp};
use uverbs::{Driver, PostError, QueueError, Rc};
use uverbs::{Exclusive, Private, attr::QpState};

/// Every how many sends one has a completion.
const SIGNAL_EVERY: u32 = 16;

/// `wr_id` of sends.
pub(super) const SEND: u64 = 0;
/// `wr_id` of receives.
pub(super) const RECV: u64 = 1;

/// A client. The order of the fields is that of their drops: the QP ends before the memory that its peer can access.
#[derive(Debug)]
pub(super) struct Peer<D: Driver> {
    qp: Qp<Rc, Exclusive, D>,
    pub(super) link: Arc<Link>,
    /// Distinguishes it from earlier clients with the same QP number.
    pub(super) serial: u64,
    session: Session<D>,
    /// Answers for which the queue had no room.
    backlog: VecDeque<Vec<u8>>,
    max_inline: usize,
    posted: u32,
    /// Since when it is disconnected; the QP is in ERR.
    pub(super) closing: Option<Instant>,
    /// Whether the QP takes no more receives of the SRQ.
    pub(super) last_wqe: bool,
}

impl<D: Driver> Peer<D> {
    pub(super) fn new(
        qp: Qp<Rc, Exclusive, D>,
        link: Arc<Link>,
        serial: u64,
        slots: Buf<Exposed, D>,
    ) -> Self {
        let max_inline = qp.cap().max_inline_data as usize;
        Self {
            qp,
            link,
            serial,
            session: Session::new(slots),
            backlog: VecDeque::new(),
            max_inline,
            posted: 0,
            closing: None,
            last_wqe: false,
        }
    }

    /// Begins the end of the connection: the QP goes to ERR, which flushes its work requests.
    pub(super) fn close(&mut self) {
        if self.closing.is_none() {
            self.closing = Some(Instant::now());
            self.backlog.clear();
            // A failure means that the device is gone; the time limit of the end applies then.
            let _ = self.qp.control().modify_state(QpState::ERR);
            self.link.close();
        }
    }

    /// Executes a request, and answers it.
    pub(super) fn execute(
        &mut self,
        executor: &mut Executor<D>,
        pool: &Pool<Private, D>,
        request: impl FnOnce(&mut Session<D>, &mut Executor<D>) -> Result<Reply, Broken>,
    ) -> Result<(), Broken> {
        let reply = request(&mut self.session, executor)?;
        if reply.bytes().is_empty() {
            return Ok(());
        }
        self.send(pool, reply.bytes(), executor.welcome.credits)
    }

    /// Sends an answer, or keeps it until the queue has room. A client within its credits never has more of them.
    fn send(&mut self, pool: &Pool<Private, D>, message: &[u8], credits: u32) -> Result<(), Broken> {
        if self.closing.is_some() {
            return Ok(());
        }
        if self.backlog.is_empty() && self.post(pool, message)? {
            return Ok(());
        }
        if self.backlog.len() >= credits as usize {
            return Err(Broken);
        }
        self.backlog.push_back(message.to_vec());
        Ok(())
    }

    /// Posts what was kept.
    pub(super) fn flush(&mut self, pool: &Pool<Private, D>) -> Result<(), Broken> {
        while let Some(message) = self.backlog.pop_front() {
            if !self.post(pool, &message)? {
                self.backlog.push_front(message);
                break;
            }
        }
        Ok(())
    }

    /// Whether it was posted; `false` if there is no room now.
    fn post(&mut self, pool: &Pool<Private, D>, message: &[u8]) -> Result<bool, Broken> {
        let signal = (self.posted + 1).is_multiple_of(SIGNAL_EVERY);
        let wr = self.qp.sq().post(SEND);
        let wr = if signal { wr.signaled() } else { wr };
        let posted = if message.len() <= self.max_inline {
            wr.send_inline(message)
        } else {
            let Some(mut buf) = pool.try_get() else { return Ok(false) };
            buf.fill(message).map_err(|_| Broken)?;
            wr.send(buf).map_err(QueueError::from)
        };
        match posted {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(error) if error == PostError::QueueFull => Ok(false),
            Err(_) => Err(Broken),
        }
    }
}

impl<D: Driver> Drop for Peer<D> {
    /// Ends the thread that waits for the client, also if the worker has failed.
    fn drop(&mut self) {
        self.link.close();
    }
}
