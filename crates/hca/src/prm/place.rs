// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fields of commands that describe a queue, a record or a region in memory of a program (UMEM). The kernel does not
//! interpret them, so its header lacks most of them; their positions are those of the PRM.

use super::bits::Field;
use super::layout::{cqc, create_cq_in, create_mkey_in, create_qp_in, qpc, wq};

/// The position in a command or context of the description of a queue, a region or a record in such memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Whether the memory is of a program.
    pub valid: Field,
    /// The number of the memory.
    pub id: Field,
    /// The offset in it.
    pub offset: Field,
}

/// In `CREATE_CQ`: its ring.
pub const CQ: Place =
    Place { valid: create_cq_in::CQ_UMEM_VALID, id: Field::new(0x2c0, 32), offset: Field::new(0x280, 64) };
/// In a CQ's context: its doorbell record.
pub const CQ_RECORD: Place =
    Place { valid: cqc::DBR_UMEM_VALID, id: Field::new(0x20, 32), offset: cqc::DBR_ADDR };
/// In `CREATE_QP`: its rings.
pub const QP: Place =
    Place { valid: create_qp_in::WQ_UMEM_VALID, id: Field::new(0x840, 32), offset: Field::new(0x800, 64) };
/// In a QP's context: its doorbell record.
pub const QP_RECORD: Place =
    Place { valid: qpc::DBR_UMEM_VALID, id: Field::new(0x720, 32), offset: qpc::DBR_ADDR };
/// In a work queue's context: its ring.
pub const WQ: Place =
    Place { valid: wq::WQ_UMEM_VALID, id: Field::new(0x160, 32), offset: Field::new(0x180, 64) };
/// In a work queue's context: its doorbell record.
pub const WQ_RECORD: Place =
    Place { valid: wq::DBR_UMEM_VALID, id: Field::new(0x140, 32), offset: wq::DBR_ADDR };
/// In `CREATE_MKEY`: the region.
pub const MKEY: Place = Place {
    valid: create_mkey_in::MKEY_UMEM_VALID,
    id: Field::new(0x320, 32),
    offset: Field::new(0x340, 64),
};
