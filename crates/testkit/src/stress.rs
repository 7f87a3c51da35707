// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a stress test takes, and the seed of its choices.

use core::time::Duration;
use std::env;
use std::time::SystemTime;

/// The duration if the environment has none.
const USUAL: Duration = Duration::from_secs(1);

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// The duration of a stress test: `UVERBS_STRESS_SECONDS`, or a second. A test may take a part of it.
#[must_use]
pub fn length() -> Duration {
    number("UVERBS_STRESS_SECONDS").map_or(USUAL, Duration::from_secs)
}

/// The seed of its choices: `UVERBS_STRESS_SEED`, or 1; for 0 another one each time.
#[must_use]
pub fn seed() -> u64 {
    match number("UVERBS_STRESS_SEED").unwrap_or(1) {
        0 => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.map_or(1, |time| time.as_nanos() as u64 & 0xffff_ffff).max(1)
        }
        seed => seed,
    }
}
