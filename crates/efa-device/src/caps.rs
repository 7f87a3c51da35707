// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the generations of the device can do.
//!
//! Amazon publishes no table. The PCI identities are those of `efa_main.c`; which of them reads, writes, retries and so on is what
//! users report of the instance types (P4d: read only; P5: read and write), and the limits are those that `ibv_devinfo` prints there.

use uverbs_efa_hw::feature::{
    EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_DATA_POLLING_128_MASK as POLL_128,
    EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_RDMA_READ_MASK as READ,
    EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_RDMA_WRITE_MASK as WRITE,
    EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_RNR_RETRY_MASK as RNR_RETRY,
    EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_UNSOLICITED_WRITE_RECV_MASK as UNSOLICITED,
};
use uverbs_efa_hw::io::{EFA_IO_TX_DESC_INLINE_MAX_SIZE, EFA_IO_TX_DESC_INLINE_MAX_SIZE_128};
use uverbs_efa_hw::regs::{
    PCI_DEV_ID_EFA0_VF, PCI_DEV_ID_EFA1_VF, PCI_DEV_ID_EFA2_VF, PCI_DEV_ID_EFA3_VF, PCI_DEV_ID_EFA4_VF,
};

/// A generation of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// Sends, and reads.
    First,
    /// Retries of messages that found no receive, too.
    Second,
    /// Writes, too.
    Third,
    /// Writes with immediate data that consume no receive, and entries of 128 bytes, too.
    #[default]
    Fourth,
    /// As the fourth.
    Fifth,
}

impl Generation {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::First, Self::Second, Self::Third, Self::Fourth, Self::Fifth];

    /// The generation with this number; the first one is 1.
    #[must_use]
    pub fn of_number(number: usize) -> Option<Self> {
        Self::ALL.get(number.checked_sub(1)?).copied()
    }
}

/// The properties and limits of a device. All numbers of objects are limited by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// PCI device.
    pub pci_device: u16,
    /// `EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_*`.
    pub device: u32,
    /// Bytes of inline data in an entry of 64 bytes.
    pub inline: u16,
    /// Bytes of inline data in an entry of 128 bytes; 0 if there are none.
    pub inline_wide: u16,
    /// Bytes of the longest send ring.
    pub max_llq: u32,
    /// Units of 64 bytes that may be written to a send queue before its doorbell; 0 is no limit.
    pub max_tx_batch: u16,
    /// Sub-CQs of each CQ.
    pub sub_cqs: u16,
    /// Bytes of payload in a packet, which is the longest message of a send.
    pub mtu: u32,
    /// Bytes of the longest read or write.
    pub max_rdma: u32,
}

impl Caps {
    /// QPs.
    pub const MAX_QP: u16 = 256;
    /// CQs.
    pub const MAX_CQ: u16 = 512;
    /// Memory regions.
    pub const MAX_MR: u32 = 1 << 18;
    /// Protection domains.
    pub const MAX_PD: u16 = 256;
    /// Address handles.
    pub const MAX_AH: u16 = 8191;
    /// Pages of doorbells.
    pub const MAX_UAR: u16 = 256;
    /// Event queues.
    pub const MAX_EQ: u16 = 32;
    /// Entries of an event queue.
    pub const MAX_EQ_DEPTH: u16 = 4096;
    /// Requests of a send queue.
    pub const MAX_SQ: u32 = 4096;
    /// Entries of a receive queue.
    pub const MAX_RQ: u32 = 32_768;
    /// Entries of a sub-CQ.
    pub const MAX_CQE: u32 = 32_768;
    /// Pages of a region.
    pub const MAX_PAGES: u32 = 1 << 20;
    /// Buffers of a send.
    pub const SEND_BUFFERS: u16 = 2;
    /// Buffers of a receive.
    pub const RECV_BUFFERS: u16 = 3;

    /// Those of a generation.
    #[must_use]
    pub fn of(generation: Generation) -> Self {
        let (pci_device, device) = match generation {
            Generation::First => (PCI_DEV_ID_EFA0_VF, READ),
            Generation::Second => (PCI_DEV_ID_EFA1_VF, READ | RNR_RETRY),
            Generation::Third => (PCI_DEV_ID_EFA2_VF, READ | RNR_RETRY | WRITE | POLL_128),
            Generation::Fourth => (PCI_DEV_ID_EFA3_VF, READ | RNR_RETRY | WRITE | POLL_128 | UNSOLICITED),
            Generation::Fifth => (PCI_DEV_ID_EFA4_VF, READ | RNR_RETRY | WRITE | POLL_128 | UNSOLICITED),
        };
        let is_wide = generation >= Generation::Fourth;
        Self {
            pci_device,
            device,
            inline: EFA_IO_TX_DESC_INLINE_MAX_SIZE as u16,
            inline_wide: if is_wide { EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 as u16 } else { 0 },
            max_llq: if is_wide { Self::MAX_SQ * 128 } else { Self::MAX_SQ * 64 },
            max_tx_batch: 0,
            sub_cqs: 2,
            mtu: 8928,
            max_rdma: 1 << 30,
        }
    }

    /// Whether it has a capability (`EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_*`).
    #[must_use]
    pub fn has(&self, capability: u32) -> bool {
        self.device & capability != 0
    }

    /// Whether peers may read its memory.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.has(READ)
    }

    /// Whether peers may write to its memory.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.has(WRITE)
    }

    /// Whether a message that found no receive is retried as often as the QP says.
    #[must_use]
    pub fn retries(&self) -> bool {
        self.has(RNR_RETRY)
    }

    /// Whether a write with immediate data can do without a receive.
    #[must_use]
    pub fn unsolicited(&self) -> bool {
        self.has(UNSOLICITED)
    }
}
