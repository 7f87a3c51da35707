// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of scatter/gather entries to the format of a driver that is not the first one.
#![expect(unsafe_code)]
// UNSAFETY: reads entries that it has written to an array without values.

use super::WqeSge;
use core::mem::MaybeUninit;
use uverbs_core::provider::{PostError, WireSge};

/// The most entries of a work request that are converted: one more than a WQE of rxe has (`RXE_MAX_SGE` is 32), so that
/// the driver refuses too many. A device that takes more, and whose driver is not the first one, needs a higher number.
const MAX_SGE: usize = 33;

/// The memory for entries in the format `S`.
pub(super) type Room<S> = [MaybeUninit<S>; MAX_SGE];

/// Memory for entries, without values.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) const fn room<S>() -> Room<S> {
    [const { MaybeUninit::uninit() }; MAX_SGE]
}

/// The entries in the format `S`.
///
/// # Errors
/// [`PostError::TooManySge`] for more than `MAX_SGE`; [`PostError::InvalidLength`] for one that is too long.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn convert<'r, S: WireSge>(sges: &[WqeSge], room: &'r mut Room<S>) -> Result<&'r [S], PostError> {
    let room = room.get_mut(..sges.len()).ok_or(PostError::TooManySge)?;
    for (to, from) in room.iter_mut().zip(sges) {
        to.write(S::new(from.addr(), from.length(), from.lkey())?);
    }
    // SAFETY: `room` has as many elements as `sges`, so the loop above has written all of them.
    Ok(unsafe { room.assume_init_ref() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::wr::Sge;

    fn entries(count: usize, length: u32) -> Vec<WqeSge> {
        (0..count as u64).map(|i| WqeSge::new(0x1000 + i, length, 7).unwrap()).collect()
    }

    #[test]
    fn all_entries_are_converted_or_none() {
        for count in [0, 1, 2, 32, 33] {
            let mut room = room::<Sge>();
            let plain = convert(&entries(count, 64), &mut room).unwrap();
            let expected: Vec<_> =
                (0..count as u64).map(|i| Sge { addr: 0x1000 + i, length: 64, lkey: 7 }).collect();
            assert_eq!(plain, expected);
        }
        let refused = convert::<Sge>(&entries(34, 64), &mut room()).map(<[Sge]>::len);
        assert_eq!(refused, Err(PostError::TooManySge));
    }
}
