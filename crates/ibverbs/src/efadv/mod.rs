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
//! | here | the structs that this library reads or writes, with the fields of rdma-core 65 |
//! | `query` | the device, address handles, regions, depths of queues, the memory of queues |
//! | `create` | SRD QPs, CQs with EFA's options, and the functions of `struct efadv_cq` and `struct efadv_qp` |
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to structs, whose size the program passes.

mod create;
mod query;

use crate::abi::context::ibv_context;
use crate::abi::{Zeroed, c_struct, zeroed};
use crate::arg::Arg;
use crate::driver_library::DriverLibrary;
use crate::errno::{Outcome, ensure};
use crate::live::{Object, Used};
use crate::verbs::{Open, driver};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::{ptr, slice};
use uverbs_efa::Efa;

/// What EFA has besides.
pub(crate) const LIBRARY: DriverLibrary =
    DriverLibrary { firmware_version: query::firmware_version, in_order: query::in_order };

c_struct! {
    struct efadv_device_attr {
        comp_mask: u64,
        max_sq_wr: u32,
        max_rq_wr: u32,
        max_sq_sge: u16,
        max_rq_sge: u16,
        inline_buf_size: u16,
        inline_buf_size_ex: u16,
        device_caps: u32,
        max_rdma_size: u32,
    }

    struct efadv_ah_attr {
        comp_mask: u64,
        ahn: u16,
        reserved: [u8; 6],
    }

    struct efadv_sq_depth_attr {
        comp_mask: u64,
        flags: u32,
        max_send_sge: u32,
        max_rdma_sge: u32,
        max_inline_data: u32,
    }

    struct efadv_rq_depth_attr {
        comp_mask: u64,
        max_recv_sge: u32,
    }

    struct efadv_qp_init_attr {
        comp_mask: u64,
        driver_qp_type: u32,
        flags: u16,
        sl: u8,
        reserved: u8,
        wr_flags: u64,
    }

    struct efadv_wq_attr {
        comp_mask: u64,
        buffer: *mut u8,
        entry_size: u32,
        num_entries: u32,
        doorbell: *mut u32,
        max_batch: u32,
        caps: u16,
        reserved: [u8; 2],
    }

    struct efadv_qp {
        comp_mask: u64,
        wr_set_processing_hints: Option<unsafe extern "C" fn(*mut efadv_qp, u32)>,
    }

    struct efadv_cq_init_attr {
        comp_mask: u64,
        wc_flags: u64,
        flags: u64,
        ext_mem_dmabuf: ExtMemory,
    }

    struct efadv_cq_attr {
        comp_mask: u64,
        buffer: *mut u8,
        entry_size: u32,
        num_entries: u32,
        doorbell: *mut u32,
    }

    struct efadv_cq {
        comp_mask: u64,
        wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, Option<&mut MaybeUninit<[u8; 16]>>) -> c_int>,
        wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
    }

    struct efadv_mr_attr {
        comp_mask: u64,
        ic_id_validity: u16,
        recv_ic_id: u16,
        rdma_read_ic_id: u16,
        rdma_recv_ic_id: u16,
    }
}

/// The anonymous struct in [`efadv_cq_init_attr`]: memory for the queue, which this library does not take.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExtMemory {
    buffer: *mut u8,
    length: u64,
    offset: u64,
    fd: i32,
    reserved: [u8; 4],
}

zeroed! {
    efadv_ah_attr,
    efadv_cq,
    efadv_cq_attr,
    efadv_cq_init_attr,
    efadv_device_attr,
    efadv_mr_attr,
    efadv_qp,
    efadv_qp_init_attr,
    efadv_rq_depth_attr,
    efadv_sq_depth_attr,
    efadv_wq_attr,
}

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
