// SPDX-License-Identifier: MIT OR Apache-2.0
//! The notices of a device to its front.

/// A notice of the device to its front. It corresponds to an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An armed CQ got a completion of the requested kind.
    Completion {
        /// Its number.
        cqn: u32,
    },
    /// A CQ was overrun.
    CqError {
        /// Its number.
        cqn: u32,
    },
    /// An event of a QP.
    Qp {
        /// Its number.
        qpn: u32,
        /// A value of [`event`].
        event: u32,
    },
    /// An event of an SRQ.
    Srq {
        /// Its number.
        srqn: u32,
        /// A value of [`event`].
        event: u32,
    },
    /// An event of a work queue.
    Wq {
        /// Its number.
        wqn: u32,
        /// A value of [`event`].
        event: u32,
    },
    /// An event of the port: its link went up or down, or its addresses changed.
    Port {
        /// A value of [`event`].
        event: u32,
    },
}

/// `enum ib_event_type`
pub mod event {
    /// `IBV_EVENT_CQ_ERR`
    pub const CQ_ERR: u32 = 0;
    /// `IBV_EVENT_QP_FATAL`
    pub const QP_FATAL: u32 = 1;
    /// `IBV_EVENT_QP_REQ_ERR`
    pub const QP_REQ_ERR: u32 = 2;
    /// `IBV_EVENT_QP_ACCESS_ERR`
    pub const QP_ACCESS_ERR: u32 = 3;
    /// `IBV_EVENT_COMM_EST`
    pub const COMM_EST: u32 = 4;
    /// `IBV_EVENT_SQ_DRAINED`
    pub const SQ_DRAINED: u32 = 5;
    /// `IBV_EVENT_DEVICE_FATAL`
    pub const DEVICE_FATAL: u32 = 8;
    /// `IBV_EVENT_PORT_ACTIVE`
    pub const PORT_ACTIVE: u32 = 9;
    /// `IBV_EVENT_PORT_ERR`
    pub const PORT_ERR: u32 = 10;
    /// `IBV_EVENT_LID_CHANGE`
    pub const LID_CHANGE: u32 = 11;
    /// `IBV_EVENT_SRQ_ERR`
    pub const SRQ_ERR: u32 = 14;
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    /// `IBV_EVENT_GID_CHANGE`
    pub const GID_CHANGE: u32 = 18;
    /// `IBV_EVENT_WQ_FATAL`
    pub const WQ_FATAL: u32 = 19;
}
