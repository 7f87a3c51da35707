// SPDX-License-Identifier: MIT OR Apache-2.0
//! The request of the one ioctl: a header, then attributes.
//!
//! Facts from `<rdma/rdma_user_ioctl_cmds.h>`, which has the licence text
//! (`GPL-2.0 OR Linux-OpenIB`) in place of an SPDX line.

use crate::layout::{abi_consts, abi_structs};

abi_consts! {
    /// ioctl type of every RDMA device file.
    pub const RDMA_IOCTL_MAGIC: u64 = 0x1b;
    /// The one ioctl of a uverbs file. Its number encodes the header's size, not that of the attributes.
    pub const RDMA_VERBS_IOCTL: u64 = _IOWR(RDMA_IOCTL_MAGIC, 1, size_of::<ib_uverbs_ioctl_hdr>());
    /// Set by the caller: fail if the kernel does not know this attribute.
    pub const UVERBS_ATTR_F_MANDATORY: u16 = 1 << 0;
    /// Set by the kernel: it wrote this output. Not significant for mandatory attributes.
    pub const UVERBS_ATTR_F_VALID_OUTPUT: u16 = 1 << 1;
}

abi_structs! {
    /// One attribute.
    pub struct ib_uverbs_attr {
        /// `UVERBS_ATTR_*` of the method.
        pub attr_id: u16,
        /// Bytes of the payload; up to 8 of an input are in `data` itself. 0 for handles and file descriptors.
        pub len: u16,
        /// `UVERBS_ATTR_F_*`.
        pub flags: u16,
        /// 0, or the element id of an enum attribute: see [`elem_id`](Self::elem_id).
        #[c = "attr_data.reserved"]
        pub attr_data: u16,
        /// Address of the payload, the payload itself, a handle or a file descriptor.
        pub data: u64,
    }

    /// The request: 24 bytes, then the attributes.
    pub struct ib_uverbs_ioctl_hdr {
        /// Bytes of header and attributes.
        pub length: u16,
        /// `UVERBS_OBJECT_*`.
        pub object_id: u16,
        /// `UVERBS_METHOD_*` of the object.
        pub method_id: u16,
        /// Attributes that follow.
        pub num_attrs: u16,
        /// Must be 0.
        pub reserved1: u64,
        /// `RDMA_DRIVER_*` of the device; the kernel refuses a wrong one.
        pub driver_id: u32,
        /// Must be 0.
        pub reserved2: u32,
        /// The attributes.
        pub attrs: [ib_uverbs_attr; 0],
    }
}

impl ib_uverbs_attr {
    /// The element id of an enum attribute: the first byte of `attr_data`.
    #[inline]
    pub const fn elem_id(&self) -> u8 {
        self.attr_data.to_ne_bytes()[0]
    }

    /// Sets the element id and zeroes the following byte.
    #[inline]
    pub const fn set_elem_id(&mut self, elem_id: u8) {
        self.attr_data = u16::from_ne_bytes([elem_id, 0]);
    }

    /// `data` as the signed word that file descriptor attributes use.
    #[inline]
    pub const fn data_s64(&self) -> i64 {
        self.data.cast_signed()
    }

    /// Stores the signed word that file descriptor attributes use.
    #[inline]
    pub const fn set_data_s64(&mut self, data: i64) {
        self.data = data.cast_unsigned();
    }
}

/// Encodes the number of an ioctl that writes and reads `size` bytes, as the kernel's macro of this name does
/// on every architecture with the generic encoding (x86, Arm, RISC-V, LoongArch, s390).
#[expect(non_snake_case, reason = "the C name")]
pub const fn _IOWR(magic: u64, nr: u64, size: usize) -> u64 {
    const READ_WRITE: u64 = 3;
    (READ_WRITE << 30) | ((size as u64) << 16) | (magic << 8) | nr
}
