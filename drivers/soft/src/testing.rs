// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and bells for tests and fuzz targets, whose kernel side the caller controls.
#![expect(unsafe_code)]
// UNSAFETY: creates mappings of heap memory, and posts.

pub mod suite;

use crate::doorbell::{ArmBell, FlushBell, SendBell};
use crate::format::Format;
use crate::{CompletionQueue, CqState};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::Mapping;
use uverbs_core::provider::{Head, Op, PollError, WrBuilder};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wr::SendFlags;

/// The bytes of a mapping, in the role of the kernel, which can write any value.
#[derive(Clone, Debug)]
pub struct Words(Arc<[AtomicU64]>);

/// Memory in the heap: the words are the whole mapping.
#[must_use]
pub fn heap(bytes: usize) -> (Mapping, Words) {
    let words: Arc<[AtomicU64]> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
    let ptr = NonNull::from(&words[..]).cast::<u8>();
    // SAFETY: the words live as long as the `Arc` that becomes the mapping's owner, and consist of atomics.
    let mapping = unsafe { Mapping::new(ptr, bytes, Arc::clone(&words)) };
    (mapping, Words(words))
}

impl Words {
    /// Reads bytes.
    #[must_use]
    pub fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let all = self.0[from / 8..(from + len).div_ceil(8)].iter();
        let bytes: Vec<u8> = all.flat_map(|w| w.load(Ordering::Acquire).to_ne_bytes()).collect();
        bytes[from % 8..from % 8 + len].to_vec()
    }

    /// Writes bytes.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let word = &self.0[(at + i) / 8];
            let mut old = word.load(Ordering::Relaxed).to_ne_bytes();
            old[(at + i) % 8] = *byte;
            word.store(u64::from_ne_bytes(old), Ordering::Release);
        }
    }

    /// Reads an integer.
    #[must_use]
    pub fn u32(&self, at: usize) -> u32 {
        u32_at(&self.bytes(at, 4), 0)
    }

    /// Every byte of the mapping.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes(0, self.0.len() * 8)
    }
}

/// A completion queue on a ring.
///
/// # Errors
/// [`PollError::Corrupt`] if the ring's contents make no sense.
///
/// # Panics
/// If memory can't be allocated.
pub fn completion_queue<F: Format, B: ArmBell>(
    ring: F::CqRing,
    bell: B,
) -> Result<CompletionQueue<F, B>, PollError> {
    let created = CompletionQueue::new(CqState::new(ring)?, ControlBarrier::register(), bell);
    Ok(created.expect("a page of memory"))
}

/// A bell that counts, and fails on request.
#[derive(Clone, Debug, Default)]
pub struct FakeBell(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    rings: AtomicU32,
    flushes: AtomicU32,
    arms: AtomicU32,
    solicited: AtomicU32,
    errno: AtomicI32,
}

impl FakeBell {
    /// The number of doorbells of a send queue.
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.0.rings.load(Ordering::Relaxed)
    }
    /// The number of flush requests of a receive queue.
    #[must_use]
    pub fn flushes(&self) -> u32 {
        self.0.flushes.load(Ordering::Relaxed)
    }
    /// The number of event requests of a completion queue, and how many of them were for solicited completions only.
    #[must_use]
    pub fn arms(&self) -> (u32, u32) {
        (self.0.arms.load(Ordering::Relaxed), self.0.solicited.load(Ordering::Relaxed))
    }
    /// Makes every call fail with this errno, or succeed again with `None`.
    pub fn fail(&self, errno: Option<Errno>) {
        self.0.errno.store(errno.map_or(0, Errno::raw), Ordering::Relaxed);
    }
    fn result(&self) -> Result<(), Errno> {
        match self.0.errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw(errno)),
        }
    }
}

impl SendBell for FakeBell {
    fn ring(&self) -> Result<(), Errno> {
        self.0.rings.fetch_add(1, Ordering::Relaxed);
        self.result()
    }
}
impl FlushBell for FakeBell {
    fn flush(&self) -> Result<(), Errno> {
        self.0.flushes.fetch_add(1, Ordering::Relaxed);
        self.result()
    }
}
impl ArmBell for FakeBell {
    fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        self.0.arms.fetch_add(1, Ordering::Relaxed);
        self.0.solicited.fetch_add(solicited_only.into(), Ordering::Relaxed);
        self.result()
    }
}

/// Reads an integer at an offset.
#[must_use]
pub fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([b[at], b[at + 1]])
}

/// Reads an integer at an offset.
#[must_use]
pub fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Reads an integer at an offset.
#[must_use]
pub fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&b[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

/// A scatter/gather entry of a WQE: address, length, lkey.
pub type DecodedSge = (u64, u32, u32);

/// Reads entries.
#[must_use]
pub fn decode_sges(b: &[u8], num: usize) -> Vec<DecodedSge> {
    (0..num).map(|i| (u64_at(b, 16 * i), u32_at(b, 16 * i + 8), u32_at(b, 16 * i + 12))).collect()
}

/// Begins a signaled WR in the session of a queue.
///
/// # Panics
/// If it is a bind, which needs more.
pub fn begin<Q: WrBuilder>(queue: &mut Q, wr_id: u64, op: Op<'_, Q::Remote>) {
    assert!(!matches!(op, Op::BindMw(_)), "a bind");
    // SAFETY: not a bind, so there is no requirement.
    unsafe { queue.wr_begin(Head { wr_id, flags: SendFlags::SIGNALED }, op) };
}
