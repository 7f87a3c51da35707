// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests in C's layout: `ibv_send_wr`, `ibv_recv_wr`, `ibv_sge` and the structs that they point to.
//!
//! The raw face uses these types, so a C program's lists are posted without conversion. The layouts are those of
//! `<infiniband/verbs.h>` (stable ABI); `tests/c_layout.rs` compares them with it. `opcode` determines which member of
//! a union is valid, as in ibv_post_send(3).

use core::ffi::c_void;

/// `enum ibv_wr_opcode`; an integer newtype, because C callers may pass anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WrOpcode(pub u32);

impl WrOpcode {
    /// `IBV_WR_RDMA_WRITE`
    pub const RDMA_WRITE: Self = Self(0);
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`
    pub const RDMA_WRITE_WITH_IMM: Self = Self(1);
    /// `IBV_WR_SEND`
    pub const SEND: Self = Self(2);
    /// `IBV_WR_SEND_WITH_IMM`
    pub const SEND_WITH_IMM: Self = Self(3);
    /// `IBV_WR_RDMA_READ`
    pub const RDMA_READ: Self = Self(4);
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`
    pub const ATOMIC_CMP_AND_SWP: Self = Self(5);
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`
    pub const ATOMIC_FETCH_AND_ADD: Self = Self(6);
    /// `IBV_WR_LOCAL_INV`
    pub const LOCAL_INV: Self = Self(7);
    /// `IBV_WR_BIND_MW`
    pub const BIND_MW: Self = Self(8);
    /// `IBV_WR_SEND_WITH_INV`
    pub const SEND_WITH_INV: Self = Self(9);
    /// `IBV_WR_TSO`
    pub const TSO: Self = Self(10);
    /// `IBV_WR_DRIVER1`: the wr builder of a driver extension, never legal in a list.
    pub const DRIVER1: Self = Self(11);
    /// `IBV_WR_FLUSH`
    pub const FLUSH: Self = Self(14);
    /// `IBV_WR_ATOMIC_WRITE`
    pub const ATOMIC_WRITE: Self = Self(15);
}

bitflags::bitflags! {
    /// `enum ibv_send_flags`; also the `wr_flags` of the builder API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    pub struct SendFlags: u32 {
        /// Wait until all earlier RDMA reads and atomics of this QP are complete. RC only.
        const FENCE = 1 << 0;
        /// Generate a completion for this WR even if the QP was not created with `sq_sig_all`.
        const SIGNALED = 1 << 1;
        /// Request a solicited event at the responder; for sends and writes with immediate.
        const SOLICITED = 1 << 2;
        /// Copy the data into the WQE now; the buffers need no lkey and may be reused after the call.
        const INLINE = 1 << 3;
        /// Let the device compute the IP and L4 checksums. UD and raw packet QPs that offer it.
        const IP_CSUM = 1 << 4;
    }
}

/// `struct ibv_sge`: `length` bytes of registered memory from virtual address `addr`. Host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub struct Sge {
    /// Start address (the iova for a region registered with one).
    pub addr: u64,
    /// Bytes; 0 means none (the entry is skipped), on every queue.
    pub length: u32,
    /// Local key of the region; ignored for inline data.
    pub lkey: u32,
}

/// Immediate data: four bytes in network byte order, as C's `__be32 imm_data`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ImmData(u32);

impl ImmData {
    /// Converts a number in host byte order (`htobe32`).
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn new(host: u32) -> Self {
        Self(host.to_be())
    }
    /// Converts the raw `__be32`.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn from_be(raw: u32) -> Self {
        Self(raw)
    }
    /// The raw `__be32`.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn to_be(self) -> u32 {
        self.0
    }
    /// As a number in host byte order (`be32toh`).
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn get(self) -> u32 {
        u32::from_be(self.0)
    }
}

/// The public prefix of C's `struct ibv_ah`; a driver's own part follows it in [`RawAh`].
#[derive(Debug)]
#[repr(C)]
pub struct IbvAh {
    /// `struct ibv_context *`; unused by the data path, NULL if created by Rust.
    pub context: *mut c_void,
    /// `struct ibv_pd *`; unused by the data path, NULL if created by Rust.
    pub pd: *mut c_void,
    /// Kernel handle, for diagnostics.
    pub handle: u32,
}

/// The struct that `wr.ud.ah` points to: C's public prefix, then the data that the driver's encoder needs.
#[derive(Debug)]
#[repr(C)]
pub struct RawAh<A> {
    /// The part that C programs use.
    pub base: IbvAh,
    /// The driver's address data.
    pub driver: A,
}

/// C's `struct ibv_mr`.
#[derive(Debug)]
#[repr(C)]
pub struct IbvMr {
    /// `struct ibv_context *`, NULL if created by Rust.
    pub context: *mut c_void,
    /// `struct ibv_pd *`, NULL if created by Rust.
    pub pd: *mut c_void,
    /// Start of the region.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// Kernel handle.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// C's `struct ibv_mw`.
#[derive(Debug)]
#[repr(C)]
pub struct IbvMw {
    /// `struct ibv_context *`, NULL if created by Rust.
    pub context: *mut c_void,
    /// `struct ibv_pd *`, NULL if created by Rust.
    pub pd: *mut c_void,
    /// The window's current remote key.
    pub rkey: u32,
    /// Kernel handle.
    pub handle: u32,
    /// 1 or 2 (`enum ibv_mw_type`).
    pub mw_type: u32,
}

/// C's `struct ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IbvMwBindInfo {
    /// The region that the window is bound to; it must have been registered with `MW_BIND` access.
    pub mr: *const IbvMr,
    /// First address the window covers.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Access flags (`enum ibv_access_flags`) of the window.
    pub mw_access_flags: u32,
}

/// C's `struct ibv_data_buf`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IbvDataBuf {
    /// Start.
    pub addr: *const u8,
    /// Bytes.
    pub length: usize,
}

