// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's objects: the data behind a handle.

use super::device_memory::DeviceMemory;
use super::devx::{Firmware, Umem};
use super::limits::most;
use super::matcher::Matcher;
use crate::engine::qp::QpKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::attr::QpType;
use uverbs_fabric::map::Key;
use uverbs_softkernel::{Context, Kind};
use uverbs_uapi::cmd::{ib_uverbs_modify_qp, ib_uverbs_qp_dest};
use uverbs_uapi::verbs::ib_uverbs_qp_cap;

/// The object of a handle.
#[derive(Debug)]
pub(crate) enum Object {
    Pd { pdn: u32 },
    Mr { key: u32, iova: u64, len: u64 },
    Mw { key: u32 },
    Cq { cqn: u32, channel: Option<(usize, Arc<OwnedFd>)> },
    Qp(Box<QpObject>),
    Srq { srqn: u32, max_wr: u32, max_sge: u32 },
    Ah,
    Xrcd { xrcdn: u32 },
    Uar { page: u32 },
    Flow { rule: u32 },
    Counters(Counters),
    Matcher(Matcher),
    Wq { wqn: u32, state: u32, max_wr: u32 },
    Table { wqns: Vec<u32> },
    Dm { memory: Arc<DeviceMemory> },
    Devx(Box<Firmware>),
    Umem(Umem),
}

impl uverbs_softkernel::Object for Object {
    type Number = (Numbered, u32);
    type Data = ContextData;

    fn name(&self) -> &'static str {
        match self {
            Self::Pd { .. } => "pd",
            Self::Mr { .. } => "mr",
            Self::Mw { .. } => "mw",
            Self::Cq { .. } => "cq",
            Self::Qp(_) => "qp",
            Self::Srq { .. } => "srq",
            Self::Ah => "ah",
            Self::Xrcd { .. } => "xrcd",
            Self::Uar { .. } => "uar",
            Self::Flow { .. } => "flow",
            Self::Counters(_) => "counters",
            Self::Matcher(_) => "flow_matcher",
            Self::Wq { .. } => "wq",
            Self::Table { .. } => "rwq_ind_tbl",
            Self::Dm { .. } => "dm",
            Self::Devx(_) => "devx_obj",
            Self::Umem(_) => "devx_umem",
        }
    }

    fn most(&self) -> usize {
        most(self)
    }

    fn channel(&self) -> Option<(usize, &OwnedFd)> {
        match self {
            Self::Cq { channel: Some((channel, end)), .. } => Some((*channel, end)),
            _ => None,
        }
    }

    fn other_number(&self) -> Option<(Numbered, u32)> {
        match self {
            Self::Pd { pdn } => Some((Numbered::Pd, *pdn)),
            Self::Uar { page } => Some((Numbered::Page, *page)),
            Self::Dm { memory } => Some((Numbered::Dm, memory.page.into())),
            Self::Umem(umem) => Some((Numbered::Umem, umem.id())),
            Self::Devx(object) => object.pd().map(|pdn| (Numbered::Pd, pdn)),
            _ => None,
        }
    }

    fn number(&self) -> Option<(Kind, u32)> {
        match self {
            Self::Cq { cqn, .. } => Some((Kind::Cq, *cqn)),
            Self::Qp(qp) => Some((Kind::Qp, qp.qpn)),
            Self::Srq { srqn, .. } => Some((Kind::Srq, *srqn)),
            Self::Wq { wqn, .. } => Some((Kind::Wq, *wqn)),
            _ => None,
        }
    }
}

/// The kernel's data of a set of counters.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Its number in the device.
    pub(super) number: u32,
    /// What is counted (packets or bytes), and the index of the value; valid while a rule has the set.
    pub(super) descs: Vec<(u32, u32)>,
}

/// Kinds of objects that have another number besides their handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {
    Pd,
    Page,
    Dm,
    Umem,
}

impl Numbered {
    const ALL: [Self; 4] = [Self::Pd, Self::Page, Self::Dm, Self::Umem];
}

impl Key for Numbered {
    const BITS: u32 = 2;

    fn number(self) -> u128 {
        self as u128
    }

    fn of(number: u128) -> Self {
        Self::ALL[number as usize % Self::ALL.len()]
    }
}

/// The kernel's data about a context.
#[derive(Debug, Default)]
pub(crate) struct ContextData {
    /// The doorbell pages of the context, if pages are not objects.
    pub(super) static_pages: Vec<u32>,
    /// The next of these pages; QPs use them in turn.
    pub(super) next_page: usize,
    /// Whether the context requested pages as objects.
    pub(super) dynamic_pages: bool,
    pub(super) cqe_version: u8,
    /// Whether it was opened for commands to the firmware.
    pub(super) devx: bool,
}

/// A doorbell page of a context by its number.
pub(super) fn page(context: &Context<Object>, number: u32) -> Result<u32, Errno> {
    // A context has at most 256 pages that are no objects.
    let has = context.find((Numbered::Page, number)).is_some() || context.data.static_pages.contains(&number);
    if has { Ok(number) } else { Err(Errno::EINVAL) }
}

/// The kernel's data about a QP.
#[derive(Debug)]
pub(crate) struct QpObject {
    pub(super) qpn: u32,
    pub(super) qp_type: QpType,
    pub(super) kind: QpKind,
    pub(super) cap: ib_uverbs_qp_cap,
    pub(super) sig_all: bool,
    /// The attributes that were last set, for queries.
    pub(super) attrs: ib_uverbs_modify_qp,
    /// The XRC domain that it keeps alive.
    pub(super) holds_xrcd: Option<u32>,
    /// Set if frames are spread over work queues; then it has no own queues.
    pub(super) is_rss: bool,
    /// The UDP source port that a command for the firmware set.
    pub(super) udp_sport: u16,
}

impl QpObject {
    pub(super) fn new(qpn: u32, qp_type: QpType, kind: QpKind) -> Self {
        Self {
            qpn,
            qp_type,
            kind,
            cap: ib_uverbs_qp_cap::default(),
            sig_all: false,
            attrs: ib_uverbs_modify_qp { dest: ib_uverbs_qp_dest::default(), ..Default::default() },
            holds_xrcd: None,
            is_rss: false,
            udp_sport: 0,
        }
    }
}
