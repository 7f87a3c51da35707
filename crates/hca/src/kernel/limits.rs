// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of the device that several kinds of objects check.

use super::object::Object;

/// The objects that a device may have, as its attributes say.
pub(super) const MAX_QP: u32 = 1 << 18;
pub(super) const MAX_CQ: u32 = 1 << 24;
pub(super) const MAX_SRQ: u32 = 1 << 23;
pub(super) const MAX_MR: u32 = 1 << 24;
pub(super) const MAX_PD: u32 = 1 << 24;
pub(super) const MAX_WQ: u32 = 1 << 23;
pub(super) const MAX_TABLES: u32 = 1 << 20;

/// The objects of a kind that there may be in all contexts. Further ones are refused with `ENOMEM`, as by a kernel whose
/// firmware has no more.
pub(super) fn most(object: &Object) -> usize {
    let max = match object {
        Object::Qp(_) => MAX_QP,
        Object::Cq { .. } => MAX_CQ,
        Object::Srq { .. } => MAX_SRQ,
        Object::Mr { .. } | Object::Mw { .. } => MAX_MR,
        Object::Pd { .. } => MAX_PD,
        Object::Wq { .. } => MAX_WQ,
        Object::Table { .. } => MAX_TABLES,
        _ => i32::MAX.cast_unsigned(),
    };
    max as usize
}

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
