// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which operations a QP type has on this device.

use uverbs_core::attr::{QpType, SendOpsFlags};

/// Of RC, XRC and DC QPs.
pub(crate) const RC: SendOpsFlags = UC
    .union(SendOpsFlags::RDMA_READ)
    .union(SendOpsFlags::ATOMIC_CMP_AND_SWP)
    .union(SendOpsFlags::ATOMIC_FETCH_AND_ADD);
/// Of UC QPs.
const UC: SendOpsFlags = UD
    .union(SendOpsFlags::SEND_WITH_INV)
    .union(SendOpsFlags::RDMA_WRITE)
    .union(SendOpsFlags::RDMA_WRITE_WITH_IMM)
    .union(SendOpsFlags::LOCAL_INV)
    .union(SendOpsFlags::BIND_MW);
/// Of UD QPs. The hardware does not segment datagrams.
const UD: SendOpsFlags = SendOpsFlags::SEND.union(SendOpsFlags::SEND_WITH_IMM);
/// Of raw packet QPs.
const RAW_PACKET: SendOpsFlags = SendOpsFlags::SEND.union(SendOpsFlags::TSO);

/// What builders of such a QP can do. `Driver` is a DC initiator.
pub(crate) const fn builder_ops(qp_type: QpType) -> SendOpsFlags {
    match qp_type {
        QpType::Rc | QpType::XrcSend | QpType::Driver => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
        QpType::RawPacket => RAW_PACKET,
        QpType::XrcRecv => SendOpsFlags::empty(),
    }
}
