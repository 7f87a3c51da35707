// SPDX-License-Identifier: MIT OR Apache-2.0
//! QP types, states, capabilities and creation attributes (ibv_create_qp_ex(3)).

use crate::error::{Error, Result};
use core::fmt;

/// `enum ibv_qp_type`. Only sent, never returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpType {
    /// `IBV_QPT_RC`: reliable connection.
    Rc = 2,
    /// `IBV_QPT_UC`: unreliable connection.
    Uc = 3,
    /// `IBV_QPT_UD`: unreliable datagram.
    Ud = 4,
    /// `IBV_QPT_RAW_PACKET`: Ethernet frames; needs `CAP_NET_RAW`.
    RawPacket = 8,
    /// `IBV_QPT_XRC_SEND`: initiator of an extended reliable connection.
    XrcSend = 9,
    /// `IBV_QPT_XRC_RECV`: target of an extended reliable connection; has no queues.
    XrcRecv = 10,
    /// `IBV_QPT_DRIVER`: the driver's private input determines the type.
    Driver = 0xff,
}

impl QpType {
    /// Every type.
    pub const ALL: [Self; 7] =
        [Self::Rc, Self::Uc, Self::Ud, Self::RawPacket, Self::XrcSend, Self::XrcRecv, Self::Driver];

    /// Converts C's number.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == raw)
    }

    /// Whether WRs can be posted to its send queue.
    #[must_use]
    pub const fn has_send_queue(self) -> bool {
        !matches!(self, Self::XrcRecv)
    }

    /// Whether WRs can be posted to its receive queue, if it has no SRQ.
    #[must_use]
    pub const fn has_recv_queue(self) -> bool {
        !matches!(self, Self::XrcSend | Self::XrcRecv)
    }

    /// Whether it has one peer, which `modify_qp` sets.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::XrcSend | Self::XrcRecv)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "RAW_PACKET",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
            Self::Driver => "DRIVER",
        })
    }
}

/// What a QP of type [`QpType::Driver`] is, which the driver determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriverQp {
    /// An initiator of dynamic connections.
    Dc,
    /// Scalable reliable datagrams: reliable, without a connection and without an order.
    Srd,
}

impl fmt::Display for DriverQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dc => "DC",
            Self::Srd => "SRD",
        })
    }
}

open_values! {
    /// `enum ibv_qp_state`.
    QpState(u32), "IBV_QPS_" {
        RESET = 0 "reset",
        INIT = 1 "initialized: receives may be posted",
        RTR = 2 "ready to receive",
        RTS = 3 "ready to send",
        SQD = 4 "send queue drained",
        SQE = 5 "send queue in error",
        ERR = 6 "error",
        UNKNOWN = 7 "unknown to the driver",
    }
}

/// `struct ibv_qp_cap`: the sizes of a QP's queues. Those of the created QP may be larger than requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QpCap {
    /// Outstanding WRs of the send queue.
    pub max_send_wr: u32,
    /// Outstanding WRs of the receive queue.
    pub max_recv_wr: u32,
    /// SGEs of a send WR.
    pub max_send_sge: u32,
    /// SGEs of a receive WR.
    pub max_recv_sge: u32,
    /// Bytes that can be sent inline.
    pub max_inline_data: u32,
}

