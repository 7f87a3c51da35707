// SPDX-License-Identifier: MIT OR Apache-2.0
//! The timer of a queue.

use crate::model::Packet;
use crate::net::TimerEntry;
use crate::port::Port;

/// A timer. Its entry in the network may be too early, but never too late.
#[derive(Debug, Default)]
pub struct Timer {
    /// When it expires; `None` for never.
    pub deadline: Option<u64>,
    /// Its entry in the network.
    pub queued: Option<TimerEntry>,
    /// How often it was set again instead of being run.
    pub(crate) postponed: u32,
}

impl Timer {
    /// Sets it to expire at this time, as the timer of this queue.
    pub fn arm<P: Packet>(&mut self, port: &mut Port<'_, P>, queue: u32, at: u64) {
        (self.deadline, self.postponed) = (Some(at), 0);
        if self.queued.is_none_or(|(queued, _)| queued > at) {
            // A later entry would stay until its time, which may be hours away.
            self.queued.into_iter().for_each(|entry| port.net.cancel(entry));
            self.queued = Some(port.net.wake(at, port.me, queue));
        }
    }
}
