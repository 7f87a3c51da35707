// SPDX-License-Identifier: MIT OR Apache-2.0
//! WRs that configure indirect keys (mlx5dv_wr_mkey_configure(3)).
#![expect(unsafe_code)]
// UNSAFETY: `wr_mkey_configure` has a contract about the memory that the key gives access to. This module has no unsafe
// operation.

use super::session::{Current, CurrentState, Setters, SlowPathFlags};
use crate::control::Mkey;
use crate::memory::{BlockIndex, CompletedCount};
use crate::shared::mkey::MkeyConfig;
use crate::shared::umr_op;
use crate::sq::SendQueue;
use crate::wqe::mkey::Encoded;
use crate::wqe::plain::{Carries, Written};
use crate::wqe::{CTRL_UNITS, WqeWriter};
use core::sync::atomic::Ordering;
use uverbs_core::provider::{Head, PostError};
use uverbs_core::wr::WrOpcode;
use uverbs_mlx5_hw::wqe::{
    MLX5_OPCODE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_NOP, MLX5_OPCODE_RDMA_READ,
    MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM,
    MLX5_OPCODE_SEND_INVAL, MLX5_OPCODE_SET_PSV, MLX5_OPCODE_UMR, MLX5_WQE_CTRL_CQ_UPDATE, SetPsvSeg,
};

/// Fields of a control segment, in the host order of its two words: the opcode, and the bit for a completion.
const OPCODE: u64 = 0xff << 32;
const CQ_UPDATE: u64 = (MLX5_WQE_CTRL_CQ_UPDATE as u64) << 32;
/// Bytes of the header of inline data, for which the queue has room in addition to the data.
const INLINE_HEADER: u32 = 4;

impl SendQueue {
    /// `mlx5dv_wr_mkey_configure` with its setters, `mlx5dv_wr_mr_list` and `mlx5dv_wr_mr_interleaved`: changes an indirect key.
    /// The completion has the opcode [`DRIVER1`](uverbs_core::wc::WcOpcode::DRIVER1). The QP must have been created with
    /// [`mkeys`](crate::dv::QpOptions::mkeys). A list has at most as many entries as the key, and as
    /// `(max_inline_data + 4) / 16`; an interleaved layout needs one for itself, and a new signature four.
    ///
    /// The key's signature changes when the session is completed; a session that is aborted leaves it unknown until the
    /// next change.
    ///
    /// # Safety
    /// The memory that is accessible by the key fulfils the contract of `WrBuilder::wr_set_sges`, and for peers that of
    /// registered memory, until the key is changed again, invalidated or destroyed. The key is of this QP's context.
    pub unsafe fn wr_mkey_configure(&mut self, head: Head, mkey: &Mkey, config: &MkeyConfig<'_>) {
        self.session.end_wr();
        self.session.wr = Current::NONE;
        if let Err(error) = self.put_mkey(head, mkey, config) {
            self.session.fail(error);
        }
    }

    /// Begins such a WR whose setters follow: until [`wr_mkey_configure`](Self::wr_mkey_configure) or
    /// [`wr_mkey_ready`](Self::wr_mkey_ready), a builder or the end of the session fails. Returns whether there is a WR.
    pub fn wr_mkey_begin(&mut self) -> bool {
        self.session.end_wr();
        self.session.wr = Current::NONE;
        if !self.producer.in_session() || self.session.cursor.is_failed() {
            return false;
        }
        self.session.wr.state = CurrentState::new(Setters::MKEY, SlowPathFlags::empty(), 0);
        true
    }

    /// Whether setters of a WR that [`wr_mkey_begin`](Self::wr_mkey_begin) began are missing.
    #[must_use]
    pub fn wr_mkey_is_open(&self) -> bool {
        self.session.wr.state.needs.contains(Setters::MKEY)
    }

    /// All setters of the WR that [`wr_mkey_begin`](Self::wr_mkey_begin) began are known.
    pub fn wr_mkey_ready(&mut self) {
        self.session.wr = Current::NONE;
    }

