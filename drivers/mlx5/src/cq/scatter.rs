// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data that came in the completion itself: copied to the memory that the WQE names.
//!
//! A device may put a short answer of a read or an atomic, or a short message, into the completion's entry and leave it
//! to the poller to move it on (PRM 8.18.3, "Scatter to CQE"; asked for when the QP is created). Where to, the posted
//! WQE says: its entries are still in the queue, because the poster gets the room back only afterwards.
#![expect(unsafe_code)]
// UNSAFETY: writes to the addresses that the poster promised to be its own until the completion.

use super::cqe::Scatter;
use super::entry::{CqeRef, Tail};
use super::parse::Resource;
use super::ring::CqRing;
use crate::qp::QpShared;
use crate::sq::SqShared;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::attr::QpState;
use uverbs_core::wc::WcStatus;
use uverbs_mlx5_hw::wqe::{
    DS_MASK, DataSeg, MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_RDMA_READ,
};

/// An entry with data to move on.
pub(super) struct Scattering<'a> {
    pub ring: &'a CqRing,
    pub position: u32,
    pub dump_fill_mkey: u32,
}

impl Scattering<'_> {
    /// To the entries of a posted read or atomic.
    pub(super) fn to_sender(
        &self,
        which: Scatter,
        qp: &QpShared,
        sq: &SqShared,
        wqe_counter: u16,
        len: u32,
    ) -> WcStatus {
        /// Units before the entries: control, remote address.
        const READ: u32 = 2;
        /// The same and the operands.
        const ATOMIC: u32 = 3;
        let first = u32::from(wqe_counter) * 4;
        let ctrl = read(sq.ring.view().unit(first));
        let ds = u32::from_be_bytes([ctrl[4], ctrl[5], ctrl[6], ctrl[7]]) & DS_MASK;
        let before = match ctrl[3] {
            MLX5_OPCODE_RDMA_READ => READ,
            MLX5_OPCODE_ATOMIC_CS | MLX5_OPCODE_ATOMIC_FA => ATOMIC,
            // No other brings data.
            _ => return WcStatus::REM_INV_REQ_ERR,
        };
        // A device may put data there unasked, and report a WR twice, or one that was not published.
        let is_expected =
            qp.data_in_completions() && qp.state() != QpState::RESET && sq.is_outstanding(wqe_counter);
        if !is_expected {
            return WcStatus::GENERAL_ERR;
        }
        let entries = (before..ds).map(|unit| read(sq.ring.view().unit(first + unit)));
        // SAFETY: the QP was created with the promise that entries' addresses are those of memory of this process. The WQE was
        // published and has not completed (`is_outstanding`), and its queue was neither reset nor destroyed: the control path
        // stops this poller before it does either (`CqShared::stopped`).
        unsafe { self.copy(which, len, entries) }
    }

    /// To the entries of a posted receive.
    pub(super) fn to_receiver(&self, which: Scatter, receiver: &Resource, tail: Tail, len: u32) -> WcStatus {
        let Some(words) = receiver.expecting_data(tail.wqe_counter()) else { return WcStatus::GENERAL_ERR };
        let entries = words.as_chunks().0.iter().map(read);
        // SAFETY: `expecting_data` found it posted and not complete; see `to_sender` for the rest. An SRQ's element that was
        // posted stays posted until its completion.
        unsafe { self.copy(which, len, entries) }
    }

    /// # Safety
    /// The entries are those of a WR that was posted with the promise of `SendBatch::push` or `RecvBatch::push` and has not
    /// completed. Its completion is reported after this call, so the promise still holds.
    #[inline]
    unsafe fn copy(&self, which: Scatter, len: u32, entries: impl Iterator<Item = [u8; 16]>) -> WcStatus {
        let entries = entries.map(|bytes| zerocopy::transmute!(bytes));
        let len = len as usize;
        if len > which.room() {
            return WcStatus::LOC_LEN_ERR;
        }
        // Copied to this stack first: the device may write the entry at any time.
        match which {
            Scatter::Own32 => {
                let data: [u8; 32] = zerocopy::transmute!(self.ring.entry(self.position).first_words());
                // SAFETY: the caller's promise about the entries.
                unsafe { copy(&data[..len], entries, self.dump_fill_mkey) }
            }
            Scatter::Before64 => {
                // Data before an entry that has nothing before it.
                let Some(data) = self.ring.data_before(self.position) else { return WcStatus::GENERAL_ERR };
                let data: [u8; 64] = zerocopy::transmute!(data);
                // SAFETY: the caller's promise about the entries.
                unsafe { copy(&data[..len], entries, self.dump_fill_mkey) }
            }
        }
    }
}

