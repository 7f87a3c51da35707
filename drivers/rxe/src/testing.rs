// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in heap memory whose kernel is simulated by the caller: for tests and fuzz targets.
//!
//! The decoders read bytes at the offsets of `<rdma/rdma_user_rxe.h>`, written as numbers, and share no code with the
//! encoder.

use crate::ring::Ring;
use crate::{Ah, CompletionQueue, QpShared, RecvQueue, SendConfig, SendQueue};
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::kernel::Mapping;
use uverbs_core::provider::{PollError, PostError};
pub use uverbs_soft::testing::{DecodedSge, FakeBell, completion_queue as completion_queue_on};
use uverbs_soft::testing::{Words, decode_sges, heap, u16_at, u32_at, u64_at};

const HEADER: usize = 384;
const PRODUCER: usize = 128;
const CONSUMER: usize = 256;

/// The kernel's side of a heap ring, which can write any value.
#[derive(Clone, Debug)]
pub struct KernelSide {
    words: Words,
    log2: u32,
    slots: u32,
}

impl KernelSide {
    /// The slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }
    /// The producer index.
    #[must_use]
    pub fn producer(&self) -> u32 {
        self.words.u32(PRODUCER)
    }
    /// The consumer index.
    #[must_use]
    pub fn consumer(&self) -> u32 {
        self.words.u32(CONSUMER)
    }
    /// Stores any producer index.
    pub fn set_producer(&self, index: u32) {
        self.words.put(PRODUCER, &index.to_ne_bytes());
    }
    /// Stores any consumer index.
    pub fn set_consumer(&self, index: u32) {
        self.words.put(CONSUMER, &index.to_ne_bytes());
    }
    /// Stores any geometry.
    pub fn set_geometry(&self, log2_elem_size: u32, index_mask: u32) {
        self.words.put(0, &log2_elem_size.to_ne_bytes());
        self.words.put(4, &index_mask.to_ne_bytes());
    }
    /// The bytes of an element.
    #[must_use]
    pub fn element(&self, index: u32) -> Vec<u8> {
        let index = (index & (self.slots - 1)) as usize;
        self.words.bytes(HEADER + (index << self.log2), 1 << self.log2)
    }
    /// Writes bytes into an element, from its start.
    pub fn put_element(&self, index: u32, bytes: &[u8]) {
        let len = bytes.len().min(1 << self.log2);
        let index = (index & (self.slots - 1)) as usize;
        self.words.put(HEADER + (index << self.log2), &bytes[..len]);
    }
    /// Fills the slots with this byte.
    pub fn fill(&self, byte: u8) {
        self.words.put(HEADER, &vec![byte; (self.slots as usize) << self.log2]);
    }
    /// Every byte of the mapping.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.words.snapshot()
    }
    /// Consumes one element as the kernel does; returns its bytes, or `None` if the ring is empty.
    pub fn consume(&self) -> Option<Vec<u8>> {
        let (consumer, mask) = (self.consumer() & (self.slots - 1), self.slots - 1);
        if consumer == self.producer() & mask {
            return None;
        }
        let bytes = self.element(consumer);
        self.set_consumer((consumer + 1) & mask);
        Some(bytes)
    }
    /// Produces one element as the kernel does; `false` if the ring is full.
    pub fn produce(&self, bytes: &[u8]) -> bool {
        let (producer, mask) = (self.producer() & (self.slots - 1), self.slots - 1);
        if (producer + 1) & mask == self.consumer() & mask {
            return false;
        }
        self.put_element(producer, bytes);
        self.set_producer((producer + 1) & mask);
        true
    }
}

/// A ring in heap memory, as `rxe_queue_init()` would make it: `slots` elements of `1 << log2` bytes.
pub(crate) fn heap_ring(log2: u32, slots: u32) -> (Mapping, Words) {
    let (mapping, words) = heap(HEADER + ((slots as usize) << log2));
    words.put(0, &log2.to_ne_bytes());
    words.put(4, &slots.wrapping_sub(1).to_ne_bytes());
    (mapping, words)
}

