// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of verbs, compared with a simple model.
//!
//! A program is a list of [`Step`]s: posts of all kinds on all faces, receives, polls, changes of state, destruction of
//! QPs, on several pairs of QPs that share CQs and perhaps an SRQ. [`world`] runs it on two devices, [`model`] computes
//! the expected results: every signaled work request completes exactly once, in the order of its queue, with the right
//! data, and no byte changes that should not. [`endings`] are the steps after which everything is checked.
//!
//! Numbers in a program are reduced to existing objects, so any list of steps is a program, and so is any part of it: a
//! failing program can be shortened.

pub mod completions;
pub mod endings;
pub mod model;
pub mod world;

use crate::post::Face;
use uverbs::attr::Mtu;

/// The parameters of a program.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connected pairs of QPs, 1 to 3.
    pub pairs: usize,
    /// CQs at each end, 1 to 3: sends and receives of a pair may complete to different ones.
    pub cqs: usize,
    /// Receives come from one SRQ at each end.
    pub srq: bool,
    /// Whether every send is signaled.
    pub sq_sig_all: bool,
    /// Of the send queues.
    pub max_send_wr: u32,
    /// Entries of a work request.
    pub max_sge: u32,
    /// Inline bytes of a work request.
    pub max_inline: u32,
    /// Of connected QPs.
    pub mtu: Mtu,
    /// The link loses, repeats and reorders packets. Then reads name only memory that is not written, because a
    /// repeated read may return data that were written after it.
    pub lossy: bool,
}

/// The operation of a work request, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the opcodes")]
pub enum Verb {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwp,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read, Self::FetchAdd, Self::CmpSwp];
}

/// The fault of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// One entry too many.
    Sges,
    /// One inline byte too many.
    Inline,
}

/// A work request.
#[derive(Clone, Debug)]
pub struct Wr {
    /// The operation; one that the transport lacks becomes a send.
    pub verb: Verb,
    /// Whether it is signaled.
    pub signaled: bool,
    /// Whether it is fenced.
    pub fence: bool,
    /// Whether it is solicited.
    pub solicited: bool,
    /// Whether its data are inline.
    pub inline: bool,
    /// Bytes.
    pub len: u16,
    /// Their local and remote offsets.
    pub at: (u16, u16),
    /// The offsets at which they are divided into entries.
    pub cuts: [u16; 3],
    /// Operands and immediate.
    pub word: u64,
    /// An intentional fault, which must be refused.
    pub wrong: Option<Wrong>,
}

/// A step at `end` of `pair`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants say it")]
pub enum Step {
    /// Work requests by one call.
    Post { pair: u8, end: u8, face: Face, wrs: Vec<Wr> },
    /// Posts receives, as many as there is memory for.
    Recv { pair: u8, end: u8, face: Face, count: u8, cut: u16 },
    /// Polls up to this many completions, in one of three ways.
    Poll { end: u8, cq: u8, max: u8, way: u8 },
    /// Moves an end to SQD.
    Drain { pair: u8, end: u8 },
    /// Moves an end back to RTS.
    Resume { pair: u8, end: u8 },
    /// Moves one end and then the other one to ERR, waits until all is flushed, and connects them again.
    Fail { pair: u8, end: u8 },
    /// Resets both QPs, with outstanding requests, and connects them again.
    Reset { pair: u8 },
    /// Destroys both QPs, with outstanding requests, and creates others.
    Destroy { pair: u8 },
    /// Resizes a CQ.
    Resize { end: u8, cq: u8, cqe: u16 },
    /// Waits, in milliseconds.
    Rest { ms: u8 },
}

/// Counts of a program's actions, with which tests check that programs have an effect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Work requests that were posted.
    pub posted: u64,
    /// Posts that were refused, as expected.
    pub refused: u64,
    /// Successful completions of sends and of receives.
    pub completed: [u64; 2],
    /// Completions with an error, as expected.
    pub flushed: u64,
    /// QPs that failed, were reset or destroyed.
    pub endings: u64,
}

impl core::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.posted += other.posted;
        self.refused += other.refused;
        self.completed[0] += other.completed[0];
        self.completed[1] += other.completed[1];
        self.flushed += other.flushed;
        self.endings += other.endings;
    }
}
