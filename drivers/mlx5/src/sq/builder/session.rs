// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a session: the cursor, and the WR of the setters.

use crate::memory::{BlockIndex, SqView, UnitIndex};
use crate::sq::cursor::SqCursor;
use crate::wqe::WqeWriter;
use crate::wqe::plain::{Carries, Written};
use bitflags::bitflags;
use uverbs_core::provider::PostError;

impl Setters {
    /// Those of a WR with data and a destination.
    pub(super) const BOTH: Self = Self::DATA.union(Self::ADDRESS);
}

bitflags! {
    /// The setters of a WR.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Setters: u8 {
        const DATA = 1;
        const ADDRESS = 2;
        /// Those of a WR that configures an indirect key.
        const MKEY = 4;
    }

    /// The properties of a WR that exclude it from the fast path of some setters.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct SlowPathFlags: u8 {
        /// An atomic: it has a response of 8 bytes.
        const ATOMIC = 1;
        /// Its data can't be inline.
        const NO_INLINE = 2;
        /// A raw packet, whose Ethernet segment the data setter writes.
        const FRAME = 4;
        /// A TSO send.
        const TSO = 8;
        /// A raw packet for which the device computes checksums.
        const CSUM = 16;
        /// Its room is checked when its length is known.
        const LONG = 32;
    }
}

/// A builder session. The producer stores whether it is open.
///
/// A WR of the fast path is finished when it begins, as if it had one entry: the cursor is behind it. Data of another
/// length correct that. A WR with [`LONG`](SlowPathFlags::LONG) is finished by its data setter.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) cursor: SqCursor,
    pub(super) wr: Current,
    /// The WRs that a `LONG` WR counts beyond one so far.
    pub(super) taken: u32,
    /// The error of a failed cursor.
    pub(super) error: PostError,
}

/// The WR of the setters. Its `wr_id` is in the record of its block, and its control segment is written as if one entry
/// followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    /// Its first block.
    pub(super) place: BlockIndex,
    /// The unit at which its data begin.
    pub(super) data: UnitIndex,
    /// The first word of its control segment, in host order, with one unit of data.
    pub(super) ctrl0: u64,
    /// The longest entry that may be the WR's only one without further checks; 0 if no data setter is missing.
    pub(super) max_entry: u32,
    pub(super) state: CurrentState,
}

/// The properties of a WR, and its missing setters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(4))]
pub(super) struct CurrentState {
    /// The setters that were not called yet.
    pub(super) needs: Setters,
    /// The setters of the WR.
    pub(super) takes: Setters,
    pub(super) slow: SlowPathFlags,
    /// The units before its data.
    pub(super) units: u8,
}

impl CurrentState {
    /// The state of a WR that has `units` units before its data.
    pub(super) const fn new(takes: Setters, slow: SlowPathFlags, units: u32) -> Self {
        Self { needs: takes, takes, slow, units: units as u8 }
    }

    /// Whether its data are missing, and it has no flags except `but`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) const fn takes_data(self, but: SlowPathFlags) -> bool {
        self.needs.contains(Setters::DATA) && self.slow.difference(but).is_empty()
    }
}

impl Current {
    /// No WR: no setter is expected.
    pub(super) const NONE: Self = Self {
        place: BlockIndex::of(0),
        data: BlockIndex::of(0).unit(0),
        ctrl0: 0,
        max_entry: 0,
        state: CurrentState {
            needs: Setters::empty(),
            takes: Setters::empty(),
            slow: SlowPathFlags::empty(),
            units: 0,
        },
    };

    /// Removes the WR.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) const fn clear(&mut self) {
        self.max_entry = 0;
        self.state = Self::NONE.state;
    }

    /// Called after the data were set.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn end_data(&mut self) {
        self.max_entry = 0;
        self.state.needs.remove(Setters::DATA);
    }
}

impl Session {
    /// No session.
    pub(crate) const fn new() -> Self {
        Self { cursor: SqCursor::failed(), wr: Current::NONE, taken: 0, error: PostError::NoSession }
    }

    /// Latches an error: removes the WR, and no further one has room.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self, error: PostError) {
        if !self.cursor.is_failed() {
            (self.cursor.head, self.error) = (SqCursor::FAILED, error);
        }
        self.wr = Current::NONE;
    }

    /// Ends the data of a WR of the fast path, which a setter wrote into `units` units, at least one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn end_fast(&mut self, view: SqView<'_>, wr: &Current, units: u32, carries: Carries) {
        WqeWriter::new(view, wr.place).put_ctrl0((wr.ctrl0 - 1 + u64::from(units)).to_be());
        self.cursor.finish_again(view, wr.place, Written { ds: u32::from(wr.state.units) + units, carries });
        self.wr.end_data();
    }

    /// [`end_fast`](Self::end_fast) for at most [`SHORT_INLINE`] bytes of inline data.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn end_short(&mut self, view: SqView<'_>, wr: &Current, units: u32) {
        WqeWriter::new(view, wr.place).put_ctrl0((wr.ctrl0 - 1 + u64::from(units)).to_be());
        let written = Written { ds: u32::from(wr.state.units) + units, carries: Carries::Inline };
        self.cursor.finish_short(view, wr.place, written);
        self.wr.end_data();
    }

    /// Ends the last WR, whose setters must all have been called.
    pub(super) fn end_wr(&mut self) {
        if !self.wr.state.needs.is_empty() {
            self.fail(PostError::MissingSetter);
        }
    }

    /// Reports a setter that the WR does not have, or that was called already.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_setter(&mut self, which: Setters) {
        let is_doubled = self.wr.state.takes.contains(which);
        self.fail(if is_doubled { PostError::DoubledSetter } else { PostError::OrphanSetter });
    }
}
