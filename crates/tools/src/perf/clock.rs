// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a measurement: a number of messages, or a time with margins that are not measured.

use super::options::Span;
use core::time::Duration;
use std::time::Instant;

/// The part of a timed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The margin at the begin, or the first message has not arrived.
    Before,
    Measured,
    /// The margin at the end.
    After,
    Ended,
}

/// The clock of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    span: Option<Span>,
    begin: Option<Instant>,
}

impl Clock {
    /// A clock that is not started.
    pub(super) fn new(span: Option<Span>) -> Self {
        Self { span, begin: None }
    }

    /// Starts it; later calls have no effect.
    pub(super) fn start(&mut self) {
        self.begin.get_or_insert_with(Instant::now);
    }

    /// Whether the run ends by time.
    pub(super) fn is_timed(&self) -> bool {
        self.span.is_some()
    }

    /// The part of the run. Without a time it is always measured.
    pub(super) fn phase(&self) -> Phase {
        let Some(span) = self.span else { return Phase::Measured };
        self.begin.map_or(Phase::Before, |begin| phase(span, begin.elapsed()))
    }

    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.phase() == Phase::Ended
    }

    /// The measured time of a timed run.
    pub(super) fn measured(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |span| span.total - span.margin * 2)
    }
}

fn phase(span: Span, elapsed: Duration) -> Phase {
    match elapsed {
        t if t < span.margin => Phase::Before,
        t if t < span.total - span.margin => Phase::Measured,
        t if t < span.total => Phase::After,
        _ => Phase::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_margins() {
        let seconds = Duration::from_secs;
        let span = Span { total: seconds(8), margin: seconds(2) };
        let phases: Vec<_> = (0..10).map(|t| phase(span, seconds(t))).collect();
        assert_eq!(phases[..2], [Phase::Before; 2]);
        assert_eq!(phases[2..6], [Phase::Measured; 4]);
        assert_eq!(phases[6..8], [Phase::After; 2]);
        assert_eq!(phases[8..], [Phase::Ended; 2]);
        assert_eq!(Clock::new(Some(span)).measured(), seconds(4));
        assert_eq!(Clock::new(Some(span)).phase(), Phase::Before);
        assert_eq!(Clock::new(None).phase(), Phase::Measured);
    }
}
