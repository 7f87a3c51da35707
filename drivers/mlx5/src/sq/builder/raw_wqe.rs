// SPDX-License-Identifier: MIT OR Apache-2.0
//! WRs whose WQE the program has written (`mlx5dv_wr_raw_wqe`).
#![expect(unsafe_code)]
// UNSAFETY: `wr_raw_wqe` has a contract about the memory that the WQE names. This module has no unsafe operation.

use super::session::Current;
use crate::memory::CompletedCount;
use crate::shared::umr_op;
use crate::sq::SendQueue;
use crate::wqe::plain::{Carries, Written};
use crate::wqe::{CTRL_UNITS, WqeWriter};
use uverbs_core::provider::PostError;

/// Fields of a control segment, in the host order of its two words: the number of units, the index, the signature.
const DS: u64 = 0x3f;
const INDEX: u64 = 0xffff << 40;
const SIGNATURE: u64 = 0xff << 56;

/// The words of a unit, in the order of the memory.
fn words_of(unit: &[u8; 16]) -> [u64; 2] {
    zerocopy::transmute!(*unit)
}

impl SendQueue {
    /// `mlx5dv_wr_raw_wqe`: a WR whose WQE the program has written, in units of 16 bytes. This function replaces its index
    /// and clears its signature; the program is responsible for all other fields, also for its flags. Its completion has the
    /// opcode [`DRIVER2`](uverbs_core::wc::WcOpcode::DRIVER2). The QP must have been created with
    /// [`raw_wqes`](crate::dv::QpOptions::raw_wqes).
    ///
    /// As in every builder, an error fails the batch: a length that is not that in the control segment, or more than fits
    /// into the queue.
    ///
    /// # Safety
    /// The memory that the WQE names fulfils the contract of `WrBuilder::wr_set_sges`. If the WQE changes a key, the
    /// memory that is accessible by that key does, until the key is changed again or destroyed.
    pub unsafe fn wr_raw_wqe(&mut self, wr_id: u64, wqe: &[[u8; 16]]) {
        self.session.end_wr();
        self.session.wr = Current::NONE;
        if let Err(error) = self.put_raw_wqe(wr_id, wqe) {
            self.session.fail(error);
        }
    }

    fn put_raw_wqe(&mut self, wr_id: u64, wqe: &[[u8; 16]]) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        let cursor = &mut session.cursor;
        if !producer.in_session() {
            return Err(PostError::NoSession);
        }
        if cursor.is_failed() {
            return Err(session.error);
        }
        if !queue.qp.takes_raw_wqes() {
            return Err(PostError::IllegalOpcode);
        }
        let Some((first, rest)) = wqe.split_first() else { return Err(PostError::InvalidArgument) };
        let [ctrl0, ctrl1] = words_of(first).map(u64::from_be);
        let ds = (ctrl0 & DS) as u32;
        if ds as usize != wqe.len() {
            return Err(PostError::InvalidArgument);
        }
        encoder.reserve_units(producer, queue, cursor, ds, 0)?;
        let writer = WqeWriter::new(queue.view(), cursor.at);
        let index = u64::from(cursor.at.index() & 0xffff);
        writer.put_ctrl0((ctrl0 & !INDEX | index << INDEX.trailing_zeros()).to_be());
        writer.put_ctrl1((ctrl1 & !SIGNATURE).to_be());
        for (unit, bytes) in (CTRL_UNITS..).zip(rest) {
            writer.put_far(unit, words_of(bytes));
        }
        let record = queue.record(cursor.at);
        cursor.finish(queue.view(), wr_id, Written::new(ds, Carries::Entries));
        record.set_done(CompletedCount::new(cursor.head, umr_op::RAW));
        Ok(())
    }
}
