// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of a command: checks, and conversions to numbers and structs.

use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_uapi::ids::{UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT};
use uverbs_uapi::ioctl::UVERBS_ATTR_F_MANDATORY;
use zerocopy::{FromBytes, IntoBytes};

/// Refuses attributes that uverbs does not define.
///
/// # Errors
/// `EPROTONOSUPPORT` for a mandatory attribute that is not in `ids`.
pub fn known(c: &RawCommand<'_, '_>, ids: &[u16]) -> Result<(), Errno> {
    let unknown = |id: u16| !ids.contains(&id);
    if c.attrs().any(|a| a.flags & UVERBS_ATTR_F_MANDATORY != 0 && unknown(a.id)) {
        return Err(Errno::EPROTONOSUPPORT);
    }
    Ok(())
}

/// The handle of an existing object.
///
/// # Errors
/// There is no such attribute, or it is no handle.
pub fn handle(c: &RawCommand<'_, '_>, id: u16) -> Result<u32, Errno> {
    c.handle(id).and_then(|h| u32::try_from(h).ok()).ok_or(Errno::EINVAL)
}

/// As [`handle`], of an optional attribute.
///
/// # Errors
/// It is no handle.
pub fn optional_handle(c: &RawCommand<'_, '_>, id: u16) -> Result<Option<u32>, Errno> {
    if c.has(id) { handle(c, id).map(Some) } else { Ok(None) }
}

/// An input of 4 or 8 bytes as a number.
#[must_use]
pub fn number(c: &RawCommand<'_, '_>, id: u16) -> Option<u64> {
    let bytes = c.input(id)?;
    match bytes.len() {
        4 => u32::read_from_bytes(bytes).ok().map(u64::from),
        8 => u64::read_from_bytes(bytes).ok(),
        _ => None,
    }
}

/// A mandatory 32-bit number.
///
/// # Errors
/// There is no such attribute, or it is not a number of 32 bits.
pub fn number32(c: &RawCommand<'_, '_>, id: u16) -> Result<u32, Errno> {
    number(c, id).and_then(|n| u32::try_from(n).ok()).ok_or(Errno::EINVAL)
}

/// Optional flags.
///
/// # Errors
/// It is not a number of 32 bits.
pub fn flags(c: &RawCommand<'_, '_>, id: u16) -> Result<u32, Errno> {
    if c.has(id) { number32(c, id) } else { Ok(0) }
}

/// A struct. That of an older caller is shorter, and the rest is 0. That of a newer caller is longer, and the rest must
/// be 0.
///
/// # Errors
/// `EINVAL` if it is shorter than `least`, `EOPNOTSUPP` for other bytes than 0 behind what is known.
pub fn extensible<T: FromBytes + IntoBytes + Default>(
    bytes: Option<&[u8]>,
    least: usize,
) -> Result<T, Errno> {
    let bytes = bytes.unwrap_or_default();
    if bytes.len() < least {
        return Err(Errno::EINVAL);
    }
    let mut value = T::default();
    let place = value.as_mut_bytes();
    let n = place.len().min(bytes.len());
    place[..n].copy_from_slice(&bytes[..n]);
    if bytes[n..].iter().any(|b| *b != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(value)
}

/// The driver-private input.
///
/// # Errors
/// Those of [`extensible`].
pub fn uhw<T: FromBytes + IntoBytes + Default>(c: &RawCommand<'_, '_>, least: usize) -> Result<T, Errno> {
    extensible(c.input(UVERBS_ATTR_UHW_IN), least)
}

/// The request of a write command. uverbs reports a shorter one by `ENOSPC`.
///
/// # Errors
/// `ENOSPC` if it is too short, and those of [`extensible`].
pub fn core_in<T: FromBytes + IntoBytes + Default>(c: &RawCommand<'_, '_>) -> Result<T, Errno> {
    let bytes = c.input(UVERBS_ATTR_CORE_IN).unwrap_or_default();
    if bytes.len() < size_of::<T>() {
        return Err(Errno::ENOSPC);
    }
    extensible(Some(bytes), 0)
}

/// The answer of a write command.
///
/// # Errors
/// `ENOSPC` if there is no room for it.
pub fn core_out(c: &mut RawCommand<'_, '_>, bytes: &[u8]) -> Result<(), Errno> {
    if c.answer(UVERBS_ATTR_CORE_OUT, bytes) { Ok(()) } else { Err(Errno::ENOSPC) }
}

/// Stores the driver-private answer, if the caller has a buffer for it.
pub fn uhw_out(c: &mut RawCommand<'_, '_>, bytes: &[u8]) {
    c.answer(UVERBS_ATTR_UHW_OUT, bytes);
}
