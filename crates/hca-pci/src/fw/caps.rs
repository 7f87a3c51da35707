// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for the capabilities.

use super::{Call, Status};
use crate::layout::{query_hca_cap_in, set_hca_cap_in};

/// Offset of the capabilities in the answer.
const ANSWER: usize = 16;

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let mode = query_hca_cap_in::OP_MOD.get(input) as u16;
    // Bit 0 selects the current capabilities, the other bits the group.
    let caps = call.function.caps.group(mode >> 1, mode & 1 == 0).ok_or(Status::BAD_PARAM)?;
    let answer = output.get_mut(ANSWER..).ok_or(Status::BAD_OUTPUT_LEN)?;
    let len = answer.len().min(caps.len());
    answer[..len].copy_from_slice(&caps[..len]);
    Ok(())
}

pub(super) fn set(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let group = (set_hca_cap_in::OP_MOD.get(input) >> 1) as u16;
    let wanted = set_hca_cap_in::CAPABILITY.bytes(input);
    let set = call.function.caps.set(group, wanted);
    if set { Ok(()) } else { Err(Status::BAD_PARAM) }
}
