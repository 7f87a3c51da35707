// SPDX-License-Identifier: MIT OR Apache-2.0
//! The expected results of a program: copies of the memory at both ends, and lists of outstanding requests.
//!
//! The requests of one direction of a pair access memory that no other direction accesses, in the order of posting. So
//! the effect of each request is known in advance, independent of the timing of the devices.

use crate::pattern;
use core::ops::Range;
use std::collections::VecDeque;
use uverbs::WcOpcode;

/// Bytes of a window of memory.
pub const WINDOW: usize = 1024;
/// Words that atomics work on.
pub const WORDS: usize = 8;
/// Longest message.
pub const LONGEST: usize = 600;
/// From one receive's memory to the next: a GRH, the longest message, and a gap.
pub const SLOT: usize = 704;
/// Receives of a queue pair, or of an SRQ, at one time.
pub const SLOTS: usize = 24;
/// Offset of the receives of a pair.
const FIRST_SLOT: usize = 4608;
/// From one pair's memory to the next.
pub const PAIR: usize = 24 << 10;
/// Memory of an end: three pairs, and the SRQ's receives.
pub const LEN: usize = 4 * PAIR;
/// Bytes before and behind that memory, which no WR names.
pub const GUARD: usize = 4096;

/// Offset of the data that a direction's initiator sends, which do not change.
pub fn source(pair: usize) -> usize {
    pair * PAIR
}
/// Offset of the results of reads and atomics.
pub fn results(pair: usize) -> usize {
    pair * PAIR + WINDOW
}
/// Offset of the memory that the responder's peer writes.
pub fn target(pair: usize) -> usize {
    pair * PAIR + 2 * WINDOW
}
/// Offset of the memory that is only read.
pub fn constant(pair: usize) -> usize {
    pair * PAIR + 3 * WINDOW
}
/// Offset of its words.
pub fn words(pair: usize) -> usize {
    pair * PAIR + 4 * WINDOW
}
/// A receive's memory.
pub fn slot(owner: usize, index: usize) -> usize {
    if owner == SRQ { 3 * PAIR + index * SLOT } else { owner * PAIR + FIRST_SLOT + index * SLOT }
}
/// The owner of an SRQ's receives.
pub const SRQ: usize = 3;

const _: () = assert!(FIRST_SLOT + SLOTS * SLOT <= PAIR && SLOTS * SLOT <= PAIR);

/// The expected memory of both ends.
#[derive(Clone, Debug)]
pub struct Memory(pub [Vec<u8>; 2]);

impl Memory {
    /// Initial contents that are different at each position.
    pub fn new() -> Self {
        Self([pattern::bytes(0xa, LEN), pattern::bytes(0xb, LEN)])
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// The effect of a request on memory.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "offsets in the memory of an end")]
pub enum Effect {
    /// No effect, except at the receiver.
    Message,
    /// A write: the bytes arrive in the responder's memory.
    Write { at: usize, data: Vec<u8> },
    /// A read: bytes of the responder's memory arrive at the initiator.
    Read { from: usize, to: usize, len: usize },
    /// An atomic: a word of the responder's memory changes, and its old value arrives at the initiator.
    Atomic { at: usize, to: usize, change: Change },
}

/// The operation of an atomic.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the operands of the verbs")]
pub enum Change {
    /// Fetch and add.
    Add(u64),
    /// Compare and swap.
    Swap { compare: u64, swap: u64 },
}

impl Effect {
    /// The memory of its result.
    #[must_use]
    pub fn answer(&self) -> Option<Range<usize>> {
        match *self {
            Self::Read { to, len, .. } => Some(to..to + len),
            Self::Atomic { to, .. } => Some(to..to + 8),
            _ => None,
        }
    }

    /// Applies the effect; `initiator` is the end that posted.
    pub fn apply(&self, memory: &mut Memory, initiator: usize) {
        let responder = 1 - initiator;
        match self {
            Self::Message => {}
            Self::Write { at, data } => memory.0[responder][*at..at + data.len()].copy_from_slice(data),
            Self::Read { from, to, len } => {
                let data = memory.0[responder][*from..from + len].to_vec();
                memory.0[initiator][*to..to + len].copy_from_slice(&data);
            }
            Self::Atomic { at, to, change } => {
                let word: [u8; 8] = core::array::from_fn(|i| memory.0[responder][at + i]);
                memory.0[initiator][*to..to + 8].copy_from_slice(&word);
                let old = u64::from_ne_bytes(word);
                let new = match *change {
                    Change::Add(add) => old.wrapping_add(add),
                    Change::Swap { compare, swap } if old == compare => swap,
                    Change::Swap { .. } => old,
                };
                memory.0[responder][*at..at + 8].copy_from_slice(&new.to_ne_bytes());
            }
        }
    }
}

/// A posted request without a completion.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its id.
    pub id: u64,
    /// Whether it is signaled.
    pub signaled: bool,
    /// The opcode of its completion.
    pub opcode: WcOpcode,
    /// Length in the completion, of reads and atomics.
    pub byte_len: Option<u32>,
    /// Its effect.
    pub effect: Effect,
}

/// A posted message that was not received.
#[derive(Clone, Debug)]
pub struct Message {
    /// Id of the request that sends it.
    pub id: u64,
    /// The data in the receive.
    pub data: Vec<u8>,
    /// The length in the completion.
    pub byte_len: usize,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Of the completion.
    pub opcode: WcOpcode,
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Its id.
    pub id: u64,
    /// Its memory.
    pub slot: usize,
}

/// One end of a pair.
#[derive(Clone, Debug, Default)]
pub struct EndModel {
    /// Outstanding requests, in the order of posting.
    pub sent: VecDeque<Sent>,
    /// Messages to the other end.
    pub messages: VecDeque<Message>,
    /// Receives of this end's own receive queue.
    pub recvs: VecDeque<Posted>,
    /// Id of the last request that is known to have succeeded.
    pub last_ok: Option<u64>,
    /// Requests that ended with an error, in order, while the pair fails.
    pub failed: Vec<Sent>,
    /// Whether it is in SQD.
    pub drained: bool,
}

/// The windows that a direction from `initiator` may change: end and range.
pub fn windows(pair: usize, initiator: usize) -> [(usize, Range<usize>); 3] {
    let window = |at| at..at + WINDOW;
    [
        (initiator, window(results(pair))),
        (1 - initiator, window(target(pair))),
        (1 - initiator, words(pair)..words(pair) + WORDS * 8),
    ]
}

/// The possible contents of a direction's memory: after each number of the requests `maybe`, from none to all of them.
pub fn histories(memory: &Memory, maybe: &[Sent], initiator: usize) -> Vec<Memory> {
    let mut all = vec![memory.clone()];
    let mut state = memory.clone();
    for sent in maybe {
        sent.effect.apply(&mut state, initiator);
        all.push(state.clone());
    }
    all
}
