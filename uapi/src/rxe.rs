// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings that the rxe driver shares with user space, and its driver-private responses.
//!
//! Facts from `<rdma/rdma_user_rxe.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`; the socket addresses from
//! `<linux/in.h>` and `<linux/in6.h>`, SPDX `GPL-2.0+ WITH Linux-syscall-note`.
//!
//! A completion queue's elements are [`ib_uverbs_wc`](crate::cmd::ib_uverbs_wc), padded to a power of two.

use crate::be::{Be16, Be32, Be64};
use crate::layout::{abi_consts, abi_structs, abi_union};

abi_consts! {
    /// Addresses are IPv4.
    pub const RXE_NETWORK_TYPE_IPV4: u8 = 1;
    /// Addresses are IPv6.
    pub const RXE_NETWORK_TYPE_IPV6: u8 = 2;
}

abi_structs! {
    /// IPv4 socket address, from `<linux/in.h>`.
    pub struct sockaddr_in {
        /// `AF_INET`, host order.
        pub sin_family: u16,
        /// Port.
        pub sin_port: Be16,
        /// Address.
        pub sin_addr: Be32,
        /// Filler up to 16 bytes.
        pub sin_zero: [u8; 8],
    }

    /// IPv6 socket address, from `<linux/in6.h>`.
    pub struct sockaddr_in6 {
        /// `AF_INET6`, host order.
        pub sin6_family: u16,
        /// Port.
        pub sin6_port: Be16,
        /// Flow information.
        pub sin6_flowinfo: Be32,
        /// Address in wire order.
        pub sin6_addr: [u8; 16],
        /// Scope, an interface index.
        pub sin6_scope_id: u32,
    }

    /// A GID; the C type is a union of 16 bytes with two big-endian words.
    #[c = "union rxe_gid"]
    pub struct rxe_gid {
        /// Subnet prefix, then interface id.
        #[c = "."]
        pub global: [Be64; 2],
    }

    /// The global route header's part of an address.
    pub struct rxe_global_route {
        /// Destination GID.
        pub dgid: rxe_gid,
        /// Flow label, 20 bits.
        pub flow_label: u32,
        /// Index of the source GID in the port's table.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Padding of the C struct.
        pub _pad: u8,
    }

    /// A socket address, IPv4 or IPv6 by the network type: a union.
    #[c = "__typeof__(((struct rxe_av *)0)->sgid_addr)"]
    pub struct rxe_av_addr {
        /// The storage; use the members.
        #[c = "."]
        pub words: [u32; 7],
    }

    /// Address of a packet.
    pub struct rxe_av {
        /// Port, from 1.
        pub port_num: u8,
        /// `RXE_NETWORK_TYPE_*`.
        pub network_type: u8,
        /// Destination MAC; the interface's own means loopback.
        pub dmac: [u8; 6],
        /// Global route.
        pub grh: rxe_global_route,
        /// Source address.
        pub sgid_addr: rxe_av_addr,
        /// Destination address.
        pub dgid_addr: rxe_av_addr,
    }

    /// Union of the opcode-specific fields.
    #[c = "__typeof__(((struct rxe_send_wr *)0)->wr)"]
    pub struct rxe_send_wr_wr {
        /// The storage; use the members.
        #[c = "."]
        pub words: [u64; 15],
    }

    /// Member of [`rxe_send_wr_wr`]: RDMA flush.
    #[c = "__typeof__(((struct rxe_send_wr *)0)->wr.flush)"]
    pub struct rxe_send_wr_flush {
        /// Address at the peer.
        pub remote_addr: u64,
        /// Length in bytes; 0 with the level `IB_FLUSH_MR`.
        pub length: u32,
        /// Remote key.
        pub rkey: u32,
        /// `IB_FLUSH_GLOBAL`, `IB_FLUSH_PERSISTENT` or both.
        #[c = "type"]
        pub r#type: u8,
        /// `IB_FLUSH_RANGE` or `IB_FLUSH_MR`.
        pub level: u8,
        /// Padding of the C struct.
        pub _pad: [u8; 6],
    }

    /// Member of [`rxe_send_wr_wr`]: RDMA read and write, atomic write.
    #[c = "__typeof__(((struct rxe_send_wr *)0)->wr.rdma)"]
    pub struct rxe_send_wr_rdma {
        /// Address at the peer.
        pub remote_addr: u64,
        /// Remote key.
        pub rkey: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Member of [`rxe_send_wr_wr`]: atomics.
    #[c = "__typeof__(((struct rxe_send_wr *)0)->wr.atomic)"]
    pub struct rxe_send_wr_atomic {
        /// Address at the peer, 8-byte aligned.
        pub remote_addr: u64,
        /// Value to compare with, or to add.
        pub compare_add: u64,
        /// Value to store if equal.
        pub swap: u64,
        /// Remote key.
        pub rkey: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Member of [`rxe_send_wr_wr`]: datagrams.
    #[c = "__typeof__(((struct rxe_send_wr *)0)->wr.ud)"]
    pub struct rxe_send_wr_ud {
        /// The peer's QP number.
        pub remote_qpn: u32,
        /// The peer's Q_Key.
        pub remote_qkey: u32,
        /// P_Key index, on GSI QPs.
        pub pkey_index: u16,
        /// Must be 0.
        pub reserved: u16,
        /// Number of the address handle in the kernel; if 0, the kernel reads `av`.
        pub ah_num: u32,
        /// Must be 0.
        pub pad: [u32; 4],
        /// The address, for kernels that return no `ah_num`.
        pub av: rxe_av,
    }

    /// Member of [`rxe_send_wr_wr`]: binding a memory window.
    #[c = "__typeof__(((struct rxe_send_wr *)0)->wr.mw)"]
    pub struct rxe_send_wr_mw {
        /// First address of the window.
        pub addr: u64,
        /// Length in bytes.
        pub length: u64,
        /// Local key of the region; 0 with length 0 unbinds.
        pub mr_lkey: u32,
        /// The window's current key.
        pub mw_rkey: u32,
        /// The window's new key.
        pub rkey: u32,
        /// Access rights of the peer, `IB_UVERBS_ACCESS_*`.
        pub access: u32,
    }

    /// One send work request.
    pub struct rxe_send_wr {
        /// Value that the completion carries; the caller chooses it.
        pub wr_id: u64,
        /// Must be 0.
        pub reserved: u32,
        /// `IB_UVERBS_WR_*`.
        pub opcode: u32,
        /// `IB_SEND_*`.
        pub send_flags: u32,
        /// Immediate data; for invalidation see [`invalidate_rkey`](Self::invalidate_rkey).
        #[c = "ex.imm_data"]
        pub imm_data: Be32,
        /// Opcode-specific fields.
        pub wr: rxe_send_wr_wr,
    }

    /// One scatter/gather entry.
    pub struct rxe_sge {
        /// Address in the memory region.
        pub addr: u64,
        /// Length in bytes.
        pub length: u32,
        /// Local key.
        pub lkey: u32,
    }

    /// Location of a ring for mmap(2).
    pub struct mminfo {
        /// Offset for mmap on the uverbs file.
        pub offset: u64,
        /// Bytes to map.
        pub size: u32,
        /// Written as 0.
        pub pad: u32,
    }

    /// The data of a work request, and the kernel's progress.
    pub struct rxe_dma_info {
        /// All bytes.
        pub length: u32,
        /// Bytes left; `length` at posting.
        pub resid: u32,
        /// Entry in progress; 0 at posting.
        pub cur_sge: u32,
        /// Entries that follow.
        pub num_sge: u32,
        /// Bytes done of the entry in progress; 0 at posting.
        pub sge_offset: u32,
        /// Must be 0.
        pub reserved: u32,
        /// The entries, or inline data, or the 8 bytes of an atomic write.
        pub sge: [rxe_sge; 0],
    }

    /// One element of a send queue.
    pub struct rxe_send_wqe {
        /// The work request.
        pub wr: rxe_send_wr,
        /// Used by the kernel: the completion status so far, `IB_WC_*`.
        pub status: u32,
        /// Used by the kernel: 0 (posted) at posting.
        pub state: u32,
        /// Next address at the peer; the poster stores the first one.
        pub iova: u64,
        /// Used by the kernel: what kind of opcode it is.
        pub mask: u32,
        /// Used by the kernel: first packet sequence number.
        pub first_psn: u32,
        /// Used by the kernel: last packet sequence number.
        pub last_psn: u32,
        /// Used by the kernel: bytes acknowledged.
        pub ack_length: u32,
        /// Send sequence number: the poster counts its work requests.
        pub ssn: u32,
        /// Used by the kernel: whether it holds a read/atomic credit; 0 at posting.
        pub has_rd_atomic: u32,
        /// The data.
        pub dma: rxe_dma_info,
    }

    /// One element of a receive queue.
    pub struct rxe_recv_wqe {
        /// Value that the completion carries; the caller chooses it.
        pub wr_id: u64,
        /// Must be 0.
        pub reserved: u32,
        /// Must be 0.
        pub padding: u32,
        /// Location of the data.
        pub dma: rxe_dma_info,
    }

    /// Driver-private response to creating an address handle.
    pub struct rxe_create_ah_resp {
        /// Number to use in work requests.
        pub ah_num: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Driver-private response to creating a completion queue.
    pub struct rxe_create_cq_resp {
        /// Location of the ring for mmap(2).
        pub mi: mminfo,
    }

    /// Driver-private response to resizing a completion queue.
    pub struct rxe_resize_cq_resp {
        /// Location of the ring for mmap(2).
        pub mi: mminfo,
    }

    /// Driver-private response to creating a queue pair.
    pub struct rxe_create_qp_resp {
        /// Location of the receive queue for mmap(2); not written if the QP has an SRQ.
        pub rq_mi: mminfo,
        /// Location of the send queue for mmap(2).
        pub sq_mi: mminfo,
    }

    /// Driver-private response to creating a shared receive queue.
    pub struct rxe_create_srq_resp {
        /// Location of the ring for mmap(2).
        pub mi: mminfo,
        /// SRQ number.
        pub srq_num: u32,
        /// Written as 0.
        pub reserved: u32,
    }

    /// Driver-private request to change a shared receive queue.
    pub struct rxe_modify_srq_cmd {
        /// Address of a [`mminfo`] that the kernel writes if it resizes the queue.
        pub mmap_info_addr: u64,
    }

    /// Header of a shared ring. Both sides can write all of it, so neither indices nor sizes are trusted.
    pub struct rxe_queue_buf {
        /// log2 of the bytes of one element.
        pub log2_elem_size: u32,
        /// Number of slots minus 1.
        pub index_mask: u32,
        /// Rest of the cache line.
        pub pad_1: [u32; 30],
        /// Next slot to fill; written by the producer only.
        pub producer_index: u32,
        /// Keeps the indices in separate cache lines.
        pub pad_2: [u32; 31],
        /// Next slot to empty; written by the consumer only.
        pub consumer_index: u32,
        /// Rest of the cache line.
        pub pad_3: [u32; 31],
        /// The slots.
        pub data: [u8; 0],
    }
}

impl rxe_gid {
    /// The GID as bytes in wire order, the union's other member.
    #[inline]
    pub fn raw(&self) -> [u8; 16] {
        zerocopy::transmute!(self.global)
    }
}

impl From<[u8; 16]> for rxe_gid {
    #[inline]
    fn from(raw: [u8; 16]) -> Self {
        Self { global: zerocopy::transmute!(raw) }
    }
}

abi_union!(rxe_av_addr {
    /// IPv4, where the network type is [`RXE_NETWORK_TYPE_IPV4`].
    sockaddr_in, set_sockaddr_in: sockaddr_in;
    /// IPv6, where the network type is [`RXE_NETWORK_TYPE_IPV6`].
    sockaddr_in6, set_sockaddr_in6: sockaddr_in6;
});

abi_union!(rxe_send_wr_wr {
    /// RDMA flush. Kernels of 2023 and later.
    flush, set_flush: rxe_send_wr_flush;
    /// RDMA read and write, and atomic write.
    rdma, set_rdma: rxe_send_wr_rdma;
    /// Compare-and-swap, fetch-and-add.
    atomic, set_atomic: rxe_send_wr_atomic;
    /// Datagrams.
    ud, set_ud: rxe_send_wr_ud;
    /// Binding a memory window.
    mw, set_mw: rxe_send_wr_mw;
});

impl rxe_send_wr {
    /// The other member of `ex`: the key that a send or local invalidation invalidates, host order.
    #[inline]
    pub const fn invalidate_rkey(&self) -> u32 {
        self.imm_data.to_bits()
    }

    /// Stores the other member of `ex`.
    #[inline]
    pub const fn set_invalidate_rkey(&mut self, rkey: u32) {
        self.imm_data = Be32::from_bits(rkey);
    }
}
