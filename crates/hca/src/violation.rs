// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes of a driver that a NIC does not report, or reports by an error with little information. Each is recorded,
//! and then handled as hardware does.

use crate::decode::Malformed;

/// The kind of a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// A write to a register that does not exist, at this offset of the page.
    NoSuchRegister(u32),
    /// A doorbell for a QP number that does not exist, or no longer exists.
    NoSuchQp,
    /// An arming of a CQ number that does not exist, or no longer exists.
    NoSuchCq,
    /// A doorbell on a page of another context, or on another page than the one that the object was created with.
    ForeignPage {
        /// The page that was written.
        page: u32,
    },
    /// A send doorbell for a QP that has no send queue, or before RTS.
    NotReady,
    /// The doorbell record is further ahead than the size of the ring.
    RingOverrun {
        /// Basic blocks (send) or WQEs (receive) not executed yet.
        posted: u32,
        /// Size of the ring.
        size: u32,
    },
    /// The doorbell record is behind the WQEs that were already executed.
    RingBackwards,
    /// The doorbell names another WQE than the doorbell record.
    DoorbellMismatch {
        /// Index in the doorbell.
        doorbell: u16,
        /// First index of the last WQE before the doorbell record.
        record: u16,
    },
    /// A block before the doorbell record has no WQE with this index: it was not written, or written elsewhere.
    WrongIndex {
        /// The index in the block.
        found: u16,
    },
    /// A WQE that names another QP.
    WrongQp {
        /// The number that it names.
        found: u32,
    },
    /// The size of a WQE reaches beyond the doorbell record, is 0, or is above the limit.
    WrongSize {
        /// The size, in units of 16 bytes.
        ds: u8,
    },
    /// A WQE that can't be decoded.
    Malformed(Malformed),
    /// The WQE written to the BlueFlame register differs from the one in the ring.
    BlueFlameDiffers,
    /// A BlueFlame burst that is not the WQE's size or longer than the register.
    BlueFlameSize(usize),
    /// A receive WQE that is invalid.
    ReceiveMalformed,
    /// A completion came to a full CQ.
    CqOverrun,
    /// The consumer index of a CQ is ahead of its producer.
    CqBackwards,
    /// An object's memory is no longer accessible.
    MemoryGone,
}

impl Mistake {
    /// The name of the variant.
    #[must_use]
    pub fn kind(&self) -> String {
        uverbs_fabric::variant(self)
    }
}

/// A mistake, with its object and time.
pub type Violation = uverbs_fabric::Violation<Object, Mistake>;

/// An object of the device, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Object {
    /// A queue pair.
    Qp(u32),
    /// A completion queue.
    Cq(u32),
    /// A shared receive queue.
    Srq(u32),
    /// A receive work queue.
    Wq(u32),
    /// A page of registers.
    Page(u32),
}
