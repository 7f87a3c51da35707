// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compressed completion queue entries.
//!
//! A block of `n` completions, at least two, takes the place of `n` entries of a ring. The first is the title: an entry with the format
//! [`COMPRESSED`], whose `byte_cnt` is `n`. Its other fields are those of the first completion, and of all others but for
//! what their [`MiniCqe`]s have. Arrays of [`ARRAY`] mini entries are in the last 64 bytes of the entries 1, 8, 16, .. behind
//! the title; the mini entry of the title's own completion is the first. The device writes nothing to the other entries of the
//! block, and writes the title last.
//!
//! Facts: `struct mlx5_mini_cqe8` of `linux/mlx5/device.h`, and `mlx5e_decompress_cqes_start()` and its callees in the kernel's
//! `drivers/net/ethernet/mellanox/mlx5/core/en_rx.c`. The formats are those of `enum mlx5dv_cqe_comp_res_format`.

use crate::{Be16, Be32};
use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Format of a title ([`Cqe64::format`](crate::cqe::Cqe64::format)): `MLX5_COMPRESSED` of `linux/mlx5/device.h`.
    #[c = ""]
    pub const COMPRESSED: u8 = 3;
    /// Mini entries in an array: `MLX5_MINI_CQE_ARRAY_SIZE` of `linux/mlx5/device.h`.
    #[c = ""]
    pub const ARRAY: u32 = 8;

    /// Mini entries of receives have the hash of the packet.
    pub const MLX5DV_CQE_RES_FORMAT_HASH: u8 = 1 << 0;
    /// Mini entries of receives have the checksum of the packet.
    pub const MLX5DV_CQE_RES_FORMAT_CSUM: u8 = 1 << 1;
    /// Mini entries of receives have the checksum of the packet, and its stride in a striding receive queue.
    pub const MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX: u8 = 1 << 2;
}

abi_structs! {
    /// What a completion of a receive has of its own.
    #[c = ""]
    pub struct MiniCqe: 8 {
        /// Format with hash: the hash. Format with checksum: see [`MiniCsum`]. Send queue: see [`MiniSend`].
        pub info: Be32 = 0,
        /// Bytes moved.
        pub byte_cnt: Be32 = 4,
    }

    /// A [`MiniCqe`] with checksum.
    #[c = ""]
    pub struct MiniCsum: 8 {
        /// One's complement sum of the packet.
        pub checksum: Be16 = 0,
        /// The stride in the receive WQE. The kernel reads it for striding receive queues only, of which it takes the place of
        /// `wqe_counter`.
        pub stride_index: Be16 = 2,
        /// Bytes moved.
        pub byte_cnt: Be32 = 4,
    }

    /// A [`MiniCqe`] of a send queue (`s_wqe_info`). All formats of receives have the same one.
    #[c = ""]
    pub struct MiniSend: 8 {
        /// First basic block of the WQE modulo 65536.
        pub wqe_counter: Be16 = 0,
        /// Opcode of the WQE.
        pub opcode: u8 = 2,
        /// Reserved.
        pub reserved: u8 = 3,
        /// Bytes moved.
        pub byte_cnt: Be32 = 4,
    }
}

/// How far behind its title a block has the array with the mini entry of its completion `n`.
#[inline]
#[must_use]
pub const fn array_of(n: u32) -> u32 {
    let first = n / ARRAY * ARRAY;
    if first == 0 { 1 } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn arrays_are_at_1_8_16() {
        assert_eq!([0, 1, 7, 8, 15, 16, 23, 24].map(array_of), [1, 1, 1, 8, 8, 16, 16, 24]);
    }

    #[test]
    fn the_three_kinds_have_their_fields_in_the_first_word() {
        let csum =
            MiniCsum { checksum: Be16::new(0x1234), stride_index: Be16::new(0x5678), byte_cnt: Be32::new(9) };
        assert_eq!(csum.as_bytes(), [0x12, 0x34, 0x56, 0x78, 0, 0, 0, 9]);
        let send = MiniSend {
            wqe_counter: Be16::new(0x1234),
            opcode: 0x0a,
            reserved: 0,
            byte_cnt: Be32::new(0x0102_0304),
        };
        assert_eq!(send.as_bytes(), [0x12, 0x34, 0x0a, 0, 1, 2, 3, 4]);
        let hash = MiniCqe { info: Be32::new(0x1234_5678), byte_cnt: Be32::new(9) };
        assert_eq!(hash.as_bytes(), csum.as_bytes());
    }
}
