// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an Ethernet port has beside RoCE: receive and send queues, their targets and tables.

/// The Ethernet objects of a function.
#[derive(Debug)]
pub(crate) struct Ethernet {
    /// RoCE is enabled.
    pub(super) roce: bool,
    /// Bytes of a frame's payload, as the driver set it.
    pub(super) mtu: u16,
}

impl Default for Ethernet {
    fn default() -> Self {
        Self { roce: false, mtu: 1500 }
    }
}
