// SPDX-License-Identifier: MIT OR Apache-2.0
//! All messages of a QP, for a stream.
//!
//! A [`Recv`](crate::Recv) takes one message, and registers its task again for each wait. A stream takes all messages that are there at
//! once, and stays registered as long as it exists.

use crate::error::{Error, Result};
use crate::life::FORKED;
use crate::qp::QpInner;
use crate::receives::Message;
use crate::sync::lock;
use crate::tasks::Tasks;
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs::Driver;

/// Notes in the stream's tasks that a message has arrived, or that no more will, until this is dropped.
pub(crate) struct Inbox<D: Driver> {
    qp: Arc<QpInner<D>>,
}

impl<D: Driver> Inbox<D> {
    /// What has arrived before this is not noted.
    pub(crate) fn new(qp: Arc<QpInner<D>>, tasks: Arc<Tasks>) -> Self {
        lock(&qp.receives).set_inbox(Some(tasks));
        Self { qp }
    }

    /// Takes the messages that have arrived. `messages` is empty before.
    ///
    /// # Errors
    /// No more arrive: the error of the QP, or [`Error::Closed`], also after a reset.
    pub(crate) fn take(&self, messages: &mut VecDeque<Message<D>>) -> Result<()> {
        if self.qp.is_forked() {
            return Err(FORKED);
        }
        let mut receives = lock(&self.qp.receives);
        let starved = receives.take_all(messages);
        let ended = receives.ended().cloned().or(receives.has_inbox_ended().then_some(Error::Closed));
        drop(receives);
        if starved {
            self.qp.starved();
        }
        if ended.is_none() && !self.qp.is_broken() {
            return Ok(());
        }
        Err(ended.or_else(|| self.qp.failure()).unwrap_or(Error::Closed))
    }
}

impl<D: Driver> Drop for Inbox<D> {
    fn drop(&mut self) {
        if !self.qp.is_forked() {
            let tasks = lock(&self.qp.receives).set_inbox(None);
            // It may have the last reference to a task.
            drop(tasks);
        }
    }
}
