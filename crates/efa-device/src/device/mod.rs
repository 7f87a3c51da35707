// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device: objects, execution of send entries, arrival of packets. It is independent of ioctls, registers and threads; its front
//! (the in-process kernel, or the registers of a PCI function) creates objects in it and delivers its notices.

mod cq;
mod deferred;
mod model;
mod mr;
mod objects;
mod peer;
mod qp;
mod recv;
mod respond;
mod script;
mod send;
pub(crate) mod trace;
mod transmit;
mod window;

use crate::caps::Caps;
use crate::packet::Packet;
use crate::violation::{Mistake, Object};
pub use cq::{Cq, CqParams};
pub use mr::{Access, Mr};
pub use objects::Keys;
pub use qp::{Modify, Qp, QpKind, QpParams, State};
use std::collections::BTreeMap;
use uverbs_efa_hw::admin::{
    EFA_ADMIN_ILLEGAL_PARAMETER, EFA_ADMIN_RESOURCE_ALLOCATION_FAILURE, EFA_ADMIN_RESOURCE_BUSY,
    EFA_ADMIN_UNSUPPORTED_OPCODE,
};
use uverbs_fabric::Violations;
use uverbs_fabric::map::Map;
use uverbs_fabric::numbers::Numbers;

/// The arguments of a call into a device: the clock and the network.
pub type Port<'a> = uverbs_fabric::Port<'a, Packet>;

/// Why the device refuses a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No object is left.
    NoResources,
    /// The device lacks the command.
    Unsupported,
    /// A value is not allowed.
    Illegal,
    /// The object is in use.
    Busy,
}

impl Refusal {
    /// The status of the command (`EFA_ADMIN_*`).
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::NoResources => EFA_ADMIN_RESOURCE_ALLOCATION_FAILURE,
            Self::Unsupported => EFA_ADMIN_UNSUPPORTED_OPCODE,
            Self::Illegal => EFA_ADMIN_ILLEGAL_PARAMETER,
            Self::Busy => EFA_ADMIN_RESOURCE_BUSY,
        }
    }
}

/// A notice of the device to its front. It corresponds to an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An armed CQ got a completion.
    Completion {
        /// Its number.
        cq: u16,
    },
    /// The port's link went up or down.
    Link {
        /// Whether it is up.
        up: bool,
    },
}

/// The counters of a device (`EFA_ADMIN_GET_STATS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they have the names of the counters")]
pub struct Stats {
    pub tx_bytes: u64,
    pub tx_pkts: u64,
    pub rx_bytes: u64,
    pub rx_pkts: u64,
    pub rx_drops: u64,
    pub qkey_viol: u64,
    pub send_bytes: u64,
    pub send_wrs: u64,
    pub recv_bytes: u64,
    pub recv_wrs: u64,
    pub read_wrs: u64,
    pub read_bytes: u64,
    pub read_wr_err: u64,
    pub read_resp_bytes: u64,
    pub write_wrs: u64,
    pub write_bytes: u64,
    pub write_wr_err: u64,
    pub write_recv_bytes: u64,
    pub retrans_bytes: u64,
    pub retrans_pkts: u64,
    pub retrans_timeout_events: u64,
    pub unresponsive_remote_events: u64,
}

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ah {
    pd: u16,
    gid: [u8; 16],
    /// How often it was created: a second command for the same address gets the same number.
    users: u32,
}

