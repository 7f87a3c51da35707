// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frequency of the clock of a guest's CPUs, which the guest itself may measure incorrectly.
//!
//! A kernel counts its TSC while another timer runs. Under emulation on a busy host the CPU may stop in between: one guest
//! measured its TSC eight times too slow, and all its time limits were eight times shorter. The emulated TSC is that of the
//! host, so it is measured here and passed to the kernel.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code))]
// UNSAFETY: reads the time stamp counter, for which there is no safe function.

use core::time::Duration;
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

/// The time of the measurement: an error of a microsecond at both ends is 20 ppm.
const MEASURED: Duration = Duration::from_millis(100);

/// The kernel argument with the TSC's frequency; empty if there is no TSC.
pub(crate) fn argument() -> &'static str {
    static ARGUMENT: OnceLock<String> = OnceLock::new();
    ARGUMENT.get_or_init(|| khz().map_or_else(String::new, |khz| format!("tsc_early_khz={khz}")))
}

/// The frequency of the host's TSC in kHz.
fn khz() -> Option<u64> {
    let (first, start) = reading()?;
    thread::sleep(MEASURED);
    let (last, end) = reading()?;
    let micros = u64::try_from(end.duration_since(start).as_micros()).ok()?;
    last.checked_sub(first)?.checked_mul(1000)?.checked_div(micros)
}

/// The counter and its time. The fastest of several readings is used, because the others may have been interrupted.
fn reading() -> Option<(u64, Instant)> {
    let readings = (0..20).filter_map(|_| {
        let before = Instant::now();
        let count = tsc()?;
        Some((before.elapsed(), count, before))
    });
    readings.min_by_key(|(took, ..)| *took).map(|(_, count, at)| (count, at))
}

#[cfg(target_arch = "x86_64")]
fn tsc() -> Option<u64> {
    // SAFETY: the instruction is part of x86_64, has no operands and touches no memory.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc() -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_is_the_same_each_time() {
        let (a, b) = (khz().unwrap(), khz().unwrap());
        assert!((500_000..10_000_000).contains(&a), "{a} kHz");
        assert!(a.abs_diff(b) < a / 500, "{a} and {b} kHz");
    }
}
