// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive WQEs: a list of scatter entries that fills the stride or ends with a terminator.

use super::Malformed;
use super::segment::{SEG, Segment, memory};
use crate::bytes::{be16, be32};

/// The key of the entry that ends a list (`MLX5_INVALID_LKEY`).
pub(crate) const TERMINATOR: u32 = uverbs_mlx5_hw::wqe::MLX5_INVALID_LKEY;

/// A receive WQE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvWqe {
    /// The segments for the data, in order. All are registered memory.
    pub scatter: Vec<Segment>,
}

impl RecvWqe {
    /// The bytes that it has room for.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.scatter.iter().map(Segment::len).sum()
    }
}

/// Decodes the entries of a receive WQE: its stride without the header of an SRQ.
///
/// # Errors
/// An entry with the bit of inline data.
pub fn recv_wqe(entries: &[u8]) -> Result<RecvWqe, Malformed> {
    let mut scatter = Vec::new();
    for (i, entry) in entries.chunks_exact(SEG).enumerate() {
        let count = be32(entry, 0);
        if count == 0 && be32(entry, 4) == TERMINATOR {
            break;
        }
        if count >> 31 != 0 {
            return Err(Malformed::NotZero((i * SEG) as u16));
        }
        scatter.push(memory(entry, 0));
    }
    Ok(RecvWqe { scatter })
}

/// The index of the WQE that follows in an SRQ's list (`struct mlx5_wqe_srq_next_seg`).
#[must_use]
pub fn srq_next(wqe: &[u8]) -> u16 {
    be16(wqe, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(count: u32, lkey: u32, addr: u64) -> Vec<u8> {
        [&count.to_be_bytes()[..], &lkey.to_be_bytes(), &addr.to_be_bytes()].concat()
    }

    #[test]
    fn a_list_ends_at_its_terminator_or_with_the_stride() {
        let stale = entry(7, 7, 7);
        let wqe = [entry(16, 5, 9), entry(0, TERMINATOR, 0), stale].concat();
        let one = Segment::Memory { length: 16, lkey: 5, addr: 9 };
        assert_eq!(recv_wqe(&wqe).unwrap().scatter, core::slice::from_ref(&one));
        assert_eq!(recv_wqe(&entry(16, 5, 9)).unwrap().scatter, [one]);
        assert_eq!(recv_wqe(&entry(0, 5, 9)).unwrap().scatter[0].len(), 1 << 31);
        assert_eq!(recv_wqe(&entry(1 << 31, 5, 9)), Err(Malformed::NotZero(0)));
        assert_eq!(srq_next(&[0, 0, 1, 2, 0, 0]), 0x102);
    }
}
