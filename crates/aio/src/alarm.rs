// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a sleep of tasks, as a descriptor that all runtimes watch: one may be run no more.

use crate::error::Result;
use crate::sync::{Mutex, lock};
use core::time::Duration;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Alarm {
    timer: TimerFd,
    /// When it rings.
    at: Mutex<Option<Instant>>,
}

impl Alarm {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self { timer: TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?, at: Mutex::new(None) })
    }

    /// Rings after this time, or before: a time that is set already, and is earlier, remains. So most sleeps make no system call. The one
    /// that hears it sets the next time.
    pub(crate) fn set(&self, limit: Duration) {
        let Some(at) = Instant::now().checked_add(limit) else { return };
        let mut set = lock(&self.at);
        if set.is_none_or(|set| at < set) {
            // 0 would be none.
            let limit = TimeSpec::from_duration(limit.max(Duration::from_nanos(1)));
            match self.timer.set(Expiration::OneShot(limit), TimerSetTimeFlags::empty()) {
                Ok(()) => *set = Some(at),
                Err(errno) => uverbs::report!(error, {}, "timerfd_settime: {errno}"),
            }
        }
    }

    /// Whether it rings. If so, it stops.
    pub(crate) fn has_rung(&self) -> bool {
        let mut set = lock(&self.at);
        // It does not wait.
        let rings = self.timer.wait().is_ok();
        if rings {
            *set = None;
        }
        rings
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_counts() {
        let alarm = Alarm::new().unwrap();
        alarm.set(Duration::from_secs(1000));
        let first = *lock(&alarm.at);
        alarm.set(Duration::from_secs(2000));
        assert_eq!(*lock(&alarm.at), first);
        assert!(!alarm.has_rung());
        alarm.set(Duration::ZERO);
        while !alarm.has_rung() {
            std::thread::yield_now();
        }
        assert!(!alarm.has_rung() && lock(&alarm.at).is_none());
    }
}
