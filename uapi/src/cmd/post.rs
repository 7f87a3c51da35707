// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that post work requests through the kernel.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::be::Be32;
use crate::layout::{abi_consts, abi_structs, abi_union};

abi_consts! {
    /// RDMA write.
    pub const IB_UVERBS_WR_RDMA_WRITE: u32 = 0;
    /// RDMA write that consumes a receive and delivers immediate data.
    pub const IB_UVERBS_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
    /// Send.
    pub const IB_UVERBS_WR_SEND: u32 = 2;
    /// Send with immediate data.
    pub const IB_UVERBS_WR_SEND_WITH_IMM: u32 = 3;
    /// RDMA read.
    pub const IB_UVERBS_WR_RDMA_READ: u32 = 4;
    /// Compare-and-swap of 8 bytes.
    pub const IB_UVERBS_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
    /// Fetch-and-add of 8 bytes.
    pub const IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
    /// Invalidates a local key.
    pub const IB_UVERBS_WR_LOCAL_INV: u32 = 7;
    /// Binds a memory window.
    pub const IB_UVERBS_WR_BIND_MW: u32 = 8;
    /// Send that invalidates a key at the peer.
    pub const IB_UVERBS_WR_SEND_WITH_INV: u32 = 9;
    /// Segmented send (TSO).
    pub const IB_UVERBS_WR_TSO: u32 = 10;
    /// RDMA read that then invalidates the local key.
    pub const IB_UVERBS_WR_RDMA_READ_WITH_INV: u32 = 11;
    /// Masked compare-and-swap.
    pub const IB_UVERBS_WR_MASKED_ATOMIC_CMP_AND_SWP: u32 = 12;
    /// Masked fetch-and-add.
    pub const IB_UVERBS_WR_MASKED_ATOMIC_FETCH_AND_ADD: u32 = 13;
    /// RDMA flush.
    pub const IB_UVERBS_WR_FLUSH: u32 = 14;
    /// Atomic write of 8 bytes.
    pub const IB_UVERBS_WR_ATOMIC_WRITE: u32 = 15;
    /// Flush placement: visible in the whole node.
    pub const IB_FLUSH_GLOBAL: u8 = 1 << 0;
    /// Flush placement: persistent.
    pub const IB_FLUSH_PERSISTENT: u8 = 1 << 1;
    /// Flush level: the address range given.
    pub const IB_FLUSH_RANGE: u8 = 0;
    /// Flush level: the whole memory region.
    pub const IB_FLUSH_MR: u8 = 1;
}

abi_structs! {
    /// One scatter/gather entry.
    pub struct ib_uverbs_sge {
        /// Address in the memory region.
        pub addr: u64,
        /// Length in bytes.
        pub length: u32,
        /// Local key.
        pub lkey: u32,
    }

    /// Union of the opcode-specific fields.
    #[c = "__typeof__(((struct ib_uverbs_send_wr *)0)->wr)"]
    pub struct ib_uverbs_send_wr_wr {
        /// The storage; use the members.
        #[c = "."]
        pub words: [u64; 4],
    }

    /// Member of [`ib_uverbs_send_wr_wr`]: RDMA read and write.
    #[c = "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.rdma)"]
    pub struct ib_uverbs_send_wr_rdma {
        /// Address at the peer.
        pub remote_addr: u64,
        /// Remote key.
        pub rkey: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Member of [`ib_uverbs_send_wr_wr`]: atomics.
    #[c = "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.atomic)"]
    pub struct ib_uverbs_send_wr_atomic {
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

    /// Member of [`ib_uverbs_send_wr_wr`]: datagrams.
    #[c = "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.ud)"]
    pub struct ib_uverbs_send_wr_ud {
        /// Address handle.
        pub ah: u32,
        /// The peer's QP number.
        pub remote_qpn: u32,
        /// The peer's Q_Key.
        pub remote_qkey: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// One send work request.
    pub struct ib_uverbs_send_wr {
        /// Value that the completion carries; the caller chooses it.
        pub wr_id: u64,
        /// Scatter/gather entries.
        pub num_sge: u32,
        /// `IB_UVERBS_WR_*`.
        pub opcode: u32,
        /// `IB_SEND_*`.
        pub send_flags: u32,
        /// Immediate data; for invalidation see [`invalidate_rkey`](Self::invalidate_rkey).
        #[c = "ex.imm_data"]
        pub imm_data: Be32,
        /// Opcode-specific fields.
        pub wr: ib_uverbs_send_wr_wr,
    }

    /// Posts sends through the kernel.
    pub struct ib_uverbs_post_send {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Queue pair.
        pub qp_handle: u32,
        /// Work requests that follow.
        pub wr_count: u32,
        /// Scatter/gather entries that follow them.
        pub sge_count: u32,
        /// Bytes of one work request.
        pub wqe_size: u32,
        /// The work requests, then all their scatter/gather entries.
        pub send_wr: [ib_uverbs_send_wr; 0],
    }

    /// Response to [`ib_uverbs_post_send`].
    pub struct ib_uverbs_post_send_resp {
        /// Number of the first work request that failed, from 1; 0 if none.
        pub bad_wr: u32,
    }

    /// One receive work request.
    pub struct ib_uverbs_recv_wr {
        /// Value that the completion carries; the caller chooses it.
        pub wr_id: u64,
        /// Scatter/gather entries.
        pub num_sge: u32,
        /// Must be 0.
        pub reserved: u32,
    }

    /// Posts receives through the kernel.
    pub struct ib_uverbs_post_recv {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Queue pair.
        pub qp_handle: u32,
        /// Work requests that follow.
        pub wr_count: u32,
        /// Scatter/gather entries that follow them.
        pub sge_count: u32,
        /// Bytes of one work request.
        pub wqe_size: u32,
        /// The work requests, then all their scatter entries.
        pub recv_wr: [ib_uverbs_recv_wr; 0],
    }

    /// Response to [`ib_uverbs_post_recv`].
    pub struct ib_uverbs_post_recv_resp {
        /// Number of the first work request that failed, from 1; 0 if none.
        pub bad_wr: u32,
    }

    /// Posts receives to an SRQ through the kernel.
    pub struct ib_uverbs_post_srq_recv {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Shared receive queue.
        pub srq_handle: u32,
        /// Work requests that follow.
        pub wr_count: u32,
        /// Scatter/gather entries that follow them.
        pub sge_count: u32,
        /// Bytes of one work request.
        pub wqe_size: u32,
        /// The work requests, then all their scatter entries.
        pub recv: [ib_uverbs_recv_wr; 0],
    }

    /// Response to [`ib_uverbs_post_srq_recv`].
    pub struct ib_uverbs_post_srq_recv_resp {
        /// Number of the first work request that failed, from 1; 0 if none.
        pub bad_wr: u32,
    }
}

abi_union!(ib_uverbs_send_wr_wr {
    /// RDMA read and write.
    rdma, set_rdma: ib_uverbs_send_wr_rdma;
    /// Atomics.
    atomic, set_atomic: ib_uverbs_send_wr_atomic;
    /// Datagrams.
    ud, set_ud: ib_uverbs_send_wr_ud;
});

impl ib_uverbs_send_wr {
    /// The other member of `ex`: the key that `IB_UVERBS_WR_SEND_WITH_INV` and `_LOCAL_INV` invalidate, host
    /// order.
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
