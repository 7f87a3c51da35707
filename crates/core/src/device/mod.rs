// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding the RDMA devices of this machine (ibv_get_device_list(3)).
//!
//! The source is sysfs: `/sys/class/infiniband` has the devices, `/sys/class/infiniband_verbs` their device files. A
//! device that can't be used is listed with the reason; it is not omitted, and does not make the list fail.
//!
//! The driver of a device is found by its PCI ids, or, if it has none (rxe), by a query of the kernel. The name is not
//! used, because it can be changed.

mod netlink;
pub mod parse;
mod scan;

pub use scan::Roots;
pub(crate) use scan::read;

use crate::attr::values::open_values;
use crate::errno::Errno;
use crate::error::Result;
use crate::kernel::UverbsFd;
use core::fmt;
use std::path::{Path, PathBuf};

open_values! {
    /// `enum ibv_node_type`.
    NodeType(u8), "IBV_NODE_" {
        CA = 1 "InfiniBand channel adapter",
        SWITCH = 2 "InfiniBand switch",
        ROUTER = 3 "InfiniBand router",
        RNIC = 4 "iWARP NIC",
        USNIC = 5 "usNIC",
        USNIC_UDP = 6 "usNIC UDP",
        UNSPECIFIED = 7 "unspecified",
    }
}

open_values! {
    /// `enum ibv_transport_type`; C's `IBV_TRANSPORT_UNKNOWN` is -1, here any other number.
    TransportType(u8), "IBV_TRANSPORT_" {
        IB = 0 "InfiniBand",
        IWARP = 1 "iWARP",
        USNIC = 2 "usNIC",
        USNIC_UDP = 3 "usNIC UDP",
        UNSPECIFIED = 4 "unspecified",
    }
}

impl NodeType {
    /// The transport of this node type.
    #[must_use]
    pub const fn transport(self) -> TransportType {
        match self {
            Self::CA | Self::SWITCH | Self::ROUTER => TransportType::IB,
            Self::RNIC => TransportType::IWARP,
            Self::USNIC => TransportType::USNIC,
            Self::USNIC_UDP => TransportType::USNIC_UDP,
            Self::UNSPECIFIED => TransportType::UNSPECIFIED,
            _ => TransportType(u8::MAX),
        }
    }
}

/// The ids of a PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciId {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
}

/// The hardware of a device, from the kernel's module alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Modalias {
    /// A PCI device.
    Pci(PciId),
    /// Something else.
    Other(String),
}

/// The device file of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UverbsNode {
    /// `uverbsN`
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Major and minor number.
    pub dev: (u32, u32),
    /// Version of the driver's private ABI.
    pub abi_version: u32,
}

/// Why a device can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// The kernel offers no device file for it: ib_uverbs is not loaded, or the device has no user interface.
    NoUverbs,
    /// The file does not exist: udev did not create it, or it is not available in the container.
    NoNode(PathBuf),
    /// The file exists, but belongs to another device.
    WrongNode(PathBuf),
    /// The file exists, but this process may not open it.
    Inaccessible(PathBuf, Errno),
    /// A file of sysfs has invalid contents; the field is its name.
    Malformed(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUverbs => f.write_str("no uverbs device (is ib_uverbs loaded?)"),
            Self::NoNode(path) => write!(f, "no device file {}", path.display()),
            Self::WrongNode(path) => write!(f, "{} is not the device file of this device", path.display()),
            Self::Inaccessible(path, errno) => write!(f, "{}: {errno}", path.display()),
            Self::Malformed(what) => write!(f, "invalid contents in sysfs: {what}"),
        }
    }
}

impl core::error::Error for Unusable {}

