// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of each QP type on this device.

use super::context::Facts;
use uverbs_core::attr::{QpType, SendOpsFlags};

/// The operations of RC, XRC and DC QPs.
pub(crate) const RC: SendOpsFlags = UC
    .union(SendOpsFlags::RDMA_READ)
    .union(SendOpsFlags::ATOMIC_CMP_AND_SWP)
    .union(SendOpsFlags::ATOMIC_FETCH_AND_ADD);
/// The operations of UC QPs.
const UC: SendOpsFlags = UD
    .union(SendOpsFlags::SEND_WITH_INV)
    .union(SendOpsFlags::RDMA_WRITE)
    .union(SendOpsFlags::RDMA_WRITE_WITH_IMM)
    .union(SendOpsFlags::LOCAL_INV)
    .union(SendOpsFlags::BIND_MW);
/// The operations of UD QPs. The hardware does not segment datagrams.
const UD: SendOpsFlags = SendOpsFlags::SEND.union(SendOpsFlags::SEND_WITH_IMM);
/// The operations of raw packet QPs.
const RAW_PACKET: SendOpsFlags = SendOpsFlags::SEND.union(SendOpsFlags::TSO);

/// The operations that builders of such a QP support on this device. ibv_wr_post(3): the creation fails if others are
/// requested. `Driver` is a DC initiator.
pub(crate) fn builder_ops(qp_type: QpType, facts: &Facts) -> SendOpsFlags {
    let mut ops = match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::Driver => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
        QpType::RawPacket => RAW_PACKET,
        QpType::XrcRecv => SendOpsFlags::empty(),
    };
    if !facts.atomics {
        ops -= SendOpsFlags::ATOMIC_CMP_AND_SWP | SendOpsFlags::ATOMIC_FETCH_AND_ADD;
    }
    if facts.max_tso == 0 {
        ops -= SendOpsFlags::TSO;
    }
    ops
}
