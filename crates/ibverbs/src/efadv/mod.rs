// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of libefa (`<infiniband/efadv.h>`).
//!
//! As those of libmlx5 (`dv`), they are in this library under the names `uverbs_efadv_*`, in the private node `UVERBS_PRIVATE`, and
//! `libefa.so.1` has jumps to them, which the table `data/symbols-efa.txt` lists.
//!
//! A program passes the size of its struct, which may be that of an older or a newer header ([`read`], [`write`]).
//!
//! | module | contents |
//! |---|---|
//! | `query` | the device, address handles, regions, depths of queues, the memory of queues |
//! | `create` | SRD QPs, CQs with EFA's options |
//! | `functions` | the functions of `struct efadv_cq` and `struct efadv_qp` |
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to structs, whose size the program passes.

mod create;
mod functions;
mod query;

pub(crate) use query::{firmware_version, writes_blocks_in_order};

use crate::abi::Zeroed;
use crate::abi::context::ibv_context;
use crate::arg::Arg;
use crate::errno::{Outcome, ensure};
use crate::live::{Object, Used};
use crate::verbs::{Open, driver};
use core::{ptr, slice};
use uverbs_efa::Efa;

/// The driver of the context at a C pointer, `EOPNOTSUPP` if the device is not an EFA device.
fn of<'a>(context: Arg<'a, ibv_context>) -> Outcome<&'a Open<Efa>> {
    driver(context.open()?)
}

/// An object for a verb that uses it, and the driver of its context.
fn of_object<'a, T: Object>(object: Arg<'a, T>) -> Outcome<(&'a Open<Efa>, Used<'a, T>)> {
    let object = object.enter()?;
    Ok((driver(object.here())?, object))
}

/// Where a field ends: a struct that a program passes is at least so long.
macro_rules! end_of {
    ($name:ident, $field:ident) => {{
        const fn size<T, F>(_: fn(&T) -> &F) -> usize {
            size_of::<F>()
        }
        core::mem::offset_of!($name, $field) + size(|value: &$name| &value.$field)
    }};
}
use end_of;

/// The program's struct of `inlen` bytes, of which it has at least `min`. What an older program's struct lacks is 0, and what
/// follows in that of a newer program must be 0.
///
/// # Safety
/// `attr` is NULL or valid for reads of `inlen` bytes.
unsafe fn read<T: Zeroed>(attr: *const T, inlen: u32, min: usize) -> Outcome<T> {
    let len = inlen as usize;
    ensure(!attr.is_null() && len >= min)?;
    let (bytes, known) = (attr.cast::<u8>(), len.min(size_of::<T>()));
    // SAFETY: the pointer is valid for `inlen` bytes (the contract of this function).
    let all = unsafe { slice::from_raw_parts(bytes, len) };
    let rest = &all[known..];
    ensure(rest.iter().all(|byte| *byte == 0))?;
    let mut copy = T::zeroed();
    // SAFETY: `known` is at most the size of `copy`, and at most `inlen`, for which the pointer is valid (the contract of this function).
    unsafe { ptr::copy_nonoverlapping(bytes, (&raw mut copy).cast::<u8>(), known) };
    Ok(copy)
}

/// Writes as much of a result as the program's struct has, and zeros to the rest of that. The program's struct has at least `min` of
/// its `inlen` bytes.
///
/// # Safety
/// `attr` is NULL or valid for writes of `inlen` bytes.
unsafe fn write<T: Zeroed>(value: &T, attr: *mut T, inlen: u32, min: usize) -> Outcome<()> {
    let len = inlen as usize;
    ensure(!attr.is_null() && len >= min)?;
    let (bytes, known) = (attr.cast::<u8>(), len.min(size_of::<T>()));
    // SAFETY: the pointer is valid for `inlen` bytes (the contract of this function).
    unsafe { bytes.write_bytes(0, len) };
    // SAFETY: `known` is at most the size of `value`, and at most `inlen`; `value` is a struct of this library.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), bytes, known) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::efadv::{efadv_device_attr, efadv_rq_depth_attr};
    use crate::errno::Errno;

    #[test]
    fn a_struct_of_another_version_is_read_and_written_as_far_as_it_goes() {
        #[repr(C)]
        struct Newer(efadv_rq_depth_attr, u64);
        let mut newer = Newer(efadv_rq_depth_attr { comp_mask: 0, max_recv_sge: 3 }, 0);
        let (len, min) = (size_of::<Newer>() as u32, end_of!(efadv_rq_depth_attr, max_recv_sge));
        assert_eq!(min, 12);
        let read_newer = |newer: &Newer, len| {
            // SAFETY: a struct of this size.
            unsafe { read((&raw const *newer).cast::<efadv_rq_depth_attr>(), len, min) }
                .map(|attr| attr.max_recv_sge)
        };
        assert_eq!(read_newer(&newer, len), Ok(3));
        assert_eq!(read_newer(&newer, 12), Ok(3));
        assert_eq!(read_newer(&newer, 11), Err(Errno::EINVAL), "it lacks the last field");
        newer.1 = 1;
        assert_eq!(read_newer(&newer, len), Err(Errno::EINVAL), "what this version does not know");

        let mut bytes = [0xff_u8; 48];
        let mut value = efadv_device_attr::zeroed();
        (value.device_caps, value.max_rdma_size) = (5, 7);
        let (min, to) = (end_of!(efadv_device_attr, inline_buf_size), bytes.as_mut_ptr());
        let write_to = |len| {
            // SAFETY: the array is longer.
            unsafe { write(&value, to.cast::<efadv_device_attr>(), len, min) }
        };
        assert_eq!(write_to(21), Err(Errno::EINVAL));
        assert_eq!(write_to(28), Ok(()));
        assert_eq!((bytes[24..28].to_vec(), bytes[28]), (vec![5, 0, 0, 0], 0xff));
        let to = bytes.as_mut_ptr();
        // SAFETY: the array is longer.
        assert_eq!(unsafe { write(&value, to.cast::<efadv_device_attr>(), 40, min) }, Ok(()));
        assert_eq!((bytes[28], bytes[32..40].to_vec(), bytes[40]), (7, vec![0; 8], 0xff));
        // SAFETY: NULL.
        assert_eq!(unsafe { write(&value, ptr::null_mut(), 40, min) }, Err(Errno::EINVAL));
    }
}