/// A device.
#[derive(Debug)]
pub struct Device {
    /// What it can do.
    pub caps: Caps,
    /// Its address.
    pub gid: [u8; 16],
    pds: Numbers,
    uars: Numbers,
    ah_numbers: Numbers,
    ahs: Map<u16, Ah>,
    ahs_of: BTreeMap<(u16, [u8; 16]), u16>,
    mr_numbers: Numbers,
    mrs: Map<u32, Mr>,
    cq_numbers: Numbers,
    cqs: Map<u16, Cq>,
    qp_numbers: Numbers,
    /// By the low bits of the number.
    qps: Map<u16, Box<Qp>>,
    /// How often the numbers of QPs were given out: the high bits of the next QP's number.
    lives: Map<u16, u16>,
    /// The users of each domain, CQ and so on, which can't be destroyed before them.
    users: objects::AllUsers,
    /// The reliable exchange with each other device, by its number in the fabric.
    peers: Map<usize, peer::Peer>,
    epoch: u32,
    /// Whether the fabric runs in real time: then packets have no latency, but still any order.
    pub(crate) in_real_time: bool,
    /// The entries of timers of QPs that were destroyed.
    pub(crate) cancelled: Vec<uverbs_fabric::net::TimerEntry>,
    /// Accesses to memory that take place later, in a mode of order.
    deferred: deferred::Deferred,
    /// Notices that the front has not yet delivered.
    pub notices: Vec<Notice>,
    violations: Violations<Object, Mistake>,
    /// Its counters.
    pub stats: Stats,
}

impl Device {
    pub(crate) fn new(caps: Caps, gid: [u8; 16]) -> Self {
        Self {
            caps,
            gid,
            pds: Numbers::new(1..u32::from(Caps::MAX_PD) + 1),
            uars: Numbers::new(0..Caps::MAX_UAR.into()),
            ah_numbers: Numbers::new(0..Caps::MAX_AH.into()),
            ahs: Map::new(),
            ahs_of: BTreeMap::new(),
            mr_numbers: Numbers::new(1..Caps::MAX_MR + 1),
            mrs: Map::new(),
            cq_numbers: Numbers::new(0..Caps::MAX_CQ.into()),
            cqs: Map::new(),
            qp_numbers: Numbers::new(0..Caps::MAX_QP.into()),
            qps: Map::new(),
            lives: Map::new(),
            users: objects::AllUsers::default(),
            peers: Map::new(),
            epoch: 1,
            in_real_time: false,
            cancelled: Vec::new(),
            deferred: deferred::Deferred::default(),
            notices: Vec::new(),
            violations: Violations::default(),
            stats: Stats::default(),
        }
    }

    /// Removes all objects, for a reset. The recorded violations of drivers are kept.
    pub fn reset(&mut self) {
        let timers = self.qps.values().filter_map(|qp| qp.timer.queued);
        let cancelled = self.cancelled.iter().copied().chain(timers).collect();
        *self = Self {
            cancelled,
            deferred: self.deferred.after_reset(),
            epoch: self.epoch.wrapping_add(1),
            in_real_time: self.in_real_time,
            violations: core::mem::take(&mut self.violations),
            lives: core::mem::take(&mut self.lives),
            stats: self.stats,
            ..Self::new(self.caps, self.gid)
        };
    }

    /// Records a violation, up to a limit.
    pub(crate) fn blame(&mut self, time: u64, object: Object, index: u16, mistake: Mistake) {
        self.violations.record(time, object, index.into(), mistake);
    }

    /// A QP by its whole number.
    #[must_use]
    pub fn qp(&self, qpn: u16) -> Option<&Qp> {
        self.qps.get(&(qpn % Caps::MAX_QP)).map(|qp| &**qp).filter(|qp| qp.qpn == qpn)
    }

    /// The number of the QP whose low bits these are.
    pub(crate) fn qpn_of_index(&self, index: u16) -> Option<u16> {
        self.qps.get(&index).map(|qp| qp.qpn)
    }

    /// Calls `f` with a QP taken out of the table.
    fn with_qp<R>(&mut self, qpn: u16, f: impl FnOnce(&mut Self, &mut Qp) -> R) -> Option<R> {
        let index = qpn % Caps::MAX_QP;
        self.qps.get(&index).filter(|qp| qp.qpn == qpn)?;
        let mut qp = self.qps.remove(&index)?;
        let result = f(self, &mut qp);
        self.qps.insert(index, qp);
        Some(result)
    }
}

impl Device {
    /// A write to a page of doorbells where there is none.
    pub(crate) fn wrong_doorbell(&mut self, port: &Port<'_>, object: Object, offset: u32) {
        self.blame(port.now, object, 0, Mistake::NoSuchRegister(offset));
    }
}
