// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types, states and attributes of queue pairs.

use super::packet::Transport;
use crate::decode::QueueKind;

/// The type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
    /// Initiator of an extended reliable connection.
    XrcSend,
    /// Target of an extended reliable connection.
    XrcRecv,
    /// Initiator of dynamic connections.
    Dci,
    /// Target of dynamic connections.
    Dct,
    /// Ethernet frames.
    Raw,
    /// The kernel's queue for updates of memory keys: a connection that sends nothing.
    Keys,
}

impl QpKind {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Rc | Self::Keys => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
            Self::XrcSend | Self::XrcRecv => Transport::Xrc,
            Self::Dci | Self::Dct => Transport::Dc,
            Self::Raw => Transport::Ethernet,
        }
    }

    /// The kind of its send queue.
    pub(crate) fn queue(self) -> Option<QueueKind> {
        match self {
            Self::Rc => Some(QueueKind::Rc),
            Self::Uc => Some(QueueKind::Uc),
            Self::Ud => Some(QueueKind::Ud),
            Self::XrcSend => Some(QueueKind::Xrc),
            Self::Dci => Some(QueueKind::Dci),
            Self::Raw => Some(QueueKind::Raw),
            Self::Keys => Some(QueueKind::Keys),
            Self::XrcRecv | Self::Dct => None,
        }
    }
}

pub use uverbs_fabric::State;

/// The fields of a global route, beside the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The index of the port's GID.
    pub sgid_index: u8,
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

/// The attributes that execution needs.
#[derive(Clone, Debug, Default)]
pub struct Attr {
    /// Number of the peer's QP.
    pub dest_qpn: u32,
    /// Q_Key that datagrams to it must have.
    pub qkey: u32,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// The first PSN that it sends.
    pub sq_psn: u32,
    /// The first PSN that it expects.
    pub rq_psn: u32,
    /// Access that the peer has ([`access`](super::mkey::access)).
    pub access: u32,
    /// Timeout for an answer, as an exponent: 4.096 us * 2^timeout; 0 means no timeout.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries if the receiver is not ready; 7 means no limit.
    pub rnr_retry: u8,
    /// The code of the time that the peer must wait if there is no receive.
    pub min_rnr_timer: u8,
    /// Maximum of outstanding reads and atomics (`max_rd_atomic`).
    pub max_rd_atomic: u8,
    /// Maximum of outstanding reads and atomics of the peer (`max_dest_rd_atomic`).
    pub max_dest_rd_atomic: u8,
    /// GID of the peer. Without one the peer is found by its LID.
    pub dgid: Option<[u8; 16]>,
    /// The route to the peer, which only a capture shows.
    pub route: Route,
    /// LID of the peer.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    pub(crate) notify_drained: bool,
}