/// A ring in heap memory, with elements of `1 << log2` bytes; `slots` is a power of two.
///
/// # Panics
/// If the element is too small for an `H` and `tail` bytes: an error of the test.
#[must_use]
pub fn ring<H>(log2: u32, slots: u32, tail: usize) -> (Ring<H>, KernelSide) {
    assert!(slots.is_power_of_two(), "rxe's rings have a power of two of slots");
    let (mapping, words) = heap_ring(log2, slots);
    let ring = Ring::new(mapping, tail).expect("a well-formed ring");
    (ring, KernelSide { words, log2, slots })
}

/// A send queue in RTS with `slots - 1` entries.
pub fn send_queue(
    slots: u32,
    config: &SendConfig,
) -> Result<(SendQueue<FakeBell>, KernelSide, FakeBell, Arc<QpShared>), PostError> {
    let tail = (config.max_sge as usize * 16).max(config.max_inline as usize);
    let log2 = (208 + tail).next_power_of_two().trailing_zeros();
    let (ring, kernel) = ring(log2, slots, tail);
    let (bell, shared) = (FakeBell::default(), Arc::new(QpShared::new(QpState::RTS)));
    let queue = SendQueue::new(ring, config, Arc::clone(&shared), bell.clone())?;
    Ok((queue, kernel, bell, shared))
}

/// A receive queue of a QP in RTS with `slots - 1` entries.
pub fn recv_queue(
    slots: u32,
    max_sge: u32,
) -> Result<(RecvQueue<FakeBell>, KernelSide, FakeBell, Arc<QpShared>), PostError> {
    let tail = max_sge as usize * 16;
    let log2 = (40 + tail).next_power_of_two().trailing_zeros().max(6);
    let (ring, kernel) = ring(log2, slots, tail);
    let (bell, shared) = (FakeBell::default(), Arc::new(QpShared::new(QpState::RTS)));
    let queue = RecvQueue::new(ring, max_sge, Arc::clone(&shared), bell.clone())?;
    Ok((queue, kernel, bell, shared))
}

/// A completion queue with `slots - 1` entries.
pub fn completion_queue(slots: u32) -> Result<(CompletionQueue<FakeBell>, KernelSide, FakeBell), PollError> {
    let (ring, kernel) = ring(7, slots, 0);
    let bell = FakeBell::default();
    Ok((completion_queue_on(ring, bell.clone())?, kernel, bell))
}

/// The fields of a send WQE besides its operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedSend {
    /// `wr_id`
    pub wr_id: u64,
    /// `opcode`
    pub opcode: u32,
    /// `send_flags`
    pub send_flags: u32,
    /// `ex`, in memory order.
    pub imm_or_key: u32,
    /// The operation's own part.
    pub part: Part,
    /// `iova`
    pub iova: u64,
    /// `dma.length`
    pub length: u32,
    /// `dma.resid`
    pub resid: u32,
    /// The entries, if the data are not inline.
    pub sges: Vec<DecodedSge>,
    /// The data, if they are inline.
    pub inline: Vec<u8>,
    /// The kernel's own variables (`status`, `state`, `mask`, PSNs, `ack_length`, `ssn`, `has_rd_atomic`, `cur_sge`,
    /// `sge_offset`). Must be 0; otherwise old bytes were left in the slot.
    pub kernel_state_is_zero: bool,
}

/// The union of a send WQE, by opcode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the header's names")]
pub enum Part {
    /// Sends of connected QPs, and local invalidation.
    None,
    /// Sends of datagram QPs.
    Ud { remote_qpn: u32, remote_qkey: u32, pkey_index: u16, ah_num: u32, av: Vec<u8> },
    /// Writes, reads, atomic writes.
    Rdma { remote_addr: u64, rkey: u32 },
    /// Compare-and-swap, fetch-and-add.
    Atomic { remote_addr: u64, compare_add: u64, swap: u64, rkey: u32 },
    /// Window binds.
    Mw { addr: u64, length: u64, mr_lkey: u32, mw_rkey: u32, rkey: u32, access: u32 },
    /// Flushes.
    Flush { remote_addr: u64, length: u32, rkey: u32, kind: u8, level: u8 },
}

