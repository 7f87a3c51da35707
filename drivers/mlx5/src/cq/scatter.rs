// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies data that came in a completion to the memory that the WQE names.
//!
//! A device may put a short response of a read or an atomic, or a short message, into the completion queue entry; the
//! poller then copies it (PRM 8.18.3, "Scatter to CQE"; requested when the QP is created). The addresses are in the posted
//! WQE, which is still in the queue: the poster can reuse its slot only after the WR is retired.
#![expect(unsafe_code)]
// UNSAFETY: writes to the addresses in posted WQEs, which are valid until the completion by the contract of the post.

use super::cqe::Scatter;
use super::entry::{CqeRef, Tail};
use super::parse::Resource;
use super::ring::CqRing;
use crate::shared::QpShared;
use crate::shared::SqShared;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::attr::QpState;
use uverbs_core::wc::WcStatus;
use uverbs_mlx5_hw::wqe::{
    DS_MASK, DataSeg, MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_RDMA_READ,
};

/// An entry with data to be copied.
pub(super) struct Scattering<'a> {
    pub ring: &'a CqRing,
    pub position: u32,
    pub dump_fill_mkey: u32,
}

impl Scattering<'_> {
    /// Copies the data to the scatter entries of a posted read or atomic.
    pub(super) fn to_sender(
        &self,
        which: Scatter,
        qp: &QpShared,
        sq: &SqShared,
        wqe_counter: u16,
        len: u32,
    ) -> WcStatus {
        /// Units before the scatter entries: control and remote address segments.
        const READ: u32 = 2;
        /// Units before the scatter entries: as `READ`, and the atomic segment.
        const ATOMIC: u32 = 3;
        let first = u32::from(wqe_counter) * 4;
        let ctrl = read(sq.ring.view().unit(first));
        let ds = u32::from_be_bytes([ctrl[4], ctrl[5], ctrl[6], ctrl[7]]) & DS_MASK;
        let before = match ctrl[3] {
            MLX5_OPCODE_RDMA_READ => READ,
            MLX5_OPCODE_ATOMIC_CS | MLX5_OPCODE_ATOMIC_FA => ATOMIC,
            // Other opcodes return no data.
            _ => return WcStatus::REM_INV_REQ_ERR,
        };
        // A faulty device may put data into the completion of a QP without that feature, report a WR twice, or report one
        // that was not published.
        let is_expected =
            qp.data_in_completions() && qp.state() != QpState::RESET && sq.is_outstanding(wqe_counter);
        if !is_expected {
            return WcStatus::GENERAL_ERR;
        }
        let entries = (before..ds).map(|unit| read(sq.ring.view().unit(first + unit)));
        // SAFETY: the QP was created with `data_in_completions`, whose contract is that the entries' addresses are those of
        // memory of this process. The WQE was published and has not completed (`is_outstanding`). Its queue was neither
        // reset nor destroyed: the control path stops this poller before it does either (`CqShared::stopped`).
        unsafe { self.copy(which, len, entries) }
    }

    /// Copies the data to the scatter entries of a posted receive.
    pub(super) fn to_receiver(&self, which: Scatter, receiver: &Resource, tail: Tail, len: u32) -> WcStatus {
        let Some(words) = receiver.expecting_data(tail.wqe_counter()) else { return WcStatus::GENERAL_ERR };
        let entries = words.as_chunks().0.iter().map(read);
        // SAFETY: `expecting_data` checked that the receive is posted, has not completed, and is of a QP or SRQ with data
        // in completions, whose contract is that the entries' addresses are those of memory of this process. A queue is
        // reset or destroyed only after the control path stopped this poller (`CqShared::stopped`); an element of an SRQ
        // stays posted until its completion.
        unsafe { self.copy(which, len, entries) }
    }

    /// # Safety
    /// The entries must be those of a WR that was posted under the contract of `SendBatch::push` or `RecvBatch::push` and
    /// has not completed. Its completion is reported after this call, so the contract still holds.
    #[inline]
    unsafe fn copy(&self, which: Scatter, len: u32, entries: impl Iterator<Item = [u8; 16]>) -> WcStatus {
        let entries = entries.map(|bytes| zerocopy::transmute!(bytes));
        let len = len as usize;
        if len > which.room() {
            return WcStatus::LOC_LEN_ERR;
        }
        // Copied to the stack first, because the device may write the entry at any time.
        match which {
            Scatter::Own32 => {
                let data: [u8; 32] = zerocopy::transmute!(self.ring.entry(self.position).first_words());
                // SAFETY: the entries are those of a posted WR that has not completed (the contract of this function).
                unsafe { copy(&data[..len], entries, self.dump_fill_mkey) }
            }
            Scatter::Before64 => {
                // The format says data before an entry, but entries of this size have none.
                let Some(data) = self.ring.data_before(self.position) else { return WcStatus::GENERAL_ERR };
                let data: [u8; 64] = zerocopy::transmute!(data);
                // SAFETY: the entries are those of a posted WR that has not completed (the contract of this function).
                unsafe { copy(&data[..len], entries, self.dump_fill_mkey) }
            }
        }
    }
}