    /// `mlx5dv_qp_cancel_posted_send_wrs`: the WRs with this `wr_id` from block `first` on, which the device has not begun, do
    /// nothing when the queue continues. Returns their number. Their completions have the opcodes that they had.
    ///
    /// # Errors
    /// A session is open; `first` is not a block of an outstanding WR; a WR has an opcode that this library does not post.
    ///
    /// # Safety
    /// The QP is in SQD, the device will fetch the WQE at `first` next, and the QP leaves SQD after this call.
    pub unsafe fn cancel_posted(&mut self, first: u16, wr_id: u64) -> Result<u32, PostError> {
        if self.producer.in_session() {
            return Err(PostError::SessionOpen);
        }
        let (queue, (end, _)) = (&self.queue, self.producer.published());
        let blocks = (end as u16).wrapping_sub(first);
        if u32::from(blocks) > queue.sq().ring.mask() + 1 {
            return Err(PostError::InvalidArgument);
        }
        let mut cancelled = 0;
        for at in (0..u32::from(blocks)).map(|i| BlockIndex::of(u32::from(first).wrapping_add(i))) {
            let record = queue.record(at);
            let done = record.done();
            if done == CompletedCount::NO_WQE || record.wr_id.load(Ordering::Relaxed) != wr_id {
                continue;
            }
            let writer = WqeWriter::new(queue.view(), at);
            let op = match writer.opcode() {
                // What the completion can't say is recorded already.
                MLX5_OPCODE_UMR | MLX5_OPCODE_SET_PSV | MLX5_OPCODE_NOP => done.op(),
                _ if done.op() == umr_op::RAW => umr_op::RAW,
                MLX5_OPCODE_SEND | MLX5_OPCODE_SEND_IMM | MLX5_OPCODE_SEND_INVAL => umr_op::CANCELLED_SEND,
                MLX5_OPCODE_RDMA_WRITE | MLX5_OPCODE_RDMA_WRITE_IMM => umr_op::CANCELLED_WRITE,
                MLX5_OPCODE_RDMA_READ => umr_op::CANCELLED_READ,
                MLX5_OPCODE_ATOMIC_CS => umr_op::CANCELLED_CMP_SWP,
                MLX5_OPCODE_ATOMIC_FA => umr_op::CANCELLED_FETCH_ADD,
                _ => return Err(PostError::InvalidArgument),
            };
            writer.put_nop();
            record.set_done(CompletedCount::new(done.head().into(), op));
            cancelled += 1;
        }
        Ok(cancelled)
    }

    fn put_mkey(&mut self, head: Head, mkey: &Mkey, config: &MkeyConfig<'_>) -> Result<(), PostError> {
        if !self.producer.in_session() {
            return Err(PostError::NoSession);
        }
        if self.session.cursor.is_failed() {
            return Err(self.session.error);
        }
        if self.queue.qp.mkey_ops().is_empty() {
            return Err(PostError::IllegalOpcode);
        }
        let shared = mkey.shared();
        let room = (self.encoder.fast.limits.max_inline.saturating_add(INLINE_HEADER) / 16) as usize;
        let mut signature = match &shared.signature {
            Some((signature, _)) => Some(signature.lock().map_err(|_| PostError::Forked)?),
            None => None,
        };
        let encoded = Encoded::new(shared, signature.as_deref(), config, room)?;
        let mut values = encoded.psvs.iter().flatten().peekable();
        let is_last = values.peek().is_none();
        self.put_local_wqe(
            head,
            (MLX5_OPCODE_UMR, encoded.key),
            &encoded.units[..encoded.ds as usize],
            is_last,
        )?;
        while let Some(value) = values.next() {
            let is_last = values.peek().is_none();
            let segment: [u64; 2] = zerocopy::transmute!(SetPsvSeg { ..*value });
            self.put_local_wqe(head, (MLX5_OPCODE_SET_PSV, 0), &[[0; 2], segment], is_last)?;
        }
        if let (Some(signature), Some(next)) = (&mut signature, encoded.next) {
            **signature = next;
        }
        Ok(())
    }

    /// Writes a local WQE with this opcode and immediate. Only the last one of the WR has a completion, or all fail.
    fn put_local_wqe(
        &mut self,
        head: Head,
        (opcode, imm): (u8, u32),
        units: &[[u64; 2]],
        is_last: bool,
    ) -> Result<(), PostError> {
        let Self { queue, producer, encoder, session } = self;
        let (cursor, ds) = (&mut session.cursor, units.len() as u32);
        encoder.reserve_units(producer, queue, cursor, ds, 0)?;
        let (writer, ctrl) = (WqeWriter::new(queue.view(), cursor.at), &encoder.fast.ctrl);
        let second = u64::from_be(ctrl.second(head.flags, imm));
        writer.put_ctrl1((if is_last { second } else { second & !CQ_UPDATE }).to_be());
        let first = u64::from_be(ctrl.first_of_units(writer.place(), WrOpcode::BIND_MW, ds));
        writer.put_ctrl0((first & !OPCODE | u64::from(opcode) << 32).to_be());
        for (unit, words) in (CTRL_UNITS..).zip(units.get(1..).unwrap_or_default()) {
            writer.put_far(unit, *words);
        }
        if producer.fence_local(queue.view(), cursor.at, ds.div_ceil(4)) {
            writer.add_small_fence();
        }
        let record = queue.record(cursor.at);
        cursor.finish(queue.view(), head.wr_id, Written::new(ds, Carries::Inline));
        record.set_done(CompletedCount::new(cursor.head, umr_op::MKEY));
        Ok(())
    }
}
