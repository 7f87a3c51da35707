// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of `-t`: the ticks of the device's clock between consecutive completions of receives.

/// Distances between completion times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamps {
    /// Bits of a timestamp that are valid: where the clock wraps around.
    mask: u64,
    previous: Option<u64>,
    pub(crate) max: u64,
    pub(crate) min: u64,
    total: u64,
    count: u64,
}

impl Timestamps {
    /// `mask` is the device's `completion_timestamp_mask`.
    pub(crate) fn new(mask: u64) -> Self {
        Self { mask, previous: None, max: 0, min: u64::MAX, total: 0, count: 0 }
    }

    /// A receive completed at `ticks`.
    pub(crate) fn received(&mut self, ticks: u64) {
        if let Some(previous) = self.previous.replace(ticks) {
            let delta = ticks.wrapping_sub(previous) & self.mask;
            self.max = self.max.max(delta);
            self.min = self.min.min(delta);
            self.total = self.total.wrapping_add(delta);
            self.count += 1;
        }
    }

    /// Mean distance, if there was any.
    pub(crate) fn average(&self) -> Option<f64> {
        (self.count != 0).then(|| self.total as f64 / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamps;

    #[test]
    fn distances_are_correct_when_the_clock_wraps_around() {
        let mut ts = Timestamps::new(0xff);
        assert_eq!(ts.average(), None);
        for ticks in [0xf0, 0xf4, 0x02] {
            ts.received(ticks);
        }
        assert_eq!((ts.min, ts.max, ts.average()), (4, 14, Some(9.0)));
    }
}