/// `ibv_send_wr.wr.rdma`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct WrRdma {
    /// Remote virtual address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// `ibv_send_wr.wr.atomic`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct WrAtomic {
    /// Remote virtual address, 8-byte aligned.
    pub remote_addr: u64,
    /// Compare value, or the addend of fetch-and-add; host byte order.
    pub compare_add: u64,
    /// Swap value; host byte order.
    pub swap: u64,
    /// Remote key.
    pub rkey: u32,
}

/// `ibv_send_wr.wr.ud`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WrUd {
    /// The destination; points to the [`RawAh`] of the QP's driver.
    pub ah: *const IbvAh,
    /// Destination QP number, 24 bits (0xffffff for multicast).
    pub remote_qpn: u32,
    /// Destination's queue key.
    pub remote_qkey: u32,
}

/// `ibv_send_wr.bind_mw`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WrBindMw {
    /// The window.
    pub mw: *const IbvMw,
    /// The new remote key of the window.
    pub rkey: u32,
    /// The memory and the access rights.
    pub bind_info: IbvMwBindInfo,
}

/// `ibv_send_wr.tso`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WrTso {
    /// Header that is put before every segment.
    pub hdr: *const u8,
    /// Its bytes.
    pub hdr_sz: u16,
    /// Payload bytes of a segment.
    pub mss: u16,
}

/// `ibv_send_wr.wr`
#[derive(Clone, Copy)]
#[repr(C)]
pub union WrUnion {
    /// RDMA read and writes.
    pub rdma: WrRdma,
    /// Atomics.
    pub atomic: WrAtomic,
    /// Sends on UD.
    pub ud: WrUd,
}

/// The last union of `ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub union WrTail {
    /// `IBV_WR_BIND_MW`
    pub bind_mw: WrBindMw,
    /// `IBV_WR_TSO`
    pub tso: WrTso,
}

/// `struct ibv_send_wr`, a node of the list that `post_send` takes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Next node or NULL.
    pub next: *const SendWr,
    /// `num_sge` entries; may be NULL when there are none.
    pub sg_list: *const Sge,
    /// Entries of `sg_list`; negative is an error.
    pub num_sge: i32,
    /// The operation.
    pub opcode: WrOpcode,
    /// [`SendFlags`] as raw bits.
    pub send_flags: u32,
    /// `imm_data` (`__be32`) of the `_WITH_IMM` opcodes, `invalidate_rkey` of the `_INV` ones.
    pub imm_data_or_invalidate_rkey: u32,
    /// The fields that depend on the opcode and the QP type.
    pub wr: WrUnion,
    /// `qp_type.xrc.remote_srqn`, for XRC_SEND QPs.
    pub xrc_remote_srqn: u32,
    /// The fields that depend on the opcode.
    pub tail: WrTail,
}

impl SendWr {
    /// A node with everything zero but id and opcode.
    #[must_use]
    pub const fn new(wr_id: u64, opcode: WrOpcode) -> Self {
        Self {
            wr_id,
            next: core::ptr::null(),
            sg_list: core::ptr::null(),
            num_sge: 0,
            opcode,
            send_flags: 0,
            imm_data_or_invalidate_rkey: 0,
            wr: WrUnion { atomic: WrAtomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
            xrc_remote_srqn: 0,
            tail: WrTail {
                bind_mw: WrBindMw {
                    mw: core::ptr::null(),
                    rkey: 0,
                    bind_info: IbvMwBindInfo {
                        mr: core::ptr::null(),
                        addr: 0,
                        length: 0,
                        mw_access_flags: 0,
                    },
                },
            },
        }
    }
}

impl core::fmt::Debug for SendWr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SendWr")
            .field("wr_id", &self.wr_id)
            .field("opcode", &self.opcode)
            .field("num_sge", &self.num_sge)
            .field("send_flags", &SendFlags::from_bits_retain(self.send_flags))
            .finish_non_exhaustive()
    }
}

/// `struct ibv_recv_wr`, a node of the list that `post_recv` and `post_srq_recv` take.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Next node or NULL.
    pub next: *const RecvWr,
    /// `num_sge` entries; may be NULL when there are none.
    pub sg_list: *const Sge,
    /// Entries of `sg_list`; negative is an error.
    pub num_sge: i32,
}

impl RecvWr {
    /// A node without scatter entries.
    #[must_use]
    pub const fn new(wr_id: u64) -> Self {
        Self { wr_id, next: core::ptr::null(), sg_list: core::ptr::null(), num_sge: 0 }
    }
}
