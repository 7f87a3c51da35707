// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in heap memory whose kernel is simulated by the caller: for tests and fuzz targets.
//!
//! The decoders read bytes at the offsets of `<rdma/siw-abi.h>`, written as numbers, and share no code with the encoder.

use crate::ring::{CompletionRing, Ring};
use crate::{CompletionQueue, QpShared, RecvQueue, SendConfig, SendQueue};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::kernel::Mapping;
pub use uverbs_soft::testing::{DecodedSge, FakeBell};
use uverbs_soft::testing::{Words, decode_sges, heap, u16_at, u32_at, u64_at};

/// Bytes of an element of a send queue, a receive queue and a completion queue.
const SIZES: [usize; 3] = [120, 112, 32];

/// The kernel's side of a heap ring, which can write any value.
#[derive(Clone, Debug)]
pub struct KernelSide {
    words: Words,
    size: usize,
    slots: u32,
    /// The kernel's position.
    at: Arc<AtomicU32>,
}

impl KernelSide {
    fn offset(&self, index: u32) -> usize {
        (index & (self.slots - 1)) as usize * self.size
    }

    /// The kernel's position, counted without end.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.at.load(Ordering::Relaxed)
    }
    /// The number of elements.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }
    /// The bytes of an element.
    #[must_use]
    pub fn element(&self, index: u32) -> Vec<u8> {
        self.words.bytes(self.offset(index), self.size)
    }
    /// Writes bytes into an element.
    pub fn put_element(&self, index: u32, offset: usize, bytes: &[u8]) {
        let offset = offset.min(self.size);
        let len = bytes.len().min(self.size - offset);
        self.words.put(self.offset(index) + offset, &bytes[..len]);
    }
    /// Stores the flags of an element.
    pub fn set_flags(&self, index: u32, flags: u16) {
        self.put_element(index, 8, &flags.to_ne_bytes());
    }
    /// Fills the elements with this byte, except for their flags, which are cleared.
    pub fn fill(&self, byte: u8) {
        for index in 0..self.slots {
            self.put_element(index, 0, &vec![byte; self.size]);
            self.set_flags(index, 0);
        }
    }
    /// Every byte of the mapping.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.words.snapshot()
    }
    /// Takes one work request as the kernel does; `None` if none is published.
    pub fn consume(&self) -> Option<Vec<u8>> {
        let at = self.at.load(Ordering::Relaxed);
        let bytes = self.element(at);
        if bytes[8] & 1 == 0 {
            return None;
        }
        self.set_flags(at, 0);
        self.at.store(at.wrapping_add(1), Ordering::Relaxed);
        Some(bytes)
    }
    /// Writes one completion as the kernel does; `false` if the ring is full.
    pub fn produce(&self, bytes: &[u8]) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        if self.element(at)[8] != 0 {
            return false;
        }
        self.put_element(at, 0, &bytes[..8]);
        self.put_element(at, 9, &bytes[9..]);
        self.put_element(at, 8, &bytes[8..9]);
        self.at.store(at.wrapping_add(1), Ordering::Relaxed);
        true
    }
    /// The word that arms a completion queue.
    #[must_use]
    pub fn notify(&self) -> u32 {
        self.words.u32(self.slots as usize * self.size)
    }
}

/// A heap ring of elements of `size` bytes, and what follows them.
pub(crate) fn ring(slots: u32, size: usize, trailer: usize) -> (Mapping, KernelSide) {
    let (mapping, words) = heap(slots as usize * size + trailer);
    (mapping, KernelSide { words, size, slots, at: Arc::default() })
}

/// A send queue of a QP in `state` with `slots` elements.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn send_queue(
    slots: u32,
    config: &SendConfig,
    state: QpState,
) -> (SendQueue<FakeBell>, KernelSide, FakeBell, Arc<QpShared>) {
    let (mapping, kernel) = ring(slots, SIZES[0], 0);
    let ring = Ring::new(mapping, slots).expect("a well-formed ring");
    let (bell, shared) = (FakeBell::default(), Arc::new(QpShared::new(state)));
    let queue = SendQueue::new(ring, config, Arc::clone(&shared), bell.clone());
    (queue.expect("a well-formed ring"), kernel, bell, shared)
}

/// A receive queue of a QP in RTS with `slots` elements.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn recv_queue(slots: u32, max_sge: u32) -> (RecvQueue, KernelSide, Arc<QpShared>) {
    let (mapping, kernel) = ring(slots, SIZES[1], 0);
    let ring = Ring::new(mapping, slots).expect("a well-formed ring");
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let queue = RecvQueue::new(ring, max_sge, Arc::clone(&shared), ());
    (queue.expect("a well-formed ring"), kernel, shared)
}

/// A completion queue with `slots` elements.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn completion_queue(slots: u32) -> (CompletionQueue, KernelSide) {
    let (mapping, kernel) = ring(slots, SIZES[2], 8);
    let ring = CompletionRing::new(mapping, slots).expect("a well-formed ring");
    (uverbs_soft::testing::completion_queue(ring, ()).expect("a well-formed ring"), kernel)
}

/// The fields of an element of a send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedSend {
    /// `id`
    pub id: u64,
    /// `flags`
    pub flags: u16,
    /// `opcode`
    pub opcode: u8,
    /// `rkey`
    pub rkey: u32,
    /// `raddr`
    pub raddr: u64,
    /// The entries, if the data are not inline.
    pub sges: Vec<DecodedSge>,
    /// The data, if they are inline.
    pub inline: Vec<u8>,
}

/// Reads an element of a send queue as the kernel does.
///
/// # Panics
/// If the bytes are fewer than an element has, or their number of entries or of inline bytes is more than fits.
#[must_use]
pub fn decode_send(b: &[u8]) -> DecodedSend {
    let flags = u16_at(b, 8);
    let is_inline = flags & 2 != 0;
    DecodedSend {
        id: u64_at(b, 0),
        flags,
        opcode: b[11],
        rkey: u32_at(b, 12),
        raddr: u64_at(b, 16),
        sges: if is_inline { vec![] } else { decode_sges(&b[24..120], b[10].into()) },
        inline: if is_inline { b[40..40 + u32_at(b, 32) as usize].to_vec() } else { vec![] },
    }
}

/// Reads an element of a receive queue: id, flags, entries.
///
/// # Panics
/// If the bytes are fewer than an element has, or their number of entries is more than fits.
#[must_use]
pub fn decode_recv(b: &[u8]) -> (u64, u16, Vec<DecodedSge>) {
    (u64_at(b, 0), u16_at(b, 8), decode_sges(&b[16..112], b[10].into()))
}

/// The bytes of a completion: id, flags, opcode, status, bytes, QP number.
#[must_use]
pub fn completion(id: u64, opcode: u8, status: u16, bytes: u32, qp_num: u64) -> [u8; 32] {
    let mut b = [0xa5; 32];
    b[0..8].copy_from_slice(&id.to_ne_bytes());
    (b[8], b[9]) = (1, opcode);
    b[10..12].copy_from_slice(&status.to_ne_bytes());
    b[12..16].copy_from_slice(&bytes.to_ne_bytes());
    b[24..32].copy_from_slice(&qp_num.to_ne_bytes());
    b
}
