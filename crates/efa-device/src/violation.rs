// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes of a driver that a device does not report, or reports by an error with little information. Each is recorded.

/// The kind of a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// A write to a register that does not exist, at this offset of the page.
    NoSuchRegister(u32),
    /// A doorbell of a queue that does not exist, or no longer exists.
    NoSuchQueue,
    /// A doorbell of a QP that is not ready for it.
    NotReady,
    /// A doorbell that announces more entries than the ring has.
    RingOverrun {
        /// Entries that are posted and not executed.
        posted: u16,
        /// Size of the ring.
        size: u32,
    },
    /// A send entry with the phase of another round: it was not written, or written elsewhere.
    WrongPhase,
    /// A send entry with a reserved bit, or without one that must be set.
    Reserved,
    /// A send entry with more buffers or inline bytes than it has room for.
    TooLong {
        /// Its length field.
        length: u16,
    },
    /// A receive without a first or last buffer, or with too many.
    ReceiveMalformed,
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

/// An object of the device, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Object {
    /// A queue pair.
    Qp(u16),
    /// A completion queue.
    Cq(u16),
}

/// A mistake, with its object and time.
pub type Violation = uverbs_fabric::Violation<Object, Mistake>;
