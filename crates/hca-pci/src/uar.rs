// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbells: register writes in the pages behind the initialization segment.
//!
//! A write of 8 bytes is a doorbell. A WQE that is written to a BlueFlame register arrives as several writes: the first
//! 8 bytes are the doorbell; the others repeat the bytes in the ring, from which the device fetches the WQE.

use crate::state::Function;
use uverbs_hca::bytes::{array, be32};
use uverbs_hca::front::{Device, Port};
use uverbs_mlx5_hw::doorbell::UAR_BYTES;

/// Doorbells of event queues: consumer index with arming, and consumer index only (`MLX5_EQ_DOORBEL_OFFSET`).
const EQ_ARM: u32 = 0x40;
const EQ_UPDATE: u32 = 0x48;
/// Doorbell of completion queues: arming (`MLX5_CQ_DOORBELL`).
const CQ_ARM: u32 = 0x20;
/// Offset of the send doorbells (`MLX5_BF_OFFSET`), and the bytes of all of them.
const SEND: core::ops::Range<u32> = 0x800..0x1000;
/// Bytes of one half of a register.
const HALF: u32 = 0x100;

/// A write at an offset of BAR 0 behind the initialization segment.
pub(crate) fn write(device: &mut Device, function: &mut Function, port: &mut Port<'_>, at: u64, data: &[u8]) {
    let page = (at / UAR_BYTES as u64) as u32;
    let offset = (at % UAR_BYTES as u64) as u32;
    match offset {
        EQ_ARM | EQ_UPDATE if data.len() >= 4 => function.eq_doorbell(be32(data, 0), offset == EQ_ARM),
        CQ_ARM => {
            if let Some(value) = array(data, 0) {
                device.doorbell(port, page, offset, value, None);
            }
        }
        _ if SEND.contains(&offset) => {
            // The rest of a burst.
            if !offset.is_multiple_of(HALF) {
                return;
            }
            if let Some(value) = array(data, 0) {
                device.doorbell(port, page, offset, value, None);
            }
        }
        _ => {
            log::debug!("{}: a write of {} bytes to {offset:#x} of page {page:#x}", function.name, data.len())
        }
    }
}