/// Reads a send WQE as the kernel does.
///
/// # Panics
/// If the bytes are fewer than an element has.
#[must_use]
pub fn decode_send(b: &[u8], datagram: bool) -> DecodedSend {
    let (opcode, send_flags) = (u32_at(b, 12), u32_at(b, 16));
    let part = match opcode {
        0 | 1 | 4 | 15 => Part::Rdma { remote_addr: u64_at(b, 24), rkey: u32_at(b, 32) },
        5 | 6 => Part::Atomic {
            remote_addr: u64_at(b, 24),
            compare_add: u64_at(b, 32),
            swap: u64_at(b, 40),
            rkey: u32_at(b, 48),
        },
        8 => Part::Mw {
            addr: u64_at(b, 24),
            length: u64_at(b, 32),
            mr_lkey: u32_at(b, 40),
            mw_rkey: u32_at(b, 44),
            rkey: u32_at(b, 48),
            access: u32_at(b, 52),
        },
        14 => Part::Flush {
            remote_addr: u64_at(b, 24),
            length: u32_at(b, 32),
            rkey: u32_at(b, 36),
            kind: b[40],
            level: b[41],
        },
        _ if datagram => Part::Ud {
            remote_qpn: u32_at(b, 24),
            remote_qkey: u32_at(b, 28),
            pkey_index: u16_at(b, 32),
            ah_num: u32_at(b, 36),
            av: b[56..144].to_vec(),
        },
        _ => Part::None,
    };
    let (length, num_sge) = (u32_at(b, 184), u32_at(b, 196) as usize);
    let is_inline = send_flags & 8 != 0 || opcode == 15;
    let inline = if is_inline { b[208..208 + length as usize].to_vec() } else { Vec::new() };
    DecodedSend {
        wr_id: u64_at(b, 0),
        opcode,
        send_flags,
        imm_or_key: u32_at(b, 20),
        part,
        iova: u64_at(b, 152),
        length,
        resid: u32_at(b, 188),
        sges: decode_sges(&b[208..], num_sge),
        inline,
        kernel_state_is_zero: [&b[8..12], &b[144..152], &b[160..184], &b[192..196], &b[200..208]]
            .iter()
            .all(|part| part.iter().all(|byte| *byte == 0)),
    }
}

/// The fields of a receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedRecv {
    /// `wr_id`
    pub wr_id: u64,
    /// `dma.length`
    pub length: u32,
    /// `dma.resid`
    pub resid: u32,
    /// The entries.
    pub sges: Vec<DecodedSge>,
    /// The kernel's own variables and the padding. Must be 0; otherwise old bytes were left in the slot.
    pub kernel_state_is_zero: bool,
}

/// Reads a receive WQE as the kernel does.
///
/// # Panics
/// If the bytes are fewer than an element has.
#[must_use]
pub fn decode_recv(b: &[u8]) -> DecodedRecv {
    DecodedRecv {
        wr_id: u64_at(b, 0),
        length: u32_at(b, 16),
        resid: u32_at(b, 20),
        sges: decode_sges(&b[40..], u32_at(b, 28) as usize),
        kernel_state_is_zero: [&b[8..16], &b[24..28], &b[32..40]]
            .iter()
            .all(|part| part.iter().all(|byte| *byte == 0)),
    }
}

/// An address handle of this number, with an address of equal bytes.
#[must_use]
pub fn ah(num: u32, byte: u8) -> Ah {
    let av = zerocopy::transmute!([byte; 88]);
    Ah { num, av }
}