/// Copies the data of a receive from the first bytes of its completion to `first`, the first scatter entry of the receive,
/// if all of them fit into it: the usual case. Otherwise returns `false` and copies nothing.
///
/// # Safety
/// The receive must expect data in its completion: `Resource::expecting_data` would return its entries.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) unsafe fn to_first_entry(entry: CqeRef<'_>, first: &[AtomicU64; 2], dump_fill_mkey: u32) -> bool {
    let len = entry.byte_cnt() as usize;
    let to: DataSeg = zerocopy::transmute!(read(first));
    let room = to.byte_count.get() as usize;
    if len > Scatter::Own32.room() || len > room || to.lkey.get() == dump_fill_mkey {
        return false;
    }
    let addr = with_exposed_provenance_mut::<u8>(to.addr.get() as usize);
    // SAFETY: the receive was posted under the contract of `RecvBatch::push`, is published, and has not completed (the
    // contract of this function). Its queue was neither reset nor destroyed: the control path stops this poller before it
    // does either (`CqShared::stopped`). So the entry names `room` bytes of this process that the device may write. `len`
    // is at most 32 and at most `room`.
    unsafe { copy_short(entry.first_words(), addr, len) };
    true
}

/// Copies the first `len` bytes of `words`, at most 32, by at most two copies of a fixed size that may overlap. A copy of
/// variable length would be a call of memcpy, which costs more than the copy.
///
/// # Safety
/// `to` must be valid for writes of `len` bytes; `len` must be at most 32.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn copy_short(words: [u64; 4], to: *mut u8, len: usize) {
    /// Copies the first `N` and the last `N` of `len` bytes.
    ///
    /// # Safety
    /// `to` must be valid for writes of `len` bytes; `len` must be from `N` to `2 * N` and at most 32.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn ends<const N: usize>(data: &[u8; 32], to: *mut u8, len: usize) {
        let from = data.as_ptr();
        // SAFETY: `N` is at most `len`, so `N` bytes from both starts are inside `data` and inside the memory of `to`.
        unsafe { core::ptr::copy_nonoverlapping(from, to, N) };
        let rest = len - N;
        // SAFETY: `rest` is at most `len`, which is at most 32, the size of `data`.
        let from = unsafe { from.add(rest) };
        // SAFETY: `rest` is at most `len`, and `to` is valid for `len` bytes.
        let to = unsafe { to.add(rest) };
        // SAFETY: `N` bytes from `rest` on are the last of `len` bytes, inside `data` and inside the memory of `to`.
        unsafe { core::ptr::copy_nonoverlapping(from, to, N) };
    }
    let data = &zerocopy::transmute!(words);
    if len >= 16 {
        // SAFETY: `to` is valid for `len` bytes, which are at least 16 here and at most 32 (the contract of this function).
        unsafe { ends::<16>(data, to, len.min(32)) }
    } else if len >= 8 {
        // SAFETY: `to` is valid for `len` bytes (the contract of this function), which are 8 to 15 here.
        unsafe { ends::<8>(data, to, len) }
    } else if len >= 4 {
        // SAFETY: `to` is valid for `len` bytes (the contract of this function), which are 4 to 7 here.
        unsafe { ends::<4>(data, to, len) }
    } else if len >= 2 {
        // SAFETY: `to` is valid for `len` bytes (the contract of this function), which are 2 or 3 here.
        unsafe { ends::<2>(data, to, len) }
    } else if len == 1 {
        // SAFETY: `to` is valid for `len` bytes (the contract of this function), which is 1 here.
        unsafe { ends::<1>(data, to, 1) }
    }
}

