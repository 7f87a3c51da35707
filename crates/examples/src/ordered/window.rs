// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reorder window: what came early waits for what is late.

use core::fmt;
use std::collections::VecDeque;

/// Why a number was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It was delivered before, or waits already.
    Twice(u64),
    /// It is further ahead than the window allows.
    TooFar(u64),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice(n) => write!(f, "message {n} has come twice"),
            Self::TooFar(n) => write!(f, "message {n} is outside of the window"),
        }
    }
}

impl core::error::Error for Refused {}

/// Messages that came early, in the order of their numbers.
#[derive(Debug)]
pub struct Window<T> {
    /// The number of the message that is delivered next.
    next: u64,
    /// From `next` on; `None` for those that have not come.
    slots: VecDeque<Option<T>>,
    size: usize,
}

impl<T> Window<T> {
    /// An empty window for so many messages, beginning with number 0.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self { next: 0, slots: VecDeque::with_capacity(size), size }
    }

    /// The number of the message that is delivered next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Puts a message in. Returns how many messages are before it that have not come.
    ///
    /// # Errors
    /// It has come before, or is too far ahead. The message is dropped.
    pub fn insert(&mut self, number: u64, message: T) -> Result<usize, Refused> {
        let ahead = number.checked_sub(self.next).ok_or(Refused::Twice(number))?;
        let at = usize::try_from(ahead).ok().filter(|at| *at < self.size).ok_or(Refused::TooFar(number))?;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        match &mut self.slots[at] {
            Some(_) => return Err(Refused::Twice(number)),
            slot => *slot = Some(message),
        }
        Ok(self.slots.iter().take(at).filter(|slot| slot.is_none()).count())
    }

    /// Takes the next message, if it has come.
    pub fn pop(&mut self) -> Option<T> {
        let message = self.slots.front_mut()?.take()?;
        self.slots.pop_front();
        self.next += 1;
        Some(message)
    }
}
