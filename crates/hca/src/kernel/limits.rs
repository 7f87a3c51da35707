// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of the device that several kinds of objects check.

/// Basic blocks of the largest send queue, entries of the largest receive queue.
pub(super) const MAX_WQES: u32 = 1 << 15;
/// Completion vectors.
pub(super) const VECTORS: u32 = 8;
/// Scatter/gather entries of a send or a receive.
pub(super) const MAX_SGE: u32 = 30;
/// Scatter/gather entries of a receive of an SRQ.
pub(super) const MAX_SRQ_SGE: u32 = 31;
/// Entries of a CQ.
pub(super) const MAX_CQE: u32 = (1 << 22) - 1;
/// Reads and atomics that a QP may have outstanding.
pub(super) const MAX_RD_ATOMIC: u8 = 16;
/// Bytes of device memory, of all objects together.
pub(super) const MAX_DM: u64 = 1 << 17;
