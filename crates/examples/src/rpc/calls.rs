// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of one connection that the server has not answered yet. Each has a credit, which only its answer gives back.

use super::wire::Answer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// An answer for the task that waits for it.
pub type Outcome = Result<Vec<u8>, super::CallError>;

/// A call that has a credit.
#[derive(Debug)]
struct Open {
    number: u64,
    /// `None` if the program waits no more: its answer will be discarded.
    waiting: Option<oneshot::Sender<Outcome>>,
    _credit: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct Table {
    /// As many as there are credits.
    open: Vec<Open>,
    last: u64,
    late: u64,
    closed: bool,
}

/// The open calls of a connection.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Table>);

/// A call of which the program waits for the answer. When it is dropped, the answer is discarded.
#[derive(Debug)]
pub struct Waiting {
    calls: Arc<Calls>,
    /// The number of the call, which no other call of the connection has.
    pub number: u64,
    answer: oneshot::Receiver<Outcome>,
}

/// Why an answer ends the connection: no open call has its number.
#[derive(Debug)]
pub struct Unasked;

impl Calls {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new call, which keeps the credit until it is answered. `None` if the connection has ended.
    pub fn begin(self: &Arc<Self>, credit: OwnedSemaphorePermit) -> Option<Waiting> {
        let mut table = self.table();
        if table.closed {
            return None;
        }
        table.last += 1;
        let (sender, answer) = oneshot::channel();
        let number = table.last;
        table.open.push(Open { number, waiting: Some(sender), _credit: credit });
        Some(Waiting { calls: self.clone(), number, answer })
    }

    /// Gives an answer to the task that waits for it, or discards it.
    ///
    /// # Errors
    /// No open call has its number.
    pub fn answered(&self, answer: &Answer<'_>) -> Result<(), Unasked> {
        let mut table = self.table();
        let at = table.open.iter().position(|open| open.number == answer.call).ok_or(Unasked)?;
        let open = table.open.swap_remove(at);
        let outcome = super::outcome(answer);
        // The program may also have stopped waiting just now.
        let is_late = open.waiting.is_none_or(|waiting| waiting.send(outcome).is_err());
        table.late += u64::from(is_late);
        Ok(())
    }

    /// Ends all calls: the connection has ended.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.open.clear();
    }

    /// The calls that are open, and the answers that were discarded.
    pub fn counts(&self) -> (usize, u64) {
        let table = self.table();
        (table.open.len(), table.late)
    }
}

impl Waiting {
    /// The answer; `None` if the connection has ended.
    pub async fn answer(mut self) -> Option<Outcome> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = self.calls.table();
        if let Some(open) = table.open.iter_mut().find(|open| open.number == self.number) {
            open.waiting = None;
        }
    }
}
