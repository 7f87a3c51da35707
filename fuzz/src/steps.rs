// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small generators of values, with a bias to boundaries.

use arbitrary::Arbitrary;
use uverbs_core::wr::Sge;

/// The maximum number of steps, so that runs are short. More steps find no other errors.
pub const MAX_STEPS: usize = 48;

/// The end of a batch.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is completed.
    Complete,
    /// It is aborted.
    Abort,
    /// It is dropped.
    Drop,
    /// It is forgotten, that is, leaked.
    Forget,
}

/// A length: short, near the limit of 2^31, or any.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Length {
    /// Up to 255.
    Short(u8),
    /// This distance from 2^31.
    Limit(i8),
    /// Any.
    Any(u32),
}

impl Length {
    /// As a number.
    #[must_use]
    pub fn value(self) -> u32 {
        match self {
            Self::Short(n) => n.into(),
            Self::Limit(n) => (1_u32 << 31).wrapping_add_signed(n.into()),
            Self::Any(n) => n,
        }
    }
}

/// A scatter/gather entry.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Entry {
    addr: u64,
    length: Length,
    lkey: u32,
}

/// The entries in the driver's form.
#[must_use]
pub fn sges(entries: &[Entry]) -> Vec<Sge> {
    entries.iter().map(|e| Sge { addr: e.addr, length: e.length.value(), lkey: e.lkey }).collect()
}

/// The sum of the lengths, and the entries that are not empty, as a WQE has them.
#[must_use]
pub fn expected_sges(sges: &[Sge]) -> (u64, Vec<(u64, u32, u32)>) {
    let sum = sges.iter().map(|s| u64::from(s.length)).sum();
    (sum, sges.iter().filter(|s| s.length != 0).map(|s| (s.addr, s.length, s.lkey)).collect())
}

/// An index of a ring: inside it, near its ends, or any.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Index {
    /// Small.
    Near(u8),
    /// Close to 2^32.
    Top(u8),
    /// Any.
    Any(u32),
}

impl Index {
    /// As a number.
    #[must_use]
    pub fn value(self) -> u32 {
        match self {
            Self::Near(n) => n.into(),
            Self::Top(n) => u32::MAX - u32::from(n),
            Self::Any(n) => n,
        }
    }
}

/// This many bytes, which count up from the first.
#[must_use]
pub fn counting(first: u8, len: u8) -> &'static [u8] {
    static BYTES: [u8; 512] = {
        let mut bytes = [0; 512];
        let mut i = 0;
        while i < bytes.len() {
            bytes[i] = i as u8;
            i += 1;
        }
        bytes
    };
    &BYTES[first.into()..][..len.into()]
}
