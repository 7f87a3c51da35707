// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers that describe an identifier: addresses, route, attributes of its QP.

use super::command::answer;
use super::ident::{Ident, State, gid};
use super::{Call, Cm};
use core::net::SocketAddr;
use nix::libc::{AF_INET, AF_INET6};
use uverbs_core::Errno;
use uverbs_core::attr::{AccessFlags, Mtu, QpAttrMask, QpState};
use uverbs_uapi::be::{Be16, Be32};
use uverbs_uapi::cmd::ib_uverbs_qp_attr;
use uverbs_uapi::rdma_cm::{
    __kernel_sockaddr_storage as Storage, RDMA_UDP_QKEY, RDMA_USER_CM_QUERY_ADDR, ib_user_path_rec,
    rdma_ucm_query_addr_resp, rdma_ucm_query_route_resp,
};
use uverbs_uapi::rxe::{sockaddr_in, sockaddr_in6};
use uverbs_uapi::verbs::{IB_UVERBS_QPT_RC, IB_UVERBS_QPT_UC, IB_UVERBS_QPT_XRC_INI, IB_UVERBS_QPT_XRC_TGT};
use zerocopy::{FromBytes, IntoBytes};

/// The default partition.
const PKEY: u16 = 0xffff;
/// Timeout of acknowledgements that the kernel computes for a RoCE path.
const ACK_TIMEOUT: u8 = 19;
/// Path MTU, that of the ports (`active_mtu`).
const MTU: Mtu = Mtu::MTU_4096;

/// An address in its storage, and its size.
fn storage(address: Option<SocketAddr>) -> (Storage, u16) {
    let mut storage = Storage::default();
    let bytes = storage.as_mut_bytes();
    let size = match address {
        None => 0,
        Some(SocketAddr::V4(v4)) => {
            let raw = sockaddr_in {
                sin_family: AF_INET as u16,
                sin_port: Be16::new(v4.port()),
                sin_addr: Be32::new(v4.ip().to_bits()),
                sin_zero: [0; 8],
            };
            bytes[..size_of_val(&raw)].copy_from_slice(raw.as_bytes());
            size_of_val(&raw)
        }
        Some(SocketAddr::V6(v6)) => {
            let raw = sockaddr_in6 {
                sin6_family: AF_INET6 as u16,
                sin6_port: Be16::new(v6.port()),
                sin6_flowinfo: Be32::new(v6.flowinfo()),
                sin6_addr: v6.ip().octets(),
                sin6_scope_id: v6.scope_id(),
            };
            bytes[..size_of_val(&raw)].copy_from_slice(raw.as_bytes());
            size_of_val(&raw)
        }
    };
    (storage, size as u16)
}

/// The beginning of a storage, where an older answer has less room.
fn short(address: Option<SocketAddr>) -> sockaddr_in6 {
    let (storage, _) = storage(address);
    sockaddr_in6::read_from_prefix(storage.as_bytes()).map(|(short, _)| short).unwrap_or_default()
}

/// The device's GUID as it is sent.
fn node_guid(call: &Call<'_>, ident: &Ident) -> u64 {
    let port = call.net.ports.get(ident.host).filter(|_| ident.has_device);
    // The GUID is the interface id of the first GID, which is link-local.
    let guid = port.and_then(|p| p.gids.first()).and_then(|(gid, _)| gid[8..].first_chunk().copied());
    guid.map(u64::from_ne_bytes).unwrap_or_default()
}

impl Cm {
    pub(super) fn query(
        &self,
        call: &Call<'_>,
        number: u32,
        option: u32,
        output: &mut [u8],
    ) -> Result<(), Errno> {
        let ident = self.idents.get(&number).ok_or(Errno::ENOENT)?;
        // Paths and GIDs are those of InfiniBand addresses.
        if option != RDMA_USER_CM_QUERY_ADDR {
            return Err(Errno::ENOSYS);
        }
        let (src_addr, src_size) = storage(ident.local);
        let (dst_addr, dst_size) = storage(ident.remote);
        let resp = rdma_ucm_query_addr_resp {
            node_guid: node_guid(call, ident),
            port_num: u8::from(ident.has_device),
            pkey: if ident.has_device { PKEY.to_be() } else { 0 },
            src_size,
            dst_size,
            src_addr,
            dst_addr,
            ibdev_index: if ident.has_device { ident.host as u32 } else { 0 },
            ..Default::default()
        };
        answer(output, &resp)
    }

