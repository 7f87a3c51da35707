// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static rates as numbers (ibv_rate_to_mult(3), ibv_rate_to_mbps(3)).
//!
//! The codes are those of the InfiniBand specification's path records; a multiple is one of 2.5 Gb/s.

use core::ffi::c_int;

/// `enum ibv_rate`, multiple of 2.5 Gb/s where the interface has one, Mb/s.
const RATES: &[(u32, Option<c_int>, c_int)] = &[
    (2, Some(1), 2_500),
    (3, Some(4), 10_000),
    (4, Some(12), 30_000),
    (5, Some(2), 5_000),
    (6, Some(8), 20_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `IBV_RATE_MAX`, the result for numbers that are not a rate.
const MAX: u32 = 0;

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).and_then(|(_, mult, _)| *mult).unwrap_or(-1)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> u32 {
    RATES.iter().find(|(_, known, _)| *known == Some(mult)).map_or(MAX, |(code, ..)| *code)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, _, mbps)| *mbps)
}

#[expect(unsafe_code, reason = "a symbol of the library")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    RATES.iter().find(|(_, _, known)| *known == mbps).map_or(MAX, |(code, ..)| *code)
}