/// Copies the data of a receive that are in its completion's own first bytes, if `first`, the first entry of the receive, has
/// room for all of them: the usual case. `false`, and nothing copied, for any other.
///
/// # Safety
/// The receive expects data in its completion: `Resource::expecting_data` would find it.
#[inline(always)]
pub(super) unsafe fn to_first_entry(entry: CqeRef<'_>, first: &[AtomicU64; 2], dump_fill_mkey: u32) -> bool {
    let len = entry.byte_cnt() as usize;
    let to: DataSeg = zerocopy::transmute!(read(first));
    let room = to.byte_count.get() as usize;
    if len > Scatter::Own32.room() || len > room || to.lkey.get() == dump_fill_mkey {
        return false;
    }
    let addr = with_exposed_provenance_mut::<u8>(to.addr.get() as usize);
    // SAFETY: the receive was posted with the promise of `RecvBatch::push`, was published, and has not completed (the caller's
    // promise); its queue was neither reset nor destroyed, for which the control path stops this poller
    // (`CqShared::stopped`). So its entry names `room` bytes of this process that the device may write. `len` is at most 32
    // and at most `room`.
    unsafe { copy_short(entry.first_words(), addr, len) };
    true
}

/// Copies the first `len` bytes of `words`, at most 32, by at most two copies of a fixed size that may overlap each other: a
/// copy of any length is a call, which costs more than the copy.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, at most 32.
#[inline(always)]
unsafe fn copy_short(words: [u64; 4], to: *mut u8, len: usize) {
    /// The first and the last `N` of `len` bytes, which are `N` to `2 * N`.
    ///
    /// # Safety
    /// As `copy_short`.
    #[inline(always)]
    unsafe fn ends<const N: usize>(data: &[u8; 32], to: *mut u8, len: usize) {
        let from = data.as_ptr();
        // SAFETY: `N` is at most `len`, so `N` bytes from both starts on are inside both.
        unsafe { core::ptr::copy_nonoverlapping(from, to, N) };
        let rest = len - N;
        // SAFETY: `rest` is at most `len`, which is at most 32.
        let from = unsafe { from.add(rest) };
        // SAFETY: `rest` is at most `len`, the bytes that the caller promised.
        let to = unsafe { to.add(rest) };
        // SAFETY: the last `N` of `len` bytes, inside both.
        unsafe { core::ptr::copy_nonoverlapping(from, to, N) };
    }
    let data = &zerocopy::transmute!(words);
    if len >= 16 {
        // SAFETY: the caller's promise about `to`; the length fits the arm, and is at most 32.
        unsafe { ends::<16>(data, to, len.min(32)) }
    } else if len >= 8 {
        // SAFETY: as above.
        unsafe { ends::<8>(data, to, len) }
    } else if len >= 4 {
        // SAFETY: as above.
        unsafe { ends::<4>(data, to, len) }
    } else if len >= 2 {
        // SAFETY: as above.
        unsafe { ends::<2>(data, to, len) }
    } else if len == 1 {
        // SAFETY: as above.
        unsafe { ends::<1>(data, to, 1) }
    }
}

#[inline(always)]
fn read([a, b]: &[AtomicU64; 2]) -> [u8; 16] {
    zerocopy::transmute!([a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)])
}

/// Copies `data` to the memory of `entries`, in order; what does not fit is [`WcStatus::LOC_LEN_ERR`].
///
/// Memory behind `dump_fill_mkey` takes data and keeps none of them.
///
/// # Safety
/// Every entry was posted with the promise of `SendBatch::push` or `RecvBatch::push`, and is not complete: its address
/// and length are memory of this process that the device, and so the poller for it, may write.
unsafe fn copy(mut data: &[u8], entries: impl Iterator<Item = DataSeg>, dump_fill_mkey: u32) -> WcStatus {
    for entry in entries {
        if data.is_empty() {
            break;
        }
        // A count of 0 is 2^31 to the device; the posters skip empty entries, and end a list with one of `lkey` 0x100.
        let room = entry.byte_count.get() as usize;
        let (now, rest) = data.split_at(data.len().min(room));
        if entry.lkey.get() != dump_fill_mkey && !now.is_empty() {
            let to = with_exposed_provenance_mut::<u8>(entry.addr.get() as usize);
            // SAFETY: the caller's promise; `now` is no longer than the entry, and is our own copy, so they don't overlap.
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
    fn short_copies_copy_all_and_no_more() {
        let data: [u8; 32] = core::array::from_fn(|i| i as u8 + 1);
        for len in 0..=32 {
            let mut to = [0xee_u8; 40];
            // SAFETY: an array of ours with more than `len` bytes.
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
    fn over_the_entries_in_order() {
        let (mut a, mut b, mut c) = ([0; 3], [0; 2], [0; 8]);
        let entries = [entry(&mut a, 1), entry(&mut b, 7), DataSeg::new(0, 0x100, 0), entry(&mut c, 1)];
        // SAFETY: three arrays of ours, which nobody else uses now.
        let status = unsafe { copy(&[1, 2, 3, 4, 5, 6, 7], entries.into_iter(), 7) };
        assert_eq!(status, WcStatus::SUCCESS);
        assert_eq!((a, b, c), ([1, 2, 3], [0, 0], [6, 7, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn more_than_there_is_room_for() {
        let mut a = [0; 3];
        let entries = [entry(&mut a, 1)];
        // SAFETY: an array of ours, which nobody else uses now.
        let status = unsafe { copy(&[1, 2, 3, 4], entries.into_iter(), 7) };
        assert_eq!((status, a), (WcStatus::LOC_LEN_ERR, [1, 2, 3]));
        // SAFETY: no memory is named.
        assert_eq!(unsafe { copy(&[], core::iter::empty(), 7) }, WcStatus::SUCCESS);
    }
}
