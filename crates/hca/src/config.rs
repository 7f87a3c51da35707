// SPDX-License-Identifier: MIT OR Apache-2.0
//! The properties of a device. They are set when it is built, and read by the device, its front and the fabric.

use crate::decode::Reserved;

/// The link layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand: ports have LIDs.
    InfiniBand,
    /// Ethernet: RoCE version 1 and 2, raw packets.
    #[default]
    Ethernet,
}

/// The part of a frame's headers that the device needs in the WQE (`eth_min_inline`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InlineMode {
    /// Nothing.
    #[default]
    None,
    /// The first 18 bytes.
    L2,
}

/// The properties of a device. [`DeviceBuilder`](crate::DeviceBuilder) sets them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// The GUID of the node and of the port. The fabric assigns it when the device is built.
    pub guid: u64,
    /// The link layer.
    pub link: Link,
    /// Whether WQEs may be written to the doorbell register (BlueFlame).
    pub blue_flame: bool,
    /// Version of completion entries, 0 or 1.
    pub(crate) cqe_version: u8,
    pub(crate) atomics: bool,
    /// Whether doorbell pages are objects.
    pub(crate) dynamic_uars: bool,
    /// Whether programs may send commands to the firmware (DEVX).
    pub(crate) devx: bool,
    /// The number of doorbell pages for all contexts together.
    pub(crate) max_uars: u32,
    pub(crate) inline_mode: InlineMode,
    /// The rule for reserved bytes in WQEs.
    pub(crate) reserved: Reserved,
    /// The only GID of the port, for one that has an address of the host.
    pub(crate) gid: Option<[u8; 16]>,
    /// Whether a QP with a shared receive queue reports that it takes no more receives.
    pub(crate) last_wqe: bool,
}

impl Config {
    /// The default properties, with this name.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            guid: 0,
            link: Link::default(),
            blue_flame: true,
            cqe_version: 1,
            atomics: true,
            dynamic_uars: true,
            devx: true,
            max_uars: 4096,
            inline_mode: InlineMode::default(),
            reserved: Reserved::Zero,
            gid: None,
            last_wqe: true,
        }
    }
}
