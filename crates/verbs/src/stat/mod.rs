// SPDX-License-Identifier: MIT OR Apache-2.0
//! What devices, their ports and their QPs are doing, and how fast: what `uverbs top` shows.
//!
//! A [`Sample`] has the values of a time. The difference of two is a [`Rates`]. The values are those of the device and of the kernel, for
//! all processes: sysfs has the counters (`counters`, `hw_counters`), RDMA netlink the QPs and the counters that are bound to them
//! (rdma-statistic(8)); only root sees the QPs of other users. With the features `hca` and `efa-device`, software devices have samples, too:
//! those of this process, and those of a program that has them for VMs, such as `uverbs-hca`, by its control socket.
//!
//! ```
//! use uverbs::stat::Sample;
//!
//! # fn main() -> uverbs::Result<()> {
//! # #[cfg(feature = "hca")]
//! # {
//! let hca = uverbs::hca::Hca::new();
//! let take = || {
//!     let mut sample = Sample::take(&uverbs::devices().unwrap_or_default());
//!     sample.add_software(&hca);
//!     sample
//! };
//! let before = take();
//! // ... a second later
//! let now = take();
//! for device in now.rates_since(&before).devices {
//!     for port in device.ports {
//!         println!("{} port {}: {:?}", device.name, port.number, port.counters.get("sent_pkts"));
//!     }
//! }
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! What this process posts and polls is in `uverbs::counters` (feature `counters`).

mod netlink;
mod rates;
#[cfg(feature = "software")]
mod software;
mod sysfs;

pub use rates::{BoundRates, DeviceRates, PortRates, QpRates, Rates};

use std::collections::BTreeMap;
use std::time::Instant;
use uverbs_core::device::DeviceInfo;
use uverbs_core::error::Result;

/// Counters by their names, such as `port_xmit_data` or `out_of_buffer`.
pub type Counters = BTreeMap<String, u64>;

/// The values of devices at a time.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The time.
    pub at: Instant,
    /// The devices.
    pub devices: Vec<DeviceSample>,
}

impl Sample {
    /// Without devices, now.
    #[must_use]
    pub fn empty() -> Self {
        Self { at: Instant::now(), devices: Vec::new() }
    }

    /// Reads the values of these devices of the machine. What can't be read is left out.
    #[must_use]
    pub fn take(infos: &[DeviceInfo]) -> Self {
        Self { devices: infos.iter().map(sysfs::device).collect(), ..Self::empty() }
    }
}

/// A device.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeviceSample {
    /// Its name.
    pub name: String,
    /// Counters of the whole device, which some drivers have.
    pub counters: Counters,
    /// Its ports, by number.
    pub ports: Vec<PortSample>,
    /// Its QPs, or why they can't be read.
    pub qps: Result<Vec<QpSample>>,
    /// Counters that sets of QPs share.
    pub bound: Vec<BoundCounters>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortSample {
    /// Its number.
    pub number: u32,
    /// Its state, such as `ACTIVE`.
    pub state: String,
    /// Its counters.
    pub counters: Counters,
}

/// A QP, of a program or of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpSample {
    /// Its number.
    pub number: u32,
    /// Its port.
    pub port: Option<u32>,
    /// The number of the peer's QP, if it is connected.
    pub remote: Option<u32>,
    /// `enum ib_qp_type`
    pub kind: Option<u8>,
    /// `enum ib_qp_state`
    pub state: Option<u8>,
    /// The number of the next packet that it sends, 24 bits.
    pub sq_psn: Option<u32>,
    /// The number of the packet that it expects, 24 bits.
    pub rq_psn: Option<u32>,
    /// The process that has created it.
    pub pid: Option<u32>,
    /// The part of the kernel that has created it.
    pub kernel_name: Option<String>,
}

impl QpSample {
    /// Its type, such as `RC`.
    #[must_use]
    pub fn type_name(&self) -> String {
        match self.kind {
            Some(0) => "SMI",
            Some(1) => "GSI",
            Some(2) => "RC",
            Some(3) => "UC",
            Some(4) => "UD",
            Some(8) => "RAW_PACKET",
            Some(9) => "XRC_INI",
            Some(10) => "XRC_TGT",
            Some(0xff) => "DRIVER",
            Some(other) => return other.to_string(),
            None => "-",
        }
        .to_owned()
    }

    /// Its state, such as `RTS`.
    #[must_use]
    pub fn state_name(&self) -> String {
        const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        match self.state {
            Some(state) => NAMES.get(usize::from(state)).map_or(state.to_string(), |name| (*name).to_owned()),
            None => "-".to_owned(),
        }
    }

    /// The program, or the part of the kernel, that has created it: `kv (4711)`, `[ib_core]`.
    #[must_use]
    pub fn owner(&self) -> String {
        match (self.pid, &self.kernel_name) {
            (Some(pid), _) => {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                format!("{} ({pid})", name.trim())
            }
            (None, Some(name)) => format!("[{name}]"),
            (None, None) => "-".to_owned(),
        }
    }
}

/// Counters that a set of QPs shares (rdma-statistic(8)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BoundCounters {
    /// The number of the set.
    pub id: u32,
    /// Its port.
    pub port: Option<u32>,
    /// Its QPs, by their numbers.
    pub qps: Vec<u32>,
    /// The counters.
    pub counters: Counters,
}