    pub(super) fn query_route(&self, call: &Call<'_>, number: u32, output: &mut [u8]) -> Result<(), Errno> {
        let ident = self.idents.get(&number).ok_or(Errno::ENOENT)?;
        let mut resp = rdma_ucm_query_route_resp {
            node_guid: node_guid(call, ident),
            src_addr: short(ident.local),
            dst_addr: short(ident.remote),
            port_num: u8::from(ident.has_device),
            ibdev_index: if ident.has_device { ident.host as u32 } else { 0 },
            ..Default::default()
        };
        let is_resolved =
            !matches!(ident.state, State::Idle | State::Bound | State::AddrResolved | State::Listening);
        if let (true, Some(local), Some(remote)) = (is_resolved, ident.local, ident.remote) {
            resp.num_paths = 1;
            resp.ib_route[0] = ib_user_path_rec {
                dgid: gid(remote.ip()),
                sgid: gid(local.ip()),
                pkey: Be16::new(PKEY),
                mtu: MTU.0.into(),
                hop_limit: 64,
                traffic_class: ident.tos,
                ..Default::default()
            };
        }
        answer(output, &resp)
    }

    /// The attributes for a state (`ib_cm_init_qp_attr()`, and `cma_ib_init_qp_attr()` before there is a connection).
    pub(super) fn init_qp_attr(
        &self,
        call: &Call<'_>,
        number: u32,
        state: u32,
        output: &mut [u8],
    ) -> Result<(), Errno> {
        let ident = self.idents.get(&number).ok_or(Errno::ENOENT)?;
        if output.len() < size_of::<ib_uverbs_qp_attr>() {
            return Err(Errno::ENOSPC);
        }
        if state > QpState::ERR.0 || !ident.has_device {
            return Err(Errno::EINVAL);
        }
        let is_connecting =
            matches!(ident.state, State::Requested | State::Answered | State::Accepted | State::Connected);
        // `cm_init_qp_init_attr()`
        let has_ended = matches!(ident.state, State::Disconnecting | State::Disconnected | State::Closed);
        if has_ended && !ident.is_datagram() && state != QpState::ERR.0 {
            return Err(Errno::EINVAL);
        }
        let mut mask = QpAttrMask::STATE;
        let mut attr = ib_uverbs_qp_attr { qp_state: state, ..Default::default() };
        match QpState(state) {
            QpState::INIT => {
                mask |= QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
                attr.port_num = 1;
                if ident.is_datagram() {
                    mask |= QpAttrMask::QKEY;
                    attr.qkey = RDMA_UDP_QKEY;
                } else {
                    mask |= QpAttrMask::ACCESS_FLAGS;
                    if is_connecting {
                        let mut access = AccessFlags::REMOTE_WRITE;
                        if ident.responder_resources != 0 {
                            access |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
                        }
                        attr.qp_access_flags = access.bits();
                    }
                }
            }
            QpState::RTR | QpState::RTS if ident.is_datagram() => {
                if QpState(state) == QpState::RTS {
                    mask |= QpAttrMask::SQ_PSN;
                }
            }
            QpState::RTR if is_connecting => {
                mask |= QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
                attr.ah_attr = ident.way(call.net, ident.remote.map(|r| gid(r.ip())).unwrap_or_default());
                attr.path_mtu = MTU.0.into();
                attr.dest_qp_num = ident.remote_qp_num;
                attr.rq_psn = ident.remote_psn;
                // `cm_init_qp_rtr_attr()`
                if matches!(ident.qp_type, IB_UVERBS_QPT_RC | IB_UVERBS_QPT_XRC_TGT) {
                    mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
                    attr.max_dest_rd_atomic = ident.responder_resources;
                }
            }
            QpState::RTS if is_connecting => {
                mask |= QpAttrMask::SQ_PSN;
                attr.sq_psn = ident.psn;
                // `cm_init_qp_rts_attr()`
                if ident.qp_type != IB_UVERBS_QPT_UC {
                    mask |= QpAttrMask::TIMEOUT;
                    attr.timeout = ident.ack_timeout.unwrap_or(ACK_TIMEOUT);
                }
                if matches!(ident.qp_type, IB_UVERBS_QPT_RC | IB_UVERBS_QPT_XRC_INI) {
                    mask |= QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
                    attr.retry_cnt = ident.retry_count;
                    attr.rnr_retry = ident.rnr_retry_count;
                    attr.max_rd_atomic = ident.initiator_depth;
                }
            }
            QpState::ERR => {}
            _ => return Err(Errno::EINVAL),
        }
        attr.qp_attr_mask = mask.bits();
        answer(output, &attr)
    }
}
