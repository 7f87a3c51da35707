// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in heap memory whose kernel is simulated by the caller: for tests and fuzz targets.
//!
//! The decoders read bytes at the offsets of `<rdma/rdma_user_rxe.h>`, written as numbers, and share no code with the
//! encoder.

use crate::doorbell::{ArmBell, FlushBell, SendBell};
use crate::queue::{Ring, heap_ring};
use crate::{Ah, CompletionQueue, QpShared, RecvQueue, SendConfig, SendQueue};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{PollError, PostError};

const HEADER: usize = 384;
const PRODUCER: usize = 128;
const CONSUMER: usize = 256;

/// The kernel's side of a heap ring, which can write any value.
#[derive(Clone, Debug)]
pub struct KernelSide {
    words: Arc<[AtomicU64]>,
    log2: u32,
    slots: u32,
}

impl KernelSide {
    fn bytes(&self, from: usize, len: usize) -> Vec<u8> {
        let all = self.words[from / 8..(from + len).div_ceil(8)].iter();
        let bytes: Vec<u8> = all.flat_map(|w| w.load(Ordering::Acquire).to_ne_bytes()).collect();
        bytes[from % 8..from % 8 + len].to_vec()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let word = &self.words[(at + i) / 8];
            let mut old = word.load(Ordering::Relaxed).to_ne_bytes();
            old[(at + i) % 8] = *byte;
            word.store(u64::from_ne_bytes(old), Ordering::Release);
        }
    }

    fn index(&self, at: usize) -> u32 {
        let b = self.bytes(at, 4);
        u32::from_ne_bytes([b[0], b[1], b[2], b[3]])
    }

    /// The slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }
    /// The producer index.
    #[must_use]
    pub fn producer(&self) -> u32 {
        self.index(PRODUCER)
    }
    /// The consumer index.
    #[must_use]
    pub fn consumer(&self) -> u32 {
        self.index(CONSUMER)
    }
    /// Stores any producer index.
    pub fn set_producer(&self, index: u32) {
        self.put(PRODUCER, &index.to_ne_bytes());
    }
    /// Stores any consumer index.
    pub fn set_consumer(&self, index: u32) {
        self.put(CONSUMER, &index.to_ne_bytes());
    }
    /// Stores any geometry.
    pub fn set_geometry(&self, log2_elem_size: u32, index_mask: u32) {
        self.put(0, &log2_elem_size.to_ne_bytes());
        self.put(4, &index_mask.to_ne_bytes());
    }
    /// The bytes of an element.
    #[must_use]
    pub fn element(&self, index: u32) -> Vec<u8> {
        let index = (index & (self.slots - 1)) as usize;
        self.bytes(HEADER + (index << self.log2), 1 << self.log2)
    }
    /// Writes bytes into an element, from its start.
    pub fn put_element(&self, index: u32, bytes: &[u8]) {
        let len = bytes.len().min(1 << self.log2);
        let index = (index & (self.slots - 1)) as usize;
        self.put(HEADER + (index << self.log2), &bytes[..len]);
    }
    /// Fills the slots with this byte.
    pub fn fill(&self, byte: u8) {
        for word in &self.words[HEADER / 8..] {
            word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed);
        }
    }
    /// Every byte of the mapping.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes(0, self.words.len() * 8)
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

/// A doorbell that counts, and fails on request.
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
    Ok((CompletionQueue::new(ring, bell.clone())?, kernel, bell))
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([b[at], b[at + 1]])
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at + if cfg!(target_endian = "little") { 0 } else { 4 }))
        | u64::from(u32_at(b, at + if cfg!(target_endian = "little") { 4 } else { 0 })) << 32
}

/// A scatter/gather entry of a WQE: address, length, lkey.
pub type DecodedSge = (u64, u32, u32);

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

fn decode_sges(b: &[u8], num: usize) -> Vec<DecodedSge> {
    (0..num).map(|i| (u64_at(b, 16 * i), u32_at(b, 16 * i + 8), u32_at(b, 16 * i + 12))).collect()
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