impl QpCap {
    /// Queues with this many outstanding WRs, of one SGE each, and nothing inline.
    ///
    /// ```
    /// use uverbs_core::attr::QpCap;
    ///
    /// let cap = QpCap::new(16, 32).sge(2, 1).inline(64);
    /// assert_eq!((cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_inline_data), (16, 32, 2, 64));
    /// ```
    #[must_use]
    pub const fn new(send: u32, recv: u32) -> Self {
        Self { max_send_wr: send, max_recv_wr: recv, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
    }

    /// SGEs of a send WR, and of a receive WR.
    #[must_use]
    pub const fn sge(self, send: u32, recv: u32) -> Self {
        self.max_send_sge(send).max_recv_sge(recv)
    }

    /// Bytes that can be sent inline.
    #[must_use]
    pub const fn inline(self, bytes: u32) -> Self {
        self.max_inline_data(bytes)
    }

    setters! {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
}

bitflags::bitflags! {
    /// `enum ibv_qp_create_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct QpCreateFlags: u32 {
        /// Multicast packets of the QP itself are not received.
        const BLOCK_SELF_MCAST_LB = 1 << 1;
        /// Receives keep the FCS (raw packet).
        const SCATTER_FCS = 1 << 8;
        /// Receives lose the VLAN tag (raw packet).
        const CVLAN_STRIPPING = 1 << 9;
        /// Packets carry [`QpInitAttr::source_qpn`].
        const SOURCE_QPN = 1 << 10;
        /// PCI writes are padded to a cache line.
        const PCI_WRITE_END_PADDING = 1 << 11;
    }
}

bitflags::bitflags! {
    /// `enum ibv_qp_create_send_ops_flags`: the operations that the QP's `wr_*` builders must support. Creation fails
    /// if the QP type or the driver does not support one of them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct SendOpsFlags: u64 {
        /// `wr_rdma_write`
        const RDMA_WRITE = 1 << 0;
        /// `wr_rdma_write_imm`
        const RDMA_WRITE_WITH_IMM = 1 << 1;
        /// `wr_send`
        const SEND = 1 << 2;
        /// `wr_send_imm`
        const SEND_WITH_IMM = 1 << 3;
        /// `wr_rdma_read`
        const RDMA_READ = 1 << 4;
        /// `wr_atomic_cmp_swp`
        const ATOMIC_CMP_AND_SWP = 1 << 5;
        /// `wr_atomic_fetch_add`
        const ATOMIC_FETCH_AND_ADD = 1 << 6;
        /// `wr_local_inv`
        const LOCAL_INV = 1 << 7;
        /// `wr_bind_mw`
        const BIND_MW = 1 << 8;
        /// `wr_send_inv`
        const SEND_WITH_INV = 1 << 9;
        /// `wr_send_tso`
        const TSO = 1 << 10;
        /// `wr_flush`
        const FLUSH = 1 << 11;
        /// `wr_atomic_write`
        const ATOMIC_WRITE = 1 << 12;
    }
}

/// `struct ibv_qp_init_attr_ex` without the objects that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpInitAttr {
    /// Sizes.
    pub cap: QpCap,
    /// Transport.
    pub qp_type: QpType,
    /// Every send WR generates a completion, with or without the signaled flag.
    pub sq_sig_all: bool,
    /// Flags.
    pub create_flags: QpCreateFlags,
    /// Longest header of a segmented send, in bytes (`wr_send_tso`).
    pub max_tso_header: u16,
    /// Source QP number of outgoing packets, with [`QpCreateFlags::SOURCE_QPN`]; needs `CAP_NET_RAW`.
    pub source_qpn: u32,
    /// Operations that the `wr_*` builders must have.
    pub send_ops_flags: SendOpsFlags,
    /// The longest list of an indirect key that a work request writes; 0 if work requests change none.
    pub max_mkey_entries: u32,
}

impl QpInitAttr {
    /// Checks that a driver whose QPs have no flags and no segmentation can make such a QP.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that names what the driver lacks.
    pub fn only_standard(&self, driver: &str) -> Result<()> {
        let missing = |what: String| Err(Error::unsupported("create_qp", format!("{driver} has no {what}")));
        if !self.create_flags.is_empty() {
            return missing(format!("create_flags {:?}", self.create_flags));
        }
        if self.max_tso_header != 0 {
            return missing("segmentation offload (max_tso_header)".into());
        }
        Ok(())
    }

    /// A QP of this type, with everything else zero.
    #[must_use]
    pub fn new(qp_type: QpType) -> Self {
        Self {
            cap: QpCap::default(),
            qp_type,
            sq_sig_all: false,
            create_flags: QpCreateFlags::empty(),
            max_tso_header: 0,
            source_qpn: 0,
            send_ops_flags: SendOpsFlags::empty(),
            max_mkey_entries: 0,
        }
    }
}
