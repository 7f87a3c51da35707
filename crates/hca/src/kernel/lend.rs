// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a command hands to the device.
// UNSAFETY: takes the promise that came with a command.
#![expect(unsafe_code)]

use crate::memory::{Area, Memory};
use crate::process::ProcessRange;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;

/// The range of `len` bytes at `addr`, both of which come from the inputs of `_command`. It must be dropped when the
/// object that it is for is destroyed.
pub(super) fn lend(_command: &RawCommand<'_, '_>, addr: u64, len: u64) -> Result<Arc<dyn Memory>, Errno> {
    // SAFETY: a `RawCommand` can't be had without the promise that memory which its inputs name by address is the
    // caller's to give away for as long as kernel and device use it (`Command::raw`), which is until the object is
    // destroyed; every caller of this function passes what such an input says and keeps the range with its object.
    let range = unsafe { ProcessRange::new(addr, len) };
    range.map(|range| Arc::new(range) as Arc<dyn Memory>).ok_or(Errno::EFAULT)
}

/// As [`lend`], all of it as an area.
pub(super) fn lend_area(command: &RawCommand<'_, '_>, addr: u64, len: u64) -> Result<Area, Errno> {
    Area::new(lend(command, addr, len)?, 0, len).ok_or(Errno::EINVAL)
}
