// SPDX-License-Identifier: MIT OR Apache-2.0
//! The initialization segment at the start of BAR 0 (`struct mlx5_init_seg` of `<linux/mlx5/device.h>`).

use uverbs_hca::bytes::put;

/// Significant bytes of the segment.
pub(crate) const BYTES: u64 = 0x1040;

/// `fw_rev`: minor and major version, and the subminor behind the revision of the command interface.
const FW_REV: usize = 0x00;
const CMDIF_REV: usize = 0x04;
/// `cmdq_addr_h`, `cmdq_addr_l_sz`: the address of the command queue.
pub(crate) const QUEUE_HIGH: u64 = 0x10;
pub(crate) const QUEUE_LOW: u64 = 0x14;
/// `cmd_dbell`: a bit for each slot.
pub(crate) const DOORBELL: u64 = 0x18;
/// `internal_timer_h`, `internal_timer_l`.
const TIMER: usize = 0x1000;
/// `health_counter`: must increase while the device works.
const HEALTH: usize = 0x1010;

/// The version that `ibv_devinfo` shows: major, minor, subminor.
pub(crate) const VERSION: (u16, u16, u16) = (20, 40, 1000);
/// `CMD_IF_REV`
const INTERFACE: u16 = 5;
/// The queue's entries and the bytes of an entry, as powers of two.
pub(crate) const LOG_SLOTS: u8 = 5;
pub(crate) const LOG_STRIDE: u8 = 6;

/// The segment at the time `now`, in nanoseconds. `state` is the interface's state that the driver wrote.
pub(crate) fn read(now: u64, state: u8) -> [u8; BYTES as usize] {
    let mut bytes = [0; BYTES as usize];
    let (major, minor, sub) = VERSION;
    put(&mut bytes, FW_REV, &minor.to_be_bytes());
    put(&mut bytes, FW_REV + 2, &major.to_be_bytes());
    put(&mut bytes, CMDIF_REV, &INTERFACE.to_be_bytes());
    put(&mut bytes, CMDIF_REV + 2, &sub.to_be_bytes());
    put(&mut bytes, QUEUE_LOW as usize + 2, &[state, LOG_SLOTS << 4 | LOG_STRIDE]);
    // A tick is a nanosecond, as in completions.
    put(&mut bytes, TIMER, &now.to_be_bytes());
    let alive = (now / 1_000_000) as u32;
    put(&mut bytes, HEALTH, &alive.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_hca::bytes::{be32, be64};

    #[test]
    fn the_driver_finds_its_fields() {
        let bytes = read(5_000_000, 0);
        assert_eq!(be32(&bytes, 0), 40 << 16 | 20);
        assert_eq!(be32(&bytes, 4) >> 16, 5);
        assert_eq!(be32(&bytes, 0x14), 0x56);
        assert_eq!(be32(&bytes, 0x1fc), 0, "initialized");
        assert_eq!(be64(&bytes, 0x1000), 5_000_000);
        assert_eq!(be32(&bytes, 0x1010), 5);
        assert_ne!(be32(&read(6_000_000, 0), 0x1010), 5, "the counter increases");
    }
}
