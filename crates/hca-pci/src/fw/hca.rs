// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for the function itself: enabling, pages for the firmware (which needs none), versions.

use super::{Call, Status};
use crate::layout::{
    manage_pages_in, query_adapter_out, query_adapter_param_block, query_issi_out, query_pages_out,
    set_issi_in,
};

/// The only version of the interface besides 0 (`ISSI 1`).
const ISSI: u32 = 1;
/// The board's identification, as `ibv_devinfo` shows it.
const BOARD: &[u8; 16] = b"UVERBS_SOFT_HCA\0";

/// Commands that succeed without an effect.
#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn nothing(_: &mut Call<'_, '_>, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    Ok(())
}

/// Commands that need a capability which this device does not report. Programs send them to find that out: UCX sends
/// `QUERY_LAG` through DEVX for each device.
pub(super) fn without_capability(_: &mut Call<'_, '_>, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    Err(Status::BAD_OP)
}

/// Counters that stay 0.
#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn zeros(_: &mut Call<'_, '_>, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    Ok(())
}

/// The driver is unloaded, or disables the device: all its objects are destroyed.
#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn teardown(call: &mut Call<'_, '_>, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    call.function.reset(call.device, call.port);
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn query_pages(_: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    query_pages_out::NUM_PAGES.set(output, 0_u32);
    Ok(())
}

/// The firmware requests no pages, so the driver must not provide any. Requests to return pages succeed without an
/// effect.
pub(super) fn manage_pages(_: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let gives = manage_pages_in::OP_MOD.get(input) == 1;
    if gives && manage_pages_in::INPUT_NUM_ENTRIES.get(input) != 0 {
        return Err(Status::BAD_PARAM);
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn query_issi(_: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    query_issi_out::CURRENT_ISSI.set(output, ISSI);
    // A bit for each version.
    query_issi_out::SUPPORTED_ISSI_DW0.set(output, 1 << ISSI | 1_u32);
    Ok(())
}

pub(super) fn set_issi(_: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    if set_issi_in::CURRENT_ISSI.get32(input) == ISSI { Ok(()) } else { Err(Status::BAD_PARAM) }
}

#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn query_adapter(_: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let block = query_adapter_out::QUERY_ADAPTER_STRUCT.bytes_mut(output);
    query_adapter_param_block::IEEE_VENDOR_ID.set(block, 0x2c9_u32);
    let board = query_adapter_param_block::VSD_CONTD_PSID.bytes_mut(block);
    let len = board.len().min(BOARD.len());
    board[..len].copy_from_slice(&BOARD[..len]);
    Ok(())
}