#[cfg_attr(not(debug_assertions), inline(always))]
fn read([a, b]: &[AtomicU64; 2]) -> [u8; 16] {
    zerocopy::transmute!([a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)])
}

/// Copies `data` to the memory of `entries`, in order. Returns [`WcStatus::LOC_LEN_ERR`] if they do not fit.
///
/// Data for entries with the key `dump_fill_mkey` are discarded.
///
/// # Safety
/// Every entry must have been posted under the contract of `SendBatch::push` or `RecvBatch::push`, and its WR must not have
/// completed: its address and length are those of memory of this process that the device, and so the poller for it, may
/// write.
unsafe fn copy(mut data: &[u8], entries: impl Iterator<Item = DataSeg>, dump_fill_mkey: u32) -> WcStatus {
    for entry in entries {
        if data.is_empty() {
            break;
        }
        // The device takes a byte count of 0 for 2^31. Posters skip empty entries and end a list with an entry of 0 bytes
        // and `lkey` 0x100.
        let room = entry.byte_count.get() as usize;
        let (now, rest) = data.split_at(data.len().min(room));
        if entry.lkey.get() != dump_fill_mkey && !now.is_empty() {
            let to = with_exposed_provenance_mut::<u8>(entry.addr.get() as usize);
            // SAFETY: the entry's memory may be written (the contract of this function), and `now` is not longer than it.
            // `now` is a private copy, so they do not overlap.
            unsafe { core::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
        }
        data = rest;
    }
    if data.is_empty() { WcStatus::SUCCESS } else { WcStatus::LOC_LEN_ERR }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_copies_write_exactly_len_bytes() {
        let data: [u8; 32] = core::array::from_fn(|i| i as u8 + 1);
        for len in 0..=32 {
            let mut to = [0xee_u8; 40];
            // SAFETY: `to` is a local array with more than `len` bytes.
            unsafe { copy_short(zerocopy::transmute!(data), to.as_mut_ptr(), len) };
            assert_eq!(to[..len], data[..len]);
            assert!(to[len..].iter().all(|b| *b == 0xee), "{len}");
        }
    }

    fn entry(memory: &mut [u8], lkey: u32) -> DataSeg {
        let addr = memory.as_mut_ptr().expose_provenance() as u64;
        DataSeg::new(memory.len() as u32, lkey, addr)
    }

    #[test]
    fn data_fill_the_entries_in_order() {
        let (mut a, mut b, mut c) = ([0; 3], [0; 2], [0; 8]);
        let entries = [entry(&mut a, 1), entry(&mut b, 7), DataSeg::new(0, 0x100, 0), entry(&mut c, 1)];
        // SAFETY: the entries name three local arrays, which are not accessed during the call.
        let status = unsafe { copy(&[1, 2, 3, 4, 5, 6, 7], entries.into_iter(), 7) };
        assert_eq!(status, WcStatus::SUCCESS);
        assert_eq!((a, b, c), ([1, 2, 3], [0, 0], [6, 7, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn data_that_do_not_fit_are_a_length_error() {
        let mut a = [0; 3];
        let entries = [entry(&mut a, 1)];
        // SAFETY: the entry names a local array, which is not accessed during the call.
        let status = unsafe { copy(&[1, 2, 3, 4], entries.into_iter(), 7) };
        assert_eq!((status, a), (WcStatus::LOC_LEN_ERR, [1, 2, 3]));
        // SAFETY: there is no entry, so nothing is written.
        assert_eq!(unsafe { copy(&[], core::iter::empty(), 7) }, WcStatus::SUCCESS);
    }
}
