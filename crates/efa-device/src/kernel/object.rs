// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's objects: the data behind a handle.

use super::maps::Maps;
use crate::caps::Caps;
use crate::device::{Keys, QpKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs_softkernel::Kind;
use uverbs_uapi::verbs::ib_uverbs_qp_cap;

/// The object of a handle.
#[derive(Debug)]
pub(crate) enum Object {
    Pd { pd: u16 },
    Mr { keys: Keys, iova: u64, len: u64 },
    Cq { cq: u16, channel: Option<(usize, Arc<OwnedFd>)>, maps: Vec<u64> },
    Qp(QpObject),
    Ah { pd: u16, ah: u16 },
}

/// The kernel's data about a QP.
#[derive(Clone, Debug)]
pub(crate) struct QpObject {
    pub(super) qpn: u16,
    pub(super) kind: QpKind,
    pub(super) cap: ib_uverbs_qp_cap,
    pub(super) sig_all: bool,
    /// The offsets of its mappings.
    pub(super) maps: Vec<u64>,
}

/// The kernel's data about a context.
#[derive(Debug, Default)]
pub(crate) struct ContextData {
    /// Its page of doorbells.
    pub(super) uar: Option<u16>,
    /// What it may map.
    pub(super) maps: Maps,
}

impl uverbs_softkernel::Object for Object {
    type Number = ();
    type Data = ContextData;

    fn name(&self) -> &'static str {
        match self {
            Self::Pd { .. } => "pd",
            Self::Mr { .. } => "mr",
            Self::Cq { .. } => "cq",
            Self::Qp(_) => "qp",
            Self::Ah { .. } => "ah",
        }
    }

    fn most(&self) -> usize {
        match self {
            Self::Pd { .. } => Caps::MAX_PD.into(),
            Self::Mr { .. } => Caps::MAX_MR as usize,
            Self::Cq { .. } => Caps::MAX_CQ.into(),
            Self::Qp(_) => Caps::MAX_QP.into(),
            // Several may have one number in the device.
            Self::Ah { .. } => i32::MAX as usize,
        }
    }

    fn other_number(&self) -> Option<()> {
        None
    }

    fn number(&self) -> Option<(Kind, u32)> {
        match self {
            Self::Cq { cq, .. } => Some((Kind::Cq, u32::from(*cq))),
            Self::Qp(qp) => Some((Kind::Qp, qp.qpn.into())),
            _ => None,
        }
    }

    fn channel(&self) -> Option<(usize, &OwnedFd)> {
        match self {
            Self::Cq { channel: Some((channel, end)), .. } => Some((*channel, end)),
            _ => None,
        }
    }
}
