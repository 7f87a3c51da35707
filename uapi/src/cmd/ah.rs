// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on address handles, and addresses.
//!
//! Facts from `<rdma/ib_user_verbs.h>`, SPDX
//! `((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB)`.

use crate::layout::abi_structs;

abi_structs! {
    /// The global route header's part of an address.
    pub struct ib_uverbs_global_route {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Flow label, 20 bits.
        pub flow_label: u32,
        /// Index of the source GID in the port's table.
        pub sgid_index: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Traffic class.
        pub traffic_class: u8,
        /// Must be 0.
        pub reserved: u8,
    }

    /// An address.
    pub struct ib_uverbs_ah_attr {
        /// Global route, if `is_global`.
        pub grh: ib_uverbs_global_route,
        /// Destination LID.
        pub dlid: u16,
        /// Service level.
        pub sl: u8,
        /// Path bits of the source LID.
        pub src_path_bits: u8,
        /// `IB_RATE_*`; 0 means no limit.
        pub static_rate: u8,
        /// Non-zero: the packets carry a GRH.
        pub is_global: u8,
        /// Port, from 1.
        pub port_num: u8,
        /// Must be 0.
        pub reserved: u8,
    }

    /// Creates an address handle.
    pub struct ib_uverbs_create_ah {
        /// Address of the response buffer on the `write` path; ignored under the ioctl.
        pub response: u64,
        /// Value that events carry; the caller chooses it.
        pub user_handle: u64,
        /// Protection domain.
        pub pd_handle: u32,
        /// Must be 0.
        pub reserved: u32,
        /// The address.
        pub attr: ib_uverbs_ah_attr,
        /// Driver-private tail.
        pub driver_data: [u64; 0],
    }

    /// Response to [`ib_uverbs_create_ah`].
    pub struct ib_uverbs_create_ah_resp {
        /// Address handle.
        pub ah_handle: u32,
        /// Driver-private tail.
        pub driver_data: [u32; 0],
    }

    /// Destroys an address handle.
    pub struct ib_uverbs_destroy_ah {
        /// Address handle.
        pub ah_handle: u32,
    }
}
