// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbell records in memory, and the registers of a UAR page.
//!
//! Facts from `<infiniband/mlx5dv.h>`, PRM "UAR Page Format" (8.7) and `linux/mlx5/driver.h`.

use crate::Be32;
use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Word of a QP's, RQ's or SRQ's doorbell record: receives posted.
    pub const MLX5_RCV_DBR: usize = 0;
    /// Word of a QP's doorbell record: basic blocks posted, 16 bits.
    pub const MLX5_SND_DBR: usize = 1;
    /// Word of a CQ's doorbell record: consumer index, 24 bits. PRM 8.8.2.
    #[c = ""]
    pub const CQ_SET_CI: usize = 0;
    /// Word of a CQ's doorbell record: the value of [`CqDoorbell::arm`]. PRM 8.8.2.
    #[c = ""]
    pub const CQ_ARM_DB: usize = 1;
    /// Bytes of a doorbell record. PRM 8.8.1.
    #[c = ""]
    pub const DBREC_BYTES: usize = 8;

    /// Bytes of one UAR in the device, independent of the machine's page size. `MLX5_ADAPTER_PAGE_SIZE` of
    /// `linux/mlx5/device.h`.
    #[c = ""]
    pub const UAR_BYTES: usize = 4096;
    /// Offset of the first BlueFlame register in a UAR. `MLX5_BF_OFFSET` of `linux/mlx5/driver.h`.
    #[c = ""]
    pub const BF_OFFSET: usize = 0x800;
    /// Registers in a UAR that a process may use; each has two halves. `MLX5_NON_FP_BFREGS_PER_UAR` of
    /// `linux/mlx5/driver.h`.
    #[c = ""]
    pub const BFREGS_PER_UAR: usize = 2;
    /// Registers in a UAR, with those that the kernel keeps. `MLX5_BFREGS_PER_UAR` of `linux/mlx5/driver.h`.
    #[c = ""]
    pub const ALL_BFREGS_PER_UAR: usize = 4;

    /// Offset of the CQ doorbell in a UAR, 8 bytes.
    pub const MLX5_CQ_DOORBELL: usize = 0x20;
    /// Command of a CQ doorbell: event on the next completion.
    pub const MLX5_CQ_DB_REQ_NOT: u32 = 0;
    /// Command of a CQ doorbell: event on the next solicited or failed completion.
    pub const MLX5_CQ_DB_REQ_NOT_SOL: u32 = 1 << 24;
}

abi_structs! {
    /// Requests an event of a CQ: the bytes that are written to [`MLX5_CQ_DOORBELL`]. PRM 8.8.2; `mlx5dv.h` lacks it.
    #[c = ""]
    pub struct CqDoorbell: 8 {
        /// Sequence number (29:28), command (24), consumer index (23:0); the record's second word is the same.
        pub arm: Be32 = 0,
        /// CQ number, 24 bits.
        pub cqn: Be32 = 4,
    }
}

impl CqDoorbell {
    /// Packs the bit fields.
    #[inline]
    pub const fn new(sn: u32, cmd: u32, ci: u32, cqn: u32) -> Self {
        Self { arm: Be32::new((sn & 3) << 28 | cmd | ci & 0xff_ffff), cqn: Be32::new(cqn) }
    }

    /// Sequence number, 2 bits.
    #[inline]
    pub const fn sn(&self) -> u32 {
        self.arm.get() >> 28 & 3
    }

    /// `MLX5_CQ_DB_REQ_*`.
    #[inline]
    pub const fn cmd(&self) -> u32 {
        self.arm.get() & MLX5_CQ_DB_REQ_NOT_SOL
    }

    /// Consumer index, 24 bits.
    #[inline]
    pub const fn ci(&self) -> u32 {
        self.arm.get() & 0xff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn the_arm_doorbell_has_these_bytes() {
        let doorbell = CqDoorbell::new(6, MLX5_CQ_DB_REQ_NOT_SOL, 0x0512_3456, 0x401);
        assert_eq!(doorbell.as_bytes(), [0x21, 0x12, 0x34, 0x56, 0, 0, 4, 1]);
        assert_eq!((doorbell.sn(), doorbell.cmd(), doorbell.ci()), (2, MLX5_CQ_DB_REQ_NOT_SOL, 0x12_3456));
    }
}