/// One RDMA device. Attributes that sysfs does not have, or whose contents are invalid, are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The kernel's name for it, such as `mlx5_0`. The user can change it.
    pub name: String,
    /// Type of the node.
    pub node_type: Option<NodeType>,
    /// Node GUID, host order.
    pub node_guid: Option<u64>,
    /// System image GUID, host order.
    pub sys_image_guid: Option<u64>,
    /// Firmware version.
    pub fw_ver: Option<String>,
    /// Model.
    pub hca_type: Option<String>,
    /// Hardware revision.
    pub hw_rev: Option<String>,
    /// Board.
    pub board_id: Option<String>,
    /// Description, as the user set it.
    pub node_desc: Option<String>,
    /// The hardware.
    pub modalias: Option<Modalias>,
    /// Its address on the PCI bus, such as `0000:3b:00.0`. `None` for a software device.
    pub pci_address: Option<String>,
    /// The NUMA node that it is near to. `None` if the machine has one node only, or the kernel does not know it.
    pub numa_node: Option<u32>,
    /// The network interface of its first port, such as `ens3f0`; the one below it of a software device.
    pub netdev: Option<String>,
    /// Its device file, or why it can't be used.
    pub uverbs: Result<UverbsNode, Unusable>,
    /// Its directory in sysfs.
    pub sysfs: PathBuf,
}

/// The criteria by which the devices of a driver are recognised.
#[derive(Clone, Copy, Debug)]
pub struct DriverMatch {
    /// `enum rdma_driver_id`
    pub driver_id: u32,
    /// Whether a PCI device is one of this driver's.
    pub pci: fn(PciId) -> bool,
}

/// The RDMA devices of this machine, sorted by name (numbers within it by value).
///
/// # Errors
/// Only if sysfs exists and can't be read. Without RDMA support the list is empty.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    Roots::default().devices()
}

impl DeviceInfo {
    /// A device with this name, device file and directory in sysfs, of which nothing else is known.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        uverbs: Result<UverbsNode, Unusable>,
        sysfs: impl Into<PathBuf>,
    ) -> Self {
        Self {
            name: name.into(),
            node_type: None,
            node_guid: None,
            sys_image_guid: None,
            fw_ver: None,
            hca_type: None,
            hw_rev: None,
            board_id: None,
            node_desc: None,
            modalias: None,
            pci_address: None,
            numa_node: None,
            netdev: None,
            uverbs,
            sysfs: sysfs.into(),
        }
    }

    /// Its PCI ids, if it is a PCI device.
    #[must_use]
    pub fn pci_id(&self) -> Option<PciId> {
        match self.modalias {
            Some(Modalias::Pci(id)) => Some(id),
            _ => None,
        }
    }

    /// Drivers that this device may have: those that list its PCI ids, or all of them if it has no PCI ids.
    #[must_use]
    pub fn candidates(&self, drivers: &[DriverMatch]) -> Vec<u32> {
        let by_pci: Vec<_> = match self.pci_id() {
            Some(id) => {
                drivers.iter().filter(|driver| (driver.pci)(id)).map(|driver| driver.driver_id).collect()
            }
            None => Vec::new(),
        };
        if by_pci.is_empty() { drivers.iter().map(|driver| driver.driver_id).collect() } else { by_pci }
    }

    /// Opens its device file. [`Kernel::driver_id`](crate::kernel::Kernel::driver_id) then returns its driver.
    ///
    /// # Errors
    /// As [`UverbsFd::open`].
    pub fn open(&self, drivers: &[DriverMatch]) -> Result<UverbsFd> {
        UverbsFd::open(self, &self.candidates(drivers))
    }

    /// The kernel's index of the device (`ibv_get_device_index`), which stays when it is renamed; `None` if the kernel does not
    /// report it.
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        netlink::index(&self.name)
    }

    /// Reads a file below the device's directory in sysfs, as text, for attributes that only some drivers have.
    #[must_use]
    pub fn sysfs_text(&self, file: impl AsRef<Path>) -> Option<String> {
        parse::text(&read(&self.sysfs.join(file)).ok()?)
    }
}
