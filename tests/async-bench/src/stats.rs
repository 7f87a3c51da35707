// SPDX-License-Identifier: MIT OR Apache-2.0
//! The times of one run, and medians over rounds.

use crate::End;
use anyhow::{Context, Result};
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::time::Instant;

/// The times of a run: of each message, and of all.
pub(crate) struct Measured {
    begin: Instant,
    timed: bool,
    each: Vec<Duration>,
    total: Duration,
}

impl Measured {
    pub(crate) fn begin(end: &End) -> Self {
        let each = Vec::with_capacity(if end.untimed { 0 } else { end.number });
        Self { begin: Instant::now(), timed: !end.untimed, each, total: Duration::ZERO }
    }

    /// The begin of a message, if it is timed.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.timed.then(Instant::now)
    }

    /// The end of a message that began then.
    pub(crate) fn add(&mut self, begin: Option<Instant>) {
        self.each.extend(begin.map(|begin| begin.elapsed()));
    }

    pub(crate) fn end(self) -> Self {
        Self { total: self.begin.elapsed(), ..self }
    }
}

/// Microseconds: the whole run, and the 50th and 99th percentile of a message.
impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut each = self.each.clone();
        each.sort();
        let at = |percent: usize| each.get(each.len() * percent / 100).copied().unwrap_or_default();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(f, "{:.1} {:.1} {:.1}", micros(self.total), micros(at(50)), micros(at(99)))
    }
}

/// What a run has printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) total: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl FromStr for Run {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = text.split_whitespace().map(str::parse::<f64>);
        let mut next = || {
            let number = numbers.next().with_context(|| format!("the client printed {text:?}"))?;
            number.with_context(|| format!("the client printed {text:?}"))
        };
        Ok(Self { total: next()?, p50: next()?, p99: next()? })
    }
}

/// A median and how far the values scatter: half the distance between the quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    value: f64,
    spread: f64,
}

impl Median {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values.get(values.len().checked_sub(1)? * quarter / 4).copied();
        Some(Self { value: at(2)?, spread: (at(3)? - at(1)?) / 2.0 })
    }
}

impl fmt::Display for Median {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ± {:.0}", self.value, self.spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_what_a_client_prints() {
        let each = (1..=100).map(Duration::from_micros).collect();
        let measured = Measured { begin: Instant::now(), timed: true, each, total: Duration::from_millis(2) };
        let run: Run = measured.to_string().parse().unwrap();
        assert_eq!(run, Run { total: 2000.0, p50: 51.0, p99: 100.0 });
        assert!("ready".parse::<Run>().is_err());
        assert!("1 2".parse::<Run>().is_err());
    }

    #[test]
    fn a_median_has_its_spread() {
        assert_eq!(Median::of([5.0, 1.0, 4.0, 2.0, 3.0]), Some(Median { value: 3.0, spread: 1.0 }));
        assert_eq!(Median::of([]), None);
    }
}
